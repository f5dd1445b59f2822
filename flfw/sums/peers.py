"""Other clients as observers: what follows from two broadcasts that one receives, and the own updates of some.

The change between two broadcasts is the mean update of a round. Whoever has sent c of its n updates subtracts them; the
rest is the sum of n - c. If that is 1, it is one client's update.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from flfw.errors import InputError
from flfw.nets.net import Tensors
from flfw.recording.reader import Recordings
from flfw.sums.changes import change_in, first_lines, recorded_rounds


def peers(recordings: Recordings, cohorts: Mapping[int, Set[int]], sends_mean: bool) -> dict[str, Any]:
    """Compute the update or the sum that a client among the others learns.

    Args:
        recordings: of the run.
        cohorts: the clients whose updates were used in each round.
        sends_mean: whether all clients receive the mean of the last round's weights, and nothing else of the server.

    Returns:
        The smallest group n, what is left of it without one client, a verdict with its reason, and the check with
        recorded updates of two clients (None: no such round is recorded with the next broadcast).
    """
    smallest = min(len(group) for group in cohorts.values())
    where = min(number for number, group in cohorts.items() if len(group) == smallest)
    check = None
    for number in recorded_rounds(recordings) if sends_mean else []:
        if len(cohorts.get(number, ())) == 2:
            check = subtracted(recordings, number)
        if check is not None:
            break
    verdict, why = _verdict(smallest, sends_mean)
    return {
        "smallest": smallest,
        "round": where,
        "left": smallest - 1,
        "verdict": verdict,
        "reason": why,
        "check": check,
    }


def _verdict(smallest: int, sends_mean: bool) -> tuple[str, str]:
    if not sends_mean:
        return "inconclusive", (
            "This run's server does not send all clients the mean of what it received, so a client cannot subtract its "
            "own part from it. What it can compute instead was not looked at."
        )
    if smallest == 2:
        return "leaks", (
            "With 2 clients in a round and 1 observer among them n - c = 1: the other client's update follows from two "
            "broadcasts and the observer's own update, up to the factor of its weight. It is as if nothing were summed."
        )
    if smallest < 2:
        return "leaks", (
            "A round had 1 client: whoever received the broadcasts before and after it has that client's update."
        )
    return "inconclusive", (
        f"One observer among {smallest} clients is left with the sum of n - c = {smallest - 1}. If {smallest - 1} of "
        f"{smallest} put together what they know, n - c = 1, and the last one's update follows exactly."
    )


def subtracted(recordings: Recordings, server_round: int) -> dict[str, Any] | None:
    """Compute one client's change from the next broadcast and the other client's upload, and compare with its upload.

    Args:
        recordings: of the run.
        server_round: a round in which two clients took part.

    Returns:
        The largest difference and the largest change, of all numbers; None: a recording is missing or damaged.
    """
    lines, after = first_lines(recordings, server_round), _next_broadcast(recordings, server_round)
    if len(lines) != 2 or after is None:
        return None
    try:
        seen = [recordings.observation(line["id"]) for line in lines]
    except InputError:  # the file is damaged, and the report names it
        return None
    observer, other = (change_in(*both) for both in zip(seen, lines, strict=True))
    before = seen[0].received
    if not (observer.tensors.keys() == other.tensors.keys() <= after.keys()) or observer.weight + other.weight <= 0:
        return None
    left = remainder(before, after, observer.tensors, (observer.weight, other.weight))
    names = [name for name in left if left[name].numel()]
    error = max((float((left[name] - other.tensors[name]).abs().max()) for name in names), default=0.0)
    largest = max((float(other.tensors[name].abs().max()) for name in names), default=0.0)
    return {"round": server_round, "client": other.client, "largest_difference": error, "largest_change": largest}


def remainder(before: Tensors, after: Tensors, change: Tensors, weights: tuple[float, float]) -> Tensors:
    """Compute the other client's change, in float64, from two broadcasts of a weighted mean of two clients.

    Args:
        before: broadcast that both received.
        after: the next one.
        change: the observer's change by name.
        weights: the observer's and the other's.
    """
    mine, total = weights[0], sum(weights)
    return {
        name: (total * (after[name].double() - before[name].double()) - mine * part) / weights[1]
        for name, part in change.items()
    }


def _next_broadcast(recordings: Recordings, server_round: int) -> Tensors | None:
    """Return the tensors that clients receive after a round, with the next message for training or with a probe."""
    lines = [*first_lines(recordings, server_round + 1), *recordings.probe_lines("target", server_round)]
    for line in lines:
        try:
            return recordings.observation(line["id"]).received
        except InputError:
            continue
    return None
