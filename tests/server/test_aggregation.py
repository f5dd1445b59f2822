"""The weighted mean: by hand, and bit by bit that of sums made all at once."""

from collections.abc import Sequence
from functools import reduce
from operator import add

import pytest
import torch
from torch import Tensor

from flfw.errors import InputError
from flfw.server import aggregation
from flfw.server.aggregation import Update, weighted_mean

KINDS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool)
SIZES = ((), (0,), (3,), (7, 31), (aggregation._BLOCK,), (aggregation._BLOCK + 1,), (3, aggregation._BLOCK - 5))
WEIGHTS = ((1, 1), (3, 7, 50, 977), (2**31, 2**30 + 1, 3))


def at_once(updates: list[Update]) -> Tensor:
    """The mean of ``w`` of up to four clients, whose tensors are not divided into parts."""
    like, total = updates[0].tensors["w"], sum(update.examples for update in updates)
    summed = torch.zeros(like.shape, dtype=torch.float64)
    for pair in (updates[:2], updates[2:]):
        both = torch.zeros(like.shape, dtype=torch.float64)
        for update in pair:
            both.add_(update.tensors["w"], alpha=update.examples)
        summed += both
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
    mean = weighted_mean([one, Update(1, 3, {"w": torch.tensor([4.0, -8.0]), "n": torch.tensor(6)})])
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
    with pytest.raises(InputError, match="at least one example behind a mean, got examples=0"):
        weighted_mean([Update(0, 0, {"w": torch.ones(2)}), Update(1, 0, {"w": torch.ones(2)})])
    mean = weighted_mean([Update(0, 0, {"w": torch.ones(2)}), Update(1, 2, {"w": torch.zeros(2)})])
    assert mean["w"].tolist() == [0, 0]
    assert weighted_mean([]) == {}


# --- the order of the additions ---------------------------------------------------------------------------------------


LARGE = 2.0**53
"""Beside it 1 is lost, where two of them count: so the order of the additions can be seen."""


def mean_of(numbers: dict[int, float]) -> float:
    updates = [Update(c, 1, {"w": torch.tensor([v], dtype=torch.float64)}) for c, v in numbers.items()]
    return weighted_mean(iter(updates))["w"].item()


@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ({0: LARGE, 1: 1.0}, LARGE),
        ({0: LARGE, 1: 1.0, 2: 1.0}, LARGE),  # (0 1) 2
        ({0: LARGE, 2: 1.0, 3: 1.0}, LARGE + 2),  # 0 (2 3)
        ({1: 1.0, 2: 1.0, 3: LARGE}, LARGE),  # 1 (2 3)
        ({0: LARGE, 4: 1.0, 5: 1.0, 6: 1.0, 7: 1.0}, LARGE + 4),  # 0 ((4 5) (6 7))
        ({3: LARGE, 4: 1.0, 6: 1.0}, LARGE + 2),  # 3 (4 6)
        ({7: LARGE, 8: 1.0, 15: 1.0}, LARGE + 2),  # the block of 8 to 15 before the others
        ({7: LARGE, 8: 1.0, 16: 1.0}, LARGE),  # one block after the other
        ({16: 1.0, 8: 1.0, 7: LARGE}, LARGE + 2),  # in another order: as they come
    ],
)
def test_clients_are_added_up_in_a_tree_over_their_numbers(numbers: dict[int, float], total: float) -> None:
    assert mean_of(numbers) == total / len(numbers)


def test_blocks_are_added_up_by_number() -> None:
    numbers = {**dict.fromkeys(range(3, 17), 1.0), 7: LARGE}
    one = reduce(add, [1.0, (1.0 + 1.0) + (1.0 + LARGE)])
    assert mean_of(numbers) == reduce(add, [one, 8.0, 1.0]) / 14 != reduce(add, numbers.values()) / 14


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("clients", [range(20), [0, 3, 4, 6, 11, 12, 13, 17], [5], [1, 2, 9, 10]], ids=str)
def test_the_sum_of_a_branch_stands_for_its_updates(level: int, clients: Sequence[int]) -> None:
    updates = [Update(c, c + 1, {"w": drawn(torch.float32, (5,), c), "n": torch.tensor(c)}) for c in clients]
    expected = weighted_mean(updates)
    for branch in {client >> level for client in clients}:
        members = [update for update in updates if update.partition >> level == branch]
        sums = aggregation.BranchSums()
        for update in members:
            sums.add(update)
        total = sums.total()
        one = Update(members[-1].partition, total.examples, total.tensors, summed=total.kinds)
        before = total.tensors["w"].clone()
        others = [update for update in updates if update not in members]
        mean = weighted_mean(sorted([one, *others], key=lambda update: update.partition))
        assert mean["n"].dtype == torch.int64 and torch.equal(mean["n"], expected["n"])
        assert bits(mean["w"]) == bits(expected["w"])
        assert torch.equal(total.tensors["w"], before)


@pytest.mark.parametrize("clients", range(1, 33))
def test_no_more_sums_are_in_memory_than_estimates_say(clients: int) -> None:
    sums, maximum = aggregation.BranchSums(), 0
    for client in range(clients):
        sums.add(Update(client, 1, {"w": torch.ones(1)}))
        maximum = max(maximum, len(sums._branches) + (sums._whole is not None) + len(sums._free.get("w", [])))
    assert maximum == aggregation.most_sums(clients)


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="Expected real numbers, got torch"):
        weighted_mean([Update(0, 1, {"w": torch.ones(1, dtype=torch.complex64)})])


def test_a_tensor_that_one_block_did_not_send_keeps_its_sum() -> None:
    pairs = Update(0, 1, {"w": torch.ones(1), "v": torch.ones(1)}), Update(9, 1, {"w": torch.ones(1)})
    mean = weighted_mean([*pairs, Update(17, 2, {"w": torch.ones(1), "v": torch.ones(1)})])
    assert (mean["w"].item(), mean["v"].item()) == (1.0, 0.75)
