"""Comparison of two results: bit for bit, within an interval that the first one states, or different."""

from typing import Any

import pytest

from flfw.runs.run_comparison import DIFFERENT, EQUAL, REPETITION, RESULT, WITHIN, ComparedValue, compare, farthest


def outcomes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """The values that did not stay the same, with their outcomes."""
    return {one.path: one.outcome for one in compare(before, after) if one.outcome != EQUAL}


def test_equal_results_repeat_bit_for_bit() -> None:
    result = {"final": {"acc_global": 0.5}, "audit": [{"verdict": "leaks", "images": 8, "failure_reason": None}]}
    assert [(one.path, one.outcome) for one in compare(result, result)] == [
        ("final.acc_global", EQUAL), ("audit[0].verdict", EQUAL), ("audit[0].images", EQUAL),
    ]  # fmt: skip


def test_a_mean_may_move_within_its_interval_and_its_ends_with_it() -> None:
    before = {"audit": [{"psnr": {"mean": 20.0, "low": 18.0, "high": 22.0, "max": 25.0}}]}
    after = {"audit": [{"psnr": {"mean": 21.5, "low": 19.0, "high": 24.0, "max": 27.0}}]}
    assert set(outcomes(before, after).values()) == {WITHIN} and len(outcomes(before, after)) == 4
    after["audit"][0]["psnr"]["mean"] = 22.1
    assert set(outcomes(before, after).values()) == {DIFFERENT}


@pytest.mark.parametrize("part", ["low", "high", "max"])
def test_the_ends_of_a_mean_that_did_not_move_may_not_move_either(part: str) -> None:
    before = {"psnr": {"mean": 20.0, "low": 18.0, "high": 22.0, "max": 25.0}}
    assert outcomes(before, {"psnr": {**before["psnr"], part: 24.9}}) == {f"psnr.{part}": DIFFERENT}


@pytest.mark.parametrize(
    ("part", "value", "outcome"),
    [("max", 29.0, WITHIN), ("max", 29.1, DIFFERENT), ("low", 15.0, WITHIN), ("low", 14.9, DIFFERENT),
     ("high", 27.0, WITHIN), ("high", 1e9, DIFFERENT)],
)  # fmt: skip
def test_ends_and_extremes_move_by_no_more_than_the_narrower_interval(part: str, value: float, outcome: str) -> None:
    """That of the repetition is 4 wide, also where the first one was widened by hand."""
    before = {"mean": 20.0, "low": 18.0, "high": 22.0, "max": 25.0, part: value}
    moved = outcomes({"psnr": before}, {"psnr": {"mean": 21.0, "low": 19.0, "high": 23.0, "max": 25.0}})
    assert moved[f"psnr.{part}"] == outcome and moved["psnr.mean"] == WITHIN


@pytest.mark.parametrize(("p", "outcome"), [(638 / 1024, WITHIN), (0.001, DIFFERENT)])
def test_a_p_value_that_moved_is_that_of_its_number_of_right_guesses(p: float, outcome: str) -> None:
    """Of ten fair coins at least five are right with probability 638 / 1024, at least six with 386 / 1024."""
    before = {"correct": {"guesses": 10, "correct": 5, "low": 0.2, "high": 0.8, "p": p}}
    after = {"correct": {"guesses": 10, "correct": 6, "low": 0.3, "high": 0.9, "p": 386 / 1024}}
    moved = outcomes(before, after)
    assert moved.pop("correct.p") == outcome and set(moved.values()) == {WITHIN}


def test_ends_of_a_share_of_guesses_are_held_in_their_own_unit() -> None:
    """Shares are compared with the width of the shares, 0.6, and not with that of the numbers, 6."""
    before = {"correct": {"guesses": 10, "correct": 5, "low": 0.2, "high": 1.6, "p": 638 / 1024}}
    after = {"correct": {"guesses": 10, "correct": 6, "low": 0.3, "high": 0.9, "p": 386 / 1024}}
    assert outcomes(before, after)["correct.high"] == DIFFERENT


