"""IG with and without a flow as its prior.

``python -m research.measurements.flow_prior [--json] [--quick] [--only cnn1_4]``.

Parts are a network, fresh for each of three seeds, and a batch size of Fashion-MNIST; in ``noise`` the gradient has
Gaussian noise of deviation 10 in each entry, of which the attacker is told. Victims are training images from 20000 on.
The flow is trained once, on all 10,000 test images, with the attack's default settings; look-alikes are test images of
the class. Searches: ``tv`` (IG's default), ``tv_3`` (the same with three starts, the budget of ``flow``) and ``flow``,
300 iterations each. Reported: PSNR and SSIM over all images, each assigned within its batch; the median distance of the
results, and the largest of the truth; identified images among 99 look-alikes, their expected number by chance, and the
probability of that many. Real data only, below $FLFW_DATA.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, median

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks import output
from flfw import data, nets
from flfw.attacks.adaptations.dp_gaussian import DPGaussianAdaptation
from flfw.attacks.ig import IG, IGSettings
from flfw.audit.measures.identification import identify
from flfw.audit.measures.metrics import psnr, ssim
from flfw.audit.measures.permutations import GuessedBatch
from flfw.audit.measures.public import PublicData
from flfw.audit.measures.recovery import assign
from flfw.data import Dataset
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.inputs import InputSpec
from flfw.nets.training.optimisers import loss_and_grad
from flfw.recording.observation import Examples, Knowledge, Observation, Reconstruction, Vantage
from flfw.rng import initialising, numpy_generator, torch_generator

_SEEDS, _FIRST, _ITERATIONS, _BATCH, _MESSAGES = 3, 20000, 300, 4, 3
_SEARCHES = {
    "tv": IGSettings(_ITERATIONS),
    "tv_3": IGSettings(_ITERATIONS, restarts=3),
    "flow": IGSettings(_ITERATIONS, prior="flow"),
}


NOISES = {"cnn1_4": 0.0, "noise": 10.0}
"""Deviation of the noise, by part."""
PARTS = {
    "cnn1_4": output.BenchmarkPart("cnn1, batches of 4, undefended", 430, 30),
    "noise": output.BenchmarkPart("cnn1, batches of 4, hidden by noise", 200, 0),
}


@dataclass(frozen=True)
class FlowRow:
    """Results of a search; see the module."""

    images: int
    psnr: float
    ssim: float
    distance: float
    truth: float
    identified: int
    chance: float
    p: float


def messages(std: float, seed: int, dataset: Dataset) -> tuple[list[Observation], list[Knowledge], list[np.ndarray]]:
    """Compute the messages of a seed, with the knowledge granted about them and their true images."""
    inputs = InputSpec.from_constants(dataset.shape, dataset.mean, dataset.std)
    with initialising(seed, "flow prior"):
        net = nets.build("cnn1", dataset.shape, dataset.classes)
    named, received = dict(net.named_parameters()), nets.tensors(net)
    victim, public = PlainVictim(net, received, ("*",), inputs), Examples(*_test_images(dataset))
    mechanism = DPGaussianAdaptation({"std": std, "clip": 0.0}) if std else None
    observations, knowledge, truth = [], [], []
    for i in range(_MESSAGES):
        first = _FIRST + 1000 * seed + _BATCH * i
        images = dataset.train_x[range(first, first + _BATCH)]
        x, y = torch.tensor(images).float() / 255, torch.tensor(dataset.train_y[range(first, first + _BATCH)])
        _, gradients = loss_and_grad(cross_entropy(net(inputs.normalise(x)), y), named)
        noise = torch_generator(seed, "noise", i)
        sent = {n: g + std * torch.randn(g.shape, generator=noise) for n, g in gradients.items()}
        observations.append(Observation(Vantage.SERVER, "probe", "target", 0, 0, i, sent, received))
        knowledge.append(Knowledge(victim, _BATCH, y, operator=mechanism, public=public))
        truth.append(x.numpy())
    return observations, knowledge, truth


def _test_images(dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(dataset.test_x).float() / 255, torch.tensor(dataset.test_y)


def measure(std: float, settings: IGSettings, seeds: int, dataset: Dataset) -> FlowRow:
    """Attack the messages of all seeds, and judge the results."""
    samples, labels = _test_images(dataset)
    public, attempts, scores, distances, truths = PublicData(samples.numpy(), labels.numpy()), [], [], [], []
    for seed in range(seeds):
        observations, knowledge, truth = messages(std, seed, dataset)
        rngs = [torch_generator(seed, "flow prior attack", i) for i in range(len(truth))]
        attack = IG(settings)
        for i, result in enumerate(attack.run(observations, knowledge, rngs)):
            known = knowledge[i].labels
            assert known is not None and result.matching_loss is not None, "granted, and a search"
            fits = attack.objective(observations[i], knowledge[i], [Reconstruction(torch.tensor(truth[i]))], rngs[i])
            assert fits is not None, "there are labels, and no private tensors"
            truths.append(fits[0].distance)
            distances.append(result.matching_loss)
            guesses = result.samples.numpy()
            pairs = zip(truth[i], guesses[assign(truth[i], guesses)], strict=True)
            scores += [(psnr(*pair), ssim(*pair)) for pair in pairs]
            rng = numpy_generator(seed, "look-alikes", i)
            others = [public.lookalike_indices(int(label), rng) for label in known]
            attempts.append(GuessedBatch(truth[i], guesses, known.numpy(), others))
    seen = identify(attempts, public, numpy_generator(0, "identification"), draws=999)
    chance = (seen.chance or 0.0) * seen.compared
    db, alike = mean(score[0] for score in scores), mean(score[1] or 0.0 for score in scores)
    return FlowRow(len(scores), db, alike, median(distances), max(truths), seen.count, chance, seen.p)


def lines(part: str, table: dict[str, FlowRow]) -> Iterable[str]:
    """Yield a title and a line for each search."""
    yield f"{part}: images; PSNR, SSIM; median distance, largest of the truth; identified, by chance, p"
    for name, row in table.items():
        apart = f"{row.distance:.3g}, {row.truth:.3g}; {row.identified}, {row.chance:.1f}, {row.p:.2g}"
        yield f"  {name:5} {row.images}; {row.psnr:.2f} dB, {row.ssim:.3f}; {apart}"


def main() -> None:
    """Measure and print."""
    run = output.start(output.parser(__doc__), PARTS)
    dataset = output.or_refused(lambda: data.load("fmnist"))
    torch.set_num_threads(1)
    few = {"iterations": 20, "flow_iterations": 20, "flow_steps": 5} if run.asked.quick else {}
    searches = {name: IGSettings(**{**vars(one), **few}) for name, one in _SEARCHES.items()}
    tables: dict[str, dict[str, FlowRow]] = {}
    for part in run.parts():
        tables[part] = {}
        for name, settings in searches.items():
            tables[part][name] = measure(NOISES[part], settings, run.amount(_SEEDS, 1), dataset)
            run.begin(f"{name}: {tables[part][name]}")
    results = {part: {name: vars(row) for name, row in table.items()} for part, table in tables.items()}
    run.report({"flow_prior": results}, [line for part, table in tables.items() for line in lines(part, table)])


if __name__ == "__main__":
    main()
