"""How a paper counts the privacy that it prints, kept beside what we count and never in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from flfw.privacy.accountants import Accountant, account
from flfw.privacy.claims import Unit
from flfw.privacy.mechanism import Mechanism, phases


@final
@dataclass(frozen=True)
class Published:
    """A paper's count.

    Attributes:
        units: the mechanism that the paper takes for whose privacy.
        accountant: that it uses.
        remarks: sentences on what it takes for granted.
    """

    units: Mapping[Unit, Mechanism]
    accountant: Accountant
    remarks: tuple[str, ...]

    def epsilon(self, unit: Unit, delta: float) -> float:
        """As the paper would print it, for one of its units."""
        return account(phases(self.units[unit]), delta, self.accountant).epsilon
