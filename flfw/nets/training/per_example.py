"""Per-example gradients, clipped and summed over a batch, in one forward and one backward pass.

For example j and group m of parameters: g_jm / max(1, |g_jm|_2 / C_m), or as another rule of
`flfw.nets.training.clipping` has it, summed over j; 0 where g_jm is not finite. A group is a layer (its weight and bias
together), a tensor, or all chosen parameters. Clipping does not change the gradients of activations, so the backward
pass computes only these. The parameters' gradients are formed afterwards, layer by layer, from each layer's input and
output gradient (`flfw.nets.training.per_example_layers`). For a convolution all B gradients are in memory at once: B
times its weights. A logical batch may be several physical ones that fit into memory. No noise is added here.

The first batch of two or more examples is checked: the gradients must add up to autograd's, and the losses of every
other example must not depend on what a layer makes of those between. So a layer that mixes examples, or has parameters
that are used outside its ``forward``, is refused and not clipped wrongly. What mixes inputs before the first layer is
not seen here, but by `flfw.nets.net.mixes_examples`. For stacked clients each gradient is computed by itself, so no
layer can mix examples; but all gradients of a step are in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, final, get_args

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.errors import InputError, require
from flfw.files.tensor_names import matches
from flfw.nets.backbones.freezing import is_frozen
from flfw.nets.net import Tensors
from flfw.nets.training.clipping import STABILITY, WIDEST, Bound, Clipping, Grouping, factors, grouped
from flfw.nets.training.per_example_layers import WAYS, Part, Way, added, layer_gradients, trusted


@dataclass(frozen=True)
class ClippedSum:
    """Sum of the clipped gradients of a batch of B examples, with norms and losses.

    Attributes:
        sums: sum of the clipped gradients, by parameter.
        norms: L2 norms before clipping (B, groups), the groups in the order of `PerExample.groups`; inf: not finite.
        scales: factors (B, groups) >= 0; below 1 if a gradient was made shorter, 0 if it was not finite.
        losses: loss of each example (B,).
    """

    sums: Tensors
    norms: Tensor
    scales: Tensor
    losses: Tensor


class _Use(NamedTuple):
    """Call of a layer: its inputs, and the graph edge of its output."""

    layer: str
    inputs: tuple[Tensor, ...]
    output: GradientEdge


@final
class PerExample:
    """Per-example gradients of a model, clipped and summed; the model is not changed.

    Args:
        model: model with layers that take the examples in the first dimension.
        chosen: name patterns of the parameters to use, among those that require a gradient: ``["extractor.*"]``.
        grouping: clipping groups.
        clipping: the rule.
        way: computation of convolutions; each gives bit-identical results on one machine, in any process.

    Attributes:
        groups: parameters of each group, by the name of the group: of a layer, of a tensor, or ``all``.

    Raises:
        InputError: no parameter is chosen, or a layer has no per-example gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        chosen: Sequence[str] = ("*",),
        *,
        grouping: Grouping = "layer",
        clipping: Clipping = "abadi",
        way: Way = "fixed",
    ) -> None:
        require(grouping in get_args(Grouping), f"grouping among {', '.join(get_args(Grouping))}", grouping=grouping)
        require(clipping in get_args(Clipping), f"clipping among {', '.join(get_args(Clipping))}", clipping=clipping)
        require(way in WAYS, f"way among {', '.join(WAYS)}", way=way)
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad and matches(n, chosen)}
        require(bool(self._parameters), "some parameters that require gradients", chosen=list(chosen))
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._layers: dict[str, nn.Module] = {}
        self._inner_names: dict[str, dict[str, str]] = {}  # for each layer: name in the layer -> name in the model
        for index, layer in model.named_modules():
            inner_names = {n: names[id(p)] for n, p in layer.named_parameters(recurse=False) if id(p) in names}
            if inner_names:
                self._layers[index], self._inner_names[index] = layer, inner_names
        _refuse_batch_statistics(model, self._layers)
        self._gradients = {index: layer_gradients(layer, way) for index, layer in self._layers.items()}
        self.groups = grouped(self._parameters, grouping)
        self._clipping: Clipping = clipping
        self._checked: set[tuple[bool | str, ...]] = set()
        self._last_bound: tuple[object, Tensor] = ((), torch.empty(0))

    def clipped_sum(self, losses: Callable[[], Tensor], bound: Bound) -> ClippedSum:
        """Compute the sum of the clipped gradients of one batch.

        Args:
            losses: function that runs the model and returns the loss of each example (B,), B >= 0:
                ``lambda: cross_entropy(model(x), y, reduction="none")``.
            bound: bound of each group's norm, > 0.

        Raises:
            InputError: a bound is not positive or names no group, or a layer mixes examples.
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
        return self._clipped(uses, _gradients(values, [use.output for use in uses], last=True), bounds, values)

    def _bounds(self, bound: Bound) -> tuple[float, ...]:
        if isinstance(bound, Mapping):
            same = set(bound) == set(self.groups)
            require(same, f"a bound for each of {', '.join(self.groups)}", bounds=dict(bound))
            bounds = tuple(float(bound[name]) for name in self.groups)
        else:
            bounds = (float(bound),) * len(self.groups)
        maximum, words = (WIDEST, f"0 < bound <= {WIDEST:g}") if self._clipping == "automatic" else (inf, "bound > 0")
        for value in bounds:
            require(0 < value <= maximum, words, bound=value)
        return bounds

    @contextmanager
    def _noting(self) -> Iterator[list[_Use]]:
        """Record every call of a layer with chosen parameters."""
        uses: list[_Use] = []

        def noting(place: str, layer: nn.Module) -> Callable[..., Any]:
            forward = layer.forward

            def noted(*inputs: Any, **named: Any) -> Any:
                output = forward(*inputs, **named)
                tensors = isinstance(output, Tensor) and inputs and all(isinstance(value, Tensor) for value in inputs)
                if not tensors:
                    raise _no_gradients(
                        layer, place, "not from tensors to one tensor; dp_fedavg with unit=client trains it"
                    )
                if output.requires_grad:
                    # The edge, not the tensor: later layers may change the tensor in place.
                    uses.append(_Use(place, inputs, get_gradient_edge(output)))
                return output

            return noted

        # ``forward`` is replaced because hooks make every call of a module several times as slow.
        originals = [(vars(layer), vars(layer).get("forward")) for layer in self._layers.values()]
        for place, layer in self._layers.items():
            vars(layer)["forward"] = noting(place, layer)
        try:
            yield uses
        finally:
            for attributes, forward in originals:
                if forward is None:
                    del attributes["forward"]
                else:
                    attributes["forward"] = forward

    def _check(self, uses: Sequence[_Use], losses: Tensor) -> None:
        """Refuse layers with wrong gradients; once for each sequence of calls, again for more than one example.

        A batch with a gradient that is not finite shows nothing, and a refusal would tell that it holds one: the next
        batch is checked.

        Raises:
            InputError: a layer has no per-example gradients; the message names it.
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
        reference = _gradients(losses, parameters)
        for first in (0, 1) if len(losses) > 1 else ():  # both, as an example may depend on those before it alone
            crossings = _gradients(losses[first::2].sum(), [use.output for use in uses])
            for use, crossing in zip(uses, crossings, strict=True):
                between = crossing[1 - first :: 2] if crossing is not None else losses.new_zeros(0)
                if bool((between.isfinite() & (between != 0)).any()):
                    why = "the loss of one example depends on what it makes of another"
                    raise _no_gradients(self._layers[use.layer], use.layer, why)
        with torch.no_grad():
            parts = self._parts(uses, slopes)
        limits, passed = torch.finfo(losses.dtype), True
        slack = 8 * limits.eps * _magnitude(uses, slopes) + 1e6 * limits.tiny
        for name, expected in zip(names, reference, strict=True):
            if expected is None:
                continue
            with torch.no_grad():
                sizes = parts[name].norms if name in parts else torch.zeros_like(losses)
                total = parts[name].weighted(torch.ones_like(sizes)) if name in parts else 0.0
                distance = torch.linalg.vector_norm(total - expected)
                passed &= bool(distance.isfinite())
            if passed and bool(distance > limits.eps**0.5 * sizes.sum() + slack):
                index = next(index for index, inside in self._inner_names.items() if name in inside.values())
                why = f"its {name.rpartition('.')[2]} is also used otherwise than by calling it"
                raise _no_gradients(self._layers[index], index, why)
        if passed:
            self._checked.add(called)

    def _parts(self, uses: Sequence[_Use], slopes: Sequence[Tensor | None], bound: float = inf) -> dict[str, Part]:
        """Return the per-example gradients by parameter, without parameters on which no loss depends.

        In float64 where float32 might lose what is very small or large; one that is not finite is 0, of norm ``inf``.
        """
        gradients: dict[str, Part] = {}
        for use, slope in zip(uses, slopes, strict=True):
            if slope is not None:
                inner_names = self._inner_names[use.layer]
                parts = self._gradients[use.layer].parts(use.inputs, slope, inner_names)
                for inner, name in inner_names.items():
                    gradients[name] = added(gradients[name], parts[inner]) if name in gradients else parts[inner]
        if trusted(gradients.values(), bound):
            return gradients
        return {name: part.careful() for name, part in gradients.items()}

    @torch.no_grad()
    def _clipped(
        self, uses: Sequence[_Use], slopes: Sequence[Tensor | None], bounds: tuple[float, ...], losses: Tensor
    ) -> ClippedSum:
        parts = self._parts(uses, slopes, min(STABILITY, *bounds))  # of what is lost, times C / STABILITY at most
        pieces = [[parts[name].norms for name in members if name in parts] for members in self.groups.values()]
        nothing = torch.zeros_like(losses, dtype=next((part.norms.dtype for part in parts.values()), losses.dtype))
        norms = torch.stack([_joint(piece_norms) if piece_norms else nothing for piece_norms in pieces])
        scales = factors(norms, self._bound(bounds, norms), self._clipping)
        scale_of = {n: scale for names, scale in zip(self.groups.values(), scales.unbind(), strict=True) for n in names}
        sums = {}
        for name, parameter in self._parameters.items():
            total = parts[name].weighted(scale_of[name]) if name in parts else torch.zeros_like(parameter)
            sums[name] = total if total.dtype == parameter.dtype else total.to(parameter.dtype)
        return ClippedSum(sums, norms.t().to(losses.dtype), scales.t().to(losses.dtype), losses.detach())

    def _bound(self, bounds: tuple[float, ...], norms: Tensor) -> Tensor:
        """Return the bounds as a tensor (groups, 1), cached; the largest float stands for infinity."""
        key = bounds, norms.dtype, norms.device
        if self._last_bound[0] != key:
            maximum = torch.finfo(norms.dtype).max
            self._last_bound = key, norms.new_tensor([min(bound, maximum) for bound in bounds]).unsqueeze(1)
        return self._last_bound[1]


