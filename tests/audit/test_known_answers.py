"""Audits whose answer is known before they run, from arithmetic or from how they were broken: the verdict must be it.

Each set-up is a real run (those that differ in their attack alone share one) or a copy of one whose recordings or truth
were changed. The expected verdict follows from the reason beside it and not from having run the code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from flfw.adversary.attack import Attack, Budget, NotApplicable
from flfw.adversary.observation import Knowledge, Observation, Reconstruction
from flfw.audit.auditor import Auditor
from flfw.defence import Defence
from flfw.experiment import Experiment
from flfw.nets import Net, Tensors
from flfw.resolve import resolve, without_auto
from flfw.runs import run as whole
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy
from flfw.task import Task
from flfw.training.optimisers import LocalTraining
from tests.support.pictures import save as save_picture
from tests.support.silent_defences import Blanks, SendsNothing
from tests.support.small_runs import tiny

LEAKS, NO_LEAK, STATIC = "leaks", "no leak found", "static only"
INCONCLUSIVE, BROKEN = "inconclusive", "attack broken"


# --- methods and defences ---


@final
class Dead(FederatedStrategy):
    """FedAvg of a network whose first layer never fires: its gradient there is exactly zero."""

    Settings = LocalTraining
    downloads = ("*",)
    uploads = ("*",)

    @classmethod
    def build_model(cls, net: Net, settings: Any) -> nn.Module:
        first = next(layer for layer in net.extractor if isinstance(layer, nn.Linear))  # type: ignore[attr-defined]
        with torch.no_grad():
            first.bias.fill_(-1e3)
        return net

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        return weighted_mean(updates)


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


class _Known(Attack):
    """Changes what the closed form gives for one example of a fully connected first layer."""

    @property
    def budget(self) -> Budget:
        return Budget(0, 1, "as written")

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        exact = [_closed_form(seen, known) for seen, known in zip(observations, knowledge, strict=True)]
        return self.made_of(exact, observations, rngs)

    def made_of(
        self, exact: list[Tensor], observations: Sequence[Observation], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        return [Reconstruction(self.one(x, o, rng)) for x, o, rng in zip(exact, observations, rngs, strict=True)]

    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        raise NotImplementedError


def _closed_form(seen: Observation, known: Knowledge) -> Tensor:
    weight, bias = (seen.sent[name] for name, _ in list(known.model.model.named_parameters())[:2])
    unit = int(bias.abs().argmax())
    inputs = known.model.inputs
    raw = (weight[unit] / bias[unit]).view(1, *inputs.shape) * inputs.std + inputs.mean
    return raw.nan_to_num(nan=0.5).clamp(0, 1)


class Exact(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x


class Noise(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return torch.rand(x.shape, generator=rng)


class Grey(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return torch.full_like(x, 0.5)


class Black(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return torch.zeros_like(x)


class ClassMean(_Known):
    """Knows each example's class and what such examples look like on average."""

    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        samples, labels = _public()
        nearest = (samples - x).square().flatten(1).sum(1).argmin()
        return samples[labels == labels[nearest]].mean(0, keepdim=True)


class NearestPublic(_Known):
    """Knows which of all public images is nearest to the truth."""

    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        samples, _ = _public()
        return samples[(samples - x).square().flatten(1).sum(1).argmin()][None]


def _public() -> tuple[Tensor, Tensor]:
    experiment = without_auto(Experiment(net="linear", clients=2, method="fedavg"))
    task = Task.of(experiment, None)
    return task.examples("test", task.split.public)


