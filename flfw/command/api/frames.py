"""Tables of pandas from a run's results: their columns and types are the same for every run, also for an empty table.

A table's columns follow from the model of its rows in `flfw.files`: a field within a field is ``psnr.mean``. Numbers
are float64, whole ones and truths that may be missing are Int64 and boolean, text and lists are objects. Further fields
of a row come behind.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pandas as pd

from flfw.errors import InputError
from flfw.files.result_entries import Int, JsonNumber, NodeId, ResultModel
from flfw.files.result_file import read_rows

_WHOLE, _NUMBER, _TRUTH, _OTHER = "Int64", "float64", "boolean", "object"
_NODE = "UInt64"  # Flower's numbers of nodes have 64 bits and no sign
_TYPES = {
    _WHOLE: "round batch steps sum_size probe_slot seed iterations image index label rank candidates num-examples "
    "upload_bytes",
    _NODE: "client",
    _NUMBER: "acc_global acc_local loss seconds matching_loss label_accuracy lpips feature_error ceiling psnr ssim "
    "rmsd gain exact_features",
    _TRUTH: "adaptive failed exact succeeded recovered chance_match",
}
_TYPE_OF = {name: kind for kind, names in _TYPES.items() for name in names.split()}


def _known(names: str) -> dict[str, str]:
    """Return the types of columns of a run's CSV."""
    return {name: _TYPE_OF.get(name, _OTHER) for name in names.split()}


CLIENTS = _known("round client acc_global acc_local loss num-examples seconds upload_bytes")
"""Columns of clients.csv."""
FAILURES = _known("round at client reason")
"""Columns of failures.csv; a failure in the final evaluation has no round."""
IMAGES = _known(
    "attack vantage source rung curve batch steps sum_size defence adaptive adaptation round client probe_slot seed "
    "matching_loss iterations label_accuracy reconstruction truth image lpips feature_error ceiling index label failed "
    "psnr ssim rmsd gain rank candidates exact_features exact succeeded recovered chance_match"
)
"""Columns of audit.csv; those of the floors come behind."""
MATRIX = {
    **dict.fromkeys(("method", "defence", "attack"), _OTHER),
    "adaptive": _TRUTH,
    **dict.fromkeys(("vantage", "source"), _OTHER),
    "round": _WHOLE,
    "informed": _TRUTH,
    "seed": _WHOLE,
    **dict.fromkeys(("acc_local", "acc_global", "acc_central"), _NUMBER),
    **dict.fromkeys(("images", "failures", "recovered"), _WHOLE),
    **dict.fromkeys(("share_low", "share_high", "psnr_mean", "psnr_low", "psnr_high", "psnr_max"), _NUMBER),
    **dict.fromkeys(("ssim", "rmsd", "identified"), _NUMBER),
    **dict.fromkeys(("verdict", "evidence", "cause"), _OTHER),
    "seconds": _NUMBER,
    "folder": _OTHER,
}
"""Columns of matrix.csv."""
CELLS = {
    **dict.fromkeys(("matrix", "folder", "state", "reason", "method", "defence"), _OTHER),
    "seed": _WHOLE,
    **dict.fromkeys(("acc_local", "acc_global", "acc_central"), _NUMBER),
}
"""Fields of a cell in matrix.json, behind the folder of its matrix."""
_KINDS: dict[Any, str] = {int: _WHOLE, Int: _WHOLE, NodeId: _NODE, float: _NUMBER, bool: _TRUTH, JsonNumber: _NUMBER}
_INFINITE = {"inf": float("inf"), "-inf": float("-inf")}


def frame(
    rows: Iterable[Mapping[str, Any]] | None, form: type[ResultModel], left_out: Iterable[str] = ()
) -> pd.DataFrame:
    """Return rows of result.json as a table.

    Args:
        rows: the rows; None: there are none.
        form: the rows' model.
        left_out: fields that become no columns.
    """
    kinds = {name: kind for name, kind in columns(form).items() if name.partition(".")[0] not in {*left_out}}
    nothing = {name for name in form.model_fields if name not in kinds}
    kept = ({n: v for n, v in row.items() if not (n in left_out or (v is None and n in nothing))} for row in rows or ())
    return typed([_flat(row, kinds) for row in kept], kinds)


