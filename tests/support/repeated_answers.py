"""Gradient of a batch in a layer, out of several messages that hide it among other concealed samples each time.

A server that asks T times for the update of the same B examples, with the same weights, gets of a layer

    G_t = X + C_t,   t = 1..T        X the same in all, a multiple of the batch's own gradient, of rank b = min(B, n)
                                     C_t = A_t F_t of m concealed samples, drawn anew for each answer, of rank m < n

with n the independent outputs: K - 1 in a last layer below a softmax, as the columns of its gradient add up to 0. Then
X is found by linear algebra, without the labels, the recipe's numbers or the network:

    1. The rows of all messages but one span those of X and of the other C_t. All T such spans have the rows of X in
       common, and nothing else.
    2. Beyond these rows nothing of X is left in G_t. The combinations N_t of outputs that vanish there vanish in C_t.
    3. N_t^T X = N_t^T G_t holds for each t, and is solved for X.

T - 1 messages span all these rows if (T - 1)(n - m) >= b, and all N_t together tell X if T (n - m) >= n. The rows must
be independent, so the layer has at least T m + b inputs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from flfw.errors import require

_ABSENT = 1e-12  # share of the largest singular value below which a direction of the equations is none


class Joined(NamedTuple):
    """Common part of several messages.

    Attributes:
        gradient: X (outputs, d).
        error: what X and parts of rank m leave of the messages, over their length; 0: exact.
        gain: rounding grows by about this factor in X. Above 1e6 the messages have more in common than X, such as a
            concealed sample of all: then X is none, however small the error.
    """

    gradient: Tensor
    error: float
    gain: float


def answers_needed(examples: int, concealed: int, outputs: int) -> int | None:
    """Return the least number of messages that tell X; None: no number does.

    Args:
        examples: B, >= 1.
        concealed: m, >= 1.
        outputs: n; K - 1 of a last layer.

    >>> [answers_needed(m, m, 9) for m in range(1, 10)]
    [2, 2, 2, 2, 3, 3, 5, 9, None]
    >>> answers_needed(64, 4, 9), answers_needed(30, 30, 100)
    (3, 2)
    """
    spare = outputs - concealed
    if spare <= 0:
        return None
    return max(-(-min(examples, outputs) // spare) + 1, -(-outputs // spare))


def joined(gradients: Tensor, examples: int, concealed: int, outputs: int) -> Joined:
    """Compute the common part of several messages.

    Args:
        gradients: (T, outputs, d) of a layer's weight; its bias's gradient may be one more column.
        examples: B, >= 1.
        concealed: m, those of one message, >= 1.
        outputs: n; K - 1 of a last layer.
    """
    needed = answers_needed(examples, concealed, outputs)
    possible = needed is not None and len(gradients) >= needed
    require(possible, f"at least {needed or 'no number of'} messages", messages=len(gradients))
    g, shared = gradients.double(), min(examples, outputs)
    joint, inputs = len(g) * concealed + shared, g.shape[2]
    maximum = (inputs - shared) // concealed
    require(joint <= inputs, f"at most {maximum} messages for a layer of {inputs} inputs", messages=len(g))
    rows = _rows(g.flatten(0, 1), joint)
    inner = g @ rows.T  # (T, outputs, r): all that follows is inside the rows
    missing = inner.new_zeros(len(rows), len(rows))
    for left_out in range(len(g)):
        others = torch.cat([inner[:left_out], inner[left_out + 1 :]]).flatten(0, 1)
        span = _rows(others, (len(g) - 1) * concealed + shared)
        missing += torch.eye(len(rows)).to(g) - span.T @ span
    _, directions = torch.linalg.eigh(missing)
    common = directions[:, :shared]  # those that no span misses
    left, _, _ = torch.linalg.svd(inner - inner @ common @ common.T)
    silent = left[:, :, concealed:].mT.flatten(0, 1)  # N_t^T of all messages
    known_part = (left[:, :, concealed:].mT @ inner @ common).flatten(0, 1)
    shared_part = torch.linalg.pinv(silent, rtol=_ABSENT) @ known_part @ common.T
    rest = torch.linalg.svdvals(inner - shared_part)[:, concealed:]
    gain = 1 / torch.linalg.svdvals(silent)[-1]
    return Joined((shared_part @ rows).to(gradients), float(rest.norm() / inner.norm()), float(gain))


def _rows(matrix: Tensor, count: int) -> Tensor:
    """Return an orthonormal basis (count, d) of a matrix's rows."""
    return torch.linalg.svd(matrix, full_matrices=False).Vh[:count]
