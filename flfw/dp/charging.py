"""Entry of a message to a client in the ledger of its site, before any work on it."""

from __future__ import annotations

from typing import Any

from flwr.app import Context

from flfw.client.workplace import Workplace
from flfw.dp import message_cost
from flfw.dp.budget import budgeted
from flfw.dp.site_ledger import MessageEntry, charge, most_repeated
from flfw.resolve import Resolved

_SHOWN = 80  # characters of the run's name by the server, in the site's ledger


def charge_message(context: Context, asked: Resolved, kind: str, config: dict[str, Any], at: Workplace) -> None:
    """Append a message to the site's ledger before any work on it, or refuse it; without a budget nothing is entered.

    Args:
        context: context of this node.
        asked: the experiment, on no rung of an audit.
        kind: type of the message.
        config: the message's scalars.
        at: the client's data.
    """
    if (granted := budgeted(context.node_config)) is None:
        return
    budget, ledger = granted
    split, me = at.task.split, at.partition
    mine, others = split.train[me], (split.test[me], split.validation[me])
    entry = MessageEntry(
        run=str(config["experiment"])[:_SHOWN],
        round=at.round,
        kind=kind,
        method=asked.experiment.method,
        mechanism=message_cost.cost(asked, kind, config, len(mine)),
        examples=len(mine),
        repeated=max(most_repeated(mine), most_repeated(*others)),
        sends=() if kind == message_cost.EVALUATE else tuple(asked.sharing.uploads),
        metrics=message_cost.cost_of_metrics(asked, kind),
        held=sum(map(len, (mine, *others))),
    )
    charge(ledger, budget, entry)
