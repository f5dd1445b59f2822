"""Golden numbers: every method computes what its authors' own code computed from the same inputs, in float64.

The numbers were made from two repositories (see `tests.golden.cases`). Where this project departs from them, a setting
takes the authors' way. Two differences of rounding size have no setting and are patched here: the order within a power
iteration of spectral norm, and the 1e-6 that torch adds to the norms it clips by. A part without a tolerance is known
not to agree, and is tested to differ.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils import parametrizations

from flfw.experiment import Experiment
from flfw.nets.training import per_example
from flfw.plans.run_plan import plan
from tests.golden import cases
from tests.golden.cases import Case
from tests.golden.parties import Outcome, outcomes
from tests.support import rounds

Patch = Callable[[pytest.MonkeyPatch], None]

KNOWN_DIFFERENCE = 1e-3  # of a change: the least by which parts differ that are known not to agree
MISTAKE = 1e-2  # of a change: what most mistakes that were tried came to

METRICS = {
    "classifier_loss": ("losses", "classifier_mean_of_epoch"),
    "loss": ("losses", "hypernetwork_mean_of_last_epoch"),
    "gamma": ("hyper", "gamma"),
    "gradient_norm": ("example_gradient_norms", "mean"),
    "clipped": ("example_gradient_norms", "clipped_share"),
}
"""Clients' numbers, each with its place in a case's JSON, if it is there."""


def v_before_u(patch: pytest.MonkeyPatch) -> None:
    """Iterate as `torch.nn.utils.spectral_norm`, which the authors use: half an iteration from its successor."""

    def iterate(norm: Any, matrix: Tensor, times: int) -> None:
        for _ in range(times):
            norm._v.copy_(normalize(matrix.t() @ norm._u, dim=0, eps=norm.eps))
            norm._u.copy_(normalize(matrix @ norm._v, dim=0, eps=norm.eps))

    patch.setattr(parametrizations._SpectralNorm, "_power_method", torch.no_grad()(iterate))


def longer_norms(patch: pytest.MonkeyPatch) -> None:
    """Add to an example's norm what `torch.nn.utils.clip_grad_norm_`, which the authors use, adds."""
    joint = per_example._joint
    patch.setattr(per_example, "_joint", lambda norms: joint(norms) + 1e-6)


@dataclass(frozen=True)
class Variant:
    """Way to compute a case.

    Attributes:
        case: name of the case.
        name: the way, in words.
        tolerance: name of its row in the case's tolerances.
        settings: settings of the method, beside the authors' hyper-parameters.
        patches: the differences that no setting takes away.
        agreeing: parts that agree all the same, of those without a tolerance.
    """

    case: str
    name: str
    tolerance: str = "as it is"
    settings: tuple[str, ...] = ()
    patches: tuple[Patch, ...] = ()
    agreeing: tuple[str, ...] = ()


def both_steps(case: str) -> list[Variant]:
    return [
        Variant(case, "steps in low rank", "step=low_rank", ("step=low_rank",)),
        Variant(case, "dense steps", "step=dense", ("step=dense",)),
    ]


def both_norms(case: str) -> list[Variant]:
    return [Variant(case, "as it is"), Variant(case, "norms + 1e-6", "examples' norms + 1e-6", (), (longer_norms,))]


PLAIN, TWICE = ("diversity=0", "second_pass=false"), ("diversity=0", "pairs=halves", "second_pass=true")
SAME_LABEL = ("diversity=0.2", "pairs=same_label", "second_pass=false")
HALVES = ("diversity=0.2", "pairs=halves", "second_pass=true")
COUNTERS = ("generator counter", "discriminator counter")  # they count batches, whatever is in them

VARIANTS = [
    *both_steps("hyperfl_cnn1"),
    *both_steps("hyperfl_cnn2"),
    Variant("fedcg_client", "one pass", "diversity=0", PLAIN),
    Variant("fedcg_client", "two passes, v before u", "diversity=0, v before u, G run twice", TWICE, (v_before_u,)),
    Variant(
        "fedcg_w_client",
        "pairs of the same label",
        "diversity=.2 as it is (labels drawn again)",
        SAME_LABEL,
        agreeing=COUNTERS,
    ),
    Variant("fedcg_w_client", "pairs of halves", "diversity=.2, drawn_again := halves", HALVES),
    Variant(
        "fedcg_w_client",
        "pairs of halves, v before u",
        "diversity=.2, drawn_again := halves, v before u",
        HALVES,
        (v_before_u,),
    ),
    Variant("fedcg_server", "as it is"),
    Variant("fedgen_client", "as it is"),
    Variant("fedgen_server", "pairs of the same label", "as it is (labels drawn again)", ("pairs=same_label",)),
    Variant("fedgen_server", "pairs of halves", "drawn_again := halves", ("pairs=halves",)),
    Variant("feddf_server", "fresh Adam", "as it is (a fresh Adam each round)", ("memory=fresh",)),
    Variant("feddf_server", "kept Adam", "server's Adam kept", ("memory=kept",)),
    Variant("fedprox_client", "as it is"),
    Variant("fedavg_client", "as it is"),
    *both_norms("dp_fedavg"),
    *both_norms("dp_fedavg_some_clipped"),
    *both_norms("centaur"),
    *both_norms("ppsgd"),
    Variant("mean_fedcg", "as it is"),
    Variant("mean_hyperfl", "as it is"),
]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with rounds.exactly():
        yield


