"""Batches recovered beside breaching.

``python -m research.measurements.batch_parity [--json] [--quick] [--only NAME]``.

Both sides have the same images of CIFAR-10, network, gradients and metric: the PSNR in dB of the images of a batch,
matched one to one. The framework is breaching 0.1.2 in its environment (`benchmarks.breaching_env`). A seed chooses the
images, the network's numbers and the first guesses.

- ``imprint``: fresh CNN 2 behind a module of 128 bins that one side crafted, batches of 8 and 32. Both sides read off
  the gradients behind either module. Counted are images of 40 dB or more, beside the expected number. Ours crafts with
  the quantiles of 5,000 public images; theirs with those of a distribution, as its server is configured.
- ``gradinversion_NETWORK``: `gradinversion` against their ``seethroughgradients``. Each has its default objective,
  schedule and prior, one start, the labels, and the network's running statistics, which are 0 and 1. BatchNorm
  normalises by the batch, but in ``gradinversion_eval``. SHALLOW: two convolutions of 16 maps.
- ``gradinversion_sent``, ``_own``, ``_own_equal``, ``_trained``: SHALLOW and images of 16 pixels, where a search can
  succeed. Sent: training mode, and both sides know the batch's statistics. In the others the network is in evaluation
  mode. Own: its running statistics are those of the batch. Equal: both weigh half of the squared distance by 1, the
  default of their class for it; in this attack theirs has 1e-4. Trained: 200 steps, and the true running statistics.

A search has one batch for each seed: 8 images, or one of 16 pixels, in ``_trained`` two. Both sides have as many
iterations and the same first guess. Beside them stand the PSNR of that guess and of grey images: where neither side is
above grey, neither recovers anything, and being near to each other says nothing. The last line is one JSON object.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks import breaching_env, output
from benchmarks.attack_victims import Victims, matched_psnrs, pictures, victims
from benchmarks.their_search import Theirs
from flfw import nets
from flfw.attacks.gradinversion import GradInversion, GradInversionSettings
from flfw.attacks.imprint import Imprint, ImprintSettings
from flfw.files.parser import Parser
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.closed_form.imprint import expected_alone
from flfw.inversion.matching import Distance, squared_distance
from flfw.inversion.priors import received_statistics
from flfw.inversion.search import SearchConfig, SearchTarget, invert
from flfw.nets.net import Net, Tensors
from flfw.recording.observation import Knowledge, Observation, Vantage
from flfw.rng import initialising

_AHEAD_DB = 1.0  # by which theirs may be ahead
_EXACT_DB = 40.0
_BATCH, _TV, _CONFIG = 8, 0.2, "seethroughgradients"
_BINS, _SIZES, _PUBLIC, _PUBLIC_FROM = 128, (8, 32), 5000, 20_000
_PLACE = "extractor.imposed."
_SHALLOW = "research.measurements.batch_parity:shallow"
_IMPRINT_SIDE = Path(__file__).with_name("breaching_imprint.py")


@dataclass(frozen=True)
class BatchCase:
    """Work of both searches.

    Attributes:
        network: its name in `flfw.nets`.
        iterations: of both sides.
        training: whether BatchNorm normalises by the batch.
        batch: images of each.
        side: height and width of the images.
        steps: of training, before.
        reveals: whether both know the statistics of the batch.
        seen_only_it: whether the running statistics are those of the batch.
        scale: weight that both sides give to half of the squared distance; None: each has its own.
    """

    network: str
    iterations: int
    training: bool = False
    batch: int = _BATCH
    side: int | None = None
    steps: int = 0
    reveals: bool = False
    seen_only_it: bool = False
    scale: float | None = None

    def victims(self, seed: int) -> Victims:
        """Return a seed's batch."""
        same = ("batch", "training", "side", "steps", "reveals", "seen_only_it")
        given: dict[str, Any] = {name: getattr(self, name) for name in same}
        return victims(self.network, 1, first=seed * self.batch, seed=seed, **given)

    def recipe(self) -> SearchConfig:
        """Return the settings of our search."""
        ours = GradInversion(GradInversionSettings(self.iterations, restarts=1, labels="given")).recipe(None)
        return ours if self.scale is None else replace(ours, distance=halved_squares(self.scale))


_SMALL = BatchCase(_SHALLOW, 1000, batch=1, side=16)
CASES = {
    "gradinversion_shallow": BatchCase(_SHALLOW, 1000, training=True),
    "gradinversion_resnet18": BatchCase("resnet18", 300, training=True),
    "gradinversion_eval": BatchCase("resnet18", 300),
    "gradinversion_sent": replace(_SMALL, training=True, reveals=True),
    "gradinversion_own": replace(_SMALL, seen_only_it=True),
    "gradinversion_own_equal": replace(_SMALL, seen_only_it=True, scale=1.0),
    "gradinversion_trained": replace(_SMALL, batch=2, steps=200),
}
PARTS = {
    "imprint": output.BenchmarkPart("images read off imprint modules of either side", 60, 25),
    "gradinversion_shallow": output.BenchmarkPart("GradInversion, two convolutions, training mode", 120, 20),
    "gradinversion_resnet18": output.BenchmarkPart("GradInversion, ResNet-18, training mode", 300, 0),
    "gradinversion_eval": output.BenchmarkPart("GradInversion, ResNet-18, evaluation mode", 300, 0),
    "gradinversion_sent": output.BenchmarkPart("GradInversion, one small image, its statistics sent", 60, 0),
    "gradinversion_own": output.BenchmarkPart("GradInversion, one small image, its statistics the running ones", 60, 0),
    "gradinversion_own_equal": output.BenchmarkPart("the same with equal weights", 60, 0),
    "gradinversion_trained": output.BenchmarkPart("GradInversion, two small images, trained weights", 60, 0),
}


