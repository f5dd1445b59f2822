"""Distances between a guess's simulated observation and the real one, and the objective of every search.

The objective is a distance from the observation plus a prior on the data.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, final

import torch
from torch import Tensor

from flfw.inversion.client_models.operator import Operator
from flfw.inversion.client_models.victim import VictimModel
from flfw.inversion.priors import ModelPrior, Prior
from flfw.nets.net import Tensors

Distance: TypeAlias = Callable[[Tensors, Tensors], Tensor]
"""Function of a trial and an observation, two gradients by name, to a scalar; 0 where they are equal."""

_TINY = 1e-30  # keeps the gradient of a norm finite where the norm is 0, and hardly changes small gradients


def inner(a: Tensors, b: Tensors) -> Tensor:
    """Compute the inner product of two gradients, all tensors of ``b`` taken as one vector."""
    return torch.stack([(a[name] * b[name]).sum() for name in b]).sum()


def rms(value: Tensor) -> Tensor:
    """Compute the root mean square of a tensor."""
    return value.square().mean().sqrt()


def cosine_distance(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute 1 - cos of two gradients, each as one vector; in [0, 2] (Geiping et al., NeurIPS 2020, eq. 4).

    >>> a, b = {"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])}
    >>> float(cosine_distance(a, b)), float(cosine_distance(a, a))
    (1.0, 0.0)
    """
    norms = (inner(simulated, simulated) + _TINY).sqrt() * (inner(observed, observed) + _TINY).sqrt()
    return 1 - inner(simulated, observed) / norms


