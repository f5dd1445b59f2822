"""Automatic adaptation to a defence without a written one: the defence's own code stands inside the objective."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal, Protocol, TypeAlias, final

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from flfw.inversion.client_models.operator import AsOffset
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.evaluation import Evaluation, fitting
from flfw.inversion.graph import Graph
from flfw.inversion.matching import Given, Guess, Objective, inner
from flfw.inversion.search_optimisers import Evaluate
from flfw.nets.net import Tensors

Nature: TypeAlias = Literal["fixed", "unbiased", "random"]

_STEP = 0.3
_ROUNDING = 1e-6  # squared, of float32 sums relative to their terms, with a margin
_FAITHFUL = (0.5, 2.0)


class Defends(Protocol):
    """The hooks of `flfw.task.defence.Defence`, of which two act on gradients."""

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors: ...  # noqa: D102
    def update(self, update: Tensors, rng: torch.Generator) -> Tensors: ...  # noqa: D102


@final
class DifferentiableDefence:
    """Differentiable wrapper of a defence.

    The defence's own derivative is used where it predicts the defence's response. Rounding has derivative 0, and other
    code may leave the graph: then a straight-through estimator is used (Bengio et al., arXiv 1308.3432), with the
    defence in the forward pass and the identity in the backward pass. The output of a random defence is averaged over
    fresh draws before it is compared. An unbiased defence, such as noise without a bound, is then the identity.

    Args:
        defence: the client's defence.
        draws: draws of its randomness in each step, >= 2.
        factor: the scale of the defence's input over the scale of the compared tensors; not 0.
        finished: whether the attacked tensors passed through `update`, as an upload has; a single step has not.
        stds: standard deviation of the noise in each tensor, where it is known; see `counting`.
        origin: what is subtracted from both sides before they are compared; None: nothing. See `from_origin`.
    """

    def __init__(
        self,
        defence: Defends,
        draws: int = 16,
        factor: float = 1.0,
        finished: bool = True,
        stds: Tensors | None = None,
        origin: Tensors | None = None,
    ) -> None:
        self.defence, self.draws, self._factor, self._finished = defence, draws, factor, finished
        self.stds, self.origin = stds, origin

    @property
    def noise(self) -> float | None:
        """1 where the residual is counted in deviations, else None; see `Operator.noise`."""
        return None if self.stds is None else 1.0

    @property
    def undoing(self) -> AsOffset | None:
        """The operator that subtracts the origin from an observation; None: there is none."""
        return None if self.origin is None else AsOffset(self.origin)

    def counting(self, stds: Tensors) -> DifferentiableDefence:
        """Return a copy that counts a trial's residual in deviations, positive tensors by name."""
        return self._with(stds=stds)

    def from_origin(self, origin: Tensors) -> DifferentiableDefence:
        """Return a copy that compares differences from some output of the defence, tensors by name."""
        return self._with(origin=origin)

    def _with(self, **changes: Tensors) -> DifferentiableDefence:
        known = {"stds": self.stds, "origin": self.origin, **changes}
        return DifferentiableDefence(self.defence, self.draws, self._factor, self._finished, **known)

    def left(self, defended: Tensors, observed: Tensors) -> Tensors:
        """Return the tensors that a distance compares with the observation, from which `undoing` took the origin."""
        if self.origin is not None:
            defended = {n: value - self.origin[n] for n, value in defended.items()}
        if self.stds is None:
            return defended
        return {n: value + (defended[n] - value) / self.stds[n] for n, value in observed.items()}

    def sent(self, simulated: Tensors, rng: torch.Generator, *, faithful: bool, nature: Nature = "fixed") -> Tensors:
        """Compute the client's simulated upload, averaged over its randomness; differentiable in ``simulated``.

        Args:
            simulated: the gradient of a guess.
            rng: generator of the defence's randomness.
            faithful: whether the defence's own derivative is used.
            nature: the result of `nature`.
        """
        if nature == "unbiased":
            return dict(simulated)
        samples = [self.defended(simulated, rng) for _ in range(1 if nature == "fixed" else self.draws)]
        defended = {name: torch.stack([one[name] for one in samples]).mean(0) for name in simulated}
        if faithful:
            return defended
        return {name: value + (defended[name] - value).detach() for name, value in simulated.items()}

    def nature(self, at: Tensors, rng: torch.Generator) -> Nature:
        """Return whether the defence is random and, if so, whether it is unbiased.

        Its mean output is compared with the input. Large noise would hide what else the defence does, such as a bound
        or a permutation. So the outputs for opposite inputs are subtracted as well, with equal random numbers for both:
        there noise that is added cancels.

        Args:
            at: gradients for the test, by name.
            rng: generator of the defence's randomness.
        """
        with torch.no_grad():
            states, samples = [], []
            for _ in range(self.draws):
                states.append(rng.get_state())
                samples.append(self.defended(at, rng))
            spread, off = _spread_and_offset(samples, at, 1.0)
            if not bool(spread > 0):
                return "fixed"
            opposite = {name: -value for name, value in at.items()}
            others = [self.defended(opposite, again(state)) for state in states]
            gaps = [{n: one[n] - other[n] for n in at} for one, other in zip(samples, others, strict=True)]
            gap_spread, gap_off = _spread_and_offset(gaps, at, 2.0)
            size = torch.stack([(value**2).sum() for value in at.values()]).sum()
            rounding = _ROUNDING * (size + spread)
        # The mean of this number of draws deviates by this much by chance.
        straight = off < 2 * spread / self.draws
        return "unbiased" if bool(straight & (gap_off <= 2 * gap_spread / self.draws + rounding)) else "random"

    def is_faithful(self, at: Tensors, rng: torch.Generator) -> bool:
        """Return whether the defence's derivative predicts its response to a change of a third of each deviation.

        Args:
            at: gradients for the test, by name.
            rng: generator of the change and of the defence's randomness, which is the same before and after.
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

    def defended(self, simulated: Tensors, rng: torch.Generator) -> Tensors:
        """Compute the client's simulated upload with the defence's own code, in the units of the trial."""
        # New tensors, because a defence may work in place; on the CPU, like clients' tensors and generators.
        gradients = {name: value.cpu() * self._factor for name, value in simulated.items()}
        defence = deepcopy(self.defence)  # a copy, because a defence may keep state between calls
        output = defence.gradients(gradients, rng)
        output = defence.update(output, rng) if self._finished else output
        return {name: value.to(simulated[name].device) / self._factor for name, value in output.items()}


@final
class Staged(Evaluation):
    """Objective that contains a defence's own code, in three stages; the defence is the second.

    The gradient of the guess is one `Graph`. The defence's output, its distance from the observation and the slope of
    that distance are computed problem by problem. A second `Graph` pulls the slope back to the guess.

    Args:
        objective: the objective of one problem, without a mechanism.
        defence_model: the defence.
        guess: the guess of one problem, for its shapes.
        given: the constants of one problem.
        compute: limits of memory, and compilation.

    Raises:
        InputError: one problem's step takes more memory than allowed.
    """

    def __init__(
        self,
        objective: Objective,
        defence_model: DifferentiableDefence,
        guess: Guess,
        given: Given,
        compute: ComputeLimits,
    ) -> None:
        def pulled(at: Guess, fixed: Given, slope: Tensors) -> Tensor:
            return inner(objective.trial(at, fixed), slope)

        self._objective, self._automatic = objective, defence_model
        self._trial = Graph(objective.trial, (guess, given), compute)
        self._pull = Graph(torch.func.grad(pulled), (guess, given, given["observed"]), compute)
        self._prior = vmap(grad_and_value(objective.weighed))
        sent = sum(value.numel() * value.element_size() for value in given["observed"].values())
        self.together = fitting(max(self._trial.bytes, self._pull.bytes) + 3 * sent, len(guess["x"]), compute)
        self._found: tuple[bool, Nature] | None = None  # of the first trial, for all

    def prepare(self, given: Given, rngs: Sequence[torch.Generator]) -> Evaluate:
        """Return the evaluation of P problems; the generators draw the defence's randomness."""
        observed = [{name: value[i] for name, value in given["observed"].items()} for i in range(len(rngs))]

        def evaluate(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
            trials = self._trial(guess, given)
            results = [
                self._slope({name: value[i] for name, value in trials.items()}, seen, rng)
                for i, (seen, rng) in enumerate(zip(observed, rngs, strict=True))
            ]
            slopes = {name: torch.stack([slope[name] for slope, _ in results]) for name in observed[0]}
            matched = torch.stack([one for _, one in results])
            gradients: dict[str, Any] = dict(self._pull(guess, given, slopes))
            slopes, prior = self._prior(guess, given)
            gradients = {name: gradient + slopes[name] for name, gradient in gradients.items()}
            return gradients, matched + prior, matched

        return evaluate

    def _slope(self, simulated: Tensors, observed: Tensors, rng: torch.Generator) -> tuple[Tensors, Tensor]:
        """Compute the slope of the distance with respect to a trial, and the distance."""
        if self._found is None:
            self._found = self._automatic.is_faithful(simulated, rng), self._automatic.nature(simulated, rng)
        faithful, nature = self._found
        leaves = {name: simulated[name].detach().requires_grad_() for name in observed}
        with torch.enable_grad():
            sent = self._automatic.sent(leaves, rng, faithful=faithful, nature=nature)
            matched = self._objective.distance(self._automatic.left(sent, observed), observed)
            slopes = torch.autograd.grad(matched, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, slopes, strict=True)), matched.detach()


def changed(at: Tensors, rng: torch.Generator) -> Tensors:
    """Draw a random change by a third of each tensor's deviation; it is coarser than a compressor's rounding step."""
    return {n: _STEP * v.std(correction=0) * _drawn(v, rng) for n, v in at.items()}


def _spread_and_offset(samples: Sequence[Tensors], at: Tensors, factor: float) -> tuple[Tensor, Tensor]:
    """Return the summed variance of tensors, and the squared distance of their mean from ``factor * at``."""
    each = {name: torch.stack([one[name] for one in samples]) for name in at}
    spread = torch.stack([value.var(0).sum() for value in each.values()]).sum()
    off = torch.stack([((each[name].mean(0) - factor * value) ** 2).sum() for name, value in at.items()]).sum()
    return spread, off


def again(state: Tensor) -> torch.Generator:
    """Return a generator that repeats the draws of another generator from its saved state on."""
    rng = torch.Generator()
    rng.set_state(state)
    return rng


def _drawn(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=rng, device=rng.device).to(like.device)
