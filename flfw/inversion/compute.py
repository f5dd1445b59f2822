"""How much of the machine a search may use."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from flfw.errors import require


@dataclass(frozen=True)
class Compute:
    """What a search may use.

    Attributes:
        memory_gb: that one step of as many searches as are done at once may take, in GB (1e9 bytes), > 0.
        compiled: have a C++ compiler fuse a step's operations: seconds to a minute at the start, then faster steps.
    """

    memory_gb: float = 4.0
    compiled: bool = False

    def __post_init__(self) -> None:
        require(self.memory_gb > 0, "memory_gb > 0", memory_gb=self.memory_gb)


def compiler() -> str | None:
    """The C++ compiler that PyTorch would use; None: there is none on this machine.

    ``$CXX`` is asked first, as PyTorch does, then g++ and clang++.
    """
    named = os.environ.get("CXX")
    return next((found for name in ([named] if named else ["g++", "clang++"]) if (found := shutil.which(name))), None)
