"""Site behind its guard in one process: Flower's own functions, state and store, without a connection."""

from typing import Any

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import start_client_internal as supernode
from flwr.supernode.nodestate import NodeStateFactory

from flfw.deploy.guard import PolicyGuard
from flfw.deploy.policy import Policy


def nodes(tree: ObjectTree) -> list[ObjectTree]:
    return [*(inner for child in tree.children for inner in nodes(child)), tree]


class GuardedSite:
    """A SuperNode's state, and the two functions as the guard stands in for them."""

    def __init__(self, policy: Policy, link: Any, *, lively: float = 0.0, **more: Any) -> None:
        stores = ObjectStoreFactory()
        self.link, self.store = link, stores.store()
        self.state = NodeStateFactory(stores).state()
        self.state.set_node_id(5)
        chosen = supernode._pull_and_store_message, supernode._push_messages
        self.dead: list[int] = []
        deaths = lambda: [self.dead.pop() for _ in self.dead]  # noqa: E731
        self.guard = PolicyGuard(policy, *chosen, lively=lively, deaths=deaths, **more)

    def pull(self, **other: Any) -> int | None:
        calls = {
            "receive": self.link.receive,
            "get_run": self.link.get_run,
            "get_fab": self.link.get_fab,
            "pull_object": lambda run_id, object_id: self.link.parts[object_id],
            "confirm_message_received": lambda run_id, message_id: None,
            **other,
        }
        return self.guard.pull(
            state=self.state, object_store=self.store, node_config={}, trusted_entities=None, **calls
        )

    def push(self) -> None:
        self.guard.push(
            state=self.state, object_store=self.store, send=self.link.send, push_object=self.link.push_object
        )

    def answered(self, reply: Message, tree: ObjectTree | None = None, **objects: bytes) -> None:
        """What the app's process hands over through Flower's Runtime API."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.state.store_message(reply)
        self.store.preregister(reply.metadata.run_id, tree or get_object_tree(reply))
        for name, part in get_all_nested_objects(reply).items():
            self.store.put(name, part.deflate())
        for name, content in objects.items():
            self.store.put(name, content)