class AnotherVictim(_Known):
    def made_of(
        self, exact: list[Tensor], observations: Sequence[Observation], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        return [Reconstruction(x) for x in exact[::-1]]


class Mean(_Known):
    """One image for all: the mean of all victims."""

    def made_of(
        self, exact: list[Tensor], observations: Sequence[Observation], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        mean = torch.stack(exact).mean(0)
        return [Reconstruction(mean.clone()) for _ in exact]


class GrantedMean(_Known):
    """One grey level, the mean that inputs are normalised with."""

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        inputs = [known.model.inputs for known in knowledge]
        return [Reconstruction(space.mean.expand(1, *space.shape)) for space in inputs]


class Negative(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return 1 - x


class Mirrored(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x.flip(-1, -2)


class OfEightBits(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return 255 * x


class Dim(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x / 4


class Blurred(_Known):
    """Off by 0.01 everywhere: 40 dB."""

    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x + torch.where(x > 0.5, -0.01, 0.01)


class OffByAFifth(_Known):
    """Off by 0.2 everywhere: 14 dB."""

    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x + torch.where(x > 0.5, -0.2, 0.2)


class NaN(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x * torch.nan


class OneInfinity(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        result = x.clone()
        result.view(-1)[0] = torch.inf
        return result


class LossIsNaN(_Known):
    def made_of(
        self, exact: list[Tensor], observations: Sequence[Observation], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        return [Reconstruction(x, matching_loss=float("nan")) for x in exact]


class OtherShape(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x[..., :-1]


class TooMany(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return torch.cat([x, x])


class TooFew(_Known):
    def made_of(
        self, exact: list[Tensor], observations: Sequence[Observation], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        return [Reconstruction(x) for x in exact[1:]]


class NoList(_Known):
    def made_of(self, *_: Any) -> Any:
        return None


class Raises(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        raise ZeroDivisionError("of course")


class Declines(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        raise NotApplicable("nothing here for me")


class OneTensorForAll(_Known):
    def made_of(
        self, exact: list[Tensor], observations: Sequence[Observation], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        return [Reconstruction(torch.full_like(exact[0], 0.5))] * len(exact)


class EasyOnly(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x if seen.rung == "easy" else torch.rand(x.shape, generator=rng)


class EasyOnlyElseRaises(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        if seen.rung != "easy":
            raise ZeroDivisionError("of course")
        return x


class EasyOnlyElseHalfNaN(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x if seen.rung == "easy" else x * (torch.nan if seen.slot else 0)


class TargetOnly(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x if seen.rung == "target" else torch.rand(x.shape, generator=rng)


class FirstOnly(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x if seen.slot == 0 else torch.rand(x.shape, generator=rng)


class FirstOnlyElseNaN(_Known):
    def one(self, x: Tensor, seen: Observation, rng: torch.Generator) -> Tensor:
        return x if seen.slot == 0 else x * torch.nan


def own(cls: type) -> str:
    return f"{cls.__module__}:{cls.__name__}"


# --- faults of the measurement: each changes a copy of a run whose examples leak ---

Answers = list[Tensors]


def controls(change: Callable[[Answers], Answers]) -> Callable[[Path], None]:
    """Other answers to the control's probes, filed as if they had been recorded so."""

    def doctor(folder: Path) -> None:
        rows = _manifest(folder)
        lines = [row for row in rows if row.get("config", {}).get("rung") == "control"]
        paths = [folder / "observations" / line["sent_by_client"]["file"] for line in lines]
        for line, path, answer in zip(lines, paths, change([load_file(path) for path in paths]), strict=True):
            data = save(answer, {"format": "1"})
            path.write_bytes(data)
            line["sent_by_client"] |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        _rewrite(folder, rows)

    return doctor


def damaged(rung: str, *slots: int) -> Callable[[Path], None]:
    """Recordings of a rung of which a byte is another one."""

    def doctor(folder: Path) -> None:
        for row in _manifest(folder):
            config = row.get("config", {})
            if config.get("rung") == rung and config["slot"] in slots:
                path = folder / "observations" / row["sent_by_client"]["file"]
                data = bytearray(path.read_bytes())
                data[-1] ^= 1
                path.write_bytes(bytes(data))

    return doctor


def unrecorded(rung: str) -> Callable[[Path], None]:
    """A rung of which nothing is there."""

    def doctor(folder: Path) -> None:
        _rewrite(folder, [row for row in _manifest(folder) if row.get("config", {}).get("rung") != rung])

    return doctor


def garbled(folder: Path) -> None:
    """A manifest with lines that mean nothing, and one that was cut short."""
    with (folder / "observations" / "manifest.jsonl").open("a") as file:
        file.write('{"type": 3}\nnonsense\n{"type": "train.pro')


def swapped_truth(folder: Path) -> None:
    """Each client's truth is the other's."""
    for first in sorted((folder / "truth").glob("*-000.safetensors")):
        second = first.with_name(first.name.replace("-000.", "-001."))
        one, other = first.read_bytes(), second.read_bytes()
        first.unlink(), second.unlink()
        first.write_bytes(other), second.write_bytes(one)


def shifted_truth(folder: Path) -> None:
    """The truth is of another input range than what was attacked."""
    for path in (folder / "truth").glob("*.safetensors"):
        truth = load_file(path)
        path.unlink()
        save_file({**truth, "samples": truth["samples"] / 2}, path)


def torn_truth(name: str) -> Callable[[Path], None]:
    """A file of truth that ends early."""

    def doctor(folder: Path) -> None:
        path = folder / "truth" / f"{name}.safetensors"
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[:-1])

    return doctor


def unkept_truth(folder: Path) -> None:
    """No client kept the truth of its control."""
    for path in (folder / "truth").glob("*-control-*"):
        path.unlink()


def _manifest(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / "observations" / "manifest.jsonl").read_text().splitlines()]


def _rewrite(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "observations" / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


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


@dataclass(frozen=True)
class Setup:
    """An audit of known answer.

    Attributes:
        expected: the verdict.
        why: it must be this one.
        attack: whose verdict is meant.
        fields: of the experiment, where they are not those of `base`.
        round: of the audit, if it has several.
        stops: whether the attack as such gives nothing there: it raises, is not applicable, or has nothing to attack.
        doctor: what is changed in a copy of the run before it is audited again.
    """

    expected: str
    why: str
    attack: str = "analytic"
    fields: dict[str, Any] = field(default_factory=dict)
    round: int = 0
    stops: bool = False
    doctor: Callable[[Path], None] | None = None


def base(folder: Path, **fields: Any) -> Experiment:
    """Two probes before the only round."""
    return tiny(folder, **{"audit_rounds": "0", "attack_retries": 0, **fields})


MLP: dict[str, Any] = {"net": "mlp"}
BOTH: dict[str, Any] = {"audit_rounds": "0,1"}
IG: dict[str, Any] = {"net": "linear", "set": ("ig.iterations=400",)}
EIGHT: dict[str, Any] = {"victim_batch": 8}
SEARCHED: dict[str, Any] = {"set": ("ig.iterations=1",)}
GREY_LEVELS = {"folder:FLAT": (2, 126, 130), "folder:BRIGHT": (2, 200, 204), "folder:NOISY": (10, 0, 256)}
"""Folders of noise made here: how many classes, and between which levels of 255."""
FLAT, BRIGHT, NOISY = GREY_LEVELS

LEAKING = {
    "softmax regression, fresh": Setup(LEAKS, "x = dW_k / db_k for one example", fields=BOTH),
    "softmax regression, trained": Setup(LEAKS, "the closed form holds for all weights", fields=BOTH, round=1),
    "hidden layers, fresh": Setup(LEAKS, "a unit of the first layer that fires gives x", fields={**MLP, **BOTH}),
    "hidden layers, trained": Setup(LEAKS, "the same after a round", fields={**MLP, **BOTH}, round=1),
    "rows": Setup(LEAKS, "the closed form does not care what an input is", fields={"dataset": "cancer"}),
    "rows, hidden layers": Setup(LEAKS, "nor does it here", fields={"dataset": "cancer", **MLP}),
    "fedprox": Setup(LEAKS, "the proximal term has no gradient at the broadcast", fields={"method": "fedprox"}),
    "fedper": Setup(LEAKS, "the shared first layer is enough", fields={"method": "fedper", **MLP}),
    "larger images": Setup(LEAKS, "nor does the closed form care for sizes", fields={"side": 16}),
    "other normalisation": Setup(LEAKS, "it is granted", fields={"normalise": "half"}),
    "other seed": Setup(LEAKS, "nor for chance", fields={"seed": 5}),
    "five local steps": Setup(LEAKS, "every step's gradient is a multiple of x", fields={"victim_steps": 5}),
    "three steps, hidden layers": Setup(LEAKS, "the same unit by unit", fields={**MLP, "victim_steps": 3}),
    "steps with the proximal term": Setup(
        LEAKS, "it adds mu times so far's change, a multiple of x, too", fields={"method": "fedprox", "victim_steps": 3}
    ),
    "steps at a high rate": Setup(LEAKS, "multiples of x add up to one", fields={"victim_steps": 2, "lr": 0.5}),
    "two examples": Setup(LEAKS, "unit y_1 holds 9/8 of x_1 less 1/8 of x_2, 18 dB below", fields={"victim_batch": 2}),
    "scaled": Setup(LEAKS, "a factor cancels in dW_k / db_k", fields={"defence": own(Doubled)}),
    "one client in two defended": Setup(LEAKS, "the other one leaks", fields={"defence": own(Blanks), "defended": "1"}),
    "pruned by a tenth": Setup(
        LEAKS, "the largest unit keeps nearly all", fields={"defence": "prune", "set": ("prune.ratio=0.1",)}
    ),
    "searched": Setup(LEAKS, "the direction of the gradient has one cause", "ig", IG),
    "all but exact": Setup(LEAKS, "40 dB", own(Blurred)),
    "only the target": Setup(LEAKS, "what was reconstructed is proof by itself", own(TargetOnly)),
    "one victim of two": Setup(LEAKS, "one is enough", own(FirstOnly)),
    "one of two, none of the other": Setup(LEAKS, "one is enough", own(FirstOnlyElseNaN)),
    "one of two, trained": Setup(LEAKS, "one is enough", own(FirstOnly), BOTH, round=1),
}

PROTECTED = {
    "nothing sent": Setup(STATIC, "0 / 0", fields={"defence": own(SendsNothing)}),
    "black images": Setup(STATIC, "exact, of black images", fields={"defence": own(Blanks)}),
    "noise for images": Setup(STATIC, "exact, of noise", fields={"defence": own(Impostors)}),
    "noise in the gradient": Setup(STATIC, "a thousand times the gradient", fields={"defence": own(Drowned)}),
    "shuffled": Setup(STATIC, "weights and biases no longer correspond", fields={"defence": own(Shuffled)}),
    "pruned to a hundredth": Setup(
        STATIC, "7 of 640 weights are left", fields={"defence": "prune", "set": ("prune.ratio=0.99",)}
    ),
    "a private head, and defended": Setup(
        STATIC, "0 / 0", fields={"method": "fedper", **MLP, "defence": own(SendsNothing)}
    ),
    "a private head": Setup(STATIC, "it is not known to the attack", own(EasyOnly), {"method": "fedper", **MLP}),
    "several steps": Setup(STATIC, "the path is not made use of", own(EasyOnly), {"victim_steps": 5}),
    "several steps of eight": Setup(
        STATIC, "mixtures, and a path not made use of", fields={"dataset": NOISY, **EIGHT, "victim_steps": 3}
    ),
    "eight examples": Setup(
        NO_LEAK, "a unit holds x with 0.75 of another or -0.5 of seven", fields={"dataset": NOISY, **EIGHT}
    ),
    "a dead layer": Setup(NO_LEAK, "its gradient is zero: 0 / 0", fields={"method": own(Dead), **MLP}),
    "fails on the target": Setup(NO_LEAK, "it works, knows all, and found noise", own(EasyOnly)),
    "fails on the target, trained": Setup(NO_LEAK, "the same after a round", own(EasyOnly), BOTH, round=1),
}

FAILING = {
    "raises on the target": Setup(INCONCLUSIVE, "it gave no result", own(EasyOnlyElseRaises), stops=True),
    "half NaN on the target": Setup(INCONCLUSIVE, "half of it gave no result", own(EasyOnlyElseHalfNaN)),
    "more examples than units": Setup(
        INCONCLUSIVE, "ten units, sixteen examples", fields={"victim_batch": 16}, stops=True
    ),
    "a generated extractor": Setup(
        INCONCLUSIVE, "no layer to read off", fields={"method": "hyperfl", **MLP}, stops=True
    ),
    "noise": Setup(INCONCLUSIVE, "works nowhere", own(Noise)),
    "grey": Setup(INCONCLUSIVE, "works nowhere", own(Grey)),
    "black": Setup(INCONCLUSIVE, "works nowhere", own(Black)),
    "one tensor for all": Setup(INCONCLUSIVE, "works nowhere", own(OneTensorForAll)),
    "class means": Setup(INCONCLUSIVE, "no closer than the class mean", own(ClassMean)),
    "the nearest public image": Setup(INCONCLUSIVE, "no closer than the oracle's choice", own(NearestPublic)),
    "the other victim": Setup(INCONCLUSIVE, "exact, of somebody else", own(AnotherVictim)),
    "the victims' mean": Setup(INCONCLUSIVE, "of two digits", own(Mean)),
    "negatives": Setup(INCONCLUSIVE, "black for white", own(Negative)),
    "turned round": Setup(INCONCLUSIVE, "upside down", own(Mirrored)),
    "pixels up to 255": Setup(INCONCLUSIVE, "clamped to 0 and 1", own(OfEightBits)),
    "a quarter of the light": Setup(INCONCLUSIVE, "0.75 off where it is white", own(Dim)),
    "off by a fifth": Setup(INCONCLUSIVE, "14 dB", own(OffByAFifth)),
    "NaN": Setup(INCONCLUSIVE, "no result", own(NaN)),
    "one infinity": Setup(INCONCLUSIVE, "no result", own(OneInfinity)),
    "diverged": Setup(INCONCLUSIVE, "by its own loss, no result", own(LossIsNaN)),
    "another shape": Setup(INCONCLUSIVE, "no result", own(OtherShape)),
    "two for one": Setup(INCONCLUSIVE, "no result", own(TooMany)),
    "too few": Setup(INCONCLUSIVE, "nobody knows of whom", own(TooFew), stops=True),
    "no list": Setup(INCONCLUSIVE, "no result", own(NoList), stops=True),
    "raises": Setup(INCONCLUSIVE, "no result", own(Raises), stops=True),
    "declines": Setup(INCONCLUSIVE, "no result", own(Declines), stops=True),
    "grey on flat images": Setup(INCONCLUSIVE, "above 20 dB, and so is the mean", own(Grey), {"dataset": FLAT}),
    "the mean of flat images": Setup(INCONCLUSIVE, "of all, and granted", own(GrantedMean), {"dataset": BRIGHT}),
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
    "no control recorded": Setup(BROKEN, "nothing says that the measurement works", doctor=unrecorded("control")),
    "controls damaged": Setup(BROKEN, "both unusable", doctor=damaged("control", 0, 1)),
    "a control damaged": Setup(BROKEN, "one unusable", doctor=damaged("control", 1)),
    "truth of the control not kept": Setup(BROKEN, "nothing to compare with", doctor=unkept_truth),
    "truth of a control torn": Setup(BROKEN, "one unusable", doctor=torn_truth("r0000-control-001")),
    "truth of a target torn": Setup(LEAKS, "the other one is exact", doctor=torn_truth("r0000-target-001")),
    "truth swapped": Setup(BROKEN, "of the other client", doctor=swapped_truth),
    "truth in another range": Setup(BROKEN, "of half the light", doctor=shifted_truth),
    "a target damaged": Setup(LEAKS, "the other one is exact", doctor=damaged("target", 0)),
    "both targets damaged": Setup(INCONCLUSIVE, "nothing was attacked", doctor=damaged("target", 0, 1), stops=True),
    "no target recorded": Setup(INCONCLUSIVE, "nothing was attacked", doctor=unrecorded("target"), stops=True),
    "the easy rung damaged": Setup(LEAKS, "reconstructions are proof", doctor=damaged("easy", 0, 1)),
    "a garbled manifest": Setup(LEAKS, "what is whole is audited", doctor=garbled),
    "swapped controls, no leak": Setup(
        BROKEN, "says nothing of a defence", fields={"defence": own(SendsNothing)}, doctor=controls(lambda a: a[::-1])
    ),
    "swapped controls, broken attack": Setup(
        BROKEN, "says nothing of an attack", own(Noise), doctor=controls(lambda a: a[::-1])
    ),
}

SETUPS = {**LEAKING, **PROTECTED, **FAILING, **FAULTY}


# --- what they come to ---


@final
class Laboratory:
    """Runs each experiment once, with all attacks that set-ups ask of it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._done: dict[str, tuple[Path, Experiment] | Exception] = {}

    def entry(self, name: str) -> dict[str, Any]:
        """The audit's entry for a set-up."""
        setup = SETUPS[name]
        folder, experiment = self._run(setup.fields)
        if setup.doctor is None:
            entries = json.loads((folder / "result.json").read_text())["audit"]
        else:
            with TemporaryDirectory(dir=self._place) as place:
                copy = Path(place) / "run"
                shutil.copytree(folder, copy)
                setup.doctor(copy)
                again = without_auto(dataclasses.replace(experiment, attack=(setup.attack,), out=copy))
                with Auditor(resolve(again), Task.of(again, None), copy, copy) as auditor:
                    entries = auditor.run()[0]
            json.dumps(entries, allow_nan=False)  # as result.json is written
        result = [e for e in entries if (e["attack"], e["round"]) == (setup.attack, setup.round)]
        assert len(result) == (2 if setup.fields.get("defended") else 1)  # those who are not have their own
        return next((e for e in result if e["verdict"] == setup.expected), result[0])

    def _run(self, fields: dict[str, Any]) -> tuple[Path, Experiment]:
        key = repr(sorted(fields.items()))
        if key not in self._done:
            attacks = {s.attack for s in SETUPS.values() if s.fields == fields}
            informed = {**fields, **({"dataset": self._folder(fields["dataset"])} if "dataset" in fields else {})}
            experiment = base(self._place / f"run-{len(self._done)}", attack=tuple(sorted(attacks)), **informed)
            try:
                self._done[key] = whole.run(experiment), experiment
            except Exception as error:  # no verdict for any set-up of this run
                self._done[key] = error
        result = self._done[key]
        if isinstance(result, Exception):
            raise result
        return result

    def _folder(self, dataset: str) -> str:
        """A data set; one of those made here is made."""
        if dataset not in GREY_LEVELS:
            return dataset
        place, rng = self._place / dataset.partition(":")[2], np.random.default_rng(0)
        classes, low, high = GREY_LEVELS[dataset]
        for part, label, i in np.ndindex(2, classes, 12):
            pixels = rng.integers(low, high, (8, 8), dtype=np.uint8)
            save_picture(place / ("train", "test")[part] / f"class-{label}" / f"{i}.png", pixels)
        return f"folder:{place}"


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    return Laboratory(tmp_path_factory.mktemp("known"))


def test_there_are_set_ups_enough_of_every_kind() -> None:
    assert len(SETUPS) == len(LEAKING) + len(PROTECTED) + len(FAILING) + len(FAULTY) >= 40
    kinds = Counter(setup.expected for setup in SETUPS.values())
    assert set(kinds) == {LEAKS, NO_LEAK, STATIC, INCONCLUSIVE, BROKEN} and min(kinds.values()) >= 4


def test_audits_of_known_answer_get_it(laboratory: Laboratory) -> None:
    wrong = []
    for name, setup in SETUPS.items():
        try:
            entry = laboratory.entry(name)
        except Exception as error:  # an audit that ends in an error has given no verdict: a miss like others
            entry = {"verdict": f"{type(error).__name__}: {error}", "reason": ""}
        if (entry["verdict"], bool(entry.get("stopped"))) != (setup.expected, setup.stops):
            got = f"{entry['verdict']}: {entry['reason']} {entry.get('stopped') or ''}"
            wrong.append(f"{name}: {setup.expected} ({setup.why}), got {got}")
    print(*wrong, sep="\n")
    assert not wrong, f"{len(wrong)} of {len(SETUPS)} verdicts are wrong"


def test_what_could_not_be_used_is_named(laboratory: Laboratory) -> None:
    entry = laboratory.entry("a target damaged")
    assert (entry["images"], entry["failures"], entry["share_recovered"]) == (2, 1, 0.5)


def test_a_flat_image_is_close_to_every_other_and_still_nobody_is_recovered(laboratory: Laboratory) -> None:
    entry = laboratory.entry("grey on flat images")
    assert entry["psnr"]["mean"] > 30 and entry["gain"]["max"] <= 0 and entry["share_recovered"] == 0
