"""Experiments of DCS^2.

Paper       Wu, Hayat, Zhou and Harandi, "Concealing Sensitive Samples against Gradient Leakage in Federated Learning",
            AAAI 2024, arXiv 2209.05724. Table 1: defences against gradient inversion on MNIST and CIFAR-10. Table 2:
            against GGL on CelebA and Imprint on Tiny ImageNet. Only the captions of both are at hand.
Settings    From the paper's text and code. LeNet on MNIST, the ConvNet of width 32 on CIFAR-10. Attacks: gradients of
            one example, 64 of them; the cosine distance plus 1e-4 total variation, Adam, 10,000 iterations, labels
            granted; before and after training. Accuracy: 10 clients with 200 (MNIST) or 2,000 images from a quarter of
            the training part, whose rest are proxies; 200 or 50 rounds of one epoch, batches of 64, SGD with momentum
            0.9 and learning rate 0.01, weight decay 1e-3 on CIFAR-10. Client 5 alone is defended. DP-Gaussian 1e-2 or
            1e-3, Prune 70 or 90 %, Soteria 20 or 50 %, ATS 21-13-3+7-4-15 (CIFAR-10: +1-2-5-8-10), PRECODE of width
            256, DCS^2 up to a distance of 300 or 500.
Quick       1 seed, 4 images, 300 iterations; 100 steps of DCS^2's search, and 20 where a model is trained; accuracy
            after 100 rounds, on CIFAR-10 with 256 images a client. LeNet on all data sets: with the ConvNet and 5
            rounds, accuracies took half an hour each on one core, and stayed at chance. So few steps led to
            distances of 38 to 121 (CIFAR-10: 178): the rows "no stop" and "threshold" mostly repeat DCS^2's.
Figures     PSNR and SSIM of the attack that is not told, before training. Beside it the adaptive one, told of the
            defence; for DCS^2 and without a defence attacks/dcs2.py, with as many iterations. Then the share of its
            results that identify their image among others, the errors of both results' features, their LPIPS (with
            --lpips-weights FILE), and the PSNR of the class's mean image, which needs no
            gradient; for DCS^2 also the paper's "adaptive" attack, which begins at that mean. Accuracy of the last
            model as it is received; accuracy_protected is that on the defended client's training data.
Departures  1. The learning rate does not fall; the last round counts, where the code prints the best.
            2. The code's Soteria on MNIST trains two epochs a round; here one.
            3. Table 2: CelebA, Tiny ImageNet and Imprint's column are not in this version. The attack is that of Table
               1, on CIFAR-10 and MNIST-M with the same network. Beside it GGL as the code has it, Adam on z with the
               same distance and weights: attacks/generator.py, with a generator learnt from test images of that set.
            4. Attacks: both clients of a run of their own are defended, and proxies are public images.
            5. Rows of our own: DCS^2 without its stop, with other settings, before Prune; the idle client of the
               released code, which is what its baselines measure (papers/idle_client.py).
"""

from dataclasses import replace

from flfw.experiment import Experiment
from flfw.papers.preset import Further, Preset, Presets, ResultMetric, Scale, at_seeds
from flfw.papers.published import Cell

