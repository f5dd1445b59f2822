"""Request of the trusted side to an attack on membership, and the sorting of its scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import NamedTuple, TypeAlias, final

from flfw.audit.jobs import MembershipGame
from flfw.audit.membership.candidates import GameCandidates
from flfw.audit.membership.entry import NULL, ONE_STEP, OVERFITTED
from flfw.audit.membership.membership_evidence import ScoredClient
from flfw.experiment import AGGREGATE, OUTSIDER, PEER
from flfw.recording.format import Line

TARGET = "target"
"""Game of the clients' uploads, with whose scores those of the null control come; the others are controls of it."""

Scores: TypeAlias = Mapping[str, Sequence[ScoredClient]]
"""For each statistic the clients' scores."""


_WHERE = {OVERFITTED: "on examples learnt by heart", ONE_STEP: "on single steps"}


class Place(NamedTuple):
    """Place of an attack: its vantage, or the kind of evidence in controls, and the number of clients in a sum."""

    attack: str
    vantage: str
    group: int = 0


@final
@dataclass(frozen=True)
class MembershipRequest:
    """Scores that are asked of one attack.

    Attributes:
        attack: its name.
        game: what it is granted, beside the recordings.
        rounds: the rounds that it reads; none in a control, and for an outsider.
        lines: the manifest's lines of the uploads that are granted: of all clients, of a peer alone, or none.
        candidates: the trusted side's record of the candidates.
        kind: ``target``, ``easy`` (few members learnt by heart) or ``one_step``.
        anonymity_set_size: number of clients in a sum that the attack cannot take apart; 0: single messages are seen,
            or none.
        adaptive: whether the attacker is told what hides the data of the game's targets.
    """

    attack: str
    game: MembershipGame
    rounds: tuple[int, ...]
    lines: tuple[Line, ...]
    candidates: GameCandidates
    kind: str = TARGET
    anonymity_set_size: int = 0
    adaptive: bool = False

    @property
    def controls(self) -> Place:
        """Place of the controls that belong to it."""
        return Place(self.attack, OUTSIDER if self.game.vantage == OUTSIDER else "messages")

    @property
    def place(self) -> Place:
        """Place of the attack."""
        return Place(self.attack, self.game.vantage, self.game.group) if self.kind == TARGET else self.controls

    @property
    def name(self) -> str:
        """Name of its files."""
        words = [] if self.game.vantage == "server" else [self.game.vantage, str(self.game.group or "")]
        return "-".join(filter(None, [*words, "" if self.kind == TARGET else self.kind.replace("_", "-")]))

    @property
    def where(self) -> str:
        """Place and clients in words."""
        game = self.game
        of_sums = f" in sums over {game.group} client{'s' * (game.group > 1)}"
        suffix = {AGGREGATE: of_sums, PEER: " by a peer", OUTSIDER: " from outside"}.get(game.vantage, "")
        many = len(game.clients)
        return _WHERE.get(self.kind, f"on {many} client{'' if many == 1 else 's'}") + suffix

    def scored(self, scores: Sequence[tuple[int, str, Sequence[float | None]]]) -> dict[str, Scores]:
        """Sort an attack's scores by kind of game, statistic and pair; those of the target hold the null control.

        A client to which it gave none has scores of NaN. So its pairs count as failed: nothing is known of them, and
        they are no evidence of protection.

        Raises:
            ValueError: a client has another number of scores than of candidates.
        """
        both: dict[str, dict[int, tuple[ScoredClient, ScoredClient]]] = {}
        for client, statistic, values in scores:
            known = [nan if value is None else value for value in values]
            both.setdefault(statistic, {})[client] = self.candidates.scored(client, known, statistic)
        clients = sorted(self.game.clients)
        rows = {
            statistic: [scored.get(client) or self.candidates.unscored(client) for client in clients]
            for statistic, scored in both.items()
        }
        played, untrained = ({name: [one[side] for one in row] for name, row in rows.items()} for side in (0, 1))
        return {self.kind: played} if self.kind != TARGET else {TARGET: played, NULL: untrained}


def vantage_points(vantages: Sequence[str], sum_sizes: Sequence[int]) -> list[tuple[str, int]]:
    """Return the vantages of attacks on membership, each with the number of clients in a sum, or 0.

    What a client sends in training is the same for all who see it.
    """
    sizes = sorted(sum_sizes) if AGGREGATE in vantages else []
    direct = [("server", 0)] if set(vantages) - {AGGREGATE, PEER, OUTSIDER} else []
    return direct + [(AGGREGATE, size) for size in sizes] + [(v, 0) for v in (PEER, OUTSIDER) if v in vantages]
