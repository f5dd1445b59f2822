"""Which classes a client holds examples of, read off what it uploaded: closed forms, no search.

A generator with an embedding for each label is trained on the client's own labels alone. A row of that embedding whose
label never occurs has no gradient, and optimisers that know no weight decay leave it where it is, to the bit.

Without a generator the last layer is looked at. Under cross entropy an example of another class moves the row and the
bias of class c by -softmax_c times its features, and 1; only an example of class c itself moves them the other way. Of
features that are not negative, a class that does not occur therefore has nothing but decreases, but for weight decay.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flfw.nets.net import Tensors

_RISING = 0.05  # of what moved in a class's row: the share that has to have risen for the class to be there


def classes_held(model: nn.Module, received: Tensors, sent: Tensors) -> Tensor | None:
    """For each class whether the client holds it, (classes,) of bool; None: nothing was sent that says so.

    Args:
        model: of the client, for its layers, with or without numbers in it.
        received: before local training, by name.
        sent: after it.
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
    """Which rows of (classes, d) are not what they were, to the bit.

    >>> moved_rows(torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [0.0, 1e-30]]))
    tensor([False,  True])
    """
    return (before != after).any(1)


def rising_rows(change: Tensor) -> Tensor:
    """Which rows of a last layer's change (classes, features + 1) have risen somewhere, and not by rounding.

    >>> rising_rows(torch.tensor([[-0.1, -0.2], [0.3, -0.1], [0.0, 0.0]]))
    tensor([False,  True, False])
    """
    change = change.double()
    return change.clamp(min=0).sum(1) > _RISING * change.abs().sum(1)
