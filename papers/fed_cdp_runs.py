"""Experiments with Fed-CDP's data sets and methods: Table I and the settings on the card of papers/fed_cdp.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from flfw.experiment import Experiment
from flfw.papers.preset import Scale

SIGMA, CLIP = 6.0, 4.0
ROWS = ("non-private", "Fed-SDP", "Fed-CDP", "Fed-CDP(decay)")
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
        row: one of `ROWS`.
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
        row: one of `ROWS`.
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


def shared_out(row: str, clients: int, share: float, scale: Scale) -> Experiment:
    """Return a run of Table II: MNIST with K clients, of which a share takes part in each round.

    At the quick scale no image is copied: with 1,000 clients each has 50 of them, and with 10,000 each has 4.
    """
    run = trained(row, "MNIST", scale)
    fewer: tuple[str, ...] = ()
    if scale == "quick" and clients > _FEW_CLIENTS:
        fewer = (f"shards.train={50_000 // clients}",)
    rounds = 2 if scale == "quick" and clients > 1000 else run.rounds
    return replace(run, clients=clients, sample=round(share * clients), rounds=rounds, set=(*fewer, *run.set))


def one_iteration(run: Experiment) -> Experiment:
    """Return the same run with L = 1: each client has one batch of examples, from a single shard."""
    others = [one for one in run.set if not one.startswith(("shards.train=", "shards.shards="))]
    return replace(run, set=(f"shards.train={run.batch_size}", "shards.shards=1", *others))


def attacked(row: str, data: str, scale: Scale) -> Experiment:
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
