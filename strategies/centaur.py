"""CENTAUR: a private head, trained first and without noise, on an extractor that is trained with noise and shared.

Paper       Shen et al., "Share Your Representation Only: Guaranteed Improvement of the Privacy-Utility Tradeoff in
            Federated Learning", ICLR 2023; here as the baseline of Guo et al., AAAI 2025 (HyperFL), with noise at the
            clients (unit=example). unit=client is the original: a trusted server adds the noise.
Symbols     C clip, sigma noise_multiplier, B batch.
Down        extractor.*
Up          extractor.* after local training; with unit=client the received one plus the clipped change, and with
            quantile also whether the change was within the bound (`flfw.dp.quantile`).
Private     classifier.*, kept by the client from round to round; it never leaves, so it takes no noise.
Client      clients/centaur.py
A probe     the noisy mean of the extractor's clipped gradients, with the head as it is.
Claims      unit=client: for clients, against all but the server. unit=example: none, though the comparison has one: the
            head is trained on the same examples without noise and shapes the gradients of all of them.
Departures  those of dp_fedavg. Only the norm of the extractor's gradient is clipped.

    client k:  one epoch:  head <- SGD step               (extractor as it is; shuffled passes, never Poisson)
               E epochs:   extractor <- noisy SGD step    (head as it is)
    server:    extractor <- sum_k n_k extractor_k / sum_k n_k
"""

from dataclasses import dataclass
from typing import final

from flfw.bounds import PositiveInt
from flfw.dp.settings import PrivateHeadSettings
from flfw.dp.strategy import EitherUnitStrategy


@dataclass(frozen=True)
class CentaurSettings(PrivateHeadSettings):
    """Settings of private local training as in HyperFL's comparison, and of the head's training."""

    head_epochs: PositiveInt = 1  # passes over the data in which the head is trained


@final
class Centaur(EitherUnitStrategy):
    """Averaging of extractors."""

    Settings = CentaurSettings
    downloads = ("extractor.*",)
    uploads = ("extractor.*",)
