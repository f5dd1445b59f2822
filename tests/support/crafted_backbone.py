"""Frozen transformer and adapters of a malicious server, and the patches of single images read off their gradient.

PEFTLeak: Sami et al., "Gradient Inversion Attacks on Parameter-Efficient Fine-Tuning", CVPR 2025, arXiv 2506.04453. The
frozen tensors are crafted once; tokens pass through them unchanged. The adapters are crafted for each round. All rows
of Down in a block measure one quantity of one target patch, here its mean, with increasing thresholds. Tokens of other
places stay below all of them. A token holds, in coordinates of their own: the pixels of its patch; C at its place; C;
twice -C; two zeros. The parts:

    attention    0, but uniform in the last block: it carries the mean of all tokens to the class token
    MLP          GELU(a) - GELU(-a) = a, so an adapter's input is z = LayerNorm(token). The block adds z to the token,
                 which the next LayerNorm undoes
    Down         mean of the pixels + 3 (coordinate of the place - coordinate C) - threshold, all times 0.01
    Up, LN_a     all units write to the two zeros alone: adapters change no pixels, and all units have one gradient

The patches follow in closed form from the gradients dW_k, db_k of unit k of Down:

    z = (dW_k - dW_{k+1}) / (db_k - db_{k+1})       adapter's input for the one patch in the bin between units k, k+1;
    patch = sigma z + m                             the known coordinates +C and -C of a token give sigma and m.

**Granted:** the server chooses the frozen weights and the adapters' first values, and has public images. It knows no
labels, no classifier and no number of images. A client that loads the body from a copy of its own does not grant this.

**Departures from PEFTLeak.** Its position vectors are random and share coordinates with the pixels, and its attention
passes tokens on by a one-hot softmax. Here places have their own coordinates, and the attention of all blocks but the
last is 0, so readings are exact; but tokens must be longer: pixels, places and five numbers (ViT-S/16's are too short).
A block may have several targets with fewer bins each, and several blocks may share the bins of one target. The last
block's adapter has no gradient at patches and is not used. The squared length of z is the width for one token and
another one for nearly every mixture, so mixtures are left out. PEFTLeak groups patches to images by clusters of pixels;
here the gains do, the bias's gradients divided by known factors, which are equal for all patches of an image.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from flfw.errors import InputError
from flfw.nets.backbones.adapters import BottleneckAdapter
from flfw.nets.net import Tensors

CONSTANT = 10.0
"""C. With a smaller one the deviations of tokens differ more, with a larger one pixels are rounded."""

_FORBIDDING = 3.0  # size of a row of Down at the place, over its size at the mean of a patch
_ROW = 1e-2  # size of a row of Down at the mean of a patch: small beside its change in a step, which is rounded with it
_WRITTEN = 0.1  # size of Up: with the rows' it keeps what adapters write small beside C


@dataclass(frozen=True)
class PatchTarget:
    """Place in the image whose patches some units of a block's adapter measure.

    Attributes:
        block: number of the block.
        place: number of the patch, in rows from the upper left.
        units: first of the units and the one behind their last.
    """

    block: int
    place: int
    units: tuple[int, int]


@dataclass(frozen=True)
class TokenLayout:
    """Coordinates of a token of a crafted transformer: pixels, places, +C, twice -C, two for adapters, and unused ones.

    Attributes:
        colours: channels of a patch.
        side: height and width of a patch.
        places: number of patches in an image.
        width: length of a token.
        depth: number of blocks.
        units: units of an adapter's bottleneck.
    """

    colours: int
    side: int
    places: int
    width: int
    depth: int
    units: int

    @property
    def pixels(self) -> int:
        """Number of pixels of a patch, all channels counted; they are the first coordinates."""
        return self.colours * self.side**2

    @property
    def plus(self) -> int:
        """Number of the coordinate that is C; the next two are -C, and adapters write to the two behind."""
        return self.pixels + self.places

    @property
    def carriers(self) -> tuple[int, int]:
        """Numbers of the two coordinates to which adapters write."""
        return self.plus + 3, self.plus + 4


@dataclass(frozen=True)
class CraftedAdapters:
    """Adapters of one round.

    Attributes:
        tensors: by their names in the body, in the body's order.
        targets: patches that they measure.
        layout: coordinates of the body's tokens.
    """

    tensors: Tensors
    targets: tuple[PatchTarget, ...]
    layout: TokenLayout


def layout_of(body: nn.Module) -> TokenLayout:
    """Compute the layout for a transformer with adapters.

    Args:
        body: timm's transformer with a `BottleneckAdapter` in each block.

    Raises:
        InputError: another body, or one whose tokens are too short.
    """
    adapters = [layer for layer in body.modules() if isinstance(layer, BottleneckAdapter)]
    if not adapters:
        raise InputError("Expected a transformer with an adapter in each block, got a body without; choose vit_tiny.")
    width, colours, side, _ = body.get_buffer("patch_embed.proj.weight").shape
    places = body.get_buffer("pos_embed").shape[1] - 1
    layout = TokenLayout(colours, side, places, width, len(adapters), adapters[0].down.out_features)
    if layout.carriers[1] >= width:
        needed = f"{layout.pixels} pixels, {places} places and 5 more"
        raise InputError(f"Expected tokens that hold {needed}, got a width of {width}; choose vit_tiny.")
    return layout


def craft_body(body: nn.Module) -> Tensors:
    """Craft the frozen tensors, under the names that a file of weights has for them.

    Args:
        body: see `layout_of`; its numbers are not used.
    """
    layout = layout_of(body)
    made = {name: torch.zeros(value.shape) for name, value in body.named_buffers()}
    for name, value in made.items():
        if name.endswith(("norm1.weight", "norm2.weight")) or name == "norm.weight":
            value += 1
    pixels, plus = layout.pixels, layout.plus
    made["patch_embed.proj.weight"].flatten(1)[:pixels] = torch.eye(pixels)
    places = made["pos_embed"][0]
    places[1:, pixels:plus] = CONSTANT * torch.eye(layout.places)
    places[:, plus], places[:, plus + 1], places[1:, plus + 2] = CONSTANT, -CONSTANT, -CONSTANT
    for number in range(layout.depth):
        _pass_on(made, f"blocks.{number}.mlp.layer", layout.width)
    _attend(made, f"blocks.{layout.depth - 1}.attn", layout)
    return {name.replace(".mlp.layer.", ".mlp."): value for name, value in made.items()}


def _pass_on(made: Tensors, mlp: str, width: int) -> None:
    """Fill an MLP with the identity, GELU(a) - GELU(-a) = a."""
    one = torch.eye(width)
    made[f"{mlp}.fc1.weight"][: 2 * width] = torch.cat([one, -one])
    made[f"{mlp}.fc2.weight"][:, : 2 * width] = torch.cat([one, -one], 1)


def _attend(made: Tensors, attention: str, layout: TokenLayout) -> None:
    """Fill an attention with the mean over tokens: of their pixels, and of the adapters' writing, to all coordinates.

    The pixels make the gains of two images differ.
    """
    made[f"{attention}.qkv.weight"][2 * layout.width :] = torch.eye(layout.width)
    projection = made[f"{attention}.proj.weight"]
    projection[: layout.pixels, : layout.pixels] = torch.eye(layout.pixels)
    first, second = layout.carriers
    signs = 1 - 2.0 * (torch.arange(layout.width) % 2)
    projection[:, first] += (layout.places + 1) * signs
    projection[:, second] -= (layout.places + 1) * signs


def craft_adapters(body: nn.Module, public: Tensor, indices: Sequence[int]) -> CraftedAdapters:
    """Craft the adapters of a round.

    Args:
        body: see `layout_of`; its numbers are not used.
        public: (n, C, H, W) public network inputs at the network's own size: their quantiles bound the bins.
        indices: numbers of the target patches, dealt to the blocks but the last; those of a block share its units. A
            place that is named several times has more and narrower bins.

    Raises:
        InputError: more targets than units, places outside the image, or see `layout_of`.
    """
    layout = layout_of(body)
    targets = _dealt(indices, layout)
    made = {name: torch.zeros(value.shape) for name, value in body.named_parameters()}
    statistics = _statistics(unfold(public, layout.side, stride=layout.side), layout)
    for number in range(layout.depth):
        name = f"blocks.{number}.mlp.adapter"
        made[f"{name}.down.bias"] -= 1.0  # units without a target are never on
        _write(made, name, layout)
    turns = Counter(indices)
    turn: Counter[int] = Counter()
    for target in targets:
        name, units = f"blocks.{target.block}.mlp.adapter.down", slice(*target.units)
        rows = made[f"{name}.weight"][units]
        rows[:, : layout.pixels] = _ROW / layout.pixels
        # It is C as the next one is, but in tokens of other places 0.
        rows[:, layout.pixels + target.place] = _ROW * _FORBIDDING
        rows[:, layout.plus] = -_ROW * _FORBIDDING
        bounds = _thresholds(statistics[:, target.place], len(rows), turn[target.place], turns[target.place])
        made[f"{name}.bias"][units] = -_ROW * bounds
        turn[target.place] += 1
    return CraftedAdapters(made, targets, layout)


def _dealt(indices: Sequence[int], layout: TokenLayout) -> tuple[PatchTarget, ...]:
    """Deal places to blocks, and a block's units to its places."""
    blocks = layout.depth - 1
    each = ceil(len(indices) / blocks)
    if not 0 < each <= layout.units or not all(0 <= index < layout.places for index in indices):
        required = f"1 to {blocks * layout.units} places among 0 to {layout.places - 1}"
        raise InputError(
            f"Expected {required}, got {len(indices)} from {min(indices, default=0)} to {max(indices, default=0)}."
        )
    size = layout.units // each
    return tuple(
        PatchTarget(number // each, index, (number % each * size, number % each * size + size))
        for number, index in enumerate(indices)
    )


def _statistics(patches: Tensor, layout: TokenLayout) -> Tensor:
    """Compute the quantity that a row of Down measures, (n, places): the mean of pixels in z.

    Args:
        patches: (n, pixels, places).
        layout: coordinates of a token.
    """
    mean = patches.sum(1) / layout.width
    variance = (patches.square().sum(1) + 4 * CONSTANT**2) / layout.width - mean.square()
    return (patches.mean(1) - mean) / variance.sqrt()


def _thresholds(statistic: Tensor, units: int, turn: int, turns: int) -> Tensor:
    """Compute the lower bounds (units,) of bins that hold equal shares of a statistic (n,).

    The first bound is below all of it. If several blocks share the bins, each but the last ends where the next begins.

    Args:
        statistic: of public patches.
        units: number of bounds.
        turn: number of the block among those that share the bins.
        turns: their number.
    """
    steps = units - 1 if turn < turns - 1 else units
    shares = (turn + torch.arange(units) / max(steps, 1)) / turns
    bounds = torch.quantile(statistic, shares.clamp(max=1))
    if turn == 0:
        bounds[0] = -2.0 * statistic.abs().max() - 1
    return bounds


def _write(made: Tensors, adapter: str, layout: TokenLayout) -> None:
    """Let all units of an adapter write the same to the two carriers, with opposite signs, and nothing elsewhere.

    Up's bias has mean 0 and deviation 1 and is 1 at both carriers. So LN_a divides by 1, and its bias subtracts 1.
    """
    first, second = layout.carriers
    half = torch.ones(layout.width // 2)
    made[f"{adapter}.up.bias"] += torch.cat([half, -torch.ones(layout.width - len(half))]).roll(first)
    for carrier, size in ((first, _WRITTEN), (second, -_WRITTEN)):
        made[f"{adapter}.up.weight"][carrier] = size
        made[f"{adapter}.norm.weight"][carrier] = 1
        made[f"{adapter}.norm.bias"][carrier] = -1


_ROUNDING = 1e-5
"""Largest relative error of the squared length of a single token, in a gradient in float32."""

_PRESENT = 0.1  # a bin below this, times the rounding, is empty; as a share of the block's largest bias gradient


@dataclass(frozen=True)
class PatchReadings:
    """Patches that were read off a gradient.

    Attributes:
        places: (n,) numbers of the patches in their images.
        inputs: (n, C, side, side) network inputs.
        gains: (n,) equal for patches of one image, up to rounding.
    """

    places: Tensor
    inputs: Tensor
    gains: Tensor


def read_patches(gradient: Tensors, crafted: CraftedAdapters, rounding: float = _ROUNDING) -> PatchReadings:
    """Read off the patches that are alone in their bins.

    Args:
        gradient: of the adapters, by their names in the body, for a batch of any size.
        crafted: the adapters that the gradient belongs to.
        rounding: largest relative error of the squared length of a single token. An update of weights is rounded with
            the weights, so that more is needed.
    """
    by_target = [_read_target(gradient, target, crafted.layout, rounding) for target in crafted.targets]
    places, inputs, gains = (torch.cat(parts) for parts in zip(*by_target, strict=True))
    return PatchReadings(places, inputs, gains)


def _read_target(
    gradient: Tensors, target: PatchTarget, layout: TokenLayout, rounding: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Read the patches of one target: their places (k,), network inputs (k, C, side, side) and gains (k,)."""
    name, units = f"blocks.{target.block}.mlp.adapter.down", slice(*target.units)
    weight, bias = gradient[f"{name}.weight"].double(), gradient[f"{name}.bias"].double()
    nothing = bias.new_zeros(1)
    size = -torch.cat([bias[units], nothing]).diff()
    z = -torch.cat([weight[units], nothing.expand(1, layout.width)]).diff(dim=0)
    held = size.abs() > _PRESENT * rounding * bias.abs().max()
    z, size = z[held] / size[held, None], size[held]
    alone = (z.square().mean(1) - 1).abs() < rounding
    z, size = z[alone], size[alone]
    plus, minus = z[:, layout.plus], z[:, layout.plus + 1]
    sigma = 2 * CONSTANT / (plus - minus)
    mean = -(plus + minus) / 2 * sigma
    pixels = z[:, : layout.pixels] * sigma[:, None] + mean[:, None]
    # Each block adds z, of deviation 1, to a token. The deviation behind this block divides the gradient.
    gains = size * (sigma + target.block + 1)
    inputs = pixels.float().view(-1, layout.colours, layout.side, layout.side)
    return torch.full((len(z),), target.place), inputs, gains
