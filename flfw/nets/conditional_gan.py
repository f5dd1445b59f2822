"""Classifier with a conditional GAN of its features (Wu et al., IJCAI 2022).

The generator makes features from noise and a label; the discriminator separates them from an extractor's features. For
the features of LeNet5 (16x5x5) both are the paper's networks; for other maps, layers double or halve the side.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from flfw.errors import InputError
from flfw.nets.net import Net

LATENT = 100
"""Length of the noise z ~ N(0, I)."""
_WIDTHS = (512, 256, 128)  # channels between the label and the features
_SLOPE, _DEVIATION = 0.2, 0.02
_UNIT_STEP = 5  # up to this side, each layer adds one pixel


class _UpsamplingLayer(NamedTuple):
    """Transposed convolution that changes the side of a map."""

    kernel: int
    stride: int
    padding: int


def _grown(side: int) -> list[_UpsamplingLayer]:
    """Return the layers from 1x1 to ``side`` x ``side``; a discriminator has them in reverse order.

    Each layer adds one pixel up to the paper's number of layers; for larger sides, layers double the side (for an even
    side exactly, for an odd side to one less than the double).
    """
    if side <= _UNIT_STEP:
        return [_UpsamplingLayer(2, 1, 0)] * (side - 1) or [_UpsamplingLayer(1, 1, 0)]
    half = (side + 1) // 2
    return [
        *(_grown(half) if half > _UNIT_STEP else [_UpsamplingLayer(half, 1, 0)]),
        _UpsamplingLayer(3 + (side % 2 == 0), 2, 1),
    ]


class Generator(nn.Module):
    """Generator G(z, y) of features in (0, 1) for a label.

    Args:
        features: shape of the generated features, (C, S, S).
        classes: number of labels; each label has a learnt embedding of that length.
    """

    def __init__(self, features: Sequence[int], classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, classes)
        layers = _grown(features[1])
        widths = [LATENT + classes, *_widths(len(layers) - 1), features[0]]
        pairs = zip(pairwise(widths), layers, strict=True)
        self.layers = _stacked([nn.ConvTranspose2d(*pair, *layer, bias=False) for pair, layer in pairs], widths)
        _initialise(self)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Generate features (B, C, S, S) from noise (B, 100) and labels (B,)."""
        return self.layers(torch.cat([z, self.embedding(y)], 1)[..., None, None])


class Discriminator(nn.Module):
    """Discriminator D(f, y): the probability that features of a label come from an extractor.

    Args:
        features: shape of the features, (C, S, S).
        classes: number of labels.
    """

    def __init__(self, features: Sequence[int], classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, classes)
        layers = _grown(features[1])[::-1]
        widths = [features[0] + classes, *_widths(len(layers) - 1)[::-1], 1]
        pairs = zip(pairwise(widths), layers, strict=True)
        self.layers = _stacked([spectral_norm(nn.Conv2d(*pair, *layer, bias=False)) for pair, layer in pairs], widths)
        _initialise(self)

    def forward(self, f: Tensor, y: Tensor) -> Tensor:
        """Compute probabilities (B,) of features (B, C, S, S) and labels (B,)."""
        planes = self.embedding(y)[..., None, None].expand(-1, -1, *f.shape[2:])
        return self.layers(torch.cat([f, planes], 1)).flatten()


def _stacked(convolutions: Sequence[nn.Module], widths: Sequence[int]) -> nn.Sequential:
    """Stack convolutions with BatchNorm and LeakyReLU in between and a sigmoid at the end."""
    parts: list[nn.Module] = []
    for convolution, width in zip(convolutions[:-1], widths[1:-1], strict=True):
        parts += [convolution, nn.BatchNorm2d(width), nn.LeakyReLU(_SLOPE)]
    return nn.Sequential(*parts, convolutions[-1], nn.Sigmoid())


def _widths(count: int) -> list[int]:
    """Return the channels of the inner layers; additional layers have the last width."""
    return [_WIDTHS[min(i, len(_WIDTHS) - 1)] for i in range(count)]


def _initialise(module: nn.Module) -> None:
    """Initialise as the authors do: N(0, 0.02) for convolutions, N(1, 0.02) and 0 for the normalisation."""
    for name, parameter in module.named_parameters():
        if "embedding" not in name:
            mean = 1.0 if parameter.dim() == 1 else 0.0
            nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.normal_(parameter, mean, _DEVIATION)


