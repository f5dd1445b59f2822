"""DP-FedAvg: FedAvg whose local steps are differentially private for examples; or central noise for clients.

Paper       unit=example: the baseline of Guo et al., AAAI 2025 (HyperFL), as its code has it, "ISRL-DP": Lowy and
            Razaviyayn, "Private Federated Learning Without a Trusted Server", ICLR 2023. unit=client: McMahan et al.,
            "Learning Differentially Private Recurrent Language Models", ICLR 2018.
Symbols     C clip, sigma noise_multiplier, B batch.
Down        all tensors of the model, w.
Up          all tensors of the model after local training, w_k; with unit=client w + the clipped w_k - w, and with
            quantile also whether the change was within the bound (`flfw.dp.quantile`).
Private     nothing.
Client      clients/dp_fedavg.py
A probe     the noisy mean of clipped gradients; with unit=client a clipped step, without noise.
Claims      unit=example: for examples, against everybody. unit=client: for clients, against all but the server.
Departures  1. The defaults are the authors' code's: an example's whole gradient clipped to 0.04 (not in the paper), and
               sigma = 10.63, which Opacus' RDP accountant gives for epsilon 4 in 1000 epochs of batches of 50 of 600.
               It counts Poisson batches; passes in shuffled order, as in the code, have a far larger epsilon:
               batches=poisson makes the count true.
            2. momentum and weight decay act after the noise.

    client k, for each batch of E passes:  w <- SGD step on 1/B (sum_j clip(g_j, C) + N(0, sigma^2 C^2))
    server:                                w <- sum_k n_k w_k / sum_k n_k
"""

from typing import final

from flfw.dp.settings import DPUnitSettings
from flfw.dp.strategy import EitherUnitStrategy


@final
class DPFedAvg(EitherUnitStrategy):
    """Averaging of whole models."""

    Settings = DPUnitSettings
    downloads = ("*",)
    uploads = ("*",)
