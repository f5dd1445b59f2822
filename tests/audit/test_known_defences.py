"""Audits of known answer against defences: some can be undone by who knows them, some cannot, some do nothing.

What can be undone must leak to an attacker who is told, or be called undecided if the attack is too weak: it must
never be called "no leak found". The expected verdicts follow from the reason beside them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn

from flfw.nets import Net, Tensors
from flfw.rng import torch_generator
from flfw.task.defence import Defence
from tests.support.known_answers import IDENTIFIES, INCONCLUSIVE, LEAKS, NO_LEAK, STATIC, Averaged, Laboratory, Setup
from tests.support.small_runs import plug_in

# --- defences that who knows them can undo ---


class AddsFive(Defence):
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value + 5 for name, value in update.items()}


class Negates(Defence):
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: -value for name, value in update.items()}


class Compands(Defence):
    """The sign of each entry times the root of its size."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value.sign() * value.abs().sqrt() for name, value in update.items()}


class ShufflesByKey(Defence):
    """The same permutation of each tensor's entries every time."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: _by_key(value).view_as(value) for name, value in update.items()}


class Rotates(Defence):
    """Reflects each tensor, as a vector, at a hyperplane that is the same every time."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: _reflected(value) for name, value in update.items()}


class UnitLength(Defence):
    """Each tensor scaled to length 1."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value / value.norm().clamp(min=1e-12) for name, value in update.items()}


class MasksHalf(Defence):
    """A new random half of the entries set to 0."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {n: v * (torch.rand(v.shape, generator=rng) < 0.5) for n, v in update.items()}


class Garbage(Defence):
    """One entry in two hundred replaced by a large random number."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: self._replaced(value, rng) for name, value in update.items()}

    def _replaced(self, value: Tensor, rng: torch.Generator) -> Tensor:
        hit = torch.rand(value.shape, generator=rng) < 0.005
        return torch.where(hit, 10 * torch.randn(value.shape, generator=rng), value)


class Sketches(Defence):
    """The projection of each tensor on a quarter of its dimensions, known and the same every time."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: _sketched(value) for name, value in update.items()}


class DropsBiases(Defence):
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value if value.dim() > 1 else torch.zeros_like(value) for name, value in update.items()}


class Zeros(Defence):
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: torch.zeros_like(value) for name, value in update.items()}


class Parity(Defence):
    """All entries 0 or 1: whether the label is odd."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {n: torch.full_like(v, int(update["classifier.bias"].argmin()) % 2) for n, v in update.items()}


class DropsLastLayer(Defence):
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {n: torch.zeros_like(v) if n.startswith("classifier") else v for n, v in update.items()}


class DropsFirstLayer(Defence):
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        first = next(iter(update)).rpartition(".")[0]
        return {n: torch.zeros_like(v) if n.startswith(f"{first}.") else v for n, v in update.items()}


# --- defences that change the data ---


class Relabels(Defence):
    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return x, (y + 1) % 10


class Decoy(Defence):
    """Another image for each example, the same for all."""

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.rand(x.shape, generator=torch_generator(7, "decoy")), y


class TurnsImages(Defence):
    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return x.flip(-1, -2), y


class MixesEvenly(Defence):
    """The mean of each example and three random images."""

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return (x + sum(torch.rand(x.shape, generator=rng) for _ in range(3))) / 4, y


# --- noise of chosen size ---


@dataclass(frozen=True)
class NoiseSize:
    """Deviation of the noise."""

    size: float = 1.0


class Noisy(Defence):
    """Noise of its own, for which no adaptation is written."""

    Settings = NoiseSize

    @classmethod
    def weakest_settings(cls, settings: Any) -> Any:
        return replace(settings, size=min(settings.size, 1e-6))

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value + self.settings.size * self.noise(value, rng) for name, value in update.items()}

    def noise(self, value: Tensor, rng: torch.Generator) -> Tensor:
        return torch.randn(value.shape, generator=rng)


class ShufflesByKeyInNoise(Noisy):
    """Noise on a permutation that is the same every time."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return super().update({name: _by_key(value).view_as(value) for name, value in update.items()}, rng)


