"""What finished runs leave: result.json and its tables, matrices, records of evidence, points of the frontier."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from flfw.command.api.summary import summary
from flfw.comparisons import compare, matrices, tables
from flfw.comparisons.matrices import fill_defaults
from flfw.comparisons.question import Matrix
from flfw.comparisons.rows import read
from flfw.errors import RunError
from flfw.experiment import Experiment
from flfw.files.result_file import read_training
from flfw.papers import cells as paper_cells
from flfw.papers.evidence import records
from flfw.papers.frontier import points
from flfw.papers.preset import ResultMetric
from flfw.plans.run_plan import plan
from flfw.report.report import write_report
from flfw.runs.results import last_round, read_earlier
from flfw.runs.run import require_recorded, stored
from tests.properties.changes import Change, changed_json, changed_table, renamed, resealed, unsealed
from tests.properties.reading import Folder, Reader, is_text

JSON = unsealed(changed_json)
BOTH: dict[str, Change] = {"result.json": JSON, "audit.csv": unsealed(changed_table)}
RESULT: dict[str, Change] = {"result.json": JSON}
EXPERIMENT = Experiment(method="fedavg", net="linear", clients=2, rounds=1)
POINT = points.FrontierPoint(
    "a/b", "MNIST", "m", "example", "server", 2.0, "measured", epsilon=math.inf, accuracy=0.5, seeds=(0, 1),
    tried=(("lr=1", 0.5),),
)  # fmt: skip
CLIENT = {"client": 0, "round": 1, "acc_global": 0.5, "acc_local": 0.75, "num-examples": 46}
TRAINING = {
    "rounds": [{"round": 1, "loss": 0.5, "clients": 2, "failures": 0, "failed": [{"client": 1, "reason": "late"}],
                "extra": {}}],
    "clients": [CLIENT], "probes": [{"round": 0, "client": 1, "reason": "late"}], "final": [CLIENT],
    "final_failed": [], "central": None, "code": "abc", "resumed": [{"code": "abc"}], "requested_rounds": [1],
    "evaluations": 1, "summed": 1, "budget_spent": False, "engine": "inproc",
    "without_gpu": False, "scores": None, "residual": None,
}  # fmt: skip


def is_page(text: Any) -> bool:
    return text.startswith("<!")


def is_run(run: Any) -> bool:
    return type(run.seed) is int and all(a is None or math.isfinite(a) for a in run.utilities.values())


def earlier(path: Path) -> object:
    before = read_earlier(path)
    return last_round(before, EXPERIMENT), before["provenance"], before["environment"].get("transport")


def figures(path: Path) -> object:
    one = Experiment(method="fedavg", out=path)
    named = [
        paper_cells.numbers([one], ResultMetric(name, "a figure", absent="-"))
        for name in ("final.acc_local", "audit.*.share_recovered")
    ]
    return named, paper_cells.result(one).get("notes")


def are_finite(read: Any) -> bool:
    return all(math.isfinite(number) for numbers in read[0] for number in numbers)


def again(path: Path) -> object:
    before = stored(path)
    require_recorded(plan(replace(before, out=None)), before, path)
    return len(before.attacks)


def is_record(record: Any) -> bool:
    kinds = isinstance(record.seed, int) and isinstance(record.value, float | int | str)
    return kinds and isinstance(record.settings, Mapping)


def are_points(read: Any) -> bool:
    return read[0] in ("quick", "full") and all(isinstance(one.target, float | int) for one in read[1])


@pytest.fixture(scope="module")
def readers(finished_run: Path, scratch: Path) -> dict[str, Reader]:
    tensors = finished_run.glob("[tr]*/*.safetensors")  # reconstructions and truth
    examples = [f"{path.parent.name}/{path.name}" for path in tensors]
    files = {name: (finished_run / name).read_bytes() for name in ("result.json", "audit.csv", *examples)}
    folder, beside = Folder(scratch / "finished", files), Folder(scratch / "beside", files).lay()
    kept = Folder.of(scratch / "again", finished_run)
    sealed = next(name for name in kept.files if name.startswith("checkpoint/experiment"))
    parts: dict[str, Change] = {"observations/manifest.jsonl": resealed, sealed: renamed(changed_json)}
    training = Folder(scratch / "trained", {"training.json": json.dumps(TRAINING).encode()})
    return {
        "rows": Reader(folder, BOTH, read, is_run),
        "report": Reader(folder, BOTH, lambda place: write_report(place).read_text()[:20], is_page),
        "comparison": Reader(folder, BOTH, lambda place: compare.table([beside, place]), is_text),
        "summary": Reader(folder, BOTH, summary, is_text),
        "earlier": Reader(folder, RESULT, earlier, lambda read: type(read[0]) is int),
        "figures": Reader(folder, RESULT, figures, are_finite, (RunError,)),
        "audit again": Reader(kept, parts, again, lambda count: count > 0),
        "training": Reader(
            training, {"training.json": JSON}, read_training, lambda read: isinstance(read["rounds"], list)
        ),
    }


@pytest.mark.parametrize(
    "name", ["rows", "report", "comparison", "summary", "earlier", "figures", "audit again", "training"]
)
@given(data=st.data())
def test_a_changed_result_is_refused_or_one(data: DataObject, readers: dict[str, Reader], name: str) -> None:
    readers[name].require_refused_or_valid(data)


@pytest.fixture(scope="module")
def pages(finished_run: Path, scratch: Path) -> dict[str, Reader]:
    requested = replace(EXPERIMENT, attack=("analytic",), split="iid", augment="none")
    matrix, experiment = fill_defaults(Matrix(methods=("fedavg",)), requested)
    cells, question = matrix.cells(experiment, scratch / "matrix"), matrix.question(experiment)
    assert cells[0].out is not None
    inner = cells[0].out.name
    files = {f"{inner}/{name}": (finished_run / name).read_bytes() for name in ("result.json", "audit.csv")}
    whole = Folder(scratch / "matrix", files)
    tables.write(whole.lay(), question, cells, {})
    finished = Folder(scratch / "written", {"matrix.json": (scratch / "matrix" / "matrix.json").read_bytes()})

    def written(folder: Path) -> str:
        tables.write(folder, question, cells, {})
        return (folder / "matrix.html").read_text()[:20]

    first = next(iter(sorted(records.FOLDER.glob("*/*.json")))).read_bytes()
    points.write(scratch / "points.json", "quick", [POINT], [])
    frontier = Folder(scratch / "frontier", {"points.json": (scratch / "points.json").read_bytes()})
    inside = {f"{inner}/{name}": change for name, change in BOTH.items()}
    return {
        "matrix": Reader(finished, {"matrix.json": JSON}, matrices.summary, is_text),
        "pages of a matrix": Reader(whole, inside, written, is_page),
        "evidence": Reader(
            Folder(scratch / "evidence", {"t/one.json": first}),
            {"t/one.json": JSON},
            records.read,
            lambda read: all(map(is_record, read)),
        ),
        "frontier": Reader(
            frontier, {"points.json": JSON}, lambda place: points.read(place / "points.json"), are_points
        ),
    }


@pytest.mark.parametrize("name", ["matrix", "pages of a matrix", "evidence", "frontier"])
@given(data=st.data())
def test_a_changed_file_of_several_runs_is_refused_or_one(
    data: DataObject, pages: dict[str, Reader], name: str
) -> None:
    pages[name].require_refused_or_valid(data)
