"""Separation of a batch's examples in the gradient of a fully connected layer.

The layer's gradient is G = D^T A with a row for each of B examples: D (B, n) the loss's gradients at the layer's
outputs, A (B, d) its inputs. So D = M Q^T for the B left singular vectors Q (n, B) of G, and only M (B, B) is unknown:
A = M^-T Q^T G, and the bias's gradient, the sum of D's rows, fixes the lengths. Before a rectifier a row of D is 0 (or
small, if it leaks) wherever that example's output is negative. So directions q with a sparse Q q are searched for. B
of them are chosen so that the zeros of each stand where its inputs make the outputs negative. This agreement also
verifies the result. The idea is that of SPEAR (Dimitrov et al., NeurIPS 2024, arXiv 2403.03945), which samples the
zeros; here reweighted least squares finds them, also with a leaky rectifier. Where it fails, and for larger batches,
they are sampled (`flfw.inversion.closed_form.rectified`), which needs a rectifier that does not leak.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flfw.inversion.closed_form.rectified import separate_rectified

MOST = 12
"""Largest batch for reweighted least squares; in larger ones, with 128 units, few examples were found."""

PROVEN = 0.9
"""Least agreement of an accepted separation; chance gives 0.5."""

_SETS = 50_000  # largest number of random sets of units; fewer where none gives a sparse direction
_STARTS, _STEPS = 1000, 100
_WIDTH, _NARROWER, _NARROWEST = 0.3, 0.9, 5e-4  # entries below it count as 0; over the root mean square entry
_SAME = 0.995  # least cosine of two directions that count as one
_INDEPENDENT = 0.05  # least singular value of the first choice of directions
_CANDIDATES, _SWAPS = 200, 30
_ABSENT = 1e-6  # a direction below this share of the largest singular value is rounding


@dataclass(frozen=True)
class Separation:
    """Separated examples of a batch at a fully connected layer.

    Attributes:
        outputs: (B, n) the loss's gradient at each example's outputs.
        inputs: (B, d) each example's inputs.
        agreement: in [0, 1], mean over examples: the gradient's mean size at positive outputs over the sum of its mean
            sizes at positive and at other outputs.
    """

    outputs: Tensor
    inputs: Tensor
    agreement: float


def directions(weight_gradient: Tensor, count: int) -> Tensor:
    """Compute an orthonormal basis (r, n) of the gradients at the outputs; r is ``count`` or less.

    Args:
        weight_gradient: (n, d).
        count: number of examples.
    """
    left, sizes, _ = torch.linalg.svd(weight_gradient.double(), full_matrices=False)
    present = int((sizes > _ABSENT * sizes[0]).sum())
    return left[:, : min(count, present)].T


def separate(
    weight_gradient: Tensor, bias_gradient: Tensor, weight: Tensor, bias: Tensor, count: int, rng: torch.Generator
) -> Separation | None:
    """Separate the examples; None where that is impossible or the agreement is too low.

    Args:
        weight_gradient: (n, d).
        bias_gradient: (n,).
        weight: (n, d) of the layer.
        bias: (n,) of the layer.
        count: number of examples.
        rng: generator of the start directions.
    """
    basis = directions(weight_gradient, count)
    if len(basis) < count:
        return None
    if count <= MOST and (separation := _reweighted(basis, weight_gradient, bias_gradient, weight, bias, rng)):
        return separation
    exact = separate_rectified((weight_gradient, bias_gradient), (weight, bias), count, rng, sets=_SETS)
    if exact is None or len(exact.inputs) < count:
        return None
    outputs, inputs = (part.float().to(weight.device) for part in (exact.outputs, exact.inputs))
    return Separation(outputs, inputs, 1.0)


def _reweighted(
    basis: Tensor, of_weight: Tensor, of_bias: Tensor, weight: Tensor, bias: Tensor, rng: torch.Generator
) -> Separation | None:
    """Separate by reweighted least squares; None: the agreement is too low."""
    spanned, total = basis @ of_weight.double(), basis @ of_bias.double()
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
    """Criterion for a choice of directions, (K, B, B) with one in each row.

    Attributes:
        basis: (B, n) basis of the gradients at the outputs.
        spanned: (B, n) the layer's outputs, without its bias, for inputs Q^T G.
        bias: (n,) of the layer.
        total: (B,) the bias's gradient in the basis.
    """

    basis: Tensor
    spanned: Tensor
    bias: Tensor
    total: Tensor

    def scaled(self, chosen: Tensor) -> Tensor:
        """Scale the directions so that they add up to the bias's gradient: M."""
        total = self.total.expand(len(chosen), -1)[..., None]
        return chosen * torch.linalg.solve_ex(chosen.transpose(1, 2), total)[0]

    def agreement(self, chosen: Tensor) -> Tensor:
        """Compute the agreement (K,) of `Separation`; 0 without a solution, or for outputs of one sign only."""
        mixing = self.scaled(chosen)
        spanned = self.spanned.expand(len(chosen), -1, -1)
        on = torch.linalg.solve_ex(mixing.transpose(1, 2), spanned)[0] + self.bias > 0
        size = (mixing @ self.basis).abs()
        there, elsewhere = (torch.where(where, size, 0.0).sum(-1) / where.sum(-1) for where in (on, ~on))
        return (there / (there + elsewhere)).nan_to_num(nan=0.0).mean(-1)


def _sparse(basis: Tensor, rng: torch.Generator) -> Tensor:
    """Search for unit vectors q (K, B) with a sparse Q q, the sparsest first, no two alike.

    It runs iteratively reweighted least squares on the sphere, from random starts. A larger entry has a smaller weight,
    and each step is one of inverse iteration.
    """
    count, n = basis.shape
    vectors = torch.randn(_STARTS, count, generator=rng, dtype=torch.float64).to(basis.device)
    narrowest, width = _NARROWEST * n**-0.5, _WIDTH * n**-0.5
    for _ in range(_STEPS):
        vectors = vectors / vectors.norm(dim=1, keepdim=True)
        nearness = 1 / ((vectors @ basis) ** 2 + width**2)
        vectors = torch.linalg.solve(torch.einsum("kn,in,jn->kij", nearness, basis, basis), vectors)
        width = max(narrowest, _NARROWER * width)
    vectors = vectors / vectors.norm(dim=1, keepdim=True)
    order = torch.log((vectors @ basis) ** 2 + (0.01**2) / n).sum(1).argsort()
    vectors = vectors[order]
    alike = (vectors @ vectors.T).abs() > _SAME
    kept: list[int] = []
    for k in range(len(vectors)):
        if not bool(alike[k, kept].any()):
            kept.append(k)
    return vectors[kept[:_CANDIDATES]]


def _chosen(candidates: Tensor, layer: _SeparatedLayer) -> Tensor | None:
    """Choose B candidates (B, B) whose agreement with the layer no swap of one candidate improves."""
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
    """Return the first linearly independent candidates, one for each entry; None: there are too few."""
    chosen: list[int] = []
    for k in range(len(candidates)):
        if float(torch.linalg.svdvals(candidates[[*chosen, k]])[-1]) > _INDEPENDENT:
            chosen.append(k)
        if len(chosen) == candidates.shape[1]:
            return chosen
    return None
