"""Variational bottleneck in a network: a layer whose output is drawn at random, and the price of that in the loss."""

from math import log
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from flfw.errors import InputError, require
from flfw.nets.net import Net, Tensors
from flfw.rng import normal, torch_generator

BOTTLENECK = "bottleneck"
"""Name of the bottleneck beside ``layer``, the layer that it precedes."""
_ROWS = 64  # draws in evaluation mode


@final
class VariationalBottleneck(nn.Module):
    """Linear encoder to mean and deviation, a normal draw, and a linear decoder, all for rows (B, d).

        mu, s = the halves of encoder(h), s after softplus;  z = mu + scale * s * noise;  decoder(z)

    In training mode the noise comes from ``rng``; without one it is 0. In evaluation mode it is the buffer ``noise``
    (n, width), row i modulo n for example i: an attacker who knows the draws puts them there.

    Args:
        features: d.
        width: length of z.
        beta: weight of the divergence from the standard normal distribution, in bits.
        scale: factor of the noise, >= 0; 1 in the paper.
        drawn_in_evaluation: whether ``noise`` holds draws of a fixed seed; otherwise zeros.

    Attributes:
        rng: generator of the draws in training mode, on the CPU; None: no noise.
        divergence: weighted mean divergence of the last batch; `penalty` takes it away.
    """

    noise: Tensor

    def __init__(
        self, features: int, width: int, beta: float = 1e-3, scale: float = 1.0, drawn_in_evaluation: bool = True
    ) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(features, 2 * width), nn.Linear(width, features)
        self.beta, self.scale = beta, scale
        self.rng: torch.Generator | None = None
        self.divergence: Tensor | None = None
        fixed = torch_generator(0, "noise of the bottleneck in evaluation")
        drawn = torch.randn(_ROWS, width, generator=fixed, device="cpu") * drawn_in_evaluation
        self.register_buffer("noise", drawn, persistent=False)  # known to both sides, so never sent

    def forward(self, h: Tensor) -> Tensor:
        """Return the decoded draws (B, d) for features (B, d).

        Raises:
            InputError: the features are not rows, as of the patches of an image or the places of a text.
        """
        require(h.dim() == 2, "one row of features for each example before the bottleneck", shape=tuple(h.shape))
        mean, std = encoded(self.encoder(h))
        self.divergence = self.beta * divergence(mean, std)
        return self.decoder(mean + self.scale * std * self._noise(mean))

    def _noise(self, mean: Tensor) -> Tensor:
        if not self.training:
            return self.noise[torch.arange(len(mean), device=self.noise.device) % len(self.noise)].to(mean)
        if self.rng is None:
            return torch.zeros_like(mean)
        return normal(mean.shape, self.rng).to(mean)


def encoded(statistics: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation (B, width) from an encoder's outputs (B, 2 width)."""
    mean, raw = statistics.chunk(2, -1)
    return mean, softplus(raw)


def divergence(mean: Tensor, std: Tensor) -> Tensor:
    """Compute the mean divergence, in bits, of normal distributions (B, width) from the standard one.

    >>> float(divergence(torch.zeros(2, 3), torch.ones(2, 3))) == 0
    True
    """
    return ((mean**2 + std**2 - 2 * std.log() - 1).sum(-1) / 2).mean() / log(2)


def with_bottleneck(
    net: Net, layer: str, width: int, beta: float, scale: float, drawn_in_evaluation: bool = True
) -> Net:
    """Put a variational bottleneck before a fully connected layer, in place, and return the network.

    Args:
        net: the network; its weights stay as they are.
        layer: name of the layer; empty: the last fully connected one.
        width: see `VariationalBottleneck`, as for the others.
        beta: weight of the divergence.
        scale: factor of the noise.
        drawn_in_evaluation: whether evaluation draws as well.

    Raises:
        InputError: there is no such layer.
    """
    named = {name: one for name, one in net.named_modules() if isinstance(one, nn.Linear)}
    chosen = layer or next(reversed(named), "")
    if chosen not in named:
        raise InputError(f"Expected a fully connected layer among {', '.join(named) or 'none'}; got layer={layer}.")
    before, place = named[chosen], chosen.rpartition(".")
    extra = VariationalBottleneck(before.in_features, width, beta, scale, drawn_in_evaluation)
    whole = nn.Sequential()
    whole.add_module(BOTTLENECK, extra)
    whole.add_module("layer", before)
    net.get_submodule(place[0]).register_module(place[2], whole)
    return net


def bottlenecks(model: nn.Module) -> list[VariationalBottleneck]:
    """List the bottlenecks of a model."""
    return [one for one in model.modules() if isinstance(one, VariationalBottleneck)]


def penalty(model: nn.Module) -> Tensor | float:
    """Take the bottlenecks' weighted divergence in the batch that the model saw last; 0 for a model without any."""
    total: Tensor | float = 0.0
    for one in bottlenecks(model):
        total, one.divergence = total + (0.0 if one.divergence is None else one.divergence), None
    return total


def draws(sent: Tensors, weights: Tensors, prefix: str, scale: float) -> Tensor | None:
    """Compute the noise (1, width) in one example's gradient; None: it is not one example's.

    The decoder's gradient has rank one, dL/dW = d z^T with d = dL/db, which gives z. The encoder's gives h likewise,
    and so mean and deviation. The noise is what is missing.

    Args:
        sent: gradients, by name.
        weights: the encoder's tensors, by name.
        prefix: name of the bottleneck, with a dot at its end.
        scale: factor of the noise, >= 0; at 0 the noise counts as 0.
    """
    z = _entered(sent[f"{prefix}decoder.weight"], sent[f"{prefix}decoder.bias"])
    h = _entered(sent[f"{prefix}encoder.weight"], sent[f"{prefix}encoder.bias"])
    if z is None or h is None:
        return None
    if not scale:
        return torch.zeros_like(z)[None].to(sent[f"{prefix}decoder.weight"])
    weight, bias = weights[f"{prefix}encoder.weight"].double(), weights[f"{prefix}encoder.bias"].double()
    mean, std = encoded(h @ weight.mT + bias)
    return ((z - mean) / (scale * std))[None].to(sent[f"{prefix}decoder.weight"])


_RANK_ONE = 1e-3  # length outside the outer product over the length of the gradient; float32 leaves 1e-6


def _entered(weight: Tensor, bias: Tensor) -> Tensor | None:
    """Return a layer's input (d,) from its gradients for one example; None: they have no common input."""
    g, slope = weight.double(), bias.double()
    length = slope @ slope
    if not float(length) > 0:
        return None
    row = slope @ g / length
    return row if float((g - torch.outer(slope, row)).norm() / g.norm()) < _RANK_ONE else None
