"""The guard between an app and the network, in Flower's own two functions, with its own state and store."""

import hashlib
import io
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.config import parse_config_args
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as supernode
from grpc import RpcError

from flfw.client.site import Site as Folders
from flfw.deploy.allowed_settings import AllowedSettings
from flfw.deploy.executor import keep_plain
from flfw.deploy.guard import PolicyGuard, main
from flfw.deploy.node_config import announcements, extended
from flfw.deploy.policy import Policy
from flfw.deploy.quota import Quota
from flfw.dp.budget import EpsilonBudget, budgeted
from flfw.engines.superlink import toml_lines
from flfw.experiment import Experiment
from tests.support.app_bundle import fab
from tests.support.guarded_site import GuardedSite as Site
from tests.support.guarded_site import nodes

RUN = 7
PYPROJECT = """
[project]
name = "app"
version = "1.0.0"
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "a:b"
clientapp = "a:c"
[tool.flwr.app.config]
"""
APP = fab({"pyproject.toml": PYPROJECT + toml_lines(Experiment().to_run_config())})
POLICY = Policy((hashlib.sha256(APP).hexdigest(),), ("net.*",), max_upload_mb=0.01)
SECRET = "the patient in bed 4"


class SuperLink:
    """What a SuperNode's connection reaches: one message to fetch, and all that was sent."""

    def __init__(self, app: bytes = APP, kind: str = "train", **config: Any) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 0
        self.app, self.config = app, {**Experiment().to_run_config(), **config}
        self.called = hashlib.sha256(app).hexdigest()
        self.message = Message(RecordDict({"config": ConfigRecord({"round": 1})}), dst_node_id=5, message_type=kind)
        self.message.metadata.__dict__["_message_id"] = self.message.object_id
        self.parts = {name: part.deflate() for name, part in get_all_nested_objects(self.message).items()}
        self.left: list[Message | None] = [self.message]
        self.sent: list[Message] = []
        self.spent: list[float] = []
        self.objects: dict[str, bytes] = {}

    def receive(self) -> tuple[Message, ObjectTree] | None:
        result = self.left.pop() if self.left else None
        return (result, get_object_tree(result)) if result else None

    def get_run(self, run_id: int) -> Run:
        return replace(Run.create_empty(run_id), fab_hash=self.called, override_config=self.config)

    def get_fab(self, fab_hash: str, run_id: int) -> Fab:
        return Fab(fab_hash, self.app, {})

    def send(self, message: Message, tree: ObjectTree, spent: float) -> tuple[set[str], str]:
        self.sent.append(message)
        self.spent.append(spent)
        return {part.object_id for part in nodes(tree)}, "session"

    def push_object(self, run_id: int, session: str, object_id: str, content: bytes) -> None:
        assert (run_id, session) == (RUN, "session")
        self.objects[object_id] = content

    @property
    def got(self) -> Message:
        """The one answer, as the server app reads it."""
        (envelope,) = self.sent
        result = inflate_object_from_contents(envelope.metadata.message_id, dict(self.objects))
        assert isinstance(result, Message) and result.metadata.reply_to_message_id == self.message.metadata.message_id
        return result


def site(policy: Policy = POLICY, counted: Callable[[Message], str | None] = lambda _: None, **link: Any) -> Site:
    return Site(policy, SuperLink(**link), counted=counted)


def reply(requested: Site, *records: Any) -> Message:
    return Message(RecordDict(dict(zip("abc", records, strict=False))), reply_to=requested.link.message)


def arrays(*names: str, size: int = 3) -> ArrayRecord:
    return ArrayRecord({name: Array(np.arange(size, dtype=np.float32)) for name in names})


def refused(requested: Site) -> str:
    """The reason that went in place of the answer; nothing else did."""
    assert len(requested.link.objects) == 1
    assert SECRET.encode() not in b"".join(requested.link.objects.values())
    error = requested.link.got.error
    assert error.code == ErrorCode.INVALID_FAB
    return error.reason or ""


