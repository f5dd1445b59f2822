"""Power of membership inference.

``python -m research.measurements.membership [--json] [--quick] [--only fresh steps]``.

One mean gradient over N examples of CNN 1 is the update, in evaluation mode; its members and as many other examples are
the candidates, and 1,500 more are public. All are MNIST's, from $FLFW_DATA; without it, and with ``--quick``, they are
scikit-learn's digits, which the JSON object says.

- fresh: AUC of the cosine, of the gradient difference and of the whitened projection at fresh weights, for N = 8, 80
  and 320, each the mean over draws with its standard error; and the AUC that the effective dimension of the public
  gradients predicts for the last.
- trained: the same after three epochs on 2,000 other images. Few badly fitted examples carry such a gradient, so that
  the prediction does not hold.
- null: p-values of the whitened projection with permuted membership, over seeds: the p-value of a test of Kolmogorov
  and Smirnov that they are uniform.
- attack: AUC of each statistic of ``--attack membership`` (eight shadow trainings, one other client) for one step on
  8, 80 and 320 examples at fresh weights, the mean over draws with its standard error.
- steps: the same for 80 examples after 1, 10 and 60 local steps of 8 examples (1, 1 and 6 epochs), and after 10 steps
  from the trained network; no prediction holds there.

The last line of the output is one JSON object.
"""

import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from benchmarks import output
from flfw import data, nets
from flfw.adversary.membership.gradients import compared_gradients, gradient_sketches
from flfw.adversary.membership.informed import effective_dimension
from flfw.adversary.membership.statistics import Whitening, cosine, gradient_difference
from flfw.inversion.sketch import Sketch
from flfw.nets.net import Net, Tensors
from flfw.recording.observation import Examples
from flfw.rng import initialising, numpy_generator, torch_generator
from research.measurements.membership_attack import ClientTraining, auc, means, scores, view

_WIDTH, _PUBLIC, _EXAMPLES = 512, 1500, (8, 80, 320)
PARTS = {
    "fresh": output.BenchmarkPart("AUC of one gradient at fresh weights", 120, 8),
    "trained": output.BenchmarkPart("AUC of one gradient after three epochs", 120, 0),
    "null": output.BenchmarkPart("p-values with permuted membership", 60, 8),
    "attack": output.BenchmarkPart("AUC of the attack after one step", 60, 0),
    "steps": output.BenchmarkPart("AUC of the attack after several steps", 100, 10),
}


@cache
def examples(name: str) -> tuple[Tensor, Tensor]:
    """Return all training images of a data set at 28 pixels, normalised, with their labels."""
    root = os.environ.get("FLFW_DATA")
    dataset = data.load(name, Path(root) if root else None, None if name == "mnist" else 28)
    pixels = torch.tensor(dataset.train_x).float() / 255
    return (pixels - dataset.mean[0]) / dataset.std[0], torch.tensor(dataset.train_y).long()


def source(quick: bool) -> str:
    """Return the data set that is used."""
    root = os.environ.get("FLFW_DATA")
    return "mnist" if root and (Path(root) / "MNIST").is_dir() and not quick else "digits"


def predicted_auc(dimension: float, examples: int) -> float:
    """Return the AUC, in [0.5, 1], that normal gradients allow for a mean gradient of N examples at one point.

    It is Phi(sqrt(d_eff / (2 N))). Gradients of a trained network have heavy tails, for which it does not hold.

    Args:
        dimension: d_eff >= 0 of `flfw.adversary.membership.informed.effective_dimension`.
        examples: N >= 1.

    >>> round(predicted_auc(260, 80), 2), round(predicted_auc(260, 320), 2)
    (0.9, 0.74)
    """
    return NormalDist().cdf(sqrt(dimension / (2 * examples)))


