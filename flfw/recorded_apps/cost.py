"""Cost of a searching attack on an update, estimated before it begins: memory and seconds."""

import copy
import time
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw.adversary.attack import Attack
from flfw.bounds import BoundedSettings, PositiveFloat, PositiveInt
from flfw.errors import InputError, require
from flfw.nets.inputs import InputSpec
from flfw.recorded_apps.knowledge import MOST_STEPS

_BYTES = 4  # of a number
_KEPT = 3  # numbers that an iteration keeps for each activation of a step; graphs of searches need 1 to 5
_COPIES = 4  # of the parameters, beside one for each step
_LONGER = 4  # an iteration over the gradient's computation: a gradient of a gradient
_TIMED = 32  # examples of the step that is timed


@final
@dataclass(frozen=True)
class SearchLimits(BoundedSettings):
    """Limits of the searches of an audit.

    Attributes:
        most_steps: largest number of local steps through which an attack searches; with more, it attacks their mean
            gradient.
        sample: search for so many of a client's examples only, drawn at random, which counts as static; None: for all.
        seconds: longest estimated time of an attack on the updates of a round; a longer one is refused.
    """

    most_steps: PositiveInt = MOST_STEPS
    sample: int | None = None
    seconds: PositiveFloat = 4 * 3600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.sample is None or self.sample >= 1, "sample >= 1 or None", sample=self.sample)


@final
@dataclass(frozen=True)
class SearchCost:
    """Cost of a search.

    Attributes:
        bytes: memory of an iteration of one search.
        seconds: time of all searches on this machine.
    """

    bytes: float
    seconds: float

    @property
    def words(self) -> str:
        """The cost in words."""
        hours = f"{self.seconds / 3600:.1f} hours" if self.seconds > 7200 else f"{self.seconds:.0f} s"
        return f"about {self.bytes / 1e9:.2g} GB and {hours}"


@final
class CostEstimate:
    """Costs of searches on a network, from its activations and from the time of one training step.

    Args:
        net: the network.
        inputs: the input space.
    """

    def __init__(self, net: nn.Module, inputs: InputSpec) -> None:
        model = copy.deepcopy(net).eval()
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._activations = _activations(model, inputs)
        self._seconds = _step_seconds(model, inputs)

    def of_search(self, attack: Attack, batch: int, steps: int, victims: int) -> SearchCost:
        """Estimate the cost of an attack.

        Args:
            attack: the attack; without iterations it costs nothing.
            batch: examples that are searched for.
            steps: local steps through which it searches.
            victims: number of updates.
        """
        cost = attack.cost
        if not cost.iterations:
            return SearchCost(0.0, 0.0)
        numbers = steps * (_KEPT * self._activations * batch + self._parameters) + _COPIES * self._parameters
        each = self._seconds * max(1.0, batch / _TIMED) * steps * _LONGER
        return SearchCost(_BYTES * numbers, each * cost.iterations * cost.restarts * victims)


def bearable(cost: SearchCost, attack: Attack, limits: SearchLimits) -> bool:
    """Return whether a search fits into the attack's memory and the limit of its time."""
    return cost.bytes <= attack.compute.memory_gb * 1e9 and cost.seconds <= limits.seconds


def refuse(cost: SearchCost, name: str, attack: Attack, batch: int, limits: SearchLimits) -> None:
    """Refuse an attack that costs too much.

    Raises:
        InputError: its memory or time is above the limits.
    """
    if not bearable(cost, attack, limits):
        most = f"{attack.compute.memory_gb:g} GB and {limits.seconds:.0f} s for the updates of a round"
        raise InputError(
            f"Expected an attack within {most}, got {name} on {batch} examples: {cost.words} are estimated; pass "
            "SearchLimits(sample=N) to search for N of them, audit fewer victims, or raise the limit."
        )


def _activations(model: nn.Module, inputs: InputSpec) -> int:
    """Count the numbers that the layers give for one example."""
    numbers = 0

    def count(module: nn.Module, given: tuple[Tensor, ...], result: object) -> None:
        nonlocal numbers
        numbers += result.numel() if isinstance(result, Tensor) else 0

    hooks = [m.register_forward_hook(count) for m in model.modules() if not list(m.children())]
    with torch.no_grad():
        model(inputs.normalise(torch.zeros(1, *inputs.shape)))
    for hook in hooks:
        hook.remove()
    return numbers


def _step_seconds(model: nn.Module, inputs: InputSpec) -> float:
    """Measure the time of a gradient; the first one only prepares."""
    x = inputs.normalise(torch.full((_TIMED, *inputs.shape), 0.5))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    times = []
    for _ in range(3):
        started = time.perf_counter()
        scores = model(x)
        loss = cross_entropy(scores, torch.zeros(_TIMED, dtype=torch.int64))
        torch.autograd.grad(loss, parameters, allow_unused=True)
        times.append(time.perf_counter() - started)
    return min(times)
