"""Fed-SDP: local training as usual; each client's whole update is clipped, and noise is added to it or to the sum.

Paper       Wei et al., "Gradient-Leakage Resilient Federated Learning", ICDCS 2021, arXiv 2107.01154, algorithm 1;
            after McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018, and Geyer et
            al., "Differentially Private Federated Learning: A Client Level Perspective", 2017.
Symbols     C clip, sigma noise_multiplier, n noise_shares, K clients, Kt of them in a round, T rounds,
            Delta_k = W_k - W.
Down        all tensors of the model, W(t).
Up          all tensors of the model after local training, W + the clipped Delta_k, with noise if the client adds it:
            N(0, sigma^2 C^2 / n). With n > 1 the noise is distributed: n updates together have deviation sigma C. With
            quantile also whether Delta_k was within the bound (`flfw.dp.quantile`).
Private     nothing.
Client      clients/fed_sdp.py
A probe     the message of a local step, clipped as an update and with the client's noise, divided by minus the learning
            rate. The gradient of one example that is read on the client (type 2) is bare, as in the paper.
Claims      for clients. With noised_by=server none against the server, which sees every update without noise. Where
            clients add it, a better one against who sees sums alone: of the updates that are surely in a sum.
Departures  1. The printed algorithm adds noise for each client and divides by Kt twice; here it is
               W + 1/Kt (sum Delta_k + noise).
            2. In the paper noised_by=server protects against an attacker at the server. But the server sees each update
               before it adds the noise, so here it protects against nobody there.
            3. Clients clip: the sent updates are bounded. A server that adds noise clips once more, by the same bound.
            4. A layer's tensors are clipped together, each layer to C: z = sigma / sqrt(M). The paper counts sigma.
            5. The authors' code multiplies the noise by 0 and has the clipping commented out.
            6. The paper knows no noise_shares: there n = 1.

    client k: L steps of SGD from W;  Delta_km <- Delta_km / max(1, |Delta_km| / C)          layer m
    server:   W <- W + 1/Kt (sum_k Delta_k + N(0, sigma^2 C^2))
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import final

from flfw.bounds import PositiveInt
from flfw.dp.noisy_mean import clipped_sum, shifted
from flfw.dp.settings import AdaptiveClippingSettings
from flfw.dp.strategy import DPStrategy
from flfw.errors import require
from flfw.nets import Tensors
from flfw.privacy.claims import Published
from flfw.privacy.mechanism import ClientSchedule, Holder, Mechanism
from flfw.server.aggregation import Update


@dataclass(frozen=True)
class FedSDPSettings(AdaptiveClippingSettings):
    """Settings of Fed-SDP; C = 4 and sigma = 6 are the paper's defaults, plain SGD is its code's."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    noised_by: Holder = "client"  # client: each adds its own noise; server: one draw, on the sum
    # n >= 1: each client's noise has deviation sigma C / sqrt(n), the sum of n has sigma C.
    noise_shares: PositiveInt = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        full = self.noised_by == "client" or self.noise_shares == 1
        require(full, "noise_shares=1 with noised_by=server", noise_shares=self.noise_shares)
        counted = self.noised_by == "server" or not self.follows_quantile
        require(counted, "quantile=0 with noised_by=client, where nobody counts", quantile=self.quantile)

    @property
    def update_deviation(self) -> float:
        """Standard deviation of a client's own noise."""
        return self.sum_deviation / sqrt(self.noise_shares) if self.noised_by == "client" else 0.0


@final
class FedSDP(DPStrategy):
    """Mean of clipped updates, with noise, added to the broadcast model."""

    Settings = FedSDPSettings
    downloads = ("*",)
    uploads = ("*",)

    @classmethod
    def bounds_updates(cls, settings: FedSDPSettings) -> bool:
        """Return whether the server clips each change; where clients add noise, it takes their updates as they are."""
        return settings.noised_by == "server"

    @classmethod
    def mechanism(cls, settings: FedSDPSettings, schedule: ClientSchedule) -> Mechanism | str:
        """Return the mechanism: clipped updates of all tensors, which count alike in a round's sum."""
        own = {"noised_by": settings.noised_by, "noise_divisor": settings.noise_shares}
        return settings.mechanism(schedule, cls.uploads, **own)

    @classmethod
    def published_accounting(cls, settings: FedSDPSettings, schedule: ClientSchedule) -> Published:
        """Return the count of table VI: q2 = Kt / K, and one round more than there are; examples are not supported."""
        rate, rounds = schedule.client_rate, schedule.rounds + 1
        sigma = settings.noise_multiplier / sqrt(settings.noise_shares)
        counted = Mechanism(sigma, rounds, sampling_rate=rate, poisson=True)
        remarks = (
            "The paper's: layers are not counted, though one client changes each of them by up to the bound.",
            "The paper's: a client takes part in a round by a coin of its own, and nobody knows in which.",
        )
        return Published({"client": counted}, "moments", remarks)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average over the cohort, with the server's noise if the server adds it."""
        if self.settings.noised_by == "server":
            return self.noisy_update_mean(updates)
        sums = clipped_sum(updates, self.last_broadcast, None)  # as they are: the clients' noise is in them
        return shifted(self.last_broadcast, sums, 1 / self.expected_cohort_size)
