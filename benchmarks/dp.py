"""Cost of a private step: ``python -m benchmarks.dp [--json] [--quick] [--only P1 P2] [--threads 1]``.

A step is one forward and backward pass on a batch, and SGD. The private one clips each example's gradient layer by
layer and adds Gaussian noise to the sum; convolutions use ``way="fixed"``. The networks are that of Fed-CDP, on images
of the shapes of MNIST and CIFAR, and CNN 1 of HyperFL; batches of 5 and 64; random pixels.

- P1: our clipped and noised step over a plain step.
- P2: the step of Opacus with its hooks and clipping "per layer" (each tensor by itself), over ours.
- secure: our step with noise that holds (``noise_source=secure``), over our step with seeded noise.

First our clipped sums are compared with a loop over examples in float32, with bounds that clip some of them: a tensor
further than 3e-5 of its norm from the loop's ends this with exit code 1, and nothing is timed. Then the sides take
turns, A B A B, so that a busy machine hurts both alike, and are timed in seconds of the processor; a ratio is the
median of the turns'. The last line of the output is one JSON object.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPPerLayerOptimizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import output
from flfw import nets
from flfw.nets.training.gaussian import GaussianNoise, SecureNoise, SeededNoise
from flfw.nets.training.optimisers import SGD
from flfw.nets.training.per_example import ClippedSum, PerExample
from flfw.rng import initialising, torch_generator

_EXACT = 3e-5
_CLASSES = 10
_LR, _CLIP, _SIGMA = 0.05, 4.0, 6.0  # those of Fed-CDP

Step = Callable[[], object]


@dataclass(frozen=True)
class ClippingCase:
    """A network, the shape of its images, and a batch."""

    net: str
    shape: tuple[int, int, int]
    batch: int

    def model(self) -> nn.Module:
        """Build the network, with the same weights each time."""
        with initialising(0, "model"):
            return nets.build(self.net, self.shape, _CLASSES)

    def examples(self) -> tuple[Tensor, Tensor]:
        """Draw pixels in [0, 1] and labels, the same each time."""
        rng = torch_generator(0, "pictures")
        x = torch.rand(self.batch, *self.shape, generator=rng)
        return x, torch.randint(0, _CLASSES, (self.batch,), generator=rng)

    @property
    def steps(self) -> int:
        """Number of steps in a turn: some tens of milliseconds."""
        return max(2, 160 // self.batch)


_NETS = {"mnist": ("cnn3x3", (1, 28, 28)), "cifar": ("cnn3x3", (3, 32, 32)), "hyperfl": ("cnn1", (1, 28, 28))}
CASES = {f"{name}_{batch}": ClippingCase(*net, batch) for name, net in _NETS.items() for batch in (5, 64)}


def plain(case: ClippingCase) -> Step:
    """Return a step of SGD."""
    model, (x, y), optimiser = case.model(), case.examples(), SGD(_LR)
    parameters = dict(model.named_parameters())

    def step() -> None:
        gradients = torch.autograd.grad(cross_entropy(model(x), y), list(parameters.values()))
        optimiser.step(parameters, dict(zip(parameters, gradients, strict=True)))

    return step


def clipped(tested: PerExample, model: nn.Module, x: Tensor, y: Tensor, bound: float | dict[str, float]) -> ClippedSum:
    """Return the clipped sum of the gradients of cross-entropy."""
    return tested.clipped_sum(lambda: cross_entropy(model(x), y, reduction="none"), bound)


def ours(case: ClippingCase, noise: GaussianNoise | None = None) -> Step:
    """Return a step of SGD with the clipped and noised sum, seeded by default; the step size makes it the mean."""
    model, (x, y), optimiser = case.model(), case.examples(), SGD(_LR / case.batch)
    parameters, tested = dict(model.named_parameters()), PerExample(model)
    source = noise or SeededNoise(torch_generator(0, "noise"))

    def step() -> None:
        sums = source.add(clipped(tested, model, x, y, _CLIP).sums, _SIGMA * _CLIP)
        optimiser.step(parameters, sums)

    return step


def secured(case: ClippingCase) -> Step:
    """Return our step with secure noise."""
    return ours(case, SecureNoise())


def opacus(case: ClippingCase) -> Step:
    """Return the same step by Opacus, with the hooks and the optimiser of its PrivacyEngine."""
    model, (x, y) = GradSampleModule(case.model()), case.examples()
    parameters = list(model.parameters())
    optimiser = DPPerLayerOptimizer(
        torch.optim.SGD(parameters, lr=_LR),
        noise_multiplier=_SIGMA,
        max_grad_norm=[_CLIP] * len(parameters),
        expected_batch_size=case.batch,
        generator=torch_generator(0, "noise"),
    )

    def step() -> None:
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()

    return step


def naive(
    model: nn.Module, groups: Mapping[str, tuple[str, ...]], x: Tensor, y: Tensor, bounds: Mapping[str, float]
) -> dict[str, Tensor]:
    """Compute the clipped sums, one example after another."""
    parameters = dict(model.named_parameters())
    sums = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for i in range(len(x)):
        loss = cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
        for group, names in groups.items():
            norm = torch.cat([gradients[name].flatten() for name in names]).norm()
            for name in names:
                sums[name] += gradients[name] / max(1.0, float(norm) / bounds[group])
    return sums


def apart(case: ClippingCase) -> float:
    """Return the distance of our sums from the loop's, over the norm; the largest of all tensors."""
    model, (x, y) = case.model(), case.examples()
    tested = PerExample(model)
    norms = clipped(tested, model, x, y, inf).norms
    bounds = dict(zip(tested.groups, ((norms.amin(0) + norms.amax(0)) / 2).tolist(), strict=True))
    sums, expected = clipped(tested, model, x, y, bounds).sums, naive(model, tested.groups, x, y, bounds)
    errors = [(sums[name] - value).norm() / value.norm() for name, value in expected.items()]
    return float(torch.stack(errors).max())  # NaN if one is


