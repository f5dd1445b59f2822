"""Our side of the comparisons with breaching: the search of `flfw.inversion.search.invert`, with its graph kept.

Both sides minimise ``1 - cos + 0.01 * padded total variation`` (in full in `benchmarks.breaching_side`) by Adam on the
gradient's sign, from the same first guesses.
"""

import time
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.attack_victims import Victims
from flfw.inversion.client_models.cropped_kernels import cropped
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.evaluation import Fused, stacked, stacked_given
from flfw.inversion.matching import Guess, Objective, Problem, cosine_distance
from flfw.inversion.priors import weighted
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets import Tensors

LR = 0.1
TV = 0.01
"""Weight of the total variation: between 0.2, which blurs LeNet's images (15.4 dB), and 1e-4, too little (12.3 dB)."""


def padded_variation(x: Tensor) -> Tensor:
    """Compute breaching's total variation, a mean: images (..., H, W) are 0 beyond the last row and column."""
    wide = pad(x, (0, 1, 0, 1))
    down, right = wide[..., 1:, :-1] - x, wide[..., :-1, 1:] - x
    return (down.abs() + right.abs()).mean()


def descent(iterations: int) -> AdamSearch:
    """Return their Adam: its step becomes a tenth after N // 2.667, N // 1.6 and N // 1.142 of N iterations, N >= 3."""
    passed = [iterations // part for part in (2.667, 1.6, 1.142)]
    # The fractions lie within an iteration rather than at its edge, where rounding could cost one.
    return AdamSearch(iterations, LR, signed=True, drops=tuple((done + 0.5) / iterations for done in passed))


@dataclass(frozen=True)
class Trace:
    """A search with its intermediate guesses.

    Attributes:
        psnr: mean over the victims, in dB, of some guesses and last of the result.
        seconds: the time of each of them since the search began; victims attacked one by one are added up.
    """

    psnr: list[float]
    seconds: list[float]

    def until(self, wanted: float) -> float | None:
        """Return the seconds until a guess has at least this PSNR in dB; None: none has."""
        return next((s for s, reached in zip(self.seconds, self.psnr, strict=True) if reached >= wanted), None)


@final
class Ours:
    """Search of ours, as `flfw.inversion.search.invert` does it, with its graph kept between runs.

    Args:
        victims: all attacked at once.
        compiled: whether a compiler fuses a step's operations.
        precision: of the network.

    Attributes:
        built_s: seconds of tracing, compiling and a first step.
    """

    def __init__(self, victims: Victims, *, compiled: bool, precision: torch.dtype = torch.float32) -> None:
        started = time.perf_counter()
        self._victims = victims
        objective, problems = objective_of(victims, precision)
        given = [objective.constants(problem) for problem in problems]
        fused = Fused(objective, problems[0].guess, given[0], ComputeLimits(compiled=compiled))
        assert fused.together >= len(victims), "they are small"
        self.evaluate = fused.prepare(stacked_given(given), [])
        self._guess = stacked([problem.guess for problem in problems])
        self.first = self.evaluate(self._guess)  # compiles
        wait(self._guess["x"].device)
        self.built_s = time.perf_counter() - started
        ends = (torch.full_like(victims.start[0, 0], end) for end in (0.0, 1.0))
        low, high = (victims.inputs.normalise(end) for end in ends)
        self._box = low, high

    def seconds(self, iterations: int) -> float:
        """Measure the seconds of a search."""
        started = time.perf_counter()
        descent(iterations).descend(self.evaluate, self._guess, self._box, 0.0)
        wait(self._guess["x"].device)
        return time.perf_counter() - started

    def rate(self, iterations: int) -> float:
        """Measure the image-iterations per second of a search."""
        return self._victims.labels.numel() * iterations / self.seconds(iterations)

    def trace(self, iterations: int, every: int) -> Trace:
        """Search, and keep the guess before every so many iterations."""
        kept: list[Tensor] = []
        seconds: list[float] = []
        done, started = 0, time.perf_counter()

        def noting(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
            nonlocal done
            if done % every == 0:
                kept.append(guess["x"].clone())
                seconds.append(time.perf_counter() - started)
            done += 1
            return self.evaluate(guess)

        best = descent(iterations).descend(noting, self._guess, self._box, 0.0)
        seconds.append(time.perf_counter() - started)
        return Trace([self._victims.psnr(x) for x in [*kept, best.guess["x"]]], seconds)


def wait(device: torch.device) -> None:
    """Wait until a device has done its work: a GPU computes beside the processor."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def objective_of(victims: Victims, precision: torch.dtype = torch.float32) -> tuple[Objective, list[Problem]]:
    """Return our objective, and a problem for each victim."""
    model, observed = cropped(victims.model(precision), victims.observed)
    objective = Objective(model, cosine_distance, weighted((TV, padded_variation)))
    problems = [
        Problem(sent, labels, start, {})
        for sent, labels, start in zip(observed, victims.labels, victims.start, strict=True)
    ]
    return objective, problems


def errors(ours: Ours, theirs: Tensors) -> dict[str, Tensor]:
    """Compute the distance of the two sides at the first guesses, (V,) each.

    Args:
        ours: with its first step.
        theirs: answer.safetensors of mode "objective".

    Returns:
        ``objective``, absolute, and ``gradient``, the norm of the difference over the norm of theirs.
    """
    gradients, objectives, _ = ours.first
    gradient, objective = gradients["x"].cpu(), objectives.cpu()
    distance, norms = (x.flatten(1).norm(dim=1) for x in (gradient - theirs["gradient"], theirs["gradient"]))
    return {"objective": (objective - theirs["objective"]).abs(), "gradient": distance / norms}
