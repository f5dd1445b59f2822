"""The check of received tensors: the same answer as a look at every value."""

from math import inf, nan

import pytest
import torch

from flfw.messages.replies import is_finite

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LENGTHS = (1, 2, 7, 8, 9, 16, 17, 33, 63, 65, 1000, 40001)  # below, at and above what a processor compares at once


@pytest.mark.parametrize("dtype", FLOATING)
def test_one_value_in_any_place_is_seen(dtype: torch.dtype) -> None:
    for length in LENGTHS:
        for value in (nan, -nan, inf, -inf):
            for index in {0, length // 3, length // 2, max(0, length - 2), length - 1}:
                tensor = torch.linspace(-3, 3, length).to(dtype)
                assert is_finite(tensor)
                tensor[index] = value
                assert not is_finite(tensor), (length, value, index)


@pytest.mark.parametrize("values", [[inf, -inf], [inf, nan], [-inf, nan], [nan, inf, -inf], [inf, inf], [nan, nan]])
def test_values_that_are_not_finite_do_not_hide_each_other(values: list[float]) -> None:
    for order in (values, values[::-1]):
        assert not is_finite(torch.tensor(order * 40))


@pytest.mark.parametrize("dtype", FLOATING)
def test_the_largest_and_the_smallest_numbers_are_finite(dtype: torch.dtype) -> None:
    facts = torch.finfo(dtype)
    assert is_finite(torch.tensor([facts.max, facts.min, facts.tiny, -facts.tiny, 0.0, -0.0], dtype=dtype))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_shapes_without_values_and_without_axes(shape: tuple[int, ...]) -> None:
    assert is_finite(torch.zeros(shape))
    assert is_finite(torch.full(shape, nan)) is (torch.zeros(shape).numel() == 0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64])
def test_whole_numbers_are_finite(dtype: torch.dtype) -> None:
    assert is_finite(torch.tensor([0, 1], dtype=dtype))
    assert is_finite(torch.zeros(0, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_both_parts_of_complex_numbers_are_looked_at(dtype: torch.dtype) -> None:
    assert is_finite(torch.tensor([1 + 2j, 3j], dtype=dtype).conj())
    for bad in (complex(nan, 0), complex(0, inf), complex(-inf, nan)):
        assert not is_finite(torch.tensor([1j, bad], dtype=dtype))


def test_a_view_is_looked_at_and_not_what_lies_between() -> None:
    tensor = torch.tensor([[1.0, nan], [2.0, nan]])
    assert is_finite(tensor[:, 0]) and not is_finite(tensor.T[1:])
