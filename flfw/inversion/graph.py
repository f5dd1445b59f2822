"""Traced graph of tensor operations: runs a function of one problem for many problems at once.

The function, with all gradients taken inside, is traced once. A light problem is traced under vmap and called for all
problems together, because PyTorch's cost per call is most of the time. Where convolutions fill the processor, one
problem is traced and called in a loop: vmap would turn their weight gradients into grouped convolutions, which are no
faster. `benchmarks/attacks` measures both; `LIGHT` lies between. On a CPU a problem whose intermediate results are
larger than a core's cache, as of wide fully connected layers, is called in a loop as well: except where tensors that
all problems share are larger by far, such as a hypernetwork's weights. A loop would read them from memory for each
problem, and together they are read once.

In a search only the guess changes. `Graph.given` computes once what other records and the weights determine, such as
norms of what was observed and the scales of BatchNorm.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor
from torch.func import functionalize, vmap
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.flop_counter import flop_registry

from flfw.inversion.compute import ComputeLimits, compiler
from flfw.nets.training.traced import divided, listed_shortly

LIGHT = 150e6
"""Largest number of floating-point operations of one call for one problem at which vmap pays."""
CACHED = 3_000_000
"""Largest peak memory of one problem, in bytes, at which vmap pays on a CPU."""
Run = TypeVar("Run", bound=Callable[..., Any])
_SHARED = 4  # bytes of shared tensors over the peak memory of one problem, from which reading them decides


@final
class Graph:
    """Function of records of tensors, for records that are stacked along a new first dimension.

    Args:
        function: a pure function from one problem's records to records.
        examples: one problem's records, for their shapes.
        compute: limits of memory, and compilation.

    Attributes:
        bytes: peak memory of the intermediate results of one problem, and of those that a search keeps.
        light: whether problems run together.
    """

    def __init__(self, function: Callable[..., Any], examples: tuple[Any, ...], compute: ComputeLimits) -> None:
        self._function, self._compiled = function, compute.compiled
        listed = _listed(function, examples)
        traced = listed.operations
        self.bytes = peak_bytes(traced)
        shared = constant_bytes(traced) >= max(CACHED, _SHARED * self.bytes)
        cached = self.bytes <= CACHED or shared or any(leaf.is_cuda for leaf in tree_leaves(examples))
        self.light = cached and flops(traced, convolutions=shared) <= LIGHT
        self.bytes += kept_bytes(traced, len(tree_leaves(examples[0])))
        self._ready_for: dict[Any, _Listed[Callable[..., Any]]] = {}
        self._lists: dict[Any, _Listed[GraphModule]] = {_shapes(examples): listed}
        self._steps: dict[Any, _Step] = {}

    def __call__(self, *stacked: Any) -> Any:
        """Call the function for each problem and stack the results."""
        count = len(tree_leaves(stacked)[0])
        with torch.no_grad():
            if self.light and count > 1:
                return self._for(vmap(self._function), stacked)(*stacked)
            each = [tree_map(lambda value, i=i: value[i], stacked) for i in range(count)]
            results = [self._for(self._function, one)(*one) for one in each]
        return tree_map(lambda *values: torch.stack(values), *results)

    def given(self, *stacked: Any) -> Callable[[Any], Any]:
        """Return the function of the first record, for other stacked records, whose own part is computed once."""
        count = len(tree_leaves(stacked)[0])
        if self.light and count > 1:
            return self._awaiting(vmap(self._function), stacked)
        each = [self._awaiting(self._function, tree_map(lambda value, i=i: value[i], stacked)) for i in range(count)]

        def called(first: Any) -> Any:
            results = [one(tree_map(lambda value, i=i: value[i], first)) for i, one in enumerate(each)]
            return tree_map(lambda *values: torch.stack(values), *results)

        return called

    def _awaiting(self, function: Callable[..., Any], others: tuple[Any, ...]) -> Callable[[Any], Any]:
        """Return the function of the first record; its first call shows that record's shapes."""
        ready: list[tuple[_Step, list[Tensor]]] = []

        def called(first: Any) -> Any:
            with torch.no_grad():
                if not ready:
                    step = self._step(function, (first, *others))
                    ready.append((step, step.before(*tree_leaves(others))))
                step, still = ready[0]
                return step(first, still)

        return called

    def _step(self, function: Callable[..., Any], records: tuple[Any, ...]) -> _Step:
        shapes = _shapes(records)
        if shapes not in self._steps:
            self._steps[shapes] = _Step(self._list(function, records), records, self._ready)
        return self._steps[shapes]

    def _for(self, function: Callable[..., Any], records: tuple[Any, ...]) -> Callable[..., Any]:
        shapes = _shapes(records)
        if shapes not in self._ready_for:
            listed = self._list(function, records)
            self._ready_for[shapes] = replace(listed, operations=self._ready(listed.operations))
        return self._ready_for[shapes]

    def _list(self, function: Callable[..., Any], records: tuple[Any, ...]) -> _Listed[GraphModule]:
        shapes = _shapes(records)
        if shapes not in self._lists:
            self._lists[shapes] = _listed(function, records)
        return self._lists[shapes]

    def _ready(self, traced: GraphModule) -> Callable[..., Any]:
        return _compiled(traced) if self._compiled else traced


@final
@dataclass(frozen=True, slots=True)
class _Listed(Generic[Run]):
    """Operations of a function of records, as a function from the records' leaves to the leaves of its results."""

    operations: Run
    given: TreeSpec
    results: TreeSpec

    def __call__(self, *records: Any) -> Any:
        return tree_unflatten(self.operations(*self.given.flatten_up_to(records)), self.results)


