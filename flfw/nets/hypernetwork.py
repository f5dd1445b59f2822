"""Network with an extractor generated from an embedding by a hypernetwork (Guo et al., AAAI 2025, section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod, sqrt
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfw.errors import BadInput
from flfw.nets.net import Net, Tensors

HeadInit = Literal["torch", "fan_in"]


class Hypernetwork(nn.Module):
    """Hypernetwork: h = ReLU(A v + c), then one linear head for each generated tensor, theta_k = W_k h + b_k.

    Args:
        targets: shape of each generated tensor, by its name in the extractor.
        embedding: length of v.
        hidden: length of h.
        head_init: ``torch`` keeps torch's Linear default for the heads, which generates weights of deviation 0.24 in
            layers of any width; ``fan_in`` scales each head so that its generated weights have the usual deviation
            for a layer of that fan-in.
    """

    def __init__(self, targets: Mapping[str, torch.Size], embedding: int, hidden: int, head_init: HeadInit) -> None:
        super().__init__()
        self.targets = dict(targets)
        self.trunk = nn.Linear(embedding, hidden)
        self.heads = nn.ModuleList(nn.Linear(hidden, prod(shape)) for shape in targets.values())
        if head_init == "fan_in":
            self._scale_heads(hidden)

    @torch.no_grad()
    def _scale_heads(self, hidden: int) -> None:
        # With v ~ N(0, 1) a default trunk gives E[h^2] = 1/6, so a default head generates this variance:
        generated = 1 / 18 + 1 / (3 * hidden)
        fan_in = 1
        for shape, head in zip(self.targets.values(), self.heads, strict=True):
            fan_in = prod(shape[1:]) if len(shape) > 1 else fan_in  # a bias is drawn like its layer's weight
            for parameter in head.parameters():
                parameter.mul_(sqrt(1 / (3 * fan_in) / generated))

    def hidden_units(self, embedding: Tensor) -> Tensor:
        """Compute h (hidden,) of an embedding (embedding,); a unit that is 0 is dead for this client."""
        return torch.relu(self.trunk(embedding))

    def forward(self, embedding: Tensor) -> Tensors:
        """Generate the tensors by name, for one embedding."""
        hidden = self.hidden_units(embedding)
        return {
            name: head(hidden).view(shape) for (name, shape), head in zip(self.targets.items(), self.heads, strict=True)
        }


class GeneratedNet(nn.Module):
    """A `Net` with a generated extractor, which has no weights of its own.

    Its named tensors are ``hypernet.*``, ``embedding`` and ``classifier.*``.

    Args:
        net: the architecture; its classifier is used, its extractor's weights are not.
        embedding: length of the embedding, drawn from N(0, 1).
        hidden: width of the hypernetwork.
        head_init: see `Hypernetwork`.
    """

    def __init__(self, net: Net, embedding: int, hidden: int, head_init: HeadInit) -> None:
        super().__init__()
        targets = {name: parameter.shape for name, parameter in net.extractor.named_parameters()}
        if not targets:
            raise BadInput(
                "Expected a network whose extractor has weights to generate, got one without; choose another."
            )
        if running := [name for name, _ in net.extractor.named_buffers()]:
            raise BadInput(
                "Expected a network whose extractor is all weights, for a hypernetwork to generate, got the running "
                f"statistics {running[0]}; choose another --net."
            )
        self.hypernet = Hypernetwork(targets, embedding, hidden, head_init)
        self.embedding = nn.Parameter(torch.randn(embedding))
        self.classifier = net.classifier
        self._extractor = (net.extractor.to("meta"),)  # in a tuple: its weights are not this module's
        self._kept: Tensors | None = None

    def extractor_weights(self) -> Tensors:
        """Generate the extractor's tensors from the current hypernetwork and embedding."""
        return self.hypernet(self.embedding)

    def features(self, x: Tensor, weights: Tensors) -> Tensor:
        """Compute features (B, ...) of network inputs (B, ...) under given extractor weights."""
        return functional_call(self._extractor[0], weights, (x,))

    def forward(self, x: Tensor) -> Tensor:
        """Compute class scores (B, classes) of network inputs (B, ...)."""
        weights = self.extractor_weights() if self._kept is None else self._kept
        return self.classifier(self.features(x, weights))

    @contextmanager
    def generated_once(self) -> Iterator[None]:
        """Fix the extractor generated now for all forward passes inside, without a graph: for evaluation."""
        with torch.no_grad():
            self._kept = self.extractor_weights()
        try:
            yield
        finally:
            self._kept = None