def test_an_accuracy_lies_in_the_binomial_interval_of_the_examples_of_its_clients() -> None:
    """10 of 20 test examples of each of two clients: 0.272 to 0.728 for one, 0.338 to 0.662 for both."""
    row = {"acc_local": 0.5, "num-examples": 20}
    before = {"rounds": [{"acc_local": 0.5, "clients": 2}], "final": {"acc_local": 0.5, "per_client": [row, row]}}

    def moved(value: float) -> dict[str, Any]:
        other = {"acc_local": value, "num-examples": 20}
        return {
            "rounds": [{"acc_local": value, "clients": 2}],
            "final": {"acc_local": value, "per_client": [other, row]},
        }

    paths = ("rounds[0].acc_local", "final.acc_local", "final.per_client[0].acc_local")
    assert outcomes(before, moved(0.65)) == dict.fromkeys(paths, WITHIN)
    assert outcomes(before, moved(0.70)) == {**dict.fromkeys(paths[:2], DIFFERENT), paths[2]: WITHIN}
    assert outcomes(before, moved(0.75)) == dict.fromkeys(paths, DIFFERENT)
    intervals = {one.path: one.interval for one in compare(before, moved(0.65)) if one.interval}
    assert intervals[paths[2]] == pytest.approx((0.272, 0.728), abs=0.0005)
    assert intervals[paths[1]] == pytest.approx((0.338, 0.662), abs=0.0005)


def test_accuracies_of_examples_whose_number_is_unknown_have_no_interval() -> None:
    assert outcomes({"final": {"acc_central": 0.5}}, {"final": {"acc_central": 0.5000001}}) == {
        "final.acc_central": DIFFERENT
    }
    assert outcomes({"rounds": [{"acc_global": 0.5, "clients": 2}]}, {"rounds": [{"acc_global": 0.6, "clients": 2}]})


def test_shares_and_areas_have_their_own_intervals() -> None:
    before = {
        "share_recovered": 0.0, "share_interval": [0.0, 0.369], "share_expected": 0.1,
        "auc": 0.6, "auc_low": 0.5, "auc_high": 0.7, "correct": {"guesses": 10, "correct": 5, "low": 0.2, "high": 0.8},
    }  # fmt: skip
    after = {**before, "share_recovered": 0.25, "auc": 0.7, "correct": {**before["correct"], "correct": 8}}
    assert outcomes(before, after) == dict.fromkeys(("share_recovered", "auc", "correct.correct"), WITHIN)
    after = {**before, "share_recovered": 0.5, "share_expected": 0.11, "auc": 0.71}
    after["correct"] = {**before["correct"], "correct": 9}
    assert outcomes(before, after) == dict.fromkeys(
        ("share_recovered", "share_expected", "auc", "correct.correct"), DIFFERENT
    )


@pytest.mark.parametrize(
    ("before", "after", "paths"),
    [
        ({"loss": 1.0}, {"loss": 1.0 + 2**-52}, {"loss"}),  # no interval is stated
        ({"loss": 1.0}, {"loss": 1}, set()),
        ({"adaptive": True}, {"adaptive": 1}, {"adaptive"}),
        ({"verdict": "leaks"}, {"verdict": "undecided"}, {"verdict"}),
        ({"epsilon": "inf"}, {"epsilon": 3.0}, {"epsilon"}),
        ({"psnr": None}, {"psnr": {"mean": 3.0}}, {"psnr"}),
        ({"rounds": [{"loss": 1.0}]}, {"rounds": [{"loss": 1.0}, {"loss": 2.0}]}, {"rounds[1]"}),
        ({"a": 1}, {"b": 1}, {"a", "b"}),
        ({"notes": ["x"]}, {"notes": ["y"]}, {"notes[0]"}),
        ({"config": {"rounds": 2, "engine": "ray"}}, {"config": {"rounds": 3, "engine": "inproc"}}, {"config.rounds"}),
        ({"seconds": 1.0, "scoring_seconds": 2.0}, {"seconds": 3.0, "scoring_seconds": 4.0}, set()),
        ({"provenance": {"code": "a"}, "flfw": "1"}, {"provenance": {"code": "b"}, "flfw": "2"}, set()),
        ({"notes": ["The code changed while this run lasted: a, then b."]}, {"notes": []}, set()),
    ],
)
def test_all_else_must_be_equal(before: dict[str, Any], after: dict[str, Any], paths: set[str]) -> None:
    assert outcomes(before, after) == dict.fromkeys(paths, DIFFERENT)


