"""Context of a client half: the data and settings for one message, and copies of the first model.

Building draws all numbers of a model anew, though every client of a run begins with the same ones. So a process builds
the model once and copies it for every further message. A copy has the same modules, numbers and flags, and shares no
tensor and no container with another: what a client does to its own, no other sees. It is made only of what is known to
be copied whole. A model with anything else, such as a hook, a function made for one model, a parametrisation or an
object of a plug-in, is built for each message.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from threading import RLock
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any, final

import torch
from torch import Tensor, nn

from flfw.client.store import ClientStore
from flfw.files.tensor_names import matches
from flfw.rng import initialising
from flfw.task.client_plan import PlanContext
from flfw.task.defence import Defence
from flfw.task.task import Task

_PLAIN = {NoneType, bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size}
_CONTAINERS = {dict, OrderedDict, list, tuple, set}
_OF_EVERY_MODULE = vars(nn.Module()).keys()
_WAYS = {"__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__new__"}


class Uncopied(Exception):
    """Exception: a model holds something that is not known to be copied whole."""


@final
class ModelCopies:
    """First model of the last experiment, of which only copies are handed out.

    It is kept when it is asked for a second time: the process of one message, as on real sites, holds no second model.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._requested: Hashable = object()
        self._kept: nn.Module | None = None
        self._uncopied = False

    def model(self, key: Hashable, build: Callable[[], nn.Module]) -> nn.Module:
        """Return a model as ``build`` makes it: a copy, or a new one where it cannot be copied.

        Args:
            key: everything that decides what ``build`` makes, beside torch's default type and device.
            build: function that builds the model; it always gives the same one.
        """
        whole = (key, torch.get_default_dtype(), torch.get_default_device())
        with self._lock:  # also while building, which draws from torch's one global generator
            if whole != self._requested:
                self._requested, self._kept, self._uncopied = whole, None, False
                return build()
            kept = self._kept
            if kept is None:
                return self._built(build)
        return copied(kept)

    def _built(self, build: Callable[[], nn.Module]) -> nn.Module:
        """Build a model and return a copy, or the model itself where it cannot be copied."""
        built = build()
        if self._uncopied:
            return built
        try:
            made = copied(built)
        except Uncopied:
            self._uncopied = True
            return built
        self._kept = built
        return made


def copied(model: nn.Module) -> nn.Module:
    """Copy a model with its modules, tensors and attributes.

    Raises:
        Uncopied: it holds something else, or tensors that share memory, are part of a graph, have a gradient or hooks.
    """
    return _copied(model, {})


def _copied(value: Any, made: dict[int, Any]) -> Any:
    """Copy a part of a model.

    Args:
        value: the part.
        made: the copies so far, by the ``id`` of what they are copies of; storages stand there by their address.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, Tensor):
        copy = _copied_tensor(value, made)
    elif isinstance(value, nn.Module):
        copy = _copied_module(value, made)
    elif kind in _CONTAINERS:
        return _copied_container(value, made)
    elif _is_named(value):
        return value
    else:
        raise Uncopied(f"a {kind.__name__}")
    made[id(value)] = copy
    return copy


def _copied_container(value: Any, made: dict[int, Any]) -> Any:
    kind = type(value)
    if isinstance(value, dict):
        copy = made[id(value)] = kind()
        for key, entry in value.items():
            copy[_copied(key, made)] = _copied(entry, made)
        return copy
    if kind is list:
        copy = made[id(value)] = []
        copy += [_copied(entry, made) for entry in value]
        return copy
    return kind(_copied(entry, made) for entry in value)


def _copied_tensor(value: Tensor, made: dict[int, Any]) -> Tensor:
    """Copy a tensor that has its memory for itself."""
    if not _is_plain(value):
        raise Uncopied("a tensor with more than its numbers")
    kind, storage = type(value), value.untyped_storage()
    if not value.is_contiguous() or storage.nbytes() != value.nbytes or -storage.data_ptr() in made:
        raise Uncopied("a tensor that shares its memory, or has its numbers in another order")
    if value.numel():
        made[-storage.data_ptr()] = storage  # no id is negative
    copy = value.detach().clone()
    return nn.Parameter(copy, value.requires_grad) if kind is nn.Parameter else copy.requires_grad_(value.requires_grad)


def _is_plain(value: Tensor) -> bool:
    """Return whether a tensor is one of numbers in the processor's memory, and nothing is attached to it."""
    if type(value) not in (Tensor, nn.Parameter) or vars(value) or value.layout != torch.strided:
        return False
    hooks = (value._backward_hooks, value._post_accumulate_grad_hooks)
    used = value.grad_fn is not None or value.grad is not None or value.retains_grad or value.is_inference()
    return not any(hooks) and not used and value.device.type == "cpu"


