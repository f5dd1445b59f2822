"""The declaration of a method: the tensors it shares, the training of its clients, its claims.

The server half (`flfw.server.strategy`) inherits from it; clients, audits and estimates read the declaration alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from flfw.messages.factored_upload import FactoredUpload
from flfw.messages.sharing import Sharing
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
    """A declaration; methods set the class attributes, and override those of the functions that do not fit."""

    Settings: ClassVar[type] = NoSettings
    downloads: ClassVar[tuple[str, ...]] = ("*",)
    """Patterns of the tensors the server sends. All others are the client's own and are kept between rounds."""
    uploads: ClassVar[tuple[str, ...]] = ("*",)
    """Patterns of the tensors a client may send, all of them among the downloads."""
    net: ClassVar[str] = ""
    """The network that ``auto`` stands for; empty: the one the papers use on the data set."""
    client: ClassVar[str] = ""
    """The client half, if its name is neither the method's nor `sgd`."""

    @classmethod
    def build_model(cls, net: Net, settings: Any) -> nn.Module:
        """Build the model whose named tensors `downloads` and `uploads` speak of; by default the network itself."""
        return net

    @classmethod
    def shared(cls, model: nn.Module, settings: Any) -> Sharing:
        """Say which of a model's tensors cross: by default those whose names match `downloads` and `uploads`.

        A method whose choice no pattern of names can express (by the modules' types, by a setting) overrides this. The
        two attributes then are bounds: they hold at least the names chosen here, and are all that is known where there
        is no model, as in a site's policy. Client, server, audits and estimates go by the answer.

        Args:
            model: from `build_model`; perhaps without numbers, on the meta device.
            settings: the method's hyper-parameters.
        """
        return Sharing(cls.downloads, cls.uploads)

    @classmethod
    def victim_model(cls, model: nn.Module, received: Tensors, inputs: Any, settings: Any) -> VictimModel:
        """Build the victim as an attacker with the ``received`` tensors can compute it; see `VictimModel`."""
        return PlainVictim(model, known=received, shared=cls.descended(model, settings), inputs=inputs)

    @classmethod
    def descended(cls, model: nn.Module, settings: Any) -> tuple[str, ...]:
        """List patterns of the uploads whose gradient a local step on the loss follows, and a probe sends."""
        return cls.shared(model, settings).uploads

    @classmethod
    def common_start(cls, settings: Any) -> bool:
        """Say whether the clients' own tensors start from the same numbers for all, which the server knows."""
        return True

    @classmethod
    def local_steps(cls, settings: Any, lr: float, steps: int) -> LocalSteps | None:
        """Describe local training as an attacker can write it out; None: it holds more than steps on one loss."""
        return None

    @classmethod
    def factored_upload(cls, settings: Any) -> FactoredUpload | None:
        """Say how the change of some uploads travels as factors; None: whole. It takes one broadcast for all."""
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
        """Describe the protection of the data in a whole run, as the server meets it; None: nothing is claimed."""
        return None

    @classmethod
    def as_published(cls, settings: Any, course: Course) -> Published | None:
        """Count as the method's paper does, where it counts."""
        return None
