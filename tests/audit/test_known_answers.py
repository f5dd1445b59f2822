"""Audits whose answer is known before they run, from arithmetic or from how they were broken: the verdict must be it.

Each set-up is a real run (those that differ in their attack alone share one) or a copy of one whose recordings or truth
were changed. The expected verdict follows from the reason beside it and not from having run the code.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn

from flfw.adversary.attack import NotApplicableError
from flfw.experiment import Experiment
from flfw.nets import Net, Tensors
from flfw.plans.run_plan import plan, without_auto
from flfw.recording.observation import Knowledge, Observation, Reconstruction
from flfw.task.defence import Defence
from tests.support.known_answers import (
    BROKEN,
    GREY_LEVELS,
    IDENTIFIES,
    INCONCLUSIVE,
    LEAKS,
    STATIC,
    Answers,
    Averaged,
    ByClosedForm,
    Laboratory,
    Setup,
    controls,
    damaged,
    garbled,
    shifted_truth,
    swapped_truth,
    torn_truth,
    unkept_truth,
    unrecorded,
)
from tests.support.silent_defences import Blanks, SendsNothing
from tests.support.small_runs import Generators, Observations, plug_in

# --- methods and defences ---


@final
class Dead(Averaged):
    """FedAvg of a network whose first layer never fires: its gradient there is exactly zero."""

    @classmethod
    def build_model(cls, net: Net, settings: Any) -> nn.Module:
        first = next(layer for layer in net.extractor if isinstance(layer, nn.Linear))  # type: ignore[attr-defined]
        with torch.no_grad():
            first.bias.fill_(-1e3)
        return net


class Impostors(Defence):
    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.rand(x.shape, generator=rng), y


class Drowned(Defence):
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value + 1e3 * torch.randn(value.shape, generator=rng) for name, value in update.items()}


class Shuffled(Defence):
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {n: v.flatten()[torch.randperm(v.numel(), generator=rng)].view_as(v) for n, v in update.items()}


class Doubled(Defence):
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: 2 * value for name, value in update.items()}


# --- attacks: all begin with the closed form, and what they make of it is known ---


class Exact(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x


class Noise(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return torch.rand(x.shape, generator=rng)


class Grey(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return torch.full_like(x, 0.5)


class Black(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return torch.zeros_like(x)


class ClassMean(ByClosedForm):
    """Knows each example's class and what such examples look like on average."""

    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        samples, labels = _public()
        nearest = (samples - x).square().flatten(1).sum(1).argmin()
        return samples[labels == labels[nearest]].mean(0, keepdim=True)


class NearestPublic(ByClosedForm):
    """Knows which of all public images is nearest to the truth."""

    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        samples, _ = _public()
        return samples[(samples - x).square().flatten(1).sum(1).argmin()][None]


@cache
def _public() -> tuple[Tensor, Tensor]:
    experiment = without_auto(Experiment(net="linear", clients=2, method="fedavg"))
    task = plan(experiment).task.load(None)
    return task.examples("test", task.split.public)


class AnotherVictim(ByClosedForm):
    def made_of(self, exact: list[Tensor], observations: Observations, rngs: Generators) -> list[Reconstruction]:
        return [Reconstruction(x) for x in exact[::-1]]


class Mean(ByClosedForm):
    """One image for all: the mean of all victims."""

    def made_of(self, exact: list[Tensor], observations: Observations, rngs: Generators) -> list[Reconstruction]:
        mean = torch.stack(exact).mean(0)
        return [Reconstruction(mean.clone()) for _ in exact]


class GrantedMean(ByClosedForm):
    """One grey level, the mean that inputs are normalised with."""

    def run(self, observations: Observations, knowledge: Sequence[Knowledge], rngs: Generators) -> list[Reconstruction]:
        inputs = [known.model.inputs for known in knowledge]
        return [Reconstruction(space.mean.expand(1, *space.shape)) for space in inputs]


