"""Limits of a search: memory, compilation, precision, and the few steps of it that an estimate of its time takes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

from flfw.bounds import BoundedSettings, PositiveFloat
from flfw.errors import require
from flfw.inversion.client_models.victim import VictimModel
from flfw.nets.training.devices import products

Precision: TypeAlias = Literal["float32", "tf32", "bf16"]


@dataclass(frozen=True)
class ComputeLimits(BoundedSettings):
    """Limits of a search.

    Attributes:
        memory_gb: memory for one step of all searches that run at once, in GB (1e9 bytes), > 0; a search that takes
            more runs alone. 4: beside clients on a small machine, and more at once are hardly faster.
        compiled: let a C++ compiler fuse a step's operations: seconds to a minute at the start, then faster steps.
        precision: of the network's computation in a search; the others are faster for large networks, and their results
            are less close. With tf32 a GPU rounds the factors of products, with bf16 every result is rounded.
    """

    memory_gb: PositiveFloat = 4.0
    compiled: bool = False
    precision: Precision = "float32"

    @contextmanager
    def reduced(self, victim: VictimModel) -> Iterator[VictimModel]:
        """Yield a victim as a search computes with it; its numbers have the precision within the block.

        Raises:
            InputError: this kind of victim has no form in bf16, or there is no GPU for tf32.
        """
        rounds, on_gpu = self.precision == "tf32", victim.inputs.mean.device.type == "cuda"
        expected = "--expert attack_precision=float32 or bf16 where no GPU searches"
        require(on_gpu or not rounds, expected, attack_precision=self.precision)
        with products(tf32=rounds):
            yield victim.reduced(torch.bfloat16) if self.precision == "bf16" else victim


def machine_gb() -> float:
    """Return the memory that a search may take at all, in GB: three quarters of a GPU's or, where none is at work, of
    this machine's."""
    if torch.cuda.is_initialized():
        return 0.75e-9 * torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return 0.75e-9 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def compiler() -> str | None:
    """Return the C++ compiler that PyTorch would use; None: this machine has none.

    The order is PyTorch's: ``$CXX`` first, then g++ and clang++.
    """
    named = os.environ.get("CXX")
    return next((path for name in ([named] if named else ["g++", "clang++"]) if (path := shutil.which(name))), None)


# --- samples of steps ---------------------------------------------------------------------------------------------

_FEWEST = 3  # steps of a loop, of which the first, which builds graphs and takes memory, says nothing about the others
_SHARE = 3  # of the time that is left for steps, one loop takes a third
_TO_ITS_END_S = 4.0  # for the first of the loops that may end early: how many steps they take is known from it


