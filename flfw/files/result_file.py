"""Models of result.json and training.json, and rows of audit.csv: every reader of a finished run checks them first.

They carry no seal: whoever may write a run's folder may change a figure. But every field that is read has its type, so
that a damaged file, or one of another version, is refused in one line. Further fields are kept as they are.
"""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from safetensors import SafetensorError, safe_open

from flfw.errors import InputError, require
from flfw.files import outcomes
from flfw.files.earlier_names import renames, settings_of_today
from flfw.files.result_entries import (
    EntryFields,
    InferenceFields,
    Int,
    JsonNumber,
    MembershipFields,
    ResultModel,
    SumFields,
)
from flfw.files.typed import read_json

RESULT, TRAINING = "result.json", "training.json"


class FailureFields(ResultModel):
    """Failure of a client."""

    client: Int
    reason: str


class RoundFigures(ResultModel):
    """Round of training."""

    round: Int
    loss: JsonNumber = None
    acc_global: JsonNumber = None
    acc_local: JsonNumber = None
    clients: Int | None = None
    failures: Int | None = None
    upload_bytes: Int | None = None
    download_bytes: Int | None = None
    seconds: JsonNumber = None
    extra: dict[str, JsonNumber] | None = None
    failed: list[FailureFields] | None = None


class FinalFigures(ResultModel):
    """Accuracies, or a regression's errors, after the last round."""

    acc_global: JsonNumber = None
    acc_local: JsonNumber = None
    acc_global_interval: list[JsonNumber] | None = None
    acc_local_interval: list[JsonNumber] | None = None
    acc_central: JsonNumber = None
    acc_protected: JsonNumber = None
    acc_global_validation: JsonNumber = None
    acc_validation: JsonNumber = None
    mae_global: JsonNumber = None
    mae_local: JsonNumber = None
    best_validation: dict[str, JsonNumber] | None = None
    per_client: list[dict[str, JsonNumber]] | None = None


class LowerFigures(ResultModel):
    """Lower bound from canaries."""

    epsilon: JsonNumber
    confidence: JsonNumber = 0.0
    canaries: Int = 0
    guesses: Int = 0
    correct: Int = 0


class ClaimFields(ResultModel):
    """Privacy claim."""

    unit: str
    adversary: str
    epsilon: JsonNumber
    accounting: str
    delta: JsonNumber = None
    accountant: str | None = None
    assumptions: list[str] = Field(default_factory=list)
    rounds: Int | None = None
    max_guess_accuracy: JsonNumber = None
    noise_source: str | None = None
    lower_bound: LowerFigures | None = None


class ConfigFields(ResultModel):
    """Settings of the run, of which an older one may lack some."""

    method: str = ""
    dataset: str = ""
    seed: Int = 0
    defence: str | None = None
    metrics: str | None = None
    pictures: str | None = None
    engine: str | None = None
    rounds: Int = 0
    set: list[str] | None = None
    method_settings: dict[str, Any] | None = None


class DataFields(ResultModel):
    """Origin of the data."""

    name: str = ""
    source: str | None = None
    md5_ok: bool | None = None
    digest: str | None = None
    licence: str | None = None
    citation: str | None = None
    classes: Int | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    shape: list[Int] | None = None
    reading: dict[str, str] | None = None


class CodeFields(ResultModel):
    """Code with which a run was resumed."""

    code: str


class RevisionFields(ResultModel):
    """Commit of a repository."""

    commit: str
    dirty: bool


class OutsideFields(ResultModel):
    """Code of a plug-in from outside."""

    kind: str
    name: str
    file: str
    sha256: str | None
    files: dict[str, str]
    git: RevisionFields | None


class PackagesFields(ResultModel):
    """List of installed distributions, in a file beside the results."""

    file: str
    sha256: str
    count: Int


class MachineFields(ResultModel):
    """Machine of a session, and the libraries that compute there."""

    hardware: str | None = None
    system: str | None = None
    cores: Int | None = None
    cores_of_machine: Int | None = None
    memory_bytes: Int | None = None
    gpus: list[dict[str, Any]] = Field(default_factory=list)
    blas: list[dict[str, Any]] = Field(default_factory=list)
    threads: dict[str, Any] = Field(default_factory=dict)
    torch: dict[str, Any] = Field(default_factory=dict)


