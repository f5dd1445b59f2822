"""The papers' own points: accuracy and epsilon as printed, and the true epsilon of the printed settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.papers import cells, fed_cdp_runs, hyperfl, published
from flfw.papers.evidence import records
from flfw.papers.frontier.points import Mark
from flfw.papers.published import Cell
from flfw.runs import run

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
        how = fed_cdp_runs.shared_out(method, 100, 0.1, "full")
        yield from _mark(cell, "MNIST", method, unit, how, given)
    for data in ("CIFAR-10", "Adult"):
        cell = _cell(f"fed_cdp.5/{data}/{fed_cdp_runs.SIGMA:g}")
        yield from _mark(cell, data, "Fed-CDP", "example", fed_cdp_runs.trained("Fed-CDP", data, "full"), given)
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
    true = next(one for one in entries if _is(one, unit, "exact") and one["adversary"] == _AGAINST)
    accuracy = float(cell.value) / (100 if cell.unit else 1)
    printed = _printed(data, method)
    yield Mark(data, method, unit, _AGAINST, cell.path, accuracy, printed, float(true["epsilon"]), _measured(cell))


def _is(entry: Mapping[str, Any], unit: str, counted: str) -> bool:
    return entry["unit"] == unit and entry["accounting"] == counted


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
