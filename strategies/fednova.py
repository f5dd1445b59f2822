"""FedNova: FedAvg of normalised changes, in which a client does not count for more because it makes more local steps.

Paper       Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS
            2020, arXiv 2007.07481.
Symbols     x the server's model, x_i a client's, p_i = n_i / sum_j n_j, tau_i local steps, eta the learning rate, rho
            the momentum, mu the proximal weight, alpha = eta mu; a_i the weights of a client's gradients in x - x_i.
Down        all tensors of the model, x.
Up          all tensors of the model after local training, x_i; beside them, as a metric, tau_i.
Private     nothing.
Client      clients/fednova.py: counts its steps, and adds mu/2 ||x_i - x||^2 to the loss.
A probe     one gradient of the whole model; the proximal term has none at the broadcast model. (a_i of one step is 1.)
Departures  1. The server computes ||a_i||_1 from tau_i, by the paper's closed forms, so that a client sends one number.
               There is one for momentum and one for the proximal term, none for both, which are refused together.
            2. tau_eff = sum_i p_i ||a_i||_1 in all cases: equal clients make FedAvg, or FedProx. The authors' code
               takes sum_i p_i tau_i with the proximal term: tau_eff=steps.
            3. The server's own momentum is left out. Weight decay counts as a part of the loss.
            4. Buffers (BatchNorm's statistics) follow no gradient: their weighted mean is taken.

    client i:  x_i <- tau_i local steps from x;  send x_i, tau_i
    server:    ||a_i||_1 = tau_i;  with rho: (tau_i - rho (1 - rho^tau_i) / (1 - rho)) / (1 - rho)
                                   with mu:  (1 - (1 - alpha)^tau_i) / alpha
               x <- x + tau_eff sum_i p_i (x_i - x) / ||a_i||_1
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, final

from flfw.bounds import NonNegativeFloat
from flfw.errors import require
from flfw.messages.replies import UnusableReplyError
from flfw.nets import Tensors
from flfw.nets.training.local_steps import LocalSteps
from flfw.nets.training.optimisers import LocalTraining
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


@dataclass(frozen=True)
class FedNovaSettings(LocalTraining):
    """Settings of local SGD, with momentum or with the proximal term, and the length of the server's step."""

    momentum: float = 0.0  # rho, in [0, 1); 0 where mu is not
    mu: NonNegativeFloat = 0.0  # weight of the proximal term
    tau_eff: Literal["norm", "steps"] = "norm"  # the server's step: sum_i p_i ||a_i||_1, or sum_i p_i tau_i

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.optimiser == "sgd", "optimiser=sgd, which has a closed form", optimiser=self.optimiser)
        both = self.mu > 0 and self.momentum > 0
        require(not both, "momentum=0 with mu, of both together there is no closed form", momentum=self.momentum)

    def norm(self, steps: int, lr: float) -> float:
        """Compute ||a_i||_1 of so many local steps, >= 1.

        >>> [FedNovaSettings(momentum=0.5).norm(steps, 0.1) for steps in (1, 2, 3)]
        [1.0, 2.5, 4.25]
        >>> FedNovaSettings(mu=2.0).norm(3, 0.25)
        1.75
        """
        if rho := self.momentum:
            return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        alpha = lr * self.mu
        return (1 - (1 - alpha) ** steps) / alpha if alpha else float(steps)


@final
class FedNova(FederatedStrategy):
    """Averaging of normalised changes."""

    Settings = FedNovaSettings
    downloads = ("*",)
    uploads = ("*",)
    needed_metric = "steps"

    @classmethod
    def local_steps(cls, settings: FedNovaSettings, lr: float, steps: int) -> LocalSteps | None:
        """Describe steps of the optimiser on the loss with the proximal term."""
        plain = settings.steps_at(lr, steps)
        return replace(plain, proximal=settings.mu) if plain else None

    def check_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Refuse an update without its tau_i."""
        steps = metrics.get("steps")
        if not (isinstance(steps, int) and steps >= 1):
            raise UnusableReplyError(f"expected steps >= 1, got {steps}")

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Add tau_eff times the mean of the clients' normalised changes."""
        x, lr, lengths = self.last_broadcast, self.require_context.local.lr, []
        moving = {name for name, _ in self.require_context.blank.named_parameters()}

        def normalised() -> Iterator[Update]:
            for update in updates:
                tau = update.metrics["steps"]
                norm = self.settings.norm(tau, lr)
                lengths.append((update.examples, norm if self.settings.tau_eff == "norm" else tau))
                changes = {n: (v.double() - x[n].double()) / norm for n, v in update.tensors.items() if n in moving}
                yield replace(update, tensors={**update.tensors, **changes})

        mean = weighted_mean(normalised())
        tau_eff = sum(n * length for n, length in lengths) / sum(n for n, _ in lengths)
        moved = {n: (x[n].double() + tau_eff * mean[n]).to(x[n].dtype) for n in moving}
        return {**mean, **moved}
