"""Rates of canary audits that catch too little noise.

``python -m research.measurements.canary_bounds [--quick] [--only ideal]``.

Each run claims a Gaussian mechanism of mu 1 and is caught if its lower bound on mu is above that. Counted are the runs
caught by the bound from guesses (``gaussian``) and by that from the mean difference of the scores.

- ideal: independent normal scores, 1.5 deviations apart as for two thirds of the noise, by the number of canaries.
- honest: the same at mu 1, and functions of such scores that break the normal distribution.
- pixels: the clients' own code for a round of one step, on images of one bright pixel.
- digits: the same on scikit-learn's digits, where the canaries' gradients are far from orthogonal, and over five
  rounds of two steps.

Clients with two thirds of the noise get settings with a smaller noise multiplier than is claimed. Half of the canaries
are out of the data by their coins, as in every run with ``--expert canaries``. The last line of the output is one
JSON object.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from benchmarks import output
from flfw.client.context import ClientContext
from flfw.data.canaries import Canaries, draw, relabelled, without_left_out
from flfw.data.files.dataset import Dataset
from flfw.data.splits.partition import Split
from flfw.dp.canary_audit import CanaryScorer, lower
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan, without_auto
from flfw.rng import numpy_generator
from flfw.server.aggregation import Update
from flfw.task.pipeline import NetworkPlan
from flfw.task.task import Task

_DELTA, _NOBODY = 1e-5, np.zeros(0, np.int64)
_LESS = 2 / 3
_IDEAL = ((200, 100), (1000, 60), (5000, 60), (20000, 40), (50000, 30), (100000, 20))  # canaries and runs
_PIXELS = ((1, 200), (5, 200), (5, 1000))  # clients and canaries at each
_DIGITS: Final[dict[str, dict[str, Any]]] = {
    "1 client, linear, 200 canaries": {"clients": 1, "net": "linear", "canaries": 200},
    "1 client, linear, 1000 canaries": {"clients": 1, "net": "linear", "canaries": 1000},
    "3 clients, mlp, 1000 canaries": {"clients": 3, "net": "mlp", "canaries": 1000},
    "1 client, linear, 1000 canaries, 5 rounds of 2 steps": {
        "clients": 1,
        "net": "linear",
        "canaries": 1000,
        "rounds": 5,
        "local_epochs": 2,
    },
}
SHAPES: Final[dict[str, Callable[[np.ndarray], np.ndarray]]] = {
    "normal": lambda s: s,
    "likelihood ratio": lambda s: np.tanh((s - 0.5) / 2),
    "right or wrong": lambda s: np.sign(s - 0.5),
    "only the highest": lambda s: (s > 2).astype(float),
    "heavy tails": lambda s: (s - 0.5) ** 3,
    "lognormal": np.exp,
    "unequal variances": lambda s: np.where(s > 0.5, 5, 1) * (s - 0.5),
}
"""Functions of a score that is N(1, 1) with its canary in, and N(0, 1) with it left out."""
PARTS = {
    "ideal": output.BenchmarkPart("independent scores that show two thirds of the noise", 60, 3),
    "honest": output.BenchmarkPart("honest scores of many shapes, 200 and 1,000 canaries", 120, 3),
    "pixels": output.BenchmarkPart("clients on images of one bright pixel", 400, 10),
    "digits": output.BenchmarkPart("clients on digits", 600, 20),
}


def caught(scores: np.ndarray, included: np.ndarray) -> np.ndarray:
    """Return whether the guesses, and whether the mean difference, show a mu above 1."""
    nobody = np.zeros(len(scores), np.int64)
    bound = lower(scores, Canaries(nobody, nobody, nobody, included), _DELTA)
    return np.array([bound["gaussian"]["mu"] > 1, bound["mean_difference"]["mu"] > 1])


def independent(canaries: int, mu: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw scores N(mu, 1) and N(0, 1), and the coins."""
    rng = numpy_generator(seed, "ideal canaries", canaries)
    included = rng.random(canaries) < 0.5
    return rng.normal(mu * included), included


def of_single_pixels(experiment: Experiment, pixels: int) -> Task:
    """Build a task in which the gradients of a client's canaries hardly meet: each is one bright pixel of its own."""
    x = np.tile(np.eye(pixels, dtype=np.uint8) * 255, (experiment.clients, 1)).reshape(-1, 1, 1, pixels)
    y = np.arange(len(x)) % 2
    dataset = Dataset("pixels", x, y, x[:1], y[:1], 2, (0.0,), (0.1,), "made up", None)
    given = tuple(np.arange(len(x)).reshape(experiment.clients, pixels))
    split = Split(
        given, (np.zeros(1, np.int64),) * experiment.clients, *((_NOBODY,) * experiment.clients, *(_NOBODY,) * 3)
    )
    chosen = draw(split, y, 2, len(x), experiment.seed)
    return Task(
        replace(dataset, train_y=relabelled(y, chosen)),
        without_left_out(split, chosen),
        NetworkPlan("linear"),
        "none",
        chosen,
    )


