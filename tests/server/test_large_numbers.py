"""Means of whole numbers near the ends of their type: none turns around to the other end."""

import pytest
import torch

from flfw.server.aggregation import Update, weighted_mean


@pytest.mark.parametrize(
    ("kind", "number", "mean"),
    [
        (torch.int64, 2**63 - 1, 2**63 - 1024),  # the largest below 2^63 that float64 has
        (torch.int64, -(2**63), -(2**63)),
        (torch.uint64, 2**64 - 1, 2**64 - 2048),
        (torch.int32, 2**31 - 1, 2**31 - 1),
        (torch.bool, True, True),
    ],
)
def test_the_mean_of_equal_numbers_stays_beside_them(kind: torch.dtype, number: int, mean: int) -> None:
    updates = [Update(client, client + 1, {"n": torch.tensor([number], dtype=kind)}) for client in range(9)]
    assert weighted_mean(updates)["n"].tolist() == [mean]
