"""Cost of defences that compute much: ``python -m benchmarks.defences [--json] [--quick] [--only D1 D2]``.

LeNet on random images of 1x28x28, ten classes.

- D1: steps per second of DCS^2's search for 1 and for 64 concealed samples, over those of the loop written first: two
  evaluations of the network, its gradient with a graph, a second backward pass, ``torch.optim.Adam``. The time to trace
  the operations of a step is given separately; searches of the same shape share it.
- D2: Soteria's norms of the Jacobian's rows, for 1 and for 16 images: as in the authors' code, one backward pass for
  each unit and image, over ours.

First both sides are compared, the searches after 20 steps in float64: results further apart than 1e-6 of their norm end
this with exit code 1, and nothing is timed. Then the sides take turns, A B A B, so that a busy machine hurts both
alike, and are timed in seconds of the processor on one thread; a ratio is the median of the turns'. The last line of
the output is one JSON object.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from benchmarks import output
from flfw import nets
from flfw.clients.defences.dcs2 import DCS2Settings, Search
from flfw.nets.inputs import InputSpec
from flfw.nets.representation import entering, row_norms
from flfw.nets.training.traced import Traced
from flfw.rng import initialising, torch_generator
from flfw.task.defence import LocalStep

_EXACT, _COMPARED = 1e-6, 20
_GOAL = {"D1": 3.0, "D2": 5.0}
_SEARCHES = {"lenet_1": (1, 200, 20), "lenet_64": (64, 40, 4)}  # samples, steps of a turn, the same with --quick
_IMAGES = {"lenet_1": 1, "lenet_16": 16}
_TURNS = 7
_INPUTS, _CLASSES, _LAYER = InputSpec.from_constants((1, 28, 28), (0.1307,), (0.3081,)), 10, "classifier"
PARTS = {
    "D1": output.BenchmarkPart("DCS^2's search, the loop written first over ours", 25, 6),
    "D2": output.BenchmarkPart("Soteria's row norms, a backward pass for each unit over ours", 60, 12),
}
Turns = list[tuple[float, float]]


def network() -> nn.Module:
    """Build the network."""
    with initialising(0, "defences"):
        return nets.build("lenet", _INPUTS.shape, _CLASSES).to(torch.get_default_dtype()).eval()


def images(count: int) -> tuple[Tensor, Tensor]:
    """Draw raw images and labels."""
    rng = torch_generator(0, "images", count)
    x = torch.rand(count, *_INPUTS.shape, generator=rng, dtype=torch.get_default_dtype())
    return x, torch.randint(_CLASSES, (count,), generator=rng)


@dataclass
class Concealing:
    """Search for concealed samples of random images from random images, by either side.

    Attributes:
        samples: number of concealed samples.
        steps: of the search.
        traced: operations of our earlier searches.
    """

    samples: int
    steps: int
    traced: dict[Any, Traced] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._net, (x, y) = network(), images(self.samples)
        public = images(200)
        named = dict(self._net.named_parameters())
        gradients = {name: p.detach() for name, p in named.items()}  # the search does not look at them
        self._step = LocalStep(gradients, x, y, self._net, _INPUTS, lambda: public)
        self._settings = DCS2Settings(steps=self.steps, stop="never")
        self._start = self._search()._start(torch_generator(0, "start"))

    def _search(self) -> Search:
        everyone = torch.ones(self.samples, dtype=torch.bool)
        return Search(self._settings, self._step, everyone, list(self._step.gradients), self.traced)

    def ours(self) -> Tensor:
        """Search as the defence does."""
        return self._search().concealed(torch_generator(0, "start"))[0]

    def first(self) -> Tensor:
        """Search as the loop written first does."""
        net, chosen, x_s = self._net, self._settings, _INPUTS.normalise(self._step.x)
        start, y = self._start
        g_s, z_s = _gradient(net, x_s, self._step.y).detach(), net(x_s).detach()
        x = start.clone().requires_grad_()
        adam = torch.optim.Adam([x], lr=chosen.lr)
        drops = [round(chosen.steps * share) for share in (3 / 8, 5 / 8, 7 / 8)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(adam, drops, gamma=0.1)
        for _ in range(chosen.steps):
            distance = (x - x_s).flatten(1).norm(dim=1).mean()
            gap = (net(x) - z_s).flatten(1).norm(dim=1) / z_s.flatten(1).norm(dim=1)
            difference = 1 - cosine_similarity(_gradient(net, x, y), g_s, dim=0)
            latent = chosen.weight_z * (gap.mean() - chosen.eps)
            loss = difference + torch.exp(-chosen.weight_x * distance) + latent
            (x.grad,) = torch.autograd.grad(loss, [x])
            adam.step()
            schedule.step()
            float(distance.detach())  # for the stop
        return x.detach()


def _gradient(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    each = torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()), create_graph=True)
    return torch.cat([g.flatten() for g in each])


def by_units(net: nn.Module, x: Tensor) -> Tensor:
    """Compute the norms (B, d) by one backward pass for each unit and image."""
    rows = []
    for one in x:
        at = one[None].clone().requires_grad_()
        r = entering(net, _LAYER, at)[0]
        rows.append(torch.stack([torch.autograd.grad(unit, at, retain_graph=True)[0].norm() for unit in r]))
    return torch.stack(rows)


@contextmanager
def double() -> Iterator[None]:
    """Make networks and images of float64 inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def gate(names: Sequence[str]) -> dict[str, float]:
    """Return the distances of both sides' results; exit with 1 if one is too large or NaN."""
    exact = {}
    with double():
        for name, (samples, _, _) in _SEARCHES.items() if "D1" in names else ():
            sides = Concealing(samples, _COMPARED)
            exact[f"D1_{name}"] = apart(sides.ours(), sides.first())
        if "D2" in names:
            net, x = network(), _INPUTS.normalise(images(2)[0])
            exact["D2"] = apart(row_norms(net, _LAYER, x), by_units(net, x))
    if far := {name: error for name, error in exact.items() if not error <= _EXACT}:
        got = ", ".join(f"{name}={error:.2g}" for name, error in far.items())
        sys.exit(f"Expected the same on both sides (<= {_EXACT:g}), got {got}; nothing was timed.")
    return exact


