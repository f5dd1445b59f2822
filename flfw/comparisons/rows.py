"""What finished runs and matrices left, read back: result.json with the rows of audit.csv, and matrix.json.

The models of matrix.json check it before its readers use it; further fields are kept as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, final

from pydantic import Field

from flfw import plugins
from flfw.adversary.attack import Attack
from flfw.comparisons.utility import ACCURACIES, family
from flfw.errors import InputError, require
from flfw.files.folders import require_finished
from flfw.files.outcomes import Evidence, VerdictWord
from flfw.files.result_entries import ConcludedFields, Int, Interval, JsonNumber, ResultModel, ScoreFigures
from flfw.files.result_file import read_model, read_result, read_rows
from flfw.report.findings import FLOORS, is_target, is_true


class AttackSetting(NamedTuple):
    """An attack on one round of a run, from one vantage, on clients with or without a defence.

    ``adaptive``: the attacker knew all processing between the data and its observation; ``informed``: it adapted to the
    defence or to the method.
    """

    attack: str
    defence: str
    adaptive: bool
    vantage: str
    source: str
    round: int
    informed: bool = False

    @property
    def place(self) -> tuple[object, ...]:
        """Fields of the setting except the attacker's knowledge."""
        return self.defence, self.vantage, self.source, self.round

    @property
    def kind(self) -> str:
        """Knowledge of the attacker, and its source and vantage if these are not the usual ones."""
        protected_by = "the method" if self.defence == "none" else self.defence
        recipe = _recipe(self.attack)
        static = f"built against {recipe}" if recipe in self.defence.split("+") else "static"
        words = f"told of {protected_by}" if self.informed else "adaptive" if self.adaptive else static
        places = [word for word, usual in ((self.source, "probe"), (self.vantage, "server")) if word != usual]
        return ", ".join([words, *(index.replace("_", " ") for index in places)])

    def answers(self, static: AttackSetting) -> bool:
        """Return whether this attack answers for a static attack that recovered nothing."""
        same = self.attack == static.attack and self.informed and not static.informed
        return self != static and self.place == static.place and (self.adaptive or same)


@cache
def _recipe(attack: str) -> str:
    """Return the defence whose recipe an attack solves; empty: none, or the attack cannot be found."""
    try:
        return plugins.load_class(plugins.ATTACK, attack, Attack).against
    except InputError:
        return ""


@final
@dataclass(frozen=True)
class MatrixRow:
    """Result for one attacked image or record.

    Attributes:
        setting: attack and round.
        seed: seed of the run.
        place: client, slot and index in the batch, as text.
        example: position in the training part, as text; empty if the run did not write it.
        label: label, as text.
        psnr: PSNR in dB; None for records of numbers and if the attack failed.
        ssim: SSIM; None as for ``psnr``, and for small images.
        rmsd: root-mean-square deviation; None if the attack failed.
        failed: whether the attack gave no result.
        recovered: whether it counts as reconstructed.
        floor: PSNR in dB of the best guess without an update.
    """

    setting: AttackSetting
    seed: int
    place: tuple[str, str, str]
    example: str
    label: str
    psnr: float | None
    ssim: float | None
    rmsd: float | None
    failed: bool
    recovered: bool
    floor: float | None

    @property
    def message(self) -> str:
        """Message that the image came in: the images of one batch are not independent of one another."""
        return f"{self.seed}/{self.place[0]}/{self.place[1]}"

    @property
    def closeness(self) -> float | None:
        """PSNR in dB, for records of numbers computed from the deviation; None if the attack failed."""
        if self.psnr is not None or self.rmsd is None:
            return self.psnr
        return -20 * math.log10(max(self.rmsd, 1e-10))

    @property
    def counted(self) -> float | None:
        """`closeness`, or the best floor of a failed image; None only if that is missing."""
        return self.floor if self.closeness is None else self.closeness


