"""Probes: messages that ask a client what it would send for a few of its own examples, and the client's answer.

A probe goes out before the first round or after a round's aggregation, through the same client code, defence, sharing
check and tap as training, and leaves the client as it was. Three rungs make the audit's ladder:

    control   one example through softmax regression, undefended: the closed form must find it, or the audit is broken
    easy      one example through the method's network with fresh weights, all of it shared, undefended
    target    what the method really does

The first two give a client's example away, so a client answers probes only where its own site keeps truth for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from torch import nn
from torch.nn.functional import cross_entropy

from flfw.audit.observation import Truth, key
from flfw.experiment import Experiment, Point
from flfw.faults import Failure, Unusable, read_update
from flfw.nets.net import Net, Tensors
from flfw.rng import initialising
from flfw.site import Site
from flfw.strategy import FederatedStrategy, broadcast
from flfw.task import Task

RUNGS = ("control", "easy", "target")
ONE = Point("", 1, 1)
"""What the ladder's lower rungs probe: one example, one step."""
_AT_ONCE = 4  # a hypernetwork's gradient is 60 MB: more in flight would only fill the server's memory


def ladder_net(rung: str, experiment: Experiment, build: Callable[[str], Net]) -> Net:
    """The fresh, fully shared network of the control or the easy rung; both sides know it."""
    with initialising(experiment.seed, rung):
        return build("linear" if rung == "control" else experiment.net)


def send_probes(
    grid: Grid,
    strategy: FederatedStrategy,
    experiment: Experiment,
    rung: str,
    server_round: int,
    arrays: ArrayRecord,
    point: Point = ONE,
) -> list[Failure]:
    """Ask ``experiment.images`` probes of one rung, spread over the clients; the tap records the answers.

    Returns:
        Who did not answer, if the run bears that; the audit will miss their observations, and count them as failures.
    """
    messages: list[Message] = []
    failed: list[Failure] = []
    for probe in range(experiment.images):
        client, slot = probe % experiment.clients, probe // experiment.clients
        config: dict[str, Any] = {"rung": rung, "client": client, "slot": probe, "own_slot": slot}
        config |= {"batch": point.batch, "steps": point.steps, "point": point.name if rung == "target" else rung}
        if client in strategy.roster.unfit:
            failed.append(Failure(client, strategy.roster.unfit[client]))
        else:
            messages.append(strategy.ask(client, arrays, "train.probe", server_round, config))
    for start in range(0, len(messages), _AT_ONCE):
        asked = messages[start : start + _AT_ONCE]
        replies = grid.send_and_receive(asked, timeout=strategy.roster.tolerance.deadline)
        for _ in strategy.roster.receive(asked, replies, f"a probe at round {server_round}", _checked(arrays), failed):
            pass
    return failed


def is_sound(message: Message, reply: Message) -> bool:
    """Whether an exchange is a probe that an audit can use; what cannot be is not recorded."""
    if message.metadata.message_type != "train.probe":
        return False
    try:
        _checked(message.content.array_records["arrays"])(reply)
    except Unusable:
        return False
    return True


def _checked(arrays: ArrayRecord) -> Callable[[Message], object]:
    """Reads the answer to a probe that brought these arrays: gradients of some of them."""
    return lambda reply: read_update(reply, ("*",), arrays, whole=False)


def send_ladder(
    grid: Grid, strategy: FederatedStrategy, experiment: Experiment, build: Callable[[str], Net]
) -> list[Failure]:
    """The control and the easy rung, before the first round; returns who did not answer."""
    failed: list[Failure] = []
    for rung in RUNGS[:2]:
        arrays = broadcast(ladder_net(rung, experiment, build), ("*",))
        failed += send_probes(grid, strategy, experiment, rung, 0, arrays)
    return failed


def answer(
    config: dict[str, Any],
    received: Mapping[str, np.ndarray],
    task: Task,
    experiment: Experiment,
    partition: int,
    site: Site,
    target: Callable[[torch.Tensor, torch.Tensor, int], Tensors],
) -> Tensors:
    """The client's side: what the probe asks for, after writing down what it is made of.

    Args:
        config: of the probe's message.
        received: the arrays of the probe's message.
        task: the client's data.
        experiment: what is run.
        partition: which client this is.
        site: the client's own folders.
        target: what the method would send for raw inputs (B, ...), labels (B,) and so many local steps.

    Raises:
        RuntimeError: this site keeps no truth, which is how a site says that it answers no probes.
    """
    rung, numbers = config["rung"], [config[name] for name in ("round", "slot", "own_slot", "batch", "steps")]
    known = config["point"] in ("control", "easy", *(point.name for point in experiment.points))
    if rung not in RUNGS or not known or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise RuntimeError(f"client {partition} was asked for a probe that does not exist: {rung}, {numbers}")
    if site.truth is None:
        raise RuntimeError(f"client {partition} answers no probes: its site names no truth folder")
    indices = task.victims(partition, int(config["own_slot"]), int(config["batch"]), experiment.seed)
    x, y = task.examples("train", indices)
    name = key(int(config["round"]), config["point"], int(config["slot"]))
    Truth(x, y, torch.from_numpy(indices)).write(site.truth, name)
    if config["rung"] == "target":
        return target(x, y, int(config["steps"]))
    net = ladder_net(config["rung"], experiment, task.build_net)
    net.load_state_dict({name: torch.tensor(value) for name, value in received.items()})
    return _gradient(net, task, x, y)


def _gradient(net: nn.Module, task: Task, x: torch.Tensor, y: torch.Tensor) -> Tensors:
    parameters = dict(net.named_parameters())
    loss = cross_entropy(net(task.inputs.normalise(x)), y)
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
