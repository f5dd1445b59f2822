"""Experiments of Fed-CDP.

Paper       Wei et al., "Gradient-Leakage Resilient Federated Learning", ICDCS 2021, arXiv 2107.01154. Table I: data and
            settings. II: accuracy by clients and participation. III: time of a local iteration. IV and V: accuracy by
            clipping bound and by noise. VI: privacy spent. VII: results of the attack CPL on 100 clients with at most
            300 iterations.
Settings    C = 4, sigma = 6, delta = 1e-5; the bound that decays goes from 6 to 2. L = 100 local steps of plain SGD
            with learning rate 0.05 (from the authors' code); batches, rounds and examples of a client as in Table I.
            Networks: two 3x3 convolutions and a dense layer for images (net cnn3x3), two hidden layers for tables (net
            mlp). Each client has two shards of the training part sorted by label, on LFW 15; MNIST's are of its first
            50,000 training images, CIFAR-10's of 40,000. With 1,000 and 10,000 clients examples are copied.
            Table III is timed on one client alone, by flfw/comparisons/figures/norms.py; the ratio to plain training
            stands beside it. Table VI, and the settings in Table I, are counted before a run; nothing is trained for
            them. Table VII: batches of 5 on MNIST, of 3 on LFW. Attacked are gradients of the first local iteration, of
            one victim a client: the batch's as the server gets it (type 0, and the same bytes at the client: type 1),
            and that of a single example in local training (type 2). Later gradients are not attacked, so one epoch is
            run. The attack is attacks/cpl.py with the budget on its card.
Quick       At most 10 rounds. Where the paper does not name K it is 100, of which 10 are drawn. Table II keeps K and
            Kt, but copies no image: 50 a client with K = 1,000 (L = 10), 4 with K = 10,000 (L = 1, 2 rounds). Table
            VII: 10 of the 100 victims. Noise, clipping bound and learning rate are the paper's.
Departures  1. Seed 0: the paper names none. Each client's victims are random examples of its own.
            2. Tables I, IV and V do not name K and Kt, and agree with no cell of Table II: 1,000 and 100 (Table VI has
               Kt / K = 0.1), on LFW and Cancer 100 and 10, which have too few test data for more clients.
            3. Accuracy is that of the last model on the official test part, cut evenly into the clients' test data and
               averaged over them; the paper's is on the last 10,000 training images.
            4. A client of Cancer has 400 of the 426 examples, as in Table I; the text has copies of all.
            5. The widths of mlp are 64 and 64: the paper does not state them. cnn3x3 has no dropout; that of the
               authors' code is never active.
            6. Beside a private method's accuracy stand two epsilons, of an example (Fed-SDP: of a client): the true
               one against the server, then as the paper counts it. Passes are in shuffled order, as in the authors'
               code, and the server knows who takes part, so the true one has no credit for sampling: it counts 3 layers
               and every copy of an example, and is far above the paper's.
            7. Table VI by the paper's count has one step more than there are, like most of its numbers: MNIST's 0.8227
               becomes 0.8228. L = 1 is a client that has one batch of examples.
            8. Milliseconds are the processor's here, with batches and their loading; compare ratios.
            9. In Table VII the network is DLG's, net lenet: three sigmoid convolutions, weights and biases from U(-0.5,
               0.5). The code of CPL by the same authors has a fourth; the paper does not name the attacked network.
            10. All runs are as in the authors' code: inputs in [0, 1], Glorot's weights (Table VII: the network's own),
               for images passes in the stored order, a server that divides by Kt - 1. Beside stands the same with
               inputs normalised by the data set's mean and deviation, torch's weights, shuffled passes and the mean.
               CPL starts from U(0, 1) in the units that the network takes.
            11. An example counts as found below a distance of 0.3, and Y is printed where at least half are found: the
               paper states neither. A grey image may be that close; the report of the run has floors and a stricter
               count.
            12. The distance is the root mean square deviation of the text (the printed formula has no root) in units of
               raw inputs, in [0, 1], of one example. The examples of a batch are matched one to one with the truth so
               that it is least. The figure is the mean over the examples with a reconstruction; beside it stands the
               number of examples without one.
            13. Iterations are the attack's outer steps until it has solved a gradient, as its card defines it. A search
               without a solution ends at 300 or where L-BFGS gets stuck. The mean is over the same examples.
            14. Proposition 2, the largest distortion that keeps a label, is a command of its own, in our reading
               (research/papers/distortion.py). Not here: results with the bound from a client's median or the learning
               rate, which the paper names without any.
"""

