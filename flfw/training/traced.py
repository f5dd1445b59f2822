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
