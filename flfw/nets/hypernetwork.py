"""Hypernetworks: one that generates a client's extractor, and one that generates all clients' personal networks.

The first makes the extractor from an embedding (Guo et al., AAAI 2025, section 4). The second has one embedding for
each client (Shamsian et al., ICML 2021, section 3).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from math import prod, sqrt
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfw.errors import InputError, require
from flfw.nets.net import Net, Tensors, running_statistics

HeadInit = Literal["torch", "fan_in", "identity"]
_SMALL = 1e-2  # what head_init=identity leaves of the heads' weights


class Hypernetwork(nn.Module):
    """Hypernetwork: h = ReLU(A v + c), then one linear head for each generated tensor, theta_k = W_k h + b_k.

    Args:
        targets: shape of each generated tensor, by its name in the extractor.
        embedding: length of v.
        hidden: length of h.
        head_init: ``torch`` keeps torch's Linear default for the heads, which generates weights of deviation 0.24 in
            layers of any width; ``fan_in`` scales each head so that its generated weights have the usual deviation
            for a layer of that fan-in; ``identity`` starts each head at ``start``, and a hundredth of torch's weights.
        start: first numbers of each generated tensor, for ``identity``.
    """

    def __init__(
        self,
        targets: Mapping[str, torch.Size],
        embedding: int,
        hidden: int,
        head_init: HeadInit,
        start: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.targets = dict(targets)
        self.trunk = nn.Linear(embedding, hidden)
        self.heads = nn.ModuleList(nn.Linear(hidden, prod(shape)) for shape in targets.values())
        if head_init == "fan_in":
            self._scale_heads(hidden)
        if head_init == "identity":
            require(start is not None, "first numbers of the generated tensors for head_init=identity", start=start)
            self._begin_at(start or {})

    @torch.no_grad()
    def _begin_at(self, start: Mapping[str, Tensor]) -> None:
        for name, head in zip(self.targets, self.heads, strict=True):
            head.get_parameter("weight").mul_(_SMALL)
            head.get_parameter("bias").copy_(start[name].flatten())

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

    Its named tensors are ``hypernet.*``, ``embedding`` and ``classifier.*``, and ``extractor.*`` for running statistics
    if the extractor has any.

    Args:
        net: the architecture; its classifier is used, its extractor's weights are not.
        embedding: length of the embedding, drawn from N(0, 1).
        hidden: width of the hypernetwork.
        head_init: see `Hypernetwork`; ``identity`` starts at the extractor's weights.
        unloaded: whether the extractor computes with its own first weights for good, and the generated ones get the
            gradient of these: as where a program generates weights and never loads them.
    """

    def __init__(self, net: Net, embedding: int, hidden: int, head_init: HeadInit, unloaded: bool = False) -> None:
        super().__init__()
        start = {name: parameter.detach() for name, parameter in net.extractor.named_parameters()}
        if not start:
            raise InputError(
                "Expected a network whose extractor has weights to generate, got one without; choose another."
            )
        targets = {name: value.shape for name, value in start.items()}
        self.hypernet = Hypernetwork(targets, embedding, hidden, head_init, start)
        self.embedding = nn.Parameter(torch.randn(embedding))
        self.classifier = net.classifier
        self._own = dict(zip(start, range(len(start)), strict=True)) if unloaded else {}
        for name, number in self._own.items():
            self.register_buffer(f"own_{number}", start[name].clone(), persistent=False)
        self.extractor = _without_weights(net.extractor)
        self._kept: Tensors | None = None

    def extractor_weights(self) -> Tensors:
        """Generate the extractor's tensors from the current hypernetwork and embedding."""
        return self.hypernet(self.embedding)

    def architecture(self) -> nn.Module:
        """Copy the extractor, with places without numbers for the generated tensors; its constants are shared."""
        copy = deepcopy(self.extractor, {id(value): value for value in self.extractor.buffers()})
        for name, shape in self.hypernet.targets.items():
            path, _, inner = name.rpartition(".")
            copy.get_submodule(path).register_parameter(inner, nn.Parameter(torch.empty(shape, device="meta")))
        return copy

    def features(self, x: Tensor, weights: Tensors) -> Tensor:
        """Compute features (B, ...) of network inputs (B, ...) under given extractor weights."""
        if self._own:
            weights = {n: self.get_buffer(f"own_{self._own[n]}") + (w - w.detach()) for n, w in weights.items()}
        return functional_call(self.extractor, weights, (x,))

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


def _without_weights(module: nn.Module) -> nn.Module:
    """Take all parameters from a module, whose places `functional_call` then fills; return the module."""
    for layer in module.modules():
        for name, _ in list(layer.named_parameters(recurse=False)):
            layer.register_parameter(name, None)
    return module


def require_all_weights(net: Net) -> None:
    """Refuse a network whose extractor has running statistics beside its weights, which no hypernetwork generates.

    Raises:
        InputError: names the first of them.
    """
    if running := running_statistics(net.extractor):
        raise InputError(
            "Expected a network whose extractor is all weights, for a hypernetwork to generate, got the running "
            f"statistics {running[0]}; choose another --net."
        )


class PersonalHypernetwork(nn.Module):
    """Hypernetwork theta_i = h(v_i): an MLP of an embedding, then one linear head for each generated tensor.

    All tensors start as torch draws them: the embeddings from N(0, 1).

    Args:
        targets: shape of each generated tensor, by its name in the clients' network.
        clients: number of embeddings.
        embedding: length of an embedding.
        hidden: width of the MLP.
        layers: number of its linear maps after the first, each behind a rectifier; none is behind the last.
    """

    def __init__(
        self, targets: Mapping[str, torch.Size], clients: int, embedding: int, hidden: int, layers: int
    ) -> None:
        super().__init__()
        self.targets = dict(targets)
        self.embeddings = nn.Embedding(clients, embedding)
        maps: list[nn.Module] = [nn.Linear(embedding, hidden)]
        for _ in range(layers):
            maps += [nn.ReLU(), nn.Linear(hidden, hidden)]
        self.trunk = nn.Sequential(*maps)
        self.heads = nn.ModuleList(nn.Linear(hidden, prod(shape)) for shape in targets.values())

    def forward(self, clients: Tensor) -> Tensors:
        """Generate the tensors (m, ...) of some clients (m,) by name."""
        hidden = self.trunk(self.embeddings(clients))
        heads = zip(self.targets.items(), self.heads, strict=True)
        return {name: head(hidden).view(len(clients), *shape) for (name, shape), head in heads}
