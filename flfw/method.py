"""What a method declares of itself: what it shares, what its clients train, what it claims.

The server half (`flfw.server.strategy`) inherits from it; clients, audits and estimates read the declaration alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from flfw.messages.factored_upload import FactoredUpload
from flfw.nets import Net, Tensors
from flfw.privacy.course import Course
from flfw.privacy.mechanism import Mechanism
from flfw.privacy.published import Published
from flfw.victims.local_steps import LocalSteps
from flfw.victims.victim import PlainVictim, VictimModel

if TYPE_CHECKING:
    from flfw.task import Task
from flfw.plugins import NoSettings


class Method:
    """A declaration; methods set the class attributes, and override what is not so by default."""

    Settings: ClassVar[type] = NoSettings
    downloads: ClassVar[tuple[str, ...]] = ("*",)
    """Patterns of the tensors the server sends. All others are the client's own and are kept between rounds."""
    uploads: ClassVar[tuple[str, ...]] = ("*",)
    """Patterns of the tensors a client may send."""
    net: ClassVar[str] = ""
    """The network that ``auto`` stands for; empty: the one the papers use on the data set."""
    client: ClassVar[str] = ""
    """The client half, if its name is neither the method's nor `sgd`."""

    @classmethod
    def build_model(cls, net: Net, settings: Any) -> nn.Module:
        """The model whose named tensors `downloads` and `uploads` speak of; by default the network itself."""
        return net

    @classmethod
    def victim_model(cls, model: nn.Module, received: Tensors, inputs: Any) -> VictimModel:
        """What an attacker who holds ``received`` can compute of a client's gradient; see `VictimModel`."""
        return PlainVictim(model, known=received, shared=cls.descended(), inputs=inputs)

    @classmethod
    def descended(cls) -> tuple[str, ...]:
        """Patterns of the uploaded tensors whose gradient a local step on the loss follows, and a probe sends."""
        return cls.uploads

    @classmethod
    def common_start(cls, settings: Any) -> bool:
        """Whether what clients keep to themselves starts from the same numbers for all, which the server knows."""
        return True

    @classmethod
    def local_steps(cls, settings: Any, lr: float, steps: int) -> LocalSteps | None:
        """A client's local training as an attacker can write it out; None: it holds more than steps on one loss."""
        return None

    @classmethod
    def factored_upload(cls, settings: Any) -> FactoredUpload | None:
        """How the change of some uploads travels as factors; None: whole. It takes one broadcast for all clients."""
        return None

    @classmethod
    def check_model(cls, model: nn.Module, settings: Any) -> None:
        """Refuse a model that the method cannot train, which may be without numbers; by default none is.

        Raises:
            BadInput: naming the layer.
        """

    @classmethod
    def check_task(cls, task: Task, settings: Any) -> None:
        """Refuse data that the server, or the clients together, cannot use; by default none are.

        Raises:
            BadInput: saying what is missing.
        """

    @classmethod
    def check_client(cls, task: Task, partition: int, settings: Any) -> None:
        """Refuse a client whose own data the method cannot use; asked on the client, too. By default none is.

        Raises:
            BadInput: naming the client.
        """

    @classmethod
    def mechanism(cls, settings: Any, course: Course) -> Mechanism | None:
        """What a whole run does to the data for privacy, as the server meets it; None: nothing is claimed."""
        return None

    @classmethod
    def as_published(cls, settings: Any, course: Course) -> Published | None:
        """How the method's paper counts, where it does."""
        return None