class SparesRows(Noisy):
    """The last tenth of the rows stays exact."""

    def noise(self, value: Tensor, rng: torch.Generator) -> Tensor:
        noise = super().noise(value, rng)
        noise[-max(1, len(value) // 10) :] = 0
        return noise


class Mirrored(Noisy):
    """The second half of the rows has the negative noise of the first: their sum is exact."""

    def noise(self, value: Tensor, rng: torch.Generator) -> Tensor:
        half = super().noise(value[: len(value) // 2], rng)
        return torch.cat([half, -half])


class Common(Noisy):
    """One number is added to a whole tensor."""

    def noise(self, value: Tensor, rng: torch.Generator) -> Tensor:
        return torch.randn((), generator=rng).expand_as(value)


class WholeSteps(Noisy):
    """One of a hundred values, 1.5 apart: rounding leaves the gradient, which is smaller."""

    def noise(self, value: Tensor, rng: torch.Generator) -> Tensor:
        return 0.05 * torch.randint(-50, 50, value.shape, generator=rng)


class NineTenths(Noisy):
    """Another tenth of the entries stays exact in each message."""

    def noise(self, value: Tensor, rng: torch.Generator) -> Tensor:
        return super().noise(value, rng) * (torch.rand(value.shape, generator=rng) < 0.9)


class Opposite(Noisy):
    """Noise that a later message takes off: two in a row have opposite ones."""

    sign = 1

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        Opposite.sign = -Opposite.sign
        return super().update(update, rng)

    def noise(self, value: Tensor, rng: torch.Generator) -> Tensor:
        return Opposite.sign * super().noise(value, rng)


def _by_key(value: Tensor) -> Tensor:
    order = torch.randperm(value.numel(), generator=torch_generator(value.numel(), "key"))
    return value.flatten()[order]


def _reflected(value: Tensor) -> Tensor:
    axis = torch.randn(value.numel(), generator=torch_generator(value.numel(), "key"))
    axis = axis / axis.norm()
    flat = value.flatten()
    return (flat - 2 * (flat @ axis) * axis).view_as(value)


def _sketched(value: Tensor) -> Tensor:
    count = max(1, value.numel() // 4)
    rows = torch.randn(count, value.numel(), generator=torch_generator(value.numel(), "key"))
    basis = torch.linalg.qr(rows.T)[0]
    return (basis @ (basis.T @ value.flatten())).view_as(value)


# --- networks ---


@final
class LayerNormed(Averaged):
    @classmethod
    def build_model(cls, net: Net, settings: Any) -> nn.Module:
        return Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU()), nn.Linear(32, 10))


@final
class GroupNormed(Averaged):
    @classmethod
    def build_model(cls, net: Net, settings: Any) -> nn.Module:
        return Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GroupNorm(4, 32), nn.ReLU()), nn.Linear(32, 10))


@final
class Saturated(Averaged):
    """Sigmoids whose inputs are far from 0: derivatives of 1e-4 and less."""

    @classmethod
    def build_model(cls, net: Net, settings: Any) -> nn.Module:
        layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 32), nn.Sigmoid())
        with torch.no_grad():
            for layer in layers:
                if isinstance(layer, nn.Linear):
                    layer.weight.mul_(8)
        return Net(layers, nn.Linear(32, 10))


MLP: dict[str, Any] = {"net": "mlp"}
NOT_FOUND = (INCONCLUSIVE, STATIC, IDENTIFIES)
OPEN = (LEAKS, IDENTIFIES, INCONCLUSIVE)  # it may be too weak; it must not say that nothing leaks


def plain(defence: type[Defence] | str = "none", **more: Any) -> dict[str, Any]:
    return {"defence": defence if isinstance(defence, str) else plug_in(defence), **more}


def updates(**more: Any) -> dict[str, Any]:
    return {"audit_source": "update", "audit_rounds": "1", "split": "sampled", **more}


ONE = {"set": ("sampled.train=1",)}
TWO_STEPS = {"set": ("sampled.train=2",), "batch_size": 1}

