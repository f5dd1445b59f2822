"""Experiments of HyperFL.

Paper       Guo et al., "A New Federated Learning Framework Against Gradient Inversion Attacks", AAAI 2025,
            arXiv 2412.07187. Table 1: accuracy of seven methods on four data sets with 20 and 100 clients. Table 2:
            accuracy on pretrained networks of which all, adapters or the classifier alone are trained. Table 3:
            reconstructions of 50 images by the attack IG, one in each gradient. Table 4: seconds of a round. Table 5,
            of the extended version: reconstructions by the attack ROG.
Settings    CNN 1 on EMNIST (by class) and Fashion-MNIST, CNN 2 on CIFAR-10 and CINIC-10; the dominant-class split; 20
            clients, all in every round, or 100, of which 30 are drawn; 200 rounds of 5 local epochs; SGD with learning
            rate 0.01 (CNN 1) or 0.02 (CNN 2), momentum 0.5, weight decay 5e-4; batches of 50, on EMNIST of 100.
            Momentum and weight decay are the methods' defaults. In table 1 nothing is attacked. In table 3 ig has the
            paper's 10,000 iterations, by Adam without the sign, and a total variation of weight 1e-6 throughout. Table
            4 is on EMNIST with 20 clients. DP-FedAvg, CENTAUR and PPSGD have epsilon 4 and delta 1e-5 and, from the
            authors' code, gradients clipped to 0.04 and the noise that RDP gives for Poisson batches in 1,000 epochs:
            10.63 (batches of 50 of 600), 11.62 (100 of 1,000).
Quick       one seed, rounds of 1 local epoch: 10 with 20 clients, 5 with 100. Table 3: 8 images, 1,000 iterations, one
            round. Table 4: two rounds of 5 epochs. Table 5: 8 images.
Departures  1. Seeds 0, 1 and 2: the paper names none.
            2. All clients are evaluated after the last round. In the paper all 100 clients take part in the last
               round; in the authors' code only the 30 sampled clients do.
            3. The paper does not say whether FedAvg is measured before or after local training: the model as received
               is compared, the locally trained one is shown beside it. So is pFedHN, as its own authors measure it.
               The others are compared after local training.
            4. HyperFL runs as in the authors' code, whose hypernetwork starts as torch has it (--variant authors);
               beside it stands the variant here. Other departures are on the card of strategies/hyperfl.py.
            5. On CIFAR-10 and CINIC-10 no client ever trains on the first 2,000 training images: the pointers of the
               authors' code start there (the paper does not name their unit), and here they do not wrap into them.
            6. CINIC-10's images are taken class after class in turn, so that those 2,000 are of all classes.
            7. Table 3 names neither the network and its state nor the images that were attacked. Here: CNN 1 and CNN 2
               with fresh weights, training images of 20 clients. Full scale also trains for 200 rounds and shows
               beside it the leakage of the last gradient.
            8. The attack of table 3 searches for all unknowns (data, embedding, classifier), as the paper's does.
               Beside it stands attacks/hyperfl.py on the same images and with the same iterations, which uses the
               leakage of the architecture.
            9. Table 4 gives the training time of a round on an RTX 3090. Here it is the time of the whole round on this
               machine; compare ratios to FedAvg only.
            10. Batches are passes in shuffled order, as in the authors' code, and not the Poisson batches that its
               count assumes. Beside the accuracy of a private method stand two epsilons of an example for the
               rounds that were run: the true one against the server, then as the authors count.
            11. Of its tailored attack (the embedding by its Eq. 10, then model inversion) the paper shows pictures, and
               no numbers or code. Beside HyperFL's row of table 3 stands our reading of it, a run of its own:
               ``two_stage`` of attacks/hyperfl.py, which searches embedding and dL/dtheta until the hypernetwork's
               gradients agree, and then data and classifier by the gradient of theta, with the iterations of ig for
               each of the two.
            12. The paper states no settings for pFedHN and pFedHN-PC. Here: network, local training and rounds of the
               other methods, and the server of pFedHN's authors (SGD at 0.01, momentum 0.9, weight decay 1e-3) with
               one step a round, along the mean. Their steps after each client (--variant authors) are for one client
               a round: after 20 trained from one hypernetwork they diverge. So both rows are the variant here; see the
               card of strategies/pfedhn.py. ig searches for the classifier of pFedHN-PC with the image, as for FedPer.
               Beside it stands attacks/hyperfl.py, which does not need a classifier:
               PC sends the gradient of a known extractor. On generated weights before training, which is all of the
               quick scale, reconstructions are worse than of FedAvg; after training they are not.
            13. Table 2: ViT-S/16 at 384 pixels and ResNet-18 at the images' own size, batches of 16, learning rate
               0.01 for ResNet-18 and 0.02 (EMNIST) or 0.1 for ViT-S/16, the data sets' own constants. HyperFL-LPM
               starts with adapters that change nothing; the variant of the authors has torch's own start and their
               mistakes, see the card of strategies/hyperfl_lpm.py. Adapters of the other rows have torch's own start,
               as in their code; a start that changes nothing stands beside it. In their code BatchNorm of adapters
               stays in evaluation mode, with the statistics 0 and 1: so it does in the variant of the authors; in ours
               it uses its batch. Their code for ViT-S/16 also drops biases, here ``vit_small.published_bug``, which no
               cell sets. At quick scale 4 clients, 5 rounds of 1 epoch. Where the machine has no published weights,
               EfficientNet-Lite0 at 96 pixels stands in, in both columns, and the output says so: its figures cannot
               be compared with the paper's.
            14. Table 5: see below.
            15. The released PPSGD cannot have made the paper's numbers, see the card of strategies/ppsgd.py.

Table 5 names neither the factor of enlargement, nor whether a network follows the search, nor the size of the images.
Here the networks, images and clients of table 3 are attacked before training, with ROG's 100 iterations. The main
number is of images in their own size, a factor of 4 and no network behind the search. For HyperFL it is a search for
all unknowns, as the paper's. Beside it:

- the ceiling, the mean PSNR of the nearest images of this form, which no such search can exceed;
- the same with a factor of 2, and with a U-Net behind the search that learns from 40 public images (full: 2,000);
- the same for images enlarged to 128 pixels, ROG's own size, on the sigmoid LeNet, as CNN 1 and CNN 2 have one size:
  of two clients with 50 of the first 1,000 training images each, and the first 1,000 test images as public ones. With
  the PSNR and SSIM in the images' own size;
- for HyperFL all but the last by the closed form, which needs neither classifier nor label: attacks/rog.py.

At quick scale 2 of the 20 clients train in the one round, as only what is before it counts.
"""

