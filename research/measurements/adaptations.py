"""Gain of an attacker that knows the defence.

``python -m research.measurements.adaptations [--json] [--quick] [--only NAME]``.

The victims are digits of MNIST and the sigmoid LeNet with fresh weights, one digit for each gradient; labels are
granted. Each gradient passes a defence as its client applies it. `ig` attacks as users run it, in three ways: it does
not know the defence, it uses the written adaptation (`attacks/adaptations/`), or it uses the defence's own code
(`flfw.inversion.automatic`). The mean PSNR in dB is compared, over images that were not used to tune `ig`. The
automatic adaptation should be within 1 dB of the written one, or above it, on `prune` and `low_precision`. Methods that
clip and add noise come last, with one example in each probe: there `ig` does not know the method, or uses its written
adaptation. The last line is one JSON object.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import torch

from benchmarks import output
from benchmarks.attack_victims import Victims, victims
from flfw.attacks.adaptations.dp_gaussian import DPGaussianAdaptation
from flfw.attacks.adaptations.fed_cdp import FedCDPAdaptation
from flfw.attacks.adaptations.fed_sdp import FedSDPAdaptation
from flfw.attacks.adaptations.low_precision import LowPrecisionAdaptation
from flfw.attacks.adaptations.prune import PruneAdaptation
from flfw.attacks.ig import IG, IGSettings
from flfw.clients.defences.dp_gaussian import DPGaussian, DPGaussianSettings
from flfw.clients.defences.low_precision import LowPrecision, LowPrecisionSettings
from flfw.clients.defences.prune import Prune, PruneSettings
from flfw.dp.settings import DPSettings, clipped_change
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Circumstances, MethodOperator, Operator
from flfw.nets import Tensors
from flfw.nets.training.gaussian import gaussian
from flfw.recording.observation import Knowledge, Observation, Vantage
from flfw.rng import torch_generator
from flfw.strategies.fed_cdp import FedCDPSettings
from flfw.strategies.fed_sdp import FedSDPSettings
from flfw.task.defence import Defence
from research.measurements.batch_parity import require_pictures

_WITHIN_DB = 1.0
_LR = 0.1  # of the clipped step
_QUICK = ("prune 0.99", "fed_cdp sigma 0.1 clip 4.0")
_FIRST = 100  # image: the search of `ig` that knows the defence was tuned on the first six

Informed = Operator | DifferentiableDefence | None
Sends = Callable[[Tensors, torch.Generator], Tensors]
"""Map from a client's gradient to the tensors that it sends."""


@dataclass(frozen=True)
class AdaptationRow:
    """A defence, and the attackers by their knowledge of it."""

    sends: Sends
    ways: dict[str, Informed]


def rows() -> dict[str, AdaptationRow]:
    """Return the defences and the methods, each with the adaptation written for it."""
    table: dict[str, AdaptationRow] = {}
    for ratio in (0.9, 0.99):
        table[f"prune {ratio}"] = _defended(Prune(PruneSettings(ratio)), PruneAdaptation)
    for bits in (1, 2, 4, 8):
        table[f"low_precision {bits}"] = _defended(LowPrecision(LowPrecisionSettings(bits)), LowPrecisionAdaptation)
    for bits in (2, 4):
        defence = LowPrecision(LowPrecisionSettings(bits, "stochastic"))
        table[f"low_precision {bits} stochastic"] = _defended(defence, LowPrecisionAdaptation)
    for std, clip in ((0.01, 0.0), (0.1, 0.0), (0.3, 0.0), (0.1, 5.0)):
        defence = DPGaussian(DPGaussianSettings(std, clip))
        table[f"dp_gaussian {std} clip {clip}"] = _defended(defence, DPGaussianAdaptation)
    for clip, sigma in ((4.0, 0.0), (4.0, 0.01), (4.0, 0.1), (4.0, 0.5), (0.1, 0.0), (0.1, 0.01), (0.1, 0.1)):
        cdp = FedCDPSettings(clip=clip, noise_multiplier=sigma)
        table[f"fed_cdp sigma {sigma} clip {clip}"] = _by_method(cdp, FedCDPAdaptation, clip, sigma * clip)
    for clip, sigma in ((4.0, 0.0), (4.0, 0.001), (0.01, 0.0), (0.01, 0.01), (0.01, 0.1)):
        sdp = FedSDPSettings(clip=clip, noise_multiplier=sigma)
        table[f"fed_sdp sigma {sigma} clip {clip}"] = _by_method(sdp, FedSDPAdaptation, clip / _LR, sigma * clip / _LR)
    return table


