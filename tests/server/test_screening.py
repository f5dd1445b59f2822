"""The screen of updates: a change far larger than all others is refused by name, and no other is."""

from __future__ import annotations

import math

import pytest
import torch

from flfw.server.screening import bound_of, change, screened


def left(norms: list[float], bound: float = 10.0) -> tuple[list[int], dict[int, str]]:
    """The clients whose updates are used, in the order of use, and the reasons for the others."""
    reasons: dict[int, str] = {}
    used = screened(enumerate(norms), lambda norm: norm, bound, reasons.__setitem__)
    return [client for client, _ in used], reasons


@pytest.mark.parametrize(
    ("norms", "used"),
    [
        ([], []),
        ([1.0, 2.0, 3.0], [0, 1, 2]),
        ([1e38, 2.0, 3.0], [1, 2]),
        ([math.inf, 2.0, 3.0], [1, 2]),
        ([1.0, 1e38], [0]),  # of two the smaller is the median
        ([1e38], [0]),  # nothing to compare it with
        ([0.0, 9.0, 0.0], [0, 1, 2]),  # tiny updates of others have nobody refused
        ([0.0, 11.0, 0.0], [0, 2]),
        ([1.0, 99.0, 1.0], [0, 2, 1]),  # large, and not a hundred times the median
        ([1.0, 101.0, 1.0], [0, 2]),
        ([50.0, 60.0, 70.0], [0, 1, 2]),  # large ones alone, as with much noise
        ([1.0, 1e38, 1e38], [0, 1, 2]),  # more than half lie: said in the module
    ],
)
def test_what_is_far_larger_than_all_others_is_refused(norms: list[float], used: list[int]) -> None:
    clients, reasons = left(norms)
    assert clients == used
    assert reasons.keys() == set(range(len(norms))) - set(used)


def test_the_reason_has_both_numbers() -> None:
    assert left([1234.5, 2.0, 3.0])[1] == {0: "sent a change of norm 1.23e+03, over 100 times the round's median 3"}


def test_what_is_not_large_is_passed_on_before_the_next_arrives() -> None:
    arrived: list[int] = []

    def updates():
        for client in range(3):
            arrived.append(client)
            yield client, 1.0

    for client, _ in screened(updates(), lambda norm: norm, 10.0, lambda *_: None):
        assert arrived == list(range(client + 1))


def test_norms_are_those_of_all_numbers_together_and_no_float_is_too_large() -> None:
    sent = {"w": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([4.0]), "count": torch.tensor(7)}
    assert bound_of(sent) == 60.0
    assert change({**sent, "w": torch.tensor([[3.0, 5.0]]), "count": torch.tensor(10**9)}, sent) == 5.0
    both = torch.tensor([[3e38, 3e38]])  # of which the norm is no float of 32 bits
    assert change({"w": both}, {"w": torch.zeros(1, 2)}) == pytest.approx(3e38 * math.sqrt(2))
    assert change({"b": torch.tensor([3e38])}, {"b": torch.tensor([-3e38])}) == math.inf
    assert change({}, sent) == 0.0