def tensorwise_cosine_distance(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute the mean over the tensors of 1 - cos; in [0, 2] (Vero et al., ICML 2023).

    >>> a = {"w": torch.tensor([1.0, 0.0]), "b": torch.tensor([3.0])}
    >>> float(tensorwise_cosine_distance(a, {"w": torch.tensor([0.0, 2.0]), "b": torch.tensor([1.0])}))
    0.5
    """
    return torch.stack([cosine_distance({name: simulated[name]}, {name: observed[name]}) for name in observed]).mean()


def squared_distance(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute the squared L2 distance of two gradients (Zhu et al., NeurIPS 2019, eq. 4).

    >>> float(squared_distance({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])}))
    5.0
    """
    return torch.stack([((simulated[name] - observed[name]) ** 2).sum() for name in observed]).sum()


def mean_squared_distance(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute the mean over the tensors of the squared L2 distance in each (Li et al., CVPR 2022).

    >>> a, b = {"w": torch.tensor([1.0, 0.0]), "b": torch.tensor(3.0)}, {"w": torch.zeros(2), "b": torch.tensor(1.0)}
    >>> float(mean_squared_distance(a, b))
    2.5
    """
    return squared_distance(simulated, observed) / len(observed)


def tensor_distances(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute the sum over the tensors of the L2 distance in each (Yin et al., CVPR 2021, eq. 3).

    >>> a, b = {"w": torch.tensor([1.0, 0.0]), "b": torch.tensor(3.0)}, {"w": torch.zeros(2), "b": torch.tensor(1.0)}
    >>> float(tensor_distances(a, b))
    3.0
    """
    squares = [((simulated[name] - observed[name]) ** 2).sum() for name in observed]
    return torch.stack([(square + _TINY).sqrt() for square in squares]).sum()


def relative_distance(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute the squared L2 distance over the observation's squared length; independent of the gradient's scale.

    >>> float(relative_distance({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])}))
    1.25
    """
    return squared_distance(simulated, observed) / (inner(observed, observed) + _TINY)


def gaussian_likelihood(std: float) -> Distance:
    """Return the negative log-likelihood of an observation with Gaussian noise, up to a constant, in nats.

    Args:
        std: standard deviation of the noise in each entry, > 0.

    >>> float(gaussian_likelihood(0.5)({"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}))
    2.0
    """
    return lambda trial, observed: squared_distance(trial, observed) / (2 * std**2)


Guess: TypeAlias = Tensors
"""The variables of a search: ``x`` (B, ...) in normalised units, ``labels`` (B, classes) as logits where they are
searched for, and ``model.NAME`` for each tensor that the attacker does not hold."""

Given: TypeAlias = dict[str, Tensors]
"""The constants of a search: ``observed``, ``constants``, ``labels`` and the prior's ``weights``."""

_MODEL = "model."


@dataclass(frozen=True)
class Problem:
    """Inputs of one search.

    Attributes:
        sent: the observation, by name.
        labels: (B,) as granted or recovered; None: they are searched for.
        start: (B, ...) the first guess, in normalised units.
        unknown: the first guess of the tensors that are searched for; others that the attacker does not hold stay as
            the victim has them.
        logits: (B, classes) the first guess of labels that are searched for.
        prior_constants: constants of the model prior, by name.
    """

    sent: Tensors
    labels: Tensor | None
    start: Tensor
    unknown: Tensors
    logits: Tensor | None = None
    prior_constants: Tensors = field(default_factory=dict)

    @property
    def guess(self) -> Guess:
        """The start of the search."""
        free = {} if self.logits is None else {"labels": self.logits}
        return {"x": self.start, **free, **{_MODEL + name: value for name, value in self.unknown.items()}}


@final
class Objective:
    """``distance(simulated observation, observation) + strength * prior(guess)``, pure in two records.

    Args:
        victim: computes the gradient of a guess.
        distance: distance of two gradients.
        prior: prior of a guess.
        operator: a known mechanism between the gradient and the observation; None: none.
        through: whether it is applied to a trial; what it can undo in the observation is undone in any case.
        model_prior: prior of a guess that uses the victim's network; None: none.
    """

    def __init__(
        self,
        victim: VictimModel,
        distance: Distance,
        prior: Prior,
        operator: Operator | None = None,
        through: bool = True,
        model_prior: ModelPrior | None = None,
    ) -> None:
        self.victim, self.distance, self.prior = victim, distance, prior
        self.mechanism, self._through, self._model_prior = operator, through, model_prior

    def constants(self, problem: Problem, strength: float = 1.0) -> Given:
        """Return the constants of a search for one problem.

        Args:
            problem: the search.
            strength: factor of the prior.

        Raises:
            InputError: the observation is of another network, or not finite.
        """
        self.victim.check(problem.sent)
        observed, constants = self.victim.observed(problem.sent)
        if self.mechanism:
            if self._through:
                constants = {**constants, **self.mechanism.read(observed)}
            observed = self.mechanism.undo(observed)
        labels = {} if problem.labels is None else {"hard": problem.labels}
        constants = {**constants, **problem.prior_constants}
        weights = {"prior": self.victim.inputs.mean.new_tensor(strength)}
        return {"observed": observed, "constants": constants, "labels": labels, "weights": weights}

    def trial(self, guess: Guess, given: Given) -> Tensors:
        """Compute the gradient of a guess, before any mechanism."""
        labels = guess["labels"].softmax(-1) if "labels" in guess else given["labels"]["hard"]
        raw = guess["x"] * self.victim.inputs.std + self.victim.inputs.mean
        return self.victim.gradient(raw, labels, self._unknown(guess), given["constants"])

    def matching_loss(self, simulated: Tensors, given: Given) -> Tensor:
        """Compute the distance of a trial from the observation."""
        if self.mechanism and self._through:
            simulated = self.mechanism.apply(simulated, given["observed"], given["constants"])
        return self.distance(simulated, given["observed"])

    def __call__(self, guess: Guess, given: Given) -> tuple[Tensor, Tensor]:
        """Compute the objective, and the distance in it; scalars."""
        matched = self.matching_loss(self.trial(guess, given), given)
        return matched + self.weighed(guess, given), matched

    def weighed(self, guess: Guess, given: Given) -> Tensor:
        """Compute the priors of a guess, times their strength."""
        prior = self.prior(guess["x"])
        if self._model_prior is not None:
            prior = prior + self._model_prior(self.victim, guess["x"], self._unknown(guess), given["constants"])
        return given["weights"]["prior"] * prior

    def _unknown(self, guess: Guess) -> Tensors:
        """Return a value for each of the victim's unknown tensors: searched for, or the attacker's first guess."""
        searched = {name.removeprefix(_MODEL): value for name, value in guess.items() if name.startswith(_MODEL)}
        return {**self.victim.unknown, **searched}
