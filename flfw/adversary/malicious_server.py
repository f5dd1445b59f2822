"""Malicious server: a Grid that overwrites tensors of the messages that an honest strategy sends."""

from collections.abc import Iterable
from typing import Any, final

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from torch import Tensor

from flfw.data.splits.partition import evenly
from flfw.errors import require
from flfw.messages.streaming import GridWrapper
from flfw.messages.wire import pack, unpack
from flfw.nets.malicious_model import ModelModification
from flfw.nets.net import Tensors
from flfw.task.task import Task, TaskPlan

_NUMBERS_AT_MOST = 200_000_000  # of the public inputs: 0.8 GB
_EXAMPLES_AT_MOST = 10_000


@final
class MaliciousServer(GridWrapper):
    """Grid that replaces the tensors that a `ModelModification` crafts, in each message with arrays.

    A server that isolates a client lies in probes of the target alone: the numbers that make an update zero would end
    up in the strategy's mean, and the fresh controls are those of an honest network.

    A recorder belongs behind it, so that the recording has what clients received. The strategy goes on with its own
    tensors: in the next round those that training left in the changed part of the network are overwritten again.

    Args:
        grid: Grid that sends and receives.
        tampering: the change of the network.
        public: (n, ...) public inputs, normalised as the network takes them.
    """

    def __init__(self, grid: Grid, tampering: ModelModification, public: Tensor) -> None:
        super().__init__(grid)
        self._tampering, self._public = tampering, public
        self._last: tuple[ArrayRecord, ArrayRecord] | None = None
        self._tensors: Tensors = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Overwrite tensors of the messages, then send them."""
        return self._grid.send_and_receive(self._overwritten(messages), timeout=timeout)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Overwrite tensors of the messages, then send them."""
        return self._grid.push_messages(self._overwritten(messages))

    def _overwritten(self, messages: Iterable[Message]) -> list[Message]:
        sent = list(messages)
        for message in sent:
            if self._tampering.isolates is not None and not _is_target(message):
                continue
            for name, record in list(message.content.array_records.items()):
                message.content[name] = self._of_client(message, self._crafted(record))
        return sent

    def _crafted(self, record: ArrayRecord) -> ArrayRecord:
        """Return the arrays with the crafted ones; the clients of a round mostly share one record."""
        if self._last is None or self._last[0] is not record:
            self._tensors = unpack(record)
            crafted = pack(self._tampering.crafted(self._tensors, self._public))
            self._last = record, ArrayRecord({name: crafted.get(name, array) for name, array in record.items()})
        return self._last[1]

    def _of_client(self, message: Message, crafted: ArrayRecord) -> ArrayRecord:
        """Return the arrays with those that only this client is sent; without such ones the record of all clients."""
        client: Any = message.content.config_records["config"]["client"]
        personal = pack(self._tampering.personal(client, self._tensors, self._public))
        return (
            ArrayRecord({name: personal.get(name, array) for name, array in crafted.items()}) if personal else crafted
        )


def _is_target(message: Message) -> bool:
    """Return whether a message is a probe of the audit's target, in which such a server lies."""
    config = message.content.config_records.get("config", {})
    return message.metadata.message_type == "train.probe" and config.get("control") == "target"


def tampered(grid: Grid, plan: TaskPlan) -> Grid:
    """Return a grid as the run's malicious server uses it; without one as it is.

    Raises:
        InputError: see `require_public`.
    """
    if plan.network.malicious is None:
        return grid
    task = plan.load_at_server(plan.data.data_root)
    require_public(task)
    return MaliciousServer(grid, plan.network.malicious, _public_inputs(task))


def require_public(task: Task) -> None:
    """Refuse a task without public examples, from which the crafted tensors are made.

    Raises:
        InputError: the server has no data, or all of them belong to clients.
    """
    task.require_data("--malicious-server")
    known = len(task.split.public)
    require(known > 1, "public test examples, which belong to no client, for --malicious-server", public=known)


def _public_inputs(task: Task) -> Tensor:
    """Return normalised public inputs (n, ...)."""
    indices = task.split.public
    maximum = max(2, min(_EXAMPLES_AT_MOST, _NUMBERS_AT_MOST // task.inputs.mean.expand(task.inputs.shape).numel()))
    return task.inputs.normalise(task.examples("test", evenly(indices, maximum))[0])
