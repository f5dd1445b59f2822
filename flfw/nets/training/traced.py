"""Function that is called again and again with another first argument, as a list of operations that is made once.

Gradients inside the function are operations like others. The list is short: equal operations are done once, results
that nothing needs are left out, and what does not depend on the first argument is computed once for all calls.

PyTorch's convolutions are made for more work in a call than small maps with few channels are. On a processor two forms
replace them. Both are the same sums in another order. Convolutions with groups or dilation stay.

- products: very small convolutions copy the windows of a map into columns, for one product of matrices. The columns
  are shared by all convolutions of the same map, gradients included.
- phases: a transposed convolution of stride s, which is also the gradient by a convolution's input, is one convolution
  of stride 1 with s^2 times the channels. Each of these is the result at every s-th place: a phase.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import Graph, GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops
from torch.nn.functional import conv2d, fold, pad, unfold
from torch.utils._pytree import tree_flatten, tree_unflatten

_SMALL = 500_000
"""Largest number of multiplications of one convolution that is done as a product."""

_aten = torch.ops.aten


class _Sliding(NamedTuple):
    """Stride and padding of a convolution."""

    stride: Sequence[int]
    padding: Sequence[int]


@final
class SmallConvolutions(Interpreter):
    """Interpreter of a graph of operations; it runs the same operations but for the convolutions."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        if target is _aten.convolution.default and _plain(args[0], args[5], args[8]):
            x, weight, bias, stride, padding, _, transposed, extra, _ = args
            if not transposed:
                return _convolved(x, weight, bias, _Sliding(stride, padding))
            sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, extra, strict=True)
            spread = _spread(
                x, weight, _Sliding(stride, padding), [(n - 1) * s - 2 * p + k + e for n, k, s, p, e in sizes]
            )
            return spread if bias is None else spread + bias[:, None, None]
        if target is _aten.convolution_backward.default and _plain(args[0], args[6], args[9]) and not args[7]:
            d, x, weight, _, stride, padding, *_, wanted = args
            at = _Sliding(stride, padding)
            return [
                _spread(d, weight, at, x.shape[2:]) if wanted[0] else None,
                _weight_gradient(d, x, weight, at) if wanted[1] else None,
                d.sum((0, 2, 3)) if wanted[2] else None,
            ]
        return super().call_function(target, args, kwargs)


def _plain(x: Tensor, dilation: Sequence[int], groups: int) -> bool:
    return x.dim() == 4 and groups == 1 and set(dilation) == {1} and x.device.type == "cpu"


def _small(over: Tensor, weight: Tensor) -> bool:
    """Tell whether a convolution with this weight is small; ``over`` is the map (B, O, H, W) of its outputs."""
    return over.numel() * weight[0].numel() <= _SMALL


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, at: _Sliding) -> Tensor:
    (height, width), kernel = x.shape[2:], weight.shape[2:]
    count = [
        (n + 2 * p - k) // s + 1 for n, k, s, p in zip((height, width), kernel, at.stride, at.padding, strict=True)
    ]
    over = x.new_empty(()).expand(len(x), len(weight), *count)
    if not _small(over, weight):
        return _aten.convolution(x, weight, bias, at.stride, at.padding, [1, 1], False, [0, 0], 1)
    columns = _columns(x, weight, at)
    if len(x) == 1 and bias is not None:
        return torch.addmm(bias[:, None], weight.flatten(1), columns[0]).view(over.shape)
    output = _product(weight.flatten(1), columns).view(over.shape)
    return output if bias is None else output + bias[:, None, None]


