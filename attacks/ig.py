"""IG, "Inverting Gradients": search for an image whose gradient has the direction of the observed one.

Paper       Geiping et al., "Inverting Gradients - How easy is it to break privacy in federated learning?",
            NeurIPS 2020, arXiv 2003.14053.
Minimises   1 - cos(gradient of guess, observed gradient) + tv * TV(guess)
by          Adam on the sign of the guess's gradient, step size 0.1, clamped to the box after every step, from N(0, 1)
            in normalised units. The paper: one search, the step size divided by 10 after 3/8, 5/8, 7/8 of them, as
            ``schedule = "constant"`` does. By default four; see departure 2.
Granted     the labels, unless ``labels`` says how they are recovered.
Adaptive    a known mechanism stands inside the objective; for several local steps the weights' change is matched, with
            the steps unrolled (the paper's section 6.1); see departure 4.
Unknown     private tensors of the model (a head, an embedding) are searched for together with the image, from the
            attacker's own initialisation, as in the HyperFL paper's attack on HyperFL; ``private=random`` keeps them at
            it, which is weaker. Both ignore the architecture's leakage: against such methods the attack is static.
Start       ``start=class_mean`` begins at the mean public image of the label, as the attack that Wu et al. (AAAI 2024)
            call adaptive; nothing else changes.
Prior       ``prior=flow`` learns a flow from the public images (flow matching: Lipman et al., ICLR 2023) and searches
            three times: as above; with a step towards the flow's denoiser every ``flow_every`` steps (plug and play);
            and from the end of a flow that the gradient guides (after Chung et al., ICLR 2023). The result with the
            lowest cosine distance is kept, so that the prior does not win by plausibility.
Searches    ``searches=both`` runs the search of an attacker who knows of no mechanism and that of one who knows it,
            whatever is known, and keeps the result with the lowest distance. A matrix does so: then clients with and
            without a defence meet the same searches.
Departures  1. 1,000 iterations by default (inversefed: 4,800; breaching: 24,000; the HyperFL paper: 10,000).
            2. TV weight 0.2, as breaching's (inversefed: 0.1; the HyperFL paper: 1e-6), for half of the iterations. A
               strong prior guides the search but blurs; a weak one loses batches. So two searches with 0.02 and 0.002
               (0.15 of the iterations each; first steps of a half and a fifth) start from its result. Theirs is kept
               if the cosine distance at least halves; then that of one with 1e-6 (0.2 of them), if the distance falls
               to a fifth: there the gradient determines the data. All go along half a cosine.
            3. The restart with the lowest cosine distance is kept, as in the paper; the default is 1. Within one, the
               guess with the lowest objective is kept, not the last.
            4. With a known mechanism it follows the gradient, not its sign, in three such searches, of one length and
               step size, with the weights 1e-2, 1e-3 and 1e-5. With known noise, it uses half of its iterations for
               these, as if there were no defence, and the other half for the negative log-likelihood plus a Laplace
               prior on the differences of neighbours, of one deviation, both in nats; docs/adaptations.md. Against
               replaced entries this half is split: the residuals' magnitudes, then a Cauchy likelihood.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from flfw.adversary.attack import AttackCost, NotApplicableError, Private, Uses
from flfw.adversary.gradient_matching import GradientMatching
from flfw.bounds import BoundedSettings, NonNegativeFinite, PositiveFinite, PositiveInt
from flfw.errors import require
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.flow import FlowSettings, PublicImages, flow_recipes, trained_flow
from flfw.inversion.matching import cosine_distance, gaussian_likelihood
from flfw.inversion.outliers import AsOutliers, cauchy_likelihood
from flfw.inversion.priors import Prior, neighbour_differences, total_variation, weighted
from flfw.inversion.search import Closing, SearchConfig, Stage
from flfw.inversion.search_optimisers import AdamSearch
from flfw.recording.observation import Examples, Knowledge

_NEIGHBOURS = 1.0  # difference of neighbours in deviations of the normalised input, in the prior for known noise


@dataclass(frozen=True)
class _Searches:
    """Searches one after the other, each from the end of the one before, along half a cosine.

    Attributes:
        weights: weight of the total variation in each, over that of the recipe.
        shares: of the iterations.
        steps: first step size in each, over ``lr``.
    """

    weights: tuple[float, ...]
    shares: tuple[int, ...]
    steps: tuple[float, ...]

    def iterations(self, total: int) -> list[int]:
        """Split so many iterations by the shares; the last search always gets some."""
        ends = [total * part // sum(self.shares) for part in accumulate(self.shares)]
        return [end - before for before, end in pairwise([0, *ends])]


_CLOSING = _Searches((0.1, 0.01, 5e-6), (3, 3, 4), (0.5, 0.2, 1.0))  # half of the iterations
_NEARER, _MUCH_NEARER = 0.5, 0.2  # distance after two of them, and after the last, below which they count
_TOLD = _Searches((1000.0, 100.0, 1.0), (1, 1, 1), (1.0, 1.0, 1.0))  # weights over the last one's


@dataclass(frozen=True)
class _SearchSettings(BoundedSettings):
    """Settings of the search."""

    iterations: PositiveInt = 1000  # Adam steps
    lr: PositiveFinite = 0.1  # first step size in deviations of the normalised input
    tv: NonNegativeFinite = 0.2  # weight of the total variation; if it falls, the first one
    schedule: Literal["falling", "constant"] = "falling"  # of that weight; constant: one search, as published
    tv_told: NonNegativeFinite = 1e-2  # the first weight with a known mechanism; it falls to a thousandth
    signed: bool = True  # follow the sign of the gradient; the HyperFL paper does not
    restarts: PositiveInt = 1  # searches from different images (unknown tensors start alike)
    labels: Literal["given", "idlg", "counts"] = "given"  # granted, or recovered (iDLG: of one example)
    start: Literal["normal", "class_mean"] = "normal"  # first guess; class_mean: of public data, by the labels
    private: Literal["searched", "random"] = "searched"  # private tensors: searched for, or left at random values
    prior: Literal["tv", "flow"] = "tv"  # the total variation, or beside it a flow that is learnt from public images
    searches: Literal["own", "both"] = "own"  # that of what is known, or those without and with a known mechanism

    def __post_init__(self) -> None:
        super().__post_init__()
        once = self.start == "normal" or self.restarts == 1
        require(once, "restarts=1 with start=class_mean, as all would start alike", restarts=self.restarts)
        noise = self.start == "normal" or self.prior == "tv"
        require(noise, "start=normal with prior=flow, whose guided search starts from noise", start=self.start)


@dataclass(frozen=True)
class IGSettings(FlowSettings, _SearchSettings):
    """Settings of the search, and of the flow that may be its prior."""


@final
class IG(GradientMatching):
    """Search by the cosine distance."""

    numbers: ClassVar[bool] = True
    Settings = IGSettings
    tuned_on = (
        "MNIST and CIFAR-10 training images from 20000 on (the falling weight); MNIST training images 0-5 and digits "
        "0-5 of scikit-learn (the schedule when told of a defence); Fashion-MNIST test images 8000-9999 (the flow)"
    )

    @property
    def cost(self) -> AttackCost:
        """The budget from the settings; the flow's Euler steps come on top."""
        searches = (1 + (self.settings.searches == "both")) + 2 * (self.settings.prior == "flow")
        return AttackCost(self.settings.iterations, searches * self.settings.restarts, "lowest cosine distance")

    @property
    def labels(self) -> str:
        """Source of the labels, from the settings."""
        return "single" if self.settings.labels == "idlg" else self.settings.labels

    @property
    def uses(self) -> Uses:
        """Public data, where the search starts from their means or has a flow as its prior."""
        uses_them = self.settings.start == "class_mean" or self.settings.prior == "flow"
        return frozenset({"public"}) if uses_them else frozenset()

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return the treatment of private tensors, from the settings."""
        return "searched for" if self.settings.private == "searched" else "guessed"

    def first_guess(self, knowledge: Knowledge, labels: Tensor | None) -> Tensor | None:
        """Return the mean public example of each label, or of all labels where a label has none."""
        if self.settings.start == "normal":
            return None
        public = knowledge.public
        if public is None or labels is None or not len(public.labels):
            raise NotApplicableError("start=class_mean needs public data")
        return knowledge.model.inputs.normalise(torch.stack([_mean_example(public, int(label)) for label in labels]))

    def recipes(
        self, knowledge: Knowledge, operator: Operator | DifferentiableDefence | None
    ) -> Sequence[SearchConfig]:
        """Add the other search, if both are wanted, and two with the flow, where it is the prior, trained once."""
        plain, inputs, public = self.recipe(operator), knowledge.model.inputs, knowledge.public
        both = self.settings.searches == "both"
        wanted = [plain, *([self._search(operator, by_gradient=operator is None)] if both else [])]
        if self.settings.prior == "tv":
            return wanted
        if public is None or not len(public.labels):
            raise NotApplicableError("prior=flow needs public data")
        if len(inputs.shape) != 3:
            raise NotApplicableError("prior=flow needs images, got rows")
        images = PublicImages.of(public.samples, public.labels)
        velocity = trained_flow(images, knowledge.model.classes, self.settings.training)
        smooth = IG(replace(self.settings, tv=self.settings.flow_tv)).recipe(operator)
        return [*wanted, *flow_recipes(smooth, velocity, inputs, self.settings)]

    def recipe(self, operator: Operator | DifferentiableDefence | None) -> SearchConfig:
        """Use searches whose prior falls: by the sign of the gradient, or with a known mechanism by the gradient."""
        return self._search(operator, by_gradient=operator is not None)

    def _search(self, operator: Operator | DifferentiableDefence | None, by_gradient: bool) -> SearchConfig:
        """Return the search by the gradient, or the one by its sign; known noise ends either alike."""
        search, chosen = self._by_gradient if by_gradient else self._by_sign, self.settings
        fit_unknown = chosen.private == "searched"
        if operator is None or operator.noise is None:
            return replace(search(chosen.iterations), fit_unknown=fit_unknown)
        last = AdamSearch(max(1, chosen.iterations // 2), chosen.lr, schedule="cosine")
        before = chosen.iterations - last.iterations
        opening = tuple(replace(stage, through=False) for stage in (search(before).stages if before else ()))
        likely, near = gaussian_likelihood(operator.noise), neighbour_differences(_NEIGHBOURS)
        if isinstance(operator, AsOutliers) and last.iterations > 1:
            first = AdamSearch(last.iterations // 2, chosen.lr, schedule="cosine")
            last = AdamSearch(last.iterations - first.iterations, chosen.lr, schedule="cosine")
            likely, opening = cauchy_likelihood, (*opening, Stage(likely, first, near))
        return SearchConfig(likely, last, near, restarts=chosen.restarts, opening=opening, fit_unknown=fit_unknown)

    def _by_sign(self, iterations: int) -> SearchConfig:
        chosen, smooth = self.settings, weighted((self.settings.tv, total_variation))
        if chosen.schedule == "constant":
            published = AdamSearch(iterations, chosen.lr, chosen.signed)
            return SearchConfig(cosine_distance, published, smooth, restarts=chosen.restarts)
        rest = iterations // 2
        first = AdamSearch(iterations - rest, chosen.lr, chosen.signed, "cosine")
        return SearchConfig(
            cosine_distance, first, smooth, restarts=chosen.restarts, closing=self._closing(rest, smooth)
        )

    def _by_gradient(self, iterations: int) -> SearchConfig:
        smooth = weighted((self.settings.tv_told / _TOLD.weights[0], total_variation))
        *opening, last = self._stages(_TOLD, iterations, smooth)
        return SearchConfig(
            cosine_distance, last.descent, smooth, restarts=self.settings.restarts, opening=tuple(opening)
        )

    def _closing(self, iterations: int, prior: Prior) -> tuple[Closing, ...]:
        """Return the searches under weaker priors, in two groups that count or not."""
        stages = self._stages(_CLOSING, iterations, prior, signed=self.settings.signed)
        groups = (stages[:-1], _NEARER), (stages[-1:], _MUCH_NEARER)
        return tuple(Closing(group, below) for group, below in groups if group)

    def _stages(self, searches: _Searches, iterations: int, prior: Prior, *, signed: bool = False) -> tuple[Stage, ...]:
        """Return the searches that get any of the iterations."""
        each = zip(searches.iterations(iterations), searches.weights, searches.steps, strict=True)
        return tuple(
            Stage(cosine_distance, AdamSearch(n, step * self.settings.lr, signed, "cosine"), prior, strength)
            for n, strength, step in each
            if n
        )


def _mean_example(public: Examples, label: int) -> Tensor:
    chosen = public.labels == label
    return public.samples[chosen if bool(chosen.any()) else slice(None)].mean(0)
