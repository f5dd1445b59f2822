"""HyperFL's experiments.

Paper       Guo et al., "A New Federated Learning Framework Against Gradient Inversion Attacks", AAAI 2025,
            arXiv 2412.07187. Table 1: accuracy of seven methods on four data sets with 20 and 100 clients.
Settings    CNN 1 on EMNIST (by class) and Fashion-MNIST, CNN 2 on CIFAR-10 and CINIC-10; the dominant-class split; 20
            clients, all in every round, or 100, of which 30 are drawn; 200 rounds of 5 local epochs; SGD with learning
            rate 0.01 (CNN 1) or 0.02 (CNN 2), momentum 0.5, weight decay 5e-4; batches of 50, on EMNIST of 100.
            Momentum and weight decay are the methods' defaults. Nothing is attacked.
Quick       one seed, rounds of 1 local epoch: 10 with 20 clients, 5 with 100.
Departures  1. Seeds 0, 1 and 2: the paper names none.
            2. All clients are evaluated after the last round. The paper announces that everybody takes part in the
               last round of 100 clients; in the authors' code nobody but the 30 drawn does.
            3. The paper does not say whether FedAvg is measured before or after local training: the model as received
               is compared, the locally trained one is shown beside it. The others are compared after local training.
            4. HyperFL's own departures are on the card of strategies/hyperfl.py, among them the hypernetwork's start.
            5. On CIFAR-10 and CINIC-10 no client ever trains on the first 2,000 training images: the pointers of the
               authors' code start there (of what, the paper does not say), and here they do not wrap into them.
            6. CINIC-10's images are taken class after class in turn, so that those 2,000 are of all classes.
"""

from __future__ import annotations

from flfw.experiment import Experiment
from papers.preset import Figure, Preset, Presets, Scale
from papers.published import Cell

METHODS = {
    "Local-only": "local_only",
    "FedAvg": "fedavg",
    "pFedHN": "pfedhn",
    "DP-FedAvg": "dp_fedavg",
    "CENTAUR": "centaur",
    "PPSGD": "ppsgd",
    "HyperFL": "hyperfl",
}
DATASETS = {"EMNIST": "emnist", "Fashion-MNIST": "fmnist", "CIFAR-10": "cifar10", "CINIC-10": "cinic10"}
GLOBAL_MODELS = ("FedAvg", "DP-FedAvg")

AS_RECEIVED = Figure("final.acc_global", "accuracy of the model as received, before local training")
AFTER_TRAINING = Figure("final.acc_local", "accuracy after one more local training")


def accuracies(cell: Cell, scale: Scale) -> Preset:
    """Table 1."""
    method, data, clients = str(cell.keys["method"]), str(cell.keys["dataset"]), int(cell.keys["clients"])
    grey, quick = data in ("EMNIST", "Fashion-MNIST"), scale == "quick"
    runs = [
        Experiment(
            method=METHODS[method],
            dataset=DATASETS[data],
            net="cnn1" if grey else "cnn2",
            split="dominant",
            clients=clients,
            sample=30 if clients == 100 else 0,
            rounds=(10 if clients == 20 else 5) if quick else 200,
            local_epochs=1 if quick else 5,
            batch_size=100 if data == "EMNIST" else 50,
            lr=0.01 if grey else 0.02,
            seed=seed,
            attack=("none",),
        )
        for seed in ((0,) if quick else (0, 1, 2))
    ]
    if method in GLOBAL_MODELS:
        return Preset((tuple(runs),), AS_RECEIVED, also=(AFTER_TRAINING,))
    return Preset((tuple(runs),), AFTER_TRAINING)


TABLES: dict[str, Presets] = {"hyperfl.1": accuracies}
