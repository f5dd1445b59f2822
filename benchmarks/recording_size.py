"""Size of a run's recordings, and the time that they take: ``python -m benchmarks.recording_size [--json] [--quick]``.

HyperFL is run on the embedded digits as `python sim.py` does, with an attack that takes no time. What its recorder
wrote is then stored anew in each way that ``RecordingGrid`` knows, and read as an attack reads it, with all
checks. ``--run`` takes the recordings of a run that is there. Seconds are those of the processor, in this process; the
bytes that come back are compared with those that were recorded.

The last line of the output is one JSON object.
"""

import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import output
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.recording import format as file_format
from flfw.recording.reader import Recordings
from flfw.runs import run as runs

_GOAL = 0.25
PARTS = {"recording": output.BenchmarkPart("HyperFL recorded, and stored in each way", 150, 30)}

_Exchange = tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]


def exchanges(folder: Path) -> Iterator[_Exchange]:
    """Yield of each recorded exchange the digest of the received tensors, these tensors, and the sent ones."""
    for line in Recordings(folder).lines:
        received = file_format.read(folder, line["sent_to_client"], line["compression"])
        sent = file_format.read(folder, line["sent_by_client"], line["compression"], received)
        yield line["sent_to_client"]["sha256"], _arrays(received), _arrays(sent)


def _arrays(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in tensors.items()}


def stored(recordings: Path, compression: str, folder: Path) -> dict[str, float]:
    """Store recordings in one way; measure bytes, and seconds to write and to read."""
    known: dict[str, dict[str, Any]] = {}
    total, write_s, read_s = 0, 0.0, 0.0
    for number, (digest, received, sent) in enumerate(exchanges(recordings)):
        started = time.process_time()
        after = file_format.PlainTensors.of(sent).encoded(compression, received)
        entry = after.entry(f"round-0000/client-{number:03d}-000{after.suffix}")
        file_format.write(folder / entry["file"], after.data)
        total += len(after.data)
        if digest not in known:
            file, before = file_format.received_file(file_format.PlainTensors.of(received), compression)
            known[digest] = before.entry(file)
            file_format.write(folder / file, before.data)
            total += len(before.data)
        written = time.process_time()
        base = file_format.read(folder, known[digest], compression)
        again = time.process_time()
        restored = file_format.read(folder, entry, compression, base)
        read_s += time.process_time() - again
        write_s += written - started
        if any(restored[name].numpy().tobytes() != value.tobytes() for name, value in sent.items()):
            raise InputError(f"Expected the recorded bytes from compression={compression}, got others.")
        (folder / entry["file"]).unlink()
    return {"bytes": total, "write_s": round(write_s, 2), "read_s": round(read_s, 2)}


def compared(recordings: Path) -> dict[str, Any]:
    """Store recordings in all ways."""
    ways = {}
    for compression in file_format.COMPRESSIONS:
        with tempfile.TemporaryDirectory() as folder:
            ways[compression] = stored(recordings, compression, Path(folder))
    ratio = ways["compact"]["bytes"] / ways["none"]["bytes"]
    return {"ways": ways, "ratio": round(ratio, 4), "goal": {"ratio": _GOAL}, "met": {"ratio": ratio <= _GOAL}}


def measure(rounds: int, clients: int, images: int) -> dict[str, Any]:
    """Run HyperFL, and store its recordings in all ways."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(rounds=rounds, clients=clients, images=images, attack=("analytic",), engine="inproc")
        out = runs.run(dataclasses.replace(experiment, out=Path(folder, "run")))
        return compared(out / "observations")


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--run", type=Path, help="folder of a run whose recordings are taken, instead of a new run's")
    run = output.start(flags, PARTS)
    results: dict[str, Any] = {}
    for _ in run.parts():
        there = run.asked.run
        results = (
            compared(there / "observations")
            if there
            else measure(run.amount(10, 1), run.amount(10, 2), run.amount(8, 1))
        )
    ways = results["ways"].items()
    lines = [
        f"{way}: {one['bytes']:,} bytes, written in {one['write_s']} s, sent read in {one['read_s']} s"
        for way, one in ways
    ]
    run.report(results, [*lines, f"compact over none: {results['ratio']:.1%} (goal <= {_GOAL:.0%})"])


if __name__ == "__main__":
    main()
