"""The sum over a batch of clipped per-example gradients, in one forward and one backward pass.

For example j and group m of parameters: g_jm / max(1, |g_jm|_2 / C_m), summed over j. A group is a layer (its weight
and bias together), a tensor, or all that is chosen. Clipping never changes the signal that goes back through the
network, so the pass back is the usual one without the parameters' own gradients; those are formed afterwards, layer by
layer, from what went into each layer and what came back to it (`flfw.training.per_example_layers`). Those of
convolutions lie there all at once: B times their weights. No noise is added here.

The first batch of two or more examples is checked: the gradients must add up to autograd's own, and the loss of the
first example must not depend on the others. So a layer that mixes examples, or one whose parameters are used past its
``forward``, is refused and not clipped wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, final, get_args

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.errors import BadInput, require
from flfw.messages.sharing import matches
from flfw.nets.net import Tensors
from flfw.training.per_example_layers import WAYS, Part, Way, added, layer_gradients

Grouping: TypeAlias = Literal["layer", "tensor", "flat"]
"""What is clipped together: a layer's own parameters, each tensor for itself, or all that is chosen."""

Bound: TypeAlias = float | Mapping[str, float]
"""Of an L2 norm, > 0; ``inf``: no clipping. One for all groups, or one for each by name."""


@dataclass(frozen=True)
class ClippedSum:
    """What became of a batch of B examples.

    Attributes:
        sums: the sum of the clipped gradients, by parameter.
        norms: L2 norms before clipping (B, groups), the groups in the order of `PerExample.groups`.
        scales: what clipping left of them (B, groups), in [0, 1]; below 1 where something was clipped.
        losses: of each example (B,).
    """

    sums: Tensors
    norms: Tensor
    scales: Tensor
    losses: Tensor


class _Use(NamedTuple):
    """One call of a layer: what went in, and where its output's gradient will be."""

    layer: str
    inputs: tuple[Tensor, ...]
    output: GradientEdge