_SEEDS: dict[Scale, range] = {"quick": range(1), "full": range(3)}
_PLAIN = Experiment(method="fedavg", local_epochs=1, batch_size=64, lr=0.01)
_NETS = {"MNIST": ("mnist", "lenet"), "CIFAR-10": ("cifar10", "convnet32"), "MNIST-M": ("mnist_m", "convnet32")}
_OWN = ("dcs2", {"MNIST": "dcs2.threshold=300", "CIFAR-10": "dcs2.threshold=500", "MNIST-M": "dcs2.threshold=500"})
_DEFENCES: dict[str, tuple[str, dict[str, str]]] = {
    "None": ("none", {}),
    "DP-Gaussian": ("dp_gaussian", {"MNIST": "dp_gaussian.std=1e-2", "": "dp_gaussian.std=1e-3"}),
    "Prune": ("prune", {"MNIST": "prune.ratio=0.7", "": "prune.ratio=0.9"}),
    "Soteria": ("soteria", {"MNIST": "soteria.ratio=0.2", "": "soteria.ratio=0.5"}),
    "ATS": ("ats", {"MNIST": "ats.policy=21-13-3+7-4-15", "": "ats.policy=21-13-3+7-4-15+1-2-5-8-10"}),
    "PRECODE": ("precode", {}),
    "DCS^2": _OWN,
    "DCS^2, no stop": ("dcs2", {"": "dcs2.stop=never"}),
    "DCS^2, start noise": ("dcs2", {"": "dcs2.start=noise"}),
    "DCS^2, start mixed": ("dcs2", {"": "dcs2.start=mixed"}),
    "DCS^2, lambda 0.5": ("dcs2", {"": "dcs2.mixture=0.5"}),
    "DCS^2, lambda 0.9": ("dcs2", {"": "dcs2.mixture=0.9"}),
    "DCS^2, eps 0.1": ("dcs2", {"": "dcs2.eps=0.1"}),
    "DCS^2, threshold 100": ("dcs2", {"": "dcs2.threshold=100"}),
    "DCS^2, sensitive 0-4": ("dcs2", {"": "dcs2.sensitive=0,1,2,3,4"}),
    "DCS^2 + Prune": ("dcs2+prune", {"MNIST": "prune.ratio=0.7", "": "prune.ratio=0.9"}),
    "Idle client": ("flfw.papers.idle_client:IdleClient", {}),
}
"""Defence of each row, and its assignment by data set; an empty name stands for all others."""

_TRAINED: dict[Scale, dict[str, tuple[int, int, tuple[str, ...]]]] = {
    "quick": {"MNIST": (200, 100, ()), "CIFAR-10": (256, 100, ("weight_decay=1e-3",))},
    "full": {"MNIST": (200, 200, ()), "CIFAR-10": (2000, 50, ("weight_decay=1e-3",))},
}
"""Images of a client, rounds, and settings of the accuracy runs."""

_NOTHING = ("prune", ("prune.ratio=0",))
"""Defence that changes nothing, so that a run without any gives the accuracy on client 5's data as well."""

GS = ("ig.schedule=constant", "ig.tv=1e-4", "ig.signed=false", "ig.tv_told=1e-2")
GGL = ("generator.space=latent", "generator.restarts=1", "generator.tv=1e-4", "generator.kl=1e-4")
_UNTOLD, _TOLD = "audit.attack=ig,adaptation=None,round=0", "audit.attack=ig,adaptation!=None,round=0"
_BY_FEATURES = "attack dcs2, by features"
_SEPARATED = "audit.attack=dcs2,round=0"


