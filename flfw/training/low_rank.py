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
from math import inf
from typing import final

import torch
from torch import Tensor, nn

from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.net import Tensors
from flfw.training.optimisers import SGD, Optimiser
from flfw.training.step_factors import HeadLayers, StepFactors, TrunkSteps, add_products, shaped

_BLOCK = 512  # rows transposed at a time: they fit into a cache


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
        self._plain, self._heads = plain, FactoredHeads(net.hypernet.heads)
        self._trunk = TrunkSteps(net, plain, clip, embedding_clip, moves_embedding)
        self._flat = net.embedding.new_empty(self._heads.size)
        self.generated = shaped(self._flat, net.hypernet.targets)
        self._generate()

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Tensors) -> None:
        """Train the hypernetwork for one step and generate the tensors again.

        Args:
            parameters: `generated`.
            gradients: gradient of the loss for each of them.
        """
        units, square = self._heads.back([gradients[name] for name in parameters])
        scale = self._trunk.step(units, square, self._hidden)
        self._heads.descend(self._hidden, scale, self._plain)
        self._generate()

    @torch.no_grad()
    def write(self) -> None:
        """Bring the heads' own tensors up to the last step; to be called once, after it."""
        self._heads.write()

    @torch.no_grad()
    def _generate(self) -> None:
        self._hidden = self._trunk.hidden()
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
        self._layers = HeadLayers(heads)
        like, size, width = self._layers.weights[0], self._layers.size, self._layers.width
        # Columns of the start, stored as rows in the order of `_at`: 0 is the bias, 1 + j belongs to the j-th unit.
        self._columns = like.new_empty(width, size)
        torch.cat(self._layers.biases, out=self._columns[0])
        self._at = torch.zeros(1, dtype=torch.long, device=like.device)
        self._factors = StepFactors(like.new_empty(room, size), like.new_empty(room, width))

    @property
    def size(self) -> int:
        """G, number of generated numbers."""
        return self._columns.shape[1]

    @property
    def room(self) -> int:
        """Number of factors that fit."""
        return self._factors.room

    def generate(self, hidden: Tensor, out: Tensor) -> None:
        """Compute [b W] x into ``out`` (G,), for x = [1 h] (1 + H,); its non-zero units are active from now on."""
        self._follow(hidden != 0)
        start, _ = self._factors.weights(0)
        torch.mv(self._columns[: len(self._at)].t(), start * hidden[self._at], out=out)
        self._factors.add_generated(hidden, out)

    def back(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Store g, given in pieces, and return the units' gradient [b W]^T g (1 + H,) and the squared norm of g.

        The gradient is correct only for active units.
        """
        gradient = self._factors.take(gradients)
        units, square = self._factors.back()
        start, _ = self._factors.weights(0)
        units[self._at] += start * (self._columns[: len(self._at)] @ gradient)
        return units, square

    def descend(self, hidden: Tensor, scale: float, plain: SGD) -> None:
        """Make a step of SGD with ``scale`` times the gradient g x^T, with g from the last call of `back`.

        Args:
            hidden: x = [1 h] (1 + H,), as given to `generate`.
            scale: clipping factor of the gradient.
            plain: optimiser with the step size, momentum and weight decay.
        """
        self._factors.descend(hidden, scale, plain)
        if self._factors.is_full:
            self._make_room(plain.momentum)

    def write(self) -> None:
        """Bring the heads' own tensors up to the last step; to be called once, after it."""
        self._factors.write(self._layers.parts, self._layers.weights, self._layers.biases)

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
            for part, weight in zip(self._layers.parts, self._layers.weights, strict=True):
                for first in range(0, len(weight), _BLOCK):
                    block = weight[first : first + _BLOCK].index_select(1, missing - 1)
                    rows[:, part][:, first : first + _BLOCK] = block.t()
            self._at = torch.cat([self._at, missing])

    def _make_room(self, momentum: float) -> None:
        """Add the oldest factors with the start's ratio of velocity to weight, up to rounding, to the start.

        Their coefficients stay proportional to the start's from then on. If there are few of them, room is doubled.
        """
        count, room = self._factors.settled(momentum), self._factors.room
        gradients, hidden = self._factors.summed(count)
        add_products(self._layers.parts, self._layers.weights, self._layers.biases, 1.0, gradients, hidden)
        self._columns[: len(self._at)].addmm_(hidden[:, self._at].t(), gradients)
        self._factors.forget(count, room * (1 if 4 * count >= room else 2))
