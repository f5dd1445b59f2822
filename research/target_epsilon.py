"""Accuracy at a target epsilon: the chosen training beside a grid. ``python -m research.target_epsilon [DATA ...]``.

The chosen training is that of ``sim.py --net linear --split iid --target-epsilon E``. The grid has DP-FedAvg on the
same data and network, with the same clipping, Poisson batches, accountant and average of models, at each of `RATES` by
each of `SCHEDULES`: 20 settings. All its rates and seeds are simulated together. What is measured stays in
``runs/target-epsilon`` and is not measured again; the page has all that there is.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import ceil
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from flfw.experiment import Experiment
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.files.sealed import write_atomic
from flfw.plans.run_plan import plan, without_auto
from flfw.privacy.calibration import calibrate_noise_multiplier
from flfw.privacy.mechanism import Mechanism, SeenMechanism
from flfw.rng import torch_generator
from flfw.runs.run import choose_training, run_or_resume

RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
SCHEDULES = ((16, 1), (16, 4), (8, 8), (16, 16))
"""Rounds, and the local steps of each, on a share of a client's examples that is one over them."""
DATA, EPSILONS, CLIENTS, SEEDS = ("digits", "cancer", "adult", "mnist", "fmnist"), (1, 4, 8), (5, 20, 50), (1, 2)
RUNS, PAGE = Path("runs/target-epsilon").absolute(), Path(__file__).parents[1] / "docs/tables/target_epsilon.md"
_HEAD = """<!-- Written by python -m research.target_epsilon -->
# Accuracy at a target epsilon

Test accuracy of `--target-epsilon` without `--method` (`--net linear --split iid`), mean of two runs; then of the same
training and of the best of a grid of 20 (`research/target_epsilon.py`), both simulated with eight seeds, on more than
10,000 examples with one; their ratio. –: not measured.

| data, epsilon | 5 clients | 20 clients | 50 clients |
|---|---|---|---|
"""


def main(arguments: Sequence[str]) -> int:
    """Measure what is missing and write the page."""
    ask = Parser(prog="python -m research.target_epsilon", description=__doc__)
    ask.add_argument("data", nargs="*", default=DATA, help="data sets to measure (all)")
    for name, epsilon, clients in product(ask.parse_args(arguments).data, EPSILONS, CLIENTS):
        asked = Experiment(method="dp_fedavg", dataset=name, net="linear", split="iid", clients=clients)
        asked = replace(asked, target_epsilon=epsilon, attack=("none",), metrics="none", engine="inproc")
        folder = RUNS / f"{name}-{epsilon}-{clients}"
        if all((folder / one).exists() for one in ("grid.json", *(f"seed-{seed}/result.json" for seed in SEEDS))):
            continue
        chosen = [choose_training(replace(asked, seed=seed, out=folder / f"seed-{seed}"), ()) for seed in SEEDS]
        if not (folder / "grid.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / "grid.json", json.dumps(grid(chosen[0])).encode())
        for each in chosen:
            if not (each.folder / "result.json").exists():
                run_or_resume(each)
    rows = ([f"{n}, {e}", *(_cell(RUNS / f"{n}-{e}-{k}") for k in CLIENTS)] for n, e in product(DATA, EPSILONS))
    write_atomic(PAGE, (_HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)).encode())
    return 0


def _cell(folder: Path) -> str:
    if not (folder / "grid.json").exists():
        return "–"
    runs = [json.loads(run.read_text())["final"]["acc_central"] for run in folder.glob("seed-*/result.json")]
    rules = f"{fmean(runs):.3f}" if len(runs) == len(SEEDS) else "–"
    *tried, simulated = json.loads((folder / "grid.json").read_text()).values()
    return f"{rules}; {simulated:.3f} of {max(tried):.3f}: {simulated / max(tried):.2f}"


def grid(chosen: Experiment) -> dict[str, float]:
    """Return the mean accuracy over simulated seeds of each setting of the grid, and last of the chosen training."""
    task, rng, found = plan(without_auto(chosen)).task.load(None), torch_generator(1, "grid"), dict[str, float]()
    classes, tests = task.dataset.classes, np.arange(len(task.dataset.test_y))
    schedule = chosen.rounds, ceil(len(task.split.train[0]) / chosen.batch_size)
    seeds = 1 if len(task.dataset.train_y) > 10_000 else 8  # seeds of large data hardly differ

    def given(part: str, places: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = task.examples(part, places)
        return torch.cat([task.inputs.normalise(x).flatten(1), torch.ones(len(x), 1)], 1), torch.eye(classes)[y]

    def trained(x: torch.Tensor, y: torch.Tensor, model: torch.Tensor, local: int, sigma: float) -> torch.Tensor:
        for _ in range(local):
            drawn = torch.rand(len(x), generator=rng) < 1 / local
            xs, ys = x[drawn], y[drawn][:, None]
            errors = torch.softmax((xs @ model).unflatten(1, (-1, classes)), 2) - ys
            lengths = errors.norm(dim=2) * xs.norm(dim=1, keepdim=True)
            total = xs.T @ (errors / lengths.clamp(min=1)[..., None]).flatten(1)
            model = model - lrs * (total + sigma * torch.randn(model.shape, generator=rng)) * local / len(x)
        return model

    parts, (x, y) = [given("train", one) for one in task.split.train], given("test", tests)
    for (rounds, local), rates in [*((one, RATES) for one in SCHEDULES), (schedule, (chosen.lr,))]:
        lrs = torch.tensor(rates).repeat_interleave(seeds * classes)
        each = Mechanism(1.0, rounds * local, sampling_rate=1 / local, poisson=True)
        sigma = calibrate_noise_multiplier(chosen.target_epsilon, [[SeenMechanism(each)]], 1e-5)
        model = average = (2 * torch.rand(x.shape[1], len(lrs), generator=rng) - 1) / (x.shape[1] - 1) ** 0.5
        for done in range(1, rounds + 1):
            model = torch.stack([trained(*part, model, local, sigma) for part in parts]).mean(0)
            average = average + (model - average) * 9 / (10 + done)
        right = (x @ average).unflatten(1, (-1, classes)).argmax(2) == y.argmax(1)[:, None]
        means = right.float().mean(0).view(len(rates), -1).mean(1).tolist()
        words = f"{rounds} rounds of {local}" + " as chosen" * (rates is not RATES)
        found |= {f"lr {lr}, {words}": mean for lr, mean in zip(rates, means, strict=True)}
    return found


if __name__ == "__main__":
    sys.exit(exit_code("python -m research.target_epsilon", lambda: main(sys.argv[1:])))
