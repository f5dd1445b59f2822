"""Client models: the attacked client's network with some tensors known and some unknown.

One kind searches in other coordinates than the data. Another has an extractor that a hypernetwork generates, at the
cost of a plain network: embedding and classifier are unknown there. `flfw.inversion.private.extractor` has the client
models of an attacker who reads the extractor off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Self, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, linear

from flfw.errors import InputError
from flfw.files.tensor_names import matches
from flfw.nets.bottleneck import penalty
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors, loss, refuse_tied, targets

Each: TypeAlias = Callable[[Tensors], Tensors]
"""Function that a client applies to one example's gradient before it takes the mean over a batch."""

Reads: TypeAlias = Callable[[Tensors, Tensors], Tensors]
"""Function of an observation and the known tensors for constants, by name."""


class VictimModel(ABC):
    """Gradient that a client would send for given data, as far as the attacker knows the client's model.

    Attacks search for the data, and for the unknown tensors, whose gradient matches the observed one. `observed` and
    `gradient` use the same coordinates. The victim chooses them, but sums over all coordinates (inner products, squared
    norms, squared distances) are those of the sent tensors.

    Args:
        model: the client's model; its current values are the attacker's first guess of unknown tensors, so it must be
            initialised with the attacker's own seed.
        known: the tensors the attacker holds, by name.
        shared: patterns of the tensors whose gradient is sent.
        inputs: the input space.

    Attributes:
        each: function of each example's gradient; None: none, so that the gradient of the mean loss is enough.

    Raises:
        InputError: two names of the model are one tensor.
    """

    each: Each | None = None

    def __init__(self, model: nn.Module, known: Tensors, shared: Sequence[str], inputs: InputSpec) -> None:
        refuse_tied(model)
        self.model, self.inputs = model.eval(), inputs
        everything = {name: value.detach() for name, value in model.state_dict().items()}
        self.known = {name: known[name] for name in everything if name in known}
        hidden = {name: value for name, value in everything.items() if name not in known}
        self.unknown = {name: value for name, value in hidden.items() if value.is_floating_point()}  # no counters
        self.shared = tuple(name for name, _ in model.named_parameters() if matches(name, shared))

    @cached_property
    def classes(self) -> int:
        """Number of classes: of the network's scores for an input."""
        with torch.no_grad():
            x = self.inputs.normalise(torch.zeros(1, *self.inputs.shape, device=self.inputs.mean.device))
            return functional_call(self.model, {**self.known, **self.unknown}, (x,)).shape[1]

    def check(self, sent: Tensors) -> None:
        """Refuse an observation that cannot be of this client.

        Raises:
            InputError: a shared tensor is missing, of another shape, or not finite.
        """
        shapes = {name: parameter.shape for name, parameter in self.model.named_parameters()}
        for name in self.shared:
            if name not in sent:
                kind = type(self.model).__name__
                raise InputError(f"Expected {name}, which {kind} shares, got {', '.join(sent) or 'nothing'}.")
            if sent[name].shape != shapes[name]:
                expected, got = tuple(shapes[name]), tuple(sent[name].shape)
                raise InputError(f"Expected {name} of shape {expected}, got {got}: this is another network.")
            if not torch.isfinite(sent[name]).all():
                raise InputError(f"Expected finite numbers in {name}, got NaN or infinity: no search is possible.")

    def reduced(self, precision: torch.dtype) -> VictimModel:
        """Return the same client whose network computes in a lower precision.

        Args:
            precision: a floating-point type.

        Raises:
            InputError: this kind of client has no such form, as by default.
        """
        kind = "one step of a network whose tensors are shared as they are"
        raise InputError(f"Expected --expert attack_precision=float32 for anything but {kind}, got bf16.")

    @abstractmethod
    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the observation in the coordinates of `gradient`, and constants that `gradient` needs."""

    @abstractmethod
    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the gradient for a guess; differentiable in ``x``, ``y`` (if soft) and ``unknown``, and fit for vmap.

        Args:
            x: raw inputs (B, ...) in [0, 1].
            y: labels (B,), or class probabilities (B, classes).
            unknown: a value for every tensor in ``self.unknown``.
            constants: the constants from `observed`.
        """


