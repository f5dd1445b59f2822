"""Parts of SGD on a hypernetwork in factors: the factors of its steps, its heads' tensors, and its trunk.

The mathematics is in `flfw.training.low_rank`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import final

import torch
from torch import Tensor, nn

from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.net import Tensors
from flfw.training.optimisers import SGD, clip_norm

_CLIP_EPSILON = 1e-6  # added to a norm above the bound, as `flfw.training.optimisers.clip_norm` does
_WEIGHT, _VELOCITY, _SCALE = range(3)


def shaped(flat: Tensor, targets: Mapping[str, torch.Size]) -> Tensors:
    """Return leaves of the graph with these shapes, by name, which lie one after the other in ``flat`` (G,)."""
    pieces = flat.split([shape.numel() for shape in targets.values()])
    return {
        name: piece.view(shape).requires_grad_() for (name, shape), piece in zip(targets.items(), pieces, strict=True)
    }


@final
class TrunkSteps:
    """Steps of a hypernetwork's trunk and of the embedding, below heads whose gradient is an outer product.

    Args:
        net: network with the hypernetwork.
        plain: see `LowRankSGD`, as for the others.
        clip: bound for the whole hypernetwork.
        embedding_clip: bound for the embedding.
        moves_embedding: whether the embedding is trained.
    """

    def __init__(
        self, net: GeneratedNet, plain: SGD, clip: float, embedding_clip: float, moves_embedding: bool = True
    ) -> None:
        self._trunk, self._embedding, self._plain = net.hypernet.trunk, net.embedding, plain
        self._clip, self._embedding_clip, self._moves_embedding = clip, embedding_clip, moves_embedding

    def hidden(self) -> Tensor:
        """Compute [1 h] (1 + H,)."""
        hidden = torch.relu(self._trunk(self._embedding))
        return torch.cat([hidden.new_ones(1), hidden])

    def step(self, units: Tensor, square: Tensor, hidden: Tensor) -> float:
        """Make a step; return the clipping factor of the hypernetwork's gradient.

        Args:
            units: the units' gradient (1 + H,).
            square: squared norm of the gradient of the generated tensors.
            hidden: [1 h] (1 + H,) before the step.
        """
        embedding = self._embedding.detach()
        above = torch.where(hidden > 0, units, 0.0)[1:]  # the gradient before the ReLU
        heads = float(square) * float(hidden @ hidden)
        norm = sqrt(heads + float(above @ above) * (1 + float(embedding @ embedding)))
        scale = self._clip / (norm + _CLIP_EPSILON) if norm > self._clip else 1.0
        moving: Tensors = {"trunk.weight": self._trunk.weight, "trunk.bias": self._trunk.bias}
        slopes = {"trunk.weight": scale * torch.outer(above, embedding), "trunk.bias": scale * above}
        if self._moves_embedding:
            slope = self._trunk.weight.t() @ above
            moving["embedding"] = self._embedding
            slopes["embedding"] = clip_norm({"embedding": slope}, self._embedding_clip)["embedding"]
        self._plain.step(moving, slopes)
        return scale


@final
class HeadLayers:
    """Tensors of a hypernetwork's heads, and the place of each head's outputs among all G of them.

    Args:
        heads: linear layers from H units, with bias.
    """

    def __init__(self, heads: Iterable[nn.Module]) -> None:
        layers = [[parameter.detach() for parameter in head.parameters()] for head in heads]
        self.weights, self.biases = zip(*layers, strict=True)
        ends = torch.tensor([len(bias) for bias in self.biases]).cumsum(0).tolist()
        self.parts = [slice(end - len(bias), end) for bias, end in zip(self.biases, ends, strict=True)]
        self.size: int = ends[-1]
        self.width: int = 1 + self.weights[0].shape[1]

    def equal(self, others: HeadLayers) -> bool:
        """Compare all numbers of some heads with those of others."""
        pairs = zip([*self.weights, *self.biases], [*others.weights, *others.biases], strict=True)
        return all(torch.equal(*pair) for pair in pairs)


@final
class StepFactors:
    """Rank-one factors g_s [1 h_s]^T of the steps so far, with their coefficients in the weights and in the velocity.

    Args:
        gradients: initial room for g (room, G), room >= 1; each row is contiguous.
        hidden: initial room for [1 h] (room, 1 + H).
    """

    def __init__(self, gradients: Tensor, hidden: Tensor) -> None:
        self._done = 0  # number of steps stored as factors
        self._gradients, self._hidden, room = gradients, hidden, len(gradients)
        # For the start (first) and the factors: coefficient in the weights, in the velocity, and clipping factor.
        self._coefficients = torch.zeros(1 + room, 3, dtype=torch.float64)
        self._coefficients[0, _WEIGHT] = 1.0

    @property
    def room(self) -> int:
        """Number of factors that fit."""
        return len(self._gradients)

    @property
    def is_full(self) -> bool:
        """True where there is no room for another factor."""
        return self._done == len(self._gradients)

    def weights(self, factors: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the weights' coefficients of the start and of the first factors, in these' device and type."""
        count = self._done if factors is None else factors
        coefficients = self._coefficients[: 1 + count, _WEIGHT].to(self._gradients)
        return coefficients[0], coefficients[1:]

    def generate(self, hidden: Tensor, out: Tensor) -> None:
        """Compute the part that the factors, one or more, generate of [1 h] (1 + H,) in ``out`` (G,)."""
        torch.mv(self._gradients[: self._done].t(), self._sizes(hidden), out=out)

    def add_generated(self, hidden: Tensor, out: Tensor) -> None:
        """Add the part that the factors generate of [1 h] (1 + H,) to ``out`` (G,)."""
        out.addmv_(self._gradients[: self._done].t(), self._sizes(hidden))

    def _sizes(self, hidden: Tensor) -> Tensor:
        """Compute c_s [1 h_s]^T [1 h] of each factor."""
        return self.weights()[1] * (self._hidden[: self._done] @ hidden)

    def take(self, gradients: Sequence[Tensor]) -> Tensor:
        """Store g, given in pieces, for the next factor, and return it (G,)."""
        torch.cat([piece.flatten() for piece in gradients], out=self._gradients[self._done])
        return self._gradients[self._done]

    def back(self) -> tuple[Tensor, Tensor]:
        """Return the factors' part of the units' gradient (1 + H,) for the stored g, and the squared norm of g."""
        _, factors = self.weights()
        inner = self._gradients[: self._done + 1] @ self._gradients[self._done]
        return self._hidden[: self._done].t() @ (factors * inner[:-1]), inner[-1]

    def descend(self, hidden: Tensor, scale: float, plain: SGD) -> None:
        """Make a step of SGD with ``scale`` times the gradient g x^T; see `FactoredHeads.descend`."""
        self._hidden[self._done] = hidden
        self._done += 1
        known = self._coefficients[: 1 + self._done]
        known[-1, _SCALE] = scale
        known[:, _VELOCITY].mul_(plain.momentum).add_(known[:, _WEIGHT], alpha=plain.weight_decay)
        known[-1, _VELOCITY] += scale
        known[:, _WEIGHT].sub_(known[:, _VELOCITY], alpha=plain.lr)

    def settled(self, momentum: float) -> int:
        """Count the oldest factors with the start's ratio of velocity to weight, up to rounding: for good."""
        weight, velocity, scale = self._coefficients.unbind(1)
        apart = momentum * (velocity - velocity[0] / weight[0] * weight)[1:].abs()
        settled = apart <= torch.finfo(self._gradients.dtype).eps * (1 - momentum) * scale[1:]
        return int(settled.long().cumprod(0).sum())

    def summed(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the first factors' g (count, G), and their [1 h] (count, 1 + H) times coefficient over the start's."""
        start, factors = self.weights(count)
        return self._gradients[:count], factors[:, None] / start * self._hidden[:count]

    def forget(self, count: int, room: int) -> None:
        """Drop the first factors, and make room for so many in all."""
        self._gradients, self._hidden = _kept(self._gradients, count, room), _kept(self._hidden, count, room)
        self._coefficients = torch.cat([self._coefficients[:1], _kept(self._coefficients[1:], count, room)])
        self._done -= count

    def write(self, parts: Sequence[slice], weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        """Bring heads that hold the start up to the last step.

        Args:
            parts: place of each head's outputs among all G.
            weights: of each head.
            biases: of each head.
        """
        start, factors = self.weights()
        hidden = factors[:, None] * self._hidden[: self._done]
        add_products(parts, weights, biases, float(start), self._gradients[: self._done], hidden)


def add_products(
    parts: Sequence[slice],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    start: float,
    gradients: Tensor,
    hidden: Tensor,
) -> None:
    """Scale heads by ``start`` and add outer products of g (n, G) and [1 h] (n, 1 + H); see `StepFactors.write`."""
    for part, weight, bias in zip(parts, weights, biases, strict=True):
        theirs = gradients[:, part].t()
        weight.addmm_(theirs, hidden[:, 1:], beta=start)
        bias.mul_(start).addmv_(theirs, hidden[:, 0])


def _kept(rows: Tensor, dropped: int, room: int) -> Tensor:
    """Return all rows but the first ``dropped``, followed by zeros up to ``room`` rows."""
    kept = rows.new_zeros(room, *rows.shape[1:])
    kept[: len(rows) - dropped] = rows[dropped:]
    return kept
