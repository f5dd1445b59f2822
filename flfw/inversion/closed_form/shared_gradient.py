"""What the gradient of a hypernetwork says of the network it generated: closed forms, no search.

The hypernetwork is h = ReLU(A v + c) with a linear head theta_k = W_k h + b_k for each generated tensor. So

    dL/db_k = dL/dtheta_k               a head's bias hands on the gradient of what the head generates;
    dL/dW_k = dL/dtheta_k h^T           which is of rank one, and gives h;
    dL/dA   = d v^T with d = dL/dc      likewise, and gives the embedding v;

and whoever holds the hypernetwork can then generate theta itself. All of it is exact for one gradient, of any batch and
for any loss. Of several local steps the embedding is a mean over the steps, weighted by the gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flfw.nets.net import Tensors

_PURE, _ROUNDING = 1e-3, 1e-6  # of the largest change of a column, of its length: what decay alone may leave of one
_RANK_ONE = 0.5  # of the trunk's gradient, what an embedding may leave unexplained


@dataclass(frozen=True)
class Reading:
    """A network and its gradient, as far as they could be read off.

    Attributes:
        weights: the network's tensors, by the names they have in it.
        gradient: of the loss with respect to them.
        embedding: that the network was generated from; None: nothing is known of it.
    """

    weights: Tensors
    gradient: Tensors
    embedding: Tensor | None = None

    @property
    def silent(self) -> bool:
        """Whether the gradient is zero, and says nothing."""
        return not any(bool(value.any()) for value in self.gradient.values())


def read(targets: Mapping[str, torch.Size], hypernetwork: Tensors, gradient: Tensors) -> Reading:
    """The generated network, its gradient and the embedding, from a hypernetwork and its gradient.

    The network is generated from v, which changes less in several steps than h. Where the hidden layer is dead, h = 0,
    nothing is said of v, and the network is known all the same: it consists of the heads' biases.

    Args:
        targets: shape of each generated tensor by its name, in the order of the heads.
        hypernetwork: its tensors, ``hypernet.*``, as they were before the gradient was taken.
        gradient: the same names.
    """
    own = {name: gradient[f"hypernet.heads.{k}.bias"].view(shape) for k, (name, shape) in enumerate(targets.items())}
    embedding = _embedding(gradient)
    if embedding is None:
        return Reading(_from_hidden(targets, hypernetwork, _hidden(gradient, len(targets))), own)
    return Reading(generate(targets, hypernetwork, embedding), own, embedding)


def generate(targets: Mapping[str, torch.Size], hypernetwork: Tensors, embedding: Tensor) -> Tensors:
    """The network that a hypernetwork generates from an embedding.

    Args:
        targets: see `read`.
        hypernetwork: see `read`.
        embedding: (embedding,).
    """
    trunk, bias = hypernetwork["hypernet.trunk.weight"], hypernetwork["hypernet.trunk.bias"]
    return _from_hidden(targets, hypernetwork, torch.relu(trunk @ embedding + bias))


def _from_hidden(targets: Mapping[str, torch.Size], hypernetwork: Tensors, hidden: Tensor) -> Tensors:
    heads = [[hypernetwork[f"hypernet.heads.{k}.{part}"] for part in ("weight", "bias")] for k in range(len(targets))]
    both = zip(targets.items(), heads, strict=True)
    return {name: (weight @ hidden + bias).view(shape) for (name, shape), (weight, bias) in both}


def _embedding(gradient: Tensors) -> Tensor | None:
    """V (embedding,) from dL/dA = d v^T and d = dL/dc; None where these are 0, or rounding, which has no such form."""
    trunk, d = (gradient[f"hypernet.trunk.{part}"].double() for part in ("weight", "bias"))
    if not bool(d.any()):
        return None
    embedding = trunk.T @ d / (d @ d)
    explained = (trunk - torch.outer(d, embedding)).norm() <= _RANK_ONE * trunk.norm()
    return embedding.to(gradient["hypernet.trunk.weight"].dtype) if bool(explained) else None


def _hidden(gradient: Tensors, heads: int) -> Tensor:
    """H (hidden,), the least-squares solution of all dL/dW_k = dL/db_k h^T; 0 where all of them are 0."""
    both = [[gradient[f"hypernet.heads.{k}.{part}"].double() for part in ("weight", "bias")] for k in range(heads)]
    length = torch.stack([bias @ bias for _, bias in both]).sum()
    product = torch.stack([weight.T @ bias for weight, bias in both]).sum(0)
    hidden = product / length if bool(length > 0) else torch.zeros_like(product)
    return hidden.to(gradient["hypernet.heads.0.weight"].dtype)


def without_decay(received: Tensors, sent: Tensors) -> Tensors:
    """What several steps of SGD moved a hypernetwork by, but for weight decay: a weighted sum of the gradients.

    With momentum or without, decay alone multiplies every weight by one factor. A hidden unit that is 0 for the client
    leaves its column of the heads' weights without any gradient, so that the factor is read off there, to rounding.
    Where no unit is 0 in all steps, decay stays in the result.

    Args:
        received: the hypernetwork's tensors, ``hypernet.*``, before the steps.
        sent: the same after them.

    Returns:
        By name, at a scale that depends on the learning rate.
    """
    heads = [name for name in received if name.startswith("hypernet.heads.") and name.endswith(".weight")]
    before, after = (torch.cat([tensors[name] for name in heads]).double() for tensors in (received, sent))
    length, product = (before * before).sum(0), (before * after).sum(0)
    left = (after - before * (product / length)).norm(dim=0)
    pure = left <= torch.maximum(_PURE * (after - before).norm(dim=0).max(), _ROUNDING * length.sqrt())
    pure &= length > 0
    factor = product[pure].sum() / length[pure].sum() if bool(pure.any()) else 1.0
    return {name: (factor * value.double() - sent[name].double()).to(value.dtype) for name, value in received.items()}


def serving(hypernetwork: Tensors, weights: Tensors) -> Tensors:
    """A hypernetwork that generates the same network from every embedding: what a malicious server sends.

    The trunk and the heads' weights are 0 and the heads' biases are the network, so that a client's gradient of them is
    that of a network of the server's choice. A client that looks finds the zeros; the protocol does not have it look.

    Args:
        hypernetwork: an honest one's tensors, ``hypernet.*``, for their names and shapes.
        weights: of the network to be generated, in the order of the heads.
    """
    biases = {f"hypernet.heads.{k}.bias": value.flatten().clone() for k, value in enumerate(weights.values())}
    return {name: biases.get(name, torch.zeros_like(value)) for name, value in hypernetwork.items()}
