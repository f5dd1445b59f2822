"""Bit-equality of two checkouts.

``python -m tests.campaigns.same_results --against OTHER [--out DIR] [--json] [--quick]``.

Small runs, a method each, are made with this checkout and with another one, such as the one before a redesign: in
process and on Ray, resumed after a kill, audited. Compared are the numbers of result.json, the rows of the CSV files,
and every tensor in recordings, truth and checkpoints; not times, paths and the code's hash. A run that is complete in
``--out`` is not made again. Exit code 1 if anything differs. The last line of the output is one JSON object.
"""

import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors import safe_open

from benchmarks import output
from flfw.files.earlier_names import renames
from flfw.files.result_file import read_result, read_rows
from flfw.nets.net import Tensors
from flfw.recording.reader import Recordings

_ROOT = Path(__file__).parents[2]
_SMALL = "--clients 3 --rounds 2 --local-epochs 1 --images 2"
_LONGER = "--clients 3 --rounds 6 --local-epochs 3"
RUNS = {
    "hyperfl": f"{_SMALL} --engine inproc --set hyperfl.iterations=40 --set ig.iterations=40",
    "fedavg": f"{_SMALL} --engine ray --net lenet --defence prune --attack ig idlg --set ig.iterations=40 "
    "--set idlg.iterations=20",
    "fedper": f"{_LONGER} --engine ray --attack none",
    "fedprox": f"{_LONGER} --engine inproc --images 2 --attack ig --set ig.iterations=30",
    "fedcg": f"{_SMALL} --engine inproc --net lenet5 --set iterations=20 --set server_batch=16 --attack dlg_statistics "
    "--set dlg_statistics.adam_iterations=10 --set dlg_statistics.lbfgs_iterations=5",
    "fed_cdp": f"{_SMALL} --engine inproc --attack ig --set ig.iterations=30 --vantage server client_update "
    "client_example",
    "dp_fedavg": "--clients 4 --sample 2 --sampling poisson --rounds 3 --local-epochs 1 --engine ray --attack none",
    "fedgen": f"{_SMALL} --engine inproc --net lenet5 --set optimiser=adam --attack none",
    "centaur": f"{_SMALL} --engine ray --attack ig --set ig.iterations=30",
    "local_only": f"{_SMALL} --engine inproc --attack none",
    "dssgd": f"{_SMALL} --engine inproc --attack ig analytic --curve batch=1,2 --set ig.iterations=20",
    "fednova": f"{_SMALL} --engine inproc --net linear --attack membership",
    "scaffold": "--clients 3 --rounds 2 --local-epochs 1 --engine flwr --net linear --attack none",
}
RESUMED = ("fedper", "fedprox")
_QUICK = ("local_only", "dssgd")
PARTS = {
    name: output.BenchmarkPart(f"{name}{', killed and resumed' * (name in RESUMED)}", 60, 25 if name in _QUICK else 0)
    for name in RUNS
}
_OTHERS = {"seconds", "scoring_seconds", "code", "out", "reason", "assumptions"}
"""Keys that two equal runs need not share: times, places and sentences."""


def make(checkout: Path, method: str, folder: Path) -> None:
    """Make one run with the code of a checkout, unless it is complete.

    Raises:
        CalledProcessError: the run failed.
    """
    if (folder / "result.json").exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, str(checkout / "sim.py")]
    command = [*program, "--method", method, *shlex.split(RUNS[method]), "--out", str(folder)]
    with (folder.parent / f"{method}.log").open("w") as log:
        if method in RESUMED:
            with subprocess.Popen(
                command, cwd=checkout, env=variables, stdout=log, stderr=log, start_new_session=True
            ) as process:
                while process.poll() is None and not any((folder / "checkpoint").glob("round-*")):
                    time.sleep(0.02)
                if process.poll() is not None:
                    raise subprocess.CalledProcessError(process.returncode, command, "it ended before it was killed")
                os.killpg(process.pid, signal.SIGKILL)
            command = [*program, "--resume", str(folder)]
        subprocess.run(command, cwd=checkout, env=variables, stdout=log, stderr=log, check=True)


