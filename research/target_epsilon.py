"""Accuracy at a target epsilon: the chosen training beside a grid. ``python -m research.target_epsilon --data mnist``.

The chosen training is that of ``sim.py --net linear --split iid --target-epsilon E``. The grid has DP-FedAvg with the
same network, data, clipping to 1, Poisson batches, accountant and average of models, at each of `RATES` for each of
`SCHEDULES`: 20 settings. It is simulated in one process, where all rates and seeds share a client's batches. What is
measured already is not measured again; the page has all that there is.
"""

import json
import sys
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean

import torch
from torch.nn.functional import one_hot

import flfw
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.files.sealed import write_atomic
from flfw.plans.run_plan import plan, without_auto
from flfw.privacy.calibration import calibrate_noise_multiplier
from flfw.privacy.mechanism import Mechanism, SeenMechanism
from flfw.rng import torch_generator
from flfw.server.checkpoint import is_complete
from flfw.task.task import Task

RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
SCHEDULES = ((16, 1), (16, 4), (8, 8), (16, 16))
"""Rounds, and the local steps of each, on a share of a client's examples that is one over them."""
DATA, EPSILONS, CLIENTS, SEEDS = ("digits", "cancer", "adult", "mnist", "fmnist"), (1, 4, 8), (5, 20, 50), (1, 2)
PAGE = Path(__file__).parents[1] / "docs" / "tables" / "target_epsilon.md"
_HEAD = """<!-- Written by python -m research.target_epsilon -->
# Accuracy at a target epsilon

Test accuracy of `--target-epsilon E` without `--method` (`--net linear --split iid`), the best of a grid of 20
settings (`research/target_epsilon.py`, simulated), and their ratio; each a mean of seeds 1 and 2; –: not measured.

"""


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return exit_code("python -m research.target_epsilon", lambda: _do(arguments))


def _do(arguments: Sequence[str]) -> int:
    ask = Parser(prog="python -m research.target_epsilon", description=__doc__)
    ask.add_argument("--data", nargs="*", choices=DATA, default=DATA, help="data sets to measure (all)")
    ask.add_argument("--runs", type=Path, default=Path("runs/target-epsilon"), help="folder of the runs")
    given = ask.parse_args(arguments)
    for name, epsilon, clients in product(given.data, EPSILONS, CLIENTS):
        folder = given.runs.absolute() / f"{name}-{epsilon}-{clients}"
        asked = {"dataset": name, "net": "linear", "split": "iid", "clients": clients, "attack": "none"}
        if not (folder / "grid.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            task = plan(without_auto(flfw.Experiment(method="dp_fedavg", **asked))).task.load(None)
            write_atomic(folder / "grid.json", json.dumps(grid(task, clients, epsilon)).encode())
        for seed in SEEDS:
            if not is_complete(out := folder / f"s{seed}"):
                flfw.run(**asked, target_epsilon=epsilon, seed=seed, metrics="none", engine="inproc", out=out)
    rows = [f"| data, epsilon | {' | '.join(f'{k} clients' for k in CLIENTS)} |", "|---|---|---|---|"]
    for name, epsilon in product(DATA, EPSILONS):
        cells = [_cell(given.runs.absolute() / f"{name}-{epsilon}-{clients}") for clients in CLIENTS]
        rows.append(f"| {name}, {epsilon} | {' | '.join(cells)} |")
    write_atomic(PAGE, "\n".join([_HEAD + rows[0], *rows[1:], ""]).encode())
    print(PAGE)
    return 0


def _cell(folder: Path) -> str:
    runs = [folder / f"s{seed}" for seed in SEEDS]
    if not all(map(is_complete, runs)):
        return "–"
    rules = fmean(json.loads((run / "result.json").read_text())["final"]["acc_central"] for run in runs)
    best = max(json.loads((folder / "grid.json").read_text()).values())
    return f"{rules:.3f}, {best:.3f}: {rules / best:.2f}"


@cache
def _noise(epsilon: float, steps: int, local: int) -> float:
    mechanism = Mechanism(1.0, steps, sampling_rate=1 / local, poisson=True)
    return calibrate_noise_multiplier(epsilon, [[SeenMechanism(mechanism)]], 1e-5)


def grid(task: Task, clients: int, epsilon: float) -> dict[str, float]:
    """Return the mean accuracy over the seeds of each setting of the grid."""
    size = min(map(len, task.split.train))
    parts = [_inputs(task, "train", part[:size]) for part in task.split.train]
    lrs = torch.tensor(RATES).repeat_interleave(len(SEEDS))[:, None].expand(-1, task.dataset.classes).flatten()
    x, y = _inputs(task, "test", torch.arange(len(task.dataset.test_y)).numpy())
    rng, accuracies = torch_generator(SEEDS[0], "grid"), {}
    for rounds, local in SCHEDULES:
        sigma = _noise(epsilon, rounds * local, local)
        model = (2 * torch.rand(x.shape[1], len(lrs), generator=rng) - 1) / (x.shape[1] - 1) ** 0.5
        average = model
        for server_round in range(1, rounds + 1):
            model = sum(_trained(part, model, lrs, sigma, local, rng) for part in parts) / clients
            kept = (1 + server_round) / (10 + server_round)
            average = kept * average + (1 - kept) * model
        right = ((x @ average).view(len(x), -1, task.dataset.classes).argmax(2) == y.argmax(1)[:, None]).float()
        for lr, accuracy in zip(RATES, right.mean(0).view(len(RATES), -1).mean(1), strict=True):
            accuracies[f"lr {lr:g}, {rounds} rounds of {local}"] = float(accuracy)
    return accuracies


def _inputs(task: Task, part: str, places) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = task.examples(part, places)
    x = task.inputs.normalise(x).flatten(1)
    return torch.cat([x, torch.ones(len(x), 1)], 1), one_hot(y, task.dataset.classes).float()


def _trained(part, model, lrs, sigma: float, local: int, rng: torch.Generator) -> torch.Tensor:
    """Return a client's model after noisy steps on Poisson batches, for all columns of rates and classes."""
    x, y = part
    for _ in range(local):
        drawn = torch.rand(len(x), generator=rng) < 1 / local
        xs, ys = x[drawn], y[drawn][:, None]
        errors = torch.softmax((xs @ model).unflatten(1, (-1, y.shape[1])), 2) - ys
        lengths = torch.linalg.vector_norm(errors, dim=2) * torch.linalg.vector_norm(xs, dim=1)[:, None]
        errors /= lengths.clamp(min=1)[..., None]
        noise = sigma * torch.randn(model.shape, generator=rng)
        model = model - lrs * (xs.T @ errors.flatten(1) + noise) * local / len(x)
    return model


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
