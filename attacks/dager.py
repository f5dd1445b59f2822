"""DAGER: test every token by the span of the gradient of queries, keys and values, and read whole texts; exact.

Paper       Petrov et al., "DAGER: Exact Gradient Inversion for Large Language Models", NeurIPS 2024, arXiv
            2405.15586; the objective under noise: TIGER, arXiv 2606.18312.
Needs       a transformer on tokens (`flfw.nets.transformer`) whose embeddings and first two blocks are shared, and
            fewer tokens in the batch than the vectors have entries: batch x length <= width - ``spare``.

    S_k = span of the rows of dL/dW_QKV of block k = span of the inputs e of its attention
    candidates of place p: the tokens t with ||(I - S_1) e|| < first ||e||, e = norm(token(t) + position(p))
    causal: extend every prefix by each candidate; keep those whose e of block 2 have ||(I - S_2) e|| < second ||e||
    else:   try every text made of the candidates, if there are ``most`` or fewer

Granted     nothing but the observation and the number of examples. No labels.
Exact       where the residuals of the true texts, which are rounding, stay below those of the others. Long training
            makes the second block's inputs alike, and their residuals small: see docs/attacks/dager.md.
Static      it uses no knowledge of a defence. ``decoder = "beam"`` drops the thresholds: the texts with the least sum
            of squared residuals of both blocks (TIGER's objective), which noise leaves finite.
Departures  1. Queries, keys and values, not queries alone: the first token of a causal network has no query gradient.
            2. Rank: singular values above ``tolerance`` times the largest, at most batch x length, which is granted; of
               rows scaled to length 1, which are rounded alike. After training this decides about batches.
            3. The prefixes with the least largest residual are kept even above the threshold, two for each example. The
               paper ends there; here texts whose mean residual exceeds ``given`` are not given at all.
            4. TIGER searches for embeddings by Adam; here a beam of prefixes is extended, token by token.
            5. Bytes, not words: they repeat, so that the first test tells which bytes occur, and rarely where.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from flfw.adversary.attack import ClosedFormAttack, NotApplicableError
from flfw.bounds import BoundedSettings, PositiveFloat, PositiveInt
from flfw.inversion.fit import Fit
from flfw.nets.transformer import TOKENS, Transformer, raw, tokens
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient

_PROJECTION, _BLOCKS = "extractor.blocks.{}.attention.query_key_value.weight", 2
_SLACK = 2  # prefixes that are kept for each example, whatever their residual
_NARROW = 32  # candidates of a place in the beam decoder
_AT_ONCE = 1024  # texts that are evaluated together


@dataclass(frozen=True)
class DAGERSettings(BoundedSettings):
    """Thresholds and the decoder."""

    decoder: Literal["thresholds", "beam"] = "thresholds"  # beam: the least sum of squared residuals, for noise
    tolerance: PositiveFloat = 1e-8  # singular values below it, times the largest, are rounding
    first: PositiveFloat = 1e-2  # largest residual of a candidate in block 1; the paper's 1e-5 is for larger widths
    second: PositiveFloat = 1e-3  # largest residual of a true prefix in block 2
    given: PositiveFloat = 1e-2  # largest mean residual in block 2 of texts that are given
    spare: PositiveInt = 20  # dimensions that the tokens must leave free
    beams: PositiveInt = 16  # most prefixes at a time
    most: PositiveInt = 4096  # most texts that are tried in a network that is not causal


@final
class DAGER(ClosedFormAttack):
    """Texts read off the spans of a transformer's first two blocks."""

    Settings = DAGERSettings
    tokens: ClassVar[bool] = True
    tuned_on = "pieces 5-7 of 32 bytes of the Zen of Python (thresholds, scaling of the rows)"
    selection = "least residual in the span of the second block"

    def objective(
        self, observation: Observation, knowledge: Knowledge, guesses: Sequence[Reconstruction], rng: torch.Generator
    ) -> list[Fit] | None:
        """Compute the mean squared residual of both blocks at the guesses."""
        network, spans = self._opened(observation, knowledge)
        with torch.no_grad():
            values = [float(_residuals(network, spans, tokens(guess.samples)).square().mean()) for guess in guesses]
        return [Fit(value, value) for value in values]

    def _opened(self, observation: Observation, knowledge: Knowledge) -> tuple[Transformer, list[Span]]:
        """Return the known network in float64, and the spans of its first two blocks."""
        network, gradient = getattr(knowledge.model.model, "extractor", None), mean_gradient(observation, knowledge)
        names, parts = [_PROJECTION.format(block) for block in range(_BLOCKS)], knowledge.model.known
        if not isinstance(network, Transformer) or any(name not in gradient or name not in parts for name in names):
            raise NotApplicableError("dager needs a transformer on tokens, with its first two blocks shared")
        length, maximum = knowledge.model.inputs.shape[0], network.token.embedding_dim - self.settings.spare
        if knowledge.batch * length > maximum:
            required = f"batch x length <= {maximum}, the width less {self.settings.spare}"
            raise NotApplicableError(f"dager needs {required}, got {knowledge.batch} x {length}")
        model = deepcopy(knowledge.model.model)
        model.load_state_dict(parts, strict=False)
        opened = model.double().eval().extractor
        assert isinstance(opened, Transformer), "it was one before"
        return opened, [
            row_span(gradient[n], knowledge.batch * length, self.settings.tolerance, not self._beam) for n in names
        ]

    @torch.no_grad()
    def read_off(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Reconstruction:
        """Read the texts off the spans; those of an observation that fits no text are not a number."""
        network, spans = self._opened(observation, knowledge)
        length, batch = knowledge.model.inputs.shape[0], knowledge.batch
        places = self._candidates(network, spans[0], length)
        texts = self._extended(network, spans, places, batch) if network.causal else self._whole(network, places)
        chosen = texts[:batch].repeat(batch, 1)[:batch]  # fewer texts than examples: some are equal
        residuals = _residuals(network, spans, chosen)
        if not self._beam and float(residuals[1].mean()) > self.settings.given:
            return Reconstruction(torch.full((batch, length), torch.nan))
        return Reconstruction(raw(chosen).clamp(*knowledge.box), float(residuals.square().mean()))

    @property
    def _beam(self) -> bool:
        return self.settings.decoder == "beam"

    def _costs(self, costs: Tensor, residuals: Tensor) -> Tensor:
        """Add the residuals (2, N) of last tokens to the costs (N,) of the prefixes before them."""
        return costs + residuals.square().sum(0) if self._beam else costs.maximum(residuals[1])

    def _candidates(self, network: Transformer, span: Span, length: int) -> list[Tensor]:
        """Return the tokens of each place that lie in the first span; all of them where none does."""
        every = torch.arange(TOKENS, device=span.basis.device).unsqueeze(1).expand(TOKENS, length)
        residuals = span.residuals(network.block(0).attention_norm(network.embedded(every)))  # (TOKENS, length)
        if self._beam:
            return list(residuals.argsort(0)[:_NARROW].unbind(1))
        within = residuals < self.settings.first
        return [place.nonzero().flatten() if place.any() else every[:, 0] for place in within.unbind(1)]

    def _extended(self, network: Transformer, spans: Sequence[Span], indices: Sequence[Tensor], batch: int) -> Tensor:
        """Search by extending prefixes from left to right; return texts (N, T), the best first."""
        prefixes, costs = indices[0].new_empty(1, 0), spans[0].basis.new_zeros(1)
        for candidates in indices:
            count = len(candidates)
            grown = torch.cat([prefixes.repeat_interleave(count, 0), candidates.repeat(len(prefixes))[:, None]], 1)
            costs = self._costs(costs.repeat_interleave(count), _residuals(network, spans, grown, last=True)[..., 0])
            likely = (
                self.settings.beams if self._beam else max(_SLACK * batch, int((costs < self.settings.second).sum()))
            )
            kept = costs.argsort()[: min(likely, self.settings.beams)]
            prefixes, costs = grown[kept], costs[kept]
        return prefixes

    def _whole(self, network: Transformer, indices: Sequence[Tensor]) -> Tensor:
        """Return every text (N, T) that is made of the candidates."""
        count = prod(len(index) for index in indices)
        if count > self.settings.most:
            within = f"at most {self.settings.most} texts within the span of block 1 of a network that is not causal"
            raise NotApplicableError(f"dager needs {within}, got {count:.3g}: too many examples share their bytes")
        return torch.cartesian_prod(*indices)


def _residuals(network: Transformer, spans: Sequence[Span], texts: Tensor, last: bool = False) -> Tensor:
    """Compute the residuals (2, N, T) of texts (N, T), or (2, N, 1) of their last tokens, some texts at a time."""
    results = []
    for part in texts.split(_AT_ONCE):
        hidden, each = network.embedded(part), []
        for number, span in enumerate(spans):
            block = network.block(number)
            entering = block.attention_norm(hidden)
            each.append(span.residuals(entering[:, -1:] if last else entering))
            hidden = block(hidden, last)
        results.append(torch.stack(each))
    return torch.cat(results, 1)


@final
@dataclass(frozen=True, eq=False)
class Span:
    """Subspace of vectors (d,), such as the span of those that enter a transformer's attention.

    The projection W is applied to a vector e for each token of the batch, so that dL/dW is the sum of g e^T over the
    tokens: its rows lie in the span of these vectors. With fewer tokens than the vectors have entries, hardly any other
    vector does: a guess can be tested.

    Attributes:
        basis: (rank, d) float64, orthonormal.
    """

    basis: Tensor

    def residuals(self, vectors: Tensor) -> Tensor:
        """Compute the share of each vector's length (...,) that lies outside the subspace, in [0, 1].

        Args:
            vectors: (..., d).
        """
        v = vectors.double()
        outside = v - (v @ self.basis.mT) @ self.basis
        return outside.norm(dim=-1) / v.norm(dim=-1).clamp_min(torch.finfo(v.dtype).tiny)


def row_span(gradient: Tensor, maximum: int, tolerance: float, scaled: bool = True) -> Span:
    """Compute the span of the rows of a gradient (n, d).

    Rounding to float32 is relative to each entry, and the rows of queries, keys and values differ in size by orders of
    magnitude. Each row is therefore scaled to length 1 first, so that rounding in the longest ones does not hide the
    others. Added noise has one size in all rows; there they must not be scaled.

    Args:
        gradient: gradient of the stacked projections of queries, keys and values. Queries alone are not enough: in a
            causal network the first token attends to itself alone, so that its query has no gradient.
        maximum: largest rank, >= 1: the number of tokens.
        tolerance: directions with less than this share of the largest singular value are taken for rounding.
        scaled: whether rows are scaled.
    """
    g = gradient.double()
    tiny = torch.finfo(g.dtype).tiny
    rows = g / g.norm(dim=1, keepdim=True).clamp_min(tiny) if scaled else g
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    return Span(directions[: min(maximum, int((sizes > tolerance * sizes[0].clamp_min(tiny)).sum()))])
