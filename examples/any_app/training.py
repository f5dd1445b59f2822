"""Network, images and local training that the apps beside this file share: scikit-learn's digits."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

ROUNDS, BATCH, LR = 3, 32, 0.1


def network() -> nn.Module:
    """Build a small network, with the same weights each time."""
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in net.parameters():
            weights.copy_(torch.rand(weights.shape, generator=generator) * 0.2 - 0.1)
    return net


def images(partition: int, partitions: int) -> tuple[Tensor, Tensor]:
    """Return every so-many-th image, and its label."""
    digits = load_digits()
    pixels, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    return pixels[partition::partitions], labels[partition::partitions]


def train(net: nn.Module, data: tuple[Tensor, Tensor], seed: int, lr: float, velocity: list[Tensor] | None = None):
    """Train for one epoch; with velocities, by momentum SGD, which changes them in place."""
    pixels, labels = data
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    for batch in order.split(BATCH):
        loss = cross_entropy(net(pixels[batch]), labels[batch])
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for index, (weights, gradient) in enumerate(zip(net.parameters(), gradients, strict=True)):
                if velocity is not None:
                    gradient = velocity[index].mul_(0.9).add_(gradient)
                weights -= lr * gradient


def accuracy(net: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Compute the share of images that are classified rightly."""
    pixels, labels = data
    with torch.no_grad():
        return float((net(pixels).argmax(1) == labels).float().mean())
