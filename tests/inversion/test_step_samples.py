"""Samples of steps: an attack's time from a few steps of each of its loops."""

import pytest

from flfw.inversion import compute
from flfw.inversion.compute import StepSample, expect, search_copies, steps, watched
from tests.support.clock import Clock

ENOUGH_S = 0.03


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock.read_by(monkeypatch, compute)


def test_without_a_sample_all_steps_are_taken() -> None:
    assert list(steps(5)) == [0, 1, 2, 3, 4]


def test_the_steps_that_are_not_taken_count(clock: Clock) -> None:
    """The first takes 50 ms, the other 99 take 5 ms each: in all 0.545 s."""
    taken = 0
    with StepSample(ENOUGH_S) as sample:
        for step in steps(100):
            clock.pass_by(0.005 if step else 0.05)
            taken += 1
    assert 3 <= taken <= 6
    assert sample.seconds == pytest.approx(0.545)


def test_a_loop_inside_a_step_counts_whole(clock: Clock) -> None:
    """Ten times twenty steps of 2 ms; after a few loops of twenty one step of each is enough."""
    taken = 0
    with StepSample(ENOUGH_S) as sample:
        for _ in steps(10):
            for _ in steps(20):
                clock.pass_by(0.002)
                taken += 1
    assert taken < 20 and sample.seconds == pytest.approx(0.4)


def test_a_loop_that_ends_by_itself_counts_as_it_is(clock: Clock) -> None:
    with StepSample(1.0) as sample:
        for step in steps(1000):
            clock.pass_by(0.001)
            if step == 2:
                break
    assert sample.skipped == 0 and list(steps(2)) == [0, 1]


def test_loops_after_one_that_ended_early_have_as_many_steps(clock: Clock) -> None:
    """The first of four ends after 250 of 2000 steps of 2 ms, in all 4 times 0.5 s; they are told by their length."""
    taken = list[int]()
    with StepSample(ENOUGH_S) as sample:
        for _ in range(4):
            done = 0
            for done in steps(2000, early=True):
                clock.pass_by(0.002)
                if done == 249:
                    break
            taken.append(done + 1)
        for _ in steps(50, early=True):
            clock.pass_by(0.002)
    assert taken[0] == 250 and max(taken[1:]) < 20
    assert sample.seconds == pytest.approx(4 * 0.5 + 0.1)


def test_a_loop_that_does_not_end_within_some_seconds_counts_with_all_steps(clock: Clock) -> None:
    taken = 0
    with StepSample(ENOUGH_S) as sample:
        for _ in range(2):
            for _ in steps(1000, early=True):
                clock.pass_by(0.1)
                taken += 1
    assert taken < 60 and sample.seconds == pytest.approx(2 * 100)


def test_a_whole_loop_takes_all_steps_with_what_is_inside_cut(clock: Clock) -> None:
    """Four times thirty steps of 2 ms."""
    taken, inside = 0, 0
    with StepSample(ENOUGH_S) as sample:
        for _ in steps(4, full=True):
            taken += 1
            for _ in steps(30):
                clock.pass_by(0.002)
                inside += 1
    assert taken == 4 and 12 <= inside < 60
    assert sample.seconds == pytest.approx(0.24)


def test_few_steps_are_all_taken() -> None:
    with StepSample(0.0) as sample:
        assert list(steps(2)) == [0, 1] and list(steps(0)) == [] and list(steps(1)) == [0]
    assert sample.skipped == 0


def test_victims_that_are_searched_for_beside_others_count_as_one(clock: Clock) -> None:
    """Eight at once take 0.8 s a step, in all ten 8 s: 1 s for each. What is done for each alone counts whole."""
    with search_copies() as without, StepSample(ENOUGH_S, 8) as sample:
        clock.pass_by(0.3)
        with search_copies() as copies:
            for _ in steps(10):
                clock.pass_by(0.1 * copies)
    assert sample.seconds == pytest.approx(0.3 + 1.0) and without == 1


def test_a_search_reports_its_share_once_a_second(clock: Clock) -> None:
    """Of eight steps of 0.6 s in two loops every second one is reported; an unexpected ninth is all there is."""
    shares = list[float]()
    with watched(shares.append):
        expect(8)
        for count, each in ((4, 0.6), (4, 0.6), (1, 1.2)):
            for _ in steps(count):
                clock.pass_by(each)
    assert shares == [0.25, 0.5, 0.75, 1.0, 1.0]
