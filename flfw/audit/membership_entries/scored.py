"""Scores of pairs at one client, and the pairs among them that may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from flfw.errors import require

_SPREAD = 1.4826  # of a normal variable: its deviation over its median absolute deviation


@final
@dataclass(frozen=True)
class ScoredClient:
    """Scores that an attack gave to the pairs of one client; a higher one says member.

    Attributes:
        client: number of the client.
        members: (P,) scores of the examples that were trained on.
        held_out: (P,) scores of their counterparts, in the same order.
    """

    client: int
    members: np.ndarray
    held_out: np.ndarray

    def __post_init__(self) -> None:
        fits = self.members.ndim == 1 and self.members.shape == self.held_out.shape
        shapes = f"{self.members.shape} and {self.held_out.shape}"
        require(fits, f"scores (P,) and (P,) of the pairs of client {self.client}", shapes=shapes)


class Comparable(NamedTuple):
    """Pairs that may be compared.

    Attributes:
        clients: scores of these pairs; clients without any are left out.
        failed: number of pairs left out because a score is not finite.
        unlike: number of pairs left out because labels alone tell the two apart.
    """

    clients: list[ScoredClient]
    failed: int
    unlike: int


def comparable(scored: Sequence[ScoredClient], labels: Sequence[ScoredClient] | None) -> Comparable:
    """Return the pairs with two finite scores and, by the score that knows labels only, nothing to tell them apart.

    Both conditions treat the two of a pair alike, so that which of them is the member stays a fair coin.

    Args:
        scored: scores of the attack.
        labels: scores of the label-only floor for the same pairs; None: it is not known.

    Raises:
        InputError: no client, a client twice, or a floor of other clients or pairs.
    """
    numbers = [one.client for one in scored]
    require(bool(numbers) and len(set(numbers)) == len(numbers), "one client or more, each once", clients=numbers)
    floors = {one.client: one for one in labels or scored}
    kept, failed, unlike = [], 0, 0
    for one in scored:
        floor = floors.get(one.client)
        count = None if floor is None else len(floor.members)
        require(count == len(one.members), f"{len(one.members)} pairs of client {one.client} in the floor", pairs=count)
        finite = np.isfinite(one.members) & np.isfinite(one.held_out)
        alike = floor.members == floor.held_out if labels and floor else np.ones(len(finite), bool)
        failed, unlike = failed + int((~finite).sum()), unlike + int((finite & ~alike).sum())
        if (finite & alike).any():
            kept.append(ScoredClient(one.client, one.members[finite & alike], one.held_out[finite & alike]))
    return Comparable(kept, failed, unlike)


def on_one_scale(one: ScoredClient) -> ScoredClient:
    """Scale a client's scores to the median 0 and the spread 1 of all of them, members or not.

    Scores of different clients can have different scales. What is far from the rest stays far from it.
    """
    together = np.concatenate([one.members, one.held_out]).astype(np.float64)
    middle = np.median(together)
    with np.errstate(over="ignore"):
        spread = _SPREAD * np.median(np.abs(together - middle))
        spread = spread if 0 < spread < np.inf else 1.0
        # Divided first: the difference of two large scores may be no finite number.
        members, held_out = (
            np.nan_to_num(part.astype(np.float64) / spread - middle / spread) for part in (one.members, one.held_out)
        )
    return ScoredClient(one.client, members, held_out)