from dataclasses import dataclass, replace
from typing import final

from flfw.experiment import Experiment
from flfw.papers.preset import Preset, Presets, ResultMetric, Scale, as_authors
from flfw.papers.published import Cell

SIGMA, CLIP = 6.0, 4.0
TABULAR = "mlp"
_FEW_CLIENTS, _FEW_ROUNDS = 100, 10  # of the quick scale


@final
@dataclass(frozen=True)
class Benchmark:
    """A row of Table I.

    Attributes:
        dataset: name of the data set here.
        net: two convolutions and a dense layer for images, two hidden layers for tables.
        batch: B.
        rounds: T.
        split: settings of the partition into clients.
        clients: K of the tables that do not name it, limited by the amount of test data.
    """

    dataset: str
    net: str
    batch: int
    rounds: int
    split: tuple[str, ...] = ()
    clients: int = 1000


BENCHMARKS = {
    "MNIST": Benchmark("mnist", "cnn3x3", 5, 100, ("shards.pool=50000",)),
    "CIFAR-10": Benchmark("cifar10", "cnn3x3", 4, 100, ("shards.pool=42000",)),
    "LFW": Benchmark("lfw", "cnn3x3", 3, 60, ("shards.shards=15",), clients=100),
    "Adult": Benchmark("adult", TABULAR, 3, 10),
    "Cancer": Benchmark("cancer", TABULAR, 4, 3, ("shards.train=400",), clients=100),
}


def method(row: str, clip: float = CLIP, sigma: float = SIGMA) -> tuple[str, tuple[str, ...]]:
    """Return method name and settings of a row of the paper's tables.

    Args:
        row: ``non-private``, ``Fed-SDP``, ``Fed-CDP`` or ``Fed-CDP(decay)``.
        clip: C; the decaying bound ignores it and goes from 6 to 2.
        sigma: noise multiplier.
    """
    if row == "non-private":
        return "fedavg", ("momentum=0", "weight_decay=0")
    noise = f"noise_multiplier={sigma:g}"
    if row == "Fed-CDP(decay)":
        return "fed_cdp", ("bound=decay", "clip=6", "last_clip=2", noise)
    return {"Fed-SDP": "fed_sdp", "Fed-CDP": "fed_cdp"}[row], (f"clip={clip:g}", noise)


def trained(row: str, data: str, scale: Scale, clip: float = CLIP, sigma: float = SIGMA) -> Experiment:
    """Return a run of the tables without K and Kt: a tenth of the clients takes part in each round.

    Args:
        row: ``non-private``, ``Fed-SDP``, ``Fed-CDP`` or ``Fed-CDP(decay)``.
        data: one of `BENCHMARKS`.
        scale: the paper's K and T, or at most 100 clients and 10 rounds.
        clip: C.
        sigma: noise multiplier.
    """
    benchmark, quick, (name, settings) = BENCHMARKS[data], scale == "quick", method(row, clip, sigma)
    clients = min(benchmark.clients, _FEW_CLIENTS) if quick else benchmark.clients
    return Experiment(
        method=name,
        dataset=benchmark.dataset,
        net=benchmark.net,
        split="shards",
        augment="none",
        clients=clients,
        sample=clients // 10,
        rounds=min(benchmark.rounds, _FEW_ROUNDS) if quick else benchmark.rounds,
        local_epochs=1,
        batch_size=benchmark.batch,
        lr=0.05,
        accountant="prv" if row == "non-private" else "paper",
        attack=("none",),
        set=(*benchmark.split, *settings),
    )


