"""Tables that only the sites of a federation have, with the plan of the columns that the federation gives to all.

``--dataset site:PLAN.toml`` becomes ``site:D:CLASSES@plan-DIGEST``, for a regression ``site:D:real@plan-DIGEST``: the
server and the user that submits a run need no more. Each site has the plan in its data root, beside its rows.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from flfw.data.files.columns import TableSchema
from flfw.data.tables import plan_file
from flfw.data.tables.names import TableName, TableSettings
from flfw.data.tables.plan_file import KEPT
from flfw.errors import InputError

_FORM = re.compile(r"([1-9]\d*):([1-9]\d*|real)@plan-([0-9a-f]{16})")
_ENDING = ".toml"
_ALL, _PARTS = "rows", ("train", "test")
_WAY_OUT = "set the site's data root (--data-root, data-root in its node config)"


def named(name: str) -> str:
    """Return ``site:PLAN.toml`` as the name for all machines, which says the plan's digest; other names stay.

    Raises:
        InputError: the plan cannot be read.
    """
    prefix, _, word = name.partition(":")
    if prefix != "site" or not word.endswith(_ENDING):
        return name
    path = Path(word).expanduser().absolute()
    schema = plan_file.read_plan(path)
    if schema is None:
        raise InputError(
            f"Expected a plan with a table for each column in {path}, got none; flfw data columns writes one."
        )
    return name_of(schema)


def name_of(schema: TableSchema) -> str:
    """Return the name of the sites' tables with a plan."""
    classes = "real" if schema.number is not None else str(schema.labels)
    return f"site:{schema.width}:{classes}@plan-{plan_file.plan_digest(schema)}"


def parsed(word: str) -> tuple[int, str, str] | None:
    """Return the features, the classes (``real``: of a regression) and the digest in ``D:CLASSES@plan-DIGEST``.

    Return None for another word behind ``site:``, which names no tables with a plan.
    """
    found = _FORM.fullmatch(word)
    return (int(found[1]), found[2], found[3]) if found else None


def files_of(root: Path, endings: Sequence[str] = (".csv", ".parquet")) -> list[Path]:
    """Return the file of all rows, or those of both parts.

    Raises:
        InputError: there are none.
    """
    for ending in endings:
        parts = [root / f"{name}{ending}" for name in _PARTS]
        if all(path.is_file() for path in parts):
            return parts
        if (root / f"{_ALL}{ending}").is_file():
            return [root / f"{_ALL}{ending}"]
    kinds = "train.csv and test.csv, or rows.csv" + ", or .parquet" * (".parquet" in endings)
    raise InputError(f"Expected {kinds}, got {root} without; {_WAY_OUT}.")


def unused_files(root: Path, endings: Sequence[str] = (".csv", ".parquet")) -> list[str]:
    """Return the names of files of rows beside the ones that are read."""
    names = [f"{name}{ending}" for ending in endings for name in (_ALL, *_PARTS)]
    return [name for name in names if (root / name).is_file() and root / name not in files_of(root, endings)]


def table_name(root: Path) -> TableName:
    """Return the name of the table in a site's data root, which is read by the plan beside it.

    Raises:
        InputError: there are no rows, or no plan.
    """
    schema, (rows, *tests) = _planned(root), files_of(root)
    settings = TableSettings(columns=str(root / KEPT), test=str(tests[0]) if tests else "")
    return TableName(rows.suffix.removeprefix("."), str(rows), schema.target, settings).absolute()


def require_plan(root: Path, digest: str) -> None:
    """Refuse a site whose plan is not the federation's.

    Raises:
        InputError: there is no plan, or another one.
    """
    if (got := plan_file.plan_digest(_planned(root))) != digest:
        raise InputError(f"Expected the plan of columns {digest} in {root / KEPT}, got {got}; get the federation's.")


def _planned(root: Path) -> TableSchema:
    schema = plan_file.read_plan(root / KEPT) if (root / KEPT).is_file() else None
    if schema is None:
        raise InputError(f"Expected the federation's plan of columns in {root / KEPT}, got none; {_WAY_OUT}.")
    return schema
