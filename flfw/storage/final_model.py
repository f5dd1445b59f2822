"""Model after the last round of a run, from the run's checkpoint: what its server would publish."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from safetensors import SafetensorError
from safetensors.torch import load

from flfw.errors import InputError
from flfw.nets.net import Tensors
from flfw.storage.sealed import sealed, unseal


@final
@dataclass(frozen=True)
class FinalModel:
    """Tensors that a run ended with.

    Attributes:
        tensors: the moving average of the broadcasts if the run has one, else the last broadcast.
        averaged: whether they are a moving average; then they are not the mean of the last round's uploads.
    """

    tensors: Tensors
    averaged: bool


def final_model(folder: Path) -> FinalModel:
    """Read the final model of a run.

    Args:
        folder: of the run.

    Raises:
        InputError: its last checkpoint is missing or damaged.
    """
    rounds = sealed(folder / "checkpoint", "round-*")
    if not rounds:
        raise InputError(
            f"Expected the last round's checkpoint in {folder / 'checkpoint'}, got none; restore that file."
        )
    try:
        tensors = load(unseal(rounds[-1][1]))
    except SafetensorError as error:
        raise InputError(f"Expected a checkpoint, got {rounds[-1][1]}: {error}; restore it.") from error
    average = _under("ema/", tensors)
    return FinalModel(average or _under("model/", tensors), bool(average))


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
