"""Function that is called again and again with another first argument, as a list of operations that is made once.

Gradients inside the function are operations like others. The list is short: equal operations are done once, results
that nothing needs are left out, and what does not depend on the first argument is computed once for all calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops
from torch.utils._pytree import tree_flatten, tree_unflatten

from flfw.training.small_convolutions import SmallConvolutions


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
        self._before, self._step = _divided(_short(second))

    def given(self, *fixed: Any) -> Callable[[Tensor], list[Tensor]]:
        """Return the function of x alone, for other arguments of the same shapes; its results have no graph."""
        with torch.inference_mode():
            ready = self._before(*tree_flatten(fixed)[0])
        return torch.inference_mode()(lambda x: self._step.forward(x, *ready))


def _listed(function: Callable[..., list[Tensor]], x: Tensor, leaves: list[Tensor]) -> GraphModule:
    """List the operations of a function; nothing is computed."""
    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(x, *leaves)


def _short(listed: GraphModule) -> GraphModule:
    passed = CSEPass(get_CSE_banned_ops())(listed)
    assert passed is not None
    short = passed.graph_module
    short.graph.eliminate_dead_code()
    return short


def _divided(listed: GraphModule) -> tuple[GraphModule, GraphModule]:
    """Divide a graph of (x, fixed) into the part that the fixed arguments determine and the rest."""
    nodes = list(listed.graph.nodes)
    x, output = nodes[0], nodes[-1]
    moving = {x}
    for node in nodes:
        if not moving.isdisjoint(node.all_input_nodes):
            moving.add(node)
    moving.add(output)
    still = [node for node in nodes if node not in moving]
    passed = [node for node in still if not moving.isdisjoint(node.users)]
    before, step = Graph(), Graph()
    place = {x: step.placeholder("x")} | {node: step.placeholder(node.name) for node in passed}
    early: dict[Any, Any] = {}
    for node in still:
        early[node] = before.node_copy(node, early.__getitem__)
    before.output([early[node] for node in passed])
    for node in nodes:
        if node in moving and node is not x:
            place[node] = step.node_copy(node, place.__getitem__)
    return GraphModule(listed, before), GraphModule(listed, step)
