"""Cost of the audit around an attack, and of recording: ``python -m benchmarks.audit [--json] [--quick]``.

- around: the single-image probes of LeNet on the embedded digits are recorded once and then audited with `ig`, as
  ``sim.py --from`` does it: the attack process starts, the probes are read and checked, granted, scored and reported.
  The seconds of all of that are compared with those of `ig` itself. The same is measured inline, without a process for
  the attack; beside training, nobody waits for the start of that process.
- recording: a FedAvg run with CNN 2 in process records every update. The seconds in the recorder are compared with
  those of the same rounds.

The last line of the output is one JSON object.
"""

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from flwr.app import Message
from PIL import Image

from benchmarks import output
from flfw.engines import federation
from flfw.experiment import Experiment
from flfw.recording.grid import RecordingGrid, carries_arrays
from flfw.rng import numpy_generator
from flfw.runs import run as runs

_GOALS = {"around": 0.10, "recording": 0.05}
PARTS = {
    "recording": output.BenchmarkPart("FedAvg with CNN 2, each update recorded", 40, 15),
    "around": output.BenchmarkPart("ig on recorded probes, in its own process and inline", 120, 35),
}


def measure_around(folder: Path, images: int, iterations: int) -> dict[str, Any]:
    """Measure the seconds of an audit from start to report, and of the attack in it."""
    once = ("ig.iterations=1",)
    experiment = Experiment(
        method="fedavg",
        net="lenet",
        rounds=1,
        local_epochs=1,
        images=images,
        audit_rounds="0",
        engine="inproc",
        set=once,
        out=folder / "recorded",
    )
    source = runs.run(experiment)
    earlier = dataclasses.replace(runs.stored(source), out=None)
    results = {}
    for process in ("after", "inline"):
        again = dataclasses.replace(earlier, set=(f"ig.iterations={iterations}",), attack_process=process)
        started = time.monotonic()
        out = runs.audit_recordings(source, earlier, again)
        whole = time.monotonic() - started
        entries = json.loads((out / "result.json").read_text())["audit"]
        attack = sum(entry["seconds"] + sum(control["seconds"] for control in entry["ladder"]) for entry in entries)
        seconds = {"whole_s": round(whole, 2), "attack_s": round(attack, 2)}
        results[process] = {**seconds, "ratio": round(whole / attack - 1, 4)}
    return {**results["after"], "inline": results["inline"]}


def measure_recording(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure the seconds of a round and those in the recorder, with the writes that the checkpoint waits for."""
    spent: list[float] = []
    record, mark = RecordingGrid._record, RecordingGrid.mark.fget
    assert mark is not None, "a property can be read"
    with (
        patch.object(RecordingGrid, "_record", _timed(record, spent, lambda requested, _: _trains(requested.message))),
        patch.object(RecordingGrid, "mark", property(_timed(mark, spent, lambda: True))),  # brings the files to disk
        patch.object(federation.probe, "is_usable_probe", carries_arrays),
    ):
        experiment = Experiment(
            method="fedavg",
            dataset=f"folder:{_pictures(folder / 'pictures')}",
            net="cnn2",
            data_root=folder,
            rounds=rounds,
            images=1,
            attack=("analytic",),
            audit_rounds="0",
            engine="inproc",
            out=folder / "run",
        )
        out = runs.run(experiment)
    result = json.loads((out / "result.json").read_text())
    per_round = sum(spent) / rounds
    seconds = statistics.median(row["seconds"] for row in result["rounds"]) - per_round
    return {
        "recording_s": round(per_round, 4),
        "round_s": round(seconds, 3),
        "ratio": round(per_round / seconds, 4),
        "bytes_a_client": result["rounds"][0]["upload_bytes"] // experiment.clients,
    }


def _pictures(folder: Path) -> Path:
    """Write colour noise of ten classes: for each of ten clients 150 training images and some test images."""
    rng = numpy_generator(0, "pictures")
    for place in (folder / part / str(label) for part in ("train", "test") for label in range(10)):
        place.mkdir(parents=True)
        for i in range(150 if place.parent.name == "train" else 20):
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(place / f"{i}.png")
    return folder


def _timed(work: Callable[..., Any], spent: list[float], counts: Callable[..., bool]) -> Callable[..., Any]:
    """Wrap a method so that it notes its seconds wherever ``counts`` accepts its arguments."""

    def timed(self: RecordingGrid, *arguments: Any) -> Any:
        started = time.monotonic()
        result = work(self, *arguments)
        if counts(*arguments):
            spent.append(time.monotonic() - started)
        return result

    return timed


def _trains(message: Message) -> bool:
    return message.metadata.message_type == "train"


def lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each part."""
    if around := results.get("around"):
        yield (
            f"around the attack {around['ratio']:.1%} of its {around['attack_s']} s (goal < 10%); "
            f"inline {around['inline']['ratio']:.1%} of {around['inline']['attack_s']} s"
        )
    if recording := results.get("recording"):
        yield (
            f"recording {recording['recording_s']} s beside a round of {recording['round_s']} s: "
            f"{recording['ratio']:.1%} (goal < 5%)"
        )


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--images", type=output.whole(), help="50; quick: 2")
    flags.add_argument("--iterations", type=output.whole(), help="1000; quick: 20")
    flags.add_argument("--rounds", type=output.whole(), help="4; quick: 1")
    run = output.start(flags, PARTS)
    images, iterations = run.amount(50, 2, run.asked.images), run.amount(1000, 20, run.asked.iterations)
    rounds = run.amount(4, 1, run.asked.rounds)
    with tempfile.TemporaryDirectory() as folder:
        measures = {
            "recording": partial(measure_recording, Path(folder, "recording"), rounds),
            "around": partial(measure_around, Path(folder), images, iterations),
        }
        results: dict[str, Any] = {name: measures[name]() for name in run.parts()}
    goal = {name: _GOALS[name] for name in results}
    met = {name: results[name]["ratio"] < maximum for name, maximum in goal.items()}
    run.report({**results, "goal": goal, "met": met}, lines(results))


if __name__ == "__main__":
    main()
