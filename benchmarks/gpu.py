"""Gains of a GPU: ``python -m benchmarks.gpu [--json] [--quick] [--only NAME] [--out FILE] [--device cpu]``.

- ``agreement``: the gradient of a client, the objective of a search and its slope on the processor and on the device,
  in float32 and float64, and the update of a client's epoch. Differences beyond `benchmarks.gpu_parts.CLOSE` are named,
  and this exits with 1.
- ``memory``: peak memory of a search's step, beside what the search foresees.
- ``steps``: P8, milliseconds of a client's local step: batches of 10, CNN 1.
- ``attack_1``, ``attack_8``: image-iterations a second of one victim with a batch of 1 or 8 images, ResNet-18, ours and
  breaching's on the device, in turns; nothing is timed unless both compute the same. ``attack_8_compiled``: with ours
  compiled.
- ``cohort``: clients a second in whole rounds, one by one and together.
- ``cell``, ``cell_hyperfl``: two cells of HyperFL's table 1 at full scale, clients together, beside the record of the
  processor. After ``--minutes`` one is interrupted, and goes on at the next call.

Each finished part is written to FILE at once, with the machine, the versions and the date. The next call skips it,
unless ``--again`` is given; a part that something was missing for is measured again. A file of another machine, or of
``--quick``, is refused. TensorFloat-32 is off on both sides. The processor computes in ``--threads``. The last line of
the output is one JSON object.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_parts, output
from benchmarks.gpu_parts import Amount
from benchmarks.turns import rounded
from flfw.storage.provenance import code_hash, hardware
from flfw.storage.sealed import write_whole

PARTS = {
    "agreement": output.BenchmarkPart("the device beside the processor, the same numbers", 60, 6),
    "memory": output.BenchmarkPart("peak memory of a search's step", 60, 4),
    "steps": output.BenchmarkPart("a client's local step on processor and device", 90, 8),
    "attack_1": output.BenchmarkPart("a search for one image, ours over theirs", 180, 4),
    "attack_8": output.BenchmarkPart("a search for a batch of 8, ours over theirs", 240, 4),
    "attack_8_compiled": output.BenchmarkPart("the same, ours compiled", 360, 0),
    "cohort": output.BenchmarkPart("clients together, in whole rounds", 180, 8),
    "cell": output.BenchmarkPart("a published cell at full scale, FedAvg", 300, 15),
    "cell_hyperfl": output.BenchmarkPart("a published cell at full scale, HyperFL", 900, 0),
}
_MEASURES: Mapping[str, Callable[[Amount], dict[str, Any]]] = {
    "agreement": gpu_parts.agreement,
    "memory": gpu_parts.memory,
    "steps": gpu_parts.steps,
    "attack_1": partial(gpu_parts.attack, 1, False),
    "attack_8": partial(gpu_parts.attack, 8, False),
    "attack_8_compiled": partial(gpu_parts.attack, 8, True),
    "cohort": gpu_parts.cohort,
    "cell": partial(gpu_parts.cell, "hyperfl.1/FedAvg/Fashion-MNIST/20/accuracy"),
    "cell_hyperfl": partial(gpu_parts.cell, "hyperfl.1/HyperFL/Fashion-MNIST/20/accuracy"),
}


def circumstances(device: torch.device, threads: int, quick: bool) -> dict[str, Any]:
    """Return the machine, the versions and the date of a measurement."""
    packages = {"flwr": version("flwr"), "torch": torch.__version__, "numpy": version("numpy")}
    on_gpu = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "driver": driver()}
    return {
        "device": device.type,
        "quick": quick,
        "hardware": hardware(),
        "threads": threads,
        "python": platform.python_version(),
        **packages,
        **(on_gpu if device.type == "cuda" else {}),
        "code": code_hash(),
        "date": datetime.now(UTC).date().isoformat(),
        "load": round(os.getloadavg()[0], 1),
    }


def driver() -> str:
    """Return the version of the GPU's driver; empty if no command tells it."""
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True).stdout.partition("\n")[0].strip()


def kept(file: Path, here: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that a file has, by name; refuse one of another machine or amount of work."""
    if not file.exists():
        return {}
    try:
        parts: dict[str, Any] = json.loads(file.read_text())["parts"]
        measured = {name: part["measured"] for name, part in parts.items()}
    except (ValueError, KeyError, TypeError):
        output.refuse(f"Expected parts of an earlier call in {file}, got something else; choose another --out.")
    for name, at in measured.items():
        for key in ("device", "hardware", "quick"):
            if at.get(key) != here[key]:
                was = f"{key}={at.get(key)} in {name}"
                output.refuse(f"Expected parts with {key}={here[key]} in {file}, got {was}; choose another --out.")
    return parts


def needed(parts: Mapping[str, Any], names: list[str], again: bool) -> list[str]:
    """Return the names of the parts to measure: those not kept, and those that something was missing for."""
    return [name for name in names if again or name not in parts or "missing" in parts[name]["figures"]]


def lines(parts: Mapping[str, Any]) -> list[str]:
    """Return a line for each part."""
    return [f"{name}: {json.dumps(part['figures'])}" for name, part in parts.items()]


def main() -> None:
    """Measure the parts that are not in the file yet, and print all of them."""
    flags = output.parser(__doc__)
    flags.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: does it work? (cuda)")
    flags.add_argument("--out", type=Path, default=Path("runs/gpu.json"), help="file of the parts (runs/gpu.json)")
    flags.add_argument("--again", action="store_true", help="measure parts anew that the file has")
    flags.add_argument("--minutes", type=output.whole(), default=20, help="most of a cell (20)")
    flags.add_argument("--turns", type=output.whole(), default=5, help="of each side of a ratio (5)")
    flags.add_argument("--threads", type=output.whole(), default=1, help="of the processor (1)")
    run = output.start(flags, PARTS)
    asked = run.asked
    if asked.device == "cuda" and not torch.cuda.is_available():
        output.refuse("Expected a CUDA device, found none; `--device cpu --quick` tries the command without one.")
    if asked.device == "cuda":
        run.machine = "one GPU, by guess"
    torch.set_num_threads(asked.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    device, file = torch.device(asked.device), asked.out.absolute()
    here = circumstances(device, asked.threads, asked.quick)
    parts = kept(file, here)
    chosen, run.names = run.names, needed(parts, run.names, asked.again)
    turns, runs = 1 if asked.quick else asked.turns, file.with_suffix(".runs")
    amount = Amount(device, asked.quick, asked.minutes, runs, asked.threads, turns)
    for name in run.parts():
        measured = circumstances(device, asked.threads, asked.quick)
        parts[name] = {"figures": rounded(_MEASURES[name](amount)), "measured": measured}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (json.dumps({"parts": parts}, indent=1) + "\n").encode())
    run.names = chosen
    run.report({"parts": parts}, lines(parts))
    if far := [one for part in parts.values() for one in part["figures"].get("too_far", ())]:
        sys.exit(f"Expected the processor's numbers within {dict(gpu_parts.CLOSE)}, got others: {', '.join(far)}.")


if __name__ == "__main__":
    main()
