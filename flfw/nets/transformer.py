"""Small transformers: ``gpt_tiny``, ``gpt_next``, ``bert_tiny`` for bytes, ``vit_norm`` and ``vit_plain`` for images.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019: layer normalisation before each part of a
block and before the scores, learnt positions, N(0, 0.02) for every weight matrix. Width, heads and blocks are smaller.

Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021: the same blocks on patches of an image, with Glorot's
weights; here the scores follow the mean of all patches. In ``vit_plain`` the first attention reads patch + position
directly and nothing else does, as in the network that APRIL inverts (Lu et al., CVPR 2022).
"""

from typing import final

import torch
from torch import Tensor, nn

from flfw.errors import require
from flfw.nets.net import Net

TOKENS = 256
"""Size of the vocabulary: a token is a byte, so that no tokeniser is needed."""

_WIDTH, _HEADS, _BLOCKS = 128, 4, 3
_DEVIATION = 0.02  # of the first weights
_PATCH = 4  # height and width of a patch in pixels


def tokens(x: Tensor) -> Tensor:
    """Return the tokens (B, T) int64 of raw inputs (B, T): byte k is stored as k / 255.

    It is exact for inputs that were rounded to bfloat16, and has no gradient.

    >>> tokens(torch.tensor([[0.0, 65 / 255, 1.0]])).tolist()
    [[0, 65, 255]]
    """
    return (255 * x.float()).round().long().clamp(0, TOKENS - 1)


def raw(sequences: Tensor) -> Tensor:
    """Return the raw inputs (B, T) float32 in [0, 1] of tokens (B, T)."""
    return sequences.float() / 255


@final
class SelfAttention(nn.Module):
    """Self-attention with several heads; queries, keys and values come from one matrix, in this order.

    Args:
        width: length of a token's vector.
        heads: number of heads, a divisor of ``width``.
        causal: whether a position sees only itself and those before it.
    """

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor, last: bool = False) -> Tensor:
        """Return the mixed vectors (B, T, width) of vectors (B, T, width), or (B, 1, width) of the last position."""
        # Plain operations: PyTorch's fused attention has no second derivative on every device.
        parts = self.query_key_value(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in parts)
        q = q[..., -1:, :] if last else q
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.causal and not last:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return self.output((scores.softmax(-1) @ v).transpose(-3, -2).flatten(-2))


@final
class Block(nn.Module):
    """Block of a transformer: x + attention(norm(x)), and then the same with a network of one hidden layer.

    Args:
        width: length of a token's vector.
        heads: number of heads.
        causal: whether a position sees only itself and those before it.
        plain: whether it begins with attention(x) alone, without normalisation and without the sum.
    """

    def __init__(self, width: int, heads: int, causal: bool, plain: bool = False) -> None:
        super().__init__()
        self.plain = plain
        self.attention_norm = nn.Identity() if plain else nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, causal)
        self.dense_norm = nn.LayerNorm(width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, last: bool = False) -> Tensor:
        """Return the vectors (B, T, width) of the next block, or (B, 1, width) of the last position."""
        mixed = self.attention(self.attention_norm(x), last)
        x = mixed if self.plain else (x[..., -1:, :] if last else x) + mixed
        return x + self.dense(self.dense_norm(x))


