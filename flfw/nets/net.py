"""Base class of all networks: a feature extractor followed by a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor, nn

Tensors: TypeAlias = dict[str, Tensor]
"""Named tensors: the state of a model, of a message or of a client."""


class Net(nn.Module):
    """A classifier in two named parts, ``classifier(extractor(x))``.

    Methods that share one part and keep the other private refer to these two names.

    Args:
        extractor: module from inputs (B, ...) to features; its own weights are unused if a method generates them.
        classifier: module from features to class scores (B, classes).

    Attributes:
        shape: shape of one input, (C, H, W) or (d,); `flfw.nets.build` sets it.
        classes: number of classes; `flfw.nets.build` sets it.
    """

    shape: tuple[int, ...] = ()
    classes: int = 0

    def __init__(self, extractor: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """Compute class scores (B, classes) of normalised inputs (B, ...)."""
        return self.classifier(self.extractor(x))


def tensors(model: nn.Module) -> Tensors:
    """Return the model's parameters and buffers by name, detached but not copied."""
    return {name: value.detach() for name, value in model.state_dict().items()}


def numel(tensors: Mapping[str, Tensor]) -> int:
    """Return the number of scalars in named tensors."""
    return sum(value.numel() for value in tensors.values())
