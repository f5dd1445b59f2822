"""How many messages an actor is handed at once."""

import pytest

from flfw.engines.actor_pool import ChunkSizer


def paced(seconds: float, size: int = 0) -> ChunkSizer:
    pace = ChunkSizer()
    pace.note("train", 1, seconds, size)
    return pace


def test_the_first_messages_of_a_kind_go_alone() -> None:
    pace = paced(0.001)
    assert pace.length("evaluate", waiting=100, actors=2) == 1
    assert not pace.may_wait_behind("evaluate", 1)
    assert not pace.is_overdue("evaluate", 1, 1e6)


@pytest.mark.parametrize(
    ("seconds", "size", "waiting", "expected"),
    [
        (0.01, 0, 1000, 25),  # a quarter of a second
        (0.3, 0, 1000, 1),
        (0.001, 4_000_000, 1000, 4),  # 16 MB
        (0.001, 60_000_000, 1000, 1),
        (0.001, 0, 100, 25),  # half of an actor's share of what is left
        (0.04, 0, 10, 3),
        (0.04, 0, 3, 1),
        (0.005, 0, 10, 4),  # 20 ms, less than which is not divided,
        (0.001, 0, 3, 2),  # except where another actor would have nothing
        (0.0, 0, 10, 5),
    ],
)
def test_a_chunk_is_short_and_small(seconds: float, size: int, waiting: int, expected: int) -> None:
    assert paced(seconds, size).length("train", waiting, actors=2) == expected


def test_replies_that_are_added_up_are_not_counted_by_their_size() -> None:
    assert paced(0.05, 60_000_000).length("train", 100, actors=2, summed=True) == 5
    assert paced(0.05, 60_000_000).length("train", 10, actors=2, summed=True) == 3
    assert paced(0.3, 60_000_000).length("train", 10, actors=2, summed=True) == 1


def test_the_latest_chunk_counts_most() -> None:
    pace = paced(10.0)
    pace.note("train", 4, 4.0, 0)  # a second each
    assert pace.may_wait_behind("train", 1) and not pace.may_wait_behind("train", 2)  # 0.7 x 1 + 0.3 x 10 = 3.7 s
    assert not paced(0.1, 17_000_000).may_wait_behind("train", 1)


def test_an_actor_is_overdue_after_ten_times_the_usual_and_half_a_minute() -> None:
    pace = paced(2.0)
    assert not pace.is_overdue("train", 3, 89.0)
    assert pace.is_overdue("train", 3, 91.0)
