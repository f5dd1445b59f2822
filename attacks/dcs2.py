"""DCS^2: separate the examples' features from the concealed ones', then search for the images by their features.

Paper       none has this attack. Wu et al., AAAI 2024, arXiv 2209.05724, attack their defence as if it were not there.
Needs       a fully connected last layer with a bias, whose gradient is sent, above a known extractor; few examples:
            with all B sensitive 2 B < K, four for ten classes.
Knows       the recipe of clients/defences/dcs2.py: the mixture, the divisor, the sensitive classes. Neither the
            concealed samples nor their labels, nor public data; nor, of last:M and at:P,P, which examples these are:
            each choice is tried.
Granted     the examples' labels, and that the probes after earlier rounds were of the same examples.

    dL/dW = A F with F = [f_c; f_s], and A a function of F      to rounding: `flfw.inversion.closed_form.concealed`
    minimise over x: distance(E(x), f_s) + tv * TV(x)           `flfw.inversion.private.extractor`
        over E(x) and f_s of this and of earlier rounds, one after another

A gradient whose rank is the number of examples has no concealed sample in it, as where the defence is not used: the
same equations then give the examples' features. On a confident network some samples are lost in rounding, and
features are off by as much as the rank is unclear: then nothing is given, or features with an error of percents.
Departures  1. The gradients of the extractor are not used: they are those of all samples. A search for all images
               at once by all gradients took six times as long, and came less close than the features alone. Of
               larger batches, which cannot be separated, it came no closer than a search that knows nothing.
            2. Mixtures of 0 or 1 are refused.
            3. The prior's weight is that of the attack fedcg, chosen on MNIST's training images 0-3.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from flfw.adversary.attack import Attack, AttackCost, NotApplicableError, Private, Uses
from flfw.bounds import BoundedSettings, NonNegativeFinite, NonNegativeInt, OpenShare, PositiveInt
from flfw.data.sensitive import SensitiveSamples
from flfw.inversion.closed_form.concealed import SOLVED, choices, rank, separate, solvable
from flfw.inversion.closed_form.linear import CLASSIFIER, EXTRACTOR, ExtractorVictim, features_shape, read_features
from flfw.inversion.private.extractor import by_features, side_by_side
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient

_RELATIVE, _ABSOLUTE = 1e-4, 1e-6  # error of the bias's gradient of one undefended example; float32 leaves 1e-7
_MOST = 50  # choices of sensitive examples that are tried

_Message: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Gradients of the last layer's weight and bias, these two, and the labels."""


@dataclass(frozen=True)
class DCS2InversionSettings(BoundedSettings):
    """Settings of the separation and the search."""

    mixture: OpenShare = 0.7  # lambda of the recipe
    sensitive: str = "all"  # examples of the recipe that have a concealed sample, as the defence's setting
    starts: PositiveInt = 300  # guessed, then random; four times as many if no solution is found
    separation_iterations: PositiveInt = 800  # by Adam, of the random starts
    search_iterations: PositiveInt = 8000  # steps of the search for the image
    earlier: NonNegativeInt = 3  # messages of the last so many audited rounds that are joined to a round's own
    tv: NonNegativeFinite = 1e-2  # first weight of the total variation; it falls to a thousandth

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.samples

    @property
    def samples(self) -> SensitiveSamples:
        """Rule for the sensitive examples."""
        return SensitiveSamples.parse(self.sensitive)


