"""An attack process: it does the jobs of a queue, and receives only the recordings and the grants of each.

`flfw.audit.attack_process` starts it, ends it when an attack takes too long, and starts another one when it dies.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flfw.adversary.attack import Attack, NotApplicableError
from flfw.adversary.sums import Protocol, summed
from flfw.audit.controls import under_control
from flfw.audit.jobs import AttackJob, JobResult, MembershipGame, alone, failed, solved
from flfw.audit.knowledge import MOST_SEARCHED, grant, granted_uploads, observed, protocol, restored
from flfw.audit.membership.game import as_scores, unusable
from flfw.audit.membership.views import game_views
from flfw.audit.queue import Queue
from flfw.audit.threat_model import unseen
from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.experiment.curves import SUM_SIZE
from flfw.inversion.compute import expect, watched
from flfw.messages.reasons import words_of
from flfw.plans.run_plan import AuditPlan, plan
from flfw.recording.observation import Observation, Reconstruction
from flfw.recording.reader import Recordings
from flfw.rng import torch_generator
from flfw.task.client_plan import ClientPlan

_POLL_S = 0.05
_NICENESS = 10  # training has priority


def solve(job: AttackJob) -> JobResult:
    """Do a job.

    Raises:
        Exception: any error of the attack except `NotApplicableError`, which is an answer.
    """
    run = plan(Experiment.from_run_config(job.run_config)).with_input_space(job.shape, job.classes)
    clients, audit = under_control(run.client, job.probe_set.control), run.audit
    assert clients is not None, "a job is made only under controls that there are"
    if job.game is not None:
        return _scored(job, job.game, clients, audit)
    attack = audit.reconstructions[job.attack]
    if why := unseen(clients, job.vantage, attack):
        return failed(job, f"not applicable: {why}")
    if attack.of_sums and job.probe_set.group:
        return _by_client(job, clients, audit)
    return _solve(job, clients, audit)


def _by_client(job: AttackJob, clients: ClientPlan, audit: AuditPlan) -> JobResult:
    """Do a job of an attack that itself tells apart the clients of a sum; each of them is a part of its result."""
    solutions = []
    for exchange in job.exchanges:
        drawn = protocol(clients.seed, job.probe_set.round, exchange.slot)
        solutions.append(_solve(alone(job, exchange), clients, audit, drawn))
    joined = [_joined(result.reconstructions) for result in solutions]
    more = {"refused": tuple(sentence for result in solutions for sentence in result.refused)}
    stopped = next((result.stopped for result in solutions if result.stopped), None)
    return solved(job, joined, sum(result.seconds for result in solutions), stopped=stopped, **more)


def _joined(parts: Sequence[Reconstruction | None]) -> Reconstruction | None:
    """Return the results for the clients of a sum as one; None where one of them is missing."""
    whole = [part for part in parts if part is not None]
    return Reconstruction(torch.cat([part.samples for part in whole])) if len(whole) == len(parts) else None


def _solve(job: AttackJob, clients: ClientPlan, audit: AuditPlan, drawn: Protocol | None = None) -> JobResult:
    """Do a job; ``drawn`` rounds the sums of an attack on sums."""
    attack = audit.reconstructions[job.attack]
    recordings = Recordings(job.recordings)
    try:
        seen = observed(job, recordings, clients.seed, clients.task.network.malicious)
    except InputError as error:  # of a sum that no attack of single models can use
        return failed(job, _refusal(error))
    uploads = [upload for upload in recordings.observations(job.uploads) if upload is not None]
    earlier = [answer for answer in recordings.observations(job.earlier) if answer is not None]
    observations, knowledge = grant(
        job, clients, audit.settings.adaptation, attack, [o for o in seen if o is not None], uploads, earlier
    )
    if attack.of_sums:
        require(not (uploads or earlier), "no messages of single clients for an attack on sums", attack=job.attack)
        observations = summed(observations, any(known.weights for known in knowledge), drawn)
    extra: dict[str, Any] = {"refused": tuple(recordings.refused)}
    numbers = (
        (job.probe_set.batch, job.probe_set.steps)
        if job.probe_set.curve not in ("", SUM_SIZE) or job.probe_set.pooled
        else ()
    )
    rngs = [torch_generator(clients.seed, f"attack {job.attack}", o.round, o.slot, *numbers) for o in observations]
    maximum = max((known.batch for known in knowledge), default=0)
    started = time.monotonic()
    extra["present"] = _present(attack, uploads, job, clients.model)
    if not attack.reconstructs:
        return _inferred(attack, uploads, job, clients, extra)
    try:
        if job.probe_set.source == "update" and attack.cost.iterations:
            require(
                maximum <= MOST_SEARCHED, f"a search for at most {MOST_SEARCHED} examples at once", examples=maximum
            )
        expect(attack.cost.iterations * attack.cost.restarts)
        reconstructions = attack.run(observations, knowledge, rngs) if observations else []
    except (NotApplicableError, InputError) as error:  # it would be the same if tried again
        return solved(job, [None] * len(seen), time.monotonic() - started, stopped=_refusal(error), **extra)
    seconds = time.monotonic() - started
    if len(reconstructions) != len(observations):
        raise RuntimeError(f"it returned {len(reconstructions)} reconstructions of {len(observations)}")
    results = map(restored, reconstructions, knowledge)
    by_slot = {o.slot: result for o, result in zip(observations, results, strict=True)}
    stopped = None if observations else "none of its recordings could be used"
    return solved(job, [None if o is None else by_slot[o.slot] for o in seen], seconds, stopped=stopped, **extra)


def _refusal(error: Exception) -> str:
    """Return why an attack gave nothing, of an error that would come again if it were tried again."""
    return f"not {'applicable' if isinstance(error, NotApplicableError) else 'possible'}: {error}"


def _scored(job: AttackJob, game: MembershipGame, clients: ClientPlan, audit: AuditPlan) -> JobResult:
    """Let an attack score the candidates of a membership game."""
    attack, recordings = audit.memberships[job.attack], Recordings(job.recordings)
    ids, refused = [exchange.id for exchange in job.exchanges], list[str]()
    read = [] if game.easy else recordings.observations(ids)
    reasons = ["" if one is None else unusable(one) for one in read]
    refused += [f"{id_} was left out: {why}." for id_, why in zip(ids, reasons, strict=True) if why]
    seen = [one for one, why in zip(read, reasons, strict=True) if one is not None and not why]
    seed, started = clients.seed, time.monotonic()
    scores: list[tuple[int, str, tuple[float | None, ...]]] = []
    stopped = None
    try:
        for view in game_views(job, game, clients, attack, audit.settings.adaptation, seen):
            rng, final = torch_generator(seed, f"attack {job.attack}"), view.published
            try:
                statistics = attack.published_scores(view, final, rng) if final else attack.scores(view, rng)
            except InputError as error:  # it would be the same if tried again; other clients may have sent what fits
                stopped = stopped or _refusal(error)
                refused.append(f"Client {view.client} has no scores: {error}")
            else:
                scores += as_scores(view, statistics)
                # Sums have fewer by nature.
                refused += attack.unused_statistics(view) if game.vantage == "server" else ()
    except (NotApplicableError, InputError) as error:
        stopped, scores = _refusal(error), []
    stopped = None if scores else stopped or "none of its recordings could be used"
    extra: dict[str, Any] = {
        "refused": tuple(dict.fromkeys((*recordings.refused, *refused))),
        "scores": tuple(scores),
        "stopped": stopped,
    }
    return solved(job, [None] * len(ids), time.monotonic() - started, **extra)


def _present(
    attack: Attack, uploads: Sequence[Observation], job: AttackJob, model: nn.Module
) -> tuple[tuple[int, tuple[bool, ...]], ...]:
    """Return the classes that the attack infers for each client."""
    if not uploads:
        return ()
    answers = zip(uploads, attack.presence(uploads, model), strict=True)
    return tuple((upload.client, tuple(map(bool, held.tolist()))) for upload, held in answers if held is not None)


def _inferred(
    attack: Attack, uploads: Sequence[Observation], job: AttackJob, clients: ClientPlan, extra: dict[str, Any]
) -> JobResult:
    """Return the solution of an attack that reconstructs nothing: the shares of the classes that it infers."""
    started, stopped = time.monotonic(), None
    shares: tuple[tuple[int, tuple[float, ...]], ...] = ()
    try:
        granted = granted_uploads(job, clients, uploads)
        answers = zip(granted, attack.shares(granted) if granted else (), strict=True)
        shares = tuple((one.seen.client, tuple(estimate.tolist())) for one, estimate in answers if estimate is not None)
    except (NotApplicableError, InputError) as error:
        stopped = _refusal(error)
    return solved(job, [None] * len(job.exchanges), time.monotonic() - started, stopped=stopped, shares=shares, **extra)


@contextmanager
def _share_of_memory(job: AttackJob) -> Iterator[None]:
    """Keep a job to its share of a GPU's memory; without an attack process, clients use the same process afterwards."""
    if job.device != "cuda":
        yield
        return
    torch.cuda.set_per_process_memory_fraction(job.memory)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def attempt(job: AttackJob, queue: Queue) -> None:
    """Do a job and write its solution; an attack that raises is a failed try and does not stop the others."""
    try:
        with _share_of_memory(job):
            queue.solve(job, solve(job))
    except Exception as error:  # an attack is third-party code: any exception is reported as its failure
        queue.fail(job, f"crashed: {words_of(error)}")


def work(queue: Queue) -> None:
    """Do jobs until the queue is closed and empty."""
    while True:
        over = queue.closed  # read before the next job, so that jobs put before the close are done
        job = queue.take(os.getpid())
        if job is not None:
            with watched(partial(queue.report, job)):
                attempt(job, queue)
        elif over:
            return
        else:
            time.sleep(_POLL_S)


def _end_with(parent: int) -> None:
    """End this process, and all processes that an attack started, when its parent process is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    if "--nice" in sys.argv[3:]:
        os.nice(_NICENESS)
    work(Queue(Path(sys.argv[1])))
