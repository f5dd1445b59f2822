"""What every attack is: a search for the data behind an observation, given some knowledge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from flfw.adversary.observation import Knowledge, Observation, Reconstruction
from flfw.inversion.compute import Compute
from flfw.plugins import NoSettings

Models: TypeAlias = frozenset[Literal["defence", "steps"]]
"""What can stand between the data and what is sent: a client-side defence, several local steps."""

Uses: TypeAlias = frozenset[Literal["public", "start", "uploads"]]
"""What an attack may ask for beside the observation: the public data; where all clients' private tensors begin, if the
method begins them alike; what a client uploaded in the round before it was probed."""

Private: TypeAlias = Literal["searched for", "searched for in part", "stood in for", "not needed"]
"""What becomes of tensors that a client keeps to itself."""


@dataclass(frozen=True)
class Budget:
    """What an attack spends; printed in the report.

    Attributes:
        iterations: steps of its search; 0 for a closed form.
        restarts: searches from different starts.
        selection: how the result is chosen among them, without the truth.
    """

    iterations: int
    restarts: int
    selection: str


class NotApplicable(RuntimeError):
    """The attack has no way to work on this network; the report says so, and it counts as a failure."""


class Attack(ABC):
    """Base of the attacks.

    Args:
        settings: the attack's hyper-parameters, an instance of ``Settings``.
        compute: what it may use of the machine.
    """

    Settings: ClassVar[type] = NoSettings
    models: ClassVar[Models] = frozenset()
    """What of it the attack makes use of when it is granted; the rest it takes to be absent."""
    tuned_on: ClassVar[str] = ""
    """The data by which its default settings were chosen, in words; empty: they are a paper's, or were not tried."""

    def __init__(self, settings: Any = None, compute: Compute | None = None) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.compute = compute or Compute()

    @property
    def uses(self) -> Uses:
        """What it asks for; nothing else of the kind is granted, or recorded for it. By default nothing."""
        return frozenset()

    @property
    def labels(self) -> str:
        """How it comes by the labels: ``given``, ``not used``, ``searched for``, or one of
        `flfw.inversion.closed_form.labels.WAYS` to recover them.

        Those that are not ``given`` are not granted.
        """
        return "given"

    def private(self, model: nn.Module, batch: int) -> Private:
        """What becomes of a client's private tensors.

        A search for them, or for what they make of the data, makes no use of what an architecture gives away, and
        counts as static, and so does what public data put in their place (``stood in for``). ``not needed`` is for an
        attack that reads all of it off what was sent, or does without.

        Args:
            model: of the client, with or without numbers in it.
            batch: examples in a probe.
        """
        return "searched for"

    def unused(self, uploads: Sequence[str], told: bool) -> str:
        """In words, what of all that it sees or is told it makes no use of; empty: nothing. Else it counts as static.

        Args:
            uploads: the tensors whose gradient is sent.
            told: whether it is told of a defence.
        """
        return ""

    @property
    @abstractmethod
    def budget(self) -> Budget:
        """What one run spends."""

    @abstractmethod
    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Reconstruct the data behind each observation.

        Args:
            observations: of one round and rung, so that a search may work on all of them at once.
            knowledge: what is granted about each.
            rngs: a generator for each, so that the result does not depend on what else is attacked.

        Raises:
            NotApplicable: the network gives this attack nothing to work on.
        """

    def presence(self, uploads: Sequence[Observation], model: nn.Module) -> list[Tensor | None]:
        """Which classes clients hold examples of, read off what they uploaded; by default nothing is said.

        Args:
            uploads: of a round, one for each client that took part.
            model: of the clients, for its names and layers; it holds no numbers.

        Returns:
            For each upload (classes,) of bool, or None.
        """
        return [None] * len(uploads)


def tuned_on(attacks: Mapping[str, Attack]) -> list[str]:
    """For the provenance: each attack whose defaults were chosen by results, and by whose."""
    return [f"{name}: {attack.tuned_on}" for name, attack in attacks.items() if attack.tuned_on]
