"""Clipped gradients of single examples of some clients at once, whose parameters are stacked.

Each gradient is computed by itself, so no layer can mix examples. `flfw.training.per_example` needs less memory for one
client: here all gradients of a step are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from flfw.nets.net import Tensors
from flfw.training.clipping import Clipping, factors
from flfw.training.per_example import ClippedSum


def stacked_clipped_sums(
    loss: Callable[[Tensors, Tensor, Tensor], Tensor],
    parameters: Tensors,
    batches: Sequence[tuple[Tensor, Tensor]],
    groups: Mapping[str, Sequence[str]],
    bounds: Sequence[Sequence[float]],
    clipping: Clipping,
) -> list[ClippedSum]:
    """Compute the sum of the clipped gradients of each client's batch.

    Norms and sums are in float64. A group of an example's gradient that is not finite is 0, of norm ``inf``.

    Args:
        loss: function of parameters, inputs (1, ...) and labels (1,) for the loss of that example.
        parameters: by name (K, ...).
        batches: of each client inputs (B, ...) and labels (B,), B >= 0.
        groups: names of the parameters of each clipping group.
        bounds: of each client a bound for each group, > 0.
        clipping: the rule.
    """
    most = max(1, *(len(y) for _, y in batches))
    x, y = (torch.stack([_filled(part, most) for part in parts]) for parts in zip(*batches, strict=True))

    def of_one(held: Tensors, one_x: Tensor, one_y: Tensor) -> Tensor:
        return loss(held, one_x.unsqueeze(0), one_y.unsqueeze(0))

    gradients, losses = vmap(vmap(grad_and_value(of_one), (None, 0, 0)))(parameters, x, y)
    with torch.no_grad():
        norms = torch.stack([_norms([gradients[name] for name in members]) for members in groups.values()], 2)
        bound = norms.new_tensor(bounds).clamp(max=torch.finfo(norms.dtype).max).unsqueeze(1)
        scales = factors(norms, bound, clipping)
        counts = [len(labels) for _, labels in batches]
        present = torch.arange(most, device=norms.device) < torch.tensor(counts, device=norms.device).unsqueeze(1)
        sums: Tensors = {}
        for place, members in enumerate(groups.values()):
            weight = torch.where(present, scales[..., place], 0.0)
            for name in members:
                each = torch.where(_as_wide(weight, gradients[name]) > 0, gradients[name].double(), 0.0)
                sums[name] = torch.einsum("kb,kb...->k...", weight, each).to(parameters[name].dtype)
    dtype = losses.dtype
    return [
        ClippedSum(
            {name: value[place] for name, value in sums.items()},
            norms[place, :count].to(dtype),
            scales[place, :count].to(dtype),
            losses[place, :count].detach(),
        )
        for place, count in enumerate(counts)
    ]


def _filled(part: Tensor, most: int) -> Tensor:
    """Append rows of zeros up to so many rows."""
    return torch.cat([part, part.new_zeros(most - len(part), *part.shape[1:])])


def _norms(pieces: Sequence[Tensor]) -> Tensor:
    """Compute the joint norms (K, B) in float64 of gradients given in pieces (K, B, ...); inf: not finite."""
    squares = torch.stack([piece.double().flatten(2).square().sum(2) for piece in pieces]).sum(0)
    return torch.where(squares.isfinite(), squares, torch.inf).sqrt()


def _as_wide(weight: Tensor, gradient: Tensor) -> Tensor:
    """Return weights (K, B) with as many dimensions as gradients (K, B, ...)."""
    return weight.view(*weight.shape, *[1] * (gradient.dim() - 2))
