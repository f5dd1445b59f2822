"""Whether an attack reads more than it is granted: all else is poisoned on disk, and what it finds may not change.

    python -m flfw.runs.capability runs/NAME --attack ig --set ig.iterations=20

An attack is anybody's code, and the attack server runs it as the user who holds the truth: what it opens is not
prevented, it is found out. Its jobs are done twice, each time by the attack server's process. The first time they lie
in a copy of the run. The second time, in another copy, everything is poisoned that a job does not grant: the truth,
private state and checkpoints, results and reports, the recordings of other exchanges at the server and on the clients,
what clients say of themselves, the results of other jobs, and the user's cache with the data sets. There the jobs are
done last to first, so that nothing can be carried from an easier one to a harder one. An attack that keeps to its
grants gives the same bits.

Not found out: what an attack knows by heart, the digits and tables that come with the project, and files elsewhere on
this machine that it has the path of.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from flfw.adversary.observation import Reconstruction
from flfw.audit.attack_server import AttackServer
from flfw.audit.auditor import Auditor
from flfw.audit.jobs import Job, Solution
from flfw.audit.queue import PUBLIC, Queue
from flfw.errors import BadInput, RunFailed
from flfw.experiment import Experiment
from flfw.plugins import short_name, split_assignment
from flfw.recording.format import MANIFEST, Line
from flfw.recording.reader import Recordings, is_recorded, places
from flfw.runs import run as whole
from flfw.storage.checkpoint import locked
from flfw.storage.sealed import write_whole

_PURPOSE = "Find out whether an attack reads more than it is granted."
_POISON = "poisoned"
_READ_BY_JOBS = ("rung", "slot", "point")  # of what a probe's message said
_RECORDINGS = ("observations", "examples")
_SIDES = ("sent_to_client", "sent_by_client")

Solutions = dict[str, Solution]


@final
@dataclass(frozen=True)
class Capability:
    """What poisoning changed for one attack.

    Attributes:
        attack: its name.
        compared: exchanges for which it gave a reconstruction.
        changed: those for which it gave another one, or none, when what is not granted was poisoned.
        repeats: whether it gives the same again when nothing is poisoned; only asked where something changed.
    """

    attack: str
    compared: int
    changed: tuple[str, ...]
    repeats: bool = True

    @property
    def same(self) -> bool:
        """Whether it keeps to its grants, as far as can be seen."""
        return not self.changed

    def __str__(self) -> str:
        """A sentence."""
        if not self.compared:
            return f"{self.attack} gave no reconstruction here: nothing could be compared."
        if self.same:
            return f"{self.attack} gave the same {self.compared} reconstructions without what it is not granted."
        where = f"{len(self.changed)} of {self.compared} reconstructions changed ({', '.join(self.changed)})"
        if not self.repeats:
            return f"{self.attack} does not repeat itself, so it cannot be told what it reads: {where}."
        return f"{self.attack} reads more than it is granted: {where}."


def check(folder: Path, attacks: Sequence[str], assignments: Sequence[str] = ()) -> tuple[Capability, ...]:
    """Do all jobs of some attacks on a run's recordings with and without what is not granted, and compare.

    Args:
        folder: of a run that is over, with its recordings, truth and checkpoint; it is not changed.
        attacks: their names.
        assignments: hyper-parameters, as for ``--set``; those of the run hold besides.

    Returns:
        What was found, an attack each.

    Raises:
        BadInput: there are no recordings, a run is at work in the folder, or an attack does not exist.
        RunFailed: the attack server could not go on.
    """
    experiment = _experiment(folder, attacks, assignments)
    with _copy(folder) as copy:
        jobs = _jobs(experiment, copy)
        public = next((Path(job.public[0]).read_bytes() for job in jobs if job.public), b"")
        clean = _done(experiment, copy, jobs, public)
    with _copy(folder) as copy, _cache_at(copy / "cache"):
        poisoned = _done(experiment, copy, jobs[::-1], public, _poisoner(folder, copy))
    found = [_compared(name, [job for job in jobs if job.attack == name], clean, poisoned) for name in attacks]
    doubtful = [job for job in jobs if any(job.attack == one.attack and one.changed for one in found)]
    if not doubtful:
        return tuple(found)
    with _copy(folder) as copy:
        again = _done(experiment, copy, doubtful, public)
    for i, one in enumerate(found):
        repeated = _compared(one.attack, [job for job in doubtful if job.attack == one.attack], clean, again)
        found[i] = dataclasses.replace(one, repeats=repeated.same)
    return tuple(found)


def _experiment(folder: Path, attacks: Sequence[str], assignments: Sequence[str]) -> Experiment:
    """The run's, with other attacks: hyper-parameters of attacks that are not asked for are left behind."""
    stored = whole.stored(folder)
    gone = {short_name(name) for name in stored.attacks} - {short_name(name) for name in attacks}
    kept = [a for a in stored.set if split_assignment(a)[0].rpartition(".")[0] not in gone]
    return dataclasses.replace(stored, attack=tuple(attacks), set=(*kept, *assignments))


