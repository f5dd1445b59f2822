"""Per-example gradients of one layer's parameters, from its inputs and the gradient of its output.

``a`` is a layer's input and ``d`` the loss's gradient for its output, for each example. A linear layer's gradient is
the outer product d a^T: it is never formed, its norm is |d| |a|, and the weighted sum over a batch is one product. A
convolution's gradient is a product of d (O, L) with the input windows (L, n) at the L output pixels. With many channels
half of the time is spent on copying the windows, so there are two ways to do it. A rule chooses the one that is faster
for the shape. Other layers' gradients come from Opacus.

A norm must be that of what the sum adds, or one example changes the sum by more than the bound. So norms are computed
from the stored numbers, and never from sums that cancel. In float32 two things go wrong. Squares of numbers below 1e-19
or above 1e19 are lost, and so a product of norms such as 0 x 1e30 may hide a gradient of any size: where a norm is
large (`trusted`), all is done in float64 (`Part.careful`). And a sum of a million squares is some 0.1 % too small:
blocks are added up first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from flfw.errors import InputError

Way: TypeAlias = Literal["fixed", "rows", "planes"]
"""Way to compute the gradients of convolutions; all agree up to rounding.

``fixed`` depends on the shapes alone: ``rows`` if a pixel has at least as many channels (of a group) as a line of the
output has pixels, else ``planes``; so windows are copied in the longer runs.
"""

WAYS: tuple[str, ...] = get_args(Way)
_CHUNK = 8  # number of examples with windows copied at a time: they fit into a processor's cache
_MOST = 1e9  # norms up to this have products whose squares float32 holds
_MOST_BOUNDS = 5e13  # the lost squares of 1e9 numbers, norm 1e-18, times so many bounds C are far below 0.001 C
_BLOCK = 4096  # numbers whose squares are added up in float32 before the blocks' norms are


class Part(ABC):
    """Gradients of one parameter, one for each of B examples.

    Attributes:
        norms: their L2 norms (B,).
        measured: norms (B,) of stored numbers, from which ``norms`` are the product.
    """

    norms: Tensor
    measured: tuple[Tensor, ...]

    @abstractmethod
    def weighted(self, weights: Tensor) -> Tensor:
        """Return the sum of the gradients with weights (B,), in the parameter's shape."""

    @abstractmethod
    def formed(self) -> Tensor:
        """Return all gradients (B, ...)."""

    @abstractmethod
    def careful(self) -> Part:
        """Return the same gradients in float64; one that is not finite is zero and has the norm ``inf``."""


@final
class Formed(Part):
    """Gradients in memory: (B, ...), each of size ``size``; ``order`` and ``shape`` give them the parameter's shape."""

    def __init__(
        self, values: Tensor, size: tuple[int, ...] = (), order: tuple[int, ...] = (), shape: tuple[int, ...] = ()
    ) -> None:
        self._values = values if values.dim() == 2 else values.flatten(1)
        self._size, self._order, self._shape = size or values.shape[1:], order, shape
        self.norms = row_norms(self._values)  # now, while the values are in the cache
        self.measured = (self.norms,)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, as one product."""
        total = torch.mv(self._values.t(), weights).view(self._size)
        return total.permute(self._order).reshape(self._shape) if self._order else total

    def formed(self) -> Tensor:
        """Return all gradients (B, ...)."""
        values = self._values.view(-1, *self._size)
        return values.permute(0, *(1 + i for i in self._order)).reshape(-1, *self._shape) if self._order else values

    def careful(self) -> Formed:
        """Return the same in float64."""
        values, lost = _finite(self._values)
        same = Formed(values, self._size, self._order, self._shape)
        same.norms = same.norms.masked_fill(lost, inf)
        return same


@final
class Outer(Part):
    """Gradients of a linear layer's weight: outer products of d (B, O), the bias's gradients, and a (B, I)."""

    def __init__(self, bias: Formed, a: Tensor) -> None:
        self._bias, self._a = bias, a
        sizes = row_norms(a)
        self.norms = bias.norms * sizes
        self.measured = (bias.norms, sizes)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, as one matrix product."""
        return torch.mm(self._bias.formed().t() * weights, self._a)

    def formed(self) -> Tensor:
        """Return all gradients (B, O, I)."""
        return self._bias.formed()[:, :, None] * self._a[:, None, :]

    def careful(self) -> Outer:
        """Return the same in float64; an example with infinite d or a is zero."""
        a, lost = _finite(self._a)
        same = Outer(self._bias.careful(), a)
        same.norms = same.norms.masked_fill(lost | same._bias.norms.isinf(), inf)
        return same


def added(one: Part, other: Part) -> Part:
    """Add the gradients of two uses of the same parameter."""
    return Formed((one.formed() + other.formed()).contiguous())


