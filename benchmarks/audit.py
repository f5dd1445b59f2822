"""What the audit around an attack costs, and what recording costs: ``python -m benchmarks.audit [--json]``.

Around the attack: the single-image probes of LeNet on the embedded digits are recorded once and then audited with `ig`,
as ``sim.py --from`` does it: the attack server is started, the probes are read and checked, granted, scored and
reported. All of that is compared with the seconds that `ig` itself took; and once more inline, without the start of a
process, which beside training costs nobody a wait. Recording: a FedAvg run with CNN 2 in process
records every update, and the seconds spent in the recorder are compared with those of the same rounds. The last line
of the output is one JSON object.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
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
from flfw.runs import run

_GOAL_AROUND, _GOAL_RECORDING = 0.10, 0.05


def measure_around(folder: Path, images: int, iterations: int) -> dict[str, Any]:
    """Seconds of an audit from start to report, and of the attack in it."""
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
    source = run.run(experiment)
    earlier = dataclasses.replace(run.stored(source), out=None)
    found = {}
    for place in ("after", "inline"):
        again = dataclasses.replace(earlier, set=(f"ig.iterations={iterations}",), attack_server=place)
        started = time.monotonic()
        out = run.audit_again(source, earlier, again)
        whole = time.monotonic() - started
        entries = json.loads((out / "result.json").read_text())["audit"]
        attack = sum(entry["seconds"] + entry["ladder"][1]["seconds"] for entry in entries)
        seconds = {"whole_s": round(whole, 2), "attack_s": round(attack, 2)}
        found[place] = {**seconds, "ratio": round(whole / attack - 1, 4)}
    return {**found["after"], "inline": found["inline"]}


def measure_recording(folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds in the recorder in each round, its share of what the checkpoint waits for included, and of the round."""
    spent: list[float] = []
    record, mark = RecordingGrid._record, RecordingGrid.mark.fget
    assert mark is not None, "a property can be read"
    with (
        patch.object(RecordingGrid, "_record", _timed(record, spent, lambda asked, _: _trains(asked.message))),
        patch.object(RecordingGrid, "mark", property(_timed(mark, spent, lambda: True))),  # brings the files to disk
        patch.object(federation.probe, "is_sound", carries_arrays),
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
        out = run.run(experiment)
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
    """Colour noise of ten classes, 150 training images and some more for each of ten clients."""
    rng = numpy_generator(0, "pictures")
    for place in (folder / part / str(label) for part in ("train", "test") for label in range(10)):
        place.mkdir(parents=True)
        for i in range(150 if place.parent.name == "train" else 20):
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(place / f"{i}.png")
    return folder


def _timed(work: Callable[..., Any], spent: list[float], counts: Callable[..., bool]) -> Callable[..., Any]:
    """The method, which notes its seconds where its arguments say that they count."""

    def timed(self: RecordingGrid, *arguments: Any) -> Any:
        started = time.monotonic()
        found = work(self, *arguments)
        if counts(*arguments):
            spent.append(time.monotonic() - started)
        return found

    return timed


def _trains(message: Message) -> bool:
    return message.metadata.message_type == "train"


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--images", type=int, default=50)
    flags.add_argument("--iterations", type=int, default=1000)
    flags.add_argument("--rounds", type=int, default=4)
    chosen = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recording = measure_recording(Path(folder, "recording"), chosen.rounds)
        around = measure_around(Path(folder), chosen.images, chosen.iterations)
    met = {"around": around["ratio"] < _GOAL_AROUND, "recording": recording["ratio"] < _GOAL_RECORDING}
    found = {"around": around, "recording": recording}
    found |= {"goal": {"around": _GOAL_AROUND, "recording": _GOAL_RECORDING}, "met": met}
    lines = [
        f"around the attack {around['ratio']:.1%} of its {around['attack_s']} s (goal < 10%); "
        f"inline {around['inline']['ratio']:.1%} of {around['inline']['attack_s']} s",
        f"recording {recording['recording_s']} s beside a round of {recording['round_s']} s: "
        f"{recording['ratio']:.1%} (goal < 5%)",
    ]
    output.say(found, lines, only_json=chosen.json)


if __name__ == "__main__":
    main()
