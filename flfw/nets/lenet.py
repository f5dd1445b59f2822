"""LeNets of the papers: FedCG's LeNet5 and the sigmoid LeNet of the gradient-inversion papers."""

from __future__ import annotations

from torch import nn

from flfw.nets.net import Net


def lenet5(shape: tuple[int, ...], classes: int) -> Net:
    """Build LeNet5 as FedCG cuts it (Wu et al., IJCAI 2022): two convolutions extract 16x5x5 features in (0, 1).

    Pooling comes before the sigmoid, as in the authors' code.
    """
    extractor = nn.Sequential(
        nn.Conv2d(shape[0], 6, 5), nn.AvgPool2d(2), nn.Sigmoid(), nn.Conv2d(6, 16, 5), nn.AvgPool2d(2), nn.Sigmoid()
    )
    classifier = nn.Sequential(
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.Sigmoid(),
        nn.Linear(120, 84),
        nn.Sigmoid(),
        nn.Linear(84, classes),
    )
    return Net(extractor, classifier)


def lenet(shape: tuple[int, ...], classes: int) -> Net:
    """Build the sigmoid LeNet of DLG (Zhu et al., NeurIPS 2019): strides instead of pooling, weights U(-0.5, 0.5).

    It is twice differentiable everywhere, as L-BFGS on gradients needs.
    """
    channels, height, width = shape[0], -(-shape[1] // 4), -(-shape[2] // 4)  # two strides of 2, rounded up: 28 -> 7
    extractor = nn.Sequential(
        nn.Conv2d(channels, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=1, padding=2),
        nn.Sigmoid(),
        nn.Flatten(),
    )
    net = Net(extractor, nn.Linear(12 * height * width, classes))
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net
