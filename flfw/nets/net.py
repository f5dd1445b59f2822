"""Base class of all networks: a feature extractor followed by a classifier."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parameter import is_lazy

from flfw.errors import InputError, abridged
from flfw.rng import initialising

Tensors: TypeAlias = dict[str, Tensor]
"""Named tensors: the state of a model, of a message or of a client."""

_NUMPYS = frozenset({torch.float16, torch.float32, torch.float64})
"""Types with fractions that NumPy has as well, in whose format tensors are sent."""

_MOST = 8
_MOVED = 0.05  # deviation by which a trial moves weights, as some layers do nothing at first
_APART = 1e-5  # difference of scores, over the largest one, that rounding does not make


class Net(nn.Module):
    """A classifier in two named parts, ``classifier(extractor(x))``.

    Methods that share one part and keep the other private refer to these two names.

    Args:
        extractor: module from inputs (B, ...) to features; its own weights are unused if a method generates them.
        classifier: module from features to class scores (B, classes).

    Attributes:
        shape: shape of one input, (C, H, W) or (d,); `flfw.nets.build` sets it.
        classes: number of classes; `flfw.nets.build` sets it.
    """

    shape: tuple[int, ...] = ()
    classes: int = 0

    def __init__(self, extractor: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores (B, classes) of normalised inputs (B, ...), or (B, classes, T) of each place of a text."""
        return self.classifier(self.extractor(x))