def test_a_site_gives_away_what_its_policy_says_and_keeps_the_truth(tmp_path: Path) -> None:
    arguments = ["--host", "127.0.0.1", "--node-config", "partition-id=1 num-partitions=3"]
    open_one = replace(POLICY, error_detail="all")
    assert extended(arguments, open_one, tmp_path) == arguments and announcements(open_one, tmp_path) == []
    giving = replace(open_one, allow_recording=True, audit_examples=(4, 0))
    informed = extended(arguments, giving, tmp_path)
    node = parse_config_args([informed[-1]])  # as Flower's SuperNode reads it
    assert node == {"partition-id": 1, "num-partitions": 3, "truth": str(tmp_path / "truth"), "volunteered": "4 0"}
    assert Folders.from_config(node, "run1").volunteered == (4, 0)
    assert "gives away its training examples 4 0" in announcements(giving, tmp_path)[0]


STRICT = replace(POLICY, epsilon=2.0, metrics="none")


def test_a_site_says_what_its_budget_is_and_hands_it_to_the_app(tmp_path: Path) -> None:
    arguments = ["--node-config", "partition-id=1 num-partitions=3"]
    node = parse_config_args([extended(arguments, STRICT, tmp_path)[-1]])  # as Flower's SuperNode reads it
    assert node["partition-id"] == 1
    assert budgeted(node) == (EpsilonBudget(2.0), tmp_path / "ledger" / "messages.jsonl")
    message = "budget epsilon 2 at delta 1e-05 for one example; 0 is spent, messages 0, runs 0"
    assert announcements(STRICT, tmp_path) == [message]
    limited = replace(POLICY, max_messages=40)
    Quota(tmp_path / "ledger" / "answers.jsonl", 40).refuses(SuperLink().message)
    assert announcements(limited, tmp_path) == ["messages 1 of 40 answered"]


def test_a_site_hands_its_rules_on_words_and_numbers_of_examples_to_the_app(tmp_path: Path) -> None:
    for policy, added in (
        (replace(POLICY, error_detail="all"), {}),
        (POLICY, {"quiet": "true"}),
        (replace(POLICY, reject_suspicious_weights=True), {"quiet": "true", "check-broadcast": "true"}),
        (replace(POLICY, min_examples=20), {"quiet": "true", "fewest-examples": "20"}),
    ):
        node = parse_config_args([extended(["--node-config", "partition-id=1"], policy, tmp_path)[-1]])
        assert node == {"partition-id": 1, **added}


