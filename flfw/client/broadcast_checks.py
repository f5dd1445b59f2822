"""Checks of received tensors for weights that an honest server would hardly send, without any truth.

A malicious server that sorts examples into bins needs units that measure one quantity and that are treated alike, or
units that are off for all but one client, by weights of zeros or by low biases. Random and trained weights do not look
so. The checks are heuristics: an alarm is no proof, and a server that knows them can evade them at a cost
(docs/attacks/imprint.md).
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from math import sqrt

import numpy as np
import torch
from torch import Tensor, nn

from flfw.messages.reasons import RequestDeclinedError
from flfw.rng import torch_generator

_SHORTEST = 8  # numbers in a row: of shorter ones some are parallel by chance
_PARALLEL = 1e-3  # one minus the cosine of two rows that count as parallel: an angle of 2.6 degrees
_FEWEST = 4  # rows that are parallel to another one, at least
_SHARES = {"rows": 0.02, "columns": 0.5}  # at least; decay makes columns of constant inputs parallel in honest networks
_DEAD_ROWS = 0.25  # share of rows of zeros in a matrix that is not all zeros
# Share, in matrices of zeros, of the numbers of all matrices that do not begin so. Honest networks have none: training
# may leave rows of zeros, but a step hardly ends at 0 in all numbers of a matrix that began otherwise.
_ALL_ZERO = 0.1
# Multiple of the length of a unit's weights: a lower bias keeps the unit off for inputs of a mean square up to 25 / d.
_OFF = 5.0
_OFF_UNITS = 0.5  # share of a layer's units that are off; a layer has 4 of them at least
_GAIN = 50.0  # root mean square of a matrix times the root of the length of its rows; honest ones have about 1


def broadcast_alarms(received: Mapping[str, np.ndarray], at_first: Collection[str] = ()) -> list[str]:
    """Return the suspicious traits of a message's arrays, a clause for each; empty: there are none.

    Args:
        received: arrays by name; integers and empty arrays are not checked, vectors only as biases of a matrix.
        at_first: names of tensors that are zeros before training, by the client's own code; see `zeros_at_first`.
    """
    matrices = {name: _matrix(value) for name, value in received.items() if value.ndim >= 2 and value.size}
    began_otherwise = {name: matrix for name, matrix in matrices.items() if name not in at_first}
    clauses = (f"{name} has {what}" for name, matrix in matrices.items() for what in _suspicions(matrix))
    return [*_silent(began_otherwise), *clauses, *_off(received, began_otherwise)]


def zeros_at_first(model: nn.Module) -> frozenset[str]:
    """Return the names of a fresh model's tensors of zeros, such as an adapter's last layer or a control variate."""
    return frozenset(name for name, value in model.state_dict().items() if not bool(value.any()))


def digest(received: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 (64 hexadecimal digits) of a message's arrays, for clients to compare.

    It is whole, as the server makes the messages: of 64 bits it finds two equal ones by some 2^32 trials.
    """
    whole = hashlib.sha256()
    for name in sorted(received):
        whole.update(f"{name} {received[name].dtype} {received[name].shape} ".encode())
        whole.update(np.ascontiguousarray(received[name]).tobytes())
    return whole.hexdigest()


def differently_served(digests: Mapping[int, str]) -> list[int]:
    """List the clients, ascending, whose digest is not the most common one; all of them where none is shared."""
    (common, count), *_ = Counter(digests.values()).most_common(1) or [("", 0)]
    lonely = count == 1 and len(digests) > 1
    return sorted(client for client, value in digests.items() if lonely or value != common)


def _matrix(value: np.ndarray) -> Tensor:
    """Return an array as (rows, columns, kernel): output units, input units, and the rest."""
    return torch.from_numpy(np.array(value, np.float32)).reshape(*value.shape[:2], -1)


def _silent(matrices: Mapping[str, Tensor]) -> Iterator[str]:
    total = sum(matrix.numel() for matrix in matrices.values())
    zeros = sum(matrix.numel() for matrix in matrices.values() if not bool(matrix.any()))
    if zeros > _ALL_ZERO * total:
        yield f"{zeros / total:.0%} of the numbers are in matrices of zeros that do not begin so"


def _off(received: Mapping[str, np.ndarray], matrices: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield a clause for each layer whose biases keep half of the units off or more."""
    for name, matrix in matrices.items():
        bias = received.get(f"{name.removesuffix('.weight')}.bias") if name.endswith(".weight") else None
        if bias is None or bias.shape != (len(matrix),):
            continue
        lengths, biases = matrix.flatten(1).norm(dim=1), torch.from_numpy(np.array(bias, np.float32))
        off = int(((biases < -_OFF * lengths) & (lengths > 0)).sum())  # rows of zeros have a check of their own
        if off >= max(_FEWEST, _OFF_UNITS * len(matrix)):
            yield f"{name} has {off} of {len(matrix)} units kept off by their biases"


def _suspicions(matrix: Tensor) -> Iterator[str]:
    rows, columns = matrix.flatten(1), matrix.transpose(0, 1).flatten(1)
    for kind, lines in (("rows", rows), ("columns", columns)):
        if (count := parallel(lines)) >= max(_FEWEST, _SHARES[kind] * len(lines)):
            yield f"{count} of {len(lines)} {kind} parallel to another"
    dead = int((~rows.any(1)).sum())
    if _DEAD_ROWS * len(rows) <= dead < len(rows) and dead >= _FEWEST:
        yield f"{dead} of {len(rows)} rows of zeros"
    gain = float(rows.square().mean().sqrt()) * sqrt(rows.shape[1])
    if not gain <= _GAIN:
        yield f"a gain of {gain:.3g}"


def parallel(rows: Tensor) -> int:
    """Count the rows that are parallel to the next one in the order of their projections on a random direction.

    Rows of zeros do not count, nor do rows shorter than 8. In an order every row of a group of n parallel ones but the
    last has such a neighbour: the result is n - 1.

    Args:
        rows: (n, d).
    """
    rows = rows[rows.any(1)]
    if len(rows) < 2 or rows.shape[1] < _SHORTEST:
        return 0
    rows = rows / rows.norm(dim=1, keepdim=True)
    direction = torch.randn(rows.shape[1], generator=torch_generator(0, "broadcast check"))
    projected = rows @ direction
    rows = rows * projected.sign()[:, None]  # opposite rows are parallel, too
    rows = rows[projected.abs().argsort()]
    return int(((rows[:-1] * rows[1:]).sum(1) > 1 - _PARALLEL).sum())


def require_plausible(received: Mapping[str, np.ndarray], fresh: nn.Module, which: str) -> None:
    """Write the hash of the weights into the log, and refuse crafted ones: as a site's policy may ask for.

    Args:
        received: the weights.
        fresh: a new model.
        which: the message that brought them, in words.

    Raises:
        RequestDeclinedError: names the first alarm.
    """
    print(f"flfw: {which}: received weights {digest(received)}", file=sys.stderr, flush=True)
    if alarms := broadcast_alarms(received, zeros_at_first(fresh)):
        raise RequestDeclinedError(f"was sent weights that its reject_suspicious_weights refuses: {alarms[0]}")
