"""Real digits, small networks and what a client sends of them, for the tests of attacks."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw import data, nets
from flfw.audit.measures.metrics import psnr
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.inputs import InputSpec
from flfw.recording.observation import Knowledge, Observation, Reconstruction, Vantage
from flfw.rng import initialising, torch_generator


class Unchanged(Operator):
    """A mechanism that changes nothing."""

    def apply(self, simulated: nets.Tensors, sent: nets.Tensors, constants: nets.Tensors) -> nets.Tensors:
        return simulated


class KnownNoise(Unchanged):
    """A mechanism that adds noise of a known deviation."""

    @property
    def noise(self) -> float:
        return 0.5


def digits(first: int, count: int = 1, side: int = 28) -> tuple[Tensor, Tensor]:
    """Load real digits: raw images in [0, 1] and their labels."""
    dataset = data.load("digits", None, side)
    x, y = dataset.train_x[range(first, first + count)], dataset.train_y[range(first, first + count)]
    return torch.from_numpy(x).float() / 255, torch.from_numpy(y)


def digit_inputs(side: int = 28) -> InputSpec:
    """Say how a network takes digits of a side."""
    dataset = data.load("digits", None, side)
    return InputSpec.from_constants(dataset.shape, dataset.mean, dataset.std)


def fresh_net(name: str, shape: tuple[int, ...], seed: int = 1) -> nets.Net:
    """Build a network as its seed begins it."""
    with initialising(seed, "net"):
        return nets.build(name, shape, 10)


def small_victim() -> PlainVictim:
    """Build a network of 36 pixels, 40 units and 4 classes."""
    with initialising(0, "adaptations"):
        net = nets.Net(nn.Sequential(nn.Flatten(), nn.Linear(36, 40), nn.Sigmoid()), nn.Linear(40, 4))
    return PlainVictim(net, nets.tensors(net), ("*",), InputSpec.from_constants((1, 6, 6), (0.5,), (0.25,)))


def gradient(model: nn.Module, inputs: InputSpec, x: Tensor, y: Tensor) -> nets.Tensors:
    """Compute what a client sends, by the ordinary way."""
    model.zero_grad()
    cross_entropy(model((x - inputs.mean) / inputs.std), y).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def seen(sent: nets.Tensors, received: nets.Tensors, slot: int = 0) -> Observation:
    """Observe at the server what an undefended probe sent."""
    return Observation(Vantage.SERVER, "probe", "target", 0, 0, slot, sent, received)


def attackable(name: str, side: int, *batches: tuple[Tensor, Tensor]) -> tuple[list[Observation], list[Knowledge]]:
    """Build an undefended, wholly shared network of that name, and observe what it sent for each batch."""
    inputs = digit_inputs(side)
    net = fresh_net(name, inputs.shape)
    received = nets.tensors(net)
    victim = PlainVictim(fresh_net(name, inputs.shape, seed=9), received, ("*",), inputs)
    observations = [seen(gradient(net, inputs, x, y), received, i) for i, (x, y) in enumerate(batches)]
    return observations, [Knowledge(victim, len(y), y) for _, y in batches]


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    """Seed one generator for each observation."""
    return [torch_generator(seed, "attack", i) for i in range(count)]


def db(x: Tensor, result: Reconstruction) -> float:
    """Measure the PSNR of a reconstruction."""
    return psnr(x.numpy(), result.samples.numpy())
