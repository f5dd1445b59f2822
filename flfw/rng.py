"""Randomness: every generator is derived from the seed and a purpose, or is secret; the only file that seeds anything.

Torch's generator is a Mersenne Twister: all later numbers follow from 624 of its words. A tensor whose true value a
server knows, such as the weights behind an input that is always 0, shows it the numbers that were added there. So a
state from the operating system is not enough where many numbers are drawn: for a secret generator `uniform` and
`normal` take theirs from a cipher.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import log2, pi, prod
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

if TYPE_CHECKING:  # its import takes a second, and names of data sets are asked for before anything is computed
    import torch

_WORDS = 624  # of 32 bits, in the state of torch's generator on the CPU
_DIGITS = 53  # of a uniform number behind a normal one
_SECRET: WeakSet[torch.Generator] = WeakSet()


def _sequence(seed: int, purpose: str, numbers: tuple[int, ...]) -> np.random.SeedSequence:
    # crc32, unlike hash(), is the same in every process.
    # Their count is added because a SeedSequence treats (1,) and (1, 0) as equal.
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *numbers, len(numbers)])


def older_numpy_generator(seed: int) -> np.random.RandomState:
    """Return a generator of NumPy's older kind, for code that has to draw as other code with such a generator does."""
    return np.random.RandomState(seed)


def numpy_generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return a NumPy generator for one purpose, e.g. ``numpy_generator(seed, "cohort", round)``.

    >>> int(numpy_generator(0, "cohort", 1).integers(100)) == int(numpy_generator(0, "cohort", 1).integers(100))
    True
    """
    return np.random.default_rng(_sequence(seed, purpose, numbers))


def torch_generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """Return a CPU torch generator for one purpose, e.g. ``torch_generator(seed, "batches", round, partition)``."""
    import torch

    state = int(_sequence(seed, purpose, numbers).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(state >> 1)


@contextmanager
def initialising(seed: int, purpose: str, *numbers: int) -> Iterator[None]:
    """Seed torch's global generator, the only one that its layer initialisers use; then restore it."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(_sequence(seed, purpose, numbers).generate_state(1, np.uint64)[0]) >> 1)
        yield


def secret_generator() -> torch.Generator:
    """Return a CPU torch generator that nobody can repeat, even with the run's seed.

    Torch's generator takes only the lower 32 bits of a seed, which can all be tried; so all 624 words of its
    state come from the operating system. Where torch itself draws from it, the numbers after these words follow from
    them; `uniform` and `normal` take nothing from its state.
    """
    import torch

    generator = torch.Generator()
    state = generator.get_state()  # as int64: the seed, a counter, the place, 624 words of 32 bits, and unused bytes
    words = np.frombuffer(secrets.token_bytes(4 * _WORDS), dtype=np.uint32).astype(np.int64)
    state.view(torch.int64)[3 : 3 + _WORDS] = torch.from_numpy(words)
    generator.set_state(state)
    _SECRET.add(generator)
    return generator


def is_secret(rng: torch.Generator) -> bool:
    """Return whether a generator is one of `secret_generator`."""
    return rng in _SECRET


def uniform(shape: tuple[int, ...], rng: torch.Generator, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Draw numbers in [0, 1) on the CPU: as torch does, or from a cipher for a secret generator, which stays as it is.

    Args:
        shape: of the result.
        rng: generator of the CPU.
        dtype: floating; None: float32.
    """
    import torch

    dtype = dtype or torch.float32
    if not is_secret(rng):
        return torch.rand(shape, generator=rng, dtype=dtype)
    digits = round(1 - log2(torch.finfo(dtype).eps))  # so that none is rounded up to 1
    return torch.from_numpy(_secret_uniform(prod(shape), digits)).to(dtype).view(shape)


def normal(shape: tuple[int, ...], rng: torch.Generator, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Draw standard normal numbers on the CPU: as torch does, or from a cipher for a secret generator.

    Args:
        shape: of the result.
        rng: generator of the CPU; a secret one stays as it is.
        dtype: floating; None: float32.
    """
    import torch

    dtype = dtype or torch.float32
    if not is_secret(rng):
        return torch.randn(shape, generator=rng, dtype=dtype)
    count = prod(shape)
    radial, angle = _secret_uniform(count + count % 2, _DIGITS).reshape(2, -1)
    radius = np.sqrt(-2 * np.log(1 - radial))  # of a number in (0, 1]
    drawn = np.concatenate([radius * np.cos(2 * pi * angle), radius * np.sin(2 * pi * angle)])[:count]
    return torch.from_numpy(drawn).to(dtype).view(shape)


def _secret_uniform(count: int, digits: int) -> np.ndarray:
    """Draw whole multiples (count,) of 2^-digits in [0, 1) that nobody can repeat, in float64."""
    return (np.frombuffer(secret_bytes(8 * count), np.uint64) >> np.uint64(64 - digits)) * 2.0**-digits


def secret_bytes(count: int) -> memoryview:
    """Return random bytes that nobody can repeat: AES-256 in counter mode, under a key of the operating system.

    Each call has a key of its own, so a fork does not repeat its parent's bytes. For many bytes it is ten times as fast
    as the operating system's generator, which expands a key in the same way. The mode is GCM's, of zeros and without
    its tag: its object is made three times as fast as one of plain counter mode.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return memoryview(AESGCM(secrets.token_bytes(32)).encrypt(bytes(12), bytes(count), None))[:count]


def secret_coins(count: int, probability: float) -> np.ndarray:
    """Draw coins (count,) that nobody can repeat; True with this probability, rounded down to 63 digits.

    >>> secret_coins(3, 1.0).tolist(), secret_coins(2, 0.0).tolist()
    ([True, True, True], [False, False])
    """
    words = np.frombuffer(secret_bytes(8 * count), np.uint64) >> np.uint64(1)
    return words < np.uint64(int(probability * 2**63))


def secret_choices(count: int, options: int) -> np.ndarray:
    """Draw numbers (count,) from 0 to ``options`` - 1 that nobody can repeat, each as likely as the others to 2^-40.

    >>> secret_choices(3, 1).tolist()
    [0, 0, 0]
    """
    return (np.frombuffer(secret_bytes(8 * count), np.uint64) % np.uint64(options)).astype(np.int64)


@contextmanager
def drawing_in_secret(device: torch.device) -> Iterator[None]:
    """Give torch's global generators, from which dropout draws, a state that nobody can repeat; then restore them.

    Args:
        device: on which is drawn.
    """
    import torch

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.set_state(secret_generator().get_state())
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(secrets.randbits(63))
        yield


def draw_anew() -> None:
    """Give the libraries' global generators a secret state; a fork inherits the state of its parent.

    This project does not draw from them, but an app may, and would repeat its noise in every fork. Python reseeds its
    own generator.
    """
    import torch

    np.random.seed()  # noqa: NPY002
    torch.default_generator.set_state(secret_generator().get_state())
