"""The queue on disk: what is asked for, offered, solved and tried again, in files that are whole or not there."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flfw.audit import attack_worker
from flfw.audit.attack_process import Inline
from flfw.audit.jobs import EASY, AttackJob, Exchange, ProbeSet, failed, solved, target_probe_set
from flfw.audit.queue import Queue
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.experiment.curves import Point
from flfw.files.progress import Steps
from flfw.files.sealed import read_checked, write_checked
from flfw.inversion import compute
from flfw.recording.observation import Reconstruction
from tests.support.clock import Clock

EXCHANGES = (Exchange("round-0000/client-000-001", 0, 0, (7,)), Exchange("round-0000/client-001-001", 1, 1, None))


def job(attack: str = "ig", probe_set: ProbeSet = EASY, **changes: Any) -> AttackJob:
    folder, config = Path("/nowhere/observations"), Experiment().to_run_config()
    usual = AttackJob(attack, probe_set, EXCHANGES, folder, config, (1, 2, 2), 10, mean=(0.5,), std=(0.25,))
    return dataclasses.replace(usual, **changes)


def guesses(value: float = 0.5) -> list[Reconstruction | None]:
    return [Reconstruction(torch.full((1, 1, 2, 2), value), 0.125, 3), None]


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path / "queue")


# --- jobs ---


def test_a_job_survives_json() -> None:
    asked = job("my.lab:Attack", target_probe_set(Point("batch", 4, 1), 3), device="cuda", memory=0.5)
    again = AttackJob.from_json(asked.to_json())
    assert again == asked and again.to_json() == asked.to_json()
    assert again.exchanges[0].labels == (7,) and again.exchanges[1].labels is None
    assert Experiment.from_run_config(again.run_config) == Experiment()
    assert (asked.name, asked.probe_set.name) == ("my.lab-Attack-r0003-batch-4", "r0003-batch-4")


def test_tickets_are_announced_once_each(queue: Queue) -> None:
    first, second = target_probe_set(Point("", 1, 1), 0), target_probe_set(Point("", 1, 1), 10)
    for probe_set in (second, EASY, first, second):
        queue.announce(probe_set)
    assert queue.probe_sets() == [EASY, first, second]


def test_a_search_of_an_attack_process_moves_the_bar(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps of 0.6 s: half are done after two; on a terminal the bar then stands at one job and a half of two."""
    clock, seen = Clock.read_by(monkeypatch, compute), list[float]()

    def search(asked: AttackJob, its_queue: Queue) -> None:
        seen.extend(clock.pass_by(0.6) or queue.share(asked) for _ in compute.steps(4))
        its_queue.solve(asked, solved(asked, guesses(), 2.4))

    monkeypatch.setattr(attack_worker, "attempt", search)
    queue.put(job())
    queue.close()
    attack_worker.work(queue)
    assert seen == [0.0, 0.0, 0.5, 0.5] and queue.share(job()) == 0.0
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Steps("attack", 2, done=1) as steps:
        steps.part(seen[-1])
        assert steps._bar is not None and steps._bar.tasks[0].completed == 1.5


def test_a_job_is_offered_until_it_is_solved(queue: Queue) -> None:
    asked = job()
    assert queue.waiting() == [] and queue.solution(asked) is None
    queue.put(asked)
    assert queue.waiting() == [asked] and queue.solution(asked) is None
    queue.start(asked, pid=4242)
    assert queue.waiting() == []  # somebody is at work on it
    ((at_work, note),) = queue.started()
    assert at_work == asked and note["pid"] == 4242
    queue.solve(asked, solved(asked, guesses(), 1.5, refused=("a file",)))
    assert queue.waiting() == [] and queue.started() == []
    result = queue.solution(asked)
    assert result is not None and result.reconstructions[1] is None
    assert (result.seconds, result.refused) == (1.5, ("a file",))
    assert (result.tries, result.stopped) == (1, None)
    one = result.reconstructions[0]
    assert one is not None and torch.equal(one.samples, torch.full((1, 1, 2, 2), 0.5))
    assert (one.matching_loss, one.iterations) == (0.125, 3)


