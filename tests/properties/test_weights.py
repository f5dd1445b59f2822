"""Files of pretrained weights: a changed one is refused or gives finite weights of the same shapes; no code runs."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, DrawFn
from safetensors.torch import save

from flfw.audit.measures import perceptual
from flfw.nets.backbones.architectures import VARIABLE, PublishedWeights
from flfw.rng import torch_generator
from tests.properties.changes import changed_bytes, changed_tensors, unsealed
from tests.properties.reading import Folder, Reader
from tests.properties.test_data_files import RunningCode

BODY = {"a.weight": (4, 3, 3, 3), "a.bias": (4,), "b.running_mean": (4,), "b.running_var": (4,)}
ALEXNET = {
    f"features.{layer}.{part}": shape if part == "weight" else shape[:1]
    for layer, shape in {
        0: (64, 3, 11, 11), 3: (192, 64, 5, 5), 6: (384, 192, 3, 3), 8: (256, 384, 3, 3), 10: (256, 256, 3, 3),
    }.items()
    for part in ("weight", "bias")
}  # fmt: skip
ODD: tuple[Any, ...] = (
    {}, [], 7, {"features.0.weight": 3}, {"features.0.weight": torch.zeros(2)}, RunningCode(print),
    {"x": RunningCode(eval)},
)  # fmt: skip


@st.composite
def changed_torch(draw: DrawFn, data: bytes) -> bytes:
    """A changed file of torch: another state, code, or any bytes."""
    if draw(st.booleans()):
        return draw(changed_bytes(data))
    made = io.BytesIO()
    torch.save(draw(st.sampled_from(ODD)), made)
    return made.getvalue()


def by_torch(state: object) -> bytes:
    made = io.BytesIO()
    torch.save(state, made)
    return made.getvalue()


def alexnet(name: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        loaded = perceptual.load(path / name)
        return {key: bool(v.isfinite().all()) for key, v in loaded._net.state_dict().items()}, len(loaded.sha256)

    return read


@pytest.fixture(scope="module")
def readers(scratch: Path) -> dict[str, Reader]:
    state = {name: torch.zeros(shape) for name, shape in ALEXNET.items()}
    whole = Folder(scratch / "alexnet", {"a.pth": by_torch(state), "a.safetensors": save(state)})
    published = PublishedWeights(file="b.pth", where="nowhere", head=("features.",))
    body = {name: torch.rand(shape, generator=torch_generator(0, "body")) for name, shape in BODY.items()}
    files = {"b.pth": by_torch({**body, "features.0.weight": torch.zeros(2)}), "b.safetensors": save(body)}
    small = Folder(scratch / "body", files)

    def of_body(name: str) -> Callable[[Path], object]:
        def read(path: Path) -> object:
            with patch.dict(os.environ, {VARIABLE: str(path / name)}):
                got = published.read("small", body) or {}
            return {key: (tuple(value.shape), bool(value.isfinite().all())) for key, value in got.items()}

        return read

    def is_body(read: Any) -> bool:
        return read == {name: (shape, True) for name, shape in BODY.items()}

    def is_alexnet(read: Any) -> bool:
        return all(read[0].values()) and read[1] == 64

    changes = {"pth": unsealed(changed_torch), "safetensors": unsealed(changed_tensors)}
    return {
        f"{net}.{kind}": Reader(folder, {f"{net}.{kind}": change}, read(f"{net}.{kind}"), is_valid)
        for net, folder, read, is_valid in (("a", whole, alexnet, is_alexnet), ("b", small, of_body, is_body))
        for kind, change in changes.items()
    }


@pytest.mark.parametrize("name", ["b.pth", "b.safetensors"])
@given(data=st.data())
def test_changed_weights_are_refused_or_finite(data: DataObject, readers: dict[str, Reader], name: str) -> None:
    readers[name].require_refused_or_valid(data)


@pytest.mark.nightly
@settings(max_examples=200)
@given(data=st.data())
def test_changed_weights_of_alexnet_are_refused_or_finite(data: DataObject, readers: dict[str, Reader]) -> None:
    """They take a tenth of a second each, and hypothesis keeps megabytes of each: 4,000 filled 18 GB."""
    readers[data.draw(st.sampled_from(("a.pth", "a.safetensors")))].require_refused_or_valid(data)