def shared_out(row: str, clients: int, share: float, scale: Scale, sigma: float = SIGMA) -> Experiment:
    """Return a run of Table II: MNIST with K clients, of which a share takes part in each round.

    At the quick scale no image is copied: with 1,000 clients each has 50 of them, and with 10,000 each has 4.
    """
    run = trained(row, "MNIST", scale, sigma=sigma)
    fewer: tuple[str, ...] = ()
    if scale == "quick" and clients > _FEW_CLIENTS:
        fewer = (f"shards.train={50_000 // clients}",)
    rounds = 2 if scale == "quick" and clients > 1000 else run.rounds
    return replace(run, clients=clients, sample=round(share * clients), rounds=rounds, set=(*fewer, *run.set))


def one_iteration(run: Experiment) -> Experiment:
    """Return the same run with L = 1: each client has one batch of examples, from a single shard."""
    others = [one for one in run.set if not one.startswith(("shards.train=", "shards.shards="))]
    return replace(run, set=(f"shards.train={run.batch_size}", "shards.shards=1", *others))


def attacked_run(row: str, data: str, scale: Scale) -> Experiment:
    """Return a run of Table VII, which ends after the attacks on the first gradients."""
    run = trained(row, data, "quick")
    return replace(
        run,
        net="lenet",
        rounds=1,
        accountant="prv",
        attack=("cpl",),
        audit_rounds="0",
        victim_batch=run.batch_size,
        images=10 if scale == "quick" else 100,
        vantage=("server", "client_example"),
    )


VANTAGES = {"type 0&1": "server", "type 2": "client_example"}
HALF = 0.5
ATTACKED = "lenet"
UNITS = {"instance": "example", "client": "client"}

ACCURACY = ResultMetric("final.acc_global", "accuracy of the last model, mean over the clients' test data", 1)
PLANNED = {
    "n_train": ResultMetric("plan.train", "training examples in all", 1),
    "n_validation": ResultMetric("plan.test", "test examples in all", 1),
    "features": ResultMetric("plan.features", "numbers in an example", 1),
    "classes": ResultMetric("plan.classes", "classes", 1),
    "data_per_client": ResultMetric("plan.examples", "training examples of a client", 1),
    "local_iterations_l": ResultMetric("plan.steps", "local steps in a round", 1),
    "local_batch_b": ResultMetric("plan.batch", "examples in a step", 1),
    "rounds_t": ResultMetric("plan.rounds", "rounds", 1),
}
MILLISECONDS = ResultMetric(
    "timing.ms", "ms of the processor for a local iteration, median of 7 epochs of one client", 1
)
RATIO = ResultMetric("timing.ratio", "its ratio to plain training, both in turns", 1)


def exact(unit: str) -> ResultMetric:
    """Return the figure of the true epsilon."""
    name = f"privacy.unit={unit},adversary=server,accounting=exact.epsilon"
    return ResultMetric(name, f"epsilon of one {unit} against the server, counted exactly", 1)


def as_published(unit: str, absent: str | None = None) -> ResultMetric:
    """Return the figure of epsilon by the paper's count; ``absent`` is printed where the paper has none either."""
    name = f"privacy.unit={unit},accounting=as published.epsilon"
    return ResultMetric(name, f"epsilon of one {unit}, counted as in the paper", 1, absent=absent)


