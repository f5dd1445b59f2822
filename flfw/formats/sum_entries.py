"""Form of result.json's ``sums``: what sums over clients would have hidden of the recorded uploads."""

from __future__ import annotations

from typing import TypedDict


class LayerFigures(TypedDict):
    """Shares of a layer's coordinates."""

    coordinates: int
    share: float
    independent: float
    untouched: float
    layer: str


class ExposureFigures(TypedDict):
    """Shares of all coordinates of a round."""

    coordinates: int
    share: float
    independent: float
    untouched: float
    layers: list[LayerFigures]


class HeadFigures(TypedDict):
    """Span of a summed head's changes, beside the clients' own directions."""

    head: str
    clients: int
    width: int
    rank: int
    largest_angle: float
    angle_by_chance: float
    recovered: bool


class BroadcastFigures(TypedDict):
    """Contents that the clients of a round received."""

    contents: int
    differ: list[int]


class SumRound(TypedDict):
    """Round with recorded uploads."""

    round: int
    clients: int
    exposed: ExposureFigures | None
    heads: HeadFigures | None
    broadcast: BroadcastFigures


class NoiseFigures(TypedDict):
    """Noise of a client's separated update."""

    client: int
    factor: float


class IsolationFigures(TypedDict):
    """Pair of rounds whose groups differ in one client; ``absent`` is 0 where this client was alone."""

    client: int
    present: int
    absent: int


class ParticipationFigures(TypedDict):
    """Separability of the clients by their participation."""

    rounds: int
    clients: int
    smallest_group: int
    rank: int | None
    smallest_singular: float | None
    separable: int | None
    noise: list[NoiseFigures] | None
    isolated: int
    isolating: list[IsolationFigures]
    recorded_only: bool


class CheckFigures(TypedDict):
    """Comparison of a subtracted update with the recorded one."""

    round: int
    client: int
    largest_difference: float
    largest_change: float


class PeerFigures(TypedDict):
    """Other clients as observers."""

    smallest: int
    round: int
    left: int
    verdict: str
    why: str
    check: CheckFigures | None


class SumFields(TypedDict):
    """Sums over the clients of a run."""

    rounds: list[SumRound]
    same_for_all: bool
    participation: ParticipationFigures
    peer: PeerFigures
