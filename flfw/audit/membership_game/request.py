"""Request of the trusted side to an attack on membership, and the sorting of its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

from flfw.audit.membership_entries import ScoredClient
from flfw.audit.membership_game.candidates import GameCandidates
from flfw.audit.membership_game.game import Game
from flfw.audit.membership_game.patient_candidates import PatientCandidates
from flfw.recording.format import Line

TARGET, OVERFITTED, ONE_STEP = "target", "easy", "one_step"
"""Kinds of games: the clients' uploads, and the two controls on a fresh network."""
NULL = "null"
"""Control of examples that nobody trained on; its scores come with those of the target."""

Scores: TypeAlias = Mapping[str, Sequence[ScoredClient]]
"""For each statistic the clients' scores."""


@final
@dataclass(frozen=True)
class MembershipRequest:
    """Scores that are asked of one attack.

    Attributes:
        attack: its name.
        game: what it is granted, beside the recordings.
        rounds: the rounds that it reads; none in a control.
        lines: the manifest's lines of the uploads of all clients in them.
        candidates: the trusted side's record of the candidates.
        kind: ``target``, ``easy`` (few members learnt by heart) or ``one_step``.
    """

    attack: str
    game: Game
    rounds: tuple[int, ...]
    lines: tuple[Line, ...]
    candidates: GameCandidates | PatientCandidates
    kind: str = TARGET

    def scored(self, scores: Sequence[tuple[int, str, Sequence[float]]]) -> dict[str, Scores]:
        """Sort an attack's scores by kind of game, statistic and pair; those of the target hold the null control.

        A client to which it gave none has scores of NaN. So its pairs count as failed: nothing is known of them, and
        they are no evidence of protection.

        Raises:
            ValueError: a client has another number of scores than of candidates.
        """
        both: dict[str, dict[int, tuple[ScoredClient, ScoredClient]]] = {}
        for client, statistic, values in scores:
            both.setdefault(statistic, {})[client] = self.candidates.scored(client, values, statistic)
        clients = sorted(self.game.clients)
        rows = {
            statistic: [scored.get(client) or self.candidates.unscored(client) for client in clients]
            for statistic, scored in both.items()
        }
        played, untrained = ({name: [one[side] for one in row] for name, row in rows.items()} for side in (0, 1))
        return {self.kind: played} if self.kind != TARGET else {TARGET: played, NULL: untrained}


class GameAnswer(Protocol):
    """Answer of an attack to a request."""

    @property
    def scores(self) -> Sequence[tuple[int, str, Sequence[float]]]:
        """Scores: a client's number, a statistic, and the score of each of the client's candidates."""
        ...

    @property
    def refused(self) -> Sequence[str]:
        """Unusable recordings, a sentence each."""
        ...

    @property
    def stopped(self) -> str | None:
        """Reason why there are no scores; None: there are."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds that the attack took."""
        ...
