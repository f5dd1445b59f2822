"""Device of a computation, the precision of float32 products on a GPU, and the number of threads.

PyTorch has convolutions on a GPU round their factors to TensorFloat-32, of 10 bits, unless told otherwise. Here float32
means float32 on every device, and a search has TensorFloat-32 where it is asked for. The number of threads changes the
last bits of sums.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def device_of(gpu: bool) -> torch.device:
    """Return the GPU, from now on without TensorFloat-32 in this process, or else the processor."""
    if not gpu:
        return torch.device("cpu")
    _allow_tf32(False)
    return torch.device("cuda")


@contextmanager
def products(*, tf32: bool) -> Iterator[None]:
    """Have a GPU's products and convolutions of float32 use TensorFloat-32, or float32 alone, within a block."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    _allow_tf32(tf32)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


@contextmanager
def one_thread() -> Iterator[None]:
    """Pin torch to one thread, so that sums are in the same order on every engine and in every process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
