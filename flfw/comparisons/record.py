"""Models of matrix.json, by which its readers check it before they use it; further fields are kept as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from flfw.files.result_entries import Int, Interval, JsonNumber, ResultModel, ScoreFigures
from flfw.files.result_file import read_model

MATRIX = "matrix.json"


class ClaimColumn(ResultModel):
    """Claim of a combination."""

    epsilon: JsonNumber
    unit: str
    adversary: str
    noise_source: str | None = None


class LeakColumn(ResultModel):
    """Attack at a round, pooled over the seeds."""

    attack: str
    kind: str
    round: Int
    seeds: list[Int]
    images: Int
    failures: Int
    recovered: Int
    share_interval: Interval
    psnr: ScoreFigures | None
    ssim: JsonNumber
    identified: JsonNumber
    verdict: str
    seeds_with_verdict: Int


class UtilityColumn(ResultModel):
    """Utility of a combination over its seeds."""

    mean: float


class CombinationFields(ResultModel):
    """Method with a defence."""

    method: str
    defence: str
    acc_local: UtilityColumn | None = None
    acc_global: UtilityColumn | None = None
    acc_central: UtilityColumn | None = None
    mae_local: UtilityColumn | None = None
    mae_global: UtilityColumn | None = None
    claim: ClaimColumn | None = None
    attacks: list[LeakColumn]
    worst: LeakColumn | None


class CellFields(ResultModel):
    """Cell of the matrix."""

    folder: str = ""
    state: str
    reason: str = ""


class QuestionFields(ResultModel):
    """Settings that the numbers depend on."""

    experiment: dict[str, Any] = Field(default_factory=dict)


class MatrixFields(ResultModel):
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
    return read_model(path, MatrixFields, "restore it, or choose another --out")