class GeneratorAndClassifier(nn.Module):
    """Generator followed by a classifier, C(G(z, y)); its tensors are ``generator.*`` and ``classifier.*``."""

    def __init__(self, generator: Generator, classifier: nn.Module, classes: int) -> None:
        super().__init__()
        self.generator, self.classifier, self.classes = generator, classifier, classes

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Compute class scores (B, classes) from noise (B, 100) and labels (B,)."""
        return self.classifier(self.generator(z, y))


class GeneratingNet(nn.Module):
    """A network with a generator of its features and, to train that generator, a discriminator.

    Its named tensors are ``extractor.*``, ``classifier.*``, ``generator.*`` and ``discriminator.*``.

    Args:
        net: network with an extractor of square feature maps in (0, 1), as the generator makes.
        judged: whether there is a discriminator.

    Raises:
        InputError: see `feature_shape`.
    """

    def __init__(self, net: Net, *, judged: bool = True) -> None:
        super().__init__()
        self.extractor, self.classifier, self.classes = net.extractor, net.classifier, net.classes
        features = feature_shape(net)
        self.generator = Generator(features, net.classes)
        if judged:
            self.discriminator = Discriminator(features, net.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute class scores (B, classes) of network inputs (B, ...)."""
        return self.classifier(self.extractor(x))

    def parts(self, *names: str) -> dict[str, Tensor]:
        """Return the parameters of the given parts (of four), by name."""
        return {name: p for name, p in self.named_parameters() if name.partition(".")[0] in names}


def generator_and_classifier(model: nn.Module) -> GeneratorAndClassifier:
    """Return generator and classifier of a `GeneratingNet`, with the same tensors."""
    assert isinstance(model, GeneratingNet), "the method builds no other"
    return GeneratorAndClassifier(model.generator, model.classifier, model.classes)


def noise(count: int, rng: torch.Generator) -> Tensor:
    """Draw z (count, 100)."""
    return torch.randn(count, LATENT, generator=rng)


def labelled_noise(batches: int, size: int, classes: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw batches of z (size, 100) and uniform labels (size,)."""
    for _ in range(batches):
        labels = torch.randint(classes, (size,), generator=rng)
        yield noise(size, rng), labels


def feature_shape(net: Net) -> tuple[int, int, int]:
    """Return the shape (C, S, S) of the features of one input.

    Raises:
        InputError: the features are no square maps, or the extractor does not end in a sigmoid, so a generator of
            values in (0, 1) cannot make them.
    """
    device = next(net.parameters()).device
    training, _ = net.extractor.training, net.extractor.eval()  # so that this pass changes no running statistics
    with torch.no_grad():
        shape = tuple(net.extractor(torch.zeros(1, *net.shape, device=device)).shape[1:])
    net.extractor.train(training)
    last = list(net.extractor.modules())[-1]
    if len(shape) != 3 or shape[1] != shape[2] or not isinstance(last, nn.Sigmoid):
        got = "x".join(map(str, shape))
        raise InputError(
            f"Expected a network whose extractor makes square maps in (0, 1), such as lenet5, got features of {got} "
            f"after {type(last).__name__}; choose another --net."
        )
    return shape


def diversity_loss(first: Tensor, second: Tensor, z: Tensor, other: Tensor) -> Tensor:
    """Compute 1 / (r + 1e-5) with r = mean|G(z) - G(z')| / mean|z - z'|: small if the generator uses its noise.

    Mao et al., "Mode Seeking Generative Adversarial Networks", CVPR 2019.

    Args:
        first: G(z, y), (B, ...).
        second: G(z', y), (B, ...), of the same labels.
        z: (B, 100).
        other: z', (B, 100).
    """
    return 1 / ((first - second).abs().mean() / (z - other).abs().mean() + 1e-5)


def half_diversity(features: Tensor, z: Tensor) -> Tensor:
    """Compute the diversity loss of the two halves of a batch, of any labels, as FedCG's authors do.

    Mao et al. compare two draws of one label (`label_diversity`): between labels features differ anyway. Of an odd
    batch the first example is in both halves; one example alone has no second half, and its loss is 0.

    Args:
        features: G(z, y), (B, ...).
        z: the batch's noise (B, 100).
    """
    if len(z) < 2:
        return z.new_zeros(())
    half = (len(z) + 1) // 2
    other = torch.arange(half, 2 * half, device=z.device) % len(z)
    return diversity_loss(features[:half], features[other], z[:half], z[other])


def label_diversity(generator: Generator, z: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
    """Compute the diversity loss of a generator on half a batch, with a second draw of noise for its labels.

    Args:
        generator: generator in training mode.
        z: the batch's noise (B, 100); the first half of it is used, at least one.
        y: its labels (B,).
        rng: generator of the second draw.
    """
    half = max(1, len(y) // 2)
    first, other = z[:half], noise(half, rng).to(z.device)
    both = generator(torch.cat([first, other]), y[:half].repeat(2))
    return diversity_loss(both[:half], both[half:], first, other)
