"""Command ``sim.py --table dp.frontier``: measured points are on disk, and the same command goes on from them."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.sealed import write_atomic
from flfw.papers.command import OUT, MeasuredTable, require_free
from flfw.papers.frontier import measure, page, points
from flfw.papers.frontier.marks import marks
from flfw.papers.frontier.points import NAME, FrontierPoint, Mark, in_scale, table
from flfw.papers.preset import Scale
from flfw.papers.published import Cell
from flfw.report.chart_style import rendered
from flfw.runs import launch
from flfw.server.checkpoint import locked


def reproduce(prefix: str, scale: Scale, given: Experiment) -> int:
    """Measure the selected points of a scale, print them, and write the files; takes and raises as `measured`.

    Returns:
        0; or 1 if a selected point is missing.
    """
    points_measured = measured(prefix, scale, given)
    print(points_measured.text, *points_measured.files, sep="\n")
    return int(not points_measured.complete)


def measured(prefix: str, scale: Scale, given: Experiment) -> MeasuredTable:
    """Measure the selected points of a scale one after the other, and write the files.

    OUT/dp.frontier-SCALE.json keeps the points, .csv and .md have them as a table, .svg as a figure; OUT/cells has the
    runs.

    Args:
        prefix: path of the points, or its beginning; empty: all.
        scale: the scale.
        given: flags that decide no numbers, and the output folder; all others must be at their defaults.

    Raises:
        InputError: there is no such point in the scale, or a flag was given that the table decides.
    """
    require_free(given)
    launch.check_resources(given)
    out = (given.out or OUT).absolute()
    selected = [cell for cell in table().select(prefix) if in_scale(cell, scale)]
    if not selected:
        raise InputError(f"Expected a cell of the {scale} scale, got --cell {prefix}; take --scale full.")
    (out / "cells").mkdir(parents=True, exist_ok=True)
    path, known = out / f"{NAME}-{scale}.json", list[FrontierPoint]()
    with locked(out / "cells" / ".run"):
        papers = tuple(marks(given))
        for known in _points(selected, scale, given, out, path):
            points.write(path, scale, known, papers)
        written = (path, *write(path.with_suffix(""), scale, known, papers))
    paths = {cell.path for cell in selected}
    shown = [point for point in known if point.cell in paths]
    text = page.terminal(scale, shown, papers, shutil.get_terminal_size((120, 24)).columns)
    return MeasuredTable(text, written, not any(point.status == "missing" for point in shown))


def write(stem: Path, scale: Scale, known: Sequence[FrontierPoint], papers: Sequence[Mark]) -> list[Path]:
    """Write the table as STEM.csv and STEM.md, and the figure as STEM.svg, if there is a point; return the paths."""
    files = {".csv": page.csv(known, papers).encode()}
    if any(point.status == "measured" for point in known):
        files[".svg"] = rendered(page.drawn(known, papers, scale), "svg")
    files[".md"] = page.markdown(scale, known, papers, f"{stem.name}.svg" if ".svg" in files else "").encode()
    paths = [stem.parent / f"{stem.name}{suffix}" for suffix in files]
    for at, content in zip(paths, files.values(), strict=True):
        write_atomic(at, content)
    return paths


def _points(
    selected: Sequence[Cell], scale: Scale, given: Experiment, out: Path, path: Path
) -> Iterator[list[FrontierPoint]]:
    """Yield the points of the scale: first those that are known, then again after each that was measured."""
    runs, wanted = out / "cells", {cell.path for cell in selected}
    kept = {point.cell: point for point in points.read(path)[1]} if path.exists() else {}
    known: dict[str, FrontierPoint] = {}
    for cell in table().cells:
        if in_scale(cell, scale):
            point = kept.get(cell.path)
            names = list(measure.folders(cell, scale, given, runs))
            holds = point is not None and point.status == "measured" and [*point.folders[: len(names)]] == names
            reason = measure.PENDING if cell.path in wanted else "not asked for"
            known[cell.path] = point if holds and point else measure.missing(cell, reason)
    yield list(known.values())
    waiting = [cell for cell in selected if known[cell.path].status == "missing"]
    for number, cell in enumerate(waiting, 1):
        started = time.monotonic()
        _say(f"[{number}/{len(waiting)}] {cell.path}")
        point = known[cell.path] = measure.measured(cell, scale, given, runs, _say)
        ending = page.accuracy(point) if point.status == "measured" else point.reason
        _say(f"[{number}/{len(waiting)}] {cell.path}: after {time.monotonic() - started:.0f} s {ending}")
        yield list(known.values())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