@final
class Transformer(nn.Module):
    """Extractor of a text's features: the last block's normalised vectors, or their mean over the positions.

    Args:
        length: number of tokens of a text.
        causal: whether a position sees only itself and those before it.
        pooled: whether to take the mean.
    """

    def __init__(self, length: int, causal: bool, pooled: bool = True) -> None:
        super().__init__()
        self.causal, self.pooled = causal, pooled
        self.token, self.position = nn.Embedding(TOKENS, _WIDTH), nn.Embedding(length, _WIDTH)
        self.blocks = nn.ModuleList(Block(_WIDTH, _HEADS, causal) for _ in range(_BLOCKS))
        self.norm = nn.LayerNorm(_WIDTH)

    def block(self, number: int) -> Block:
        """Return the block of this number, the first being 0."""
        chosen = self.blocks[number]
        assert isinstance(chosen, Block), "built above"
        return chosen

    def embedded(self, sequences: Tensor) -> Tensor:
        """Return the first block's inputs (B, T, width) for tokens (B, T), or for the first T of each text."""
        indices = torch.arange(sequences.shape[-1], device=sequences.device).expand(sequences.shape)
        return self.token(sequences) + self.position(indices)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (B, width) of raw inputs (B, T), or (B, T, width) of each position."""
        hidden = self.embedded(tokens(x))
        for block in self.blocks:
            hidden = block(hidden)
        return self.norm(hidden).mean(-2) if self.pooled else self.norm(hidden)


@final
class PlaceClassifier(nn.Linear):
    """Linear classifier of every position: scores (B, classes, T), as cross entropy takes them."""

    def forward(self, input: Tensor) -> Tensor:
        """Return scores (B, classes, T) of features (B, T, width)."""
        return super().forward(input).mT


def patches(x: Tensor) -> Tensor:
    """Cut images (B, C, H, W) into patches of 4 x 4 pixels (B, T, C * 16), row by row.

    >>> patches(torch.arange(32.0).view(1, 1, 4, 8))[0, 1].tolist()[:5]
    [4.0, 5.0, 6.0, 7.0, 12.0]
    """
    cut = x.unflatten(-1, (-1, _PATCH)).unflatten(-3, (-1, _PATCH))  # (B, C, rows, 4, columns, 4)
    return cut.movedim((-4, -2), (-5, -4)).flatten(-3).flatten(-3, -2)


def joined(cut: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Join patches (B, T, C * 16) to images (B, C, H, W) of shape (C, H, W); the inverse of `patches`."""
    channels, height, width = shape
    grid = cut.unflatten(-1, (channels, _PATCH, _PATCH)).unflatten(-4, (height // _PATCH, width // _PATCH))
    return grid.movedim((-5, -4), (-4, -2)).flatten(-2).flatten(-3, -2)


@final
class VisionTransformer(nn.Module):
    """Extractor of an image's features: the mean over its patches of the last block's normalised vectors.

    Args:
        shape: shape of an image, (C, H, W).
        plain: whether the first block reads its input by attention alone, see `Block`.

    Raises:
        InputError: an image does not divide into patches.
    """

    def __init__(self, shape: tuple[int, ...], plain: bool) -> None:
        super().__init__()
        whole = not (shape[1] % _PATCH or shape[2] % _PATCH)
        require(whole, f"images of a height and a width that {_PATCH} divides, for patches", shape=shape)
        count = shape[1] // _PATCH * (shape[2] // _PATCH)
        self.patch, self.position = nn.Linear(shape[0] * _PATCH**2, _WIDTH), nn.Embedding(count, _WIDTH)
        self.blocks = nn.ModuleList(Block(_WIDTH, _HEADS, False, plain and not number) for number in range(_BLOCKS))
        self.norm = nn.LayerNorm(_WIDTH)

    def block(self, number: int) -> Block:
        """Return the block of this number, the first being 0."""
        chosen = self.blocks[number]
        assert isinstance(chosen, Block), "built above"
        return chosen

    def embedded(self, x: Tensor) -> Tensor:
        """Return the first block's inputs (B, T, width) for network inputs (B, C, H, W)."""
        cut = self.patch(patches(x))
        return cut + self.position(torch.arange(cut.shape[-2], device=x.device).expand(cut.shape[:-1]))

    def forward(self, x: Tensor) -> Tensor:
        """Return features (B, width) of network inputs (B, C, H, W)."""
        hidden = self.embedded(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.norm(hidden).mean(-2)


def gpt_tiny(shape: tuple[int, ...], classes: int) -> Net:
    """Build a causal transformer with 3 blocks of width 128 and 4 heads, and a linear classifier of the mean."""
    return _initialised(Net(Transformer(shape[0], causal=True), nn.Linear(_WIDTH, classes)))


def gpt_next(shape: tuple[int, ...], classes: int) -> Net:
    """Build a language model: the same network with a linear classifier of each position, for its next token."""
    return _initialised(Net(Transformer(shape[0], causal=True, pooled=False), PlaceClassifier(_WIDTH, classes)))


def bert_tiny(shape: tuple[int, ...], classes: int) -> Net:
    """Build `gpt_tiny` without the mask: every position sees the whole text."""
    return _initialised(Net(Transformer(shape[0], causal=False), nn.Linear(_WIDTH, classes)))


def vit_norm(shape: tuple[int, ...], classes: int) -> Net:
    """Build a vision transformer with 3 blocks of width 128 and 4 heads, and a linear classifier of the mean."""
    return _glorot(Net(VisionTransformer(shape, plain=False), nn.Linear(_WIDTH, classes)))


def vit_plain(shape: tuple[int, ...], classes: int) -> Net:
    """Build the same network, in which the first block begins with attention alone."""
    return _glorot(Net(VisionTransformer(shape, plain=True), nn.Linear(_WIDTH, classes)))


def _initialised(net: Net) -> Net:
    """Draw the weights as GPT-2 does, without its smaller ones at the ends of the residual paths, and return it."""
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_DEVIATION)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return net


def _glorot(net: Net) -> Net:
    """Draw the weights as the authors of vision transformers do, the classifier's as well, and return it."""
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=_DEVIATION)
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return net
