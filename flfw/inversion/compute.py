"""Limits of a search: memory, compilation and precision."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Literal, TypeAlias

from flfw.errors import require

Precision: TypeAlias = Literal["float32", "bf16"]


@dataclass(frozen=True)
class Compute:
    """Limits of a search.

    Attributes:
        memory_gb: memory for one step of all searches that run at once, in GB (1e9 bytes), > 0.
        compiled: let a C++ compiler fuse a step's operations: seconds to a minute at the start, then faster steps.
        precision: of the network's computation in a search; bf16 is faster, and its results are less close.
    """

    memory_gb: float = 4.0
    compiled: bool = False
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        require(self.memory_gb > 0, "memory_gb > 0", memory_gb=self.memory_gb)


def compiler() -> str | None:
    """Return the C++ compiler that PyTorch would use; None: this machine has none.

    The order is PyTorch's: ``$CXX`` first, then g++ and clang++.
    """
    named = os.environ.get("CXX")
    return next((path for name in ([named] if named else ["g++", "clang++"]) if (path := shutil.which(name))), None)