@final
class StepSample:
    """Sample of the steps of an attack's loops, and the time that all of them would take.

        with StepSample(1.5) as sample:
            attack.run(observations, knowledge, rngs)
        sample.seconds

    Within it every loop over `steps` ends after a few. The others are taken to last as long as the later ones of these.
    A loop inside a step of another counts with all of its own steps. Of loops that may end early the first goes on for
    some seconds; if it ends, the others of its length are taken to have as many steps. Once the time is used up, a loop
    as long as an earlier one takes one step, and its others count as that one's. What the attack returns is of little
    use.

    Args:
        enough_s: seconds for the steps of all loops; each first loop of a length takes two steps at least.
        copies: how often a search takes each of its victims, which stand for the others of a run.

    Attributes:
        skipped: seconds of the steps that were not taken, without those of the other copies.
    """

    def __init__(self, enough_s: float, copies: int = 1) -> None:
        self.skipped, self.copies = 0.0, copies
        self._left = enough_s
        self._ended_at, self._means = dict[int, int](), dict[int, float]()
        self._token: Token[StepSample | _Watch | None] | None = None
        self._began = self._ended = (0.0, 0.0)

    @property
    def seconds(self) -> float:
        """Seconds of all steps and of the work around them: of a clock, or fewer if other programs use the cores."""
        return _between(self._began, self._ended) + self.skipped

    def __enter__(self) -> StepSample:
        """Begin."""
        self._token, self._began = _LOOPS.set(self), _now()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._ended = _now()
        assert self._token is not None, "begun before"
        _LOOPS.reset(self._token)

    def steps(self, count: int, full: bool = False, early: bool = False) -> Iterator[int]:
        """Yield the numbers of the first steps of a loop of ``count``."""
        first = early and count not in self._ended_at
        enough, minimum = (_TO_ITS_END_S, _TO_ITS_END_S) if first else (self._left / _SHARE, self._left)
        times, spent = list[float](), 0.0
        if first:
            self._ended_at[count] = count
        for step in range(count):
            before, skipped_before = _now(), self.skipped
            try:
                yield step
            except GeneratorExit:  # the loop ends early
                self._ended_at[count] = step + 1
                raise
            took = _between(before, _now())
            times.append(took + self.skipped - skipped_before)
            spent += took if step else 0.0
            known = self._left <= 0 and count in self._means and not early
            if not full and (known or (step and spent >= (enough if len(times) >= _FEWEST else minimum))):
                break
        self._left = max(0.0, self._left - (0.0 if full or first else spent))
        expected = self._ended_at[count] if early else count
        if later := times[max(1, len(times) // 2) :]:
            self._means[count] = fmean(later)
        if len(times) < expected:
            self.skipped += (expected - len(times)) * self._means[count]


@final
class _Watch:
    """Reports the share of the steps that are done, once a second.

    Args:
        report: is given the share.
    """

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report, self._reported, self.expected, self.done = report, time.monotonic(), 0, 0

    def steps(self, count: int, *_: bool) -> Iterator[int]:
        """Yield the numbers of a loop's steps."""
        for step in range(count):
            yield step
            self.done += 1
            if time.monotonic() > self._reported + 1:
                self._reported = time.monotonic()
                self._report(self.done / max(self.expected, self.done + count - step - 1))


_LOOPS: ContextVar[StepSample | _Watch | None] = ContextVar("loops", default=None)
"""What takes or follows the steps of loops; of several the innermost."""


@contextmanager
def watched(report: Callable[[float], None]) -> Iterator[None]:
    """Report the share of the steps of loops that are done, at most once a second."""
    token = _LOOPS.set(_Watch(report))
    try:
        yield
    finally:
        _LOOPS.reset(token)


def expect(count: int) -> None:
    """Note how many steps begin; where there are more, their share falls with each further loop."""
    if isinstance(watch := _LOOPS.get(), _Watch):
        watch.expected, watch.done = count, 0


def steps(count: int, full: bool = False, early: bool = False) -> Iterator[int]:
    """Yield 0 to ``count - 1``, for the loops that take most of an attack's time; see `StepSample`.

    Args:
        count: number of steps, >= 0.
        full: whether a sample takes all steps, since what follows needs their results; loops inside them are cut.
        early: whether the loop may be left before all steps.

    >>> list(steps(3))
    [0, 1, 2]
    """
    loops = _LOOPS.get()
    return iter(range(count)) if loops is None else loops.steps(count, full, early)


def mini_batches(examples: int, size: int, epochs: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield the places of mini-batches, each example once in an epoch; see `steps`."""
    for _ in steps(epochs):
        yield from torch.randperm(examples, generator=rng).split(size)


@contextmanager
def search_copies() -> Iterator[int]:
    """Yield how often a search takes each of its victims: once, but in the sample of a run that searches for more."""
    if not isinstance(sample := _LOOPS.get(), StepSample):
        yield 1
        return
    began, skipped = _now(), sample.skipped
    yield sample.copies
    took = _between(began, _now()) + sample.skipped - skipped
    sample.skipped -= took * (1 - 1 / sample.copies)  # the part of one copy counts


def _now() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def _between(begin: tuple[float, float], end: tuple[float, float]) -> float:
    return min(after - before for before, after in zip(begin, end, strict=True))
