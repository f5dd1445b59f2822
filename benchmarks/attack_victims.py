"""Victims of the benchmarks that attack: networks of ours, images, and the gradients of their batches."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from flfw import data, nets
from flfw.audit.measures.metrics import psnr
from flfw.audit.measures.recovery import assign
from flfw.errors import InputError
from flfw.inversion.client_models.batch_statistics import normalising_by_batch
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets import Net, Tensors
from flfw.nets.inputs import InputSpec
from flfw.rng import initialising, numpy_generator, torch_generator

CLASSES = 10
_TRAINED_FROM, _TRAINED_ON = 20_000, 10_000
_KINDS = {
    "cifar10": ("CIFAR-10", (3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "mnist": ("MNIST", (1, 28, 28), (0.1307,), (0.3081,)),
}


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
    inputs: InputSpec
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

    def to(self, device: torch.device, precision: torch.dtype = torch.float32) -> Victims:
        """Return the same victims on another device, all their numbers in a floating-point type."""
        moved = lambda tensors: {name: _moved(value, device, precision) for name, value in tensors.items()}  # noqa: E731
        mean, std = (_moved(constant, device, precision) for constant in (self.inputs.mean, self.inputs.std))
        return replace(
            self,
            net=deepcopy(self.net).to(device, precision),
            inputs=InputSpec(self.inputs.shape, mean, std),
            truth=_moved(self.truth, device, precision),
            labels=self.labels.to(device),
            start=_moved(self.start, device, precision),
            observed=[moved(sent) for sent in self.observed],
            revealed=[moved(statistics) for statistics in self.revealed],
        )

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
    except InputError:
        rng = numpy_generator(0, "pictures")
        x = torch.from_numpy(rng.random((count, *shape), dtype=np.float32))
        return averaged(x, side), torch.from_numpy(rng.integers(0, CLASSES, count)), "random images"
    taken = slice(first, first + count)
    x = torch.tensor(known.train_x[taken], dtype=torch.float32) / 255
    return averaged(x, side), torch.tensor(known.train_y[taken]), title


def averaged(x: Tensor, side: int | None) -> Tensor:
    """Average images (count, C, H, W) to a height and width; None leaves them.

    >>> averaged(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]), 1).tolist()
    [[[[0.5]]]]
    """
    return x if side is None else adaptive_avg_pool2d(x, side)


def victim_model(net: Net, inputs: InputSpec, training: bool, precision: torch.dtype = torch.float32) -> PlainVictim:
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
        net = nets.build(network, shape, CLASSES)
    inputs = InputSpec.from_constants(shape, mean, std)
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


def trained(net: Net, inputs: InputSpec, dataset: str, steps: int, seed: int) -> None:
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


def matched_psnrs(truth: Tensor, images: Tensor) -> list[float]:
    """Compute the PSNR in dB of each image of a batch (B, C, H, W) in [0, 1], matched one to one."""
    true, guesses = truth.cpu().numpy(), images.cpu().numpy()
    return [psnr(a, b) for a, b in zip(true, guesses[assign(true, guesses)], strict=True)]


def _moved(value: Tensor, device: torch.device, precision: torch.dtype) -> Tensor:
    """Return a tensor on a device; whole numbers, such as counters, keep their type."""
    return value.to(device, precision if value.is_floating_point() else value.dtype)


def _detached(tensors: Tensors) -> Tensors:
    return {name: value.detach() for name, value in tensors.items()}
