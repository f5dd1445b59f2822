"""Command ``sim.py --table dp.frontier``: measured points are on disk, and the same command goes on from them.

The papers' own points have accuracy and epsilon as printed, and the true epsilon of the printed settings.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.progress import say
from flfw.files.sealed import write_atomic
from flfw.papers import cells, fed_cdp, hyperfl, published
from flfw.papers.command import OUT, MeasuredTable, require_free
from flfw.papers.evidence import records
from flfw.papers.frontier import measure, page, points
from flfw.papers.frontier.points import NAME, FrontierPoint, Mark, in_scale, table
from flfw.papers.preset import Scale
from flfw.papers.published import Cell
from flfw.report.chart_style import rendered
from flfw.runs import launch, run
from flfw.server.checkpoint import locked

_AGAINST = "server"  # the papers protect from a curious server
_HYPERFLS_EPSILON = 4.0  # printed for its three private methods, section 5.1


def marks(given: Experiment) -> Iterator[Mark]:
    """Yield the papers' points on the frontier's data sets, counted before a run; nothing is trained.

    Fed-CDP's are of its table II (MNIST, 100 clients of which 10 are drawn; also Fed-SDP's) and V (CIFAR-10, Adult), at
    C = 4 and sigma = 6. HyperFL's are of its table 1 with 20 clients. A point whose data are not here is left out.

    Args:
        given: source of the data's folder.
    """
    for method, unit in (("Fed-CDP", "example"), ("Fed-SDP", "client")):
        cell = _cell(f"fed_cdp.2/{method}/100/0.1")
        yield from _mark(cell, "MNIST", method, unit, fed_cdp.shared_out(method, 100, 0.1, "full"), given)
    for data in ("CIFAR-10", "Adult"):
        cell = _cell(f"fed_cdp.5/{data}/{fed_cdp.SIGMA:g}")
        yield from _mark(cell, data, "Fed-CDP", "example", fed_cdp.trained("Fed-CDP", data, "full"), given)
    for data in ("Fashion-MNIST", "CIFAR-10"):
        for method in hyperfl.PRIVATE:
            cell = _cell(f"hyperfl.1/{method}/{data}/20")
            yield from _mark(cell, data, method, "example", hyperfl.trained(cell, "full"), given)


def _mark(cell: Cell, data: str, method: str, unit: str, how: Experiment, given: Experiment) -> Iterator[Mark]:
    assert isinstance(cell.value, int | float), "the paper prints it"
    how = replace(how, data_root=given.data_root)
    try:
        run_plan, task, _ = run.check(how, new=False)
    except InputError:
        return
    entries = cells.planned(run_plan.experiment, task)["privacy"]
    wanted = {"unit": unit, "accounting": "exact", "adversary": _AGAINST}
    true = next(one for one in entries if wanted.items() <= one.items())
    accuracy = float(cell.value) / (100 if cell.unit else 1)
    printed = _printed(data, method)
    yield Mark(data, method, unit, _AGAINST, cell.path, accuracy, printed, float(true["epsilon"]), _measured(cell))


def _printed(data: str, method: str) -> float:
    """Return the epsilon that the paper prints for its settings: Fed-CDP's table VI, HyperFL's section 5.1."""
    if method in hyperfl.PRIVATE:
        return _HYPERFLS_EPSILON
    level = "client" if method == "Fed-SDP" else "instance"
    value = _cell(f"fed_cdp.6/{method}/{level}/100/{data}").value
    assert isinstance(value, float), "the paper prints it"
    return value


def _measured(cell: Cell) -> float | None:
    """Return the accuracy that was measured with the printed settings, as a share; None: there is no record."""
    numbers = [one.value for one in records.read() if one.cell == cell.path and one.variant == "authors"]
    values = [float(value) for value in numbers if isinstance(value, int | float)]
    return fmean(values) / (100 if cell.unit else 1) if values else None


def _cell(path: str) -> Cell:
    return published.table(path.partition("/")[0]).select(path)[0]


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
        say(f"[{number}/{len(waiting)}] {cell.path}")
        point = known[cell.path] = measure.measured(cell, scale, given, runs, say)
        ending = page.accuracy(point) if point.status == "measured" else point.reason
        say(f"[{number}/{len(waiting)}] {cell.path}: after {time.monotonic() - started:.0f} s {ending}")
        yield list(known.values())
