"""SGD on a hypernetwork by the gradients of what it generates: exact, and a head's gradient is never formed.

The gradient of the heads is an outer product, g [1 h]^T, with g the loss's gradient for the generated tensors and h the
hidden units (the 1 is for the biases). After t steps with momentum and weight decay, whatever the clips were,

    [b W]_t = a [b W]_0 + sum_s c_s g_s [1 h_s]^T,

the velocity is the same sum with other coefficients, and both sets of coefficients follow from those of the step
before. So a step takes one product with [b W]_0 and the g_s to generate, another to go back to h, and no more; units
that are 0 take no part; the norm of the gradient is |g| |[1 h]|. The heads themselves are written after the last step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, sqrt
from typing import final

import torch
from torch import Tensor, nn

from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.net import Tensors
from flfw.training.optimisers import SGD, Optimiser, clip_norm

_BLOCK = 512  # rows transposed at a time: as many as stay in a cache
_CLIP_EPSILON = 1e-6  # added to a norm above the bound, as `flfw.training.optimisers.clip_norm` does
_WEIGHT, _VELOCITY, _SCALE = range(3)


@final
class LowRankSGD(Optimiser):
    """SGD on a hypernetwork and its embedding: what `flfw.training.optimisers.SGD` does with their dense gradients, to
    rounding.

    Its parameters are the generated tensors; a step takes the loss's gradients for them. Until `write`, the heads'
    own tensors are behind; trunk and embedding move with every step.

    Args:
        net: whose hypernetwork is trained; its classifier is left alone.
        plain: moves trunk and embedding; its step size, momentum and weight decay, read in each step, hold for all.
        clip: bound of the joint L2 norm of a step's gradient over the whole hypernetwork, > 0.
        embedding_clip: the same for the embedding, > 0.
        moves_embedding: False leaves it as it is.

    Attributes:
        generated: the extractor's tensors by name, leaves to differentiate for; changed in place by a step.
    """

    def __init__(
        self,
        net: GeneratedNet,
        plain: SGD,
        *,
        clip: float = inf,
        embedding_clip: float = inf,
        moves_embedding: bool = True,
    ) -> None:
        self._trunk, self._embedding, self._plain = net.hypernet.trunk, net.embedding, plain
        self._clip, self._embedding_clip, self._moves_embedding = clip, embedding_clip, moves_embedding
        self._heads = FactoredHeads(net.hypernet.heads)
        self._flat = net.embedding.new_empty(self._heads.size)
        pieces = self._flat.split([shape.numel() for shape in net.hypernet.targets.values()])
        shaped = zip(net.hypernet.targets.items(), pieces, strict=True)
        self.generated: Tensors = {name: piece.view(shape).requires_grad_() for (name, shape), piece in shaped}
        self._generate()

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Tensors) -> None:
        """Train the hypernetwork and generate anew.

        Args:
            parameters: `generated`.
            gradients: of the loss, for each of them.
        """
        embedding = self._embedding.detach()
        units, square = self._heads.back([gradients[name] for name in parameters])
        above = torch.where(self._hidden > 0, units, 0.0)[1:]  # the gradient before the ReLU
        heads = float(square) * float(self._hidden @ self._hidden)
        norm = sqrt(heads + float(above @ above) * (1 + float(embedding @ embedding)))
        scale = self._clip / (norm + _CLIP_EPSILON) if norm > self._clip else 1.0
        moving: Tensors = {"trunk.weight": self._trunk.weight, "trunk.bias": self._trunk.bias}
        found = {"trunk.weight": scale * torch.outer(above, embedding), "trunk.bias": scale * above}
        if self._moves_embedding:
            slope = self._trunk.weight.t() @ above
            moving["embedding"] = self._embedding
            found["embedding"] = clip_norm({"embedding": slope}, self._embedding_clip)["embedding"]
        self._plain.step(moving, found)
        self._heads.descend(self._hidden, scale, self._plain)
        self._generate()

    @torch.no_grad()
    def write(self) -> None:
        """Bring the heads' own tensors up to the last step; to be called once, after it."""
        self._heads.write()

    @torch.no_grad()
    def _generate(self) -> None:
        hidden = torch.relu(self._trunk(self._embedding))
        self._hidden = torch.cat([hidden.new_ones(1), hidden])
        self._heads.generate(self._hidden, self._flat)


