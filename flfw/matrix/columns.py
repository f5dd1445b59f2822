"""Columns of a run's results beside its leakage: the utility that was measured, and the claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from flfw.privacy.rounding import at_most


@final
@dataclass(frozen=True)
class Utility:
    """Final figure of result.json that says how good a model is: an accuracy, or a regression's mean absolute error.

    Attributes:
        key: its name in result.json and matrix.json.
        when: when it was measured, in words.
        is_share: whether it is an accuracy, in [0, 1]; else it is an error in the unit of the target, and smaller is
            better.
    """

    key: str
    when: str
    is_share: bool = True

    @property
    def name(self) -> str:
        """Name in a sentence."""
        return "accuracy" if self.is_share else "mean absolute error"

    @property
    def names(self) -> str:
        """Name of several."""
        return "accuracies" if self.is_share else "mean absolute errors"

    @property
    def noun(self) -> str:
        """Last word of the name."""
        return self.name.split()[-1]

    @property
    def column(self) -> str:
        """Name of a column of a figure's numbers."""
        return self.name.replace(" ", "_")

    @property
    def words(self) -> str:
        """Name and when it was measured."""
        return f"{self.name} {self.when}"

    @property
    def direction(self) -> str:
        """Direction of its axis, to stand behind a name; empty for an accuracy."""
        return "" if self.is_share else " (less is better)"

    @property
    def heading(self) -> str:
        """Name, and when it was measured unless that is after local training, as usual."""
        return self.name if self.key.endswith("_local") else self.words

    @property
    def scale(self) -> str:
        """Scale and direction, in words; empty for an accuracy."""
        return "" if self.is_share else "in the unit of the target: smaller is better"

    @property
    def remark(self) -> str:
        """Sentence on how to read it; empty for an accuracy."""
        return f"The {self.name} is {self.scale}." if self.scale else ""

    @property
    def ends(self) -> str:
        """Both ends of an axis or a range, in words, the smaller number first."""
        return "from the least to the most accurate" if self.is_share else "from the most to the least accurate"

    @property
    def side(self) -> str:
        """Side of a plot on which the best stand."""
        return "right" if self.is_share else "left"

    def bare(self, value: float) -> str:
        """Format a value without a sign of its unit: ``80.0`` of an accuracy of 0.8, ``39.1`` of an error."""
        return f"{100 * value:.1f}" if self.is_share else _figures(value)

    def text(self, value: float | None, places: int = 1) -> str:
        """Format a value: ``80.0 %`` or ``39.1``; a dash where there is none.

        Args:
            value: the value.
            places: decimals of an accuracy.
        """
        if value is None:
            return "–"
        return f"{100 * value:.{places}f} %" if self.is_share else _figures(value)

    def line(self, value: float) -> str:
        """Format a value for a line of the terminal: ``accuracy 0.800 as received``."""
        return f"{self.name} {f'{value:.3f}' if self.is_share else _figures(value)} {self.when}"

    def at(self, value: float) -> str:
        """Format a value to end a sentence on leakage: ``80.0 % accuracy``, ``a mean absolute error of 39.1``."""
        return f"{self.text(value)} {self.name}" if self.is_share else f"a {self.name} of {self.text(value)}"

    def tick(self, value: float) -> str:
        """Format a round number on an axis."""
        return f"{100 * value:g} %" if self.is_share else f"{value:,.10g}"

    def span(self, low: float, high: float) -> tuple[float, float]:
        """Return both ends of an axis for values from ``low`` to ``high``; no model is below 0, nor above 100 %.

        Accuracies are at least ten points apart on it, errors a tenth of the largest.
        """
        if self.is_share:
            air = max(0.12 * (high - low), (0.1 - (high - low)) / 2, 0.01)
            return max(low - air, 0.0), min(high + air, 1.0)
        air = max(0.12 * (high - low), 0.05 * high) or 1.0
        return max(low - air, 0.0), high + air

    def gain(self, value: float, over: float) -> float:
        """Return how much better a value is than another, in the same unit; below zero it is worse."""
        return value - over if self.is_share else over - value


ACCURACIES = (
    Utility("acc_local", "after local training"),
    Utility("acc_global", "as received"),
    Utility("acc_central", "on the server's test data"),
)
"""Accuracies of a classification; the first that was measured is the one to show."""
ERRORS = (
    Utility("mae_local", "after local training", is_share=False),
    Utility("mae_global", "as received", is_share=False),
)
"""Errors of a regression, which has no accuracy, in the same order."""

RECEIVED = ACCURACIES[1], ERRORS[1]
"""Utilities of the model as received."""
UTILITIES = {one.key: one for one in (*ACCURACIES, *ERRORS)}
"""All utilities, by their keys."""


def family(measured: Iterable[Mapping[str, Any]]) -> tuple[Utility, ...]:
    """Return the utilities of some runs: `ERRORS` if any has one, else `ACCURACIES`.

    Args:
        measured: mappings by the keys of utilities, as in result.json and matrix.json.
    """
    return ERRORS if any(each.get(one.key) is not None for each in measured for one in ERRORS) else ACCURACIES


def shown(combinations: Sequence[Mapping[str, Any]]) -> Utility:
    """Return the utility to show: the first that all combinations have, else the first that any has.

    Clients of a run with ``metrics=none`` report no accuracy, with ``metrics=private`` none after local training.

    Args:
        combinations: as in matrix.json.
    """
    utilities = family(combinations)
    for needed in (all, any):
        for one in utilities:
            if combinations and needed(each.get(one.key) for each in combinations):
                return one
    return utilities[0]


def _figures(value: float) -> str:
    """Format with three significant digits, but numbers of four to seven digits in full.

    >>> _figures(42.0), _figures(0.00012345), _figures(312.0), _figures(999.6), _figures(12345.6), _figures(2.5e12)
    ('42.0', '0.000123', '312', '1,000', '12,346', '2.50e+12')
    """
    return f"{value:,.0f}" if 999.5 <= value < 9_999_999.5 else f"{value:#.3g}".rstrip(".")


def bound(claim: Mapping[str, Any]) -> str:
    """Format the epsilon of a claim of result.json; with seeded noise it holds only for another source of noise."""
    secret = "with noise_source=secure: " if claim.get("noise") == "seed" and claim["epsilon"] != "inf" else ""
    return f"{secret}{at_most(float(claim['epsilon']))}"


def claimed(claim: Mapping[str, Any]) -> str:
    """Format a claim of result.json: ``2.75 for one example against server``."""
    return f"{bound(claim)} for one {claim['unit']} against {claim['adversary']}"
