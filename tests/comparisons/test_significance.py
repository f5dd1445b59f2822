"""Ranks of combinations: letters, Holm's correction, tests by hand, and how often they err where nothing differs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from flfw.comparisons.matrices import prepare
from flfw.comparisons.question import Matrix
from flfw.comparisons.rows import read
from flfw.comparisons.significance import (
    ALPHA,
    Outcomes,
    VictimOutcome,
    across,
    common_places,
    holm,
    joined_messages,
    letters,
    ranked,
    strongest,
)
from flfw.rng import numpy_generator
from tests.support.matrix_runs import entry, row, written
from tests.support.small_runs import tiny


def outcomes(values: Mapping[int, tuple[bool, float | None]], batch: int = 1) -> Outcomes:
    """Results by victim, of which ``batch`` came in one message."""
    return {(i,): VictimOutcome(recovered, db, 0, f"0/0/{i // batch}") for i, (recovered, db) in values.items()}


def constant(recovered: bool, db: float, count: int) -> Outcomes:
    return outcomes(dict.fromkeys(range(count), (recovered, db)))


def apart(*pairs: str) -> list[frozenset[str]]:
    return [frozenset(pair) for pair in pairs]


FIRST = {("ig", "server", "probe", 0)}


# --- letters and correction ---


def test_names_share_a_letter_exactly_if_they_do_not_differ() -> None:
    assert letters("xyz", []) == {"x": "a", "y": "a", "z": "a"}
    assert letters("xyz", apart("xy", "xz", "yz")) == {"x": "a", "y": "b", "z": "c"}
    assert letters("xyz", apart("xz")) == {"x": "a", "y": "ab", "z": "b"}
    names = "abcdefg"
    rng = numpy_generator(0, "letters")
    for _ in range(20):
        pairs = [a + b for i, a in enumerate(names) for b in names[i + 1 :] if rng.random() < 0.5]
        marks = letters(names, apart(*pairs))
        for i, a in enumerate(names):
            assert marks[a]
            for b in names[i + 1 :]:
                assert bool(set(marks[a]) & set(marks[b])) == (a + b not in pairs)


def test_the_correction_multiplies_step_by_step() -> None:
    assert holm([0.01, 0.04, 0.02, 0.5]) == pytest.approx([0.04, 0.08, 0.06, 0.5])  # 0.01 * 4, 0.02 * 3, 0.04 * 2
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


# --- tests ---


def test_the_tests_are_those_of_mcnemar_and_wilcoxon() -> None:
    one = outcomes({i: (i < 6, 20.0 + i) for i in range(8)})
    two = outcomes({i: (i == 7, 19.0) for i in range(8)})
    recovery, close = ranked({"one": one, "two": two}).tests
    # Six examples only the one recovers and one only the other: 2 P(at most 1 of 7) = 2 (1 + 7) / 2^7.
    assert (recovery.measure, recovery.images, recovery.difference, recovery.p) == (
        "recovered",
        8,
        5 / 8,
        pytest.approx(1 / 8),
    )
    # All eight are closer: of 2^8 signs only all plus and all minus are as far from the middle.
    assert (close.measure, close.difference, close.p) == ("closeness", 4.5, pytest.approx(2 / 2**8))
    assert (close.adjusted, recovery.adjusted) == (pytest.approx(4 / 2**8), pytest.approx(1 / 8))
    assert close.significant and not recovery.significant


def test_examples_of_one_message_count_once() -> None:
    """Sixteen images in two messages: two signs, of which either two are as far from the middle."""
    one, two = outcomes(dict.fromkeys(range(16), (True, 30.0)), 8), outcomes(dict.fromkeys(range(16), (False, 9.0)), 8)
    ranking = ranked({"one": one, "two": two})
    assert [(test.messages, test.p) for test in ranking.tests] == [(2, 0.5), (2, 0.5)]
    assert ranking.alike == [["one", "two"]] and ranking.too_few == 7  # 2 * 2 / 2^7 <= 0.05 < 2 * 2 / 2^6


def test_one_message_of_either_side_counts_once() -> None:
    """Sixteen images that each came alone on one side, and in two batches on the other."""
    alone, batches = constant(True, 30.0, 16), outcomes(dict.fromkeys(range(16), (False, 9.0)), 8)
    for sides in ({"alone": alone, "batches": batches}, {"batches": batches, "alone": alone}):
        assert [(test.messages, test.p) for test in ranked(sides).tests] == [(2, 0.5), (2, 0.5)]
    assert joined_messages([("a", "x"), ("b", "y"), ("b", "x"), ("c", "z"), ("d", "z")]) == [0, 0, 0, 1, 1]


def test_with_too_few_messages_the_ranking_says_so() -> None:
    few, enough = (ranked({"one": constant(True, 30.0, n), "two": constant(False, 9.0, n)}) for n in (6, 7))
    assert few.too_few == 7 and not any(test.significant for test in few.tests)
    assert enough.too_few == 0 and all(test.significant for test in enough.tests)


@pytest.mark.parametrize("images", [3, 4])
def test_a_matrix_says_before_it_runs_that_its_messages_are_too_few(
    images: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(Matrix(defences=("none", "prune"), seeds=(0, 1)), tiny(images=images), tmp_path / "new")
    said = "warning: 6 messages cannot tell 2 combinations apart; 7 could (--images)\n"
    assert capsys.readouterr().err == (said if images == 3 else "")


def test_without_common_examples_nothing_is_compared() -> None:
    other: Outcomes = {(i + 100,): result for i, result in enumerate(constant(False, 9.0, 20).values())}
    ranking = ranked({"one": constant(True, 30.0, 20), "two": other, "never attacked": {}})
    assert ranking.tests == () and [one.combination for one in ranking.standings] == ["one", "two"]
    assert ranking.alike == [] and ranking.most == ranking.least == ["one", "two"]


def test_what_failed_is_not_missing() -> None:
    """It was not recovered, and only its closeness may be unknown."""
    one, two = constant(True, 30.0, 10), outcomes(dict.fromkeys(range(10), (False, None)))
    (test,) = ranked({"one": one, "two": two}).tests
    assert (test.measure, test.p) == ("recovered", pytest.approx(2 / 2**10))


def test_measures_that_contradict_each_other_give_no_order() -> None:
    """One recovers ten that the other does not, and is further away from all forty others."""
    one = outcomes({i: (i < 10, 21.0 if i < 10 else 5.0) for i in range(50)})
    two = outcomes({i: (False, 20.0 if i < 10 else 19.0) for i in range(50)})
    ranking = ranked({"one": one, "two": two})
    assert [test.significant for test in ranking.tests] == [True, True]
    assert ranking.alike == [] and ranking.most == ranking.least == ["one", "two"]


# --- how often it errs ---


def simulated(rng: np.random.Generator, gains: Mapping[str, float], images: int) -> dict[str, Outcomes]:
    """Combinations whose examples are as hard for all, with an error of each; recovered above 20 dB."""
    hard = rng.normal(20, 5, images)
    close = {name: hard + gain + rng.normal(0, 3, images) for name, gain in gains.items()}
    return {
        name: outcomes({i: (bool(db > 20), float(db)) for i, db in enumerate(values)}) for name, values in close.items()
    }


@pytest.mark.slow
def test_where_nothing_differs_a_rank_is_given_at_most_as_often_as_said() -> None:
    rng, draws, wrong = numpy_generator(1, "null"), 150, 0
    for _ in range(draws):
        wrong += any(test.significant for test in ranked(simulated(rng, dict.fromkeys("abcd", 0.0), 16)).tests)
    assert 0 < wrong <= binom.ppf(0.999, draws, ALPHA)  # of 150 at most 16, were the rate 5 %


def test_a_difference_is_found_and_what_does_not_differ_stays_together() -> None:
    rng, draws, differences, together = numpy_generator(2, "shift"), 20, 0, 0
    for _ in range(draws):
        ranking = ranked(simulated(rng, {"weak": 0.0, "also weak": 0.0, "strong": 8.0}, 30))
        differences += ranking.most == ["strong"]
        together += sorted(ranking.least) == ["also weak", "weak"]
    assert differences == draws and together >= 17


# --- from runs ---


def test_all_attacks_on_an_example_count_together_at_all_rounds(tmp_path: Path) -> None:
    informed = entry(attack="dlg", adaptation="written")
    rows = [row(0, 12.0), row(1, None), row(0, 25.0, attack="dlg"), row(1, 15.0, attack="dlg"), row(0, 9.0, round=3)]
    run = read(written(tmp_path / "run", [entry(), entry(attack="dlg"), entry(round=3), informed], rows))
    seen = strongest([run], [setting for setting, _ in run.entries])
    assert [(key[-1], o.recovered, o.closeness) for key, o in seen.items()] == [("100", True, 25.0), ("101", False, 15)]
    alone = strongest([run], [setting for setting, _ in run.entries if setting.attack == "ig" and setting.round == 0])
    assert [o.closeness for o in alone.values()] == [12.0, 14.0]  # the failed one as its best guess


def test_across_runs_the_position_tells_the_example(tmp_path: Path) -> None:
    one = read(written(tmp_path / "one", [entry()], [row(0, 30.0), row(1, 9.0)]))
    moved = read(written(tmp_path / "two", [entry()], [row(1, 21.0, client=5, label=0, index=100)], seed=4))
    assert set(across([moved], False, FIRST)) < set(across([one], False, FIRST))
    assert not set(across([moved], True, FIRST)) & set(across([one], True, FIRST))


def test_only_rounds_that_all_attacked_count(tmp_path: Path) -> None:
    """Else a run that was attacked more often would leak more."""
    often = read(written(tmp_path / "a", [entry(), entry(round=3)], [row(0, 9.0), row(0, 40.0, round=3)]))
    once, other = (
        read(written(tmp_path / n, [entry(round=r)], [row(0, 9.0, round=r)])) for n, r in (("b", 0), ("c", 5))
    )
    assert common_places([[often], [once]]) == FIRST and common_places([[often], [other]]) == set()
    assert [o.closeness for o in across([often], False, FIRST).values()] == [9.0]
    assert common_places([[read(written(tmp_path / "none", [], []))], [once]]) == FIRST
