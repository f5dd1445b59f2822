"""The weighted mean: by hand, and bit by bit that of sums made all at once."""

from __future__ import annotations

from functools import reduce
from operator import add

import pytest
import torch
from torch import Tensor

from flfw.errors import BadInput
from flfw.server import aggregation
from flfw.server.aggregation import Update, weighted_mean

KINDS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool)
SIZES = ((), (0,), (3,), (7, 31), (aggregation._BLOCK,), (aggregation._BLOCK + 1,), (3, aggregation._BLOCK - 5))
WEIGHTS = ((1, 1), (3, 7, 50, 977), (2**31, 2**30 + 1, 3))


def at_once(updates: list[Update]) -> Tensor:
    """The mean of ``w`` without blocks."""
    like, total = updates[0].tensors["w"], sum(update.examples for update in updates)
    summed = torch.zeros(like.shape, dtype=torch.float64)
    for update in updates:
        summed.add_(update.tensors["w"], alpha=update.examples)
    mean = summed / total
    return (mean if like.is_floating_point() else mean.round()).to(like.dtype)


def bits(value: Tensor) -> list[int]:
    return value.reshape(-1).view(torch.uint8).tolist() if value.numel() < 1000 else [hash(value.numpy().tobytes())]


def drawn(kind: torch.dtype, size: tuple[int, ...], seed: int) -> Tensor:
    value = 10 * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return value > 0 if kind is torch.bool else value.to(kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_blocks_change_no_bit(kind: torch.dtype, size: tuple[int, ...]) -> None:
    for weights in WEIGHTS:
        updates = [Update(k, n, {"w": drawn(kind, size, k)}) for k, n in enumerate(weights)]
        mean, expected = weighted_mean(iter(updates))["w"], at_once(updates)
        assert (mean.dtype, mean.shape) == (expected.dtype, expected.shape)
        if kind in (torch.float16, torch.bfloat16):  # NumPy has no bfloat16
            assert torch.equal(mean, expected)
        else:
            assert bits(mean) == bits(expected)


def test_the_mean_by_hand() -> None:
    one = Update(0, 1, {"w": torch.tensor([0.0, 8.0]), "n": torch.tensor(3)})
    other = Update(1, 3, {"w": torch.tensor([4.0, -8.0]), "n": torch.tensor(6)})
    mean = weighted_mean([one, other])
    assert mean["w"].tolist() == [3.0, -4.0]
    assert mean["n"].tolist() == 5  # 5.25, rounded


def test_a_zero_has_no_sign_afterwards() -> None:
    """A sum begins at +0, and +0 plus -0 is +0."""
    assert bits(weighted_mean([Update(0, 2, {"w": torch.tensor([-0.0])})])["w"]) == [0, 0, 0, 0]


def test_a_tensor_that_only_some_sent_is_divided_by_all_examples() -> None:
    mean = weighted_mean([Update(0, 1, {"w": torch.ones(2)}), Update(1, 1, {"w": torch.ones(2), "v": torch.ones(1)})])
    assert mean["w"].tolist() == [1.0, 1.0] and mean["v"].tolist() == [0.5]


def test_updates_are_left_as_they_were() -> None:
    for size in (3, aggregation._BLOCK + 3):
        given = torch.full((size,), 2.0)
        mean = weighted_mean([Update(0, 5, {"w": given}), Update(1, 5, {"w": given})])["w"]
        mean += 1
        assert given.unique().tolist() == [2.0]


@pytest.mark.parametrize("short", [2, aggregation._BLOCK])
def test_updates_of_other_shapes_are_not_cut_to_fit(short: int) -> None:
    whole = Update(0, 1, {"w": torch.ones(2 * aggregation._BLOCK + 1)})
    with pytest.raises(RuntimeError, match="size"):
        weighted_mean([whole, Update(1, 1, {"w": torch.ones(short)})])


def test_columns_of_a_larger_tensor_are_read_in_their_own_order() -> None:
    size = (2, aggregation._BLOCK)
    value = torch.arange(2.0 * aggregation._BLOCK).reshape(aggregation._BLOCK, 2).T
    assert torch.equal(weighted_mean([Update(0, 3, {"w": value})])["w"], value)
    assert value.shape == size and not value.is_contiguous()


def test_a_mean_of_no_examples_is_refused() -> None:
    """Zero over zero would be the next model."""
    with pytest.raises(BadInput, match="at least one example behind a mean, got examples=0"):
        weighted_mean([Update(0, 0, {"w": torch.ones(2)}), Update(1, 0, {"w": torch.ones(2)})])
    assert weighted_mean([Update(0, 0, {"w": torch.ones(2)}), Update(1, 2, {"w": torch.zeros(2)})])["w"].tolist() == [
        0,
        0,
    ]
    assert weighted_mean([]) == {}


# --- the order of the additions ---------------------------------------------------------------------------------------


def in_blocks(numbers: dict[int, float], blocks: list[list[int]]) -> float:
    """The mean of numbers whose blocks are added up one after the other."""
    return reduce(add, [reduce(add, [numbers[client] for client in block]) for block in blocks]) / len(numbers)


def test_clients_of_a_block_of_eight_are_added_up_before_the_others() -> None:
    """1 is lost beside 2^53, where two of them count: so the order of the additions can be seen."""
    numbers = {**dict.fromkeys(range(3, 17), 1.0), 7: 2.0**53}
    updates = [Update(c, 1, {"w": torch.tensor([v], dtype=torch.float64)}) for c, v in numbers.items()]
    expected = in_blocks(numbers, [[3, 4, 5, 6, 7], [*range(8, 16)], [16]])
    assert weighted_mean(iter(updates))["w"].item() == expected != in_blocks(numbers, [[*numbers]])


def test_the_sum_of_a_block_stands_for_its_updates() -> None:
    updates = [Update(c, c + 1, {"w": drawn(torch.float32, (5,), c), "n": torch.tensor(c)}) for c in range(20)]
    for block in range(3):
        members = [update for update in updates if aggregation.block_of(update.partition) == block]
        total = aggregation.WeightedSum()
        for update in members:
            total.add(update.tensors, update.examples)
        one = Update(members[0].partition, total.examples, total.tensors, summed=total.kinds)
        before = total.tensors["w"].clone()
        others = [update for update in updates if update not in members]
        mean = weighted_mean(sorted([one, *others], key=lambda update: update.partition))
        expected = weighted_mean(updates)
        assert mean["n"].dtype == torch.int64 and torch.equal(mean["n"], expected["n"])
        assert bits(mean["w"]) == bits(expected["w"])
        assert torch.equal(total.tensors["w"], before)


def test_a_tensor_that_one_block_did_not_send_keeps_its_sum() -> None:
    pairs = Update(0, 1, {"w": torch.ones(1), "v": torch.ones(1)}), Update(9, 1, {"w": torch.ones(1)})
    mean = weighted_mean([*pairs, Update(17, 2, {"w": torch.ones(1), "v": torch.ones(1)})])
    assert (mean["w"].item(), mean["v"].item()) == (1.0, 0.75)