def numbers(folder: Path) -> dict[str, Any]:
    """Read everything of a run that its code decides, by file."""
    result = read_result(folder)  # under the names of today, if the other version has others
    kept = ("rounds", "final", "privacy", "audit", "config")
    files: dict[str, Any] = {"result.json": comparable({name: result[name] for name in kept})}
    for name in ("rounds.csv", "clients.csv", "audit.csv"):
        if (folder / name).exists():
            files[name] = [comparable(row) for row in read_rows(folder / name)]
    for manifest in sorted([*folder.glob("observations/manifest.jsonl"), *folder.glob("examples/*/manifest.jsonl")]):
        recordings, kind = Recordings(manifest.parent), manifest.parent.relative_to(folder)
        for line in recordings.lines:  # as an attack reads them, however they are stored
            one = recordings.observation(line["id"])
            files[f"{kind}/{line['id']}"] = {"sent": hashed(one.sent), "received": hashed(one.received)}
    for kind in ("truth", "checkpoint"):
        for path in sorted((folder / kind).rglob("*.safetensors")):
            name = path.stem[:11] if kind == "checkpoint" else str(path.relative_to(folder))  # a hash follows the round
            files[f"{kind}/{name}"] = digests(path)
    controls = renames().controls
    earlier = re.compile(rf"(?<=-)({'|'.join(controls)})(?=-|$)")
    return {earlier.sub(lambda found: controls[found[1]], name): content for name, content in files.items()}


def comparable(value: Any) -> Any:
    """Drop the keys that two equal runs need not share, and write flags by their names of today."""
    if isinstance(value, str):
        return re.sub(r"--(?:expert )?([a-z-]+)", lambda flag: f"--{renames().flags.get(flag[1], flag[1])}", value)
    if isinstance(value, dict):
        return {name: comparable(part) for name, part in value.items() if name not in _OTHERS}
    return [comparable(part) for part in value] if isinstance(value, list) else value


def digests(path: Path) -> dict[str, str]:
    """Hash each tensor of a file."""
    with safe_open(path, "pt") as tensors:
        return hashed({name: tensors.get_tensor(name) for name in tensors.keys()})  # noqa: SIM118


def hashed(tensors: Tensors) -> dict[str, str]:
    """Hash each tensor."""
    return {name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in sorted(tensors.items())}


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """List the places at which two values differ.

    >>> differences({"a": [1, 2]}, {"a": [1, 3], "b": 0})
    ['/a[1]: 2 and 3', '/b: only in the other']
    """
    if isinstance(one, dict) and isinstance(other, dict):
        alone = [
            f"{place}/{name}: only in {'this' if name in one else 'the other'}" for name in one.keys() ^ other.keys()
        ]
        shared = [name for name in one if name in other]
        return [d for name in shared for d in differences(one[name], other[name], f"{place}/{name}")] + sorted(alone)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [d for i, pair in enumerate(zip(one, other, strict=True)) for d in differences(*pair, f"{place}[{i}]")]
    return [] if one == other else [f"{place}: {one!r} and {other!r}"]


def main() -> None:
    """Make, compare and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--against", type=Path, help="the other checkout")
    flags.add_argument("--out", type=Path, help="where runs are kept (a temporary folder)")
    run = output.start(flags, PARTS)
    against = run.asked.against
    if against is None or not (against / "sim.py").exists():
        output.refuse(f"Expected --against with the folder of another checkout, got {against}.")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (run.asked.out or Path(temporary)).absolute()
        for name in run.parts():
            for side, checkout in (("this", _ROOT), ("other", against.absolute())):
                make(checkout, name, folder / side / name)
            this, other = numbers(folder / "this" / name), numbers(folder / "other" / name)
            results[name] = {"equal": this == other, "files": len(this), "differences": differences(this, other)[:20]}
    lines = [
        f"{name}: {'equal' if r['equal'] else r['differences']} in {r['files']} files" for name, r in results.items()
    ]
    run.report(results, lines)
    sys.exit(0 if all(result["equal"] for result in results.values()) else 1)


if __name__ == "__main__":
    main()