@pytest.mark.parametrize("value", [None, [], {}, [None], "x", 0])
def test_a_key_or_an_entry_that_one_result_lacks_is_named(value: Any) -> None:
    """A place that is null is there: only where both results have it, nothing is to compare."""
    whole: dict[str, Any] = {"audit": [{"images": 8, "failure_reason": value}], "a": value}
    without: dict[str, Any] = {"audit": [{"images": 8}]}
    for before, after, lacking in ((whole, without, REPETITION), (without, whole, RESULT)):
        moved = {one.path: (one.outcome, one.lacking) for one in compare(before, after) if one.outcome != EQUAL}
        assert moved == dict.fromkeys(("audit[0].failure_reason", "a"), (DIFFERENT, lacking))
    assert outcomes({"audit": [value]}, {"audit": []}) == {"audit[0]": DIFFERENT}
    assert outcomes({"audit": []}, {"audit": [value]}) == {"audit[0]": DIFFERENT}
    assert outcomes(whole, whole) == {}


@pytest.mark.parametrize("key", ["notes", "config", "final"])
@pytest.mark.parametrize("value", [None, 7, "x", [1], {"a": 1}])
def test_a_part_of_another_type_is_different_and_no_traceback(key: str, value: Any) -> None:
    whole = {"notes": [], "config": {"rounds": 2}, "final": {"per_client": [{"num-examples": 3}]}}
    assert outcomes(whole, {name: part for name, part in whole.items() if name != key}) == {key: DIFFERENT}
    assert set(outcomes({**whole, key: value}, whole).values()) == {DIFFERENT}


@pytest.mark.parametrize("rows", [7, [7], "x", {"a": 1}])
def test_clients_rows_of_another_type_are_different_and_no_traceback(rows: Any) -> None:
    whole = {"final": {"per_client": [{"num-examples": 3}]}}
    assert set(outcomes({"final": {"per_client": rows}}, whole).values()) == {DIFFERENT}


def test_a_moved_end_names_the_number_that_it_moved_with() -> None:
    before, after = ({"mean": m, "low": 1.0, "high": 3.0 + m} for m in (2.0, 2.5))
    assert ComparedValue("high", 5.0, 5.5, WITHIN, moved_with="mean") in compare(before, after)


def test_a_number_outside_its_own_interval_was_changed() -> None:
    before = {"share_recovered": 0.0, "share_interval": [0.2, 1.0]}
    assert outcomes(before, {**before, "share_recovered": 0.5}) == {"share_recovered": DIFFERENT}


@pytest.mark.parametrize(
    "after", [{"mean": 20.0, "low": 18.0, "high": 22.0}, {"mean": 20.0, "low": None, "high": None}]
)
def test_an_interval_that_was_changed_with_its_number_does_not_hold_it(after: dict[str, Any]) -> None:
    before = {"psnr": {"mean": 5.0, "low": -1e9, "high": 1e9}}
    assert outcomes(before, {"psnr": after}) == dict.fromkeys(("psnr.mean", "psnr.low", "psnr.high"), DIFFERENT)


def test_the_farthest_number_is_the_one_with_the_largest_relative_difference() -> None:
    before = {"a": 100.0, "b": 1.0, "c": "x", "d": 0.0, "e": None}
    last = farthest(compare(before, {**before, "a": 101.0, "b": 1.5, "c": "y", "e": 3.0}))
    assert last is not None and last[0].path == "b" and last[1] == pytest.approx(1 / 3)
    last = farthest(compare(before, {**before, "d": 1e-9}))
    assert last is not None and last[1] == 1.0
    assert farthest(compare(before, {**before, "c": "y"})) is None
