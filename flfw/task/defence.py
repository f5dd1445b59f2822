"""Hooks of a client-side defence, which changes the update that a client sends."""

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from flfw.files.earlier_names import EarlierHooks
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Net, Tensors
from flfw.plugins import NoSettings

HOOKS = ("network", "batch", "gradients", "step", "update")
"""Hooks at which a defence may act on the data or on what is sent."""


@final
@dataclass(frozen=True)
class LocalStep:
    """Local step of a client, for a defence that needs more than its gradients.

    Attributes:
        gradients: gradients of the shared tensors, by name.
        x: raw inputs (B, ...) in [0, 1] of the batch, as `Defence.batch` returned them.
        y: its labels (B,).
        model: the client's model before the step; it takes network inputs. Nothing of it may be changed.
        inputs: the input space.
        public: returns raw inputs and labels of public examples, which no client holds; none by default.
        positions: (B,) places of the examples in the data set's training part; empty where the method made them.
    """

    gradients: Tensors
    x: Tensor
    y: Tensor
    model: nn.Module
    inputs: InputSpec
    public: Callable[[], tuple[Tensor, Tensor]] = lambda: (torch.empty(0), torch.empty(0, dtype=torch.int64))
    positions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


@final
@dataclass(frozen=True)
class DefendedData:
    """Data of the clients with a defence, for its check before a run.

    Attributes:
        labels: labels (n,) of the training examples, and of those that an audit attacks.
        positions: their places (n,) in the data set's training part.
        classes: number of classes.
        batch_size: largest batch of local training.
        public: labels of the public examples of a `LocalStep`.
    """

    labels: Tensor
    positions: Tensor
    classes: int
    batch_size: int
    public: Tensor


class Defence(EarlierHooks, ABC):
    """Base of the defences: a subclass overrides the hook at which it acts; private tensors pass through no hook.

    Args:
        settings: the defence's hyper-parameters, an instance of ``Settings``.
    """

    EARLIER_HOOKS: ClassVar[Mapping[str, str]] = {
        "acts_at": "active_hooks",
        "bare": "disabled_settings",
        "mildest": "weakest_settings",
    }

    Settings: ClassVar[type] = NoSettings
    differentiates_inputs: ClassVar[bool] = False
    """Whether it needs derivatives in the inputs, which tokens do not have: then it is refused on text."""

    def __init__(self, settings: Any = None) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.measures: dict[str, float] = {}
        """Figures of this client's round, by name; they stand with the client's losses in rounds.csv."""

    @property
    def active_hooks(self) -> frozenset[str]:
        """Names of the hooks at which the defence acts, among `HOOKS`."""
        return frozenset(hook for hook in HOOKS if getattr(type(self), hook) is not getattr(Defence, hook))

    @classmethod
    def weakest_settings(cls, settings: Any) -> Any | None:
        """Return settings with which messages leak to an attacker who knows the defence; None: there are none.

        An audit attacks such messages, too: an attack that fails there cannot cope with the defence's code, and its
        failure on the real messages is no evidence. By default None: then no audit says "no leak found".

        Args:
            settings: the chosen settings, an instance of ``Settings``; the result is never stronger than these.
        """
        return None

    @classmethod
    def disabled_settings(cls, settings: Any) -> Any | None:
        """Return settings with which a defence that changes the network hides nothing; None: there are none.

        An audit attacks messages of the same weights without the defence, too. Where `network` is overridden, such
        messages need the changed network, and so these settings in place of no defence.
        """
        return None

    def network(self, net: Net) -> Net:
        """Return the network that server and all clients build, from the experiment's; by default the same.

        A defence that overrides it is refused beside a method whose local steps follow no common loss of a batch. An
        attack follows it only by an adaptation written for it.
        """
        return net

    def prepare(self, model: nn.Module, rng: torch.Generator) -> None:
        """Set up a client's model for a local step, as by handing it a generator; by default nothing.

        Args:
            model: the method's model on the client; its weights may not be changed.
            rng: generator of the step's batch.
        """
        return

    def check_model(self, model: nn.Module, uploads: Sequence[str]) -> None:
        """Refuse a model for which the defence does not work, before the run; by default none.

        Args:
            model: the method's model, maybe on the meta device.
            uploads: patterns of the shared tensors.

        Raises:
            InputError: naming the missing part.
        """
        return

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        """Refuse data for which the defence does not work, by the shape of one input, before the run; by default none.

        Raises:
            InputError: naming the shape.
        """
        return

    def check_data(self, defended: DefendedData) -> None:
        """Refuse data or batches for which the defence does not work, before the run; by default none.

        Where only the sites have the data, the labels, positions and public examples are empty.

        Raises:
            InputError: naming the setting that does not fit.
        """
        return

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the batch that a local step sees, from raw inputs (B, ...) in [0, 1] and labels (B,)."""
        return x, y

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors:
        """Return the gradients of the shared tensors for a local step, from those of the batch."""
        return gradients

    def step(self, step: LocalStep, rng: torch.Generator) -> Tensors:
        """Return the gradients of the shared tensors for a local step, with sight of the batch and the model.

        A defence overrides this or `gradients`, not both. An attack follows it only by an adaptation written for it.
        """
        return self.gradients(step.gradients, rng)

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Return the update to send, from the change of the shared tensors (in a probe: from their gradient)."""
        return update
