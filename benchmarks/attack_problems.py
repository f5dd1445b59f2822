"""Identical work for both sides of `benchmarks.attacks`: victims, the objective, our search for them and theirs.

Both sides get the network, the labels, the victims' gradients and the first guesses, one image each unless a batch is
asked for, and minimise ``1 - cos + 0.01 * padded total variation`` (in full in `benchmarks.breaching_side`) by Adam on
the gradient's sign.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, final

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy, pad
from torch.nn.modules.batchnorm import _BatchNorm

from flfw import data, nets
from flfw.audit.measures.metrics import psnr
from flfw.audit.measures.recovery import assign
from flfw.errors import BadInput
from flfw.inversion.compute import Compute
from flfw.inversion.descent import AdamDescent
from flfw.inversion.evaluation import Fused, stacked, stacked_given
from flfw.inversion.matching import cosine_distance
from flfw.inversion.objective import Guess, Objective, Problem
from flfw.inversion.priors import weighted
from flfw.nets import Net, Tensors
from flfw.nets.inputs import Inputs
from flfw.rng import initialising, numpy_generator, torch_generator
from flfw.victims.batch_statistics import normalising_by_batch
from flfw.victims.cropped_kernels import cropped
from flfw.victims.victim import PlainVictim

_LR = 0.1
TV = 0.01
"""Weight of the total variation: between 0.2, which blurs LeNet's images (15.4 dB), and 1e-4, too little (12.3 dB)."""
_CLASSES = 10
_TRAINED_FROM, _TRAINED_ON = 20_000, 10_000
_KINDS = {
    "cifar10": ("CIFAR-10", (3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "mnist": ("MNIST", (1, 28, 28), (0.1307,), (0.3081,)),
}
_OTHER_SIDE = Path(__file__).with_name("breaching_side.py")


@dataclass(frozen=True)
class Victims:
    """V clients that each sent the gradient of a batch of B images, by default of one.

    Attributes:
        network: its name in `flfw.nets`.
        net: freshly initialised.
        inputs: the map from pixels to the network's inputs.
        truth: (V, B, C, H, W) in [0, 1].
        labels: (V, B).
        start: (V, B, C, H, W) the first guesses, normalised, within the box.
        observed: the gradient that each sent.
        training: whether the network normalised each batch by its own statistics; else by the running ones.
        revealed: means and unbiased variances of each batch at the inputs of BatchNorm, by the names of the buffers; no
            entry where they are not revealed.
    """

    network: str
    net: Net
    inputs: Inputs
    truth: Tensor
    labels: Tensor
    start: Tensor
    observed: list[Tensors]
    training: bool = False
    revealed: list[Tensors] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    def model(self, precision: torch.dtype = torch.float32) -> PlainVictim:
        """Return the victim model of an attacker that holds the whole network."""
        return victim_model(self.net, self.inputs, self.training, precision)

    def psnr(self, guess: Tensor) -> float:
        """Compute the mean PSNR over the victims in dB, of normalised images (V, B, C, H, W)."""
        return float(np.mean(self.each_psnr(guess)))

    def each_psnr(self, guess: Tensor) -> list[float]:
        """Compute each victim's PSNR in dB, of normalised images (V, B, C, H, W): the mean over its batch, matched."""
        images = guess * self.inputs.std + self.inputs.mean
        return [fmean(matched_psnrs(a, b)) for a, b in zip(self.truth, images, strict=True)]


def pictures(
    count: int, dataset: str = "cifar10", first: int = 0, side: int | None = None
) -> tuple[Tensor, Tensor, str]:
    """Return images (count, C, H, W) in [0, 1], labels (count,) and a title: of the data set, else of noise.

    Args:
        count: how many.
        dataset: the source of the training images.
        first: the position of the first of them.
        side: height and width, to which images are averaged; None: as published.
    """
    title, shape, _, _ = _KINDS[dataset]
    try:
        known = data.load(dataset)
    except BadInput:
        rng = numpy_generator(0, "pictures")
        x = torch.from_numpy(rng.random((count, *shape), dtype=np.float32))
        return averaged(x, side), torch.from_numpy(rng.integers(0, _CLASSES, count)), "random images"
    taken = slice(first, first + count)
    x = torch.tensor(known.train_x[taken], dtype=torch.float32) / 255
    return averaged(x, side), torch.tensor(known.train_y[taken]), title


def averaged(x: Tensor, side: int | None) -> Tensor:
    """Average images (count, C, H, W) to a height and width; None leaves them.

    >>> averaged(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]), 1).tolist()
    [[[[0.5]]]]
    """
    return x if side is None else adaptive_avg_pool2d(x, side)


def victim_model(net: Net, inputs: Inputs, training: bool, precision: torch.dtype = torch.float32) -> PlainVictim:
    """Return the victim model of a network; ``training``: BatchNorm normalises by the batch, on a copy."""
    model = normalising_by_batch(net) if training else net
    return PlainVictim(model, nets.tensors(model), ("*",), inputs, precision)


def victims(
    network: str,
    count: int,
    dataset: str = "cifar10",
    first: int = 0,
    batch: int = 1,
    seed: int = 0,
    training: bool = False,
    side: int | None = None,
    steps: int = 0,
    reveals: bool = False,
    seen_only_it: bool = False,
) -> Victims:
    """Return so many victims of a network of ours, always the same; `pictures` has the arguments.

    Args:
        network: its name in `flfw.nets`.
        count: number of victims.
        dataset: source of the images.
        first: position of the first of them.
        batch: images of each victim.
        seed: of the network's numbers and of the first guesses.
        training: see `Victims`.
        side: height and width of the images; None: as published.
        steps: of `trained`, before the victims' own.
        reveals: whether the statistics of each batch are known.
        seen_only_it: whether the running statistics are those of the first victim's batch alone.
    """
    _, shape, mean, std = _KINDS[dataset]
    shape = shape if side is None else (shape[0], side, side)
    with initialising(seed, "net"):
        net = nets.build(network, shape, _CLASSES)
    inputs = Inputs.from_constants(shape, mean, std)
    if steps:
        trained(net, inputs, dataset, steps, seed)
    x, y, _ = pictures(count * batch, dataset, first, side)
    truth, labels = x.unflatten(0, (count, batch)), y.unflatten(0, (count, batch))
    low, high = (inputs.normalise(torch.full(shape, end)) for end in (0.0, 1.0))
    if seen_only_it:
        net.load_state_dict({**net.state_dict(), **buffers_of(net, inputs.normalise(truth[0]))})
    start = torch.randn(truth.shape, generator=torch_generator(seed, "start")).clamp(low, high)
    model = victim_model(net, inputs, training)
    observed = [_detached(model.gradient(truth[i], labels[i], {}, {})) for i in range(count)]
    revealed = [buffers_of(net, inputs.normalise(batch)) for batch in truth] if reveals else []
    return Victims(network, net, inputs, truth, labels, start, observed, training, revealed)


def trained(net: Net, inputs: Inputs, dataset: str, steps: int, seed: int) -> None:
    """Train a network on images from `_TRAINED_FROM` on, and leave it with their running statistics.

    Args:
        net: changed in place.
        inputs: the map from pixels to its inputs.
        dataset: source of the images.
        steps: of SGD with momentum, on batches of 64.
        seed: of the choice of the images.
    """
    pixels, labels, _ = pictures(_TRAINED_ON, dataset, _TRAINED_FROM, inputs.shape[-1])
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    rng = torch_generator(seed, "trained")
    net.train()
    for _ in range(steps):
        chosen = torch.randint(len(labels), (64,), generator=rng)
        optimiser.zero_grad()
        cross_entropy(net(inputs.normalise(pixels[chosen])), labels[chosen]).backward()
        optimiser.step()
    net.eval()


def buffers_of(net: Net, x: Tensor) -> Tensors:
    """Compute the running statistics that one pass in training mode leaves where they forget all earlier ones.

    Args:
        net: not changed.
        x: network inputs (B, C, H, W).
    """
    after = deepcopy(net).train()
    for module in after.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = 1.0
    with torch.no_grad():
        after(x)
    return {name: value.detach() for name, value in after.named_buffers()}


def padded_variation(x: Tensor) -> Tensor:
    """Compute breaching's total variation, a mean: images (..., H, W) are 0 beyond the last row and column."""
    wide = pad(x, (0, 1, 0, 1))
    down, right = wide[..., 1:, :-1] - x, wide[..., :-1, 1:] - x
    return (down.abs() + right.abs()).mean()


def descent(iterations: int) -> AdamDescent:
    """Return their Adam: its step becomes a tenth after N // 2.667, N // 1.6 and N // 1.142 of N iterations, N >= 3."""
    passed = [iterations // part for part in (2.667, 1.6, 1.142)]
    # The fractions lie within an iteration rather than at its edge, where rounding could cost one.
    return AdamDescent(iterations, _LR, signed=True, drops=tuple((done + 0.5) / iterations for done in passed))


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
        given = [objective.given(problem) for problem in problems]
        fused = Fused(objective, problems[0].guess, given[0], Compute(compiled=compiled))
        assert fused.together >= len(victims), "they are small"
        self.evaluate = fused.prepare(stacked_given(given), [])
        self._guess = stacked([problem.guess for problem in problems])
        self.first = self.evaluate(self._guess)  # compiles
        self.built_s = time.perf_counter() - started
        low, high = (victims.inputs.normalise(torch.full(victims.inputs.shape, end)) for end in (0.0, 1.0))
        self._box = low, high

    def seconds(self, iterations: int) -> float:
        """Measure the seconds of a search."""
        started = time.perf_counter()
        descent(iterations).descend(self.evaluate, self._guess, self._box, 0.0)
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


def objective_of(victims: Victims, precision: torch.dtype = torch.float32) -> tuple[Objective, list[Problem]]:
    """Return our objective, and a problem for each victim."""
    model, observed = cropped(victims.model(precision), victims.observed)
    objective = Objective(model, cosine_distance, weighted((TV, padded_variation)))
    problems = [
        Problem(sent, labels, start, {})
        for sent, labels, start in zip(observed, victims.labels, victims.start, strict=True)
    ]
    return objective, problems


@final
class Theirs:
    """Search of theirs, a process for each run.

    Args:
        python: of the environment with breaching.
        threads: of PyTorch.
    """

    def __init__(self, python: Path, threads: int) -> None:
        self._python, self._threads = python, threads

    def __call__(
        self,
        victims: Victims,
        folder: Path,
        mode: str,
        iterations: int,
        warmup: int = 0,
        every: int = 0,
        tv: float = TV,
        config: str = "invertinggradients",
        scale: float | None = None,
    ) -> tuple[dict[str, Any], Tensors]:
        """Run in a folder and read answer.json and answer.safetensors; the arguments are those of problem.json.

        Raises:
            subprocess.CalledProcessError: it failed; the reason is on stderr.
        """
        work = {"mode": mode, "iterations": iterations, "warmup": warmup, "every": every, "tv": tv, "config": config}
        write(victims, folder, {**work, "scale": scale, "threads": self._threads})
        subprocess.run(
            [str(self._python), "-W", "ignore", str(_OTHER_SIDE), str(folder)], check=True, stdout=sys.stderr
        )
        return json.loads((folder / "answer.json").read_text()), load_file(folder / "answer.safetensors")

    def rate(self, victims: Victims, folder: Path, iterations: int, warmup: int) -> float:
        """Measure the image-iterations per second of a search."""
        return self(victims, folder, "speed", iterations, warmup)[0]["image_iterations_per_second"]

    def trace(self, victims: Victims, folder: Path, iterations: int, every: int) -> Trace:
        """Search, and keep the guess before every so many iterations."""
        figures, tensors = self(victims, folder, "attack", iterations, every=every)
        guesses = [*tensors["trace"].unbind(1), tensors["images"]]
        added = [sum(column) for column in zip(*figures["trace_seconds"], strict=True)]
        return Trace([victims.psnr(x) for x in guesses], [*added, sum(figures["seconds"])])


def write(victims: Victims, folder: Path, work: dict[str, Any]) -> None:
    """Write problem.json and problem.safetensors, as `benchmarks.breaching_side` reads them.

    Args:
        victims: to attack.
        folder: for the two files.
        work: the fields ``mode``, ``iterations``, ``warmup``, ``every`` and ``threads``, and any that is to differ.
    """
    problem = {
        "network": victims.network.rpartition(":")[2],
        "config": "invertinggradients",
        "training": victims.training,
        "shape": list(victims.inputs.shape),
        "classes": _CLASSES,
        "mean": victims.inputs.mean.flatten().tolist(),
        "std": victims.inputs.std.flatten().tolist(),
        "parameters": [name for name, _ in victims.net.named_parameters()],
        "buffers": [name for name, _ in victims.net.named_buffers()],
        "lr": _LR,
        "signed": True,
        "decay": True,
        "tv": TV,
        "box": True,
        "scale": None,
    }
    tensors = {f"weights.{name}": value for name, value in nets.tensors(victims.net).items()}
    tensors |= {f"observed.{name}": value for name, value in stacked(victims.observed).items()}
    if victims.revealed:
        tensors |= {f"revealed.{name}": value for name, value in stacked(victims.revealed).items()}
    tensors |= {"labels": victims.labels, "start": victims.start}
    (folder / "problem.json").write_text(json.dumps(problem | work, indent=1))
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "problem.safetensors")


def errors(ours: Ours, theirs: Tensors) -> dict[str, Tensor]:
    """Compute the distance of the two sides at the first guesses, (V,) each.

    Args:
        ours: with its first step.
        theirs: answer.safetensors of mode "objective".

    Returns:
        ``objective``, absolute, and ``gradient``, the norm of the difference over the norm of theirs.
    """
    gradients, objectives, _ = ours.first
    apart, norms = (x.flatten(1).norm(dim=1) for x in (gradients["x"] - theirs["gradient"], theirs["gradient"]))
    return {"objective": (objectives - theirs["objective"]).abs(), "gradient": apart / norms}


def matched_psnrs(truth: Tensor, images: Tensor) -> list[float]:
    """Compute the PSNR in dB of each image of a batch (B, C, H, W) in [0, 1], matched one to one."""
    true, guesses = truth.numpy(), images.numpy()
    return [psnr(a, b) for a, b in zip(true, guesses[assign(true, guesses)], strict=True)]


def _detached(tensors: Tensors) -> Tensors:
    return {name: value.detach() for name, value in tensors.items()}
