"""Known mechanisms one after the other, as one operator: the adaptation to a pipeline of defences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import final

from flfw.nets.net import Tensors
from flfw.victims.local_steps import LocalSteps
from flfw.victims.operator import TRAITS, Operator, Trait
from flfw.victims.victim import PlainVictim, VictimModel


def composes(stages: Sequence[Operator]) -> bool:
    """Return whether operators may be applied one after the other.

    The constants of each stage are read off the observation, which is the last stage's output. So all later stages must
    leave alone what a stage needs. At most one stage may have a victim.

    Args:
        stages: the operators in the order in which the mechanisms act.
    """
    left = all(earlier.requires <= later.preserves for earlier, later in combinations(stages, 2))
    return left and sum(stage.has_victim for stage in stages) <= 1


@final
class Composed(Operator):
    """Mechanisms one after the other, each with constants of its own.

    Args:
        stages: the operators in the order in which the mechanisms act; they fit together by `composes`.
    """

    def __init__(self, stages: Sequence[Operator]) -> None:
        super().__init__({})
        self._stages = tuple(stages)

    def read(self, sent: Tensors) -> Tensors:
        """Read ``PLACE.NAME`` for each stage, off the observation in which all later stages are undone."""
        constants: Tensors = {}
        for place, stage in reversed(tuple(enumerate(self._stages))):
            constants |= {f"{place}.{name}": value for name, value in stage.read(sent).items()}
            sent = stage.undo(sent)
        return constants

    def undo(self, sent: Tensors) -> Tensors:
        """Undo the stages as far as they can be, from the last to the first."""
        for stage in reversed(self._stages):
            sent = stage.undo(sent)
        return sent

    def apply(self, trial: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Apply the stages in order, each with its own constants."""
        for place, stage in enumerate(self._stages):
            prefix = f"{place}."
            mine = {name.removeprefix(prefix): v for name, v in constants.items() if name.startswith(prefix)}
            trial = stage.apply(trial, sent, mine)
        return trial

    def unmodelled_part(
        self, batch: int, steps: int, spared: frozenset[Trait] = TRAITS, sent: Sequence[str] | None = None
    ) -> str:
        """Name the omissions of all stages."""
        omissions: list[str] = []
        for stage in reversed(self._stages):
            omissions.append(stage.unmodelled_part(batch, steps, spared, sent))
            spared &= stage.preserves
        return " and ".join(filter(None, reversed(omissions)))

    @property
    def noise(self) -> float | None:
        """Deviation of the sum of all stages' noise, which no later stage changes; None: no noise."""
        deviations = [stage.noise for stage in self._stages if stage.noise is not None]
        return sum(deviation**2 for deviation in deviations) ** 0.5 if deviations else None

    def victim(self, plain: PlainVictim, received: Tensors, local: LocalSteps | None) -> VictimModel:
        """Build the victim of the only stage that has one; else that of the local steps."""
        for stage in self._stages:
            if stage.has_victim:
                return stage.victim(plain, received, local)
        return super().victim(plain, received, local)
