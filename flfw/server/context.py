"""Resources of a server half beside the uploads: the method's model, data of its own, a device."""

from dataclasses import dataclass

import torch
from torch import nn

from flfw.messages.sharing import Sharing
from flfw.nets.training.devices import device_of
from flfw.rng import initialising
from flfw.task.client_plan import PlanContext
from flfw.task.task import Task


@dataclass(frozen=True)
class ServerContext(PlanContext):
    """Resources of one run's server.

    Attributes:
        plan: what each client of the run does.
        device_name: ``cpu`` or ``cuda``, where the server computes what it trains itself.
    """

    device_name: str = "cpu"

    @property
    def device(self) -> torch.device:
        """Device of the server's computations."""
        return device_of(self.device_name == "cuda")

    def model(self) -> nn.Module:
        """Build the model with which every run of the experiment begins, on the server's device."""
        with initialising(self.plan.seed, "model"):
            return self.plan.build_model().to(self.device)

    @property
    def blank(self) -> nn.Module:
        """Model of the method without values: for names, shapes and the types of modules."""
        return self.plan.model

    @property
    def sharing(self) -> Sharing:
        """Tensors that are sent down and up in this run."""
        return self.plan.sharing

    @property
    def task(self) -> Task:
        """Task with its data; the server uses only the part that the split sets aside for it."""
        return self.plan.task.load_at_server(self.plan.task.data.data_root)
