"""Check of an attack's grants: all other data are poisoned on disk, and the attack's results may not change.

    python -m tests.support.capability runs/NAME --attack ig --set ig.iterations=20

An attack is third-party code, and the attack process runs it as the user who holds the truth. A forbidden read is not
prevented, but it is detected. The attack's jobs are done twice, each time by the attack process. The first
time they lie in a copy of the run. The second time they lie in another copy, where everything is poisoned that a job
does not grant: the truth, private state and checkpoints, results and reports, the recordings of other exchanges at the
server and on the clients, the metrics that clients report, the results of other jobs, and the user's cache with the
data sets. There the jobs are done from last to first, so that nothing can be carried from an easier job to a harder
one. An attack that keeps to its grants gives the same bits.

Not detected: data within the attack's own code, the digits and tables that come with the project, and other files on
this machine whose path the attack has.
"""

import dataclasses
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flfw.audit.attack_process import AttackProcess
from flfw.audit.auditor import Auditor
from flfw.audit.jobs import AttackJob, JobResult
from flfw.audit.queue import PUBLIC, Queue
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.files.sealed import write_atomic
from flfw.plugins import short_name, split_assignment
from flfw.recording.observation import Reconstruction
from flfw.runs import run as whole
from flfw.server.checkpoint import locked
from tests.support.poison import poisoner

_PURPOSE = "Find out whether an attack reads more than it is granted."

Solutions = dict[str, JobResult]


@final
@dataclass(frozen=True)
class Capability:
    """Effect of the poison on one attack.

    Attributes:
        attack: the attack's name.
        compared: number of results: exchanges with a reconstruction, clients whose classes were inferred, and
            statistics of a client's candidates.
        changed: those of them that are different, or missing, with poison.
        repeats: whether the attack gives the same again without poison; tested only where something changed.
    """

    attack: str
    compared: int
    changed: tuple[str, ...]
    repeats: bool = True

    @property
    def same(self) -> bool:
        """True where the attack keeps to its grants, as far as this check can see."""
        return not self.changed

    def __str__(self) -> str:
        """Return the result as a sentence."""
        if not self.compared:
            return f"{self.attack} gave no result here: nothing could be compared."
        if self.same:
            return f"{self.attack} gave the same {self.compared} results without what it is not granted."
        where = f"{len(self.changed)} of {self.compared} results changed ({', '.join(self.changed)})"
        if not self.repeats:
            return f"{self.attack} does not repeat itself, so it cannot be told what it reads: {where}."
        return f"{self.attack} reads more than it is granted: {where}."


def check(folder: Path, attacks: Sequence[str], assignments: Sequence[str] = ()) -> tuple[Capability, ...]:
    """Run all jobs of some attacks on a run's recordings with and without poison, and compare the results.

    Args:
        folder: the folder of a completed run, with its recordings, truth and checkpoint; it is not changed.
        attacks: names of the attacks.
        assignments: hyper-parameters, as for ``--set``; those of the run hold as well.

    Returns:
        One result per attack.

    Raises:
        InputError: there are no recordings, a run is at work in the folder, or an attack does not exist.
        RunError: the attack process could not go on.
    """
    experiment = _experiment(folder, attacks, assignments)
    with _copy(folder) as copy:
        jobs = _jobs(experiment, copy)
        public = next((Path(job.public[0]).read_bytes() for job in jobs if job.public), b"")
        candidates = {job.name: Path(job.game.file).read_bytes() for job in jobs if job.game}
        clean = _done(experiment, copy, jobs, public, candidates)
    with _copy(folder) as copy, _cache_at(copy / "cache"):
        poisoned = _done(experiment, copy, jobs[::-1], public, candidates, poisoner(folder, copy))
    results = [_compared(name, [job for job in jobs if job.attack == name], clean, poisoned) for name in attacks]
    doubtful = [job for job in jobs if any(job.attack == one.attack and one.changed for one in results)]
    if not doubtful:
        return tuple(results)
    with _copy(folder) as copy:
        again = _done(experiment, copy, doubtful, public, candidates)
    for i, one in enumerate(results):
        repeated = _compared(one.attack, [job for job in doubtful if job.attack == one.attack], clean, again)
        results[i] = dataclasses.replace(one, repeats=repeated.same)
    return tuple(results)


def _experiment(folder: Path, attacks: Sequence[str], assignments: Sequence[str]) -> Experiment:
    """Return the run's experiment with other attacks, without the hyper-parameters of attacks not asked for."""
    stored = whole.stored(folder)
    gone = {short_name(name) for name in stored.attacks} - {short_name(name) for name in attacks}
    kept = [a for a in stored.set if split_assignment(a)[0].rpartition(".")[0] not in gone]
    return dataclasses.replace(stored, attack=tuple(attacks), set=(*kept, *assignments))