@final
class PerExample:
    """Per-example gradients of a model, clipped and summed; the model is left as it is.

    Args:
        model: its layers take inputs with the examples in the first dimension.
        chosen: patterns of the parameters that take part, of those that require a gradient: ``["extractor.*"]``.
        grouping: what is clipped together.
        way: how convolutions are done; any but ``auto`` repeats results bit for bit on one machine, in any process.
            ``fixed`` is about as fast as ``auto``.

    Attributes:
        groups: the parameters of each group, by the group's name: a layer's, a tensor's, or ``all``.

    Raises:
        BadInput: nothing is chosen, or a layer has no per-example gradients.
    """

    def __init__(
        self, model: nn.Module, chosen: Sequence[str] = ("*",), *, grouping: Grouping = "layer", way: Way = "auto"
    ) -> None:
        require(grouping in get_args(Grouping), f"grouping among {', '.join(get_args(Grouping))}", grouping=grouping)
        require(way in WAYS, f"way among {', '.join(WAYS)}", way=way)
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad and matches(n, chosen)}
        require(bool(self._parameters), "some parameters that require gradients", chosen=list(chosen))
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._layers: dict[str, nn.Module] = {}
        self._own: dict[str, dict[str, str]] = {}  # of each layer: the name within it, and the model's
        for place, layer in model.named_modules():
            own = {n: names[id(p)] for n, p in layer.named_parameters(recurse=False) if id(p) in names}
            if own:
                self._layers[place], self._own[place] = layer, own
        _refuse_batch_statistics(model, self._layers)
        self._gradients = {place: layer_gradients(layer, way) for place, layer in self._layers.items()}
        self.groups = grouped(self._parameters, grouping)
        self._checked: set[tuple[bool | str, ...]] = set()
        self._last_bound: tuple[object, Tensor] = ((), torch.empty(0))

    def clipped_sum(self, losses: Callable[[], Tensor], bound: Bound) -> ClippedSum:
        """Of one batch.

        Args:
            losses: runs the model; gives the loss of each example (B,), B >= 0:
                ``lambda: cross_entropy(model(x), y, reduction="none")``.
            bound: of each group's norm, > 0.

        Raises:
            BadInput: a bound is not positive or names no group, or examples cannot be told apart.
        """
        bounds = self._bounds(bound)
        with self._noting() as uses:
            values = losses()
        require(values.dim() == 1, "a loss for each example, of shape (B,)", shape=tuple(values.shape))
        if not len(values):
            nothing = values.new_zeros(0, len(self.groups))
            sums = {name: torch.zeros_like(parameter) for name, parameter in self._parameters.items()}
            return ClippedSum(sums, nothing, nothing, values.detach())
        require(values.requires_grad, "losses that depend on the chosen parameters", requires_grad=False)
        self._check(uses, values)
        slopes = _gradients(values, [use.output for use in uses], last=True)
        return self._clipped(uses, slopes, bounds, values)

    def _bounds(self, bound: Bound) -> tuple[float, ...]:
        if isinstance(bound, Mapping):
            same = set(bound) == set(self.groups)
            require(same, f"a bound for each of {', '.join(self.groups)}", bounds=dict(bound))
            bounds = tuple(float(bound[name]) for name in self.groups)
        else:
            bounds = (float(bound),) * len(self.groups)
        for value in bounds:
            require(value > 0, "bound > 0", bound=value)
        return bounds

    @contextmanager
    def _noting(self) -> Iterator[list[_Use]]:
        """Notes every call of a layer whose parameters are chosen."""
        uses: list[_Use] = []

        def noting(place: str, layer: nn.Module) -> Callable[..., Any]:
            forward = layer.forward

            def noted(*inputs: Any, **named: Any) -> Any:
                output = forward(*inputs, **named)
                tensors = isinstance(output, Tensor) and inputs and all(isinstance(value, Tensor) for value in inputs)
                if not tensors:
                    raise _no_gradients(layer, place, "it is not called with tensors alone, or does not return one")
                if output.requires_grad:
                    # The edge, not the tensor: what comes after may change that in place.
                    uses.append(_Use(place, inputs, get_gradient_edge(output)))
                return output

            return noted

        # In the place of ``forward`` and not as hooks, which make every call of a module several times as slow.
        own = [(vars(layer), vars(layer).get("forward")) for layer in self._layers.values()]
        for place, layer in self._layers.items():
            vars(layer)["forward"] = noting(place, layer)
        try:
            yield uses
        finally:
            for attributes, forward in own:
                if forward is None:
                    del attributes["forward"]
                else:
                    attributes["forward"] = forward

    def _check(self, uses: Sequence[_Use], losses: Tensor) -> None:
        """Refuse what would give wrong gradients; once for each sequence of calls, and again for more than one example.

        Raises:
            BadInput: naming a layer.
        """
        examples = losses.shape
        for use in uses:
            shape = use.inputs[0].shape
            if shape[:1] != examples or (len(shape) < 2 and use.inputs[0].is_floating_point()):
                why = f"its input of shape {tuple(shape)} does not have the {len(losses)} examples first"
                raise _no_gradients(self._layers[use.layer], use.layer, why)
        called = (len(losses) > 1, *[use.layer for use in uses])
        if called in self._checked:
            return
        names, parameters = list(self._parameters), list(self._parameters.values())
        slopes = _gradients(losses, [use.output for use in uses])
        own = _gradients(losses, parameters)
        if len(losses) > 1:
            for use, crossing in zip(uses, _gradients(losses[0], [use.output for use in uses]), strict=True):
                if crossing is not None and bool(crossing[1:].any()):
                    why = "the loss of one example depends on what it makes of another"
                    raise _no_gradients(self._layers[use.layer], use.layer, why)
        with torch.no_grad():
            parts = self._parts(uses, slopes)
        for name, expected in zip(names, own, strict=True):
            if expected is None:
                continue
            with torch.no_grad():
                sizes = parts[name].norms if name in parts else torch.zeros_like(losses)
                total = parts[name].weighted(torch.ones_like(sizes)) if name in parts else 0.0
                apart = torch.linalg.vector_norm(total - expected)
            if bool(apart > torch.finfo(sizes.dtype).eps ** 0.5 * sizes.sum()):
                place = next(place for place, inside in self._own.items() if name in inside.values())
                why = f"its {name.rpartition('.')[2]} is also used otherwise than by calling it"
                raise _no_gradients(self._layers[place], place, why)
        self._checked.add(called)

    def _parts(self, uses: Sequence[_Use], slopes: Sequence[Tensor | None]) -> dict[str, Part]:
        """The per-example gradients by parameter; without those on which no loss depends."""
        found: dict[str, Part] = {}
        for use, slope in zip(uses, slopes, strict=True):
            if slope is not None:
                own = self._own[use.layer]
                parts = self._gradients[use.layer].parts(use.inputs, slope, own)
                for inner, name in own.items():
                    found[name] = added(found[name], parts[inner]) if name in found else parts[inner]
        return found

    @torch.no_grad()
    def _clipped(
        self, uses: Sequence[_Use], slopes: Sequence[Tensor | None], bounds: tuple[float, ...], losses: Tensor
    ) -> ClippedSum:
        parts = self._parts(uses, slopes)
        found = [[parts[name].norms for name in members if name in parts] for members in self.groups.values()]
        norms = torch.stack([_joint(several) if several else torch.zeros_like(losses) for several in found])
        bound = self._bound(bounds, norms)
        scales = bound / torch.maximum(norms, bound)
        of = {n: scale for names, scale in zip(self.groups.values(), scales.unbind(), strict=True) for n in names}
        sums = {}
        for name, parameter in self._parameters.items():
            total = parts[name].weighted(of[name]) if name in parts else torch.zeros_like(parameter)
            sums[name] = total if total.dtype == parameter.dtype else total.to(parameter.dtype)
        return ClippedSum(sums, norms.t(), scales.t(), losses.detach())

    def _bound(self, bounds: tuple[float, ...], norms: Tensor) -> Tensor:
        """As a tensor (groups, 1); the last ones are kept. The largest number stands for infinity."""
        key = bounds, norms.dtype, norms.device
        if self._last_bound[0] != key:
            most = torch.finfo(norms.dtype).max
            self._last_bound = key, norms.new_tensor([min(bound, most) for bound in bounds]).unsqueeze(1)
        return self._last_bound[1]


