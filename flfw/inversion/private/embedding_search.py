"""Search for the embedding behind a hypernetwork's gradient, together with the generated network's gradient.

This is the first stage of the attack that Guo et al. (AAAI 2025) design for their own method. Embedding and generated
gradient are free variables; the hypernetwork's gradient for them has to match the observation.
`flfw.inversion.closed_form.shared_gradient` has the closed form of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from flfw.inversion.client_models.victim import GeneratedVictim
from flfw.inversion.closed_form.shared_gradient import Reading, generate
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.evaluation import stacked
from flfw.inversion.graph import Graph
from flfw.inversion.matching import relative_distance
from flfw.inversion.search_optimisers import SearchOptimiser
from flfw.nets.net import Tensors


def search(
    victim: GeneratedVictim,
    batch: Sequence[Tensors],
    rngs: Sequence[torch.Generator],
    descent: SearchOptimiser,
    compute: ComputeLimits,
) -> list[Reading]:
    """Search for a reading of each gradient, all at once.

    The squared distance is minimised, relative to the observation's squared length. The generated gradient starts from
    noise of the observation's size, the embedding from that of the attacker's model.

    Args:
        victim: model of the client.
        batch: the observations, each by name.
        rngs: a generator for each.
        descent: the optimiser.
        compute: limits of memory, and compilation.
    """
    observed, constants = zip(*(victim.observed(sent) for sent in batch), strict=True)
    sizes = [seen["heads.bias"].square().mean().sqrt() for seen in observed]
    given = {"observed": stacked(observed), "constants": stacked(constants), "size": torch.stack(sizes)}
    start = torch.stack(
        [torch.randn(len(seen["heads.bias"]), generator=g) for seen, g in zip(observed, rngs, strict=True)]
    )
    embedding = victim.unknown["embedding"].expand(len(batch), -1)
    # A descent calls the first of its variables x; here it is the embedding.
    guess = {"x": embedding, "gradient": start.to(embedding.device)}

    def distance(guess: Tensors, given: dict[str, Any]) -> tuple[Tensor, Tensor]:
        trial = victim.handed_on(given["size"] * guess["gradient"], guess["x"], given["constants"]["basis"])
        left = relative_distance(trial, given["observed"])
        return left, left

    graph = Graph(grad_and_value(distance, has_aux=True), (_first(guess), _first(given)), compute)

    def evaluate(guess: Tensors) -> tuple[Tensors, Tensor, Tensor]:
        gradients, (objective, matched) = graph(guess, given)
        return gradients, objective, matched

    best = descent.descend(evaluate, guess, None, 0.0).guess
    return [_reading(victim, best["x"][i], size * best["gradient"][i]) for i, size in enumerate(sizes)]


def _first(records: Any) -> Any:
    return {n: _first(value) if isinstance(value, dict) else value[0] for n, value in records.items()}


def _reading(victim: GeneratedVictim, embedding: Tensor, gradient: Tensor) -> Reading:
    targets = victim.targets
    parts = gradient.split([shape.numel() for shape in targets.values()])
    gradients = {name: part.view(shape) for (name, shape), part in zip(targets.items(), parts, strict=True)}
    return Reading(generate(targets, victim.known, embedding), gradients, embedding)
