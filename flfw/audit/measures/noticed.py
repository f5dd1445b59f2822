"""Sentences on the clients of a recorded run that would have noticed a malicious server, by a site's own checks."""

from collections import defaultdict
from collections.abc import Collection

from flfw.client.broadcast_checks import broadcast_alarms, differently_served
from flfw.recording.format import CorruptRecordingError, Line, read
from flfw.recording.reader import Recordings

TAMPERED = (
    "A malicious server changed the network of this run ({}), and all clients built it: accuracies and verdicts are "
    "those of the changed network, and say nothing about a server that follows the protocol."
)
"""Note on such a run; it takes the name of the attack."""
ISOLATING = (
    "A malicious server sent clients different numbers ({}), in the attacked probes alone: training and accuracies are "
    "those of an honest server, and the verdicts say nothing about one."
)
"""Note on a run whose server isolates a client and changes no network; it takes the name of the attack."""
_CHECK = "A site's check of the broadcast (reject_suspicious_weights)"
_NAMED = 3  # alarms that are quoted


def noticed(recordings: Recordings, one_model: bool, at_first: Collection[str] = ()) -> list[str]:
    """Check the tensors that each client received before its recorded probes and uploads, as a site would.

    The controls are left out.

    Args:
        recordings: recordings of a run; each content is checked once.
        one_model: whether an honest server sends all clients the same; else different messages are no alarm.
        at_first: names of the tensors that are zeros before training.
    """
    lines = [line for line in recordings.lines if line["config"].get("control", "target") == "target"]
    alarms: dict[str, list[str]] = {}
    for line in lines:
        if (sha256 := line["sent_to_client"]["sha256"]) not in alarms:
            alarms[sha256] = _alarms(recordings, line, at_first)
    compared = _compared(lines) if one_model else []
    every = f"of {len({line['client'] for line in lines})} whose messages were recorded"
    alarmed = sorted({line["client"] for line in lines if alarms[line["sent_to_client"]["sha256"]]})
    if not alarmed:
        return [f"{_CHECK} would have refused no message, at no client {every}.", *compared]
    causes = list(dict.fromkeys(cause for clauses in alarms.values() for cause in clauses))
    more = f"; {len(causes) - _NAMED} more" if len(causes) > _NAMED else ""
    listed = f"{'; '.join(causes[:_NAMED])}{more}"
    return [f"{_CHECK} would have refused messages at {_named(alarmed)} {every} ({listed}).", *compared]


def _compared(lines: list[Line]) -> list[str]:
    """Return a sentence for each round in which clients that compare hashes would find a difference."""
    requested: dict[tuple[int, str, str], dict[int, str]] = defaultdict(dict)
    for line in lines:  # a probe after a round has the next model
        sent = requested[line["round"], line["type"], str(line["config"].get("point", ""))]
        sent.setdefault(line["client"], line["sent_to_client"]["sha256"])
    unlike = {at[0]: clients for at, sent in requested.items() if (clients := differently_served(sent))}
    return [
        f"By comparing hashes {_named(clients)} would have noticed other numbers than the rest, in round {number}."
        for number, clients in sorted(unlike.items())
    ]


def _alarms(recordings: Recordings, line: Line, at_first: Collection[str]) -> list[str]:
    try:
        received = read(recordings.folder / line["place"], line["sent_to_client"], line["compression"])
    except CorruptRecordingError:  # the audit names such a file
        return []
    return broadcast_alarms({name: value.numpy() for name, value in received.items()}, at_first)


def _named(clients: list[int]) -> str:
    return f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}"
