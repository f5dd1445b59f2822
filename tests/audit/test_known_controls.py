"""Audits of known answer whose failure must be earned on the case itself: every control, in both directions.

The attacks are closed forms for one example of softmax regression, which say that they adapt to a defence; what they
make of it is written here. So the verdict follows from arithmetic, as in `test_known_answers`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from flfw.adversary.attack import Models
from flfw.audit.controls import WEAK_DEFENCE
from flfw.inversion.fit import Fit
from flfw.nets import Tensors
from flfw.recording.observation import Knowledge, Observation, Reconstruction
from flfw.task.defence import Defence
from tests.support.known_answers import (
    BROKEN,
    IDENTIFIES,
    INCONCLUSIVE,
    LEAKS,
    NO_LEAK,
    STATIC,
    ByClosedForm,
    Laboratory,
    Setup,
    damaged,
    swapped_files,
    unrecorded,
)
from tests.support.small_runs import Generators, Observations, plug_in


@dataclass(frozen=True)
class Size:
    """Size of a disturbance."""

    size: float = 1e3


class Drowned(Defence):
    """Noise a thousand times the gradient; hardly any in its weakest form."""

    Settings = Size

    @classmethod
    def weakest_settings(cls, settings: Any) -> Any:
        return replace(settings, size=min(settings.size, 1e-9))

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        size = self.settings.size
        return {name: value + size * torch.randn(value.shape, generator=rng) for name, value in update.items()}


class Stepped(Drowned):
    """The same, in whole steps, from which rounding takes it off."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        size = self.settings.size
        return {name: value + size * torch.randn(value.shape, generator=rng).round() for name, value in update.items()}


class Undeclared(Drowned):
    """The same without a weakest form."""

    @classmethod
    def weakest_settings(cls, settings: Any) -> Any:
        return None


class StrongEvenIfMild(Drowned):
    """A weakest form through which nothing leaks either."""

    @classmethod
    def weakest_settings(cls, settings: Any) -> Any:
        return settings


class SwapsTheBatch(Drowned):
    """It changes the data as well: nothing adapts to that."""

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.rand(x.shape, generator=rng), y


class Steadfast(ByClosedForm):
    """The closed form, whatever it is told."""

    @property
    def models(self) -> Models:
        return frozenset({"defence"})

    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x


class OnControls(Steadfast):
    """Works on some controls alone."""

    controls: ClassVar[tuple[str, ...]] = ()

    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return x if observation.control in self.controls else torch.rand(x.shape, generator=rng)


class EasyAlone(OnControls):
    controls = ("easy",)


class UndefendedAlone(OnControls):
    controls = ("easy", "undefended")


class OnTarget(OnControls):
    controls = ("target",)


class BelowTheTarget(OnControls):
    controls = ("easy", "undefended", WEAK_DEFENCE)


class ConfusedByKnowledge(Steadfast):
    """Noise wherever it is told of a defence."""

    def run(self, observations: Observations, knowledge: Sequence[Knowledge], rngs: Generators) -> list[Reconstruction]:
        exact = super().run(observations, knowledge, rngs)
        informed = any(known.operator is not None for known in knowledge)
        return [Reconstruction(torch.rand(f.samples.shape, generator=rngs[0])) for f in exact] if informed else exact


class WithObjective(BelowTheTarget):
    """Values of an objective at the truth, at the result and at a random guess; no message points to anything."""

    values: ClassVar[tuple[float, ...]] = (0.0, 0.0, 1.0)

    def objective(
        self, observation: Observation, knowledge: Knowledge, guesses: Sequence[Reconstruction], rng: torch.Generator
    ) -> list[Fit] | None:
        values = [*self.values, *[1.0] * len(guesses)][: len(guesses)]
        return [Fit(value, 1.0) for value in values]


class EndsShort(WithObjective):
    values = (0.0, 0.1, 1.0)


class EndsAtTheTruth(WithObjective):
    values = (0.0, 1e-6, 1.0)


class EndsBelowTheTruth(WithObjective):
    values = (0.5, 0.1, 1.0)


class WorseThanRandom(WithObjective):
    values = (0.5, 0.9, 0.1)


class PrefersTheDark(WithObjective):
    """Whatever the message, dark data explain it best."""

    def objective(
        self, observation: Observation, knowledge: Knowledge, guesses: Sequence[Reconstruction], rng: torch.Generator
    ) -> list[Fit] | None:
        values = super().objective(observation, knowledge, guesses, rng)
        assert values is not None
        return [Fit(fit.objective, float(g.samples.mean())) for fit, g in zip(values, guesses, strict=True)]


class Lucky(Steadfast):
    """An image of one bright level, whatever the message."""

    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return torch.full(x.shape, float(torch.randint(240, 256, (), generator=rng)) / 255)


class HalfNaN(BelowTheTarget):
    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        return super().one(x, observation, rng) * (
            torch.nan if observation.control == "target" and observation.slot % 2 else 1
        )


EIGHT: dict[str, Any] = {"images": 8}
PLAIN: dict[str, Any] = {"dataset": "folder:PLAIN"}
NOISY: dict[str, Any] = {**EIGHT, "defence": plug_in(Drowned)}


