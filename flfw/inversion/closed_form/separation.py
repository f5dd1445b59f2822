"""Tells the examples of a batch apart in the gradient of a fully connected layer.

The layer's gradient is G = D^T A with a row for each of B examples: D (B, n) the loss's gradients at the layer's
outputs, A (B, d) its inputs. So D = M Q^T for the B left singular vectors Q (n, B) of G, and only M (B, B) is unknown:
A = M^-T Q^T G, and the bias's gradient, the sum of D's rows, fixes the lengths. Behind a rectifier a row of D is 0 (or
small, if it leaks) wherever that example's output is negative: directions q with a sparse Q q are looked for, and B of
them chosen so that each one's zeros stand where its own inputs make the outputs negative. That agreement is also the
proof of what was found. The idea is that of SPEAR (Dimitrov et al., NeurIPS 2024, arXiv 2403.03945), which samples the
zeros; here they are found by reweighted least squares, which a leak does not disturb.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 12
"""Examples up to which a separation is tried; of more, among 128 units, few were found."""

PROVEN = 0.9
"""Agreement from which on a separation counts; 0.5 is what chance gives."""

_STARTS, _STEPS = 1000, 100
_WIDTH, _NARROWER, _NARROWEST = 0.3, 0.9, 5e-4  # below which an entry counts as 0, over the root mean square entry
_SAME = 0.995  # cosine from which on two directions are one
_INDEPENDENT = 0.05  # least singular value of directions that a choice may begin with
_CANDIDATES, _SWAPS = 200, 30
_ABSENT = 1e-6  # of the largest singular value, below which a direction is rounding


@dataclass(frozen=True)
class Separation:
    """The examples of a batch at a fully connected layer.

    Attributes:
        outputs: (B, n) the loss's gradient at each one's outputs.
        inputs: (B, d) each one's inputs.
        agreement: in [0, 1], the mean over examples of how far the gradient's size is found at outputs that are
            positive: its mean size there over the sum of that and its mean size at the others.
    """

    outputs: Tensor
    inputs: Tensor
    agreement: float


def directions(weight_gradient: Tensor, count: int) -> Tensor:
    """(r, n): an orthonormal basis in which the gradients at the outputs lie; r is ``count`` or less.

    Args:
        weight_gradient: (n, d).
        count: how many examples it is of.
    """
    left, sizes, _ = torch.linalg.svd(weight_gradient.double(), full_matrices=False)
    present = int((sizes > _ABSENT * sizes[0]).sum())
    return left[:, : min(count, present)].T


def separate(
    weight_gradient: Tensor, bias_gradient: Tensor, weight: Tensor, bias: Tensor, count: int, rng: torch.Generator
) -> Separation | None:
    """Tell the examples apart; None where that is not possible or its result does not agree with itself.

    Args:
        weight_gradient: (n, d).
        bias_gradient: (n,).
        weight: (n, d) of the layer.
        bias: (n,) of the layer.
        count: how many examples.
        rng: of the directions from which sparse ones are looked for.
    """
    basis = directions(weight_gradient, count)
    if count > MOST or len(basis) < count:
        return None
    spanned, total = basis @ weight_gradient.double(), basis @ bias_gradient.double()
    layer = _SeparatedLayer(basis, spanned @ weight.double().T, bias.double(), total)
    chosen = _chosen(_sparse(basis, rng), layer)
    if chosen is None:
        return None
    mixing, agreement = layer.scaled(chosen[None])[0], float(layer.agreement(chosen[None]))
    if not agreement >= PROVEN:
        return None
    inputs = torch.linalg.solve(mixing.T, spanned)
    return Separation((mixing @ basis).float(), inputs.float(), agreement)


@dataclass(frozen=True)
class _SeparatedLayer:
    """What a choice of directions, (K, B, B) with one in each row, is judged by.

    Attributes:
        basis: (B, n) of the gradients at the outputs.
        spanned: (B, n) the layer's outputs, without its bias, for inputs Q^T G.
        bias: (n,) of the layer.
        total: (B,) the bias's gradient in the basis.
    """

    basis: Tensor
    spanned: Tensor
    bias: Tensor
    total: Tensor

    def scaled(self, chosen: Tensor) -> Tensor:
        """M: the directions at the lengths with which they add up to the bias's gradient."""
        total = self.total.expand(len(chosen), -1)[..., None]
        return chosen * torch.linalg.solve_ex(chosen.transpose(1, 2), total)[0]

    def agreement(self, chosen: Tensor) -> Tensor:
        """(K,) see `Separation`; 0 for what has no solution, or outputs of one sign alone."""
        mixing = self.scaled(chosen)
        spanned = self.spanned.expand(len(chosen), -1, -1)
        on = torch.linalg.solve_ex(mixing.transpose(1, 2), spanned)[0] + self.bias > 0
        size = (mixing @ self.basis).abs()
        there, elsewhere = (torch.where(where, size, 0.0).sum(-1) / where.sum(-1) for where in (on, ~on))
        return (there / (there + elsewhere)).nan_to_num(nan=0.0).mean(-1)


def _sparse(basis: Tensor, rng: torch.Generator) -> Tensor:
    """(K, B) unit vectors q for which Q q is sparse, the sparsest first, no two alike.

    From random starts, by iteratively reweighted least squares on the sphere: an entry counts as the less the larger it
    is, and each step is one of inverse iteration.
    """
    count, n = basis.shape
    found = torch.randn(_STARTS, count, generator=rng, dtype=torch.float64).to(basis.device)
    narrowest, width = _NARROWEST * n**-0.5, _WIDTH * n**-0.5
    for _ in range(_STEPS):
        found = found / found.norm(dim=1, keepdim=True)
        nearness = 1 / ((found @ basis) ** 2 + width**2)
        found = torch.linalg.solve(torch.einsum("kn,in,jn->kij", nearness, basis, basis), found)
        width = max(narrowest, _NARROWER * width)
    found = found / found.norm(dim=1, keepdim=True)
    order = torch.log((found @ basis) ** 2 + (0.01**2) / n).sum(1).argsort()
    found = found[order]
    alike = (found @ found.T).abs() > _SAME
    kept: list[int] = []
    for k in range(len(found)):
        if not bool(alike[k, kept].any()):
            kept.append(k)
    return found[kept[:_CANDIDATES]]


def _chosen(candidates: Tensor, layer: _SeparatedLayer) -> Tensor | None:
    """(B, B): as many candidates as there are examples, which agree with the layer as well as any swap of one."""
    chosen = _independent(candidates)
    if chosen is None:
        return None
    best = float(layer.agreement(candidates[chosen][None]))
    for _ in range(_SWAPS):
        others = [k for k in range(len(candidates)) if k not in chosen]
        swaps = [[*chosen[:b], k, *chosen[b + 1 :]] for b in range(len(chosen)) for k in others]
        if not swaps:
            break
        agreement = layer.agreement(candidates[torch.tensor(swaps, device=candidates.device)])
        at = int(agreement.argmax())
        if not float(agreement[at]) > best:
            break
        best, chosen = float(agreement[at]), swaps[at]
    return candidates[chosen]


def _independent(candidates: Tensor) -> list[int] | None:
    """The first candidates that are linearly independent, as many as they have entries; None: there are not so many."""
    chosen: list[int] = []
    for k in range(len(candidates)):
        if float(torch.linalg.svdvals(candidates[[*chosen, k]])[-1]) > _INDEPENDENT:
            chosen.append(k)
        if len(chosen) == candidates.shape[1]:
            return chosen
    return None
