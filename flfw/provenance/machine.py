"""Machine of a run in full: processor, memory, GPUs, threads, and the builds of the numerical libraries."""

from __future__ import annotations

import os
import platform
from typing import Any

from flfw.storage.provenance import hardware


def machine() -> dict[str, Any]:
    """Describe this process's machine as far as numbers and their time may depend on it.

    ``hardware`` is the short description that result.json has under ``environment``, too. ``blas`` lists the
    libraries of linear algebra and of threads that this process has loaded; torch's own is linked into it, and stands
    in ``torch``.
    """
    import torch
    from threadpoolctl import threadpool_info

    pools = [
        {key: pool.get(key) for key in ("internal_api", "version", "architecture", "num_threads")}
        for pool in threadpool_info()
    ]
    return {
        "hardware": hardware(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "cores_of_machine": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [_gpu(number) for number in range(torch.cuda.device_count())],
        "blas": sorted(pools, key=str),
        "threads": {"torch": torch.get_num_threads(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")},
        "torch": {
            "version": str(torch.__version__),
            "git": torch.version.git_version,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "libraries": _libraries(torch.__config__.show()),
        },
    }


def _gpu(number: int) -> dict[str, Any]:
    import torch

    card = torch.cuda.get_device_properties(number)
    return {"name": card.name, "memory_bytes": card.total_memory, "capability": f"{card.major}.{card.minor}"}


def _libraries(shown: str) -> list[str]:
    """List the compiler and the numerical libraries that torch names of its build."""
    lines = [line.strip(" -") for line in shown.splitlines()]
    return [line for line in lines if line.startswith(("GCC", "Intel", "OpenMP", "CUDA Runtime", "CuDNN", "Magma"))]