def test_a_site_with_a_damaged_ledger_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.toml").write_text(STRICT.text())
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "messages.jsonl").write_text("{}\n")
    assert main([str(tmp_path / "policy.toml"), "--", "--node-config", "partition-id=0"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("flfw.deploy.guard: Expected ")
    assert "it is damaged" in message and message.count("\n") == 1


@pytest.mark.slow
def test_what_makes_a_simulations_clients_answer_any_probe_is_left_out_of_a_sites_environment(tmp_path: Path) -> None:
    """Whoever starts a site may have it set; a site whose policy volunteers nothing would give all away."""
    (tmp_path / "policy.toml").write_text(POLICY.text())
    program = "\n".join(
        (
            "import os",
            "from flfw.client.site import Site",
            "from flfw.deploy import executor, guard",
            "for name in ('keep_plain', 'outlast_errors', 'beat_more_often'): setattr(guard, name, lambda: None)",
            "guard.ask_again_soon = lambda module: None",
            "executor.beside = lambda given, deaths: [*given]",
            "guard._run = lambda flowers: print(Site.from_config({}, 'run1'), os.environ.get('FLFW_DATA'))",
            f"guard.main([{str(tmp_path / 'policy.toml')!r}, '--', '--node-config', 'partition-id=1'])",
        )
    )
    given = {"FLFW_TRUTH": str(tmp_path / "truth"), "FLFW_EXAMPLES": str(tmp_path), "FLFW_DATA": "/data"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **given}, capture_output=True, text=True, check=True
    )
    assert "truth=None, examples=None" in done.stdout and done.stdout.endswith("/data\n")
    for name in ("FLFW_TRUTH", "FLFW_EXAMPLES"):
        assert f"flfw.deploy.guard: {name} of the environment is for simulations, and ignored\n" in done.stderr


def test_the_words_of_an_exception_stay_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    one = site()
    one.pull()
    one.answered(Message(Error(2, f"index 7 of {SECRET}"), reply_to=one.link.message))
    one.push()
    reason = "this site's policy lets no other reason of a failure leave; its log has it"
    assert refused(one) == reason
    assert capsys.readouterr().err == f"flfw.deploy.guard: {reason}: index 7 of {SECRET}\n"


def test_a_site_answers_so_many_messages_over_all_runs_and_starts(tmp_path: Path) -> None:
    path = tmp_path / "ledger" / "answers.jsonl"
    counted = Quota(path, 3)
    for expected in (RUN, RUN, RUN):
        one = site(counted=Quota(path, 3).refuses)  # another start, which knows no run
        assert one.pull() == expected and not one.state.get_messages(is_reply=True)
    one = site(counted=counted.refuses)
    one.pull()
    one.push()
    assert refused(one) == "this site's policy lets it answer 3 messages over all runs, and it has"
    introduction = site(kind="query", counted=counted.refuses)  # of which there may be any number
    introduction.pull()
    assert not introduction.state.get_messages(is_reply=True)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    reason = "this site's policy lets nothing be answered until its damaged count of answers is restored"
    assert counted.refuses(one.link.message) == reason


def test_a_message_that_the_server_sends_again_counts_again_and_a_refused_run_does_not(tmp_path: Path) -> None:
    counted = Quota(tmp_path / "answers.jsonl", 2).refuses
    other = site(app=APP + b".", counted=counted)
    other.pull()
    other.push()
    assert "does not accept app" in refused(other) and not (tmp_path / "answers.jsonl").exists()
    one = site(counted=counted)
    one.link.left *= 3
    for _ in range(2):
        one.pull()
        assert not one.state.get_messages(is_reply=True)
    one.pull()
    one.push()
    assert refused(one) == "this site's policy lets it answer 2 messages over all runs, and it has"


@pytest.mark.slow
def test_the_guard_imports_no_torch() -> None:
    lines = "import sys, flfw.deploy.guard; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", lines], check=False).returncode == 0


def test_a_run_that_is_recorded_is_announced_at_the_site(capsys: pytest.CaptureFixture[str]) -> None:
    assert Site(replace(POLICY, allow_recording=True), SuperLink(record=True)).pull() == RUN
    assert "guard: the server records what this site sends" in capsys.readouterr().err


# --- apps ----------------------------------------------------------------------------------------------------------


def test_an_accepted_app_is_started_and_its_answer_leaves_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    one = site()
    assert one.pull() == RUN
    assert one.state.get_run(RUN) is not None
    assert [m.metadata.message_id for m in one.state.get_messages(is_reply=False)] == [
        one.link.message.metadata.message_id
    ]
    answer = reply(one, arrays("net.w", "net.b"), MetricRecord({"num-examples": 3}))
    one.answered(answer)
    one.push()
    assert one.link.got.content == answer.content
    assert capsys.readouterr().err == ""
    assert one.pull() is None


def test_after_a_message_the_next_is_looked_for_often_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("flfw.deploy.guard.time", SimpleNamespace(sleep=waits.append, monotonic=lambda: sum(waits)))
    link = SuperLink()
    one = Site(POLICY, link, lively=5.0)
    assert one.pull() == RUN
    link.left = [link.message, None, None]  # two more looks, and it is there
    assert one.pull() == RUN and not link.left
    assert waits == [0.25, 0.25]  # where Flower alone would have slept for 3 s after the first
    quiet = Site(POLICY, SuperLink(), lively=5.0)
    quiet.link.left = [quiet.link.message, None]
    assert quiet.pull() is None and len(quiet.link.left) == 1  # before any message Flower's own pace


