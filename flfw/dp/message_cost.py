"""Cost of one message: the mechanism of a site's answer, by the site's own numbers and its own copy of the settings.

An answer that cannot be counted is refused. What is counted is one client alone, this site: the sampling of clients
gives no credit here, and copies of an example at other sites are those sites' to count. A message is entered in the
ledger of its site before any work on it.
"""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from flwr.app import Context

from flfw import plugins
from flfw.client.context import ClientContext
from flfw.data.files.columns import TableSchema
from flfw.data.splits import patients
from flfw.data.splits.partition import Split
from flfw.dp.budget import BudgetExceededError, EpsilonBudget, budgeted
from flfw.dp.private_metrics import PrivatelyReporting
from flfw.dp.run_accountant import mechanisms_in
from flfw.dp.site_ledger import MessageEntry, charge, most_repeated
from flfw.errors import InputError, require
from flfw.plans.combinations import check_clients
from flfw.privacy.mechanism import ClientSchedule, Mechanism
from flfw.task.client_plan import ClientPlan
from flfw.task.method import Method

TRAIN, PROBE, EVALUATE = "train", "train.probe", "evaluate"
_SHOWN = 80  # characters of the run's name by the server, in the site's ledger
_TARGET = "target"  # the control of a probe that answers as training does


def cost(plan: ClientPlan, kind: str, config: Mapping[str, Any], examples: int) -> tuple[Mechanism | None, ...]:
    """Return the mechanisms of an answer's tensors, and of the numbers beside them; None: nothing tells of the data.

    An answer is refused by this before any data are read, too: nothing of the data may decide whether it fails.

    Args:
        plan: what the clients of the message's run do.
        kind: type of the message.
        config: the message's scalars.
        examples: number of this site's training examples, >= 1; any number tells whether the answer can be counted.

    Raises:
        BudgetExceededError: the answer has no epsilon, or none that this site can count.
        InputError: the data's shape cannot be read. The words of a `BudgetExceededError` leave the site, and these
            name files.
    """
    for why in _refusals_of_plan(plan):
        raise BudgetExceededError(why)
    _ = plan.task.input_space  # outside of what follows: of a folder it is read from the data
    try:
        check_clients(plan)  # by the server's own check: what is sent is what is clipped, such as no buffers
        if kind == EVALUATE and plan.privacy.metrics == "none":
            return None, None
        mechanisms = mechanisms_in(plan, _schedule(plan, kind, config, examples))
    except InputError as error:
        raise BudgetExceededError(str(error)) from error
    if not isinstance(mechanisms, tuple):
        why = mechanisms or f"{plan.name} adds no noise that can be counted"
        raise BudgetExceededError(why[0].lower() + why[1:])
    sent, *reported = mechanisms  # numbers are refused, too, where nobody adds noise to tensors
    for why in _refusals_of_mechanism(plan, sent, probed=kind == PROBE):
        raise BudgetExceededError(why)
    if kind == PROBE:
        return sent, None
    if reported and not issubclass(plan.client_class, PrivatelyReporting):
        raise BudgetExceededError(f"metrics of {plan.name} have no noise that can be counted")
    return None if kind == EVALUATE else sent, reported[0] if reported else None


def _refusals_of_plan(plan: ClientPlan) -> Iterator[str]:
    """Yield why no answer of a run can be counted, whatever its method sends."""
    # What plug-ins that only the server names do is not known here, and so neither is their cost.
    named = [(plugins.METHOD, plan.name), *((plugins.DEFENCE, stage.name) for stage in plan.defences.stages)]
    for kind, name in named:
        if name not in plugins.names(kind):
            yield f"{name} is no plug-in of this project, so that its messages cannot be counted"
    if (metrics := plan.privacy.metrics) not in ("private", "none"):
        yield f"metrics={metrics} cannot be counted; run with metrics=private or none"
    if plan.method.check_client.__func__ is not Method.check_client.__func__:  # its answer tells, at no cost
        yield f"{plan.name} looks whether this site's data are fit for it, which is not counted"


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


def _refusals_of_mechanism(plan: ClientPlan, mechanism: Mechanism, probed: bool) -> Iterator[str]:
    """Yield why no epsilon of a mechanism can be counted here."""
    source = getattr(plan.settings, "noise_source", "secure")
    if mechanism.noised_by != "client":
        yield f"the server is to add the noise of {plan.name}, so the message leaves without any"
    if source != "secure":
        yield f"the server can repeat the noise with noise_source={source}; run with noise_source=secure"
    if mechanism.clipping_norm == inf:
        yield f"{plan.name} clips nothing"
    if probed and mechanism.noise_per == "example":
        yield "a probe with a draw of noise for each example is not counted"


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
    mechanism, metrics = cost(plan, kind, config, len(mine))
    entry = MessageEntry(
        run=str(config["experiment"])[:_SHOWN],
        round=ctx.round,
        kind=kind,
        method=plan.name,
        mechanism=mechanism,
        examples=len(mine),
        repeated=max(most_repeated(mine), most_repeated(*others)),
        sends=() if kind == EVALUATE else tuple(plan.sharing.uploads),
        metrics=metrics,
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