def gate(cases: Mapping[str, ClippingCase]) -> dict[str, float]:
    """Return the errors; exit with 1 if a sum is not the loop's (NaN is not)."""
    exact = {name: apart(case) for name, case in cases.items()}
    if far := {name: error for name, error in exact.items() if not error <= _EXACT}:
        got = ", ".join(f"{name}={error:.2g}" for name, error in far.items())
        sys.exit(f"Expected the clipped sums of a loop over examples (<= {_EXACT:g}), got {got}; nothing was timed.")
    return exact


def milliseconds(step: Step, times: int) -> float:
    """Measure the processor's milliseconds of one step, on all threads; mean over so many steps."""
    started = time.process_time()
    for _ in range(times):
        step()
    return 1000 * (time.process_time() - started) / times


@dataclass(frozen=True)
class DPSection:
    """A claim about the ratio of two sides' steps.

    Attributes:
        title: in words.
        upper: the numerator's side.
        lower: the denominator's side.
        goal: for every case.
        at_most: whether the goal is an upper bound; else a lower one.
    """

    title: str
    upper: Callable[[ClippingCase], Step]
    lower: Callable[[ClippingCase], Step]
    goal: float
    at_most: bool

    def measure(self, case: ClippingCase, turns: int) -> tuple[float, float, float]:
        """Measure the ratio and the milliseconds of a step on both sides; return medians."""
        sides = self.upper(case), self.lower(case)
        for side in sides:
            milliseconds(side, 3)  # first steps set things up
        times = [[milliseconds(side, case.steps) for side in sides] for _ in range(turns)]
        upper, lower = (statistics.median(column) for column in zip(*times, strict=True))
        return statistics.median(a / b for a, b in times), upper, lower

    def met(self, ratio: float) -> bool:
        """Return whether the goal is reached."""
        return ratio <= self.goal if self.at_most else ratio >= self.goal


_SECTIONS = {
    "P1": DPSection("clipped and noised step over a plain step", ours, plain, 1.20, at_most=True),
    "P2": DPSection("step of Opacus, clipped per layer by hooks, over ours", opacus, ours, 1.6, at_most=False),
    "secure": DPSection("step with secure noise over one with seeded noise", secured, ours, 1.15, at_most=True),
}


GATE = output.BenchmarkPart("both sides compared: our clipped sums and a loop's", 3, 3)
PARTS = {
    "P1": output.BenchmarkPart(_SECTIONS["P1"].title, 20, 2),
    "P2": output.BenchmarkPart(_SECTIONS["P2"].title, 30, 3),
    "secure": output.BenchmarkPart(_SECTIONS["secure"].title, 20, 2),
}


def lines(name: str, section: DPSection, rows: Mapping[str, tuple[float, float, float]]) -> Iterable[str]:
    """Yield a title and a line for each case."""
    yield f"{name}, {section.title}:"
    for case, (ratio, upper, lower) in rows.items():
        outcome = f"goal {'<=' if section.at_most else '>='} {section.goal:.2f}: "
        outcome += "met" if section.met(ratio) else "missed"
        yield f"  {case:10}  {ratio:5.2f}  ({outcome}); {upper:.2f} ms over {lower:.2f} ms"


def main() -> None:
    """Check, measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--threads", type=output.whole(), default=1, help="of all sides (1)")
    run = output.start(flags, PARTS, GATE)
    torch.set_num_threads(run.asked.threads)
    run.begin_gate()
    exact = gate(CASES)
    turns = run.amount(15, 1)
    rows = {name: {key: _SECTIONS[name].measure(case, turns) for key, case in CASES.items()} for name in run.parts()}
    sections = {name: _SECTIONS[name] for name in rows}
    ratios = {name: {case: row[0] for case, row in values.items()} for name, values in rows.items()}
    text = [f"exact: {', '.join(f'{name} {error:.1e}' for name, error in exact.items())} (goal <= {_EXACT:g})"]
    text += [line for name, section in sections.items() for line in lines(name, section, rows[name])]
    rest = {
        "goal": {name: section.goal for name, section in sections.items()},
        "met": {n: {case: s.met(ratio) for case, ratio in ratios[n].items()} for n, s in sections.items()},
        "milliseconds": {n: {case: list(v[1:]) for case, v in values.items()} for n, values in rows.items()},
        "exact": exact,
        "threads": run.asked.threads,
    }
    run.report({**ratios, **rest}, text)


if __name__ == "__main__":
    main()
