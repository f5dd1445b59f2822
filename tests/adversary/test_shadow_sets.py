"""Training sets of shadow models: every candidate in some of them, and as many examples as a client has."""

import pytest
import torch

from flfw.adversary.membership.shadow_models import ShadowSets
from flfw.errors import InputError


def drawn(candidates: int = 6, public: int = 5, examples: int = 4, shadows: int = 4, seed: int = 0) -> ShadowSets:
    """Sets of few candidates."""
    return ShadowSets.draw(candidates, public, examples, shadows, torch.Generator().manual_seed(seed))


def test_each_candidate_is_in_half_of_the_sets() -> None:
    sets = drawn()
    assert sets.inside.sum(0).tolist() == [2] * 6
    assert (sets.inside[0] == ~sets.inside[1]).all()
    assert (sets.inside[2] == ~sets.inside[3]).all()
    assert not (sets.inside[0] == sets.inside[2]).all()


def test_a_set_has_the_candidates_that_are_in_it_and_distinct_public_examples() -> None:
    sets = drawn()
    for inside, places in zip(sets.inside, sets.places.tolist(), strict=True):
        assert sorted(index for index in places if index < 6) == inside.nonzero()[:, 0].tolist()
        assert len(set(places)) == 4
        assert max(places) < 6 + 5


def test_an_odd_candidate_leaves_room_for_another_public_example() -> None:
    sets = drawn(candidates=5, examples=3, shadows=2)
    assert sets.inside.sum(1).tolist() == [3, 2]
    assert (sets.places >= 5).sum(1).tolist() == [0, 1]


def test_more_candidates_than_a_client_has_room_for_are_divided_among_more_sets() -> None:
    """Seven candidates and sets of three: three parts in a turn, and the first two of another turn."""
    sets = drawn(candidates=7, examples=3, shadows=6)
    assert sets.inside[:3].sum(0).tolist() == sets.inside[3:].sum(0).tolist() == [1] * 7
    assert sets.inside.sum(1).tolist() == [3, 2, 2] * 2
    assert (sets.places >= 7).sum(1).tolist() == [0, 1, 1] * 2
    assert set(drawn(candidates=7, examples=3, shadows=4).inside.sum(0).tolist()) == {1, 2}


def test_sets_depend_on_the_generator_alone() -> None:
    assert torch.equal(drawn().places, drawn().places)
    assert not torch.equal(drawn().places, drawn(seed=1).places)


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"candidates": 1}, "at least 2 candidates, got candidates=1"),
        ({"shadows": 3}, "an even number of shadows >= 2, got shadows=3"),
        ({"examples": 1}, "2 to 8 examples of the client, for shadow trainings, got examples=1"),
        ({"examples": 9}, "2 to 8 examples of the client, for shadow trainings, got examples=9"),
    ],
)
def test_impossible_sets_are_refused(requested: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=f"Expected {message}"):
        drawn(**requested)
