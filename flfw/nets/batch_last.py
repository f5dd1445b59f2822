"""Convolutions of maps of a few pixels, as matrix products.

The usual convolution routines are made for images. For maps of one to five pixels and hundreds of channels they mostly
read weights, and they reorder these first, once forwards and twice backwards. With the batch last in memory,
(C, H, W, B), nothing is reordered: a convolution is W times the windows of x, and a transposed convolution is W^T x,
with its entries added up at the places of their windows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, final

from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import pad

_BY_ENTRY = nn.LeakyReLU | nn.ReLU | nn.Sigmoid | nn.Tanh | nn.Identity
_CONVOLUTION = nn.Conv2d | nn.ConvTranspose2d
_Model = TypeVar("_Model", bound=nn.Module)


def use_batch_last(model: _Model) -> _Model:
    """Replace the model's stacks of convolutions by `BatchLast`, in place, and return the model.

    Args:
        model: its parameters stay the same objects with the same names. A stack with a layer that `BatchLast` does not
            support is left unchanged.
    """
    for path, stack in list(model.named_modules()):
        if type(stack) is nn.Sequential and any(isinstance(layer, _CONVOLUTION) for layer in stack):
            parent, _, name = path.rpartition(".")
            if name and all(_holds(layer) for layer in stack):
                setattr(model.get_submodule(parent), name, BatchLast(*stack).train(stack.training))
    return model


@final
class BatchLast(nn.Sequential):
    """Stack of layers with the same output as an `nn.Sequential`, up to rounding.

    Args:
        layers: convolutions, transposed or not, in one group, without dilation and output padding; `nn.BatchNorm2d`;
            functions of single entries.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        for layer in layers:
            assert _holds(layer), f"Expected a layer that is written out here, got {layer}."

    def forward(self, input: Tensor) -> Tensor:
        """Compute maps (B, C', H', W') from maps (B, C, H, W)."""
        last = input.permute(1, 2, 3, 0).contiguous()
        for layer in self:
            last = _computed(layer, last)
        return last.permute(3, 0, 1, 2)


def _holds(layer: nn.Module) -> bool:
    if not isinstance(layer, _CONVOLUTION):
        return isinstance(layer, nn.BatchNorm2d | _BY_ENTRY)
    plain = (layer.groups, layer.dilation, layer.output_padding) == (1, (1, 1), (0, 0))
    return plain and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _computed(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer to (C, H, W, B)."""
    if isinstance(layer, nn.BatchNorm2d):  # its means are over examples and pixels
        return layer(x.flatten(1, 2)[None])[0].view_as(x)
    if not isinstance(layer, _CONVOLUTION):
        return layer(x)
    weight, (stride, padding) = layer.weight, (layer.stride, layer.padding)  # a parametrised weight is computed here
    assert not isinstance(padding, str), "as `_holds` has seen"
    if isinstance(layer, nn.ConvTranspose2d):  # (C, C', k, k)
        output = overlaid((weight.flatten(1).t() @ x.flatten(1)).view(*weight.shape[1:], *x.shape[1:]), stride, padding)
    else:  # (C', C, k, k)
        patches = windows(x, weight.shape[2:], stride, padding)
        output = (weight.flatten(1) @ patches.flatten(0, 2).flatten(1)).view(-1, *patches.shape[3:])
    return output if layer.bias is None else output + layer.bias[:, None, None, None]


def windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Return the windows (C, k, k, H', W', B) of x (C, H, W, B), padded with zeros."""
    return _Windows.apply(x, _Layout(tuple(x.shape[1:3]), tuple(kernel), tuple(stride), tuple(padding)))


def overlaid(parts: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Assemble the map (C, H', W', B) from its windows (C, k, k, H, W, B), added up where they overlap."""
    kernel, count = tuple(parts.shape[1:3]), parts.shape[3:5]
    if tuple(count) == (1, 1) and not any(padding):
        return parts.flatten(3)  # one window is the map
    sides = tuple((n - 1) * s - 2 * p + k for n, s, p, k in zip(count, stride, padding, kernel, strict=True))
    return _Overlaid.apply(parts, _Layout(sides, kernel, tuple(stride), tuple(padding)))


class _Layout(NamedTuple):
    """Layout of the windows of a map: sides of the map, kernel size, stride and zero padding."""

    sides: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def taken(self, x: Tensor) -> Tensor:
        """Return the windows of a map."""
        (down, right), (height, width), (s, t) = self.padding, self.kernel, self.stride
        around = pad(x, (0, 0, right, right, down, down)) if down or right else x
        return around.unfold(1, height, s).unfold(2, width, t).permute(0, 4, 5, 1, 2, 3).contiguous()

    def put(self, parts: Tensor) -> Tensor:
        """Assemble a map from its windows, added up where they overlap."""
        (h, w), (down, right), (s, t), (n, m) = self.sides, self.padding, self.stride, parts.shape[3:5]
        full = parts.new_zeros(parts.shape[0], h + 2 * down, w + 2 * right, parts.shape[5])
        for i in range(parts.shape[1]):
            for j in range(parts.shape[2]):
                full[:, i : i + s * n : s, j : j + t * m : t] += parts[:, i, j]
        return full[:, down : down + h, right : right + w]


class _Windows(Function):
    """A map's windows; its gradient is `_Overlaid`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: _Layout) -> Tensor:
        ctx.layout = layout
        return layout.taken(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Overlaid.apply(gradients[0], ctx.layout), None


class _Overlaid(Function):
    """Map assembled from windows; its gradient is `_Windows`."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, layout: _Layout) -> Tensor:
        ctx.layout = layout
        return layout.put(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Windows.apply(gradients[0], ctx.layout), None
