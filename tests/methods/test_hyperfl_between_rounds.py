"""HyperFL: the extractor that a client keeps to report its change between rounds; rounds themselves are in golden."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flfw.experiment import Experiment
from flfw.server.history import History
from tests.support import rounds


def asked(small: Experiment, *settings: str) -> Experiment:
    given = {"method": "hyperfl", "net": "cnn1", "split": "iid", "clients": 2, "batch_size": 20, "lr": 1e-2}
    return dataclasses.replace(small, set=("embedding=4", "hidden=6", *settings), **given)  # type: ignore[arg-type]


def theta(client: object) -> Tensor:
    return torch.cat([value.detach().flatten() for value in client.net.extractor_weights().values()])  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_change_between_rounds_is_from_one_rounds_end_to_the_next(small: Experiment, tmp_path: Path) -> None:
    experiment = asked(small, "keep_theta=true")
    first, second = (rounds.play(experiment, tmp_path / str(count), count) for count in (1, 2))
    for partition, (before, after) in enumerate(zip(first.clients, second.clients, strict=True)):
        begun, ended = (update[partition].metrics for update in second.uploads)
        assert "theta_change_between_rounds" not in begun
        expected = (theta(after) - theta(before)).norm() / theta(before).norm()
        assert ended["theta_change_between_rounds"] == pytest.approx(float(expected), rel=1e-5)
        assert ended["theta_change_between_rounds"] != pytest.approx(ended["theta_change"], rel=1e-2)


@pytest.mark.slow
def test_without_it_nothing_is_kept_and_the_numbers_are_the_same(small: Experiment, tmp_path: Path) -> None:
    kept, plain = (
        rounds.play(asked(small, *given), tmp_path / str(len(given)), 2) for given in (("keep_theta=true",), ())
    )
    assert "last_theta" in kept.clients[0].private_state() and "last_theta" not in plain.clients[0].private_state()
    assert all(torch.equal(kept.broadcasts[2][name], value) for name, value in plain.broadcasts[2].items())


def test_a_figure_that_only_some_clients_have_is_averaged_over_these() -> None:
    history = History()
    usual = {"round": 1, "loss": 1.0, "upload_bytes": 1}
    row = history.add(1, [{**usual, "client": 0}, {**usual, "client": 1, "between": 0.5}], [], 0, 0.0, {})
    assert row["extra"] == {"between": 0.5}