BY_CLOSED_FORM = {
    "negated": Setup(LEAKS, "a factor cancels in dW_k / db_k", fields=plain(Negates)),
    "scaled to unit length": Setup(
        (LEAKS, IDENTIFIES, STATIC), "a factor for each tensor: x up to a scale", fields=plain(UnitLength)
    ),
    "last layer dropped": Setup(LEAKS, "the first layer is enough", fields=plain(DropsLastLayer, **MLP)),
    "first layer dropped": Setup(STATIC, "0 / 0", fields=plain(DropsFirstLayer, **MLP)),
    "biases dropped": Setup(STATIC, "divided by 0", fields=plain(DropsBiases)),
    "all zeros": Setup(NO_LEAK, "the same for all data", fields=plain(Zeros, images=8), cause="constant"),
    "of equal data": Setup(INCONCLUSIVE, "so they must", fields=plain(Zeros, images=8, dataset="folder:SAME")),
    "a bit of each": Setup(NOT_FOUND, "it depends on the data", fields=plain(Parity, images=8)),
    "five added": Setup(STATIC, "untold: (dW + 5) / (db + 5)", fields=plain(AddsFive)),
    "relabelled": Setup(LEAKS, "the closed form needs no label", fields=plain(Relabels)),
    "decoys": Setup(STATIC, "exact, of the decoy", fields=plain(Decoy)),
    "turned images": Setup(STATIC, "exact, upside down", fields=plain(TurnsImages)),
    "mixed with noise": Setup((STATIC, IDENTIFIES), "a quarter of x is left", fields=plain(MixesEvenly)),
    "layer normalisation": Setup(LEAKS, "it comes after the first layer", fields={"method": plug_in(LayerNormed)}),
    "group normalisation": Setup(LEAKS, "the same", fields={"method": plug_in(GroupNormed)}),
    "saturated sigmoids": Setup(
        LEAKS, "dW_k / db_k is x, however small both are", fields={"method": plug_in(Saturated)}
    ),
    "a sum of two": Setup(LEAKS, "unit y_1 holds 9/8 of x_1", fields={"victim_batch": 2}),
    "a sum of five": Setup((*OPEN,), "mixtures of five", fields={"victim_batch": 5}),
    "a sum of twenty": Setup(INCONCLUSIVE, "ten units, twenty examples", fields={"victim_batch": 20}, stops=True),
    "a batch of 32 in a dense net": Setup(
        (*OPEN,), "mixtures of 32, nothing hidden", fields={**MLP, "victim_batch": 32}
    ),
    "pruned by 99 %": Setup(
        (*NOT_FOUND,), "a few exact pixels", fields=plain(defence="prune", set=("prune.ratio=0.99",))
    ),
    "rounded to 16 bits": Setup(
        LEAKS, "an error of 3e-5", fields=plain(defence="low_precision", set=("low_precision.bits=16",))
    ),
    "noise of 1e-6": Setup(LEAKS, "far below the gradient", fields=plain(Noisy, set=("Noisy.size=1e-6",))),
    "noise of 1000": Setup(STATIC, "far above the gradient", fields=plain(Noisy, set=("Noisy.size=1000",))),
    "an upload of one example": Setup(LEAKS, "one step: dW_k / db_k", fields=updates(**ONE), round=1),
    "an upload of one example, defended": Setup(
        STATIC, "untold", fields=updates(**plain(Noisy, set=("sampled.train=1", "Noisy.size=1000"))), round=1
    ),
    "an upload of two steps": Setup(
        (*OPEN,), "two examples, one after the other", fields=updates(**TWO_STEPS), round=1
    ),
    "rows, rounded to 16 bits": Setup(
        LEAKS,
        "an error of 3e-5",
        fields=plain(defence="low_precision", dataset="cancer", set=("low_precision.bits=16",)),
    ),
}


def searched(expected: str | tuple[str, ...], why: str, defence: type[Defence] | str = "none", **more: Any) -> Setup:
    """A set-up of `ig`, told of the defence."""
    steps = ("ig.iterations=300", *more.pop("set", ()))
    return Setup(expected, why, "ig", plain(defence, net="linear", set=steps, **more), adapted=True)


