"""Entry of a message to a client in the ledger of its site, before any work on it."""

from __future__ import annotations

from typing import Any

from flwr.app import Context

from flfw.client.context import ClientContext
from flfw.data.files.columns import TableSchema
from flfw.data.splits import patients
from flfw.data.splits.partition import Split
from flfw.dp import message_cost
from flfw.dp.budget import BudgetExceededError, EpsilonBudget, budgeted
from flfw.dp.site_ledger import MessageEntry, charge, most_repeated
from flfw.errors import require
from flfw.task.client_plan import ClientPlan

_SHOWN = 80  # characters of the run's name by the server, in the site's ledger


def charge_message(context: Context, plan: ClientPlan, kind: str, config: dict[str, Any], ctx: ClientContext) -> None:
    """Append a message to the site's ledger before any work on it, or refuse it; without a budget nothing is entered.

    Args:
        context: context of this node.
        plan: what the clients of the run do, under no control of an audit.
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
        method=plan.name,
        mechanism=message_cost.cost(plan, kind, config, len(mine)),
        examples=len(mine),
        repeated=max(most_repeated(mine), most_repeated(*others)),
        sends=() if kind == message_cost.EVALUATE else tuple(plan.sharing.uploads),
        metrics=message_cost.cost_of_metrics(plan, kind),
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
