"""The client half of a method: a NumPyClient that works on named tensors, keeps private ones, and checks what it sends.

A client half subclasses `FederatedClient` and writes `train`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw.client.store import ClientStore
from flfw.client.workplace import Workplace
from flfw.defence import refuse_beside_factors
from flfw.messages.factored_upload import expand
from flfw.messages.sharing import check_upload, matches
from flfw.nets.net import Tensors
from flfw.rng import torch_generator
from flfw.training.optimisers import LastingTraining, Optimiser, Remembering, along, clip_norm

_EVALUATION_BATCH = 500

NDArrays = list[np.ndarray]
Follow: TypeAlias = Callable[[Mapping[str, Tensor], Tensor, Tensor], tuple[float, Tensors]]


class FederatedClient(NumPyClient, ABC):
    """Base of the client halves.

    Args:
        at: the workplace.

    Attributes:
        model: the method's model; its initial values are the same for all clients and come from the seed.
        received: what was received in this round, by name; not to be written into.
        device: where it is trained: the GPU of which clients are given a share, else the CPU.
    """

    def __init__(self, at: Workplace) -> None:
        self.at = at
        self.model: nn.Module = at.fresh_model()
        names = list(self.model.state_dict())
        self.download_names = [name for name in names if matches(name, at.method.downloads)]
        self.private_names = [name for name in names if name not in self.download_names]
        self._lasting = at.settings.lasting_at(at.experiment.lr) if isinstance(at.settings, LastingTraining) else None
        self.received: Mapping[str, np.ndarray] = {}
        self._form = at.method.factored_upload(at.settings)
        if self._form:
            refuse_beside_factors(at.experiment.defence, at.defence)
        self.device = torch.device("cuda" if at.experiment.gpus_per_client and torch.cuda.is_available() else "cpu")

    @abstractmethod
    def train(self) -> dict[str, float]:
        """Train ``self.model`` in place for one round; returns metrics, at least ``loss``."""

    def personalise(self) -> dict[str, float]:
        """What of `train` an evaluation needs, of which nothing is kept: by default all."""
        return self.train()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean loss of raw inputs (B, ...) in [0, 1] with labels (B,)."""
        return cross_entropy(self.model(self.at.task.inputs.normalise(x)), y)

    def local_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What local steps minimise: by default `loss`, without a term that the method adds."""
        return self.loss(x, y)

    # What a local step of the method changes, and how; `train` and the probes of several steps go by it.

    def moving(self) -> dict[str, Tensor]:
        """The parameters that local training changes, by name; of a method with several phases, in the one probed."""
        return dict(self.model.named_parameters())

    def optimiser(self) -> Optimiser:
        """What a round begins with: a fresh one, unless the settings say that it lasts."""
        return self._lasting or self.at.settings.optimiser_at(self.at.experiment.lr)

    def lasting(self) -> Mapping[str, tuple[Remembering, Mapping[str, Tensor]]]:
        """Optimisers that go on from round to round, each with what it moves, by a name for what it remembers."""
        return {"optimiser": (self._lasting, self.moving())} if self._lasting else {}

    def clips(self) -> dict[str, float]:
        """For each name pattern the bound of the joint L2 norm of a step's gradients that it matches."""
        return {}

    def outgoing(self) -> Tensors:
        """What is sent after training: by default the tensors that the method uploads, by name."""
        return {n: v.detach() for n, v in self.model.state_dict().items() if matches(n, self.at.method.uploads)}

    # The NumPyClient contract: arrays by position, in the order of `download_names` and of `outgoing`.

    def get_parameters(self, config: dict[str, Any]) -> NDArrays:
        """The tensors the server would send, as this client has them."""
        state = self.model.state_dict()
        return [state[name].cpu().numpy() for name in self.download_names]

    def fit(self, parameters: NDArrays, config: dict[str, Any]) -> tuple[NDArrays, int, dict[str, Any]]:
        """One round: install, evaluate, train, evaluate, keep what is private, send what is shared.

        Raises:
            SharingViolation: `outgoing` holds a tensor the method does not upload.
        """
        sent, metrics = self.fit_named(self._named(parameters), int(config["version"]))
        return [value.numpy() for value in sent.values()], metrics["num-examples"], metrics

    def evaluate(self, parameters: NDArrays, config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """The client's accuracy on its own test data; see `evaluate_named`."""
        metrics = self.evaluate_named(self._named(parameters), int(config["version"]))
        return metrics["loss"], metrics["num-examples"], metrics

    # The same on named tensors, which is how the app calls.

    def fit_named(self, received: Mapping[str, np.ndarray], version: int) -> tuple[Tensors, dict[str, Any]]:
        """What is sent, and metrics.

        Args:
            received: the broadcast tensors, as arrays that may be read-only.
            version: the round whose private state to go on from; 0: none yet.
        """
        started = time.monotonic()
        metrics = self._between_evaluations(self.train, received, version)
        self._keep_private(version)
        sent = self._leaving()
        return sent, {**metrics, "num-examples": len(self.own("train")), "seconds": time.monotonic() - started}

    def evaluate_named(self, received: Mapping[str, np.ndarray], version: int) -> dict[str, Any]:
        """Accuracy as received and after one more local training, which is not kept."""
        metrics = self._between_evaluations(self.personalise, received, version)
        return {**metrics, "num-examples": len(self.own("test"))}

    def install(self, received: Mapping[str, np.ndarray], version: int) -> None:
        """Put the received tensors, and the private ones of an earlier round if there was one, into the model."""
        self.received = received
        state = self.model.state_dict()
        for name, value in received.items():
            state[name].numpy()[...] = value
        self.model.to(self.device)
        own = self.private()
        if version and own:
            for name, value in self._private_store().load(version, own).items():
                own[name].copy_(value)

    def private(self) -> Tensors:
        """All that is kept between rounds, by name and live: of the model what is not broadcast, and of optimisers."""
        state = self.model.state_dict()
        own = {name: state[name] for name in self.private_names}
        for name, (optimiser, moved) in self.lasting().items():
            own |= {f"{name}/{key}": value for key, value in optimiser.memory(moved).items()}
        return own

    def gradient(self, x: Tensor, y: Tensor) -> Tensors:
        """What a probe of one local step sends: the defended gradient of the loss for the tensors uploaded.

        Args:
            x: raw inputs (B, ...) in [0, 1].
            y: labels (B,).
        """
        rng = self.generator("probe")
        found = self.local_gradient(x, y, rng)
        if self.at.defence:
            found = self.at.defence.update(found, rng)
        check_upload(found, self.at.method.uploads, self.at.experiment.method, self.at.partition)
        return found

    def local_gradient(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """What a local step follows of the tensors uploaded: their defended gradient, before the update is defended."""
        if self.at.defence:
            x, y = self.at.defence.batch(x, y, rng)
        moving = {n: p for n, p in self.model.named_parameters() if matches(n, self.at.method.descended())}
        loss = self.loss(x.to(self.device), y.to(self.device))
        found = dict(zip(moving, (g.cpu() for g in torch.autograd.grad(loss, list(moving.values()))), strict=True))
        return self.at.defence.gradients(found, rng) if self.at.defence else found

    def observed(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """What somebody on the client reads of one example in local training: by default what a step on it follows."""
        return self.local_gradient(x, y, rng)

    def stepped(self, x: Tensor, y: Tensor, steps: int) -> Tensors:
        """What a probe of several local steps sends: the uploaded tensors after them, as the server has training's own.

        Args:
            x: raw inputs (B, ...) in [0, 1], all of them in every step.
            y: labels (B,).
            steps: how many.
        """

        def again(rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
            yield self.at.defence.batch(x, y, rng) if self.at.defence else (x, y)

        self.descend(self.moving(), steps, self.optimiser(), purpose="probe", clips=self.clips(), batches=again)
        return expand(self._leaving(), self.received)

    def descend(
        self,
        parameters: Mapping[str, Tensor],
        epochs: int,
        optimiser: Optimiser,
        *,
        purpose: str = "batches",
        follow: Follow | None = None,
        clips: dict[str, float] | None = None,
        batches: Callable[[torch.Generator], Iterator[tuple[Tensor, Tensor]]] | None = None,
    ) -> float:
        """Mini-batch descent on some of the model's parameters; the others stay as they are.

        Args:
            parameters: what to change, by name.
            epochs: passes over the client's training data, reshuffled each time.
            optimiser: makes the steps; a fresh one remembers nothing of earlier calls.
            purpose: names the generator of the shuffles, so that two calls in one round differ.
            follow: the mean loss of a batch of raw inputs and labels, and what a step follows; default `follow`.
            clips: see `clips`.
            batches: of one epoch; default the client's own data.

        Returns:
            The mean loss of the last epoch; 0 where none of its batches held an example.
        """
        rng, values = self.generator(purpose), []
        for _ in range(epochs):
            values = []
            for x, y in (batches or self.batches)(rng):
                value, found = (follow or self.follow)(parameters, x, y)
                found = self._defended_gradients(found, rng)
                for pattern, bound in (clips or {}).items():
                    clip_norm({n: g for n, g in found.items() if matches(n, [pattern])}, bound)
                optimiser.step(parameters, found)
                values += [value] * bool(len(y))
                del found  # before the next ones are computed: a hypernetwork's are 60 MB
        return sum(values) / max(1, len(values))

    def follow(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
        """What a local step of the method follows: the mean loss of a batch and, by default, its gradient."""
        return along(self.local_loss(x, y), parameters)

    def accuracy(self, part: str = "test") -> float:
        """Share of the client's own ``test`` or ``validation`` examples that the model gets right."""
        self.model.eval()
        own, right = self.own(part), 0
        with torch.no_grad():
            for start in range(0, len(own), _EVALUATION_BATCH):
                x, y = self.examples("test", own[start : start + _EVALUATION_BATCH])
                right += int((self.model(self.at.task.inputs.normalise(x)).argmax(1) == y).sum())
        self.model.train()
        return right / len(own)

    def generator(self, purpose: str) -> torch.Generator:
        """A generator of this client for one purpose in this round."""
        return torch_generator(self.at.experiment.seed, purpose, self.at.round, self.at.partition, *self.at.probe)

    def _between_evaluations(
        self, train: Callable[[], dict[str, float]], received: Mapping[str, np.ndarray], version: int
    ) -> dict[str, Any]:
        self.install(received, version)
        before = self.accuracy()
        metrics = train()
        found = {"acc_global": before, "acc_local": self.accuracy()}
        if len(self.own("validation")):
            found["acc_validation"] = self.accuracy("validation")
        return {**found, **metrics}

    def _named(self, parameters: NDArrays) -> dict[str, np.ndarray]:
        return dict(zip(self.download_names, parameters, strict=True))

    def own(self, part: str) -> np.ndarray:
        """The client's own ``train``, ``test`` or ``validation`` examples, as indices into the data set."""
        return getattr(self.at.task.split, part)[self.at.partition]

    def batches(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over the client's training data, in shuffled order."""
        own = self.own("train")
        order = torch.randperm(len(own), generator=rng).numpy()
        for start in range(0, len(own), self.at.experiment.batch_size):
            x, y = self.examples("train", own[order[start : start + self.at.experiment.batch_size]], vary=rng)
            yield self.at.defence.batch(x, y, rng) if self.at.defence else (x, y)

    def examples(self, part: str, indices: np.ndarray, vary: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """See `flfw.task.Task.examples`; on the client's device."""
        x, y = self.at.task.examples(part, indices, vary)
        return x.to(self.device), y.to(self.device)

    def _defended_gradients(self, found: Tensors, rng: torch.Generator) -> Tensors:
        if self.at.defence is None:
            return found
        leaving = {n: g for n, g in found.items() if matches(n, self.at.method.uploads)}
        return {**found, **self.at.defence.gradients(leaving, rng)}

    def _leaving(self) -> Tensors:
        """What leaves after local training: defended, checked, and in the form in which the method sends it."""
        sent = self._defended({name: value.cpu() for name, value in self.outgoing().items()})
        check_upload(sent, self.at.method.uploads, self.at.experiment.method, self.at.partition)
        return self._form.compress(sent, self.received) if self._form else sent

    def _defended(self, sent: Tensors) -> Tensors:
        """Let the defence change the change of what is sent; tensors that were not received have none."""
        if self.at.defence is None:
            return sent
        before = {n: torch.tensor(self.received[n]) for n in sent if n in self.received}
        change = {n: sent[n] - value for n, value in before.items() if value.is_floating_point()}
        change = self.at.defence.update(change, self.generator("defence"))
        return {n: before[n] + change[n] if n in change else v for n, v in sent.items()}

    def _keep_private(self, version: int) -> None:
        if own := self.private():
            self._private_store().save(self.at.round, own, after=version)

    def _private_store(self) -> ClientStore:
        if self.at.store is None:
            raise RuntimeError(
                f"Expected a state folder for the private tensors of {self.at.experiment.method}, got none; set "
                "state in the node config or FLFW_STATE."
            )
        return self.at.store
