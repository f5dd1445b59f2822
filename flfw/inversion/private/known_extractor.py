"""Search for data by their features, through a known extractor: first under a smooth prior, then with almost none."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import final

import torch
from torch import Tensor, nn

from flfw.inversion.closed_form.features import EXTRACTOR, ExtractorVictim
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.matching import relative_distance
from flfw.inversion.priors import total_variation, weighted
from flfw.inversion.search import SearchConfig, SearchResult, SearchTarget, Stage, invert
from flfw.inversion.search_optimisers import AdamSearch

_LR, _FALLING = 0.1, 1000.0  # step size in deviations of the normalised input; first weight of the prior over the last
_SMOOTH = 0.4  # share of the iterations under the smooth prior


def side_by_side(victims: Sequence[ExtractorVictim]) -> ExtractorVictim:
    """Build a victim whose features are those of several extractors, one after another in each row (B, ...).

    A client's weights move between rounds, so each round's features tell something else about the same data.
    """
    parts = [deepcopy(victim.model.get_submodule(EXTRACTOR)) for victim in victims]  # a shared layer has one value only
    known = {}
    for i, victim in enumerate(victims):
        for name, value in victim.known.items():
            part, _, rest = name.partition(".")
            known |= {f"{EXTRACTOR}.parts.{i}.{rest}": value} if part == EXTRACTOR else {}
    return ExtractorVictim(nn.ModuleDict({EXTRACTOR: _SideBySide(parts)}), known, victims[0].inputs)


@final
class _SideBySide(nn.Module):
    """Several extractors of the same inputs."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x).flatten(1) for part in self.parts], 1)


def by_features(
    victim: ExtractorVictim,
    features: Sequence[Tensor],
    rngs: Sequence[torch.Generator],
    box: tuple[float, float],
    *,
    iterations: int,
    tv: float,
    compute: ComputeLimits,
) -> list[SearchResult]:
    """Search for the data of several messages.

    Args:
        victim: the extractor.
        features: features (B, ...) of each message.
        rngs: a generator for each.
        box: range of raw inputs.
        iterations: steps of Adam, >= 1.
        tv: first weight of the total variation, >= 0; it falls to a thousandth.
        compute: limits of memory, and compilation.
    """
    unused = torch.zeros(len(features[0]), dtype=torch.int64, device=victim.inputs.mean.device)
    targets = [SearchTarget(victim.sent(f), unused, rng) for f, rng in zip(features, rngs, strict=True)]
    prior, opening = weighted((tv / _FALLING, total_variation)), max(1, round(_SMOOTH * iterations))
    smooth = Stage(relative_distance, AdamSearch(opening, _LR, schedule="cosine"), prior, _FALLING)
    last = AdamSearch(max(1, iterations - opening), _LR / 2, schedule="cosine")
    recipe = SearchConfig(relative_distance, last, prior, start=_blank, opening=(smooth,))
    return invert(victim, targets, recipe, box=box, compute=compute)


def _blank(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Return the start of the search: the mean of all inputs."""
    return torch.zeros(shape)
