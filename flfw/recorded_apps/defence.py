"""Defence of a foreign app's clients: a name alone, or a defence that does to updates what theirs does.

Of a name alone nothing is known, so that no failure of an attack counts. A defence with its settings can be held
against the recorded messages, known to the attacker, and left out in the controls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from flfw import plugins
from flfw.audit.adaptation import in_words, written_operator
from flfw.errors import InputError, require
from flfw.inversion.client_models.operator import Operator
from flfw.nets.net import Tensors
from flfw.rng import torch_generator
from flfw.task.defence import Defence
from flfw.task.pipeline import DefencePlan, DefenceStage, Pipeline, PipelineSettings


@final
@dataclass(frozen=True)
class DescribedDefence:
    """Defence of the clients.

    Attributes:
        name: for the report; ``none``: they use none.
        stages: the defence with its settings; empty: only its name is known.
    """

    name: str = "none"
    stages: tuple[DefenceStage, ...] = ()

    @classmethod
    def of(cls, given: str | Defence) -> DescribedDefence:
        """Take a defence from the argument of an audit.

        Raises:
            InputError: the defence does not act on updates alone, or no adaptation is written for it.
        """
        if isinstance(given, str):
            return cls(given)
        require(isinstance(given, Defence), "a name, or a defence with its settings", defence=type(given).__name__)
        name = type(given).__module__.rpartition(".")[2]
        if name not in plugins.names(plugins.DEFENCE):
            name = f"{type(given).__module__}:{type(given).__qualname__}"
        described = cls(name, (DefenceStage(name, type(given), given.settings),))
        if given.active_hooks != {"update"} or described.operator() is None:
            known = "a defence on updates for which an adaptation is written, as for dp_gaussian, prune, low_precision"
            raise InputError(f"Expected {known}, got {name}; give its name alone, and attacks on it count as static.")
        return described

    @property
    def acts(self) -> bool:
        """True if the clients use a defence."""
        return self.name != "none"

    @property
    def known(self) -> bool:
        """True if its operation is known."""
        return bool(self.stages)

    @property
    def words(self) -> str:
        """Its name and settings."""
        return in_words(self.stages)

    def operator(self, factor: float = 1.0) -> Operator | None:
        """Return its model in an attack's objective; None: it is not known.

        Args:
            factor: the tensors that it acts on, divided by those that the attack compares.
        """
        return written_operator(DefencePlan(self.stages), "server", factor) if self.known else None

    def weakest(self) -> DescribedDefence | None:
        """Return it in its weakest form; None: it has none."""
        weak = Pipeline.weakest_settings(PipelineSettings(self.stages))
        return weak and DescribedDefence(self.name, weak.stages)

    def is_random(self, change: Tensors) -> bool:
        """Return whether it sends something else each time."""
        once, again = (self.applied(change, torch_generator(seed, "is it random")) for seed in (0, 1))
        return any(not torch.equal(value, again[name]) for name, value in once.items())

    def applied(self, change: Tensors, rng: torch.Generator) -> Tensors:
        """Return a change as the clients would send it."""
        defence = DefencePlan(self.stages).build()
        return change if defence is None else defence.update(change, rng)
