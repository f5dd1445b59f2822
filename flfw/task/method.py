"""Declaration of a method: the tensors it shares, the training of its clients, its privacy claims.

The server half (`flfw.server.strategy`) inherits from it. Clients, audits and estimates read only the declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import nn

from flfw.files.earlier_names import EarlierHooks
from flfw.files.tensor_names import matches
from flfw.inversion.client_models.batch_statistics import normalising_by_batch
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.messages.factored_upload import FactoredUpload
from flfw.messages.sharing import Sharing
from flfw.nets import Net, Tensors, Trained
from flfw.nets.training.local_steps import LocalSteps
from flfw.nets.tuned import shared_names
from flfw.privacy.claims import Published
from flfw.privacy.mechanism import ClientSchedule, Mechanism

if TYPE_CHECKING:
    from flfw.task.task import Task
from flfw.plugins import NoSettings


class Method(EarlierHooks):
    """Declaration of a method: subclasses set the class attributes, and override functions that do not fit."""

    EARLIER_HOOKS: ClassVar[Mapping[str, str]] = {
        "as_published": "published_accounting",
        "bare": "disabled_settings",
        "mildest": "weakest_settings",
        "rounds_apart": "min_separation",
        "ask": "create_message",
        "at": "ctx",
        "broadcasted": "last_broadcast",
        "combined": "aggregate_round",
        "expected": "expected_cohort_size",
        "last_participation": "state_versions",
        "last_round": "state_versions",
        "message_for": "arrays_for",
        "noted": "round_metrics",
        "without_updates": "aggregate_empty",
    }

    Settings: ClassVar[type] = NoSettings
    downloads: ClassVar[tuple[str, ...]] = ("*",)
    """Patterns of the tensors that the server sends. All other tensors are private and kept between rounds."""
    uploads: ClassVar[tuple[str, ...]] = ("*",)
    """Patterns of the tensors that a client may send; a subset of the downloads."""
    net: ClassVar[str] = ""
    """Network for ``auto``; empty: the network that the papers use on the data set."""
    needs_classes: ClassVar[bool] = False
    """Whether its server works with scores of classes, so that a regression is refused."""
    train: ClassVar[Trained] = "full"
    """Part of a pretrained network for ``train=auto``."""
    variants: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Settings of ``authors`` and ``paper`` where they differ from the defaults, as ``--set`` takes them."""
    client: ClassVar[str] = ""
    """Name of the client half; empty: the one with the method's name, else `sgd`."""
    averaged: ClassVar[bool] = False
    """Whether the server does nothing with the uploads but take their mean, so that a robust mean can replace it."""
    reduces: ClassVar[Literal["mean", ""]] = ""
    """What one sum may replace: ``mean``: the server hands all updates to `weighted_mean` as they are, and neither
    looks at one nor refuses its numbers; so an engine may send the sum of some. Empty: nothing. It holds for the
    `aggregate` of this class, not for a subclass's; a class that overrides `check_metrics` gets single updates."""
    plain_steps: ClassVar[bool] = False
    """Whether local training is steps of the settings' optimiser on the loss alone, which an attacker can simulate."""
    needed_metric: ClassVar[str] = ""
    """Metric of each client without which the server cannot go on, so that ``metrics=none`` is refused; empty: none."""

    @classmethod
    def build_model(cls, net: Net, settings: Any) -> nn.Module:
        """Build the model that holds the tensors of `downloads` and `uploads`; by default the network itself."""
        return net

    @classmethod
    def shared(cls, model: nn.Module, settings: Any) -> Sharing:
        """Return the patterns of a model's downloaded and uploaded tensors: by default `downloads` and `uploads`.

        Running statistics of a pretrained network's adapters stay with each client: then names replace the patterns.
        A method overrides this if its choice depends on the modules' types or on a setting. The two attributes are
        then bounds: they must match at least the names chosen here. The template of a site's policy is made
        from them. Client, server, audits and estimates use the result of this function.

        Args:
            model: the model from `build_model`; it may be without numbers, on the meta device.
            settings: the method's hyper-parameters.
        """
        if (names := shared_names(model)) is None:
            return Sharing(cls.downloads, cls.uploads)
        down, up = (tuple(n for n in names if matches(n, patterns)) for patterns in (cls.downloads, cls.uploads))
        return Sharing(down, up)

    @classmethod
    def victim_model(cls, model: nn.Module, received: Tensors, inputs: Any, settings: Any) -> VictimModel:
        """Build the model of a client's gradient for an attacker who knows ``received``; see `VictimModel`."""
        seen = model if shared_names(model) is None else normalising_by_batch(model)  # as adapters do in training
        return PlainVictim(seen, known=received, shared=cls.descended(model, settings), inputs=inputs)

    @classmethod
    def descended(cls, model: nn.Module, settings: Any) -> tuple[str, ...]:
        """List patterns of the uploads that a local step changes by the loss's gradient, which a probe sends."""
        return cls.shared(model, settings).uploads

    @classmethod
    def common_start(cls, settings: Any) -> bool:
        """Return whether all clients' private tensors start from the same numbers, which the server knows."""
        return True

    @classmethod
    def local_steps(cls, settings: Any, lr: float, steps: int) -> LocalSteps | None:
        """Describe the local steps that an attacker can simulate; None: training is more than steps on one loss."""
        return settings.steps_at(lr, steps) if cls.plain_steps else None

    @classmethod
    def factored_upload(cls, settings: Any) -> FactoredUpload | None:
        """Return the settings of a factored upload; None: no factors. All clients must receive the same broadcast."""
        return None

    @classmethod
    def kept_by_server(cls, model: nn.Module, settings: Any, clients: int) -> int:
        """Estimate how many numbers the server holds at once beside the model, if it needs much memory; default 0."""
        return 0

    @classmethod
    def check_model(cls, model: nn.Module, settings: Any) -> None:
        """Refuse a model that the method cannot train; by default none. The model may be without numbers.

        Raises:
            InputError: names the layer.
        """

    @classmethod
    def check_task(cls, task: Task, settings: Any) -> None:
        """Refuse data that the server, or the clients together, cannot use; by default none.

        Raises:
            InputError: names the missing data.
        """

    @classmethod
    def check_client(cls, task: Task, partition: int, settings: Any) -> None:
        """Refuse a client whose data the method cannot use; by default none. The client makes this check, too.

        Raises:
            InputError: names the client.
        """

    @classmethod
    def min_separation(cls, settings: Any) -> int:
        """Return b >= 1: each client takes part in one of b rounds at most, whose turn it is; by default 1, in all."""
        return 1

    @classmethod
    def depends_on_rounds(cls, settings: Any) -> bool:
        """Return whether a round depends on how many there are; then a finished run cannot go on with more."""
        return False

    @classmethod
    def bounds_updates(cls, settings: Any) -> bool:
        """Return whether `aggregate` itself bounds the change of each update; then no other update decides on it.

        Elsewhere the server of a federation refuses a change far larger than all others; see `flfw.server.robust`.
        """
        return False

    @classmethod
    def mechanism(cls, settings: Any, schedule: ClientSchedule) -> Mechanism | str | None:
        """Describe the mechanism that protects one client's data in a whole run.

        Args:
            settings: the method's hyper-parameters.
            schedule: of the client; its numbers alone decide the result.

        Returns:
            A sentence: why nothing can be claimed with these settings. None: the method claims nothing.
        """
        return None

    @classmethod
    def disabled_settings(cls, settings: Any) -> Any | None:
        """Return settings with which `mechanism` changes nothing that is sent; None: there are none.

        By default the same settings for a method without a mechanism, else None.
        """
        return settings if cls.mechanism.__func__ is Method.mechanism.__func__ else None  # type: ignore[attr-defined]

    @classmethod
    def weakest_settings(cls, settings: Any) -> Any | None:
        """Return settings with which messages are known to leak to an attacker who knows it; None: there are none.

        By default the same settings for a method without a mechanism, else None; see
        `flfw.task.defence.Defence.weakest_settings`.
        """
        return cls.disabled_settings(settings)

    @classmethod
    def published_accounting(cls, settings: Any, schedule: ClientSchedule) -> Published | None:
        """Return the privacy accounting of the method's paper; None: the paper has none."""
        return None
