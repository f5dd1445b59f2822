"""pFedHN-PC: pFedHN whose clients keep a classifier of their own above the generated extractor.

Paper       Shamsian et al., "Personalized Federated Learning using Hypernetworks", ICML 2021, arXiv 2103.04628, section
            3.3; as Guo et al., AAAI 2025, arXiv 2412.07187, compare HyperFL with it.
Symbols     those of strategies/pfedhn.py; theta_i is the extractor, omega_i the classifier of client i.
Down        extractor.*, theta_i: each client gets its own.
Up          extractor.* after local training.
Private     classifier.* and its optimiser's memory, kept by the client from round to round. The server keeps phi, all
            v_i and their velocities, which are never sent.
Client      clients/pfedhn.py, which trains both parts together, each by an optimiser of its own.
A probe     one gradient of the extractor, with the classifier as it is.
Attacks     theta_i is known and omega_i is not: what an attacker sees is what it sees of FedPer.
Departures  All of strategies/pfedhn.py. server_lr is that of pFedHN, 0.01; --variant authors has the authors' 0.05,
            which is for rounds of one client (--sample 1) and diverges in sequential steps of ten. The classifier is
            that of the network, one linear layer in CNN 1 and CNN 2; all start from the same one, by the run's seed. As
            in the authors' code its gradient is not clipped, and its momentum goes on from round to round, while the
            extractor's begins anew.

    server:    send theta_i = h(v_i; phi) to each client i of the round
    client i:  theta, omega_i <- E epochs of SGD from theta_i, omega_i;  send theta
    server:    delta_i = theta_i - theta;  phi, v_1 ... v_n <- the step of pFedHN
"""

from typing import ClassVar, final

from flfw.server.hypernetwork import HypernetworkServer, ServerHypernetworkTraining


@final
class PFedHNPC(HypernetworkServer):
    """Generation of extractors."""

    Settings = ServerHypernetworkTraining
    variants: ClassVar = {
        "authors": {"server_step": "sequential", "momentum": "0.9", "weight_decay": "5e-5", "server_lr": "5e-2"}
    }
    client = "pfedhn"
    downloads = ("extractor.*",)
    uploads = ("extractor.*",)
