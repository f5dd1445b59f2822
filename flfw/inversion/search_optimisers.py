"""Optimisers of a search: Adam and L-BFGS on many problems at once, each with its own state.

No loop waits for the device in every step. The best guess of each problem so far, by its objective, is kept as a
tensor. The check for solved problems runs only once in a while.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import cos, inf, pi
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

from flfw.bounds import BoundedSettings, NonNegativeFloat, NonNegativeInt, PositiveFinite, PositiveInt, Share
from flfw.inversion.compute import steps
from flfw.inversion.matching import Guess
from flfw.inversion.priors import Proximal, within
from flfw.nets.net import Tensors

Evaluate: TypeAlias = Callable[[Guess], tuple[Tensors, Tensor, Tensor]]
"""Function of P stacked guesses: gradients by name, objectives (P,) and distances (P,)."""

_ASK = 50  # evaluations between two checks for unsolved problems
_CURVED = 1e-8  # least cosine of a step and the change of the gradient for the pair to be kept
_LOOKS, _PROGRESS = 4, 0.999  # a search that gained less than a thousandth in this number of checks is stuck
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@final
class Best:
    """Best guess of each problem so far, by its objective; guesses with a non-finite objective are dropped.

    Attributes:
        guess: the best guesses, stacked.
        objective: (P,), infinite where no finite value was seen.
        first: (P,) the objective at the start of the search.
        matched: (P,) the distance at the best guess.
        iterations: (P,) iterations done before a problem was solved.
    """

    def __init__(self, guess: Guess, solved: float) -> None:
        first = guess["x"]
        self.guess = {name: value.clone() for name, value in guess.items()}
        self.objective = torch.full((len(first),), torch.inf, device=first.device)
        self.matched = torch.full_like(self.objective, torch.inf)
        self.first = self.objective
        self.iterations = torch.zeros(len(first), dtype=torch.int64, device=first.device)
        self._solved = solved

    def see(self, guess: Guess, objective: Tensor, matched: Tensor) -> None:
        """Record the result of an evaluation."""
        if self.first is self.objective:  # the first evaluation
            self.first = objective.nan_to_num(nan=torch.inf)
        better = objective < self.objective  # False for NaN
        self.objective = torch.where(better, objective, self.objective)
        self.matched = torch.where(better, matched, self.matched)
        for name, value in guess.items():
            self.guess[name] = torch.where(_like(better, value), value, self.guess[name])

    def replace(self, other: Best, where: Tensor) -> None:
        """Take the guesses and distances of a search that went on from here, where a mask (P,) says so."""
        self.matched = torch.where(where, other.matched, self.matched)
        self.iterations = torch.where(where, self.iterations + other.iterations, self.iterations)
        for name, value in other.guess.items():
            self.guess[name] = torch.where(_like(where, value), value, self.guess[name])

    @property
    def unsolved(self) -> Tensor:
        """Mask (P,) of the problems whose distance is not yet below the threshold."""
        return self.matched > (self._solved if self._solved > 0 else -torch.inf)

    def count(self) -> None:
        """Count one more iteration for each unsolved problem."""
        self.iterations += self.unsolved

    def all_solved(self) -> bool:
        """Return whether all problems are solved; waits for the device."""
        return not bool(self.unsolved.any())


class SearchOptimiser(ABC):
    """Optimiser that moves a guess to a better one.

    Attributes:
        iterations: largest number of steps.
        candidates: guesses of each problem that it has evaluated at once, without gradients; 0: one, with gradients.
    """

    iterations: int
    candidates: int = 0

    def bind(self, labels: Tensor | None, rngs: Sequence[torch.Generator]) -> SearchOptimiser:
        """Return the optimiser for P problems; by default it needs neither labels nor randomness, and is itself.

        Args:
            labels: (P, B) of the examples; None: they are searched for.
            rngs: a generator for each problem.
        """
        return self

    @abstractmethod
    def descend(self, evaluate: Evaluate, guess: Guess, box: tuple[Tensor, Tensor] | None, solved: float) -> Best:
        """Search from stacked guesses.

        Args:
            evaluate: the objective of all guesses.
            guess: the starts; not changed.
            box: lower and upper bound of ``x`` in normalised units; None: no bounds.
            solved: a distance below which a problem is solved; the search ends once all are.
        """


@final
@dataclass(frozen=True)
class AdamSearch(BoundedSettings, SearchOptimiser):
    """Adam (Kingma and Ba, ICLR 2015), the same arithmetic as ``torch.optim.Adam``.

    Attributes:
        iterations: steps, >= 1.
        lr: first step size, in deviations of the normalised input, > 0.
        signed: follow the sign of the gradient with respect to ``x`` (other variables keep their gradient).
        schedule: ``step``: a tenth after each of ``drops``; ``cosine``: falls along half a wave; ``constant``.
        drops: fractions of the iterations.
        warmup: first steps, over which the step size rises linearly, >= 0.
        ball: each example of ``x`` stays in the L1 ball around its start whose radius is this multiple of the start's
            own L1 norm, >= 0; infinite: anywhere.
        proximal: step towards likelier data, between those of Adam and before the clamp; None: none.
        least: step size at the end of the wave, over the first one, in [0, 1].
    """

    iterations: PositiveInt
    lr: PositiveFinite
    signed: bool = False
    schedule: Literal["step", "cosine", "constant"] = "step"
    drops: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)
    warmup: NonNegativeInt = 0
    ball: NonNegativeFloat = inf
    proximal: Proximal | None = None
    least: Share = 0.0

    def bind(self, labels: Tensor | None, rngs: Sequence[torch.Generator]) -> AdamSearch:
        """Return the optimiser whose proximal step is for these problems."""
        return self if self.proximal is None else replace(self, proximal=self.proximal.bound(labels, rngs))

    def rate(self, done: int) -> float:
        """Return the step size after ``done`` steps."""
        highest = self.lr * min(1.0, (done + 1) / (self.warmup + 1))
        if self.schedule == "cosine":
            wave = (1 + cos(pi * done / self.iterations)) / 2
            return highest * (self.least + (1 - self.least) * wave)
        passed = sum(done >= max(1, int(fraction * self.iterations)) for fraction in self.drops)
        return highest * 0.1 ** (passed if self.schedule == "step" else 0)

    @torch.no_grad()
    def descend(self, evaluate: Evaluate, guess: Guess, box: tuple[Tensor, Tensor] | None, solved: float) -> Best:
        """Take Adam steps, each followed by a projection onto the ball and a clamp to the box."""
        guess = {name: value.clone() for name, value in guess.items()}
        if box:
            guess["x"].clamp_(*box)
        start = guess["x"].clone()
        best = Best(guess, solved)
        mean = {name: torch.zeros_like(value) for name, value in guess.items()}
        square = {name: torch.zeros_like(value) for name, value in guess.items()}
        for done in steps(self.iterations, early=solved > 0):
            gradients, objective, matched = evaluate(guess)
            best.see(guess, objective, matched)
            best.count()
            unbiased, unbiased_square = (1 - beta ** (done + 1) for beta in _BETAS)
            for name, value in guess.items():
                gradient = gradients[name].sign() if self.signed and name == "x" else gradients[name]
                mean[name].lerp_(gradient, 1 - _BETAS[0])
                square[name].mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
                scale = (square[name] / unbiased_square).sqrt_().add_(_EPSILON)
                value.addcdiv_(mean[name], scale, value=-self.rate(done) / unbiased)
            if self.ball < inf:
                guess["x"] = start + within(guess["x"] - start, self.ball * start.flatten(2).abs().sum(-1))
            if self.proximal and (done + 1) % self.proximal.every == 0:
                guess["x"] = self.proximal.moved(guess["x"], (done + 1) / self.iterations)
            if box:
                guess["x"].clamp_(*box)
            if solved > 0 and done % _ASK == _ASK - 1 and best.all_solved():
                return best
        _, objective, matched = evaluate(guess)
        best.see(guess, objective, matched)
        return best


@final
@dataclass(frozen=True)
class LBFGS(BoundedSettings, SearchOptimiser):
    """L-BFGS with steps of fixed length, the same as ``torch.optim.LBFGS`` without a line search and its tolerances.

    Each problem has its own history. A problem whose objective no longer falls, or whose gradient is no longer finite,
    stays where it is; its best guess counts. The search ends once all unsolved problems are stuck.

    Attributes:
        iterations: outer steps of ``inner`` evaluations each, >= 1.
        lr: step size, > 0.
        inner: evaluations in an outer step, >= 1.
        history: pairs of steps and gradient changes that are kept, >= 1.
    """

    iterations: PositiveInt = 300
    lr: PositiveFinite = 1.0
    inner: PositiveInt = 20
    history: PositiveInt = 100

    @torch.no_grad()
    def descend(self, evaluate: Evaluate, guess: Guess, box: tuple[Tensor, Tensor] | None, solved: float) -> Best:
        """Take steps along the directions of a `_Memory`."""
        best, memory = Best(guess, solved), _Memory(self.history)
        shapes = {name: value.shape for name, value in guess.items()}
        place = _flat({**guess, "x": guess["x"].clamp(*box)} if box else guess)
        earlier = [torch.full_like(best.objective, torch.inf)] * _LOOKS
        for done in steps(self.iterations * self.inner, early=True):
            guess = _named(place, shapes)
            gradients, objective, matched = evaluate(guess)
            best.see(guess, objective, matched)
            if done % self.inner == 0:
                best.count()
            gradient = _flat(gradients)
            direction = memory.direction(gradient)
            rate = self.lr * (1 / gradient.abs().sum(1, keepdim=True)).clamp(max=1.0) if done == 0 else self.lr
            down = (gradient * direction).sum(1, keepdim=True) < 0  # False for NaN
            step = torch.where(down, rate * direction, 0.0)
            before, place = place, place + step
            if box:
                place = _flat({**(moved := _named(place, shapes)), "x": moved["x"].clamp(*box)})
            memory.remember(place - before, gradient)
            if done % _ASK == _ASK - 1:
                hopeful = best.unsolved & (best.objective < _PROGRESS * earlier[0])
                if not bool((hopeful & step.any(1)).any()):
                    break
                earlier = [*earlier[1:], best.objective]
        guess = _named(place, shapes)
        _, objective, matched = evaluate(guess)
        best.see(guess, objective, matched)
        return best


@final
class _Memory:
    """History of the last steps and gradient changes, (P, n) each, which gives the next direction."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._last: tuple[Tensor, Tensor] | None = None
        self._scale: Tensor | None = None

    def remember(self, step: Tensor, gradient: Tensor) -> None:
        """Store the last step, and the gradient (P, n) before it."""
        self._last = step, gradient

    def direction(self, gradient: Tensor) -> Tensor:
        """Compute minus the inverse Hessian's estimate times the gradient, (P, n), by the two-loop recursion."""
        if self._last is not None:
            self._learn(gradient)
        q, alphas = -gradient, []
        for step, change, inverse in reversed(self._pairs):
            alpha = (step * q).sum(1, keepdim=True) * inverse
            alphas.append(alpha)
            q = q - alpha * change
        if self._scale is not None:
            q = q * self._scale
        for (step, change, inverse), alpha in zip(self._pairs, reversed(alphas), strict=True):
            q = q + step * (alpha - (change * q).sum(1, keepdim=True) * inverse)
        return q

    def _learn(self, gradient: Tensor) -> None:
        assert self._last is not None
        step, before = self._last
        change = gradient - before
        curved = (change * step).sum(1, keepdim=True)
        # A pair without curvature is ignored. The curvature is relative to the pair's own lengths, so that an objective
        # may have any scale.
        useful = curved > _CURVED * step.norm(dim=1, keepdim=True) * change.norm(dim=1, keepdim=True)
        scale = torch.where(useful, curved / (change * change).sum(1, keepdim=True), 1.0)
        self._scale = scale if self._scale is None else torch.where(useful, scale, self._scale)
        zero = torch.zeros_like(step)
        pair = torch.where(useful, step, zero), torch.where(useful, change, zero), torch.where(useful, 1 / curved, 0.0)
        self._pairs = [*self._pairs, pair][-self._size :]


def _like(rows: Tensor, value: Tensor) -> Tensor:
    """Reshape (P,) so that it broadcasts against (P, ...)."""
    return rows.view(-1, *(1,) * (value.dim() - 1))


def _flat(tensors: Tensors) -> Tensor:
    return torch.cat([value.flatten(1) for value in tensors.values()], dim=1)


def _named(flat: Tensor, shapes: dict[str, torch.Size]) -> Guess:
    parts = flat.split([shape[1:].numel() for shape in shapes.values()], dim=1)
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
