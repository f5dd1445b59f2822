"""Attacks that search for the data whose gradient, through all granted mechanisms, matches the observed one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from flfw.adversary.attack import Attack, Models, NotApplicable
from flfw.adversary.observation import Knowledge, Observation, Reconstruction, mean_gradient
from flfw.inversion.automatic import Automatic
from flfw.inversion.closed_form.labels import NoLabels, recovered
from flfw.inversion.search import Found, Recipe, Target, invert
from flfw.inversion.settled import alike, settled
from flfw.rng import torch_generator
from flfw.victims.operator import Operator


class GradientMatching(Attack, ABC):
    """Base of the optimisation attacks; a subclass writes `recipe`, and `labels` if it is not granted them.

    Victims of one model are searched for at once. A granted mechanism stands inside the objective, and granted local
    steps are unrolled in it.
    """

    models: ClassVar[Models] = frozenset({"defence", "steps"})

    @abstractmethod
    def recipe(self, mechanism: Operator | Automatic | None) -> Recipe:
        """Return the settings of the search.

        Args:
            mechanism: the known mechanism between the gradient and the observation; it stands in the objective. Where
                it has a ``noise``, distances have to be likelihoods of that deviation.
        """

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Search for all victims of one model at once."""
        results: dict[int, Reconstruction] = {}
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, known in enumerate(knowledge):
            groups[id(known.model), id(known.mechanism), known.batch].append(i)
        for members in groups.values():
            known = knowledge[members[0]]
            targets = {i: self._target(observations[i], knowledge[i], rngs[i]) for i in members}
            for mechanism, those in _told(known, targets):
                group = [targets[i] for i in those]
                guesses = invert(
                    known.model, group, self.recipe(mechanism), mechanism=mechanism, box=known.box, compute=self.compute
                )
                results |= zip(those, map(_reconstruction, guesses), strict=True)
        return [results[i] for i in range(len(observations))]

    def _target(self, seen: Observation, known: Knowledge, rng: torch.Generator) -> Target:
        sent = seen.sent if known.unrolled else mean_gradient(seen, known)
        return Target(sent, self._labels(sent, known, rng), rng, known.batch)

    def _labels(self, sent: dict[str, Tensor], known: Knowledge, rng: torch.Generator) -> Tensor | None:
        if self.labels == "searched for":
            return None
        if self.labels == "given":
            if known.labels is None:
                raise NotApplicable("it needs the labels: grant them, or have it recover them")
            return known.labels
        try:
            return recovered(known.model, sent, known.batch, self.labels, rng)
        except NoLabels as error:
            raise NotApplicable(str(error)) from error


def _told(known: Knowledge, targets: Mapping[int, Target]) -> list[tuple[Operator | Automatic | None, list[int]]]:
    """Group the targets by their known mechanism.

    A defence, such as a bound, may act on one victim and not on another: each observation is tested separately.
    """
    mechanism = known.mechanism
    if not isinstance(mechanism, Automatic):
        return [(mechanism, list(targets))]
    groups: dict[Any, tuple[Operator | Automatic | None, list[int]]] = {}
    for i, target in targets.items():
        chosen = settled(
            mechanism, known.model, target.sent, target.labels, target.batch, torch_generator(0, "settled")
        )
        groups.setdefault(alike(chosen) or i, (chosen, []))[1].append(i)
    return list(groups.values())


def _reconstruction(result: Found) -> Reconstruction:
    return Reconstruction(result.samples, result.matched, result.iterations, result.labels)
