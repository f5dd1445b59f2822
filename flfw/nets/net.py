"""What every network here is: a feature extractor followed by a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor, nn

Tensors: TypeAlias = dict[str, Tensor]
"""Named tensors: what a model consists of, what crosses the wire, what a client keeps."""


class Net(nn.Module):
    """A classifier in two named parts, ``classifier(extractor(x))``.

    Methods that share one part and keep the other private refer to these two names.

    Args:
        extractor: maps inputs (B, ...) to features; fixed once a method generates its weights.
        classifier: maps features to class scores (B, classes).

    Attributes:
        shape: of one input, (C, H, W) or (d,); `flfw.nets.build` sets it.
        classes: how many there are; likewise.
    """

    shape: tuple[int, ...] = ()
    classes: int = 0

    def __init__(self, extractor: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """Class scores (B, classes) of normalised inputs (B, ...)."""
        return self.classifier(self.extractor(x))


def tensors(model: nn.Module) -> Tensors:
    """The model's parameters and buffers by name, detached but not copied."""
    return {name: value.detach() for name, value in model.state_dict().items()}


def numel(tensors: Mapping[str, Tensor]) -> int:
    """The number of scalars in named tensors."""
    return sum(value.numel() for value in tensors.values())
