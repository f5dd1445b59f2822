"""Site that lies: a SuperNode with no guard and no app, which answers each message by the next lie of a table.

    python -m tests.support.evil_site TABLE -- <arguments of flower-supernode>

TABLE is a file with the name of a table in `tests.support.client_lies`; it is read again for each message.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.task_identity import TaskIdentity

from flfw.deploy.guard import beat_more_often
from tests.support.client_lies import TABLES, lie_about
from tests.support.forgery import Sent

_NEXT_S = 0.1


@final
class Liar:
    """Substitute for the two functions of a SuperNode that take a message and send its answer.

    Args:
        table: file with the name of the table.
    """

    def __init__(self, table: Path) -> None:
        self._table, self._queries = table, 0
        self._answers: Sequence[Sent] = ()

    def pull(self, *, receive: Any, pull_object: Any, confirm_message_received: Any, **_: Any) -> int | None:
        """Take a message, and think of an answer."""
        import time

        if (got := receive()) is None:
            time.sleep(_NEXT_S)  # Flower would wait for 3 s
            got = receive()
        if got is None:
            return None
        envelope, tree = got
        run = envelope.metadata.run_id
        parts = pull_objects([part.object_id for part in iterate_object_tree(tree)], lambda one: pull_object(run, one))
        confirm_message_received(run, envelope.metadata.message_id)
        requested = inflate_object_from_contents(envelope.metadata.message_id, parts)
        assert isinstance(requested, Message)
        requested.metadata.__dict__["_message_id"] = envelope.metadata.message_id
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, requested.metadata.dst_node_id
        name = self._table.read_text().strip()
        self._queries += requested.metadata.message_type == "query"
        self._answers = lie_about(TABLES.get(name, ()), requested, self._queries)
        return run

    def push(self, *, send: Any, push_object: Any, **_: Any) -> None:
        """Send what was thought of; what the server refuses is let go."""
        for sent in self._answers:
            try:
                wanted, session = send(sent.envelope, sent.tree, 0.1)
                for name, content in sent.objects.items():
                    if name in wanted:
                        push_object(sent.envelope.metadata.run_id, session, name, content)
            except Exception as error:  # the server may refuse it in any way
                print(f"refused: {type(error).__name__} {error}"[:300], flush=True)


def main(arguments: Sequence[str]) -> None:
    """Run the SuperNode."""
    from flwr.supernode import start_client_internal as supernode
    from flwr.supernode.cli.flower_supernode import flower_supernode

    liar = Liar(Path(arguments[0]))
    supernode._pull_and_store_message, supernode._push_messages = liar.pull, liar.push
    beat_more_often()
    sys.argv = ["flower-supernode", *arguments[2:], "--isolation", "process"]
    flower_supernode()


if __name__ == "__main__":
    main(sys.argv[1:])
