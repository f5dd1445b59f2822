"""Grids of reconstructions: a column for each attacked image, below its original a row for each run and attack.

A grid shows the first images that all its rows attacked, in the order of the slots of the first run. Scores have no
part in this choice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple, final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from flfw.comparisons.figures.drawing import Rows
from flfw.comparisons.rows import AttackSetting, FinishedRun
from flfw.errors import InputError, require
from flfw.files.result_file import read_rows, stored_example
from flfw.report.chart_style import INK, INKS, STYLE, blank
from flfw.report.findings import belongs, is_target, is_true, number

COLUMNS = 8
ORIGINAL, LAST = "original", "last"
PLACES = {
    "server": "at the server",
    "client_update": "on the client after its training",
    "client_example": "on the client from one example's gradient",
}
SOURCES = {"probe": "probes", "update": "uploads of training"}
_MARKS = {
    "told": "the attack knows the defence, or the method's own protection, and adapts to it",
    "static": "the attack does not use all that is known of the method or the defence",
}
_KEYS = ("attack", "vantage", "source", "round")
_BEFORE = {"attack": "by ", "round": "round "}
_NUMBERS = ("client", "probe_slot", "image", "index", "label")

# In inches: an image, the spaces beside and below it, the names at the left, a line of text, a character.
_SIDE, _GAP, _SCORE, _NAMES, _LINE = 0.6, 0.1, 0.22, 1.3, 0.13
_LEAST_WIDE = 4.6
_TITLE, _CAPTION, _NAME = 0.084, 0.050, 0.062
_SHARP = 240  # fewest pixels of an image's shorter side; fewer are enlarged, since some viewers smooth small images


@dataclass(frozen=True)
class GridChoice:
    """Choice of the reconstructions in a grid; without a value, the first one of the first run that all runs have.

    Attributes:
        attack: names of attacks; a run needs one of them.
        round: audited rounds; "last" is the last one of each run.
        vantage: places of the attacker, see `PLACES`.
        source: kinds of messages, see `SOURCES`.
        columns: most images in the grid.
    """

    attack: tuple[str, ...] = ()
    round: tuple[int | str, ...] = ()
    vantage: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    columns: int = COLUMNS


@final
@dataclass(frozen=True)
class PictureGrid:
    """Content of a grid.

    Attributes:
        rows: one for each reconstruction, with its scores from audit.csv.
        pictures: images (C, H, W) in [0, 1] by the grid's row and column; a failed attack has none.
        caption: text below the grid: attack, selection of the images, marks.
    """

    rows: Rows
    pictures: Mapping[tuple[str, int], np.ndarray]
    caption: str


class _Line(NamedTuple):
    name: str
    run: str
    folder: Path
    setting: AttackSetting
    marks: tuple[str, ...]
    examples: Mapping[tuple[str, str], Mapping[str, str]]  # rows of audit.csv by index and label, in slot order


def grid(runs: Mapping[str, FinishedRun], choice: GridChoice) -> PictureGrid:
    """Read the content of a grid: a row for each run, attack, place, and knowledge of the attacker.

    Args:
        runs: runs by name.
        choice: attacks, rounds and places to show.

    Raises:
        InputError: runs without such an audit, without common examples or without pictures; data that are no images.
    """
    require(choice.columns >= 1, "at least 1 column", columns=choice.columns)
    lines = _lines(runs, _chosen(runs, choice))
    shared = [key for key in lines[0].examples if all(key in line.examples for line in lines)]
    if not shared:
        listed = "; ".join(f"{line.name}: {_few(index for index, _ in line.examples)}" for line in lines)
        way = "give the runs the same --seed, --clients, --split, --images and --victim-batch"
        raise InputError(f"Expected runs that attacked the same examples, got {listed}; {way}.")
    shown = list(enumerate(shared[: choice.columns], 1))
    pictures: dict[tuple[str, int], np.ndarray] = {}
    for line in lines:
        for column, key in shown:
            original = _picture(line, line.examples[key], "truth")
            if not np.array_equal(original, pictures.setdefault((ORIGINAL, column), original)):
                raise InputError(
                    f"Expected the same image as example {key[0]} of all runs, got another in {line.folder}; "
                    "give the runs the same --image-size and the same data."
                )
            if not is_true(line.examples[key].get("failed")):
                pictures[line.name, column] = _picture(line, line.examples[key], "reconstruction")
    rows = [_scored(line, line.examples[key], column) for line in lines for column, key in shown]
    return PictureGrid(rows, pictures, _caption(lines, len(shown), len(shared)))


def _scored(line: _Line, row: Mapping[str, str], column: int) -> dict[str, Any]:
    return {
        "row": line.name,
        "column": column,
        "run": line.run,
        **{key: getattr(line.setting, key) for key in (*_KEYS, "informed")},
        "static": "static" in line.marks,
        **{key: _whole(row.get(key)) for key in _NUMBERS},
        "psnr": number(row.get("psnr")),
        "failed": is_true(row.get("failed")),
        "recovered": is_true(row.get("recovered")),
        "truth": row.get("truth"),
        "reconstruction": row.get("reconstruction"),
    }


def _chosen(runs: Mapping[str, FinishedRun], choice: GridChoice) -> Mapping[str, Sequence[AttackSetting]]:
    """Return the settings to show: key after key, those with a requested value, or else with the first shared one."""
    settings = {name: [setting for setting, _ in one.entries] for name, one in runs.items()}
    for name, one in runs.items():
        if not settings[name] or not (one.folder / "audit.csv").is_file():
            raise InputError(f"Expected runs with an audit, got {one.folder} without; run it again with --attack ig.")
    for key in _KEYS:
        requested = getattr(choice, key)
        values = {name: list(dict.fromkeys(getattr(one, key) for one in each)) for name, each in settings.items()}
        first, *others = values.values()
        kept = requested or [value for value in first if all(value in other for other in others)][:1]
        last = {name: max(each) for name, each in values.items()} if LAST in kept else {}
        settings = {
            name: [one for one in each if getattr(one, key) in (*kept, last.get(name))]
            for name, each in settings.items()
        }
        if not all(settings.values()):
            named = f"{key} {' or '.join(map(str, requested))} in every run"
            got = "; ".join(f"{name}: {_few(each)}" for name, each in values.items())
            way = f"leave a run out, or take python -m flfw.comparisons.figures.figures --{key}"
            expected = named if requested else f"the same {key} in all runs"
            raise InputError(f"Expected audits with {expected}, got {got}; {way}.")
    return settings


def _lines(runs: Mapping[str, FinishedRun], chosen: Mapping[str, Sequence[AttackSetting]]) -> list[_Line]:
    every = [setting for each in chosen.values() for setting in each]
    varied = [key for key in _KEYS if len({getattr(setting, key) for setting in every}) > 1]
    lines: list[_Line] = []
    for run, one in runs.items():
        groups: dict[tuple[object, ...], list[tuple[AttackSetting, Mapping[str, Any]]]] = {}
        for setting, entry in one.entries:
            if setting in chosen[run]:  # clients with and without a defence share a row
                groups.setdefault((setting.informed, *(getattr(setting, key) for key in _KEYS)), []).append(
                    (setting, entry)
                )
        table = _table(one.folder)
        for group in groups.values():
            setting = group[0][0]
            marks = ("told",) * setting.informed + ("static",) * any(not each.adaptive for each, _ in group)
            words = [f"{_BEFORE.get(key, '')}{getattr(setting, key)}" for key in varied]
            examples: dict[tuple[str, str], Mapping[str, str]] = {}
            for row in table:
                if row.get("index") and any(belongs(row, entry) for _, entry in group):
                    examples.setdefault((row["index"], row.get("label") or ""), row)
            lines.append(_Line(", ".join([run, *words, *marks]), run, one.folder, setting, marks, examples))
    return lines


def _table(folder: Path) -> list[dict[str, str]]:
    """Return the rows of targets in audit.csv, in slot order."""
    rows = filter(is_target, read_rows(folder / "audit.csv"))
    return sorted(rows, key=lambda row: [_whole(row.get(key)) or 0 for key in ("probe_slot", "image", "client")])


def _whole(text: str | None) -> int | None:
    value = number(text)
    return None if value is None else int(value)


def _few(values: Iterable[object]) -> str:
    words = list(map(str, values))
    return ", ".join([*words[:4], *["..."] * (len(words) > 4)]) or "none"


def _picture(line: _Line, row: Mapping[str, str], column: str) -> np.ndarray:
    picture = stored_example(line.folder, file := row.get(column) or column, row["image"])
    if picture is None:
        got = f"no {file}; a purged run has none: run it again, and draw before --purge"
        raise InputError(f"Expected the pictures of the audit in {line.folder}, got {got}.")
    if picture.ndim != 3 or len(picture) not in (1, 3):
        got = f"samples of shape {'x'.join(map(str, picture.shape))} in {line.folder}"
        raise InputError(f"Expected grey or colour images, got {got}; compare other data with sim.py --compare.")
    return picture


def _caption(lines: Sequence[_Line], shown: int, shared: int) -> str:
    def words(key: str, texts: Mapping[object, str]) -> str:
        values = dict.fromkeys(getattr(line.setting, key) for line in lines)
        return " and ".join(texts.get(value, str(value)) for value in values)

    numbers = {line.setting.round for line in lines}
    rounds: dict[object, str] = {n: f"after round {n}" if n else "before training" for n in numbers}
    count = f"first {shown} of the {shared}" if shown < shared else str(shared)
    images = "only image" if shared == 1 else f"{count} images"
    sentences = [
        f"Attack: {words('attack', {})} on {words('source', {**SOURCES})} {words('vantage', {**PLACES})}, "
        f"{words('round', rounds)}.",
        f"Shown: the {images} that every row attacked, by slot, not by score.",
        "Below a reconstruction: its PSNR; in a frame: it counts as recovered; –: the attack gave nothing.",
    ]
    sentences += [f"'{mark}': {text}." for mark, text in _MARKS.items() if any(mark in line.marks for line in lines)]
    return " ".join(sentences)


@rc_context(STYLE)
def drawn(content: PictureGrid, title: str) -> Figure:
    """Draw a grid, without smoothing between pixels.

    Args:
        content: the grid.
        title: title above it.
    """
    scores = {(row["row"], row["column"]): row for row in content.rows}
    names, columns = list(dict.fromkeys(name for name, _ in scores)), max(column for _, column in scores)
    channels_first = content.pictures[ORIGINAL, 1].shape
    tall, width = _SIDE * channels_first[1] / channels_first[2], _NAMES + columns * (_SIDE + _GAP) + _GAP
    width = max(width, _LEAST_WIDE)
    above, below = (
        wrap(text, int((width - 0.2) / one)) for text, one in ((title, _TITLE), (content.caption, _CAPTION))
    )
    head, step = 0.16 + 0.17 * len(above), tall + _SCORE
    height = head + (len(names) + 1) * step + 0.1 + _LINE * len(below)
    figure = blank(width, height, title)
    figure.set_layout_engine("none")
    figure.suptitle("\n".join(above), x=0.1 / width, y=1 - 0.06 / height, ha="left", fontsize=10, fontweight="bold")
    figure.text(0.1 / width, 0.06 / height, "\n".join(below), va="bottom", fontsize=7, linespacing=1.25)
    for index, name in enumerate([ORIGINAL, *names]):
        top = height - head - index * step
        label = "\n".join(wrap(name, int((_NAMES - 0.15) / _NAME)))
        figure.text(0.1 / width, (top - tall / 2) / height, label, va="center", fontsize=8)
        for column in range(1, columns + 1):
            left, score = _NAMES + (column - 1) * (_SIDE + _GAP), scores[names[0], column]
            axes = figure.add_axes((left / width, (top - tall) / height, _SIDE / width, tall / height))
            _cell(axes, content.pictures.get((name, column)), scores.get((name, column)), f"class {score['label']}")
    return figure


def _cell(axes: Axes, picture: np.ndarray | None, score: Mapping[str, Any] | None, text: str) -> None:
    """Draw an image with its score below it, or with ``text`` if it has no score."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, linewidth=0.4)
    if picture is not None:
        axes.imshow(_pixels(picture), interpolation="none", aspect="auto")
    look: dict[str, Any] = {"color": INK}
    if score is not None:
        text = "–" if score["failed"] or score["psnr"] is None else f"{score['psnr']:.1f} dB"
    if score is not None and score["recovered"]:
        frame: Any = {"fill": False, "clip_on": False, "linewidth": 1.8, "edgecolor": INKS[1], "zorder": 5}
        axes.add_patch(Rectangle((-0.05, -0.05), 1.1, 1.1, transform=axes.transAxes, **frame))
        look = {"color": INKS[1], "weight": "bold"}
    look |= {"textcoords": "offset points", "ha": "center", "va": "top", "fontsize": 7}
    axes.annotate(text, (0.5, 0), (0, -5), xycoords="axes fraction", **look)


def _pixels(picture: np.ndarray) -> np.ndarray:
    """Return 8-bit colours (H, W, 3), each pixel a square of several if there are few."""
    finite = np.nan_to_num(picture.astype(np.float64), nan=0.0, posinf=1.0, neginf=0.0)
    levels = np.rint(np.clip(finite, 0.0, 1.0) * 255).astype(np.uint8)
    enlarged = levels.repeat(factor := -(-_SHARP // min(levels.shape[1:])), 1).repeat(factor, 2)
    return np.broadcast_to(enlarged, (3, *enlarged.shape[1:])).transpose(1, 2, 0)
