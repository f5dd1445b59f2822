"""Distance of a reconstruction from the truth in the features of the network that was attacked.

    |E(x') - E(x)|_2 / |E(x)|_2      x the truth, x' the reconstruction, E the extractor that the server sent

An attack that gets the features right has their information, also where its image looks unlike the truth: a classifier
on these features, or a better decoder, goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfw.client_plan import ClientPlan
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.recording.reader import Recordings
from flfw.rng import initialising

_EXTRACTOR = "extractor"


@final
@dataclass(frozen=True)
class Extractor:
    """Extractor of an attacked network, with the weights of the attacked message.

    Attributes:
        model: the extractor, in evaluation mode.
        weights: its parameters and buffers.
        inputs: the input space.
    """

    model: nn.Module
    weights: Tensors
    inputs: InputSpec

    def features(self, samples: Tensor) -> Tensor:
        """Compute the features (N, d) of raw inputs (N, ...), float32."""
        with torch.no_grad():
            return functional_call(self.model, self.weights, (self.inputs.normalise(samples),)).flatten(1)

    def errors(self, truth: Tensor, guesses: Tensor) -> list[float | None]:
        """Compute the relative error >= 0 of each guess's features; None: the truth's are zero, or not finite.

        Args:
            truth: raw inputs (N, ...).
            guesses: reconstructions (N, ...), each beside its truth; they are cut to [0, 1].
        """
        wanted = self.features(truth).double()
        lengths = wanted.norm(dim=1)
        distances = (self.features(guesses.clamp(0, 1)).double() - wanted).norm(dim=1)
        ratios = (distances / lengths).tolist()
        return [ratio if isfinite(ratio) else None for ratio in ratios]


@final
class Extractors:
    """Extractors of the attacked networks of one run, where the server sent them whole.

    Args:
        plan: of the run's clients.
        recordings: its recordings.
        inputs: its input space.
    """

    def __init__(self, plan: ClientPlan, recordings: Recordings, inputs: InputSpec) -> None:
        self._recordings, self._inputs = recordings, inputs
        with initialising(plan.seed, "extractor"):
            model = plan.build_model()
        inner = dict(model.named_children()).get(_EXTRACTOR)
        self._model = None if inner is None else inner.eval()

    def behind(self, exchange: str) -> Extractor | None:
        """Return the extractor behind a message; None: there is none, it is random, or its weights were not sent.

        Args:
            exchange: its id in the recordings.
        """
        if self._model is None:
            return None
        names = {f"{_EXTRACTOR}.{name}": name for name in self._model.state_dict()}
        received = self._recordings.received(exchange, tuple(names)) if names else None
        if received is None:
            return None
        weights = {inner: received[name] for name, inner in names.items()}
        extractor = Extractor(self._model, weights, self._inputs)
        blank = torch.zeros(1, *self._inputs.shape)
        return extractor if torch.equal(extractor.features(blank), extractor.features(blank)) else None
