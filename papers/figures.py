"""Figures from finished runs, the numbers beside each as CSV: ``python -m papers.figures RUN [OTHER ...]``.

    training    mean training loss, and accuracy before and after local training, by round, of all runs together
    measures    what the first run's method measures beside these, by round
    embeddings  t-SNE of the private embeddings of the first run's clients, marked by the classes they hold most of

and, if asked for by name (``--only``), since they need fitting runs or take their time:

    privacy      accuracy against epsilon, of all runs together
    compression  accuracy and leakage of single examples by the share of a gradient's entries that is zeroed
    norms        how long gradients are by local iteration, of the first run's clients
    gains        what each client gains over local training, of all runs but that of local_only
    features     features of the first run's clients beside generated ones for the same labels, by t-SNE

Each is a table of numbers first, and `papers.drawing` or `papers.charts` makes a figure of nothing but that table.
"""

from __future__ import annotations

import argparse
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
from flfw.storage.sealed import write_whole
from papers import charts, comparisons, drawing, features, gains
from papers.comparisons import kind
from papers.drawing import Rows
from papers.embeddings import embeddings, perplexity
from papers.norms import norms

USUAL = ("training", "measures", "embeddings")
NAMES = (*USUAL, "privacy", "compression", "norms", "gains", "features")


# --- from runs to files ---


def write(
    folders: Sequence[Path],
    out: Path | None = None,
    form: drawing.Format = "svg",
    only: Iterable[str] = (),
    data_root: Path | None = None,
) -> list[Path]:
    """Draw finished runs; the files, each figure and behind it its numbers.

    Args:
        folders: of the runs; what shows one run shows the first.
        out: where to write; None: ``figures`` in the first run's folder. Files of an earlier call are replaced.
        form: of the figures.
        only: names of figures, see `NAMES`. Without any it is the `USUAL` ones, and one for which the first run has no
            numbers is left out, with a line on stderr that says why.
        data_root: where the data lie now; None: where the run found them.

    Raises:
        BadInput: a run is not finished, was not trained or has other data than the first, or there are no numbers for
            a figure that was asked for by its name.
    """
    runs, only = _runs(folders), tuple(only)
    out = out or runs[0].folder / "figures"
    require(out.is_dir() or not out.exists(), "a folder for the figures", out=out)
    made: dict[str, tuple[Rows, Figure]] = {}
    for name in only or USUAL:
        try:
            made[name] = _made(name, runs, data_root)
        except BadInput as error:
            if only or name == "training":
                raise
            print(f"left out: {name}: {error}", file=sys.stderr)
    out.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, (rows, figure) in made.items():
        files[out / f"{name}.{form}"] = drawing.rendered(figure, form)
        files[out / f"{name}.csv"] = _csv(rows)
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def _made(name: str, runs: Sequence[Finished], data_root: Path | None) -> tuple[Rows, Figure]:
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
    rows = embeddings(first.folder, data_root)
    about = f"the clients' embeddings, t-SNE of perplexity {perplexity(len(rows)):.3g}"
    return rows, drawing.embeddings(rows, f"{_title([first])}: {about}")


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
    """What tells the runs apart: what was run, or else as much of the ends of their paths as it takes."""
    places = [one.folder.resolve().parts for one in runs]
    ends = ([str(Path(*place[-depth:])) for place in places] for depth in range(1, max(map(len, places)) + 1))
    return next(names for names in (list(map(kind, runs)), *ends) if len(set(names)) == len(names))


def _by_name(runs: Sequence[Finished]) -> dict[str, Finished]:
    return dict(zip(_names(runs), runs, strict=True))


def _words(found: Iterable[object]) -> str:
    return " and ".join(map(str, found))


# --- the numbers ---


def training(runs: Sequence[Finished]) -> Rows:
    """A row a run and round: ``run``, ``round``, ``loss``, ``acc_global``, ``acc_local``.

    Raises:
        BadInput: a run was not trained, or is damaged.
    """
    keys = ("loss", "acc_global", "acc_local")
    named = zip(_names(runs), runs, strict=True)
    return [{"run": name, **row} for name, one in named for row in _rounds(one, lambda row: {k: row[k] for k in keys})]


def measures(one: Finished) -> Rows:
    """A row a round: ``round``, and what the method measures beside loss and accuracy.

    Raises:
        BadInput: it measures nothing else, was not trained, or is damaged.
    """
    rows = _rounds(one, lambda row: row["extra"])
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
    require(len(names) > 1, "a method that measures more than loss and accuracy", method=kind(one))
    return [{name: row.get(name) for name in names} for row in rows]


def _rounds(one: Finished, values_of: Callable[[Any], Mapping[str, Any]]) -> Rows:
    """A row a round: ``round`` and some numbers, None where there is none."""
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
    """The command; returns 0, or 2 where what was asked for cannot be drawn."""
    parser = argparse.ArgumentParser(prog="python -m papers.figures", description="Draw finished runs for a paper.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders; what shows one run shows the first")
    parser.add_argument("--out", type=Path, help="folder to write; default: figures in the first run's")
    parser.add_argument("--format", choices=get_args(drawing.Format), default="svg", help="of the figures")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=[], help="default: those of the first three there are"
    )
    parser.add_argument("--data-root", type=Path, help="folder of the data sets; default: where the run found them")
    asked = parser.parse_args(arguments)
    try:
        written = write(asked.runs, asked.out, asked.format, asked.only, asked.data_root)
    except BadInput as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, written)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
