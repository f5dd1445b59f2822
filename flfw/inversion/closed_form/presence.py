"""Classes that a client holds examples of, read off its upload: closed forms, no search.

A generator with an embedding for each label is trained only on the client's labels. The row of an absent label has no
gradient, and an optimiser without weight decay leaves it unchanged, to the bit.

Without a generator the last layer is used. Under cross entropy an example of another class moves the row and the bias
of class c by -softmax_c times its features, and 1; only an example of class c moves them the other way. With features
>= 0, the row of an absent class therefore only decreases, apart from weight decay.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flfw.nets.net import Tensors

_RISING = 0.05  # least share of increases in the change of a present class's row


def classes_held(model: nn.Module, received: Tensors, sent: Tensors) -> Tensor | None:
    """Return for each class whether the client holds it, (classes,) of bool; None: the tensors needed were not sent.

    Args:
        model: the client's model, for its layers, with or without values.
        received: the tensors before local training, by name.
        sent: the tensors after it, by name.
    """
    both = [name for name in sent if name in received]
    embedding = next((f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Embedding)), "")
    if embedding in both:
        return moved_rows(received[embedding], sent[embedding])
    last = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1:]
    names = [f"{name}.{part}" for name in last for part in ("weight", "bias")]
    if not names or not all(name in both for name in names):
        return None
    weight, bias = (sent[name] - received[name] for name in names)
    return rising_rows(torch.cat([weight, bias[:, None]], 1))


def moved_rows(before: Tensor, after: Tensor) -> Tensor:
    """Return which rows of (classes, d) changed, to the bit.

    >>> moved_rows(torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [0.0, 1e-30]]))
    tensor([False,  True])
    """
    return (before != after).any(1)


def rising_rows(change: Tensor) -> Tensor:
    """Return which rows of a last layer's change (classes, features + 1) rose in some entry, beyond rounding.

    >>> rising_rows(torch.tensor([[-0.1, -0.2], [0.3, -0.1], [0.0, 0.0]]))
    tensor([False,  True, False])
    """
    change = change.double()
    return change.clamp(min=0).sum(1) > _RISING * change.abs().sum(1)
