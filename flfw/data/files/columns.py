"""Columns of a table: their kinds, and how a row of them becomes numbers in [0, 1] and is read back from these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import floor, log10
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from flfw.errors import InputError, require

Kind: TypeAlias = Literal["numeric", "date", "boolean", "categorical", "dropped"]
"""Kind of a column; dates count days since 1970."""
TableTask: TypeAlias = Literal["classification", "regression"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OTHER, MISSING, UNSEEN = "(other)", "(missing)", "(none of these)"
"""Words for the values of a column that have no name of their own."""

_TOLERANCE = 0.05 + 1e-6  # inputs are float32
_DIGITS = 4  # of a number that is read back


@dataclass(frozen=True)
class Column:
    """A column of a table and its features, the numbers in [0, 1] that stand for it.

    Attributes:
        name: its name in the table.
        kind: a number and a date are one feature, scaled from ``low`` to ``high``; a boolean is one, 0 or 1; a category
            is one for each value, of which one is 1; a dropped column has none.
        low: number or day that is 0; smaller ones are 0, too.
        high: number or day that is 1; larger ones are 1, too.
        categories: the values of a category with a feature each; of a boolean the words for 0 and for 1.
        other: whether a category has a feature for all other values; without one, these are 0 in all features.
        missing: whether a missing value has a feature of its own, the last one.
        fill: for numbers, dates and booleans the feature in place of a missing value, in [0, 1].
        absent: share of the training rows where the value is missing.
        note: why it is dropped, or what else is to be known.
        unit: what stands beside each number in the table.
    """

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 1.0
    categories: tuple[str, ...] = ()
    other: bool = False
    missing: bool = False
    fill: float = 0.0
    absent: float = 0.0
    note: str = ""
    unit: str = ""

    def __post_init__(self) -> None:
        require(self.kind in KINDS, f"a kind among {', '.join(KINDS)} for column {self.name}", kind=self.kind)
        if self.kind in ("numeric", "date"):
            require(self.low < self.high, f"low < high for column {self.name}", low=self.low, high=self.high)
            wide = self.high - self.low
            require(wide < np.inf, f"a finite range of column {self.name}", low=self.low, high=self.high)
        require(0 <= self.fill <= 1, f"0 <= fill <= 1 for column {self.name}", fill=self.fill)
        if self.kind == "boolean":
            two = len(set(self.categories)) == 2
            require(two, f"two categories for boolean column {self.name}", categories=",".join(self.categories))
        if self.kind == "categorical":
            named = len(set(self.categories)) == len(self.categories) > 0
            require(named, f"different categories for column {self.name}", categories=",".join(self.categories))

    @property
    def width(self) -> int:
        """Number of features."""
        if self.kind == "dropped":
            return 0
        return (len(self.categories) + self.other if self.kind == "categorical" else 1) + self.missing

    @property
    def is_scaled(self) -> bool:
        """True for a number or a date, which is right within a tolerance and not exactly."""
        return self.kind in ("numeric", "date")

    @property
    def encoding(self) -> str:
        """The features in words.

        >>> Column("ward", "categorical", categories=tuple("abcd"), other=True, missing=True).encoding
        '4 values (a, b, c, d), (other); (missing)'
        """
        if self.kind == "dropped":
            return f"left out: {self.note}"
        if self.kind == "categorical":
            shown = ", ".join(self.categories[:4]) + (
                f", and {len(self.categories) - 4} more" * (len(self.categories) > 4)
            )
            words = f"{len(self.categories)} values ({shown})" + f", {OTHER}" * self.other
        elif self.kind == "boolean":
            words = f"{self.categories[0]} = 0, {self.categories[1]} = 1"
        else:
            unit = f" {self.unit}" if self.unit else ""
            words = f"{_shown(self, self.low)}{unit} = 0 to {_shown(self, self.high)}{unit} = 1"
        return "; ".join([words, *([MISSING] if self.missing else []), *([self.note] if self.note else [])])

    @property
    def form(self) -> str:
        """The features in words without a value of anybody's."""
        words = {
            "numeric": "from the least to the greatest value",
            "date": "from the first to the last day",
            "boolean": "0 or 1",
            "categorical": f"one of {len(self.categories)} values{' or another' * self.other}",
            "dropped": "left out",
        }
        return words[self.kind] + " or missing" * self.missing

    def read_back(self, features: Sequence[float]) -> str:
        """Return the value that features stand for, as a word; of a category the greatest one counts.

        >>> Column("age", "numeric", low=20, high=60).read_back([0.5])
        '40'
        >>> Column("ward", "categorical", categories=("A", "B"), other=True).read_back([0.1, 0.2, 0.7])
        '(other)'
        >>> Column("dose", "numeric", low=0, high=1e-6).read_back([0.5])
        '5e-07'
        """
        values = np.nan_to_num(np.asarray(features, np.float64))
        if self.missing and values[-1] >= 0.5:
            return MISSING
        if self.kind == "categorical":
            words = [*self.categories, *([OTHER] if self.other else [])]
            chosen = values[: len(words)]
            return words[int(chosen.argmax())] if chosen.max() >= 0.5 else UNSEEN
        if self.kind == "boolean":
            return self.categories[int(values[0] >= 0.5)]
        return _shown(self, self.low + float(np.clip(values[0], 0, 1)) * (self.high - self.low))


