"""A GPU that is pretended: its tensors say that they are there, and the processor computes their numbers.

What a real one refuses is refused: operations on tensors of both devices, random numbers from the processor's
generators, and arrays of NumPy. Code that passes may still fail on a real GPU by its memory or its kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

_FIRST, _ANY = torch.device("cuda", 0), torch.device("cuda")
_THERE = ("cuda", "meta")  # the second one within `torch.func`, whose tensors do not ask their class
_aten = torch.ops.aten
_MOVES = {_aten.copy_.default, _aten._to_copy.default}
_INDEXED = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}


@final
class Pretended(Tensor):
    """Tensor that says it is on a GPU.

    Attributes:
        held: its numbers, on the processor.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device("meta"),  # for PyTorch's own code, which would ask a driver
        )
        made.held = held
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _FIRST

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Pretended({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _computed(func, args, kwargs or {})


@final
class _Pretending(TorchDispatchMode):
    """Mode in which tensors may be made on the GPU, and moved to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


@final
class _Numbering(TorchFunctionMode):
    """Mode in which the GPU has its number: without it, PyTorch would ask the driver which one it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        numbered = lambda leaf: _FIRST if leaf in ("cuda", _ANY) else leaf  # noqa: E731
        simple = lambda leaf: numbered(leaf) if isinstance(leaf, str | torch.device) else leaf  # noqa: E731
        args, kwargs = (tree_map(simple, given) for given in (args, kwargs or {}))
        if func is Tensor.new_tensor and isinstance(args[0], Pretended):
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, "device": _FIRST, **kwargs})
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Pretended):
            args = args[0], _as_tensors(args[1]), *args[2:]
        if func is Tensor.tolist and isinstance(args[0], Pretended):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Pretend within a block that this machine has a GPU."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)
        lifted, swapped = torch._C._only_lift_cpu_tensors(), torch.__future__.get_swap_module_params_on_conversion()
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` makes its tensor here, then moves it
        torch.__future__.set_swap_module_params_on_conversion(True)  # a parameter that moves stays the same object
        try:
            with _Pretending(), _Numbering():
                yield
        finally:
            torch._C._set_only_lift_cpu_tensors(lifted)
            torch.__future__.set_swap_module_params_on_conversion(swapped)
            torch.set_num_threads(before)


def _as_tensors(index: Any) -> Any:
    """Return an index whose lists are tensors: of a list PyTorch would make a tensor where it takes this one to be."""
    if isinstance(index, tuple):
        return tuple(map(_as_tensors, index))
    return torch.tensor(index, device=_FIRST) if isinstance(index, list) else index


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = tree_leaves((args, kwargs))
    there = [leaf for leaf in leaves if isinstance(leaf, Pretended)]
    here = [leaf for leaf in leaves if type(leaf) in (Tensor, torch.nn.Parameter) and leaf.dim()]
    if there and here and func not in _MOVES and not (func in _INDEXED and isinstance(args[0], Pretended)):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu in {func}.")
    named = kwargs.get("device")
    requested = None if named is None else torch.device(named).type
    on_gpu = requested in _THERE or (requested is None and bool(there))
    if func is _aten.copy_.default:
        on_gpu = isinstance(args[0], Pretended)
    if on_gpu and any(isinstance(leaf, torch.Generator) and leaf.device.type == "cpu" for leaf in leaves):
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu' in {func}.")
    held = lambda leaf: leaf.held if isinstance(leaf, Pretended) else leaf  # noqa: E731
    given, words = tree_map(held, args), tree_map(held, kwargs)
    if requested in _THERE:
        words["device"] = torch.device("cpu")
    out = func(*given, **words)
    if func is _aten._to_copy.default and there and requested == "cpu" and out is given[0]:
        out = out.clone()
    if not on_gpu:
        return out
    out = tree_map(lambda leaf: Pretended(leaf) if isinstance(leaf, Tensor) else leaf, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if there else out