@final
class PlainVictim(VictimModel):
    """Victim whose shared tensors are the model's own parameters: the coordinates are the sent tensors.

    Args:
        model: see `VictimModel`.
        known: see `VictimModel`.
        shared: see `VictimModel`.
        inputs: see `VictimModel`.
        precision: precision of the network's computation; its gradient is always float32.

    Attributes:
        reads: function of an observation and the known tensors for values of the model's buffers; None: none.
    """

    reads: Reads | None = None

    def __init__(
        self,
        model: nn.Module,
        known: Tensors,
        shared: Sequence[str],
        inputs: InputSpec,
        precision: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(model, known, shared, inputs)
        self.precision = precision

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the shared tensors as they were sent; the constants are those that `reads` gives, if it is set."""
        seen = {name: sent[name] for name in self.shared}
        return seen, self.reads(seen, self.known) if self.reads else {}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the gradient by automatic differentiation; constants that bear a buffer's name take its place."""
        buffers = {name: constants[name] for name, _ in self.model.named_buffers() if name in constants}
        # Buffers have to be cast although no `state_dict` may have them, as those of a frozen body.
        beside = {} if self.precision == torch.float32 else dict(self.model.named_buffers())
        held = {**beside, **self.known, **unknown, **buffers}
        weights = {name: self._cast(value) for name, value in held.items()}
        moving = {name: weights[name] for name in self.shared}

        def gradient(x: Tensor, y: Tensor) -> Tensors:
            return grad(lambda parameters: self._loss(x, y, {**weights, **parameters}))(moving)

        gradients = mean_gradient(gradient, x, y, self.each)
        return gradients if self.precision == torch.float32 else {n: value.float() for n, value in gradients.items()}

    def reduced(self, precision: torch.dtype) -> PlainVictim:
        """Return the same client whose network computes in a lower precision; its gradients stay float32."""
        victim = copy(self)
        victim.precision = precision
        return victim

    def after(self, each: Each) -> PlainVictim:
        """Return the same client with ``each`` applied to each example's gradient."""
        victim = copy(self)
        victim.each = each
        return victim

    def reading(self, reads: Reads) -> PlainVictim:
        """Return the same client whose observations give constants by ``reads``."""
        victim = copy(self)
        victim.reads = reads
        return victim

    def _loss(self, x: Tensor, y: Tensor, weights: Tensors) -> Tensor:
        scores = functional_call(self.model, weights, (self._cast(self.inputs.normalise(x)),))
        labels, scores = targets(scores, x, y), scores if self.precision == torch.float32 else scores.float()
        return loss(scores, labels) + penalty(self.model)

    def _cast(self, value: Tensor) -> Tensor:
        reduced = self.precision != torch.float32 and value.dtype == torch.float32
        return value.to(self.precision) if reduced else value


def mean_gradient(gradient: Callable[[Tensor, Tensor], Tensors], x: Tensor, y: Tensor, each: Each | None) -> Tensors:
    """Compute the gradient of a batch's mean loss, or the mean of ``each`` over the examples' gradients.

    Args:
        gradient: gradient of the mean loss of inputs (b, ...) and labels (b, ...).
        x: (B, ...).
        y: (B, ...).
        each: function of one example's gradient; None: none.
    """
    if each is None:
        return gradient(x, y)
    results = vmap(lambda one, label: each(gradient(one.unsqueeze(0), label.unsqueeze(0))))(x, y)
    return {name: value.mean(0) for name, value in results.items()}


class WrappingVictim(VictimModel, ABC):
    """Base of victims that are another one, whose raw inputs are a function of coordinates.

    All but the coordinates is the other victim's: the model, the known and the unknown tensors, the observations.

    Args:
        client: the other victim; it computes the gradient for raw inputs.
        inputs: space of the coordinates.
    """

    def __init__(self, client: VictimModel, inputs: InputSpec) -> None:
        super().__init__(client.model, client.known, client.shared, inputs)
        self.known, self.unknown, self.shared = client.known, client.unknown, client.shared
        self._client = client

    @abstractmethod
    def around(self, client: VictimModel) -> Self:
        """Build the same coordinates around another client."""

    @abstractmethod
    def raw(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the client's raw inputs (B, ...) for coordinates ``x`` (B, ...) and labels ``y``; fit for vmap."""

    @cached_property
    def classes(self) -> int:
        """Number of classes: of the network's scores for the client's inputs."""
        return self._client.classes

    def check(self, sent: Tensors) -> None:
        """Refuse an observation that cannot be of the client; see `VictimModel.check`."""
        self._client.check(sent)

    def reduced(self, precision: torch.dtype) -> Self:
        """Return the same client whose network computes in a lower precision, but not the function of coordinates."""
        return self.around(self._client.reduced(precision))

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the client's."""
        return self._client.observed(sent)

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the client's gradient for the inputs that coordinates ``x`` (B, ...) stand for."""
        return self._client.gradient(self.raw(x, y), y, unknown, constants)


@final
class GeneratedVictim(VictimModel):
    """Victim with a `GeneratedNet` that shares its hypernetwork.

    A head's gradient for one guess is the outer product of dL/dtheta_k with h: 128 times the size of dL/dtheta_k, and
    of rank one. The observation also spans few directions of h (one, after one step), so both are written in an
    orthonormal basis of these directions. Outside the basis the observation is 0, so only the length of the guess's
    rest counts: one more number. Inner products and norms, all that a matching loss needs, are unchanged.

    Args:
        model: a freshly initialised `GeneratedNet`.
        known: the hypernetwork's tensors, ``hypernet.*``.
        inputs: the input space.

    Attributes:
        targets: shape of each generated tensor by its name.
    """

    def __init__(self, model: GeneratedNet, known: Tensors, inputs: InputSpec) -> None:
        super().__init__(model, known, ("hypernet.*",), inputs)
        self._net, self.targets = model, model.hypernet.targets
        heads = range(len(model.hypernet.heads))
        self._weight_names = [f"hypernet.heads.{k}.weight" for k in heads]
        self._bias_names = [f"hypernet.heads.{k}.bias" for k in heads]
        self._weight = torch.cat([self.known[name] for name in self._weight_names])  # (generated, hidden)
        self._bias = torch.cat([self.known[name] for name in self._bias_names])  # (generated,)
        self._sizes = [self.known[name].numel() for name in self._bias_names]

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Write the heads' gradients (generated, hidden) in a basis of the directions of h they span."""
        heads = [sent[name] for name in self._weight_names]
        values, vectors = torch.linalg.eigh(sum(_gram(head) for head in heads))
        # A direction with 3e-4 of the length is only rounding, at least for differences of float32 weights.
        basis = vectors[:, values > 1e-7 * values[-1]].float()
        return {
            "heads.weight": torch.cat([head @ basis for head in heads]),
            "heads.weight.rest": sent["hypernet.trunk.bias"].new_zeros(1),
            "heads.bias": torch.cat([sent[name] for name in self._bias_names]),
            "trunk.weight": sent["hypernet.trunk.weight"],
            "trunk.bias": sent["hypernet.trunk.bias"],
        }, {"basis": basis}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the hypernetwork's gradient for a guess of data, embedding and classifier, same coordinates."""
        theta = linear(torch.relu(self._before(unknown["embedding"])), self._weight, self._bias)
        return self.hypernetwork_gradient(
            grad(self._loss)(theta, x, y, unknown), unknown["embedding"], constants["basis"]
        )

    def hypernetwork_gradient(self, theta_gradient: Tensor, embedding: Tensor, basis: Tensor) -> Tensors:
        """Compute the hypernetwork's gradient from the generated network's gradient, in the same coordinates.

        Args:
            theta_gradient: (generated,) with respect to the extractor's tensors, one after the other.
            embedding: (embedding,) the embedding that generates the extractor.
            basis: (hidden, r) the basis from `observed`.
        """
        before = self._before(embedding)
        hidden = torch.relu(before)
        trunk_bias = linear(theta_gradient, self._weight.T) * (before > 0)
        inside = hidden @ basis
        outside = (hidden @ hidden - inside @ inside).clamp_min(0)  # squared length of the rest of h
        return {
            "heads.weight": theta_gradient[:, None] * inside,
            # The tiny constant keeps the root differentiable where h lies in the basis.
            "heads.weight.rest": (theta_gradient @ theta_gradient * outside + 1e-20).sqrt()[None],
            "heads.bias": theta_gradient,
            "trunk.weight": trunk_bias[:, None] * embedding,
            "trunk.bias": trunk_bias,
        }

    def _before(self, embedding: Tensor) -> Tensor:
        """Compute the hidden units before the rectifier, (hidden,)."""
        return self.known["hypernet.trunk.weight"] @ embedding + self.known["hypernet.trunk.bias"]

    def _loss(self, theta: Tensor, x: Tensor, y: Tensor, unknown: Tensors) -> Tensor:
        parts = zip(self.targets.items(), theta.split(self._sizes), strict=True)
        weights = {name: part.view(shape) for (name, shape), part in parts}
        features = self._net.features(self.inputs.normalise(x), weights)
        classifier = {
            name.removeprefix("classifier."): t for name, t in unknown.items() if name.startswith("classifier")
        }
        return cross_entropy(functional_call(self._net.classifier, classifier, (features,)), y)


def _gram(head: Tensor) -> Tensor:
    """Compute inner products of a head's columns, (hidden, hidden), in float64."""
    exact = head.double()
    return exact.T @ exact
