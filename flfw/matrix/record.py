"""Form of matrix.json, which its readers check before they use it; further fields are kept as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from flfw.formats.result_entries import JsonNumber, ScoreFigures
from flfw.formats.typed import read_json

MATRIX = "matrix.json"


class ClaimColumn(TypedDict):
    """Claim of a combination."""

    epsilon: JsonNumber
    unit: str
    adversary: str
    noise: NotRequired[str | None]


class LeakColumn(TypedDict):
    """Attack at a round, pooled over the seeds."""

    attack: str
    kind: str
    round: int
    seeds: list[int]
    images: int
    failures: int
    recovered: int
    share_interval: tuple[float, float]
    psnr: ScoreFigures | None
    ssim: JsonNumber
    identified: JsonNumber
    verdict: str
    seeds_with_verdict: int


class UtilityColumn(TypedDict):
    """Utility of a combination over its seeds."""

    mean: float


class CombinationFields(TypedDict):
    """Method with a defence."""

    method: str
    defence: str
    acc_local: NotRequired[UtilityColumn | None]
    acc_global: NotRequired[UtilityColumn | None]
    acc_central: NotRequired[UtilityColumn | None]
    mae_local: NotRequired[UtilityColumn | None]
    mae_global: NotRequired[UtilityColumn | None]
    claim: NotRequired[ClaimColumn | None]
    attacks: list[LeakColumn]
    worst: LeakColumn | None


class CellFields(TypedDict):
    """Cell of the matrix."""

    folder: NotRequired[str]
    state: str
    reason: NotRequired[str]


class QuestionFields(TypedDict, total=False):
    """Settings that the numbers depend on."""

    experiment: dict[str, Any]


class MatrixFields(TypedDict):
    """Content of matrix.json."""

    question: QuestionFields
    notes: list[str]
    cells: list[CellFields]
    combinations: list[CombinationFields]


def read_matrix(path: Path) -> dict[str, Any]:
    """Read a file as a finished matrix writes it.

    Raises:
        InputError: there is none, or a field that is read is missing or has another type.
    """
    return cast(dict[str, Any], read_json(path, MatrixFields, "restore it, or choose another --out"))
