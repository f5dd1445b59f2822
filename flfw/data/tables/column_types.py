"""Kinds of the columns of a table, told by the values of all rows, also of test rows.

The training rows alone give scales and categories. A column without a value in them, or with equal numbers alone, is
dropped, too: see `fit_columns`. Tables are cached: who changes a rule raises ``_VERSION`` of `flfw.data.readers.table`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from flfw.data.files.columns import Column, Kind, NumberTarget, TableTask
from flfw.data.tables.names import TableSettings
from flfw.data.tables.reading import Table
from flfw.errors import InputError

_PAIRS = (("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"), ("0", "1"), ("0.0", "1.0"))
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?")
_NUMBER_WITH_COMMA = re.compile(r"[+-]?\d+(?:,\d+)?")
_COMMA_AND_THREE = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:(?:,\d{3}){2,}(?:\.\d+)?|(?:,\d{3})+\.\d+|(?:\.\d{3})+,\d+)")
_IDENTIFIER = re.compile(
    r"(?:^|[_\W])(?:id|ids|index|key|uuid|guid|mrn|nr|no|number|row)(?:$|[_\W])|[a-z]ID$|^Unnamed", re.IGNORECASE
)
_ALONE = 5  # rows of a value that are too few to hide in, if they are also below 1 %
_FEW = 20  # up to so many different values, or rows, are no identifiers; a target of as few whole numbers is of classes
_LONG = 40  # characters of a value, on average, from which it is free text
_MOSTLY = 0.8  # share of numbers from which the words among them are taken for a slip
_MOST_CLASSES = 1000
BANDS = 10  # of a regression's target


def infer_column_kinds(table: Table, settings: TableSettings) -> dict[str, tuple[Kind, str]]:
    """Return the kind of each column, with the reason where one is left out.

    Args:
        table: words of the columns, "" where a value is missing.
        settings: columns whose kind is given.

    Raises:
        InputError: a given kind does not fit the values, or a column has words among numbers.
    """
    names = list(table)
    given: dict[str, Kind] = {}
    for kind in ("numeric", "categorical", "boolean", "date"):
        for name in settings.chosen(kind, names):
            if given.setdefault(name, kind) != kind:
                raise InputError(f"Expected one kind of column {name}, got csv.{given[name]} and csv.{kind}.")
    dropped = set(settings.chosen("drop", names))
    by_name: dict[str, tuple[Kind, str]] = {}
    mixed: list[str] = []
    for name in names:
        if name in dropped:
            by_name[name] = "dropped", "as asked"
        elif name in given:
            _require_kind(name, table[name], given[name])
            by_name[name] = given[name], ""
        else:
            try:
                by_name[name] = _infer_kind(name, table[name])
            except _WordAmongNumbersError as error:
                mixed.append(f"{name} ({error})")
    if mixed:
        more = f" and {len(mixed) - 5} more columns" if len(mixed) > 5 else ""
        raise InputError(
            f"Expected numbers alone in a column of numbers, got other words in {', '.join(mixed[:5])}{more}; if they "
            "mean a missing value, name them by csv.missing, else name the columns by csv.categorical or csv.drop."
        )
    return by_name


class _WordAmongNumbersError(Exception):
    """Exception: a column of numbers has another word, which it names."""


def _infer_kind(name: str, words: np.ndarray) -> tuple[Kind, str]:
    """Return the kind of a column, and the reason where it is dropped.

    Raises:
        _WordAmongNumbersError: most values are numbers, but not all.
        InputError: numbers with separators of thousands, or that are not finite.
    """
    there = words[words != ""]
    values = _different(there)
    if len(values) < 2 and (len(values) == 0 or len(there) == len(words)):
        return "dropped", "all values missing" if len(values) == 0 else f"always {values[0]}"
    if _pair(values) is not None:
        return "boolean", ""
    _refuse_thousands(name, values, f"csv.numeric={name} if its commas are decimal ones")
    numbers = _numbers(there)
    share = float(np.mean(~np.isnan(numbers)))
    if share == 1.0 and len(values) == 2 and len(there) > _FEW:
        return "boolean", ""
    if share == 1.0:
        return _of_numbers(name, numbers)
    if all(map(_DATE.fullmatch, values)):
        return "date", ""
    if share >= _MOSTLY:
        raise _WordAmongNumbersError(repr(there[np.isnan(numbers)][0]))
    if len(values) > max(_FEW, len(there) // 2):
        return "dropped", f"an identifier or free text, {len(values)} values in {len(there)} rows"
    length = sum(map(len, there)) / len(there)
    if length > _LONG:
        return "dropped", f"free text, {length:.0f} characters on average"
    return "categorical", ""


def _of_numbers(name: str, numbers: np.ndarray) -> tuple[Kind, str]:
    if not np.isfinite(numbers).all():
        raise InputError(
            f"Expected finite numbers in column {name}, got an infinite one; correct it or csv.drop={name}."
        )
    different = len(np.unique(numbers))
    whole = bool((numbers == np.round(numbers)).all())
    unique = different == len(numbers) and len(numbers) > _FEW
    run = float(numbers.max()) - float(numbers.min()) == len(numbers) - 1
    if whole and unique and (_IDENTIFIER.search(name) or run):
        return "dropped", "an identifier, another whole number in each row"
    return "numeric", ""


def _different(words: np.ndarray) -> list[str]:
    """Return the different words, sorted."""
    return sorted(set(words.tolist()))


def _numbers(words: np.ndarray) -> np.ndarray:
    """Return words as numbers (N,), NaN where one is none; a decimal comma is understood if every word fits."""
    import pandas as pd

    if len(words) and all(map(_NUMBER_WITH_COMMA.fullmatch, words)):
        words = np.array([word.replace(",", ".") for word in words], dtype=object)
    return np.asarray(pd.to_numeric(words, errors="coerce"), dtype=np.float64)


def _refuse_thousands(name: str, words: Sequence[str], else_do: str) -> None:
    """Refuse numbers with signs between their thousands, also where a comma may be one: 12,345 is not 12.345.

    Args:
        name: the column, for a refusal.
        words: its values.
        else_do: another way out.

    Raises:
        InputError: each value is a number, and of the commas each has three digits behind it, or one surely is no
            decimal one.
    """
    commas = [word for word in words if "," in word]
    sure = [word for word in commas if _THOUSANDS.fullmatch(word)]
    if not (sure or (commas and all(map(_COMMA_AND_THREE.fullmatch, commas)))):
        return
    rest = [word for word in words if word not in sure and not _NUMBER_WITH_COMMA.fullmatch(word)]
    if not rest or not np.isnan(_numbers(np.array(rest, dtype=object))).any():
        got = f"{(sure or commas)[0]!r}; write 1234.5 for 1,234.5, or {else_do}"
        raise InputError(f"Expected numbers without signs between thousands in column {name}, got {got}.")


def _pair(values: Sequence[str]) -> tuple[str, str] | None:
    """Return the words for 0 and 1 if they are two usual ones."""
    words = sorted(values, key=str.lower)
    lower = tuple(word.lower() for word in words)
    return (words[0], words[1]) if lower in _PAIRS else None


def _days(name: str, words: np.ndarray) -> np.ndarray:
    """Return dates as days since 1970 (N,), with the time of the day as a fraction."""
    import pandas as pd

    moments = pd.DatetimeIndex(pd.to_datetime(words, errors="coerce", format="ISO8601", utc=True))
    wrong = np.asarray(moments.isna())
    if wrong.any():
        got = f"{words[wrong][0]!r}; write them so, or csv.drop={name}"
        raise InputError(f"Expected dates as 2026-11-27 in column {name}, got {got}.")
    # Microseconds reach beyond the year 9999, which tables write for "never"; nanoseconds end in 2262.
    since = moments.as_unit("us") - pd.Timestamp(0, tz="UTC").as_unit("us")
    return np.asarray(since / pd.Timedelta(days=1), dtype=np.float64)


def _require_kind(name: str, words: np.ndarray, kind: Kind) -> None:
    there = words[words != ""]
    if not len(there):
        raise InputError(f"Expected values in column {name} for csv.{kind}, got none; put it into csv.drop.")
    if kind == "date":
        _days(name, there)
    if kind == "numeric":
        _finite(name, there)
    if kind == "boolean" and len(_different(there)) != 2:
        raise InputError(f"Expected two values in column {name} for csv.boolean, got {len(_different(there))}.")


def _finite(name: str, words: np.ndarray) -> np.ndarray:
    """Return words as finite numbers (N,).

    Raises:
        InputError: one is none.
    """
    values = _numbers(words)
    wrong = ~np.isfinite(values)
    if wrong.any():
        got = f"{words[wrong][0]!r}; name it in csv.missing, or the column in csv.categorical"
        raise InputError(f"Expected finite numbers in column {name}, got {got}.")
    return values


def fit_columns(table: Table, train: np.ndarray, by_name: Mapping[str, tuple[Kind, str]], maximum: int) -> list[Column]:
    """Return the columns with scales, categories and substitutes from the training rows.

    Args:
        table: words of the columns.
        train: (N,) of bool, the training rows.
        by_name: kind and reason of each.
        maximum: categories with a feature of their own at most.
    """
    columns = []
    for name, (kind, reason) in by_name.items():
        words = table[name][train]
        there = words[words != ""]
        absent = float(np.mean(words == ""))
        if kind == "dropped" or not len(there):
            columns.append(Column(name, "dropped", absent=absent, note=reason or "all training values missing"))
            continue
        # A value that is missing in test rows alone has no feature: no training could give it a weight.
        columns.append(replace(_fitted(name, kind, there, maximum), missing=absent > 0, absent=absent))
    return columns


def _fitted(name: str, kind: Kind, there: np.ndarray, maximum: int) -> Column:
    if kind in ("numeric", "date"):
        values = _finite(name, there) if kind == "numeric" else _days(name, there)
        low, high, middle = float(values.min()), float(values.max()), float(np.median(values))
        if low == high:
            return Column(name, "dropped", note=f"always {there[0]} in training rows")
        return Column(name, kind, low, high, fill=(middle - low) / (high - low))
    words, times = np.unique(there.astype(str), return_counts=True)
    counts = dict(zip(words.tolist(), times.tolist(), strict=True))
    if kind == "boolean":
        if len(counts) < 2:
            return Column(name, "dropped", note=f"always {there[0]} in training rows")
        pair = _pair(list(counts)) or tuple(counts)
        return Column(name, "boolean", categories=pair, fill=float(np.mean(there == pair[1]) >= 0.5))
    order = sorted(counts, key=lambda word: (-counts[word], word))
    rare = len(order) - maximum
    notes = [f"{rare} rarer value{' is' if rare == 1 else 's are'} (other)"] if rare > 0 else []
    alone = [word for word in order[:maximum] if counts[word] < min(_ALONE, len(there) / 100)]
    notes += [f"few rows have {', '.join(alone)}, which tells them apart"] if alone else []
    return Column(name, "categorical", categories=tuple(sorted(order[:maximum])), other=rare > 0, note="; ".join(notes))


def task_of(name: str, words: np.ndarray, requested: str) -> TableTask:
    """Return the task for a target: a regression for numbers, but for whole ones of at most 20 values.

    Raises:
        InputError: the target has too few values, too many classes, or is no number where a regression is asked for.
    """
    numbers, different = _numbers(words), _different(words)
    if len(different) < 2:
        raise InputError(f"Expected two different values or more in target {name}, got only {different[0]}.")
    if requested != "classification":
        _refuse_thousands(name, different, "csv.task=classification if they are names")
    if requested == "regression":
        _finite(name, words)
    number = not np.isnan(numbers).any()
    few = number and bool((numbers == np.round(numbers)).all()) and len(different) <= _FEW
    task = requested if requested != "auto" else "regression" if number and not few else "classification"
    if task == "classification" and len(different) > _MOST_CLASSES:
        got = f"{len(different)}; name another, or csv.task=regression"
        raise InputError(f"Expected at most {_MOST_CLASSES} classes in target {name}, got {got}.")
    return "regression" if task == "regression" else "classification"


def class_names(words: np.ndarray) -> tuple[str, ...]:
    """Return the classes in the order of their labels: numbers by size, words by the alphabet."""
    names = np.array(_different(words), dtype=object)
    numbers = _numbers(names)
    return tuple(names[np.argsort(numbers, kind="stable")] if not np.isnan(numbers).any() else names)


def number_target(name: str, values: np.ndarray) -> NumberTarget:
    """Return the constants of a regression's target from its training values (N,)."""
    cuts = np.unique(np.quantile(values, np.arange(1, BANDS) / BANDS))
    with np.errstate(over="ignore"):  # an infinite deviation is refused by the target's own check
        mean, std = float(values.mean()), float(values.std())
    if std == 0:
        raise InputError(f"Expected different values of target {name} in the training rows, got {values[0]:g} alone.")
    return NumberTarget(name, mean, std, tuple(cuts[cuts > values.min()].tolist()))