def _jobs(experiment: Experiment, copy: Path) -> list[AttackJob]:
    """List the jobs that the auditor would give, without those for which nothing is recorded."""
    run_plan, task, _ = whole.check(dataclasses.replace(experiment, out=copy, lpips_weights=None), new=False)
    auditor = Auditor(run_plan.client, run_plan.audit, task, copy, copy)
    jobs = [
        job for probe_set in auditor.probe_sets() for job in auditor.jobs(probe_set) if job.exchanges or job.uploads
    ]
    jobs += [job for _, job in auditor.membership_jobs()]
    if not jobs:
        raise InputError(f"Expected recorded probes with their truth for {', '.join(experiment.attacks)}, got none.")
    return jobs


@contextmanager
def _copy(folder: Path) -> Iterator[Path]:
    """Copy a run for a while, without its queue; only one copy exists at a time, so no attack reads another one."""
    with tempfile.TemporaryDirectory(prefix="flfw-") as place:
        copy = Path(place) / "run"
        with locked(folder / "checkpoint" / ".run"):
            shutil.copytree(folder, copy, ignore=lambda at, _: ["queue"] if Path(at) == folder else [])
        yield copy


@contextmanager
def _cache_at(path: Path) -> Iterator[None]:
    """Give an empty user cache in another place to processes that are started meanwhile."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(path)
    try:
        yield
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


def _done(
    experiment: Experiment,
    copy: Path,
    jobs: Iterable[AttackJob],
    public: bytes,
    candidates: Mapping[str, bytes],
    before_each: Callable[[AttackJob], None] | None = None,
) -> Solutions:
    """Run jobs one after the other on a copy's recordings, in the attack process.

    The files with the public data and with the candidates are in the queue only during a job that grants them.
    """
    queue = Queue(copy / "queue")
    queue.folder.mkdir(0o700, exist_ok=True)  # a job's public data may be put there before the first job
    server = AttackProcess(
        queue, lambda _: [], concurrent=False, seconds=experiment.attack_timeout, gpu=experiment.attack_gpus > 0
    )
    solutions: Solutions = {}
    server.begin()
    try:
        for job in jobs:
            if before_each:
                before_each(job)
            moved = dataclasses.replace(job, recordings=copy / job.recordings.name)
            if job.public:
                write_atomic(queue.folder / PUBLIC, public, 0o600)
                moved = dataclasses.replace(moved, public=(str(queue.folder / PUBLIC), job.public[1]))
            if job.game:
                place = queue.folder / Path(job.game.file).name
                write_atomic(place, candidates[job.name], 0o600)
                moved = dataclasses.replace(moved, game=dataclasses.replace(job.game, file=str(place)))
            queue.put(moved)
            solutions[job.name] = server.wait(moved)
    finally:
        server.end()
    return solutions


def _compared(attack: str, jobs: Sequence[AttackJob], one: Solutions, other: Solutions) -> Capability:
    compared, changed = 0, []
    for job in jobs:
        pairs = zip(job.exchanges, one[job.name].reconstructions, other[job.name].reconstructions, strict=True)
        for exchange, before, after in pairs:
            compared += before is not None
            if not _equal(before, after):
                changed.append(f"{exchange.id} of {job.probe_set.name}")
        before, after = (_answers(solutions[job.name]) for solutions in (one, other))
        compared += len(before)
        different = sorted(what for what in before.keys() | after.keys() if before.get(what) != after.get(what))
        changed += [f"{what} of {job.probe_set.name}" for what in different]
    return Capability(attack, compared, tuple(changed))


def _answers(result: JobResult) -> dict[str, list[str]]:
    """Return classes and scores of each client, written out, as NaN is equal to itself in words."""
    answers: dict[str, list[str]] = {}
    for client, answer in (*result.present, *result.shares):
        answers.setdefault(f"the classes of client {client}", []).append(repr(answer))
    for client, statistic, scores in result.scores:
        answers.setdefault(f"{statistic} for client {client}", []).append(repr(scores))
    return answers


def _equal(one: Reconstruction | None, other: Reconstruction | None) -> bool:
    """Return whether two reconstructions are the same to the bit, where NaN is equal to itself."""
    if one is None or other is None:
        return one is other
    bits = [each.samples.contiguous().numpy().tobytes() for each in (one, other)]
    metadata = [(each.samples.shape, repr(each.matching_loss), each.iterations) for each in (one, other)]
    return bits[0] == bits[1] and metadata[0] == metadata[1]


def main(arguments: list[str]) -> int:
    """Run the command; return 0 if nothing changed, 1 if something did, 2 if nothing could be compared."""
    return exit_code("capability", lambda: _do(arguments))


def _do(arguments: list[str]) -> int:
    parser = Parser(prog="python -m tests.support.capability", description=_PURPOSE)
    parser.add_argument("run", type=Path, help="folder of a run with its recordings")
    parser.add_argument("--attack", nargs="+", required=True, help="attacks, by name or as package.module:Class")
    parser.add_argument("--set", nargs="+", default=[], help="hyper-parameters, as PLUGIN.FIELD=VALUE")
    args = parser.parse_args(arguments)
    try:
        results = check(args.run, args.attack, args.set)
    except RunError as error:  # nothing could be compared
        raise InputError(str(error)) from error
    for one in results:
        print(one)
    if not all(one.same for one in results):
        return 1
    return 0 if all(one.compared for one in results) else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