class Negative(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return 1 - x


class Mirrored(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x.flip(-1, -2)


class OfEightBits(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return 255 * x


class Dim(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x / 4


class Blurred(ByClosedForm):
    """Off by 0.01 everywhere: 40 dB."""

    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x + torch.where(x > 0.5, -0.01, 0.01)


class OffByAFifth(ByClosedForm):
    """Off by 0.2 everywhere: 14 dB."""

    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x + torch.where(x > 0.5, -0.2, 0.2)


class NaN(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x * torch.nan


class OneInfinity(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        result = x.clone()
        result.view(-1)[0] = torch.inf
        return result


class LossIsNaN(ByClosedForm):
    def made_of(self, exact: list[Tensor], observations: Observations, rngs: Generators) -> list[Reconstruction]:
        return [Reconstruction(x, matching_loss=float("nan")) for x in exact]


class OtherShape(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x[..., :-1]


class TooMany(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return torch.cat([x, x])


class TooFew(ByClosedForm):
    def made_of(self, exact: list[Tensor], observations: Observations, rngs: Generators) -> list[Reconstruction]:
        return [Reconstruction(x) for x in exact[1:]]


class NoList(ByClosedForm):
    def made_of(self, *_: Any) -> Any:
        return None


class Raises(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        raise ZeroDivisionError("of course")


class Declines(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        raise NotApplicableError("nothing here for me")


class OneTensorForAll(ByClosedForm):
    def made_of(self, exact: list[Tensor], observations: Observations, rngs: Generators) -> list[Reconstruction]:
        return [Reconstruction(torch.full_like(exact[0], 0.5))] * len(exact)


class EasyOnly(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x if observation.control == "easy" else torch.rand(x.shape, generator=rng)


class EasyOnlyElseRaises(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        if observation.control != "easy":
            raise ZeroDivisionError("of course")
        return x


class EasyOnlyElseHalfNaN(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x if observation.control == "easy" else x * (torch.nan if observation.slot else 0)


class TargetOnly(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x if observation.control == "target" else torch.rand(x.shape, generator=rng)


class FirstOnly(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x if observation.slot == 0 else torch.rand(x.shape, generator=rng)


class FirstOnlyElseNaN(ByClosedForm):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x if observation.slot == 0 else x * torch.nan


def _zeros(answers: Answers, *slots: int) -> Answers:
    return [{n: v * (i not in slots) for n, v in answer.items()} for i, answer in enumerate(answers)]


def _first_value(answers: Answers, value: float) -> Answers:
    for tensor in answers[1].values():
        tensor.view(-1)[0] = value
    return answers


def _noisy(answers: Answers) -> Answers:
    rng = torch.Generator().manual_seed(0)
    return [{n: v + 0.1 * v.abs().max() * torch.randn(v.shape, generator=rng) for n, v in a.items()} for a in answers]


def _tripled(answers: Answers) -> Answers:
    return [{name: 3 * value for name, value in answer.items()} for answer in answers]


# --- the set-ups ---


MLP: dict[str, Any] = {"net": "mlp"}
BOTH: dict[str, Any] = {"audit_rounds": "0,1"}
IG: dict[str, Any] = {"net": "linear", "set": ("ig.iterations=400",)}
EIGHT: dict[str, Any] = {"victim_batch": 8}
SEARCHED: dict[str, Any] = {"set": ("ig.iterations=1",)}
FLAT, BRIGHT, NOISY, *_ = GREY_LEVELS

LEAKING = {
    "softmax regression, fresh": Setup(LEAKS, "x = dW_k / db_k for one example", fields=BOTH),
    "softmax regression, trained": Setup(LEAKS, "the closed form holds for all weights", fields=BOTH, round=1),
    "hidden layers, fresh": Setup(LEAKS, "a unit of the first layer that fires gives x", fields={**MLP, **BOTH}),
    "hidden layers, trained": Setup(LEAKS, "the same after a round", fields={**MLP, **BOTH}, round=1),
    "rows": Setup(LEAKS, "the closed form does not care what an input is", fields={"dataset": "cancer"}),
    "rows, hidden layers": Setup(LEAKS, "nor does it here", fields={"dataset": "cancer", **MLP}),
    "fedprox": Setup(LEAKS, "the proximal term has no gradient at the broadcast", fields={"method": "fedprox"}),
    "fedper": Setup(LEAKS, "the shared first layer is enough", fields={"method": "fedper", **MLP}),
    "larger images": Setup(LEAKS, "nor does the closed form care for sizes", fields={"image_size": 16}),
    "other normalisation": Setup(LEAKS, "it is granted", fields={"normalise": "half"}),
    "other seed": Setup(LEAKS, "nor for chance", fields={"seed": 5}),
    "five local steps": Setup(LEAKS, "every step's gradient is a multiple of x", fields={"victim_steps": 5}),
    "three steps, hidden layers": Setup(LEAKS, "the same unit by unit", fields={**MLP, "victim_steps": 3}),
    "steps with the proximal term": Setup(
        LEAKS, "it adds mu times so far's change, a multiple of x, too", fields={"method": "fedprox", "victim_steps": 3}
    ),
    "steps at a high rate": Setup(LEAKS, "multiples of x add up to one", fields={"victim_steps": 2, "lr": 0.5}),
    "two examples": Setup(LEAKS, "unit y_1 holds 9/8 of x_1 less 1/8 of x_2, 18 dB below", fields={"victim_batch": 2}),
    "scaled": Setup(LEAKS, "a factor cancels in dW_k / db_k", fields={"defence": plug_in(Doubled)}),
    "one client in two defended": Setup(
        LEAKS, "the other one leaks", fields={"defence": plug_in(Blanks), "defended": "1"}
    ),
    "pruned by a tenth": Setup(
        LEAKS, "the largest unit keeps nearly all", fields={"defence": "prune", "set": ("prune.ratio=0.1",)}
    ),
    "searched": Setup(LEAKS, "the direction of the gradient has one cause", "ig", IG),
    "all but exact": Setup(LEAKS, "40 dB", plug_in(Blurred)),
    "only the target": Setup(LEAKS, "what was reconstructed is proof by itself", plug_in(TargetOnly)),
    "one victim of two": Setup(LEAKS, "one is enough", plug_in(FirstOnly)),
    "one of two, none of the other": Setup(LEAKS, "one is enough", plug_in(FirstOnlyElseNaN)),
    "one of two, trained": Setup(LEAKS, "one is enough", plug_in(FirstOnly), BOTH, round=1),
}

PROTECTED = {
    "nothing sent": Setup(STATIC, "0 / 0", fields={"defence": plug_in(SendsNothing)}),
    "black images": Setup(STATIC, "exact, of black images", fields={"defence": plug_in(Blanks)}),
    "noise for images": Setup(STATIC, "exact, of noise", fields={"defence": plug_in(Impostors)}),
    "noise in the gradient": Setup(STATIC, "a thousand times the gradient", fields={"defence": plug_in(Drowned)}),
    "shuffled": Setup(STATIC, "weights and biases no longer correspond", fields={"defence": plug_in(Shuffled)}),
    "pruned to a hundredth": Setup(
        IDENTIFIES,
        "7 of 640 weights are left, of the largest unit: a few pixels, exact",
        fields={"defence": "prune", "set": ("prune.ratio=0.99",), "images": 8},
    ),
    "pruned to a hundredth, two messages": Setup(
        STATIC, "the results of two messages control little", fields={"defence": "prune", "set": ("prune.ratio=0.99",)}
    ),
    "a private head, and defended": Setup(
        STATIC, "0 / 0", fields={"method": "fedper", **MLP, "defence": plug_in(SendsNothing)}
    ),
    "a private head": Setup(STATIC, "it is not known to the attack", plug_in(EasyOnly), {"method": "fedper", **MLP}),
    "several steps": Setup(
        INCONCLUSIVE, "nothing is hidden, the path is not made use of", plug_in(EasyOnly), {"victim_steps": 5}
    ),
    "several steps of eight": Setup(
        IDENTIFIES,
        "mixtures, most of them with a large share of one example",
        fields={"dataset": NOISY, **EIGHT, "victim_steps": 3},
    ),
    "eight examples": Setup(
        IDENTIFIES, "a unit holds x with 0.75 of another or -0.5 of seven", fields={"dataset": NOISY, **EIGHT}
    ),
    "a dead layer": Setup(
        INCONCLUSIVE, "0 / 0, but nothing hides the data in the other layers", fields={"method": plug_in(Dead), **MLP}
    ),
    "fails on the target": Setup(INCONCLUSIVE, "an undefended target, and it found noise", plug_in(EasyOnly)),
    "fails on the target, trained": Setup(INCONCLUSIVE, "the same after a round", plug_in(EasyOnly), BOTH, round=1),
}

FAILING = {
    "raises on the target": Setup(INCONCLUSIVE, "it gave no result", plug_in(EasyOnlyElseRaises), stops=True),
    "half NaN on the target": Setup(INCONCLUSIVE, "half of it gave no result", plug_in(EasyOnlyElseHalfNaN)),
    "more examples than units": Setup(
        INCONCLUSIVE, "ten units, sixteen examples", fields={"victim_batch": 16}, stops=True
    ),
    "a generated extractor": Setup(
        INCONCLUSIVE, "no layer to read off", fields={"method": "hyperfl", **MLP}, stops=True
    ),
    "noise": Setup(INCONCLUSIVE, "works nowhere", plug_in(Noise)),
    "grey": Setup(INCONCLUSIVE, "works nowhere", plug_in(Grey)),
    "black": Setup(INCONCLUSIVE, "works nowhere", plug_in(Black)),
    "one tensor for all": Setup(INCONCLUSIVE, "works nowhere", plug_in(OneTensorForAll)),
    "class means": Setup(INCONCLUSIVE, "no closer than the class mean", plug_in(ClassMean)),
    "the nearest public image": Setup(INCONCLUSIVE, "no closer than the oracle's choice", plug_in(NearestPublic)),
    "the other victim": Setup(INCONCLUSIVE, "exact, of somebody else", plug_in(AnotherVictim)),
    "the victims' mean": Setup(INCONCLUSIVE, "of two digits", plug_in(Mean)),
    "negatives": Setup(INCONCLUSIVE, "black for white", plug_in(Negative)),
    "turned round": Setup(INCONCLUSIVE, "upside down", plug_in(Mirrored)),
    "pixels up to 255": Setup(INCONCLUSIVE, "clamped to 0 and 1", plug_in(OfEightBits)),
    "a quarter of the light": Setup(INCONCLUSIVE, "0.75 off where it is white", plug_in(Dim)),
    "off by a fifth": Setup(INCONCLUSIVE, "14 dB", plug_in(OffByAFifth)),
    "NaN": Setup(INCONCLUSIVE, "no result", plug_in(NaN)),
    "one infinity": Setup(INCONCLUSIVE, "no result", plug_in(OneInfinity)),
    "diverged": Setup(INCONCLUSIVE, "by its own loss, no result", plug_in(LossIsNaN)),
    "another shape": Setup(INCONCLUSIVE, "no result", plug_in(OtherShape)),
    "two for one": Setup(INCONCLUSIVE, "no result", plug_in(TooMany)),
    "too few": Setup(INCONCLUSIVE, "nobody knows of whom", plug_in(TooFew), stops=True),
    "no list": Setup(INCONCLUSIVE, "no result", plug_in(NoList), stops=True),
    "raises": Setup(INCONCLUSIVE, "no result", plug_in(Raises), stops=True),
    "declines": Setup(INCONCLUSIVE, "no result", plug_in(Declines), stops=True),
    "grey on flat images": Setup(INCONCLUSIVE, "above 20 dB, and so is the mean", plug_in(Grey), {"dataset": FLAT}),
    "the mean of flat images": Setup(INCONCLUSIVE, "of all, and granted", plug_in(GrantedMean), {"dataset": BRIGHT}),
    "convolutions": Setup(
        INCONCLUSIVE, "no fully connected first layer", fields={"net": "cnn1", **SEARCHED}, stops=True
    ),
    "convolutions, one step": Setup(INCONCLUSIVE, "no search", "ig", {"net": "cnn1", **SEARCHED}),
    "sigmoids": Setup(INCONCLUSIVE, "no fully connected first layer", fields={"net": "lenet", **SEARCHED}, stops=True),
    "sigmoids, one step": Setup(INCONCLUSIVE, "no search", "ig", {"net": "lenet", **SEARCHED}),
}
FAILING["exact on flat images"] = Setup(LEAKS, "closer than any public one", fields={"dataset": FLAT})

FAULTY = {
    "control answers swapped": Setup(BROKEN, "of the other client", doctor=controls(lambda a: a[::-1])),
    "control answers zero": Setup(BROKEN, "0 / 0", doctor=controls(lambda a: _zeros(a, 0, 1))),
    "one control answer zero": Setup(BROKEN, "0 / 0 for one", doctor=controls(lambda a: _zeros(a, 1))),
    "a NaN in a control answer": Setup(BROKEN, "unusable", doctor=controls(lambda a: _first_value(a, torch.nan))),
    "infinity in a control answer": Setup(BROKEN, "unusable", doctor=controls(lambda a: _first_value(a, torch.inf))),
    "control answers noisy": Setup(BROKEN, "a tenth is noise: 20 dB", doctor=controls(_noisy)),
    "control answers thrice": Setup(LEAKS, "a factor cancels", doctor=controls(_tripled)),
    "no control recorded": Setup(BROKEN, "nothing says that the measurement works", doctor=unrecorded("analytic")),
    "controls damaged": Setup(BROKEN, "both unusable", doctor=damaged("analytic", 0, 1)),
    "a control damaged": Setup(BROKEN, "one unusable", doctor=damaged("analytic", 1)),
    "truth of the control not kept": Setup(BROKEN, "nothing to compare with", doctor=unkept_truth),
    "truth of a control torn": Setup(BROKEN, "one unusable", doctor=torn_truth("r0000-analytic-001")),
    "truth of a target torn": Setup(LEAKS, "the other one is exact", doctor=torn_truth("r0000-target-001")),
    "truth swapped": Setup(BROKEN, "of the other client", doctor=swapped_truth),
    "truth in another range": Setup(BROKEN, "of half the light", doctor=shifted_truth),
    "a target damaged": Setup(LEAKS, "the other one is exact", doctor=damaged("target", 0)),
    "both targets damaged": Setup(INCONCLUSIVE, "nothing was attacked", doctor=damaged("target", 0, 1), stops=True),
    "no target recorded": Setup(INCONCLUSIVE, "nothing was attacked", doctor=unrecorded("target"), stops=True),
    "the easy control damaged": Setup(LEAKS, "reconstructions are proof", doctor=damaged("easy", 0, 1)),
    "a garbled manifest": Setup(LEAKS, "what is whole is audited", doctor=garbled),
    "swapped controls, no leak": Setup(
        BROKEN,
        "says nothing of a defence",
        fields={"defence": plug_in(SendsNothing)},
        doctor=controls(lambda a: a[::-1]),
    ),
    "swapped controls, broken attack": Setup(
        BROKEN, "says nothing of an attack", plug_in(Noise), doctor=controls(lambda a: a[::-1])
    ),
}

SETUPS = {**LEAKING, **PROTECTED, **FAILING, **FAULTY}


# --- what they come to ---


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    return Laboratory(tmp_path_factory.mktemp("known"), SETUPS)


def test_there_are_set_ups_enough_of_every_kind() -> None:
    assert len(SETUPS) == len(LEAKING) + len(PROTECTED) + len(FAILING) + len(FAULTY) >= 40
    kinds = Counter(setup.expected for setup in SETUPS.values())
    assert set(kinds) == {LEAKS, IDENTIFIES, STATIC, INCONCLUSIVE, BROKEN} and min(kinds.values()) >= 3


@pytest.mark.slow
def test_audits_of_known_answer_get_it(laboratory: Laboratory) -> None:
    wrong = laboratory.wrong()
    assert not wrong, f"{len(wrong)} of {len(SETUPS)} verdicts are wrong"


@pytest.mark.slow
def test_what_could_not_be_used_is_named(laboratory: Laboratory) -> None:
    entry = laboratory.entry("a target damaged")
    assert (entry["images"], entry["failures"], entry["share_recovered"]) == (2, 1, 0.5)


@pytest.mark.slow
def test_a_flat_image_is_close_to_every_other_and_still_nobody_is_recovered(laboratory: Laboratory) -> None:
    entry = laboratory.entry("grey on flat images")
    assert entry["psnr"]["mean"] > 30 and entry["gain"]["max"] <= 0 and entry["share_recovered"] == 0