def _joint(norms: list[Tensor]) -> Tensor:
    """Combine the norms of the pieces of each gradient into its norm."""
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)


@torch.no_grad()
def _magnitude(uses: Sequence[_Use], slopes: Sequence[Tensor | None]) -> float:
    """Bound the sizes of the terms that gradients are sums of: rounding is relative to them where they cancel."""
    total = 0.0
    for use, slope in zip(uses, slopes, strict=True):
        if slope is not None and slope.numel():
            d, a = slope.double().flatten(1), use.inputs[0]
            size = a.double().flatten(1).norm(dim=1) if a.is_floating_point() else 0.0
            total += float((d.norm(dim=1) * (size + d.shape[1] ** 0.5)).sum())
    return total


def _gradients(
    losses: Tensor, outputs: Sequence[Tensor] | Sequence[GradientEdge], last: bool = False
) -> Sequence[Tensor | None]:
    """Compute the gradients of the summed losses, None if they do not depend on one; free the graph if ``last``."""
    each = torch.ones_like(losses)
    return torch.autograd.grad(losses, outputs, each, retain_graph=not last, allow_unused=True) if outputs else ()


def _no_gradients(layer: nn.Module, place: str, why: str) -> InputError:
    got = f"{type(layer).__name__} at {place or 'the model itself'}"
    return InputError(f"Expected layers with per-example gradients, got {got}; {why}.")