def trusted(parts: Iterable[Part], bound: float = inf) -> bool:
    """Return whether float32 has the norms: all are finite, and none is so large that lost squares matter to a bound.

    A norm of 0 may be that of numbers below 1e-19. This matters only if they are multiplied by large ones.

    Args:
        parts: gradients of the same examples.
        bound: the smallest bound that the norms are compared with, > 0.
    """
    measured = [norms for part in parts for norms in part.measured]
    return not measured or float(torch.stack(measured).max()) <= min(_MOST, _MOST_BOUNDS * bound)  # False for NaN


def row_norms(values: Tensor) -> Tensor:
    """Compute the L2 norms of rows (B, n); block by block where n is large."""
    blocks = values.shape[1] // _BLOCK
    if blocks < 16 or values.dtype != torch.float32:
        return torch.linalg.vector_norm(values, dim=1)
    norms = torch.linalg.vector_norm(values[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK)), dim=2)
    return torch.linalg.vector_norm(torch.cat([norms, values[:, blocks * _BLOCK :]], dim=1), dim=1)


def _finite(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (B, n) in float64, with zeros for rows that are not finite, and which ones these are (B,)."""
    lost = ~values.isfinite().all(1)
    return values.double().masked_fill(lost[:, None], 0.0), lost


class LayerGradients(ABC):
    """Per-example gradients of a layer's direct parameters."""

    @abstractmethod
    def parts(self, inputs: Sequence[Tensor], d: Tensor, wanted: Collection[str]) -> dict[str, Part]:
        """Compute the gradients from one use of the layer.

        Args:
            inputs: the layer's inputs, each (B, ...).
            d: the gradient of the summed loss for its output (B, ...), B >= 1.
            wanted: names of the parameters within the layer.

        Returns:
            The gradients of the wanted parameters; more if they cost nothing.
        """


def layer_gradients(layer: nn.Module, way: Way) -> LayerGradients:
    """Return the fastest implementation for a layer's type."""
    if type(layer) is nn.Linear:
        return _LinearGradients()
    if type(layer) is nn.Conv2d:
        return _Conv2dGradients(layer, way)
    return _OpacusGradients(layer)


@final
class _LinearGradients(LayerGradients):
    def parts(self, inputs: Sequence[Tensor], d: Tensor, wanted: Collection[str]) -> dict[str, Part]:
        """Compute the gradients for inputs (B, ..., I): the rows of an example, such as words, are summed."""
        a = inputs[0].to(d.dtype)
        if a.dim() == 2:
            bias = Formed(d)
            return {"weight": Outer(bias, a), "bias": bias}
        a, d = a.flatten(1, -2), d.flatten(1, -2)
        gradients: dict[str, Part] = {}
        if "weight" in wanted:
            gradients["weight"] = Formed(d.transpose(1, 2) @ a)
        if "bias" in wanted:
            gradients["bias"] = Formed(d.sum(1))
        return gradients


@final
class _OpacusGradients(LayerGradients):
    """Gradients from Opacus' sampler, or from torch.func if there is none or it does not accept parameters of None."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def parts(self, inputs: Sequence[Tensor], d: Tensor, wanted: Collection[str]) -> dict[str, Part]:
        layer = self._layer
        try:
            from opacus.grad_sample import GradSampleModule
            from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
        except ImportError as error:
            raise InputError(f"Expected Opacus for {type(layer).__name__}, got none: pip install opacus.") from error
        sampler = GradSampleModule.GRAD_SAMPLERS.get(type(layer))
        lacking = any(value is None for value in layer._parameters.values())
        if sampler is None or (lacking and not isinstance(layer, nn.Linear | nn.Conv2d)):
            sampler = ft_compute_per_sample_gradient
        try:
            samples = sampler(layer, [value.detach() for value in inputs], d)
        finally:
            layer.__dict__.pop("ft_compute_sample_grad", None)  # an attribute left by Opacus' torch.func sampler
        if type(layer) is nn.Embedding and layer.padding_idx is not None:
            samples[layer.weight][:, layer.padding_idx] = 0  # as autograd does, and Opacus does not
        named = layer.named_parameters(recurse=False)
        return {name: Formed(samples[value].contiguous()) for name, value in named if name in wanted}


@dataclass(frozen=True)
class _Shape:
    """Shapes of a convolution with an already padded input."""

    input: tuple[int, ...]  # the whole batch (B, C, H, W)
    output: tuple[int, ...]  # (B, O, h, w)
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @cached_property
    def weight(self) -> tuple[int, ...]:
        return (self.output[1], self.input[1] // self.groups, *self.kernel)

    @cached_property
    def layouts(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Layouts of a weight's gradient in both ways: size, and order and shape that convert it to the weight's."""
        filters, channels, *kernel = self.weight
        rows, planes = (filters, *kernel, channels), (self.groups, channels, *kernel, filters // self.groups)
        return {"rows": (rows, (0, 3, 1, 2), self.weight), "planes": (planes, (0, 4, 1, 2, 3), self.weight)}


# Gradients of a batch from a and d; their layout is in `_Shape.layouts`.
_Conv2dWay: TypeAlias = Callable[[_Shape, Tensor, Tensor], Tensor]


@final
class _Conv2dGradients(LayerGradients):
    def __init__(self, layer: nn.Conv2d, way: Way) -> None:
        self._layer, self._way = layer, way
        margins = layer._reversed_padding_repeated_twice  # torch's own, for any form and mode of padding
        self._margins = tuple(margins) if any(margins) else ()
        self._mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        self._plans: dict[torch.Size, tuple[_Shape, str]] = {}

    def parts(self, inputs: Sequence[Tensor], d: Tensor, wanted: Collection[str]) -> dict[str, Part]:
        gradients: dict[str, Part] = {}
        if "bias" in wanted:
            gradients["bias"] = Formed(d.sum((2, 3)))
        if "weight" in wanted:
            a = inputs[0].to(d.dtype)
            a = pad(a, self._margins, mode=self._mode) if self._margins else a
            shape, way = self._plan(a, d)
            values = _CONV2D_WAYS[way](shape, a, d).view(len(d), -1)
            gradients["weight"] = Formed(values, *shape.layouts[way])
        return gradients

    def _plan(self, a: Tensor, d: Tensor) -> tuple[_Shape, str]:
        if a.shape not in self._plans:  # without this cache, planning takes a tenth of a small step
            layer = self._layer
            geometry = (layer.kernel_size, layer.stride, layer.dilation, layer.groups)
            shape, way = _Shape(tuple(a.shape), tuple(d.shape), *geometry), self._way
            if way == "fixed":
                way = "rows" if shape.weight[1] >= shape.output[3] else "planes"
            self._plans[a.shape] = shape, way
        return self._plans[a.shape]


def _rows(shape: _Shape, a: Tensor, d: Tensor) -> Tensor:
    """Use a row for each output pixel: its window, line by line, copied one pixel's channels at a time."""
    (h, w), (step, across) = shape.output[2:], shape.stride
    channels, (down, right) = shape.weight[1], shape.dilation
    pixels = a.permute(0, 2, 3, 1).contiguous()
    image, line, pixel, _ = pixels.stride()
    windows = pixels.as_strided(
        (len(a), shape.groups, h, w, *shape.kernel, channels),
        (image, channels, step * line, across * pixel, down * line, right * pixel, 1),
    )
    return _products(shape, windows, d, transposed=False)


def _planes(shape: _Shape, a: Tensor, d: Tensor) -> Tensor:
    """Use a plane of output pixels for each entry of the window, copied a line of pixels at a time."""
    (h, w), (step, across), (down, right) = shape.output[2:], shape.stride, shape.dilation
    a = a.contiguous()
    image, channel, line, _ = a.stride()
    windows = a.as_strided(
        (len(a), shape.input[1], *shape.kernel, h, w), (image, channel, down * line, right, step * line, across)
    )
    return _products(shape, windows, d, transposed=True)


def _products(shape: _Shape, windows: Tensor, d: Tensor, transposed: bool) -> Tensor:
    """Multiply d with the windows for each example and group; the windows overlap, so they are copied first.

    Planes are the left factor, (n, L) x (L, O), rows the right one, (O, L) x (L, n): faster in BLAS for small windows.
    """
    filters, window = shape.weight[0] // shape.groups, prod(shape.weight[1:])
    ds = d.reshape(len(d) * shape.groups, filters, -1)
    size = (-1, window, ds.shape[2]) if transposed else (-1, ds.shape[2], window)
    if len(d) <= _CHUNK or d.device.type != "cpu":
        copied = windows.reshape(size)
        return torch.bmm(copied, ds.transpose(1, 2)) if transposed else torch.bmm(ds, copied)
    products = ds.new_empty(len(ds), *((window, filters) if transposed else (filters, window)))
    buffer = windows.new_empty(_CHUNK, *windows.shape[1:])
    groups = _CHUNK * shape.groups
    for some, left, out in zip(windows.split(_CHUNK), ds.split(groups), products.split(groups), strict=True):
        copied = buffer[: len(some)].copy_(some).view(size)
        torch.bmm(*((copied, left.transpose(1, 2)) if transposed else (left, copied)), out=out)
    return products


_CONV2D_WAYS: dict[str, _Conv2dWay] = {"planes": _planes, "rows": _rows}