@pytest.mark.parametrize("attack", ["x" * 300, "../ig", "b"], ids=["long", "outside", "another"])
def test_a_job_in_the_file_of_another_is_refused(queue: Queue, attack: str) -> None:
    queue.put(job("ig"))
    path = queue.folder / f"{job('ig').name}.json"
    write_checked(path, dataclasses.replace(job("ig"), attack=attack).to_json())
    for read in (queue.waiting, queue.started):
        path.with_suffix(".started").touch()
        with pytest.raises(InputError, match=rf"^Expected the job {path.stem} in .*; remove the queue's folder"):
            read()


def test_controls_are_done_first_then_jobs_in_the_order_of_their_asking(queue: Queue) -> None:
    target = target_probe_set(Point("", 1, 1), 3)
    jobs = [job("b", target), job("c", target), job("a", target), job("a", target.at("undefended"))]
    for age, asked in enumerate(jobs):
        queue.put(asked)
        os.utime(queue.folder / f"{asked.name}.json", (1000 + age, 1000 + age))
    seen = []
    while (offered := queue.take(1)) is not None:
        seen.append(offered)
        queue.solve(offered, failed(offered, "no idea"))
    assert seen == [jobs[3], *jobs[:3]]


def test_no_two_processes_take_the_same_job(queue: Queue) -> None:
    jobs = [job(f"attack{i}") for i in range(40)]
    for asked in jobs:
        queue.put(asked)
    with ThreadPoolExecutor(4) as pool:  # each opens the folder anew, as a process does
        taken = [one.attack for one in pool.map(queue.take, range(48)) if one]
    assert sorted(taken) == sorted(asked.attack for asked in jobs)


def test_asking_for_the_same_job_again_changes_nothing(queue: Queue) -> None:
    queue.put(job())
    path = queue.folder / f"{job().name}.json"
    os.utime(path, (1000, 1000))
    queue.put(job())
    assert path.stat().st_mtime == 1000
    queue.solve(job(), solved(job(), guesses(), 1.0))
    queue.put(job())
    assert queue.waiting() == [] and queue.solution(job()) is not None


def test_another_job_of_the_same_name_is_done_anew(queue: Queue) -> None:
    queue.put(job())
    queue.solve(job(), solved(job(), guesses(0.25), 1.0))
    other = job(classes=9)
    queue.put(other)
    assert other.name == job().name and queue.solution(other) is None
    assert queue.waiting() == [other]
    queue.solve(other, solved(other, guesses(0.75), 1.0))
    result = queue.solution(other)
    assert (
        result is not None
        and result.reconstructions[0] is not None
        and float(result.reconstructions[0].samples.max()) == 0.75
    )
    assert queue.solution(job()) is None  # what came of the first one is no answer to it any more


def test_two_threads_may_ask_for_the_same_jobs_at_once(queue: Queue) -> None:
    """The one that watches the recordings, and the one that trained."""
    jobs = [job(f"attack{i}") for i in range(100)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: [queue.put(requested) for requested in jobs], range(2)))
    assert len(list(queue.folder.iterdir())) == 100
    assert all(json.loads(read_checked(path)) for path in queue.folder.iterdir())


def test_what_came_of_an_outdated_job_is_no_answer_to_the_new_one(queue: Queue) -> None:
    queue.put(job())
    queue.start(job(), pid=1)
    other = job(classes=9)
    queue.put(other)  # while somebody is still at work on the first
    queue.solve(job(), solved(job(), guesses(), 1.0))
    assert queue.solution(other) is None and queue.waiting() == [other]


# --- tries ---


