"""Simulated clients that hold data of the attacker: their messages are attacked, and the truth behind each is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from flfw.errors import require
from flfw.inversion.compute import steps
from flfw.inversion.search import SearchTarget
from flfw.nets.net import Tensors
from flfw.victims.victim import VictimModel

_AT_ONCE = 50  # messages in memory

Search: TypeAlias = Callable[[Sequence[SearchTarget], Tensors], Sequence[Tensor]]
"""Function of targets in the coordinates of a victim's gradient, and of its constants, to a result (B, ...) for each;
NaN where it failed."""


def simulated_pairs(
    victim: VictimModel,
    example: Tensors,
    held: tuple[Tensor, Tensor],
    batch: int,
    search: Search,
    rng: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Attack clients of one kind that hold given data, and return the results with the truths.

    The client's unknown tensors have the attacker's own values, each in another order.

    Args:
        victim: attacker's model of the clients.
        example: a real message of such a client; of it only the victim's constants are used.
        held: raw inputs (N, ...) in [0, 1] and labels (N,); a last batch that is not full is left out.
        batch: number of examples in a message.
        search: the attack.
        rng: generator of the searches and of the unknown tensors.

    Returns:
        Results and truths, both (n, ...) with n <= N; failed searches are left out.

    Raises:
        InputError: no search succeeded, or fewer data than a batch are held.
    """
    constants = victim.observed(example)[1]
    batches = [pair for pair in zip(*(part.split(batch) for part in held), strict=True) if len(pair[1]) == batch]
    results: list[Tensor] = []
    for chunk in steps(-(-len(batches) // _AT_ONCE), learning=True, whole=True):
        at = chunk * _AT_ONCE
        results += search([*_targets(victim, batches[at : at + _AT_ONCE], constants, rng)], constants)
    both = [(one, x) for one, (x, _) in zip(results, batches, strict=True) if bool(one.isfinite().all())]
    require(bool(both), f"a successful search among {len(batches)} simulated clients", successful=len(both))
    guesses, truths = (torch.cat(part) for part in zip(*both, strict=True))
    return guesses, truths


def _targets(
    victim: VictimModel, batches: Sequence[tuple[Tensor, Tensor]], constants: Tensors, rng: torch.Generator
) -> Iterator[SearchTarget]:
    for x, y in batches:
        private = {name: _in_another_order(value, rng) for name, value in victim.unknown.items()}
        sent = victim.gradient(x, y, private, constants)
        yield SearchTarget({name: value.detach() for name, value in sent.items()}, y, rng)


def _in_another_order(value: Tensor, rng: torch.Generator) -> Tensor:
    order = torch.randperm(value.numel(), generator=rng).to(value.device)
    return value.flatten()[order].view_as(value)