def test_another_app_is_answered_for_and_never_stored(capsys: pytest.CaptureFixture[str]) -> None:
    one = site(app=b"no bundle at all, so whoever opens it fails")
    assert one.pull() == RUN
    assert one.state.get_run(RUN) is None and one.state.get_messages(is_reply=False) == []
    one.push()
    reason = f"this site's policy does not accept app {hashlib.sha256(one.link.app).hexdigest()}"
    assert refused(one) == reason
    assert capsys.readouterr().err == f"flfw.deploy.guard: {reason}\n"


def test_a_bundle_that_is_none_does_not_end_the_supernode() -> None:
    for broken in (b"no bundle", fab({}), fab({"pyproject.toml": "["})):
        one = site(replace(POLICY, allowed_apps=("any",)), app=broken)
        one.pull()
        one.push()
        assert "no app that cannot be read" in refused(one)


def test_what_the_server_calls_an_app_counts_for_nothing() -> None:
    for accepted, message in (
        ("0" * 64, "does not accept app"),
        (POLICY.allowed_apps[0], "no app under another one's hash"),
    ):
        one = site(replace(POLICY, allowed_apps=(accepted,)))
        one.link.called = "0" * 64
        one.pull()
        one.push()
        assert message in refused(one)


def test_a_bundle_that_is_sent_under_another_name_does_not_end_the_supernode() -> None:
    """Flower would: its store refuses such a bundle by an error that nobody expects."""

    class Misnaming(SuperLink):
        def get_fab(self, fab_hash: str, run_id: int) -> Fab:
            return Fab("0" * 64, self.app, {})

    one = Site(POLICY, Misnaming())
    assert one.pull() == RUN
    one.push()
    assert "no app under another one's hash" in refused(one)


def test_what_flower_cannot_read_of_a_message_does_not_end_the_supernode(capsys: pytest.CaptureFixture[str]) -> None:
    class Unnamed(SuperLink):
        def receive(self) -> tuple[Message, ObjectTree] | None:
            got = super().receive()
            return (got[0], ObjectTree(object_id="../../x")) if got else None

    class Nameless(SuperLink):
        def get_run(self, run_id: int) -> Run:
            raise KeyError("run")

    for link, error in ((Unnamed(), "ValueError"), (Nameless(), "KeyError")):
        one = Site(POLICY, link)
        assert one.pull() == RUN
        one.push()
        reason = f"this site's policy takes nothing that cannot be read: {error}"
        assert refused(one) == reason
        assert reason in capsys.readouterr().err
        assert not any(one.state.claim_task(task.task_id) for task in one.state.get_tasks())  # no process waits for it


def test_a_message_that_cannot_be_read_at_all_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    class Garbled(SuperLink):
        def receive(self) -> tuple[Message, ObjectTree] | None:
            raise IndexError("no tree")

    assert Site(POLICY, Garbled()).pull() is None
    assert "takes nothing that cannot be read: IndexError" in capsys.readouterr().err


def test_a_connection_that_is_lost_for_good_ends_the_supernode() -> None:
    class Lost(SuperLink):
        def receive(self) -> tuple[Message, ObjectTree] | None:
            raise RpcError

    with pytest.raises(RpcError):
        Site(POLICY, Lost()).pull()


def test_settings_count_as_the_server_overrides_them() -> None:
    strict = replace(POLICY, allow_recording=False)
    for record, words in ((False, None), (True, "recorded")):
        one = site(strict, method="fed_cdp", record=record)
        one.pull()
        if words is None:
            assert one.state.get_run(RUN) is not None
        else:
            one.push()
            assert words in refused(one)


def test_a_server_that_says_something_else_when_asked_again_is_asked_once() -> None:
    """The run that is checked is the run that starts: the second answer would be an honest one."""

    class TwoFaced(SuperLink):
        requested = 0

        def get_run(self, run_id: int) -> Run:
            self.requested += 1
            config = self.config if self.requested > 1 else {**self.config, "record": True}
            return replace(super().get_run(run_id), override_config=config)

    link = TwoFaced()
    one = Site(POLICY, link)
    one.pull()
    one.push()
    assert "recorded" in refused(one) and link.requested == 1
    assert one.state.get_run(RUN) is None