def test_a_job_is_offered_again_as_often_as_was_asked_for(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flfw.audit.queue._RETRIES", 2)
    asked = job()
    queue.put(asked)
    for _ in range(2):
        queue.start(asked, pid=1)
        queue.fail(asked, "crashed: it")
        assert queue.waiting() == [asked] and queue.solution(asked) is None and queue.started() == []
    queue.fail(asked, "crashed: for the last time")
    result = queue.solution(asked)
    assert result is not None and queue.waiting() == []
    assert (result.stopped, result.tries, result.reconstructions) == ("crashed: for the last time", 3, (None, None))


def test_a_success_says_how_many_tries_it_took(queue: Queue) -> None:
    asked = job()
    queue.put(asked)
    queue.fail(asked, "crashed: it")
    queue.solve(asked, solved(asked, guesses(), 1.0))
    result = queue.solution(asked)
    assert result is not None and (result.stopped, result.tries) == (None, 2)


def test_another_job_has_all_its_tries(queue: Queue) -> None:
    queue.put(job())
    queue.fail(job(), "crashed: it")
    other = job(classes=9)
    queue.put(other)
    queue.fail(other, "crashed: it")
    assert queue.waiting() == [other]  # one try of two is left


def test_a_solution_that_arrived_in_time_is_not_given_up(queue: Queue) -> None:
    asked = job()
    queue.put(asked)
    queue.start(asked, pid=1)
    queue.solve(asked, solved(asked, guesses(), 1.0))
    queue.fail(asked, "ended after 1 s, its budget")  # whoever watches looked a moment before
    result = queue.solution(asked)
    assert result is not None and result.stopped is None and result.reconstructions[0] is not None


# --- closing and opening again ---


def test_a_queue_that_is_opened_again_keeps_what_was_solved(queue: Queue) -> None:
    queue.announce(EASY)
    done, begun = job("done"), job("begun")
    for requested in (done, begun):
        queue.put(requested)
    queue.solve(done, solved(done, guesses(), 1.0))
    queue.start(begun, pid=1)
    queue.close()
    assert queue.closed
    again = Queue(queue.folder)
    again.reopen()
    assert not again.closed and again.probe_sets() == [] and again.started() == []
    assert again.solution(done) is not None and again.waiting() == []
    again.put(done)
    again.put(begun)
    assert again.waiting() == [begun]


# --- files ---


def test_unfinished_files_are_passed_over_and_swept(queue: Queue) -> None:
    queue.folder.mkdir()
    queue.folder.mkdir(exist_ok=True)
    for name in ("ig-r0000-easy.json", "ig-r0000-easy.solved.json", "r0000-easy.ticket"):
        (queue.folder / f".{name}.4242.part").write_bytes(b'{"attack": "i')
    assert queue.waiting() == [] and queue.probe_sets() == [] and queue.solution(job()) is None
    queue.reopen()
    assert list(queue.folder.iterdir()) == []


def test_a_result_whose_tensors_are_torn_counts_as_none(queue: Queue) -> None:
    queue.put(job())
    queue.solve(job(), solved(job(), guesses(), 1.0))
    tensors = queue.folder / f"{job().name}.safetensors"
    for damaged in (tensors.read_bytes()[:-3], b"", b"nonsense"):
        tensors.unlink()
        tensors.write_bytes(damaged)
        result = queue.solution(job())
        assert result is not None and result.reconstructions == (None, None)
        assert result.stopped is not None and result.stopped.startswith("its result cannot be read: ")
    tensors.unlink()
    result = queue.solution(job())
    assert result is not None and result.stopped is not None and "cannot be read" in result.stopped


def flips(path: Path) -> Iterator[None]:
    """Changes a file byte by byte, each time by another bit, and restores it."""
    whole = path.read_bytes()
    for index in range(0, len(whole), max(1, len(whole) // 200)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ (1 << index % 8)]) + whole[index + 1 :])
        yield
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"exchanges": [{"id": "a", "client": -1, "slot": 0, "labels": None}]}, "client >= 0, got client=-1"),
        ({"exchanges": [{"id": "a", "client": 1, "slot": -2, "labels": None}]}, "slot >= 0, got slot=-2"),
        ({"classes": 0}, "classes >= 1, got classes=0"),
        ({"shape": [1, -2, 2]}, "sizes >= 1 of a job's inputs, got shape="),
    ],
)
def test_a_job_whose_numbers_cannot_be_is_refused(changes: dict[str, Any], line: str) -> None:
    """Its writer may have made the seal fit."""
    content = json.loads(job().to_json())
    assert changes.keys() <= content.keys()
    with pytest.raises(InputError, match=line):
        AttackJob.from_json(json.dumps({**content, **changes}).encode())


def test_a_changed_job_or_ticket_is_refused_by_name(queue: Queue) -> None:
    queue.announce(EASY)
    queue.put(job())
    for _ in flips(queue.folder / f"{job().name}.json"):
        with pytest.raises(InputError, match=rf"Expected .*{job().name}\.json as it was written, got other content"):
            queue.waiting()
    for _ in flips(queue.folder / f"{EASY.name}.ticket"):
        with pytest.raises(InputError, match=r"\.ticket as it was written"):
            queue.probe_sets()
    assert queue.waiting() == [job()] and queue.probe_sets() == [EASY]