def claiming_one(seed: int, clients: int, batch: int, **others: Any) -> Experiment:
    """Return an experiment whose steps of whole batches claim mu 1 together."""
    steps = others.get("rounds", 1) * others.get("local_epochs", 1)
    fields = (f"noise_multiplier={steps**0.5}", "clip=1", "momentum=0", "weight_decay=0")
    usual = {"rounds": 1, "local_epochs": 1, "net": "linear", "lr": 0.1}
    requested = {"method": "dp_fedavg", "split": "iid", "clients": clients, "batch_size": batch, "seed": seed}
    return Experiment(**(requested | usual | others), set=fields)


def heard(experiment: Experiment, task: Task, noise: float) -> np.ndarray:
    """Train all clients with this share of the noise that is claimed; return the canaries' scores."""
    run_plan = plan(experiment)
    listener = CanaryScorer(run_plan.client, task)
    sent = {name: value.clone() for name, value in listener.model.state_dict().items()}
    for done in range(experiment.rounds):
        updates = []
        for partition in range(experiment.clients):
            client = run_plan.client_class(
                ClientContext(plan(experiment).client, task, partition, done + 1, None, None)
            )
            update, _ = client.fit_named({name: value.numpy() for name, value in sent.items()}, 0)
            updates.append({name: value.clone() for name, value in update.items()})
            listener(sent, Update(partition, 1, updates[-1]))
        sent = {name: torch.stack([update[name] for update in updates]).mean(0) for name in sent}
    return listener.scores.numpy()


def _of_clients(make: Callable[[int], tuple[Experiment, Task]], noise: float, runs: int) -> dict[str, Any]:
    counts = np.zeros(2, int)
    for seed in range(runs):
        requested, task = make(seed)
        assert task.canaries is not None, "the experiment asks for them"
        counts += caught(heard(requested, task, noise), task.canaries.included)
    return _counted(counts, runs)


def _counted(counts: np.ndarray, runs: int) -> dict[str, int]:
    return {"guesses": int(counts[0]), "mean_difference": int(counts[1]), "runs": runs}


def _pixels(clients: int, pixels: int) -> Callable[[int], tuple[Experiment, Task]]:
    def make(seed: int) -> tuple[Experiment, Task]:
        requested = claiming_one(seed, clients, pixels, canaries=clients * pixels)
        return requested, of_single_pixels(requested, pixels)

    return make


def _digits(fields: dict[str, Any]) -> Callable[[int], tuple[Experiment, Task]]:
    def make(seed: int) -> tuple[Experiment, Task]:
        experiment = without_auto(claiming_one(seed, batch=2000, dataset="digits", **fields))
        return experiment, plan(experiment).task.load(None)

    return make


def measure(run: output.BenchmarkRun) -> dict[str, Any]:
    """Measure the chosen parts: numbers of runs that were caught."""
    results: dict[str, Any] = {}
    for name in run.parts():
        rates: dict[str, Any] = {}
        if name == "ideal":
            for canaries, usual in _IDEAL:
                runs = run.amount(usual, 2)
                rates[f"{canaries} canaries"] = _counted(_sum(independent(canaries, 1.5, s) for s in range(runs)), runs)
        elif name == "honest":
            runs = run.amount(1000, 5)
            for shape, scores in SHAPES.items():
                for canaries in (200, 1000):
                    drawn = (independent(canaries, 1.0, seed) for seed in range(runs))
                    rates[f"{shape}, {canaries}"] = _counted(_sum((scores(s), coins) for s, coins in drawn), runs)
        else:
            makers = {f"{c} clients, {p} canaries each": _pixels(c, p) for c, p in _PIXELS}
            makers = makers if name == "pixels" else {words: _digits(fields) for words, fields in _DIGITS.items()}
            for words, make in makers.items():
                rates[f"{words}, two thirds"] = _of_clients(make, _LESS, run.amount(20, 1))
                rates[f"{words}, honest"] = _of_clients(make, 1.0, run.amount(200, 1))
        results[name] = rates
    return results


def _sum(runs: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    return np.sum([caught(*run) for run in runs], axis=0)


def main() -> None:
    """Measure and print."""
    run = output.start(output.parser(__doc__), PARTS)
    results = measure(run)
    lines = [
        f"{name}, {words}: of {row['runs']} runs caught {row['guesses']} by guesses, {row['mean_difference']} by means"
        for name, rates in results.items()
        for words, row in rates.items()
    ]
    run.report(results, lines)


if __name__ == "__main__":
    main()
