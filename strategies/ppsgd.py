"""PPSGD: in every step the private head moves without noise, then the shared extractor with noise.

Paper       Bietti et al., "Personalization Improves Privacy-Accuracy Tradeoffs in Federated Learning", ICML 2022; here
            as the baseline of Guo et al., AAAI 2025 (HyperFL), with noise at the clients (unit=example). unit=client:
            a trusted server adds the noise, as in the original.
Symbols     C clip, sigma noise_multiplier, B batch.
Down        extractor.*
Up          extractor.* after local training; with unit=client the received one plus the clipped change, and with
            quantile also whether the change was within the bound (`flfw.dp.quantile`).
Private     classifier.*, kept by the client from round to round; it never leaves, so it takes no noise.
Client      clients/ppsgd.py
A probe     the noisy mean of the extractor's clipped gradients, with the head as it is.
Claims      unit=client: for clients, against all but the server. unit=example: none, though the comparison has one: the
            head moves on the same examples without noise, and shapes the gradients of all of them.
Departures  1. those of dp_fedavg.
            2. The authors of HyperFL step the head and then backpropagate through the graph from before that step,
               which torch refuses. Here the second step has its own forward pass.
            3. The original adds a personal model to a shared one and bounds both gradients jointly; here, as in
               HyperFL's comparison, the personal part is the head.

    client k, for each batch of E passes:  head <- SGD step;  extractor <- noisy SGD step with the new head
    server:                                extractor <- sum_k n_k extractor_k / sum_k n_k
"""

from typing import final

from flfw.dp.settings import PrivateHeadSettings
from flfw.dp.strategy import EitherUnitStrategy


@final
class PPSGD(EitherUnitStrategy):
    """Averaging of extractors."""

    Settings = PrivateHeadSettings
    downloads = ("extractor.*",)
    uploads = ("extractor.*",)
