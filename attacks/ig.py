"""IG, "Inverting Gradients": search for an image whose gradient has the direction of the observed one.

Paper       Geiping et al., "Inverting Gradients - How easy is it to break privacy in federated learning?",
            NeurIPS 2020, arXiv 2003.14053.
Minimises   1 - cos(gradient of guess, observed gradient) + tv * TV(guess)
by          Adam on the sign of the guess's gradient, step size 0.1 (a tenth at 3/8, 5/8, 7/8 of the iterations),
            clamped to the box after every step, from N(0, 1) in normalised units.
Granted     the labels, unless ``labels`` says how they are recovered.
Adaptive    a known mechanism stands inside the objective; for several local steps the weights' change is matched, with
            the steps unrolled (the paper's section 6.1); see departure 4.
Unknown     private tensors of the model (a head, an embedding) are searched for together with the image, from the
            attacker's own initialisation, as in the HyperFL paper's attack on HyperFL. This ignores the architecture's
            leakage: against such methods the attack counts as static.
Departures  1. 1,000 iterations by default (inversefed: 4,800; breaching: 24,000; the HyperFL paper: 10,000).
            2. TV weight 1e-6, the HyperFL paper's; inversefed has 0.1, breaching 0.2.
            3. The restart with the lowest cosine distance is kept, as in the paper; the default is 1. Within one, the
               guess with the lowest objective is kept, not the last.
            4. With a known mechanism it follows the gradient, not its sign, in three searches, each from the end of
               the one before and along half a cosine, with a falling TV weight: 1e-2, 1e-3, 1e-5. With known noise, it
               uses half of its iterations for these, as if there were no defence, and the other half for the negative
               log-likelihood plus a Laplace prior on the differences of neighbours, of one deviation, both in nats.
               Chosen on MNIST's training images 0-5 and the digits 0-5; docs/adaptations.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, final

from flfw.adversary.attack import Budget
from flfw.adversary.gradient_matching import GradientMatching
from flfw.errors import require
from flfw.inversion.automatic import Automatic
from flfw.inversion.descent import AdamDescent
from flfw.inversion.matching import cosine_distance, gaussian_likelihood
from flfw.inversion.priors import Prior, neighbour_differences, total_variation, weighted
from flfw.inversion.search import Recipe, Stage
from flfw.victims.operator import Operator

_NEIGHBOURS = 1.0  # difference of neighbours in deviations of the normalised input, in the prior for known noise
_FALLING = (1000.0, 100.0, 1.0)  # weight of the total variation in the searches with a known mechanism, over the last


@dataclass(frozen=True)
class IGSettings:
    """Settings of the search."""

    iterations: int = 1000  # Adam steps, >= 1
    lr: float = 0.1  # first step size in deviations of the normalised input, > 0
    tv: float = 1e-6  # weight of the total variation, >= 0
    tv_told: float = 1e-2  # the first weight with a known mechanism; it falls to a thousandth, >= 0
    signed: bool = True  # follow the sign of the gradient; the HyperFL paper does not
    restarts: int = 1  # searches from different images (unknown tensors start alike), >= 1
    labels: Literal["given", "idlg", "counts"] = "given"  # granted, or recovered (iDLG: of one example)

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations >= 1", iterations=self.iterations)
        require(0 < self.lr < inf, "0 < lr < inf", lr=self.lr)
        require(0 <= self.tv < inf, "0 <= tv < inf", tv=self.tv)
        require(0 <= self.tv_told < inf, "0 <= tv_told < inf", tv_told=self.tv_told)
        require(self.restarts >= 1, "restarts >= 1", restarts=self.restarts)


@final
class IG(GradientMatching):
    """Search by the cosine distance."""

    Settings = IGSettings
    tuned_on = "MNIST training images 0-5 and digits 0-5 of scikit-learn (the schedule when told of a defence)"

    @property
    def budget(self) -> Budget:
        """The budget from the settings."""
        return Budget(self.settings.iterations, self.settings.restarts, "lowest cosine distance")

    @property
    def labels(self) -> str:
        """Source of the labels, from the settings."""
        return "single" if self.settings.labels == "idlg" else self.settings.labels

    def recipe(self, mechanism: Operator | Automatic | None) -> Recipe:
        """Use the published search; with a known mechanism less of the gradient is left, so the prior leads first."""
        chosen, restarts = self.settings, self.settings.restarts
        if mechanism is None:
            published, prior = (
                AdamDescent(chosen.iterations, chosen.lr, chosen.signed),
                weighted((chosen.tv, total_variation)),
            )
            return Recipe(cosine_distance, published, prior, restarts=restarts)
        smooth = weighted((chosen.tv_told / _FALLING[0], total_variation))
        if mechanism.noise is None:
            *opening, last = self._falling(chosen.iterations, smooth, through=True)
            return Recipe(cosine_distance, last.descent, smooth, restarts=restarts, opening=tuple(opening))
        last = AdamDescent(max(1, chosen.iterations // 2), chosen.lr, schedule="cosine")
        opening = self._falling(chosen.iterations - last.iterations, smooth, through=False)
        likely, near = gaussian_likelihood(mechanism.noise), neighbour_differences(_NEIGHBOURS)
        return Recipe(likely, last, near, restarts=restarts, opening=opening)

    def _falling(self, iterations: int, prior: Prior, through: bool) -> tuple[Stage, ...]:
        """Split the iterations into searches under a prior with a falling weight; the last always gets some."""
        count = len(_FALLING)
        each = [(iterations + i) // count for i in range(count)]
        return tuple(
            Stage(cosine_distance, AdamDescent(n, self.settings.lr, schedule="cosine"), prior, strength, through)
            for n, strength in zip(each, _FALLING, strict=True)
            if n
        )
