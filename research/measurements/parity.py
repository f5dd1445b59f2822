"""Recovery by `ig` and by the public framework.

``python -m research.measurements.parity [--json] [--quick] [--only lenet_4]``.

Both sides have the same network, gradients, labels, first guesses, one start and the same number of iterations. The
framework is breaching 0.1.2 under its configuration ``invertinggradients`` (`benchmarks.breaching_side`), in its
environment (`benchmarks.breaching_env`); ours is `flfw.attacks.ig` as users run it. Their total variation has a border,
and of one search both keep the guess with the lowest objective. The images are lossless, of CIFAR-10 unless said
otherwise.

Equal weights (``cifar10``, ``mnist``): the sigmoid LeNet, one image to each gradient, 2,000 iterations, both with one
constant weight of the total variation; ``resnet18_equal``: ResNet-18, batches of eight. The engines should agree within
1 dB. Defaults (``lenet_B``, ``cnn2_B``, ``resnet18_B``): our default settings against theirs, a weight of 0.2, on
gradients of B images, both with our default's iterations. Ours should be within 0.5 dB, or better. The PSNR of a batch
is the mean over its images, matched one to one. The last line is one JSON object.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import breaching_env, output
from benchmarks.attack_victims import victims
from benchmarks.our_search import TV
from benchmarks.output import BenchmarkPart
from benchmarks.their_search import Theirs
from flfw.attacks.ig import IG, IGSettings
from research.measurements.batch_parity import in_decibels, require_pictures, searched, started

THEIR_TV = 0.2
"""Weight of the total variation in breaching's configuration."""
_QUICK_ITERATIONS, _QUICK_VICTIMS = 50, 2


@dataclass(frozen=True)
class ParityCase:
    """Work of both sides.

    Attributes:
        dataset: source of the images.
        network: its name in `flfw.nets`.
        victims: number of gradients.
        batch: images in each.
        settings: of ours; the iterations are also theirs.
        tv: weight of their total variation.
        ahead: decibels that theirs may be ahead.
        behind: decibels that theirs may be behind; None: any number.
        part: of the benchmark.
    """

    dataset: str
    network: str
    victims: int
    batch: int
    settings: IGSettings
    tv: float
    ahead: float
    behind: float | None
    part: BenchmarkPart

    def holds(self, apart: float) -> bool:
        """Return whether ours less theirs, in dB, is as it should be."""
        return apart >= -self.ahead and (self.behind is None or apart <= self.behind)


def _equal(dataset: str, part: BenchmarkPart) -> ParityCase:
    settings = IGSettings(2000, tv=TV, schedule="constant")
    return ParityCase(dataset, "lenet", 8, 1, settings, TV, ahead=1.0, behind=1.0, part=part)


def _default(network: str, count: int, batch: int, part: BenchmarkPart) -> ParityCase:
    return ParityCase("cifar10", network, count, batch, IGSettings(), THEIR_TV, ahead=0.5, behind=None, part=part)


_RESNET = BenchmarkPart("equal weights, ResNet-18, two batches of eight", 600, 0)
CASES = {
    "cifar10": _equal("cifar10", BenchmarkPart("equal weights, eight images of CIFAR-10", 110, 15)),
    "mnist": _equal("mnist", BenchmarkPart("equal weights, eight images of MNIST", 90, 0)),
    "lenet_1": _default("lenet", 8, 1, BenchmarkPart("defaults, LeNet, eight single images", 60, 0)),
    "lenet_4": _default("lenet", 4, 4, BenchmarkPart("defaults, LeNet, four batches of four", 60, 15)),
    "lenet_8": _default("lenet", 2, 8, BenchmarkPart("defaults, LeNet, two batches of eight", 60, 0)),
    "cnn2_1": _default("cnn2", 4, 1, BenchmarkPart("defaults, CNN 2, four single images", 60, 0)),
    "cnn2_4": _default("cnn2", 2, 4, BenchmarkPart("defaults, CNN 2, two batches of four", 60, 15)),
    "cnn2_8": _default("cnn2", 1, 8, BenchmarkPart("defaults, CNN 2, one batch of eight", 60, 0)),
    "resnet18_8": _default("resnet18", 2, 8, BenchmarkPart("defaults, ResNet-18, two batches of eight", 300, 0)),
    "resnet18_equal": replace(_equal("cifar10", _RESNET), network="resnet18", victims=2, batch=8),
}
PARTS = {name: case.part for name, case in CASES.items()}


def compared(theirs: Theirs, folder: Path, case: ParityCase) -> dict[str, Any]:
    """Measure the PSNR of both sides on the same work."""
    attacked = victims(case.network, case.victims, case.dataset, batch=case.batch)
    iterations = case.settings.iterations
    _, answer = theirs(attacked, folder, "attack", iterations, tv=case.tv)
    guesses = {"ours": searched(attacked, IG(case.settings).recipe(None)), "theirs": answer["images"]}
    sides = {side: attacked.each_psnr(images) for side, images in guesses.items()}
    within = case.holds(fmean(sides["ours"]) - fmean(sides["theirs"]))
    return {**in_decibels(sides), "within": within, "iterations": iterations}


def chosen(name: str, run: output.BenchmarkRun) -> ParityCase:
    """Return a case with the numbers that were asked for."""
    case = CASES[name]
    iterations = run.amount(case.settings.iterations, _QUICK_ITERATIONS, run.asked.iterations)
    count = run.amount(case.victims, min(case.victims, _QUICK_VICTIMS), run.asked.victims)
    return replace(case, victims=count, settings=replace(case.settings, iterations=iterations))


def line(name: str, row: dict[str, Any]) -> str:
    """Return a part's figures and its goal, in words."""
    case = CASES[name]
    goal = f"at least {-case.ahead:+}" if case.behind is None else f"{-case.ahead:+} to {case.behind:+}"
    ours_db, theirs_db, missed = row["ours_mean"], row["theirs_mean"], "" if row["within"] else ": missed"
    return f"{name}: ours {ours_db} dB, theirs {theirs_db} dB, {row['apart']:+} dB (goal: {goal}{missed})"


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--victims", type=output.whole(), help="gradients in each part; quick: 2 at most")
    flags.add_argument("--iterations", type=output.whole(), help="of both sides; quick: 50")
    run = started(flags, PARTS)
    theirs = Theirs(breaching_env.required(), run.asked.threads)
    for dataset in {CASES[name].dataset for name in run.names}:
        require_pictures(dataset)
    with tempfile.TemporaryDirectory() as folder:
        rows = {name: compared(theirs, Path(folder), chosen(name, run)) for name in run.parts()}
    run.report({"threads": run.asked.threads, **rows}, [line(name, row) for name, row in rows.items()])


if __name__ == "__main__":
    main()
