"""Ledger of a site: what each of its messages takes of the site's budget, on its own disk, before anything leaves.

A line is appended and forced to disk before any work on a message. So a message that is asked for again, a run that is
restarted or lengthened, a probe, and a process that is killed before it answered, all count; nothing is given back. One
ledger counts for all runs and servers of a site. The epsilon is by `flfw.privacy.filter`, as the server may choose each
message after it has seen the answers so far.

The accepted app's code keeps the ledger, as the site's user. Who may write the folder can bring back an older copy. A
ledger that is gone with its folder is refused: ``ledger.messages.begun`` beside the folder says that there was one.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from flfw.bounds import BoundedSettings, NonNegativeInt, PositiveInt
from flfw.dp.budget import BudgetExceededError, EpsilonBudget
from flfw.errors import InputError
from flfw.files.chain import Chain
from flfw.files.typed import SchemaMismatchError, fit
from flfw.privacy.filter import spent
from flfw.privacy.mechanism import Mechanism
from flfw.privacy.rounding import at_most

FILE = Path("ledger") / "messages.jsonl"
"""Path of the ledger in a site's folder."""


@final
@dataclass(frozen=True)
class MessageEntry(BoundedSettings):
    """Message that is about to be answered.

    Attributes:
        run: id of the experiment, by the server.
        round: number of the round, by the server.
        kind: type of the message.
        method: name of the method.
        mechanism: mechanism of the answer's tensors; None: they say nothing of the data.
        examples: number of the site's training examples.
        repeated: largest number of times that the same example is among its data.
        sends: patterns of the tensors that are sent.
        time: seconds since the epoch.
        metrics: mechanism of the numbers beside the tensors; None: there are none.
        held: number of the site's training, validation and test examples; for the metrics alone.
    """

    run: str
    round: int
    kind: str
    method: str
    mechanism: Mechanism | None
    examples: NonNegativeInt
    repeated: PositiveInt = 1
    sends: tuple[str, ...] = ()
    time: float = 0.0
    metrics: Mechanism | None = None
    held: NonNegativeInt = 0

    def counted(self, budget: EpsilonBudget) -> list[tuple[Mechanism, int]]:
        """Return the answer's mechanisms, each with the number of vectors of the budget's unit in it."""
        both = ((self.mechanism, self.examples), (self.metrics, self.held))
        return [(part, budget.copies(part, number, self.repeated)) for part, number in both if part]

    @property
    def row(self) -> dict[str, Any]:
        """The entry as a line of the ledger, with the numbers of others that earlier versions have there."""
        parts = {"mechanism": self.mechanism, "metrics": self.metrics}
        return asdict(self) | {name: _with_retired(asdict(part)) for name, part in parts.items() if part}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> MessageEntry:
        """Read an entry from a line of the ledger.

        Raises:
            InputError: it is none.
        """
        known = {name: _without_retired(value) for name, value in row.items() if name != "before"}
        try:
            return fit(known, cls)  # older lines have no metrics
        except (InputError, SchemaMismatchError) as error:
            way_out = "restore it, or go on with the version of flfw that wrote it"
            raise InputError(
                f"Expected lines that this version knows in a site's ledger: {error}; {way_out}."
            ) from error


def _without_retired(value: Any) -> Any:
    """Return a mechanism of an older line without the fields that are no more; any other value as it is.

    Each had the same value in all lines that a site wrote. With another value it stays, and is refused as unknown.
    """
    if not isinstance(value, Mapping):
        return value
    hidden = (True,) if value.get("poisson") or value.get("bins") else (True, False)
    written = {"hidden": hidden, "secret_sampling": hidden, "moving": (False,), "void": ("",)}
    written |= {"max_copies": (1,), "replication": (1,), "min_summed_updates": (1,), "summed": (1,), "colluding": (0,)}
    return {name: one for name, one in value.items() if name not in written or one not in written[name]}


def _with_retired(part: dict[str, Any]) -> dict[str, Any]:
    """Return a mechanism with the fields of others, of whom a site's message has none, where they always stood."""
    after = {name: part.pop(name) for name in ("bands", "bins", "noise_divisor")}
    return part | {"max_copies": 1} | after | {"min_summed_updates": 1, "colluding": 0}


@final
@dataclass(frozen=True)
class Spent:
    """Epsilon and messages of a ledger.

    Attributes:
        epsilon: spent of the budget, >= 0.
        messages: number of messages.
        runs: number of runs.
    """

    epsilon: float
    messages: int
    runs: int

    def of(self, budget: EpsilonBudget) -> str:
        """Return a line on the part of a budget that is spent."""
        return f"{budget}; {at_most(self.epsilon)} is spent, messages {self.messages}, runs {self.runs}"


def epsilon_of(entries: Sequence[MessageEntry], budget: EpsilonBudget) -> float:
    """Return the part of a budget that entries take, in its unit and at its delta."""
    return spent([part for entry in entries for part in entry.counted(budget)], budget.epsilon, budget.delta)


def rounds_within(entry: MessageEntry, budget: EpsilonBudget, rounds: int) -> int:
    """Return how many of ``rounds`` such messages a budget allows, if nothing is spent."""
    return bisect_right(range(1, rounds + 1), budget.epsilon, key=lambda count: epsilon_of([entry] * count, budget))


def charge(path: Path, budget: EpsilonBudget, entry: MessageEntry) -> None:
    """Append an entry, if the budget allows the message; when this returns, the entry is on disk.

    Raises:
        BudgetExceededError: it does not, or the ledger is damaged; nothing is appended.
    """
    try:
        with Chain(path, noted=True).held() as held:
            before = [MessageEntry.from_row(row) for row in held.rows]
            after = epsilon_of([*before, entry], budget)
            if not after <= budget.epsilon:
                so_far = f"{at_most(epsilon_of(before, budget))} is spent"
                raise BudgetExceededError(f"{budget}; {so_far}, and this message would make it {at_most(after)}")
            held.append({**entry.row, "time": round(time.time(), 3)})
    except InputError as error:
        raise BudgetExceededError("its ledger is damaged, and nothing is answered until it is restored") from error


def read(path: Path, budget: EpsilonBudget) -> Spent:
    """Return the sums of a ledger; nothing is made or changed.

    Raises:
        InputError: the ledger is damaged.
    """
    entries = [MessageEntry.from_row(row) for row in Chain(path, noted=True).rows()]
    return Spent(epsilon_of(entries, budget), len(entries), len({entry.run for entry in entries}))


def most_repeated(*indices: np.ndarray) -> int:
    """Return the largest number of times that an index is among these, >= 1."""
    return int(np.unique(np.concatenate(indices), return_counts=True)[1].max(initial=1))
