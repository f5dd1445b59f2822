"""The gradients of one layer's parameters, one for each example, from what goes into the layer and what comes back.

``a`` is a layer's input and ``d`` the loss's gradient for its output, example by example. A linear layer's gradient is
the outer product d a^T: it is never formed, its norm is |d| |a|, and the weighted sum over a batch is one product. A
convolution's is a product of d (O, L) with the windows (L, n) that the kernel sees at the L output pixels. Copying the
windows is half of the work where there are many channels, so there are several ways to do it. Which is fastest depends
on the shape, and is found by trying them. Other layers' gradients come from Opacus.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from flfw.errors import BadInput

Way: TypeAlias = Literal["auto", "rows", "planes", "convolution", "loop", "opacus"]
"""How convolutions are done: ``auto`` tries; ``opacus`` leaves every layer to Opacus. All agree to rounding."""

WAYS: tuple[str, ...] = get_args(Way)
_CHUNKS = (4, 8)  # examples whose windows are copied at a time: as many as stay in a processor's cache
_TRIALS = 3


class Part(ABC):
    """One parameter's gradients, one for each of B examples."""

    @cached_property
    def norms(self) -> Tensor:
        """Their L2 norms (B,)."""
        return self._norms()

    @abstractmethod
    def _norms(self) -> Tensor: ...

    @abstractmethod
    def weighted(self, weights: Tensor) -> Tensor:
        """Their sum with weights (B,), in the parameter's shape."""

    @abstractmethod
    def formed(self) -> Tensor:
        """All of them (B, ...)."""


@final
class Formed(Part):
    """Gradients that lie there: (B, ...), each of some size; an order of the dimensions makes it the parameter's."""

    def __init__(self, values: Tensor, size: tuple[int, ...] = (), order: tuple[int, ...] | None = None) -> None:
        self._values = values if values.dim() == 2 else values.flatten(1)
        self._size, self._order = size or values.shape[1:], order

    def _norms(self) -> Tensor:
        return torch.linalg.vector_norm(self._values, dim=1)

    def weighted(self, weights: Tensor) -> Tensor:
        """In one product."""
        found = torch.mv(self._values.t(), weights).view(self._size)
        return found.permute(self._order).contiguous() if self._order else found

    def formed(self) -> Tensor:
        """All of them (B, ...)."""
        found = self._values.view(-1, *self._size)
        return found.permute(0, *(1 + i for i in self._order)) if self._order else found


@final
class Outer(Part):
    """Those of a linear layer's weight: outer products of d (B, O), the bias's gradients, and a (B, I)."""

    def __init__(self, bias: Formed, a: Tensor) -> None:
        self._bias, self._a = bias, a

    def _norms(self) -> Tensor:
        return self._bias.norms * torch.linalg.vector_norm(self._a, dim=1)

    def weighted(self, weights: Tensor) -> Tensor:
        """In one matrix product."""
        return (self._bias.formed() * weights.unsqueeze(1)).t() @ self._a

    def formed(self) -> Tensor:
        """All of them (B, O, I)."""
        return self._bias.formed()[:, :, None] * self._a[:, None, :]


def added(parts: Sequence[Part]) -> Part:
    """The gradients of a parameter that is used several times: the sum over its uses."""
    if len(parts) == 1:
        return parts[0]
    return Formed(reduce(torch.add, (part.formed() for part in parts)).contiguous())


class LayerGradients(ABC):
    """What a layer's own parameters get from each example."""

    @abstractmethod
    def parts(self, inputs: Sequence[Tensor], d: Tensor, wanted: Collection[str]) -> dict[str, Part]:
        """Of one use of the layer.

        Args:
            inputs: what it was called with, each (B, ...).
            d: the gradient of the summed loss for its output (B, ...), B >= 1.
            wanted: parameters' names within the layer.

        Returns:
            The gradients of the parameters wanted; more where that costs nothing.
        """


def layer_gradients(layer: nn.Module, way: Way) -> LayerGradients:
    """The fastest there is for a type of layer."""
    if way != "opacus" and type(layer) is nn.Linear:
        return _LinearGradients()
    if way != "opacus" and type(layer) is nn.Conv2d:
        return _Conv2dGradients(layer, way)
    return _OpacusGradients(layer)


