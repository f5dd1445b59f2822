"""Upload of a client with what is granted about it, for attacks that infer what a client's data are like as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from flfw.adversary.observation import Examples, Observation
from flfw.nets.net import Tensors
from flfw.victims.local_steps import LocalSteps
from flfw.victims.victim import VictimModel


@final
@dataclass(frozen=True)
class Upload:
    """Upload of a client in a round of training.

    Attributes:
        seen: the observation.
        model: the attacker's model of the client, with the tensors that it received.
        local: the client's local training; None: it is more than steps on one loss, or their number is not known.
        public: public data; None: not granted.
    """

    seen: Observation
    model: VictimModel
    local: LocalSteps | None
    public: Examples | None

    def weights(self, place: float) -> Tensors:
        """Return all weights at a place between those received, 0, and those sent, 1; unknown ones are guessed."""
        before = {**self.model.unknown, **self.model.known}
        moved = {name: value for name, value in self.seen.sent.items() if name in before}
        return {
            name: value.lerp(moved[name], place) if name in moved and value.is_floating_point() else value
            for name, value in before.items()
        }
