"""Figures from finished runs, the numbers beside each as CSV: ``python -m flfw.papers.figures RUN [OTHER ...]``.

    training    mean training loss, and accuracy before and after local training, by round, of all runs together
    measures    further measures of the first run's method, by round
    embeddings  t-SNE of the private embeddings of the first run's clients, marked by the classes they hold most of

and, only by name (``--only``), since they need certain runs or are slow:

    privacy      accuracy against epsilon, of all runs together
    compression  accuracy and leakage of single examples by the share of a gradient's entries that is zeroed
    norms        gradient norms by local iteration, of the first run's clients
    gains        gain of each client over local training, of all runs but that of local_only
    features     features of the first run's clients beside generated ones for the same labels, by t-SNE
    grid         original images and their reconstructions, of all runs, with the scores

Each is first a table of numbers; `flfw.papers.drawing` or `flfw.papers.charts` draws the figure from that table alone.
Only a grid has images beside its table.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from matplotlib.figure import Figure

from flfw import data
from flfw.errors import BadInput, require
from flfw.matrix.rows import Finished, read
from flfw.papers import charts, comparisons, drawing, features, gains, grids
from flfw.papers.comparisons import kind
from flfw.papers.drawing import Rows
from flfw.papers.embeddings import embeddings, perplexity
from flfw.papers.norms import norms
from flfw.storage.sealed import write_whole
from flfw.terminal.exit_code import exit_code
from flfw.terminal.parser import Parser

USUAL = ("training", "measures", "embeddings")
NAMES = (*USUAL, "privacy", "compression", "norms", "gains", "features", "grid")


# --- from runs to files ---


def write(
    folders: Sequence[Path],
    out: Path | None = None,
    form: drawing.Format = "svg",
    only: Iterable[str] = (),
    data_root: Path | None = None,
    choice: grids.GridChoice | None = None,
) -> list[Path]:
    """Draw finished runs, and return the files: each figure, followed by its numbers.

    Args:
        folders: folders of the runs; a figure of one run shows the first.
        out: folder to write to; None: ``figures`` in the first run's folder. Files of an earlier call are replaced.
        form: file format of the figures.
        only: names of figures, see `NAMES`. If empty, the `USUAL` ones are drawn. Of these, figures for which the first
            run has no numbers are left out; a line on stderr gives the reason.
        data_root: present folder of the data; None: the folder that the run used.
        choice: images of a grid; None: see `flfw.papers.grids.GridChoice`.

    Raises:
        BadInput: a run is not finished, was not trained or has other data than the first, or there are no numbers for
            a figure in ``only``.
    """
    runs, only, choice = _runs(folders), tuple(only), choice or grids.GridChoice()
    require(choice == grids.GridChoice() or "grid" in only, "options of a grid with --only grid", only=_words(only))
    out = out or runs[0].folder / "figures"
    require(out.is_dir() or not out.exists(), "a folder for the figures", out=out)
    made: dict[str, tuple[Rows, Figure]] = {}
    for name in only or USUAL:
        try:
            made[name] = _made(name, runs, data_root, choice)
        except BadInput as error:
            if only or name == "training":
                raise
            print(f"left out: {name}: {error}", file=sys.stderr)
    drawing.make_folder(out)
    files = {}
    for name, (rows, figure) in made.items():
        files[out / f"{name}.{form}"] = drawing.rendered(figure, form)
        files[out / f"{name}.csv"] = _csv(rows)
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def _made(name: str, runs: Sequence[Finished], data_root: Path | None, choice: grids.GridChoice) -> tuple[Rows, Figure]:
    first = runs[0]
    if name == "training":
        rows = training(runs)
        return rows, drawing.training(rows, _title(runs))
    if name == "measures":
        rows = measures(first)
        return rows, drawing.measures(rows, _title([first]))
    if name == "privacy":
        rows = comparisons.privacy(_by_name(runs))
        return rows, charts.privacy(rows, _title(runs))
    if name == "compression":
        rows = comparisons.compression(_by_name(runs))
        return rows, charts.compression(rows, _title(runs))
    if name == "norms":
        rows = norms(first.folder, data_root)
        many = max(row["clients"] for row in rows)
        return rows, charts.norms(rows, f"{_title([first])}: {many} clients, plain steps; band: 80 % of them")
    if name == "gains":
        rows = gains.gains(_by_name(runs))
        others = [one for one in runs if kind(one) != gains.ALONE]
        return rows, gains.drawn(rows, f"{_title(others)}: what each client gains")
    if name == "features":
        rows = features.features(first.folder, data_root)
        return rows, features.drawn(rows, f"{_title([first])}: features after the last round, t-SNE")
    if name == "grid":
        content = grids.grid(_by_name(runs), choice)
        return content.rows, grids.drawn(content, f"{_title(runs)}: reconstructions")
    rows = embeddings(first.folder, data_root)
    description = f"the clients' embeddings, t-SNE of perplexity {perplexity(len(rows)):.3g}"
    return rows, drawing.embeddings(rows, f"{_title([first])}: {description}")


def _csv(rows: Rows) -> bytes:
    file = io.StringIO()
    table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return file.getvalue().encode()


def _runs(folders: Sequence[Path]) -> list[Finished]:
    require(len({folder.resolve() for folder in folders}) == len(folders), "each run once", runs=_words(folders))
    runs = [read(folder) for folder in folders]
    sets = dict.fromkeys(str(one.result["config"].get("dataset")) for one in runs)
    require(len(sets) == 1, "runs on the same data in one figure", datasets=_words(sets))
    return runs


def _title(runs: Sequence[Finished]) -> str:
    kinds = list(dict.fromkeys(map(kind, runs)))
    return f"{' and '.join(kinds)} on {data.title(str(runs[0].result['config'].get('dataset')))}"


def _names(runs: Sequence[Finished]) -> list[str]:
    """Return different names for the runs: their kinds, or else the shortest ends of their paths that differ."""
    places = [one.folder.resolve().parts for one in runs]
    ends = ([str(Path(*place[-depth:])) for place in places] for depth in range(1, max(map(len, places)) + 1))
    return next(names for names in (list(map(kind, runs)), *ends) if len(set(names)) == len(names))


def _by_name(runs: Sequence[Finished]) -> dict[str, Finished]:
    return dict(zip(_names(runs), runs, strict=True))


def _words(items: Iterable[object]) -> str:
    return " and ".join(map(str, items))


# --- the numbers ---


def training(runs: Sequence[Finished]) -> Rows:
    """Return a row per run and round: ``run``, ``round``, ``loss``, ``acc_global``, ``acc_local``.

    Raises:
        BadInput: a run was not trained, or is damaged.
    """
    keys = ("loss", "acc_global", "acc_local")
    named = zip(_names(runs), runs, strict=True)
    return [{"run": name, **row} for name, one in named for row in _rounds(one, lambda row: {k: row[k] for k in keys})]


def measures(one: Finished) -> Rows:
    """Return a row per round: ``round``, and the measures of the method beside loss and accuracy.

    Raises:
        BadInput: the method has no other measures, or the run was not trained or is damaged.
    """
    rows = _rounds(one, lambda row: row["extra"])
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
    require(len(names) > 1, "a method that measures more than loss and accuracy", method=kind(one))
    return [{name: row.get(name) for name in names} for row in rows]


def _rounds(one: Finished, values_of: Callable[[Any], Mapping[str, Any]]) -> Rows:
    """Return a row per round: ``round`` and the selected numbers, None where there is none."""
    rounds = one.result.get("rounds")
    if not rounds:
        raise BadInput(f"Expected a run with rounds of training, got {one.folder} without; name another.")
    try:
        return [{"round": int(row["round"]), **{n: _number(v) for n, v in values_of(row).items()}} for row in rounds]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"Expected rounds of this version in {one.folder}, got damaged ones: {error!r}.") from error


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


# --- the command ---


def main(arguments: list[str]) -> int:
    """Run the command; return 0, or 2 if a figure cannot be drawn."""
    return exit_code("figures", lambda: _do(arguments))


def _do(arguments: list[str]) -> int:
    parser = Parser(prog="python -m flfw.papers.figures", description="Draw finished runs for a paper.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders; what shows one run shows the first")
    parser.add_argument("--out", type=Path, help="folder to write; default: figures in the first run's")
    parser.add_argument("--format", choices=get_args(drawing.Format), default="svg", help="of the figures")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=[], help="default: those of the first three there are"
    )
    parser.add_argument("--data-root", type=Path, help="folder of the data sets; default: where the run found them")
    grid = parser.add_argument_group("grid", "default: the first attack, round and place that all runs have")
    grid.add_argument("--attack", nargs="+", default=[], help="attacks; a row for each")
    grid.add_argument("--round", nargs="+", default=[], type=_round, help="audited rounds, or last: each run's last")
    grid.add_argument("--vantage", nargs="+", choices=list(grids.PLACES), default=[], help="places of the attacker")
    grid.add_argument("--source", nargs="+", choices=list(grids.SOURCES), default=[], help="attacked messages")
    grid.add_argument("--columns", type=int, default=grids.COLUMNS, help="most images; default: %(default)s")
    asked = parser.parse_args(arguments)
    listed = (tuple(each) for each in (asked.attack, asked.round, asked.vantage, asked.source))
    choice = grids.GridChoice(*listed, columns=asked.columns)
    written = write(asked.runs, asked.out, asked.format, asked.only, asked.data_root, choice)
    print("\n".join(map(str, written)))
    return 0


def _round(text: str) -> int | str:
    return grids.LAST if text == grids.LAST else int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
