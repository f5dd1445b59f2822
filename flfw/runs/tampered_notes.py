"""Notes of a result on a malicious server: what it did, what came of it, and which clients would have noticed."""

from __future__ import annotations

from flfw.audit.measures.noticed import ISOLATING, TAMPERED, noticed
from flfw.client.broadcast_checks import zeros_at_first
from flfw.experiment import Experiment
from flfw.pipeline import isolated_client, tampering_of
from flfw.recording.reader import Recordings
from flfw.resolve import resolve
from flfw.rng import initialising
from flfw.server.central import sends_one_model
from flfw.sums.isolation import isolation


def what_was_done(experiment: Experiment) -> list[str]:
    """Return the note that an experiment's server was malicious; none where it was not."""
    by = experiment.tampered_by
    note = TAMPERED if not by or isolated_client(experiment) is None else ISOLATING
    return [note.format(by)] if by else []


def what_came_of_it(experiment: Experiment, recordings: Recordings) -> list[str]:
    """Return notes on the messages of a run with a malicious server; none where its server was honest."""
    tampering = tampering_of(experiment)
    if tampering is None:
        return []
    resolved = resolve(experiment)
    with initialising(experiment.seed, "model"):
        fresh = resolved.build_model()
    one_model, at_first = sends_one_model(resolved.method), zeros_at_first(fresh)
    return [*isolation(recordings, tampering), *noticed(recordings, one_model, at_first)]