class SessionFields(ResultModel):
    """Session of a run: its start or a resumption."""

    after_round: Int | None = None
    command: str = ""
    folder: str = ""
    started_at: str = ""
    ended_at: str | None = None
    code: str = ""
    lock: str | None = None
    git: RevisionFields | None = None
    external_plugins: list[OutsideFields] = Field(default_factory=list)
    python: str = ""
    packages: PackagesFields | None = None
    machine: MachineFields = Field(default_factory=MachineFields)


class SeedFields(ResultModel):
    """Seeds: the run's, from which all generators are derived, and those of each attack's repetitions."""

    run: Int
    attacks: dict[str, list[Int]]


class ProvenanceFields(ResultModel):
    """Origin of a run's numbers."""

    code: str = ""
    lock: str | None = None
    data: DataFields | None = None
    weights: dict[str, Any] | None = None
    tuned_on: list[str] | None = None
    malicious_server: str | None = None
    resumed: list[CodeFields] | None = None
    requested_rounds: list[Int] | None = None
    from_: str | None = Field(default=None, alias="from")
    seeds: SeedFields | None = None
    sessions: list[SessionFields] = Field(default_factory=list)
    recording_sessions: list[SessionFields] = Field(default_factory=list)


class RecordingFields(ResultModel):
    """Recordings of a run, in numbers."""

    exchanges: Int = 0
    bytes: Int = 0
    refused: list[str] | None = None
    skipped: Int | None = None


class ResultFields(ResultModel):
    """Content of result.json."""

    flfw: str = ""
    config: ConfigFields = ConfigFields()
    provenance: ProvenanceFields = ProvenanceFields()
    environment: dict[str, Any] = Field(default_factory=dict)
    notes: list[str] | None = None
    rounds: list[RoundFigures] | None = None
    final: FinalFigures | None = None
    privacy: list[ClaimFields] | None = None
    audit: list[EntryFields] | None = None
    membership: list[MembershipFields] | None = None
    inference: list[InferenceFields] | None = None
    recordings: RecordingFields | None = None
    secure_aggregation: SumFields | None = None


class ProbeFields(ResultModel):
    """Failure of a client in a probe."""

    round: Int
    client: Int
    reason: str


class TrainingFields(ResultModel):
    """Content of training.json."""

    rounds: list[RoundFigures]
    clients: list[dict[str, JsonNumber]]
    probes: list[ProbeFields]
    final: list[dict[str, JsonNumber]]
    final_failed: list[FailureFields]
    central: JsonNumber = None
    code: str
    resumed: list[CodeFields]
    requested_rounds: list[Int]
    evaluations: Int = 0
    summed: Int = 0
    budget_spent: bool
    engine: str
    without_gpu: bool
    scores: list[JsonNumber] | None = None
    residual: dict[str, Any] | None = None


def finite(content: Any, dropped: list[str], name: str = "") -> Any:
    """Return a value with None in place of each number that is not finite, so that JSON can hold all others.

    Args:
        content: mappings, lists and values.
        dropped: list to which the places of such numbers are added.
        name: place of the value itself; empty: it is the whole.

    >>> finite({"a": [1.5, float("inf")]}, dropped := []), dropped
    ({'a': [1.5, None]}, ['a[1] (inf)'])
    """
    if isinstance(content, Mapping):
        return {key: finite(value, dropped, f"{name}.{key}" if name else key) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value, dropped, f"{name}[{index}]") for index, value in enumerate(content)]
    if isinstance(content, float) and not isfinite(content):
        dropped.append(f"{name} ({content})")
        return None
    return content


def to_json(content: Mapping[str, Any]) -> bytes:
    """Return a result as the content of result.json; a note names the numbers that are not finite, which are empty.

    Raises:
        ValueError: a field has another type.
    """
    result = finite(content, dropped := [])
    if dropped:
        note = f"Not finite, so left empty: {', '.join(dropped[:8])}{' and others' * (len(dropped) > 8)}."
        result["notes"] = [*(result.get("notes") or []), note]
    checked = ResultFields.model_validate(json.loads(json.dumps(result)))
    return json.dumps(checked.model_dump(by_alias=True, exclude_unset=True), indent=1, allow_nan=False).encode()


