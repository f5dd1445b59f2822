"""Cost of a local iteration by each method: ``python -m benchmarks.local_steps [--json] [--quick] [--only MNIST]``.

The time of a local iteration is that of a client's whole local training in a round, changes of its update included,
over the number of mini-batches in its epochs (`flfw.comparisons.figures.norms`). So further work of a method, such as
training a head first, is divided among them. The experiments are those of the papers' tables, on random inputs of the
data's shape:

- Table III of Fed-CDP: MNIST, CIFAR-10 and LFW on its convolutional network, Adult and Cancer on two hidden layers.
- Table 4 of HyperFL: EMNIST on CNN 1, five epochs of batches of 100. It has the seconds of a round.

All methods of a data set take turns, A B C A B C, so that a busy machine hurts all alike, and are timed in seconds of
the processor on one thread; a ratio is the median of the turns' ratios to plain training. The goal is the paper's own
ratio. The last line of the output is one JSON object.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from math import prod

import numpy as np

from benchmarks import output
from flfw import data
from flfw.comparisons.figures.norms import Trainee, in_turns
from flfw.data import Dataset
from flfw.data.splits.partition import Split
from flfw.experiment import Experiment
from flfw.papers import fed_cdp, hyperfl, published
from flfw.papers.published import Cell
from flfw.rng import numpy_generator
from flfw.task.pipeline import NetworkPlan
from flfw.task.task import Task

_TURNS = 5
_PLAIN = ("non-private", "FedAvg")
_SECONDS = {
    "MNIST": (25, 5),
    "CIFAR-10": (25, 5),
    "LFW": (25, 5),
    "Adult": (10, 3),
    "Cancer": (10, 3),
    "EMNIST": (90, 18),
}  # usual and quick
_EXAMPLES = {"MNIST": 500, "CIFAR-10": 400, "LFW": 300, "Adult": 300, "Cancer": 400, "EMNIST": 1000}


@dataclasses.dataclass(frozen=True)
class LocalStepsCase:
    """The methods on one data set: each with its experiment and the paper's time; the first is plain training."""

    experiments: Mapping[str, Experiment]
    published: Mapping[str, float]

    @property
    def goal(self) -> dict[str, float]:
        """The paper's ratios to plain training."""
        plain = next(iter(self.published.values()))
        return {row: value / plain for row, value in list(self.published.items())[1:]}


def _case(name: str, column: Iterable[tuple[Cell, Experiment]]) -> LocalStepsCase:
    """Make the case of a column's cells; every client has as many examples as the paper's."""
    ordered = sorted(column, key=lambda one: one[0].row[0] not in _PLAIN)
    experiments, times = {}, {}
    for cell, experiment in ordered:
        experiments[cell.row[0]], times[cell.row[0]] = experiment, float(cell.value or 0)
    assert name in _EXAMPLES and next(iter(times)) in _PLAIN, "a column of these tables"
    return LocalStepsCase(experiments, times)


def _cases() -> dict[str, LocalStepsCase]:
    columns: dict[str, list[tuple[Cell, Experiment]]] = {name: [] for name in _EXAMPLES}
    for cell in published.table("fed_cdp.3").cells:
        columns[str(cell.keys["dataset"])].append((cell, fed_cdp.timed(cell, "quick").experiments[0]))
    for cell in published.table("hyperfl.4").cells:
        columns["EMNIST"].append((cell, hyperfl.timed(cell, "full").experiments[0]))
    return {name: _case(name, column) for name, column in columns.items()}


CASES = _cases()
PARTS = {
    name: output.BenchmarkPart(f"{' and '.join(case.experiments)} in turns", *_SECONDS[name])
    for name, case in CASES.items()
}


def task(name: str, experiment: Experiment, examples: int, clients: int = 1) -> Task:
    """Draw random inputs of a data set's shape; each of so many clients has all."""
    card, rng = data.describe(experiment.dataset), numpy_generator(0, "inputs")
    images = len(card.shape) == 3
    x = rng.integers(0, 256, (examples, *card.shape), dtype=np.uint8)
    inputs = x if images else (x / 255).astype(np.float32)
    y, channels = rng.integers(0, card.classes, examples), card.shape[0]
    centre, width = (0.5,) * channels, (0.5,) * channels
    title = f"random inputs of {prod(card.shape)} numbers, as {name}"
    dataset = Dataset(title, inputs, y, inputs, y, card.classes, centre, width, title, None)
    everything, nobody = (np.arange(examples),) * clients, np.zeros(0, np.int64)
    return Task(
        dataset, Split(everything, everything, (nobody,) * clients, nobody, nobody, nobody), NetworkPlan(experiment.net)
    )


def measure(name: str, turns: int, examples: int = 0) -> dict[str, tuple[float, float]]:
    """Measure each method's ratio to plain training and its milliseconds of a local iteration: medians over the turns.

    Args:
        name: of the case.
        turns: how many.
        examples: of the client; 0: as many as in the paper.
    """
    case = CASES[name]
    first = next(iter(case.experiments.values()))
    work = task(name, first, examples or _EXAMPLES[name])
    rows = in_turns([Trainee(experiment, work) for experiment in case.experiments.values()], turns)
    columns = dict(zip(case.experiments, zip(*rows, strict=True), strict=True))
    plain = next(iter(columns.values()))
    return {
        row: (statistics.median(a / b for a, b in zip(times, plain, strict=True)), statistics.median(times))
        for row, times in columns.items()
    }


def lines(name: str, rows: Mapping[str, tuple[float, float]]) -> Iterable[str]:
    """Yield a title and a line for each method."""
    goal = CASES[name].goal
    yield f"{name}:"
    for row, (ratio, milliseconds) in rows.items():
        outcome = f"  (goal <= {goal[row]:.2f}: {'met' if ratio <= goal[row] else 'missed'})" if row in goal else ""
        yield f"  {row:15}  {ratio:5.2f}{outcome}; {milliseconds:.2f} ms"


def main() -> None:
    """Measure and print."""
    run = output.start(output.parser(__doc__), PARTS)
    turns = run.amount(_TURNS, 1)
    tables = {name: measure(name, turns, run.amount(0, max(8, _EXAMPLES[name] // 4))) for name in run.parts()}
    ratios = {name: {row: value[0] for row, value in rows.items()} for name, rows in tables.items()}
    goal = {name: CASES[name].goal for name in tables}
    results = {
        "local_steps": ratios,
        "goal": goal,
        "met": {name: {row: ratios[name][row] <= limit for row, limit in rows.items()} for name, rows in goal.items()},
        "milliseconds": {name: {row: value[1] for row, value in rows.items()} for name, rows in tables.items()},
        "turns": turns,
    }
    run.report(results, [line for name, rows in tables.items() for line in lines(name, rows)])


if __name__ == "__main__":
    main()
