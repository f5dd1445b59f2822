"""SGD on the hypernetworks of some clients at once, which start from the same heads.

The mathematics is that of `flfw.training.low_rank`. A client's step reads the heads' start twice: to generate, and for
the gradient of the hidden units. As all clients have the same start, one matrix product serves all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import final

import torch
from torch import Tensor

from flfw.errors import require
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.net import Tensors
from flfw.training.optimisers import SGD
from flfw.training.step_factors import HeadLayers, StepFactors, TrunkSteps, shaped

MOST_STEPS = 128
"""Steps above which one client after the other is faster: alone, old factors are added to the start, which is its own.
"""


@final
class JointLowRankSGD:
    """SGD on hypernetworks and embeddings: the steps of `flfw.training.low_rank.LowRankSGD`, up to rounding.

    Args:
        nets: the clients' networks; their heads hold the same numbers until `write`.
        plains: optimisers of the trunks and embeddings, with the same hyper-parameters.
        steps: largest number of steps to come, >= 1.
        clip: bound of the joint L2 norm of a step's gradient over a whole hypernetwork, > 0.
        embedding_clip: bound of the L2 norm of an embedding's gradient, > 0.

    Attributes:
        generated: each client's extractor tensors by name, leaves of the graph; changed in place by a step.
    """

    def __init__(
        self,
        nets: Sequence[GeneratedNet],
        plains: Sequence[SGD],
        steps: int,
        *,
        clip: float = inf,
        embedding_clip: float = inf,
    ) -> None:
        self._layers = [HeadLayers(net.hypernet.heads) for net in nets]
        start = self._layers[0]
        same = all(start.equal(others) for others in self._layers[1:])
        require(same, "the same heads at all clients", heads="others")
        self._plains, like = plains, start.weights[0]
        self._trunks = [TrunkSteps(net, plain, clip, embedding_clip) for net, plain in zip(nets, plains, strict=True)]
        self._done = 0
        self._gradients = like.new_empty(steps, len(nets), start.size)  # those of one step lie together: one product
        self._factors = [
            StepFactors(mine, like.new_empty(steps, start.width)) for mine in self._gradients.unbind(dim=1)
        ]
        self._flat = like.new_zeros(len(nets), start.size)
        self.generated: list[Tensors] = [
            shaped(flat, net.hypernet.targets) for flat, net in zip(self._flat, nets, strict=True)
        ]
        with torch.no_grad():
            self._hidden = [trunk.hidden() for trunk in self._trunks]
        self._add_generated(self._hidden)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensors]) -> None:
        """Do a step of as many first clients as there are gradients, and generate their tensors again.

        Args:
            gradients: for each client the gradients of the loss for the tensors in `generated`.
        """
        start, working = self._layers[0], len(gradients)
        for factors, given, generated in zip(self._factors, gradients, self.generated, strict=False):
            factors.take([given[name] for name in generated])
        taken = self._gradients[self._done, :working]
        self._done += 1
        shared = self._flat.new_empty(working, start.width)
        shared[:, 0] = taken @ torch.cat(start.biases)
        shared[:, 1:] = sum(taken[:, part] @ weight for part, weight in zip(start.parts, start.weights, strict=True))
        for place in range(working):
            factors, plain, before = self._factors[place], self._plains[place], self._hidden[place]
            units, square = factors.back()
            units += factors.weights(0)[0] * shared[place]
            factors.descend(before, self._trunks[place].step(units, square, before), plain)
            self._hidden[place] = self._trunks[place].hidden()
            # At once, not after all clients: these gradients were just read, and are partly in a cache.
            factors.generate(self._hidden[place], self._flat[place])
        self._add_generated(self._hidden[:working])

    @torch.no_grad()
    def write(self) -> None:
        """Bring the heads' own tensors up to the last steps; to be called once, after them."""
        for factors, layers in zip(self._factors, self._layers, strict=True):
            factors.write(layers.parts, layers.weights, layers.biases)

    @torch.no_grad()
    def _add_generated(self, hidden: Sequence[Tensor]) -> None:
        """Add the part that the start generates of the first clients' [1 h] (1 + H,) to their generated tensors."""
        start = self._layers[0]
        coefficients = [factors.weights(0)[0] for factors in self._factors[: len(hidden)]]
        scaled = torch.stack([size * one for size, one in zip(coefficients, hidden, strict=True)])
        for part, weight, bias in zip(start.parts, start.weights, start.biases, strict=True):
            self._flat[: len(hidden), part].addr_(scaled[:, 0], bias).addmm_(scaled[:, 1:], weight.t())