def target_numbers(name: str, words: np.ndarray) -> np.ndarray:
    """Return a target's values as numbers (N,).

    Raises:
        InputError: a value is no finite number.
    """
    return _finite(name, words)


def encoded(table: Table, columns: Sequence[Column]) -> np.ndarray:
    """Return the features (N, d) float32 in [0, 1] of rows.

    Raises:
        InputError: a value does not fit its column's kind.
    """
    return np.concatenate([_features(table[c.name], c) for c in columns if c.width], axis=1, dtype=np.float32)


def _features(words: np.ndarray, column: Column) -> np.ndarray:
    absent = words == ""
    part, there = np.zeros((len(words), column.width), np.float32), words[~absent]
    if column.kind == "categorical":
        place = {word: number for number, word in enumerate(column.categories)}
        codes = np.array([place.get(word, -1) for word in there], dtype=np.int64)
        rows, known = np.flatnonzero(~absent), codes >= 0
        part[rows[known], codes[known]] = 1
        if column.other:
            part[rows[~known], len(column.categories)] = 1
    else:
        part[~absent, 0] = _places(there, column)
        part[absent, 0] = column.fill
    if column.missing:
        part[absent, -1] = 1
    return part


def _places(there: np.ndarray, column: Column) -> np.ndarray:
    """Return the places in [0, 1] of the words of a column of one feature."""
    if column.kind == "boolean":
        strange = there[~np.isin(there.astype(str), column.categories)]
        if len(strange):
            both = " or ".join(column.categories)
            raise InputError(f"Expected {both} in boolean column {column.name}, got {strange[0]!r}.")
        return there == column.categories[1]
    values = _finite(column.name, there) if column.kind == "numeric" else _days(column.name, there)
    return np.clip((values - column.low) / (column.high - column.low), 0, 1)