@final
class _LinearGradients(LayerGradients):
    def parts(self, inputs: Sequence[Tensor], d: Tensor, wanted: Collection[str]) -> dict[str, Part]:
        """Of inputs (B, ..., I): several rows of an example, such as words, are summed."""
        a = inputs[0].to(d.dtype)
        if a.dim() == 2:
            bias = Formed(d)
            return {"weight": Outer(bias, a), "bias": bias}
        a, d = a.flatten(1, -2), d.flatten(1, -2)
        found: dict[str, Part] = {}
        if "weight" in wanted:
            found["weight"] = Formed(d.transpose(1, 2) @ a)
        if "bias" in wanted:
            found["bias"] = Formed(d.sum(1))
        return found


@final
class _OpacusGradients(LayerGradients):
    """By the layer's own sampler, or by torch.func where it has none or where that expects parameters that are None."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def parts(self, inputs: Sequence[Tensor], d: Tensor, wanted: Collection[str]) -> dict[str, Part]:
        layer = self._layer
        try:
            from opacus.grad_sample import GradSampleModule
            from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
        except ImportError as error:
            raise BadInput(f"Expected Opacus for {type(layer).__name__}, got none; install flfw[papers].") from error
        sampler = GradSampleModule.GRAD_SAMPLERS.get(type(layer))
        lacking = any(value is None for value in layer._parameters.values())
        if sampler is None or (lacking and not isinstance(layer, nn.Linear | nn.Conv2d)):
            sampler = ft_compute_per_sample_gradient
        try:
            found = sampler(layer, [value.detach() for value in inputs], d)
        finally:
            layer.__dict__.pop("ft_compute_sample_grad", None)  # which torch.func's way leaves behind
        own = layer.named_parameters(recurse=False)
        return {name: Formed(found[value].contiguous()) for name, value in own if name in wanted}


# Convolutions, the padding being done.


@dataclass(frozen=True)
class _Shape:
    input: tuple[int, ...]  # of the whole batch (B, C, H, W)
    output: tuple[int, ...]  # (B, O, h, w)
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: torch.dtype
    device: torch.device

    @cached_property
    def weight(self) -> tuple[int, ...]:
        return (self.output[1], self.input[1] // self.groups, *self.kernel)

    @cached_property
    def window(self) -> int:  # numbers that an output sees of its group's channels
        return self.weight[1] * self.kernel[0] * self.kernel[1]

    @cached_property
    def pixels(self) -> int:  # outputs of a channel
        return self.output[2] * self.output[3]


# The gradients of a batch (B, O, window) from a and d, so many examples at a time.
_Conv2dWay: TypeAlias = Callable[[_Shape, int, Tensor, Tensor], Tensor]


@final
class _Conv2dGradients(LayerGradients):
    def __init__(self, layer: nn.Conv2d, way: Way) -> None:
        self._layer, self._way = layer, way
        margins = layer._reversed_padding_repeated_twice  # torch's own, for any form and mode of padding
        self._margins = tuple(margins) if any(margins) else ()
        self._mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        self._plans: dict[tuple[torch.Size, torch.dtype, torch.device], tuple[_Shape, str, int]] = {}

    def parts(self, inputs: Sequence[Tensor], d: Tensor, wanted: Collection[str]) -> dict[str, Part]:
        found: dict[str, Part] = {}
        if "bias" in wanted:
            found["bias"] = Formed(d.sum((2, 3)))
        if "weight" in wanted:
            a = inputs[0].to(d.dtype)
            a = pad(a, self._margins, mode=self._mode) if self._margins else a
            shape, way, chunk = self._plan(a, d)
            size, order = shape.weight, None
            if way == "rows":  # whose windows begin with their lines
                size, order = (size[0], *shape.kernel, size[1]), (0, 3, 1, 2)
            found["weight"] = Formed(_CONV2D_WAYS[way](shape, chunk, a, d).view(len(d), -1), size, order)
        return found

    def _plan(self, a: Tensor, d: Tensor) -> tuple[_Shape, str, int]:
        key = a.shape, d.dtype, d.device
        if key not in self._plans:  # what is found here takes a tenth of a small step
            layer, a_size, d_size = self._layer, tuple(a.shape), tuple(d.shape)
            shape = _Shape(
                a_size, d_size, layer.kernel_size, layer.stride, layer.dilation, layer.groups, d.dtype, d.device
            )
            way, chunk = _fastest(shape) if self._way == "auto" else (self._way, _CHUNKS[0])
            self._plans[key] = shape, way, chunk
        return self._plans[key]


def _rows(shape: _Shape, chunk: int, a: Tensor, d: Tensor) -> Tensor:
    """A row of windows for each output pixel, copied a pixel's channels at a time; windows begin with their lines."""
    (h, w), (step, across) = shape.output[2:], shape.stride
    channels, (down, right) = shape.weight[1], shape.dilation
    pixels = a.permute(0, 2, 3, 1).contiguous()
    image, line, pixel, _ = pixels.stride()
    windows = pixels.as_strided(
        (len(a), shape.groups, h, w, *shape.kernel, channels),
        (image, channels, step * line, across * pixel, down * line, right * pixel, 1),
    )
    return _products(shape, chunk, windows, d, transposed=False)


