"""Client half of a method: a NumPyClient that works on named tensors, keeps private ones, and answers probes.

A client half subclasses `FederatedClient` and writes `train`, or `flfw.client.gradient_client.BatchableClient` and
writes `training_phases`. Local steps are in `flfw.client.local_trainer`. The answers to probes, and to an observer on
the client's machine, change no state of the client.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import Tensor, nn

from flfw.client.context import ClientContext
from flfw.client.local_trainer import LocalTrainer
from flfw.client.phases import Phases, run_phases
from flfw.client.store import ClientStore
from flfw.files.tensor_names import matches
from flfw.messages.factored_upload import expand
from flfw.messages.sharing import MessageValidator
from flfw.messages.wire import forms
from flfw.nets.net import Tensors
from flfw.task.pipeline import refuse_beside_factors

NDArrays = list[np.ndarray]
IN_THEIR_OWN_WAY = "whose clients take local steps in a way of their own"
"""Reason against joint steps of clients that do not opt in."""


class ProbeResponder(LocalTrainer, ABC):
    """Local descent of a client with answers to probes; base of `FederatedClient`.

    Args:
        ctx: the context.

    Attributes:
        received: the tensors received in this round, by name; read-only.
    """

    def __init__(self, ctx: ClientContext) -> None:
        super().__init__(ctx)
        self.received: Mapping[str, np.ndarray] = {}

    @abstractmethod
    def build_upload(self) -> Tensors:
        """Build the upload of a round from the model after local training."""

    def gradient(self, x: Tensor, y: Tensor) -> Tensors:
        """Answer a probe of one local step by the gradient of the uploaded tensors, after the defence.

        Args:
            x: raw inputs (B, ...) in [0, 1].
            y: labels (B,).
        """
        rng = self.generator("probe")
        gradient = self.local_gradient(x, y, rng)
        return self.ctx.defence.update(gradient, rng) if self.ctx.defence else gradient

    def local_gradient(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Compute a local step's direction for the uploads: the defended gradient, before `Defence.update`."""
        x, y = self.defended_batch(x, y, rng)
        descended = self.ctx.method.descended(self.model, self.ctx.settings)
        moving = {n: p for n, p in self.model.named_parameters() if matches(n, descended)}
        loss = self.loss(x.to(self.device), y.to(self.device))
        gradient = dict(zip(moving, (g.cpu() for g in torch.autograd.grad(loss, list(moving.values()))), strict=True))
        return {**gradient, **self.defended(gradient, x, y, rng)}

    def step_direction(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Compute the direction of a local step by `loss_and_direction`, as training does.

        A method may use it as `local_gradient`. It is for methods whose `loss_and_direction` changes the gradient: by
        clipping, noise or a correction.
        """
        x, y = self.defended_batch(x, y, rng)
        _, direction = self.loss_and_direction(self.trainable_parameters(), x.to(self.device), y.to(self.device))
        direction = {name: value.cpu() for name, value in direction.items()}
        return {**direction, **self.defended(direction, x, y, rng)}

    def observed(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Return the gradient of one example that an observer on the client reads: by default its `local_gradient`."""
        return self.local_gradient(x, y, rng)

    def stepped(self, x: Tensor, y: Tensor, steps: int) -> Tensors:
        """Answer a probe of many local steps by the uploads after them, as the server reads the uploads of training.

        Args:
            x: raw inputs (B, ...) in [0, 1], all of them in every step.
            y: labels (B,).
            steps: number of local steps.
        """
        there = x.to(self.device), y.to(self.device)
        if self._stored is not None and self._stored[0] is y:
            self._stored = there[1], self._stored[1]

        def again(rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
            yield self.defended_batch(*there, rng)

        self.train_epochs(
            self.trainable_parameters(), steps, self.optimiser(), purpose="probe", clips=self.clips(), batches=again
        )
        return expand(self.build_upload(), self.received)


class FederatedClient(ProbeResponder, NumPyClient, ABC):
    """Base of the client halves.

    The app (`flfw.engines.apps`) checks each message with tensors, and its reply, by `validator`; an introduction has
    none. `fit` and `evaluate` check their arrays. `fit_named` and `evaluate_named` do not check again, nor does
    `get_parameters`, which the app never calls.

    Args:
        ctx: the context, a new one for each message: the experiment, the task, the method and its settings, the
            partition, the round, the defence and the store of this client.

    Attributes:
        batch_loss: whether local steps follow one loss of a whole batch; otherwise no defence may change the network.
        place_labels: whether they follow `loss`, which labels every place of a text, on the whole network; otherwise
            no network may score the places.
        regresses: whether they follow the mean of the examples' own losses, whatever the loss, so that labels may be
            numbers; otherwise a regression is refused.
        ctx: the context; a client half reads its hyper-parameters from ``ctx.settings``.
        validator: check of the received and of the sent tensors.
        download_names: the model's tensors that the server sends, in the order of `get_parameters`.
        private_names: all other tensors, which are kept between rounds.
    """

    batch_loss: ClassVar[bool] = True
    place_labels: ClassVar[bool] = False
    regresses: ClassVar[bool] = False

    def __init__(self, ctx: ClientContext) -> None:
        super().__init__(ctx)
        state, uploads = self.model.state_dict(), self.sharing.uploads
        self.download_names = [name for name in state if matches(name, self.sharing.downloads)]
        self.private_names = [name for name in state if name not in self.download_names]
        self._factored_upload = ctx.method.factored_upload(ctx.settings)
        factor_names: tuple[str, ...] = ()
        if self._factored_upload:
            refuse_beside_factors(ctx.plan.defences.name, ctx.defence)
            replaced = [name for name in state if matches(name, [self._factored_upload.pattern])]
            # Factors reveal the tensors that they replace: they may leave only where all of these are uploads.
            if all(matches(name, uploads) for name in replaced):
                factor_names = self._factored_upload.names
        self.validator = MessageValidator(ctx.partition, ctx.plan.name, self.sharing, forms(state), factor_names)

    def train_by_phases(self) -> Phases[dict[str, float]]:
        """Train, and yield the phases that clients can go through together: here none, as `train` does it all."""
        yield from ()
        return self.train()

    @classmethod
    def not_batchable_reason(cls, model: nn.Module, settings: Any) -> str:
        """Name the reason against joint steps (`flfw.client.phases`) as "whose ..."; empty: there is none.

        Args:
            model: the method's model; it may be without numbers.
            settings: the method's hyper-parameters.
        """
        same = cls.fit_named is FederatedClient.fit_named and cls.train_epochs is LocalTrainer.train_epochs
        opted_in = same and cls.train_by_phases is not FederatedClient.train_by_phases
        return "" if opted_in else IN_THEIR_OWN_WAY

    @classmethod
    def batched_on_cpu(cls, model: nn.Module) -> int:
        """Return how many clients ``batched-clients=auto`` joins on a CPU with this model; 1: none are faster."""
        return 1

    def upload_tensors(self) -> Tensors:
        """Choose the tensors to send after training, by name: by default the method's uploads."""
        return {n: v.detach() for n, v in self.model.state_dict().items() if matches(n, self.sharing.uploads)}

    # The NumPyClient contract: arrays by position, in the order of `download_names` and of `upload_tensors`.

    def get_parameters(self, config: dict[str, Any]) -> NDArrays:
        """List the client's current values of the downloaded tensors."""
        state = self.model.state_dict()
        return [state[name].cpu().numpy() for name in self.download_names]

    def fit(self, parameters: NDArrays, config: dict[str, Any]) -> tuple[NDArrays, int, dict[str, Any]]:
        """Do one round: load what was received, evaluate, train, evaluate, keep private tensors, send shared ones.

        This is for callers of a NumPyClient; a run's app calls `fit_named`, and checks what it sends itself.

        Raises:
            SharingViolationError: the arrays are not the method's downloads, or a tensor to send is no upload.
        """
        sent, metrics = self.fit_named(self._named(parameters), int(config["state_version"]))
        self.validator.check_sent(sent)
        return [value.numpy() for value in sent.values()], metrics.get("num-examples", 1), metrics

    def evaluate(self, parameters: NDArrays, config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Evaluate on the client's own test data; see `evaluate_named`."""
        metrics = self.evaluate_named(self._named(parameters), int(config["state_version"]))
        return metrics.get("loss", 0.0), metrics.get("num-examples", 1), metrics

    def _named(self, parameters: NDArrays) -> dict[str, np.ndarray]:
        """Name the arrays by their positions, and check them."""
        more = (f"array {index}" for index in range(len(self.download_names), len(parameters)))
        received = dict(zip([*self.download_names, *more], parameters, strict=False))
        self.validator.check_received(received)
        return received

    # The same on named tensors: the app calls these.

    def fit_named(self, received: Mapping[str, np.ndarray], version: int) -> tuple[Tensors, dict[str, Any]]:
        """Do one round.

        Args:
            received: the broadcast tensors, as arrays that may be read-only.
            version: the round of the private state to continue from; 0: none yet.

        Returns:
            The tensors to send, and metrics.
        """
        return run_phases(self.round(received, version))

    def round(self, received: Mapping[str, np.ndarray], version: int) -> Phases[tuple[Tensors, dict[str, Any]]]:
        """Do one round as `fit_named` does, and yield its training phases; arguments and result are the same."""
        started = time.monotonic()
        metrics = yield from self._loaded_and_trained(self.train_by_phases, received, version)
        self._keep_private(version)
        sent = self.build_upload()
        examples = len(self.indices("train"))
        metrics |= self.ctx.defence.measures if self.ctx.defence else {}
        return sent, self._reported({**metrics, "num-examples": examples, "seconds": time.monotonic() - started})

    def evaluate_named(self, received: Mapping[str, np.ndarray], version: int) -> dict[str, Any]:
        """Evaluate the received model, and again after a local training whose result is not kept.

        A client with validation data also gives the received model's accuracy on them, and one with a defence that on
        the training data that it protects. With ``metrics=none`` nothing is computed: the answer is free, and the time
        that it takes would tell of the data.
        """
        if self.ctx.plan.privacy.metrics == "none":
            return {}

        def personalising() -> Phases[dict[str, float]]:
            yield from ()
            return self.personalise()

        metrics = run_phases(self._loaded_and_trained(personalising, received, version))
        if len(self.indices("validation")):
            self.load_received(received, version)
            metrics |= self.metrics_of("validation", "global_validation")
        if self.ctx.defence is not None:
            self.load_received(received, version)
            metrics |= self.metrics_of("train", "protected")
        return self._reported({**metrics, "num-examples": len(self.indices("test"))})

    def _reported(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Choose the metrics that may leave as they are: not one unless all may, since each depends on the data."""
        return metrics if self.ctx.plan.privacy.metrics == "all" else {}

    def load_received(self, received: Mapping[str, np.ndarray], version: int) -> None:
        """Load the received tensors into the model, and the private tensors of an earlier round if there are any.

        Raises:
            SharingViolationError: an honest server would not name this version; see `ClientStore`.
            StateMissingError: the version is not on this disk.
        """
        self.received = received
        state = self.model.state_dict()
        for name, value in received.items():
            if state[name].device.type == "cpu":
                state[name].numpy()[...] = value
            else:  # after an earlier one for the same message
                state[name].copy_(torch.tensor(value))
        if self.device.type != "cpu":
            self.model.to(self.device)
        private = self.private_state()
        if private and self.ctx.store:
            self.ctx.store.allow(version)
        if version and private:
            for name, value in self._private_store().load(version, private).items():
                private[name].copy_(value)

    def private_state(self) -> Tensors:
        """Return the tensors kept between rounds, not copied: private tensors and the optimisers' memory."""
        state = self.model.state_dict() if self.private_names else {}
        kept = {name: state[name] for name in self.private_names}
        for name, (optimiser, moved) in self.lasting().items():
            kept |= {f"{name}/{key}": value for key, value in optimiser.memory(moved).items()}
        return kept

    def build_upload(self) -> Tensors:
        """Build the upload of a round: `upload_tensors`, after the defence, in the form that the method sends."""
        sent = self._defended({name: value.cpu() for name, value in self.upload_tensors().items()})
        return self._factored_upload.compress(sent, self.received) if self._factored_upload else sent

    def _loaded_and_trained(
        self, train: Callable[[], Phases[dict[str, float]]], received: Mapping[str, np.ndarray], version: int
    ) -> Phases[dict[str, Any]]:
        self.load_received(received, version)
        before = self.metrics_of("test", "global")
        metrics = yield from train()
        measures = before | self.metrics_of("test", "local")
        if len(self.indices("validation")):
            measures |= self.metrics_of("validation", "validation")
        return {**measures, **metrics}

    def _defended(self, sent: Tensors) -> Tensors:
        """Apply the defence to the change of the sent tensors; tensors that were not received have no change."""
        if self.ctx.defence is None:
            return sent
        before = {n: torch.tensor(self.received[n]) for n in sent if n in self.received}
        change = {n: sent[n] - value for n, value in before.items() if value.is_floating_point()}
        change = self.ctx.defence.update(change, self.generator("defence"))
        return {**sent, **{n: before[n] + value if n in before else value for n, value in change.items()}}

    def _keep_private(self, version: int) -> None:
        if private := self.private_state():
            self._private_store().save(self.ctx.round, private, made_from=version)

    def _private_store(self) -> ClientStore:
        if self.ctx.store is None:
            raise RuntimeError(
                f"Expected a state folder for the private tensors of {self.ctx.plan.name}, got none; set "
                "state in the node config or FLFW_STATE."
            )
        return self.ctx.store
