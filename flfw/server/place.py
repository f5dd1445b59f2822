"""The server's own means beside the uploads: the method's model, data, a device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from flfw import nets
from flfw.experiment import Experiment
from flfw.messages.sharing import Sharing
from flfw.method import Method
from flfw.rng import initialising
from flfw.task import Task, input_space

Progress = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Shows the progress of a title's so many steps: what is entered is called after each."""


def _silent(title: str, steps: int) -> AbstractContextManager[Callable[[], None]]:
    return nullcontext(lambda: None)


@dataclass(frozen=True)
class ServerPlace:
    """The place where one run's server works.

    Attributes:
        experiment: resolved.
        method: the method's declaration.
        settings: the method's hyper-parameters.
        progress: shows how far a long computation is.
    """

    experiment: Experiment
    method: type[Method]
    settings: Any
    progress: Progress = field(default=_silent)

    @property
    def device(self) -> torch.device:
        """The device on which the server computes."""
        return torch.device(self.experiment.server_device)

    def model(self) -> nn.Module:
        """Build the method's model as every run of the experiment begins with it, on the server's device."""
        with initialising(self.experiment.seed, "model"):
            return self.method.build_model(self._net(), self.settings).to(self.device)

    @cached_property
    def blank(self) -> nn.Module:
        """The method's model without numbers: for names, shapes and the types of modules."""
        with torch.device("meta"):
            return self.method.build_model(self._net(), self.settings)

    @cached_property
    def sharing(self) -> Sharing:
        """The tensors that cross in this run."""
        return self.method.shared(self.blank, self.settings)

    @property
    def task(self) -> Task:
        """The data; the server uses the part that the split sets aside for it."""
        return Task.at_server(self.experiment, self.experiment.data_root)

    def _net(self) -> nets.Net:
        return nets.build(self.experiment.net, *input_space(self.experiment))
