"""Post-processor of reconstructions: a U-Net that learns from pairs of a reconstruction and its image.

    u = f_theta(reconstruction),    theta minimises |u - image|_1 + 0.1 (1 - SSIM(u, image))

The pairs come from simulated clients that hold data of the attacker, such as public images: their messages are
attacked, and the truth behind each is known. So the U-Net adds the detail that images of a kind mostly have, and tells
nothing of the image behind another reconstruction but its kind.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, l1_loss, max_pool2d

from flfw.bounds import BoundedSettings, PositiveFloat, PositiveInt
from flfw.errors import require
from flfw.inversion.client_models.victim import VictimModel
from flfw.inversion.compute import mini_batches, steps
from flfw.inversion.search import SearchTarget
from flfw.nets.net import Tensors
from flfw.nets.training.optimisers import Adam, descend
from flfw.rng import initialising

_WIDTHS = (48, 48, 96)  # of the denoiser of Yue et al., USENIX Security 2023
_SSIM = 0.1  # weight of 1 - SSIM
_WINDOW = 7  # pixels of SSIM's uniform window, or the image's side if that is smaller
_C1, _C2 = 0.01**2, 0.03**2  # of Wang et al., 2004, for images in [0, 1]
LEAST_SIDE = 4  # pixels that two halvings leave something of
_AT_ONCE = 50  # messages in memory
Search: TypeAlias = Callable[[Sequence[SearchTarget], Tensors], Sequence[Tensor]]
"""Function of targets in the coordinates of a victim's gradient, and of its constants, to a result (B, ...) for each;
NaN where it failed."""


def simulated_pairs(
    victim: VictimModel, example: Tensors, held: tuple[Tensor, Tensor], batch: int, search: Search, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Attack clients of one kind that hold given data, and return the results with the truths.

    The client's unknown tensors have the attacker's own values, each in another order.

    Args:
        victim: attacker's model of the clients.
        example: a real message of such a client; of it only the victim's constants are used.
        held: raw inputs (N, ...) in [0, 1] and labels (N,); a last batch that is not full is left out.
        batch: number of examples in a message.
        search: the attack.
        rng: generator of the searches and of the unknown tensors.

    Returns:
        Results and truths, both (n, ...) with n <= N; failed searches are left out.

    Raises:
        InputError: no search succeeded, or fewer data than a batch are held.
    """
    constants = victim.observed(example)[1]
    batches = [pair for pair in zip(*(part.split(batch) for part in held), strict=True) if len(pair[1]) == batch]
    results: list[Tensor] = []
    for chunk in steps(-(-len(batches) // _AT_ONCE), full=True):
        at = chunk * _AT_ONCE
        results += search([*_targets(victim, batches[at : at + _AT_ONCE], constants, rng)], constants)
    both = [(one, x) for one, (x, _) in zip(results, batches, strict=True) if bool(one.isfinite().all())]
    require(bool(both), f"a successful search among {len(batches)} simulated clients", successful=len(both))
    guesses, truths = (torch.cat(part) for part in zip(*both, strict=True))
    return guesses, truths


def _targets(
    victim: VictimModel, batches: Sequence[tuple[Tensor, Tensor]], constants: Tensors, rng: torch.Generator
) -> Iterator[SearchTarget]:
    for x, y in batches:
        private = {name: _in_another_order(value, rng) for name, value in victim.unknown.items()}
        sent = victim.gradient(x, y, private, constants)
        yield SearchTarget({name: value.detach() for name, value in sent.items()}, y, rng)


def _in_another_order(value: Tensor, rng: torch.Generator) -> Tensor:
    order = torch.randperm(value.numel(), generator=rng).to(value.device)
    return value.flatten()[order].view_as(value)


@dataclass(frozen=True)
class PostTraining(BoundedSettings):
    """Settings of the training.

    Attributes:
        epochs: passes over the pairs, >= 1.
        lr: first step size of Adam, > 0; it falls to 0 along half a cosine.
        batch: pairs in a step, >= 1.
    """

    epochs: PositiveInt = 20
    lr: PositiveFloat = 1e-3
    batch: PositiveInt = 16


@final
class PostProcessor(nn.Module):
    """U-Net of three levels, 48, 48 and 96 channels wide, that adds a correction to an image (B, C, H, W).

    Before training the correction is 0.

    Args:
        channels: channels of an image.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second, deep = _WIDTHS
        self.first, self.second, self.deep = _block(channels, first), _block(first, second), _block(second, deep)
        self.second_up, self.first_up = _block(deep + second, second), _block(second + first, first)
        self.last = nn.Conv2d(first, channels, 1)
        nn.init.zeros_(self.last.weight)
        assert self.last.bias is not None
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the corrected images; they are not clamped."""
        first = self.first(x)
        second = self.second(max_pool2d(first, 2))
        deep = self.deep(max_pool2d(second, 2))
        second = self.second_up(torch.cat([interpolate(deep, size=second.shape[-2:]), second], 1))
        first = self.first_up(torch.cat([interpolate(second, size=first.shape[-2:]), first], 1))
        return x + self.last(first)

    @torch.no_grad()
    def improved(self, images: Tensor) -> Tensor:
        """Return the corrected images (N, C, H, W), in [0, 1]."""
        return self(images.clamp(0, 1)).clamp(0, 1)


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    first, second = (nn.Conv2d(size, channels_out, 3, padding=1) for size in (channels_in, channels_out))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


def similarity(ones: Tensor, others: Tensor) -> Tensor:
    """Compute the mean structural similarity of images (N, C, H, W) in [0, 1], in [-1, 1] (Wang et al., 2004).

    The window is uniform, of 7 pixels, and covariances are the population's.

    >>> image = torch.linspace(0, 1, 64).view(1, 1, 8, 8)
    >>> round(float(similarity(image, image)), 6)
    1.0
    """
    size = min(_WINDOW, *ones.shape[-2:])
    local = lambda x: avg_pool2d(x, size, stride=1)  # noqa: E731
    a, b = local(ones), local(others)
    variances = local(ones.square()) - a.square() + local(others.square()) - b.square()
    covariance = local(ones * others) - a * b
    brightness = (2 * a * b + _C1) / (a.square() + b.square() + _C1)
    return (brightness * (2 * covariance + _C2) / (variances + _C2)).mean()


def trained(reconstructions: Tensor, images: Tensor, training: PostTraining, rng: torch.Generator) -> PostProcessor:
    """Train a post-processor on pairs.

    Args:
        reconstructions: (N, C, H, W) in [0, 1].
        images: (N, C, H, W) in [0, 1], the truth of each.
        training: settings.
        rng: generator of the batches.

    Raises:
        InputError: there are no pairs, or their sides are below 4 pixels.
    """
    require(len(images) > 0, "at least one pair for the post-processor", pairs=len(images))
    sides = tuple(images.shape[-2:])
    require(min(sides) >= LEAST_SIDE, f"sides >= {LEAST_SIDE} pixels for the post-processor", sides=sides)
    with initialising(0, "post-processor"):
        network = PostProcessor(images.shape[1]).to(images.device)

    def loss(rows: Tensor) -> Tensor:
        truth, improved = images[rows], network(reconstructions[rows])
        return l1_loss(improved, truth) + _SSIM * (1 - similarity(improved, truth))

    rows = mini_batches(len(images), training.batch, training.epochs, rng)
    taken = training.epochs * -(-len(images) // training.batch)
    descend(network, (loss(some.to(images.device)) for some in rows), Adam(training.lr), taken)
    return network.requires_grad_(False)
