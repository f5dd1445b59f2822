"""IG, "Inverting Gradients": search for the image whose gradient points where the observed one does.

Paper       Geiping et al., "Inverting Gradients - How easy is it to break privacy in federated learning?",
            NeurIPS 2020, arXiv 2003.14053.
Minimises   1 - cos(gradient of guess, observed gradient) + tv * TV(guess)
by          Adam on the sign of the guess's gradient, step size 0.1 (a tenth at 3/8, 5/8, 7/8 of the iterations),
            clamped to the box after every step, from N(0, 1) in normalised units.
Granted     the labels.
Unknown     tensors of the model that the client keeps (a private head, an embedding) are searched for together with
            the image, from the attacker's own initialisation; so the HyperFL paper attacks HyperFL. That does not use
            what an architecture gives away: against such methods this attack counts as static.
Departures  1. 1,000 iterations by default (inversefed: 4,800; breaching: 24,000; the HyperFL paper: 10,000).
            2. TV weight 1e-6, the HyperFL paper's; inversefed has 0.1, breaching 0.2.
            3. Of several restarts the one with the lowest cosine distance is kept, as in the paper; the default is 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import final

import torch

from flfw.audit.attack import Attack, Budget, NotApplicable
from flfw.audit.observation import Knowledge, Observation, Reconstruction, mean_gradient
from flfw.experiment import require
from flfw.inversion.matching import cosine_distance, total_variation
from flfw.inversion.search import Problem, Schedule, search


@dataclass(frozen=True)
class IGSettings:
    """The search."""

    iterations: int = 1000  # Adam steps, >= 1
    lr: float = 0.1  # first step size in deviations of the normalised input, > 0
    tv: float = 1e-6  # weight of the total variation, >= 0
    signed: bool = True  # follow the sign of the gradient; the HyperFL paper does not
    restarts: int = 1  # searches from different images (unknown tensors start alike), >= 1

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations >= 1", iterations=self.iterations)
        require(self.lr > 0, "lr > 0", lr=self.lr)
        require(self.tv >= 0, "tv >= 0", tv=self.tv)
        require(self.restarts >= 1, "restarts >= 1", restarts=self.restarts)


@final
class IG(Attack):
    """Cosine matching."""

    Settings = IGSettings

    @property
    def budget(self) -> Budget:
        """As set."""
        return Budget(self.settings.iterations, self.settings.restarts, "lowest cosine distance")

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Search for all victims of one model at once."""
        found: dict[int, Reconstruction] = {}
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, known in enumerate(knowledge):
            groups[id(known.model), known.batch].append(i)
        for members in groups.values():
            problems = [
                _problem(observations[i], knowledge[i], rngs[i]) for i in members for _ in range(self.settings.restarts)
            ]
            found |= zip(members, self._search(problems, knowledge[members[0]]), strict=True)
        return [found[i] for i in range(len(observations))]

    def _search(self, problems: Sequence[Problem], knowledge: Knowledge) -> list[Reconstruction]:
        chosen = self.settings
        schedule = Schedule(chosen.iterations, chosen.lr, chosen.signed)
        samples, distances = search(
            knowledge.model,
            problems,
            cosine_distance,
            lambda z: chosen.tv * total_variation(z),
            schedule,
            knowledge.box,
        )
        samples, distances = samples.unflatten(0, (-1, chosen.restarts)), distances.view(-1, chosen.restarts)
        best = distances.nan_to_num(nan=inf).argmin(1)  # argmin would take a NaN for the smallest
        return [Reconstruction(s[b], float(d[b])) for s, d, b in zip(samples, distances, best, strict=True)]


def _problem(observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Problem:
    if knowledge.labels is None:
        raise NotApplicable("ig needs the labels; grant them or recover them first")
    start = torch.randn((knowledge.batch, *knowledge.model.inputs.shape), generator=rng)
    return Problem(mean_gradient(observation, knowledge), knowledge.labels, start, knowledge.model.unknown)