@final
@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Attributes:
        folder: folder of the run.
        result: content of result.json.
        rows: attacked images of the plain targets: no lower control, no point of a curve.
    """

    folder: Path
    result: Mapping[str, Any]
    rows: tuple[MatrixRow, ...]

    @property
    def seed(self) -> int:
        """Seed of everything random."""
        return int(self.result["config"]["seed"])

    @property
    def utilities(self) -> dict[str, float | None]:
        """Final accuracies by their keys, of a regression also errors; None: not measured, or not reported."""
        final = self.result.get("final") or {}
        keys = dict.fromkeys(one.key for one in (*ACCURACIES, *family([final])))
        return {key: None if final.get(key) is None else float(final[key]) for key in keys}

    @property
    def data(self) -> tuple[object, object]:
        """Digest and name of its data: with both alike, a position in the training part is the same example."""
        described = (self.result.get("provenance") or {}).get("data") or {}
        return described.get("digest"), self.result["config"].get("dataset")

    @property
    def is_noisy(self) -> bool:
        """True if the accuracies that clients reported have noise."""
        return self.result["config"].get("metrics") == "private"

    @property
    def claims(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """Claims of the run by unit and adversary, as in result.json; empty: the method makes none."""
        exact = [line for line in self.result.get("privacy") or [] if line["accounting"] == "exact"]
        return {(line["unit"], line["adversary"]): line for line in exact}

    @property
    def entries(self) -> list[tuple[AttackSetting, Mapping[str, Any]]]:
        """Plain targets with their entries in result.json."""
        return [(_setting(e), e) for e in self.result.get("audit") or [] if not e.get("curve")]


_COLUMNS = (
    "defence", "adaptive", "adaptation", "vantage", "source", "rung", "curve", "client", "probe_slot", "image", "index",
    "label", "psnr", "ssim", "rmsd", "failed", "recovered",
)  # fmt: skip


def read(folder: Path) -> FinishedRun:
    """Read a finished run from its folder.

    Raises:
        InputError: there is no finished run, or it is damaged.
    """
    require_finished(folder)
    try:
        result = read_result(folder)
        seed = int(result["config"]["seed"])
        rows: list[MatrixRow] = []
        if (folder / "audit.csv").is_file():
            lines = read_rows(folder / "audit.csv")
            lacking = ", ".join(name for name in _COLUMNS if lines and name not in lines[0])
            require(not lacking, f"all columns in {folder / 'audit.csv'}; restore it", missing=lacking)
            rows = [_row(line, seed) for line in lines if is_target(line) and not line["curve"]]
        run = FinishedRun(folder, result, tuple(rows))
        _ = run.utilities, [float(line["epsilon"]) for line in run.claims.values()], run.entries
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"Expected a run of this version in {folder}, got a damaged one: {error!r}.") from error
    return run


def _setting(entry: Mapping[str, Any]) -> AttackSetting:
    texts = (str(entry.get(key) or default) for key, default in (("vantage", "server"), ("source", "probe")))
    defence = str(entry.get("defence") or "none")
    setting = AttackSetting(
        str(entry["attack"]), defence, is_true(entry.get("adaptive")), *texts, round=int(float(entry["round"]))
    )
    return setting._replace(informed=bool(entry.get("adaptation")))


def _row(line: Mapping[str, str], seed: int) -> MatrixRow:
    floors = [_number(line.get(f"floor_{name}")) for name in FLOORS]
    index = _number(line["index"])
    return MatrixRow(
        setting=_setting(line),
        seed=seed,
        place=(line["client"], line["probe_slot"], line["image"]),
        example="" if index is None else f"{index:.0f}",
        label=line["label"],
        psnr=_number(line["psnr"]),
        ssim=_number(line["ssim"]),
        rmsd=_number(line["rmsd"]),
        failed=is_true(line["failed"]),
        recovered=is_true(line["recovered"]),
        floor=max((floor for floor in floors if floor is not None), default=None),
    )


def _number(text: str | None) -> float | None:
    value = float(text) if text else math.nan
    return value if math.isfinite(value) else None


MATRIX = "matrix.json"


class ClaimColumn(ResultModel):
    """Claim of a combination."""

    epsilon: JsonNumber
    unit: str
    adversary: str
    noise_source: str | None = None


class LeakColumn(ConcludedFields):
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
    verdict: VerdictWord
    evidence: Evidence | None = None
    cause: str | None = None
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
