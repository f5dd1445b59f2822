"""The report of a run: one HTML file that answers "how much does this leak" and shows the pictures behind the answer.

It reads only the output of a run (`result.json`, `audit.csv` and the tensors that these name) and computes no score of
its own, so the page cannot differ from the machine-readable results. The words of the page are in `page.py`, its
figures in `figures.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup

from flfw import data
from flfw.curves import GROUP, LADDER
from flfw.data.tables import plan_file
from flfw.errors import InputError
from flfw.formats.result_file import read_result
from flfw.report.asks import recommendations
from flfw.report.attributes import attribute_tables
from flfw.report.call import command
from flfw.report.causes import because, of_search, plainly
from flfw.report.figures import Chart, Curve, loss_panel, stacked_panels, utility_panel
from flfw.report.findings import AuditEntry, number, read_settings, setting_name
from flfw.report.formats import above, below, capital, decimals, digits, flags, percent, percent_above, plain, sentence
from flfw.report.opinion import UNASKED, opinion_facts
from flfw.report.page_data import (
    Scope,
    beyond_chance,
    caveats,
    first_screen,
    grants,
    is_regression,
    most_missed,
    read_failures,
    scope,
    who,
)
from flfw.report.questions import compared, decisive, membership_first, questions, seen_by, where_told
from flfw.report.ranking import (
    answers,
    group_by_grant,
    probes_beside_uploads,
    set_aside,
    side_by_side,
    together,
    twins,
    without_copies,
    worst_first,
)
from flfw.report.run_verdict import decision
from flfw.report.template.page import PAGE
from flfw.report.texts import LEGEND
from flfw.report.untested import untested
from flfw.storage.sealed import write_atomic

# The floors worth a line in a chart: more of them would only hide one another. The page lists all.
_CHART_FLOORS = {"nearest_public": "public look-alike", "mean": "mean image", "noise": "noise"}
_AXES = {
    GROUP: "clients in a sum",
    "batch": "examples in the batch",
    "steps": "local steps",
    LADDER: "examples in the batch x local steps",
}
_PASSING = ("queue", "training.json", "tidying.json")  # of a run that is not tidied yet
# A user's own data: only the user decides that pictures of them leave the machine.
_OWN_DATA = ("csv:", "folder:", "hf:", "parquet:", "text:")


def write_report(folder: Path, pictures: bool | None = None) -> Path:
    """Read a finished run's folder and write its `report.html`: one file that loads nothing from elsewhere.

    Args:
        folder: the run's folder.
        pictures: whether samples are shown; None leaves it to the run's configuration, where ``auto`` shows none
            of a user's own data.

    Returns:
        The file's path.

    Raises:
        InputError: the folder holds no ``result.json``, or a damaged one.
    """
    written = folder / "report.html"
    write_atomic(written, render(folder, pictures))
    return written


def render(folder: Path, pictures: bool | None = None) -> bytes:
    """Return the report of a finished run's folder as `write_report` writes it; nothing is written.

    Raises:
        InputError: the folder holds no ``result.json``, or a damaged one.
    """
    source = folder / "result.json"
    if not source.is_file():
        raise InputError(f"{folder} holds no result.json: a report is written from a finished run.")
    result = read_result(folder)
    config = result.get("config") or {}
    absence = "this copy was asked for without them" if pictures is False else why_no_pictures(config)
    if pictures:
        absence = ""
    settings = read_settings(folder, result.get("audit") or [], pictures=not absence)
    worst, elsewhere = answers(settings)
    targets = together([setting for setting in settings if not setting.entry["curve"]] or settings)
    failures = read_failures(folder, result.get("recordings"), settings)
    rounds = result.get("rounds") or []
    regression = is_regression(result)
    utility = utility_panel(rounds, regression)
    name = ("mean absolute error" if regression else "accuracy") * utility.drawable
    membership, schema = membership_first(result.get("membership") or []), plan_file.kept(folder)
    asked = scope(settings, "samples" if schema is None else "records")
    page = _template().render(
        result=result,
        config=config,
        dataset=data.title(str(config.get("dataset"))),
        rounds=rounds,
        settings=settings,
        targets=targets,
        gallery=together(worst_first(settings)),
        groups=group_by_grant(targets),
        pairs=side_by_side(targets),
        beside_uploads=probes_beside_uploads(targets),
        attributes=attribute_tables(targets),
        twins=twins(settings),
        aside=set_aside(targets),
        scope=asked,
        membership=membership,
        told=decisive(membership),
        questions=questions(settings, membership, asked.unit, result.get("sums")),
        **_first_page(settings, membership, result, asked),
        **grants(worst),
        worst=worst,
        elsewhere=elsewhere,
        absence=absence,
        plan=schema,
        regression=regression,
        legend=LEGEND,
        failures=failures,
        failed=first_screen(failures),
        overview=stacked_panels(
            [utility, leakage_panel(without_copies(targets), worst)],
            (f"{name.capitalize()} of the clients by round, and below it what" if name else "What")
            + " the attacks reached by round.",
        ),
        curves=curves_of(settings),
        training=stacked_panels(
            [loss_panel(rounds), utility],
            f"Training loss by round{f', and below it {name} as received and after local training' if name else ''}.",
        ),
        files=files_of(folder),
    )
    return page.encode(errors="backslashreplace")  # half a surrogate pair, in a damaged result.json


def _first_page(
    settings: Sequence[AuditEntry], membership: Sequence[Mapping[str, Any]], result: Mapping[str, Any], asked: Scope
) -> dict[str, Any]:
    """Return the values of the first page."""
    return {
        "decided": decision(settings, membership, result, asked.unit),
        "asks": recommendations(settings, membership, result, asked),
        "untested": untested(settings, membership, result, asked),
        "opinion": opinion_facts(settings, membership, result.get("inference") or [], asked.unit),
        "unasked": UNASKED,
    }


@cache
def _template() -> Template:
    jinja = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    jinja.filters.update(num=decimals, pct=percent, plain=plain, command=command, number=number, who=who)
    jinja.filters.update(because=because, plainly=plainly, of_search=of_search, sentence=sentence, digits=digits)
    jinja.filters.update(capital=capital, flags=flags, beyond_chance=beyond_chance, most_missed=most_missed)
    jinja.filters.update(where_told=where_told, seen_by=seen_by, above=above, below=below, above_pct=percent_above)
    jinja.filters.update(compared=compared, caveats=caveats)
    return jinja.from_string(PAGE)


def why_no_pictures(config: Mapping[str, Any]) -> str:
    """Return in words why the page shows no sample; an empty string if it shows them."""
    asked = config.get("pictures") or "auto"
    if asked == "no":
        return "the run was asked for without them"
    local = str(config.get("dataset")).startswith(_OWN_DATA)
    return "the data are your own" if local and asked != "yes" else ""


def leakage_panel(settings: Iterable[AuditEntry], worst: AuditEntry | None) -> Chart:
    """Draw mean scores with intervals by round, a line per attack; the answer is accented, with its best sample."""
    by_name: dict[str, list[tuple[float, AuditEntry]]] = {}
    for setting in sorted(settings, key=lambda setting: setting.entry.get("round") or 0):
        by_name.setdefault(setting.name, []).append((float(setting.entry.get("round") or 0), setting))
    images = _has_decibels(by_name)
    things = "texts" if worst is not None and worst.entry.get("rouge") else "records"
    accent = worst.name if worst is not None else ""
    lines = _score_lines(by_name, accent) if images else _share_lines(by_name, accent)
    floors = (worst.entry.get("floors") or {}) if worst is not None and images else {}
    levels = [(text, _finite(floors.get(key))) for key, text in _CHART_FLOORS.items()]
    title = "Leakage: PSNR of the reconstructions, dB" if images else f"Leakage: share of {things} recovered"
    return Chart(title, lines, tuple((text, level) for text, level in levels if level is not None), not images)


def curves_of(settings: Sequence[AuditEntry]) -> dict[str, tuple[Markup, list[AuditEntry]]]:
    """Draw for each kind of curve leakage against the measured values; return it with the settings behind it."""
    drawn = {}
    for kind, axis in _AXES.items():
        points = _on_curve(settings, kind)
        if not points:
            continue
        entries = [setting.entry for setting in settings]
        many_rounds = len({setting.entry["round"] for setting in points}) > 1
        places = [(*_off_curve(setting, kind), *_sizes(setting, kind)) for setting in points]
        doubled = len(set(places)) < len(places)
        at = _along(kind, [_sizes(setting, kind) for setting in points])
        by_name: dict[str, list[tuple[float, AuditEntry]]] = {}
        for setting in points:
            name = setting_name(setting.entry, entries, kind=doubled)
            name = f"{name}, round {setting.entry['round']}" if many_rounds else name
            by_name.setdefault(name, []).append((at[_sizes(setting, kind)], setting))
        accent = next(iter(by_name))
        panels = [Chart("Leakage: share recovered", _share_lines(by_name, accent), percent=True)]
        if _has_decibels(by_name):
            panels.insert(0, Chart("Leakage: PSNR of the reconstructions, dB", _score_lines(by_name, accent)))
        marks = [(x, "x".join(f"{size:g}" for size in reversed(sizes))) for sizes, x in at.items()]
        drawn[kind] = (stacked_panels(panels, f"What the attacks reached, by {axis}.", axis, marks), points)
    return drawn


def _on_curve(settings: Sequence[AuditEntry], kind: str) -> list[AuditEntry]:
    """Return the points of a curve, and the plain targets that belong on it, by attack, round and value."""
    sized = [setting for setting in settings if all(number(size) for size in _sizes(setting, kind))]
    points = [setting for setting in sized if setting.entry["curve"] == kind]
    kinds: dict[tuple[Any, ...], set[Any]] = {}
    taken = set()
    for setting in points:
        kinds.setdefault(_off_curve(setting, kind), set()).add(setting.entry["adaptive"])
        taken.add((_off_curve(setting, kind), _sizes(setting, kind)))
    plain: dict[tuple[Any, ...], list[AuditEntry]] = {}
    for setting in sized:
        place = _off_curve(setting, kind)
        fits = not setting.entry["curve"] and place in kinds
        if fits and (place, _sizes(setting, kind)) not in taken:
            plain.setdefault(place, []).append(setting)
    for place, targets in plain.items():
        points += [target for target in targets if target.entry["adaptive"] in kinds[place]] or targets
    by = ("attack", "vantage", "defence")
    order = lambda s: (*(str(s.entry[key]) for key in by), s.entry["round"] or 0, *_sizes(s, kind))  # noqa: E731
    return sorted(points, key=order)


def _sizes(setting: AuditEntry, kind: str) -> tuple[Any, ...]:
    """Return the position of a setting on a curve: a ladder's rungs have larger batches first, then more steps."""
    return tuple(setting.entry[key] for key in (("steps", "batch") if kind == LADDER else (kind,)))


