"""Searches in a lower precision beside float32.

``python -m research.measurements.attack_precision [--json] [--quick]``.

Attack `ig` searches for the same batches from the same first guesses, once with its network in float32 and once as
``--expert attack_precision`` has it. Each seed draws another network and another first guess, and takes other images of
CIFAR-10. For each seed the output has the PSNR of both in dB (mean over the batch, matched one to one), and the time of
the float32 search over that of the other, tracing included: processor time on a CPU, elapsed time on a GPU. Then the
mean of the changes of the PSNR, the lowest one, and the median of the ratios.

A ConvNet's search is short, for its step takes a hundred times as long as a LeNet's. The last line of the output is one
JSON object.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import torch

from benchmarks import output
from benchmarks.attack_victims import Victims, matched_psnrs, pictures, victims
from benchmarks.our_search import wait
from benchmarks.output import BenchmarkPart
from benchmarks.turns import ratio, rounded
from flfw.attacks.ig import IG, IGSettings
from flfw.inversion.compute import ComputeLimits, Precision
from flfw.inversion.search import SearchTarget, invert
from flfw.rng import torch_generator

_LOWER: tuple[Precision, ...] = ("bf16", "tf32")


@dataclass(frozen=True)
class PrecisionCase:
    """A network, and the searches for its batches."""

    network: str  # its name in `flfw.nets`
    batch: int
    iterations: int
    part: BenchmarkPart


_CASES = {
    "lenet_1": PrecisionCase("lenet", 1, 1000, BenchmarkPart("LeNet, batches of 1", 25, 8)),
    "lenet_4": PrecisionCase("lenet", 4, 1000, BenchmarkPart("LeNet, batches of 4", 50, 0)),
    "convnet64_1": PrecisionCase("convnet64", 1, 100, BenchmarkPart("ConvNet of width 64, batches of 1", 110, 0)),
    "convnet64_4": PrecisionCase("convnet64", 4, 50, BenchmarkPart("ConvNet of width 64, batches of 4", 210, 0)),
}
PARTS = {name: case.part for name, case in _CASES.items()}


def measure(case: PrecisionCase, lower: Precision, device: torch.device, seeds: int, part: float) -> dict[str, Any]:
    """Search for a case's batches in both precisions, in turns, and compare.

    Args:
        case: the network and its searches.
        lower: the other precision.
        device: where the searches run.
        seeds: number of victims, each with a network of its own.
        part: of the usual iterations, in (0, 1].
    """
    iterations, rows = max(3, round(case.iterations * part)), []
    for seed in range(seeds):
        there = victims(case.network, 1, first=seed * case.batch, batch=case.batch, seed=seed).to(device)
        if not seed:
            _searched(there, "float32", 3)  # the first search of a process sets things up
        (exact, exact_s), (rough, rough_s) = (_searched(there, p, iterations) for p in ("float32", lower))
        seconds = {"float32_s": exact_s, f"{lower}_s": rough_s}
        rows.append({"float32": exact, lower: rough, "change": rough - exact, **seconds})
    changes = [row["change"] for row in rows]
    known = {"batch": case.batch, "iterations": iterations, "seeds": rows}
    faster = ratio([row["float32_s"] for row in rows], [row[f"{lower}_s"] for row in rows])
    return {**known, "change_db": fmean(changes), "worst_db": min(changes), "times_as_fast": faster}


def _searched(attacked: Victims, precision: Precision, iterations: int) -> tuple[float, float]:
    """Return the PSNR of one search in dB, and its seconds."""
    device = attacked.truth.device
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    rng = torch_generator(0, "unused")  # the start is given
    target = SearchTarget(attacked.observed[0], attacked.labels[0], rng, start=attacked.start[0])
    recipe = IG(IGSettings(iterations=iterations)).recipe(None)
    wait(device)
    started = clock()
    (result,) = invert(attacked.model(), [target], recipe, compute=ComputeLimits(precision=precision))
    wait(device)
    return fmean(matched_psnrs(attacked.truth[0], result.samples)), clock() - started


def lines(results: Mapping[str, Any]) -> list[str]:
    """Return a line for each part."""
    return [
        f"{name:12} {row['change_db']:+.2f} dB (worst {row['worst_db']:+.2f}), {row['times_as_fast']:.2f} times as fast"
        for name, row in results.items()
    ]


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--precision", choices=_LOWER, default="bf16", help="the other one (bf16)")
    flags.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the searches (cpu)")
    flags.add_argument("--seeds", type=output.whole(), default=3, help="networks and batches (3)")
    flags.add_argument("--threads", type=output.whole(), default=1, help="of the processor (1)")
    run = output.start(flags, PARTS)
    requested = run.asked
    lower: Literal["bf16", "tf32"] = requested.precision
    if requested.device == "cuda" and not torch.cuda.is_available():
        output.refuse("Expected a CUDA device with --device cuda, found none; `--device cpu` needs none.")
    if lower == "tf32" and requested.device == "cpu":
        output.refuse("Expected --device cuda with --precision tf32, got cpu, which has no TensorFloat-32.")
    torch.set_num_threads(requested.threads)
    seeds, part = (1, 0.05) if requested.quick else (requested.seeds, 1.0)
    device = torch.device(requested.device)
    results = {name: rounded(measure(_CASES[name], lower, device, seeds, part)) for name in run.parts()}
    where = {"precision": lower, "device": requested.device, "threads": requested.threads, "images": pictures(1)[2]}
    run.report({**results, **where}, lines(results))


if __name__ == "__main__":
    main()
