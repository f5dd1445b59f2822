"""Randomness: every generator is derived from the seed and a purpose; this is the only file that seeds anything."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_WORDS = 624  # of 32 bits, in the state of torch's generator on the CPU


def _sequence(seed: int, purpose: str, numbers: tuple[int, ...]) -> np.random.SeedSequence:
    # crc32, unlike hash(), is the same in every process.
    # Their count is there because a SeedSequence takes (1,) and (1, 0) for the same.
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *numbers, len(numbers)])


def numpy_generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A NumPy generator for one purpose, e.g. ``numpy_generator(seed, "cohort", round)``.

    >>> int(numpy_generator(0, "cohort", 1).integers(100)) == int(numpy_generator(0, "cohort", 1).integers(100))
    True
    """
    return np.random.default_rng(_sequence(seed, purpose, numbers))


def torch_generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """A CPU torch generator for one purpose, e.g. ``torch_generator(seed, "batches", round, partition)``."""
    state = int(_sequence(seed, purpose, numbers).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(state >> 1)


@contextmanager
def initialising(seed: int, purpose: str, *numbers: int) -> Iterator[None]:
    """Make torch's own layer initialisers, which know only the global generator, repeatable; then put it back."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(_sequence(seed, purpose, numbers).generate_state(1, np.uint64)[0]) >> 1)
        yield


def secret_generator() -> torch.Generator:
    """A CPU torch generator that nobody can repeat, not even whoever knows the run's seed.

    Torch's generator takes only the lower 32 bits of a seed, which can be tried one after the other; so all 624 words
    of its state come from the operating system.
    """
    generator = torch.Generator()
    state = generator.get_state()  # as int64: the seed, a counter, the place, 624 words of 32 bits, and what is unused
    words = np.frombuffer(secrets.token_bytes(4 * _WORDS), dtype=np.uint32).astype(np.int64)
    state.view(torch.int64)[3 : 3 + _WORDS] = torch.from_numpy(words)
    generator.set_state(state)
    return generator


def draw_anew() -> None:
    """Put the libraries' global generators where nobody has been: in a fork they stand where the parent's do.

    This project draws from none of them, but an app may, and would repeat its noise in every fork. Python sees to its
    own.
    """
    np.random.seed()  # noqa: NPY002
    torch.default_generator.set_state(secret_generator().get_state())
