"""Resources of a server half beside the uploads: the method's model, data of its own, a device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from flfw.experiment import Experiment
from flfw.messages.sharing import Sharing
from flfw.method import Method
from flfw.nets import Net
from flfw.pipeline import build_net
from flfw.rng import initialising
from flfw.task import Task, input_space
from flfw.training.devices import device_of

Progress = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Progress display for a title and a number of steps; the context's function is called after each step."""


def _silent(title: str, steps: int) -> AbstractContextManager[Callable[[], None]]:
    return nullcontext(lambda: None)


@dataclass(frozen=True)
class ServerContext:
    """Resources of one run's server.

    Attributes:
        experiment: the resolved experiment.
        method: the method's declaration.
        settings: the method's hyper-parameters.
        progress: display for long computations.
    """

    experiment: Experiment
    method: type[Method]
    settings: Any
    progress: Progress = field(default=_silent)

    @property
    def device(self) -> torch.device:
        """Device of the server's computations."""
        return device_of(self.experiment.server_device == "cuda")

    def model(self) -> nn.Module:
        """Build the model with which every run of the experiment begins, on the server's device."""
        with initialising(self.experiment.seed, "model"):
            return self.method.build_model(self._net(), self.settings).to(self.device)

    @cached_property
    def blank(self) -> nn.Module:
        """Model of the method without numbers: for names, shapes and the types of modules."""
        with torch.device("meta"):
            return self.method.build_model(self._net(), self.settings)

    @cached_property
    def sharing(self) -> Sharing:
        """Tensors that are sent down and up in this run."""
        return self.method.shared(self.blank, self.settings)

    @property
    def task(self) -> Task:
        """Task with its data; the server uses only the part that the split sets aside for it."""
        return Task.at_server(self.experiment, self.experiment.data_root)

    def _net(self) -> Net:
        return build_net(self.experiment, *input_space(self.experiment))
