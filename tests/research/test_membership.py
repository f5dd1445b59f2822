"""Benchmark of membership inference, on few digits."""

import pytest
import torch

from research.measurements import membership, membership_attack
from research.measurements.membership_attack import ClientTraining


@pytest.mark.slow
def test_eight_members_of_one_gradient_are_told_from_others() -> None:
    aucs = membership.areas("digits", membership.network, draws=1, public=300, kept=0, counts=(8,))
    row = aucs["8"]
    assert row["whitened"]["auc"] > 0.9
    assert row["whitened"]["auc"] > row["gradient_difference"]["auc"]
    assert 0.9 < row["predicted"]["auc"] <= 1


@pytest.mark.nightly
def test_permuted_membership_gives_uniform_p_values() -> None:
    assert membership.uniform("digits", seeds=12, public=200)["uniform_p"] > 0.01


def test_a_trained_network_fits_its_examples() -> None:
    x, y = (part[:100] for part in membership.examples("digits"))
    assert (membership.trained(0, x, y, epochs=5)(x).argmax(1) == y).float().mean() > 0.6


def test_without_mnist_the_digits_are_used_and_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FLFW_DATA", str(tmp_path))
    assert membership.source(quick=False) == "digits"
    (tmp_path / "MNIST").mkdir()
    assert membership.source(quick=False) == "mnist"
    assert membership.source(quick=True) == "digits"


@pytest.mark.slow
def test_the_whole_attack_tells_eight_members_of_one_step() -> None:
    row = membership.attacked("digits", membership.network, ClientTraining(8, 1), draws=1, public=200)
    assert row["whitened"]["auc"] > 0.9
    assert row["lira_update"]["auc"] > 0.9
    assert {"cosine", "loss_drop", "lira", "label_only"} <= set(row)
    assert "trajectory" not in row


def test_a_view_grants_what_the_client_did_and_marks_no_member() -> None:
    training = ClientTraining(4, 3, 2)
    draw = membership.some("digits", 30, 0)
    seen = membership_attack.view(membership.network, draw, training, 0, clients=3)
    (only,) = seen.rounds
    assert list(only.sent) == [0, 1, 2]
    assert (seen.examples, seen.local) == (4, training.local)
    assert torch.equal(seen.candidates.samples, draw.samples[:8])
    assert torch.equal(seen.public.samples, draw.samples[16:])
    gradient = seen.model(only.received).gradient(draw.samples[:4], draw.labels[:4], {}, {})
    one = membership_attack.view(membership.network, draw, ClientTraining(4, 1), 0, clients=3).rounds[0]
    for name, value in gradient.items():
        torch.testing.assert_close((one.received[name] - one.sent[0][name]) / 0.1, value, atol=1e-5, rtol=1e-4)
