"""SuperLink that lies: Flower's service for SuperNodes over gRPC with TLS, in which every answer may be another one.

It stands in the federation's place, with its certificate, and keeps all that sites send.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import grpc
from flwr.app import Message
from flwr.common.serde import message_to_proto, run_to_proto
from flwr.proto import fab_pb2, fleet_pb2, fleet_pb2_grpc, heartbeat_pb2, message_pb2, run_pb2
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run

from flfw.engines.layout import FederationLayout
from tests.support.forgery import Sent


@final
@dataclass
class Work:
    """Message for a site, and what the server says when the site asks about its run.

    Attributes:
        sent: the message with its objects.
        runs: the run, for each time that it is asked for; the last one from then on.
        app: the bundle.
        called: its hash, as the server says with it; empty: the hash that was asked for.
        got: envelope of the site's answer; None: it has not come.
        wanted: names of the answer's objects.
        objects: the answer's objects that have come.
        pulled: objects of the message that the site fetched.
    """

    sent: Sent
    runs: list[Run]
    app: bytes
    called: str = ""
    got: message_pb2.Message | None = None
    wanted: set[str] = field(default_factory=set)
    objects: dict[str, bytes] = field(default_factory=dict)
    pulled: set[str] = field(default_factory=set)

    def answered(self) -> bool:
        """Return whether the answer has come whole."""
        return self.got is not None and self.wanted <= self.objects.keys()

    @property
    def answer(self) -> Message:
        """The answer, as a server app reads it."""
        assert self.got is not None
        message = inflate_object_from_contents(self.got.metadata.message_id, dict(self.objects))
        assert isinstance(message, Message)
        return message


@final
class LyingSuperLink(fleet_pb2_grpc.FleetServicer):
    """Service for SuperNodes that gives out errands.

    Attributes:
        received: all that sites sent: answers without content, and objects.
    """

    def __init__(self) -> None:
        self._nodes: dict[bytes, int] = {}
        self._left: dict[int, deque[Work]] = {}
        self._work: dict[int, Work] = {}
        self._lock = threading.Lock()
        self.received: list[bytes] = []

    def give(self, node: int, work: Work, seconds: float) -> bool:
        """Give an errand to a node and wait for the answer; return whether it came."""
        self._work[work.runs[0].run_id] = work
        self._left[node].append(work)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not work.answered():
            time.sleep(0.02)
        return work.answered()

    def node(self, number: int, seconds: float = 90) -> int:
        """Return the node id of the site that came as the given one; wait for it."""
        deadline = time.monotonic() + seconds
        while len(self._nodes) <= number:
            assert time.monotonic() < deadline, "no such site has come"
            time.sleep(0.1)
        return list(self._nodes.values())[number]

    def idle(self) -> bool:
        """Return whether all errands have been fetched."""
        return not any(self._left.values())

    # Flower's service. All that a site sends is kept.

    def RegisterNode(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Register any key."""
        return fleet_pb2.RegisterNodeFleetResponse(node_id=self.ActivateNode(request, context).node_id)

    def UnregisterNode(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Forget a node."""
        return fleet_pb2.UnregisterNodeFleetResponse()

    def ActivateNode(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Admit any key."""
        with self._lock:
            node = self._nodes.setdefault(request.public_key, 1001 + len(self._nodes))
            self._left.setdefault(node, deque())
        return fleet_pb2.ActivateNodeResponse(node_id=node)

    def DeactivateNode(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Let a node go."""
        return fleet_pb2.DeactivateNodeResponse()

    def SendNodeHeartbeat(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Take a heartbeat."""
        return heartbeat_pb2.SendNodeHeartbeatResponse(success=True)

    def PullMessages(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Give out the next errand of a node."""
        left = self._left[request.node.node_id]
        if not left:
            return fleet_pb2.PullMessagesResponse()
        sent = left.popleft().sent
        return fleet_pb2.PullMessagesResponse(
            messages_list=[message_to_proto(sent.envelope)], message_object_trees=[sent.tree]
        )

    def PushMessages(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Take an answer, and ask for all its objects."""
        self.received.append(request.SerializeToString())
        envelope, tree = request.messages_list[0], request.message_object_trees[0]
        names = {part.object_id for part in iterate_object_tree(tree)}
        if (work := self._work.get(envelope.metadata.run_id)) is not None:
            work.got, work.wanted = envelope, names
        return fleet_pb2.PushMessagesResponse(objects_to_push=sorted(names), session_id="session")

    def PushObject(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Take an object of an answer."""
        self.received.append(request.object_content)
        if (work := self._work.get(request.run_id)) is not None:
            work.objects[request.object_id] = request.object_content
        return message_pb2.PushObjectResponse(stored=True)

    def GetRun(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Say which run it is; the next time perhaps another one."""
        runs = self._work[request.run_id].runs
        return run_pb2.GetRunResponse(run=run_to_proto(runs.pop(0) if len(runs) > 1 else runs[0]))

    def GetFab(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Give out the bundle."""
        work = self._work[request.run_id]
        called = work.called or request.hash_str
        return fab_pb2.GetFabResponse(fab=fab_pb2.Fab(hash_str=called, content=work.app))

    def PullObject(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Give out an object of a message."""
        work = self._work[request.run_id]
        work.pulled.add(request.object_id)
        content = work.sent.objects.get(request.object_id)
        if content is None:
            return message_pb2.PullObjectResponse(object_found=False, object_available=False)
        return message_pb2.PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any, context: Any) -> Any:  # noqa: N802 Flower's
        """Take note of nothing."""
        return message_pb2.ConfirmMessageReceivedResponse()


@contextmanager
def serving(layout: FederationLayout, link: LyingSuperLink) -> Iterator[None]:
    """Serve at the federation's port, with its certificate."""
    largest = 2**31 - 1
    sizes = [("grpc.max_send_message_length", largest), ("grpc.max_receive_message_length", largest)]
    server = grpc.server(ThreadPoolExecutor(8), options=sizes)
    fleet_pb2_grpc.add_FleetServicer_to_server(link, server)
    files = [(layout.superlink / name).read_bytes() for name in ("server.key", "server.pem")]
    credentials = grpc.ssl_server_credentials([(files[0], files[1])], (layout.folder / "ca" / "ca.crt").read_bytes())
    assert server.add_secure_port(f"127.0.0.1:{layout.port}", credentials) == layout.port
    server.start()
    try:
        yield
    finally:
        server.stop(grace=0).wait()
