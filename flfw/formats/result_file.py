"""Form of result.json and training.json, which every reader of a finished run checks before it uses them.

Both carry no seal: whoever may write a run's folder may change a figure. But every field that is read has its type, so
that a damaged file, or one of another version, is refused in one line. Further fields are kept as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from flfw.formats.result_entries import EntryFields, InferenceFields, JsonNumber, MembershipFields
from flfw.formats.sum_entries import SumFields
from flfw.formats.typed import read_json

RESULT, TRAINING = "result.json", "training.json"
_WAY_OUT = "restore it, or run anew"


class FailureFields(TypedDict):
    """Failure of a client."""

    client: int
    reason: str


class RoundFigures(TypedDict):
    """Round of training."""

    round: int
    loss: NotRequired[JsonNumber]
    acc_global: NotRequired[JsonNumber]
    acc_local: NotRequired[JsonNumber]
    clients: NotRequired[int | None]
    failures: NotRequired[int | None]
    upload_bytes: NotRequired[int | None]
    download_bytes: NotRequired[int | None]
    seconds: NotRequired[JsonNumber]
    extra: NotRequired[dict[str, JsonNumber] | None]
    failed: NotRequired[list[FailureFields] | None]


class FinalFigures(TypedDict, total=False):
    """Accuracies, or a regression's errors, after the last round."""

    acc_global: JsonNumber
    acc_local: JsonNumber
    acc_global_interval: list[float] | None
    acc_local_interval: list[float] | None
    acc_central: JsonNumber
    acc_protected: JsonNumber
    acc_global_validation: JsonNumber
    acc_validation: JsonNumber
    mae_global: JsonNumber
    mae_local: JsonNumber
    best_validation: dict[str, float] | None
    per_client: list[dict[str, JsonNumber]] | None


class LowerFigures(TypedDict):
    """Lower bound from canaries."""

    epsilon: JsonNumber
    confidence: NotRequired[float]
    canaries: NotRequired[int]
    guesses: NotRequired[int]
    correct: NotRequired[int]


class ClaimFields(TypedDict):
    """Privacy claim."""

    unit: str
    adversary: str
    epsilon: JsonNumber
    counted: str
    delta: NotRequired[JsonNumber]
    accountant: NotRequired[str | None]
    assumptions: NotRequired[list[str]]
    rounds: NotRequired[int | None]
    certainty: NotRequired[JsonNumber]
    noise: NotRequired[str | None]
    lower: NotRequired[LowerFigures | None]


class ConfigFields(TypedDict, total=False):
    """Settings of the run, of which an older one may lack some."""

    method: str
    dataset: str
    seed: int
    defence: str | None
    metrics: str | None
    pictures: str | None
    engine: str | None
    rounds: int
    set: list[str] | None
    method_settings: dict[str, Any] | None


class DataFields(TypedDict, total=False):
    """Origin of the data."""

    name: str
    source: str | None
    md5_ok: bool | None
    digest: str | None
    licence: str | None
    citation: str | None


class CodeFields(TypedDict):
    """Code with which a run was resumed."""

    code: str


class RevisionFields(TypedDict):
    """Commit of a repository."""

    commit: str
    dirty: bool


class OutsideFields(TypedDict):
    """Code of a plug-in from outside."""

    kind: str
    name: str
    file: str
    sha256: str | None
    files: dict[str, str]
    git: RevisionFields | None


class PackagesFields(TypedDict):
    """List of installed distributions, in a file beside the results."""

    file: str
    sha256: str
    count: int


class SittingFields(TypedDict, total=False):
    """Sitting of a run: its start or a resumption."""

    after_round: int | None
    command: str
    folder: str
    began: str
    ended: str | None
    code: str
    lock: str | None
    git: RevisionFields | None
    outside: list[OutsideFields]
    python: str
    packages: PackagesFields
    machine: dict[str, Any]


class SeedFields(TypedDict):
    """Seeds: the run's, from which all generators are derived, and those of each attack's repetitions."""

    run: int
    attacks: dict[str, list[int]]


ProvenanceFields = TypedDict(
    "ProvenanceFields",
    {
        "code": str,
        "lock": str | None,
        "data": DataFields | None,
        "weights": dict[str, Any] | None,
        "tuned_on": list[str] | None,
        "tampered_by": str | None,
        "resumed": list[CodeFields] | None,
        "asked": list[int] | None,
        "from": str | None,
        "seeds": SeedFields,
        "sittings": list[SittingFields],
        "recorded_in": list[SittingFields],
    },
    total=False,
)
"""Origin of a run's numbers."""


class RecordingFields(TypedDict, total=False):
    """Recordings of a run, in numbers."""

    exchanges: int
    bytes: int
    refused: list[str] | None
    skipped: int | None


class ResultFields(TypedDict, total=False):
    """Content of result.json."""

    flfw: str
    config: ConfigFields
    provenance: ProvenanceFields
    environment: dict[str, Any]
    notes: list[str] | None
    rounds: list[RoundFigures] | None
    final: FinalFigures | None
    privacy: list[ClaimFields] | None
    audit: list[EntryFields] | None
    membership: list[MembershipFields] | None
    inference: list[InferenceFields] | None
    recordings: RecordingFields | None
    sums: SumFields | None


class ProbeFields(TypedDict):
    """Failure of a client in a probe."""

    round: int
    client: int
    reason: str


class TrainingFields(TypedDict):
    """Content of training.json."""

    rounds: list[RoundFigures]
    clients: list[dict[str, JsonNumber]]
    probes: list[ProbeFields]
    final: list[dict[str, JsonNumber]]
    final_failed: list[FailureFields]
    central: NotRequired[float | None]
    code: str
    resumed: list[CodeFields]
    asked: list[int]
    evaluations: NotRequired[int]
    summed: NotRequired[int]
    budget_spent: bool
    engine: str
    without_gpu: bool
    scores: NotRequired[list[float] | None]
    residual: NotRequired[dict[str, Any] | None]


def read_result(folder: Path) -> dict[str, Any]:
    """Read result.json of a folder.

    Raises:
        InputError: there is none, or a field that is read has another type.
    """
    return cast(dict[str, Any], read_json(folder / RESULT, ResultFields, _WAY_OUT))


def read_training(folder: Path) -> dict[str, Any]:
    """Read training.json of a folder.

    Raises:
        InputError: there is none, or a field that is read is missing or has another type.
    """
    return cast(dict[str, Any], read_json(folder / TRAINING, TrainingFields, _WAY_OUT))
