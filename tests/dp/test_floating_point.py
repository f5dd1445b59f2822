"""Server that knows both candidate data sets and looks at the digits of what a real client sends.

Torch draws float32 noise from numbers of 24 digits: a pair of entries is a radius times the cosine and the sine of an
angle that is a multiple of 2 pi / 2^24. With the true data set taken off, the angles of what is left are such
multiples; with the other data set they are not.
"""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import count
from math import pi
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from flfw.dp.client import DPClient
from flfw.dp.settings import clipped_change
from flfw.experiment import Experiment
from flfw.nets.net import Tensors
from tests.support.method_rounds import initial_tensors, make_client

TRIES = 300


@pytest.fixture
def tiny(small: Experiment) -> Experiment:
    """One step on 20 digits."""
    changes = {"net": "mlp", "split": "sampled", "local_epochs": 1, "batch_size": 20, "lr": 1.0}
    return dataclasses.replace(small, **changes, set=("sampled.train=20",))


def client_of(experiment: Experiment, folder: Path, server_round: int) -> DPClient:
    client = make_client(experiment, 0, folder, server_round)
    assert isinstance(client, DPClient)
    return client


def off_the_lattice(residual: Tensor) -> float:
    """Mean distance of the angles from multiples of 2 pi / 2^24, from 0 to 1/2: about 1/4 where there is no lattice.

    Torch fills sixteen entries at a time: eight cosines, then the eight sines.
    """
    blocks = residual[: len(residual) // 16 * 16].view(-1, 2, 8).double()
    cosines, sines = blocks[:, 0].flatten(), blocks[:, 1].flatten()
    near = torch.hypot(cosines, sines) > 0.5 * residual.std()  # short ones have lost digits
    turns = torch.atan2(sines, cosines)[near] * 2**24 / (2 * pi)
    return float((turns - turns.round()).abs().mean())


def told(residuals: Sequence[Tensor]) -> int:
    return int(np.argmin([off_the_lattice(residual) for residual in residuals]))


def share_told(send: Callable[[int], Tensor], parts: Sequence[Tensor]) -> float:
    """Share of messages of which the server says rightly which part, of two, is in them."""
    truths = np.random.default_rng(0).integers(0, 2, TRIES)
    return float(np.mean([told([send(int(truth)) - part for part in parts]) == truth for truth in truths]))


def flat(tensors: Tensors) -> Tensor:
    return torch.cat([value.flatten() for value in tensors.values()]).double()


def presence(experiment: Experiment, folder: Path) -> float:
    """Tell whether a client's update is in its message of Fed-SDP, or noise alone."""
    sent = initial_tensors(experiment)
    start = {name: torch.tensor(value) for name, value in sent.items()}
    client = client_of(experiment, folder, 1)
    client.load_received(sent, 0)
    client.train()
    trained = {name: value.clone() for name, value in client.model.state_dict().items()}
    change = {name: trained[name] - value for name, value in start.items()}
    part = flat(clipped_change(change, client.noise_settings.clip, client.noise_settings.grouping))
    rounds = count(1)  # each message has noise of its own

    def send(truth: int) -> Tensor:
        again = client_of(experiment, folder, next(rounds))
        again.received = sent
        again.model.load_state_dict(trained if truth else start)
        return flat(again.upload_tensors()) - flat(start)

    return share_told(send, [torch.zeros_like(part), part])


def neighbours(experiment: Experiment, folder: Path) -> float:
    """Tell two data sets that differ in one example by a message of DP-FedAvg after one step."""
    sent = initial_tensors(experiment)
    before = flat({name: torch.tensor(value) for name, value in sent.items()})
    client = client_of(experiment, folder, 1)
    client.load_received(sent, 0)
    x, y = client.examples("train", client.indices("train"))
    parts = []
    for size in (len(y), len(y) - 1):
        sums = client.clipped_sum(x[:size], y[:size], client.bound()).sums
        parts.append(flat({name: sums[name] for name in sent}))
    rounds = count(1)

    def send(truth: int) -> Tensor:
        again, size = client_of(experiment, folder, next(rounds)), len(y) - truth
        again.load_received(sent, 0)
        _, direction = again.loss_and_direction(again.trainable_parameters(), x[:size], y[:size])
        again.optimiser().step(again.trainable_parameters(), direction)
        return (before - flat(again.upload_tensors())) * size  # the learning rate is 1

    return share_told(send, parts)


PLAIN = ("noise_multiplier=8", "clip=4", "momentum=0", "weight_decay=0")
CASES = [(presence, "fed_sdp", ()), (neighbours, "dp_fedavg", PLAIN)]


@pytest.mark.slow
@pytest.mark.usefixtures("held_keys")
@pytest.mark.parametrize(("tell", "method", "chosen"), CASES, ids=["fed_sdp", "dp_fedavg"])
def test_digits_tell_everything_of_seeded_noise_and_nothing_of_secure_noise(
    tiny: Experiment, tmp_path: Path, tell: Callable[[Experiment, Path], float], method: str, chosen: tuple[str, ...]
) -> None:
    experiment = dataclasses.replace(tiny, method=method, set=(*tiny.set, *chosen))
    secure = dataclasses.replace(experiment, set=(*experiment.set, "noise_source=secure"))
    assert tell(experiment, tmp_path / "seed") > 0.95  # the server's test works where there is a lattice
    assert 0.4 < tell(secure, tmp_path / "secure") < 0.6
