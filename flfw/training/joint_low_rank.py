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
        clip: bound of the joint L2 norm of a step's gradient over a whole hypernetwork, > 0.
        embedding_clip: bound of the L2 norm of an embedding's gradient, > 0.

    Attributes:
        generated: each client's extractor tensors by name, leaves of the graph; changed in place by a step.
    """

    def __init__(
        self, nets: Sequence[GeneratedNet], plains: Sequence[SGD], *, clip: float = inf, embedding_clip: float = inf
    ) -> None:
        self._layers = [HeadLayers(net.hypernet.heads) for net in nets]
        start = self._layers[0]
        for others in self._layers[1:]:
            pairs = zip([*start.weights, *start.biases], [*others.weights, *others.biases], strict=True)
            require(all(torch.equal(*pair) for pair in pairs), "the same heads at all clients", heads="others")
        self._plains, like = plains, start.weights[0]
        self._trunks = [TrunkSteps(net, plain, clip, embedding_clip) for net, plain in zip(nets, plains, strict=True)]
        self._factors = [StepFactors(like, start.size, start.width) for _ in nets]
        self._flat = like.new_empty(len(nets), start.size)
        self.generated: list[Tensors] = [
            shaped(flat, net.hypernet.targets) for flat, net in zip(self._flat, nets, strict=True)
        ]
        self._hidden: list[Tensor] = []
        self._generate(len(nets))

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensors]) -> None:
        """Do a step of as many first clients as there are gradients, and generate their tensors again.

        Args:
            gradients: for each client the gradients of the loss for the tensors in `generated`.
        """
        start, working = self._layers[0], len(gradients)
        taken = torch.stack(
            [
                factors.take([given[name] for name in generated])
                for factors, given, generated in zip(self._factors, gradients, self.generated, strict=False)
            ]
        )
        shared = self._flat.new_empty(working, start.width)
        shared[:, 0] = taken @ torch.cat(start.biases)
        shared[:, 1:] = sum(taken[:, part] @ weight for part, weight in zip(start.parts, start.weights, strict=True))
        for place in range(working):
            factors, plain, hidden = self._factors[place], self._plains[place], self._hidden[place]
            units, square = factors.back()
            units += factors.weights(0)[0] * shared[place]
            factors.descend(hidden, self._trunks[place].step(units, square, hidden), plain)
            if factors.is_full:
                factors.forget(0, 2 * factors.room)
        self._generate(working)

    @torch.no_grad()
    def write(self) -> None:
        """Bring the heads' own tensors up to the last steps; to be called once, after them."""
        for factors, layers in zip(self._factors, self._layers, strict=True):
            factors.write(layers.parts, layers.weights, layers.biases)

    @torch.no_grad()
    def _generate(self, working: int) -> None:
        start = self._layers[0]
        self._hidden = [trunk.hidden() for trunk in self._trunks[:working]]
        scaled = torch.stack(
            [factors.weights(0)[0] * one for factors, one in zip(self._factors, self._hidden, strict=False)]
        )
        for part, weight, bias in zip(start.parts, start.weights, start.biases, strict=True):
            torch.addmm(torch.outer(scaled[:, 0], bias), scaled[:, 1:], weight.t(), out=self._flat[:working, part])
        for place, hidden in enumerate(self._hidden):
            self._factors[place].add_generated(hidden, self._flat[place])
