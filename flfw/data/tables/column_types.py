"""Kinds of the columns of a table, told by the values of all rows, also of test rows.

The training rows alone give scales and categories. A column without a value in them, or with equal numbers alone, is
dropped, too: see `fit_columns`. Tables are cached: who changes a rule raises ``_VERSION`` of `flfw.data.readers.table`.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from flfw.data.files.columns import Column, Kind, NumberTarget, TableSchema
from flfw.data.tables import written_values
from flfw.data.tables.names import TableSettings
from flfw.data.tables.reading import Table
from flfw.data.tables.written_values import AmbiguousError, DecimalSign, DecimalSigns, Quantities
from flfw.errors import InputError, abridged, alike

_NOTHING = (  # of pandas, R, spreadsheets, databases and statistics programs
    "na n/a n.a. <na> #na #n/a nan -nan nat null (null) none ? . .. - -- — #nv #div/0! #value! #ref! #num! \\n "
    "0000-00-00"
)
_MISSING = frozenset(_NOTHING.split())
_SAMPLE = 2000  # rows that tell a file's sign before decimals
_PAIRS = (("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"), ("0", "1"), ("0.0", "1.0"))
_IDENTIFIER = re.compile(
    r"(?:^|[_\W])(?:id|ids|index|key|uuid|guid|mrn|nr|no|number|row|zip|plz|ssn|icd\d*|code)(?:$|[_\W](?!of))|"
    r"(?-i:[a-z]ID$)|^Unnamed|zipcode|post.?code|phone|nummer$",
    re.IGNORECASE,
)
_LIKE_TIME = re.compile(
    r"\d{1,2}\.?([-/. ])(?:\d\d?|[^\W\d_]{3,9}\.?)\1(?:\d\d){1,2}(?: .*)?|\d{4}-\d\d-\d\d\D.*|\d*:[\d:.,]*\d"
)
_STAND_IN = re.compile(  # of a missing number or day, in files of surveys, statistics programs and machines
    r"-[1-9]|-?(?:([6-9])\1+|9+[5-8])(?:\.9+)?|-32768|-2147483648|1e\+20|.*e\+3\d|"
    r"(?:0001|1111|1[89]00|1899|1970|2099|2999|3000|9999)-(?:01-01|12-3\d)"
)
_EDGE = 9  # different values at each end of a column, among which stand-ins are
_ALONE = 5  # rows of a value that are too few to hide in, if they are also below 1 %
_FEW = 20  # up to so many different values, or rows, are no identifiers; a target of as few whole numbers is of classes
_LONG = 40  # characters of a value, on average, from which it is free text
_MOSTLY = 0.8  # share of numbers from which the words among them are taken for a slip
_MOST_CLASSES = 1000
_ROWS_OF_A_CLASS = 5  # on average, at least, where there are more than a few classes of words
_INEXACT = (2.0**53, 1e20)  # whole numbers of so many digits are not exact, and are rather identifiers
_NONE = ("None", "none", "NONE")  # a word among words; among numbers, true and false what programs write for nothing
BANDS = 10  # of a regression's target


@dataclass(frozen=True)
class ColumnValues:
    """Values of a column.

    Attributes:
        kind: what they are.
        values: (N,) float64 with NaN for a missing number or date; words with "" of all other kinds.
        unit: what stands beside each number.
        note: why the column is dropped, or what else is to be known.
    """

    kind: Kind
    values: np.ndarray
    unit: str = ""
    note: str = ""

    @property
    def absent(self) -> np.ndarray:
        """Mask (N,) of the missing values."""
        return np.isnan(self.values) if self.values.dtype == np.float64 else self.values == ""


class _SlipError(Exception):
    """Exception: most words of a column are numbers or days, but not one: (word, place, what the others are)."""


def decimal_signs(table: Table, settings: TableSettings, separator: str) -> DecimalSigns:
    """Return what a file tells of its sign before decimals: by numbers that have one reading, and by its separator.

    A column tells nothing against the separator: 14.30 may be a time in a German file, and 1,3 two answers in an
    English one.

    Args:
        table: words of all columns.
        settings: the sign that the user says.
        separator: sign between the cells; "": none, as in Parquet, whose columns tell nothing of one another.
    """
    usual: DecimalSign = "." if separator == "," else "," if separator == ";" else ""
    samples = (without_missing(words[:_SAMPLE], settings).tolist() for words in table.values())
    signs: set[DecimalSign] = {written_values.tells_decimal_sign([*{*words} - {""}]) for words in samples}
    signs.discard("")
    if not separator or len(signs) > 1 or (usual and signs - {usual}):
        return DecimalSigns(settings.decimal)
    return DecimalSigns(settings.decimal, *signs) if signs else DecimalSigns(settings.decimal, "", usual)


def without_missing(words: np.ndarray, settings: TableSettings, named: Sequence[str] = ()) -> np.ndarray:
    """Return words (N,) with "" for those that mean a missing value; words that a plan names never do."""
    missing = {word.strip().lower() for word in settings.missing.split(",")}
    numbers = {_number(word) for word in missing} - {None}  # -999 is -999.0, too
    missing |= _MISSING if settings.keep_default_na == "yes" else set()
    different = set(words.tolist()) - {"", *named}
    away = {word for word in different if word.lower() in missing or (numbers and _number(word) in numbers)}
    return np.array(["" if word in away else word for word in words], dtype=object) if away else words


def unused_missing(table: Table, settings: TableSettings) -> list[str]:
    """Return a note on each word of ``csv.missing`` that no cell holds."""
    asked = [word.strip() for word in settings.missing.split(",") if word.strip()]
    there = {word.lower() for words in table.values() for word in set(words.tolist())} if asked else set[str]()
    numbers = {_number(word) for word in there if word[:1] in "+-.0123456789"}
    unused = [word for word in asked if word.lower() not in there and not {_number(word)} & numbers - {None}]
    return [f"csv.missing names {word}, which no cell holds" for word in unused]


def _number(word: str) -> float | None:
    with suppress(ValueError):
        return float(word.replace(",", "."))
    return None


def infer_columns(
    table: Table, settings: TableSettings, signs: DecimalSigns, rows: np.ndarray
) -> dict[str, ColumnValues]:
    """Return the values of each column, with the reason where one is left out.

    Args:
        table: words of the columns.
        settings: columns whose kind is given, and how values are written.
        signs: what is known of the signs before decimals.
        rows: (N,) places of the rows in the file, for a refusal.

    Raises:
        InputError: a given kind does not fit the values, or a column has words among numbers, or several readings.
    """
    names = list(table)
    given: dict[str, Kind] = {}
    for kind in ("numeric", "categorical", "boolean", "date"):
        for name in settings.chosen(kind, names):
            if given.setdefault(name, kind) != kind:
                raise InputError(f"Expected one kind of column {name}, got csv.{given[name]} and csv.{kind}.")
    dropped = settings.chosen("drop", names)
    made: dict[str, ColumnValues] = {}
    slips: list[str] = []
    for name, words in table.items():
        try:
            if name in dropped:
                made[name] = ColumnValues("dropped", words, note="as asked")
            elif name in given:
                made[name] = _required(name, words, given[name], settings, signs)
            else:
                made[name] = _inferred(name, words, settings, signs)
        except AmbiguousError as error:
            way = f"csv.categorical={name} or csv.drop={name}"
            raise InputError(f"Expected one reading of column {name}, got {error}; else {way}.") from error
        except _SlipError as error:
            word, place, among = error.args
            slips.append(f"{name} ({word!r} in row {rows[place] + 1}, among {among})")
    if slips:
        raise InputError(
            f"Expected values of one kind in a column, got other words in {abridged(slips, 5, ' columns')}; if they "
            "mean a missing value, name them by csv.missing, else name the columns by csv.categorical or csv.drop."
        )
    return made


def _required(name: str, words: np.ndarray, kind: Kind, settings: TableSettings, signs: DecimalSigns) -> ColumnValues:
    """Return the values of a column whose kind the user says."""
    read = given_values(name, words, kind, settings, signs, _NONE if kind == "categorical" else ())
    different = set(read.values[~read.absent].tolist())
    if not different:
        raise InputError(f"Expected values in column {name} for csv.{kind}, got none; put it into csv.drop.")
    if kind == "boolean" and len(different) != 2:
        raise InputError(f"Expected two values in column {name} for csv.boolean, got {len(different)}.")
    return read


def _inferred(name: str, words: np.ndarray, settings: TableSettings, signs: DecimalSigns) -> ColumnValues:
    """Return the values of a column of features, and the reason where it is dropped.

    Raises:
        _SlipError: most values are numbers, but not all.
        AmbiguousError: they have several readings, or none that is known.
        InputError: a number is not finite.
    """
    read = _kind_and_values(words, settings, signs)
    there = words[~read.absent]
    different = set(there.tolist())
    if len(different) < 2 and (not different or len(there) == len(words)):
        return _dropped(read, f"always {different.pop()}" if different else "all values missing")
    if name.startswith("Unnamed") and len(different) == len(there):
        return _dropped(read, "an identifier, another value in each row")
    if read.kind == "numeric":
        two = len(there) > _FEW and len(np.unique(read.values[~read.absent])) == 2
        return replace(read, kind="boolean", values=as_names(read, words)) if two else _of_numbers(name, read)
    if read.kind == "date":
        return replace(read, note=_joined(read.note, stand_ins(read.values[~read.absent], days=True)))
    if read.kind != "categorical":
        return read
    like = [word for word in different if _LIKE_TIME.fullmatch(word)]
    unread = "in no known form of days or times (years have four digits, and a column one order)"
    if len(different) > max(_FEW, len(there) // 2):
        if len(like) >= _MOSTLY * len(different):
            raise AmbiguousError(f"{min(like)}, which is {unread}")
        return _dropped(read, f"an identifier or free text, {len(different)} values in {len(there)} rows")
    length = sum(map(len, there)) / len(there)
    if length > _LONG:
        return _dropped(read, f"free text, {length:.0f} characters on average")
    return replace(read, note=_joined(read.note, f"{min(like)} is {unread}" if len(like) == len(different) else ""))


def _dropped(read: ColumnValues, why: str) -> ColumnValues:
    return replace(read, kind="dropped", note=_joined(why, read.note))


def _of_numbers(name: str, read: ColumnValues) -> ColumnValues:
    numbers = read.values[~read.absent]
    if not np.isfinite(numbers).all():
        raise InputError(
            f"Expected finite numbers in column {name}, got an infinite one; correct it or csv.drop={name}."
        )
    whole = bool((numbers == np.round(numbers)).all())
    if whole and _INEXACT[0] <= np.abs(numbers).max() < _INEXACT[1]:
        return _dropped(read, "an identifier, whole numbers of 16 digits or more")
    unique = len(np.unique(numbers)) == len(numbers) and len(numbers) > _FEW
    run = float(numbers.max()) - float(numbers.min()) == len(numbers) - 1
    named = whole and _IDENTIFIER.search(name)
    if whole and unique and (named or run):
        return _dropped(read, "an identifier, another whole number in each row")
    code = "an identifier or a code, by its name? csv.categorical or csv.drop" if named else ""
    return replace(read, note=_joined(read.note, code, stand_ins(numbers)))


def stand_ins(numbers: np.ndarray, days: bool = False) -> str:
    """Return a hint on numbers (N,) that may stand for a missing value: far from all others, and more than once."""
    values, times = np.unique(numbers, return_counts=True)
    names = {
        value: str(np.datetime64(int(value), "D")) if days else f"{value:.15g}"
        for value in {*values[:_EDGE].tolist(), *values[-_EDGE:].tolist()}
    }
    doubtful = [value for value, name in names.items() if _STAND_IN.fullmatch(name)]
    rest = values[~np.isin(values, doubtful)]
    if len(rest) < 2:
        return ""
    low, high = float(rest[0]), float(rest[-1])
    # Beside several numbers from 0 on, -1 is doubtful however near it is.
    alone = not days and low >= 0 and len(rest) > 3 and sum(value < 0 for value in doubtful) < 3
    far = [
        (int(times[np.searchsorted(values, value)]), names[value])
        for value in sorted(doubtful)
        if max(low - value, value - high) > high - low or (alone and value < 0)
    ]
    way = "csv.missing names it, as it is written" if days else "csv.missing={}"
    return "; ".join(f"{count} times {name}: a missing value? {way.format(name)}" for count, name in far if count > 1)


def as_names(read: ColumnValues, words: np.ndarray) -> np.ndarray:
    """Return numbers as words (N,), each always in the shortest way that it is written: 1 for 1.0; "" where missing."""
    there = ~read.absent
    shortest: dict[float, str] = {}
    for value, word in set(zip(read.values[there].tolist(), words[there].tolist(), strict=True)):
        shortest[value] = min(shortest.get(value, word), word, key=lambda one: (len(one), one))
    return np.array(["" if np.isnan(value) else shortest[value] for value in read.values.tolist()], dtype=object)


def _kind_and_values(words: np.ndarray, settings: TableSettings, signs: DecimalSigns) -> ColumnValues:
    """Return words (N,) as numbers or days if all are, else as words: booleans or categories.

    Raises:
        _SlipError: most are numbers, days or times, but not all.
        AmbiguousError: they have several readings.
    """
    import pandas as pd

    present = without_missing(words, settings)
    there = np.flatnonzero(present != "")
    places, different = pd.factorize(present[there])
    pair = _pair(different.tolist())
    kind, reading = ("boolean", None) if pair else _numbers_or_days(different.tolist(), settings, signs)
    note = ""
    if reading is not None:
        known = ~np.isnan(reading.values)[places]
        if known.all() and len(known):
            values = np.full(len(words), np.nan)
            values[there] = reading.values[places]
            note = _joined(reading.note, _missing_words(words, present))
            return ColumnValues(kind, values, reading.unit, note)
        among = "days" if kind == "date" else "numbers"
        if len(known) and max(known.mean(), 1 - np.isnan(reading.values).mean()) >= _MOSTLY:
            raise _SlipError(present[there][~known][0], there[~known][0], among)
        note = reading.note
        if known.any():
            note = f"{among} beside words, such as {present[there][known][0]} and {present[there][~known][0]}"
    if not (pair and pair[1].lower() in ("true", "1", "1.0")):
        present = without_missing(words, settings, _named(words, settings))
        pair = _pair(sorted(set(present.tolist()) - {""}))
    note = _joined(note, alike(sorted(set(present.tolist()))[:_MOST_CLASSES]), _missing_words(words, present))
    return ColumnValues("boolean" if pair else "categorical", present, note=note)


def _named(words: np.ndarray, settings: TableSettings) -> list[str]:
    """Return words that mean a missing value elsewhere, and something among these words (N,): None, and - beside +."""
    missing = settings.missing.lower().split(",")
    return [word for word in (*_NONE, *["-"] * bool((words == "+").any())) if word.lower() not in missing]


def _numbers_or_days(words: list[str], settings: TableSettings, signs: DecimalSigns) -> tuple[Kind, Quantities]:
    """Return different words as numbers or days, in the form that most of them have."""
    for digits, what in ((8, "eight digits are read as a day"), (6, "six digits are read as a month")):
        if words and all(len(word) == digits and word.isdecimal() for word in words):
            compact = written_values.days(words)
            if np.isnan(compact.values).mean() <= (1 - _MOSTLY if digits == 8 else 0):
                return "date", replace(compact, note=what)
    try:
        numbers = written_values.numbers(words, signs)
    except written_values.SeveralUnitsError as error:
        if len(words) > _FEW:
            raise
        numbers = Quantities(np.full(len(words), np.nan), note=str(error))
    if not np.isnan(numbers.values).any():
        return "numeric", numbers
    others: list[tuple[Kind, Quantities]] = [
        ("date", written_values.days(words, settings.dayfirst)),
        ("numeric", written_values.hours(words)),
    ]
    return min([("numeric", numbers), *others], key=lambda one: int(np.isnan(one[1].values).sum()))


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _missing_words(words: np.ndarray, present: np.ndarray) -> str:
    gone = Counter(words[(present == "") & (words != "")].tolist()).most_common(3)
    return f"missing: {', '.join(f'{times} times {word}' for word, times in gone)}" if gone else ""


def given_values(
    name: str, words: np.ndarray, kind: Kind, settings: TableSettings, signs: DecimalSigns, named: Sequence[str] = ()
) -> ColumnValues:
    """Return the values of a column whose kind is known.

    Args:
        name: the column.
        words: (N,) its words.
        kind: what they are.
        settings: how values are written.
        signs: what is known of the signs before decimals.
        named: words that are values, whatever else they mean.

    Raises:
        InputError: a value is of another kind, or there is none.
    """
    import pandas as pd

    present = without_missing(words, settings, named)
    there = np.flatnonzero(present != "")
    if kind not in ("numeric", "date"):
        made = _as_named(present, named)
        note = _joined(
            alike(sorted({*made.tolist(), *named} - {*_NONE})[:_MOST_CLASSES]), _missing_words(words, present)
        )
        return ColumnValues(kind, made, note=note)
    places, different = pd.factorize(present[there])
    values = np.full(len(words), np.nan)
    try:
        reading = _as(kind, different.tolist(), settings, signs)
    except AmbiguousError as error:
        raise InputError(f"Expected one reading of column {name}, got {error}.") from error
    values[there] = reading.values[places]
    wrong = there[~np.isfinite(values[there])]
    if len(wrong):
        way = "name it in csv.missing, or the column in csv.categorical" if kind == "numeric" else f"or csv.drop={name}"
        expected = "finite numbers" if kind == "numeric" else "dates such as 2026-11-27"
        raise InputError(f"Expected {expected} in column {name}, got {words[wrong[0]]!r} in row {wrong[0] + 1}; {way}.")
    note = _joined(reading.note, stand_ins(values[there]) if kind == "numeric" else "", _missing_words(words, present))
    return ColumnValues(kind, values, reading.unit, note)


def _as_named(words: np.ndarray, named: Sequence[str]) -> np.ndarray:
    """Return words (N,) as a plan writes them, or in the shortest way: 1 for 1.0."""
    different = [*sorted(set(words.tolist()) - {"", *named}, key=len, reverse=True), *named]
    read = {word: plain[0] for word in different if (plain := written_values.plain_numbers([word])) is not None}
    names = {number: word for word, number in read.items()}
    return np.array([names[read[word]] if word in read else word for word in words], dtype=object)


def _as(kind: Kind, words: list[str], settings: TableSettings, signs: DecimalSigns) -> Quantities:
    if kind == "date":
        return written_values.days(words, settings.dayfirst)
    numbers = written_values.numbers(words, signs, codes=True)
    return min(numbers, written_values.hours(words), key=lambda one: int(np.isnan(one.values).sum()))


def _pair(values: Sequence[str]) -> tuple[str, str] | None:
    """Return the words for 0 and 1 if they are two usual ones."""
    words = sorted(values, key=str.lower) if len(values) == 2 else ["", ""]
    return (words[0], words[1]) if tuple(word.lower() for word in words) in _PAIRS else None


def fit_columns(by_name: Mapping[str, ColumnValues], train: np.ndarray, maximum: int) -> list[Column]:
    """Return the columns with scales, categories and substitutes from the training rows.

    Args:
        by_name: values of each column.
        train: (N,) of bool, the training rows.
        maximum: categories with a feature of their own at most.
    """
    columns = []
    for name, column in by_name.items():
        missing = column.absent[train]
        there, absent = column.values[train][~missing], float(np.mean(missing))
        if column.kind == "dropped" or not len(there):
            columns.append(Column(name, "dropped", absent=absent, note=column.note or "all training values missing"))
            continue
        fitted = _fitted(name, column, there, maximum)
        # A value that is missing in test rows alone has no feature: no training could give it a weight.
        columns.append(replace(fitted, missing=absent > 0, absent=absent, note=_joined(fitted.note, column.note)))
    return columns


def _fitted(name: str, column: ColumnValues, there: np.ndarray, maximum: int) -> Column:
    kind = column.kind
    if kind in ("numeric", "date"):
        low, high, middle = float(there.min()), float(there.max()), float(np.median(there))
        if low == high:
            return Column(name, "dropped", note=f"always {low:g} in training rows")
        return Column(name, kind, low, high, fill=(middle - low) / (high - low), unit=column.unit)
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


def infer_target(name: str, words: np.ndarray, settings: TableSettings, signs: DecimalSigns) -> ColumnValues:
    """Return the values of a target: numbers of a regression, or words (``categorical``) of classes.

    Numbers are a regression, but for whole ones of at most 20 values. Words are classes if there are few.

    Raises:
        InputError: the target has too few values, too many classes, a slip among numbers, or is no number where a
            regression is asked for.
    """
    if settings.task == "regression":
        read = given_values(name, words, "numeric", settings, signs)
    else:
        read = _read_target(name, words, settings, signs)
    there = read.values[~read.absent]
    different = len(set(there.tolist()))
    if read.kind == "numeric" and not np.isfinite(there).all():
        raise InputError(f"Expected finite numbers in target {name}, got an infinite one; correct it.")
    if different < 2:
        only = f"only {words[~read.absent][0]}" if different else "none"
        raise InputError(f"Expected two different values or more in target {name}, got {only}.")
    if read.kind == "numeric" and settings.task != "regression":  # of a regression that is asked for it is said
        read = replace(read, note=_joined(read.note, stand_ins(there)))
    few = read.kind == "numeric" and different <= _FEW and bool((there == np.round(there)).all())
    if settings.task == "regression" or (read.kind == "numeric" and settings.task == "auto" and not few):
        return read
    classes = as_names(read, words) if read.kind == "numeric" else np.where(read.absent, "", words).astype(object)
    different = len(set(classes.tolist()) - {""})
    if different > _MOST_CLASSES:
        got = f"{different}; name another, or csv.task=regression"
        raise InputError(f"Expected at most {_MOST_CLASSES} classes in target {name}, got {got}.")
    if settings.task == "auto" and different > max(_FEW, len(there) / _ROWS_OF_A_CLASS):
        got = f"{different} different words such as {min(set(there.tolist()))!r} in {len(there)} rows"
        raise InputError(
            f"Expected numbers or few classes in target {name}, got {got}; csv.task=classification if they are classes."
        )
    return ColumnValues("categorical", classes, note=read.note)


def _read_target(name: str, words: np.ndarray, settings: TableSettings, signs: DecimalSigns) -> ColumnValues:
    try:
        read = _kind_and_values(words, settings, signs)
    except (AmbiguousError, _SlipError) as error:
        if settings.task == "classification":
            return ColumnValues("categorical", without_missing(words, settings, _NONE))
        got, way = f"{error}; correct it", "csv.task=classification if they are names"
        if isinstance(error, _SlipError):
            got = f"{error.args[0]!r} in row {error.args[1] + 1}; name it in csv.missing"
        raise InputError(f"Expected numbers in target {name}, got {got}, or {way}.") from error
    if read.kind == "date" and settings.task == "auto":
        raise InputError(f"Expected numbers or classes in target {name}, got days; csv.task=classification takes them.")
    return read


def class_names(words: np.ndarray) -> tuple[str, ...]:
    """Return the classes in the order of their labels: numbers by size, words by the alphabet."""
    names = sorted(set(words.tolist()))
    numbers = written_values.plain_numbers(names, codes=True)
    return tuple(names if numbers is None else np.array(names, dtype=object)[np.argsort(numbers, kind="stable")])


def number_target(name: str, values: np.ndarray, unit: str) -> NumberTarget:
    """Return the constants of a regression's target from its training values (N,)."""
    cuts = np.unique(np.quantile(values, np.arange(1, BANDS) / BANDS))
    with np.errstate(over="ignore"):  # an infinite deviation is refused by the target's own check
        mean, std = float(values.mean()), float(values.std())
    if std == 0:
        raise InputError(f"Expected different values of target {name} in the training rows, got {values[0]:g} alone.")
    return NumberTarget(name, mean, std, tuple(cuts[cuts > values.min()].tolist()), unit)