def test_what_a_server_writes_moves_no_cursor_in_the_sites_log(capsys: pytest.CaptureFixture[str]) -> None:
    site(dataset="folder:\x1b[2J\nall is well").pull()
    message = capsys.readouterr().err
    assert "folder:?[2J?all is well" in message and message.count("\n") == 1


def test_what_flower_logs_of_a_server_moves_no_cursor() -> None:
    """A group, a type, and the words of an exception; the colours of Flower's own handler are added later."""
    logger = logging.getLogger("flwr")
    before, level, logged = list(logger.filters), logger.level, io.StringIO()
    handler = logging.StreamHandler(logged)
    logger.setLevel(logging.INFO)
    keep_plain()
    keep_plain()  # once is enough
    try:
        assert len(logger.filters) <= len(before) + 1
        logger.addHandler(handler)
        one = Site(POLICY, SuperLink())
        one.link.message.metadata.__dict__["_group_id"] = "1\x1b[2J\nguard: all is well"
        one.pull()
        try:
            raise ValueError("\x1b[2J\x07")
        except ValueError as error:
            logger.error("%s raised", "an\x1b[2Japp", exc_info=error)
        text = logged.getvalue()
        assert "ROUND 1?[2J?guard: all is well]" in text and "an?[2Japp raised" in text
        assert "ValueError: ?[2J?" in text and "\x1b[2J" not in text and "\x07" not in text
    finally:
        logger.removeHandler(handler)
        logger.filters = before
        logger.setLevel(level)


def test_a_run_that_its_policy_does_not_pin_is_refused_by_its_key() -> None:
    pinned = replace(POLICY, run=AllowedSettings({"rounds": {"max": 10}}))
    for rounds, refusal in ((10, None), (11, "this site's policy pins the run, which has rounds=11, and rounds is to")):
        one = site(pinned, rounds=rounds)
        one.pull()
        if refusal is None:
            assert one.state.get_run(RUN) is not None
        else:
            one.push()
            assert refused(one).startswith(refusal)


# --- answers -------------------------------------------------------------------------------------------------------

HOSTILE: dict[str, Callable[[Site], Message]] = {
    "does not let head.w leave": lambda s: reply(s, arrays("net.w", "head.w"), MetricRecord({"a": 1})),
    "0.01 MB leave, the answer has 0.0 MB": lambda s: reply(s, arrays("net.w", size=2500)),
    "no lists of numbers": lambda s: reply(s, arrays("net.w"), MetricRecord({"pixels": [0.25] * 64})),
    "at most 100 numbers": lambda s: reply(s, MetricRecord({f"p{i}": 0.5 for i in range(101)})),
    "names are so long": lambda s: reply(s, MetricRecord({SECRET * 60: 1})),
    "no words leave": lambda s: reply(s, arrays("net.w"), ConfigRecord({"note": SECRET})),
    "no reason leave that is so long": lambda s: Message(Error(2, SECRET * 60), reply_to=s.link.message),
}


@pytest.mark.parametrize(("message", "made"), HOSTILE.items(), ids=HOSTILE.keys())
def test_an_answer_that_breaks_the_policy_is_replaced(message: str, made: Callable[[Site], Message]) -> None:
    one = site()
    one.pull()
    one.answered(made(one))
    one.push()
    assert message in refused(one)
    assert one.state.get_messages(is_reply=True) == []


def renamed(one: Site, **changed: str) -> Message:
    result = reply(one, arrays("net.w"))
    for name, value in changed.items():
        result.metadata.__dict__[f"_{name}"] = value
    return result


