"""Mutations of what finished runs leave: result.json and its tables, matrices, records of evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.mutation_cases import Change, Folder, Subject, unsealed
from benchmarks.mutation_operators import json_mutant, table_mutant
from benchmarks.mutation_runs import recorded
from benchmarks.mutation_seals import renamed, resealed
from flfw.api.summary import summary
from flfw.errors import RunFailed
from flfw.experiment import Experiment
from flfw.formats.result_file import read_training
from flfw.matrix import compare, matrices, tables
from flfw.matrix.cells import settled
from flfw.matrix.question import Matrix
from flfw.matrix.rows import read
from flfw.papers import cells as paper_cells
from flfw.papers.evidence import records
from flfw.papers.frontier import points
from flfw.papers.preset import Figure
from flfw.report.report import write_report
from flfw.resolve import resolve
from flfw.runs.audit_again import require_recorded
from flfw.runs.results import last_round, read_earlier
from flfw.runs.run import stored

_CHANGES: dict[str, Change] = {"result.json": unsealed(json_mutant), "audit.csv": unsealed(table_mutant)}


def _is_text(value: Any) -> bool:
    value.encode()
    return isinstance(value, str)


def results(scratch: Path) -> list[Subject]:
    """Return the readers of a finished run: rows, report, comparison, summary, and a later audit."""
    run = recorded(scratch)
    names = ("result.json", "audit.csv")
    files = {name: (run / name).read_bytes() for name in names}
    folder, beside = Folder(scratch / "finished", files), Folder(scratch / "beside", files).lay()
    experiment = Experiment(method="fedavg", net="linear", clients=2, rounds=1)

    def reported(place: Path) -> str:
        return write_report(place).read_text()[:20]

    def earlier(place: Path) -> object:
        before = read_earlier(place)
        return last_round(before, experiment), before["provenance"], before["environment"].get("transport")

    def figures(place: Path) -> object:
        one = Experiment(method="fedavg", out=place)
        named = [
            paper_cells.numbers([one], Figure(name, "a figure", absent="-"))
            for name in ("final.acc_local", "audit.*.share_recovered")
        ]
        return named, paper_cells.result(one).get("notes")

    kept = Folder.of(scratch / "again", run)
    sealed = next(name for name in kept.files if name.startswith("checkpoint/experiment"))
    parts: dict[str, Change] = {"observations/manifest.jsonl": resealed, sealed: renamed(json_mutant)}

    def again(place: Path) -> object:
        before = stored(place)
        require_recorded(resolve(replace(before, out=None)), before, place)
        return len(before.attacks)

    training = Folder(scratch / "trained", {"training.json": _training()})
    change = {"training.json": unsealed(json_mutant)}
    return [
        folder.subject("rows.read", _CHANGES, read, fits=_run_fits, weight=3),
        folder.subject("write_report", _CHANGES, reported, fits=lambda text: text.startswith("<!"), weight=2),
        folder.subject("compare", _CHANGES, lambda place: compare.table([beside, place]), fits=_is_text),
        folder.subject("summary", _CHANGES, summary, fits=_is_text),
        folder.subject(
            "read_earlier", {"result.json": _CHANGES["result.json"]}, earlier, fits=lambda r: type(r[0]) is int
        ),
        folder.subject(
            "flfw.papers.cells", {"result.json": _CHANGES["result.json"]}, figures, refusals=(RunFailed,), fits=_finite
        ),
        kept.subject("--from", parts, again, fits=lambda count: count > 0, weight=0.5),
        training.subject("read_training", change, read_training, fits=lambda t: isinstance(t["rounds"], list)),
    ]


def _finite(read: Any) -> bool:
    return all(math.isfinite(number) for numbers in read[0] for number in numbers)


def _run_fits(run: Any) -> bool:
    return type(run.seed) is int and all(a is None or math.isfinite(a) for a in run.utilities.values())


def _training() -> bytes:
    row = {
        "round": 1,
        "loss": 0.5,
        "clients": 2,
        "failures": 0,
        "failed": [{"client": 1, "reason": "late"}],
        "extra": {},
    }
    client = {"client": 0, "round": 1, "acc_global": 0.5, "acc_local": 0.75, "num-examples": 46}
    content = {
        "rounds": [row], "clients": [client], "probes": [{"round": 0, "client": 1, "reason": "late"}],
        "final": [client],
        "final_failed": [], "central": None, "code": "abc", "resumed": [{"code": "abc"}], "asked": [1],
        "evaluations": 1, "summed": 1, "budget_spent": False, "engine": "inproc",
        "without_gpu": False, "scores": None, "residual": None,
    }  # fmt: skip
    return json.dumps(content).encode()


def pages(scratch: Path) -> list[Subject]:
    """Return the readers of matrices, and of the papers' records of evidence and points."""
    run = recorded(scratch)
    place = scratch / "matrix"
    asked = Experiment(
        method="fedavg", net="linear", clients=2, rounds=1, attack=("analytic",), split="iid", augment="none"
    )
    matrix, experiment = settled(Matrix(methods=("fedavg",)), asked)
    cells, question = matrix.cells(experiment, place), matrix.question(experiment)
    inner = cells[0].folder.name
    files = {f"{inner}/{name}": (run / name).read_bytes() for name in ("result.json", "audit.csv")}
    whole = Folder(place, files)
    tables.write(whole.lay(), question, cells, {})
    finished = Folder(scratch / "written", {"matrix.json": (place / "matrix.json").read_bytes()})
    inside: dict[str, Change] = {f"{inner}/{name}": change for name, change in _CHANGES.items()}

    def written(folder: Path) -> str:
        tables.write(folder, question, cells, {})
        return (folder / "matrix.html").read_text()[:20]

    change = unsealed(json_mutant)
    evidence = Folder(scratch / "evidence", {"t/one.json": _first_record()})
    points.write(scratch / "points.json", "quick", [_point()], [])
    frontier = Folder(scratch / "frontier", {"points.json": (scratch / "points.json").read_bytes()})
    return [
        finished.subject("matrix.json", {"matrix.json": change}, matrices.summary, fits=_is_text, weight=2),
        whole.subject("matrix pages", inside, written, fits=lambda text: text.startswith("<!"), weight=0.5),
        evidence.subject("evidence", {"t/one.json": change}, records.read, fits=lambda rs: all(map(_record_fits, rs))),
        frontier.subject(
            "frontier", {"points.json": change}, lambda p: points.read(p / "points.json"), fits=_points_fit
        ),
    ]


def _first_record() -> bytes:
    return next(iter(sorted(records.FOLDER.glob("*/*.json")))).read_bytes()


def _record_fits(record: Any) -> bool:
    return (
        isinstance(record.seed, int)
        and isinstance(record.value, float | int | str)
        and isinstance(record.settings, Mapping)
    )


def _point() -> points.FrontierPoint:
    return points.FrontierPoint(
        "a/b",
        "MNIST",
        "m",
        "example",
        "server",
        2.0,
        "measured",
        epsilon=math.inf,
        accuracy=0.5,
        seeds=(0, 1),
        tried=(("lr=1", 0.5),),
    )


def _points_fit(read: Any) -> bool:
    return read[0] in ("quick", "full") and all(isinstance(one.target, float | int) for one in read[1])
