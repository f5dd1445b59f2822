"""Methods with clipping and noise: one round against a loop over single examples, the noise's scale, who is drawn."""

import csv
import dataclasses
import json
from collections.abc import Mapping, Sequence
from math import comb, inf, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from safetensors.torch import load_file
from scipy.stats import binom, chi2
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sim
from flfw import nets
from flfw.dp.client import DPClient
from flfw.dp.noisy_mean import noisy_mean
from flfw.dp.settings import DPSettings, clipped_change
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import pack, unpack
from flfw.nets import Net
from flfw.nets.training.gaussian import SeededNoise
from flfw.plans.run_plan import plan
from flfw.rng import numpy_generator, secret_generator, torch_generator
from flfw.server.aggregation import Update
from flfw.server.cohorts import drawn, participations
from flfw.server.strategy import FederatedStrategy
from tests.support import rounds
from tests.support.method_rounds import assert_equal, dp_client, initial_tensors, of, plain_net, sizes, weighted
from tests.support.resumed_runs import cut_short

State = dict[str, Tensor]


@pytest.fixture
def tiny(small: Experiment) -> Experiment:
    """Three clients of 20 digits each, in batches of 8 (the last one of 4), two passes of a small dense network."""
    changes = {"net": "mlp", "split": "sampled", "local_epochs": 2, "batch_size": 8, "lr": 0.3}
    return dataclasses.replace(small, **changes, set=("sampled.train=20",))


def strategy_of(experiment: Experiment, server_round: int = 1) -> FederatedStrategy:
    """The server half as it is when it combines a round, having sent what all begin with."""
    method, settings = plan(experiment).strategy, plan(experiment).client.settings
    strategy = method(settings, sample=experiment.sample, sampling=experiment.sampling, seed=experiment.seed)
    received = pack({name: torch.tensor(value) for name, value in initial_tensors(experiment).items()})
    strategy.configure_train(server_round, received, ConfigRecord(), InProcessGrid(ClientApp(), experiment.clients, {}))
    strategy.round = server_round
    return strategy


def a_round(experiment: Experiment, folder: Path, server_round: int = 1) -> tuple[State, list[State]]:
    """The server's next tensors, and what each client sent."""
    received, sent = initial_tensors(experiment), []
    updates = []
    for partition in range(experiment.clients):
        tensors, metrics = dp_client(experiment, partition, folder, server_round).fit_named(received, version=0)
        sent.append({name: value.clone() for name, value in tensors.items()})
        updates.append(Update(partition, metrics["num-examples"], sent[-1]))
    return strategy_of(experiment, server_round).aggregate(iter(updates)), sent


# --- the loops: torch's autograd for one example after the other, torch's optimiser, nothing of flfw's training ---


def own_examples(experiment: Experiment, partition: int) -> tuple[Tensor, Tensor]:
    task = plan(experiment).task.load(None)
    chosen = task.split.train[partition]
    return rounds.normalised(task, chosen), torch.tensor(task.dataset.train_y[chosen])


def gradients(net: nn.Module, x: Tensor, y: Tensor, names: Sequence[str]) -> list[State]:
    parameters = dict(net.named_parameters())
    result = []
    for one in range(len(y)):
        loss = cross_entropy(net(x[one : one + 1]), y[one : one + 1])
        result.append(dict(zip(names, torch.autograd.grad(loss, [parameters[name] for name in names]), strict=True)))
    return result


def group_of(name: str, grouping: str) -> str:
    return {"layer": name.rsplit(".", 1)[0], "tensor": name, "flat": "everything"}[grouping]


def norms_of(change: Mapping[str, Tensor], grouping: str) -> dict[str, float]:
    squares: dict[str, float] = {}
    for name, value in change.items():
        group = group_of(name, grouping)
        squares[group] = squares.get(group, 0.0) + float((value.double() ** 2).sum())
    return {group: sqrt(square) for group, square in squares.items()}


def clipped(change: Mapping[str, Tensor], bound: float | Mapping[str, float], grouping: str) -> State:
    norms = norms_of(change, grouping)
    bounds = bound if isinstance(bound, Mapping) else dict.fromkeys(norms, bound)
    scales = {group: 1 / max(1.0, norm / bounds[group]) for group, norm in norms.items()}
    return {name: value * scales[group_of(name, grouping)] for name, value in change.items()}


def clipped_sum(net: nn.Module, x: Tensor, y: Tensor, names: Sequence[str], bound: Any, grouping: str) -> State:
    parameters, total = dict(net.named_parameters()), {}
    for one in gradients(net, x, y, names):
        for name, value in clipped(one, bound, grouping).items():
            total[name] = total.get(name, 0) + value
    return {name: total.get(name, torch.zeros_like(parameters[name])) for name in names}


def follow(optimiser: torch.optim.Optimizer, net: nn.Module, step: State) -> None:
    for name, parameter in net.named_parameters():
        parameter.grad = step[name].clone() if name in step else None
    optimiser.step()


def smallest_zeroed(value: Tensor, ratio: float) -> Tensor:
    result = value.clone().flatten()
    result[value.flatten().abs().argsort()[: int(ratio * value.numel())]] = 0
    return result.view_as(value)


def cdp_loop(
    experiment: Experiment,
    partition: int,
    bound: Any,
    grouping: str = "layer",
    lr: float | None = None,
    server_round: int = 1,
    zeroed: float = 0.0,
) -> State:
    """Fed-CDP's client without noise; ``bound`` is a number or made from the network and the client's examples."""
    net = plain_net(experiment)
    names = [name for name, _ in net.named_parameters()]
    bounds = bound(net, *own_examples(experiment, partition)) if callable(bound) else bound
    optimiser = torch.optim.SGD(net.parameters(), lr=lr or experiment.lr)
    for x, y in rounds.batches(experiment, partition, "batches", experiment.local_epochs, server_round):
        total = clipped_sum(net, x, y, names, bounds, grouping)
        follow(optimiser, net, {n: smallest_zeroed(v, zeroed) / len(y) for n, v in total.items()})
    return {name: value.detach() for name, value in net.state_dict().items()}


