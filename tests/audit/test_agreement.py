"""Agreement of a recorded update with the recomputed ones: by hand, on one recomputation and on several."""

from collections.abc import Sequence
from math import cos, inf, pi, sin, sqrt

import pytest
import torch
from torch import Tensor

from flfw.audit.measures.agreement import COARSE, TOLERANCE, agreement, resolution
from flfw.errors import InputError
from flfw.rng import torch_generator


def vector(*numbers: float) -> dict[str, Tensor]:
    """Two tensors, so that an update is more than one."""
    return {"a": torch.tensor(numbers[:1]), "b": torch.tensor(numbers[1:])}


def at(degrees: float, length: float = 1.0) -> dict[str, Tensor]:
    angle = degrees * pi / 180
    return vector(length * cos(angle), length * sin(angle))


# --- one recomputation --------------------------------------------------------------------------------------------


def test_cosine_and_ratio_are_those_of_the_whole_update() -> None:
    result = agreement(vector(3.0, 4.0), [vector(0.0, 10.0)])
    assert (round(result.cosine, 6), result.ratio, result.recomputations) == (0.8, 0.5, 1)
    assert result.off == pytest.approx(sqrt(0.3**2 + 0.6**2))  # (3, 4) - (0, 10) over 10
    assert result.outcome == "failed" and "cosine 0.80000, length ratio 0.5000" in result.sentence


@pytest.mark.parametrize(
    ("recorded", "outcome"),
    [
        (at(0), "passed"),
        (at(0, 1 + 0.9 * TOLERANCE), "passed"),
        (at(0, 1 + 1.1 * TOLERANCE), "failed"),
        (at(0, 1 - 1.1 * TOLERANCE), "failed"),
        (at(0.5), "passed"),  # 0.5 degrees are 0.0087, 0.6 are 0.0105
        (at(0.6), "failed"),
        (at(180), "failed"),
        (vector(0.0, 0.0), "failed"),
    ],
)
def test_one_recomputation_may_be_off_by_a_hundredth(recorded: dict[str, Tensor], outcome: str) -> None:
    assert TOLERANCE == 0.01 and agreement(recorded, [at(0)]).outcome == outcome


def test_the_numbers_of_a_wrong_normalisation_do_not_agree() -> None:
    from math import acos

    result = agreement(at(acos(0.9987) * 180 / pi, 1.003), [at(0)])
    assert (round(result.cosine, 4), round(result.ratio, 3), result.agrees) == (0.9987, 1.003, False)


def test_where_only_the_length_differs_the_direction_still_agrees() -> None:
    result = agreement(at(0, 5.0), [at(0)])
    assert (result.agrees, result.points, result.ratio) == (False, True, 5.0)
    assert not agreement(at(10), [at(0)]).points


def test_an_update_of_nothing_where_something_is_recomputed_has_no_length() -> None:
    assert agreement(at(0), [vector(0.0, 0.0)]).ratio == inf
    assert "both are zero" in agreement(vector(0.0, 0.0), [vector(0.0, 0.0)]).sentence
    assert agreement(vector(0.0, 0.0), [vector(0.0, 0.0)]).outcome == "not possible"
    assert agreement(vector(float("nan"), 0.0), [at(0)]).outcome == "not possible"


def test_only_common_tensors_are_compared_and_there_must_be_one() -> None:
    more = {**at(0), "buffer": torch.tensor([7.0])}
    assert agreement(more, [at(0)]).cosine == pytest.approx(1.0)
    with pytest.raises(InputError, match=r"^Expected a tensor in both updates, got recorded=c"):
        agreement({"c": torch.ones(1)}, [at(0)])
    with pytest.raises(InputError, match=r"^Expected at least one recomputed update, got recomputed=0"):
        agreement(at(0), [])


# --- rounding -----------------------------------------------------------------------------------------------------


def test_rounding_widens_the_tolerance_up_to_a_limit() -> None:
    slanted = at(2.0)  # 0.035
    assert [agreement(slanted, [at(0)], rounding).outcome for rounding in (0.0, 0.03, 0.06)] == [
        "failed",
        "passed",
        "not possible",
    ]
    assert COARSE == 0.05 and "rounding alone may change 6%" in agreement(slanted, [at(0)], 0.06).sentence