from dataclasses import replace
from pathlib import Path

from flfw import data, nets
from flfw.data import DatasetArrays, DatasetCard
from flfw.experiment import Experiment
from flfw.papers.preset import Further, Preset, Presets, ResultMetric, Scale, as_authors, at_seeds
from flfw.papers.published import Cell

SEEDS: dict[Scale, tuple[int, ...]] = {"quick": (0,), "full": (0, 1, 2)}
METHODS = {
    "Local-only": "local_only",
    "FedAvg": "fedavg",
    "pFedHN": "pfedhn",
    "pFedHN-PC": "pfedhn_pc",
    "DP-FedAvg": "dp_fedavg",
    "CENTAUR": "centaur",
    "PPSGD": "ppsgd",
    "HyperFL": "hyperfl",
    "FedPer": "fedper",  # these two are in no table of the paper
    "FedProx": "fedprox",
}
DATASETS = {
    "EMNIST": "emnist",
    "Fashion-MNIST": "fmnist",
    "CIFAR-10": "cifar10",
    "CINIC-10": "cinic10",
    "MNIST": "mnist",  # in no table of the paper
}
AS_SENT = ("FedAvg", "DP-FedAvg", "pFedHN")  # of these the model as received is compared
ONE_CLIENT = ("pfedhn", "pfedhn_pc")  # methods whose authors train one client in a round
HEADLESS = ("HyperFL", "pFedHN-PC")  # whose classifier attacks/hyperfl.py does without
PRIVATE = ("DP-FedAvg", "CENTAUR", "PPSGD")
LARGE = {
    "Local-only (fixed feature extractor)": ("local_only", "linear_probe"),
    "Local-only (adapter fine-tuning)": ("local_only", "adapter"),
    "FedAvg (fixed feature extractor)": ("fedavg", "linear_probe"),
    "FedAvg (adapter fine-tuning)": ("fedavg", "adapter"),
    "FedAvg (full parameter tuning)": ("fedavg", "full"),
    "HyperFL-LPM": ("hyperfl_lpm", "adapter"),
}
"""Rows of table 2: the method, and the trained part of the network."""

