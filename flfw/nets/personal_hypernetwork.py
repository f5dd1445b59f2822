"""Hypernetwork of all clients' personal networks, one embedding for each (Shamsian et al., ICML 2021, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn

from flfw.nets.net import Tensors


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