@dataclass(frozen=True)
class NumberTarget:
    """Target of a regression: training and test labels are ``(value - mean) / std``.

    Attributes:
        name: name of its column.
        mean: mean of the training part, in the target's own units.
        std: its standard deviation, > 0.
        cuts: ascending numbers, in own units, that cut the training part's values into bands of about equal size.
            Where a comparison needs classes, such as that of a row with its like, the bands stand for them.
        unit: what stands beside each number in the table.
    """

    name: str
    mean: float
    std: float
    cuts: tuple[float, ...] = ()
    unit: str = ""

    def __post_init__(self) -> None:
        require(self.std > 0, f"a target {self.name} of which not all values are equal", std=self.std)
        finite = bool(np.isfinite([self.mean, self.std]).all())
        require(finite, f"a finite mean and deviation of target {self.name}", mean=self.mean, std=self.std)

    def bands(self, labels: np.ndarray) -> np.ndarray:
        """Return the band (N,) int64 of each standardised label (N,), 0 to the number of cuts.

        >>> NumberTarget("price", 10.0, 2.0, (10.0,)).bands(np.array([-1.0, 0.0, 3.0])).tolist()
        [0, 1, 1]
        """
        values = np.asarray(labels, np.float64) * self.std + self.mean
        return np.searchsorted(np.asarray(self.cuts, np.float64), values, side="right").astype(np.int64)


