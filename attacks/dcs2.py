"""DCS^2: separate the sensitive sample's features from the concealed one's, then search for its image by its features.

Paper       none has this attack. Wu et al., AAAI 2024, arXiv 2209.05724, attack their defence as if it were not there.
Needs       a fully connected last layer with a bias, whose gradient is sent, above a known extractor; one example.
Knows       the recipe of clients/defences/dcs2.py: two samples, the mixture and the divisor. Neither the concealed
            sample nor its label, nor public data.
Granted     the sensitive example's label.

    dL/dW = A F with F = [f_c; f_s], and A a function of F       3K equations, five unknowns: solved to rounding
    minimise over x: distance(E(x), f_s) + tv * TV(x)            `flfw.inversion.private.known_extractor`

A gradient of rank one has no concealed sample in it, as where the defence is not used: f_s is then read off.
Departures  1. The gradients of the extractor are not used: they are those of both samples. A search for both images
               at once by all gradients took six times as long, and came less close than the features alone.
            2. Several examples in a message, and mixtures of 0 or 1, are refused.
            3. The prior's weight is that of the attack fedcg, chosen on MNIST's training images 0-3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from flfw.adversary.attack import Attack, Budget, NotApplicable, Private
from flfw.adversary.observation import Knowledge, Observation, Reconstruction, mean_gradient
from flfw.errors import require
from flfw.inversion.closed_form.concealed import separate
from flfw.inversion.closed_form.features import CLASSIFIER, EXTRACTOR, ExtractorVictim, features_shape, read_features
from flfw.inversion.private.known_extractor import by_features

_RANK_ONE = 1e-5  # second singular value over the first one, below which there is one sample; float32 has 1e-7
_SOLVED = 1e-3  # error of the equations above which the message is no such mixture


@dataclass(frozen=True)
class DCS2InversionSettings:
    """Settings of the separation and the search."""

    mixture: float = 0.7  # lambda of the recipe, in (0, 1)
    starts: int = 100  # of the separation, for each label that the concealed sample may have, >= 1
    separation_iterations: int = 600  # by Adam, before Gauss-Newton, >= 1
    search_iterations: int = 8000  # steps of the search for the image, >= 1
    tv: float = 1e-2  # first weight of the total variation; it falls to a thousandth; >= 0

    def __post_init__(self) -> None:
        require(0 < self.mixture < 1, "0 < mixture < 1", mixture=self.mixture)
        for name in ("starts", "separation_iterations", "search_iterations"):
            require(getattr(self, name) >= 1, f"{name} >= 1", **{name: getattr(self, name)})
        require(self.tv >= 0, "tv >= 0", tv=self.tv)


@final
class DCS2Inversion(Attack):
    """Inversion of a mixture of a sensitive and a concealed sample."""

    Settings = DCS2InversionSettings
    tuned_on = "MNIST training images 0-3 (the weight of the total variation)"

    @property
    def budget(self) -> Budget:
        """The budget of the search for the image; the separation has its own error as a proof."""
        return Budget(self.settings.search_iterations, 1, "least error of the equations")

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return ``searched for``: a private tensor would have to be known."""
        return "searched for"

    def unused(self, uploads: Sequence[str], knows_defence: bool) -> str:
        """Name the extractor's gradient, where it is sent."""
        return "the gradient of the extractor" * any(name.startswith(f"{EXTRACTOR}.") for name in uploads)

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Separate each message, and search for the images of one model together."""
        groups: dict[int, list[int]] = defaultdict(list)
        features = [self._features(*case) for case in zip(observations, knowledge, rngs, strict=True)]
        results = {i: _nothing(known) for i, known in enumerate(knowledge)}
        for i, known in enumerate(knowledge):
            if features[i] is not None:
                groups[id(known.model)].append(i)
        for members in groups.values():
            first = knowledge[members[0]]
            victim = ExtractorVictim(first.model.model, first.model.known, first.model.inputs)
            wanted = [one for i in members if (one := features[i]) is not None]
            limits = {"iterations": self.settings.search_iterations, "tv": self.settings.tv}
            images = by_features(victim, wanted, [rngs[i] for i in members], first.box, compute=self.compute, **limits)
            results |= {i: Reconstruction(one.samples, one.matched) for i, one in zip(members, images, strict=True)}
        return [results[i] for i in range(len(observations))]

    def _features(self, seen: Observation, known: Knowledge, rng: torch.Generator) -> Tensor | None:
        """Return the features (1, ...) of the sensitive sample; None: the message is no mixture of this recipe."""
        weight, bias = _last_layer(known)
        gradient = mean_gradient(seen, known)
        g, slope = gradient[f"{CLASSIFIER}.weight"], gradient[f"{CLASSIFIER}.bias"]
        values = torch.linalg.svdvals(g.double())
        shape = features_shape(known.model.model, known.model.inputs)
        if not bool(values[0] > 0):
            return None
        if bool(values[1] < _RANK_ONE * values[0]):
            return read_features(g, slope).view(1, *shape)
        assert known.labels is not None, "they are granted"
        chosen = self.settings
        options = {"mixture": chosen.mixture, "starts": chosen.starts, "steps": chosen.separation_iterations}
        result = separate(g, slope, weight, bias, int(known.labels[0]), rng, **options)
        return result.sensitive.view(1, *shape) if result.error < _SOLVED else None


def _last_layer(known: Knowledge) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the classifier, one known fully connected layer above a known extractor."""
    model, held = known.model.model, known.model.known
    parts = dict(model.named_children())
    if not isinstance(parts.get(CLASSIFIER), nn.Linear) or EXTRACTOR not in parts or known.batch != 1:
        raise NotApplicable("it needs one example in a message, and a network that ends in one fully connected layer")
    names = [f"{EXTRACTOR}.{name}" for name, _ in parts[EXTRACTOR].named_parameters()]
    needed = [*names, f"{CLASSIFIER}.weight", f"{CLASSIFIER}.bias"]
    if any(name not in held for name in needed) or any(name not in known.model.shared for name in needed[-2:]):
        raise NotApplicable("it needs a known extractor, and the gradient of a classifier with a bias")
    return held[f"{CLASSIFIER}.weight"], held[f"{CLASSIFIER}.bias"]


def _nothing(known: Knowledge) -> Reconstruction:
    return Reconstruction(torch.full((known.batch, *known.model.inputs.shape), torch.nan))
