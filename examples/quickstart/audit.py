"""Audit of the recordings of the app's server: python audit.py [RECORDINGS]."""

import json
import sys
from math import ceil
from pathlib import Path

import torch
from quickstart.task import SmallNet, digits, places

from flfw.attacks.ig import IG, IGSettings
from flfw.audit.measures.public import PublicData
from flfw.recorded_apps import audit
from flfw.recording.observation import Truth
from flfw.recording.reader import Recordings


def main(recordings: Path, out: Path, iterations: int = 500) -> Path:
    """Audit the recordings of all rounds; return the folder with the report."""
    lines = [line for line in Recordings(recordings).lines if line["type"] == "train"]
    config = lines[0]["config"]
    # The metrics of a client name its partition; places() of the app gives its examples.
    indices = {x["client"]: places(x["metrics"]["partition-id"], x["metrics"]["num-examples"]) for x in lines}
    images, labels = digits()

    def truth(client: int) -> Truth:
        return Truth(images[indices[client]], labels[indices[client]], torch.from_numpy(indices[client]))

    return audit(
        recordings,
        SmallNet,
        attacks={"ig": IG(IGSettings(iterations=iterations))},
        truth=truth,
        public=PublicData.from_arrays(images[-300:].numpy(), labels[-300:].numpy()),  # of no client
        inputs=((1, 8, 8), (0.5,), (0.5,)),  # (x - 0.5) / 0.5, as in load_data
        name="quickstart",
        dataset="digits",
        lr=config["lr"],
        steps=config["local-epochs"] * ceil(lines[0]["metrics"]["num-examples"] / config["batch-size"]),
        out=out,
        pictures=True,
    )


if __name__ == "__main__":
    recordings = Path(sys.argv[1] if len(sys.argv) > 1 else "~/quickstart-recordings").expanduser()
    folder = main(recordings, recordings.with_name(f"{recordings.name}-audit"))
    for entry in json.loads((folder / "result.json").read_text())["audit"]:
        print(f"round {entry['round']}: {entry['verdict']}. {entry['reason']}")
    print(folder / "report.html")