BODIES = {"ViT-S/16": "vit_small", "ResNet-18": "resnet18_imagenet"}
STAND_IN = "efficientnet_lite0"
AS_RECEIVED = ResultMetric("final.acc_global", "accuracy of the model as received, before local training")
AFTER_TRAINING = ResultMetric("final.acc_local", "accuracy after one more local training")
_EXAMPLE = "privacy.unit=example"
EPSILONS = (
    ResultMetric(f"{_EXAMPLE},adversary=server,accounting=exact.epsilon", "epsilon of an example, counted exactly", 1),
    ResultMetric(f"{_EXAMPLE},accounting=as published.epsilon", "epsilon of an example, counted as by the authors", 1),
)
UNINFORMED, INFORMED = "audit.attack=ig,adaptation=None", "audit.attack=ig,adaptation!=None"
ADAPTIVE = "audit.attack=hyperfl,round=0"
_PUBLISHED = ("ig.signed=false", "ig.tv=1e-6", "ig.schedule=constant")  # the paper's ig, besides its iterations
_AT = "audit.attack=rog,round=0"
_CLOSED = ("rog.private=closed_form",)
_FEW, _SIDE = 1000, 128  # images of each part that are enlarged; pixels


def first(card: DatasetCard) -> DatasetCard:
    """Return the card of a data set's first images; all of them would be gigabytes when they are enlarged."""

    def read(root: Path, side: int | None) -> DatasetArrays:
        full = card.read(root, side)
        train, test = (full.train_x[:_FEW], full.train_y[:_FEW]), (full.test_x[:_FEW], full.test_y[:_FEW])
        return DatasetArrays(*train, *test)

    return replace(card, read=read, split="sampled", victims=0, test_start=0)


FIRST_CIFAR10, FIRST_EMNIST, FIRST_MNIST = (first(data.describe(name)) for name in ("cifar10", "emnist", "mnist"))
_FIRST = {"cifar10": "FIRST_CIFAR10", "emnist": "FIRST_EMNIST", "mnist": "FIRST_MNIST"}


def preset(cell: Cell, scale: Scale, before: Experiment) -> Preset:
    """Return the preset of a cell.

    Args:
        cell: a cell of hyperfl.5.
        scale: the scale.
        before: the training of the cell's method on its data.
    """
    quick, name = scale == "quick", cell.metric
    run = replace(before, rounds=1, attack=("rog",), audit_rounds="0", images=8 if quick else 50)
    run = replace(run, sample=2) if quick else run
    network = ("rog.post=unet", f"rog.pairs={40 if quick else 2000}", "rog.post_epochs=10")
    others = [("factor 2", ("rog.sf=2",)), ("factor 4 and a U-Net", network)]
    if cell.keys["method"] == "HyperFL":
        closed = [(f"closed form, {words}", (*_CLOSED, *settings)) for words, settings in [("factor 4", ()), *others]]
        others = [others[0], *closed]
    further = [one for words, new in others for one in _beside(words, replace(run, set=(*run.set, *new)), name)]
    further += _at_128(run, name)
    words = f"{name.upper()} of what rog reconstructs, factor 4, mean over the images"
    also = (_ceiling("factor 4"),) if name == "psnr" else ()
    return Preset(((run,),), ResultMetric(f"{_AT}.{name}.mean", words, 1), also=also, further=tuple(further))


