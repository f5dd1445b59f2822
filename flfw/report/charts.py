"""Charts of a report: which lines, levels and axes its figures have."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from flfw.experiment.curves import LADDER, SUM_SIZE
from flfw.report.chart_style import ACCENT, SOFT
from flfw.report.figures import Chart, Curve, Point, stacked_panels
from flfw.report.findings import AuditEntry, number, setting_name
from flfw.report.ranking import without_copies

# The floors worth a line in a chart: more of them would only hide one another. The page lists all.
_CHART_FLOORS = {"nearest_public": "public look-alike", "mean": "mean image", "noise": "noise"}
_AXES = {
    SUM_SIZE: "clients in a sum",
    "batch": "examples in the batch",
    "steps": "local steps",
    LADDER: "examples in the batch x local steps",
}


def overview(
    rounds: Sequence[Mapping[str, Any]], regression: bool, targets: Iterable[AuditEntry], worst: AuditEntry | None
) -> Markup:
    """Draw utility by round, and below it what the attacks reached; see `utility_panel` and `leakage_panel`."""
    utility = utility_panel(rounds, regression)
    by_round = f"{_utility_name(regression).capitalize()} of the clients by round, and below it what"
    alt = f"{by_round if utility.drawable else 'What'} the attacks reached by round."
    return stacked_panels([utility, leakage_panel(without_copies(targets), worst)], alt)


def training(rounds: Sequence[Mapping[str, Any]], regression: bool) -> Markup:
    """Draw training loss by round, and below it utility."""
    utility = utility_panel(rounds, regression)
    below = f", and below it {_utility_name(regression)} as received and after local training"
    losses = Chart("Training loss", (Curve("loss", _curve_of(rounds, "loss")),))
    return stacked_panels([losses, utility], f"Training loss by round{below * utility.drawable}.")


def _utility_name(regression: bool) -> str:
    return "mean absolute error" if regression else "accuracy"


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
        # Equal factors are equally far apart on the axis, and so are batches with steps.
        ordered = enumerate(sorted({_sizes(setting, kind) for setting in points}))
        at = {sizes: float(index) if kind == LADDER else math.log2(sizes[0]) for index, sizes in ordered}
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
        index = _off_curve(setting, kind)
        fits = not setting.entry["curve"] and index in kinds
        if fits and (index, _sizes(setting, kind)) not in taken:
            plain.setdefault(index, []).append(setting)
    for index, targets in plain.items():
        points += [target for target in targets if target.entry["adaptive"] in kinds[index]] or targets
    by = ("attack", "vantage", "defence")
    order = lambda s: (*(str(s.entry[key]) for key in by), s.entry["round"] or 0, *_sizes(s, kind))  # noqa: E731
    return sorted(points, key=order)


def _sizes(setting: AuditEntry, kind: str) -> tuple[Any, ...]:
    """Return the position of a setting on a curve: where both sizes grow, by batch and then by steps."""
    return tuple(setting.entry[key] for key in (("steps", "batch") if kind == LADDER else (kind,)))


def _off_curve(setting: AuditEntry, kind: str) -> tuple[Any, ...]:
    """Return the values that the points of one curve have in common."""
    other = {"batch": ("steps",), "steps": ("batch",), LADDER: (), SUM_SIZE: ("steps",)}[kind]
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
        tone, rings = (ACCENT, tuple(peaks)) if name == accent else (SOFT, ())
        lines.append(Curve(name, tuple(points), tone, tuple(intervals), rings))
    return tuple(lines)


def _share_lines(by_name: Mapping[str, Sequence[tuple[float, AuditEntry]]], accent: str) -> tuple[Curve, ...]:
    lines = []
    for name, group in by_name.items():
        points = tuple((x, setting.recovered / max(setting.total, 1)) for x, setting in group)
        spans = (setting.entry.get("share_interval") for _, setting in group)
        intervals = tuple((float(span[0]), float(span[1])) if span else None for span in spans)
        lines.append(Curve(name, points, ACCENT if name == accent else SOFT, intervals))
    return tuple(lines)


def _finite(value: Any) -> float | None:
    read = number(value)
    return None if read is None or math.isinf(read) else read


def utility_panel(rounds: Sequence[Mapping[str, Any]], regression: bool) -> Chart:
    """Build the chart of clients' test accuracy, or of a regression's mean absolute error, by round.

    Args:
        rounds: those of result.json, which have both for the models as received and for those after local training.
        regression: whether it is of errors.
    """
    rows = [{"round": row.get("round"), **(row.get("extra") or {})} for row in rounds] if regression else rounds
    kind, title = ("mae", "Mean absolute error") if regression else ("acc", "Accuracy")
    received, after = _curve_of(rows, f"{kind}_global"), _curve_of(rows, f"{kind}_local")
    lines = (Curve("after", after), Curve("as received", received, SOFT))
    return Chart(f"{title} as received, and after local training", lines, percent=not regression)


def _curve_of(rounds: Sequence[Mapping[str, Any]], key: str) -> tuple[Point, ...]:
    pairs = ((row.get("round"), row.get(key)) for row in rounds)
    return tuple((float(x), float(y)) for x, y in pairs if x is not None and y is not None and math.isfinite(y))
