"""Budget of a site: the epsilon that all messages of one site may take together, over all runs and servers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from flfw.bounds import BoundedSettings, OpenShare, PositiveFinite
from flfw.errors import InputError, OneLine, require
from flfw.privacy.mechanism import Mechanism, Unit

Metrics: TypeAlias = Literal["all", "private", "none"]
METRICS: tuple[Metrics, ...] = get_args(Metrics)
"""Numbers beside the tensors that may leave; each word allows those after it, too."""

PRIVATE_METRICS = ("loss", "acc_global", "acc_local", "acc_validation", "num-examples")
"""Names of the numbers that a client may report with metrics=private; each is noisy."""

BUDGET_REASON = "this site's budget: "
"""Beginning of every refusal for a budget, which holds no word of an exception."""


class BudgetExceededError(OneLine, RuntimeError):
    """Error: a site does not answer, since its budget does not allow it or the answer cannot be counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(BUDGET_REASON + reason)


@dataclass(frozen=True)
class EpsilonBudget(BoundedSettings):
    """Epsilon that a site gives away at most.

    Attributes:
        epsilon: > 0, finite.
        delta: probability in (0, 1) with which epsilon may fail.
        unit: whose presence is protected; a site is one client.
        patient_examples: largest number of examples of a patient, >= 1; counts for unit=patient alone.
    """

    epsilon: PositiveFinite
    delta: OpenShare = 1e-5
    unit: Unit = "example"
    patient_examples: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.unit != "patient" or self.patient_examples >= 1
        require(known, "patient_examples >= 1 with unit=patient", patient_examples=self.patient_examples)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g} for one {self.unit}"

    def copies(self, mechanism: Mechanism, examples: int, repeated: int) -> int:
        """Return how many clipped vectors of one unit can be in a sum of the site's.

        Args:
            mechanism: of a message.
            examples: number of the site's training examples.
            repeated: largest number of times that the same example is among them.
        """
        of_unit = mechanism.vectors(self.unit, self.patient_examples if self.unit == "patient" else examples)
        return of_unit if mechanism.clipped == "client" or self.unit == "client" else of_unit * repeated

    def to_node_config(self, ledger: Path) -> dict[str, str]:
        """Return the entries of the site's node config that name the budget and the ledger's path."""
        words = (repr(self.epsilon), repr(self.delta), self.unit, str(self.patient_examples))
        return {"budget": " ".join(words), "ledger": str(ledger)}


def budgeted(node_config: Mapping[str, Any]) -> tuple[EpsilonBudget, Path] | None:
    """Return the budget and the ledger's path of a node config, which no server can change; None: no budget."""
    if "budget" not in node_config:
        return None
    words, ledger = str(node_config["budget"]), node_config.get("ledger")
    form = "budget as EPSILON DELTA UNIT PATIENT_EXAMPLES and a ledger in the node config"
    try:
        epsilon, delta, unit, patient_examples = words.split()
        known: Any = unit
        numbers = float(epsilon), float(delta), int(patient_examples)
    except ValueError:
        raise InputError(f"Expected {form}, got budget={words}; the site's guard writes both.") from None
    require(isinstance(ledger, str) and bool(ledger) and "\0" not in ledger, form, ledger=ledger)
    return EpsilonBudget(numbers[0], numbers[1], known, numbers[2]), Path(str(ledger))
