"""One introduction in each actor, and the answers of the others that follow from it."""

import dataclasses

import pytest
from flwr.app import Error, Message, RecordDict

from flfw.engines import apps
from flfw.engines.client_actor import PendingMessage
from flfw.engines.ray_grid import IntroductionSample, answer_for_all
from flfw.experiment import Experiment
from flfw.messages.client_info import ClientInfo
from flfw.messages.inprocess import InProcessGrid

CLIENTS = 5


@pytest.fixture
def introductions(small: Experiment) -> list[tuple[Message, Message]]:
    """Questions and true answers of five clients."""
    experiment = dataclasses.replace(small, clients=CLIENTS)
    grid = InProcessGrid(apps.client, CLIENTS, experiment.to_run_config())
    messages = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    return list(zip(messages, grid.send_and_receive(messages), strict=True))


def changed(pair: tuple[Message, Message], **fields: object) -> Message:
    requested, reply = pair
    return dataclasses.replace(ClientInfo.from_message(reply), **fields).to_message(requested)  # type: ignore[arg-type]


def test_the_others_would_have_said_the_same(introductions: list[tuple[Message, Message]]) -> None:
    answer = answer_for_all([reply for _, reply in introductions[:2]])
    assert answer is not None
    for requested, reply in introductions[2:]:
        given = answer(requested)
        assert ClientInfo.from_message(given) == ClientInfo.from_message(reply)
        assert given.metadata.reply_to_message_id == requested.metadata.message_id
        assert given.metadata.src_node_id == requested.metadata.dst_node_id


@pytest.mark.parametrize(
    "differs",
    [
        {"code": "0123"},
        {"gpu": True},
        {"volunteered": 3},
        {"shape": (3, 28, 28)},
        {"classes": 11},
        {"labels": "abc"},
        {"trouble": "no data here"},
        {"partition": 4},
    ],
)
def test_all_are_asked_where_one_actor_says_anything_else(
    introductions: list[tuple[Message, Message]], differs: dict
) -> None:
    assert answer_for_all([introductions[0][1], changed(introductions[1], **differs)]) is None


def test_all_are_asked_where_every_actor_has_trouble(introductions: list[tuple[Message, Message]]) -> None:
    assert answer_for_all([changed(pair, trouble="no data here") for pair in introductions[:2]]) is None


def test_all_are_asked_where_an_actor_died_or_answers_otherwise(introductions: list[tuple[Message, Message]]) -> None:
    (first, reply), (second, _) = introductions[:2]
    assert answer_for_all([reply, Message(Error(8, "its process died"), reply_to=second)]) is None
    assert answer_for_all([Message(RecordDict(), reply_to=first)]) is None


def test_a_sample_is_complete_once_each_of_its_jobs_is_answered(introductions: list[tuple[Message, Message]]) -> None:
    jobs = [PendingMessage(requested, 0.0) for requested, _ in introductions]
    sample = IntroductionSample(jobs[:2], jobs[2:], until=0.0)
    sample.take(jobs[3], introductions[3][1])
    sample.take(jobs[1], introductions[1][1])
    assert not sample.complete
    sample.take(jobs[0], introductions[0][1])
    assert sample.complete and [sample.replies[n] for n in (0, 1)] == [reply for _, reply in introductions[:2]]