def _beside(text: str, run: Experiment, name: str) -> list[Further]:
    """Return a figure of a run of its own, and the ceiling of another factor."""
    figures = [Further(f"{text}.{name}", (run,), ResultMetric(f"{_AT}.{name}.mean", f"the same: {text}", 1))]
    if name == "psnr" and text == "factor 2":
        figures.append(Further(f"{text}.ceiling", (run,), _ceiling(text)))
    return figures


def _at_128(run: Experiment, name: str) -> list[Further]:
    """Return a figure of the same attack on enlarged images, the same in their own size, and their ceiling."""
    chosen = ("sampled.train=50",)
    enlarged = replace(run, dataset=f"{__name__}:{_FIRST[run.dataset]}", image_size=_SIDE, net="lenet", split="sampled")
    enlarged = replace(enlarged, clients=2, sample=0, batch_size=50, local_epochs=1, set=(*chosen, *run.set))
    figures = {name: ResultMetric(f"{_AT}.{name}.mean", f"the same at {_SIDE} pixels, factor 4", 1)}
    if name in ("psnr", "ssim"):
        figures[f"reduced_{name}"] = ResultMetric(
            f"{_AT}.native_resolution.{name}", "the same, then reduced to their own size", 1
        )
    if name == "psnr":
        figures["ceiling"] = _ceiling(f"{_SIDE} pixels, factor 4")
    return [Further(f"{_SIDE} px.{key}", (enlarged,), figure) for key, figure in figures.items()]


def _ceiling(text: str) -> ResultMetric:
    return ResultMetric(f"{_AT}.ceiling", f"the ceiling: PSNR of the nearest images of the form, {text}", 1)


def trained(cell: Cell, scale: Scale) -> Experiment:
    """Return a run of table 1, with 20 clients unless the cell gives another number."""
    method, data, clients = str(cell.keys["method"]), str(cell.keys["dataset"]), int(cell.keys.get("clients", 20))
    grey, quick, private = data in ("EMNIST", "Fashion-MNIST", "MNIST"), scale == "quick", method in PRIVATE
    return Experiment(
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
        accountant="paper" if private else "prv",
        attack=("none",),
        set=(f"noise_multiplier={11.62 if data == 'EMNIST' else 10.63}",) if private else (),
    )


