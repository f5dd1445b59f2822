"""The two Flower apps. That of clients is the same in simulation and in deployment."""

import faulthandler
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from flfw import data, nets
from flfw.audit import probe, uploads
from flfw.audit.controls import under_control
from flfw.client.broadcast_checks import require_plausible
from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.client.phases import JointStepsFailed, run_phases_together
from flfw.client.site import Site
from flfw.dp import message_cost
from flfw.dp.budget import budgeted
from flfw.dp.resolve_noise import require_calibrated
from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.experiment.training import DataSettings
from flfw.files.provenance import code_hash
from flfw.files.typed import fitted
from flfw.messages.client_info import ClientInfo
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.reasons import QUIET, WITHHELD, RequestDeclinedError
from flfw.messages.sharing import MessageValidator, Sharing, SharingViolationError
from flfw.messages.wire import forms, of_kind, pack, views
from flfw.nets import Tensors
from flfw.nets.training.devices import one_thread
from flfw.plans.run_plan import RunPlan, plan
from flfw.server.client_directory import ENROLMENT_S
from flfw.task.client_plan import ClientPlan
from flfw.task.pipeline import NetworkPlan
from flfw.task.task import TaskPlan, image_format

_ARRAYS, _CONFIG, _PROBE = "arrays", "config", "train.probe"
_SOURCE, _WAY_OUT = "a message of the server", "run the same code on both sides"
_NAME = 128  # characters of an experiment's id, which becomes the name of a folder
_COUNTS = ("round", "client", "state_version", "slot", "own_slot", "batch", "steps")


class MessageConfig(TypedDict):
    """Scalars of a message to a client; those from ``control`` on are of probes.

    Attributes:
        round: number of the round, >= 0.
        client: number of the client, >= 0.
        state_version: round of the private state to go on from; 0: the start.
        experiment: id of the experiment, letters and digits.
        code: hash of the server's code.
        deadline: seconds for the answer, > 0.
        control: control of the audit, or ``target``.
        slot: place among all probes.
        own_slot: place among the client's probes.
        batch: number of examples.
        steps: number of local steps.
        point: name of the probe within the round.
        vantage: position of the observer.
    """

    round: int
    state_version: int
    experiment: str
    code: str
    deadline: float
    client: NotRequired[int]
    control: NotRequired[str]
    slot: NotRequired[int]
    own_slot: NotRequired[int]
    batch: NotRequired[int]
    steps: NotRequired[int]
    point: NotRequired[str]
    vantage: NotRequired[str]


_OF_PROBES = ("control", "slot", "own_slot", "batch", "steps", "point")


def read_message(message: Message, kind: str) -> tuple[dict[str, Any], ArrayRecord]:
    """Read the scalars and the arrays of a message to a client.

    Args:
        message: the message.
        kind: its type, such as ``train.probe``.

    Raises:
        InputError: a record or a scalar is missing, has another type, or is out of its range.
    """
    arrays, scalars = of_kind(message.content, ArrayRecord), of_kind(message.content, ConfigRecord)
    complete = _ARRAYS in arrays and _CONFIG in scalars
    require(complete, f"records {_ARRAYS} and {_CONFIG} in {_SOURCE}", records=", ".join(message.content) or "none")
    config = cast(dict[str, Any], fitted(dict(scalars[_CONFIG]), MessageConfig, _SOURCE, _WAY_OUT))
    if kind == _PROBE and (missing := [name for name in _OF_PROBES if name not in config]):
        raise InputError(f"Expected {missing[0]} in {_SOURCE} for a probe, got none; {_WAY_OUT}.")
    for name in _COUNTS:
        require(config.get(name, 0) >= 0, f"{name} >= 0 in {_SOURCE}", **{name: config.get(name)})
    require(config["deadline"] > 0, f"deadline > 0 in {_SOURCE}", deadline=config["deadline"])
    named = config["experiment"].isalnum() and len(config["experiment"]) <= _NAME
    require(named, f"an experiment of letters and digits in {_SOURCE}", experiment=config["experiment"][:_NAME])
    return config, arrays[_ARRAYS]


_LONGEST_S = 1e9  # some thirty years; a timer takes not much more
_AFTER_DEADLINE_S = 1.0  # the server then reports a late client, not a dead process
_UNDER_WAY: list[float] = []
"""Deadlines of the clients that this process works for now."""


