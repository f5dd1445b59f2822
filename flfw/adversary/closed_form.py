"""Base of the attacks that read the data off an observation, without a search by gradients and without labels."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from flfw.adversary.attack import Attack, AttackCost


class ClosedFormAttack(Attack, ABC):
    """Attack that has no iterations and uses no labels."""

    selection: ClassVar[str] = "closed form"
    """The rule that chooses the result, without the truth; printed in the report."""

    @property
    def cost(self) -> AttackCost:
        """A budget without iterations."""
        return AttackCost(iterations=0, restarts=1, selection=self.selection)

    @property
    def labels(self) -> str:
        """``not used``."""
        return "not used"