def _planes(shape: _Shape, chunk: int, a: Tensor, d: Tensor) -> Tensor:
    """A plane of output pixels for each number of the window, copied a line of pixels at a time."""
    (h, w), (step, across), (down, right) = shape.output[2:], shape.stride, shape.dilation
    a = a.contiguous()
    image, channel, line, _ = a.stride()
    windows = a.as_strided(
        (len(a), shape.input[1], *shape.kernel, h, w),
        (image, channel, down * line, right, step * line, across),
    )
    return _products(shape, chunk, windows, d, transposed=True)


def _products(shape: _Shape, chunk: int, windows: Tensor, d: Tensor, transposed: bool) -> Tensor:
    """The products of d with the windows, which overlap and so are copied first, for each example and group."""
    size = (-1, shape.window, shape.pixels) if transposed else (-1, shape.pixels, shape.window)
    left = d.reshape(len(d) * shape.groups, -1, shape.pixels)
    if len(d) <= chunk:
        right = windows.reshape(size)
        return torch.bmm(left, right.transpose(1, 2) if transposed else right)
    found = left.new_empty(*left.shape[:2], shape.window)
    copied = windows.new_empty(chunk, *windows.shape[1:])
    right = copied.view(size).transpose(1, 2) if transposed else copied.view(size)
    several = chunk * shape.groups
    for some, ds, out in zip(windows.split(chunk), left.split(several), found.split(several), strict=True):
        copied[: len(some)].copy_(some)
        torch.bmm(ds, right[: len(ds)], out=out)
    return found


def _convolution(shape: _Shape, chunk: int, a: Tensor, d: Tensor) -> Tensor:
    """One weight gradient of a convolution in which every example has groups of its own."""
    return _weight_gradient(shape, a.reshape(1, -1, *a.shape[2:]), d.reshape(1, -1, *d.shape[2:]), len(a))


def _loop(shape: _Shape, chunk: int, a: Tensor, d: Tensor) -> Tensor:
    """An ordinary weight gradient for each example."""
    return torch.stack([_weight_gradient(shape, a[i : i + 1], d[i : i + 1], 1) for i in range(len(a))])


def _weight_gradient(shape: _Shape, a: Tensor, d: Tensor, times: int) -> Tensor:
    """Of a convolution with so many times the groups; `torch.nn.grad` has the same, but its types know no tuples."""
    like = d.new_empty(1).expand(times * shape.weight[0], *shape.weight[1:])
    rest = (shape.stride, (0, 0), shape.dilation, False, (0, 0), times * shape.groups, (False, True, False))
    return torch.ops.aten.convolution_backward(d, a, like, None, *rest)[1]


_CONV2D_WAYS: dict[str, _Conv2dWay] = {"planes": _planes, "rows": _rows, "convolution": _convolution, "loop": _loop}


@cache
def _fastest(shape: _Shape) -> tuple[str, int]:
    """The way, and how many examples at a time; tried once in a process for each shape, on ones."""
    a, d = (torch.ones(size, dtype=shape.dtype, device=shape.device) for size in (shape.input, shape.output))

    def seconds(plan: tuple[str, int]) -> float:
        started = time.perf_counter()
        _CONV2D_WAYS[plan[0]](shape, plan[1], a, d)
        if shape.device.type == "cuda":
            torch.cuda.synchronize(shape.device)
        return time.perf_counter() - started

    chunks = _CHUNKS if shape.device.type == "cpu" and len(d) > _CHUNKS[1] else (len(d),)
    plans = [*((name, chunk) for name in ("planes", "rows") for chunk in chunks), ("convolution", 0), ("loop", 0)]
    for plan in plans:
        seconds(plan)  # what a first call sets up is not counted
    first = {plan: seconds(plan) for plan in plans}
    close = [plan for plan in plans if first[plan] <= 2 * min(first.values())]
    turns = [{plan: seconds(plan) for plan in close} for _ in range(_TRIALS)]
    return min(close, key=lambda plan: min(turn[plan] for turn in turns))