def accuracies(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of table 1."""
    runs = at_seeds(trained(cell, scale), SEEDS[scale])
    epsilons = EPSILONS if cell.keys["method"] in PRIVATE else ()
    if cell.keys["method"] in AS_SENT:
        return Preset((runs,), AS_RECEIVED, also=(AFTER_TRAINING, *epsilons))
    return Preset((runs,), AFTER_TRAINING, also=epsilons)


def tuned(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of table 2."""
    method, train = LARGE[str(cell.keys["method"])]
    grey, quick, body = cell.keys["dataset"] == "EMNIST", scale == "quick", BODIES[str(cell.keys["arch"])]
    net = STAND_IN if quick and not _has_weights(body) else body
    run = Experiment(
        method=method,
        trainable=train,  # type: ignore[arg-type]
        net=net,
        dataset=DATASETS[str(cell.keys["dataset"])],
        split="dominant",
        augment="none" if grey else "crop_flip" if net == "resnet18_imagenet" else "flip",
        clients=4 if quick else 20,
        rounds=5 if quick else 200,
        local_epochs=1 if quick else 5,
        batch_size=16,
        lr=(0.02 if grey else 0.1) if net == "vit_small" else 0.01,
        attack=("none",),
    )
    runs = at_seeds(run, SEEDS[scale])
    mine = AS_RECEIVED if method == "fedavg" else AFTER_TRAINING
    other = f"{mine.words}; of another backbone, {STAND_IN}, not to be compared with the published number"
    shown = replace(mine, words=other) if net == STAND_IN else mine
    also = (AFTER_TRAINING,) if mine is AS_RECEIVED else ()
    further = (_unchanging(runs, net, mine),) if train == "adapter" and method != "hyperfl_lpm" else ()
    return Preset((runs,), shown, also=also, further=further)


def authors(experiment: Experiment) -> Experiment:
    """Return an experiment as in the authors' code, whose adapters' BatchNorm never leaves evaluation mode.

    pFedHN's authors step after each client, for which the rounds of these tables have no place: departure 12.
    """
    given = experiment if experiment.method in ONE_CLIENT else as_authors(experiment)
    convolutional = experiment.trainable == "adapter" and experiment.net in (BODIES["ResNet-18"], STAND_IN)
    return replace(given, set=(*given.set, f"{experiment.net}.adapter_norm=frozen")) if convolutional else given


def _unchanging(runs: tuple[Experiment, ...], net: str, figure: ResultMetric) -> Further:
    """Return the figure of runs whose adapters change nothing at first."""
    begun = tuple(replace(run, set=(*run.set, f"{net}.adapter_init=identity")) for run in runs)
    return Further("identity", begun, replace(figure, words="the same with adapters that change nothing at first"))


def _has_weights(net: str) -> bool:
    """Return whether this machine has the weights of a pretrained network."""
    architecture = nets.card(net).architecture
    assert architecture is not None
    try:
        return architecture.published.place(net) is not None  # random ones stand for nobody's
    except nets.WeightsMissing:
        return False


def reconstructed(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of table 3: a row is one run, with both attacks where the adaptive one applies."""
    method, quick = cell.keys["method"], scale == "quick"
    adaptive, private = method in HEADLESS, method in PRIVATE
    budget, before = f"iterations={1000 if quick else 10_000}", trained(cell, scale)
    run = replace(
        before,
        rounds=1 if quick else 200,
        attack=("ig", "hyperfl") if adaptive else ("ig",),
        audit_rounds="0" if quick else "0,last",
        images=8 if quick else 50,
        set=(*before.set, f"ig.{budget}", *_PUBLISHED, *([f"hyperfl.{budget}"] if adaptive else [])),
    )
    name = cell.metric
    words = f"{name.upper()} of what ig reconstructs, mean over the images"
    also = [ResultMetric(f"{ADAPTIVE}.{name}.mean", "the same of the adaptive attack", 1)] if adaptive else []
    further = (
        (_tailored(replace(run, rounds=1, audit_rounds="0"), before.set, budget, name),) if method == "HyperFL" else ()
    )
    if private:
        also.append(
            ResultMetric(f"{INFORMED},round=0.{name}.mean", "the same of ig, if it knows of the noise", 1, absent="")
        )
    if not quick:
        also.append(ResultMetric(f"{UNINFORMED},round={run.rounds}.{name}.mean", "the same of ig, after training", 1))
    return Preset(
        ((run,),), ResultMetric(f"{UNINFORMED},round=0.{name}.mean", words, 1), also=tuple(also), further=further
    )


def _tailored(run: Experiment, settings: tuple[str, ...], budget: str, name: str) -> Further:
    """Return a run's figure by the paper's tailored attack, before training."""
    chosen = (*settings, "hyperfl.variant=two_stage", f"hyperfl.{budget}", "hyperfl.signed=false", "hyperfl.tv=1e-6")
    attacked = replace(run, attack=("hyperfl",), set=chosen)
    figure = ResultMetric(f"{ADAPTIVE}.{name}.mean", "the same of the paper's tailored attack, departure 11", 1)
    return Further(f"tailored.{name}", (attacked,), figure)


def enlarged(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of table 5."""
    return preset(cell, scale, trained(cell, scale))


def timed(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of table 4."""
    full = replace(cell, keys={**cell.keys, "dataset": "EMNIST"})
    run = replace(trained(full, scale), rounds=2 if scale == "quick" else 20, local_epochs=5)
    return Preset(((run,),), ResultMetric("rounds.*.seconds", "seconds of a round, mean over the rounds", 1))


TABLES: dict[str, Presets] = {
    "hyperfl.1": accuracies,
    "hyperfl.2": tuned,
    "hyperfl.3": reconstructed,
    "hyperfl.4": timed,
    "hyperfl.5": enlarged,
}
