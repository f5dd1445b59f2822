"""Values as people write them: numbers with units and signs between thousands, days, and hours.

A column has one form. A word that alone has two readings (1,234; 03/04/2016) is read by what the other words of its
column say, and refused where they say nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias
from unicodedata import normalize

import numpy as np

DecimalSign: TypeAlias = Literal["", ".", ","]
YesNo: TypeAlias = Literal["", "yes", "no"]


class DecimalSigns(NamedTuple):
    """What is known of the sign before decimals in a file; "": nothing.

    Attributes:
        given: the one that the user says.
        told: the one of words such as 1.234 and 1,234, as other columns tell.
        usual: likewise, as the sign between cells lets one expect; it is taken where all words have it.
    """

    given: DecimalSign = ""
    told: DecimalSign = ""
    usual: DecimalSign = ""


_UNKNOWN = DecimalSigns()
_BLANK = " \u00a0\u2007\u2009\u202f"
_CURRENCY = "$€£¥₹₽₩₪₺฿₫₴₦₱"
_CODES = r"(?:US|A|C|R)\$|USD|EUR|GBP|CHF|JPY|INR|CNY|AUD|CAD|SEK|NOK|DKK|PLN|CZK|HUF|BRL|ZAR|KRW|TRY|MXN|NZD|Rs\.?"
_NUMBER = re.compile(
    rf"""(?P<bound>[<>≤≥]=?\s*)?(?P<minus>[+\-\u2212\u2013(]\s?)?
    (?P<before>(?:{_CODES}|[{_CURRENCY}])\s?)?(?P<inner>[-(])?
    (?P<body>\d+(?:[.,'’{_BLANK}]\d+)*[.,]?|[.,]\d+)(?P<power>[eE][+-]?\d+)?
    (?P<after>[{_BLANK}]?(?![²³¹¼½¾])(?:[^\W\d_]|[%‰°{_CURRENCY}])[^\s\d,;:()<>=]{{0,9}}\d?)?
    (?P<last>[-)])?""",
    re.VERBOSE,
)
_PLAIN = {sign: re.compile(rf"\d+(?:[{sign}]\d*)?|[{sign}]\d+") for sign in ".,"}
_GROUPED = {
    ".": re.compile(
        rf"[1-9]\d{{0,2}}([,'’{_BLANK}])\d{{3}}(?:\1\d{{3}})*(?:\.\d+)?|[1-9]\d?(?:,\d{{2}})+,\d{{3}}(?:\.\d+)?"
    ),
    ",": re.compile(rf"[1-9]\d{{0,2}}([.'’{_BLANK}])\d{{3}}(?:\1\d{{3}})*(?:,\d+)?"),
}
_TIME = r"(?P<hour>\d+):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d(?:[.,]\d+)?))?(?:\s?(?P<half>[AaPp])\.?[Mm]\.?)?"
_SPAN = re.compile(rf"(?:(?P<days>-?\d+) ?(?:days?|d),? ?\+?)?(?P<minus>-)?{_TIME}")
_MONTHS = {  # from each beginning of three letters or more in English, German, French, Spanish and Italian
    name[:letters]: number
    for number, names in {
        1: "january januar janvier enero gennaio", 2: "february februar février fevrier febrero febbraio",
        3: "march märz maerz mrz mars marzo", 4: "april avril abril aprile", 5: "may mai mayo maggio",
        6: "june juni juin junio giugno", 7: "july juli juillet julio luglio", 8: "august août aout agosto",
        9: "september septembre septiembre settembre", 10: "october oktober octobre octubre ottobre",
        11: "november novembre noviembre", 12: "december dezember décembre decembre diciembre dicembre",
    }.items()
    for name in names.split()
    for letters in range(3, len(name) + 1)
    if name[:letters] != "jui"  # juin or juillet
}  # fmt: skip
_MONTH = r"(?P<name>[^\W\d_]{3,})\.?"
_DAYS = [
    re.compile(rf"{day}(?:(?:T|:|,?\s+){_TIME}\s?(?P<zone>Z|UTC|[+-]\d{{2}}(?::?\d{{2}})?)?)?", re.IGNORECASE)
    for day in (
        r"(?P<year>\d{4})([-/.])(?P<month>\d{1,2})\2(?P<day>\d{1,2})",
        r"(?P<one>\d{1,2})(?P<sign>[-/.])(?P<two>\d{1,2})(?P=sign)(?P<year>\d{4})",
        r"(?P<year>(?:19|20)\d{2})(?P<month>\d{2})(?P<day>\d{2})",
        r"(?P<year>\d{4})-(?P<month>\d{2})",
        r"(?P<year>(?:19|20)\d{2})(?P<month>0[1-9]|1[0-2])",
        rf"(?P<day>\d{{1,2}})(?:\.|st|nd|rd|th|er)?[ -]?{_MONTH},?[ -]?(?P<year>\d{{4}})",
        rf"{_MONTH} (?P<day>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<year>\d{{4}})",
    )
]
_ORDERS: tuple[tuple[YesNo, int], ...] = (("yes", 1), ("no", 0))  # and the place of the month
_MONTHLY = _DAYS[3:5]
_CODE = re.compile(r"[+-]?0\d+|\d+E\d+")
_MOST_UNITS = 5  # more are rather words, as in addresses
_MILLI_OR_MEGA = re.compile(r"[mM](?:Pa|Hz|Bq|Gy|Sv|eV|Wh|Ohm|ohm)")


class AmbiguousError(ValueError):
    """Exception: words have several readings, or none in common; the message says which, and the way out."""


class SeveralUnitsError(AmbiguousError):
    """Exception: words are numbers in several units."""


@dataclass(frozen=True)
class Quantities:
    """Words of a column as numbers.

    Attributes:
        values: (N,) float64, NaN where a word is none.
        unit: what stands beside each number, such as ``%``; "": nothing.
        note: what else is to be known of the reading.
    """

    values: np.ndarray
    unit: str = ""
    note: str = ""


def numbers(words: Sequence[str], signs: DecimalSigns = _UNKNOWN, codes: bool = False) -> Quantities:
    """Read different words as numbers.

    Signs between thousands, one unit or currency beside all, bounds such as ``<0.5`` and negative numbers in
    parentheses are understood. Digits behind a leading zero, and 2E05, which no program writes, are codes.

    Args:
        words: (N,) different words, none of them empty.
        signs: what is known of the signs before decimals.
        codes: whether codes are numbers, too.

    Raises:
        AmbiguousError: all words are numbers, but have several readings or units.

    >>> numbers(["1 234,5 €", "12,25 €"]).values.tolist(), numbers(["0123", "5"]).values.tolist()
    ([1234.5, 12.25], [nan, nan])
    """
    none = Quantities(np.full(len(words), np.nan))
    coded = next((f"{word} is read as a number, no code" for word in words if re.fullmatch(r"0\d+\.\d+", word)), "")
    if (plain := plain_numbers(words, codes)) is not None:
        marked = [word.lstrip("+-") for word in words if "." in word]
        if not marked or signs.given == "." or any(not _digits(word, ",") for word in marked):
            return Quantities(plain, note=coded)
    parsed = [_NUMBER.fullmatch(word) for word in words]
    found = [one for one in parsed if one]
    if not codes and len(found) == len(words) and any(map(_is_code, found)):
        return replace(none, note="codes, as 0123 and 2E05 are; csv.numeric makes them numbers")
    units = {same_unit(unit): one for one in found if (unit := _unit(one)) or set(one["body"]) & set("123456789")}
    if len(units) > 1 and len(found) == len(words) and len(units) <= _MOST_UNITS:
        one, other = list(units.values())[:2]
        raise SeveralUnitsError(f"numbers in several units, such as {one[0]} and {other[0]}; write one")
    bounds = [one[0] for one in found if one["bound"]]
    if len(units) > 1 or not found or (not codes and len(found) - len(bounds) < min(len(bounds), 2)):
        return none
    bodies = [one["body"] for one in found]
    sign = signs.given or decimal_sign(bodies, signs, len(found) == len(words))
    values = np.array([_value(one, sign or ".") if one else np.nan for one in parsed], dtype=np.float64)
    against: DecimalSign = "." if sign == "," else ","
    if np.isnan(values).any() and signs.given and all(one and _digits(one["body"], against) for one in parsed):
        raise AmbiguousError(f"{words[int(np.isnan(values).argmax())]}, which is no number with csv.decimal={sign}")
    twofold = [body for body in bodies if "" != _digits(body, ".") != _digits(body, ",") != ""]
    notes = [f"{twofold[0]} is read as {_digits(twofold[0], sign or '.')}"] if twofold else []
    notes += [f"{', '.join(bounds[:3])} and their like are read as the number in them"] if bounds else []
    negative = [one[0] for one in found if _is_negative(one) and (one["minus"] or one["inner"] or "").strip() != "-"]
    notes += [f"{negative[0]} is read as negative"] if negative else []
    return Quantities(values, next((_unit(one) for one in units.values()), ""), "; ".join(notes))


def plain_numbers(words: Sequence[str], codes: bool = False) -> np.ndarray | None:
    """Return words that any program reads as numbers (N,); None: one is none, or a code."""
    import pandas as pd

    values = np.asarray(pd.to_numeric(np.array(words, dtype=object), errors="coerce"), dtype=np.float64)
    return None if np.isnan(values).any() or (not codes and any(map(_CODE.fullmatch, words))) else values


def _is_code(parsed: re.Match[str]) -> bool:
    return _CODE.fullmatch(parsed["body"] + (parsed["power"] or "")) is not None


def _unit(parsed: re.Match[str]) -> str:
    beside = (parsed["before"] or "").strip(_BLANK) or (parsed["after"] or "").strip(_BLANK)
    return beside.replace("\u03bc", "\u00b5")  # two signs of micro


def same_unit(unit: str) -> str:
    """Return a unit without its capitals and its plural, but for short ones and prefixes: mg is not Mg, nor mPa MPa."""
    return unit if len(unit) <= 2 or _MILLI_OR_MEGA.fullmatch(unit) else unit.lower().removesuffix("s")


def tells_decimal_sign(words: Sequence[str]) -> DecimalSign:
    """Return the sign before decimals that the words of a column tell; "": none, or some are no numbers."""
    parsed = [_NUMBER.fullmatch(word) for word in words]
    if not all(one and not _is_code(one) for one in parsed):
        return ""
    return decimal_sign([one["body"] for one in parsed if one], _UNKNOWN, whole=False)


def decimal_sign(bodies: Sequence[str], signs: DecimalSigns, whole: bool) -> DecimalSign:
    """Return the sign before decimals of numbers without units; "": both read them alike, or none reads all.

    Raises:
        AmbiguousError: the numbers are those of a whole column, and have two readings, or none in common.
    """
    fits: list[DecimalSign] = [sign for sign in (".", ",") if all(_digits(body, sign) for body in bodies)]
    twofold = [body for body in bodies if _digits(body, ".") != _digits(body, ",")]
    if len(fits) == 1 or not whole or not twofold:
        return fits[0] if len(fits) == 1 and twofold else ""
    if fits:
        if signs.told or (signs.usual and all(signs.usual in body for body in bodies)):
            return signs.told or signs.usual
        one = next((body for body in twofold if "," in body), twofold[0])
        read = f"{_digits(one, ',')} or {_digits(one, '.')}"
        raise AmbiguousError(f"{one}, which is {read}; say the sign before decimals (csv.decimal=. or csv.decimal=,)")
    if all(_digits(body, ".") or _digits(body, ",") for body in bodies):
        one, other = (next(body for body in bodies if not _digits(body, sign)) for sign in (",", "."))
        raise AmbiguousError(f"{one} beside {other}; write one sign before decimals")
    return ""


def _digits(body: str, sign: DecimalSign) -> str:
    """Return the digits of a number and a point before its decimals; "" where it is none with this sign."""
    if _PLAIN[sign].fullmatch(body):
        return body.replace(",", ".")
    return re.sub(rf"[^\d{sign}]", "", body).replace(",", ".") if _GROUPED[sign].fullmatch(body) else ""


def _is_negative(parsed: re.Match[str]) -> bool:
    if parsed["last"] == "-":
        return parsed["body"][-1] not in ".,"  # 12.- is a price
    return (parsed["minus"] or parsed["inner"] or "+")[0] != "+" or parsed["inner"] is not None


def _value(parsed: re.Match[str], sign: DecimalSign) -> float:
    digits = _digits(parsed["body"], sign)
    if not digits or ("(" in parsed[0]) != (parsed["last"] == ")"):
        return float("nan")
    return (-1 if _is_negative(parsed) else 1) * float(f"{digits}{parsed['power'] or ''}")


def hours(words: Sequence[str]) -> Quantities:
    """Read times of a day and durations, such as ``20:44``, ``5 days 21:47:00`` or ``9:05 pm``; NaN for other words.

    >>> hours(["1:30", "1 day 00:15:00"]).values.tolist()
    [1.5, 24.25]
    """
    parsed = [_SPAN.fullmatch(word) for word in words]
    return Quantities(np.array([_span(one) if one else np.nan for one in parsed], np.float64), "h", "read as hours")


def _span(parsed: re.Match[str]) -> float:
    clock = _hour(parsed) + int(parsed["minute"]) / 60 + float(_second(parsed)) / 3600
    return 24 * int(parsed["days"] or 0) + (-clock if parsed["minus"] else clock)


def _second(parsed: re.Match[str]) -> str:
    return (parsed["second"] or "00").replace(",", ".")


def _hour(parsed: re.Match[str]) -> float:
    """Return the hour of a time; NaN: there is none such, like 13 pm."""
    hour, half = int(parsed["hour"]), (parsed["half"] or "").lower()
    if not half:
        return hour
    return hour % 12 + 12 * (half == "p") if 1 <= hour <= 12 else float("nan")


def days(words: Sequence[str], day_first: YesNo = "") -> Quantities:
    """Read dates as days since 1970, the time of the day as a fraction; NaN for other words.

    Args:
        words: (N,) different words.
        day_first: whether 03/04/2016 is a day of April; "": told by the words.

    Raises:
        AmbiguousError: all words are dates, and would be others with days and months exchanged.

    >>> days(["1970-01-03", "02.01.1970 12:00"]).values.tolist()
    [2.0, 1.5]
    """
    import pandas as pd

    composed = [normalize("NFC", word) for word in words]
    parsed = [next(filter(_is_day, (form.fullmatch(word) for form in _DAYS)), None) for word in composed]
    pairs = {one[0]: (int(one["one"]), int(one["two"])) for one in parsed if one and one.groupdict().get("sign")}
    twofold = [word for word, (one, two) in pairs.items() if one != two and max(one, two) <= 12]
    orders: list[YesNo] = [order for order, month in _ORDERS if all(pair[month] <= 12 for pair in pairs.values())]
    note = ""
    if not day_first and pairs and orders:
        dotted = all("." in word for word in pairs) and "yes" in orders  # nobody writes so with the month first
        if len(orders) == 2 and twofold and all(parsed) and not dotted:
            way = "write the year first, or say csv.dayfirst=yes or no"
            raise AmbiguousError(f"{twofold[0]}, of which two numbers may be the day; {way}")
        day_first = "yes" if dotted else orders[0]
        note = f"read with the {'month' if day_first == 'no' else 'day'} first" if twofold else ""
    elif pairs and all(parsed) and orders and day_first not in orders:
        raise AmbiguousError(f"{next(iter(pairs))} or others, which are no days with csv.dayfirst={day_first}")
    if all(one and one.re in _MONTHLY for one in parsed):
        note = "months are read as their first days"
    written = [_iso(one, day_first != "no") if one else "" for one in parsed]
    moments = pd.DatetimeIndex(pd.to_datetime(written, errors="coerce", format="ISO8601", utc=True))
    # Microseconds reach beyond the year 9999, which tables write for "never"; nanoseconds end in 2262.
    since = moments.as_unit("us") - pd.Timestamp(0, tz="UTC").as_unit("us")
    return Quantities(np.asarray(since / pd.Timedelta(days=1), dtype=np.float64), note=note)


def _is_day(parsed: re.Match[str] | None) -> bool:
    return parsed is not None and parsed.groupdict().get("name", "may").lower() in _MONTHS


def _iso(parsed: re.Match[str], day_first: bool) -> str:
    parts = parsed.groupdict()
    if "one" in parts:
        day, month = (parts["one"], parts["two"]) if day_first else (parts["two"], parts["one"])
    else:
        day, month = parts.get("day") or 1, parts.get("month") or _MONTHS[parts["name"].lower()]
    written = f"{parts['year']}-{int(month):02}-{int(day):02}"
    if not parts["hour"]:
        return written
    hour, zone = _hour(parsed), (parts["zone"] or "").upper().replace("UTC", "Z")
    return "" if np.isnan(hour) else f"{written}T{hour:02}:{parts['minute']}:{_second(parsed)}{zone}"
