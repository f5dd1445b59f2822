"""Victim whose extractor a hypernetwork generates, at the cost of a plain network.

Embedding and classifier are unknown here. `flfw.inversion.private.extractor` has the victims of an attacker who reads
the extractor off.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy, linear

from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.victims.victim import VictimModel


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
        spanned = values > 1e-7 * values[-1]
        basis = vectors[:, spanned].float()
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
        theta_gradient = grad(self._loss)(theta, x, y, unknown)
        return self.handed_on(theta_gradient, unknown["embedding"], constants["basis"])

    def handed_on(self, theta_gradient: Tensor, embedding: Tensor, basis: Tensor) -> Tensors:
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
