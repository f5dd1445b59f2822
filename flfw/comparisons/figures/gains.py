"""Gain of each client over training alone: the accuracy of a method's run less that of a run of local_only.

Of a regression it is the error of the run of local_only less that of the method's.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from flfw.comparisons.figures.drawing import Rows
from flfw.comparisons.rows import FinishedRun
from flfw.comparisons.utility import ERRORS, Utility, family
from flfw.data.splits import schemes
from flfw.errors import InputError, require
from flfw.files.result_file import read_rows
from flfw.plugins import build_settings
from flfw.report.chart_style import DASHED, INKS, STYLE, blank

ALONE = "local_only"
"""Method of the reference run."""

_SAME = ("dataset", "image_size", "split", "clients", "canaries", "seed")
_MOST_NAMED = 40  # most clients that are drawn with their numbers
_POINTS = FuncFormatter(lambda value, _: f"{100 * value:+.3g}" if value else "0")
_SAVED = FuncFormatter(lambda value, _: f"{value:+,.10g}" if value else "0")


def gains(runs: Mapping[str, FinishedRun]) -> Rows:
    """Return a row per run and client, the least gain first: ``run``, ``client``, ``alone``, ``accuracy``, ``gain``.

    Accuracy is measured on the client's own test data after local training: in the round of its best validation
    accuracy if the split has validation data, else at the end. Clients without it in either run have no row. Of a
    regression there is ``mean_absolute_error`` in place of the accuracy, and R2 on validation data decides.

    Args:
        runs: runs by name: one run of `ALONE`, the others with the same data, split, clients and seed.

    Raises:
        InputError: the runs do not match, or a run is damaged.
    """
    alone = [name for name, one in runs.items() if one.result["config"].get("method") == ALONE]
    require(len(alone) == 1 < len(runs), f"one run of {ALONE} and others beside it", runs=" and ".join(runs))
    reference = runs[alone[0]]
    local, *_ = family(one.utilities for one in runs.values())
    baseline, rows = _utilities(reference, local), []
    for name, one in runs.items():
        if one is reference:
            continue
        _require_same(reference, one)
        values = {client: value for client, value in _utilities(one, local).items() if client in baseline}
        require(bool(values), f"clients with an {local.noun} in both runs of {name}", clients=0)
        gained = {client: local.gain(value, baseline[client]) for client, value in values.items()}
        order = sorted(gained, key=lambda client: (gained[client], client))
        rows += [
            {"run": name, "client": c, "alone": baseline[c], local.column: values[c], "gain": gained[c]} for c in order
        ]
    return rows


def _require_same(one: FinishedRun, other: FinishedRun) -> None:
    """Refuse runs whose clients do not hold the same data."""
    (expected, got) = (_identity(run) for run in (one, other))
    for name, value in expected.items():
        if got[name] != value:
            raise InputError(
                f"Expected runs on the same clients, {name}={value} as in {one.folder}; got {name}={got[name]} in "
                f"{other.folder}."
            )


def _identity(run: FinishedRun) -> dict[str, Any]:
    """Return all settings that decide which client holds which data."""
    try:
        config = run.result["config"]
        scheme = build_settings(schemes.scheme(config["split"]), config["split"], config["set"])
        digest = run.result["provenance"]["data"]["digest"]
        return {**{name: config[name] for name in _SAME}, "scheme": scheme, "data": digest}
    except (KeyError, TypeError) as error:
        raise InputError(f"Expected a run of this version in {run.folder}, got a damaged one: {error!r}.") from error


def _utilities(run: FinishedRun, local: Utility) -> dict[int, float]:
    """Return the utility of each client after local training."""
    chosen_by = local.validation
    rounds = _by_round(run.folder / "clients.csv", (local.key, chosen_by))
    if rounds and all(row[chosen_by] is not None for row in rounds):
        best: dict[int, dict[str, float]] = {}
        for row in rounds:  # in the order of the rounds; the first of equal ones counts
            client = int(row["client"])
            if client not in best or row[chosen_by] > best[client][chosen_by]:
                best[client] = row
        return {client: best[client][local.key] for client in sorted(best)}
    try:
        return {int(row["client"]): float(row[local.key]) for row in run.result["final"]["per_client"]}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"Expected {local.names} of the clients in {run.folder}, got none: {error!r}.") from error


def _by_round(path: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row per round and client, None where there is no number; no rows without a file."""
    if not path.is_file():
        return []
    try:
        return [{k: float(row[k]) if row.get(k) else None for k in ("client", *keys)} for row in read_rows(path)]
    except ValueError as error:
        raise InputError(f"Expected numbers in {path}, got {error}; restore it.") from error


@rc_context(STYLE)
def drawn(rows: Rows, title: str) -> Figure:
    """Draw sorted bars, one plot for each run, all on one scale; bars below zero are light.

    Args:
        rows: rows of `gains`.
        title: title above the plots.
    """
    points = ERRORS[0].column not in rows[0]
    names = list(dict.fromkeys(row["run"] for row in rows))
    figure = blank(max(5.0, min(9.0, 1.2 + 0.28 * len(rows) / len(names))), 1.9 * len(names) + 0.9, title)
    plots: list[Axes] = list(figure.subplots(len(names), 1, sharey=True, squeeze=False)[:, 0])
    for axes, name in zip(plots, names, strict=True):
        run_rows = [row for row in rows if row["run"] == name]
        values, places = [row["gain"] for row in run_rows], range(len(run_rows))
        axes.bar(places, values, 0.7, color=[INKS[0] if value >= 0 else INKS[3] for value in values], zorder=3)
        axes.axhline(0, color=INKS[0], linewidth=0.8, zorder=4)
        mean = math.fsum(values) / len(values)
        axes.axhline(mean, color=INKS[1], linewidth=1, linestyle=DASHED, zorder=4)
        axes.set_title(f"{name}: mean {f'{100 * mean:+.1f} points' if points else f'{mean:+.3g}'} (dashed)")
        axes.grid(axis="y")
        axes.tick_params(length=0)
        axes.margins(x=0.02)
        axes.yaxis.set_major_formatter(_POINTS if points else _SAVED)
        named = len(run_rows) <= _MOST_NAMED
        axes.set_xticks(places if named else [], [str(row["client"]) for row in run_rows] if named else None)
    plots[-1].set_xlabel("client, the least gain first")
    figure.supylabel("points over local training" if points else "error below that of local training", fontsize=9)
    return figure
