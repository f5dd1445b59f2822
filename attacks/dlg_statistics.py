"""DLG with a random extractor and, where a generator is shared, the statistics of its features: FedCG's own attack.

Paper       Wu et al., "FedCG: Leverage Conditional GAN for Protecting Privacy and Maintaining Competitive Performance
            in Federated Learning", IJCAI 2022, arXiv 2111.08211, section 4.3 and Table 2, after Zhu et al. (DLG).
Minimises   || gradient of x' - observed gradient ||^2 + alpha sum_c ( (mean(E~(x')^c) - mu^c)^2 + (var(E~(x')^c) -
            sigma^c)^2 ) over x', with mu and sigma of each channel of features generated for the label,
by          Adam, step size 0.1, and L-BFGS, each from the same N(0, 1); the lower objective is kept.
Granted     the labels; of the generators the uploaded one, where it was recorded, else the one that was broadcast.
Uses        what the client uploaded in the round, for its generator.
Static      by construction: E~ is the attacker's own and stays as it was drawn, and all that a classifier's gradient
            says of the features is asked of it. So it comes out low however much leaks; attacks/fedcg.py is the answer.
Controls    Without a generator there is no second term (fedsplit); where all is shared it is DLG with labels (fedavg).
Departures  1. alpha, optimiser, iterations and state of the model are not in the paper, and there is no code.
            2. sigma is compared with a variance, as the paper's formula has it, and is taken for one.
            3. Mean and variance are over all places and examples, and over generated features of all labels of a batch.
            4. Guesses are kept in the box. Local steps and defences are taken no account of.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import inf
from typing import final

import torch
from torch import nn

from flfw.adversary.attack import Attack, Budget, NotApplicable, Private, Uses
from flfw.adversary.observation import Knowledge, Observation, Reconstruction, mean_gradient
from flfw.errors import require
from flfw.inversion.descent import LBFGS, AdamDescent, Descent
from flfw.inversion.matching import squared_distance
from flfw.inversion.private.feature_statistics import StatisticsVictim, channel_statistics
from flfw.inversion.search import Found, Recipe, Target, invert
from flfw.nets.conditional_gan import GeneratingNet, noise
from flfw.nets.net import Tensors
from flfw.rng import torch_generator

_GENERATED = 512  # features of which the statistics are taken


@dataclass(frozen=True)
class DLGStatisticsSettings:
    """The two searches."""

    alpha: float = 0.1  # weight of the statistics, >= 0
    adam_iterations: int = 3000  # >= 0; 0: without
    adam_lr: float = 0.1  # in deviations of the normalised input, > 0
    lbfgs_iterations: int = 300  # steps of 20 evaluations, >= 0; 0: without

    def __post_init__(self) -> None:
        require(0 <= self.alpha < inf, "0 <= alpha < inf", alpha=self.alpha)
        require(self.adam_iterations >= 0, "adam_iterations >= 0", adam_iterations=self.adam_iterations)
        require(0 < self.adam_lr < inf, "0 < adam_lr < inf", adam_lr=self.adam_lr)
        require(self.lbfgs_iterations >= 0, "lbfgs_iterations >= 0", lbfgs_iterations=self.lbfgs_iterations)
        both = self.adam_iterations + self.lbfgs_iterations
        require(both >= 1, "at least one iteration of Adam or L-BFGS", iterations=both)


@final
class DLGStatistics(Attack):
    """Squared distance of gradients and of features' statistics, through an extractor of the attacker's own."""

    Settings = DLGStatisticsSettings

    @property
    def uses(self) -> Uses:
        """The uploaded generator."""
        return frozenset({"uploads"})

    @property
    def budget(self) -> Budget:
        """Both searches."""
        chosen = self.settings
        searches = [chosen.adam_iterations, chosen.lbfgs_iterations]
        return Budget(sum(searches), sum(map(bool, searches)), "lowest squared distance")

    def private(self, model: nn.Module, batch: int) -> Private:
        """Drawn anew."""
        return "stood in for"

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Search for all victims of one model at once."""
        victims: dict[int, StatisticsVictim] = {}
        groups: dict[int, list[tuple[int, Target]]] = {}
        for i, (seen, known, rng) in enumerate(zip(observations, knowledge, rngs, strict=True)):
            if known.labels is None:
                raise NotApplicable("it needs the labels: grant them")
            like = id(known.model)
            victims.setdefault(like, StatisticsVictim(known.model, self.settings.alpha))
            sent = {**mean_gradient(seen, known), **_statistics(known)}
            groups.setdefault(like, []).append((i, Target(sent, known.labels, rng)))
        found: dict[int, Reconstruction] = {}
        for like, members in groups.items():
            several = self._searched(victims[like], [target for _, target in members], knowledge[members[0][0]].box)
            found |= {i: Reconstruction(f.samples, f.matched) for (i, _), f in zip(members, several, strict=True)}
        return [found[i] for i in range(len(observations))]

    def _searched(self, victim: StatisticsVictim, targets: Sequence[Target], box: tuple[float, float]) -> list[Found]:
        chosen, descents = self.settings, list[Descent]()
        if chosen.adam_iterations:
            descents.append(AdamDescent(chosen.adam_iterations, chosen.adam_lr, schedule="constant"))
        if chosen.lbfgs_iterations:
            descents.append(LBFGS(chosen.lbfgs_iterations))
        several = []
        for descent in descents:  # from one start, so that each has what the other had
            own = [replace(target, rng=_same(target.rng)) for target in targets]
            recipe = Recipe(squared_distance, descent)
            several.append(invert(victim, own, recipe, box=box, compute=self.compute))
        return [min(found, key=lambda one: one.matched) for found in zip(*several, strict=True)]


def _statistics(known: Knowledge) -> Tensors:
    """Of features generated for the labels; nothing where no generator is shared."""
    model = known.model.model
    if not isinstance(model, GeneratingNet) or not any(name.startswith("generator.") for name in known.model.known):
        return {}
    assert known.labels is not None, "asked before"
    own = deepcopy(model)
    own.load_state_dict({**known.model.known, **(known.uploaded or {})}, strict=False)
    labels = known.labels.repeat(-(-_GENERATED // len(known.labels)))
    with torch.no_grad():
        made = own.eval().generator(noise(len(labels), torch_generator(0, "features")).to(labels.device), labels)
    return channel_statistics(made)


def _same(rng: torch.Generator) -> torch.Generator:
    """A generator that draws what this one would."""
    return torch.Generator().set_state(rng.get_state())