@pytest.mark.parametrize("changed", [{"group_id": SECRET}, {"message_type": "query"}])
def test_an_answer_to_something_else_is_replaced(changed: dict[str, str]) -> None:
    one = site()
    one.pull()
    one.answered(renamed(one, **changed))
    one.push()
    assert refused(one).endswith("nothing leave but answers to what was asked")


@pytest.mark.timeout(30)
def test_an_answer_to_nothing_stays_and_its_message_is_answered_by_the_site() -> None:
    """A process that has finished its task leaves no other answer, and the server would wait for one."""
    one = site()
    one.pull()
    task = begun(one)
    one.answered(renamed(one, reply_to_message_id="f" * 64))
    assert one.state.finish_task(task, SubStatus.COMPLETED, "")
    one.push()
    assert refused(one) == "its process died"


@pytest.mark.slow
@pytest.mark.timeout(30)
def test_an_answer_to_nothing_keeps_no_other_back() -> None:
    one = site()
    one.pull()
    one.answered(renamed(one, reply_to_message_id="f" * 64))
    pushing = threading.Thread(target=one.push, daemon=True)
    pushing.start()
    time.sleep(1)
    assert one.link.sent == []
    answer = reply(one, arrays("net.w"))
    one.answered(answer)
    pushing.join(20)
    assert one.link.got.content == answer.content


def test_a_message_has_one_answer() -> None:
    """Counts of messages bound what leaves; an app that answers twice would send twice as much."""
    one = site()
    one.pull()
    for name in ("net.w", "net.b"):
        one.answered(reply(one, arrays(name)))
    one.push()
    assert len(one.link.sent) == 1 and one.link.got.content.array_records["a"].keys() <= {"net.w", "net.b"}


