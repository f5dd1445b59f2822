"""The smallest run there is to audit, and attacks that guess one example behind each observation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sim
from flfw.adversary.attack import Attack, AttackCost
from flfw.experiment import Experiment
from flfw.recording.observation import Knowledge, Observation, Reconstruction

Observations = Sequence[Observation]
Generators = Sequence[torch.Generator]


def tiny(out: Path | None = None, **changes: Any) -> Experiment:
    """Ask for a run of a second: two clients, one round, two probes of softmax regression, the closed form."""
    usual = {"method": "fedavg", "net": "linear", "clients": 2, "rounds": 1, "local_epochs": 1, "images": 2}
    return Experiment(**{**usual, "attack": ("analytic",), "engine": "inproc", "out": out, **changes})


def result_of(folder: Path) -> dict[str, Any]:
    """Read the results of a run."""
    return json.loads((folder / "result.json").read_text())


def run_command(folder: Path, flags: str) -> dict[str, Any]:
    """Run what a command line asks for; its results."""
    assert sim.main([*flags.split(), "--out", str(folder)]) == 0
    return result_of(folder)


class WithoutSearch(Attack):
    """An attack that costs nothing."""

    @property
    def cost(self) -> AttackCost:
        """Nothing is searched for."""
        return AttackCost(0, 1, "closed form")


class ByGuess(WithoutSearch):
    """Guesses one example behind each observation."""

    def run(self, observations: Observations, knowledge: Sequence[Knowledge], rngs: Generators) -> list[Reconstruction]:
        """Ask for a guess at each."""
        each = zip(observations, knowledge, rngs, strict=True)
        return [Reconstruction(self.guess(o, k, rng).clone().view(1, *k.model.inputs.shape)) for o, k, rng in each]

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        """Give one example, in any shape of its size."""
        raise NotImplementedError


def plug_in(cls: type) -> str:
    """The name of a plug-in that a test defines."""
    return f"{cls.__module__}:{cls.__name__}"