def _refuse_batch_statistics(model: nn.Module, chosen: Mapping[str, nn.Module]) -> None:
    """Refuse BatchNorm, as it mixes examples, and buffers in chosen layers, as all examples of a batch update them.

    So do the same settings of an `nn.Embedding`: which words a batch holds decides about its weights and gradients.
    """
    for place, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and not is_frozen(layer):
            way_out = "adapter_norm=frozen" if ".adapter." in place else "--expert norm=group"
            raise _no_gradients(layer, place, f"its output depends on the whole batch; {way_out} is the way out")
        if getattr(layer, "max_norm", None) is not None or getattr(layer, "scale_grad_by_freq", False):
            why = "max_norm changes its weights, scale_grad_by_freq its gradients, by the words of the whole batch"
            raise _no_gradients(layer, place, why)
        if place in chosen and any(True for _ in layer.buffers(recurse=False)):
            raise _no_gradients(layer, place, "its buffers may carry one example's data into another's gradient")


def physical(x: Tensor, y: Tensor, maximum: int) -> list[tuple[Tensor, Tensor]]:
    """Divide a batch (B, ...) with labels (B,), B >= 0, into parts of at most ``maximum`` examples; 0: one part.

    No example is alone in a part where others are not: between one and two examples at once, rounding differs most, and
    one example fewer in a batch would move another from a pair into a part of its own. So with 2 all are alone.

    >>> [[len(y) for _, y in physical(torch.zeros(7, 1), torch.zeros(7), most)] for most in (0, 2, 3, 4)]
    [[7], [1, 1, 1, 1, 1, 1, 1], [3, 2, 2], [4, 3]]
    """
    size = max(1, len(y)) if not maximum else 1 if maximum == 2 else maximum
    sizes = [size] * (len(y) // size) + [len(y) % size] * (len(y) % size > 0) or [0]
    if size > 1 and len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [size - 1, 2]
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def accumulated(parts: Iterable[ClippedSum]) -> ClippedSum:
    """Add up the sums of one or more physical batches, one at a time, in float64.

    In float32 the errors of thousands of small parts are more than the noise allows for.

    Returns:
        The sum over all examples, with their norms, scales and losses in order.
    """
    sums, types, rows = None, dict[str, torch.dtype](), []
    for part in parts:
        rows.append((part.norms, part.scales, part.losses))
        if sums is None:
            sums, types = part.sums, {name: value.dtype for name, value in part.sums.items()}
        else:
            for name, value in part.sums.items():
                sums[name] = sums[name].double().add_(value)
    assert sums is not None, "one part or more"
    sums = {name: value.to(types[name]) for name, value in sums.items()}
    norms, scales, losses = (torch.cat(column) if len(rows) > 1 else column[0] for column in zip(*rows, strict=True))
    return ClippedSum(sums, norms, scales, losses)


def stacked_clipped_sums(
    loss: Callable[[Tensors, Tensor, Tensor], Tensor],
    parameters: Tensors,
    batches: Sequence[tuple[Tensor, Tensor]],
    groups: Mapping[str, Sequence[str]],
    bounds: Sequence[Sequence[float]],
    clipping: Clipping,
) -> list[ClippedSum]:
    """Compute the sum of the clipped gradients of each client's batch.

    Norms and sums are in float64. A group of an example's gradient that is not finite is 0, of norm ``inf``.

    Args:
        loss: function of parameters, inputs (1, ...) and labels (1,) for the loss of that example.
        parameters: by name (K, ...).
        batches: of each client inputs (B, ...) and labels (B,), B >= 0.
        groups: names of the parameters of each clipping group.
        bounds: of each client a bound for each group, > 0.
        clipping: the rule.
    """
    maximum = max(1, *(len(y) for _, y in batches))
    x, y = (torch.stack([_filled(part, maximum) for part in parts]) for parts in zip(*batches, strict=True))

    def of_one(tensors: Tensors, one_x: Tensor, one_y: Tensor) -> Tensor:
        return loss(tensors, one_x.unsqueeze(0), one_y.unsqueeze(0))

    gradients, losses = vmap(vmap(grad_and_value(of_one), (None, 0, 0)))(parameters, x, y)
    with torch.no_grad():
        norms = torch.stack([_norms([gradients[name] for name in members]) for members in groups.values()], 2)
        bound = norms.new_tensor(bounds).clamp(max=torch.finfo(norms.dtype).max).unsqueeze(1)
        scales = factors(norms, bound, clipping)
        counts = [len(labels) for _, labels in batches]
        present = torch.arange(maximum, device=norms.device) < torch.tensor(counts, device=norms.device).unsqueeze(1)
        sums: Tensors = {}
        for index, members in enumerate(groups.values()):
            weight = torch.where(present, scales[..., index], 0.0)
            for name in members:
                wide = weight.view(*weight.shape, *[1] * (gradients[name].dim() - 2))  # (K, B, 1, ...)
                each = torch.where(wide > 0, gradients[name].double(), 0.0)
                sums[name] = torch.einsum("kb,kb...->k...", weight, each).to(parameters[name].dtype)
    dtype = losses.dtype
    return [
        ClippedSum(
            {name: value[index] for name, value in sums.items()},
            norms[index, :count].to(dtype),
            scales[index, :count].to(dtype),
            losses[index, :count].detach(),
        )
        for index, count in enumerate(counts)
    ]


def _filled(part: Tensor, maximum: int) -> Tensor:
    """Append rows of zeros up to so many rows."""
    return torch.cat([part, part.new_zeros(maximum - len(part), *part.shape[1:])])


def _norms(pieces: Sequence[Tensor]) -> Tensor:
    """Compute the joint norms (K, B) in float64 of gradients given in pieces (K, B, ...); inf: not finite."""
    squares = torch.stack([piece.double().flatten(2).square().sum(2) for piece in pieces]).sum(0)
    return torch.where(squares.isfinite(), squares, torch.inf).sqrt()
