"""SGD on one or several hypernetworks from the gradients of their generated tensors: exact, without a head's gradient.

The gradient of the heads is an outer product, g [1 h]^T, with g the loss's gradient for the generated tensors and h the
hidden units (the 1 is for the biases). After t steps with momentum and weight decay, for any clipping,

    [b W]_t = a [b W]_0 + sum_s c_s g_s [1 h_s]^T.

The velocity is the same sum with other coefficients, and both sets of coefficients follow from those of the previous
step. So a step needs only two products with [b W]_0 and the g_s: one to generate and one for the gradient of h. Units
that are 0 are skipped; the norm of the gradient is |g| |[1 h]|. The heads are written after the last step. Several
clients have the same start, so one matrix product with it serves all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal, final

import torch
from torch import Tensor, nn

from flfw.bounds import OpenShare, PositiveFloat, PositiveInt
from flfw.errors import require
from flfw.nets.hypernetwork import GeneratedNet, HeadInit
from flfw.nets.net import Tensors
from flfw.nets.training.optimisers import SGD, LocalTraining, Optimiser, clip_norm


@dataclass(frozen=True)
class HypernetworkTraining(LocalTraining):
    """Hyper-parameters beside those of SGD, which serve both steps; eta_h = eta_v is the experiment's lr."""

    embedding: PositiveInt = 64  # length of v
    hidden: PositiveInt = 128  # width of the hypernetwork
    head_init: HeadInit = "fan_in"  # first heads: as torch, the generated layer's size or its own start has it
    classifier_lr: PositiveFloat = 0.1  # eta_g
    classifier_epochs: PositiveInt = 1  # passes over the data in step A
    clip: PositiveFloat = 50.0  # L2 bound of a step's gradient, once for varphi and once for v
    step: Literal["low_rank", "dense"] = "low_rank"  # how step B is computed; the same but for rounding, see the client
    upload: Literal["dense", "factors"] = "dense"  # factors: the heads' change in low rank, rounded and deflated
    keep_theta: bool = False  # clients keep theta for a round, to report theta_change_between_rounds
    upload_error: OpenShare = 1e-3  # of upload=factors: error of the sent tensors, over their change (L2)


_BLOCK = 512  # rows transposed at a time: they fit into a cache
_CLIP_EPSILON = 1e-6  # added to a norm above the bound, as `flfw.nets.training.optimisers.clip_norm` does
_WEIGHT, _VELOCITY, _SCALE = range(3)


def _shaped(flat: Tensor, targets: Mapping[str, torch.Size]) -> Tensors:
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
    """

    def __init__(self, net: GeneratedNet, plain: SGD, clip: float, embedding_clip: float) -> None:
        self._trunk, self._embedding, self._plain = net.hypernet.trunk, net.embedding, plain
        self._clip, self._embedding_clip = clip, embedding_clip

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
        slope = {"embedding": self._trunk.weight.t() @ above}
        self._plain.step(moving | {"embedding": self._embedding}, slopes | clip_norm(slope, self._embedding_clip))
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
        distance = momentum * (velocity - velocity[0] / weight[0] * weight)[1:].abs()
        settled = distance <= torch.finfo(self._gradients.dtype).eps * (1 - momentum) * scale[1:]
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
        _add_products(parts, weights, biases, float(start), self._gradients[: self._done], hidden)


def _add_products(
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


@final
class LowRankSGD(Optimiser):
    """SGD on a hypernetwork and its embedding: the same steps as `optimisers.SGD` with dense gradients,
    up to rounding.

    Its parameters are the generated tensors; a step takes the loss's gradients for them. The heads' tensors are updated
    only by `write`; trunk and embedding are updated in every step.

    Args:
        net: network with the hypernetwork to train; its classifier is not changed.
        plain: optimiser of trunk and embedding; its step size, momentum and weight decay, read in each step, hold for
            all parameters.
        clip: bound of the joint L2 norm of a step's gradient over the whole hypernetwork, > 0.
        embedding_clip: bound of the L2 norm of the embedding's gradient, > 0.

    Attributes:
        generated: the extractor's tensors by name, leaves of the graph; changed in place by a step.
    """

    def __init__(self, net: GeneratedNet, plain: SGD, *, clip: float = inf, embedding_clip: float = inf) -> None:
        self._plain, self._heads = plain, FactoredHeads(net.hypernet.heads)
        self._trunk = TrunkSteps(net, plain, clip, embedding_clip)
        self._flat = net.embedding.new_empty(self._heads.size)
        self.generated = _shaped(self._flat, net.hypernet.targets)
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
        _add_products(self._layers.parts, self._layers.weights, self._layers.biases, 1.0, gradients, hidden)
        self._columns[: len(self._at)].addmm_(hidden[:, self._at].t(), gradients)
        self._factors.forget(count, room * (1 if 4 * count >= room else 2))


MOST_STEPS = 128
"""Steps above which one client after the other is faster: alone, old factors are added to the start, which is its own.
"""


@final
class JointLowRankSGD:
    """SGD on hypernetworks and embeddings: the steps of `flfw.nets.training.low_rank.LowRankSGD`, up to rounding.

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
            _shaped(flat, net.hypernet.targets) for flat, net in zip(self._flat, nets, strict=True)
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
        for index in range(working):
            factors, plain, before = self._factors[index], self._plains[index], self._hidden[index]
            units, square = factors.back()
            units += factors.weights(0)[0] * shared[index]
            factors.descend(before, self._trunks[index].step(units, square, before), plain)
            self._hidden[index] = self._trunks[index].hidden()
            # At once, not after all clients: these gradients were just read, and are partly in a cache.
            factors.generate(self._hidden[index], self._flat[index])
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