@contextmanager
def until(deadline: float, context: Context) -> Iterator[None]:
    """Refuse work after the deadline, and end this process when the deadline passes during the work.

    A hung client would hold its core for ever. Python itself may hang, so a thread of C code ends the process. Where
    several clients are at work at once, the latest of their deadlines counts, also when one of them is done early.

    Args:
        deadline: seconds since the epoch; the clocks of the machines must differ by less than the time given.
        context: context of this node; a process that also runs the server is not ended.
    """
    own_process = not context.node_config.get("in-process")
    if deadline <= time.time():
        raise RequestDeclinedError("was asked too late")
    if own_process:
        _UNDER_WAY.append(deadline)
        _set_timer()
    try:
        yield
    finally:
        if own_process:
            _UNDER_WAY.remove(deadline)
            _set_timer()


def _set_timer() -> None:
    """Let the process end after the latest deadline of the work under way; without any, not at all."""
    if not _UNDER_WAY:
        faulthandler.cancel_dump_traceback_later()
        return
    left = min(max(0.0, max(_UNDER_WAY) - time.time()), _LONGEST_S)
    faulthandler.dump_traceback_later(left + _AFTER_DEADLINE_S, exit=True, file=sys.__stderr__ or sys.stderr)


server = ServerApp()
client = ClientApp()


# --- the server ---------------------------------------------------------------------------------------------------


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the experiment of the run's configuration, as `flfw.engines.federation` does it.

    It is the server of ``engine=flwr`` and of real sites; ``flwr run .`` in the checkout has `flfw.runs.standalone`.
    `flfw.runs.launch` calls `federate` for other engines.
    """
    from flfw.engines.federation import federate  # clients import this module too, and do not need the engine

    experiment = Experiment.from_run_config(context.run_config)
    joins = isinstance(grid, InProcessGrid) or experiment.clients_per_batch == 1
    require(joins, "--batched-clients 1 on Flower's own engines", batched_clients=experiment.batched_clients)
    nets.look_in(experiment.weights)  # the server alone: its own user named the place
    federate(grid, plan(experiment))


# --- the client ---------------------------------------------------------------------------------------------------


@client.query()
def introduce(message: Message, context: Context) -> Message:
    """Describe this node: partition, hash of the code, presence of a GPU, shape and classes of the data."""
    with until(message.metadata.created_at + ENROLMENT_S, context):
        site = Site.from_config(context.node_config, "none")
        volunteered = -1 if site.volunteered is None and site.truth else len(site.volunteered or ())
        known = ClientInfo(_partition(context), code_hash(), torch.cuda.is_available(), volunteered)
        try:
            task = plan(Experiment.from_run_config(context.run_config)).task
            _require_weights(task.network)
            root = str(context.node_config.get("data-root", ""))
            shape, classes = _own_space(task, root)
            known = replace(known, shape=shape, classes=classes, labels=_own_labels(task.data, root))
        except InputError as error:  # only this client fails: others may go on without it
            known = replace(known, trouble=_words_on(error, context))
        return known.to_message(message)


def _require_weights(network: NetworkPlan) -> None:
    """Refuse a run whose pretrained network is not the one on this machine."""
    if (architecture := nets.card(network.name).architecture) is not None:
        nets.require_weights(architecture, network.tuning.sha256 if network.tuning else "")


def _words_on(trouble: InputError, context: Context) -> str:
    """Return the words on trouble with the data that the server gets; a quiet site keeps them in its log."""
    if QUIET not in context.node_config:
        return str(trouble)
    print(f"flfw: {trouble}", file=sys.stderr, flush=True)
    return WITHHELD


@lru_cache(maxsize=4)
def _own_space(task: TaskPlan, data_root: str) -> tuple[tuple[int, ...], int]:
    """Return shape and number of classes of the data on this machine, cached for all clients of a site.

    They are read from the data set's card. For a folder of files the card is made by a slow search of the folder.
    """
    return replace(task).input_space  # a new plan: this one may hold the answer of another site in this process


def _own_labels(settings: DataSettings, data_root: str) -> str:
    """Return a digest of this site's class names, if only sites have the data, and say here how they are read; else "".

    Raises:
        InputError: the data do not fit the settings.
    """
    if not data.is_at_sites(settings.dataset):
        return ""
    card = data.here(settings.dataset, Path(data_root) if data_root else None, image_format(settings, None))
    for note in card.notes(None) if card.notes else ():
        print(f"flfw: {note}", file=sys.stderr, flush=True)
    return card.labels


@client.train()
def train(message: Message, context: Context, charged: bool = False) -> Message:
    """Do one round of local training; the site's ledger may have the message already."""
    with _checked_client(message, context, message_cost.TRAIN, charged) as (worker, validator, config, received):
        _note_truth(worker, context)
        result = worker.fit_named(received, config["state_version"])
        return _training_answer(message, context, worker, validator, result)


