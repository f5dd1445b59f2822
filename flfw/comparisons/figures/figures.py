"""Figures from finished runs, with the numbers beside each as CSV and the LaTeX that includes it.

``python -m flfw.comparisons.figures.figures RUN [OTHER ...]``.

    training    mean training loss, and accuracy before and after local training, by round, of all runs together; a
                regression has its mean absolute error here and below, where smaller is better
    measures    further measures of the first run's method, by round
    embeddings  t-SNE of the private embeddings of the first run's clients, marked by the classes they hold most of
    leakage     what each attack recovered of each run, with intervals
    rounds      the same by audited round
    curves      the same by batch, local steps or clients in a sum
    frontier    accuracy against leakage of all runs; hollow: another run leaks significantly less at no lower accuracy
    membership  statistics of membership

and, only by name (``--only``), since they need certain runs or are slow:

    privacy      accuracy against epsilon, of all runs together
    compression  accuracy and leakage of single examples by the share of a gradient's entries that is zeroed
    norms        gradient norms by local iteration, of the first run's clients
    gains        gain of each client over local training, of all runs but that of local_only
    features     features of the first run's clients beside generated ones for the same labels, by t-SNE
    grid         original images and their reconstructions, of all runs, with the scores

Each is first a table of numbers; `flfw.comparisons.figures.drawing` or `flfw.comparisons.figures.charts` draws the
figure from that table alone. Only a grid has images beside its table. A caption in LaTeX says what was attacked, how
often, by whom, and with which budget.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from matplotlib.figure import Figure

from flfw import data
from flfw.comparisons.figures import charts, comparisons, drawing, gains, grids, leakage_charts, tsne
from flfw.comparisons.figures import leakage_numbers as numbers
from flfw.comparisons.figures.comparisons import expanded, grouped, kind, names
from flfw.comparisons.figures.drawing import Rows
from flfw.comparisons.figures.norms import norms
from flfw.comparisons.figures.tsne import embeddings, perplexity
from flfw.comparisons.findings import Combination
from flfw.comparisons.rows import FinishedRun, read
from flfw.comparisons.significance import listed
from flfw.comparisons.utility import ERRORS, UTILITIES, family
from flfw.errors import InputError, require
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.files.result_file import csv_text
from flfw.files.sealed import write_atomic
from flfw.files.tables import escaped, floating
from flfw.report.chart_style import Columns, Format, rendered, wide_as

USUAL = ("training", "measures", "embeddings")
OF_LEAKS = {
    "leakage": "what each attack recovered",
    "rounds": "leakage by round",
    "curves": "leakage by batch, local steps or clients in a sum",
    "frontier": "accuracy against leakage",
    "membership": "who was trained on",
}
"""Figures of leakage, and what each shows."""

NAMES = (*USUAL, *OF_LEAKS, "privacy", "compression", "norms", "gains", "features", "grid")
_INCLUDED = ("pdf", "png")  # LaTeX includes no SVG


def _snippet(name: str, groups: Sequence[Combination], title: str, forms: Sequence[str], columns: str) -> str:
    """Return the lines that include a figure in a paper.

    Args:
        name: name of the figure's file, without its ending.
        groups: the runs that it shows.
        title: first sentence of the caption.
        forms: formats that were written.
        columns: ``one`` or ``two`` columns of the page.
    """
    usable = [form for form in _INCLUDED if form in forms]
    head = [r"% Needs \usepackage{graphicx}. Written by flfw."]
    head += [] if usable else [f"% LaTeX includes no SVG: draw {name} with --format pdf."]
    width, kind = (r"\columnwidth", "figure") if columns == "one" else (r"\textwidth", "figure*")
    body = f"\\includegraphics[width={width}]{{{name}.{usable[0] if usable else 'pdf'}}}"
    return "\n".join(head) + "\n" + floating(kind, body, caption(groups, title), name)


def caption(groups: Sequence[Combination], title: str) -> str:
    """Return the caption: the title, then the seeds, and of audits examples, attacks and budgets."""
    seeds = sorted({run.seed for group in groups for run in group.runs})
    words = [f"{title}. Seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}."]
    leaks = [leak for group in groups for leak in group.leaks]
    if leaks:
        counts = sorted({leak.images for leak in leaks})
        budgets = dict.fromkeys(_budget(entry) for group in groups for run in group.runs for _, entry in run.entries)
        words.append(f"n = {' or '.join(map(str, counts))} attacked examples of each; {'; '.join(budgets)}.")
        words.append("Bars: 95 % intervals, of shares exact, of means over seeds and messages.")
    pairs = sorted({one["pairs"] for g in groups for run in g.runs for one in run.result.get("membership") or []})
    if pairs:
        words.append(f"Membership: {' or '.join(map(str, pairs))} pairs of a member and another example.")
    if len(seeds) > 1:
        utility, *_ = family(run.utilities for group in groups for run in group.runs)
        words.append(f"{utility.names.capitalize()}: means over the seeds, {utility.ends}.")
    return escaped(" ".join(words))


def _budget(entry: Mapping[str, Any]) -> str:
    iterations, restarts = entry.get("iterations"), entry.get("restarts")
    parts = [f"{iterations} iterations"] if iterations else []
    parts += [f"{restarts} start{'s' * (restarts > 1)}"] if restarts else []
    return f"{entry['attack']} ({', '.join(parts)})" if parts else str(entry["attack"])


# --- from runs to files ---
def write(
    folders: Sequence[Path],
    out: Path | None = None,
    forms: Sequence[Format] = ("svg",),
    only: Iterable[str] = (),
    data_root: Path | None = None,
    choice: grids.GridChoice | None = None,
    columns: Columns | None = None,
) -> list[Path]:
    """Draw finished runs, and return the files: each figure, followed by its numbers and the LaTeX to include it.

    Args:
        folders: folders of runs, of matrices or of several seeds; a figure of one run shows the first.
        out: folder to write to; None: ``figures`` in the first folder. Files of an earlier call are replaced.
        forms: file formats of the figures.
        only: names of figures, see `NAMES`. If empty, the `USUAL` ones are drawn, and of `OF_LEAKS` those for which the
            runs have numbers. Of the usual, figures for which the first run has no numbers are left out; a line on
            stderr gives the reason.
        data_root: present folder of the data; None: the folder that the run used.
        choice: images of a grid; None: see `flfw.comparisons.figures.grids.GridChoice`.
        columns: columns of a page that a figure is as wide as; None: each as it is best seen alone.

    Raises:
        InputError: a run is not finished, was not trained or has other data than the first, or there are no numbers for
            a figure in ``only``.
    """
    runs, only, choice = _runs(expanded(folders)), tuple(only), choice or grids.GridChoice()
    fits = choice == grids.GridChoice() or "grid" in only
    require(fits, "options of a grid with --figure-names grid", figure_names=_words(only))
    unknown = [name for name in only if name not in NAMES]
    require(not unknown, f"figures among {', '.join(NAMES)}", only=_words(unknown))
    out = out or folders[0] / "figures"
    require(out.is_dir() or not out.exists(), "a folder for the figures", out=out)
    made: dict[str, tuple[Rows, Figure]] = {}
    groups = grouped(runs)
    for name in only or (*USUAL, *OF_LEAKS):
        try:
            with wide_as(columns):
                made[name] = _made(name, groups, data_root, choice)
        except InputError as error:
            if only or name == "training":
                raise
            if name in USUAL:
                print(f"left out: {name}: {error}", file=sys.stderr)
    drawing.make_folder(out)
    files = {}
    for name, (rows, figure) in made.items():
        for form in forms:
            files[out / f"{name}.{form}"] = rendered(figure, form)
        files[out / f"{name}.csv"] = csv_text(rows).encode()
        title = (figure.get_suptitle() or "").replace("\n", " ").rstrip(".")
        files[out / f"{name}.tex"] = _snippet(name, groups, title, forms, columns or "two").encode()
    for path, content in files.items():
        write_atomic(path, content)
    return list(files)


def _made(
    name: str, groups: Sequence[Combination], data_root: Path | None, choice: grids.GridChoice
) -> tuple[Rows, Figure]:
    runs = [run for group in groups for run in group.runs]
    first = runs[0]
    if name in OF_LEAKS:
        rows = getattr(numbers, name)(groups)
        words = f"{UTILITIES[rows[0]['measure']].name} against leakage" if name == "frontier" else OF_LEAKS[name]
        return rows, getattr(leakage_charts, name)(rows, f"{_title(runs)}: {words}")
    if name == "training":
        rows = training(groups)
        return rows, drawing.training(rows, _title(runs))
    if name == "measures":
        rows = measures(first)
        return rows, drawing.measures(rows, _title([first]))
    if name in ("privacy", "compression"):
        rows = getattr(comparisons, name)(_by_name(runs))
        return rows, getattr(charts, name)(rows, _title(runs))
    if name == "norms":
        rows = norms(first.folder, data_root)
        many = max(row["clients"] for row in rows)
        return rows, charts.norms(rows, f"{_title([first])}: {many} clients, plain steps; band: 80 % of them")
    if name == "gains":
        rows = gains.gains(_by_name(runs))
        others = [one for one in runs if kind(one) != gains.ALONE]
        return rows, gains.drawn(rows, f"{_title(others)}: what each client gains")
    if name == "features":
        rows = tsne.features(first.folder, data_root)
        return rows, tsne.drawn(rows, f"{_title([first])}: features after the last round, t-SNE")
    if name == "grid":
        content = grids.grid(_by_name(runs), choice)
        return content.rows, grids.drawn(content, f"{_title(runs)}: reconstructions")
    rows = embeddings(first.folder, data_root)
    description = f"the clients' embeddings, t-SNE of perplexity {perplexity(len(rows)):.3g}"
    return rows, drawing.embeddings(rows, f"{_title([first])}: {description}")


def _runs(folders: Sequence[Path]) -> list[FinishedRun]:
    require(len({folder.resolve() for folder in folders}) == len(folders), "each run once", runs=_words(folders))
    runs = [read(folder) for folder in folders]
    sets = dict.fromkeys(str(one.result["config"].get("dataset")) for one in runs)
    require(len(sets) == 1, "runs on the same data in one figure", datasets=_words(sets))
    return runs


def _title(runs: Sequence[FinishedRun]) -> str:
    kinds = list(dict.fromkeys(map(kind, runs)))
    return f"{listed(kinds)} on {data.title(str(runs[0].result['config'].get('dataset')))}"


def _by_name(runs: Sequence[FinishedRun]) -> dict[str, FinishedRun]:
    return dict(zip(names(runs), runs, strict=True))


def _words(items: Iterable[object]) -> str:
    return " and ".join(map(str, items))


# --- the numbers ---
def training(groups: Sequence[Combination]) -> Rows:
    """Return a row per run and round: ``run``, ``round``, ``loss``, ``acc_global``, ``acc_local``.

    Of regressions the last two are ``mae_global`` and ``mae_local``. Of several seeds they are means over those rounds
    that all of them have; where any run has several, columns with ``_low`` and ``_high`` give the least and the largest
    of the seeds.

    Raises:
        InputError: a run was not trained, or is damaged.
    """
    pooled = any(len(group.runs) > 1 for group in groups)
    rows: list[dict[str, Any]] = []
    courses = [[_rounds(run, _utilities) for run in group.runs] for group in groups]
    local, received, *_ = family(row for schedule in courses for run in schedule for row in run)
    curves = ("loss", received.key, local.key)
    for group, schedule in zip(groups, courses, strict=True):
        each = [{row["round"]: row for row in run} for run in schedule]
        for at in (at for at in each[0] if all(at in other for other in each)):
            values = {key: [other[at][key] for other in each] for key in curves}
            rows.append({"run": group.name, "round": at, **{key: _mean(given) for key, given in values.items()}})
            if pooled:
                pooled_runs = len(each) > 1
                for key, given in values.items():
                    low, high = (None, None) if None in given or not pooled_runs else (min(given), max(given))
                    rows[-1] |= {f"{key}_low": low, f"{key}_high": high}
    return rows


def _utilities(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a round of which there is a curve: loss, accuracies and errors."""
    extra = row.get("extra") or {}
    errors = {one.key: extra.get(one.key) for one in ERRORS}
    return {key: row[key] for key in ("loss", "acc_global", "acc_local")} | errors


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def measures(one: FinishedRun) -> Rows:
    """Return a row per round: ``round``, and the measures of the method beside loss and accuracy.

    Raises:
        InputError: the method has no other measures, or the run was not trained or is damaged.
    """
    rows = _rounds(one, lambda row: row["extra"])
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
    require(len(names) > 1, "a method that measures more than loss and accuracy", method=kind(one))
    require(len(rows) > 1, "two rounds or more for measures by round", rounds=len(rows))
    return [{name: row.get(name) for name in names} for row in rows]


