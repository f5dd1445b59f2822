"""Fed-CDP: clients clip every example's gradient layer by layer and add noise in each local step.

Paper       Wei et al., "Gradient-Leakage Resilient Federated Learning", ICDCS 2021, arXiv 2107.01154, algorithm 2.
Symbols     C clip, sigma noise_multiplier, K clients, Kt of them in a round, T rounds, L local steps, B batch,
            M groups of tensors that are clipped one by one.
Down        all tensors of the model, W(t).
Up          all tensors of the model after L noisy steps: W(t) + Delta_k.
Private     nothing.
Client      clients/fed_cdp.py
A probe     the noisy mean of clipped gradients; read on the client (type 2) that of one example, or with observed=bare
            its raw gradient.
Claims      for examples: z = sigma / sqrt(M), as one example changes each of M layers by up to C. The paper counts
            sigma, with q = 0.01 on every data set, and takes the epsilon of an example for that of a client.
Departures  --variant paper undoes 1, --variant authors 5.
            1. Noise is added once a batch, to the sum, as the paper's accountant counts; the printed algorithm draws it
               for each example (draws=example), which is sqrt(B) times as much.
            2. All tensors of a layer are clipped together; the authors' network has no biases.
            3. bound=median and bound=lr are named by the paper without a result. The first reads a client's data
               without noise, so nothing can be claimed; the second scales C with a learning rate that decays.
            4. compress=before zeroes the smallest entries of a sum before the noise: one example can change which ones
               those are, so nothing can be claimed; compress=after is harmless to a claim.
            5. The authors' code divides by Kt - 1 (``divisor=one_less``). Its noise is commented out, which no
               variant does.

    client k, having received W, for each batch of a pass:
        g_jm <- g_jm / max(1, |g_jm| / C)                    example j, layer m
        W <- W - eta 1/B (sum_j g_j + N(0, sigma^2 C^2))
    server: W <- 1/Kt sum_k W_k
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

from flfw.bounds import PositiveFinite, PositiveShare, ShareBelowOne
from flfw.dp.settings import LEAST_CLIP, DPSGDSettings, require_in_float32
from flfw.dp.strategy import DPStrategy
from flfw.errors import require
from flfw.nets import Tensors
from flfw.privacy.claims import Published
from flfw.privacy.mechanism import ClientSchedule, Mechanism
from flfw.server.aggregation import Update, equal_mean


@dataclass(frozen=True)
class FedCDPSettings(DPSGDSettings):
    """Settings of Fed-CDP; C = 4 and sigma = 6 are the paper's defaults, plain SGD is its code's."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    bound: Literal["constant", "decay", "lr", "median"] = "constant"  # decay: linearly from clip to last_clip
    last_clip: PositiveFinite = 2.0  # of bound=decay, in the last round; the paper goes from 6 to 2
    lr_decay: PositiveShare = 1.0  # factor of the learning rate, and with bound=lr of C, from round to round
    divisor: Literal["clients", "one_less"] = "clients"  # of the sum of models: Kt, or Kt - 1
    compress: Literal["none", "before", "after"] = "none"  # zero the smallest entries before or after the noise
    compress_ratio: ShareBelowOne = 0.3  # share of each tensor's entries that are zeroed

    def __post_init__(self) -> None:
        super().__post_init__()
        require_in_float32(last_clip=self.last_clip)
        fixed = self.bound != "median" or self.clipping == "abadi"
        require(fixed, "a bound other than median with clipping=automatic", bound=self.bound)

    def disabled(self) -> FedCDPSettings:
        """Return settings that clip, zero and disturb nothing."""
        return replace(super().disabled(), bound="constant", compress="none")

    def weakest(self) -> FedCDPSettings:
        """Return settings with faint noise, and at most a tenth of the entries zeroed."""
        return replace(super().weakest(), compress_ratio=min(self.compress_ratio, 0.1))

    def clip_at(self, server_round: int, rounds: int) -> float:
        """Return C of a round, counted from 1; before the first round that of the first.

        >>> [FedCDPSettings(bound="decay", clip=6.0).clip_at(t, 5) for t in (1, 2, 5)]
        [6.0, 5.0, 2.0]
        """
        done = max(0, min(server_round, rounds) - 1)
        if self.bound == "decay":
            return self.clip + (self.last_clip - self.clip) * done / max(1, rounds - 1)
        return max(LEAST_CLIP, self.clip * self.lr_decay**done) if self.bound == "lr" else self.clip

    @property
    def void(self) -> str:
        """Reason that nothing can be claimed; empty if something can."""
        if self.bound == "median":
            return "The bound is the median of a client's own gradient norms, which tells of its data without noise."
        if self.compress == "before" and self.compress_ratio:
            return "Which entries are zeroed before the noise depends on all examples, and C does not bound its change."
        return ""


@final
class FedCDP(DPStrategy):
    """Plain averaging of models that were trained in noisy steps."""

    Settings = FedCDPSettings
    variants: ClassVar = {"authors": {"divisor": "one_less"}, "paper": {"draws": "example"}}
    downloads = ("*",)
    uploads = ("*",)

    @classmethod
    def depends_on_rounds(cls, settings: FedCDPSettings) -> bool:
        """Return whether the bound falls from the first round to the last."""
        return settings.bound == "decay"

    @classmethod
    def published_accounting(cls, settings: FedCDPSettings, schedule: ClientSchedule) -> Published:
        """Return the count of table VI: q = B Kt / N, taken to be 0.01 everywhere, and one step more than there are."""
        steps = schedule.rounds * schedule.local_steps + 1
        counted = Mechanism(settings.noise_multiplier, steps, sampling_rate=0.01, poisson=True)
        remarks = (
            "The paper's: layers are not counted, though one example changes each of them by up to the bound.",
            "The paper's: an example is in a step with probability 0.01, independently, and nobody knows in which.",
            "The paper's: the epsilon of a client is that of one of its examples.",
        )
        return Published({"example": counted, "client": counted}, "moments", remarks)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the models with equal weights."""
        mean, clients = equal_mean(updates)
        if self.settings.divisor == "clients":
            return mean
        require(clients > 1, "two clients or more in a round for divisor=one_less", clients=clients)
        return {name: value * (clients / (clients - 1)) for name, value in mean.items()}