def train_together(messages: Sequence[tuple[Message, Context]]) -> list[Message | Exception]:
    """Do one round of local training of some clients at once.

    A client that fails by itself does not take part any more. Where joint steps fail, nobody can tell whose fault it
    is: then each of the others trains alone. Its site's ledger has the message already, and nothing has left it.

    Args:
        messages: messages to clients of one class in one round, each with the client's context.

    Returns:
        The reply of each client, or its failure.
    """
    answers: dict[int, Message | Exception] = {}
    with suppress(JointStepsFailed):
        _train_at_once(messages, answers)
    for index in [index for index in range(len(messages)) if index not in answers]:
        answers[index] = _attempted(partial(train, *messages[index], charged=True))
    return [answers[index] for index in range(len(messages))]


def _train_at_once(messages: Sequence[tuple[Message, Context]], answers: dict[int, Message | Exception]) -> None:
    entered: dict[int, tuple[FederatedClient, MessageValidator, dict[str, Any], dict[str, np.ndarray]]] = {}
    with ExitStack() as stack:
        for index, (message, context) in enumerate(messages):
            try:
                at_work = stack.enter_context(_checked_client(message, context, message_cost.TRAIN))
                _note_truth(at_work[0], context)
                entered[index] = at_work
            except Exception as error:  # this client's failure alone
                answers[index] = error
        works = [worker.round(received, config["state_version"]) for worker, _, config, received in entered.values()]
        results = run_phases_together([worker for worker, *_ in entered.values()], works)
        for (index, (worker, validator, *_)), result in zip(entered.items(), results, strict=True):
            failed = isinstance(result, Exception)
            answers[index] = (
                result if failed else _attempted(partial(_training_answer, *messages[index], worker, validator, result))
            )


def _attempted(answer: Callable[[], Message]) -> Message | Exception:
    try:
        return answer()
    except Exception as error:  # as the engine takes it for one client
        return error


def _note_truth(worker: FederatedClient, context: Context) -> None:
    """Let a client note the examples of its training where an audit needs them."""
    site = Site.from_config(context.node_config, worker.ctx.run)
    gives_all = site.truth is not None and site.volunteered is None
    worker.audited_batches = [] if gives_all and _plan_of(context).audit.attacks_uploads_of(worker.ctx.round) else None


def _training_answer(
    message: Message,
    context: Context,
    worker: FederatedClient,
    validator: MessageValidator,
    result: tuple[Tensors, dict[str, Any]],
) -> Message:
    """Build the answer to a message that asked for training, and write down the noted examples."""
    site, ctx = Site.from_config(context.node_config, worker.ctx.run), worker.ctx
    sent, metrics = result
    if site.truth is not None and worker.audited_batches is not None:
        uploads.write_truth(
            site.truth, ctx.round, ctx.partition, worker.audited_batches, ctx.plan.task.data.augment != "none"
        )
    return _reply(message, validator, sent, metrics)


@client.train("probe")
def answer_probe(message: Message, context: Context) -> Message:
    """Answer a probe by the update that a few of the client's own examples make; no state is changed."""
    with _checked_client(message, context, message_cost.PROBE) as (worker, validator, config, received):

        def target(x: Tensor, y: Tensor, steps: int) -> Tensors:
            worker.load_received(received, config["state_version"])
            return worker.gradient(x, y) if steps == 1 else worker.stepped(x, y, steps)

        def example(x: Tensor, y: Tensor) -> Tensors:
            worker.load_received(received, config["state_version"])
            return worker.observed(x, y, worker.generator("probe"))

        ctx = worker.ctx
        site = Site.from_config(context.node_config, config["experiment"])
        requested = config, received, ctx.task, ctx.plan.seed, _plan_of(context).audit, ctx.partition, site
        sent = probe.answer(*requested, worker.stored, target, example)
        metrics = {"num-examples": config["batch"], "partition": ctx.partition}  # both as the server knows them
        return _reply(message, validator, sent, metrics if ctx.plan.privacy.metrics == "all" else {})


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on the client's own test data, before and after a local training."""
    with _checked_client(message, context, message_cost.EVALUATE) as (worker, validator, config, received):
        return _reply(message, validator, {}, worker.evaluate_named(received, config["state_version"]))


