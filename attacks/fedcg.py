"""FedCG: read features off a shared classifier's gradient, and decode them with decoders of learnt surrogates.

Paper       none has this attack. Wu et al., IJCAI 2022, arXiv 2111.08211, attack a random extractor, as dlg_statistics
            does; notebooks in their repository invert the true and retrained extractors
            (research/papers/inversions.py).
Applies     to every method that shares a classifier, by whatever name: fedcg, fedsplit, fedgen; and to fedavg, whose
            extractor is shared.
Needs       a fully connected first layer of the classifier, with a bias, for features; else they are searched for.
Uses        the public data (decoder, generator); the initial private tensors, unchanged at round 0 (start); the
            clients' uploads in the round (the classifier C_i, the generator G_i, and the present classes).
Granted     the labels; one example's features need none.

    f = (dL/dW)^T dL/db / ||dL/db||^2        for one example; for several a search through the known classifier
    E~ under C on public data, decoders R of E~(x), and of W E~(x) + b, to x    `flfw.inversion.private.surrogate`
    guess R(f), or R(W f + b): the guess nearest to the features, through E~ and the classifier's first layer

decoder     as above. The surrogates are trained under the broadcast classifier; with ``own`` they are tuned for each
            client under its uploaded classifier, with one training per client.
start       The extractor is known: at round 0 with equal initial tensors, or where it is shared. The data are searched
            for by their features, from a blank input, under a prior with a falling weight.
generator   No gradient: the mean of the decoded features that G_i generates for the label. This is the leakage of G.
auto        ``start`` where the extractor is known, else ``decoder``.
Departures  1. This is no attack of the paper, which has no public data and no initial tensors.
            2. Surrogates and decoder, their noise and step sizes were chosen on MNIST's training images 0-15, the
               search's prior on 0-3.
            3. Only the classifier's gradient is used, also where the extractor's is sent. The mean gradient of several
               local steps is treated as one gradient.
            4. Noise of known size: features are searched for by their likelihood, with a Gaussian prior. The surrogates
               do not use it, because they do not see the gradient.
"""

from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor, nn

from flfw.adversary.attack import Attack, AttackCost, Models, NotApplicableError, Private, Uses
from flfw.adversary.gradient_matching import FeatureSearch, FeatureSearchSettings
from flfw.bounds import NonNegativeFloat, PositiveInt
from flfw.inversion.closed_form.labels import classes_held
from flfw.inversion.closed_form.linear import CLASSIFIER, EXTRACTOR, ExtractorVictim
from flfw.inversion.private.extractor import by_features
from flfw.inversion.private.surrogate import SurrogateModels, SurrogateTraining, learn, restarted
from flfw.nets.conditional_gan import GeneratingNet, noise
from flfw.nets.net import Tensors
from flfw.recording.observation import Knowledge, Observation, Reconstruction
from flfw.rng import initialising, torch_generator

_USES: dict[str, Uses] = {
    "auto": frozenset({"public", "start", "uploads"}),
    "decoder": frozenset({"public", "uploads"}),
    "start": frozenset({"start", "uploads"}),
    "generator": frozenset({"public", "uploads"}),
}
_GENERATED = 64  # number of features for a class average


@dataclass(frozen=True)
class FedCGInversionSettings(SurrogateTraining):
    """Settings of the variant, the surrogates and the searches."""

    variant: Literal["auto", "decoder", "start", "generator"] = "auto"  # of the attack, see the card
    own: bool = False  # tune the surrogates under each client's uploaded classifier
    tuning_epochs: PositiveInt = 3  # of surrogates and decoder, for each client
    search_iterations: PositiveInt = 1000  # of each search
    # First weight of the total variation where the extractor is known; it falls to a thousandth; >= 0.
    tv: NonNegativeFloat = 1e-2


