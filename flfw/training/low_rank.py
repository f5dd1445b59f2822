"""SGD on a hypernetwork from the gradients of its generated tensors: exact, without forming a head's gradient.

The gradient of the heads is an outer product, g [1 h]^T, with g the loss's gradient for the generated tensors and h the
hidden units (the 1 is for the biases). After t steps with momentum and weight decay, for any clipping,

    [b W]_t = a [b W]_0 + sum_s c_s g_s [1 h_s]^T.

The velocity is the same sum with other coefficients, and both sets of coefficients follow from those of the previous
step. So a step needs only two products with [b W]_0 and the g_s: one to generate and one for the gradient of h. Units
that are 0 are skipped; the norm of the gradient is |g| |[1 h]|. The heads are written after the last step.
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

_BLOCK = 512  # rows transposed at a time: they fit into a cache
_CLIP_EPSILON = 1e-6  # added to a norm above the bound, as `flfw.training.optimisers.clip_norm` does
_WEIGHT, _VELOCITY, _SCALE = range(3)


@final
class LowRankSGD(Optimiser):
    """SGD on a hypernetwork and its embedding: the same steps as `flfw.training.optimisers.SGD` with dense gradients,
    up to rounding.

    Its parameters are the generated tensors; a step takes the loss's gradients for them. The heads' tensors are updated
    only by `write`; trunk and embedding are updated in every step.

    Args:
        net: network with the hypernetwork to train; its classifier is not changed.
        plain: optimiser of trunk and embedding; its step size, momentum and weight decay, read in each step, hold for
            all parameters.
        clip: bound of the joint L2 norm of a step's gradient over the whole hypernetwork, > 0.
        embedding_clip: bound of the L2 norm of the embedding's gradient, > 0.
        moves_embedding: whether the embedding is trained.

    Attributes:
        generated: the extractor's tensors by name, leaves of the graph; changed in place by a step.
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
        """Train the hypernetwork for one step and generate the tensors again.

        Args:
            parameters: `generated`.
            gradients: gradient of the loss for each of them.
        """
        embedding = self._embedding.detach()
        units, square = self._heads.back([gradients[name] for name in parameters])
        above = torch.where(self._hidden > 0, units, 0.0)[1:]  # the gradient before the ReLU
        heads = float(square) * float(self._hidden @ self._hidden)
        norm = sqrt(heads + float(above @ above) * (1 + float(embedding @ embedding)))
        scale = self._clip / (norm + _CLIP_EPSILON) if norm > self._clip else 1.0
        moving: Tensors = {"trunk.weight": self._trunk.weight, "trunk.bias": self._trunk.bias}
        slopes = {"trunk.weight": scale * torch.outer(above, embedding), "trunk.bias": scale * above}
        if self._moves_embedding:
            slope = self._trunk.weight.t() @ above
            moving["embedding"] = self._embedding
            slopes["embedding"] = clip_norm({"embedding": slope}, self._embedding_clip)["embedding"]
        self._plain.step(moving, slopes)
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
    """Heads [b W] (G, 1 + H) of a hypernetwork under SGD, as the start plus a rank-one factor for each step.

    The heads' tensors keep the start until `write`, or until there is no room for another factor; then the factors that
    no longer change the velocity are added to the start.

    Args:
        heads: linear layers from H units, with bias; G is the total number of their outputs.
        room: initial room for factors, >= 1.
    """

    def __init__(self, heads: Iterable[nn.Module], room: int = 64) -> None:
        layers = [[parameter.detach() for parameter in head.parameters()] for head in heads]
        self._weights, self._biases = zip(*layers, strict=True)
        ends = torch.tensor([len(bias) for bias in self._biases]).cumsum(0).tolist()
        self._parts = [slice(end - len(bias), end) for bias, end in zip(self._biases, ends, strict=True)]
        like, width = self._weights[0], 1 + self._weights[0].shape[1]
        # Columns of the start, stored as rows in the order of `_at`: 0 is the bias, 1 + j belongs to the j-th unit.
        self._columns = like.new_empty(width, ends[-1])
        torch.cat(self._biases, out=self._columns[0])
        self._at = torch.zeros(1, dtype=torch.long, device=like.device)
        self._done = 0  # number of steps stored as factors
        self._gradients, self._hidden = like.new_empty(room, ends[-1]), like.new_empty(room, width)
        # For the start (first) and the factors: coefficient in the weights, in the velocity, and clipping factor.
        self._coefficients = torch.zeros(1 + room, 3, dtype=torch.float64)
        self._coefficients[0, _WEIGHT] = 1.0

    @property
    def size(self) -> int:
        """G, number of generated numbers."""
        return self._columns.shape[1]

    @property
    def room(self) -> int:
        """Number of factors that fit."""
        return len(self._gradients)

    def generate(self, hidden: Tensor, out: Tensor) -> None:
        """Compute [b W] x into ``out`` (G,), for x = [1 h] (1 + H,); its non-zero units are active from now on."""
        self._follow(hidden != 0)
        start, factors = self._weights_of(self._done)
        torch.mv(self._columns[: len(self._at)].t(), start * hidden[self._at], out=out)
        out.addmv_(self._gradients[: self._done].t(), factors * (self._hidden[: self._done] @ hidden))

    def back(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Store g, given in pieces, and return the units' gradient [b W]^T g (1 + H,) and the squared norm of g.

        The gradient is correct only for active units.
        """
        torch.cat([piece.flatten() for piece in gradients], out=self._gradients[self._done])
        gradient, (start, factors) = self._gradients[self._done], self._weights_of(self._done)
        inner = self._gradients[: self._done + 1] @ gradient
        units = self._hidden[: self._done].t() @ (factors * inner[:-1])
        units[self._at] += start * (self._columns[: len(self._at)] @ gradient)
        return units, inner[-1]

    def descend(self, hidden: Tensor, scale: float, plain: SGD) -> None:
        """Make a step of SGD with ``scale`` times the gradient g x^T, with g from the last call of `back`.

        Args:
            hidden: x = [1 h] (1 + H,), as given to `generate`.
            scale: clipping factor of the gradient.
            plain: optimiser with the step size, momentum and weight decay.
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
        """Return the weights' coefficients of the start and of the first factors, in the device and type of these."""
        coefficients = self._coefficients[: 1 + factors, _WEIGHT].to(self._columns)
        return coefficients[0], coefficients[1:]

    def _follow(self, active: Tensor) -> None:
        """Put the columns of the active units (1 + H,), and no others, into the first rows."""
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
        """Scale the heads' tensors by ``start`` and add the first gradients' outer products with ``hidden``'s rows."""
        for part, weight, bias in zip(self._parts, self._weights, self._biases, strict=True):
            gradients = self._gradients[: len(hidden), part].t()
            weight.addmm_(gradients, hidden[:, 1:], beta=start)
            bias.mul_(start).addmv_(gradients, hidden[:, 0])

    def _make_room(self, momentum: float) -> None:
        """Add the oldest factors with the start's ratio of velocity to weight, up to rounding, to the start.

        Their coefficients stay proportional to the start's from then on. If there are few of them, room is doubled.
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
    """Return all rows but the first ``dropped``, followed by zeros up to ``room`` rows."""
    kept = rows.new_zeros(room, *rows.shape[1:])
    kept[: len(rows) - dropped] = rows[dropped:]
    return kept
