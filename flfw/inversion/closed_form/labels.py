"""Labels of a batch, read off the gradient of the last layer.

Under cross entropy the last layer's bias has the gradient ``mean over examples of softmax_c - [label = c]``, and a row
of its weight the same mean with each example's features as a factor.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from flfw.errors import require
from flfw.nets.net import Tensors
from flfw.victims.operator import Operator
from flfw.victims.victim import VictimModel

WAYS = ("recovered", "single", "unique", "counts")
"""Values of ``how`` in `recovered`."""

_RANDOM_INPUTS, _AT_ONCE = 256, 32  # few at once, because images may be large


class NoLabels(RuntimeError):
    """Failure to recover labels in this way; the message says why."""


def single(weight_gradient: Tensor, bias_gradient: Tensor | None) -> Tensor:
    """Read the label of a single example: iDLG (Zhao et al., 2020, arXiv 2001.02610).

    Only the label's entry of the bias gradient is negative: exact for any features. Without a bias the sums of the
    weight gradient's rows are used. They equal the bias gradient times the sum of the features: exact where that sum
    is positive, as after a ReLU or a sigmoid.

    Args:
        weight_gradient: (K, d).
        bias_gradient: (K,); None: the layer has none.

    Returns:
        (1,).

    >>> single(torch.tensor([[0.2, 0.1], [-0.6, -0.3], [0.4, 0.2]]), None)
    tensor([1])
    """
    return (weight_gradient.sum(1) if bias_gradient is None else bias_gradient).argmin().view(1)


def unique(weight_gradient: Tensor, batch: int) -> Tensor:
    """Read distinct labels: the rows with the smallest entries (Yin et al., CVPR 2021, section 3.1).

    It needs features >= 0: then a row of a class that does not occur has no entry below 0. A class that occurs twice
    is found once, and a wrong class takes the other place.

    Args:
        weight_gradient: (K, d).
        batch: number of examples, at most K.

    Returns:
        (batch,) in ascending order.

    >>> unique(torch.tensor([[-0.1, 0.3], [0.2, 0.1], [0.0, -0.5]]), 2)
    tensor([0, 2])
    """
    return weight_gradient.amin(1).argsort(stable=True)[:batch].sort().values


def counts(bias_gradient: Tensor, probabilities: Tensor, batch: int) -> Tensor:
    """Estimate the labels of any batch, with repeated classes, from the count of each class.

    The bias gradient is ``probabilities - count / batch`` for a batch with these mean probabilities. Counts below 0 are
    set to 0; then largest remainders make them whole. Among equal remainders the lower class comes first.

    Args:
        bias_gradient: (K,).
        probabilities: (K,) the network's mean softmax on inputs like the batch's.
        batch: number of examples, >= 1.

    Returns:
        (batch,) in ascending order.

    Raises:
        NoLabels: no class has a count above 0.

    >>> counts(torch.tensor([0.3, -0.4, 0.1]), torch.tensor([0.3, 0.3, 0.4]), 3)
    tensor([1, 1, 2])
    """
    share = (probabilities - bias_gradient).double().clamp_min(0)
    if not share.sum() > 0:
        raise NoLabels("it needs a class that occurs, and the last bias's gradient has none")
    quota = batch * share / share.sum()
    whole = quota.floor().long()
    nearest = (quota - whole).argsort(descending=True, stable=True)
    whole[nearest[: batch - int(whole.sum())]] += 1
    return torch.arange(len(whole), device=whole.device).repeat_interleave(whole)


def recovered(
    victim: VictimModel,
    sent: Tensors,
    batch: int,
    how: str,
    rng: torch.Generator,
    operator: Operator | None = None,
) -> Tensor:
    """Recover the labels behind an observation.

    For several local steps their mean gradient is used, as if the weights had not moved in between.

    Args:
        victim: the client's model.
        sent: the tensors the client sent, by name.
        batch: number of examples, >= 1.
        how: `single`, `unique` or `counts`, with probabilities from random inputs N(0, 1) in normalised units;
            ``recovered``: `single` for one example, `counts` for more.
        rng: draws these inputs.
        operator: a known mechanism; what it can undo in the observation is undone first.

    Returns:
        (batch,).

    Raises:
        NoLabels: the last layer's gradient was not sent, or does not serve for this.
        InputError: ``how`` is unknown, or the observation is of another network.
    """
    require(how in WAYS, f"how in {', '.join(WAYS)}", how=how)
    victim.check(sent)
    weight, bias = _head(victim, sent, operator)
    if how == "single" or (how == "recovered" and batch == 1):
        if batch > 1:
            raise NoLabels(f"single needs a batch of 1, and this one has {batch}; recover the labels by counts")
        return single(weight, bias)
    if how == "unique":
        if batch > len(weight):
            raise NoLabels(f"labels that are unique need as many classes as examples, {batch}, and got {len(weight)}")
        occurring = int((weight.amin(1) < 0).sum())
        if occurring < batch:
            raise NoLabels(
                f"unique needs {batch} labels that all differ, and only {occurring} rows of the last weight's gradient "
                "have an entry below 0; recover the labels by counts"
            )
        return unique(weight, batch)
    if bias is None:
        raise NoLabels("counts needs the gradient of the last layer's bias, which was not sent")
    return counts(bias, _mean_softmax(victim, rng), batch)


def _head(victim: VictimModel, sent: Tensors, operator: Operator | None) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the last layer's weight (K, d) and, where it is sent, bias (K,)."""
    parameters, rows = dict(victim.model.named_parameters()), victim.classes
    matrices = [n for n, p in parameters.items() if n.endswith("weight") and p.dim() == 2 and len(p) == rows]
    if not matrices or matrices[-1] not in victim.shared:
        raise NoLabels("it needs the gradient of a fully connected last layer, which was not sent")
    weight, bias = matrices[-1], matrices[-1].removesuffix("weight") + "bias"
    observed, _ = victim.observed(sent)
    observed = operator.undo(observed) if operator else observed
    return observed[weight], observed[bias] if bias in victim.shared else None


@torch.no_grad()
def _mean_softmax(victim: VictimModel, rng: torch.Generator) -> Tensor:
    """Compute the mean softmax (K,) over random inputs; unknown tensors have the attacker's first guess."""
    weights, device = {**victim.known, **victim.unknown}, victim.inputs.mean.device
    scores = [
        functional_call(victim.model, weights, (torch.randn(_AT_ONCE, *victim.inputs.shape, generator=rng).to(device),))
        for _ in range(_RANDOM_INPUTS // _AT_ONCE)
    ]
    return torch.cat(scores).softmax(1).mean(0)
