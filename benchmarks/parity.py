"""Recovery by `ig` and by the public framework: ``python -m benchmarks.parity [--json] [--quick] [--only cifar10]``.

Victims of the sigmoid LeNet, lossless images of CIFAR-10 and of MNIST, one to each gradient. Both sides have the same
network, gradients, labels, first guesses, 2,000 iterations and weight of the total variation. The framework is
breaching 0.1.2 under its configuration ``invertinggradients`` (`benchmarks.breaching_side`), in its environment
(`benchmarks.breaching_env`); ours is `attacks.ig` as users run it. Their total variation has a border, and of one
search both keep the guess with the lowest objective. The PSNR is compared, per victim and in the mean; it should agree
within 1 dB. The last line is one JSON object.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from attacks.ig import IG, IGSettings
from benchmarks import breaching_env, output
from benchmarks.attack_problems import TV, Theirs, Victims, pictures, victims
from flfw.inversion.search import Target, invert

_WITHIN_DB = 1.0
PARTS = {
    "cifar10": output.BenchmarkPart("eight images of CIFAR-10, both sides", 110, 20),
    "mnist": output.BenchmarkPart("eight images of MNIST, both sides", 90, 20),
}


def ours(attacked: Victims, iterations: int) -> Tensor:
    """Run `ig` from the given first guesses; return normalised images (V, 1, C, H, W)."""
    starts: Iterator[Tensor] = iter(attacked.start)
    recipe = replace(IG(IGSettings(iterations, tv=TV)).recipe(None), start=lambda shape, rng: next(starts))
    unused = torch.Generator()
    targets = [Target(s, y, unused) for s, y in zip(attacked.observed, attacked.labels, strict=True)]
    images = torch.stack([one.samples for one in invert(attacked.model(), targets, recipe)])
    return attacked.inputs.normalise(images)


def compared(theirs: Theirs, folder: Path, dataset: str, count: int, iterations: int) -> dict[str, Any]:
    """Measure the PSNR of both sides on one data set."""
    attacked = victims("lenet", count, dataset)
    _, answer = theirs(attacked, folder, "attack", iterations)
    sides = {"ours": attacked.each_psnr(ours(attacked, iterations)), "theirs": attacked.each_psnr(answer["images"])}
    apart = fmean(sides["ours"]) - fmean(sides["theirs"])
    each = {side: [round(value, 2) for value in values] for side, values in sides.items()}
    means = {f"{side}_mean": round(fmean(values), 2) for side, values in sides.items()}
    return {**each, **means, "apart": round(apart, 2), "within": abs(apart) <= _WITHIN_DB}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--victims", type=int, help="8; quick: 2")
    flags.add_argument("--iterations", type=int, help="2000; quick: 50")
    flags.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both sides (all cores)")
    run = output.start(flags, PARTS)
    threads, count = run.asked.threads, run.amount(8, 2, run.asked.victims)
    iterations = run.amount(2000, 50, run.asked.iterations)
    theirs = Theirs(breaching_env.required(), threads)
    for dataset in run.names:
        if pictures(1, dataset)[2] == "random images":
            output.refuse(f"Expected the files of {dataset}, found none; set FLFW_DATA.")
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = {dataset: compared(theirs, Path(folder), dataset, count, iterations) for dataset in run.parts()}
    lines = [
        f"{name}: ours {row['ours_mean']} dB, theirs {row['theirs_mean']} dB, {row['apart']:+} dB (goal: 1)"
        for name, row in rows.items()
    ]
    run.report({"iterations": iterations, "threads": threads, **rows}, lines)


if __name__ == "__main__":
    main()
