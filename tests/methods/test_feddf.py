"""FedDF: rounds against a loop that is written here, what the server distils on, and what is refused."""

import dataclasses
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

import sim
from flfw import nets
from flfw.experiment import Experiment
from flfw.nets import NetCard
from flfw.plans.run_plan import plan
from flfw.rng import torch_generator
from flfw.strategies import feddf
from flfw.task.task import TaskPlan
from tests.support import rounds
from tests.support.method_rounds import normed
from tests.support.pictures import noise, save

CLOSE = 1e-10  # of a change, in float64


@pytest.fixture
def asked(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Two clients of 60 digits, and 70 for the server, which sees each more than twice."""
    monkeypatch.setitem(nets._CARDS, "normed", NetCard(normed))
    few = ("iterations=12", "sampled.train=60", "sampled.distillation=70", "weight_decay=0")
    given: dict[str, Any] = {"net": "normed", "split": "sampled", "clients": 2, "batch_size": 20, "lr": 0.05}
    return dataclasses.replace(small, method="feddf", set=few, **given)


def passed(count: int, rng: torch.Generator) -> list[int]:
    """Places of 12 steps of 16, pass after pass."""
    return torch.cat([torch.randperm(count, generator=rng) for _ in range(-(-12 * 16 // count))]).tolist()


def distilled(student: nn.Module, teachers: list[nn.Module], images: list[Tensor]) -> None:
    """As the paper does, with a fresh Adam."""
    adam = torch.optim.Adam(student.parameters(), lr=3e-4)
    student.train()
    for x in images:
        with torch.no_grad():
            message = [share * t.eval()(x) for share, t in zip(rounds.SHARES, teachers, strict=True)]
        loss = kl_div(log_softmax(student(x), 1), softmax(message[0] + message[1], 1), reduction="batchmean")
        rounds.descend(adam, loss)


def test_two_rounds_equal_a_loop(asked: Experiment, tmp_path: Path) -> None:
    with rounds.exactly():
        result, task = rounds.play(asked, tmp_path, 2), plan(asked).task.load(None)
        chosen, server = task.split.distillation, rounds.fresh(asked)
        broadcast = result.broadcasts[0]
        for now in (1, 2):
            clients = []
            for partition in range(2):
                net = rounds.fresh(asked)
                net.load_state_dict(broadcast)
                sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5)
                for x, y in rounds.batches(asked, partition, "batches", 1, now):
                    rounds.descend(sgd, cross_entropy(net(x), y))
                clients.append(net)
                tensors = result.uploads[now - 1][partition].tensors
                assert rounds.error(tensors, dict(net.state_dict()), broadcast) < CLOSE
            average = rounds.mean([dict(net.state_dict()) for net in clients])
            server.load_state_dict(average)
            indices = passed(len(chosen), torch_generator(asked.seed, "server training", now))
            images = [rounds.normalised(task, chosen[indices[16 * i : 16 * i + 16]]) for i in range(12)]
            distilled(server, [deepcopy(net) for net in clients], images)
            broadcast = {name: value.clone() for name, value in server.state_dict().items()}
            for part in ("weight", "running"):  # the latter change most
                names = [name for name in broadcast if part in name]
                pair = [{n: given[n] for n in names} for given in (result.broadcasts[now], broadcast)]
                assert rounds.error(pair[0], pair[1], average) < CLOSE
        assert result.strategy.state == {}
        assert 0 < result.strategy.round_metrics["distillation_loss"] < 0.1


def test_labels_are_never_looked_at(asked: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rounds.play(asked, tmp_path / "one").broadcasts[-1]
    task = plan(asked).task.load(None)
    labels = np.array(task.dataset.train_y)
    labels[task.split.distillation] = -1
    other = dataclasses.replace(task, dataset=dataclasses.replace(task.dataset, train_y=labels))
    monkeypatch.setattr(TaskPlan, "load", lambda *_: other)
    after = rounds.play(asked, tmp_path / "two").broadcasts[-1]
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("count", "size"), [(5, 3), (3, 7), (8, 4)])
def test_a_pass_is_over_before_the_next_begins(count: int, size: int) -> None:
    result = np.concatenate(list(feddf.passes(count, size, 10, torch_generator(0, "test"))))
    assert len(result) == 10 * size
    whole = result[: len(result) // count * count].reshape(-1, count)
    assert all(sorted(one) == list(range(count)) for one in whole.tolist())
    assert len({tuple(one) for one in whole.tolist()}) > 1  # each in its own order


# --- another data set ---


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    """A folder of 12 grey images of 10x10, half of them for training."""
    for i in range(12):
        part = "train" if i % 2 else "test"
        save(tmp_path / "pictures" / part / "ab"[i // 6] / f"{i}.png", noise(10, 10) + np.uint8(i))
    return f"folder:{tmp_path / 'pictures'}"


def test_the_server_may_have_another_data_set(asked: Experiment, tmp_path: Path, pictures: str) -> None:
    experiment = dataclasses.replace(asked, split="iid", set=("iterations=12", "weight_decay=0", f"public={pictures}"))
    task = plan(experiment).task.load(None)
    stored, places = feddf.unlabelled(task, pictures)
    assert stored.shape == (6, 1, 8, 8) and places.tolist() == list(range(6))
    with rounds.exactly():
        result = rounds.play(experiment, tmp_path)
        uploads = [update.tensors for update in result.uploads[0]]
        server, teachers = rounds.fresh(experiment), [rounds.fresh(experiment) for _ in uploads]
        for teacher, chosen in zip(teachers, uploads, strict=True):
            teacher.load_state_dict(chosen)
        server.load_state_dict(rounds.mean(uploads))
        mean, std = torch.tensor(task.dataset.mean), torch.tensor(task.dataset.std)  # the clients' own, of one channel
        pixels = torch.tensor(np.array(stored)).float() / 255
        drawn = passed(6, torch_generator(experiment.seed, "server training", 1))
        distilled(
            server,
            teachers,
            [(pixels[drawn[16 * i : 16 * i + 16]] - mean[:, None, None]) / std[:, None, None] for i in range(12)],
        )
        pair = result.broadcasts[1], dict(server.state_dict())
        assert rounds.error(*pair, rounds.mean(uploads)) < CLOSE


NOTHING = (
    "Expected data that no client holds for the server to distil on, got a split that sets none aside; pass --split "
    "sampled (domains for a data set of several), or --set public=NAME of another data set."
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], NOTHING),
        (["public=digits"], "Expected public data beside the clients' digits, got public=digits; leave it out."),
        (
            ["public=cifar10"],
            "Expected public data of 1 channels, as digits has, got public=cifar10 of inputs 3x32x32; choose another.",
        ),
        (
            ["public=adult"],
            "Expected public data of 1 channels, as digits has, got public=adult of inputs 105; choose another.",
        ),
        (["iterations=0"], "Expected iterations >= 1, got iterations=0."),
        (["momentum=1"], "Expected 0 <= momentum < 1, got momentum=1.0."),
    ],
)
def test_what_the_server_cannot_distil_on_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], message: str
) -> None:
    flags = (
        f"--method feddf --dataset digits --clients 2 --engine inproc --attack none --split iid --out {tmp_path}/out"
    )
    assert sim.main([*flags.split(), *(["--set", *settings] if settings else [])]) == 2
    assert capsys.readouterr().err == f"sim.py: {message}\n"
    assert not (tmp_path / "out").exists()


def test_a_data_set_of_several_shares_its_domains(asked: Experiment) -> None:
    """Digit5's clients may hold USPS: the same images may not come to the server by another name."""
    task = plan(asked).task.load(None)
    many = dataclasses.replace(task.dataset, name="digit5")
    with pytest.raises(ValueError, match="Expected public data beside the clients' digit5, got public=usps"):
        feddf.unlabelled(dataclasses.replace(task, dataset=many), "usps")


def test_an_attacker_can_write_out_the_clients_steps(asked: Experiment) -> None:
    cls, settings = plan(asked).client.method, plan(asked).client.settings
    steps = cls.local_steps(settings, 0.1, 3)
    assert steps is not None and (steps.lr, steps.momentum) == (0.1, 0.5)
