"""Chains of lines and sites' ledgers: no line is lost or changed unnoticed, and nothing that was spent comes back."""

import dataclasses
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from flfw.dp import site_ledger
from flfw.dp.budget import BudgetExceededError, EpsilonBudget
from flfw.dp.site_ledger import MessageEntry, Spent
from flfw.errors import InputError
from flfw.files.chain import Chain
from flfw.privacy.mechanism import Mechanism
from tests.properties.changes import Change, changed_json, either, rechained, unchained, unsealed
from tests.properties.reading import Folder, Reader, require_refused_or_valid

BUDGET = EpsilonBudget(80.0)
ENTRY = MessageEntry("abc", 1, "train", "dp_fedavg", Mechanism(2.0, 3), 50, 1, ("a.*",), 0.0, Mechanism(9.0, 1), 60)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
ROWS = st.lists(st.dictionaries(st.text().filter(lambda key: key != "before"), SCALARS, max_size=3), max_size=4)


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines as a reader sees them, and as one who holds them does."""
    chain = Chain(path / "lines.jsonl")
    seen = chain.rows()
    with chain.held() as held:
        assert held.rows == seen, "two readings of a chain differ"
    return seen


def spent(path: Path) -> Spent:
    return site_ledger.read(path / "lines.jsonl", BUDGET)


def charged(path: Path) -> str:
    site_ledger.charge(path / "lines.jsonl", BUDGET, ENTRY)
    return "charged"


def is_spent(read: Any) -> bool:
    return type(read.messages) is int and read.messages >= 0 and read.epsilon >= 0 and read.runs <= read.messages


@pytest.fixture(scope="module")
def readers(scratch: Path) -> dict[str, Reader]:
    changes: dict[str, Change] = {"lines.jsonl": either(rechained, unchained), "lines.head": unsealed(changed_json)}
    with Chain(scratch / "chain" / "lines.jsonl").held() as held:
        for number in range(3):
            held.append({"number": number, "word": "é"})
    with Chain(scratch / "ledger" / "lines.jsonl").held() as held:
        for number in range(3):
            held.append(dataclasses.asdict(dataclasses.replace(ENTRY, round=number)))
    chain, ledger = (Folder.of(scratch / f"{name}-read", scratch / name) for name in ("chain", "ledger"))
    return {
        "chain": Reader(chain, changes, rows, lambda read: all(isinstance(row, dict) for row in read)),
        "ledger": Reader(ledger, changes, spent, is_spent),
        "charge": Reader(ledger, changes, charged, refusals=(BudgetExceededError,)),
    }


@pytest.mark.parametrize("name", ["chain", "ledger", "charge"])
@given(data=st.data())
def test_a_changed_chain_is_noticed_or_one(data: DataObject, readers: dict[str, Reader], name: str) -> None:
    readers[name].require_refused_or_valid(data)


@given(data=st.data())
def test_a_ledger_never_counts_less_after_a_change_that_is_not_refused(
    data: DataObject, readers: dict[str, Reader]
) -> None:
    """One that leaves the other file as it was; what makes both fit is a forgery, which no reader can tell."""
    folder = readers["ledger"].folder
    before, changed = spent(folder.lay()), {}
    name = data.draw(st.sampled_from(("lines.jsonl", "lines.head")))
    if name == "lines.jsonl":
        changed, _ = data.draw(unchained(name, folder.files[name]))
    if name == "lines.head" or data.draw(st.integers(0, 9)) == 9:
        changed = {name: None}
    after: Any = require_refused_or_valid(lambda: spent(folder.lay(changed)), folder.path)
    assert after is None or (after.messages >= before.messages and after.epsilon >= before.epsilon)
    try:
        charged(folder.lay(changed))
    except BudgetExceededError:
        return
    later = spent(folder.path)
    assert later.messages >= before.messages + 1 and later.epsilon > before.epsilon


@given(ROWS)
def test_lines_are_read_as_they_were_appended(readers: dict[str, Reader], written: list[dict[str, Any]]) -> None:
    place = readers["chain"].folder.lay({"lines.jsonl": None, "lines.head": None})
    for row in written:
        with Chain(place / "lines.jsonl").held() as held:
            held.append(row)
    assert [{k: v for k, v in row.items() if k != "before"} for row in rows(place)] == written


@given(st.lists(st.floats(0.5, 50), min_size=1, max_size=6), st.integers(1, 100))
def test_each_message_takes_of_the_budget_until_it_is_spent_and_no_message_more(
    readers: dict[str, Reader], stds: list[float], examples: int
) -> None:
    place = readers["ledger"].folder.lay({"lines.jsonl": None, "lines.head": None})
    place.with_name(f"{place.name}.lines.begun").unlink(missing_ok=True)  # of the example before
    path, total = place / "lines.jsonl", 0.0
    for number, std in enumerate(stds):
        entry = dataclasses.replace(ENTRY, mechanism=Mechanism(std, 1), metrics=None, examples=examples)
        try:
            site_ledger.charge(path, BUDGET, entry)
        except BudgetExceededError:
            assert site_ledger.read(path, BUDGET).messages <= number
            return
        after = site_ledger.read(path, BUDGET)
        assert total < after.epsilon <= BUDGET.epsilon and isfinite(after.epsilon)
        assert after.messages == number + 1
        total = after.epsilon


@pytest.mark.parametrize("name", ["lines.jsonl", "lines.head"])
def test_without_one_of_its_files_a_ledger_is_damaged(readers: dict[str, Reader], name: str) -> None:
    with pytest.raises(InputError):
        spent(readers["ledger"].folder.lay({name: None}))
