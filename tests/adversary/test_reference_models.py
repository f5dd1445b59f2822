"""RMIA and its reference sets, by hand."""

import pytest
import torch

from flfw.adversary.membership.published_model import ReferenceSets, chosen_a, mean_outside, ratios, rmia
from flfw.errors import InputError
from flfw.rng import torch_generator


def drawn(public: int = 9, references: int = 4) -> ReferenceSets:
    return ReferenceSets.draw(public, references, torch_generator(0, "sets"))


def test_sets_are_halves_two_by_two_without_a_common_example() -> None:
    inside = drawn().inside
    assert inside.sum(1).tolist() == [4, 5, 4, 5] and inside.sum(0).tolist() == [2] * 9
    assert (inside[0] ^ inside[1]).all() and (inside[2] ^ inside[3]).all() and not inside[0].equal(inside[2])


@pytest.mark.parametrize(("public", "references"), [(3, 4), (9, 2), (9, 5)])
def test_too_few_examples_or_models_are_refused(public: int, references: int) -> None:
    with pytest.raises(InputError):
        drawn(public, references)


def test_the_offline_ratio_by_hand() -> None:
    target, out = torch.tensor([0.9, 0.5]), torch.tensor([0.5, 0.2])
    assert ratios(target, out, 1.0).tolist() == pytest.approx([1.8, 2.5])
    assert ratios(target, out, 0.0).tolist() == pytest.approx([0.9 / 0.75, 0.5 / 0.6])  # (p + 1) / 2
    assert ratios(torch.zeros(1), torch.zeros(1), 1.0).tolist() == [0.0]  # both impossible: no member


def test_the_score_counts_a_ratio_of_exactly_gamma() -> None:
    assert rmia(torch.tensor([2.0, 1.99]), torch.tensor([1.0, 5.0]), 2.0).tolist() == [0.5, 0.0]


def test_the_mean_is_over_models_without_the_example() -> None:
    values, inside = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[True, False], [False, False]])
    assert mean_outside(values, inside).tolist() == [3.0, 3.0]


def test_the_choice_of_a_is_made_for_the_first_reference_and_without_the_target() -> None:
    """Examples are as likely to the first model as they are hard, but for its own, which it knows a little better."""
    sets = drawn(400)
    rng = torch_generator(1, "examples")
    hard = torch.rand(400, generator=rng, dtype=torch.float64) * 0.8 + 0.1
    noisy = hard * (1 + 0.01 * torch.randn(400, generator=rng, dtype=torch.float64))
    known = torch.where(sets.inside[0], 1.05 * noisy, noisy)
    a = chosen_a(torch.stack([known, hard, hard, hard]), sets, 1.0)
    assert a >= 0.9  # p_out alone explains how hard an example is: little is to be mixed in
    anyhow = chosen_a(torch.stack([known, hard, torch.ones(400), torch.ones(400)]), sets, 1.0)
    assert anyhow == 0.0  # references that tell nothing: every a gives the same, and the first one is taken