def shallow(shape: tuple[int, ...], classes: int) -> Net:
    """Build two convolutions of 16 maps with BatchNorm, the second of which halves the sides."""
    first = [nn.Conv2d(shape[0], 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    second = [nn.Conv2d(16, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU()]
    head = nn.Linear(16 * (shape[1] // 2) * (shape[2] // 2), classes)
    return Net(nn.Sequential(*first, *second, nn.Flatten()), head)


# --- searches ---


def halved_squares(scale: float) -> Distance:
    """Return the distance of their ``seethroughgradients``: half of the squared one, times a weight.

    >>> float(halved_squares(0.5)({"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])}))
    1.0
    """
    return lambda trial, observed: scale / 2 * squared_distance(trial, observed)


def searched(attacked: Victims, config: SearchConfig) -> Tensor:
    """Search from the given first guesses; return normalised images (V, B, C, H, W)."""
    starts: Iterator[Tensor] = iter(attacked.start)
    model, unused = attacked.model(), torch.Generator()
    buffers = attacked.revealed or [nets.tensors(attacked.net)] * len(attacked)
    beside = [received_statistics(model.model, known) if config.model_prior else {} for known in buffers]
    sent = zip(attacked.observed, attacked.labels, beside, strict=True)
    targets = [SearchTarget(one, labels, unused, prior_constants=statistics) for one, labels, statistics in sent]
    results = invert(model, targets, replace(config, start=lambda shape, rng: next(starts)))
    return attacked.inputs.normalise(torch.stack([result.samples for result in results]))


def compared(theirs: Theirs, folder: Path, case: BatchCase, seeds: int) -> dict[str, Any]:
    """Measure the PSNR of both sides, a batch for each seed."""
    rows: dict[str, list[float]] = {"ours": [], "theirs": [], "start": [], "grey": []}
    for seed in range(seeds):
        attacked = case.victims(seed)
        _, answer = theirs(attacked, folder, "attack", case.iterations, tv=_TV, config=_CONFIG, scale=case.scale)
        grey = attacked.inputs.normalise(torch.full_like(attacked.truth, 0.5))
        guesses = {"ours": searched(attacked, case.recipe()), "theirs": answer["images"]}
        for side, images in {**guesses, "start": attacked.start, "grey": grey}.items():
            rows[side] += attacked.each_psnr(images)
    means = {side: fmean(values) for side, values in rows.items()}
    within, above = means["ours"] - means["theirs"] >= -_AHEAD_DB, max(means["ours"], means["theirs"]) > means["grey"]
    return {**in_decibels(rows), "within": within, "above_grey": above, "of": case.iterations, "batch": case.batch}


def in_decibels(sides: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return each side's PSNRs and their mean, and ours less theirs, rounded."""
    each = {side: [round(value, 2) for value in values] for side, values in sides.items()}
    means = {f"{side}_mean": round(fmean(values), 2) for side, values in sides.items()}
    return {**each, **means, "apart": round(fmean(sides["ours"]) - fmean(sides["theirs"]), 2)}


# --- imprint ---


def imprinting(folder: Path, python: Path, threads: int, problem: Mapping[str, Any], tensors: Tensors) -> Tensors:
    """Run `research.measurements.breaching_imprint` on a problem and return its answer.

    Raises:
        subprocess.CalledProcessError: it failed; the reason is on stderr.
    """
    (folder / "problem.json").write_text(json.dumps({**problem, "threads": threads}))
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "problem.safetensors")
    subprocess.run([str(python), "-W", "ignore", str(_IMPRINT_SIDE), str(folder)], check=True, stdout=sys.stderr)
    return load_file(folder / "answer.safetensors")


def imprint(python: Path, folder: Path, threads: int, seeds: int) -> list[dict[str, Any]]:
    """Count the images that each side reads off either side's module, of all seeds together."""
    plain = victims("cnn2", 1)
    inputs = plain.inputs
    inputs_given = {"shape": list(inputs.shape), "bins": _BINS}
    inputs_given |= {"mean": inputs.mean.flatten().tolist(), "std": inputs.std.flatten().tolist()}
    attack = Imprint(ImprintSettings(_BINS))
    public = inputs.normalise(pictures(_PUBLIC, first=_PUBLIC_FROM)[0])
    names = dict(attack.network(plain.net).named_parameters())
    ours = attack.crafted({name: value.detach() for name, value in names.items()}, public)
    theirs = imprinting(folder, python, threads, {**inputs_given, "mode": "module"}, {})
    modules = {"ours": ours, "theirs": {_PLACE + name: value for name, value in theirs.items()}}
    rows = []
    for crafter, module in modules.items():
        for size in _SIZES:
            batches = [imprinted(attack, module, seed, size) for seed in range(seeds)]
            tensors = {name.removeprefix(_PLACE): value for name, value in module.items()}
            for number, (_, observation, _) in enumerate(batches):
                kept = {n: v for n, v in observation.sent.items() if n.startswith(f"{_PLACE}measure")}
                tensors |= {f"{number}.{name.removeprefix(_PLACE)}": value for name, value in kept.items()}
            answer = imprinting(
                folder, python, threads, {**inputs_given, "mode": "read", "sizes": [size] * seeds}, tensors
            )
            read = {"ours": [], "theirs": []}
            for number, (truth, observation, knowledge) in enumerate(batches):
                (result,) = attack.run([observation], [knowledge], [torch.Generator()])
                images = answer[f"{number}.images"] * inputs.std + inputs.mean
                read["ours"] += matched_psnrs(truth, result.samples)
                read["theirs"] += matched_psnrs(truth, images)
            counts = {side: sum(db >= _EXACT_DB for db in values) for side, values in read.items()}
            means = {f"{side}_mean": round(fmean(values), 1) for side, values in read.items()}
            expected = round(expected_alone(_BINS, size) * size * seeds, 1)
            rows.append(
                {"module": crafter, "batch": size, "images": size * seeds, "expected": expected, **counts, **means}
            )
    return rows


def imprinted(attack: Imprint, module: Tensors, seed: int, size: int) -> tuple[Tensor, Observation, Knowledge]:
    """Return a batch in [0, 1], the gradient that a client with a module in front of CNN 2 sends, and the knowledge."""
    plain = victims("cnn2", 1, first=seed * max(_SIZES), batch=size, seed=seed)
    with initialising(seed, "net"):
        net = attack.network(plain.net)
    net.load_state_dict({**nets.tensors(net), **module})
    received = nets.tensors(net)
    model = PlainVictim(net, received, ("*",), plain.inputs)
    sent = model.gradient(plain.truth[0], plain.labels[0], {}, {})
    gradient = {name: value.detach() for name, value in sent.items()}
    observation = Observation(Vantage.SERVER, "probe", "target", 0, 0, 0, gradient, received)
    return plain.truth[0], observation, Knowledge(model, size, None)


# --- report ---


def lines(name: str, rows: Any) -> list[str]:
    """Return a part's figures, in words."""
    if name == "imprint":
        return [
            f"imprint, module of {row['module']}, batches of {row['batch']}: of {row['images']} images ours reads "
            f"{row['ours']}, theirs {row['theirs']} (expected {row['expected']} alone in a bin)"
            for row in rows
        ]
    missed = "" if rows["within"] else ": missed"
    nothing = "" if rows["above_grey"] else "; neither recovers anything"
    return [
        f"{name}: ours {rows['ours_mean']} dB, theirs {rows['theirs_mean']} dB, {rows['apart']:+} dB (goal: at least "
        f"{-_AHEAD_DB:+}{missed}); first guess {rows['start_mean']} dB, grey {rows['grey_mean']} dB{nothing}"
    ]


def started(flags: Parser, parts: Mapping[str, output.BenchmarkPart]) -> output.BenchmarkRun:
    """Start a comparison with breaching on as many threads as are asked for, by default all cores."""
    cores = len(os.sched_getaffinity(0))
    flags.add_argument("--threads", type=output.whole(), default=cores, help="of both sides (all cores)")
    run = output.start(flags, parts)
    torch.set_num_threads(run.asked.threads)
    return run


def require_pictures(dataset: str) -> None:
    """Refuse to go on without the files of a data set."""
    if pictures(1, dataset)[2] == "random images":
        output.refuse(f"Expected the files of {dataset}, found none; set FLFW_DATA.")


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--seeds", type=output.whole(), help="of each part (2); quick: 1")
    flags.add_argument("--batch", type=output.whole(), help="images of each search")
    flags.add_argument("--iterations", type=output.whole(), help="of both sides; quick: 30")
    run = started(flags, PARTS)
    python, threads, seeds = breaching_env.required(), run.asked.threads, run.amount(2, 1, run.asked.seeds)
    require_pictures("cifar10")
    theirs, results = Theirs(python, threads), {}
    with tempfile.TemporaryDirectory() as folder:
        for name in run.parts():
            if name == "imprint":
                results[name] = imprint(python, Path(folder), threads, seeds)
                continue
            iterations = run.amount(CASES[name].iterations, 30, run.asked.iterations)
            batch = run.asked.batch or CASES[name].batch
            case = replace(CASES[name], iterations=iterations, batch=batch)
            results[name] = compared(theirs, Path(folder), case, seeds)
    text = [line for name, rows in results.items() for line in lines(name, rows)]
    run.report({"threads": threads, "seeds": seeds, **results}, text)


if __name__ == "__main__":
    main()
