"""Searches of ig and april with and without a known mechanism: with ``searches=both`` all clients meet the same."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from flfw.adversary.attack import AttackCost
from flfw.attacks.april import APRIL, APRILSettings
from flfw.attacks.ig import IG, IGSettings
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.search import SearchConfig
from flfw.inversion.search_optimisers import AdamSearch
from tests.support.attackable import KnownNoise, Unchanged, attackable, digits, generators

BOTH = IGSettings(iterations=100, searches="both")
KNOWN = attackable("linear", 8, digits(0, side=8))[1][0]


def signs(config: SearchConfig) -> list[tuple[int, bool]]:
    """Iterations of each stage, and whether it follows the sign."""
    descents = [stage.descent for stage in config.stages]
    return [(one.iterations, one.signed) for one in descents if isinstance(one, AdamSearch)]


def kinds(recipes: Sequence[SearchConfig]) -> set[tuple[tuple[int, bool], ...]]:
    return {tuple(signs(recipe)) for recipe in recipes}


def test_told_or_not_the_same_two_searches_are_made() -> None:
    untold, informed = IG(BOTH).recipes(KNOWN, None), IG(BOTH).recipes(KNOWN, Unchanged({}))
    assert kinds(untold) == kinds(informed)
    assert kinds(untold) == {((50, True), (15, True), (15, True), (20, True)), ((33, False), (33, False), (34, False))}
    assert [signs(one)[0][1] for one in (untold[0], informed[0])] == [True, False]  # first the one of what is known
    assert IG(BOTH).cost == AttackCost(100, 2, "lowest cosine distance")
    assert IG(replace(BOTH, prior="flow")).cost.restarts == 4


def test_alone_each_makes_its_own() -> None:
    separate = IG(replace(BOTH, searches="own"))
    assert kinds(separate.recipes(KNOWN, None)) | kinds(separate.recipes(KNOWN, Unchanged({}))) == kinds(
        IG(BOTH).recipes(KNOWN, None)
    )
    assert len(separate.recipes(KNOWN, None)) == 1 == separate.cost.restarts


def test_with_known_noise_both_end_in_the_same_likelihood() -> None:
    """Else the lower of two distances would say nothing."""
    led, signed = IG(BOTH).recipes(KNOWN, KnownNoise({}))
    assert signs(led)[-1] == signs(signed)[-1] == (50, False)
    assert [signed_ for _, signed_ in signs(signed)[:-1]] == [True] * 4
    assert sum(n for n, _ in signs(led)) == sum(n for n, _ in signs(signed)) == 100
    assert not any(stage.through for stage in (*led.stages[:-1], *signed.stages[:-1]))
    one, two = ({"w": torch.tensor(values)} for values in ([1.0, 2.0], [2.0, 2.0]))
    assert float(led.distance(one, two)) == float(signed.distance(one, two)) == pytest.approx(2.0)  # 1 / (2 * 0.25)


@pytest.mark.nightly
def test_the_result_is_that_of_the_nearer_search() -> None:
    batch = digits(0, side=8)

    def found(searches: str, operator: Operator | None) -> float:
        observations, knowledge = attackable("lenet", 8, batch)
        requested = [replace(known, operator=operator) for known in knowledge]
        settings = IGSettings(iterations=40, searches=searches)  # type: ignore[arg-type]
        (result,) = IG(settings).run(observations, requested, generators(1))
        assert result.matching_loss is not None
        return result.matching_loss

    for mechanism in (None, Unchanged({})):
        assert found("both", mechanism) <= found("own", mechanism)
    # At so few iterations the two searches differ by much: the worse one alone does not decide.
    alone = [found("own", mechanism) for mechanism in (None, Unchanged({}))]
    nearer = min((None, Unchanged({})), key=lambda mechanism: found("own", mechanism))
    assert found("both", Unchanged({}) if nearer is None else None) < max(alone)


def test_april_takes_both_signs() -> None:
    search = APRIL(APRILSettings(way="search", searches="both", iterations=10))
    untold, informed = search.recipes(KNOWN, None), search.recipes(KNOWN, Unchanged({}))
    assert kinds(untold) == kinds(informed) == {((5, True), (5, True)), ((5, False), (5, False))}
    assert {signed for one in search.recipes(KNOWN, KnownNoise({})) for _, signed in signs(one)} == {True, False}
    assert search.cost.restarts == 2 == 2 * APRIL(APRILSettings(way="search")).cost.restarts
