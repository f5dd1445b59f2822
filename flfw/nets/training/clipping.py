"""Clipping of vectors to a bound C of their L2 norm: the rules, and the tensors that are clipped together.

    abadi        g min(1, C / |g|)           Abadi et al., "Deep Learning with Differential Privacy", CCS 2016
    automatic    g C / (|g| + 0.01)          Bu et al., "Automatic Clipping: Differentially Private Deep Learning Made
                                             Easier and Stronger", NeurIPS 2023

By both rules a clipped vector is no longer than C, so the sensitivity of a sum of them is C. The second one scales all
vectors, small ones up as well: C then acts as a factor of the learning rate and need not be tuned beside it.

Pruning keeps the entries of a tensor with the largest magnitude, as in compressors.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor, maximum

Grouping: TypeAlias = Literal["layer", "tensor", "flat"]
"""Clipping groups: a layer's direct parameters, each tensor alone, or all chosen parameters."""

Bound: TypeAlias = float | Mapping[str, float]
"""Bound of an L2 norm, > 0; ``inf``: no clipping. One for all groups, or one for each group by name."""

Clipping: TypeAlias = Literal["abadi", "automatic"]
"""Rule by which a vector is brought to its bound."""

STABILITY = 0.01
"""Constant gamma of automatic clipping, the one of its paper: a vector that is far shorter keeps its direction only."""

WIDEST = 1e30
"""Largest bound of automatic clipping: over `STABILITY` it is still a float32."""

CLIP_FACTOR = "extractor.clip_factor"
"""Name of the entry of a model for C over the first round's C, where a bound moves; see `flfw.dp.quantile`."""


def factors(norms: Tensor, bounds: Tensor, clipping: Clipping) -> Tensor:
    """Compute the factors >= 0 of vectors with some L2 norms; 0 for a norm of ``inf``.

    Args:
        norms: >= 0.
        bounds: > 0, finite, of a shape that fits.
        clipping: the rule.

    >>> from torch import tensor
    >>> factors(tensor([0.5, 4.0, float("inf")]), tensor(2.0), "abadi")
    tensor([1.0000, 0.5000, 0.0000])
    >>> factors(tensor([0.0, 3.99, float("inf")]), tensor(2.0), "automatic")
    tensor([200.0000,   0.5000,   0.0000])
    """
    return bounds / (norms + STABILITY if clipping == "automatic" else maximum(norms, bounds))


def grouped(names: Iterable[str], grouping: Grouping) -> dict[str, tuple[str, ...]]:
    """Return the parameter names of each group.

    >>> grouped(["body.weight", "body.bias", "head.weight"], "layer")
    {'body': ('body.weight', 'body.bias'), 'head': ('head.weight',)}
    """
    groups: dict[str, tuple[str, ...]] = {}
    for name in names:
        group = {"layer": name.rpartition(".")[0] or "model", "tensor": name, "flat": "all"}[grouping]
        groups[group] = (*groups.get(group, ()), name)
    return groups


def keep_largest(value: Tensor, ratio: float) -> Tensor:
    """Return the tensor with a share ``ratio`` in [0, 1) of its entries, those of smallest magnitude, set to 0.

    The share is rounded down to whole entries; ties are broken arbitrarily.

    >>> keep_largest(torch.tensor([3.0, -1.0, 2.0, 0.5]), 0.5)
    tensor([3., 0., 2., 0.])
    """
    kept = value.flatten().abs().topk(value.numel() - int(ratio * value.numel())).indices
    return torch.zeros_like(value).flatten().index_copy(0, kept, value.flatten()[kept]).view_as(value)
