"""FedCG's experiments.

Paper       Wu et al., "FedCG: Leverage Conditional GAN for Protecting Privacy and Maintaining Competitive Performance
            in Federated Learning", IJCAI 2022, arXiv 2111.08211. Table 1: accuracy of seven methods on six settings.
Settings    LeNet-5 on 32 x 32 pixels. FMNIST and CIFAR10: 2000 random training images a client, the test part cut into
            each client's validation and test data. Digit5, Office-Caltech10 and DomainNet: one domain a client. All
            clients in every round; 100 rounds of 20 local epochs; Adam with learning rate 3e-4 and weight decay 1e-4;
            batches of 16; random horizontal flips except on Digit5; ImageNet's mean and deviation, on FMNIST 0.5 and
            0.5; five seeds. A client's accuracy is that on its test data, after local training, in the round of its
            best validation accuracy; the figure is the mean over the clients. FedProx: the best mu of 0.001, 0.01, 0.1
            and 1 by validation accuracy. Nothing is attacked.
Quick       one seed, 5 rounds (of 20 local epochs, as in the paper), FedProx with mu 0.01.
Departures  1. Seeds 0 to 4: the paper names none.
            2. A fixed number of rounds; the authors' code also stops early.
            3. One mu for all clients and seeds, the one whose mean validation accuracy is best: the paper does not say
               over what it was chosen.
            4. Adam starts afresh in every round; the authors' code keeps its state.
            5. On CIFAR-10 no client holds one of the first 2,000 training images, which are kept for audits.
"""

from __future__ import annotations

from dataclasses import replace

from flfw.experiment import Experiment
from papers.preset import Figure, Preset, Presets, Scale
from papers.published import Cell

METHODS = {
    "Local": "local_only",
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "FedDF": "feddf",
    "FedSplit": "fedsplit",
    "FedGen": "fedgen",
    "FedCG": "fedcg",
}
DATASETS = {
    "FMNIST": "fmnist",
    "CIFAR10": "cifar10",
    "Digit5": "digit5",
    "Office-Caltech10": "office_caltech",
    "DomainNet": "domainnet",
}
MUS = ("0.001", "0.01", "0.1", "1")

TEST = Figure("final.best_validation.accuracy", "test accuracy after local training, at each client's best validation")
VALIDATION = Figure("final.best_validation.validation", "validation accuracy, at each client's best")


def accuracies(cell: Cell, scale: Scale) -> Preset:
    """Table 1."""
    method, data, quick = str(cell.keys["method"]), str(cell.keys["dataset"]), scale == "quick"
    first = Experiment(
        method=METHODS[method],
        dataset=DATASETS[data],
        augment="none" if data == "Digit5" else "flip",
        normalise="half" if data == "FMNIST" else "imagenet",
        net="lenet5",
        split="sampled" if data in ("FMNIST", "CIFAR10") else "domains",
        clients=int(cell.keys["clients"]),
        rounds=5 if quick else 100,
        local_epochs=20,
        batch_size=16,
        lr=3e-4,
        attack=("none",),
        set=("optimiser=adam", "weight_decay=1e-4", "momentum=0"),
    )
    variants = [first]
    if method == "FedProx":
        variants = [replace(first, set=(*first.set, f"mu={mu}")) for mu in (("0.01",) if quick else MUS)]
    seeds = range(1 if quick else 5)
    runs = tuple(tuple(replace(variant, seed=seed) for seed in seeds) for variant in variants)
    return Preset(runs, TEST, chosen_by=VALIDATION if len(runs) > 1 else None)


TABLES: dict[str, Presets] = {"fedcg.1": accuracies}
