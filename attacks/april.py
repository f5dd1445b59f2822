"""APRIL: the patches of an image from the gradient of a vision transformer's positions; closed form, or a search.

Paper       Lu et al., "APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers", CVPR 2022, arXiv
            2112.14087.
Needs       a vision transformer whose learnt positions are shared. ``way=closed_form`` also needs one example, one
            local step, and a first attention that reads z = patches E^T + e + positions directly and alone
            (``vit_plain``): no normalisation before it, no residual path beside it, fewer tokens than the width.

    G = dL/dpositions, W and dW = weights and gradient of queries, keys and values, stacked:
    G^T z = W^T dW                                      a linear system, by least squares; G = dL/dz for one example
    patches = (z - e - positions) (E^T)^+               exact where E has no fewer outputs than a patch has numbers

Minimises   1 - cos(gradients) + position * (1 - cos(gradients of the positions)) + tv * TV(guess), for ``way=search``,
by          Adam on the sign of the guess's gradient, along half a cosine, clamped to the box, from N(0, 1).
Granted     closed form: nothing but the observation. Search: the labels, unless ``labels`` says how to recover them.
Proof       the system has more equations than unknowns: where z leaves more than ``residual`` of W^T dW unexplained,
            the message is not such a gradient, and nothing is given. The truth is not used.
Adaptive    the search has a known mechanism inside its objective and unrolls local steps. The closed form does not; a
            common factor, as clipping makes it, cancels.
Departures  1. The paper's identity has one head; several share the same W, so that nothing changes.
            2. The search keeps IG's cosine over all tensors (the paper: squared distances), its sign and its prior,
               which falls to a thousandth in a second search; that counts if it halves the distance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from flfw.adversary.attack import AttackCost, Models, NotApplicableError
from flfw.adversary.gradient_matching import GradientMatching
from flfw.bounds import BoundedSettings, NonNegativeFinite, OpenShare, PositiveFinite, PositiveInt
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.fit import Fit
from flfw.inversion.matching import Distance, cosine_distance, gaussian_likelihood
from flfw.inversion.priors import neighbour_differences, total_variation, weighted
from flfw.inversion.search import Closing, SearchConfig, Stage
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets.net import Tensors
from flfw.nets.transformer import VisionTransformer, joined, patches
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient

_PROJECTION = "extractor.blocks.0.attention.query_key_value.weight"
_POSITION, _PATCH, _SHIFT = "extractor.position.weight", "extractor.patch.weight", "extractor.patch.bias"
_NEEDED = _POSITION, _PATCH, _SHIFT, _PROJECTION
_POSITIONS = "position.weight", "pos_embed"  # ends of the names in the networks of this project and of timm
_WEAKER, _NEARER = 1e-3, 0.5  # prior of the second search, and the distance after it below which it counts
_NEIGHBOURS = 1.0  # difference of neighbours in deviations of the normalised input, in the prior for known noise


@dataclass(frozen=True)
class APRILSettings(BoundedSettings):
    """The way, and the settings of the search."""

    way: Literal["closed_form", "search"] = "closed_form"  # the search: also for batches, and behind normalisation
    residual: OpenShare = 1e-3  # share of W^T dW that the closed form may leave unexplained
    iterations: PositiveInt = 1000  # Adam steps of the search
    lr: PositiveFinite = 0.1  # first step size in deviations of the normalised input
    tv: NonNegativeFinite = 1e-3  # weight of the total variation
    position: NonNegativeFinite = 10.0  # weight of the cosine distance of the positions' gradient
    restarts: PositiveInt = 1  # searches from different images
    labels: Literal["given", "idlg", "counts"] = "given"  # granted, or recovered (iDLG: of one example)
    searches: Literal["own", "both"] = "own"  # by sign without a mechanism, else by the gradient; both: each of the two


@final
class APRIL(GradientMatching):
    """Patches by a linear system, or images by a search that weighs the positions' gradient."""

    Settings = APRILSettings
    tuned_on = "digits 10, 12 and 40-47 of scikit-learn at 8 x 8 pixels (the search's weights)"

    @property
    def cost(self) -> AttackCost:
        """The budget from the settings; the closed form has no iterations."""
        if self._closed:
            return AttackCost(0, 1, "closed form, given where the linear system holds")
        searches = 1 + (self.settings.searches == "both")
        return AttackCost(self.settings.iterations, searches * self.settings.restarts, "lowest distance")

    @property
    def labels(self) -> str:
        """Source of the labels, from the settings; the closed form needs none."""
        if self._closed:
            return "not used"
        return "single" if self.settings.labels == "idlg" else self.settings.labels

    @property
    def models(self) -> Models:
        """Mechanisms of every kind in the search; none in the closed form, which takes one plain gradient."""
        return frozenset() if self._closed else super().models

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Read each image off its observation, or search for all images of one model at once."""
        if self._closed:
            return [
                self._read_off(observation, known) for observation, known in zip(observations, knowledge, strict=True)
            ]
        if any(
            not _of_positions(mean_gradient(observation, known))
            for observation, known in zip(observations, knowledge, strict=True)
        ):
            raise NotApplicableError("april needs the gradient of a transformer's learnt positions")
        return super().run(observations, knowledge, rngs)

    def recipes(
        self, knowledge: Knowledge, operator: Operator | DifferentiableDefence | None
    ) -> Sequence[SearchConfig]:
        """Add the search by the gradient's sign, or that by the gradient itself, if both are wanted."""
        usual = operator is None
        signs = (usual, not usual) if self.settings.searches == "both" else (usual,)
        return [self._searched(operator, signed) for signed in signs]

    def recipe(self, operator: Operator | DifferentiableDefence | None) -> SearchConfig:
        """Use two searches, the second under a weaker prior; known noise calls for a likelihood and its own prior."""
        return self._searched(operator, signed=operator is None)

    def _searched(self, operator: Operator | DifferentiableDefence | None, signed: bool) -> SearchConfig:
        chosen, noise = self.settings, None if operator is None else operator.noise
        if noise is not None:
            adam = AdamSearch(chosen.iterations, chosen.lr, signed, "cosine")
            near = neighbour_differences(_NEIGHBOURS)
            return SearchConfig(gaussian_likelihood(noise), adam, near, restarts=chosen.restarts)
        distance, smooth = weighing_positions(chosen.position), weighted((chosen.tv, total_variation))
        first, second = (
            AdamSearch(count, chosen.lr, signed, "cosine")
            for count in (chosen.iterations - chosen.iterations // 2, chosen.iterations // 2)
        )
        weaker = Closing((Stage(distance, second, smooth, _WEAKER),), _NEARER)
        return SearchConfig(
            distance, first, smooth, restarts=chosen.restarts, closing=(weaker,) * bool(second.iterations)
        )

    def objective(
        self, observation: Observation, knowledge: Knowledge, guesses: Sequence[Reconstruction], rng: torch.Generator
    ) -> list[Fit] | None:
        """Compute the share of the linear system that each guess leaves unexplained, or the search's objective."""
        if not self._closed:
            return super().objective(observation, knowledge, guesses, rng)
        sides, parts = _system(observation, knowledge), _parameters(knowledge)
        inputs = [patches(knowledge.model.inputs.normalise(guess.samples)).double()[0] for guess in guesses]
        entered = [cut @ parts[_PATCH].mT + parts[_SHIFT] + parts[_POSITION] for cut in inputs]
        return [Fit(value, value) for value in (unexplained(*sides, z.to(sides[0])) for z in entered)]

    @property
    def _closed(self) -> bool:
        return self.settings.way == "closed_form"

    def _read_off(self, observation: Observation, knowledge: Knowledge) -> Reconstruction:
        """Solve for the tokens and then for the pixels; not a number where the system does not hold."""
        sides, parts, inputs = _system(observation, knowledge), _parameters(knowledge), knowledge.model.inputs
        z = torch.linalg.lstsq(*sides, driver="gelsd").solution  # (T, d)
        share = unexplained(*sides, z)
        cut = (z - parts[_SHIFT] - parts[_POSITION]) @ torch.linalg.pinv(parts[_PATCH]).mT
        x = joined(cut[None], inputs.shape).float().to(inputs.mean) * inputs.std + inputs.mean
        within = share <= self.settings.residual
        return Reconstruction(x.clamp(*knowledge.box) if within else torch.full_like(x, torch.nan), share)


def weighing_positions(weight: float) -> Distance:
    """Return the cosine distance over all tensors plus ``weight`` times that over the positions alone."""

    def distance(simulated: Tensors, observed: Tensors) -> Tensor:
        alone = cosine_distance(_of_positions(simulated), _of_positions(observed))
        return cosine_distance(simulated, observed) + weight * alone

    return distance


def unexplained(left: Tensor, right: Tensor, z: Tensor) -> float:
    """Compute the share ||left z - right|| / ||right|| that tokens z (T, d) leave unexplained.

    Args:
        left: (d, T) the gradient of the positions, transposed.
        right: (d, d) W^T dW.
        z: (T, d).
    """
    return float((left @ z - right).norm() / right.norm().clamp_min(torch.finfo(right.dtype).tiny))


def _of_positions(gradient: Tensors) -> Tensors:
    return {name: value for name, value in gradient.items() if name.endswith(_POSITIONS)}


def _parameters(knowledge: Knowledge) -> Tensors:
    """Return the known tensors in float64, on the CPU: only there least squares copes with lost rank."""
    return {name: value.detach().double().cpu() for name, value in knowledge.model.known.items() if name in _NEEDED}


def _system(observation: Observation, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Return both sides G^T (d, T) and W^T dW (d, d) of the system, in float64.

    Raises:
        NotApplicableError: the system does not hold for such a network or message, or would not determine the image.
    """
    network, parts = getattr(knowledge.model.model, "extractor", None), _parameters(knowledge)
    gradient = {
        name: value.double().cpu() for name, value in mean_gradient(observation, knowledge).items() if name in _NEEDED
    }
    shared = len(parts) == len(_NEEDED) and {_POSITION, _PROJECTION} <= gradient.keys()
    if not isinstance(network, VisionTransformer) or not network.block(0).plain or not shared:
        required = "a shared first attention that reads the tokens directly, as in vit_plain, without normalisation"
        raise NotApplicableError(f"april's closed form needs {required}; otherwise set april.way=search")
    if knowledge.batch != 1 or knowledge.steps != 1:
        got = f"batch={knowledge.batch}, steps={knowledge.steps}"
        raise NotApplicableError(
            f"april's closed form needs one example and one local step, got {got}; set april.way=search"
        )
    (tokens, width), numbers = parts[_POSITION].shape, parts[_PATCH].shape[1]
    if tokens >= width or numbers > width:
        required = f"fewer patches than {width}, the width, and at most so many numbers in each"
        raise NotApplicableError(
            f"april's closed form needs {required}, got {tokens} of {numbers}; set april.way=search"
        )
    return gradient[_POSITION].mT, parts[_PROJECTION].mT @ gradient[_PROJECTION]
