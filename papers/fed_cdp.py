"""Fed-CDP's experiments.

Paper       Wei et al., "Gradient-Leakage Resilient Federated Learning", ICDCS 2021, arXiv 2107.01154. Table VII: what
            the CPL attack reaches on 100 clients with at most 300 iterations.
Settings    K = 100 clients, of which 10 are drawn; MNIST with batches of 5 and 500 examples a client from two shards
            of the first 50,000 training images, LFW with batches of 3 and 300 examples from 15 shards; SGD with
            learning rate 0.05 (from the authors' code). Attacked are gradients of the first local iteration, of one
            victim a client: the batch's as the server gets it (type 0, and the same bytes at the client: type 1), and
            that of a single example in local training (type 2). Nothing is attacked later, so one epoch is trained.
            The attack is attacks/cpl.py with the budget on its card.
Quick       10 of the 100 victims.
Departures  1. Seed 0: the paper names none. Each client's victims are random examples of its own.
            2. The network is DLG's, net lenet: three sigmoid convolutions, weights and biases U(-0.5, 0.5). The code
               of CPL by the same authors has a fourth; which network Table VII attacks is not said.
            3. Inputs are normalised with the data set's mean and deviation; the authors' code of CPL leaves them in
               [0, 1]. The attack starts from U(0, 1) in the units that the network takes.
            4. An example counts as found below a distance of 0.3, and Y is printed where at least half are found: the
               paper states neither. A grey image may be that close; the run's own report has floors and a stricter
               count.
            5. The distance is the root mean square deviation of the text (the printed formula has no root) in raw units
               of [0, 1], an example at a time, those of a batch matched one to one with the truth so that it is least.
               It is the mean over the examples for which the search gave something; beside it, for how many it did not.
            6. Iterations are the attack's outer steps until it has solved a gradient, see its card for when that is; a
               search that never does ends at 300 or where L-BFGS gets stuck. Their mean is over the same examples.
            7. Accuracy, which this table does not show, is that on the official test part.
"""

from __future__ import annotations

from flfw.experiment import Experiment
from papers.preset import Figure, Preset, Presets, Scale
from papers.published import Cell

METHODS = {"non-private": "fedavg", "Fed-SDP": "fed_sdp", "Fed-CDP": "fed_cdp", "Fed-CDP(decay)": "fed_cdp_decay"}
DATASETS = {"MNIST": "mnist", "LFW": "lfw"}
VANTAGES = {"type 0&1": "server", "type 2": "client_example"}
BATCHES = {"MNIST": 5, "LFW": 3}
SPLITS = {"MNIST": ("shards.pool=50000",), "LFW": ("shards.shards=15",)}
HALF = 0.5


def attacked(cell: Cell, scale: Scale) -> Preset:
    """Table VII: one run has both kinds of leakage."""
    data = str(cell.keys["dataset"])
    run = Experiment(
        method=METHODS[str(cell.keys["method"])],
        dataset=DATASETS[data],
        net="lenet",
        split="shards",
        clients=100,
        sample=10,
        rounds=1,
        local_epochs=1,
        batch_size=BATCHES[data],
        lr=0.05,
        attack=("cpl",),
        audit_rounds="0",
        victim_batch=BATCHES[data],
        images=10 if scale == "quick" else 100,
        vantage=tuple(VANTAGES.values()),
        set=SPLITS[data],
    )
    figure, *also = figures(VANTAGES[str(cell.keys["leak"])])[cell.metric]
    return Preset(((run,),), figure, also=tuple(also))


def figures(vantage: str) -> dict[str, tuple[Figure, ...]]:
    """By the paper's name, what the attack reached from a vantage, and what is shown beside it."""
    entry = f"audit.vantage={vantage}"
    success, distance = f"{entry}.distance.success", f"{entry}.distance.rmsd"
    return {
        "succeed": (
            Figure(success, "whether at least half of the examples were found, to a distance below 0.3", 1, HALF),
            Figure(success, "the share of the examples that were found", 1),
        ),
        "reconstruction_distance": (
            Figure(distance, "root mean square deviation of an example, mean over those with a reconstruction", 1),
            Figure(f"{entry}.failures", "examples without a reconstruction", 1),
        ),
        "attack_iterations": (
            Figure(f"{entry}.distance.iterations", "steps of L-BFGS, mean over the examples with a reconstruction", 1),
        ),
    }


TABLES: dict[str, Presets] = {"fed_cdp.7": attacked}