def typed(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> pd.DataFrame:
    """Return flat rows as a table of these columns and types; further columns come behind, as numbers if they are.

    Args:
        rows: the rows; text such as ``0.5`` counts as a number in a column of numbers, an empty one as missing.
        kinds: names and types of the columns.
    """
    further = dict.fromkeys(name for row in rows for name in row if name not in kinds)
    values = {name: [_value(row.get(name), kinds.get(name, "")) for row in rows] for name in (*kinds, *further)}
    series = {name: pd.Series(column, dtype=_kind_of(column, kinds.get(name))) for name, column in values.items()}
    return pd.DataFrame(series, columns=pd.Index([*kinds, *further], dtype=object))


def read_table(path: Path, kinds: Mapping[str, str]) -> pd.DataFrame:
    """Read a run's CSV as a table of these columns and types; further columns come behind, as numbers if they are.

    Raises:
        InputError: the file cannot be read, or has other things than numbers where numbers belong.
    """
    rows = read_rows(path)
    further = dict.fromkeys(name for row in rows for name in row if name not in kinds)
    by_values = {name: _NUMBER if all(_is_number(row[name]) for row in rows) else _OTHER for name in further}
    try:
        return typed(rows, {**kinds, **by_values})
    except ValueError as error:
        raise InputError(f"Expected numbers in {path}, got {error}; restore it, or run anew.") from error


def columns(form: type, prefix: str = "") -> dict[str, str]:
    """Return the names and types of a table's columns.

    Args:
        form: a model, or another class with annotations.
        prefix: in front of the names.

    >>> from flfw.files.result_entries import WorstFigures
    >>> columns(WorstFigures, "worst.")["worst.psnr"]
    'float64'
    """
    kinds: dict[str, str] = {}
    hints = get_type_hints(form, include_extras=True)
    for name in form.model_fields if issubclass(form, ResultModel) else hints:
        kind = _without_none(hints[name])
        if isinstance(kind, type) and issubclass(kind, ResultModel):
            kinds |= columns(kind, f"{prefix}{name}.")
        elif get_origin(kind) is not dict:  # of any names, such as ``extra``: known by the rows alone
            kinds[f"{prefix}{name}"] = _KINDS.get(kind, _OTHER)
    return kinds


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    others = [one for one in get_args(hint) if one is not NoneType]
    return others[0] if len(others) == 1 else hint


def _flat(row: Mapping[str, Any], kinds: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """Return a row whose tables within are columns of their own."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        whole = f"{prefix}{name}"
        if isinstance(value, Mapping) and whole not in kinds:
            flat |= _flat(value, kinds, f"{whole}.")
        elif whole in kinds or value is not None or not any(one.startswith(f"{whole}.") for one in kinds):
            flat[whole] = value
    return flat


def _value(value: Any, kind: str) -> Any:
    """Return a value as a column of a type takes it: text from a file is read, and infinity is written in letters."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or kind == _OTHER:
        return value
    if kind == _TRUTH:
        return value in ("True", "true")
    if kind in (_WHOLE, _NODE):
        return int(value) if value.lstrip("-").isdecimal() else float(value)
    return float(value) if kind == _NUMBER else _INFINITE.get(value, value)


def _is_number(text: str) -> bool:
    try:
        return text == "" or float(text) is not None
    except ValueError:
        return False


def _kind_of(values: Sequence[Any], kind: str | None) -> str:
    """Return the type of a column: its own, but float64 if numbers are not whole; without one, by its values."""
    known = [value for value in values if value is not None]
    if kind in (_WHOLE, _NODE) and any(isinstance(value, float) and not value.is_integer() for value in known):
        return _NUMBER
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
    return kind or (_NUMBER if numbers else _OTHER)
