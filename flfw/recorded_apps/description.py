"""Description of a foreign app's local training, and of the tensors that its clients send."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from math import inf
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from flfw.bounds import BoundedSettings, PositiveInt
from flfw.errors import require
from flfw.nets.training.local_steps import LocalSteps, Loss, Places

Mode: TypeAlias = Literal["train", "eval"]
Sends: TypeAlias = Literal["weights", "delta", "negative delta", "gradient"]
SENDS: tuple[Sends, ...] = get_args(Sends)

Augment: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]
"""Changes a batch of raw inputs (b, ...) at random, with the generator's draws, as a client does anew in each step."""


@final
@dataclass(frozen=True)
class TrainingDescription(BoundedSettings):
    """Description of a client's local training, and of the tensors that it sends afterwards.

    Attributes:
        lr: learning rate; None: neither it nor the optimiser is known.
        optimiser: ``sgd``, ``adam`` (decay added to the gradient) or ``adamw``; all begin anew in every round.
        sends: ``weights`` after training; ``delta``, the weights after minus before; ``negative delta``, before minus
            after; ``gradient``, that of a single step, or the negative delta over ``lr`` and the number of steps.
        epochs: passes through the client's examples.
        batch_size: examples in a step; 0: all of them.
        order: for each step the places of its examples in the truth; then ``epochs``, ``batch_size``, ``shuffled`` and
            ``drop_last`` are ignored. None: see ``shuffled``.
        shuffled: whether every epoch has an order of its own that nobody knows; else it is the order of the truth.
        drop_last: whether an epoch leaves out a last batch that is smaller than the others.
        momentum: momentum of ``sgd``.
        nesterov: whether it is Nesterov's.
        weight_decay: multiple of the weight.
        betas: decay rates of Adam's means.
        epsilon: added to Adam's root.
        clip: bound of the joint norm of a step's gradient; 0: none.
        proximal: weight mu of FedProx's mu/2 ||w - w_0||^2 in the loss.
        loss: mean loss of a batch from scores (b, classes) and labels (b,); of one logit z the scores are 0 and z.
        augment: random change of every batch; None: none.
        mode: mode of the network, ``train`` or ``eval``.
    """

    lr: float | None = None
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    sends: Sends = "weights"
    epochs: PositiveInt = 1
    batch_size: int = 0
    order: tuple[Places, ...] | None = None
    shuffled: bool = True
    drop_last: bool = False
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    clip: float = 0.0
    proximal: float = 0.0
    loss: Loss = cross_entropy
    augment: Augment | None = None
    mode: Mode = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss is binary_cross_entropy_with_logits:  # that of one logit, in the place of which two scores stand
            object.__setattr__(self, "loss", cross_entropy)
        require(self.order is None or len(self.order) > 0, "an order of at least one step", order=self.order)
        self._settings(1, None)

    @property
    def known(self) -> bool:
        """True if the optimiser is known, or a gradient of one step is sent, which needs none."""
        return self.lr is not None or (self.sends == "gradient" and self.epochs == 1 and self._whole)

    @property
    def is_linear(self) -> bool:
        """True if an update of one step gives the gradient: SGD whose gradients are not clipped."""
        return self.optimiser == "sgd" and not self.clip

    def is_mixed(self, count: int) -> bool:
        """Return whether the order of batches is unknown, and matters."""
        return self.order is None and self.shuffled and 0 < self.batch_size < count

    def is_random(self, count: int) -> bool:
        """Return whether repetitions of the training differ, apart from draws within the network."""
        return self.augment is not None or self.is_mixed(count)

    def batches(self, count: int, rng: torch.Generator | None = None) -> tuple[Places, ...]:
        """Return for each step the indices that it uses of ``count`` examples.

        Args:
            count: number of examples.
            rng: draws the orders of the epochs; None: all are in the order of the truth.

        Raises:
            InputError: the order has an index out of range.

        >>> TrainingDescription(0.1, batch_size=2, epochs=2, drop_last=True).batches(3)
        ((0, 1), (0, 1))
        """
        if self.order is not None:
            return LocalSteps(1.0, len(self.order), order=self.order).batches(count)
        steps = []
        for _ in range(self.epochs):
            drawn = rng is not None and self.is_mixed(count)
            indices = torch.randperm(count, generator=rng).tolist() if drawn else list(range(count))
            size = self.batch_size or count
            epoch = [tuple(indices[at : at + size]) for at in range(0, count, size)]
            steps += epoch[:-1] if self.drop_last and len(epoch) > 1 and len(epoch[-1]) < size else epoch
        return tuple(steps)

    def local(self, count: int) -> LocalSteps:
        """Return the steps as an attacker unrolls them; an unknown order is taken to be that of the truth."""
        batches = self.batches(count)
        full = all(places == tuple(range(count)) for places in batches)
        return self._settings(len(batches), None if full else batches)

    def sentences(self, count: int) -> Iterator[str]:
        """Yield the grants about a training on a number of examples, a sentence each."""
        steps = len(self.batches(count))
        examples = f"{count} example{'s' if count > 1 else ''}"
        same = "" if steps == 1 else "the same " if self._whole else "batches of "
        number = "one local step" if steps == 1 else f"{steps} local steps"
        yield f"that {number} on {same}{examples} stand{'s' if steps == 1 else ''} behind it"
        if self.sends != "weights":
            yield f"that clients send the {self.sends}, not the weights"
        if self.lr is not None:
            yield f"that the steps are {self._optimiser_in_words} with learning rate {self.lr:g}"
        elif not self.known:
            place = "the change of the weights is attacked in their place"
            yield f"not granted: the optimiser and its learning rate; {place}"
        if self.loss is not cross_entropy:
            yield f"the local loss ({getattr(self.loss, '__name__', type(self.loss).__name__)})"
        if self.is_mixed(count):
            yield "not granted: which examples are in which batch; the batches are taken in the order of the labels"
        if self.augment is not None:
            yield "not granted: the random changes of the inputs in training; they are left out"

    @property
    def _whole(self) -> bool:
        return self.order is None and self.batch_size == 0

    @property
    def _optimiser_in_words(self) -> str:
        more = {
            "Nesterov's momentum" if self.nesterov else "momentum": self.momentum,
            "weight decay": self.weight_decay,
            "gradients clipped at": self.clip,
            "a proximal term of": self.proximal,
        }
        extras = [f"{name} {value:g}" for name, value in more.items() if value]
        name = {"sgd": "SGD" if extras else "plain SGD", "adam": "Adam", "adamw": "AdamW"}[self.optimiser]
        return f"{name} ({', '.join(extras)})" if extras else name

    def _settings(self, steps: int, order: tuple[Places, ...] | None) -> LocalSteps:
        require(self.lr is None or 0 < self.lr < inf, "0 < lr < inf or None", lr=self.lr)
        same = {field.name: getattr(self, field.name) for field in fields(LocalSteps) if hasattr(self, field.name)}
        return LocalSteps(**{**same, "lr": 1.0 if self.lr is None else self.lr, "steps": steps, "order": order})