@final
class FactoredHeads:
    """A hypernetwork's heads [b W] (G, 1 + H) under SGD: their start, and a factor for each step.

    Their own tensors stay as they were at the start until `write`, or until there is no room for another factor; then
    the factors that the momentum has done with are added to the start.

    Args:
        heads: linear layers from H units, with bias; G is the sum of their outputs.
        room: factors there is room for at first, >= 1.
    """

    def __init__(self, heads: Iterable[nn.Module], room: int = 64) -> None:
        layers = [[parameter.detach() for parameter in head.parameters()] for head in heads]
        self._weights, self._biases = zip(*layers, strict=True)
        ends = torch.tensor([len(bias) for bias in self._biases]).cumsum(0).tolist()
        self._parts = [slice(end - len(bias), end) for bias, end in zip(self._biases, ends, strict=True)]
        like, width = self._weights[0], 1 + self._weights[0].shape[1]
        # The start's columns as rows, in the order of `_at`: 0 is the bias, 1 + j the j-th unit's.
        self._columns = like.new_empty(width, ends[-1])
        torch.cat(self._biases, out=self._columns[0])
        self._at = torch.zeros(1, dtype=torch.long, device=like.device)
        self._done = 0  # steps that are in factors
        self._gradients, self._hidden = like.new_empty(room, ends[-1]), like.new_empty(room, width)
        # Of the start (first) and the factors: coefficient in the weights, in the velocity, and what the clip left.
        self._coefficients = torch.zeros(1 + room, 3, dtype=torch.float64)
        self._coefficients[0, _WEIGHT] = 1.0

    @property
    def size(self) -> int:
        """G, how many numbers are generated."""
        return self._columns.shape[1]

    @property
    def room(self) -> int:
        """How many factors there is room for."""
        return len(self._gradients)

    def generate(self, hidden: Tensor, out: Tensor) -> None:
        """[b W] x into ``out`` (G,), for x = [1 h] (1 + H,); its units that are not 0 are those at work from now on."""
        self._follow(hidden != 0)
        start, factors = self._weights_of(self._done)
        torch.mv(self._columns[: len(self._at)].t(), start * hidden[self._at], out=out)
        out.addmv_(self._gradients[: self._done].t(), factors * (self._hidden[: self._done] @ hidden))

    def back(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Take in g, in any pieces; returns the units' gradient [b W]^T g (1 + H,) and the square of g's norm.

        The former is right only where units are at work.
        """
        torch.cat([piece.flatten() for piece in gradients], out=self._gradients[self._done])
        gradient, (start, factors) = self._gradients[self._done], self._weights_of(self._done)
        inner = self._gradients[: self._done + 1] @ gradient
        found = self._hidden[: self._done].t() @ (factors * inner[:-1])
        found[self._at] += start * (self._columns[: len(self._at)] @ gradient)
        return found, inner[-1]

    def descend(self, hidden: Tensor, scale: float, plain: SGD) -> None:
        """A step of SGD with ``scale`` times the gradient g x^T, g being what `back` was given last.

        Args:
            hidden: x = [1 h] (1 + H,), as `generate` was given it.
            scale: what a clip leaves of the gradient.
            plain: whose step size, momentum and weight decay hold.
        """
        self._hidden[self._done] = hidden
        self._done += 1
        known = self._coefficients[: 1 + self._done]
        known[-1, _SCALE] = scale
        known[:, _VELOCITY].mul_(plain.momentum).add_(known[:, _WEIGHT], alpha=plain.weight_decay)
        known[-1, _VELOCITY] += scale
        known[:, _WEIGHT].sub_(known[:, _VELOCITY], alpha=plain.lr)
        if self._done == len(self._gradients):
            self._make_room(plain.momentum)

    def write(self) -> None:
        """Bring the heads' own tensors up to the last step; to be called once, after it."""
        start, factors = self._weights_of(self._done)
        self._add(float(start), factors[:, None] * self._hidden[: self._done])

    def _weights_of(self, factors: int) -> tuple[Tensor, Tensor]:
        """The coefficients in the weights, of the start and of the first factors, where and of what type those are."""
        found = self._coefficients[: 1 + factors, _WEIGHT].to(self._columns)
        return found[0], found[1:]

    def _follow(self, active: Tensor) -> None:
        """Put the columns of the active (1 + H,), and no others, into the first rows."""
        working = active[self._at]
        count = int(working.sum())
        if count < len(self._at):
            free, late = (~working[:count]).nonzero().flatten(), count + working[count:].nonzero().flatten()
            self._columns[free], self._at[free] = self._columns[late], self._at[late]
            self._at = self._at[:count]
        missing = active.index_fill(0, self._at, False).nonzero().flatten()
        if len(missing):
            rows = self._columns[count : count + len(missing)]
            for part, weight in zip(self._parts, self._weights, strict=True):
                for first in range(0, len(weight), _BLOCK):
                    block = weight[first : first + _BLOCK].index_select(1, missing - 1)
                    rows[:, part][:, first : first + _BLOCK] = block.t()
            self._at = torch.cat([self._at, missing])

    def _add(self, start: float, hidden: Tensor) -> None:
        """``start`` times the heads' own tensors, plus the first gradients' outer products with ``hidden``'s rows."""
        for part, weight, bias in zip(self._parts, self._weights, self._biases, strict=True):
            gradients = self._gradients[: len(hidden), part].t()
            weight.addmm_(gradients, hidden[:, 1:], beta=start)
            bias.mul_(start).addmv_(gradients, hidden[:, 0])

    def _make_room(self, momentum: float) -> None:
        """Add to the start the oldest factors whose velocity is to their weight as the start's is, to rounding.

        From then on their coefficients would go on in proportion to the start's. Where there are few, room is doubled.
        """
        weight, velocity, scale = self._coefficients.unbind(1)
        apart = momentum * (velocity - velocity[0] / weight[0] * weight)[1:].abs()
        settled = apart <= torch.finfo(self._columns.dtype).eps * (1 - momentum) * scale[1:]
        count = int(settled.long().cumprod(0).sum())
        start, factors = self._weights_of(count)
        hidden = factors[:, None] / start * self._hidden[:count]
        self._add(1.0, hidden)
        self._columns[: len(self._at)].addmm_(hidden[:, self._at].t(), self._gradients[:count])
        room = len(self._gradients) * (1 if 4 * count >= len(self._gradients) else 2)
        self._gradients, self._hidden = _kept(self._gradients, count, room), _kept(self._hidden, count, room)
        self._coefficients = torch.cat([self._coefficients[:1], _kept(self._coefficients[1:], count, room)])
        self._done -= count


def _kept(rows: Tensor, dropped: int, room: int) -> Tensor:
    """All rows but the first ones, before as many rows of zeros as fill the room."""
    kept = rows.new_zeros(room, *rows.shape[1:])
    kept[: len(rows) - dropped] = rows[dropped:]
    return kept
