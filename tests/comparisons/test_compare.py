"""Runs side by side, on folders written by hand and on real ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from flfw.comparisons.compare import table
from flfw.comparisons.rows import read
from flfw.errors import InputError
from flfw.runs.run import run as run_one
from tests.support.matrix_runs import HALVES, SMALL, amended, entry, row, written


def lines(text: str, start: str) -> list[str]:
    """The lines of the block whose first line begins so, without the rule below it."""
    block = next(block for block in text.split("\n\n") if block.startswith(start))
    return [line for line in block.splitlines() if set(line) != {"─"}]


def test_only_what_differs_in_the_configurations_is_shown(tmp_path: Path) -> None:
    one = written(tmp_path / "one", [], [], defence="none", set=[], method_settings={"mu": 1}, out="one")
    two = written(tmp_path / "two", [], [], defence="d", set=["a=1", "b=2"], method_settings={"mu": 2}, out="two")
    assert [line.split() for line in lines(table([one, two]), "configuration")] == [
        ["configuration", "one", "two"],
        ["defence", "none", "d"],
        ["set", "–", "a=1,b=2"],
        ["method_settings.mu", "1", "2"],
    ]
    three = written(tmp_path / "three", [], [], defence="none", set=[], method_settings={"mu": 1})
    assert "configuration: the same" in table([one, three])
    assert "leakage: none of them was attacked" in table([one, three])


def test_accuracies_stand_beside_each_other(tmp_path: Path) -> None:
    one, two = (written(tmp_path / name, [], []) for name in ("one", "two"))
    amended(two, final=None)  # an audit of a run cut short
    results = [line.split() for line in lines(table([one, two]), "accuracy")]
    assert results == [["accuracy", "one", "two"], ["as", "received", "60.0", "%", "–"],
                     ["after", "local", "training", "80.0", "%", "–"]]  # fmt: skip


def test_a_round_that_is_infinite_or_a_lost_column_is_bad_input(tmp_path: Path) -> None:
    folder = written(tmp_path / "one", [entry()], [{**row(0, 30.0), "round": "1e999"}])
    with pytest.raises(InputError, match=r"got a damaged one: OverflowError"):
        read(folder)
    whole = (folder / "audit.csv").read_text()
    for column in ("rung", "recovered", "vantage", "defence"):
        (folder / "audit.csv").write_text(whole.replace(column, "other", 1))
        with pytest.raises(InputError, match=rf"all columns in .*audit\.csv; restore it, got missing={column}\."):
            read(folder)


def test_an_attack_that_both_have_is_compared_victim_by_victim(tmp_path: Path) -> None:
    one = written(tmp_path / "one", [entry(verdict="leaks")], [row(0, 30.0), row(1, 20.5)])
    two = written(
        tmp_path / "two",
        [entry(adaptive=False, failures=1, verdict="static")],
        [row(0, 12.0, adaptive=False), row(1, None, adaptive=False)],
    )
    header, first, second = lines(table([one, two]), "ig at round 0")
    assert header.split()[-4:] == ["difference", "from", "one,", "dB"]
    assert first.split()[:5] == ["one", "adaptive", "leaks", "2", "of"] and "25.2 (20.5 to 30.0)" in first
    assert "static" in second and "0 of 2" in second and "12.0 " in second
    # (12 - 30) and, the failed one being its best floor, (14 - 20.5).
    assert "-12.2 (-18.0 to -6.5) on 2, p = 0.5" in second


def test_victims_of_one_batch_in_either_run_count_once(tmp_path: Path) -> None:
    """Eight came alone in one run, and as one message in the other: either sign is as far from 0."""
    one = written(tmp_path / "one", [entry(images=8)], [row(n, 30.0) for n in range(8)])
    batch = [row(n, 12.0) | {"client": 0, "probe_slot": 0, "image": n} for n in range(8)]
    two = written(tmp_path / "two", [entry(images=8)], batch, victim_batch=8)
    text = table([one, two])
    assert "-18.0 on 8, p = 1" in lines(text, "ig at round 0")[2]
    assert [line.split()[-1] for line in lines(text, "all attacks together")[1:3]] == ["a", "a"]


def test_runs_are_ranked_by_the_attacks_that_were_made_on_all(tmp_path: Path) -> None:
    def attacked(name: str, db: float, *attacks: str, iterations: int = 100) -> Path:
        entries = [entry(attack=attack, images=8, iterations=iterations) for attack in attacks]
        return written(tmp_path / name, entries, [row(n, db + n, attack=a) for n in range(8) for a in attacks])

    one, weak = attacked("one", 30.0, "strong"), attacked("weak", 9.0, "ig")
    text = table([one, weak])
    assert "leaks most" not in text
    assert "all attacks together: not ranked, as no attack was made on all of them at the same place" in text
    both = attacked("both", 30.0, "strong", "ig", iterations=5)
    drawn = lines(table([weak, both]), "all attacks together")
    assert drawn[0].startswith("all attacks together (ig)") and "both leaks most." in drawn
    budgets = "The budget of ig is not the same in all runs: 100 iterations, 1 restarts; 5 iterations, 1 restarts."
    assert budgets in drawn


def test_victims_are_the_same_whatever_the_seed_if_their_positions_are(tmp_path: Path) -> None:
    one = written(tmp_path / "one", [entry()], [row(0, 30.0), row(1, 20.0)])
    two = written(tmp_path / "two", [entry()], [row(0, 11.0, index=101, label=1), row(1, 50.0, index=7)], seed=5)
    assert "-9.0 on 1, p = 1" in lines(table([one, two]), "ig at round 0")[2]  # 11 - 20
    other = written(tmp_path / "other", [entry()], [row(0, 30.0, index=8), row(1, 20.0, index=9)], seed=5)
    assert lines(table([one, other]), "ig at round 0")[2].endswith("no victim is shared")


def test_other_data_share_no_victims(tmp_path: Path) -> None:
    one, two = (written(tmp_path / name, [entry()], [row(0, 30.0)]) for name in ("one", "two"))
    amended(two, provenance={"code": "c", "data": {"digest": "e"}})
    assert lines(table([one, two]), "ig at round 0")[2].endswith("no victim is shared")


def test_an_attack_that_one_run_alone_has_is_named(tmp_path: Path) -> None:
    one = written(tmp_path / "one", [entry(), entry(round=3)], [row(0, 30.0)])
    two = written(tmp_path / "two", [entry(), entry(attack="other")], [row(0, 12.0)])
    assert "only in one run: ig at round 3: one; other at round 0: two" in table([one, two]).splitlines()


def test_folders_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    one, two = (written(tmp_path / name / "run", [], []) for name in ("one", "two"))
    assert str(one) in table([one, two]) and str(two) in table([one, two])


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    one = written(tmp_path / "one", [], [])
    with pytest.raises(InputError, match=r"Expected two or more run folders to compare, got .*one"):
        table([one])
    with pytest.raises(InputError, match="twice"):
        table([one, tmp_path / "one" / ".." / "one"])
    with pytest.raises(InputError, match=r"Expected a finished run with result\.json, got .*nothing without"):
        table([one, tmp_path / "nothing"])
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "result.json").write_text("[]")
    with pytest.raises(InputError, match="damaged"):
        table([one, tmp_path / "damaged"])


@pytest.mark.slow
def test_real_runs_are_compared(tmp_path: Path) -> None:
    folders = [
        run_one(replace(SMALL, out=tmp_path / name, defence=defence))
        for name, defence in (("plain", "none"), ("halved", HALVES))
    ]
    text = table(folders)
    assert ["defence", "none", HALVES] in [line.split() for line in lines(text, "configuration")]
    result = lines(text, "analytic at round 0")
    assert result[1].startswith("plain") and "2 of 2" in result[2] and "on 2, p = " in result[2]


def test_only_what_is_significant_gives_an_order(tmp_path: Path) -> None:
    def eight(name: str, db: float) -> Path:
        return written(tmp_path / name, [entry(images=8)], [row(n, db + n / 4) for n in range(8)])

    text = table([eight("strong", 30.0), eight("weak", 9.0), eight("also weak", 9.0)])
    result = lines(text, "all attacks together")
    assert [line.split()[-1] for line in result[:4]] == ["letter", "a", "b", "b"]
    assert "strong leaks most." in result and "These 2 do not differ at 5 %: weak and also weak." in result
    few = lines(table([tmp_path / "strong", written(tmp_path / "few", [entry()], [row(0, 9.0)])]), "all attacks")
    assert few[1].split()[-1] == few[2].split()[-1] == "a" and "need at least 7 messages in common" in few[-1]


def test_membership_is_shown_of_runs_without_another_attack(tmp_path: Path) -> None:
    figures = {"attack": "membership", "vantage": "server", "defence": "none", "adaptive": True, "rounds": [1, 2],
               "clients": 2, "verdict": "leaks", "reason": "x", "auc_low": 0.6, "auc_high": 0.8, "fpr": 0.1, "tpr": 0.3,
               "tpr_low": 0.1, "tpr_high": 0.5, "epsilon_low": 0.25, "claimed_epsilon": None, "accuracy_gap": 0.1,
               "floor": {}}  # fmt: skip
    folders = []
    for name, auc in (("one", 0.7), ("two", 0.75)):
        rows = [{**figures, "statistic": "loss", "pairs": 40, "auc": auc}]
        folders.append(amended(written(tmp_path / name, [], []), membership=rows))
    text = table(folders)
    assert "none of them was attacked" not in text
    _, one, two = lines(text, "membership")
    read_as = [" ".join(line.split()) for line in (one, two)]
    assert read_as[0] == "membership loss server in rounds 1 to 2 one leaks 0.700 (0.600 to 0.800) 40 0.25"
    assert read_as[1] == "two leaks 0.750 (0.600 to 0.800) 40 0.25"