@contextmanager
def _checked_client(
    message: Message, context: Context, kind: str, charged: bool = False
) -> Iterator[tuple[FederatedClient, MessageValidator, dict[str, Any], dict[str, np.ndarray]]]:
    """Build the client half for a message and check the message's arrays; on one thread, until the deadline.

    Args:
        message: message from the server.
        context: context of this node.
        kind: type of the message; probes of fresh controls have their own network and validator.
        charged: whether the site's ledger has the message already.

    Yields:
        The client half, the validator that checks the answer, and the message's scalars and arrays.
    """
    try:
        config, arrays = read_message(message, kind)
    except InputError as error:  # in the message, and not in this client's data
        raise RequestDeclinedError(str(error)) from error
    if config["code"] != code_hash():
        raise RequestDeclinedError(
            f"runs other code ({code_hash()}) than the server ({config['code']}); install the same"
        )
    agreed = _plan_of(context).client  # by all; a probe may have another network
    require_calibrated(agreed.privacy.target_epsilon, agreed.task.assignments)
    if config["round"] > (maximum := agreed.rounds.rounds + (kind == message_cost.EVALUATE)):
        raise RequestDeclinedError(f"was asked for round {config['round']} of a run that has {maximum}")
    probed = kind == message_cost.PROBE
    plan = _under_control(agreed, config["control"]) if probed else agreed
    if budgeted(context.node_config) is not None:
        message_cost.cost(agreed, kind, config, 1)  # refused before any data are read
    site, partition = Site.from_config(context.node_config, config["experiment"]), _partition(context)
    with until(message.metadata.created_at + config["deadline"], context), one_thread():
        ctx = ClientContext(
            plan=plan,
            task=plan.task.load(site.data_root),
            partition=partition,
            round=int(config["round"]),
            defence=plan.defences.of_client(partition),
            store=site.store(config["experiment"], partition),
            # The server may put these numbers into any message, and probes are not counted as training is.
            probe=tuple(int(config[name]) for name in ("slot", "batch", "steps")) if probed else (),
            run=config["experiment"],
        )
        _require_enough(context, len(ctx.task.split.train[partition]))
        plan.method.check_client(ctx.task, partition, plan.settings)
        worker, received = plan.client_class(ctx), _received(arrays, partition)
        below = config["control"] if probed and config["control"] in probe.FRESH else ""
        validator = _control_validator(ctx, below) if below else worker.validator
        validator.check_received(received)
        if "check-broadcast" in context.node_config:
            fresh = _control_net(ctx, below) if below else worker.model
            require_plausible(received, fresh, f"{kind} in round {ctx.round}")
        if not charged:
            message_cost.charge_message(context, agreed, kind, config, ctx)
        yield worker, validator, config, received


def _require_enough(context: Context, examples: int) -> None:
    """Refuse to answer where the site has fewer training examples than its policy asks for."""
    if examples < (fewest := int(context.node_config.get("fewest-examples", 0))):
        raise RequestDeclinedError(f"has fewer training examples in this run than the {fewest} its policy asks for")


def _received(arrays: ArrayRecord, partition: int) -> dict[str, np.ndarray]:
    """Return the arrays of a message, or refuse it if they cannot be read."""
    try:
        return views(arrays)
    except ValueError as error:
        raise SharingViolationError(f"client {partition} was sent arrays that cannot be read: {error}") from error


def _under_control(plan: ClientPlan, control: str) -> ClientPlan:
    """Return the plan as this client carries it out for the probes of a control."""
    if (changed := under_control(plan, control)) is None:
        raise RequestDeclinedError(f"was asked for a probe on a control that the experiment does not have: {control}")
    return changed


def _control_validator(ctx: ClientContext, control: str) -> MessageValidator:
    """Build the validator of one of the controls: its whole new network, and no tensor of the method."""
    with torch.device("meta"):
        net = _control_net(ctx, control)
    return MessageValidator(
        ctx.partition, f"the audit's {control} control", Sharing(("*",), ("*",)), forms(net.state_dict())
    )


def _control_net(ctx: ClientContext, control: str) -> nets.Net:
    dataset = ctx.task.dataset
    return probe.control_net(control, ctx.task.network, ctx.plan.seed, dataset.shape, dataset.classes)


def _reply(message: Message, validator: MessageValidator, sent: Tensors, metrics: dict[str, Any]) -> Message:
    """Build the answer to the server: in these apps tensors leave the client only here.

    `FederatedClient.fit`, for apps of others, checks them, too. A tensor that is missing is refused by the server.

    The caller chose the numbers beside them: `FederatedClient._reported`, private metrics, or a probe's, which the
    server knows. A site's policy looks at both.
    """
    validator.check_sent(sent)
    return Message(RecordDict({"arrays": pack(sent), "metrics": MetricRecord(metrics)}), reply_to=message)


def _plan_of(context: Context) -> RunPlan:
    return plan(Experiment.from_run_config(context.run_config))


def _partition(context: Context) -> int:
    return int(context.node_config["partition-id"])
