"""What an audit found, read back from a run's folder: each setting with its samples, the worst for the client first."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Undefined
from markupsafe import Markup
from safetensors.numpy import load_file

from flfw.audit.figures import feature_strip, png_uri

# The weakest evidence first: a page that opens with the best-sounding of several verdicts would mislead.
_ORDER = ("leaks", "attack broken", "inconclusive", "static only", "no leak found")
# What an attacker was given and allowed: settings that agree in all of it share one description.
_GRANT = {
    "attack", "adaptive", "vantage", "source", "client", "defence", "granted", "batch", "steps", "mode", "iterations",
    "restarts", "selection", "seeds",
}  # fmt: skip
_SCORES = ("psnr", "ssim", "rmsd", "matching_loss", "floor_mean", "floor_nearest_public")


@dataclass(frozen=True)
class Sample:
    """One attacked sample: a row of `audit.csv`, its scores, its pictures; `nearness` is larger for a worse leak."""

    row: Mapping[str, str]
    scores: Mapping[str, float | None]
    failed: bool
    recovered: bool
    nearness: float
    original: str | None = None
    reconstruction: str | None = None
    strip: Markup | None = None


@dataclass(frozen=True)
class Setting:
    """One audit entry of `result.json` (an attack at a round) with its samples, the worst for the client first."""

    entry: Mapping[str, Any]
    name: str
    samples: list[Sample] = field(default_factory=list)
    rungs: dict[str, Sample] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Samples attacked, failures among them."""
        return int(self.entry.get("images") or len(self.samples))

    @property
    def recovered(self) -> int:
        """Samples that count as recovered."""
        if self.samples:
            return sum(sample.recovered for sample in self.samples)
        return round((number(self.entry.get("share_recovered")) or 0.0) * self.total)


def read_settings(folder: Path, entries: Sequence[Mapping[str, Any]]) -> list[Setting]:
    """Joins every audit entry with the rows of `audit.csv` that belong to it."""
    rows: list[dict[str, str]] = []
    if (folder / "audit.csv").is_file():
        with (folder / "audit.csv").open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    tensors: dict[str, np.ndarray | None] = {}

    def stored(row: Mapping[str, str], column: str) -> np.ndarray | None:
        path = row.get(column)
        if not path:
            return None
        if path not in tensors:
            # A folder that was passed on without its ground truth still deserves a report of its scores.
            tensors[path] = load_file(folder / path)["samples"] if (folder / path).is_file() else None
        samples = tensors[path]
        return None if samples is None else samples[int(row["image"])]

    settings = []
    for entry in entries:
        setting = Setting(entry, setting_name(entry, entries))
        for row in (row for row in rows if belongs(row, entry)):
            sample = read_sample(row, stored(row, "truth"), stored(row, "reconstruction"), setting.name)
            rung = row.get("rung") or "target"
            if rung == "target":
                setting.samples.append(sample)
            elif rung not in setting.rungs or sample.nearness > setting.rungs[rung].nearness:
                setting.rungs[rung] = sample
        setting.samples.sort(key=lambda sample: sample.nearness, reverse=True)
        settings.append(setting)
    return settings


def belongs(row: Mapping[str, str], entry: Mapping[str, Any]) -> bool:
    """Whether a row of `audit.csv` is a part of an audit entry; an entry without a client covers all of them."""
    texts = all(row.get(key) == str(entry.get(key)) for key in ("attack", "vantage", "source"))
    keys = ["round"] if entry.get("client") is None else ["round", "client"]
    numbers = all(number(row.get(key)) == number(entry.get(key)) for key in keys)
    return texts and numbers and is_true(row.get("adaptive")) == bool(entry.get("adaptive"))


def read_sample(row: Mapping[str, str], truth: np.ndarray | None, guess: np.ndarray | None, attack: str) -> Sample:
    """One row with its pictures: PNGs for images, a strip of features for tabular data."""
    scores = {key: number(row.get(key)) for key in _SCORES}
    failed = is_true(row.get("failed"))
    # Decibels rank images and distances rank records; an attempt that gave nothing comes last.
    psnr, rmsd = scores["psnr"], scores["rmsd"]
    nearness = -math.inf if failed else psnr if psnr is not None else -math.inf if rmsd is None else -rmsd
    sample = Sample(row, scores, failed, is_true(row.get("recovered")), nearness)
    guess = None if failed else guess
    if truth is not None and truth.ndim == 1:
        alt = f"Features of sample {row.get('victim')} of client {row.get('client')}, and what {attack} gave"
        return replace(sample, strip=feature_strip(truth, guess, alt))
    original, reconstruction = (None if picture is None else png_uri(picture) for picture in (truth, guess))
    return replace(sample, original=original, reconstruction=reconstruction)


def setting_name(entry: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> str:
    """The attack, and whatever else is needed to tell this entry from the others of the run."""
    entries = list(entries)
    parts = [str(entry.get("attack"))]
    if entry.get("defence") not in (None, "none") or len({bool(other.get("adaptive")) for other in entries}) > 1:
        parts.append("adaptive" if entry.get("adaptive") else "static")
    parts += [str(entry[key]) for key in ("vantage", "source") if len({other.get(key) for other in entries}) > 1]
    return " ".join(parts if entry.get("client") is None else [*parts, f"client {entry['client']}"])


def worst_of(settings: Iterable[Setting]) -> Setting | None:
    """The setting that the page opens with: the largest leak or, where nothing leaked, the weakest evidence.

    A static attack that met an adaptive one at the same round is set aside: the adaptive one is the answer.
    """
    settings = list(settings)
    answered = {_when(setting) for setting in settings if setting.entry.get("adaptive")}

    def rank(setting: Setting) -> tuple[int, float, float]:
        verdict = setting.entry.get("verdict")
        place = _ORDER.index(verdict) if verdict in _ORDER else 1
        superseded = verdict == "static only" and _when(setting) in answered
        nearest = max((sample.nearness for sample in setting.samples), default=-math.inf)
        return len(_ORDER) if superseded else place, -setting.recovered / max(setting.total, 1), -nearest

    return min(settings, key=rank, default=None)


def _when(setting: Setting) -> tuple[Any, Any]:
    return setting.entry.get("round"), setting.entry.get("source")


def group_by_grant(settings: Iterable[Setting]) -> list[list[Setting]]:
    """Settings whose attacker was given the same things with the same budget: they share one description."""
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        told = {key: value for key, value in setting.entry.items() if key in _GRANT}
        groups.setdefault(json.dumps(told, sort_keys=True), []).append(setting)
    return list(groups.values())


def number(value: Any) -> float | None:
    """A finite or infinite number from JSON or CSV; nothing for an empty field or a NaN."""
    if value is None or isinstance(value, Undefined):
        return None
    try:
        read = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(read) else read


def is_true(text: Any) -> bool:
    """A flag as a CSV may spell it."""
    return str(text).strip().lower() in ("true", "1", "1.0", "yes")
