"""DP-Gaussian: Gaussian noise on the sent tensors and, if chosen, a bound on their norm before it.

Paper       a baseline: of DCS^2 (deviation 0.01 on MNIST, 0.001 on CIFAR-10 and CelebA, 0.5 on TinyImageNet; no bound),
            and of FedCG (variance 0.001 and 0.1, i.e. deviation 0.032 and 0.32).
Acts on     the change of the shared tensors (in a probe: their gradient), all tensors together.
Sends       min(1, clip / ||g||) g + N(0, std^2), with the norm over all tensors jointly.
Claims      no epsilon: noise of a fixed size is differential privacy only with the bound, an accountant over all rounds
            and a generator that nobody can reproduce.
Departures  1. The noise is added once per round, to the model's change; DCS^2 adds it to the gradient of each batch.
            2. In simulations the noise comes from the run's seed, so that a run repeats: anybody with the seed can
               subtract it. At real sites nobody can (defence_randomness=secure), nor anywhere with noise_source=secure:
               such noise is 0.1 % larger, and rounded to a grid of at most 1/4096 of it.
"""

from dataclasses import dataclass, replace
from typing import Literal, final

import torch

from flfw.bounds import BoundedSettings, NonNegativeFinite
from flfw.nets import Tensors
from flfw.nets.training.gaussian import SecureNoise
from flfw.rng import is_secret
from flfw.task.defence import Defence

_FAINT = 1e-6  # deviation, below the entries of most gradients


@dataclass(frozen=True)
class DPGaussianSettings(BoundedSettings):
    """Noise, and the bound before it, both in units of the sent tensors; with 0 and 0 nothing is changed."""

    # Standard deviation of the noise in each entry, >= 0; the default is that of DCS^2 on MNIST.
    std: NonNegativeFinite = 0.01
    clip: NonNegativeFinite = 0.0  # bound of the joint L2 norm over all tensors before the noise; 0: none
    # seed: as --expert defence_randomness says; secure: secret in any case.
    noise_source: Literal["seed", "secure"] = "seed"


@final
class DPGaussian(Defence):
    """Defence that scales down to the bound, then adds independent noise to each entry."""

    Settings = DPGaussianSettings

    @classmethod
    def weakest_settings(cls, settings: DPGaussianSettings) -> DPGaussianSettings:
        """Return settings with faint noise; the bound stays."""
        return replace(settings, std=min(settings.std, _FAINT))

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Bound the floating tensors and add noise; others are sent unchanged and do not count in the norm."""
        real = {name: value for name, value in update.items() if value.is_floating_point()}
        if self.settings.clip:
            real = bounded(real, self.settings.clip)
        if self.settings.noise_source == "secure" or is_secret(rng):
            return {**update, **SecureNoise().add(real, self.settings.std)}
        return {**update, **{name: value + self._noise(value, rng) for name, value in real.items()}}

    def _noise(self, value: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        return self.settings.std * torch.randn(value.shape, generator=rng, dtype=value.dtype)


def bounded(tensors: Tensors, bound: float) -> Tensors:
    """Scale the floating tensors by one factor, at most 1, so that their joint L2 norm is at most ``bound`` > 0.

    Unlike `flfw.nets.training.optimisers.clip_norm` it changes no tensor in place, and divides by the norm exactly,
    without 1e-6 beside it.

    >>> bounded({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 2.5)
    {'a': tensor([1.5000]), 'b': tensor([2.])}
    """
    squares = [value.double().square().sum() for value in tensors.values()]
    norm = sum(squares, torch.zeros((), dtype=torch.float64)).sqrt()
    return {name: value * (bound / norm) for name, value in tensors.items()} if bool(norm > bound) else tensors
