"""Mutations of files of weights: what their readers make of damaged and made-up ones."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save

from benchmarks.mutation_cases import Folder, Subject, unsealed
from benchmarks.mutation_data import RunningCode
from benchmarks.mutation_operators import bytes_mutant, tensors_mutant
from flfw.audit.measures import perceptual
from flfw.nets.backbones.weights import VARIABLE, PublishedWeights
from flfw.rng import torch_generator


def weights_mutant(data: bytes, rng: Random) -> bytes:
    """Return a changed file of torch: another state, code, or any bytes."""
    if rng.random() < 0.6:
        return bytes_mutant(data, rng)
    odd = (
        {},
        [],
        7,
        {"features.0.weight": 3},
        {"features.0.weight": torch.zeros(2)},
        RunningCode(print, "1"),
        {"x": RunningCode(eval, "1")},
    )
    made = io.BytesIO()
    torch.save(rng.choice(odd), made)
    return made.getvalue()


def weights(scratch: Path) -> list[Subject]:
    """Return the readers of AlexNet's weights and of a pretrained body's: a file of torch, and safetensors."""
    state = {name: torch.zeros(shape) for name, shape in _ALEXNET.items()}
    made = io.BytesIO()
    torch.save(state, made)
    files = {"a.pth": made.getvalue(), "a.safetensors": save(state)}
    place = Folder(scratch / "weights", files)

    def loads(name: str) -> Callable[[Path], object]:
        def read(path: Path) -> object:
            loaded = perceptual.load(path / name)
            weights = loaded._net.state_dict()
            return {key: bool(value.isfinite().all()) for key, value in weights.items()}, len(loaded.sha256)

        return read

    def finite(read: Any) -> bool:
        return all(read[0].values()) and read[1] == 64

    return [
        *_body(scratch),
        place.subject("a.pth", {"a.pth": unsealed(weights_mutant)}, loads("a.pth"), fits=finite),
        place.subject(
            "a.safetensors", {"a.safetensors": unsealed(tensors_mutant)}, loads("a.safetensors"), fits=finite
        ),
    ]


def _body(scratch: Path) -> list[Subject]:
    """Return the readers of the weights of a small pretrained body."""
    published = PublishedWeights(file="b.pth", where="nowhere", head=("features.",))
    state = {name: torch.rand(shape, generator=torch_generator(0, "body")) for name, shape in _BODY.items()}
    made = io.BytesIO()
    torch.save({**state, "features.0.weight": torch.zeros(2)}, made)
    place = Folder(scratch / "body", {"b.pth": made.getvalue(), "b.safetensors": save(state)})

    def loads(name: str) -> Callable[[Path], object]:
        def read(path: Path) -> object:
            with patch.dict(os.environ, {VARIABLE: str(path / name)}):
                read = published.read("small", state) or {}
            return {key: (tuple(value.shape), bool(value.isfinite().all())) for key, value in read.items()}

        return read

    def fits(read: Any) -> bool:
        return read == {name: (shape, True) for name, shape in _BODY.items()}

    changes = {"b.pth": weights_mutant, "b.safetensors": tensors_mutant}
    return [place.subject(name, {name: unsealed(change)}, loads(name), fits=fits) for name, change in changes.items()]


_BODY = {"a.weight": (4, 3, 3, 3), "a.bias": (4,), "b.running_mean": (4,), "b.running_var": (4,)}
_ALEXNET = {
    f"features.{layer}.{part}": shape if part == "weight" else shape[:1]
    for layer, shape in {
        0: (64, 3, 11, 11), 3: (192, 64, 5, 5), 6: (384, 192, 3, 3), 8: (256, 384, 3, 3), 10: (256, 256, 3, 3),
    }.items()
    for part in ("weight", "bias")
}  # fmt: skip
