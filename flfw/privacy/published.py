"""Privacy accounting as published in a paper, reported beside the accounting of flfw and never in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from flfw.privacy.accountants import Accountant, compute_epsilon
from flfw.privacy.claims import Unit
from flfw.privacy.mechanism import Mechanism, gaussian_events


@final
@dataclass(frozen=True)
class Published:
    """A paper's privacy accounting.

    Attributes:
        units: protected unit -> mechanism that the paper assumes for it; the unit that is clipped is the first.
        accountant: accountant that the paper uses.
        remarks: sentences on the paper's assumptions.
    """

    units: Mapping[Unit, Mechanism]
    accountant: Accountant
    remarks: tuple[str, ...]

    def epsilon(self, unit: Unit, delta: float) -> float:
        """Compute the epsilon that the paper would report for one of its units."""
        return compute_epsilon(gaussian_events(self.units[unit]), delta, self.accountant).epsilon
