"""Defences that an attacker can undo: a constant that is added, and entries that are replaced."""

from collections.abc import Callable
from dataclasses import replace
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flfw.adversary.attack import Attack
from flfw.attacks.dlg import DLG, DLGSettings
from flfw.attacks.ig import IG, IGSettings
from flfw.clients.defences.dp_gaussian import DPGaussian, DPGaussianSettings
from flfw.clients.defences.low_precision import LowPrecision, LowPrecisionSettings
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.choose_operator import AsNoise, added, alike, choose_operator
from flfw.inversion.client_models.operator import AsOffset, Scaled
from flfw.inversion.closed_form.labels import recovered
from flfw.inversion.matching import Objective, Problem, squared_distance
from flfw.inversion.outliers import AsOutliers, Errors, cauchy_likelihood, errors, shrunk
from flfw.inversion.priors import none
from flfw.nets import Tensors
from flfw.recording.observation import Knowledge, Observation, Reconstruction
from flfw.rng import torch_generator
from flfw.task.defence import Defence
from tests.support.attackable import attackable, db, digits, generators, seen

Change = Callable[[Tensor, torch.Generator], Tensor]


class Changes(Defence):
    """Changes each tensor of an update by a function."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self._change = change

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: self._change(value, rng) for name, value in update.items()}


def plus(number: float) -> Changes:
    return Changes(lambda v, rng: v + number)


def keyed() -> Changes:
    """A mask from a key that the attacker has."""
    return Changes(lambda v, rng: v + 5 * torch.randn(v.shape, generator=torch_generator(0, "key")))


def replaces(share: float, size: float = 100.0, noise: float = 0.0) -> Changes:
    def change(value: Tensor, rng: torch.Generator) -> Tensor:
        replaced = torch.rand(value.shape, generator=rng) < share
        value = value + noise * torch.randn(value.shape, generator=rng)
        return torch.where(replaced, size * torch.randn(value.shape, generator=rng), value)

    return Changes(change)


def noisy_plus(number: float) -> Changes:
    return Changes(lambda v, rng: v + number + 0.01 * torch.randn(v.shape, generator=rng))


def by_numpy(number: float) -> Changes:
    """In float32 only, outside the graph."""
    return Changes(lambda v, rng: torch.from_numpy(v.detach().numpy().astype(np.float32) + np.float32(number)))


def strict(number: float) -> Changes:
    """In float32 only: refuses all else."""

    def change(value: Tensor, rng: torch.Generator) -> Tensor:
        if value.dtype != torch.float32:
            raise RuntimeError(f"expected float32, got {value.dtype}")
        return value + number

    return Changes(change)


GROWING = Changes(lambda v, rng: v + 5 * v.norm())
AT_A_SIZE = Changes(lambda v, rng: v + 5 * (v.norm() > 2).to(v.dtype))
DOUBLED_PLUS = Changes(lambda v, rng: 2 * v + 5)
ROUNDED_PLUS = Changes(lambda v, rng: ((v + 5) * 4096).round() / 4096)
TANH = Changes(lambda v, rng: v.tanh())


def rounding(bits: int, how: Any = "nearest") -> Defence:
    return LowPrecision(LowPrecisionSettings(bits, how))


def rng(given: int = 0) -> torch.Generator:
    return torch_generator(0, "invertible", given)


def some() -> Tensors:
    return {"a": torch.randn(4000, generator=rng(1)), "b": 0.1 * torch.randn(50, 40, generator=rng(2))}


# --- a constant, by hand ---


def test_an_offset_is_subtracted_from_the_observation_alone() -> None:
    operator = AsOffset({"a": torch.tensor([5.0, -1.0], dtype=torch.float64)})
    sent, trial = {"a": torch.tensor([5.25, 0.0])}, {"a": torch.tensor([7.0, 8.0])}
    observed = operator.undo(sent)
    assert observed["a"].tolist() == [0.25, 1.0] and observed["a"].dtype == torch.float32
    assert operator.apply(trial, observed, operator.read(sent))["a"].tolist() == [7.0, 8.0]
    assert operator.noise is None
    # In units of the weights' change, minus a half of the gradient, the offset is minus a half of it too.
    assert Scaled(operator, -0.5).undo({"a": torch.tensor([-9.0, 2.0])})["a"].tolist() == [1.0, 0.0]


def test_an_offset_is_subtracted_before_searches_that_leave_the_mechanism_out() -> None:
    (observation,), (knowledge,) = attackable("linear", 8, digits(100, 1, 8))
    sent = {n: v + 5 for n, v in observation.sent.items()}
    operator = AsOffset({n: torch.full_like(v, 5.0) for n, v in sent.items()})
    problem = Problem(sent, knowledge.labels, torch.zeros(1, 1, 8, 8), {})
    for through in (True, False):
        given = Objective(knowledge.model, squared_distance, none, operator, through).constants(problem)
        torch.testing.assert_close(given["observed"], dict(observation.sent), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("defence", "factor", "expected", "tolerance"),
    [
        (plus(5.0), 1.0, 5.0, 1e-12),
        (plus(5.0), -0.05, -100.0, 1e-9),
        (plus(1e6), 1.0, 1e6, 1e-6),
        (by_numpy(5.0), 1.0, 5.0, 1e-6),
        (strict(5.0), 1.0, 5.0, 1e-6),
    ],
    ids=["plus", "in the units of a change", "large", "by float32", "float32 or nothing"],
)
def test_what_is_added_each_time_is_measured(
    defence: Defence, factor: float, expected: float, tolerance: float
) -> None:
    offset = added(DifferentiableDefence(defence, factor=factor), some())
    assert offset is not None
    for value in offset.values():
        assert float((value - expected).abs().max()) <= tolerance


OTHERS = {
    "nothing": Changes(lambda v, rng: v),
    "by the size": GROWING,
    "from a size on": AT_A_SIZE,
    "by the sign": Changes(lambda v, rng: v + 5 * v.sum().sign()),
    "doubled": DOUBLED_PLUS,
    "bent": TANH,
    "drawn anew": Changes(lambda v, rng: v + torch.randn((), generator=rng)),
    "noise": noisy_plus(5.0),
    "too coarse": strict(1e6),
    "rounded": rounding(16),
    "not a number": Changes(lambda v, rng: v / 0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_an_offset_is_not_taken_for_one(name: str) -> None:
    assert added(DifferentiableDefence(OTHERS[name]), some()) is None


# --- replaced entries, by hand ---


def test_residuals_are_shrunk_to_magnitudes_and_to_a_cauchys_tails() -> None:
    residual = torch.tensor([0.0, 1e-3, -0.75, 2400.0], dtype=torch.float64, requires_grad=True)
    small = shrunk(residual)
    half = small.square() / 2
    assert half.tolist() == pytest.approx([0.0, 5e-7, 0.25, sqrt(1 + 2400.0**2) - 1], rel=1e-6)
    assert bool((small[2:].sign() == residual[2:].sign()).all())
    (slope,) = torch.autograd.grad(half.sum(), residual)
    assert slope.tolist() == pytest.approx([0.0, 1e-3, -0.6, 1.0], rel=1e-6)
    likelihood = cauchy_likelihood({"a": shrunk(residual)}, {"a": torch.zeros(4)})
    assert likelihood.item() == pytest.approx(sum(log(1 + r * r / 2) for r in (1e-3, 0.75, 2400.0)))
    (slope,) = torch.autograd.grad(likelihood, residual)
    assert slope.tolist() == pytest.approx([2 * r / (2 + r * r) for r in (0.0, 1e-3, -0.75, 2400.0)], rel=1e-6)


def outliers(typical: float, share: float, size: int) -> AsOutliers:
    measured = {"a": Errors(torch.tensor(typical), torch.tensor(50.0), torch.tensor(share))}
    return AsOutliers(measured, {"a": torch.ones(size)})


def test_entries_that_are_too_large_to_be_true_are_left_out() -> None:
    sent = {"a": torch.tensor([1.0, -2.0, 0.5, 19.0, 21.0, -900.0, 0.0, 1.0])}
    operator = outliers(0.1, 1 / 16, 8)  # 0.5 + 3 * 0.7: three are set aside, the fourth is 2, and 20 may be true
    observed, constants = operator.undo(sent), operator.read(sent)
    assert observed["a"].tolist() == [1.0, -2.0, 0.5, 19.0, 0.0, 0.0, 0.0, 1.0]
    assert constants["precision.a"].tolist() == pytest.approx([10, 10, 10, 10, 0, 0, 10, 10])
    left = operator.apply({"a": torch.full((8,), 1.0)}, observed, constants)["a"] - observed["a"]
    expected = [0.0, shrunk(torch.tensor(30.0)).item(), shrunk(torch.tensor(5.0)).item()]
    assert left[:3].tolist() == pytest.approx(expected, rel=1e-5)
    assert left[4:6].tolist() == [0.0, 0.0]
    assert operator.noise == 1.0


def test_the_unit_of_residuals_has_a_floor_and_zeros_have_none() -> None:
    sent = {"a": torch.tensor([3.0, -3.0, 3.0, 3.0])}
    assert outliers(0.0, 1e-4, 4).read(sent)["precision.a"].tolist() == pytest.approx([1 / 3e-3] * 4)
    assert outliers(0.0, 1e-4, 4).read({"a": torch.zeros(4)})["precision.a"].tolist() == [0.0] * 4
    assert outliers(0.0, 0.9, 1).undo({"a": torch.tensor([7.0])})["a"].tolist() == [7.0]


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_share_and_the_typical_error_are_measured(noise: float) -> None:
    measured = errors(DifferentiableDefence(replaces(0.02, 100.0, noise)), some())
    assert measured is not None
    for one in measured.values():
        assert float(one.typical) == pytest.approx(noise, rel=0.1)
        assert float(one.replaced) == pytest.approx(0.02, abs=0.005)
        assert float(one.size) == pytest.approx(100 * sqrt(0.02), rel=0.15)


NOT_REPLACED = {
    "noise": DPGaussian(DPGaussianSettings(0.1)),
    "strong noise": DPGaussian(DPGaussianSettings(1e3)),
    "a bound": DPGaussian(DPGaussianSettings(0.001, clip=0.5)),
    "1 bit": rounding(1, "stochastic"),
    "2 bits": rounding(2, "stochastic"),
    "3 bits": rounding(3, "stochastic"),
    "8 bits": rounding(8, "stochastic"),
    "most are garbage": replaces(0.6),
    "noise as large as what is replaced": replaces(0.01, 0.3, 0.3),
    "nothing": Changes(lambda v, rng: v),
}


@pytest.mark.parametrize("name", NOT_REPLACED)
@pytest.mark.parametrize("net", ["linear", "lenet"])
def test_what_only_looks_like_replaced_entries_is_not_taken_for_them(name: str, net: str) -> None:
    (observation,), _ = attackable(net, 28, digits(100, 1, 28))
    assert errors(DifferentiableDefence(NOT_REPLACED[name]), observation.sent) is None


# --- the choice ---


@pytest.mark.parametrize(
    ("defence", "kind", "noise", "origin"),
    [
        (plus(5.0), AsOffset, None, False),
        (keyed(), AsOffset, None, False),
        (by_numpy(0.5), AsOffset, None, False),
        (GROWING, DifferentiableDefence, None, False),
        (DOUBLED_PLUS, DifferentiableDefence, None, True),
        (ROUNDED_PLUS, DifferentiableDefence, None, True),
        (noisy_plus(5.0), DifferentiableDefence, 1.0, True),
        (replaces(0.005), AsOutliers, 1.0, False),
        (replaces(0.4), AsOutliers, 1.0, False),
        (replaces(0.01, 100.0, 0.01), AsOutliers, 1.0, False),
        (replaces(0.6), DifferentiableDefence, 1.0, False),
        (rounding(2, "stochastic"), AsNoise, 1.0, False),
    ],
)
def test_which_equivalent_is_chosen(defence: Defence, kind: type, noise: float | None, origin: bool) -> None:
    (observation,), (knowledge,) = attackable("mlp", 8, digits(100, 1, 8))
    sent = defence.update(observation.sent, rng())
    chosen = choose_operator(DifferentiableDefence(defence), knowledge.model, sent, knowledge.labels, 1, rng())
    assert (type(chosen), chosen.noise) == (kind, noise)
    assert (isinstance(chosen, DifferentiableDefence) and chosen.origin is not None) is origin


def test_victims_are_searched_for_together_where_nothing_differs() -> None:
    observations, known = attackable("mlp", 8, digits(100, 1, 8), digits(101, 1, 8))

    def keys(defence: Defence) -> set[str]:
        every = zip(observations, known, strict=True)
        sent = [(k, defence.update(o.sent, rng(i))) for i, (o, k) in enumerate(every)]
        return {alike(choose_operator(DifferentiableDefence(defence), k.model, s, k.labels, 1, rng())) for k, s in sent}

    assert keys(plus(5.0)) == {"offset"} and keys(DOUBLED_PLUS) == {"itself, from a constant"}
    (key,) = keys(replaces(0.005))
    assert key.startswith("outliers, ")


def test_labels_are_read_off_the_observation_without_the_offset() -> None:
    batches = [digits(100 + i, 1, 8) for i in range(4)]
    observations, known = attackable("mlp", 8, *batches)
    right = {False: 0, True: 0}
    for (_, y), observation, each in zip(batches, observations, known, strict=True):
        sent = keyed().update(observation.sent, rng())
        operator = choose_operator(DifferentiableDefence(keyed()), each.model, sent, None, 1, rng())
        assert isinstance(operator, AsOffset)
        for mechanism in (None, operator):
            read = recovered(each.model, sent, 1, "single", rng(), mechanism)
            right[mechanism is not None] += int(torch.equal(read, y))
    assert right[True] == 4 and right[False] <= 2


# --- in a search ---


def attacked(attack: Attack, net: str, defence: Defence, informed: bool, side: int = 8, count: int = 1) -> list[float]:
    """The PSNR of digits behind a defence in dB."""
    batches = [digits(100 + i, 1, side) for i in range(count)]
    observations, known = defended(net, defence, batches, informed, side)
    results = attack.run(observations, known, generators(count))
    return [db(x, result) for (x, _), result in zip(batches, results, strict=True)]


def defended(
    net: str, defence: Defence, batches: list[tuple[Tensor, Tensor]], informed: bool, side: int
) -> tuple[list[Observation], list[Knowledge]]:
    observations, known = attackable(net, side, *batches)
    sent = [defence.update(o.sent, rng(i)) for i, o in enumerate(observations)]
    observations = [seen(s, o.received, i) for i, (s, o) in enumerate(zip(sent, observations, strict=True))]
    operator = DifferentiableDefence(defence) if informed else None
    return observations, [replace(k, operator=operator) for k in known]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "defence"),
    [
        ("linear", plus(5.0)),
        ("linear", keyed()),
        ("linear", replaces(0.005)),
        ("linear", replaces(0.005, 1e6)),
        ("mlp", plus(5.0)),
        ("mlp", replaces(0.005)),
        ("lenet", plus(5.0)),
        ("lenet", replaces(0.005)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_only_who_knows_of_the_defence_recovers(net: str, defence: Defence) -> None:
    ig = IG(IGSettings(iterations=200))
    assert attacked(ig, net, defence, informed=True)[0] > 40
    assert attacked(ig, net, defence, informed=False)[0] < 20


@pytest.mark.nightly
def test_larger_images_are_recovered_as_well() -> None:
    ig = IG(IGSettings(iterations=400))
    for defence in (plus(5.0), replaces(0.005)):
        assert min(attacked(ig, "linear", defence, informed=True, side=28, count=2)) > 40


@pytest.mark.slow
@pytest.mark.parametrize("defence", [DOUBLED_PLUS, ROUNDED_PLUS, replaces(0.01, 100.0, 0.01)])
def test_other_constants_and_noise_beside_garbage_are_borne(defence: Defence) -> None:
    ig = IG(IGSettings(iterations=240))
    assert attacked(ig, "linear", defence, informed=True)[0] > 40


@pytest.mark.slow
def test_what_cannot_be_undone_stays_hidden() -> None:
    ig = IG(IGSettings(iterations=240))
    assert attacked(ig, "linear", replaces(0.6), informed=True)[0] < 20


@pytest.mark.nightly
@pytest.mark.parametrize(("defence", "minimum"), [(keyed(), 60), (replaces(0.005), 20)], ids=["keyed", "garbage"])
def test_least_squares_gain_too(defence: Defence, minimum: float) -> None:
    dlg = DLG(DLGSettings(iterations=40, restarts=1))
    assert max(attacked(dlg, "lenet", defence, informed=True, count=2)) > minimum
    without = attacked(dlg, "lenet", defence, informed=False, count=2)
    assert not any(result > 15 for result in without)  # a lost search has none


@pytest.mark.parametrize("defence", [plus(5.0), replaces(0.005)], ids=["plus", "garbage"])
def test_the_truth_has_the_lowest_objective(defence: Defence) -> None:
    x, y = digits(100, 1, 8)
    (observation,), (knowledge,) = defended("mlp", defence, [(x, y)], True, 8)
    guesses = [Reconstruction(x, labels=y), Reconstruction(torch.rand(x.shape, generator=rng(9)), labels=y)]
    values = IG().objective(observation, knowledge, guesses, rng())
    assert values is not None and values[0].objective < 0.2 * values[1].objective