def _along(kind: str, sizes: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], float]:
    """Return each size's position on the axis: equal factors are equally far apart, and so are a ladder's rungs."""
    ordered = sorted(set(sizes))
    return {size: float(rung) if kind == LADDER else math.log2(size[0]) for rung, size in enumerate(ordered)}


def _off_curve(setting: AuditEntry, kind: str) -> tuple[Any, ...]:
    """Return the values that the points of one curve have in common."""
    other = {"batch": ("steps",), "steps": ("batch",), LADDER: (), GROUP: ("steps",)}[kind]
    keys = ("attack", "adaptation", "source", "vantage", "defence", "round", "client", *other)
    return tuple(setting.entry[key] for key in keys)


def _has_decibels(lines: Mapping[str, Iterable[tuple[float, AuditEntry]]]) -> bool:
    return any(setting.entry.get("psnr") for group in lines.values() for _, setting in group)


def _score_lines(by_name: Mapping[str, Sequence[tuple[float, AuditEntry]]], accent: str) -> tuple[Curve, ...]:
    lines = []
    for name, group in by_name.items():
        points, intervals, peaks = [], [], []
        for x, setting in group:
            psnr = setting.entry.get("psnr") or {}
            # A perfect copy has an infinite score, which no axis can show; the tables show it.
            mean, low, high, peak = (_finite(psnr.get(key)) for key in ("mean", "low", "high", "max"))
            if mean is not None:
                points.append((x, mean))
                intervals.append(None if low is None or high is None else (low, high))
                peaks.append(peak)
        # Rings of several attacks could not be told apart.
        tone, rings = ("accent", tuple(peaks)) if name == accent else ("soft", ())
        lines.append(Curve(name, tuple(points), tone, tuple(intervals), rings))
    return tuple(lines)


def _share_lines(by_name: Mapping[str, Sequence[tuple[float, AuditEntry]]], accent: str) -> tuple[Curve, ...]:
    lines = []
    for name, group in by_name.items():
        points = tuple((x, setting.recovered / max(setting.total, 1)) for x, setting in group)
        spans = (setting.entry.get("share_interval") for _, setting in group)
        intervals = tuple((float(span[0]), float(span[1])) if span else None for span in spans)
        lines.append(Curve(name, points, "accent" if name == accent else "soft", intervals))
    return tuple(lines)


def _finite(value: Any) -> float | None:
    read = number(value)
    return None if read is None or math.isinf(read) else read


def files_of(folder: Path) -> list[tuple[str, int, int]]:
    """List the contents of the run folder: name, number of files and bytes; the report itself is left out."""
    listed = []
    for path in sorted(path for path in folder.iterdir() if path.name not in _PASSING):
        inside = [part for part in (path.rglob("*") if path.is_dir() else [path]) if part.is_file()]
        if not path.name.startswith((".", "report.html")):
            listed.append((path.name + "/" * path.is_dir(), len(inside), sum(part.stat().st_size for part in inside)))
    return listed