def described(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of Table I."""
    data = str(cell.keys["dataset"])
    if cell.metric in PLANNED:
        planned = trained("non-private", data, "full")
        return Preset(((planned,),), PLANNED[cell.metric], source="plan")
    if cell.metric == "non_private_accuracy":
        return Preset(((trained("non-private", data, scale),),), ACCURACY)
    return Preset(((trained("non-private", data, "quick"),),), MILLISECONDS, source="clock")


def participation(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of Table II."""
    row, clients = str(cell.keys["method"]), int(cell.keys["K"])
    share, sigma = float(cell.keys["Kt_over_K"]), float(cell.keys["sigma"])
    return Preset(((shared_out(row, clients, share, scale, sigma),),), ACCURACY, also=epsilons(row))


def timed(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of Table III: one client, with the same data at both scales."""
    row = str(cell.keys["method"])
    run = trained(row, str(cell.keys["dataset"]), "quick")
    return Preset(((run,),), MILLISECONDS, also=() if row == "non-private" else (RATIO,), source="clock")


def swept(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of Table IV or V."""
    clip, sigma = float(cell.keys["C"]), float(cell.keys["sigma"])
    run = trained("Fed-CDP", str(cell.keys["dataset"]), scale, clip, sigma)
    return Preset(((run,),), ACCURACY, also=epsilons("Fed-CDP"))


def spent(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of Table VI, which is known before a run and the same at both scales."""
    row, unit = str(cell.keys["method"]), UNITS[str(cell.keys["level"])]
    run = trained(row, str(cell.keys["dataset"]), "full")
    if cell.keys["L"] == 1:
        run = one_iteration(run)
    absent = "not supported" if (row, unit) == ("Fed-SDP", "example") else None
    return Preset(((run,),), as_published(unit, absent), also=(exact(unit),), source="plan")


def epsilons(row: str) -> tuple[ResultMetric, ...]:
    """Return the epsilons that are shown beside an accuracy, for the unit that the method protects."""
    if row == "non-private":
        return ()
    unit = "client" if row == "Fed-SDP" else "example"
    return exact(unit), as_published(unit)


def attacked(cell: Cell, scale: Scale) -> Preset:
    """Return the preset of a cell of Table VII; one run has both kinds of leakage."""
    run = attacked_run(str(cell.keys["method"]), str(cell.keys["dataset"]), scale)
    figure, *also = figures(VANTAGES[str(cell.keys["leak"])])[cell.metric]
    return Preset(((run,),), figure, also=tuple(also))


def figures(vantage: str) -> dict[str, tuple[ResultMetric, ...]]:
    """Return the figures of the attack from a vantage by the paper's names, with the figures shown beside them."""
    entry, informed = (f"audit.vantage={vantage},adaptation{sign}None" for sign in ("=", "!="))
    success, distance, iterations = (f"distance.{name}" for name in ("success", "rmsd", "iterations"))
    adaptive = "the same of the attack that knows of the noise"
    deviation = "root mean square deviation of an example, mean over those with a reconstruction"
    steps = "steps of L-BFGS, mean over the examples with a reconstruction"
    return {
        "succeed": (
            ResultMetric(f"{entry}.{success}", "whether at least half of the examples were found, below 0.3", 1, HALF),
            ResultMetric(f"{entry}.{success}", "the share of the examples that were found", 1),
            ResultMetric(f"{informed}.{success}", adaptive, 1, absent=""),
        ),
        "reconstruction_distance": (
            ResultMetric(f"{entry}.{distance}", deviation, 1, absent="none"),
            ResultMetric(f"{entry}.failures", "examples without a reconstruction", 1),
            ResultMetric(f"{informed}.{distance}", adaptive, 1, absent=""),
        ),
        "attack_iterations": (ResultMetric(f"{entry}.{iterations}", steps, 1, absent="none"),),
    }


def authors(experiment: Experiment) -> Experiment:
    """Return the experiment as in the authors' code: inputs in [0, 1], Glorot's weights, passes in the stored order.

    The order is that of shards of sorted data. It is known for images only; for tables, passes stay shuffled.
    """
    init = "torch" if experiment.net == ATTACKED else "glorot"  # the attacked network has weights of its own
    order = "fixed" if experiment.net != TABULAR else "shuffled"
    return replace(as_authors(experiment), normalise="none", init=init, example_order=order)


TABLES: dict[str, Presets] = {
    "fed_cdp.1": described,
    "fed_cdp.2": participation,
    "fed_cdp.3": timed,
    "fed_cdp.4": swept,
    "fed_cdp.5": swept,
    "fed_cdp.6": spent,
    "fed_cdp.7": attacked,
}
