"""Utility of a model: the final figures of result.json that say how good it is, and how they are written.

The claim on a run's privacy, a column beside them, is written here as well.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from flfw.privacy.rounding import at_most


@dataclass(frozen=True)
class Utility(ABC):
    """Final figure of result.json that says how good a model is.

    Attributes:
        key: its name in result.json and matrix.json.
        when: when it was measured, in words.
        name: its name in a sentence.
        names: the plural of the name.
        direction: the direction of its axis, to stand behind a name; may be empty.
        scale: scale and direction, in words; may be empty.
        ends: both ends of an axis or a range, in words, the smaller number first.
        side: side of a plot on which the best stand.
        validation: key of the clients' figure that chooses their best round.
    """

    key: str
    when: str
    name: ClassVar[str]
    names: ClassVar[str]
    direction: ClassVar[str]
    scale: ClassVar[str]
    ends: ClassVar[str]
    side: ClassVar[str]
    validation: ClassVar[str]

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
    def heading(self) -> str:
        """Name, and when it was measured unless that is after local training, as usual."""
        return self.name if self.key.endswith("_local") else self.words

    @property
    def remark(self) -> str:
        """Sentence on how to read it; empty where there is no scale to name."""
        return f"The {self.name} is {self.scale}." if self.scale else ""

    def line(self, value: float) -> str:
        """Format a value for a line of the terminal: ``accuracy 0.800 as received``."""
        return f"{self.name} {self.number(value)} {self.when}"

    @abstractmethod
    def number(self, value: float) -> str:
        """Format a value for the terminal: ``0.800`` or ``39.1``."""

    @abstractmethod
    def bare(self, value: float) -> str:
        """Format a value without a sign of its unit: ``80.0`` of an accuracy of 0.8, ``39.1`` of an error."""

    @abstractmethod
    def text(self, value: float | None, decimals: int = 1) -> str:
        """Format a value: ``80.0 %`` or ``39.1``; a dash where there is none.

        Args:
            value: the value.
            decimals: decimals of an accuracy.
        """

    @abstractmethod
    def at(self, value: float) -> str:
        """Format a value to end a sentence on leakage: ``80.0 % accuracy``, ``a mean absolute error of 39.1``."""

    @abstractmethod
    def tick(self, value: float) -> str:
        """Format a round number on an axis."""

    @abstractmethod
    def span(self, low: float, high: float) -> tuple[float, float]:
        """Return both ends of an axis for values from ``low`` to ``high``, with some air."""

    @abstractmethod
    def gain(self, value: float, over: float) -> float:
        """Return how much better a value is than another, in the same unit; below zero it is worse."""


@final
class Accuracy(Utility):
    """Share of examples that a classifier gets right, in [0, 1]."""

    name, names = "accuracy", "accuracies"
    direction = scale = ""
    ends, side = "from the least to the most accurate", "right"
    validation = "acc_validation"

    def number(self, value: float) -> str:
        """Format with three decimals."""
        return f"{value:.3f}"

    def bare(self, value: float) -> str:
        """Format in per cent."""
        return f"{100 * value:.1f}"

    def text(self, value: float | None, decimals: int = 1) -> str:
        """Format in per cent, with its sign."""
        return "–" if value is None else f"{100 * value:.{decimals}f} %"

    def at(self, value: float) -> str:
        """Format in per cent, before the name."""
        return f"{self.bare(value)}\N{NO-BREAK SPACE}% {self.name}"

    def tick(self, value: float) -> str:
        """Format in per cent, with as many decimals as it has."""
        return f"{100 * value:g} %"

    def span(self, low: float, high: float) -> tuple[float, float]:
        """Return ends at least ten points apart, within [0, 1]."""
        air = max(0.12 * (high - low), (0.1 - (high - low)) / 2, 0.01)
        return max(low - air, 0.0), min(high + air, 1.0)

    def gain(self, value: float, over: float) -> float:
        """Return the difference."""
        return value - over


@final
class AbsoluteError(Utility):
    """Mean absolute error of a regression, in the unit of the target; smaller is better."""

    name, names = "mean absolute error", "mean absolute errors"
    direction = " (less is better)"
    scale = "in the unit of the target: smaller is better"
    ends, side = "from the most to the least accurate", "left"
    validation = "r2_validation"

    def number(self, value: float) -> str:
        """Format with three significant digits."""
        return _figures(value)

    def bare(self, value: float) -> str:
        """Format with three significant digits."""
        return _figures(value)

    def text(self, value: float | None, decimals: int = 1) -> str:
        """Format with three significant digits; places are of an accuracy alone."""
        return "–" if value is None else _figures(value)

    def at(self, value: float) -> str:
        """Format behind the name."""
        return f"a {self.name} of {self.text(value)}"

    def tick(self, value: float) -> str:
        """Format with as many digits as it has."""
        return f"{value:,.10g}"

    def span(self, low: float, high: float) -> tuple[float, float]:
        """Return ends at least a tenth of the largest error apart, not below 0."""
        air = max(0.12 * (high - low), 0.05 * high) or 1.0
        return max(low - air, 0.0), high + air

    def gain(self, value: float, over: float) -> float:
        """Return the difference with the opposite sign."""
        return over - value


ACCURACIES = (
    Accuracy("acc_local", "after local training"),
    Accuracy("acc_global", "as received"),
    Accuracy("acc_central", "on the server's test data"),
)
"""Accuracies of a classification; the first that was measured is the one to show."""

ERRORS = (AbsoluteError("mae_local", "after local training"), AbsoluteError("mae_global", "as received"))
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
    secret = "with noise_source=secure: " if claim.get("noise_source") == "seed" and claim["epsilon"] != "inf" else ""
    return f"{secret}{at_most(float(claim['epsilon']))}"


def claimed(claim: Mapping[str, Any]) -> str:
    """Format a claim of result.json: ``2.75 for one example against server``."""
    return f"{bound(claim)} for one {claim['unit']} against {claim['adversary']}"
