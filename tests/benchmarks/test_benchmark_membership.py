"""Benchmark of membership inference, on few digits."""

from __future__ import annotations

from benchmarks import membership


def test_eight_members_of_one_gradient_are_told_from_others() -> None:
    aucs = membership.areas("digits", membership.network, draws=1, public=300, kept=0, counts=(8,))
    row = aucs["8"]
    assert row["whitened"]["auc"] > 0.9
    assert row["whitened"]["auc"] > row["gradient_difference"]["auc"]
    assert 0.9 < row["predicted"]["auc"] <= 1


def test_permuted_membership_gives_uniform_p_values() -> None:
    assert membership.uniform("digits", seeds=12, public=200)["uniform_p"] > 0.01


def test_a_trained_network_fits_its_examples() -> None:
    x, y = (part[:100] for part in membership.examples("digits"))
    net = membership.trained(0, x, y, epochs=5)
    assert (net(x).argmax(1) == y).float().mean() > 0.6


def test_without_mnist_the_digits_are_used_and_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FLFW_DATA", str(tmp_path))
    assert membership.source(quick=False) == "digits"
    (tmp_path / "MNIST").mkdir()
    assert membership.source(quick=False) == "mnist"
    assert membership.source(quick=True) == "digits"
