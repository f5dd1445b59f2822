"""Client model whose gradient comes together with known statistics of its features, in one objective.

    ||grad~ - grad||^2 + alpha sum_c ( (mean(E(x)^c) - mu^c)^2 + (var(E(x)^c) - sigma^c)^2 )

This is a squared distance of two records that hold the gradient and, times sqrt(alpha), the statistics. So only the
client model differs from any other search.
"""

from __future__ import annotations

from math import sqrt
from typing import final

import torch
from torch import Tensor
from torch.func import functional_call

from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.inversion.closed_form.features import EXTRACTOR
from flfw.nets.net import Tensors

_MEAN, _VARIANCE = "statistics.mean", "statistics.variance"


def channel_statistics(features: Tensor) -> Tensors:
    """Compute mean and variance of each channel of features (N, C, ...), over examples and places, (C,) each.

    >>> {n: v.tolist() for n, v in channel_statistics(torch.tensor([[[1.0, 3.0]]])).items()}
    {'statistics.mean': [2.0], 'statistics.variance': [1.0]}
    """
    by_channel = features.flatten(2).transpose(0, 1).flatten(1) if features.dim() > 2 else features.T
    return {_MEAN: by_channel.mean(1), _VARIANCE: by_channel.var(1, correction=0)}


@final
class StatisticsVictim(VictimModel):
    """Victim with known statistics of its features, and an extractor that stays unchanged.

    The observation holds the statistics beside the gradient, as `channel_statistics` names them. Without them, their
    term is left out.

    Args:
        plain: the client; all of its tensors count as known, with the attacker's values for the private ones.
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
        """Refuse an observation of another network, or one that is not finite."""
        super().check(sent)
        for name in (_MEAN, _VARIANCE):
            if name in sent and not bool(torch.isfinite(sent[name]).all()):
                raise InputError(
                    f"Expected finite numbers in {name}, got NaN or infinity: nothing can be searched for."
                )

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the sent gradient and, where they are known, the statistics times the root of their weight."""
        observed, constants = self._plain.observed(sent)
        return {**observed, **{n: self._root * sent[n] for n in (_MEAN, _VARIANCE) if n in sent}}, constants

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the gradient of a guess, and the statistics of its features."""
        features = functional_call(self._extractor, self._weights, (self.inputs.normalise(x),))
        beside = {name: self._root * value for name, value in channel_statistics(features).items()}
        return {**self._plain.gradient(x, y, {}, constants), **beside}