def another(one: Site, run: int) -> Message:
    """The first message of another run, which the server sends next."""
    message = Message(RecordDict({"config": ConfigRecord({"round": run})}), dst_node_id=5, message_type="query")
    message.metadata.__dict__.update(_run_id=run)
    message.metadata.__dict__["_message_id"] = message.object_id
    one.link.parts |= {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    one.link.message = message
    one.link.left = [message]
    return message


def ended(*_: Any) -> Any:
    raise RunNotRunningException


@pytest.mark.parametrize("where", ["pull_object", "confirm_message_received"])
def test_a_run_that_ends_while_its_message_comes_leaves_nothing_to_do(where: str) -> None:
    """Flower keeps the message and its task: the app would work for nobody, and its answer would be the next one."""
    one = site()
    assert one.pull(**{where: ended}) is None
    (task,) = one.state.get_tasks()
    assert task.status.status == "finished" and not one.state.claim_task(task.task_id)
    assert not one.state.get_messages(run_ids=[RUN])


@pytest.mark.slow
@pytest.mark.timeout(30)
@pytest.mark.parametrize("before", [True, False])
def test_an_answer_to_an_ended_run_keeps_no_other_back(before: bool) -> None:
    """A process may have begun before its run ended; the server waits for the next answer with all that follows."""
    one = site()
    one.pull(confirm_message_received=ended)
    old = reply(one, arrays("net.w"))
    if before:
        one.answered(old)
    another(one, RUN + 1)
    one.pull()
    pushing = threading.Thread(target=one.push, daemon=True)
    if not before:
        one.answered(old)
    pushing.start()
    time.sleep(1)
    assert one.link.sent == []
    one.answered(Message(RecordDict({"about": ConfigRecord({"code": "a"})}), reply_to=one.link.message))
    pushing.join(20)
    (sent,) = one.link.sent
    assert sent.metadata.reply_to_message_id == one.link.message.metadata.message_id and not sent.has_error()


@pytest.mark.slow
@pytest.mark.timeout(30)
@pytest.mark.parametrize("where", ["get_run", "confirm_message_received"])
def test_of_runs_that_end_one_after_the_other_only_the_last_one_that_lives_is_answered(where: str) -> None:
    """One look for messages passes over all of them, and leaves none of their messages and no task to do."""
    one = Site(POLICY, SuperLink(), lively=5.0)
    one.pull()
    one.answered(reply(one, arrays("net.w")))
    one.push()
    over = {RUN + number: another(one, RUN + number) for number in (1, 2, 3)}
    last = another(one, RUN + 4)
    one.link.left = [last, *over.values()]  # the last one is fetched first

    def lives(run_id: int, *_: Any) -> Run:
        return ended() if run_id in over else one.link.get_run(run_id)

    assert one.pull(**{where: lives}) == RUN + 4
    assert [m.metadata.run_id for m in one.state.get_messages(is_reply=False)] == [RUN + 4]
    claimed = [task.run_id for task in one.state.get_tasks() if one.state.claim_task(task.task_id)]
    assert sorted(claimed) == [RUN, RUN + 4]  # the first one's answer came without a process
    one.answered(Message(RecordDict({"about": ConfigRecord({"code": "a"})}), reply_to=last))
    one.push()
    assert [m.metadata.run_id for m in one.link.sent] == [RUN, RUN + 4] and not one.link.sent[1].has_error()


@pytest.mark.slow
@pytest.mark.timeout(30)
def test_a_message_that_comes_again_after_its_run_seemed_over_is_answered_once() -> None:
    """Two processes may have worked on it; the answer of the second one keeps no later answer back."""
    one = site()
    one.pull(confirm_message_received=ended)
    one.answered(reply(one, arrays("net.w")))
    one.link.left = [one.link.message]
    one.pull()
    one.push()
    one.answered(reply(one, arrays("net.w")))
    last = another(one, RUN)
    one.pull()
    pushing = threading.Thread(target=one.push, daemon=True)
    pushing.start()
    time.sleep(1)
    assert len(one.link.sent) == 1
    one.answered(Message(RecordDict({"about": ConfigRecord({"code": "a"})}), reply_to=last))
    pushing.join(20)
    assert [m.metadata.reply_to_message_id for m in one.link.sent][1:] == [last.metadata.message_id]


def test_a_message_without_a_name_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    """No answer could name it: the site would wait for one that it takes for a message."""
    one = site()
    one.link.message.metadata.__dict__["_message_id"] = ""
    assert one.pull() is None and one.state.get_tasks() == []
    assert "takes nothing that cannot be read: ValueError" in capsys.readouterr().err


@pytest.mark.parametrize("metrics", ["all", "none"])
def test_the_time_that_the_app_took_is_a_number_too(metrics: Any) -> None:
    for sent in ("net.w", "secret"):  # an answer that leaves, and a refusal
        one = site(replace(POLICY, metrics=metrics), metrics=metrics)
        one.pull()
        one.state.record_message_processing_start(one.link.message.metadata.message_id)
        one.answered(reply(one, arrays(sent)))
        one.state.record_message_processing_end(one.link.message.metadata.message_id)
        one.push()
        assert (one.link.spent[0] > 0) == (metrics == "all")


def test_an_object_that_no_part_names_does_not_travel_along() -> None:
    one = site()
    one.pull()
    answer = reply(one, arrays("net.w"))
    hidden = MetricRecord({SECRET: 1})
    tree = get_object_tree(answer)
    tree.children.append(get_object_tree(hidden))
    one.answered(answer, tree, **{hidden.object_id: hidden.deflate()})
    one.push()
    assert refused(one).endswith("nothing leave that cannot be read: ValueError")


def test_content_behind_an_error_does_not_travel_along() -> None:
    one = site()
    one.pull()
    answer = reply(one, arrays("head.w"))
    one.answered(answer)
    envelope = Message(Error(2, "an innocent reason"), reply_to=one.link.message)
    envelope.metadata.__dict__["_message_id"] = answer.object_id
    one.state.delete_messages(message_ids=[answer.object_id])
    one.state.store_message(envelope)
    one.push()
    assert refused(one).endswith("whose envelope says something else")


def test_an_answer_whose_parts_never_come_is_waited_for_no_longer_than_the_server_does() -> None:
    one = site()
    one.pull()
    one.link.message.metadata.__dict__["_ttl"] = 0.0
    answer = reply(one, arrays("net.w"))
    answer.metadata.__dict__["_message_id"] = answer.object_id
    one.state.store_message(answer)
    one.store.preregister(RUN, get_object_tree(answer))
    one.push()
    assert "cannot be read" in refused(one)


def test_words_leave_in_answer_to_a_query() -> None:
    one = site(kind="query")
    one.pull()
    details = ConfigRecord({"partition": 2, "code": "0123456789abcdef"})
    one.answered(Message(RecordDict({"about": details}), reply_to=one.link.message))
    one.push()
    assert one.link.got.content.config_records["about"] == details


def begun(one: Site) -> int:
    """The task of a message that was pulled, as the process that works on it has it."""
    (task,) = one.state.get_tasks()
    assert one.state.claim_task(task.task_id) and one.state.activate_task(task.task_id)
    one.state.get_messages(run_ids=[RUN], is_reply=False)
    return task.task_id


def test_for_a_process_that_died_the_site_answers() -> None:
    one = site()
    one.pull()
    one.dead = [begun(one)]
    one.push()
    assert refused(one) == "its process died"


def test_for_a_process_that_dies_while_the_next_message_is_worked_on_nothing_is_answered() -> None:
    one = site()
    one.pull()
    task = begun(one)
    one.answered(reply(one, arrays("net.w")))
    one.push()
    one.link.left = [one.link.message]
    one.pull()

    class DiesBeforeTheAnswer(list[int]):
        def __iter__(self) -> Iterator[int]:
            if not self:
                one.answered(reply(one, arrays("net.b")))
            return super().__iter__()

    one.dead = DiesBeforeTheAnswer([task])
    one.push()
    assert [envelope.has_error() for envelope in one.link.sent] == [False, False]


def test_a_process_that_answered_may_end_as_it_likes() -> None:
    one = site()
    one.pull()
    task = begun(one)
    answer = reply(one, arrays("net.w"))
    one.answered(answer)
    assert one.state.finish_task(task, SubStatus.COMPLETED, "")
    one.dead = [task]
    one.push()
    assert one.link.got.content == answer.content
    one.link.left = [one.link.message]  # and the next message is worked on
    one.pull()
    one.answered(reply(one, arrays("net.b")))
    one.push()
    assert len(one.link.sent) == 2 and not any(envelope.has_error() for envelope in one.link.sent)


def test_for_a_process_that_finished_its_task_and_left_no_answer_the_site_answers() -> None:
    """Flower's own program does so when it cannot read the message: nobody would ever answer."""
    one = site()
    one.pull()
    task = begun(one)
    assert one.state.finish_task(task, SubStatus.FAILED, "no message")
    one.dead = [task]
    one.push()
    assert refused(one) == "its process died"


def test_an_answer_that_comes_with_the_death_of_its_process_is_the_one_that_leaves() -> None:
    one = site()
    one.pull()
    task, answer = begun(one), reply(one, arrays("net.w"))

    def die() -> list[int]:
        one.answered(answer)  # after the SuperNode looked for it
        one.guard._deaths = list
        return [task]

    one.guard._deaths = die
    one.push()
    assert one.link.got.content == answer.content


def test_a_reason_leaves_where_the_policy_says_so() -> None:
    one = site(replace(POLICY, error_detail="all"))
    one.pull()
    one.answered(Message(Error(2, "disk full"), reply_to=one.link.message))
    one.push()
    assert one.link.got.error.reason == "disk full"


def test_a_guard_changes_nothing_else_of_flowers() -> None:
    """The names it stands in for, and what they are called with, are Flower's."""
    import inspect

    pull = set(inspect.signature(supernode._pull_and_store_message).parameters)
    push = set(inspect.signature(supernode._push_messages).parameters)
    chosen = inspect.signature(PolicyGuard.pull).parameters
    assert {name for name, p in chosen.items() if p.kind is p.KEYWORD_ONLY} <= pull
    assert push == {name for name in inspect.signature(PolicyGuard.push).parameters if name != "self"}