def noisy(defence: type[Defence], **more: Any) -> dict[str, Any]:
    return {**NOISY, "defence": plug_in(defence), **more}


def told(
    expected: str | tuple[str, ...], why: str, attack: type[ByClosedForm] | str, cause: str = "", **more: Any
) -> Setup:
    """A set-up of an attack that is told of the defence."""
    name = attack if isinstance(attack, str) else plug_in(attack)
    return Setup(expected, why, name, **{"fields": NOISY, "cause": cause, "adapted": True, **more})


def swapped(
    kind: str, expected: Any = BROKEN, attack: type[ByClosedForm] = EasyAlone, cause: str = "consistency", why: str = ""
) -> Setup:
    why = why or "of the other client"
    return Setup(expected, why, plug_in(attack), EIGHT, cause=cause, doctor=swapped_files(kind, "target"))


def damaged_all(control: str, count: int = 8) -> Callable[[Path], None]:
    return damaged(control, *range(count))


EARNED = {
    "drowned in noise": told(NO_LEAK, "a thousand times the gradient", Steadfast, "nothing"),
    "drowned, works below": told(NO_LEAK, "it works wherever it should", BelowTheTarget, "nothing"),
    "drowned, two hidden layers": told(
        NO_LEAK, "the same with a dense net", Steadfast, "nothing", fields={**NOISY, "net": "mlp"}
    ),
    "drowned, trained": told(
        NO_LEAK, "the same after a round", Steadfast, "nothing", fields={**NOISY, "audit_rounds": "1"}, round=1
    ),
    "drowned, at the truth": told(NO_LEAK, "the search reached the truth's value", EndsAtTheTruth, "nothing"),
    "drowned, below the truth": told(NO_LEAK, "others explain the message better", EndsBelowTheTruth, "nothing"),
    "drowned, sixteen probes": told(NO_LEAK, "more messages", Steadfast, "nothing", fields={**NOISY, "images": 16}),
    "an undefended message damaged": told(
        NO_LEAK, "seven are left to check", Steadfast, "nothing", doctor=damaged("undefended", 0)
    ),
}

NOT_EARNED = {
    "drowned, not told": Setup(STATIC, "it does not know", plug_in(Steadfast), NOISY, cause="static"),
    "no claim about the noise": told(INCONCLUSIVE, "rounding takes it off", Steadfast, "noise", fields=noisy(Stepped)),
    "no weakest form": told(
        INCONCLUSIVE, "nobody knows whether it copes", Steadfast, WEAK_DEFENCE, fields=noisy(Undeclared)
    ),
    "a weakest form too strong": told(
        INCONCLUSIVE, "nothing leaks there either", Steadfast, WEAK_DEFENCE, fields=noisy(StrongEvenIfMild)
    ),
    "works on the easy control alone": told(INCONCLUSIVE, "not on these clients", EasyAlone, WEAK_DEFENCE),
    "works undefended alone": told(INCONCLUSIVE, "not through the defence's code", UndefendedAlone, WEAK_DEFENCE),
    "confused by what it knows": told(INCONCLUSIVE, "noise, once it is told", ConfusedByKnowledge, WEAK_DEFENCE),
    "seven probes": told(INCONCLUSIVE, "35 % could leak", Steadfast, "few", fields={**NOISY, "images": 7}),
    "two probes": told(INCONCLUSIVE, "78 % could leak", Steadfast, "few", fields={**NOISY, "images": 2}),
    "one message of eight": told(
        INCONCLUSIVE, "eight examples in one message", BelowTheTarget, fields={**NOISY, "images": 1, "victim_batch": 8}
    ),
    "a search that ends short": told(INCONCLUSIVE, "the truth explains it better", EndsShort, "search"),
    "worse than a random guess": told(INCONCLUSIVE, "no search at all", WorseThanRandom, "search"),
    "half without a result": told(INCONCLUSIVE, "every other one is NaN", HalfNaN, "failures"),
    "undefended not recorded": told(
        INCONCLUSIVE, "the description was not checked", Steadfast, "consistency", doctor=unrecorded("undefended")
    ),
    "undefended all damaged": told(INCONCLUSIVE, "none", Steadfast, "consistency", doctor=damaged_all("undefended")),
    "weakest not recorded": told(INCONCLUSIVE, "not shown", Steadfast, WEAK_DEFENCE, doctor=unrecorded(WEAK_DEFENCE)),
    "weakest all damaged": told(
        INCONCLUSIVE, "nothing to attack", Steadfast, WEAK_DEFENCE, doctor=damaged_all(WEAK_DEFENCE)
    ),
    "the easy control not recorded": told(INCONCLUSIVE, "nothing below", Steadfast, "easy", doctor=unrecorded("easy")),
    "data changed as well": Setup(
        STATIC, "no adaptation to changed data", plug_in(Steadfast), noisy(SwapsTheBatch), cause="static"
    ),
    "nothing is hidden": Setup(INCONCLUSIVE, "an undefended target", plug_in(EasyAlone), EIGHT, cause="undefended"),
    "nothing is hidden, ten classes of one": Setup(
        INCONCLUSIVE, "nor in a dense net", plug_in(EasyAlone), {**EIGHT, "net": "mlp"}, cause="undefended"
    ),
    "a secret head": Setup(
        STATIC, "unknown to it", plug_in(EasyAlone), {**EIGHT, "method": "fedper", "net": "mlp"}, cause="static"
    ),
}

