"""Convolutions of small maps without the entries of their kernels that meet nothing but padding.

A kernel of 3x3 on a map of one pixel with padding 1 touches data with its middle alone: the other entries are always
multiplied by 0, and their gradient is 0. A ResNet-18 on images of 32 pixels has such kernels in its last four layers,
which hold three quarters of its numbers. With the smaller kernel and less padding, a network computes the same.
"""

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.nets.net import Tensors
from flfw.rng import torch_generator

_ROUNDING = 1e-3  # largest difference of equal networks' scores, over the largest score; float32 leaves about 1e-6


class KernelPart(NamedTuple):
    """Part of a kernel, along one axis, that meets data, and the padding that it needs."""

    first: int
    end: int
    padding: int


KernelParts: TypeAlias = tuple[KernelPart, KernelPart]
"""Along height and width."""


def met_part(size: int, kernel: int, stride: int, padding: int, dilation: int) -> KernelPart:
    """Return the part of a kernel that meets data along one axis; the whole kernel where the rest cannot be left out.

    Args:
        size: of the map, without padding.
        kernel: entries of the kernel.
        stride: step of the kernel over the map.
        padding: zeros on either side of the map.
        dilation: distance of the kernel's entries.

    >>> met_part(size=1, kernel=3, stride=1, padding=1, dilation=1)
    KernelPart(first=1, end=2, padding=0)
    """
    outputs = _outputs(size, kernel, stride, padding, dilation)
    places = [[o * stride - padding + entry * dilation for o in range(outputs)] for entry in range(kernel)]
    met = [entry for entry, at in enumerate(places) if any(0 <= place < size for place in at)]
    if not met:
        return KernelPart(0, kernel, padding)
    first, end = met[0], met[-1] + 1
    less = padding - first * dilation
    fits = less >= 0 and _outputs(size, end - first, stride, less, dilation) == outputs
    return KernelPart(first, end, less) if fits else KernelPart(0, kernel, padding)


def cropped(victim: VictimModel, sent: Sequence[Tensors]) -> tuple[VictimModel, list[Tensors]]:
    """Return an equal victim with smaller kernels, and its observations; both unchanged where there is none.

    A kernel is cropped if every observation is exactly 0 outside: noise there would be lost. A network whose scores
    change, as where its forward pass reads a kernel's numbers or size beside the convolution, stays whole.

    Args:
        victim: the client's model.
        sent: observations of it.
    """
    if not isinstance(victim, PlainVictim) or victim.each or victim.reads:
        return victim, [*sent]
    for one in sent:
        victim.check(one)
    parts = {name: part for name, part in _parts(victim).items() if not any(_holds(one, name, part) for one in sent)}
    if not parts:
        return victim, [*sent]
    smaller = copy(victim)
    smaller.model = deepcopy(victim.model)
    for name, part in parts.items():
        layer = smaller.model.get_submodule(name)
        assert isinstance(layer, nn.Conv2d), "others have no part"
        layer.weight = nn.Parameter(_cut(layer.weight.detach(), part))
        layer.kernel_size = tuple(layer.weight.shape[2:])
        layer.padding = tuple(axis.padding for axis in part)
    smaller.known = _all_cut(victim.known, parts)
    if not _scores_alike(victim, smaller):
        return victim, [*sent]
    return smaller, [_all_cut(one, parts) for one in sent]


def _outputs(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _parts(victim: PlainVictim) -> dict[str, KernelParts]:
    """Return the part of each layer's kernel that meets data, for known and sent kernels of which a part does not."""
    layers = {
        name: layer
        for name, layer in victim.model.named_modules()
        if type(layer) is nn.Conv2d and isinstance(layer.padding, tuple) and layer.padding_mode == "zeros"
        if f"{name}.weight" in victim.known and f"{name}.weight" in victim.shared
    }
    sizes = _sizes(victim, layers) if layers else {}  # other inputs, such as text, may not be numbers
    parts: dict[str, KernelParts] = {}
    for name, layer in layers.items():
        if len(sizes[name]) != 1:  # never called, or for maps of several sizes
            continue
        ((height, width),) = sizes[name]
        axes = zip((height, width), layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True)
        part = tuple(met_part(size, kernel, stride, int(around), apart) for size, kernel, stride, around, apart in axes)
        if any(axis.end - axis.first < kernel for axis, kernel in zip(part, layer.kernel_size, strict=True)):
            parts[name] = part[0], part[1]
    return parts


def _sizes(victim: PlainVictim, layers: dict[str, nn.Conv2d]) -> dict[str, set[tuple[int, int]]]:
    """Return the sizes of the maps that each layer gets."""
    sizes: dict[str, set[tuple[int, int]]] = {name: set() for name in layers}

    def noting(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], dict[str, Tensor]], None]:
        def note(_: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            height, width = (given[0] if given else named["input"]).shape[-2:]
            sizes[name].add((height, width))

        return note

    hooks = [layer.register_forward_pre_hook(noting(name), with_kwargs=True) for name, layer in layers.items()]
    x = victim.inputs.normalise(torch.zeros(1, *victim.inputs.shape, device=victim.inputs.mean.device))
    try:
        with torch.no_grad():
            functional_call(victim.model, {**victim.known, **victim.unknown}, (x,))
    finally:
        for hook in hooks:
            hook.remove()
    return sizes


def _scores_alike(whole: PlainVictim, smaller: PlainVictim) -> bool:
    """Return whether both networks give one random input the same scores, up to rounding."""
    raw = torch.rand(1, *whole.inputs.shape, generator=torch_generator(0, "scores of cropped kernels"))
    x = whole.inputs.normalise(raw.to(whole.inputs.mean.device))
    with torch.no_grad():
        before, after = (functional_call(v.model, {**v.known, **v.unknown}, (x,)) for v in (whole, smaller))
    return bool((before - after).abs().max() <= _ROUNDING * before.abs().max())


def _cut(kernel: Tensor, part: KernelParts) -> Tensor:
    rows, columns = part
    return kernel[..., rows.first : rows.end, columns.first : columns.end].contiguous()


def _all_cut(tensors: Tensors, parts: dict[str, KernelParts]) -> Tensors:
    cut = {f"{name}.weight": part for name, part in parts.items()}
    return {name: _cut(value, cut[name]) if name in cut else value for name, value in tensors.items()}


def _holds(sent: Tensors, name: str, part: KernelParts) -> bool:
    """Return whether an observation holds anything outside of the part of a kernel."""
    whole = sent[f"{name}.weight"]
    return bool(whole.count_nonzero() != _cut(whole, part).count_nonzero())
