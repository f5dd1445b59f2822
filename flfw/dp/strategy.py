"""Server half of methods that clip and add noise, and of those with a choice between examples and clients."""

from abc import ABC
from collections.abc import Iterable
from typing import Any

from torch import nn

from flfw.dp.noisy_mean import noisy_mean, quantile_mean
from flfw.dp.quantile import with_factor
from flfw.dp.settings import DPSettings, DPUnitSettings
from flfw.nets.net import Net, Tensors
from flfw.privacy.claims import Published
from flfw.privacy.mechanism import ClientSchedule, Mechanism
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


class DPStrategy(FederatedStrategy, ABC):
    """Server half of a method whose settings are `DPSettings`: it refuses models, and has settings for controls."""

    @classmethod
    def build_model(cls, net: Net, settings: DPSettings) -> nn.Module:
        """Return the network, with an entry for a bound that moves."""
        return with_factor(net) if settings.follows_quantile else net

    @classmethod
    def bounds_updates(cls, settings: Any) -> bool:
        """Return whether whole updates are clipped, by default at the server, too; steps are clipped at the clients."""
        return settings.clips_updates

    @classmethod
    def check_model(cls, model: nn.Module, settings: DPSettings) -> None:
        """Refuse layers that cannot be clipped as the settings ask for, and buffers, which nothing clips."""
        settings.check_model(model, cls.shared(model, settings).uploads)

    @classmethod
    def mechanism(cls, settings: Any, schedule: ClientSchedule) -> Mechanism | str:
        """Return the settings' mechanism for the uploaded tensors, or why nothing can be claimed."""
        return settings.mechanism(schedule, cls.uploads)

    @classmethod
    def disabled_settings(cls, settings: DPSettings) -> DPSettings:
        """Return settings that clip nothing and add no noise."""
        return settings.disabled()

    @classmethod
    def weakest_settings(cls, settings: DPSettings) -> DPSettings:
        """Return settings with so little noise that a message leaks."""
        return settings.weakest()

    def noisy_update_mean(self, updates: Iterable[Update]) -> Tensors:
        """Return the mean of clipped updates with the server's noise, by a bound that is fixed or moves."""
        noise = self.settings.noise(self.seed, "server noise", self.round)
        if self.settings.follows_quantile:
            return quantile_mean(updates, self.last_broadcast, self.expected_cohort_size, self.settings, noise)
        std = self.settings.sum_deviation
        return noisy_mean(updates, self.last_broadcast, self.expected_cohort_size, self.settings, std, noise)

    def aggregate_empty(self) -> Tensors:
        """Return the model of a round without clients; noise on updates hides that no client was drawn."""
        return self.last_broadcast if self.settings.clips_examples else self.aggregate(())


class EitherUnitStrategy(DPStrategy, ABC):
    """Server half: the mean of noisily trained models, weighted by examples; or the noisy mean of clipped updates."""

    @classmethod
    def published_accounting(cls, settings: DPUnitSettings, schedule: ClientSchedule) -> Published | None:
        """Count Poisson batches in all rounds by Renyi divergences, as such comparisons choose their noise."""
        if not settings.clips_examples:
            return None
        rate = schedule.example_rate
        steps = round(schedule.rounds * schedule.epochs / rate)
        counted = Mechanism(settings.noise_multiplier, steps, sampling_rate=rate, poisson=True)
        remarks = ("The comparison's: Poisson batches, though passes are in shuffled order; everybody in every round.",)
        return Published({"example": counted}, "rdp", remarks)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Return the mean weighted by examples, or the noisy mean."""
        return weighted_mean(updates) if self.settings.clips_examples else self.noisy_update_mean(updates)
