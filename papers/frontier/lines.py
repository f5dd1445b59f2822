"""Lines of the frontier: a method that protects a unit against an adversary, and the accuracy that its users get."""

from __future__ import annotations

from dataclasses import dataclass

from flfw.papers.preset import ResultMetric
from flfw.privacy.claims import Adversary, Unit

_TEST = {
    "shared": ResultMetric("final.acc_global", "accuracy of the shared model, mean over the clients' test data", 1),
    "own": ResultMetric("final.acc_local", "accuracy of each client's own model, mean over the clients' test data", 1),
}
_VALIDATION = {
    "shared": ResultMetric("final.acc_global_validation", "the same on validation data", 1),
    "own": ResultMetric("final.acc_validation", "the same on validation data", 1),
}


@dataclass(frozen=True)
class FrontierLine:
    """Method, unit and adversary.

    Attributes:
        method: name of the method.
        unit: the unit that it clips, and so protects.
        against: the strongest adversary against whom it claims something.
        settings: settings that make it protect this unit.
        personal: whether its users get a model of their own, with a private head, or the shared one.
        turns: cohorts into which the clients are divided, each in its turn; 1: all take part in every round.
    """

    method: str
    unit: Unit
    against: Adversary
    settings: tuple[str, ...] = ()
    personal: bool = False
    turns: int = 1

    @property
    def test(self) -> ResultMetric:
        """Accuracy on test data, which is reported."""
        return _TEST["own" if self.personal else "shared"]

    @property
    def validation(self) -> ResultMetric:
        """Accuracy on validation data, which chooses."""
        return _VALIDATION["own" if self.personal else "shared"]

    @property
    def epsilon(self) -> ResultMetric:
        """The true epsilon, as the ledger has it."""
        entry = f"privacy.unit={self.unit},adversary={self.against},accounting=exact.epsilon"
        return ResultMetric(entry, f"epsilon of one {self.unit} against {self.against}", 1)


_EXAMPLES = ("batches=poisson", "grouping=flat", "momentum=0", "weight_decay=0")
_CLIENTS = ("grouping=flat", "momentum=0", "weight_decay=0")

LINES = (
    FrontierLine("fed_cdp", "example", "server", _EXAMPLES),
    FrontierLine("dp_fedavg", "example", "server", ("unit=example", *_EXAMPLES)),
    FrontierLine("fed_sdp", "client", "server", ("noised_by=client", *_CLIENTS)),
    FrontierLine("dp_fedavg", "client", "another client", ("unit=client", *_CLIENTS)),
    FrontierLine("dp_ftrl", "client", "another client", ("bands=4", *_CLIENTS), turns=4),
    FrontierLine("centaur", "client", "another client", ("unit=client", *_CLIENTS), personal=True),
    FrontierLine("ppsgd", "client", "another client", ("unit=client", *_CLIENTS), personal=True),
)

WITHOUT = {
    "centaur and ppsgd, unit=example": "their head learns from the same examples without noise",
    "dssgd": "sending few entries protects nobody",
}
"""Private by name, and without a point: nothing is claimed, for the reason that stands beside."""
