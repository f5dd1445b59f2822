"""FedGen: rounds against a loop that is written here, and what becomes of classes that a client has not."""

import dataclasses
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flfw.client.store import ClientStore
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets.conditional_gan import GeneratingNet
from flfw.plans.run_plan import plan
from flfw.rng import torch_generator
from tests.support import rounds
from tests.support.planned import checked

CLOSE = 1e-10  # of a change, in float64


def asked(small: Experiment, *settings: str) -> Experiment:
    few = ("iterations=20", "server_batch=8", "optimiser=adam", "lasting=true", "sampled.train=30", *settings)
    given = {"net": "lenet5", "split": "sampled", "clients": 2, "batch_size": 20, "lr": 3e-3}
    return dataclasses.replace(small, method="fedgen", set=few, **given)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("diversity", [1.0, pytest.param(0.0, marks=pytest.mark.nightly)])
def test_two_rounds_equal_a_loop(small: Experiment, tmp_path: Path, diversity: float) -> None:
    with rounds.exactly():
        experiment = asked(small, f"diversity={diversity}")
        result = rounds.play(experiment, tmp_path, 2)
        made = [rounds.fresh(experiment) for _ in range(3)]
        nets = [net for net in made if isinstance(net, GeneratingNet)]
        *clients, server = nets
        assert len(clients) == 2 and not hasattr(server, "discriminator")
        optimisers = [
            torch.optim.Adam([*c.extractor.parameters(), *c.classifier.parameters()], lr=3e-3, weight_decay=5e-4)
            for c in clients
        ]
        serving = torch.optim.Adam(server.generator.parameters(), lr=3e-4, weight_decay=1e-4)
        start = {name: value.clone() for name, value in server.state_dict().items()}
        broadcast = result.broadcasts[0]
        for now in (1, 2):
            for partition, (model, optimiser) in enumerate(zip(clients, optimisers, strict=True)):
                model.load_state_dict(broadcast, strict=False)
                model.generator.eval()
                rng = torch_generator(experiment.seed, "generated features", now, partition)
                for x, y in rounds.batches(experiment, partition, "batches", 1, now):
                    made_up = model.generator(torch.randn(len(y), 100, generator=rng), y).detach()
                    loss = cross_entropy(model(x), y) + cross_entropy(model.classifier(made_up), y)
                    rounds.descend(optimiser, loss)
                expected = {n: v for n, v in model.state_dict().items() if n.startswith("classifier.")}
                assert rounds.error(result.uploads[now - 1][partition].tensors, expected, start) < CLOSE
            rng = torch_generator(experiment.seed, "server training", now)
            judges = [deepcopy(client.classifier) for client in clients]
            for _ in range(20):
                y = torch.randint(10, (8,), generator=rng)
                z = torch.randn(8, 100, generator=rng)
                features = server.generator(z, y)
                scores = [share * judge(features) for share, judge in zip(rounds.SHARES, judges, strict=True)]
                loss = cross_entropy(scores[0] + scores[1], y)
                if diversity:
                    other = torch.randn(4, 100, generator=rng)
                    both = server.generator(torch.cat([z[:4], other]), torch.cat([y[:4], y[:4]]))
                    ratio = (both[:4] - both[4:]).abs().mean() / (z[:4] - other).abs().mean()
                    loss = loss + 1 / (ratio + 1e-5)
                rounds.descend(serving, loss)
            sent = [{n: v.clone() for n, v in c.state_dict().items() if n.startswith("classifier.")} for c in clients]
            chosen = {n: v.clone() for n, v in server.state_dict().items() if n.startswith("generator.")}
            broadcast = {**rounds.mean(sent), **chosen}
            assert rounds.error(result.broadcasts[now], broadcast, start) < CLOSE
            generated = [
                {n: v for n, v in given.items() if n in chosen} for given in (result.broadcasts[now], broadcast)
            ]
            assert rounds.error(generated[0], generated[1], start) < CLOSE
        for model, client in zip(clients, result.clients, strict=True):
            assert rounds.error(client.model.state_dict(), dict(model.state_dict()), start) < CLOSE


@pytest.mark.slow
def test_what_is_private_is_kept_and_only_classifiers_are_sent(small: Experiment, tmp_path: Path) -> None:
    result = rounds.play(asked(small), tmp_path, 2)
    kept = ClientStore(tmp_path, "test", 1).load(2)
    assert {name.partition(".")[0].partition("/")[0] for name in kept} == {"extractor", "optimiser"}
    moved = {name.split("/", 2)[2].partition(".")[0] for name in kept if name.startswith("optimiser/mean/")}
    assert moved == {"extractor", "classifier"}
    sent = {name.partition(".")[0] for uploads in result.uploads for update in uploads for name in update.tensors}
    assert sent == {"classifier"}
    assert {name.partition(".")[0] for name in result.broadcasts[-1]} == {"classifier", "generator"}
    assert {float(v) for n, v in result.strategy.state.items() if n.startswith("steps/")} == {40}
    assert {n.split("/")[1].partition(".")[0] for n in result.strategy.state} == {*("embedding", "layers")}


def test_a_client_asks_only_for_labels_that_it_has(small: Experiment, tmp_path: Path) -> None:
    experiment = dataclasses.replace(asked(small), split="pathological", set=("iterations=2",))
    task = plan(experiment).task.load(None)
    held = set(np.unique(task.dataset.train_y[task.split.train[0]]).tolist())
    assert len(held) < 10
    client = rounds.client(experiment, tmp_path, 0)
    asked_for: set[int] = set()
    client.net.generator.register_forward_hook(lambda _, given, __: asked_for.update(given[1].tolist()))  # type: ignore[attr-defined]
    sent = {n: v.numpy() for n, v in rounds.fresh(experiment).state_dict().items() if not n.startswith("extractor.")}
    client.fit_named(sent, version=0)
    assert asked_for == held


def test_a_network_without_maps_in_0_1_is_refused(small: Experiment) -> None:
    with pytest.raises(InputError, match=r"^Expected a network whose extractor makes square maps in \(0, 1\)"):
        checked(plan(dataclasses.replace(asked(small), net="cnn1")))