def test_weights_far_larger_than_their_change_leave_nothing_to_compare() -> None:
    weights = {"a": torch.full((1000,), 1000.0)}
    unit = 2.0**-24  # half a unit in the last place of float32
    for change in (1.0, 1e-3):
        after = {"a": weights["a"] + change}
        assert resolution(after, weights, ["a"]) == pytest.approx(unit * 1000 / change, rel=0.05)
        assert resolution(after, weights, ["a"], steps=4) == pytest.approx(2 * unit * 1000 / change, rel=0.05)
    half = {"a": weights["a"].half() + 1}
    assert resolution(half, weights, ["a"]) == pytest.approx(2.0**-11 * 1000, rel=0.05)
    assert resolution(after, weights, ["a"], types={"a": torch.float16}) > 100 * resolution(after, weights, ["a"])
    assert resolution(weights, weights, ["a"]) == inf


def test_the_estimate_of_rounding_is_what_rounding_does() -> None:
    rng = torch_generator(0, "rounding")
    weights = torch.randn(10_000, generator=rng)
    change = 1e-5 * torch.randn(10_000, generator=rng)
    after = weights + change
    error = float((after.double() - weights.double() - change.double()).norm() / change.double().norm())
    estimate = resolution({"a": after}, {"a": weights}, ["a"])
    assert error < estimate < 4 * error


# --- several recomputations ---------------------------------------------------------------------------------------


FAN = [at(degrees) for degrees in (-10, 0, 10)]


def test_several_are_compared_with_the_mean_of_the_others() -> None:
    result = agreement(at(0), FAN)
    # Each of the outer ones is 15 degrees from the mean of the two others, the inner one 0.
    slack = 1.5 * (1 - cos(15 * pi / 180))
    assert result.least_cosine == pytest.approx(1 - TOLERANCE**2 / 2 - slack)
    assert result.ratios == pytest.approx((1 - TOLERANCE, 1 + TOLERANCE)) and result.recomputations == 3
    allowed = [degrees for degrees in range(40) if agreement(at(degrees), FAN).agrees]
    assert allowed == list(range(19))  # acos(1 - slack) is 18.4 degrees


def test_the_lengths_may_differ_as_those_of_the_others_do() -> None:
    lengths = [at(0, length) for length in (0.98, 1.0, 1.02)]
    low, high = agreement(at(0), lengths).ratios
    # 0.98 over the mean of 1.0 and 1.02, less half of the range; likewise above.
    smallest, largest = 0.98 / 1.01, 1.02 / 0.99
    half = (largest - smallest) / 2
    assert (low, high) == pytest.approx((smallest - half - TOLERANCE, largest + half + TOLERANCE))
    assert agreement(at(0, 1.05), lengths).agrees and not agreement(at(0, 1.2), lengths).agrees


def test_draws_that_agree_with_nothing_leave_nothing_to_compare() -> None:
    result = agreement(at(0), [at(degrees) for degrees in (0, 120, 240)])
    assert result.outcome == "not possible" and result.sentence.endswith("so random that this shows nothing.")


def test_wide_bounds_can_fail_but_not_pass() -> None:
    wide = [at(degrees) for degrees in (-30, 0, 30)]
    assert agreement(at(0), wide).outcome == "not possible" and agreement(at(90), wide).outcome == "failed"
    lengths = [at(0, length) for length in (0.5, 1.0, 1.5)]
    assert agreement(at(0), lengths).outcome == "not possible" and agreement(at(0, 9.0), lengths).outcome == "failed"


def draws(count: int, spread: float, shift: Sequence[float] = ()) -> list[dict[str, Tensor]]:
    """A common direction of length 1 in 2,000 dimensions, and noise of length ``spread``."""
    rng = torch_generator(0, "draws", count)
    middle = torch.zeros(2000)
    middle[0] = 1.0
    middle[1 : 1 + len(shift)] += torch.tensor(list(shift))
    return [{"a": middle + spread / sqrt(2000) * torch.randn(2000, generator=rng)} for _ in range(count)]


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.1, 0.3])
def test_one_more_draw_agrees_almost_always(spread: float) -> None:
    *recomputed, _ = draws(11, spread)
    assert all(agreement(one, recomputed).agrees for one in draws(100, spread))


@pytest.mark.parametrize(("spread", "shift", "seen"), [(0.1, 0.3, True), (0.1, 0.03, False), (0.3, 1.0, True)])
def test_an_error_is_seen_if_it_is_larger_than_the_draws(spread: float, shift: float, seen: bool) -> None:
    assert all(agreement(one, draws(10, spread)).agrees != seen for one in draws(20, spread, [shift]))
