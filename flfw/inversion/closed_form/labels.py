"""Labels of a batch, classes that a client holds, and shares of the classes, all read off an upload in closed form.

Under cross entropy the last layer's bias has the gradient ``mean over examples of softmax_c - [label = c]``, and a row
of its weight the same mean with each example's features as a factor. So an example of another class moves the row and
the bias of class c by -softmax_c times its features, and 1; only an example of class c moves them the other way. With
features >= 0, the row of an absent class only decreases, apart from weight decay. A generator with an embedding for
each label tells more: the row of an absent label has no gradient, and an optimiser without weight decay leaves it
unchanged, to the bit.

For the shares h of the classes, with p the mean softmax over the way of the weights, the mean rate of the last bias is
``h - p``. With M[c, k], the mean softmax of class k over examples of class c, this is linear in h: ``(I - M^T) h``. M
is estimated on public examples of each class, with the weights before, after and between.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfw.errors import require
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.client_models.victim import VictimModel
from flfw.nets.net import Tensors

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
    full = quota.floor().long()
    nearest = (quota - full).argsort(descending=True, stable=True)
    full[nearest[: batch - int(full.sum())]] += 1
    return torch.arange(len(full), device=full.device).repeat_interleave(full)


def recovered(
    victim: VictimModel, sent: Tensors, batch: int, how: str, rng: torch.Generator, operator: Operator | None = None
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
        raise NoLabels("it needs the gradient of a dense last layer with a row for each class, which was not sent")
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


_WHOLE = 1e3  # weight of the condition that shares have the sum 1
_PRIOR = 1e-2  # weight of the prior, which decides in directions that the bias does not show
_SLOWEST = 1e-3  # smallest rate on a part of the way, as a share of the mean one: it ends nowhere
_TURNS = 10  # of the alternation between shares and times


def effective_lr(lr: float, steps: int, momentum: float = 0.0) -> float:
    """Return the factor by which the steps multiply a gradient that stays the same, momentum included.

    >>> effective_lr(0.5, 3)
    1.5
    >>> effective_lr(1.0, 2, 0.5)  # 1 and 1.5
    2.5
    """
    require(steps >= 1, "steps >= 1", steps=steps)
    require(0 <= momentum < 1, "0 <= momentum < 1", momentum=momentum)
    return lr * sum((1 - momentum**step) / (1 - momentum) for step in range(1, steps + 1))


def class_shares(rate: Tensor, softmax: Tensor, prior: Tensor) -> Tensor:
    """Return the shares of the classes that explain the mean rate of the last bias.

    They are the least squares solution among shares >= 0 with the sum 1, drawn a little to the prior. On a part of the
    way where the bias moves slowly, the weights stay long: times follow from the shares, and these from the times, in
    turns.

    Args:
        rate: (K,) change of the bias over the effective learning rate.
        softmax: (T, K, K) for T >= 1 equal parts of the way and each class of the examples, their mean softmax.
        prior: (K,) shares without the observation.

    Returns:
        (K,) in double precision.

    >>> fresh = torch.full((1, 2, 2), 0.5)
    >>> class_shares(torch.tensor([0.3, -0.3]), fresh, torch.tensor([0.5, 0.5])).round(decimals=3)
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """
    parts, classes, _ = softmax.shape
    fits = rate.shape == prior.shape == (classes,) and softmax.shape[2] == classes
    require(fits, "a rate and a prior for each class", rate=tuple(rate.shape), prior=tuple(prior.shape))
    seen, means, before = (value.double().numpy() for value in (rate, softmax, prior))
    matrices = np.eye(classes) - means.transpose(0, 2, 1)
    times = np.full(parts, 1 / parts)
    shares = _solved(seen, np.tensordot(times, matrices, 1), before)
    for _ in range(_TURNS if parts > 1 else 0):
        times = _times(seen, matrices @ shares)
        shares = _solved(seen, np.tensordot(times, matrices, 1), before)
    return torch.from_numpy(shares)


def _times(rate: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return the share of the time that each part of a way takes, in the direction of the whole change."""
    length = float(rate @ rate)
    if not length > 0:
        return np.full(len(rates), 1 / len(rates))
    slow = 1 / np.maximum(rates @ rate / length, _SLOWEST)
    return slow / slow.sum()


def _solved(rate: np.ndarray, matrix: np.ndarray, prior: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    full, drawn = np.full((1, len(rate)), _WHOLE), _PRIOR * np.eye(len(rate))
    shares, _ = nnls(np.concatenate([matrix, full, drawn]), np.concatenate([rate, [_WHOLE], _PRIOR * prior]))
    return shares / shares.sum()
