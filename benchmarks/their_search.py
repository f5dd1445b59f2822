"""Other side of the comparisons: the search of breaching, in processes that run `benchmarks.breaching_side`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, final

from safetensors.torch import load_file, save_file

from benchmarks.attack_victims import CLASSES, Victims
from benchmarks.our_search import LR, TV, Trace
from flfw import nets
from flfw.inversion.evaluation import stacked
from flfw.nets import Tensors

_OTHER_SIDE = Path(__file__).with_name("breaching_side.py")


@final
class Theirs:
    """Search of theirs, a process for each run.

    Args:
        python: of the environment with breaching.
        threads: of PyTorch.
        device: that computes, ``cpu`` or ``cuda``.
    """

    def __init__(self, python: Path, threads: int, device: str = "cpu") -> None:
        self._python, self._threads, self._device = python, threads, device

    def __call__(
        self,
        victims: Victims,
        folder: Path,
        mode: str,
        iterations: int,
        warmup: int = 0,
        every: int = 0,
        tv: float = TV,
        config: str = "invertinggradients",
        scale: float | None = None,
    ) -> tuple[dict[str, Any], Tensors]:
        """Run in a folder and read answer.json and answer.safetensors; the arguments are those of problem.json.

        Raises:
            subprocess.CalledProcessError: it failed; the reason is on stderr.
        """
        work = {"mode": mode, "iterations": iterations, "warmup": warmup, "every": every, "tv": tv, "config": config}
        write(victims, folder, {**work, "scale": scale, "threads": self._threads, "device": self._device})
        subprocess.run(
            [str(self._python), "-W", "ignore", str(_OTHER_SIDE), str(folder)], check=True, stdout=sys.stderr
        )
        return json.loads((folder / "answer.json").read_text()), load_file(folder / "answer.safetensors")

    def rate(self, victims: Victims, folder: Path, iterations: int, warmup: int) -> float:
        """Measure the image-iterations per second of a search."""
        return self(victims, folder, "speed", iterations, warmup)[0]["image_iterations_per_second"]

    def trace(self, victims: Victims, folder: Path, iterations: int, every: int) -> Trace:
        """Search, and keep the guess before every so many iterations."""
        figures, tensors = self(victims, folder, "attack", iterations, every=every)
        guesses = [*tensors["trace"].unbind(1), tensors["images"]]
        added = [sum(column) for column in zip(*figures["trace_seconds"], strict=True)]
        return Trace([victims.psnr(x) for x in guesses], [*added, sum(figures["seconds"])])


def write(victims: Victims, folder: Path, work: dict[str, Any]) -> None:
    """Write problem.json and problem.safetensors, as `benchmarks.breaching_side` reads them.

    Args:
        victims: to attack.
        folder: for the two files.
        work: the fields ``mode``, ``iterations``, ``warmup``, ``every`` and ``threads``, and any that is to differ.
    """
    problem = {
        "network": victims.network.rpartition(":")[2],
        "config": "invertinggradients",
        "training": victims.training,
        "shape": list(victims.inputs.shape),
        "classes": CLASSES,
        "mean": victims.inputs.mean.flatten().tolist(),
        "std": victims.inputs.std.flatten().tolist(),
        "parameters": [name for name, _ in victims.net.named_parameters()],
        "buffers": [name for name, _ in victims.net.named_buffers()],
        "lr": LR,
        "signed": True,
        "decay": True,
        "tv": TV,
        "box": True,
        "scale": None,
        "device": "cpu",
    }
    tensors = {f"weights.{name}": value for name, value in nets.tensors(victims.net).items()}
    tensors |= {f"observed.{name}": value for name, value in stacked(victims.observed).items()}
    if victims.revealed:
        tensors |= {f"revealed.{name}": value for name, value in stacked(victims.revealed).items()}
    tensors |= {"labels": victims.labels, "start": victims.start}
    (folder / "problem.json").write_text(json.dumps(problem | work, indent=1))
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "problem.safetensors")
