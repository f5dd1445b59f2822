"""Cost of one message: the mechanism of a site's answer, by the site's own numbers and its own copy of the settings.

An answer that cannot be counted is refused. What is counted is one client alone, this site: the sampling of clients
gives no credit here, and copies of an example at other sites are those sites' to count. A message is entered in the
ledger of its site before any work on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from flwr.app import Context

from flfw import plugins
from flfw.client.context import ClientContext
from flfw.data.files.columns import TableSchema
from flfw.data.splits import patients
from flfw.data.splits.partition import Split
from flfw.dp.budget import BudgetExceededError, EpsilonBudget, budgeted
from flfw.dp.private_metrics import PrivatelyReporting, metrics_mechanism
from flfw.dp.run_accountant import mechanism_in
from flfw.dp.site_ledger import MessageEntry, charge, most_repeated
from flfw.errors import InputError, require
from flfw.plans.combinations import check_clients
from flfw.privacy.mechanism import ClientSchedule, Mechanism
from flfw.task.client_plan import ClientPlan
from flfw.task.method import Method

TRAIN, PROBE, EVALUATE = "train", "train.probe", "evaluate"
_SHOWN = 80  # characters of the run's name by the server, in the site's ledger
_TARGET = "target"  # the control of a probe that answers as training does


def cost(plan: ClientPlan, kind: str, config: Mapping[str, Any], examples: int) -> Mechanism | None:
    """Return the mechanism of an answer's tensors; None: they say nothing of the data.

    Args:
        plan: what the clients of the message's run do.
        kind: type of the message.
        config: the message's scalars.
        examples: number of this site's training examples, >= 1.

    Raises:
        BudgetExceededError: the answer has no epsilon, or none that this site can count.
        InputError: the data's shape cannot be read. The words of a `BudgetExceededError` leave the site, and these
            name files.
    """
    _require_own_code(plan)
    _require_no_bare_metrics(plan.privacy.metrics)
    _require_no_choice_of_data(plan)
    _ = plan.task.input_space  # outside of what follows: of a folder it is read from the data
    try:
        check_clients(plan)  # by the server's own check: what is sent is what is clipped, such as no buffers
        if kind == EVALUATE:
            return None
        mechanism = mechanism_in(plan, _schedule(plan, kind, config, examples))
    except InputError as error:
        raise BudgetExceededError(str(error)) from error
    return _counted(plan, mechanism, probed=kind == PROBE)


def require_countable(plan: ClientPlan, kind: str, config: Mapping[str, Any]) -> None:
    """Refuse, before any data are read, an answer that has no epsilon: nothing of the data may decide whether it fails.

    Raises:
        BudgetExceededError: see `cost` and `cost_of_metrics`.
    """
    cost(plan, kind, config, 1)
    cost_of_metrics(plan, kind)


def cost_of_metrics(plan: ClientPlan, kind: str) -> Mechanism | None:
    """Return the mechanism of the numbers that an answer has beside its tensors; None: it has none.

    Raises:
        BudgetExceededError: they have no noise that this site can count.
    """
    if kind == PROBE or plan.privacy.metrics == "none":
        return None
    counted = cost(plan, TRAIN, {}, 1)  # refused where nobody adds noise, or the server can repeat it
    if counted is None or not issubclass(plan.client_class, PrivatelyReporting):
        raise BudgetExceededError(f"metrics of {plan.name} have no noise that can be counted")
    return metrics_mechanism(1, counted.clipped)


def _require_own_code(plan: ClientPlan) -> None:
    """Refuse plug-ins that only the server names: their deeds are not known here, and so neither is their cost."""
    named = [(plugins.METHOD, plan.name), *((plugins.DEFENCE, stage.name) for stage in plan.defences.stages)]
    for kind, name in named:
        if name not in plugins.names(kind):
            raise BudgetExceededError(f"{name} is no plug-in of this project, so that its messages cannot be counted")


def _require_no_bare_metrics(metrics: str) -> None:
    """Refuse numbers without noise beside the tensors."""
    if metrics not in ("private", "none"):
        raise BudgetExceededError(f"metrics={metrics} cannot be counted; run with metrics=private or none")


def _require_no_choice_of_data(plan: ClientPlan) -> None:
    """Refuse a method that some data are not fit for: whether this site's are is told by its answer, at no cost."""
    if plan.method.check_client.__func__ is not Method.check_client.__func__:
        raise BudgetExceededError(f"{plan.name} looks whether this site's data are fit for it, which is not counted")


def _schedule(plan: ClientPlan, kind: str, config: Mapping[str, Any], examples: int) -> ClientSchedule:
    """Return one round of this site alone; of a probe its steps, all on the same examples, as a pass over them each."""
    batch, passes = plan.local.batch_size, plan.local.local_epochs
    if kind == PROBE:
        if config.get("control") != _TARGET:
            raise BudgetExceededError("a probe is answered only as training answers, so on the audit's target")
        batch, passes = config.get("batch"), config.get("steps")
        if not (isinstance(batch, int) and isinstance(passes, int) and batch >= 1 and passes >= 1):
            raise BudgetExceededError("a probe is of one example or more, and of one step or more")
        examples = batch
    trained = {name: p.numel() for name, p in plan.model.named_parameters() if p.requires_grad}
    return ClientSchedule(examples, batch, passes, trained)


def _counted(plan: ClientPlan, mechanism: Mechanism | str | None, probed: bool) -> Mechanism:
    """Return a mechanism for which an epsilon can be counted here, or refuse."""
    method, source = plan.name, getattr(plan.settings, "noise_source", "secure")
    if mechanism is None:
        raise BudgetExceededError(f"{method} adds no noise that can be counted")
    if isinstance(mechanism, str):
        raise BudgetExceededError(mechanism[0].lower() + mechanism[1:])
    if mechanism.noised_by != "client":
        raise BudgetExceededError(f"the server is to add the noise of {method}, so the message leaves without any")
    if source != "secure":
        raise BudgetExceededError(
            f"the server can repeat the noise with noise_source={source}; run with noise_source=secure"
        )
    if mechanism.clipping_norm == inf:
        raise BudgetExceededError(f"{method} clips nothing")
    if probed and mechanism.noise_per == "example":
        raise BudgetExceededError("a probe with a draw of noise for each example is not counted")
    return mechanism


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
        mechanism=cost(plan, kind, config, len(mine)),
        examples=len(mine),
        repeated=max(most_repeated(mine), most_repeated(*others)),
        sends=() if kind == EVALUATE else tuple(plan.sharing.uploads),
        metrics=cost_of_metrics(plan, kind),
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
