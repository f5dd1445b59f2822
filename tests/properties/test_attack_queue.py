"""The queue of attack jobs: its jobs, probe sets, tries and results are read as written, or refused, or are none."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from flfw.audit.jobs import EASY, AttackJob, Exchange, ProbeSet, solved
from flfw.audit.queue import Queue
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.sealed import read_checked, with_checksum, write_checked
from flfw.recording.observation import Reconstruction
from tests.properties.changes import (
    Change,
    broken,
    changed_bytes,
    changed_json,
    changed_tensors,
    either,
    missummed,
    resummed,
)
from tests.properties.reading import Folder, Reader, are_counts, plain

JOB = AttackJob(
    "ig",
    EASY,
    (Exchange("round-0000/client-000-001", 0, 0, (7,)), Exchange("round-0000/client-001-001", 1, 1, None)),
    Path("/nowhere/observations"),
    Experiment().to_run_config(),
    (1, 2, 2),
    10,
    (0.5,),
    (0.25,),
)
FOUND = [Reconstruction(torch.full((1, 1, 2, 2), 0.5), 0.125, 3, torch.tensor([1])), None]
CHANGE: Change = either(resummed(changed_json), missummed(changed_json), broken(changed_bytes))


def is_probe_set(probe_set: Any) -> bool:
    named = (probe_set.control, probe_set.curve, probe_set.point)
    numbers = (probe_set.round, probe_set.batch, probe_set.steps)
    return isinstance(probe_set, ProbeSet) and all(isinstance(w, str) for w in named) and are_counts(numbers)


def is_job(job: Any) -> bool:
    if job is None:
        return True
    named = (job.attack, job.device, job.vantage, *job.uploads, *(e.id for e in job.exchanges))
    return (
        are_counts((job.classes, *job.shape, *(e.client for e in job.exchanges)))
        and all(isinstance(word, str) for word in named)
        and isinstance(job.run_config, dict)
        and is_probe_set(job.probe_set)
        and isinstance(job.adaptive, bool)
    )


def is_result(read: Any) -> bool:
    numbers = isinstance(read.seconds, float | int) and type(read.tries) is int
    is_line = read.stopped is None or isinstance(read.stopped, str)
    return numbers and is_line and len(read.reconstructions) == 2 and all(isinstance(w, str) for w in read.refused)


def result(path: Path) -> object:
    """A broken result is as good as none, or says that it cannot be read."""
    got = Queue(path).solution(JOB)
    if got is None or (got.stopped or "").startswith("its result cannot be read"):
        raise InputError("Expected a result, got none.")
    return got


def failed(path: Path) -> object:
    Queue(path).fail(JOB, "crashed")
    return "failed"


@pytest.fixture(scope="module")
def readers(scratch: Path) -> dict[str, Reader]:
    made = Queue(scratch / "made")
    made.announce(EASY)
    made.put(JOB)
    waiting = Folder.of(scratch / "waiting", made.folder)
    made.solve(JOB, solved(JOB, FOUND, 1.5, refused=("a file",), present=((0, (True, False)),)))
    done = Folder.of(scratch / "done", made.folder)
    note = {"pid": 4242, "since": 1.5, "job": JOB.name}
    begun = Folder(
        scratch / "begun",
        done.files
        | {f"{JOB.name}.started": with_checksum(json.dumps(note).encode()), f"{JOB.name}.tries": with_checksum(b"1")},
    )
    sealed = {f"{JOB.name}.solved.json": CHANGE, f"{JOB.name}.safetensors": broken(changed_tensors)}
    tries = {f"{JOB.name}.tries": either(resummed(changed_bytes), broken(changed_bytes))}
    return {
        "job": Reader(waiting, {f"{JOB.name}.json": CHANGE}, lambda place: Queue(place).take(1), is_job),
        "probe sets": Reader(
            waiting,
            {f"{EASY.name}.ticket": CHANGE},
            lambda place: Queue(place).probe_sets(),
            lambda probe_sets: all(map(is_probe_set, probe_sets)),
        ),
        "result": Reader(done, sealed, result, is_result),
        "started": Reader(
            begun,
            {f"{JOB.name}.started": CHANGE, f"{JOB.name}.json": CHANGE},
            lambda place: Queue(place).started(),
            lambda started: all(is_job(job) and isinstance(note["since"], float | int) for job, note in started),
        ),
        "tries": Reader(begun, tries, failed),
    }


@pytest.mark.parametrize("name", ["job", "probe sets", "result", "started", "tries"])
@given(data=st.data())
def test_a_changed_file_of_the_queue_is_noticed_or_valid(
    data: DataObject, readers: dict[str, Reader], name: str
) -> None:
    readers[name].require_refused_or_valid(data)


def test_a_job_and_its_result_are_read_as_they_were_put(readers: dict[str, Reader]) -> None:
    assert plain(readers["job"].read(readers["job"].folder.lay())) == plain(JOB)
    got: Any = readers["result"].read(readers["result"].folder.lay())
    assert plain(got.reconstructions) == plain(FOUND) and (got.seconds, got.refused) == (1.5, ("a file",))


@given(content=st.binary(max_size=100), data=st.data())
def test_a_file_with_its_checksum_is_read_as_written_and_no_change_of_it_is_read(
    content: bytes, data: DataObject, scratch: Path
) -> None:
    path = scratch / "checked"
    write_checked(path, content)
    assert read_checked(path) == content
    whole = path.read_bytes()
    path.write_bytes(changed := data.draw(changed_bytes(whole)))
    try:
        assert changed == whole or read_checked(path) != content, "a changed file was read as the one before"
        assert changed == whole, "a changed file was read"
    except InputError:
        assert changed != whole


def test_a_checksum_without_a_line_before_it_is_refused(scratch: Path) -> None:
    path = scratch / "checked"
    path.write_bytes(with_checksum(b"")[1:])  # found by the property above, in thousands of examples
    with pytest.raises(InputError, match="it is damaged"):
        read_checked(path)
