"""A client's gradient beside statistics that its features should have, in one objective.

    ||grad~ - grad||^2 + alpha sum_c ( (mean(E(x)^c) - mu^c)^2 + (var(E(x)^c) - sigma^c)^2 )

is a squared distance of two records, once the statistics stand beside the gradient, each times sqrt(alpha). So nothing
but the victim differs from any other search.
"""

from __future__ import annotations

from math import sqrt
from typing import final

import torch
from torch import Tensor
from torch.func import functional_call

from flfw.errors import BadInput
from flfw.inversion.closed_form.features import EXTRACTOR
from flfw.nets.net import Tensors
from flfw.victims.victim import PlainVictim, VictimModel

_MEAN, _VARIANCE = "statistics.mean", "statistics.variance"


def channel_statistics(features: Tensor) -> Tensors:
    """Mean and variance of each channel of features (N, C, ...), over all examples and places, (C,) each.

    >>> {n: v.tolist() for n, v in channel_statistics(torch.tensor([[[1.0, 3.0]]])).items()}
    {'statistics.mean': [2.0], 'statistics.variance': [1.0]}
    """
    by_channel = features.flatten(2).transpose(0, 1).flatten(1) if features.dim() > 2 else features.T
    return {_MEAN: by_channel.mean(1), _VARIANCE: by_channel.var(1, correction=0)}


@final
class StatisticsVictim(VictimModel):
    """A client of whose features the statistics are known as well, with an extractor that stays as it is.

    What was sent has the statistics beside the gradient, as `channel_statistics` names them; without, there is no such
    term.

    Args:
        plain: the client; all of its tensors count as known, those that it hides as the attacker's model has them.
        alpha: weight of the statistics, >= 0.
    """

    def __init__(self, plain: VictimModel, alpha: float) -> None:
        everything = {**plain.unknown, **plain.known}
        super().__init__(plain.model, everything, plain.shared, plain.inputs)
        self._plain = PlainVictim(plain.model, {**self.known, **self.unknown}, plain.shared, plain.inputs)
        self._extractor = plain.model.get_submodule(EXTRACTOR)
        prefix = f"{EXTRACTOR}."
        self._weights = {n.removeprefix(prefix): v for n, v in self.known.items() if n.startswith(prefix)}
        self._root = sqrt(alpha)
        self.unknown = {}

    def check(self, sent: Tensors) -> None:
        """Refuse what is not of this client, or not finite."""
        super().check(sent)
        for name in (_MEAN, _VARIANCE):
            if name in sent and not bool(torch.isfinite(sent[name]).all()):
                raise BadInput(f"Expected finite numbers in {name}, got NaN or infinity: nothing can be searched for.")

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """The gradient as it was sent and, where they are known, the statistics times the root of their weight."""
        observed, constants = self._plain.observed(sent)
        return {**observed, **{n: self._root * sent[n] for n in (_MEAN, _VARIANCE) if n in sent}}, constants

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Of a guess: its gradient, and the statistics of its features."""
        features = functional_call(self._extractor, self._weights, (self.inputs.normalise(x),))
        beside = {name: self._root * value for name, value in channel_statistics(features).items()}
        return {**self._plain.gradient(x, y, {}, constants), **beside}