@dataclass(frozen=True)
class TableSchema:
    """Plan of a table: its columns in their order, its target and its task.

    Attributes:
        columns: all columns but the target and the patient's, in the order of the features.
        target: name of the target's column.
        task: classification or regression.
        classes: for a classification the names of the classes in the order of the labels.
        number: for a regression the target's constants.
        patient: name of the column of patients; empty: there is none.
        public: whether scales and categories were known to everybody before anybody looked at the rows.
    """

    columns: tuple[Column, ...]
    target: str
    task: TableTask
    classes: tuple[str, ...] = ()
    number: NumberTarget | None = None
    patient: str = ""
    public: bool = False

    def __post_init__(self) -> None:
        names = self.names
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        require(not twice, "each column once", columns=", ".join(twice))
        require(self.width > 0, "a column that is not left out", columns=len(self.columns))
        if self.task == "classification":
            require(len(set(self.classes)) == len(self.classes) >= 2, "two classes or more", classes=self.classes)
        else:
            require(self.number is not None, "the constants of a regression's target", number=self.number)

    @property
    def names(self) -> list[str]:
        """All columns of the table."""
        return [column.name for column in self.columns] + [self.target] + ([self.patient] if self.patient else [])

    @property
    def width(self) -> int:
        """Number of features."""
        return sum(column.width for column in self.columns)

    @property
    def labels(self) -> int:
        """Number of classes; 1, that of the outputs, for a regression."""
        return len(self.classes) if self.task == "classification" else 1

    @cached_property
    def kept(self) -> tuple[Column, ...]:
        """The columns with features."""
        return tuple(column for column in self.columns if column.width)

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """Places of the features of each kept column."""
        ends = np.cumsum([column.width for column in self.kept]).tolist()
        return tuple(slice(end - column.width, end) for column, end in zip(self.kept, ends, strict=True))

    @cached_property
    def scaled(self) -> np.ndarray:
        """Mask (d,) of the features that are numbers or dates; all others are 0 or 1."""
        return np.array([c.is_scaled and index == 0 for c in self.kept for index in range(c.width)], bool)

    def cells(self, matches: np.ndarray) -> np.ndarray:
        """Return which cells are right (..., C) where features are (..., d): those with all features right."""
        return np.stack([matches[..., index].all(-1) for index in self.places], -1)

    def deviation(self, truth: np.ndarray, guess: np.ndarray) -> float:
        """Return the root mean square over the cells of each one's greatest deviation, between rows (d,) in [0, 1].

        A wrong category is a whole cell in it, however many features its column has.
        """
        off = np.square(np.nan_to_num(np.clip(guess, 0, 1), nan=2.0) - truth)
        return float(np.sqrt(np.mean([off[index].max() for index in self.places])))

    def row(self, features: np.ndarray) -> list[str]:
        """Return the values of a row (d,) of features, a word for each kept column."""
        pairs = zip(self.kept, self.places, strict=True)
        return [column.read_back(features[index].tolist()) for column, index in pairs]

    def right(self, truth: np.ndarray, guess: np.ndarray | None) -> list[bool]:
        """Return for each kept column whether a guess (d,) is right: a number within 0.05 of its range."""
        if guess is None:
            return [False] * len(self.kept)
        close = np.abs(np.nan_to_num(guess, nan=2.0) - truth)
        bounds = [_TOLERANCE if column.is_scaled else 0.5 for column in self.kept]
        pairs = zip(self.kept, self.places, bounds, strict=True)
        return [bool((close[index] <= np.array([bound] + [0.5] * (c.width - 1))).all()) for c, index, bound in pairs]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON and TOML hold it; values equal to their defaults are left out."""
        named: dict[str, Any] = {"task": self.task, "target": self.target, "public": self.public}
        if self.number is not None:
            named |= {"mean": self.number.mean, "std": self.number.std, "cuts": list(self.number.cuts)}
            named |= {"unit": self.number.unit} if self.number.unit else {}
        else:
            named["classes"] = list(self.classes)
        if self.patient:
            named["patient"] = self.patient
        return named | {"columns": {column.name: _entries(column) for column in self.columns}}

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any], source: object) -> TableSchema:
        """Return the plan that `as_dict` gave.

        Args:
            entries: the plan.
            source: the file, for a refusal.

        Raises:
            InputError: a key is unknown or absent, or has a value of another type.
        """
        known = {"task", "target", "public", "mean", "std", "cuts", "classes", "patient", "columns", "unit"}
        if strange := sorted(set(entries) - known):
            raise InputError(f"Expected keys among {', '.join(sorted(known))} in {source}, got {', '.join(strange)}.")
        try:
            columns = tuple(_column(name, each) for name, each in dict(entries["columns"]).items())
            number = None
            if entries["task"] == "regression":
                cuts = tuple(map(float, entries.get("cuts", ())))
                mean, std, unit = float(entries["mean"]), float(entries["std"]), str(entries.get("unit", ""))
                number = NumberTarget(entries["target"], mean, std, cuts, unit)
            classes = tuple(map(str, entries.get("classes", ())))
            patient, public = entries.get("patient", ""), entries.get("public", False)
            require(isinstance(public, bool), "public=true or false", public=public)
            return cls(columns, entries["target"], entries["task"], classes, number, patient, public)
        except InputError as error:
            raise InputError(f"{str(error).rstrip('.')} in {source}.") from error
        except (KeyError, TypeError, ValueError) as error:
            got = f"{type(error).__name__}: {error}"
            raise InputError(f"Expected a plan of columns in {source}, got one that cannot be read ({got}).") from error


def _entries(column: Column) -> dict[str, Any]:
    default = Column(column.name, column.kind, categories=column.categories or ("0", "1"))
    named: dict[str, Any] = {"kind": column.kind}
    for field in fields(Column)[2:]:
        value = getattr(column, field.name)
        if field.name == "categories" and not value:
            continue
        if field.name == "categories" or value != getattr(default, field.name):
            named[field.name] = list(value) if isinstance(value, tuple) else value
    if column.is_scaled:
        named |= {"low": column.low, "high": column.high}
    return named


def _column(name: str, entries: Mapping[str, Any]) -> Column:
    known = {field.name: field.type for field in fields(Column)[1:]}
    if strange := sorted(set(entries) - set(known)):
        raise InputError(f"Expected keys among {', '.join(known)} of column {name}, got {', '.join(strange)}")
    made = {key: value for key, value in entries.items() if key not in ("categories", "low", "high", "fill", "absent")}
    made |= {key: float(entries[key]) for key in ("low", "high", "fill", "absent") if key in entries}
    for key in ("other", "missing"):
        flag = made.get(key, False)
        require(isinstance(flag, bool), f"true or false for {key} of column {name}", **{key: flag})
    return replace(Column(name, "dropped"), categories=tuple(map(str, entries.get("categories", ()))), **made)


def _shown(column: Column, value: float) -> str:
    if column.kind == "date":
        return str(np.datetime64(round(value), "D"))
    digits = max(0, _DIGITS - 1 - floor(log10(column.high - column.low)))
    return f"{value:.{_DIGITS}g}" if abs(value) >= 1e12 else f"{round(value, digits):.15g}"
