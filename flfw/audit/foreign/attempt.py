"""Execution of one attack on one round of a foreign app's updates, in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from flfw.adversary.attack import Attack, NotApplicableError
from flfw.adversary.observation import Knowledge, Observation, Reconstruction
from flfw.audit.jobs import AttackJob, JobResult, solved
from flfw.audit.standing import ThreatModel
from flfw.rng import torch_generator

Pair = tuple[Observation, Knowledge]


def standing(pairs: Sequence[Pair | None], hidden: bool) -> ThreatModel:
    """Return the grants about some updates; ``hidden``: an operation between data and update is not known or used."""
    given = [knowledge for _, knowledge in filter(None, pairs)]
    sentences = tuple(dict.fromkeys(sentence for knowledge in given for sentence in knowledge.granted))
    return ThreatModel(
        sentences, bool(given) and not hidden and not any(knowledge.model.unknown for knowledge in given)
    )


def attempt(
    job: AttackJob, attack: Attack, pairs: Sequence[Pair | None], seed: int, not_applicable: str = ""
) -> JobResult:
    """Run an attack; one that raises is a failure with its reason.

    Args:
        job: names the attack and the exchanges.
        attack: to run.
        pairs: observation and knowledge for each exchange; None for a refused one.
        seed: seed of its generators.
        not_applicable: why it is not tried; empty: it is.
    """
    if not_applicable:
        return solved(job, [None] * len(pairs), 0.0, stopped=f"not applicable: {not_applicable}")
    at = [i for i, pair in enumerate(pairs) if pair is not None]
    given = [pair for pair in pairs if pair is not None]
    rngs = [torch_generator(seed, f"attack {job.attack}", o.round, o.slot) for o, _ in given]
    everything: list[Reconstruction | None] = [None] * len(pairs)
    started = time.monotonic()
    try:
        reconstructions = attack.run([o for o, _ in given], [k for _, k in given], rngs) if given else []
        seconds = time.monotonic() - started
        if len(reconstructions) != len(given):
            raise RuntimeError(f"it returned {len(reconstructions)} reconstructions of {len(given)}")
        for i, reconstruction in zip(at, reconstructions, strict=True):
            everything[i] = reconstruction
        return solved(job, everything, seconds, stopped=None if given else "none of its recordings could be used")
    except NotApplicableError as error:
        stopped = f"not applicable: {error}"
    except Exception as error:  # an attack is third-party code: any exception is reported as its failure
        stopped = f"crashed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    nothing = [None] * len(pairs)
    seconds = time.monotonic() - started
    return solved(job, nothing, seconds, stopped=stopped)
