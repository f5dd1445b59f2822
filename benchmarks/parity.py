"""Whether `ig` recovers what the public framework does, given as much: ``python -m benchmarks.parity [--json]``.

Victims of the sigmoid LeNet, lossless images of CIFAR-10 and of MNIST, one to each gradient. Both sides have the same
network, gradients, labels, first guesses, 2,000 iterations and weight of the total variation; the framework is
breaching 0.1.2 under its configuration ``invertinggradients`` (`benchmarks.breaching_side`), ours is `attacks.ig` as
users run it. Their total variation has a border, and of one search both keep the guess with the lowest objective. What
is compared is the PSNR, per victim and in the mean; it should agree within 1 dB. The last line is one JSON object.
"""

from __future__ import annotations

import os
import sys
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


def ours(attacked: Victims, iterations: int) -> Tensor:
    """What `ig` finds from the given first guesses: normalised images (V, 1, C, H, W)."""
    starts: Iterator[Tensor] = iter(attacked.start)
    recipe = replace(IG(IGSettings(iterations, tv=TV)).recipe(None), start=lambda shape, rng: next(starts))
    unused = torch.Generator()
    targets = [Target(s, y, unused) for s, y in zip(attacked.observed, attacked.labels, strict=True)]
    found = torch.stack([one.samples for one in invert(attacked.model(), targets, recipe)])
    return attacked.inputs.normalise(found)


def compared(theirs: Theirs, folder: Path, dataset: str, count: int, iterations: int) -> dict[str, Any]:
    """PSNR of both sides on one data set."""
    attacked = victims("lenet", count, dataset)
    _, found = theirs(attacked, folder, "attack", iterations)
    sides = {"ours": attacked.each_psnr(ours(attacked, iterations)), "theirs": attacked.each_psnr(found["images"])}
    apart = fmean(sides["ours"]) - fmean(sides["theirs"])
    each = {side: [round(value, 2) for value in values] for side, values in sides.items()}
    means = {f"{side}_mean": round(fmean(values), 2) for side, values in sides.items()}
    return {**each, **means, "apart": round(apart, 2), "within": abs(apart) <= _WITHIN_DB}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--victims", type=int, default=8)
    flags.add_argument("--iterations", type=int, default=2000)
    flags.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both sides (all cores)")
    asked = flags.parse_args()
    torch.set_num_threads(asked.threads)
    found: dict[str, Any] = {"iterations": asked.iterations, "threads": asked.threads}
    with tempfile.TemporaryDirectory() as folder:
        theirs = Theirs(breaching_env.interpreter(), asked.threads)
        for dataset in ("cifar10", "mnist"):
            if pictures(1, dataset)[2] == "random images":
                sys.exit(f"Expected the files of {dataset}, found none; set FLFW_DATA.")
            found[dataset] = compared(theirs, Path(folder), dataset, asked.victims, asked.iterations)
    lines = [
        f"{name}: ours {about['ours_mean']} dB, theirs {about['theirs_mean']} dB, {about['apart']:+} dB (goal: 1)"
        for name, about in found.items()
        if isinstance(about, dict)
    ]
    output.say(found, lines, only_json=asked.json)


if __name__ == "__main__":
    main()
