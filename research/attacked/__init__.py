"""Defences under attackers with and without knowledge of them, printed from a matrix.

The page is docs/attacked_defences.md, each attack stands in docs/tables/attacked_defences.md.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flfw.comparisons.rows import read_matrix
from flfw.comparisons.tables import markdown
from flfw.errors import InputError
from flfw.files.sealed import write_atomic

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parents[1] / "docs" / "attacked_defences.md"
TABLES = PAGE.parent / "tables" / PAGE.name
DATASETS = ("mnist", "cifar10")
_SUMMARY = re.compile(r"^\| defence \| mnist, not told.*?\n\n", re.MULTILINE | re.DOTALL)

_TABLES = """<!-- Written by python -m research.attacked -->
# Defences under attack: each attack

[Defences under attack](../attacked_defences.md) has the commands and the settings. *Recovered* is the number of images,
with its exact 95 % interval. Beside a mean PSNR stands its interval over seeds and images; with three seeds it is too
narrow. *Identified* is the share of results that point to the true image among look-alikes. *Verdict* is explained in
[How to read an audit](../audit.md), with the number of seeds that had it.
"""


def text(page: str, records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page with a new summary, from the contents of matrix.json of each data set."""
    return _SUMMARY.sub(lambda _: f"{_summary(records)}\n\n", page, count=1)


def tables(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of all attacks from the same contents."""
    return "\n".join([_TABLES, markdown(records)])


def _summary(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of recovered images and mean PSNR, without and with knowledge of the defence."""
    titles = [f"{name}, {word}" for name in records for word in ("not told", "told or built against")]
    rows = [["defence", *titles], ["---"] * (1 + len(titles))]
    for defence in dict.fromkeys(one["defence"] for record in records.values() for one in record["combinations"]):
        cells: list[str] = []
        for record in records.values():
            (combination,) = (one for one in record["combinations"] if one["defence"] == defence)
            leaks = combination["attacks"]
            informed = [leak for leak in leaks if leak["kind"].startswith(("told of", "built against"))]
            cells += [_best([leak for leak in leaks if leak not in informed]), _best(informed)]
        rows.append([defence, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _best(leaks: Sequence[Mapping[str, Any]]) -> str:
    """Return the result of the attack that recovered most, or else came closest."""
    given = [leak for leak in leaks if leak["psnr"]]
    if not given:
        return "–"
    best = max(given, key=lambda leak: (leak["recovered"], leak["psnr"]["mean"]))
    failures = f" ({best['failures']} failed)" if best["failures"] else ""
    return f"{best['attack']}: {best['recovered']} of {best['images']}, {best['psnr']['mean']:.1f} dB{failures}"


def read(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Read the records of a folder, by data set."""
    return {name: read_matrix(folder / f"{name}.json") for name in DATASETS}


def take(finished: Path, folder: Path = FOLDER) -> None:
    """Copy the records of a finished matrix.

    Raises:
        InputError: a data set is missing or has cells that are not complete.
    """
    for name in DATASETS:
        path = finished / name / "matrix.json"
        if not path.is_file():
            raise InputError(
                f"Expected a folder with matrices of {', '.join(DATASETS)}, got {finished} without {path}."
            )
        record = read_matrix(path)
        states = [cell["state"] for cell in record["cells"]]
        missing = [state for state in states if state != "complete"]
        if missing:
            raise InputError(f"Expected complete runs, got {len(missing)} of {len(states)} in {path} that are not.")
        write_atomic(folder / f"{name}.json", (json.dumps(record, indent=1) + "\n").encode())