def apart(result: Tensor, expected: Tensor) -> float:
    """Return the distance of a result from the expected one, over the norm of the expected one."""
    return float((result - expected).norm() / expected.norm())


def seconds(work: Callable[[], object]) -> float:
    """Measure seconds of the processor."""
    started = time.process_time()
    work()
    return time.process_time() - started


def in_turns(first: Callable[[], object], ours: Callable[[], object], turns: int) -> Turns:
    """Measure both sides in turns."""
    return [(seconds(first), seconds(ours)) for _ in range(turns)]


def preparing(samples: int) -> float:
    """Measure the seconds that the first search of a shape takes more than the next."""
    sides = Concealing(samples, 1)
    return seconds(sides.ours) - seconds(sides.ours)


def searches(run: output.BenchmarkRun, turns: int) -> tuple[dict[str, Turns], dict[str, float]]:
    """Measure the milliseconds of a step of both sides, and the seconds of preparing the operations."""
    measured, prepared = {}, {}
    for name, (samples, usual, quick) in _SEARCHES.items():
        prepared[name] = preparing(samples)
        sides = Concealing(samples, run.amount(usual, quick))
        in_turns(sides.first, sides.ours, 1)  # first calls set things up
        scale = 1000 / sides.steps
        measured[name] = [(scale * a, scale * b) for a, b in in_turns(sides.first, sides.ours, turns)]
    return measured, prepared


def norms(turns: int) -> dict[str, Turns]:
    """Measure the milliseconds of one batch's row norms on both sides."""
    measured, net = {}, network()
    for name, count in _IMAGES.items():
        x = _INPUTS.normalise(images(count)[0])
        row_norms(net, _LAYER, x)  # first calls set things up
        pairs = in_turns(partial(by_units, net, x), partial(row_norms, net, _LAYER, x), turns)
        measured[name] = [(1000 * a, 1000 * b) for a, b in pairs]
    return measured


def lines(
    ratios: Mapping[str, Mapping[str, float]], times: Mapping[str, Any], prepared: Mapping[str, float]
) -> list[str]:
    """Return a line for each ratio."""
    text = []
    for part, row in ratios.items():
        for name, ratio in row.items():
            outcome = f"(goal >= {_GOAL[part]:g}: {'met' if ratio >= _GOAL[part] else 'missed'})"
            more = f"; prepared in {prepared[name]:.2f} s" if part == "D1" else ""
            upper, lower = times[part][name]
            text.append(f"{part} {name:9} {ratio:5.2f} {outcome}; {upper:.2f} ms over {lower:.2f} ms{more}")
    return text


def main() -> None:
    """Compare, measure and print."""
    run = output.start(
        output.parser(__doc__), PARTS, output.BenchmarkPart("both sides compared: the same results", 10, 10)
    )
    torch.set_num_threads(1)
    run.begin_gate()
    exact, turns = gate(run.names), run.amount(_TURNS, 1)
    measured: dict[str, dict[str, Turns]] = {}
    prepared: dict[str, float] = {}
    for name in run.parts("D1"):
        measured[name], prepared = searches(run, turns)
    for name in run.parts("D2"):
        measured[name] = norms(turns)
    ratios = {part: {name: median(a / b for a, b in rows) for name, rows in t.items()} for part, t in measured.items()}
    times = {
        part: {name: [median(side) for side in zip(*rows, strict=True)] for name, rows in table.items()}
        for part, table in measured.items()
    }
    met = {part: {name: ratio >= _GOAL[part] for name, ratio in row.items()} for part, row in ratios.items()}
    report = {**ratios, "goal": _GOAL, "met": met, "milliseconds": times, "exact": exact, "turns": turns}
    ready = {"prepare_s": prepared} if prepared else {}
    run.report({**report, **ready, "load": os.getloadavg()[0]}, lines(ratios, times, prepared))


if __name__ == "__main__":
    main()
