"""Introductions of clients that lie, or whose code is of another time; and what becomes of the others' run."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from flfw.engines import apps
from flfw.errors import RunError
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.messages.client_info import ClientInfo
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.replies import UnusableReplyError
from flfw.plans.run_plan import plan
from flfw.server.client_directory import ClientDirectory, FailurePolicy, NodeAssignment, Requirements

WAIT = 0.2  # seconds for all to join
TRUE = ClientInfo(2, "c0de", True, 5, (1, 8, 8), 10, "ab12")


def question() -> Message:
    InProcessGrid(apps.client, 1, {})  # Flower lets nobody write a message outside a run
    message = Message(RecordDict(), dst_node_id=1, message_type="query")
    message.metadata.__dict__["_message_id"] = "asked"
    return message


def reply(content: Mapping[str, Any], record: str = "about") -> Message:
    return Message(RecordDict({record: ConfigRecord(dict(content))}), reply_to=question())


def honest(**changes: Any) -> dict[str, Any]:
    true = {"partition": 2, "code": "c0de", "gpu": True, "volunteered": 5, "shape": [1, 8, 8], "classes": 10}
    return {**true, "labels": "ab12", "trouble": "", **changes}


def test_it_comes_back_as_it_was_sent() -> None:
    message = TRUE.to_message(question())
    assert ClientInfo.from_message(message) == ClientInfo.from_message(reply(honest())) == TRUE


def test_code_of_another_time_says_more_or_less_of_itself() -> None:
    answer = ClientInfo.from_message(reply({"partition": 1, "code": "0123", "colour": "red"}))
    assert answer == ClientInfo(1, "0123", False, -1)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (honest(partition="0"), "sent an introduction with an impossible partition"),
        (honest(partition=-1), "sent an introduction with an impossible partition"),
        (honest(partition=2.0), "sent an introduction with an impossible partition"),
        (honest(partition=2**62), "sent an introduction with an impossible partition"),
        (honest(partition=True), "sent an introduction with an impossible partition"),
        (honest(code=b"c0de"), "sent an introduction with an impossible code"),
        (honest(code="\x1b[2J"), "sent an introduction with an impossible code"),
        (honest(code="c" * 1000), "sent an introduction with an impossible code"),
        (honest(gpu=1), "sent an introduction with an impossible gpu"),
        (honest(volunteered=-2), "sent an introduction with an impossible volunteered"),
        (honest(shape=5), "sent an introduction with an impossible shape"),
        (honest(shape=["8", "8"]), "sent an introduction with an impossible shape"),
        (honest(shape=[1] * 9), "sent an introduction with an impossible shape"),
        (honest(classes=[10]), "sent an introduction with an impossible classes"),
        (honest(labels=3), "sent an introduction with an impossible labels"),
        (honest(trouble=3), "sent an introduction with an impossible trouble"),
        ({"partition": 1}, "sent an introduction without a partition and a code"),
        ({}, "sent an introduction without a partition and a code"),
    ],
)
def test_what_has_another_form_is_refused(sent: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableReplyError) as caught:
        ClientInfo.from_message(reply(sent))
    assert str(caught.value) == reason


def test_another_record_is_no_introduction() -> None:
    for content in (
        {"about": MetricRecord({"partition": 1})},
        {},
        {"about": ConfigRecord(honest()), "more": ConfigRecord()},
    ):
        with pytest.raises(UnusableReplyError, match=r"^sent no introduction$"):
            ClientInfo.from_message(Message(RecordDict(content), reply_to=question()))
    with pytest.raises(UnusableReplyError, match=r"^no key$"):
        ClientInfo.from_message(Message(Error(1, "a\nno key"), reply_to=question()))


def test_trouble_is_one_short_line_that_moves_no_cursor() -> None:
    answer = ClientInfo.from_message(reply(honest(trouble="\n".join(["x" * 9999, "\x1b[2J" + "y" * 9999]))))
    assert answer.trouble == "?[2J" + "y" * 296


# --- enrolment among liars -----------------------------------------------------------------------------------------


class Lying(InProcessGrid):
    """The client of partition 1 tells something else of itself."""

    lie: Callable[[Message], Message]

    def _answer(self, message: Message) -> Message:
        answer = super()._answer(message)
        return self.lie(answer) if message.metadata.dst_node_id == 2 else answer


def lying(change: dict[str, Any], experiment: Experiment) -> Lying:
    def lie(reply: Message) -> Message:
        reply.content.config_records["about"].update(change)
        return reply

    grid = Lying(apps.client, 3, experiment.to_run_config())
    grid.lie = lie
    return grid


@pytest.mark.parametrize(
    ("change", "excluded"),
    [
        ({"partition": "1"}, {1: "sent an introduction with an impossible partition"}),
        ({"partition": 7}, {1: "says that it is client 7 of 3"}),
        ({"shape": [2**40]}, {1: "sent an introduction with an impossible shape"}),
        # Nobody knows which of the two is the liar; their places stay empty, and the others go on.
        ({"partition": 0}, {0: "2 nodes say that they are it", 1: "did not join within 0.2 s"}),
    ],
)
def test_a_liar_is_left_out_and_the_others_enrol(
    change: dict[str, Any], excluded: dict[int, str], small: Experiment
) -> None:
    directory = ClientDirectory(FailurePolicy("drop"))
    answers = NodeAssignment(lying(change, small), directory, 3, WAIT).begin()
    assert directory.excluded == excluded
    assert [answer.partition for answer in answers] == sorted({0, 1, 2} - excluded.keys())
    assert sorted(directory.nodes) == [0, 1, 2] and len(set(directory.nodes.values())) == 3


@pytest.mark.parametrize("claimed", [0, 7])
def test_where_keys_are_known_a_liar_harms_itself_alone(claimed: int, small: Experiment) -> None:
    directory = ClientDirectory(FailurePolicy("drop"))
    answers = NodeAssignment(lying({"partition": claimed}, small), directory, 3, WAIT, None, {1: 0, 2: 1, 3: 2}).begin()
    assert directory.excluded == {1: f"says that it is client {claimed}, and holds another key"}
    assert [answer.partition for answer in answers] == [0, 2] and (directory.nodes[0], directory.nodes[2]) == (1, 3)


def begun(
    directory: ClientDirectory, experiment: Experiment, clients: int = 3, known: Mapping[int, int] | None = None
) -> list[ClientInfo]:
    """Assign three partitions to so many nodes, all of them honest."""
    grid = InProcessGrid(apps.client, clients, experiment.to_run_config())
    return NodeAssignment(grid, directory, 3, WAIT, None, known).begin()


@pytest.mark.parametrize("known", [{1: 0}, {2: 1}, {1: 0, 3: 2}, {}])
def test_a_registration_that_is_not_known_here_leaves_nobody_out(known: dict[int, int], small: Experiment) -> None:
    directory = ClientDirectory(FailurePolicy())
    answers = begun(directory, small, known=known)
    assert [answer.partition for answer in answers] == [0, 1, 2] and not directory.excluded


def test_a_node_whose_key_nobody_registered_is_no_client(small: Experiment) -> None:
    directory = ClientDirectory(FailurePolicy("drop"))
    answers = begun(directory, small, known={1: 0, 9: 1, 3: 2})
    assert [answer.partition for answer in answers] == [0, 2] and list(directory.excluded) == [1]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"partition": "1"}, "client 1 failed in node assignment: sent an introduction with an impossible partition"),
        ({"partition": 7}, r"Expected partitions 0 to 2, got \[0, 2, 7\] from 3 nodes"),
        ({"partition": 0}, r"Expected partitions 0 to 2, got \[0, 0, 2\] from 3 nodes"),
    ],
)
def test_without_tolerance_a_lie_ends_the_run_in_one_line(change: dict[str, Any], line: str, small: Experiment) -> None:
    with pytest.raises(RunError, match=line) as caught:
        NodeAssignment(lying(change, small), ClientDirectory(FailurePolicy()), 3, WAIT).begin()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_who_stays_away_is_left_out_where_failures_are_tolerated(small: Experiment) -> None:
    directory, began = ClientDirectory(FailurePolicy("drop")), time.monotonic()
    answers = begun(directory, small, clients=2)
    assert [answer.partition for answer in answers] == [0, 1] and directory.excluded == {2: "did not join within 0.2 s"}
    assert 0.2 < time.monotonic() - began < 60
    with pytest.raises(RunError, match="Expected 3 clients, got 2"):
        begun(ClientDirectory(FailurePolicy()), small, clients=2)
    with pytest.raises(RunError, match="Expected 3 clients, got 0"):
        begun(ClientDirectory(FailurePolicy("drop")), small, clients=0)


# --- who comes late -------------------------------------------------------------------------------------------------

CODE = code_hash()


class Coming(InProcessGrid):
    """Three nodes, of which only some are there."""

    def __init__(self, experiment: Experiment, *there: int) -> None:
        super().__init__(apps.client, 3, experiment.to_run_config())
        self.experiment, self.there, self.mute = experiment, list(there), {0}
        self.asked: list[int] = []

    def get_node_ids(self) -> list[int]:
        return self.there

    def _answer(self, message: Message) -> Message:
        self.asked.append(message.metadata.dst_node_id)
        return super()._answer(message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ids = [one for one in message_ids if self._pending[one].metadata.dst_node_id not in self.mute]
        return list(super().pull_messages(ids))


def coming(
    grid: Coming, code: str = CODE, known: Mapping[int, int] | None = None
) -> tuple[ClientDirectory, NodeAssignment]:
    directory, space = ClientDirectory(FailurePolicy("drop")), plan(grid.experiment).task.input_space
    return directory, NodeAssignment(grid, directory, 3, WAIT, Requirements(code, *space), known)


def test_who_comes_late_takes_part_from_then_on(small: Experiment) -> None:
    grid = Coming(small, 1, 3)
    directory, assignment = coming(grid)
    assert [answer.partition for answer in assignment.begin()] == [0, 2]
    assert directory.excluded == {1: "did not join within 0.2 s"} and assignment.late() == []
    assert grid.asked == [1, 3]  # nobody is asked twice
    grid.there = [1, 2]  # another one went away, and keeps its place
    assert [answer.partition for answer in assignment.late()] == [1]
    assert directory.excluded == {} and directory.nodes == {0: 1, 1: 2, 2: 3}
    assert assignment.late() == [] and grid.asked == [1, 3, 2]


def test_who_comes_late_must_fit_too(small: Experiment) -> None:
    grid = Coming(small, 1, 2)
    directory, assignment = coming(grid)
    assignment.begin()
    assert [*directory.excluded] == [2]
    grid._contexts[3].node_config["quiet"] = "true"
    grid._contexts[3].run_config["dataset"] = "folder:/nowhere"
    grid.there = [1, 2, 3]
    assert assignment.late() == [] and directory.nodes[2] == 3
    assert directory.excluded[2] == "cannot use its data; this site's log has the reason"
    assert assignment.late() == [] and grid.asked == [1, 2, 3]


def test_no_client_fits_another_code(small: Experiment) -> None:
    directory, assignment = coming(Coming(small, 1, 2, 3), code="0123")
    assert assignment.begin() == [] and directory.nodes == {0: 1, 1: 2, 2: 3}
    reason = f"runs other code ({CODE}) than the server (0123); install the same on both"
    assert directory.excluded == dict.fromkeys(range(3), reason)


class WithALiar(Coming):
    """One node says that it has the first partition."""

    liar = 2

    def _answer(self, message: Message) -> Message:
        answer = super()._answer(message)
        if message.metadata.dst_node_id == self.liar:
            answer.content.config_records["about"]["partition"] = 0
        return answer


@pytest.mark.parametrize("known", [None, {1: 0, 2: 1}])
def test_a_late_liar_takes_no_place_of_another(known: dict[int, int] | None, small: Experiment) -> None:
    grid = WithALiar(small, 1, 2)
    grid.liar = 3
    directory, assignment = coming(grid, known=known)
    assignment.begin()
    grid.there = [1, 2, 3]
    assert assignment.late() == [] and directory.nodes == {0: 1, 1: 2, 2: -3}
    assert directory.excluded == {2: "did not join within 0.2 s"}


@pytest.mark.parametrize("late", [False, True])
def test_a_liar_does_not_inherit_the_place_of_the_site_that_it_drove_out(late: bool, small: Experiment) -> None:
    grid = WithALiar(small, *((3,) if late else (1, 2, 3)))
    directory, assignment = coming(grid)
    assignment.begin()
    grid.there = [1, 2, 3]
    assert assignment.late() == []
    grid.there = [2, 3]  # the honest one goes away for a moment
    assert assignment.late() == [] and directory.nodes == {0: -1, 1: -2, 2: 3}
    assert sorted(directory.excluded) == [0, 1]


def test_a_site_that_does_not_answer_is_asked_again_when_it_was_away(small: Experiment) -> None:
    grid = Coming(small, 1, 2, 3)
    grid.mute = {2}
    directory, assignment = coming(grid)
    assignment.begin()
    assert directory.excluded == {1: "did not answer within 300 s"}
    grid.mute = {0}
    assert assignment.late() == []  # a hung site would hold up every round
    grid.there = [1, 3]
    assert assignment.late() == []
    grid.there = [1, 2, 3]
    assert [answer.partition for answer in assignment.late()] == [1] and directory.excluded == {}


def test_a_site_that_refused_the_run_may_change_its_mind(small: Experiment) -> None:
    class Refusing(Coming):
        refuses = True

        def _answer(self, message: Message) -> Message:
            if message.metadata.dst_node_id == 2 and self.refuses:
                return Message(Error(1, "this site's policy does not accept app 0"), reply_to=message)
            return super()._answer(message)

    grid = Refusing(small, 1, 2, 3)
    directory, assignment = coming(grid)
    assignment.begin()
    assert directory.excluded == {1: "this site's policy does not accept app 0"} and assignment.late() == []
    grid.refuses = False
    assert [answer.partition for answer in assignment.late()] == [1] and directory.excluded == {}