LEAKING = {
    "hardly any noise": told(LEAKS, "1e-9", Steadfast, fields={**NOISY, "set": ("Drowned.size=1e-9",)}),
    "hardly any noise, not told": Setup(LEAKS, "1e-9", plug_in(Steadfast), {**NOISY, "set": ("Drowned.size=1e-9",)}),
    "leaks whatever the controls": told(
        LEAKS, "proof by itself", OnTarget, fields={**NOISY, "set": ("Drowned.size=1e-9",)}
    ),
    "leaks without a weakest form": told(
        LEAKS, "1e-9", Steadfast, fields=noisy(Undeclared, set=("Undeclared.size=1e-9",))
    ),
    "leaks with undefended unrecorded": told(
        LEAKS,
        "no control is needed",
        Steadfast,
        fields={**NOISY, "set": ("Drowned.size=1e-9",)},
        doctor=unrecorded("undefended"),
    ),
    "one client in two undefended": Setup(
        LEAKS, "the other one leaks", plug_in(Steadfast), {**NOISY, "images": 16, "defended": "1"}
    ),
}

BY_CHANCE = {
    "noise over images near the mean": told(
        (NO_LEAK, INCONCLUSIVE),
        "all images are near the granted mean",
        "ig",
        fields={**noisy(Drowned), "dataset": "folder:APART", "set": ("ig.iterations=60", "Drowned.size=1e6")},
    ),
    "lucky guesses of plain images": Setup(
        INCONCLUSIVE, "any bright level fits", plug_in(Lucky), {**PLAIN, "images": 16}, cause="chance"
    ),
    "plain images that leak": Setup(LEAKS, "each to its own", plug_in(Steadfast), {**PLAIN, "images": 16}),
    "dark clients": told(
        NO_LEAK, "every message prefers the dark", PrefersTheDark, "nothing", fields={**NOISY, "dataset": "folder:DARK"}
    ),
    "images that are nearly equal": told(
        NO_LEAK, "pure noise", Steadfast, "nothing", fields={**NOISY, "dataset": "folder:FLAT"}
    ),
    "images that are nearly equal, undefended": Setup(
        LEAKS, "exact, and no other result is", plug_in(Steadfast), {"dataset": "folder:FLAT", "images": 3}
    ),
    "noise that a reconstruction does not survive": told(
        IDENTIFIES,
        "the likelihood uses every entry",
        "ig",
        "candidates",
        fields={**EIGHT, "net": "mlp", "defence": "dp_gaussian", "set": ("dp_gaussian.std=0.3", "ig.iterations=20")},
    ),
    "noise that candidates do not survive": told(
        (NO_LEAK, INCONCLUSIVE),
        "a hundred times more",
        "ig",
        fields={**EIGHT, "net": "mlp", "defence": "dp_gaussian", "set": ("dp_gaussian.std=30", "ig.iterations=20")},
    ),
}

BROKEN_ONES = {
    "undefended messages swapped": told(
        BROKEN, "each explains another", Steadfast, "consistency", doctor=swapped_files("observations", "undefended")
    ),
    "undefended truth swapped": told(
        BROKEN, "of the other client", Steadfast, "consistency", doctor=swapped_files("truth", "undefended")
    ),
    "target truth swapped": swapped("truth"),
    "target messages swapped": swapped("observations"),
    "target messages swapped, identified or not": swapped(
        "observations", (BROKEN, INCONCLUSIVE), Steadfast, "", "the closed form gives the other client's"
    ),
}

SETUPS = {**EARNED, **NOT_EARNED, **LEAKING, **BY_CHANCE, **BROKEN_ONES}


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    return Laboratory(tmp_path_factory.mktemp("known"), SETUPS)


@pytest.mark.nightly
def test_no_leak_found_is_said_where_it_is_earned_and_nowhere_else(laboratory: Laboratory) -> None:
    wrong = laboratory.wrong()
    assert not wrong, f"{len(wrong)} of {len(SETUPS)} verdicts are wrong"


@pytest.mark.nightly
def test_the_controls_are_attacked_once_and_where_they_are_needed(laboratory: Laboratory) -> None:
    earned, leaking = (laboratory.entry(name) for name in ("drowned in noise", "hardly any noise"))
    assert [control["rung"] for control in earned["ladder"]] == [
        "analytic",
        "easy",
        "consistency",
        "undefended",
        "weak_defence",
    ]
    assert all(control["passed"] for control in earned["ladder"])
    assert [control["rung"] for control in leaking["ladder"]] == ["analytic", "easy", "consistency"]
    assert earned["objective"] is None and earned["messages"] == 8
    short = laboratory.entry("a search that ends short")["objective"]
    assert short == {"truth": 0.0, "found": 0.1, "random": 1.0, "unconverged": 8, "total": 8}
