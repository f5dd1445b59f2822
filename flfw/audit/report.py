"""The report of a run: one HTML file that answers "how much does this leak" and shows the pictures behind the answer.

It only reads what a run left behind (`result.json`, `audit.csv` and the tensors that those name) and computes no score
of its own, so that the page can never say anything that the machine-readable results do not. What it says in words
stands in `page.py`; what it draws, in `figures.py`.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, Undefined

from flfw import data
from flfw.audit.figures import Line, Panel, accuracy_panel, loss_panel, stacked_panels
from flfw.audit.findings import Setting, group_by_grant, number, read_settings, worst_of
from flfw.audit.page import PAGE
from flfw.errors import BadInput

# The floors worth a line in a chart: more of them would only hide one another. The page lists all.
_CHART_FLOORS = {"nearest_public": "public look-alike", "mean": "mean image", "noise": "noise"}
# What sim.py takes as a flag of the same name; every other key of the configuration is listed, not typed.
_FLAGS = {
    "method", "dataset", "net", "split", "side", "augment", "normalise", "clients", "sample", "sampling", "rounds",
    "local_epochs", "batch_size", "lr", "seed", "defended", "defence", "attack", "audit_source", "audit_rounds",
    "victim_batch", "victim_steps", "images",
}  # fmt: skip


def write_report(folder: Path) -> Path:
    """Reads a finished run's folder and writes its `report.html`: one file that loads nothing from elsewhere."""
    source = folder / "result.json"
    if not source.is_file():
        raise BadInput(f"{folder} holds no result.json: a report is written from a finished run.")
    result = json.loads(source.read_text(encoding="utf-8"))
    settings = read_settings(folder, result.get("audit") or [])
    worst = worst_of(settings)
    jinja = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    jinja.filters.update(num=decimals, pct=percent, plain=plain, command=command, number=number)
    page = jinja.from_string(PAGE).render(
        result=result,
        config=result.get("config") or {},
        dataset=data.title(str((result.get("config") or {}).get("dataset"))),
        rounds=result.get("rounds") or [],
        settings=settings,
        groups=group_by_grant(settings),
        worst=worst,
        overview=stacked_panels(
            [accuracy_panel(result.get("rounds") or []), leakage_panel(settings, worst)],
            "Accuracy of the clients by round, and below it what the attacks reached by round.",
        ),
        curves=stacked_panels(
            [loss_panel(result.get("rounds") or []), accuracy_panel(result.get("rounds") or [])],
            "Training loss by round, and below it accuracy before and after local training.",
        ),
        files=files_of(folder),
    )
    partial = folder / "report.html.partial"
    partial.write_text(page, encoding="utf-8")
    return partial.replace(folder / "report.html")


def leakage_panel(settings: Iterable[Setting], worst: Setting | None) -> Panel:
    """Mean score with its interval by round, a line an attack; the answer's own in the accent, with its best sample."""
    by_name: dict[str, list[Setting]] = {}
    for setting in sorted(settings, key=lambda setting: setting.entry.get("round") or 0):
        by_name.setdefault(setting.name, []).append(setting)
    images = any(setting.entry.get("psnr") for group in by_name.values() for setting in group)
    lines = []
    for name, group in by_name.items():
        points, intervals, peaks = [], [], []
        for setting in group:
            psnr = setting.entry.get("psnr") or {}
            # A perfect copy scores an infinity, which has no place on an axis; the tables show it.
            mean, low, high, peak = (_finite(psnr.get(key)) for key in ("mean", "low", "high", "max"))
            mean = mean if images else setting.recovered / max(setting.total, 1)
            if mean is not None:
                points.append((float(setting.entry.get("round") or 0), mean))
                intervals.append(None if low is None or high is None else (low, high))
                peaks.append(peak)
        # Rings of several attacks could not be told apart.
        tone, rings = ("accent", tuple(peaks)) if worst is not None and name == worst.name else ("soft", ())
        lines.append(Line(name, tuple(points), tone, tuple(intervals), rings))
    floors = (worst.entry.get("floors") or {}) if worst is not None and images else {}
    levels = [(text, _finite(floors.get(key))) for key, text in _CHART_FLOORS.items()]
    title = "Leakage: PSNR of the reconstructions, dB" if images else "Leakage: share of records recovered"
    return Panel(title, tuple(lines), tuple((text, level) for text, level in levels if level is not None), not images)


def _finite(value: Any) -> float | None:
    read = number(value)
    return None if read is None or math.isinf(read) else read


def files_of(folder: Path) -> list[tuple[str, int, int]]:
    """What lies in the run folder: name, number of files and bytes; the report itself is left out."""
    listed = []
    for path in sorted(folder.iterdir()):
        inside = [part for part in (path.rglob("*") if path.is_dir() else [path]) if part.is_file()]
        if not path.name.startswith((".", "report.html")):
            listed.append((path.name + "/" * path.is_dir(), len(inside), sum(part.stat().st_size for part in inside)))
    return listed


def command(config: Mapping[str, Any]) -> str:
    """The call of sim.py that asks for this configuration, one flag for each setting that has one."""
    words = ["python", "sim.py"]
    for key, value in config.items():
        if key in _FLAGS and value not in (None, "", []) and (key, value) != ("defence", "none"):
            values = [str(part) for part in value] if isinstance(value, list) else [str(value)]
            joined = [",".join(values)] if key in ("audit_rounds", "defended") else values
            words += ["--" + key.replace("_", "-"), *joined]
    pairs = config.get("set") or []
    return shlex.join([*words, "--set", *pairs] if pairs else words)


def decimals(value: Any, places: int = 1) -> str:
    """A number for reading: a dash where there is none, the sign of infinity for a perfect score."""
    read = number(value)
    if read is None:
        return "–"
    return ("∞" if read > 0 else "−∞") if math.isinf(read) else f"{read:.{places}f}".replace("-", "−")


def percent(value: Any) -> str:
    """A share as a percentage with one decimal."""
    read = number(value)
    return "–" if read is None else f"{100 * read:.1f} %"


def plain(value: Any) -> str:
    """A value of the configuration as a reader would write it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(part)}" for key, part in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(plain(part) for part in value) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, Undefined) or value != value:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
