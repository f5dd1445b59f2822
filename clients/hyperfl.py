"""HyperFL's client half: one epoch on the classifier, then E epochs on the hypernetwork and the embedding."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, TypeGuard, final

import torch
from torch import Tensor, nn

from flfw.client.context import ClientContext
from flfw.client.gradient_client import BatchableClient
from flfw.client.phases import Batch, BatchedSteps, Phases, TrainingPhase
from flfw.nets import Tensors
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.training.low_rank import MOST_STEPS, JointLowRankSGD, LowRankSGD
from flfw.nets.training.optimisers import SGD, Optimiser, loss_and_grad

_STEP_B = "hypernetwork"  # name of its shuffles
_MOST_MOMENTUM = 0.95  # above it the factors hold so many steps that dense steps are faster


@final
class HyperFLClient(BatchableClient):
    """Client with steps A and B of the paper's algorithm 1.

    Step B follows the hypernetwork's gradient in factors (`flfw.nets.training.low_rank`), unless the settings say
    ``dense``. It is dense as well where factors do not work: for Adam, for a momentum above 0.95, and under a defence
    that acts on the gradients of local steps, because that defence needs the whole gradient.

    Clients that train together do step A one after the other, and step B by `JointHypernetworks`.
    """

    def __init__(self, ctx: ClientContext) -> None:
        super().__init__(ctx)
        self._last = torch.zeros_like(self._theta()) if ctx.settings.keep_theta else None  # zeros: no last round yet

    def private_state(self) -> Tensors:
        """Return the tensors kept between rounds; with ``keep_theta`` also theta after this client's last round."""
        return super().private_state() | ({} if self._last is None else {"last_theta": self._last})

    def training_phases(self) -> Phases[dict[str, float]]:
        """Run both steps; return the mean losses of their last epochs, and measures of the hypernetwork.

        The measures are the share of hidden units that are dead afterwards, and the change of theta over its length:
        in this training, and with ``keep_theta`` also since the end of this client's last one, if there was one.
        """
        before = self._theta()
        classifier_loss = self.train_classifier()
        loss = yield TrainingPhase(self.train_hypernetwork, joint_hypernetworks, self.ctx.local.local_epochs, _STEP_B)
        with torch.no_grad():
            dead = (self.net.hypernet.hidden_units(self.net.embedding) == 0).float().mean()
        theta = self._theta()
        measures = {"dead_hidden_units": float(dead), "theta_change": float((theta - before).norm() / before.norm())}
        if self._last is not None:
            if self._last.any():  # not in its first round
                last = self._last.to(theta.device)
                measures["theta_change_between_rounds"] = float((theta - last).norm() / last.norm())
            self._last.copy_(theta)
        return {"loss": loss, "classifier_loss": classifier_loss, **measures}

    def train_classifier(self) -> float:
        """Run step A; return the mean loss of the last epoch."""
        settings = self.ctx.settings
        with torch.no_grad():
            theta = self.net.extractor_weights()  # fixed during step A, so generated once

        def follow(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
            with torch.no_grad():
                features = self.net.features(self.ctx.task.inputs.normalise(x), theta)
            return loss_and_grad(self.penalised(self.net.classifier(features), y), parameters)

        return self.train_epochs(
            {f"classifier.{name}": p for name, p in self.net.classifier.named_parameters()},
            settings.classifier_epochs,
            settings.optimiser_at(settings.classifier_lr),
            purpose="classifier",
            follow=follow,
        )

    def train_hypernetwork(self) -> float:
        """Run step B; return the mean loss of the last epoch."""
        epochs, sgd, purpose = self.ctx.local.local_epochs, self.optimiser(), _STEP_B
        if not self._low_rank(sgd):
            return self.train_epochs(self.trainable_parameters(), epochs, sgd, purpose=purpose, clips=self.clips())
        bound = self.ctx.settings.clip
        optimiser = LowRankSGD(self.net, sgd, clip=bound, embedding_clip=bound)

        mean = self.train_epochs(optimiser.generated, epochs, optimiser, purpose=purpose, follow=self.theta_grad)
        optimiser.write()
        return mean

    def theta_grad(self, generated: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
        """Compute the mean loss of a batch, and its gradient in the generated tensors."""
        features = self.net.features(self.ctx.task.inputs.normalise(x), dict(generated))
        return loss_and_grad(self.penalised(self.net.classifier(features), y), generated)

    @classmethod
    def not_batchable_reason(cls, model: nn.Module, settings: Any) -> str:
        """Name the reason against joint steps on hypernetworks; see the base."""
        if reason := super().not_batchable_reason(model, settings):
            return reason
        if settings.step == "dense" or settings.optimiser == "adam" or settings.momentum > _MOST_MOMENTUM:
            return f"whose step B is in no factors (step=dense, optimiser=adam or momentum > {_MOST_MOMENTUM})"
        return ""

    def trainable_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of step B: the hypernetwork and the embedding."""
        return {name: p for name, p in self.net.named_parameters() if not name.startswith("classifier.")}

    def clips(self) -> dict[str, float]:
        """Return the bounds of the hypernetwork's gradient and of the embedding's."""
        return {"hypernet.*": self.ctx.settings.clip, "embedding": self.ctx.settings.clip}

    def _low_rank(self, sgd: Optimiser) -> TypeGuard[SGD]:
        defence = self.ctx.defence
        hooked = defence is not None and bool(defence.active_hooks & {"gradients", "step"})
        wanted = self.ctx.settings.step == "low_rank" and not hooked
        return wanted and isinstance(sgd, SGD) and sgd.momentum <= _MOST_MOMENTUM

    @torch.no_grad()
    def _theta(self) -> Tensor:
        """Join all weights that the hypernetwork now generates into one vector."""
        return torch.cat([value.flatten() for value in self.net.extractor_weights().values()])

    def accuracy(self, part: str = "test") -> float:
        """Return the share of examples that the model classifies correctly; the extractor is generated only once."""
        with self.net.generated_once():
            return super().accuracy(part)

    @property
    def net(self) -> GeneratedNet:
        """Model, which the method builds as a `GeneratedNet`."""
        assert isinstance(self.model, GeneratedNet)
        return self.model


@final
class JointHypernetworks(BatchedSteps):
    """Step B of some clients, whose hypernetworks start from the same numbers.

    Args:
        workers: the clients.
        steps: largest number of steps of one of them.
    """

    def __init__(self, workers: Sequence[HyperFLClient], steps: int) -> None:
        bound = workers[0].ctx.settings.clip
        sgds = [sgd for worker in workers if isinstance(sgd := worker.optimiser(), SGD)]
        self._workers = workers
        self._steps = JointLowRankSGD([one.net for one in workers], sgds, steps, clip=bound, embedding_clip=bound)

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Do the next step of as many first clients as there are batches; return their mean losses."""
        each = zip(self._workers, self._steps.generated, batches, strict=False)
        losses, gradients = zip(
            *[worker.theta_grad(generated, *batch) for worker, generated, batch in each], strict=True
        )
        self._steps.step(gradients)
        return torch.tensor(losses, dtype=torch.float64)

    def write(self) -> None:
        """Bring the clients' own hypernetworks up to their last steps."""
        self._steps.write()


def joint_hypernetworks(workers: Sequence[HyperFLClient]) -> BatchedSteps | None:
    """Return joint steps, unless there are so many that one client after the other is faster."""
    first = workers[0].ctx.local
    longest = max(len(worker.indices("train")) for worker in workers)
    maximum = first.local_epochs * ceil(longest / first.batch_size)
    return JointHypernetworks(workers, maximum) if maximum <= MOST_STEPS else None