@pytest.mark.slow
def test_a_changed_solution_is_made_again_and_changed_tensors_are_no_result(queue: Queue) -> None:
    queue.put(job())
    queue.solve(job(), solved(job(), guesses(), 1.0))
    for _ in flips(queue.folder / f"{job().name}.solved.json"):
        assert queue.solution(job()) is None and queue.waiting() == [job()]
    for _ in flips(queue.folder / f"{job().name}.safetensors"):
        result = queue.solution(job())
        assert result is not None and result.reconstructions == (None, None)
        assert result.stopped == "its result cannot be read: another content than was written"
    intact = queue.solution(job())
    assert intact is not None and intact.stopped is None and queue.waiting() == []


def test_only_the_owner_may_read(queue: Queue) -> None:
    queue.announce(EASY)
    queue.put(job())
    queue.start(job(), pid=1)
    queue.solve(job(), solved(job(), guesses(), 1.0))
    assert queue.folder.stat().st_mode & 0o077 == 0
    assert {path.name for path in queue.folder.iterdir() if path.stat().st_mode & 0o077} == set()


# --- what attacks may return ---


def test_one_tensor_for_all_exchanges_can_be_written_down(queue: Queue) -> None:
    guess = Reconstruction(torch.full((1, 1, 2, 2), 0.5))
    queue.put(job())
    queue.solve(job(), solved(job(), [guess, guess], 1.0))
    result = queue.solution(job())
    assert result is not None and all(
        one is not None and torch.equal(one.samples, guess.samples) for one in result.reconstructions
    )


def test_losses_that_are_tensors_or_nan_can_be_written_down(queue: Queue) -> None:
    samples = torch.zeros(1, 1, 2, 2)
    losses: list[Any] = [torch.tensor(0.25), float("nan")]
    queue.put(job())
    queue.solve(job(), solved(job(), [Reconstruction(samples + i, loss) for i, loss in enumerate(losses)], 1.0))
    result = queue.solution(job())
    assert result is not None and result.reconstructions[0] is not None and result.reconstructions[1] is not None
    assert result.reconstructions[0].matching_loss == 0.25
    assert result.reconstructions[1].matching_loss != result.reconstructions[1].matching_loss


def test_reconstructions_are_kept_in_single_precision_and_without_their_history(queue: Queue) -> None:
    samples = torch.full((1, 1, 2, 2), 0.5, dtype=torch.float64, requires_grad=True)
    queue.put(job())
    queue.solve(job(), solved(job(), [Reconstruction(samples * 1), None], 1.0))
    stored = load_file(queue.folder / f"{job().name}.safetensors")
    assert list(stored) == ["0"] and stored["0"].dtype is torch.float32


def test_a_solution_names_its_job_by_what_it_asks_for() -> None:
    one, other = failed(job(), "why"), failed(dataclasses.replace(job(), memory=0.5), "why")
    assert len(one.job) == 64 and one.job != other.job and one == failed(job(), "why")
    assert json.loads(job().to_json())["recordings"] == "/nowhere/observations"


def test_jobs_of_before_are_not_done_until_they_are_asked_for_again(queue: Queue) -> None:
    """Their recordings may have been cut back to a checkpoint, and are not there yet."""
    asked = job()
    queue.put(asked)
    queue.fail(asked, "crashed: it")
    queue.reopen()
    assert queue.waiting() == [] and list(queue.folder.iterdir()) == []
    queue.put(asked)
    assert queue.waiting() == [asked]


class DamagingQueue:
    """A queue on a disk that damages every result; it counts how often one was written."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self.written = queue, 0

    def solution(self, job: AttackJob) -> None:
        return None

    def fail(self, job: AttackJob, why: str) -> None:
        self.written += 1


def test_a_result_that_can_never_be_read_ends_an_audit_in_this_process(queue: Queue) -> None:
    damaging: Any = DamagingQueue(queue)
    queue.put(job())
    with pytest.raises(RunError, match=r"The result of .* was written 2 times and cannot be read"):
        Inline(damaging, lambda _: []).wait(job())
    assert damaging.written == 2