@final
class _Step:
    """Operations of a function, divided into those that its first record does not change and the rest.

    Args:
        listed: the operations of a pure function of records.
        records: examples, for their shapes.
        ready: prepares the operations of every call.
    """

    def __init__(
        self, listed: _Listed[GraphModule], records: tuple[Any, ...], ready: Callable[[GraphModule], Callable[..., Any]]
    ) -> None:
        leaves, self._form = tree_leaves(records), tree_flatten(records[0])[1]
        pure = _without_mutations(listed.operations, leaves)
        early, changing = divided(listed_shortly(pure), self._form.num_leaves)
        constant, self._early = divided(early, len(leaves) - self._form.num_leaves)
        self._constants = constant()  # of the weights: once for all problems
        self._run, self._results = ready(changing), listed.results

    def before(self, *others: Tensor) -> list[Tensor]:
        """Compute from the leaves of the other records the tensors that every call needs."""
        return self._early(*others, *self._constants)

    def __call__(self, first: Any, still: list[Tensor]) -> Any:
        leaves, form = tree_flatten(first)
        assert form == self._form, "the first record has the names of the example, in their order"
        return tree_unflatten(self._run(*leaves, *still), self._results)


def _listed(function: Callable[..., Any], records: tuple[Any, ...]) -> _Listed[GraphModule]:
    """List the operations of a function on such records, without those whose results are not used; compute nothing."""
    leaves, form = tree_flatten(records)
    results: list[TreeSpec] = []

    def flat(*given: Tensor) -> list[Tensor]:
        made, its_form = tree_flatten(function(*tree_unflatten(given, form)))
        results.append(its_form)
        return made

    traced = _traced(flat, leaves)
    traced.graph.eliminate_dead_code()  # above all the gradients by the weights in the second of two backward passes
    traced.recompile()
    return _Listed(traced, form, results[0])


def _traced(flat: Callable[..., list[Tensor]], leaves: Sequence[Tensor]) -> GraphModule:
    return make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)


def _without_mutations(traced: GraphModule, leaves: Sequence[Tensor]) -> GraphModule:
    """Return operations none of which changes a tensor in place: the given ones where they are such, as most are."""
    if not any(node.op == "call_function" and _is_mutation(node) for node in traced.graph.nodes):
        return traced
    return _traced(functionalize(lambda *given: traced(*given), remove="mutations"), leaves)


def _is_mutation(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _shapes(records: tuple[Any, ...]) -> tuple[torch.Size, ...]:
    return tuple(leaf.shape for leaf in tree_leaves(records))


def peak_bytes(traced: GraphModule) -> int:
    """Compute the peak memory of the results of a graph's operations; its inputs do not count."""
    shown: dict[Node, Node] = {}  # the node under a view, else the node itself
    for node in traced.graph.nodes:
        shown[node] = shown[node.all_input_nodes[0]] if node.op == "call_function" and _is_view(node) else node
    last = {shown[used]: node for node in traced.graph.nodes for used in node.all_input_nodes}
    sizes: dict[Node, int] = {}
    alive = peak = 0
    for node in traced.graph.nodes:
        sizes[node] = 0 if node.op != "call_function" or shown[node] is not node else _bytes(node.meta.get("val"))
        alive += sizes[node]
        peak = max(peak, alive)
        alive -= sum(sizes[used] for used in {shown[u] for u in node.all_input_nodes} if last[used] is node)
    return peak


def constant_bytes(traced: GraphModule) -> int:
    """Compute the memory of the tensors that a graph's operations use, and that are none of its inputs."""
    names = dict.fromkeys(node.target for node in traced.graph.nodes if node.op == "get_attr")
    return sum(_bytes(getattr(traced, str(name))) for name in names)


def kept_bytes(traced: GraphModule, first: int) -> int:
    """Compute the memory of the results that depend on later inputs of a graph, but not on so many first ones."""
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    moving, other = set(inputs[:first]), set(inputs[first:])
    for node in traced.graph.nodes:
        for group in (moving, other):
            if not group.isdisjoint(node.all_input_nodes):
                group.add(node)
    kept = [node for node in other - moving if node.op == "call_function" and not moving.isdisjoint(node.users)]
    return sum(_bytes(node.meta.get("val")) for node in kept if not _is_view(node))


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(returned.alias_info is not None for returned in schema.returns)


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0


def flops(traced: GraphModule, convolutions: bool) -> int:
    """Count the floating-point operations of matrix products and convolutions, or of convolutions alone.

    It reads the shapes that tracing noted: `FlopCounterMode` would have to trace again, which takes as long.
    """

    def value(node: Node) -> Any:
        return getattr(traced, str(node.target)) if node.op == "get_attr" else node.meta["val"]

    total = 0
    for node in traced.graph.nodes:
        operation = getattr(node.target, "overloadpacket", None)
        if operation in flop_registry and ("convolution" in str(operation) or not convolutions):
            given, named = map_arg((node.args, node.kwargs), value)
            total += flop_registry[operation](*given, **named, out_val=node.meta["val"])
    return total


def _compiled(traced: GraphModule) -> Callable[..., Any]:
    if compiler() is None:
        warnings.warn(
            "Expected a C++ compiler (g++, clang++ or $CXX) to compile a search with, found none: it runs uncompiled, "
            "which takes longer.",
            RuntimeWarning,
            stacklevel=3,
        )
        return traced
    import torch._inductor.config as inductor  # imported here, because it takes a second

    inductor.compile_threads = 1  # in this process, so that an attack leaves no other processes behind
    return torch.compile(traced, dynamic=False)
