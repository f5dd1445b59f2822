"""Rows of a table as smooth functions of unbounded numbers, for searches: categories are groups of binary columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flfw.inversion.client_models.victim import VictimModel, WrappingVictim
from flfw.nets.inputs import InputSpec


@dataclass(frozen=True)
class Categories:
    """Columns of a table by their kinds.

    Attributes:
        groups: neighbouring binary columns of which at most one is 1 in a row: the values of a category. A binary
            column that goes with no other one is a group of its own.
        open: for each group whether all of its columns may be 0.
        numbers: the other columns, with values in [0, 1].
    """

    groups: tuple[tuple[int, ...], ...]
    open: tuple[bool, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of_rows(cls, rows: Tensor) -> Categories:
        """Find the groups in public rows (N, d), from left to right.

        A column joins the group on its left if no row has a 1 in both. So the first values of a category may be taken
        for values of the one before it, where those who have them have none there.

        >>> rows = torch.tensor([[0.3, 1.0, 0.0, 1.0], [0.5, 0.0, 1.0, 1.0], [0.5, 1.0, 0.0, 0.0]])
        >>> Categories.of_rows(rows)
        Categories(groups=((1, 2), (3,)), open=(False, True), numbers=(0,))
        """
        binary = ((rows == 0) | (rows == 1)).all(0)
        groups: list[list[int]] = []
        ones = torch.zeros(len(rows))  # in the last group
        for column in torch.nonzero(binary).flatten().tolist():
            beside = bool(groups) and groups[-1][-1] == column - 1
            if beside and not bool(((ones > 0) & (rows[:, column] > 0)).any()):
                groups[-1].append(column)
                ones = ones + rows[:, column]
            else:
                groups.append([column])
                ones = rows[:, column].clone()
        free = [bool((rows[:, group].sum(1) == 0).any()) for group in groups]
        numbers = torch.nonzero(~binary).flatten().tolist()
        return cls(tuple(map(tuple, groups)), tuple(free), tuple(numbers))

    def relaxed(self, x: Tensor) -> Tensor:
        """Return the rows of unbounded numbers (..., d): each category's probabilities, and numbers in (0, 1)."""
        parts = [x[..., list(self.numbers)].sigmoid()] if self.numbers else []
        for group, free in zip(self.groups, self.open, strict=True):
            scores = x[..., list(group)]
            if free:
                scores = torch.cat([scores, torch.zeros_like(scores[..., :1])], -1)
            parts.append(scores.softmax(-1)[..., : len(group)])
        order = [*self.numbers, *(column for group in self.groups for column in group)]
        return torch.cat(parts, -1)[..., torch.tensor(order, device=x.device).argsort()]

    def rounded(self, rows: Tensor) -> Tensor:
        """Set the most probable value of each category to 1 and all others to 0, in relaxed rows (..., d)."""
        return self._chosen(rows, rows.clone(), lambda chances: chances)

    def joined(self, rows: Tensor) -> Tensor:
        """Join relaxed rows (R, B, d) of R results to rows (B, d): medians of numbers, and whole categories.

        The value of a category, or none of its values where it is open, is the one of the highest median probability.
        """
        return self._chosen(rows, _median(rows), _median)

    def _chosen(self, rows: Tensor, result: Tensor, join: Callable[[Tensor], Tensor]) -> Tensor:
        """Overwrite the categories of ``result`` by the value that is the most probable after ``join``."""
        for group, free in zip(self.groups, self.open, strict=True):
            chances = rows[..., list(group)]
            if free:
                chances = torch.cat([chances, 1 - chances.sum(-1, keepdim=True)], -1)
            full = torch.nn.functional.one_hot(join(chances).argmax(-1), chances.shape[-1])
            result[..., list(group)] = full[..., : len(group)].to(rows.dtype)
        return result


@final
class RelaxedRows(WrappingVictim):
    """Client whose rows are given as unbounded numbers, see `Categories.relaxed`.

    Args:
        client: computes the gradient for rows.
        categories: of its table.
    """

    def __init__(self, client: VictimModel, categories: Categories) -> None:
        inputs = client.inputs
        super().__init__(client, InputSpec(inputs.shape, torch.zeros_like(inputs.mean), torch.ones_like(inputs.std)))
        self._categories = categories

    def around(self, client: VictimModel) -> RelaxedRows:
        """Return the victim of another client with the same table."""
        return RelaxedRows(client, self._categories)

    def raw(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the rows that unbounded numbers ``x`` (B, d) stand for."""
        return self._categories.relaxed(x)


def agreement(categories: Categories, results: Sequence[Tensor], rows: Tensor, tolerance: float) -> Tensor:
    """Compute for each feature the share of results that agree with it, in [0, 1].

    Args:
        categories: of the table; the columns of a category have one share, of the results with the same value in it.
        results: rows (B, d) of several searches, rounded, each in the same order.
        rows: (B, d) the rows to compare with.
        tolerance: greatest difference of two numbers that agree.
    """
    close = (torch.stack(list(results)) - rows).abs() <= tolerance  # (R, B, d)
    for group in categories.groups:
        close[..., list(group)] = close[..., list(group)].all(-1, keepdim=True)
    return close.double().mean(0)


def _median(rows: Tensor) -> Tensor:
    return rows.median(0).values
