"""Experiments of an invented paper.

Paper       Nobody et al., "An Invented Paper", 2026.
Settings    the digits over 2 or more clients, 10 rounds of one epoch, learning rate 0.1.
Quick       one round.
Departures  none.
"""

from flfw.experiment import Experiment
from flfw.papers.preset import Preset, Presets, ResultMetric, Scale
from flfw.papers.published import Cell

METHODS = {"FedAvg": "fedavg", "Local": "local_only"}


def accuracies(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of table 1."""
    run = Experiment(
        method=METHODS[str(cell.keys["method"])],
        dataset="digits",
        net="cnn1",
        split="dominant",
        clients=int(cell.keys["clients"]),
        rounds=1 if scale == "quick" else 10,
        local_epochs=1,
        lr=0.1,
        attack=("none",),
    )
    return Preset(((run,),), ResultMetric("final.acc_local", "accuracy after one more local training"))


TABLES: dict[str, Presets] = {"example.1": accuracies}
