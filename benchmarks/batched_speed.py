"""Batched clients that take their local steps together, over one after the other: a part of `benchmarks.scale`.

Both sides do the same epochs of the same clients, on one thread, and take turns: a ratio is the median of the turns'.
A gate comes first: in float64 both sides train the same parameters, to 1e-10 of a tensor's change.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np
import torch

from benchmarks.hyperfl import CASES, images, seconds
from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.client.phases import TrainingPhase, descend_together
from flfw.data import Dataset
from flfw.data.splits.partition import Split
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan
from flfw.rng import numpy_generator
from flfw.task.pipeline import NetworkPlan
from flfw.task.task import Task

_EXACT = 1e-10


@final
@dataclass(frozen=True)
class BatchedCase:
    """Clients whose steps are timed.

    Attributes:
        method: their method.
        net: their network.
        batch: examples in a step.
        examples: examples of a client.
        sizes: numbers of clients.
        hypernetwork: name of a case of `benchmarks.hyperfl`, whose images these are; empty: random images.
    """

    method: str
    net: str
    batch: int
    examples: int
    sizes: tuple[int, ...]
    hypernetwork: str = ""

    @property
    def experiment(self) -> Experiment:
        """Experiment of one epoch; for a hypernetwork the paper's, of five."""
        if self.hypernetwork:
            case = CASES[self.hypernetwork].experiment
            return dataclasses.replace(case, method=self.method, local_epochs=5)
        few = Experiment(method=self.method, net=self.net, split="iid", augment="none", local_epochs=1, clients=20)
        return dataclasses.replace(few, batch_size=self.batch)


CASES_BY_NAME = {
    "mlp_10": BatchedCase("fedavg", "mlp", 10, 200, (4, 16, 64)),
    "mlp_50": BatchedCase("fedavg", "mlp", 50, 1000, (4, 16, 64)),
    "lenet_10": BatchedCase("fedavg", "lenet", 10, 200, (4, 16)),
    "hyperfl_cnn1": BatchedCase("hyperfl", "cnn1", 50, 600, (4, 8, 16), "cnn1"),
    "hyperfl_cnn2": BatchedCase("hyperfl", "cnn2", 50, 600, (8,), "cnn2"),
}
P3_GOAL, P3_CLIENTS = 1.25, 8
"""Goal: a client's steps on the hypernetwork of so many together, over those of FedAvg."""


@cache
def _data(case: BatchedCase) -> Dataset:
    if case.hypernetwork:
        return images(CASES[case.hypernetwork])
    rng = numpy_generator(0, "pictures")
    x = rng.integers(0, 256, (case.examples, 1, 28, 28), dtype=np.uint8)
    y, title = rng.integers(0, 10, case.examples), "random pixels"
    return Dataset(title, x, y, x, y, 10, (0.5,), (0.5,), title, None)


def clients(case: BatchedCase, number: int, method: str = "", exact: bool = False) -> list[FederatedClient]:
    """Return so many clients, which all hold the same images; exact: in float64."""
    experiment, dataset = case.experiment, _data(case)
    experiment = dataclasses.replace(experiment, method=method or experiment.method, clients=number)
    if exact:
        x = dataset.train_x / 255  # floats are not converted to float32
        dataset = dataclasses.replace(dataset, train_x=x, test_x=x)
    mine, nobody = np.arange(min(case.examples, len(dataset.train_y))), np.zeros(0, np.int64)
    split = Split((mine,) * number, (mine,) * number, (nobody,) * number, nobody, nobody, nobody)
    run_plan, task = plan(experiment), Task(dataset, split, NetworkPlan(case.net))
    places = [ClientContext(plan(experiment).client, task, index, 1, None, None) for index in range(number)]
    made = [run_plan.client_class(index) for index in places]
    for one in made if exact else []:
        one.model.double()
    return made


def begun(workers: Sequence[FederatedClient]) -> list[TrainingPhase]:
    """Train clients up to their joint phase; return that of each."""
    return [next(worker.train_by_phases()) for worker in workers]


def gate(case: BatchedCase) -> float:
    """Return the largest distance of a tensor in float64 between both sides, over its change, for two clients."""
    alone, joint, start = (clients(case, 2, exact=True) for _ in range(3))
    for phase in begun(alone):
        phase.alone()
    descend_together(joint, begun(joint))
    begun(start)
    worst = 0.0
    for one, other, first in zip(alone, joint, start, strict=True):
        before, trained = first.model.state_dict(), other.model.state_dict()
        for name, value in one.model.state_dict().items():
            change = float((value - before[name]).norm())
            worst = max(worst, float((trained[name] - value).norm()) / change if change else 0.0)
    return worst


def measured(case: BatchedCase, turns: int) -> dict[str, dict[str, float]]:
    """Measure the seconds of a client's joint phase alone and together, the latter also over FedAvg's steps."""
    rows: dict[int, list[tuple[float, float, float]]] = {size: [] for size in case.sizes}
    for _ in range(turns):
        for size, row in rows.items():
            few = clients(case, 2)
            alone = [seconds(phase.alone) for phase in begun(few)][1]
            del few
            plain = seconds(clients(case, 1, "fedavg")[0].train) if case.hypernetwork else float("nan")
            batched = clients(case, size)
            phases = begun(batched)
            together = seconds(lambda a=batched, b=phases: descend_together(a, b)) / size
            del batched, phases
            row.append((alone, together, plain))
    return {str(size): _figures(row, bool(case.hypernetwork)) for size, row in rows.items()}


def _figures(row: Sequence[tuple[float, float, float]], over_plain: bool) -> dict[str, float]:
    figures = {
        "times": statistics.median(alone / together for alone, together, _ in row),
        "alone_s": statistics.median(alone for alone, _, _ in row),
        "together_s": statistics.median(together for _, together, _ in row),
    }
    if over_plain:
        figures["over_fedavg"] = statistics.median(together / plain for _, together, plain in row)
    return {name: round(value, 4) for name, value in figures.items()}


def compared(quick: bool) -> tuple[dict[str, Any], list[str]]:
    """Check both sides and measure all cases.

    Returns:
        The figures by network and number of clients, and a line for each network; exits with 1 if the sides differ.
    """
    cases = {"mlp_10": dataclasses.replace(CASES_BY_NAME["mlp_10"], sizes=(4,))} if quick else CASES_BY_NAME
    torch.set_num_threads(1)
    apart = {name: gate(case) for name, case in cases.items() if name != "hyperfl_cnn2"}
    if far := {name: error for name, error in apart.items() if not error <= _EXACT}:
        raise SystemExit(f"Expected the same parameters on both sides (<= {_EXACT:g}), got {far}; nothing was timed.")
    figures: dict[str, Any] = {name: measured(case, 1 if quick else 3) for name, case in cases.items()}
    lines = [f"{name}: {_words(row)}" for name, row in figures.items()]
    return {**figures, "exact": apart}, lines


def _words(row: dict[str, dict[str, float]]) -> str:
    parts = []
    for size, figures in row.items():
        over = f", {figures['over_fedavg']:.2f} of FedAvg's steps" if "over_fedavg" in figures else ""
        parts.append(f"K={size} {figures['times']:.2f} times as fast{over}")
    return "; ".join(parts)
