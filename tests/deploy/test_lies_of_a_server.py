"""Lies of an evil server to a site in one process: through the guard, and then to the app itself.

The lies are the rows of `tests.support.server_lies`; `tests/deploy/test_evil_server.py` tells them over gRPC.
"""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab, parse_config_args
from flwr.common.constant import Status
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run

from flfw.deploy.node_config import extended
from flfw.dp import site_ledger
from flfw.engines import apps
from flfw.engines.superlink import bundle
from tests.support.agreed_runs import POOR, PRIVATE, REASON, RICH, honest_question, policy_of, require_agreed
from tests.support.guarded_site import GuardedSite, nodes
from tests.support.lying_superlink import Work
from tests.support.server_lies import BY_VERSION, LIES, NOTHING, SPENDING, VERSIONS, Lie

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")


class LyingLink:
    """What a SuperNode's connection reaches: one message with all that belongs to it, and all that was sent."""

    def __init__(self, work: Work) -> None:
        self.work, self.runs, self.parts = work, list(work.runs), work.sent.objects
        self.left = [(work.sent.envelope, work.sent.tree)]
        self.sent: list[Message] = []
        self.objects: dict[str, bytes] = {}

    def receive(self) -> tuple[Message, ObjectTree] | None:
        return self.left.pop() if self.left else None

    def get_run(self, run_id: int) -> Run:
        return self.runs.pop(0) if len(self.runs) > 1 else self.runs[0]

    def get_fab(self, fab_hash: str, run_id: int) -> Fab:
        return Fab(self.work.called or fab_hash, self.work.app, {})

    def send(self, message: Message, tree: ObjectTree, spent: float) -> tuple[set[str], str]:
        self.sent.append(message)
        return {part.object_id for part in nodes(tree)}, "session"

    def push_object(self, run_id: int, session: str, object_id: str, content: bytes) -> None:
        self.objects[object_id] = content

    @property
    def answer(self) -> Message:
        (envelope,) = self.sent
        message = inflate_object_from_contents(envelope.metadata.message_id, dict(self.objects))
        assert isinstance(message, Message)
        return message


class LyingServer:
    """Server that tells one site one lie after the other.

    Args:
        number: number of the site.
        folder: its folder.
        app: the accepted bundle.
    """

    def __init__(self, number: int, folder: Path, app: bytes) -> None:
        self.number, self.folder, self.app, self.run = number, folder, app, 10_000
        self.policy = policy_of(number, app)
        given = ["--node-config", f'partition-id={number} num-partitions=3 state="{folder}/state"']
        self.node = parse_config_args([extended(given, self.policy, folder)[-1]])

    @property
    def lines(self) -> int:
        path = self.folder / site_ledger.FILE
        return len(path.read_text().splitlines()) if path.exists() else 0

    def tell(self, lie: Lie) -> None:
        """Tell a lie; require its answer and the ledger's new lines."""
        self.run += 1
        question, before = honest_question(self.run, self.number, self.app), self.lines
        lie.tell(question)
        link = LyingLink(question.work(5))
        site = GuardedSite(self.policy, link)
        site.pull()
        started = [task.task_id for task in site.state.get_tasks() if task.status.status != Status.FINISHED]
        if started:
            self._work(site, link, started)
        site.push()
        answer = link.answer
        if lie.words:
            reason = answer.error.reason or "" if answer.has_error() else "an answer"
            assert lie.words in reason and len(reason) <= 1000 and reason.isprintable(), reason[:300]
            assert REASON.fullmatch(reason), reason
            assert len(link.objects) == 1
        else:
            assert answer.has_content(), answer
            require_agreed(answer.content, question.kind, self.number)
        assert self.lines - before == lie.counts

    def _work(self, site: GuardedSite, link: LyingLink, started: list[int]) -> None:
        """Do what the app's process would: read the message, answer it, or die."""
        envelope = link.work.sent.envelope
        try:
            message: Any = inflate_object_from_contents(envelope.metadata.message_id, dict(link.parts))
            message.metadata.__dict__["_message_id"] = envelope.metadata.message_id
            if not isinstance(message, Message):
                raise TypeError("no message")
        except Exception:
            site.dead.extend(started)
            return
        checked = site.state.get_run(self.run)
        assert checked is not None
        config = get_fused_config_from_fab(self.app, checked)
        context = Context(self.run, 5, self.node, RecordDict(), config)
        try:
            reply = apps.client(message, context)
        except Exception as error:  # in Flower's own words
            reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        site.answered(reply)


@pytest.fixture(scope="module")
def app() -> bytes:
    return bundle()


@pytest.mark.parametrize(
    ("site", "lies"), [(RICH, LIES), (POOR, SPENDING), (PRIVATE, VERSIONS)], ids=["lies", "spending", "versions"]
)
def test_a_site_gives_nothing_for_a_lie(
    site: int, lies: tuple[Lie, ...], app: bytes, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    liar = LyingServer(site, tmp_path, app)
    if site == RICH:  # else no lie below would prove anything
        liar.tell(Lie("", "", lambda question: None, 1))
    for lie in lies:
        if lie.words != NOTHING and lie.name != BY_VERSION:  # these show in a SuperLink or in an app's installation
            with subtests.test(lie.name):
                liar.tell(lie)