def errors(case: Case, computed: Mapping[str, Outcome]) -> dict[tuple[str, str], float]:
    """Compute the largest error of each part at each stage; one that is not a number stays so."""
    each: dict[tuple[str, str], list[float]] = defaultdict(list)
    for stage, expected in case.results.items():
        outcome = computed[stage]
        assert outcome.tensors.keys() == expected.keys()
        for tensor, summary in expected.items():
            value, before = outcome.tensors[tensor], outcome.before[tensor]
            each[stage, cases.part_of(tensor)].append(cases.error(cases.summarise(value, before), summary))
    return {place: float(np.max(values)) for place, values in each.items()}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: f"{variant.case}: {variant.name}")
def test_a_case_is_met(variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.read(variant.case)
    for patch in variant.patches:
        patch(monkeypatch)
    computed = outcomes(case, variant.settings, tmp_path, monkeypatch)
    for (stage, part), error in errors(case, computed).items():
        limit = case.tolerance(variant.tolerance, stage, part)
        if limit is not None:
            assert error <= limit, f"{part}, {stage}: {error:.1e} of the authors' change"
        elif part in variant.agreeing:
            assert error == 0, f"{part}, {stage}: {error:.1e} of the authors' change"
        else:
            assert error > KNOWN_DIFFERENCE, f"{part}, {stage}: agrees to {error:.1e}; give it a tolerance"
    for name, (table, key) in METRICS.items():
        if key in case.card.get(table, {}):
            assert computed["after"].metrics[name] == pytest.approx(case.card[table][key], rel=1e-6)


def test_every_case_and_every_row_of_tolerances_has_a_test() -> None:
    tested = {(variant.case, variant.tolerance) for variant in VARIANTS}
    assert tested == {(name, row) for name in cases.names() for row in Case.read(name).card["tolerance"]}
    assert len(cases.names()) == 16


@pytest.mark.parametrize(
    ("method", "settings"), [("fedcg", TWICE), ("fedgen", ("pairs=halves",)), ("feddf", ("memory=kept",))]
)
def test_the_authors_variant_has_the_settings_that_agree(method: str, settings: tuple[str, ...]) -> None:
    experiment = Experiment(method=method, net="lenet5", split="sampled", augment="none", attack=("none",))
    by_name = plan(dataclasses.replace(experiment, variant="authors")).client.settings
    chosen = plan(dataclasses.replace(experiment, set=settings)).client.settings
    assert by_name == chosen != plan(experiment).client.settings


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["momentum=0.51", "clip=1e9", "classifier_lr=0.11"])
def test_a_mistake_exceeds_the_tolerance(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One setting is another than the authors', as if the code used it wrongly."""
    case = Case.read("hyperfl_cnn2")
    worst = max(errors(case, outcomes(case, (mistake,), tmp_path, monkeypatch)).values())
    limit = case.tolerance("step=low_rank", "after", "hypernet")
    assert limit is not None and worst > MISTAKE > limit


def test_other_draws_are_refused() -> None:
    """A case with another seed, or with a draw more, is not the case of the numbers."""
    card = Case.read("fedavg_client").card
    for other in ({"seed": card["seed"] + 1}, {"plan": [*card["plan"], {"name": "z", "kind": "normal", "shape": [1]}]}):
        with pytest.raises(ValueError, match="Expected the draws of fedavg_client to end with"):
            cases.draw({**card, **other})


def test_a_result_that_is_not_a_number_meets_no_tolerance() -> None:
    start = np.linspace(0.0, 1.0, 50)
    expected = cases.summarise(start + 1, start)
    assert cases.error(expected, expected) == 0
    broken = np.where(np.arange(50) == 7, np.nan, start + 1)  # not one of the entries that are kept
    assert not cases.error(cases.summarise(broken, start), expected) <= 1e9
