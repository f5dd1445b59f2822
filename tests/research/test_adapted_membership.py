"""Benchmark of what an attacker on membership gains who is told, on two draws."""

import pytest

from research.measurements import adapted_membership


@pytest.mark.parametrize(("name", "gain"), (("prune", 0.1), ("loud", 0.01)))
def test_who_is_told_finds_more(name: str, gain: float) -> None:
    assert adapted_membership.measured(name, draws=2, public=200)["gain"]["mean"] > gain


def test_who_has_nothing_to_be_told_of_finds_as_much() -> None:
    aucs = adapted_membership.measured("open", draws=2, public=200)
    assert aucs["gain"]["mean"] == 0.0 and aucs["not_told"]["mean"] > 0.7


def test_most_of_what_clipping_hides_is_undone_by_the_chosen_ridge() -> None:
    aucs = adapted_membership.measured("clip", draws=2, public=200)
    assert aucs["not_told"]["mean"] > aucs["static"]["mean"] + 0.1 > aucs["static"]["mean"] + aucs["gain"]["mean"]


@pytest.mark.slow
def test_nobody_is_told_of_a_defence_for_which_nothing_is_written() -> None:
    assert adapted_membership.measured("dcs2", draws=1, public=200).keys() == {"static", "not_told"}


def test_a_line_for_each_part() -> None:
    figures = {"not_told": {"mean": 0.5, "error": 0.01}}
    assert adapted_membership.lines({"prune": figures}) == ["prune: not_told 0.500 (0.010)"]