@final
class FedCGInversion(Attack):
    """Inversion of a private extractor's features through the shared classifier."""

    Settings = FedCGInversionSettings
    sampled = True
    tuned_on = "MNIST training images 0-15 (stand-ins, decoder, and the weight of the total variation)"

    @property
    def models(self) -> Models:
        """A client-side defence, whose noise and bounds its searches for features take."""
        return frozenset({"defence"})

    @property
    def uses(self) -> Uses:
        """Knowledge of the variant; uploads also show the present classes."""
        return _USES[self.settings.variant]

    @property
    def _search(self) -> FeatureSearch:
        return FeatureSearch(FeatureSearchSettings(self.settings.search_iterations), self.compute)

    @property
    def cost(self) -> AttackCost:
        """The budget from the settings; training on public data is no search."""
        return AttackCost(self.settings.search_iterations, 1, "one search, or the decoder's one guess")

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return ``stood in for``; at round 0 with equal initial tensors it is not called."""
        return "stood in for"

    def unused(self, uploads: Sequence[str], knows_defence: bool) -> str:
        """Name the extractor's gradient, where it is sent, and the uncertainty of features read through noise."""
        beside = ["the gradient of the extractor"] * any(name.startswith(f"{EXTRACTOR}.") for name in uploads)
        return " and ".join([*beside, *["how uncertain features read through the defence are"] * knows_defence])

    def presence(self, uploads: Sequence[Observation], model: nn.Module) -> list[Tensor | None]:
        """Find classes by rows of a label embedding that moved, or rows of the last layer that rose."""
        return [classes_held(model, upload.received, upload.sent) for upload in uploads]

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Attack each victim in the way its knowledge allows, all victims of one model together."""
        results: dict[int, Reconstruction] = {}
        groups: dict[tuple[int, str], list[int]] = defaultdict(list)
        for i, (observation, known) in enumerate(zip(observations, knowledge, strict=True)):
            groups[id(known.model), self._way(observation, known)].append(i)
        for (_, way), members in groups.items():
            group = ([observations[i] for i in members], [knowledge[i] for i in members], [rngs[i] for i in members])
            results |= zip(
                members, self._inverted(*group) if way == "start" else self._decoded(*group, way), strict=True
            )
        return [results[i] for i in range(len(observations))]

    def _way(self, observation: Observation, knowledge: Knowledge) -> str:
        model, variant = knowledge.model.model, self.settings.variant
        parts = dict(model.named_children())
        if not (EXTRACTOR in parts and CLASSIFIER in parts and _whole(model, CLASSIFIER, knowledge.model.known)):
            raise NotApplicableError("it needs a network whose classifier is shared")
        if variant in ("auto", "start") and _whole(model, EXTRACTOR, _held(observation, knowledge)):
            return "start"
        if variant == "start":
            raise NotApplicableError("the extractor is private, and not as all clients' began")
        if knowledge.public is None:
            raise NotApplicableError("it needs public data: grant them")
        if variant == "generator" and not isinstance(model, GeneratingNet):
            raise NotApplicableError("no generator is shared")
        return "generator" if variant == "generator" else "decoder"

    # --- the extractor is known ---

    def _inverted(
        self, observation: list[Observation], knowledge: list[Knowledge], rngs: list[torch.Generator]
    ) -> list[Reconstruction]:
        """Search for the data by their features: first under a smooth prior, then with almost none."""
        victim = ExtractorVictim(
            knowledge[0].model.model, _held(observation[0], knowledge[0]), knowledge[0].model.inputs
        )
        features = self._search.features(observation, knowledge, rngs)
        limits = (self.settings.search_iterations, self.settings.tv)
        results = by_features(
            victim, features, rngs, knowledge[0].box, iterations=limits[0], tv=limits[1], compute=self.compute
        )
        return [Reconstruction(f.samples, f.matching_loss) for f in results]

    # --- the extractor is private ---

    def _decoded(
        self, observation: list[Observation], knowledge: list[Knowledge], rngs: list[torch.Generator], way: str
    ) -> list[Reconstruction]:
        common, tuned = self._stand_ins(observation[0], knowledge[0]), dict[int, SurrogateModels]()
        if self.settings.own:
            tuned = {
                o.client: self._tuned(common, k) for o, k in zip(observation, knowledge, strict=True) if k.uploaded
            }
        features = (
            self._search.features(observation, knowledge, rngs) if way == "decoder" else [None] * len(observation)
        )
        results = []
        for o, k, rng, f in zip(observation, knowledge, rngs, features, strict=True):
            stand_ins = tuned.get(o.client, common)
            if f is None:
                results.append(Reconstruction(_imagined(k, rng, stand_ins).clamp(*k.box), labels=k.labels))
            else:
                guess, apart = stand_ins.guess(f)
                results.append(Reconstruction(guess.clamp(*k.box), float(apart.mean()), labels=k.labels))
        return results

    def _stand_ins(self, observation: Observation, knowledge: Knowledge) -> SurrogateModels:
        """Train surrogates for all clients that received one classifier, with the same randomness."""
        model, tensors = deepcopy(knowledge.model.model), _held(observation, knowledge)
        model.load_state_dict(tensors, strict=False)
        extractor, classifier = (model.get_submodule(name) for name in (EXTRACTOR, CLASSIFIER))
        is_known = _whole(model, EXTRACTOR, tensors)
        with initialising(0, "surrogates"):
            others = [extractor] if is_known else [restarted(extractor) for _ in range(self.settings.surrogates)]
            return self._learn(others, classifier, knowledge, self.settings, is_known)

    def _tuned(self, common: SurrogateModels, knowledge: Knowledge) -> SurrogateModels:
        """Tune the surrogates under the client's uploaded classifier."""
        assert knowledge.uploaded is not None, "asked before"
        model, epochs = deepcopy(knowledge.model.model), self.settings.tuning_epochs
        model.load_state_dict(knowledge.uploaded, strict=False)
        shorter = replace(self.settings, surrogate_epochs=epochs, decoder_epochs=epochs)
        return self._learn(common.extractors, model.get_submodule(CLASSIFIER), knowledge, shorter, False, common)

    def _learn(
        self,
        extractors: Sequence[nn.Module],
        classifier: nn.Module,
        knowledge: Knowledge,
        training: SurrogateTraining,
        frozen: bool,
        before: SurrogateModels | None = None,
    ) -> SurrogateModels:
        assert knowledge.public is not None, "asked before"
        data, rng = (knowledge.public.samples, knowledge.public.labels), torch_generator(0, "stand-ins")
        decoders = before.decoders if before else None
        return learn(
            extractors, classifier, data, knowledge.model.inputs, training, rng, frozen=frozen, decoders=decoders
        )


def _whole(model: nn.Module, part: str, tensors: Tensors) -> bool:
    """Return whether all of a part's parameters are held."""
    return all(f"{part}.{name}" in tensors for name, _ in model.get_submodule(part).named_parameters())


def _held(observation: Observation, knowledge: Knowledge) -> Tensors:
    """Return the client's known tensors; before training also the common initial ones."""
    return {**(knowledge.start or {} if observation.round == 0 else {}), **knowledge.model.known}


def _imagined(knowledge: Knowledge, rng: torch.Generator, surrogates: SurrogateModels) -> Tensor:
    """Decode generated features and average them for each label (B, ...)."""
    model = deepcopy(knowledge.model.model)
    assert isinstance(model, GeneratingNet) and knowledge.labels is not None, "asked before"
    model.load_state_dict({**knowledge.model.known, **(knowledge.uploaded or {})}, strict=False)
    model.eval()
    labels = knowledge.labels.repeat_interleave(_GENERATED)
    with torch.no_grad():
        features = model.generator(noise(len(labels), rng).to(labels.device), labels)
    return surrogates.guess(features)[0].unflatten(0, (len(knowledge.labels), _GENERATED)).mean(1)
