"""The adaptation to a defence nobody has written one for: the defence's own code stands inside the objective."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal, Protocol, TypeAlias, final

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from flfw.inversion.compute import Compute
from flfw.inversion.descent import Evaluate
from flfw.inversion.evaluation import Evaluation, fitting
from flfw.inversion.graph import Graph
from flfw.inversion.matching import inner
from flfw.inversion.objective import Given, Guess, Objective
from flfw.nets.net import Tensors

Nature: TypeAlias = Literal["fixed", "unbiased", "random"]

_STEP = 0.3
_FAITHFUL = (0.5, 2.0)


class Defends(Protocol):
    """The hooks of `flfw.defence.Defence`, of which two act on gradients."""

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors: ...  # noqa: D102
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors: ...  # noqa: D102


@final
class Automatic:
    """A defence as something to differentiate through.

    Where the defence's own derivative tells how it responds, that is used. Where it does not, as with rounding, whose
    derivative is 0, or with code that leaves the graph, the defence is passed straight through: forward it is what it
    is, backward the identity (Bengio et al., arXiv 1308.3432). What a random defence sends is averaged over fresh
    draws before it is compared; one whose mean is what went in, noise without a bound, is the identity then.

    Args:
        defence: as the client has it.
        draws: of its randomness in each step, >= 2.
        factor: what the defence acts on, over what is compared; not 0.
        finished: whether what is attacked has passed through `update`, as what is sent has; a single step has not.
        deviations: of what is random in each tensor, where it is known; see `counting`.
    """

    def __init__(
        self,
        defence: Defends,
        draws: int = 16,
        factor: float = 1.0,
        finished: bool = True,
        deviations: Tensors | None = None,
    ) -> None:
        self.defence, self.draws, self._factor, self._finished = defence, draws, factor, finished
        self.deviations = deviations

    @property
    def noise(self) -> float | None:
        """As of a `flfw.victims.operator.Operator`: 1 where what is left is counted in deviations."""
        return None if self.deviations is None else 1.0

    def counting(self, deviations: Tensors) -> Automatic:
        """The same, with what is left of a trial counted in deviations, a positive one for each tensor by its name."""
        return Automatic(self.defence, self.draws, self._factor, self._finished, deviations)

    def left(self, found: Tensors, observed: Tensors) -> Tensors:
        """What a distance is to compare with what was sent."""
        if self.deviations is None:
            return found
        return {n: value + (found[n] - value) / self.deviations[n] for n, value in observed.items()}

    def sent(self, trial: Tensors, rng: torch.Generator, *, faithful: bool, nature: Nature = "fixed") -> Tensors:
        """What the client would have sent, in the mean over its randomness; differentiable in ``trial``.

        Args:
            trial: the gradient of a guess.
            rng: of the defence's randomness.
            faithful: whether the defence's own derivative is used.
            nature: as `nature` found it.
        """
        if nature == "unbiased":
            return dict(trial)
        several = [self.defended(trial, rng) for _ in range(1 if nature == "fixed" else self.draws)]
        defended = {name: torch.stack([one[name] for one in several]).mean(0) for name in trial}
        if faithful:
            return defended
        return {name: value + (defended[name] - value).detach() for name, value in trial.items()}

    def nature(self, at: Tensors, rng: torch.Generator) -> Nature:
        """Whether the defence is random and, if so, whether its mean is what goes in.

        Args:
            at: gradients at which to try, by name.
            rng: of the defence's randomness.
        """
        with torch.no_grad():
            several = [self.defended(at, rng) for _ in range(self.draws)]
            each = {name: torch.stack([one[name] for one in several]) for name in at}
            spread = torch.stack([value.var(0).sum() for value in each.values()]).sum()
            off = torch.stack([((each[name].mean(0) - value) ** 2).sum() for name, value in at.items()]).sum()
        if not bool(spread > 0):
            return "fixed"
        # The mean of so many draws is off by this much by chance.
        return "unbiased" if bool(off < 2 * spread / self.draws) else "random"

    def is_faithful(self, at: Tensors, rng: torch.Generator) -> bool:
        """Whether the defence's derivative foretells its response to a change of a third of each tensor's deviation.

        Args:
            at: gradients at which to try, by name.
            rng: of the change and of the defence's randomness, which is the same before and after.
        """
        change = changed(at, rng)
        state = rng.get_state()
        with torch.no_grad():
            up, down = (self.defended({n: v + way * change[n] for n, v in at.items()}, again(state)) for way in (1, -1))
        response = {name: (up[name] - down[name]) / 2 for name in at}
        leaves = {name: value.detach().clone().requires_grad_() for name, value in at.items()}
        with torch.enable_grad():
            seen = inner(self.defended(leaves, again(state)), response)
        if not seen.requires_grad:
            return False
        pulled = torch.autograd.grad(seen, list(leaves.values()), allow_unused=True, materialize_grads=True)
        foretold = inner(dict(zip(leaves, pulled, strict=True)), change)
        low, high = (bound * inner(response, response) for bound in _FAITHFUL)
        return bool((low <= foretold) & (foretold <= high) & (high > 0))

    def defended(self, trial: Tensors, rng: torch.Generator) -> Tensors:
        """What the client would have sent, by its own code, in the units of the trial."""
        # New ones, for a defence may work in place; and where clients' tensors and generators are, on the CPU.
        own = {name: value.cpu() * self._factor for name, value in trial.items()}
        defence = deepcopy(self.defence)  # which may remember what it was called with
        found = defence.gradients(own, rng)
        found = defence.update(found, rng) if self._finished else found
        return {name: value.to(trial[name].device) / self._factor for name, value in found.items()}


@final
class Staged(Evaluation):
    """An objective with a defence's own code in it, in three stages, of which the second is the defence's.

    The gradient of the guess is one `Graph`. What the defence makes of it, how far that is from what was sent, and the
    slope of that distance are computed problem by problem. The slope is pulled back to the guess by a second `Graph`.

    Args:
        objective: of one problem, without a mechanism.
        automatic: the defence.
        guess: of one problem, for its shapes.
        given: of one problem.
        compute: what may be used.

    Raises:
        BadInput: one problem's step takes more memory than there may be.
    """

    def __init__(
        self, objective: Objective, automatic: Automatic, guess: Guess, given: Given, compute: Compute
    ) -> None:
        def pulled(at: Guess, fixed: Given, slope: Tensors) -> Tensor:
            return inner(objective.trial(at, fixed), slope)

        self._objective, self._automatic = objective, automatic
        self._trial = Graph(objective.trial, (guess, given), compute)
        self._pull = Graph(torch.func.grad(pulled), (guess, given, given["observed"]), compute)
        self._prior = vmap(grad_and_value(objective.weighed))
        sent = sum(value.numel() * value.element_size() for value in given["observed"].values())
        self.together = fitting(max(self._trial.bytes, self._pull.bytes) + 3 * sent, len(guess["x"]), compute)
        self._found: tuple[bool, Nature] | None = None  # of the first trial, for all

    def of(self, given: Given, rngs: Sequence[torch.Generator]) -> Evaluate:
        """The generators draw what is random in the defence."""
        observed = [{name: value[i] for name, value in given["observed"].items()} for i in range(len(rngs))]

        def evaluate(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
            trials = self._trial(guess, given)
            found = [
                self._slope({name: value[i] for name, value in trials.items()}, seen, rng)
                for i, (seen, rng) in enumerate(zip(observed, rngs, strict=True))
            ]
            slopes = {name: torch.stack([slope[name] for slope, _ in found]) for name in observed[0]}
            matched = torch.stack([one for _, one in found])
            gradients: dict[str, Any] = dict(self._pull(guess, given, slopes))
            slope, prior = self._prior(guess["x"], given)
            gradients["x"] = gradients["x"] + slope
            return gradients, matched + prior, matched

        return evaluate

    def _slope(self, trial: Tensors, observed: Tensors, rng: torch.Generator) -> tuple[Tensors, Tensor]:
        """The slope of the distance with respect to a trial, and that distance."""
        if self._found is None:
            self._found = self._automatic.is_faithful(trial, rng), self._automatic.nature(trial, rng)
        faithful, nature = self._found
        leaves = {name: trial[name].detach().requires_grad_() for name in observed}
        with torch.enable_grad():
            sent = self._automatic.sent(leaves, rng, faithful=faithful, nature=nature)
            matched = self._objective.distance(self._automatic.left(sent, observed), observed)
            slopes = torch.autograd.grad(matched, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, slopes, strict=True)), matched.detach()


def changed(at: Tensors, rng: torch.Generator) -> Tensors:
    """A random change by a third of each tensor's deviation: coarser than what a compressor rounds to."""
    return {n: _STEP * v.std(correction=0) * _drawn(v, rng) for n, v in at.items()}


def again(state: Tensor) -> torch.Generator:
    """A generator that draws what another one drew from a state on."""
    rng = torch.Generator()
    rng.set_state(state)
    return rng


def _drawn(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=rng, device=rng.device).to(like.device)
