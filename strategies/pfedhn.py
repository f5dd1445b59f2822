"""pFedHN: a hypernetwork at the server generates each client's network, and learns from what training changes in it.

Paper       Shamsian et al., "Personalized Federated Learning using Hypernetworks", ICML 2021, arXiv 2103.04628; as
            Guo et al., AAAI 2025, arXiv 2412.07187, compare HyperFL with it.
Symbols     h hypernetwork, phi its parameters, v_i the embedding of client i (N(0,1)^d, d = int(1 + n/4)), theta_i =
            h(v_i; phi), m clients of a round, eta learning rate of the server, delta_i the change by local training.
Down        all tensors of the network, theta_i: each client gets its own, and nobody gets another's.
Up          all tensors after local training: as much as FedAvg's upload, 1/128 of HyperFL's.
Private     nothing at a client. The server keeps phi, all v_i and their velocities, which are never sent.
Client      clients/pfedhn.py
A probe     one gradient of the whole network, at the client's own theta_i.
Attacks     An attacker at the server or at the client knows theta_i: what it sees is what it sees of FedAvg.
Departures  The authors' code is that of github.com/AvivSham/pFedHN, 1bc0549. --variant authors undoes 2 and, beside lr
            and batches, 3.
            1. A round asks several clients with the same phi. The original draws one client, steps, draws the next:
               --sample 1.
            2. server_step=mean makes one step along the mean of the clients' gradients, with eta m, so that a round
               moves phi as far as m steps would, but for momentum; lr_scale=none leaves eta. server_step=sequential
               makes m steps in the order of the clients' numbers. Each takes the Jacobian where phi is then, but
               delta_i from the theta_i that was sent: with momentum 0.9 it may overshoot where eta m is 0.5 or more.
               Both count every client alike, whatever its number of examples.
            3. Local training is that of HyperFL's comparison: passes over shuffled data with momentum 0.5, weight decay
               5e-4 and lr as for the other methods. The original makes 50 steps on random batches of 64, with lr 5e-3,
               momentum 0.9 and weight decay 5e-5. Both clip a step's gradient to 50 and begin with no velocity.
            4. No validation data: accuracies are of the last round, the original's of the best validation step.
            5. The network is the one that the other methods train; the original's is a LeNet with 84 hidden units.
            6. Its data, two classes a client, are not a split here.

    server:    send theta_i = h(v_i; phi) to each client i of the round
    client i:  theta <- E epochs of SGD from theta_i;  send theta
    server:    delta_i = theta_i - theta;  g = 1/m sum_i (d h(v_i; phi) / d (phi, v_1 ... v_n))^T delta_i
               phi, v_1 ... v_n <- SGD step with eta m along g, clipped to 50; momentum 0.9 and weight decay 1e-3
                                  also move the embeddings of clients that were not asked
"""

from dataclasses import replace
from typing import ClassVar, final

from flfw.nets.training.local_steps import LocalSteps
from flfw.server.hypernetwork import HypernetworkServer, ServerHypernetworkTraining


@final
class PFedHN(HypernetworkServer):
    """Generation of whole networks."""

    Settings = ServerHypernetworkTraining
    variants: ClassVar = {"authors": {"server_step": "sequential", "momentum": "0.9", "weight_decay": "5e-5"}}

    @classmethod
    def local_steps(cls, settings: ServerHypernetworkTraining, lr: float, steps: int) -> LocalSteps | None:
        """Describe plain steps of the optimiser, clipped."""
        plain = settings.steps_at(lr, steps)
        return plain and replace(plain, clip=settings.clip)