def targets(scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the labels that belong to scores: those given, or the next token of every place of a text (B, T).

    Args:
        scores: (B, classes), or (B, V, T) of V tokens at each of T places.
        x: raw inputs (B, ...); of text (B, T), in which token k is k / (V - 1).
        y: labels (B,), of text the token after the last place; others, such as probabilities, stay.

    >>> targets(torch.zeros(1, 3, 2), torch.tensor([[0.0, 1.0]]), torch.tensor([1])).tolist()
    [[2, 1]]
    """
    if scores.dim() < 3 or y.dim() > 1:
        return y
    following = ((scores.shape[1] - 1) * x[:, 1:].float()).round().long()
    return torch.cat([following, y.unsqueeze(1)], 1)


def are_numbers(y: Tensor) -> bool:
    """Return whether labels (B,) are numbers to be predicted, and not classes or the probabilities of some."""
    return y.dim() == 1 and y.is_floating_point()


def loss(scores: Tensor, y: Tensor, reduction: str = "mean", ignore_index: int = -100) -> Tensor:
    """Compute the cross entropy of scores with classes or their probabilities; of numbers (B,) the squared error.

    Args:
        scores: (B, classes), or (B, V, T) for texts; the only output (B, 1) for numbers.
        y: labels of `targets`.
        reduction: ``mean`` or ``none``.
        ignore_index: label of rows that do not count.

    >>> loss(torch.tensor([[1.0], [3.0]]), torch.tensor([1.5, 1.0]), "none").tolist()
    [0.25, 4.0]
    """
    if not are_numbers(y):
        return cross_entropy(scores, y, reduction=reduction, ignore_index=ignore_index)
    counted = y != ignore_index
    each = torch.where(counted, scores[:, 0] - y, 0.0).square()
    return each if reduction == "none" else each.sum() / counted.sum()


def losses(scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Compute each example's `loss` (B,), of a text the mean over its places; arguments as of `targets`.

    >>> losses(torch.zeros(2, 4, 3), torch.zeros(2, 3), torch.tensor([1, 0])).tolist() == [torch.tensor(4.0).log()] * 2
    True
    """
    each = loss(scores, targets(scores, x, y), reduction="none")
    return each if each.dim() == 1 else each.flatten(1).mean(1)


def regression_metrics(truths: Tensor, guesses: Tensor, unit: float) -> dict[str, float]:
    """Compute ``mae`` and ``rmse``, multiplied by a unit, and ``r2`` of guesses (N,); no r2 where all truths are equal.

    >>> regression_metrics(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 3.0]), 10.0)["mae"]
    5.0
    """
    errors = (guesses - truths).double()
    spread = float((truths.double() - truths.double().mean()).square().sum())
    values = {"mae": unit * float(errors.abs().mean()), "rmse": unit * float(errors.square().mean().sqrt())}
    return values | ({"r2": 1 - float(errors.square().sum()) / spread} if spread > 0 else {})


def correct(scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Compute the share of each example's labels that get the highest score, (B,) float64; arguments as of `targets`.

    >>> correct(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.zeros(2, 1), torch.tensor([1, 1])).tolist()
    [1.0, 0.0]
    """
    return (scores.argmax(1) == targets(scores, x, y)).double().unsqueeze(-1).flatten(1).mean(1)


def tensors(model: nn.Module) -> Tensors:
    """Return the model's parameters and buffers by name, detached but not copied."""
    return {name: value.detach() for name, value in model.state_dict().items()}


def numel(tensors: Mapping[str, Tensor]) -> int:
    """Return the number of scalars in named tensors."""
    return sum(value.numel() for value in tensors.values())


def running_statistics(model: nn.Module) -> tuple[str, ...]:
    """List the buffers in a model's ``state_dict``, such as BatchNorm's mean and variance; constants are not in it."""
    parameters = {name for name, _ in model.named_parameters()}
    return tuple(name for name in model.state_dict() if name not in parameters)


def refuse_tied(model: nn.Module) -> None:
    """Refuse a model in which one tensor has two names, as where layers share their weights.

    Messages, clipping, noise and an attacker's model of a client take each name for a tensor of its own: the same
    numbers would be sent twice, each time with other noise.

    Raises:
        InputError: naming the two.
    """
    names: dict[int, str] = {}
    held: dict[str, object] = model.state_dict(keep_vars=True)  # a layer may hold something else beside its tensors
    for name, value in held.items():
        if isinstance(value, Tensor) and (first := names.setdefault(id(value), name)) != name:
            kind = type(model).__name__
            raise InputError(
                f"Expected a tensor of its own for each name of {kind}, got {first} and {name}, which are the same "
                "(tied weights); give each layer its own."
            )


def draws_in_training(model: nn.Module, x: Tensor) -> bool:
    """Return whether a model draws random numbers in training, as dropout does, by a trial; the model stays as it is.

    Args:
        model: the model, with numbers.
        x: its inputs (B, ...).
    """
    tried = deepcopy(model).train()
    with torch.no_grad(), initialising(0, "dropout"):
        return not torch.equal(tried(x), tried(x))


def moved_in_training(model: nn.Module, x: Tensor) -> tuple[str, ...]:
    """List the floating buffers that a batch in training changes, such as BatchNorm's means, by a trial.

    Args:
        model: the model, with numbers; it stays as it is.
        x: its inputs (B, ...).
    """
    tried = deepcopy(model).train()
    before = {name: tried.state_dict()[name].clone() for name in running_statistics(tried)}
    with torch.no_grad(), initialising(0, "dropout"):
        tried(x)
    after = tried.state_dict()
    return tuple(n for n, value in before.items() if value.is_floating_point() and not torch.equal(after[n], value))


def statistics_in_words(names: Sequence[str]) -> str:
    """Name running statistics in a sentence; empty if there are none.

    >>> statistics_in_words(["norm.running_mean", "norm.running_var"])
    'the running statistics of the network (norm.running_mean and 1 more)'
    """
    return f"the running statistics of the network ({abridged(names, 1)})" if names else ""


def mixes_examples(model: nn.Module, x: Tensor, training: bool = True) -> bool:
    """Return whether an example's scores depend on others, of its batch or before, by trials.

    Each example, or of more than `_MOST` three, stands between others, and then between different ones: the opposite
    ones, equal ones, extreme ones. The second trial moves the weights at random. Scores that are not finite tell
    nothing. The model stays as it is.

    Args:
        model: the model, with numbers.
        x: its inputs (B, ...) in [0, 1], B >= 2.
        training: whether in training, else in evaluation.
    """
    tried = deepcopy(model).train(training)

    def scores(inputs: Tensor) -> Tensor:
        with initialising(0, "dropout"):  # the same draws each time
            return tried(inputs).double()

    def mixed() -> bool:
        full, extreme = scores(x), torch.zeros_like(x)
        extreme[::2] = 1
        for index in range(len(x)) if len(x) <= _MOST else (0, len(x) // 2, len(x) - 1):
            for others in (1 - x, torch.zeros_like(x), extreme.clone()):
                others[index] = x[index]
                if bool((scores(others)[index] - full[index]).abs().max() > _APART * full.abs().max()):
                    return True
        return False

    with torch.no_grad():
        if mixed():
            return True
        with initialising(0, "weights moved"):
            for parameter in tried.parameters():
                if parameter.is_floating_point():
                    parameter.add_(_MOVED * torch.randn_like(parameter))
        return mixed()


def refuse_untold_types(model: nn.Module) -> None:
    """Refuse a model with tensors that no message can hold, or of which a server computes no mean; and without sizes.

    Raises:
        InputError: naming the first.
    """
    tensors: dict[str, object] = model.state_dict()
    for name, value in tensors.items():
        if isinstance(value, Tensor) and is_lazy(value):
            raise InputError(f"Expected a network of known sizes, got {name} of a lazy layer; state its sizes.")
        kind = value.dtype if isinstance(value, Tensor) else None
        if kind is not None and (kind not in _NUMPYS if kind.is_floating_point else kind.is_complex):
            got = f"{name} of {str(kind).removeprefix('torch.')}"
            raise InputError(
                f"Expected a network of float16, float32, float64 or whole numbers, got {got}; convert it."
            )
