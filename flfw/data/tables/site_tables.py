"""Tables that only the sites of a federation have, with the plan of the columns that the federation gives to all.

``--dataset site:PLAN.toml`` becomes ``site:D:CLASSES@plan-DIGEST``, for a regression ``site:D:real@plan-DIGEST``: the
server and the user that submits a run need no more. Each site has the plan in its data root, beside its rows.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from flfw.data.files.columns import TableSchema
from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.tables import plan_file
from flfw.data.tables.names import TableSettings
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


def is_planned(word: str) -> bool:
    """Return whether a word behind ``site:`` names tables with a plan."""
    return _FORM.fullmatch(word) is not None


def site_table(word: str, split: str) -> DatasetCard:
    """Return the card of ``D:CLASSES@plan-DIGEST``; no file is opened.

    A site has ``columns.toml``, the plan, in its data root, and ``train`` and ``test`` or ``rows``, as .csv or
    .parquet; of ``rows`` every fifth row of a class is for testing, as for ``csv:FILE@TARGET``. Values that a category
    of the plan does not name count as its other values.

    Args:
        word: the word behind ``site:``.
        split: the only possible split.
    """
    parsed = _FORM.fullmatch(word)
    assert parsed is not None, "asked for by is_planned"
    width, numbers = int(parsed[1]), parsed[2] == "real"
    card = DatasetCard(
        shape=(width,),
        classes=1 if numbers else int(parsed[2]),
        files={},
        read=partial(_read, digest=parsed[3]),
        source=f"the sites' own rows, which only they have, by the plan of columns {parsed[3]}",
        fetch="the site's own, in its data root",
        net="mlp",
        split=split,
        mean=(0.0,) * width,
        std=(1.0,) * width,
        numbers=numbers,
    )
    return replace(card, look=partial(_look, card=card, digest=parsed[3]))


def files_of(root: Path) -> list[Path]:
    """Return the file of all rows, or those of both parts.

    Raises:
        InputError: there are none.
    """
    for ending in (".csv", ".parquet"):
        parts = [root / f"{name}{ending}" for name in _PARTS]
        if all(path.is_file() for path in parts):
            return parts
        if (root / f"{_ALL}{ending}").is_file():
            return [root / f"{_ALL}{ending}"]
    raise InputError(f"Expected train.csv and test.csv, or rows.csv, or .parquet, got {root} without; {_WAY_OUT}.")


def _planned(root: Path, digest: str) -> TableSchema:
    schema = plan_file.read_plan(root / KEPT) if (root / KEPT).is_file() else None
    if schema is None:
        raise InputError(f"Expected the federation's plan of columns in {root / KEPT}, got none; {_WAY_OUT}.")
    if (got := plan_file.plan_digest(schema)) != digest:
        raise InputError(f"Expected the plan of columns {digest} in {root / KEPT}, got {got}; get the federation's.")
    return schema


def _look(root: Path, card: DatasetCard, digest: str) -> DatasetCard:
    """Return the card with the site's files and the plan."""
    if not root.is_dir():
        raise InputError(f"Expected data of this site's own in {root}, got no folder there; {_WAY_OUT}.")
    schema = _planned(root, digest)
    files = {str(path.relative_to(root)): None for path in (root / KEPT, *files_of(root))}
    return replace(card, files=files, labels=digest, columns=schema)


def _read(root: Path, side: int | None, digest: str) -> DatasetArrays:
    from flfw.data.tables import plan_file, reading

    schema, files = _planned(root, digest), files_of(root)
    usual = TableSettings()
    read = [reading.read(path, path.suffix.removeprefix("."), usual) for path in files]
    tables = [one.table for one in read]
    (x, y), *more = [
        plan_file.with_plan(one.table, schema, usual, one.separator, path)
        for one, path in zip(read, files, strict=True)
    ]
    groups = plan_file.patients_of(tables, schema.patient, usual, files)
    if more:
        chosen = np.arange(len(y) + len(more[0][1])) >= len(y)
        x, y = np.concatenate([x, more[0][0]]), np.concatenate([y, more[0][1]])
    else:
        chosen = plan_file.tested(y, groups, bool(schema.classes))
    both = (None, None) if groups is None else (groups[~chosen], groups[chosen])
    return DatasetArrays(x[~chosen], y[~chosen], x[chosen], y[chosen], train_group=both[0], test_group=both[1])
