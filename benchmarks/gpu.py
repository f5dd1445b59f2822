"""Gains of a GPU: ``python -m benchmarks.gpu [--json] [--quick] [--only NAME] [--budget MINUTES] [--out FILE]``.

The parts, in order of worth:

- ``agreement``: the gradient of a client, the objective of a search and its slope on the processor and on the device,
  in float32 and float64, and the update of a client's epoch. Differences beyond `benchmarks.gpu_parts.CLOSE` are named,
  and this exits with 1.
- ``client_rounds``: P8, client-rounds a second with 50 examples a client, batches of 10, CNN 1. Ours, all clients
  together, over Flower on its simulation engine, and over the plain loop of its quickstart.
- ``inversion``: image-iterations a second of one victim with a batch of 8 images, ResNet-18, ours and breaching's on
  the device, in turns; nothing is timed unless both compute the same.
- ``batched``: client-rounds a second, one by one and together.
- ``cell``: FedAvg on Fashion-MNIST of HyperFL's table 1 at full scale, clients together, beside the record of the
  processor.
- ``memory``: peak memory of a search's step, beside what the search foresees.

PyTorch and NumPy suffice. What a machine lacks for a part, or for a ratio of it, is said in one line. With ``--budget``
parts begin as long as there is time for them, and all ends after so many minutes; the cell leaves the parts behind it
their time, and goes on at the next call. ``--pack FOLDER`` writes a folder with all that another machine needs.

Each finished part is written to FILE at once, with the machine, the versions and the date. The next call skips it,
unless ``--again`` is given; an unfinished part is measured again. A file of another machine, or of ``--quick``, is
refused. TensorFloat-32 is off on both sides. The processor computes in ``--threads``. The last line of the output is
one JSON object.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from benchmarks import STARTED, absent, gpu_pack, output
from benchmarks.turns import rounded
from flfw.errors import InputError
from flfw.files.provenance import code_hash, hardware, installed
from flfw.files.sealed import write_atomic

PARTS = {
    "agreement": output.BenchmarkPart("the device beside the processor, the same numbers", 60, 6),
    "client_rounds": output.BenchmarkPart("clients of 50 examples, ours over Flower's", 60, 6),
    "inversion": output.BenchmarkPart("a search for a batch of 8, ours over theirs", 120, 4),
    "batched": output.BenchmarkPart("clients together, in whole rounds", 60, 4),
    "cell": output.BenchmarkPart("a published cell at full scale", 300, 15),
    "memory": output.BenchmarkPart("peak memory of a search's step", 30, 4),
}
GOES_ON = "cell"
"""Part that is begun even if its time is short, as it goes on at the next call."""
_LEAST_S = 30


def share(name: str, names: Sequence[str], left: float, quick: bool) -> float:
    """Return the seconds that a part gets; 0: it is not begun.

    Args:
        name: of the part.
        names: the parts to measure, in order.
        left: seconds that are left to all.
        quick: whether the parts are the quick ones.

    >>> share("memory", ["cell", "memory"], 40, False), share("memory", ["cell", "memory"], 20, False)
    (40, 0)
    >>> share("cell", ["cell", "memory"], 70, False), share("cell", ["cell", "memory"], 50, False)
    (40, 0)
    """
    seconds = {one: part.quick if quick else part.seconds for one, part in PARTS.items()}
    if name != GOES_ON:
        return left if seconds[name] <= left else 0
    unreserved = left - sum(seconds[later] for later in names[names.index(name) + 1 :])
    return unreserved if unreserved >= min(_LEAST_S, seconds[name]) else 0


class TimeIsUp(BaseException):
    """Raised in a part at the end of its time; no part may take it for a failure of its own."""


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise `TimeIsUp` in the block after so many seconds; infinite: never."""

    def end(*_: object) -> NoReturn:
        raise TimeIsUp

    if seconds == inf:
        yield
        return
    before, timer = signal.signal(signal.SIGALRM, end), signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def measured(work: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return the figures of a part; without them the reason, under ``missing``, or ``failed`` if it is a fault."""
    try:
        with ended_after(seconds):
            return rounded(work())
    except TimeIsUp:
        return {"missing": f"not finished after {seconds:.0f} s"}
    except ModuleNotFoundError as error:
        return {"missing": f"the package {error.name} is not installed"}
    except InputError as error:  # such as data that are not here
        return {"missing": str(error)}
    except Exception as error:  # of this part alone: a lent device is not given back for it
        return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def circumstances(device: torch.device, threads: int, quick: bool) -> dict[str, Any]:
    """Return the machine, the versions and the date of a measurement."""
    packages = {"flwr": installed("flwr"), "torch": torch.__version__, "numpy": np.__version__}
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
    """Return the names of the parts to measure: those not kept, and those that were not finished."""
    return [name for name in names if again or name not in parts or parts[name]["figures"].keys() & _WITHOUT]


_WITHOUT = {"missing", "failed"}


def lines(parts: Mapping[str, Any]) -> list[str]:
    """Return a line for each part."""
    return [f"{name}: {json.dumps(part['figures'])}" for name, part in parts.items()]


def main() -> None:
    """Measure the parts that are not in the file yet, and print all of them."""
    flags = output.parser(__doc__)
    flags.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: does it work? (cuda)")
    flags.add_argument("--out", type=Path, default=Path("runs/gpu.json"), help="file of the parts (runs/gpu.json)")
    flags.add_argument("--again", action="store_true", help="measure parts anew that the file has")
    flags.add_argument("--budget", type=output.whole(), help="minutes of this call (no limit)")
    flags.add_argument("--pack", type=Path, metavar="FOLDER", help="write a folder for a bare machine, and end")
    flags.add_argument("--turns", type=output.whole(), default=5, help="of each side of a ratio (5)")
    flags.add_argument("--threads", type=output.whole(), default=1, help="of the processor (1)")
    run = output.start(flags, PARTS)
    if run.asked.pack:
        _pack(run.asked.pack)
        return
    if run.asked.device == "cuda" and not torch.cuda.is_available():
        output.refuse("Expected a CUDA device, found none; `--device cpu --quick` tries the command without one.")
    if run.asked.device == "cuda":
        run.machine = "one GPU, by guess"
    absent.stand_in()
    gpu_pack.unpack()
    torch.set_num_threads(run.asked.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    parts = measure(run)
    run.report({"parts": parts}, lines(parts))
    figures = [part["figures"] for part in parts.values()]
    if far := [one for part in figures for one in part.get("too_far", ())]:
        sys.exit(f"Expected the processor's numbers but for rounding, got others: {', '.join(far)}.")
    if failed := [name for name, part in parts.items() if "failed" in part["figures"]]:
        sys.exit(f"Expected figures of all parts, got a failure of {', '.join(failed)}.")


def _pack(folder: Path) -> None:
    size = output.or_refused(lambda: gpu_pack.pack(folder))
    print(f"{folder}: {size / 1e6:.1f} MB. On the machine with the GPU, which needs Python, PyTorch and NumPy:")
    print(f"cd {folder} && python3 -m benchmarks.gpu --budget 9 --out gpu.json")


def measure(run: output.BenchmarkRun, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """Measure the chosen parts that are needed, write each to the file as it ends, and return all of the file."""
    from benchmarks import gpu_parts  # after the stand-ins

    requested, file = run.asked, run.asked.out.absolute()
    device, ends = torch.device(requested.device), STARTED + 60 * requested.budget if requested.budget else inf
    parts = kept(file, circumstances(device, requested.threads, requested.quick))
    chosen, run.names = run.names, needed(parts, run.names, requested.again)
    for name in run.names:
        left = ends - clock()
        seconds = share(name, run.names, left, requested.quick)
        if not seconds:
            run.begin(f"{name}: not begun, {max(0, left):.0f} s are left")
            continue
        run.begin(f"{name}: {PARTS[name].description}")
        amount = gpu_parts.Amount(
            device,
            requested.quick,
            file.with_suffix(".cell.npz"),
            requested.threads,
            1 if requested.quick else requested.turns,
            clock() + seconds,
        )
        figures = measured(lambda name=name, amount=amount: gpu_parts.MEASURES[name](amount), left)
        for why in figures.keys() & {"missing", "failed", "without"}:
            run.begin(f"{name}: {figures[why]}")
        parts[name] = {"figures": figures, "measured": circumstances(device, requested.threads, requested.quick)}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, (json.dumps({"parts": parts}, indent=1) + "\n").encode())
    run.names = chosen
    return parts


if __name__ == "__main__":
    main()