def _joint(norms: list[Tensor]) -> Tensor:
    """The norms of what has these norms in its pieces."""
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)


def _gradients(
    losses: Tensor, of: Sequence[Tensor] | Sequence[GradientEdge], last: bool = False
) -> Sequence[Tensor | None]:
    """Those of the losses' sum, None where it does not depend on one; the graph stays unless ``last``."""
    each = torch.ones_like(losses)
    return torch.autograd.grad(losses, of, each, retain_graph=not last, allow_unused=True) if of else ()


def _no_gradients(layer: nn.Module, place: str, why: str) -> BadInput:
    got = f"{type(layer).__name__} at {place or 'the model itself'}"
    return BadInput(f"Expected layers with per-example gradients, got {got}; {why}.")


def _refuse_batch_statistics(model: nn.Module, chosen: Mapping[str, nn.Module]) -> None:
    """BatchNorm mixes examples wherever it is; other layers' buffers are fed by all examples of a batch."""
    for place, layer in model.named_modules():
        if isinstance(layer, _BatchNorm):
            raise _no_gradients(layer, place, "its output depends on the whole batch, as GroupNorm's does not")
        if place in chosen and any(True for _ in layer.buffers(recurse=False)):
            raise _no_gradients(layer, place, "its buffers may carry one example's data into another's gradient")


def grouped(names: Iterable[str], grouping: Grouping) -> dict[str, tuple[str, ...]]:
    """The names of each group's parameters.

    >>> grouped(["body.weight", "body.bias", "head.weight"], "layer")
    {'body': ('body.weight', 'body.bias'), 'head': ('head.weight',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        group = {"layer": name.rpartition(".")[0] or "model", "tensor": name, "flat": "all"}[grouping]
        found[group] = (*found.get(group, ()), name)
    return found