def _defended(defence: Defence, written: type[Operator]) -> AdaptationRow:
    return AdaptationRow(
        defence.update,
        {"static": None, "written": written(asdict(defence.settings)), "automatic": DifferentiableDefence(defence)},
    )


def _by_method(settings: DPSettings, written: type[MethodOperator], bound: float, std: float) -> AdaptationRow:
    """Return the row of a method that clips one example's gradient and adds noise, both in units of a gradient."""

    def sends(gradient: Tensors, rng: torch.Generator) -> Tensors:
        noise = gaussian({name: value.shape for name, value in gradient.items()}, std, rng)
        bounded = clipped_change(gradient, bound, settings.grouping)
        return {name: value + noise[name] for name, value in bounded.items()}

    return AdaptationRow(sends, {"static": None, "written": written(asdict(settings), Circumstances(lr=_LR))})


def attacked(targets: Victims, sends: Sends, informed: Informed, iterations: int) -> list[float]:
    """Return the PSNR of each victim in dB."""
    plain = targets.model()
    model = informed.victim(plain, plain.known, None) if isinstance(informed, MethodOperator) else plain
    observations, knowledge = [], []
    for i, gradient in enumerate(targets.observed):
        sent = sends({n: v.clone() for n, v in gradient.items()}, torch_generator(0, "defence", i))
        observations.append(Observation(Vantage.SERVER, "probe", "target", 0, i, i, sent, model.known))
        knowledge.append(Knowledge(model, 1, targets.labels[i], operator=informed))
    rngs = [torch_generator(0, "attack", i) for i in range(len(targets))]
    results = IG(IGSettings(iterations=iterations)).run(observations, knowledge, rngs)
    images = torch.stack([one.samples.nan_to_num(nan=0.5) for one in results])
    return targets.each_psnr(targets.inputs.normalise(images))


def measured(targets: Victims, row: AdaptationRow, iterations: int) -> dict[str, float]:
    """Return the mean PSNR of each attacker."""
    return {
        name: round(fmean(attacked(targets, row.sends, informed, iterations)), 2) for name, informed in row.ways.items()
    }


PARTS = {
    name: output.BenchmarkPart(f"ig, {' and '.join(row.ways)}", 15 * len(row.ways), 12 if name in _QUICK else 0)
    for name, row in rows().items()
}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--victims", type=output.whole(), help="10; quick: 2")
    flags.add_argument("--iterations", type=output.whole(), help="1000; quick: 10")
    flags.add_argument("--threads", type=output.whole(), default=len(os.sched_getaffinity(0)))
    run = output.start(flags, PARTS)
    torch.set_num_threads(run.asked.threads)
    require_pictures("mnist")
    iterations = run.amount(1000, 10, run.asked.iterations)
    run.begin("the victims' gradients")
    targets, table = victims("lenet", run.amount(10, 2, run.asked.victims), "mnist", _FIRST), rows()
    means: dict[str, Any] = {name: measured(targets, table[name], iterations) for name in run.parts()}
    gated = [name for name, row in means.items() if "automatic" in row and not name.startswith("dp")]
    met = {name: means[name]["automatic"] >= means[name]["written"] - _WITHIN_DB for name in gated}
    lines = [f"{name:30} " + ", ".join(f"{way} {db:.1f}" for way, db in row.items()) for name, row in means.items()]
    run.report({"psnr": means, "met": met, "iterations": iterations, "victims": len(targets)}, lines)


if __name__ == "__main__":
    main()