def medians(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    names = [name for name, _ in net.named_parameters()]
    norms = [norms_of(one, "layer") for one in gradients(net, x, y, names)]
    return {group: float(torch.tensor([one[group] for one in norms]).median()) for group in norms[0]}


# Settings, the bound of a round, and what else is different in the loop. Gradients' norms are 0.1 to 4 a layer.
CDP = {
    "layer": (("clip=0.5",), {"bound": 0.5}),
    "tensor": (("clip=0.5", "grouping=tensor"), {"bound": 0.5, "grouping": "tensor"}),
    "flat": (("clip=0.5", "grouping=flat"), {"bound": 0.5, "grouping": "flat"}),
    "decay": (("clip=0.5", "bound=decay", "last_clip=0.1"), {"bound": 0.3, "server_round": 2}),
    "lr": (("clip=0.8", "bound=lr", "lr_decay=0.5"), {"bound": 0.4, "lr": 0.15, "server_round": 2}),
    "lr of a constant bound": (("clip=0.4", "lr_decay=0.5"), {"bound": 0.4, "lr": 0.15, "server_round": 2}),
    "median": (("bound=median",), {"bound": medians}),
    "compressed before": (("clip=0.5", "compress=before", "compress_ratio=0.5"), {"bound": 0.5, "zeroed": 0.5}),
    "compressed after": (("clip=0.5", "compress=after", "compress_ratio=0.6"), {"bound": 0.5, "zeroed": 0.6}),
}


def assert_nearly_equal(result: State, expected: State, share: float) -> None:
    """All but a share of the entries within 1e-5."""
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        assert float(((result[name] - value).abs() > 1e-5).float().mean()) <= share, name


@pytest.mark.parametrize("case", CDP)
def test_fed_cdp_equals_a_loop(tiny: Experiment, tmp_path: Path, case: str) -> None:
    assignments, loop = CDP[case]
    experiment = of(tiny, "fed_cdp", "noise_multiplier=0", *assignments, rounds=3)
    server_round = loop.get("server_round", 1)
    states = [cdp_loop(experiment, partition, **loop) for partition in range(3)]
    result, sent = a_round(experiment, tmp_path, server_round)
    share = 0.02 if "zeroed" in loop else 0.0  # pixels that are always dark are alike: of equal entries any may go
    for one, state in zip(sent, states, strict=True):
        assert_nearly_equal(one, state, share)
    assert_nearly_equal(result, weighted(states, [1, 1, 1]), share)
    for without in ({"bound": inf}, {"zeroed": 0.0}) if "zeroed" in loop else ({"bound": inf},):  # each bites
        bare = cdp_loop(experiment, 0, **{**loop, **without})
        assert max(float(((bare[n] - states[0][n]).abs() > 1e-3).float().mean()) for n in bare) > 0.05


def test_fed_cdp_on_a_convolution_equals_a_loop(tiny: Experiment, tmp_path: Path) -> None:
    experiment = of(tiny, "fed_cdp", "noise_multiplier=0", "clip=0.5", net="lenet", local_epochs=1, lr=1.0)
    assert_equal(a_round(experiment, tmp_path)[1][1], cdp_loop(experiment, 1, 0.5), 1e-5)


def test_fed_cdp_counts_clients_alike_and_dp_fedavg_by_their_examples(tiny: Experiment) -> None:
    updates = [Update(0, 1, {"w": torch.tensor([0.0])}), Update(1, 3, {"w": torch.tensor([4.0])})]
    for method, mean in (("fed_cdp", 2.0), ("dp_fedavg", 3.0), ("centaur", 3.0), ("ppsgd", 3.0)):
        assert strategy_of(of(tiny, method)).aggregate(iter(updates)) == {"w": torch.tensor([mean])}


def head_steps(net: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    head = {name: p for name, p in net.named_parameters() if name.startswith("classifier.")}
    result = torch.autograd.grad(cross_entropy(net(x), y), list(head.values()))
    follow(optimiser, net, dict(zip(head, result, strict=True)))


def local_loop(
    experiment: Experiment, partition: int, method: str, bound: float | None = None, decay: float = 5e-4
) -> nn.Module:
    """Steps over all or over the extractor, by example where they are clipped; with the head as the method has it."""
    net = plain_net(experiment)
    parameters = dict(net.named_parameters())
    momentum, decay = (0.0, 0.0) if method == "fed_sdp" else (0.5, decay)
    names = [n for n in parameters if method in ("fed_sdp", "dp_fedavg") or n.startswith("extractor.")]
    main = torch.optim.SGD([parameters[n] for n in names], lr=experiment.lr, momentum=momentum, weight_decay=decay)
    others = [p for n, p in parameters.items() if n.startswith("classifier.")]
    plain = torch.optim.SGD(others, lr=0.2, momentum=momentum, weight_decay=decay)
    if method == "centaur":
        for x, y in rounds.batches(experiment, partition, "head", 2, 1):
            head_steps(net, plain, x, y)
    for x, y in rounds.batches(experiment, partition, "batches", experiment.local_epochs, 1):
        if method == "ppsgd":
            head_steps(net, plain, x, y)
        if bound is None:
            rounds.descend(main, cross_entropy(net(x), y))
        else:
            total = clipped_sum(net, x, y, names, bound, "flat")
            follow(main, net, {name: value / len(y) for name, value in total.items()})
    return net


OWN = {"dp_fedavg": (), "centaur": ("head_lr=0.2", "head_epochs=2"), "ppsgd": ("head_lr=0.2",)}


@pytest.mark.parametrize("method", OWN)
def test_methods_that_protect_examples_equal_a_loop(tiny: Experiment, tmp_path: Path, method: str) -> None:
    """Momentum and weight decay act after clipping; the norm is that of what is sent."""
    experiment = of(tiny, method, "noise_multiplier=0", "clip=0.3", "weight_decay=0.01", *OWN[method])
    nets = [local_loop(experiment, partition, method, 0.3, 0.01) for partition in range(3)]
    uploads = plan(experiment).client.method.uploads
    shared = [n for n in nets[0].state_dict() if uploads == ("*",) or n.startswith("extractor.")]
    result, sent = a_round(experiment, tmp_path)
    for partition, net in enumerate(nets):
        assert_equal(sent[partition], {name: net.state_dict()[name] for name in shared}, 1e-5)
    assert_equal(result, weighted([{n: net.state_dict()[n] for n in shared} for net in nets], sizes(experiment)), 1e-5)
    client = dp_client(experiment, 1, tmp_path / "again")
    client.fit_named(initial_tensors(experiment), version=0)
    assert_equal(client.model.state_dict(), nets[1].state_dict(), 1e-5)  # the head as well
    bare = local_loop(experiment, 0, method, inf, 0.01).state_dict()
    assert max(float((bare[name] - sent[0][name]).abs().max()) for name in shared) > 1e-3


@pytest.mark.parametrize("grouping", ["layer", "tensor", "flat"])
@pytest.mark.parametrize("method", ["fed_sdp", *OWN])
def test_methods_that_protect_clients_equal_a_loop(
    tiny: Experiment, tmp_path: Path, method: str, grouping: str
) -> None:
    """The clipped change of all local steps; the server adds up and divides by the number of clients."""
    unit = () if method == "fed_sdp" else ("unit=client", *OWN[method])
    experiment = of(tiny, method, "noise_multiplier=0", "clip=0.2", f"grouping={grouping}", *unit)
    before = {name: torch.tensor(value) for name, value in initial_tensors(experiment).items()}
    result, sent = a_round(experiment, tmp_path)
    total = {name: torch.zeros_like(value) for name, value in before.items()}
    for partition in range(3):
        after = local_loop(experiment, partition, method).state_dict()
        change = {name: after[name] - before[name] for name in before}
        assert max(norms_of(change, grouping).values()) > 0.25
        kept = clipped(change, 0.2, grouping)
        assert_equal(sent[partition], {name: before[name] + kept[name] for name in before}, 1e-5)
        total = {name: total[name] + kept[name] for name in before}
    assert_equal(result, {name: before[name] + total[name] / 3 for name in before}, 1e-5)


def test_a_clipped_change_has_the_norm_of_the_bound_and_nothing_else_gets_through() -> None:
    change = {"a.w": torch.tensor([30.0]), "a.b": torch.tensor([40.0]), "b.w": torch.tensor([0.1])}
    result = clipped_change(change, 5.0, "layer")
    assert {name: round(float(value), 5) for name, value in result.items()} == {"a.w": 3.0, "a.b": 4.0, "b.w": 0.1}
    assert float(clipped_change({"a.w": torch.zeros(2)}, 5.0, "layer")["a.w"].abs().sum()) == 0
    for bad in (inf, nan):  # a diverged client: no scale makes it keep a bound
        result = clipped_change({**change, "a.b": torch.tensor([bad])}, 5.0, "layer")
        assert [float(value) for value in result.values()] == pytest.approx([0.0, 0.0, 0.1])


def test_the_servers_mean_divides_by_the_cohort_and_not_by_who_came() -> None:
    sent, count = {"w": torch.tensor([1.0]), "n": torch.tensor([7])}, torch.tensor([9])
    updates = [Update(0, 100, {"w": torch.tensor([3.0]), "n": count}), Update(4, 1, {"w": torch.tensor([2.0])})]
    wide, none = DPSettings(clip=10.0), SeededNoise(torch.Generator())
    result = noisy_mean(updates, sent, 4, wide, 0.0, none)
    assert result == {"w": torch.tensor([1.75]), "n": torch.tensor([7])}  # and 100 examples weigh no more than 1
    assert noisy_mean([], sent, 4, wide, 0.0, none) == sent


def test_the_server_bounds_a_change_that_its_client_did_not() -> None:
    """A rounding error of the client's float32 is let through; a client that does not clip is not."""
    sent, none = {"w": torch.tensor([1.0])}, SeededNoise(torch.Generator())
    for change, expected in ((1.0009, 1.0009), (50.0, 1 + 2**-10), (-50.0, -1 - 2**-10)):
        update = Update(0, 1, {"w": torch.tensor([1 + change])})
        result = noisy_mean([update], sent, 1, DPSettings(clip=1.0), 0.0, none)["w"]
        assert float(result) - 1 == pytest.approx(expected, abs=1e-6)


# --- the noise ---


def scale_is(noise: Mapping[str, Tensor], std: float) -> None:
    """Layer by layer the noise has this deviation, by a two-sided chi-square test; and not 2/3 or 3/2 of it."""
    layers: dict[str, list[Tensor]] = {}
    for name, value in noise.items():
        layers.setdefault(name.rsplit(".", 1)[0], []).append(value.double().flatten())
    assert len(layers) >= 2
    for layer, many in layers.items():
        values = torch.cat(many)

        def share(given: float, values: Tensor = values) -> float:
            at = float((values**2).sum()) / given**2
            return min(float(chi2.cdf(at, len(values))), float(chi2.sf(at, len(values))))

        assert share(std) > 1e-3, layer
        assert share(std * 2 / 3) < 1e-9 and share(std * 3 / 2) < 1e-9, layer
        assert abs(float(values.mean())) < 4 * std / sqrt(len(values)), layer


def noise_in(experiment: Experiment, folder: Path, partition: int = 0, server_round: int = 1) -> State:
    """What is sent, less what is sent without noise."""
    sent = []
    for number, many in enumerate((experiment, of(experiment, experiment.method, "noise_multiplier=0"))):
        client = dp_client(many, partition, folder / f"{number}-{partition}-{server_round}", server_round)
        sent.append(client.fit_named(initial_tensors(many), version=0)[0])
    return {name: value - sent[1][name] for name, value in sent[0].items()}


# One step on all 20 examples of a client: its noise is what is sent, over -lr / B.
ONE_STEP = {
    "fed_cdp": (("clip=0.5",), 1.5),
    "fed_cdp flat": (("clip=0.5", "grouping=flat"), 1.5),
    "fed_cdp draws=example": (("clip=0.5", "draws=example"), 1.5 * sqrt(20)),
    "fed_cdp poisson": (("clip=0.5", "batches=poisson"), 1.5),
    "fed_cdp poisson draws=example": (("clip=0.5", "batches=poisson", "draws=example"), 1.5 * sqrt(20)),
    "fed_cdp decay": (("clip=9", "bound=decay", "last_clip=0.5"), 1.5),
    "fed_cdp lr": (("clip=1", "bound=lr", "lr_decay=0.5"), 1.5),
    "dp_fedavg": (("clip=0.5", "momentum=0.9"), 1.5),
    "centaur": (("clip=0.5",), 1.5),
    "ppsgd": (("clip=0.5", "grouping=tensor"), 1.5),
}


@pytest.mark.parametrize("case", ONE_STEP)
def test_the_noise_of_a_step_has_its_scale_in_each_layer(tiny: Experiment, tmp_path: Path, case: str) -> None:
    assignments, std = ONE_STEP[case]
    chosen = ("noise_multiplier=3", *assignments)
    lr = 0.5 if "lr_decay=0.5" in chosen else 1.0  # in round 2
    experiment = of(tiny, case.split()[0], *chosen, batch_size=20, local_epochs=1, lr=1.0)
    noise = noise_in(experiment, tmp_path, server_round=2)
    scale_is({name: -20 / lr * value for name, value in noise.items()}, std)


def test_a_last_batch_that_is_smaller_has_no_less_noise(tiny: Experiment, tmp_path: Path) -> None:
    """The claim counts B draws in every step, also in one of 4 examples; and there the divisor is 4."""
    for draws, std in (("batch", 1.5), ("example", 1.5 * sqrt(8))):
        result = []
        for sigma in (3, 0):
            settings = ("clip=0.5", f"noise_multiplier={sigma}", f"draws={draws}")
            client = dp_client(of(tiny, "fed_cdp", *settings), 0, tmp_path)
            x, y = client.examples("train", client.indices("train")[:4])
            result.append(client.loss_and_direction(client.trainable_parameters(), x, y)[1])
        scale_is({name: 4 * (value - result[1][name]) for name, value in result[0].items()}, std)


def test_with_a_median_as_bound_each_layer_has_noise_of_its_own(tiny: Experiment, tmp_path: Path) -> None:
    experiment = of(tiny, "fed_cdp", "noise_multiplier=3", "bound=median", batch_size=20, local_epochs=1, lr=1.0)
    bounds = medians(plain_net(experiment), *own_examples(experiment, 0))
    noise = noise_in(experiment, tmp_path)
    scale_is({name: -20 * value / bounds[name.rsplit(".", 1)[0]] for name, value in noise.items()}, 3.0)


def test_compression_before_the_noise_leaves_no_zeros_and_after_it_many(tiny: Experiment, tmp_path: Path) -> None:
    zeros = {}
    for where in ("before", "after"):
        client = dp_client(of(tiny, "fed_cdp", f"compress={where}", "compress_ratio=0.5"), 0, tmp_path)
        x, y = client.examples("train", client.indices("train")[:4])
        result = torch.cat([value.flatten() for value in client.gradient(x, y).values()])
        zeros[where] = float((result == 0).float().mean())
    assert zeros["before"] == 0 and zeros["after"] == pytest.approx(0.5, abs=1e-3)


def test_fed_sdps_noise_is_a_clients_own_or_one_draw_on_the_sum(tiny: Experiment, tmp_path: Path) -> None:
    chosen = of(tiny, "fed_sdp", "noise_multiplier=3", "clip=0.5")
    for partition in range(3):
        scale_is(noise_in(chosen, tmp_path, partition), 1.5)
    server = of(chosen, "fed_sdp", "noised_by=server")
    assert all(float(value.abs().max()) == 0 for value in noise_in(server, tmp_path / "server").values())
    for experiment, std in ((chosen, 1.5 * sqrt(3)), (server, 1.5)):
        mean, _ = a_round(experiment, tmp_path / str(std))
        bare, _ = a_round(of(experiment, "fed_sdp", "noise_multiplier=0"), tmp_path / f"{std}-bare")
        scale_is({name: 3 * (value - bare[name]) for name, value in mean.items()}, std)


@pytest.mark.parametrize("method", OWN)
def test_the_servers_noise_on_clipped_clients(tiny: Experiment, tmp_path: Path, method: str) -> None:
    """With two of three clients in a round, or so many to be expected, the sum is over two."""
    experiment = of(tiny, method, "unit=client", "noise_multiplier=3", "clip=0.5", sample=2, sampling="poisson")
    assert all(float(value.abs().max()) == 0 for value in noise_in(experiment, tmp_path).values())
    received = initial_tensors(experiment)
    nobody = strategy_of(experiment).aggregate_empty()
    scale_is({name: 2 * (value - torch.tensor(received[name])) for name, value in nobody.items()}, 1.5)


@pytest.mark.parametrize("method", ["fed_cdp", "fed_sdp"])
def test_clients_rounds_steps_and_layers_have_independent_noise(tiny: Experiment, tmp_path: Path, method: str) -> None:
    experiment = of(tiny, method, "noise_multiplier=3", batch_size=20, local_epochs=1)
    some = [noise_in(experiment, tmp_path, p, r) for p, r in ((0, 1), (1, 1), (0, 2))]
    series = {(n, layer): value[f"{layer}.weight"].flatten() for n, value in enumerate(some) for layer in LAYERS}
    if method == "fed_cdp":
        client = dp_client(experiment, 2, tmp_path)
        x, y = client.examples("train", client.indices("train")[:0])
        for step in (3, 4):
            series |= {(step, layer): client.gradient(x, y)[f"{layer}.weight"].flatten() for layer in LAYERS}
    for one, other in ((a, b) for a in series for b in series if a < b):
        length = min(len(series[one]), len(series[other]))
        pair = torch.stack([series[one][:length], series[other][:length]]).double()
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 4 / sqrt(length), (one, other)


LAYERS = ("extractor.1", "extractor.3")


@pytest.mark.slow
def test_noise_that_is_secure_is_another_one_each_time(tiny: Experiment, tmp_path: Path) -> None:
    for method, owner in (("fed_cdp", "client"), ("fed_sdp", "client"), ("dp_fedavg", "server"), ("fed_sdp", "server")):
        unit = {"dp_fedavg": "unit=client", "fed_sdp": f"noised_by={owner}"}.get(method, "clip=1")
        for source in ("seed", "secure"):
            experiment = of(tiny, method, unit, f"noise_source={source}")
            (one, _), (two, _) = (a_round(experiment, tmp_path / f"{method}-{owner}-{source}-{n}") for n in range(2))
            assert all(torch.equal(one[name], two[name]) == (source == "seed") for name in one)


def test_no_seed_that_could_be_tried_repeats_noise_that_is_secure() -> None:
    """Torch's generator takes no more than the lower 32 bits of a seed."""
    one, two = secret_generator(), secret_generator()
    tried = torch.Generator().manual_seed(one.initial_seed())
    result = [torch.randn(100_000, generator=rng) for rng in (one, two, tried)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(float(torch.corrcoef(torch.stack([result[a], result[b]]))[0, 1])) < 7 / sqrt(100_000)
    for values in result[:2]:
        assert abs(float(values.mean())) < 7 / sqrt(100_000) and float(values.std()) == pytest.approx(1, abs=0.02)


def test_probes_of_one_client_have_noise_of_their_own_and_so_has_training(tiny: Experiment, tmp_path: Path) -> None:
    experiment = of(tiny, "fed_cdp", "noise_multiplier=3")
    result = []
    for probe in ((), (0, 1, 1), (1, 1, 1), (0, 2, 1)):
        client = dp_client(experiment, 0, tmp_path)
        client.ctx = dataclasses.replace(client.ctx, probe=probe)
        x, y = client.examples("train", client.indices("train")[:0])
        result.append(client.gradient(x, y)["extractor.1.weight"])
    for one, other in ((a, b) for a in range(4) for b in range(a)):
        assert not torch.equal(result[one], result[other])


def test_a_probe_of_a_clipped_update_is_a_step_as_it_would_be_sent(tiny: Experiment, tmp_path: Path) -> None:
    """-lr g, clipped, with the client's own noise; over -lr. What is read on the client itself is bare."""
    experiment = of(tiny, "fed_sdp", "clip=0.05", "noise_multiplier=0")
    client = dp_client(experiment, 0, tmp_path)
    x, y = client.examples("train", client.indices("train")[:1])
    net = plain_net(experiment)
    inputs, labels = own_examples(experiment, 0)
    (bare,) = gradients(net, inputs[:1], labels[:1], [name for name, _ in net.named_parameters()])
    assert_equal(client.gradient(x, y), clipped(bare, 0.05 / 0.3, "layer"), 1e-5)
    assert_equal(client.observed(x, y, torch.Generator()), bare, 1e-5)
    noisy = dp_client(of(tiny, "fed_sdp", "clip=0.05", "noise_multiplier=3"), 0, tmp_path)
    noise = {name: value - client.gradient(x, y)[name] for name, value in noisy.gradient(x, y).items()}
    scale_is({name: 0.3 * value for name, value in noise.items()}, 0.15)


@pytest.mark.parametrize("method", ["fed_cdp", "fed_sdp"])
def test_a_defence_acts_on_what_has_noise_in_a_probe_as_in_training(
    tiny: Experiment, tmp_path: Path, method: str
) -> None:
    experiment = of(tiny, method, "prune.ratio=0.5", defence="prune")
    client = dp_client(experiment, 0, tmp_path)
    client.ctx = dataclasses.replace(client.ctx, defence=plan(experiment).client.defences.build())
    x, y = client.examples("train", client.indices("train")[:2])
    probe = torch.cat([value.flatten() for value in client.gradient(x, y).values()])
    received = initial_tensors(experiment)
    sent, _ = client.fit_named(received, version=0)
    change = torch.cat([(value - torch.tensor(received[name])).flatten() for name, value in sent.items()])
    for result in (probe, change):
        assert float((result == 0).float().mean()) == pytest.approx(0.5, abs=0.02)


def test_what_is_read_of_one_example_is_with_noise_or_bare(tiny: Experiment, tmp_path: Path) -> None:
    inputs, labels = own_examples(tiny, 0)
    net = plain_net(tiny)
    (bare,) = gradients(net, inputs[:1], labels[:1], [name for name, _ in net.named_parameters()])
    result = {}
    for observed in ("sanitised", "bare"):
        client = dp_client(of(tiny, "fed_cdp", f"observed={observed}", "clip=0.5", "noise_multiplier=3"), 0, tmp_path)
        x, y = client.examples("train", client.indices("train")[:1])
        result[observed] = client.observed(x, y, torch.Generator())
    assert_equal(result["bare"], bare, 1e-5)
    kept = clipped(bare, 0.5, "layer")
    scale_is({name: value - kept[name] for name, value in result["sanitised"].items()}, 1.5)


# --- Poisson batches ---


def test_a_round_of_poisson_batches_equals_a_loop(tiny: Experiment, tmp_path: Path) -> None:
    experiment = of(tiny, "fed_cdp", "noise_multiplier=0", "clip=0.5", "batches=poisson", batch_size=3)
    for partition in range(3):
        net, (x, y) = plain_net(experiment), own_examples(experiment, partition)
        names = [name for name, _ in net.named_parameters()]
        optimiser = torch.optim.SGD(net.parameters(), lr=experiment.lr)
        rng = torch_generator(experiment.seed, "coins", 1, partition)
        drawn_so_far = []
        for _ in range(2 * 7):  # two epochs of as many batches as a pass of 20 in threes has
            coins = torch.rand(20, generator=rng) < 3 / 20
            drawn_so_far.append(int(coins.sum()))
            total = clipped_sum(net, x[coins], y[coins], names, 0.5, "layer")
            follow(optimiser, net, {name: value / 3 for name, value in total.items()})
        assert len(set(drawn_so_far)) > 2  # and the sums are divided by 3 all the same
        sent, _ = dp_client(experiment, partition, tmp_path).fit_named(initial_tensors(experiment), version=0)
        assert_equal(sent, net.state_dict(), 1e-5)


def test_heads_without_noise_take_plain_passes_or_no_step_at_all(tiny: Experiment, tmp_path: Path) -> None:
    """CENTAUR's head has passes of its own. PPSGD's steps on each batch and, with momentum, on no empty one."""
    heads = []
    for batches in ("shuffled", "poisson"):
        experiment = of(tiny, "centaur", f"batches={batches}", "head_epochs=2", batch_size=3)
        client = dp_client(experiment, 0, tmp_path)
        client.fit_named(initial_tensors(experiment), version=0)
        heads.append({n: v for n, v in client.model.state_dict().items() if n.startswith("classifier.")})
    assert_equal(heads[1], heads[0])

    plain = ("batches=poisson", "noise_multiplier=0", "clip=0.3", "head_lr=0.2")
    experiment = of(tiny, "ppsgd", *plain, batch_size=1, local_epochs=1)
    client = dp_client(experiment, 0, tmp_path)
    client.fit_named(initial_tensors(experiment), version=0)
    net, (x, y) = plain_net(experiment), own_examples(experiment, 0)
    parameters = dict(net.named_parameters())
    names = [n for n in parameters if n.startswith("extractor.")]
    others = [p for n, p in parameters.items() if n.startswith("classifier.")]
    main = torch.optim.SGD([parameters[n] for n in names], lr=experiment.lr, momentum=0.5, weight_decay=5e-4)
    head = torch.optim.SGD(others, lr=0.2, momentum=0.5, weight_decay=5e-4)
    rng = torch_generator(experiment.seed, "coins", 1, 0)
    coins = [torch.rand(20, generator=rng) < 1 / 20 for _ in range(20)]
    assert any(not chosen.any() for chosen in coins[1:])
    for chosen in coins:
        if chosen.any():
            head_steps(net, head, x[chosen], y[chosen])
        follow(main, net, clipped_sum(net, x[chosen], y[chosen], names, 0.3, "flat"))
    assert_equal(client.model.state_dict(), net.state_dict(), 1e-5)


@pytest.mark.slow
def test_poisson_batches_are_independent_coins(tiny: Experiment, tmp_path: Path) -> None:
    client, held = dp_client(of(tiny, "fed_cdp", "batches=poisson", batch_size=5), 0, tmp_path), []
    chosen, _ = client.examples("train", client.indices("train"))
    for _ in range(1000):
        for x, _ in client.batches(torch.Generator()):
            held.append([bool((x == one).flatten(1).all(1).any()) for one in chosen])
    coins = np.array(held)
    assert coins.shape == (4000, 20)
    each = coins.sum(0)  # of each example, in 4000 batches with probability 1/4
    assert all(1e-4 < binom.cdf(count, 4000, 0.25) < 1 - 1e-4 for count in each)
    assert coins.sum(1).var() == pytest.approx(20 * 0.25 * 0.75, rel=0.1)  # of batch sizes: 0 if they were fixed
    pairs = np.corrcoef(coins.T.astype(float))[np.triu_indices(20, 1)]
    assert np.abs(pairs).max() < 4.5 / sqrt(4000)
    assert abs(np.corrcoef(coins[:-1].sum(1), coins[1:].sum(1))[0, 1]) < 4 / sqrt(4000)


def test_an_empty_batch_is_a_step_of_noise_alone(tiny: Experiment, tmp_path: Path) -> None:
    for net, augment in (("mlp", "none"), ("cnn1", "crop_flip")):
        experiment = of(
            tiny, "fed_cdp", "batches=poisson", "noise_multiplier=3", "clip=0.5", batch_size=1, net=net, augment=augment
        )
        client = dp_client(experiment, 0, tmp_path)
        empty = [(x, y) for x, y in client.batches(torch.Generator()) if not len(y)]
        assert 2 <= len(empty) < 20  # a pass has 20 batches, each empty with probability 0.36
        loss, step = client.loss_and_direction(client.trainable_parameters(), *empty[0])
        assert loss == 0.0
        scale_is(step, 1.5)


def test_a_poisson_sum_is_divided_by_the_expected_number_of_a_clients_own_examples(
    tiny: Experiment, tmp_path: Path
) -> None:
    for size, expected in ((8, 8), (50, 20)):  # of 20 examples no more than 20 can be expected
        experiment = of(tiny, "fed_cdp", "batches=poisson", "noise_multiplier=0", "clip=0.5", batch_size=size)
        client = dp_client(experiment, 0, tmp_path)
        x, y = client.examples("train", client.indices("train")[:3])
        net, (inputs, labels) = plain_net(experiment), own_examples(experiment, 0)
        total = clipped_sum(net, inputs[:3], labels[:3], [n for n, _ in net.named_parameters()], 0.5, "layer")
        _, result = client.loss_and_direction(client.trainable_parameters(), x, y)
        assert_equal(result, {name: value / expected for name, value in total.items()}, 1e-5)
    assert all(len(y) == 20 for _, y in client.batches(torch.Generator()))


@pytest.mark.parametrize("method", ["fed_cdp", *OWN])
def test_passes_in_which_nobody_is_drawn_do_no_harm(tiny: Experiment, tmp_path: Path, method: str) -> None:
    experiment = of(tiny, method, "batches=poisson", batch_size=1, local_epochs=1)
    client = dp_client(experiment, 0, tmp_path)
    _, metrics = client.fit_named(initial_tensors(experiment), version=0)
    assert all(torch.isfinite(value).all() for value in client.model.state_dict().values())
    assert np.isfinite(metrics["loss"]) and metrics["gradient_norm"] > 0 and 0 <= metrics["clipped"] <= 1


def test_coins_are_as_secret_as_the_noise(tiny: Experiment, tmp_path: Path) -> None:
    """Who knows who was drawn meets a mechanism without sampling."""
    for source in ("seed", "secure"):
        experiment = of(tiny, "fed_cdp", "batches=poisson", f"noise_source={source}")
        many = dp_client(experiment, 0, tmp_path), dp_client(experiment, 0, tmp_path)
        one, two = ([len(y) for _ in range(10) for _, y in c.batches(torch.Generator())] for c in many)
        assert (one == two) == (source == "seed")


def test_how_images_are_varied_is_as_secret_as_the_noise(tiny: Experiment, tmp_path: Path) -> None:
    """From the seed, an example that is left out changes how the others are varied, and so their gradients."""
    varied: dict[str, list[Tensor]] = {}
    for source in ("seed", "secure"):
        experiment = of(tiny, "fed_cdp", f"noise_source={source}", augment="flip", example_order="fixed", batch_size=20)
        many = [dp_client(experiment, 0, tmp_path / source) for _ in range(2)]
        varied[source] = [torch.cat([x for x, _ in one.batches(one.generator("batches"))]) for one in many]
        indices = many[0].indices("train")
        if source == "seed":
            whole, fewer = (many[0].examples("train", i, many[0].generator("x"))[0] for i in (indices, indices[1:]))
            assert not torch.equal(whole[1:], fewer)
    assert torch.equal(*varied["seed"]) and not torch.equal(*varied["secure"])


# --- who takes part ---


def test_a_fixed_cohort_is_drawn_as_it_always_was() -> None:
    for server_round in range(1, 20):
        rng = numpy_generator(7, "cohort", server_round)
        before = sorted(int(client) for client in rng.choice(list(range(10)), 3, replace=False))
        assert drawn(range(10), 3, "fixed", 7, server_round) == before
    assert drawn(range(4), 0, "fixed", 7, 1) == drawn(range(4), 4, "poisson", 7, 1) == [0, 1, 2, 3]
    assert drawn([2, 5, 9], 0, "poisson", 7, 1) == [2, 5, 9]


def test_poisson_cohorts_are_independent_coins() -> None:
    rounds = 5000
    coins: np.ndarray = np.zeros((rounds, 10))
    for server_round in range(1, rounds + 1):
        coins[server_round - 1, drawn(range(10), 3, "poisson", 1, server_round)] = 1
    assert all(1e-4 < binom.cdf(count, rounds, 0.3) < 1 - 1e-4 for count in coins.sum(0))
    result = np.bincount(coins.sum(1).astype(int), minlength=11)  # how many rounds have so many clients
    expected = np.array([comb(10, k) * 0.3**k * 0.7 ** (10 - k) for k in range(11)]) * rounds
    kept = expected > 5
    assert chi2.sf(((result - expected)[kept] ** 2 / expected[kept]).sum(), kept.sum()) > 1e-3
    assert np.abs(np.corrcoef(coins.T)[np.triu_indices(10, 1)]).max() < 4 / sqrt(rounds)


def test_the_participations_of_each_client_are_those_of_the_draws() -> None:
    for sampling in ("fixed", "poisson"):
        cohorts = [drawn(range(6), 2, sampling, 3, server_round) for server_round in range(1, 9)]
        counts = [sum(client in cohort for cohort in cohorts) for client in range(6)]
        assert participations(6, 2, sampling, 3, 8).tolist() == counts and 0 < max(counts) < 8
    assert participations(6, 0, "fixed", 3, 8).tolist() == [8] * 6
    assert participations(1000, 1, "poisson", 0, 1).max() in (0, 1)


@pytest.mark.parametrize("method", ["fedavg", "fed_cdp", "fed_sdp"])
def test_a_round_without_anybody(tiny: Experiment, method: str) -> None:
    """The model stays; noise is added all the same where it is the server's, or it would tell that nobody was there."""
    assignments = {"fed_sdp": ("noised_by=server", "noise_multiplier=3", "clip=0.5")}.get(method, ())
    experiment = of(tiny, method, *assignments, clients=10, sample=1, sampling="poisson")
    server_round = next(r for r in range(1, 50) if not drawn(range(10), 1, "poisson", experiment.seed, r))
    strategy = strategy_of(experiment, server_round)
    before = {name: torch.tensor(value) for name, value in initial_tensors(experiment).items()}
    strategy.round_metrics = {"of the last round": 1.0}
    arrays, _ = strategy.aggregate_train(server_round, [])
    assert arrays is not None
    after = unpack(arrays)
    (row,) = strategy.history.rounds
    assert (row["clients"], row["loss"], row["failures"], row["upload_bytes"]) == (0, None, 0, 0)
    assert not row["extra"]
    if method == "fed_sdp":
        scale_is({name: after[name] - before[name] for name in before}, 1.5)  # of one expected client
    else:
        assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fed_sdp"])
def test_a_run_in_which_rounds_are_empty_is_complete_and_resumes(
    tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = "--set noised_by=server" if method == "fed_sdp" else "--set momentum=0"
    seed = next(s for s in range(50) if [len(drawn(range(10), 1, "poisson", s, r)) > 0 for r in (1, 2, 3, 4)] == EMPTY)
    flags = f"--method {method} --net linear --split sampled --clients 10 --sample 1 --sampling poisson --rounds 4"
    flags += f" --local-epochs 1 --batch-size 10 --seed {seed} --attack none --engine inproc {chosen} sampled.train=20"
    whole = tmp_path / "whole"
    assert sim.main([*flags.split(), "--out", str(whole)]) == 0
    result = json.loads((whole / "result.json").read_text())
    assert [row["clients"] > 0 for row in result["rounds"]] == EMPTY
    assert result["rounds"][0]["loss"] is None and result["final"]["acc_global"] >= 0
    assert (whole / "report.html").stat().st_size > 1000
    with (whole / "rounds.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["clients"] != "0" for row in rows] == EMPTY and rows[0]["loss"] == ""
    with (whole / "clients.csv").open(newline="") as lines:
        assert {int(row["round"]) for row in csv.DictReader(lines)} == {2, 4}
    for after_round in (1, 3):  # both of which nobody took part in
        command = sim.parse(flags.split())
        folder = cut_short(dataclasses.replace(command.experiment, out=tmp_path / f"cut-{after_round}"), after_round)
        assert sim.main(["--resume", str(folder)]) == 0
        models = [load_file(next((run / "checkpoint").glob("round-00004-*"))) for run in (whole, folder)]
        assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
        again = json.loads((folder / "result.json").read_text())
        assert again["final"] == result["final"] and again["privacy"] == result["privacy"]
    capsys.readouterr()


EMPTY = [False, True, False, True]


# --- what one example can change ---


def without(client: DPClient, index: int) -> None:
    """Takes one of the client's examples away."""
    split = client.ctx.task.split
    train = tuple(
        np.delete(chosen, index) if p == client.ctx.partition else chosen for p, chosen in enumerate(split.train)
    )
    task = dataclasses.replace(client.ctx.task, split=dataclasses.replace(split, train=train))
    client.ctx = dataclasses.replace(client.ctx, task=task)


@pytest.mark.parametrize("method", ["fed_cdp", *OWN])
def test_one_example_changes_a_sum_by_the_bound_unless_a_head_learns_from_it(
    tiny: Experiment, tmp_path: Path, method: str
) -> None:
    """By the head it changes the gradients of all others as well: why nothing is claimed there."""
    head = ("head_lr=20",) if method in ("centaur", "ppsgd") else ()
    plain = ("noise_multiplier=0", "clip=0.1", "grouping=flat", "momentum=0", "weight_decay=0", *head)
    experiment = of(tiny, method, *plain, batch_size=20, local_epochs=1, lr=1.0)
    received = initial_tensors(experiment)

    def total(left_out: Sequence[int]) -> State:
        client = dp_client(experiment, 0, tmp_path / f"{left_out}")
        for index in left_out:
            without(client, index)
        sent, metrics = client.fit_named(received, version=0)
        assert metrics["num-examples"] == 20 - len(left_out)
        return {n: metrics["num-examples"] * (torch.tensor(received[n]) - value) for n, value in sent.items()}

    whole, changes = total(()), []
    for index in range(20):
        less = total((index,))
        changes.append(norms_of({n: whole[n] - less[n] for n in whole}, "flat")["everything"])
    if head:
        assert max(changes) > 4 * 0.1
    else:
        assert changes == pytest.approx([0.1] * 20, rel=1e-3)  # every gradient here is longer than the bound


def with_a_frozen_layer(shape: tuple[int, ...], classes: int) -> Net:
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    for parameter in extractor[1].parameters():
        parameter.requires_grad_(False)
    return Net(extractor, nn.Linear(8, classes))


@pytest.mark.parametrize("method", ["fed_cdp", "fed_sdp", *OWN])
def test_what_is_frozen_stays(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setitem(nets._CARDS, "frozen", nets.NetCard(with_a_frozen_layer))
    experiment = of(tiny, method, "noise_multiplier=0", net="frozen")
    received = initial_tensors(experiment)
    client = dp_client(experiment, 0, tmp_path)
    sent, _ = client.fit_named(received, version=0)
    assert torch.equal(sent["extractor.1.weight"], torch.tensor(received["extractor.1.weight"]))
    before = plain_net(experiment).state_dict()
    moved = {name for name, value in client.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {f"{layer}.{kind}" for layer in ("extractor.3", "classifier") for kind in ("weight", "bias")}


# --- settings ---


@pytest.mark.parametrize("method", ["fed_cdp", "fed_sdp", *OWN])
@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("noise_multiplier=nan", "Expected 0 <= noise_multiplier < inf, got noise_multiplier=nan."),
        ("clip=nan", "Expected 0 < clip < inf, got clip=nan."),
    ],
)
def test_clip_and_noise_out_of_range(tiny: Experiment, method: str, assignment: str, message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        plan(of(tiny, method, assignment)).client.method, plan(of(tiny, method, assignment)).client.settings
    assert str(refusal.value) == message


def test_the_rest_out_of_range(tiny: Experiment) -> None:
    wrong = {
        "fed_cdp": ("last_clip=0", "last_clip=nan", "last_clip=inf", "lr_decay=0", "lr_decay=1.1", "compress_ratio=1"),
        "centaur": ("head_lr=0", "head_lr=nan", "head_lr=inf", "head_epochs=0"),
        "ppsgd": ("head_lr=-1", "head_lr=inf"),
    }
    for method, assignments in wrong.items():
        for assignment in assignments:
            with pytest.raises(ValueError, match=rf"Expected .*{assignment.partition('=')[0]}"):
                plan(of(tiny, method, assignment)).client.method, plan(of(tiny, method, assignment)).client.settings


def test_there_is_noise_for_whoever_sets_nothing() -> None:
    for method in ("fed_cdp", "fed_sdp", *OWN):
        settings = plan(Experiment(method=method)).client.settings
        assert isinstance(settings, DPSettings) and settings.noise_multiplier > 1
