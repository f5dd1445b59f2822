"""Membership by a generator: the share of pairs, against a loop, and for a generator that repeats its examples."""

import pytest
import torch

from flfw.adversary.membership.informed import nearer_share
from flfw.errors import InputError
from flfw.rng import torch_generator


def test_the_share_by_a_loop_over_pairs() -> None:
    rng = torch_generator(0, "features")
    features, labels = torch.randn(5, 3, generator=rng), torch.tensor([0, 1, 1, 0, 1])
    made, others = torch.randn(2, 4, 3, generator=rng), torch.randn(2, 6, 3, generator=rng)
    others[1, 0] = made[1, 0]  # equal distances
    shares = nearer_share(features, labels, made, others)
    for index, (feature, label) in enumerate(zip(features, labels.tolist(), strict=True)):
        pairs = [
            1.0 if (feature - a).norm() < (feature - b).norm() else 0.5 if torch.equal(a, b) else 0.0
            for a in made[label]
            for b in others[label]
        ]
        assert float(shares[index]) == pytest.approx(sum(pairs) / 24)


def test_a_generator_that_repeats_its_few_examples_tells_them() -> None:
    rng = torch_generator(0, "features")
    members, held_out, elsewhere = torch.randn(3, 20, 3, 8, generator=rng)  # three of each of 20 classes
    made, others = (
        part.repeat(1, 10, 1) + 0.1 * torch.randn(20, 30, 8, generator=rng) for part in (members, elsewhere)
    )
    labels = torch.arange(20).repeat_interleave(3)
    shares = nearer_share(
        torch.cat([members.flatten(0, 1), held_out.flatten(0, 1)]), torch.cat([labels, labels]), made, others
    )
    assert float((shares[:60, None] > shares[None, 60:]).double().mean()) > 0.6


def test_another_class_is_not_looked_at() -> None:
    made, others = torch.tensor([[[9.0]], [[0.0]]]), torch.tensor([[[1.0]], [[5.0]]])
    assert nearer_share(torch.tensor([[0.0], [0.0]]), torch.tensor([0, 1]), made, others).tolist() == [0.0, 1.0]


def test_features_of_another_size_are_refused() -> None:
    with pytest.raises(InputError, match="of each side, n >= 1"):
        nearer_share(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), torch.zeros(1, 2, 4), torch.zeros(1, 2, 3))