def _spread(d: Tensor, weight: Tensor, at: _Sliding, size: Sequence[int]) -> Tensor:
    """Compute the transposed convolution (B, C, *size) of d (B, O, P, Q) with a weight (O, C, k, l)."""
    if _small(d, weight):
        return fold(_product(weight.flatten(1).t(), d.flatten(2)), tuple(size), tuple(weight.shape[2:]), 1, *_pairs(at))
    (out, channels), (s, t) = weight.shape[:2], at.stride
    taps = [-(-k // n) for k, n in zip(weight.shape[2:], at.stride, strict=True)]  # of the kernel, at one phase
    full = pad(weight, (0, taps[1] * t - weight.shape[3], 0, taps[0] * s - weight.shape[2]))
    phases = full.view(out, channels, taps[0], s, taps[1], t).flip(2, 4).permute(1, 3, 5, 0, 2, 4)
    around = [
        min(k - 1, max(0, k - 1 - p // n, -(-(p + length) // n) - before))
        for before, k, n, p, length in zip(d.shape[2:], taps, at.stride, at.padding, size, strict=True)
    ]
    many = conv2d(d, phases.reshape(channels * s * t, out, *taps), None, 1, around)
    output = _interleaved(many.view(len(d), channels, s, t, *many.shape[2:]))
    first = [n * (k - 1 - a) - p for k, a, n, p in zip(taps, around, at.stride, at.padding, strict=True)]
    (top, left), (bottom, right) = first, (size[i] - first[i] - output.shape[2 + i] for i in (0, 1))
    return pad(output, (left, right, top, bottom)) if any((top, left, bottom, right)) else output


def _interleaved(phases: Tensor) -> Tensor:
    """Assemble maps (B, C, s H, t W) from their phases (B, C, s, t, H, W)."""
    if phases.shape[2:4] == (1, 1):
        return phases[:, :, 0, 0]
    rows = [torch.stack(row.unbind(2), -1).flatten(3) for row in phases.unbind(2)]
    return torch.stack(rows, 3).flatten(2, 3)


def _weight_gradient(d: Tensor, x: Tensor, weight: Tensor, at: _Sliding) -> Tensor:
    if _small(d, weight):
        columns = _columns(x, weight, at)
        if len(x) == 1:
            return (d[0].flatten(1) @ columns[0].t()).view(weight.shape)
        return torch.bmm(d.flatten(2), columns.transpose(1, 2)).sum(0).view(weight.shape)
    if x.shape[1] > 1:  # twice as fast with the channels last in memory
        d, x, weight = (value.contiguous(memory_format=torch.channels_last) for value in (d, x, weight))
    given = (at.stride, at.padding, [1, 1], False, [0, 0], 1, [False, True, False])
    return _aten.convolution_backward(d, x, weight, None, *given)[1].contiguous()


def _columns(x: Tensor, weight: Tensor, at: _Sliding) -> Tensor:
    """Return the windows (B, C k l, L) of a map."""
    return unfold(x, tuple(weight.shape[2:]), 1, *_pairs(at))


def _product(weight: Tensor, columns: Tensor) -> Tensor:
    """Multiply a matrix by one matrix for each example."""
    return (weight @ columns[0])[None] if len(columns) == 1 else weight @ columns


def _pairs(at: _Sliding) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(at.padding), tuple(at.stride)


@final
class Traced:
    """Operations of a function of tensors.

    Args:
        function: a pure function of tensors (x, fixed) with a tuple of tensors as its result; it may take gradients by
            ``torch.autograd.grad``.
        x: an example of its first argument, for the shape.
        fixed: an example of the other arguments: records of tensors.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], x: Tensor, *fixed: Any) -> None:
        leaves, form = tree_flatten(fixed)
        first = _listed(lambda at, *given: list(function(at, *tree_unflatten(given, form))), x, leaves)
        run = SmallConvolutions(first).run
        second = _listed(functionalize(lambda *given: run(*given), remove="mutations"), x, leaves)
        self._before, self._step = divided(listed_shortly(second), 1)

    def given(self, *fixed: Any) -> Callable[[Tensor], list[Tensor]]:
        """Return the function of x alone, for other arguments of the same shapes; its results have no graph."""
        with torch.inference_mode():
            ready = self._before(*tree_flatten(fixed)[0])
        return torch.inference_mode()(lambda x: self._step.forward(x, *ready))


def _listed(function: Callable[..., list[Tensor]], x: Tensor, leaves: list[Tensor]) -> GraphModule:
    """List the operations of a function; nothing is computed."""
    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(x, *leaves)


def listed_shortly(listed: GraphModule) -> GraphModule:
    """List operations without those that are there already, and without those whose results nothing needs.

    Args:
        listed: operations none of which changes a tensor in place.
    """
    passed = CSEPass(get_CSE_banned_ops())(listed)
    assert passed is not None
    short = passed.graph_module
    short.graph.eliminate_dead_code()
    return short


def divided(listed: GraphModule, first: int) -> tuple[GraphModule, GraphModule]:
    """Divide a graph into the part that its later arguments determine, and the rest.

    Args:
        listed: operations of so many first arguments and of others, none of which changes a tensor in place.
        first: number of the arguments that change from call to call.

    Returns:
        A function of the other arguments for a list of tensors, and one of the first arguments and of these.
    """
    nodes = list(listed.graph.nodes)
    changing, output = [node for node in nodes if node.op == "placeholder"][:first], nodes[-1]
    moving = set(changing)
    for node in nodes:
        if not moving.isdisjoint(node.all_input_nodes):
            moving.add(node)
    moving.add(output)
    still = [node for node in nodes if node not in moving]
    passed = [node for node in still if not moving.isdisjoint(node.users)]
    before, step = Graph(), Graph()
    place = {node: step.placeholder(node.name) for node in [*changing, *passed]}
    early: dict[Any, Any] = {}
    for node in still:
        early[node] = before.node_copy(node, early.__getitem__)
    before.output([early[node] for node in passed])
    for node in nodes:
        if node in moving and node not in changing:
            place[node] = step.node_copy(node, place.__getitem__)
    return GraphModule(listed, before), GraphModule(listed, step)