BY_SEARCH = {
    "told of five added": searched(LEAKS, "5 subtracted is the gradient", AddsFive),
    "told of a sign": searched(LEAKS, "the negative of the gradient", Negates),
    "told of companding": searched(LEAKS, "one to one", Compands),
    "told of a key": searched(LEAKS, "a permutation loses nothing", ShufflesByKey),
    "told of a rotation": searched(LEAKS, "a reflection loses nothing", Rotates),
    "told of unit length": searched(LEAKS, "only the length is lost", UnitLength),
    "told of a random half": searched(LEAKS, "half of the entries are enough", MasksHalf),
    "told of garbage": searched(LEAKS, "99.5 % of the entries are exact", Garbage),
    "told of a sketch": searched(LEAKS, "162 numbers for 64 pixels", Sketches),
    "told of no biases": searched(LEAKS, "the weights' gradient is x times the residual", DropsBiases),
    "told of no first layer": searched((*OPEN, STATIC), "the other layers tell of features", DropsFirstLayer),
    "told of pruning": searched(LEAKS, "the largest tenth", defence="prune", set=("prune.ratio=0.9",)),
    "told of pruning by 99 %": searched(
        (*NOT_FOUND, NO_LEAK), "a few exact pixels", defence="prune", set=("prune.ratio=0.99",)
    ),
    "told of 8 bits": searched(LEAKS, "1/254", defence="low_precision", set=("low_precision.bits=8",)),
    "told of inverted images": searched(LEAKS, "inversion loses nothing", defence="ats", set=("ats.policy=0",)),
    "told of brightness and a margin": searched(
        (LEAKS, IDENTIFIES, INCONCLUSIVE), "the true data explain the message", defence="ats", set=("ats.policy=3-13",)
    ),
    "told of noise of 1e-4": searched(
        LEAKS, "below the gradient", defence="dp_gaussian", set=("dp_gaussian.std=1e-4",)
    ),
    "told of noise of 30": searched(
        (NO_LEAK, INCONCLUSIVE), "far above the gradient", defence="dp_gaussian", images=8, set=("dp_gaussian.std=30",)
    ),
    "told of own noise of 30": searched(
        (NO_LEAK, INCONCLUSIVE), "the same by its own code", Noisy, images=8, set=("Noisy.size=30",)
    ),
    "fed_cdp, hardly any noise": searched(
        LEAKS, "clipping keeps the direction", method="fed_cdp", set=("noise_multiplier=1e-6",)
    ),
    "fed_cdp, the paper's noise": searched(
        (NO_LEAK, INCONCLUSIVE), "24 in each entry", method="fed_cdp", images=8, set=("noise_multiplier=6",)
    ),
    "fed_sdp, hardly any noise": searched(
        LEAKS, "clipping keeps the direction", method="fed_sdp", set=("noise_multiplier=1e-6",)
    ),
    "fed_sdp, the paper's noise": searched(
        (NO_LEAK, INCONCLUSIVE), "24 in each entry", method="fed_sdp", images=8, set=("noise_multiplier=6",)
    ),
    "dp_fedavg, hardly any noise": searched(
        LEAKS, "clipping keeps the direction", method="dp_fedavg", set=("noise_multiplier=1e-6",)
    ),
}
BY_SEARCH["told of a key under noise"] = searched(
    (IDENTIFIES, LEAKS, INCONCLUSIVE),
    "the noise hides neither the permutation nor, of the images, which it was",
    ShufflesByKeyInNoise,
    images=8,
    set=("ShufflesByKeyInNoise.size=0.1",),
)
for kind in (SparesRows, Mirrored, Common, WholeSteps, NineTenths, Opposite):
    BY_SEARCH[f"told of noise with a structure: {kind.__name__}"] = searched(
        (INCONCLUSIVE, LEAKS, IDENTIFIES), "it can be removed", kind, images=8, set=(f"{kind.__name__}.size=30",)
    )
BY_SEARCH["saturated sigmoids, searched"] = Setup(
    (INCONCLUSIVE, IDENTIFIES, LEAKS),
    "undefended",
    "ig",
    {"method": plug_in(Saturated), "net": "linear", "set": ("ig.iterations=300",)},
)
BY_SEARCH["eight examples, searched"] = Setup(
    LEAKS, "undefended", "ig", {"net": "linear", "victim_batch": 8, "set": ("ig.iterations=300",)}
)
BY_SEARCH["an upload of four examples, searched"] = Setup(
    LEAKS, "undefended", "ig", updates(net="linear", batch_size=2, set=("ig.iterations=300", "sampled.train=4")), 1
)


def test_there_are_set_ups_enough() -> None:
    assert len(BY_CLOSED_FORM) >= 25 and len(BY_SEARCH) >= 25


@pytest.mark.nightly
def test_what_closed_forms_find_is_judged_rightly(tmp_path_factory: pytest.TempPathFactory) -> None:
    wrong = Laboratory(tmp_path_factory.mktemp("known"), BY_CLOSED_FORM).wrong()
    assert not wrong, f"{len(wrong)} of {len(BY_CLOSED_FORM)} verdicts are wrong"


ON_CI = (
    *("told of five added", "told of a random half", "told of pruning", "told of 8 bits", "told of noise of 1e-4"),
    *("told of noise of 30", "fed_cdp, the paper's noise", "dp_fedavg, hardly any noise"),
    *("told of noise with a structure: WholeSteps", "told of noise with a structure: NineTenths"),
    *("eight examples, searched", "an upload of four examples, searched"),
)
"""One of each kind; the others take two minutes more."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "on_ci", [pytest.param(True, marks=pytest.mark.slow), pytest.param(False, marks=pytest.mark.nightly)]
)
def test_what_searches_find_is_judged_rightly(on_ci: bool, tmp_path: Path) -> None:
    setups = {name: setup for name, setup in BY_SEARCH.items() if (name in ON_CI) == on_ci}
    wrong = Laboratory(tmp_path, setups).wrong()
    assert not wrong, f"{len(wrong)} of {len(setups)} verdicts are wrong"
