"""Command lines and a run's configuration: a changed one is refused in one line, or is another valid one."""

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from flfw.command import arguments
from flfw.command.flags import expert, flags
from flfw.errors import InputError
from flfw.experiment import EXPERT, Experiment
from tests.properties.changes import changed_tree, changed_word, odd, words
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
        command = arguments.parse(line)
        arguments.refuse_two_tasks(command)
        return command.experiment

    require_refused_or_valid(parsed, is_valid=is_typed)


# --- each flag by itself ---

MILLION, TINY, HUGE = 10**6, 1e-9, 1e308
ENDS: dict[str, tuple[Any, Any, Any, Any]] = {
    **dict.fromkeys(
        ("clients", "rounds", "local_epochs", "batch_size", "victim_batch", "victim_steps", "images"),
        (0, 1, MILLION, MILLION + 1),
    ),
    **dict.fromkeys(
        ("patience", "colluding_clients", "canaries"), (-1, 0, 2**63 - 1, None)
    ),
    **dict.fromkeys(("target_epsilon", "epsilon_budget", "attack_gpus", "gpus_per_client"), (-TINY, 0.0, HUGE, inf)),
    **dict.fromkeys(
        (
            "lr", "attack_timeout", "cpus_per_client", "round_deadline",
        ),
        (0.0, TINY, HUGE, inf),
    ),
    "sample": (-1, 0, 10, 11),  # of 10 clients
    "seed": (-1, 0, 2**63 - 1, 2**63),
    "image_size": (-1, 0, 4096, 4097),
    "keep_recorded_rounds": (-2, -1, 2**63 - 1, None),
    "ema": (-TINY, 0.0, 1 - TINY, 1.0),
    "delta": (0.0, TINY, 1 - TINY, 1.0),
}  # fmt: skip
"""For each flag of one number the last value below its range, its first and last, and the first beyond; None: none."""
OF_OTHERS = {"seeds", "sum_size"}  # each is refused or not by another flag
ALL = [*flags().values(), *expert()]
NUMBERS = {flag.name.replace("-", "_"): flag for flag in ALL if flag.form in ("INT", "FLOAT")}


def test_each_flag_of_a_number_has_its_ends() -> None:
    assert ENDS.keys() | OF_OTHERS == NUMBERS.keys()


@pytest.mark.parametrize("name", ENDS)
def test_a_number_is_taken_within_its_ends_and_refused_beyond(name: str) -> None:
    below, first, last, above = ENDS[name]
    for value in (first, last):
        assert getattr(made(name, value), name) == value
    for value in (below, above, -inf, nan) if NUMBERS[name].form == "FLOAT" else (below, above):
        if value is not None:
            with pytest.raises(InputError, match=name.replace("_", "[_-]")):
                made(name, value)


def made(name: str, value: Any) -> Experiment:
    given: dict[str, Any] = {name: value}
    return Experiment(**given)


CHOSEN = [flag for flag in ALL if flag.choices]


@given(st.sampled_from([*NUMBERS.values(), *CHOSEN]), st.one_of(st.text(max_size=9), words(), st.just("1e3")))
def test_a_word_in_place_of_a_number_or_of_a_choice_is_refused(flag: Any, word: str) -> None:
    """Or it is one: of 64 bits, by its range; of a choice, by its letters."""
    if word.startswith("-") or word in flag.choices or word.strip().lower() in ("auto", "none"):
        return

    def parsed() -> Experiment:
        rare = flag.name.replace("-", "_") in EXPERT
        return arguments.parse(["--expert", f"{flag.name}={word}"] if rare else [f"--{flag.name}", word]).experiment

    taken: Any = require_refused_or_valid(parsed, is_valid=is_typed)
    assert taken is None or (not flag.choices and is_number(word, flag.form))


def is_number(word: str, form: str) -> bool:
    try:
        return (int if form == "INT" else float)(word) is not None
    except ValueError:
        return False
