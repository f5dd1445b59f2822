"""DLG with a random extractor and, where a generator is shared, the statistics of its features: FedCG's own attack.

Paper       Wu et al., "FedCG: Leverage Conditional GAN for Protecting Privacy and Maintaining Competitive Performance
            in Federated Learning", IJCAI 2022, arXiv 2111.08211, section 4.3 and Table 2, after Zhu et al. (DLG).
Minimises   || gradient of x' - observed gradient ||^2 + alpha sum_c ( (mean(E~(x')^c) - mu^c)^2 + (var(E~(x')^c) -
            sigma^c)^2 ) over x', with mu and sigma of each channel of features generated for the label,
by          Adam, step size 0.1, and L-BFGS, each from the same N(0, 1); the lower objective is kept.
Granted     the labels; the uploaded generator, where it was recorded, else the broadcast one.
Uses        the client's upload in the round, for its generator.
Static      by construction: E~ is the attacker's own random extractor and stays fixed, so the attack makes no use of
            the features in the classifier's gradient. Its score is low however much leaks; see attacks/fedcg.py.
Controls    Without a generator there is no second term (fedsplit); where all is shared it is DLG with labels (fedavg).
Departures  1. alpha, optimiser, iterations and state of the model are not in the paper, and there is no code.
            2. sigma is compared with a variance, as in the paper's formula, and so treated as one.
            3. Mean and variance are over all places and examples, and over generated features of all labels of a batch.
            4. Guesses are kept in the box. Local steps and defences are ignored.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import nn

from flfw.adversary.attack import Attack, AttackCost, NotApplicableError, Private, Uses
from flfw.bounds import BoundedSettings, NonNegativeFinite, NonNegativeInt, PositiveFinite
from flfw.errors import require
from flfw.inversion.matching import squared_distance
from flfw.inversion.private.extractor import StatisticsVictim, channel_statistics
from flfw.inversion.search import SearchConfig, SearchResult, SearchTarget, invert
from flfw.inversion.search_optimisers import LBFGS, AdamSearch, SearchOptimiser
from flfw.nets.conditional_gan import GeneratingNet, noise
from flfw.nets.net import Tensors
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient
from flfw.rng import torch_generator

_GENERATED = 512  # number of features for the statistics


@dataclass(frozen=True)
class DLGStatisticsSettings(BoundedSettings):
    """Settings of the two searches."""

    alpha: NonNegativeFinite = 0.1  # weight of the statistics
    adam_iterations: NonNegativeInt = 3000  # 0: without
    adam_lr: PositiveFinite = 0.1  # step size in deviations of the normalised input
    lbfgs_iterations: NonNegativeInt = 300  # steps of 20 evaluations; 0: without

    def __post_init__(self) -> None:
        super().__post_init__()
        both = self.adam_iterations + self.lbfgs_iterations
        require(both >= 1, "at least one iteration of Adam or L-BFGS", iterations=both)


@final
class DLGStatistics(Attack):
    """Squared distance of gradients and of features' statistics, through the attacker's own extractor."""

    Settings = DLGStatisticsSettings
    sampled = True

    @property
    def uses(self) -> Uses:
        """The uploaded generator."""
        return frozenset({"uploads"})

    @property
    def cost(self) -> AttackCost:
        """Iterations of both searches."""
        chosen = self.settings
        searches = [chosen.adam_iterations, chosen.lbfgs_iterations]
        return AttackCost(sum(searches), sum(map(bool, searches)), "lowest squared distance")

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return ``stood in for``: private tensors are drawn at random."""
        return "stood in for"

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Search for all victims of one model at once."""
        victims: dict[int, StatisticsVictim] = {}
        groups: dict[int, list[tuple[int, SearchTarget]]] = {}
        for i, (observation, known, rng) in enumerate(zip(observations, knowledge, rngs, strict=True)):
            if known.labels is None:
                raise NotApplicableError("it needs the labels: grant them")
            like = id(known.model)
            victims.setdefault(like, StatisticsVictim(known.model, self.settings.alpha))
            sent = {**mean_gradient(observation, known), **_statistics(known)}
            groups.setdefault(like, []).append((i, SearchTarget(sent, known.labels, rng)))
        results: dict[int, Reconstruction] = {}
        for like, members in groups.items():
            searched = self._searched(victims[like], [target for _, target in members], knowledge[members[0][0]].box)
            results |= {
                i: Reconstruction(f.samples, f.matching_loss) for (i, _), f in zip(members, searched, strict=True)
            }
        return [results[i] for i in range(len(observations))]

    def _searched(
        self, victim: StatisticsVictim, targets: Sequence[SearchTarget], box: tuple[float, float]
    ) -> list[SearchResult]:
        chosen, descents = self.settings, list[SearchOptimiser]()
        if chosen.adam_iterations:
            descents.append(AdamSearch(chosen.adam_iterations, chosen.adam_lr, schedule="constant"))
        if chosen.lbfgs_iterations:
            descents.append(LBFGS(chosen.lbfgs_iterations))
        runs = []
        for descent in descents:  # both from one start
            restarted = [replace(target, rng=torch.Generator().set_state(target.rng.get_state())) for target in targets]
            recipe = SearchConfig(squared_distance, descent)
            runs.append(invert(victim, restarted, recipe, box=box, compute=self.compute))
        return [min(candidates, key=lambda one: one.matching_loss) for candidates in zip(*runs, strict=True)]


def _statistics(knowledge: Knowledge) -> Tensors:
    """Compute statistics of features generated for the labels; empty where no generator is shared."""
    model = knowledge.model.model
    if not isinstance(model, GeneratingNet) or not any(name.startswith("generator.") for name in knowledge.model.known):
        return {}
    assert knowledge.labels is not None, "asked before"
    network = deepcopy(model)
    network.load_state_dict({**knowledge.model.known, **(knowledge.uploaded or {})}, strict=False)
    labels = knowledge.labels.repeat(-(-_GENERATED // len(knowledge.labels)))
    with torch.no_grad():
        made = network.eval().generator(noise(len(labels), torch_generator(0, "features")).to(labels.device), labels)
    return channel_statistics(made)