def scored(net: Net, draw: Examples, count: int, seed: int) -> dict[str, Tensor | float]:
    """Score members and others by the members' mean gradient; beside the scores is the AUC that is predicted.

    Args:
        net: the network that the members' gradient is of.
        draw: ``count`` members, as many others, and public examples.
        count: number of the members.
        seed: of the sketch.
    """
    members, candidates, others = (
        (draw.samples[part], draw.labels[part]) for part in (slice(count), slice(2 * count), slice(2 * count, None))
    )
    at = {name: value.detach() for name, value in net.named_parameters()}
    sketch = Sketch.draw(at, _WIDTH, torch_generator(seed, "sketch"))

    def gradient(x: Tensor, y: Tensor) -> Tensors:
        return torch.func.grad(lambda moving: cross_entropy(functional_call(net, moving, (x,)), y))(at)

    update = gradient(*members)
    public, seen = (
        gradient_sketches(gradient, sketch, *others),
        compared_gradients(gradient, sketch, [update], *candidates),
    )
    products = seen.with_update(0, cross_entropy(net(candidates[0]), candidates[1], reduction="none").detach())
    half = Whitening.fit(public[: len(public) // 2])
    predicted = predicted_auc(effective_dimension(half, public[len(public) // 2 :], 0.0), count)
    whitened = Whitening.fit(public).scores(seen.sketches, sketch.of(update))
    compared = {"cosine": cosine(products), "gradient_difference": gradient_difference(products)}
    return {**compared, "whitened": whitened, "predicted": predicted}


def network(seed: int) -> Net:
    """Build CNN 1 at fresh weights."""
    with initialising(seed, "net"):
        return nets.build("cnn1", (1, 28, 28), 10).eval()


def trained(seed: int, x: Tensor, y: Tensor, epochs: int = 3, batch: int = 10, lr: float = 0.1) -> Net:
    """Train CNN 1 by plain SGD."""
    net, rng = network(seed), torch_generator(seed, "training")
    for _ in range(epochs):
        for indices in torch.randperm(len(x), generator=rng).split(batch):
            gradients = torch.autograd.grad(cross_entropy(net(x[indices]), y[indices]), list(net.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter -= lr * gradient
    return net


def areas(
    name: str, build: Callable[[int], Net], draws: int, public: int, kept: int, counts: tuple[int, ...] = _EXAMPLES
) -> dict[str, Any]:
    """Return mean and standard error of each statistic's AUC, by the number of examples."""

    def of_seed(count: int, seed: int) -> Mapping[str, Tensor | float]:
        return scored(build(seed), some(name, 2 * count + public, seed, kept), count, seed)

    return {str(count): _means(partial(of_seed, count), draws) for count in counts}


def uniform(name: str, seeds: int, public: int) -> dict[str, Any]:
    """Test that p-values of permuted membership are uniform."""
    from scipy.stats import kstest, mannwhitneyu

    values = []
    for seed in range(seeds):
        scores = np.asarray(scored(network(seed), some(name, 80 + public, seed), 40, seed)["whitened"])
        members = numpy_generator(seed, "permuted").permutation(80) < 40
        values.append(float(mannwhitneyu(scores[members], scores[~members], alternative="greater").pvalue))
    return {"seeds": seeds, "uniform_p": round(float(kstest(values, "uniform").pvalue), 4)}


def attacked(
    name: str, build: Callable[[int], Net], training: ClientTraining, draws: int, public: int, kept: int = 0
) -> dict[str, Any]:
    """Return mean and standard error of the AUC of each statistic of the whole attack, with two clients."""

    def of_seed(seed: int) -> dict[str, Tensor]:
        draw = some(name, 3 * training.members + public, seed, kept)
        by_name = scores(view(build, draw, training, seed, clients=2), seed)
        del by_name["trajectory"]  # of one round it is the whitened projection
        return by_name

    return _means(of_seed, draws)


def some(name: str, count: int, seed: int, kept: int = 0) -> Examples:
    """Draw distinct examples; the ``kept`` first of the permutation are left for training."""
    x, y = examples(name)
    indices = torch.randperm(len(x), generator=torch_generator(seed, "draw"))[kept : kept + count]
    return Examples(x[indices], y[indices])


def _means(of_seed: Callable[[int], Mapping[str, Tensor | float]], draws: int) -> dict[str, dict[str, float]]:
    """Return mean and standard error over draws of each statistic's AUC, from scores or from the AUC itself."""
    rows = [
        {name: auc(part) if isinstance(part, Tensor) else part for name, part in of_seed(seed).items()}
        for seed in range(draws)
    ]
    return means(rows, "auc")


def measure(run: output.BenchmarkRun) -> dict[str, Any]:
    """Measure the chosen parts."""
    name = source(run.asked.quick)
    public = run.amount(_PUBLIC, 600)
    results: dict[str, Any] = {"data": name}
    for part in run.parts():
        if part == "fresh":
            results[part] = areas(name, network, run.amount(20, 1), public, 0)
        elif part == "trained":
            results[part] = areas(name, partial(_trained_on, name), run.amount(8, 1), public, 2000)
        elif part == "null":
            results[part] = uniform(name, run.amount(20, 5), public)
        else:
            results[part] = _of_the_attack(run, part, name, public)
    return results


def _of_the_attack(run: output.BenchmarkRun, part: str, name: str, public: int) -> dict[str, Any]:
    draws = run.amount(5, 1)
    if part == "attack":
        alone = [ClientTraining(count, 1) for count in _EXAMPLES]
        return {f"{one.members} examples": attacked(name, network, one, draws, public) for one in alone}
    trainings = [ClientTraining(80, steps, 8) for steps in ((10,) if run.asked.quick else (1, 10, 60))]
    result = {f"{one.steps} steps": attacked(name, network, one, draws, public) for one in trainings}
    if not run.asked.quick:
        late = attacked(name, partial(_trained_on, name), ClientTraining(80, 10, 8), draws, public, 2000)
        result["10 steps after three epochs"] = late
    return result


def _trained_on(name: str, seed: int) -> Net:
    x, y = examples(name)
    kept = torch.randperm(len(x), generator=torch_generator(seed, "draw"))[:2000]
    return trained(seed, x[kept], y[kept])


def lines(results: dict[str, Any]) -> list[str]:
    """Return the results in words."""
    words = []
    for part in ("fresh", "trained", "attack", "steps"):
        for case, row in results.get(part, {}).items():
            aucs = ", ".join(f"{name} {each['auc']:.3f} ({each['error']:.3f})" for name, each in row.items())
            words.append(f"{part}, {case}: AUC {aucs}")
    if "null" in results:
        words.append(f"permuted membership: p-values uniform with p = {results['null']['uniform_p']}")
    return words


def main() -> None:
    """Run the benchmark."""
    run = output.start(output.parser(__doc__), PARTS)
    torch.set_num_threads(1)
    results = measure(run)
    run.report(results, lines(results))


if __name__ == "__main__":
    main()