def _copied_module(value: nn.Module, made: dict[int, Any]) -> nn.Module:
    """Copy a module by its attributes, unless its class has a way of its own."""
    kind = type(value)
    if _has_own_way(kind):
        raise Uncopied(f"a {kind.__name__}, which is copied in a way of its own")
    copy = made[id(value)] = object.__new__(kind)
    attributes = vars(copy)
    for name, entry in vars(value).items():
        if name in _OF_EVERY_MODULE and type(entry) in _CONTAINERS and not entry:  # of hooks, mostly: a shorter way
            attributes[name] = type(entry)()
        else:
            attributes[name] = _copied(entry, made)
    return copy


@lru_cache(maxsize=256)
def _has_own_way(kind: type[nn.Module]) -> bool:
    """Return whether a class of modules has more than attributes, or its own functions for copies.

    Those of torch's own modules only read files of older versions.
    """
    for base in kind.__mro__[:-1]:
        theirs = _WAYS & vars(base).keys() if not base.__module__.startswith("torch.nn.modules.") else ()
        if theirs or vars(base).get("__slots__"):
            return True
    return False


def _is_named(value: Any) -> bool:
    """Return whether a value is a function of a module, which is the same one for every model."""
    if not isinstance(value, FunctionType | BuiltinFunctionType):
        return False
    return getattr(sys.modules.get(value.__module__ or ""), value.__name__, None) is value


_FIRST = ModelCopies()


@dataclass(frozen=True)
class ClientContext(PlanContext):
    """Data and settings that one client needs for one message.

    Attributes:
        plan: what each client of the run does.
        task: the data and the network.
        partition: number of the client.
        round: number of the round.
        defence: the client's defence; None: the client uses none.
        store: store of the private tensors; None for methods without private tensors.
        probe: numbers that identify a probe of the round, so that each probe has its own noise; empty in training.
        run: id of the run, whose clients' first models are copies of one; empty: each model is built.
    """

    task: Task
    partition: int
    round: int
    defence: Defence | None
    store: ClientStore | None
    probe: tuple[int, ...] = ()
    run: str = ""

    def fresh_model(self) -> nn.Module:
        """Build the method's model at its start: every shared tensor is the same for all clients."""
        model = self._common()
        if not self.method.common_start(self.settings):
            state, downloads = model.state_dict(), self.method.shared(model, self.settings).downloads
            for name, value in self._drawn(self.partition).state_dict().items():
                if not matches(name, downloads):
                    state[name].copy_(value)
        return model

    def _common(self) -> nn.Module:
        """Build the model that all clients begin with, or copy the one that was built for an earlier message."""
        dataset = self.task.dataset
        key = (self.run, self.plan, dataset.shape, dataset.classes)
        return _FIRST.model(key, self._drawn) if self.run and _is_hashable(self.settings) else self._drawn()

    def _drawn(self, *numbers: int) -> nn.Module:
        with initialising(self.plan.seed, "model", *numbers):
            return self.method.build_model(self.task.build_net(), self.settings)


def _is_hashable(settings: Any) -> bool:
    try:
        hash(settings)
    except TypeError:  # of a plug-in that holds a list, which may change
        return False
    return True
