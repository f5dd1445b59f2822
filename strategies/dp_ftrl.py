"""DP-FTRL: a trusted server's noise for whole clients, correlated over rounds, so that running sums have little of it.

Paper       Kairouz et al., "Practical and Private (Deep) Learning without Sampling or Shuffling", ICML 2021; with the
            banded matrix of Choquette-Choo et al., "(Amplified) Banded Matrix Factorization: A unified approach to
            private training", NeurIPS 2023.
Symbols     C clip (the papers' zeta), sigma noise_multiplier, b bands, c_0 ... c_(b-1) coefficients of unit length, K
            clients in a round, x_t a round's sum of clipped changes, W_t the model that is sent in round t.
Down        all tensors of the model, W_t.
Up          all tensors of the model after local training, W_t + the clipped change.
Private     nothing.
Client      clients/dp_ftrl.py
A probe     the message of a local step, clipped as an update, without noise, divided by minus the learning rate.
Claims      for clients, against all but the server. The noise needs no secret cohorts: sampling gives no credit.
Departures  1. Clients take turns: client k takes part in the rounds t with t = k + 1 modulo b alone, so that its rounds
               are at least b apart. The papers take the data in a fixed order of batches.
            2. The coefficients are those of a Toeplitz matrix, optimised for the mean square error of the models (the
               paper optimises every entry; for 1000 rounds that is less than 1 % better: McKenna, ICLR 2025).
            3. No credit for sampling within a turn ("amplified" in the title).
            4. No momentum at the server, and no restarts.
            5. s_t is solved for from the noisy sums y, in place of x_t + (C^-1 z)_t: see flfw/dp/noisy_mean.py.

    client k, in its turns:  E epochs of SGD from W_t;  Delta <- Delta min(1, C / |Delta|)
    server:                  y_t <- sum_i c_i x_(t-i) + N(0, sigma^2 C^2)
                             s_t <- (y_t - sum_(i>=1) c_i s_(t-i)) / c_0
                             W_(t+1) <- W_t + server_lr s_t / K
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, final

from flfw.bounds import PositiveFinite, PositiveInt
from flfw.dp.noisy_mean import clipped_sum, correlated, shifted
from flfw.dp.settings import DPSettings
from flfw.dp.strategy import DPStrategy
from flfw.nets import Tensors
from flfw.nets.training.per_example import Grouping
from flfw.privacy.banded import optimised_coefficients, root_coefficients
from flfw.privacy.mechanism import ClientSchedule, Mechanism
from flfw.server.aggregation import Update


@dataclass(frozen=True)
class DPFTRLSettings(DPSettings):
    """Settings of clipped updates and correlated noise."""

    noise_multiplier: float = 1.0
    clip: float = 1.0
    grouping: Grouping = "flat"
    bands: PositiveInt = 4  # b >= 1, at most the number of clients; 1: independent noise in each round
    coefficients: Literal["optimised", "root"] = "optimised"  # for the run's rounds; or of (1 - x)^(-1/2)
    server_lr: PositiveFinite = 1.0  # > 0, of the server's step along the noisy mean


@final
class DPFTRL(DPStrategy):
    """Running sum of clipped updates with correlated noise; `state` holds the last b - 1 rounds, never sent."""

    Settings = DPFTRLSettings
    downloads = ("*",)
    uploads = ("*",)

    @classmethod
    def min_separation(cls, settings: DPFTRLSettings) -> int:
        """Return b."""
        return settings.bands

    @classmethod
    def depends_on_rounds(cls, settings: DPFTRLSettings) -> bool:
        """Return whether the coefficients are optimised for the number of rounds."""
        return settings.coefficients != "root"

    @classmethod
    def mechanism(cls, settings: DPFTRLSettings, schedule: ClientSchedule) -> Mechanism | str:
        """Return the mechanism: for a client with k rounds a Gaussian one of multiplier sigma / sqrt(k)."""
        return settings.mechanism(schedule, cls.uploads, poisson=False, bands=settings.bands)

    @property
    def coefficients(self) -> Sequence[float]:
        """Coefficients c_0, ..., c_(b-1) of unit length; the optimised ones need the run's number of rounds."""
        if self.settings.coefficients == "root":
            return root_coefficients(self.settings.bands).tolist()
        return optimised_coefficients(self.settings.bands, self.require_context.plan.rounds.rounds)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Add the noisy mean change to the model."""
        sent, settings = self.last_broadcast, self.settings
        sums = clipped_sum(updates, sent, settings)
        noise = settings.noise(self.seed, "server noise", self.round)
        released, self.state = correlated(sums, self.state, self.coefficients, settings.sum_deviation, noise)
        cohort = self.sample or self.expected_cohort_size / settings.bands
        return shifted(sent, released, settings.server_lr / cohort)