def attacked(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a PSNR or an SSIM."""
    row, data, quick = str(cell.keys["method"]), str(cell.keys["dataset"]), scale == "quick"
    (dataset, net), (defence, chosen) = _net(data, quick), _defence(row, data, 100 if quick else None)
    separable = row == "None" or "dcs2" in defence.split("+")
    budget = 300 if quick else 10_000
    iterations = (f"ig.iterations={budget}", *([f"dcs2.search_iterations={budget}"] if separable else []))
    run = replace(
        _PLAIN,
        dataset=dataset,
        net=net,
        clients=2,
        rounds=1,
        split="sampled",
        attack=("ig", "dcs2") if separable else ("ig",),
        images=4 if quick else 64,
        audit_rounds="0",
        defence=defence,
        set=("momentum=0.9", "sampled.train=64", *chosen, *GS, *iterations),
    )
    name = "psnr.mean" if cell.metric == "psnr" else "ssim.mean"
    adaptive, strongest = (_SEPARATED, _BY_FEATURES) if separable else (_TOLD, "adaptive attack")
    also = (
        ResultMetric(f"{adaptive}.{name}", f"the same of the {strongest}", 1, absent="none"),
        ResultMetric(
            f"{adaptive}.identification_rate", "share of its results that identify their image", 1, absent="none"
        ),
        ResultMetric(f"{adaptive}.feature_error.mean", "relative error of its results' features", 1, absent="none"),
        ResultMetric(f"{_UNTOLD}.feature_error.mean", "the same of the attack not told", 1, absent="none"),
        ResultMetric(f"{adaptive}.lpips.mean", f"LPIPS of the {strongest}", 1, absent="not measured"),
        ResultMetric(f"{_UNTOLD}.lpips.mean", "LPIPS of the attack not told", 1, absent="not measured"),
        ResultMetric(f"{_UNTOLD}.floors.class_mean", "PSNR of the class's mean image, with no leak at all", 1),
    )
    words = f"{cell.metric.upper()} of a search that is not told of the defence, before training"
    untold = ResultMetric(f"{_UNTOLD}.{name}", words, 1)
    begin = tuple(one for one in run.set if not one.startswith("dcs2.search_iterations"))
    prior = replace(run, attack=("ig",), set=(*begin, "ig.start=class_mean"))
    begun = replace(untold, words="the same, begun at the class's mean image: the attack that the paper calls adaptive")
    further = (Further("prior", at_seeds(prior, _SEEDS[scale]), begun),) if row == "DCS^2" else ()
    if cell.table == "dcs2.2":
        further = (*further, _generative(run, name, budget, scale))
    return Preset((at_seeds(run, _SEEDS[scale]),), untold, also=also, further=further)


def _generative(run: Experiment, name: str, budget: int, scale: Scale) -> Further:
    """Return GGL's figure on the runs of a cell; it is not told of the defence, as in the paper's code."""
    kept = (one for one in run.set if not one.startswith(("ig.", "dcs2.search_iterations")))
    attacked = replace(run, attack=("generator",), set=(*kept, *GGL, f"generator.iterations={budget}"))
    figure = ResultMetric(
        f"audit.attack=generator,adaptation=None,round=0.{name}", "the same of GGL, in a generator's images", 1
    )
    return Further("ggl", at_seeds(attacked, _SEEDS[scale]), figure)


def trained(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of an accuracy."""
    row, data, quick = str(cell.keys["method"]), str(cell.keys["dataset"]), scale == "quick"
    (dataset, net), (defence, chosen) = _net(data, quick), _defence(row, data, 20 if quick else None)
    if defence == "none":
        defence, chosen = _NOTHING
    images, rounds, further = _TRAINED[scale][data]
    run = replace(
        _PLAIN,
        dataset=dataset,
        net=net,
        clients=10,
        rounds=rounds,
        split="pools",
        defence=defence,
        defended="5",
        attack=("none",),
        set=("momentum=0.9", *further, f"pools.train={images}", *chosen),
    )
    protected = cell.metric == "accuracy_protected"
    where = "on the defended client's training data" if protected else "on the clients' test data"
    figure = ResultMetric("final.acc_protected" if protected else "final.acc_global", f"accuracy {where}")
    return Preset((at_seeds(run, _SEEDS[scale]),), figure)


def preset(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of either table."""
    return trained(cell, scale) if cell.metric.startswith("accuracy") else attacked(cell, scale)


def _net(data: str, quick: bool) -> tuple[str, str]:
    """Return the names of a data set and of its network."""
    dataset, net = _NETS[data]
    return dataset, "lenet" if quick else net


def _defence(row: str, data: str, steps: int | None) -> tuple[str, tuple[str, ...]]:
    """Return the defence of a row, and its settings on a data set; ``steps`` of DCS^2's search, None: its default."""
    name, by_data = _DEFENCES[row]
    chosen = [by_data.get(data, by_data.get("", ""))]
    if "dcs2" in name.split("+"):
        usual = _OWN[1][data]
        chosen += [usual] * ("threshold" not in chosen[0]) + [f"dcs2.steps={steps}"] * (steps is not None)
    return name, tuple(one for one in chosen if one)


TABLES: dict[str, Presets] = {"dcs2.1": preset, "dcs2.2": preset}
"""Presets: the runs that a cell of a table needs, and the figure of their results."""