def encoded(values: Mapping[str, ColumnValues], columns: Sequence[Column]) -> np.ndarray:
    """Return the features (N, d) float32 in [0, 1] of rows.

    Raises:
        InputError: a value does not fit its column's kind.
    """
    return np.concatenate([_features(values[c.name], c) for c in columns if c.width], axis=1, dtype=np.float32)


def _features(read: ColumnValues, column: Column) -> np.ndarray:
    absent = read.absent
    part, there = np.zeros((len(absent), column.width), np.float32), read.values[~absent]
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
    """Return the places in [0, 1] of the values of a column of one feature."""
    if column.kind == "boolean":
        strange = there[~np.isin(there.astype(str), column.categories)]
        if len(strange):
            both = " or ".join(column.categories)
            raise InputError(f"Expected {both} in boolean column {column.name}, got {strange[0]!r}.")
        return there == column.categories[1]
    return np.clip((there - column.low) / (column.high - column.low), 0, 1)


def by_schema(
    table: Table, schema: TableSchema, settings: TableSettings, signs: DecimalSigns
) -> tuple[dict[str, ColumnValues], dict[str, str]]:
    """Return the values of the kept columns of a plan, whose kinds and units it says, and remarks on these columns.

    Raises:
        InputError: a value is of another kind, or a column in another unit.
    """
    made, remarks = {}, {}
    for column in schema.kept:
        read = given_values(column.name, table[column.name], column.kind, settings, signs, column.categories)
        require_unit(column.name, read, column.unit)
        there = read.values[~read.absent]
        if column.is_scaled:
            what, beyond = "cut to the plan's range", (there < column.low) | (there > column.high)
        else:
            what, beyond = "other than the plan's", ~np.isin(there, column.categories)
        remarks[column.name] = _joined(f"{beyond.sum()} values are {what}" if beyond.any() else "", read.note)
        made[column.name] = read
    return made, {name: remark for name, remark in remarks.items() if remark}


def require_unit(name: str, read: ColumnValues, planned: str) -> None:
    """Refuse numbers in another unit than the plan's; zero needs none."""
    numbers = read.values[~read.absent] if read.kind == "numeric" else np.zeros(0)
    if written_values.same_unit(read.unit) != written_values.same_unit(planned) and numbers.any():
        raise InputError(
            f"Expected column {name} {f'in {planned}' if planned else 'without a unit'}, as its plan says, got "
            f"{read.unit or 'no unit'}; write the unit of the plan."
        )
