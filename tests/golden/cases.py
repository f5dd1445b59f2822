"""Golden cases: inputs that a seed gives, and what the authors' own code made of them, in float64.

The numbers were made from Pengxin-Guo/HyperFL a62bd10 and yankang18/FedCG 93b4032, with the random draws inside that
code (batches, noise, labels) replaced by those of the case. They are numbers only; none of that code is here.

A case is ``numbers/CASE.json`` (where it comes from, how its inputs are drawn, how closely it must be met) and
``numbers/CASE.npz`` (a summary of each tensor afterwards). Tensors bear the names that they have in this project.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

NUMBERS = Path(__file__).parent / "numbers"
KEPT = 32
"""Entries of each tensor that its summary holds."""
_VALUES, _BEFORE = slice(3, 3 + KEPT), slice(3 + KEPT, 3 + 2 * KEPT)

Arrays: TypeAlias = dict[str, np.ndarray]
"""Tensors by name."""
Row: TypeAlias = Mapping[str, Any]
"""An entry of a table of the JSON: how one tensor, or one array, is drawn."""


@dataclass(frozen=True)
class Inputs:
    """Inputs of a case, all that its seed gives.

    Attributes:
        start: the tensors at the start.
        states: by name, the same tensors with noise on them: uploads of clients, or a later broadcast.
        arrays: by name, images, labels, orders of examples, noise.
    """

    start: Arrays = field(default_factory=dict)
    states: dict[str, Arrays] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """Golden case with its inputs and its results.

    Attributes:
        name: name of its files.
        card: the JSON.
        results: stage -> tensor -> summary, see `summarise`.
    """

    name: str
    card: Mapping[str, Any]
    results: Mapping[str, Arrays]

    @classmethod
    def read(cls, name: str) -> Case:
        """Read a case by its name."""
        card = json.loads((NUMBERS / f"{name}.json").read_text())
        with np.load(NUMBERS / f"{name}.npz") as stored:
            stages = sorted({key.partition("/")[0] for key in stored.files})
            pairs = {stage: (stored[f"{stage}/names"].tolist(), stored[f"{stage}/summaries"]) for stage in stages}
        return cls(name, card, {stage: dict(zip(*pair, strict=True)) for stage, pair in pairs.items()})

    @cached_property
    def inputs(self) -> Inputs:
        """Inputs, drawn from the seed."""
        return draw(self.card)

    @property
    def hyper(self) -> Mapping[str, Any]:
        """Hyper-parameters of the authors' run, by name."""
        return self.card["hyper"]

    def tolerance(self, row: str, stage: str, part: str) -> float | None:
        """Look up how large an error of a part may be; None: the part is known not to agree.

        Args:
            row: name of a row of the JSON's tolerances.
            stage: ``after``, or ``round1`` and ``round2``.
            part: see `part_of`.
        """
        table = self.card["tolerance"][row]
        table = table.get(stage, table)
        return table.get(part, table.get("*"))


def names() -> list[str]:
    """List the names of all cases."""
    return sorted(path.stem for path in NUMBERS.glob("*.json"))


def part_of(tensor: str) -> str:
    """Name the part of the model that a tensor belongs to, and its kind, if it is no parameter.

    >>> part_of("generator.layers.1.running_var"), part_of("classifier.weight")
    ('generator running', 'classifier')
    """
    marks = {"running": "running", "num_batches": "counter", "._": "u, v"}
    kinds = [kind for mark, kind in marks.items() if mark in tensor]
    return " ".join([tensor.partition(".")[0], *kinds])


# --- inputs ---


