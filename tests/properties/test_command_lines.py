"""Command lines and a run's configuration: a changed one is refused in one line, or is another valid one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from flfw.command import record
from flfw.experiment import Experiment
from tests.properties.changes import changed_tree, changed_word, odd
from tests.properties.reading import plain, require_refused_or_valid

LINE = [
    "--method", "fedavg", "--rounds", "3", "--clients", "4", "--lr", "0.1", "--dataset", "digits", "--attack", "ig",
    "--defence", "soteria", "prune", "--set", "prune.ratio=0.5", "--audit-rounds", "0,last", "--curve", "batch=1,4",
    "--vantage", "server", "--engine", "inproc", "--seed", "1", "--metrics", "all", "--defended", "0,1",
]  # fmt: skip
MORE = ("--resume", "--from", "--matrix", "methods=a,b", "--seeds", "--table", "--out", "\0", "--", "--purge", "x")
USUAL: dict[str, Any] = dict(Experiment().to_run_config())


def is_typed(experiment: Any) -> bool:
    """Whether the values of an experiment have the types of its run configuration, and come back from it."""
    given = experiment.to_run_config()
    alike = all(
        type(given[key]) is type(value) or {type(given[key]), type(value)} == {int, float}
        for key, value in USUAL.items()
    )
    return alike and Experiment.from_run_config(given) == experiment


@given(data=st.data())
def test_a_changed_run_config_is_refused_or_an_experiments(data: DataObject) -> None:
    changed = data.draw(changed_tree(USUAL).filter(lambda config: isinstance(config, dict)))
    require_refused_or_valid(lambda: Experiment.from_run_config(changed), intact=plain(Experiment()), is_valid=is_typed)


@st.composite
def changed_lines(draw: st.DrawFn) -> list[str]:
    """A command line with one or two of its words changed, replaced, left out, added or repeated."""
    line = list(LINE)
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(line) - 1))
        change = draw(st.sampled_from(("changed",) * 5 + ("odd", "removed", "added", "repeated")))
        if change == "changed":
            line[at] = draw(changed_word(line[at]))
        elif change == "odd":
            line[at] = draw(st.one_of(odd().map(lambda made: str(made)[:200]), st.just("9" * 5000)))
        elif change == "removed":
            del line[at]
        elif change == "added":
            line.insert(at, draw(st.sampled_from(MORE)))
        else:
            line[at : at + 1] = line[at : at + 2] * 2
    return line


@given(changed_lines())
def test_a_changed_command_line_is_refused_or_another(line: list[str]) -> None:
    def parsed() -> Experiment:
        command = record.parse(line)
        record.refuse_two_tasks(command)
        return command.experiment

    require_refused_or_valid(parsed, is_valid=is_typed)