def read_result(folder: Path) -> dict[str, Any]:
    """Read result.json of a folder.

    Raises:
        InputError: there is none, or a field that is read has another type.
    """
    result = read_model(folder / RESULT, ResultFields)
    return result | ({"config": settings_of_today(result["config"], fields=True)} if "config" in result else {})


def read_training(folder: Path) -> dict[str, Any]:
    """Read training.json of a folder.

    Raises:
        InputError: there is none, or a field that is read is missing or has another type.
    """
    return read_model(folder / TRAINING, TrainingFields)


def read_model(path: Path, model: type, way_out: str = "restore it, or run anew") -> Any:
    """Read a file of JSON by a model; return the fields that it has, under their present names.

    Args:
        path: path of the file.
        model: the model, or a list of it.
        way_out: words for the end of a refusal.

    Raises:
        InputError: the file cannot be read, is no JSON, or does not fit the model.
    """
    content, adapter = read_json(path, object, way_out), _adapter(model)
    try:
        return adapter.dump_python(adapter.validate_python(content), by_alias=True, exclude_unset=True)
    except ValidationError as error:
        raise InputError(f"Expected {_mismatch(error.errors()[0])} in {path}; {way_out}.") from error


_adapter: Any = cache(TypeAdapter)


def _mismatch(error: ErrorDetails) -> str:
    """Describe what a model expected and got.

    >>> _mismatch({"type": "int_type", "loc": ("rounds", 0, "round"), "msg": "Input should be a valid integer",
    ...            "input": "two"})
    'rounds[0].round as a valid integer, got two'
    """
    field = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in error["loc"]).removeprefix(".")
    form = "a table" if error["type"] in ("dict_type", "model_type") else error["msg"].removeprefix("Input should be ")
    if error["type"] == "missing":
        return f"{field}, got none"
    value = error["input"]
    got = "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else f"{value!s:.80}"
    return f"{field or 'a value'} as {form}, got {got or 'nothing'}"


_WAY_OUT = "restore it, or run anew"


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file by the names of its columns; earlier ones, and earlier words, by those of today.

    Raises:
        InputError: the file cannot be read, is no CSV, or a row has more or fewer values than there are columns.
    """
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"Expected a table in {path}, got none that can be read ({error}); {_WAY_OUT}.") from error
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise InputError(f"Expected {len(row)} values in row {number} of {path}, got another number; {_WAY_OUT}.")
    columns, of_today = renames().columns, {"rung": renames().controls, "curve": renames().curves}
    rows = [{columns.get(name, name): value for name, value in row.items()} for row in rows]
    rows = [outcomes.of_today(row) if "verdict" in row else row for row in rows]
    return [
        row | {name: words.get(row[name], row[name]) for name, words in of_today.items() if name in row} for row in rows
    ]


def stored_example(folder: Path, file: str, image: str) -> np.ndarray | None:
    """Read an original or a reconstruction that a row of a run's `audit.csv` names.

    Args:
        folder: folder of the run.
        file: path of a file of tensors from there; a further audit's originals lie in its run.
        image: the example's index among the file's ``samples``.

    Returns:
        The example; None: there is no such file, as in a purged run.

    Raises:
        InputError: it is no file of tensors, or has no such example.
    """
    path = folder / file
    if not os.path.isfile(path):  # noqa: PTH113 Path.is_file raises an error for a name that is too long for any file
        return None
    require(image.isdecimal(), f"an example's index in {path}", image=image)
    try:
        with safe_open(path, "numpy") as tensors:
            return tensors.get_slice("samples")[int(image)]
    except (OSError, OverflowError, SafetensorError, TypeError, ValueError) as error:
        raise InputError(f"Expected example {image} in {path}, got {error!r}; {_WAY_OUT}.") from error


def csv_text(rows: Sequence[Mapping[str, Any]], empty: Sequence[str] = ()) -> str:
    """Return rows as CSV.

    Args:
        rows: the rows, all with the keys of the first.
        empty: names of the columns if there is no row.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else empty, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the rows of an audit as its CSV; whole numbers stay whole although some are missing."""
    import pandas as pd

    table = pd.DataFrame(rows).drop(columns="db", errors="ignore")
    whole = {name: "Int64" for name in ("rank", "candidates", "iterations") if name in table}
    table.astype(whole).to_csv(path, index=False)
