"""Ledger of a site: what each of its messages takes of the site's budget, on its own disk, before anything leaves.

A line is appended and forced to disk before training starts. So a message that is asked for again, a run that is
restarted or lengthened, a probe, and a process that is killed before it answered, all count; nothing is given back. One
ledger counts for all runs and servers of a site. The epsilon is by `flfw.privacy.filter`, as the server may choose each
message after it has seen the answers so far.

The accepted app's code keeps the ledger, as the site's user. Who may write the folder can bring back an older copy.

Entry of a message to a client in the ledger of its site, before any work on it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.app import Context

from flfw.client.context import ClientContext
from flfw.data.files.columns import TableSchema
from flfw.data.splits import patients
from flfw.data.splits.partition import Split
from flfw.dp import message_cost
from flfw.dp.budget import BudgetExceededError, EpsilonBudget, budgeted
from flfw.errors import InputError, require
from flfw.files.chain import Chain
from flfw.files.typed import SchemaMismatchError, fit
from flfw.privacy.filter import spent
from flfw.privacy.mechanism import Mechanism
from flfw.privacy.rounding import at_most
from flfw.task.client_plan import ClientPlan

FILE = Path("ledger") / "messages.jsonl"
"""Path of the ledger in a site's folder."""


@final
@dataclass(frozen=True)
class MessageEntry:
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
    examples: int
    repeated: int = 1
    sends: tuple[str, ...] = ()
    time: float = 0.0
    metrics: Mechanism | None = None
    held: int = 0

    def counted(self, budget: EpsilonBudget) -> list[tuple[Mechanism, int]]:
        """Return the answer's mechanisms, each with the number of vectors of the budget's unit in it."""
        both = ((self.mechanism, self.examples), (self.metrics, self.held))
        return [(part, budget.copies(part, number, self.repeated)) for part, number in both if part]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> MessageEntry:
        """Read an entry from a line of the ledger.

        Raises:
            InputError: it is none.
        """
        known = {name: value for name, value in row.items() if name != "before"}
        try:
            entry = fit(known, cls)  # older lines have no metrics
            for name, least in (("examples", 0), ("repeated", 1), ("held", 0)):
                require(getattr(entry, name) >= least, f"{name} >= {least}", **{name: getattr(entry, name)})
        except (InputError, SchemaMismatchError) as error:
            way_out = "restore it, or go on with the version of flfw that wrote it"
            raise InputError(
                f"Expected lines that this version knows in a site's ledger: {error}; {way_out}."
            ) from error
        return entry


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
    low, high = 0, rounds + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon_of([entry] * middle, budget) <= budget.epsilon else (low, middle)
    return low


def charge(path: Path, budget: EpsilonBudget, entry: MessageEntry) -> None:
    """Append an entry, if the budget allows the message; when this returns, the entry is on disk.

    Raises:
        BudgetExceededError: it does not, or the ledger is damaged; nothing is appended.
    """
    try:
        with Chain(path).held() as held:
            before = [MessageEntry.from_row(row) for row in held.rows]
            after = epsilon_of([*before, entry], budget)
            if not after <= budget.epsilon:
                so_far = f"{at_most(epsilon_of(before, budget))} is spent"
                raise BudgetExceededError(f"{budget}; {so_far}, and this message would make it {at_most(after)}")
            held.append({**asdict(entry), "time": round(time.time(), 3)})
    except InputError as error:
        raise BudgetExceededError("its ledger is damaged, and nothing is answered until it is restored") from error


def read(path: Path, budget: EpsilonBudget) -> Spent:
    """Return the sums of a ledger; nothing is made or changed.

    Raises:
        InputError: the ledger is damaged.
    """
    entries = [MessageEntry.from_row(row) for row in Chain(path).rows()]
    return Spent(epsilon_of(entries, budget), len(entries), len({entry.run for entry in entries}))


def most_repeated(*indices: np.ndarray) -> int:
    """Return the largest number of times that an index is among these, >= 1."""
    return int(np.unique(np.concatenate(indices), return_counts=True)[1].max(initial=1))


_SHOWN = 80  # characters of the run's name by the server, in the site's ledger


def charge_message(context: Context, asked: ClientPlan, kind: str, config: dict[str, Any], ctx: ClientContext) -> None:
    """Append a message to the site's ledger before any work on it, or refuse it; without a budget nothing is entered.

    Args:
        context: context of this node.
        asked: what the clients of the run do, under no control of an audit.
        kind: type of the message.
        config: the message's scalars.
        ctx: the client's data.

    Raises:
        BudgetExceededError: the budget does not allow it, or the answer cannot be counted.
        InputError: a patient has more examples at this site than the budget says.
    """
    if (granted := budgeted(context.node_config)) is None:
        return
    budget, ledger = granted
    split, me = ctx.task.split, ctx.partition
    mine, others = split.train[me], (split.test[me], split.validation[me])
    entry = MessageEntry(
        run=str(config["experiment"])[:_SHOWN],
        round=ctx.round,
        kind=kind,
        method=asked.name,
        mechanism=message_cost.cost(asked, kind, config, len(mine)),
        examples=len(mine),
        repeated=max(most_repeated(mine), most_repeated(*others)),
        sends=() if kind == message_cost.EVALUATE else tuple(asked.sharing.uploads),
        metrics=message_cost.cost_of_metrics(asked, kind),
        held=sum(map(len, (mine, *others))),
    )
    if entry.mechanism or entry.metrics:
        _require_public(ctx.task.dataset.columns)
        _require_all_of_a_patient(budget, split, me)
    charge(ledger, budget, entry)


def _require_public(schema: TableSchema | None) -> None:
    """Refuse a table whose scales and categories may be some rows' own; None: the data are no table with a plan.

    Raises:
        BudgetExceededError: the plan does not say that it was known beforehand.
    """
    if schema is not None and not schema.public:
        raise BudgetExceededError(
            "the plan of the table's columns does not say that it was known beforehand (public = true), so that its "
            "scales and categories may be some rows' own"
        )


def _require_all_of_a_patient(budget: EpsilonBudget, split: Split, me: int) -> None:
    """Refuse a budget for a patient with fewer examples than one has at this site, where the data name the patients."""
    if budget.unit != "patient" or split.patients is None:
        return
    counted = patients.most_at_a_client(split.patients, [split.train[me]])
    if split.test_patients is not None:  # a patient is in one part alone
        counted = max(counted, patients.most_at_a_client(split.test_patients, [split.test[me], split.validation[me]]))
    enough = f"patient_examples >= {counted} in this site's policy, as many as one patient has here"
    require(budget.patient_examples >= counted, enough, patient_examples=budget.patient_examples)