def _rounds(one: FinishedRun, values_of: Callable[[Any], Mapping[str, Any]]) -> Rows:
    """Return a row per round: ``round`` and the selected numbers, None where there is none."""
    rounds = one.result.get("rounds")
    if not rounds:
        raise InputError(f"Expected a run with rounds of training, got {one.folder} without; name another.")
    try:
        return [{"round": int(row["round"]), **{n: _number(v) for n, v in values_of(row).items()}} for row in rounds]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"Expected rounds of this version in {one.folder}, got damaged ones: {error!r}.") from error


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


# --- the command ---
def main(arguments: list[str]) -> int:
    """Run the command; return 0, or 2 if a figure cannot be drawn."""
    return exit_code("figures", lambda: _do(arguments))


def _do(arguments: list[str]) -> int:
    parser = Parser(prog="python -m flfw.comparisons.figures.figures", description="Draw finished runs for a paper.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders; what shows one run shows the first")
    parser.add_argument("--out", type=Path, help="folder to write; default: figures in the first run's")
    parser.add_argument("--format", nargs="+", choices=get_args(Format), default=["svg"], help="of the figures")
    parser.add_argument("--width", choices=get_args(Columns), help="columns of a page; default: as best seen alone")
    words = "default: the first eight, as far as there are numbers"
    parser.add_argument("--figure-names", nargs="+", choices=NAMES, default=[], help=words)
    parser.add_argument("--data-root", type=Path, help="folder of the data sets; default: where the run found them")
    grid = parser.add_argument_group("grid", "default: the first attack, round and place that all runs have")
    grid.add_argument("--attack", nargs="+", default=[], help="attacks; a row for each")
    grid.add_argument("--round", nargs="+", default=[], type=_round, help="audited rounds, or last: each run's last")
    grid.add_argument("--vantage", nargs="+", choices=list(grids.PLACES), default=[], help="places of the attacker")
    grid.add_argument("--source", nargs="+", choices=list(grids.SOURCES), default=[], help="attacked messages")
    grid.add_argument("--columns", type=int, default=grids.COLUMNS, help="most images; default: %(default)s")
    args = parser.parse_args(arguments)
    listed = (tuple(each) for each in (args.attack, args.round, args.vantage, args.source))
    choice = grids.GridChoice(*listed, columns=args.columns)
    written = write(args.runs, args.out, args.format, args.figure_names, args.data_root, choice, args.width)
    print("\n".join(map(str, written)))
    return 0


def _round(text: str) -> int | str:
    return grids.LAST if text == grids.LAST else int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
