"""What one finished run says of its leakage: the entries of result.json and the rows of audit.csv, read back."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from flfw.errors import BadInput
from flfw.report.findings import was_told

# In dB; other columns with a floor are shares.
_FLOORS = ("noise", "grey", "mean", "class_mean", "random_public", "nearest_public")


class AttackSetting(NamedTuple):
    """An attack on one round of a run, as seen from one place, on clients with or without a defence.

    ``adaptive``: it knew all that stands between the data and what it saw; ``told``: it adapted to the defence, or to
    what the method does.
    """

    attack: str
    defence: str
    adaptive: bool
    vantage: str
    source: str
    round: int
    told: bool = False

    @property
    def place(self) -> tuple[object, ...]:
        """All but what the attacker knew."""
        return self.defence, self.vantage, self.source, self.round

    @property
    def kind(self) -> str:
        """What the attacker knew, and where it stood if not at the server."""
        hidden_by = "the method" if self.defence == "none" else self.defence
        words = f"told of {hidden_by}" if self.told else "adaptive" if self.adaptive else "static"
        places = [word for word, usual in ((self.source, "probe"), (self.vantage, "server")) if word != usual]
        return ", ".join([words, *(place.replace("_", " ") for place in places)])

    def answers(self, static: AttackSetting) -> bool:
        """Whether this is the answer where the other, a static attack, found nothing."""
        same = self.attack == static.attack and self.told and not static.told
        return self != static and self.place == static.place and (self.adaptive or same)


@final
@dataclass(frozen=True)
class MatrixRow:
    """One attacked image or record.

    Attributes:
        setting: by what and when.
        seed: of the run.
        place: client, slot and index in the batch, as text.
        example: position in the training part, as text; empty where the run did not write it.
        label: as text.
        psnr: dB; None for records of numbers and where the attack failed.
        ssim: None likewise, and for small images.
        rmsd: None where the attack failed.
        failed: whether the attack gave nothing.
        recovered: whether it counts as reconstructed.
        floor: dB of the best guess that saw no update.
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
    def closeness(self) -> float | None:
        """PSNR in dB, of a record of numbers too: it is a function of the deviation. None where the attack failed."""
        if self.psnr is not None or self.rmsd is None:
            return self.psnr
        return -20 * math.log10(max(self.rmsd, 1e-10))

    @property
    def counted(self) -> float | None:
        """`closeness`, but of a failed image its best floor; None only if that is missing."""
        return self.floor if self.closeness is None else self.closeness


@final
@dataclass(frozen=True)
class Finished:
    """A finished run.

    Attributes:
        folder: of the run.
        result: its result.json.
        rows: the attacked images of the plain targets: no lower rung, no point of a curve.
    """

    folder: Path
    result: Mapping[str, Any]
    rows: tuple[MatrixRow, ...]

    @property
    def seed(self) -> int:
        """Of everything random."""
        return int(self.result["config"]["seed"])

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Of the final model, mean over the clients: after local training, and as received; None: it has none."""
        final = self.result.get("final")
        return (float(final["acc_local"]), float(final["acc_global"])) if final else None

    @property
    def entries(self) -> list[tuple[AttackSetting, Mapping[str, Any]]]:
        """The plain targets, as result.json has them."""
        return [(_setting(e), e) for e in self.result.get("audit") or [] if not e.get("curve")]


def read(folder: Path) -> Finished:
    """A finished run, from its folder.

    Raises:
        BadInput: there is none, or it is damaged.
    """
    path = folder / "result.json"
    if not path.is_file():
        raise BadInput(f"Expected a finished run with result.json, got {folder} without; resume it or name another.")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        seed = int(result["config"]["seed"])
        rows: list[MatrixRow] = []
        if (folder / "audit.csv").is_file():
            settings = {setting for setting, _ in Finished(folder, result, ()).entries}
            with (folder / "audit.csv").open(newline="", encoding="utf-8") as lines:
                rows = [_row(line, seed, settings) for line in csv.DictReader(lines) if _is_plain_target(line)]
        run = Finished(folder, result, tuple(rows))
        _ = run.accuracy, run.entries
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"Expected a run of this version in {folder}, got a damaged one: {error!r}.") from error
    return run


def _is_plain_target(line: Mapping[str, str]) -> bool:
    return (line.get("rung") or "target") == "target" and not line.get("curve")


def _setting(of: Mapping[str, Any]) -> AttackSetting:
    texts = (str(of.get(key) or default) for key, default in (("vantage", "server"), ("source", "probe")))
    defence = str(of.get("defence") or "none")
    setting = AttackSetting(
        str(of["attack"]), defence, _true(of.get("adaptive")), *texts, round=int(float(of["round"]))
    )
    return setting._replace(told=bool(of.get("adaptation")))


def _setting_of(line: Mapping[str, str], settings: Set[AttackSetting]) -> AttackSetting:
    """That of the run which a row belongs to; a failed one may not say whether its attacker was told."""
    plain, told = _setting(line)._replace(told=False), was_told(line)
    possible = [setting for setting in (plain, plain._replace(told=True)) if setting in settings] or [plain]
    return next((setting for setting in possible if setting.told == told), possible[0])


def _row(line: Mapping[str, str], seed: int, settings: Set[AttackSetting]) -> MatrixRow:
    floors = [_number(line.get(f"floor_{name}")) for name in _FLOORS]
    index = _number(line.get("index"))
    return MatrixRow(
        setting=_setting_of(line, settings),
        seed=seed,
        place=(line.get("client") or "", line.get("victim") or "", line.get("image") or ""),
        example="" if index is None else f"{index:.0f}",
        label=line.get("label") or "",
        psnr=_number(line.get("psnr")),
        ssim=_number(line.get("ssim")),
        rmsd=_number(line.get("rmsd")),
        failed=_true(line.get("failed")),
        recovered=_true(line.get("recovered")),
        floor=max((floor for floor in floors if floor is not None), default=None),
    )


def _number(text: str | None) -> float | None:
    value = float(text) if text else math.nan
    return value if math.isfinite(value) else None


def _true(value: object) -> bool:
    return str(value).strip().lower() in ("true", "1", "1.0")
