"""Probes: messages that ask a client for the update of a few of its own examples, and the client's answer.

A probe goes out before the first round or after a round's aggregation. It uses the same client code, defence, sharing
check and recorder as training, and does not change the client. An audit has five kinds, the target and its controls:

    analytic       one example through softmax regression, undefended: the closed form must find it, or the audit is
                   broken
    easy           one example through the method's network with fresh weights, all of it shared, undefended
    undefended     as the target, without what hides the data: neither a defence nor the method's own mechanism
    weak_defence   as the target, with the weakest form of what hides the data
    target         the method itself

All but the last reveal a client's examples, so a client answers probes only if its own site keeps truth for them. One
more probe has no answer: the gradient of one example, read by an observer on the client during local training, stays in
a folder of the client's site, for an audit there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from torch import nn

from flfw.audit.controls import TARGET_CONTROLS
from flfw.audit.jobs import ANALYTIC, EXAMPLE, FRESH, ProbeSet
from flfw.client.site import Site
from flfw.experiment.audit import ProbeSettings
from flfw.messages.reasons import RequestDeclinedError
from flfw.messages.replies import UnusableReplyError, read_metrics, read_update
from flfw.messages.wire import broadcast
from flfw.nets.net import Net, Tensors, loss, targets
from flfw.plans.run_plan import AuditPlan
from flfw.recording import client_examples as examples
from flfw.recording.observation import Truth, key
from flfw.rng import initialising
from flfw.server.client_directory import Failure
from flfw.server.strategy import FederatedStrategy
from flfw.task.pipeline import NetworkPlan
from flfw.task.task import Task, TaskPlan

AUDITED = (*FRESH, "target")
"""Kinds of probes of every audit."""
_ON_THE_CLIENT = {"vantage": "client_example"}
_AT_ONCE = 4  # a hypernetwork's gradient is 60 MB: more in flight would only fill the server's memory


def control_net(control: str, network: NetworkPlan, seed: int, shape: tuple[int, ...], classes: int) -> Net:
    """Build the fresh, fully shared network of the analytic or the easy control; both sides know it."""
    with initialising(seed, "control" if control == ANALYTIC else control):  # its first name: the weights stay the same
        if control == ANALYTIC:
            return network.plain(shape, classes, "linear")
        return network.tampered(network.plain(shape, classes))


def send_probes(
    grid: Grid, strategy: FederatedStrategy, images: int, clients: int, probe_set: ProbeSet, arrays: ArrayRecord
) -> list[Failure]:
    """Send the probes of a probe set, so many ``images``, spread over the clients; the recorder keeps the answers.

    Each client gets what a round would send it; on the controls with a network of their own all get its ``arrays``.

    Returns:
        Clients without an answer, if the run tolerates that; the audit counts their probes as failures.
    """
    messages: list[Message] = []
    failed: list[Failure] = []
    for probe in range(images):
        client, slot = probe % clients, probe // clients
        config: dict[str, Any] = {"control": probe_set.control, "client": client, "slot": probe, "own_slot": slot}
        config |= {"batch": probe_set.batch, "steps": probe_set.steps, "point": probe_set.point}
        config |= _ON_THE_CLIENT if probe_set.on_client else {}
        if client in strategy.client_directory.excluded:
            failed.append(Failure(client, strategy.client_directory.excluded[client]))
        else:
            sent = arrays if probe_set.fresh else strategy.arrays_for(client, arrays)
            messages.append(strategy.create_message(client, sent, "train.probe", probe_set.round, config))
    take = _nothing if probe_set.on_client else _checked(arrays)
    for start in range(0, len(messages), _AT_ONCE):
        requests = messages[start : start + _AT_ONCE]
        replies = grid.send_and_receive(requests, timeout=strategy.client_directory.tolerance.deadline)
        for _ in strategy.client_directory.receive(
            requests, replies, f"a probe at round {probe_set.round}", take, failed
        ):
            pass
    return failed


def is_usable_probe(message: Message, reply: Message) -> bool:
    """Return whether an exchange is a probe that an audit can use; unusable probes are not recorded."""
    if message.metadata.message_type != "train.probe":
        return False
    if "vantage" in message.content.config_records.get("config", {}):  # its answer stays on the client's own disk
        return False
    try:
        _checked(message.content.array_records["arrays"])(reply)
    except UnusableReplyError:
        return False
    return True


def _checked(arrays: ArrayRecord) -> Callable[[Message], object]:
    """Return a reader of the answer to a probe with these arrays: gradients of some of them."""
    return lambda reply: read_update(reply, ("*",), arrays, full=False, counted=False)


def _nothing(reply: Message) -> None:
    read_metrics(reply)
    if any(reply.content.array_records.values()):
        raise UnusableReplyError("sent arrays, which were to stay on the client")


def send_control_probes(grid: Grid, strategy: FederatedStrategy, images: int, plan: TaskPlan) -> list[Failure]:
    """Send the analytic and the easy control before the first round; return the clients without an answer."""
    failed: list[Failure] = []
    for control in AUDITED[:2]:
        arrays = broadcast(control_net(control, plan.network, plan.seed, *plan.input_space), ("*",))
        failed += send_probes(grid, strategy, images, plan.clients, ProbeSet(control, 0, "", 1, 1, control), arrays)
    return failed


def answer(
    config: dict[str, Any],
    received: Mapping[str, np.ndarray],
    task: Task,
    seed: int,
    audit: AuditPlan,
    partition: int,
    site: Site,
    stored: Callable[[np.ndarray], tuple[torch.Tensor, torch.Tensor]],
    target: Callable[[torch.Tensor, torch.Tensor, int], Tensors],
    example: Callable[[torch.Tensor, torch.Tensor], Tensors],
) -> Tensors:
    """Compute a client's answer to a probe, after writing the examples behind it.

    The answer is empty for a probe that is read on the client: its gradient goes to the site's own folder.

    Args:
        config: the config of the probe's message.
        received: the arrays of the probe's message.
        task: the client's data.
        seed: of the run.
        audit: which probes there are.
        partition: the client's number.
        site: the client's own folders.
        stored: gives raw inputs and labels of training examples by their indices.
        target: gives the method's message for raw inputs (B, ...), labels (B,) and a number of local steps.
        example: gives the gradient of a local step of the method, for raw inputs and labels.

    Raises:
        RequestDeclinedError: this site keeps no truth, and so answers no probes; or it keeps no gradients of single
            examples, where these are requested; or it gives away too few examples, or none to this run, which is not
            recorded.
    """
    kind, numbers = config["control"], [config[name] for name in ("round", "slot", "own_slot", "batch", "steps")]
    if not _exists(config, audit.probes) or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise RequestDeclinedError(f"client {partition} was asked for a probe that does not exist: {kind}, {numbers}")
    if site.truth is None:
        raise RequestDeclinedError(f"client {partition} answers no probes: its site names no truth folder")
    if site.volunteered is not None and not audit.record:
        raise RequestDeclinedError(f"client {partition} answers no probes of a run that is not recorded")
    watched = str(config["point"]).partition("-")[0] == EXAMPLE
    if watched and site.examples is None:
        raise RequestDeclinedError(
            f"client {partition} lets nobody read its local training: its site names no examples folder"
        )
    batch = audit.probes.victim_batch if watched else int(config["batch"])
    own_slot = int(config["own_slot"])
    if site.volunteered is None:
        indices = task.victims(partition, own_slot, batch, seed)
    else:
        indices = _given_away(task.split.train[partition], site.volunteered, own_slot, batch)
    indices = indices[:1] if watched else indices  # the first example of the target's probe
    x, y = stored(indices)
    name = key(int(config["round"]), config["point"], int(config["slot"]))
    Truth(x, y, torch.from_numpy(indices)).write(site.truth, name)
    if watched and site.examples:
        examples.record_gradient(site.examples, partition, config, received, example(x, y), "compact")
        return {}
    if config["control"] not in FRESH:
        return target(x, y, int(config["steps"]))
    net = control_net(config["control"], task.network, seed, task.dataset.shape, task.dataset.classes)
    net.load_state_dict({name: torch.tensor(value) for name, value in received.items()})
    return _gradient(net, task, x, y)


def _given_away(indices: np.ndarray, volunteered: Sequence[int], slot: int, batch: int) -> np.ndarray:
    """Return a probe's examples among those that a site chose to give away: the site chooses, not a seed."""
    positions = list(volunteered[slot * batch : (slot + 1) * batch])
    if len(positions) < batch or not all(0 <= index < len(indices) for index in positions):
        raise RequestDeclinedError(f"this site volunteers {len(volunteered)} of its examples, and was asked for others")
    return indices[positions]


def needed(probes: ProbeSettings, clients: int) -> int:
    """Return the number of examples that each client must give away for the probes of an audit."""
    return -(-probes.images // clients) * max(point.batch for point in probes.points)


def _exists(config: Mapping[str, Any], probes: ProbeSettings) -> bool:
    """Return whether an audit with these settings sends such a probe."""
    control, point, vantage = config["control"], config["point"], config.get("vantage", "server")
    base = point.removesuffix(f"-{control}") if control in TARGET_CONTROLS else point
    if control not in (*AUDITED, *TARGET_CONTROLS):
        return False
    if vantage != "server" or base == EXAMPLE:
        sizes = (config["batch"], config["steps"])
        known = control not in FRESH and (base, vantage, sizes) == (EXAMPLE, "client_example", (1, 1))
        return known and vantage in probes.vantage
    return base in (*FRESH, *(point.name for point in probes.points))


def _gradient(net: nn.Module, task: Task, x: torch.Tensor, y: torch.Tensor) -> Tensors:
    parameters = dict(net.named_parameters())
    scores = net(task.inputs.normalise(x))
    value = loss(scores, targets(scores, x, y))
    return dict(zip(parameters, torch.autograd.grad(value, list(parameters.values())), strict=True))
