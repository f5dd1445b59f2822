"""What knowing of a defence gains an attacker: ``python -m benchmarks.adaptations [--json]``.

Digits of MNIST behind the sigmoid LeNet with fresh weights, one to each gradient, labels granted, each gradient through
a defence as its client applies it. `ig` attacks as users run it: not told of the defence, told of it with what is
written for it (`attacks/adaptations/`), and told of it with the defence's own code (`flfw.inversion.automatic`). What
is compared is the mean PSNR in dB, over images on which nothing of `ig` was chosen. The automatic adaptation should be
within 1 dB of the written one, or above it, on `prune` and `low_precision`. Methods that clip and add noise come last,
with one example behind each probe: there `ig` is not told, or told with what is written for the method. The last line
is one JSON object.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import torch

from attacks.adaptations.dp_gaussian import DPGaussianAdaptation
from attacks.adaptations.fed_cdp import FedCDPAdaptation
from attacks.adaptations.fed_sdp import FedSDPAdaptation
from attacks.adaptations.low_precision import LowPrecisionAdaptation
from attacks.adaptations.prune import PruneAdaptation
from attacks.ig import IG, IGSettings
from benchmarks import output
from benchmarks.attack_problems import Victims, pictures, victims
from clients.defences.dp_gaussian import DPGaussian, DPGaussianSettings
from clients.defences.low_precision import LowPrecision, LowPrecisionSettings
from clients.defences.prune import Prune, PruneSettings
from flfw.adversary.observation import Knowledge, Observation, Vantage
from flfw.defence import Defence
from flfw.dp.settings import Noise, clipped_change
from flfw.inversion.automatic import Automatic
from flfw.nets import Tensors
from flfw.rng import torch_generator
from flfw.training.gaussian import gaussian
from flfw.victims.operator import Circumstances, MethodOperator, Operator
from strategies.fed_cdp import FedCDPSettings
from strategies.fed_sdp import FedSDPSettings

_WITHIN_DB = 1.0
_LR = 0.1  # of the clipped step
_FIRST = 100  # image: how `ig` searches when it is told was chosen on the first six

Told = Operator | Automatic | None
Sends = Callable[[Tensors, torch.Generator], Tensors]
"""What a client makes of its gradient."""


@dataclass(frozen=True)
class AdaptationRow:
    """What hides the data, and what an attacker may know of it."""

    sends: Sends
    ways: dict[str, Told]


def rows() -> dict[str, AdaptationRow]:
    """The defences, with what is written for each; and the methods."""
    found: dict[str, AdaptationRow] = {}
    for ratio in (0.9, 0.99):
        found[f"prune {ratio}"] = _defended(Prune(PruneSettings(ratio)), PruneAdaptation)
    for bits in (1, 2, 4, 8):
        found[f"low_precision {bits}"] = _defended(LowPrecision(LowPrecisionSettings(bits)), LowPrecisionAdaptation)
    for bits in (2, 4):
        of = LowPrecisionSettings(bits, "stochastic")
        found[f"low_precision {bits} stochastic"] = _defended(LowPrecision(of), LowPrecisionAdaptation)
    for std, clip in ((0.01, 0.0), (0.1, 0.0), (0.3, 0.0), (0.1, 5.0)):
        of = DPGaussianSettings(std, clip)
        found[f"dp_gaussian {std} clip {clip}"] = _defended(DPGaussian(of), DPGaussianAdaptation)
    for clip, sigma in ((4.0, 0.0), (4.0, 0.01), (4.0, 0.1), (4.0, 0.5), (0.1, 0.0), (0.1, 0.01), (0.1, 0.1)):
        of = FedCDPSettings(clip=clip, noise_multiplier=sigma)
        found[f"fed_cdp sigma {sigma} clip {clip}"] = _by_method(of, FedCDPAdaptation, clip, sigma * clip)
    for clip, sigma in ((4.0, 0.0), (4.0, 0.001), (0.01, 0.0), (0.01, 0.01), (0.01, 0.1)):
        of = FedSDPSettings(clip=clip, noise_multiplier=sigma)
        found[f"fed_sdp sigma {sigma} clip {clip}"] = _by_method(of, FedSDPAdaptation, clip / _LR, sigma * clip / _LR)
    return found


def _defended(defence: Defence, written: type[Operator]) -> AdaptationRow:
    return AdaptationRow(
        defence.update, {"static": None, "written": written(asdict(defence.settings)), "automatic": Automatic(defence)}
    )


def _by_method(settings: Noise, written: type[MethodOperator], bound: float, deviation: float) -> AdaptationRow:
    """One example's gradient, clipped and noised in the units of a gradient."""

    def sends(gradient: Tensors, rng: torch.Generator) -> Tensors:
        noise = gaussian({name: value.shape for name, value in gradient.items()}, deviation, rng)
        bounded = clipped_change(gradient, bound, settings.grouping)
        return {name: value + noise[name] for name, value in bounded.items()}

    return AdaptationRow(sends, {"static": None, "written": written(asdict(settings), Circumstances(lr=_LR))})


def attacked(of: Victims, sends: Sends, told: Told, iterations: int) -> list[float]:
    """PSNR of each victim in dB."""
    plain = of.model()
    model = told.victim(plain, plain.known, None) if isinstance(told, MethodOperator) else plain
    observations, knowledge = [], []
    for i, gradient in enumerate(of.observed):
        sent = sends({n: v.clone() for n, v in gradient.items()}, torch_generator(0, "defence", i))
        observations.append(Observation(Vantage.SERVER, "probe", "target", 0, i, i, sent, model.known))
        knowledge.append(Knowledge(model, 1, of.labels[i], mechanism=told))
    rngs = [torch_generator(0, "attack", i) for i in range(len(of))]
    found = IG(IGSettings(iterations=iterations)).run(observations, knowledge, rngs)
    return of.each_psnr(of.inputs.normalise(torch.stack([one.samples.nan_to_num(nan=0.5) for one in found])))


def measured(of: Victims, row: AdaptationRow, iterations: int) -> dict[str, float]:
    """Mean PSNR of each attacker."""
    return {name: round(fmean(attacked(of, row.sends, told, iterations)), 2) for name, told in row.ways.items()}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--victims", type=int, default=10)
    flags.add_argument("--iterations", type=int, default=1000)
    flags.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    flags.add_argument("--only", nargs="+", choices=list(rows()), default=list(rows()))
    asked = flags.parse_args()
    torch.set_num_threads(asked.threads)
    if pictures(1, "mnist")[2] == "random images":
        sys.exit("Expected the files of mnist, found none; set FLFW_DATA.")
    of = victims("lenet", asked.victims, "mnist", _FIRST)
    found: dict[str, Any] = {name: measured(of, rows()[name], asked.iterations) for name in asked.only}
    gated = [name for name in found if "automatic" in found[name] and not name.startswith("dp")]
    met = {name: found[name]["automatic"] >= found[name]["written"] - _WITHIN_DB for name in gated}
    lines = [f"{name:30} " + ", ".join(f"{way} {db:.1f}" for way, db in about.items()) for name, about in found.items()]
    about = {"psnr": found, "met": met, "iterations": asked.iterations, "victims": asked.victims}
    output.say(about, lines, only_json=asked.json)


if __name__ == "__main__":
    main()