def _jobs(experiment: Experiment, copy: Path) -> list[Job]:
    """What the auditor would ask for; without jobs for which nothing is recorded."""
    resolved, task, _ = whole.check(dataclasses.replace(experiment, out=copy, lpips_weights=None), new=False)
    auditor = Auditor(resolved, task, copy, copy)
    jobs = [job for ticket in auditor.tickets() for job in auditor.jobs(ticket) if job.exchanges]
    if not jobs:
        raise BadInput(f"Expected recorded probes with their truth for {', '.join(experiment.attacks)}, got none.")
    return jobs


@contextmanager
def _copy(folder: Path) -> Iterator[Path]:
    """A copy of a run for a while, without its queue; there is never more than one, so that none finds another."""
    with tempfile.TemporaryDirectory(prefix="flfw-") as place:
        copy = Path(place) / "run"
        with locked(folder / "checkpoint" / ".run"):
            shutil.copytree(folder, copy, ignore=lambda at, _: ["queue"] if Path(at) == folder else [])
        yield copy


@contextmanager
def _cache_at(place: Path) -> Iterator[None]:
    """The user's cache is elsewhere, and empty, for processes that are started meanwhile."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(place)
    try:
        yield
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


def _done(
    experiment: Experiment,
    copy: Path,
    jobs: Iterable[Job],
    public: bytes,
    before_each: Callable[[Job], None] | None = None,
) -> Solutions:
    """Have jobs done one after the other on a copy's recordings, by the attack server's own process.

    The file with the public data lies in the queue while a job that grants them is done.
    """
    queue = Queue(copy / "queue")
    server = AttackServer(
        queue, lambda _: [], beside=False, seconds=experiment.attack_seconds, gpu=experiment.attack_gpus > 0
    )
    found: Solutions = {}
    server.begin()
    try:
        for job in jobs:
            if before_each:
                before_each(job)
            moved = dataclasses.replace(job, recordings=copy / job.recordings.name)
            if job.public:
                write_whole(queue.folder / PUBLIC, public, 0o600)
                moved = dataclasses.replace(moved, public=(str(queue.folder / PUBLIC), job.public[1]))
            queue.put(moved)
            found[job.name] = server.wait(moved)
    finally:
        server.end()
    return found


def _compared(attack: str, jobs: Sequence[Job], one: Solutions, other: Solutions) -> Capability:
    compared, changed = 0, []
    for job in jobs:
        pairs = zip(job.exchanges, one[job.name].reconstructions, other[job.name].reconstructions, strict=True)
        for exchange, before, after in pairs:
            compared += before is not None
            if not _equal(before, after):
                changed.append(f"{exchange.id} of {job.ticket.name}")
    return Capability(attack, compared, tuple(changed))


def _equal(one: Reconstruction | None, other: Reconstruction | None) -> bool:
    """Whether two reconstructions are the same to the bit, where NaN is equal to itself."""
    if one is None or other is None:
        return one is other
    bits = [found.samples.contiguous().numpy().tobytes() for found in (one, other)]
    about = [(found.samples.shape, repr(found.matching_loss), found.iterations) for found in (one, other)]
    return bits[0] == bits[1] and about[0] == about[1]


# --- poison ---


def _poisoner(folder: Path, copy: Path) -> Callable[[Job], None]:
    """Poison a copy as a whole; returns what, before each job, heals its own recordings there and nothing else."""
    for path in sorted(copy.rglob("*")):
        if path.is_file():
            _poison(path)
    recorded = {name: Recordings(folder / name) for name in _RECORDINGS if is_recorded(folder / name)}
    healed: list[Path] = []

    def heal(job: Job) -> None:
        for path in [*healed, *(copy / "queue").glob("*.safetensors")]:
            _poison(path)
        healed.clear()
        name, own = job.recordings.name, {exchange.id for exchange in job.exchanges} | set(job.uploads)
        lines = [line for line in recorded[name].lines if line["id"] in own]
        for file in {f"{line['place']}{line[side]['file']}" for line in lines for side in _SIDES}:
            shutil.copyfile(folder / name / file, copy / name / file)
            healed.append(copy / name / file)
        for place in places(folder / name):
            header = (place / MANIFEST).read_bytes().partition(b"\n")[0]
            there = "" if place == folder / name else f"{place.name}/"
            lines = [_without_grants(line) for line in recorded[name].lines if line["place"] == there]
            data = b"\n".join([header, *(json.dumps(line).encode() for line in lines)]) + b"\n"
            (copy / name / there / MANIFEST).write_bytes(data)
            healed.append(copy / name / there / MANIFEST)

    return heal


def _poison(path: Path) -> None:
    """Replace a file: NaN and -1 where it holds tensors, so that whoever reads them goes on with these."""
    data = f"{_POISON}\n".encode()
    if path.suffix == ".safetensors":
        with suppress(SafetensorError):  # a damaged one holds nothing
            data = save({name: _sentinels(value) for name, value in load(path.read_bytes()).items()})
    path.unlink()  # rather than overwrite it: tensors that were read from it before may still look into the old file
    path.write_bytes(data)


def _sentinels(value: Tensor) -> Tensor:
    if value.is_floating_point():
        return torch.full_like(value, torch.nan)
    return torch.zeros_like(value) if value.dtype is torch.bool else torch.zeros_like(value) - 1


def _without_grants(line: Line) -> Line:
    """A manifest's line with poison wherever reading the exchange does not look."""
    config = {key: value if key in _READ_BY_JOBS else _POISON for key, value in line["config"].items()}
    others = {key: _POISON for key in ("node", "group") if key in line}
    metrics = dict.fromkeys(line.get("metrics", {}), _POISON)
    return {
        **{key: value for key, value in line.items() if key not in ("id", "place")},
        **others,
        "config": config,
        "metrics": metrics,
    }


def main(arguments: list[str]) -> int:
    """The command; returns 0 where nothing changed, 1 where something did, 2 where nothing could be compared."""
    parser = argparse.ArgumentParser(prog="python -m flfw.runs.capability", description=_PURPOSE)
    parser.add_argument("run", type=Path, help="folder of a run with its recordings")
    parser.add_argument("--attack", nargs="+", required=True, help="attacks, by name or as package.module:Class")
    parser.add_argument("--set", nargs="+", default=[], help="hyper-parameters, as PLUGIN.FIELD=VALUE")
    asked = parser.parse_args(arguments)
    try:
        found = check(asked.run, asked.attack, asked.set)
    except (BadInput, RunFailed) as error:
        print(f"capability: {error}", file=sys.stderr)
        return 2
    for one in found:
        print(one)
    if not all(one.same for one in found):
        return 1
    return 0 if all(one.compared for one in found) else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