def draw(card: Mapping[str, Any]) -> Inputs:
    """Draw the inputs of a case, in the order of its plan.

    Raises:
        ValueError: the stream did not end where the authors' did, so some draws were others.
    """
    stream = np.random.Generator(np.random.PCG64(card["seed"]))
    rows: dict[str, Row] = {row["ours"]: row for row in card["tensors"]}
    inputs = Inputs()
    for entry in card["plan"]:
        if entry["kind"] == "start":
            for name, row in rows.items():
                inputs.start[name] = _drawn_start(stream, row, inputs.start)
        elif entry["kind"] == "perturbed":
            noisy = {name: _perturbed(stream, row, inputs.start[name], entry) for name, row in rows.items()}
            inputs.states[entry["name"]] = noisy
        else:
            inputs.arrays[entry["name"]] = _drawn_array(stream, entry)
    end = stream.random()
    if end != card["stream_end"]:
        raise ValueError(f"Expected the draws of {card['case']} to end with {card['stream_end']}, got {end}.")
    return inputs


def _drawn_start(stream: np.random.Generator, row: Row, before: Arrays) -> np.ndarray:
    """Draw a tensor of the start by its row's rule; ``before`` has the tensors above it in the table."""
    shape, scale = tuple(row["shape"]), row.get("scale", 0.0)
    match row["rule"]:
        case "normal":
            return stream.normal(0.0, scale, shape)
        case "one+normal":
            return 1.0 + stream.normal(0.0, scale, shape)
        case "one+uniform":
            return 1.0 + scale * stream.random(shape)
        case "count":
            return np.array(row["value"], dtype=np.int64)
        case "left" | "right" as side:  # leading singular vectors; their common sign does not matter
            weight = before[row["of"]]
            left, _, right = np.linalg.svd(weight.reshape(len(weight), -1), full_matrices=False)
            return (left[:, 0] if side == "left" else right[0]).copy()
        case rule:
            raise ValueError(f"Expected a rule of the README's, got {rule}.")


def _perturbed(stream: np.random.Generator, row: Row, value: np.ndarray, entry: Row) -> np.ndarray:
    """Put noise on a tensor of the start; variances only grow, and counters count."""
    match row["rule"]:
        case "count":
            return np.asarray(value + entry.get("count", 0))
        case "left" | "right":
            return value.copy()
        case "one+uniform":
            return value + entry["scale"] * stream.random(value.shape)
    return value + stream.normal(0.0, entry["scale"], value.shape)


def _drawn_array(stream: np.random.Generator, entry: Row) -> np.ndarray:
    shape = tuple(entry["shape"])
    match entry["kind"]:
        case "uniform":
            return stream.random(shape)
        case "normal":
            return stream.normal(0.0, 1.0, shape)
        case "labels":
            return stream.integers(0, 10, shape)
        case "orders":
            return np.stack([stream.permutation(shape[1]) for _ in range(shape[0])])
        case kind:
            raise ValueError(f"Expected a kind of the README's, got {kind}.")


# --- results ---


def summarise(value: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Summarise a tensor and its change in 3 + 2 * 32 numbers.

    They are the tensor's norm, the change's norm, a projection of the change, which sees every entry, 32 entries of the
    tensor, and the same entries of the tensor that the change is from.
    """
    value, before = (np.asarray(tensor, dtype=np.float64).ravel() for tensor in (value, before))
    change, indices = value - before, np.arange(KEPT) * (value.size - 1) // (KEPT - 1)
    projection = float(change @ np.cos(np.arange(value.size, dtype=np.float64)))
    lengths = [np.linalg.norm(value), np.linalg.norm(change), projection]
    return np.concatenate([lengths, value[indices], before[indices]])


def error(summary: np.ndarray, expected: np.ndarray) -> float:
    """Compute the largest error of a summary, over the expected change; of a tensor that must stay, its change.

    Compared are the change's norm, its projection and the 32 entries. An error that is not a number stays one.
    """
    change = expected[1]
    if change == 0:
        return float(summary[1])
    entries = summary[_VALUES] - expected[_VALUES]
    moved = np.linalg.norm(expected[_VALUES] - expected[_BEFORE])
    of_entries = np.linalg.norm(entries) / moved if moved else np.abs(entries).max()
    return float(np.max([abs(summary[1] - change) / change, abs(summary[2] - expected[2]) / change, of_entries]))
