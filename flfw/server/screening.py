"""Screen of a round's updates: a change far larger than all others is a failure of its client, by name.

So is a number of examples, the client's weight in a mean, above the one that it first told in the run.

Without the screen, finite values near the largest float become the next model. Then honest clients compute NaN, are
blamed for it, and the run is over. A change is refused if its norm is both more than ten times that of what the client
received, and ten, and more than a hundred times the median of the round's norms. The first bound keeps a client with a
tiny update from having the others refused. It is no robust mean: a change below the bounds moves the mean as far as it
does, and if half of a round lies, so does the median. See `flfw.server.robust`.

Where the server bounds each change itself (`flfw.method.Method.bounds_updates`), no update is screened: by the median a
client would decide whether the change of another one counts, and noise for one bounded change hides no second one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch

from flfw.nets.net import Tensors

_FAR, _TIMES = 10.0, 100.0

T = TypeVar("T")


def screened(
    updates: Iterable[tuple[int, T]],
    compare: Callable[[int, T], tuple[float, float]],
    refuse: Callable[[int, str], None],
) -> Iterator[tuple[int, T]]:
    """Yield the updates of a round but those that are far larger than all others; large ones come last.

    An update is held in memory only if it is larger than its bound.

    Args:
        updates: each with its client, as they arrive.
        compare: function of a client and its update, for the norm of the change, and the norm >= 0 up to which it is
            passed on at once; see `compared`.
        refuse: function that is called with a client and the reason why its update is not used.
    """
    norms: list[float] = []
    held: list[tuple[int, T, float]] = []
    for client, update in updates:
        size, bound = compare(client, update)
        norms.append(size)
        if size <= bound:
            yield client, update
        else:
            held.append((client, update, size))
    middle = sorted(norms)[(len(norms) - 1) // 2] if norms else 0.0
    for client, update, size in held:
        if size > _TIMES * middle:
            refuse(client, f"sent a change of norm {size:.3g}, over {_TIMES:g} times the round's median {middle:.3g}")
        else:
            yield client, update


def no_heavier(
    updates: Iterable[tuple[int, T]],
    examples: Callable[[T], int],
    earlier: Mapping[int, int],
    refuse: Callable[[int, str], None],
) -> Iterator[tuple[int, T]]:
    """Yield the updates of a round but those of clients that now count more examples than at first.

    Args:
        updates: each with its client, as they arrive.
        examples: function that gives the number of examples that an update tells.
        earlier: for each client that has answered before its first number.
        refuse: function that is called with a client and the reason why its update is not used.
    """
    for client, update in updates:
        if (now := examples(update)) > (first := earlier.get(client, now)):
            refuse(client, f"tells {now} examples, and first told {first}; a new run counts more")
        else:
            yield client, update


def compared(tensors: Tensors, sent: Tensors) -> tuple[float, float]:
    """Return the norm of the change of an update, and the norm up to which it needs no comparison with others.

    Args:
        tensors: the update.
        sent: the tensors that this client was sent.
    """
    return change(tensors, sent), bound_of(sent)


def bound_of(sent: Tensors) -> float:
    """Return the norm up to which a change from these tensors needs no comparison."""
    return _FAR * (1 + _norm(sent))


def change(tensors: Tensors, sent: Tensors) -> float:
    """Return the norm of the difference of an update and the tensors that were sent; inf beyond the largest float."""
    return _norm({name: value - sent[name] for name, value in tensors.items()})


def _norm(tensors: Tensors) -> float:
    parts = [
        torch.linalg.vector_norm(value, dtype=torch.float64)
        for value in tensors.values()
        if value.is_floating_point() and value.numel()
    ]
    return float(torch.stack(parts).norm()) if parts else 0.0