@final
class DCS2Inversion(Attack):
    """Inversion of a mixture of sensitive and concealed samples."""

    Settings = DCS2InversionSettings
    against = "dcs2"
    tuned_on = "MNIST training images 0-3 (the weight of the total variation)"

    @property
    def cost(self) -> AttackCost:
        """The budget of the search for the image; the separation is not one of its iterations."""
        return AttackCost(self.settings.search_iterations, 1, "least error of the equations")

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return ``searched for``: a private tensor would have to be known."""
        return "searched for"

    def unused(self, uploads: Sequence[str], knows_defence: bool) -> str:
        """Name the extractor's gradient, where it is sent."""
        return "the gradient of the extractor" * any(name.startswith(f"{EXTRACTOR}.") for name in uploads)

    @property
    def uses(self) -> Uses:
        """The answers after earlier rounds, as far as the settings join them."""
        return frozenset({"earlier"}) if self.settings.earlier else frozenset()

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Separate each message, and search for the images of the same models and batch size together."""
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        features = self._all_features(observations, knowledge, rngs)
        results = {i: _nothing(known) for i, known in enumerate(knowledge)}
        joined: dict[int, list[tuple[Tensor, Knowledge]]] = {}
        for i, known in enumerate(knowledge):
            if (separated := features[i]) is not None:
                joined[i] = [(separated, known), *self._of_earlier_rounds(known, rngs[i])]
                groups[known.batch, *(id(one.model) for _, one in joined[i])].append(i)
        for members in groups.values():
            rounds = [one.model for _, one in joined[members[0]]]
            victims = [ExtractorVictim(one.model, one.known, one.inputs) for one in rounds]
            victim = victims[0] if len(victims) == 1 else side_by_side(victims)
            wanted = [_in_a_row([one for one, _ in joined[i]]) for i in members]
            limits = {"iterations": self.settings.search_iterations, "tv": self.settings.tv}
            box, rows = knowledge[members[0]].box, [rngs[i] for i in members]
            images = by_features(victim, wanted, rows, box, compute=self.compute, **limits)
            results |= {
                i: Reconstruction(one.samples, one.matching_loss) for i, one in zip(members, images, strict=True)
            }
        return [results[i] for i in range(len(observations))]

    def _of_earlier_rounds(self, knowledge: Knowledge, rng: torch.Generator) -> list[tuple[Tensor, Knowledge]]:
        """Return the same examples' features in earlier rounds; none if two labels are equal: their order is open."""
        assert knowledge.labels is not None, "they are granted"
        if len(knowledge.labels.unique()) < knowledge.batch or not self.settings.earlier:
            return []
        last = knowledge.earlier[-self.settings.earlier :]
        features = [(self._or_none(observation, before, rng), before) for observation, before in last]
        return [(one, before) for one, before in features if one is not None]

    def _all_features(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Tensor | None]:
        """Return the features of each message; None: it is no mixture of this recipe, or not applicable.

        Raises:
            NotApplicableError: no message is; the reason is the first one's.
        """
        features: list[Tensor | None] = []
        refused: list[NotApplicableError] = []
        for case in zip(observations, knowledge, rngs, strict=True):
            try:
                features.append(self._features(*case))
            except NotApplicableError as reason:
                refused.append(reason)
                features.append(None)
        if refused and len(refused) == len(features):
            raise refused[0]
        return features

    def _or_none(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor | None:
        try:
            return self._features(observation, knowledge, rng)
        except NotApplicableError:
            return None

    def _features(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor | None:
        """Return the features (B, ...) of the examples; None: the message is no mixture of this recipe."""
        weight, bias = _last_layer(knowledge)
        gradient, labels = mean_gradient(observation, knowledge), knowledge.labels
        assert labels is not None, "they are granted"
        g, slope = gradient[f"{CLASSIFIER}.weight"], gradient[f"{CLASSIFIER}.bias"]
        if not bool(g.any()) or not bool(torch.isfinite(g).all() and torch.isfinite(slope).all()):
            return None
        joint, count = rank(g), len(labels)
        shape = features_shape(knowledge.model.model, knowledge.model.inputs)
        if joint == count == 1:
            features = read_features(g, slope)
            if _explains(features, slope, weight, bias, labels):
                return features.view(1, *shape)
        undefended = torch.zeros_like(labels, dtype=torch.bool)
        masks = [undefended] if joint == count > 1 else self._masks(labels, joint - count)
        hidden = int(masks[0].sum()) if masks else 0
        if not solvable(count, hidden, len(bias)):
            raise NotApplicableError(
                f"{count} examples and {hidden} concealed ones are too many for {len(bias)} classes"
            )
        if not masks or joint != count + hidden:
            return None
        return self._separated((g, slope, weight, bias, labels), masks, rng, shape)

    def _separated(
        self, message: _Message, masks: Sequence[Tensor], rng: torch.Generator, shape: tuple[int, ...]
    ) -> Tensor | None:
        """Return the features by the mask of sensitive examples that explains the message best."""
        chosen = self.settings
        for starts in (chosen.starts, 4 * chosen.starts):
            options = {"mixture": chosen.mixture, "starts": starts, "steps": chosen.separation_iterations}
            best = min([separate(*message, mask, rng, **options) for mask in masks], key=lambda result: result.error)
            if best.error < SOLVED:
                return best.examples.view(-1, *shape)
        return None

    def _masks(self, labels: Tensor, hidden: int) -> list[Tensor]:
        """Return the masks (B,) of the examples that the recipe may have concealed.

        ``last:M`` and ``at:P,P`` depend on an order and on positions that an attacker does not have: every choice is
        possible.

        Args:
            labels: (B,) of the examples.
            hidden: number of concealed samples by the message's rank, where the recipe leaves it open.

        Raises:
            NotApplicableError: more than `_MOST` choices are possible.
        """
        rule, count = self.settings.samples, len(labels)
        if rule.positions is None and (rule.last is None or rule.last >= count):
            return [rule.mask(labels, labels)]
        hidden = rule.last or hidden
        if not 0 < hidden <= count:
            return []
        if (number := comb(count, hidden)) > _MOST:
            raise NotApplicableError(
                f"{number} choices of {hidden} sensitive examples of {count}; it tries up to {_MOST}"
            )
        return choices(labels, hidden)


def _explains(features: Tensor, slope: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> bool:
    """Return whether one example with these features has the bias's gradient p - e; else it is a mixture's."""
    scores = weight.double() @ features.double() + bias.double()
    error = slope.double() - (scores.softmax(0) - one_hot(labels, len(bias))[0])
    return float(error.norm()) <= _RELATIVE * float(slope.norm()) + _ABSOLUTE


def _last_layer(knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the classifier, one known fully connected layer above a known extractor."""
    model, held = knowledge.model.model, knowledge.model.known
    parts = dict(model.named_children())
    if not isinstance(parts.get(CLASSIFIER), nn.Linear) or EXTRACTOR not in parts:
        raise NotApplicableError("it needs a network that ends in one fully connected layer")
    names = [f"{EXTRACTOR}.{name}" for name, _ in parts[EXTRACTOR].named_parameters()]
    needed = [*names, f"{CLASSIFIER}.weight", f"{CLASSIFIER}.bias"]
    if any(name not in held for name in needed) or any(name not in knowledge.model.shared for name in needed[-2:]):
        raise NotApplicableError("it needs a known extractor, and the gradient of a classifier with a bias")
    return held[f"{CLASSIFIER}.weight"], held[f"{CLASSIFIER}.bias"]


def _in_a_row(features: Sequence[Tensor]) -> Tensor:
    """Return one round's features as they are, and those of several as rows (B, ...)."""
    return features[0] if len(features) == 1 else torch.cat([one.flatten(1) for one in features], 1)


def _nothing(knowledge: Knowledge) -> Reconstruction:
    return Reconstruction(torch.full((knowledge.batch, *knowledge.model.inputs.shape), torch.nan))
