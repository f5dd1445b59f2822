"""Local descent of a client: its parameters, batches, optimiser and step direction."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from flfw.client.context import ClientContext
from flfw.files.earlier_names import EarlierHooks
from flfw.files.tensor_names import matches
from flfw.nets.bottleneck import penalty
from flfw.nets.net import Tensors, correct, loss, regression_metrics, targets
from flfw.nets.training.devices import device_of
from flfw.nets.training.optimisers import Optimiser, PersistentTraining, StatefulOptimiser, clip_norm, loss_and_grad
from flfw.rng import torch_generator
from flfw.task.defence import LocalStep

_EVALUATION_BATCH = 500

Batches: TypeAlias = Callable[[torch.Generator], Iterator[tuple[Tensor, Tensor]]]
Follow: TypeAlias = Callable[[Mapping[str, Tensor], Tensor, Tensor], tuple[float, Tensors]]


class LocalTrainer(EarlierHooks, ABC):
    """Local training on named tensors; base of `flfw.client.federated_client.FederatedClient`.

    Args:
        ctx: the context.

    Attributes:
        model: the method's model; its initial values are the same for all clients and come from the seed.
        sharing: the downloaded and uploaded tensors, by the client's own copy of the method.
        device: device of the training: a GPU if the experiment gives clients a share of it, else the CPU.
        steps_made: number of local steps that `train_epochs` has made for this message.
        audited_batches: the batches of training examples, each with its indices in the data set, for an audit of the
            upload; None: they are not kept.
    """

    EARLIER_HOOKS: ClassVar[Mapping[str, str]] = {
        "apart": "not_batchable_reason",
        "at": "ctx",
        "descend": "train_epochs",
        "follow": "loss_and_direction",
        "guarded": "defended_batch",
        "install": "load_received",
        "moving": "trainable_parameters",
        "noised": "add_noise",
        "noted": "audited_batches",
        "outgoing": "upload_tensors",
        "private": "private_state",
        "staying": "unshared_parameters",
    }

    def __init__(self, ctx: ClientContext) -> None:
        self.ctx = ctx
        self.model: nn.Module = ctx.fresh_model()
        self.sharing = ctx.method.shared(self.model, ctx.settings)
        lasting = isinstance(ctx.settings, PersistentTraining) and ctx.settings.lasting
        self._lasting = ctx.settings.optimiser_at(ctx.local.lr) if lasting else None
        self.steps_made = 0
        self.audited_batches: list[tuple[np.ndarray, Tensor, Tensor]] | None = None
        self._stored: tuple[Tensor, np.ndarray] | None = None  # the labels taken last, with their examples' places
        self.device = device_of(bool(ctx.plan.on_gpu) and torch.cuda.is_available())

    @abstractmethod
    def train(self) -> dict[str, float]:
        """Train ``self.model`` in place for one round; return metrics, at least ``loss``."""

    def personalise(self) -> dict[str, float]:
        """Do the part of `train` that an evaluation needs, by default all; its result is not kept."""
        return self.train()

    # A local step of the method: the parameters it changes, and how. `train` and probes of many steps call these.

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the mean loss of raw inputs (B, ...) in [0, 1] with labels (B,), or of all places of such texts."""
        scores = self.model(self.ctx.task.inputs.normalise(x))
        return self.penalised(scores, targets(scores, x, y))

    def penalised(self, scores: Tensor, y: Tensor) -> Tensor:
        """Compute `flfw.nets.net.loss` of scores (B, classes), plus the penalty that the network adds for the batch."""
        return loss(scores, y) + penalty(self.model)

    def local_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss that local steps minimise: by default `loss`; a method may add a term."""
        return self.loss(x, y)

    def trainable_parameters(self) -> dict[str, Tensor]:
        """Choose the parameters that local training changes; with more phases, those of the probed phase."""
        return dict(self.model.named_parameters())

    def optimiser(self) -> Optimiser:
        """Choose the optimiser at the start of a round: a new one, unless the settings keep it between rounds."""
        return self._lasting or self.ctx.settings.optimiser_at(self.ctx.local.lr)

    def lasting(self) -> Mapping[str, tuple[StatefulOptimiser, Mapping[str, Tensor]]]:
        """List optimisers that are kept between rounds, with their parameters, by a name for their memory."""
        return {"optimiser": (self._lasting, self.trainable_parameters())} if self._lasting else {}

    def clips(self) -> dict[str, float]:
        """Return clipping bounds by name pattern: each bounds the joint L2 norm of the matched gradients of a step."""
        return {}

    def loss_and_direction(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
        """Compute the mean loss of a batch and the direction that a local step follows: by default its gradient."""
        return loss_and_grad(self.local_loss(x, y), parameters)

    def train_epochs(
        self,
        parameters: Mapping[str, Tensor],
        epochs: int,
        optimiser: Optimiser,
        *,
        purpose: str = "batches",
        follow: Follow | None = None,
        clips: dict[str, float] | None = None,
        batches: Batches | None = None,
    ) -> float:
        """Do mini-batch descent on some of the model's parameters; the others do not change.

        Args:
            parameters: the parameters to change, by name.
            epochs: number of passes over the client's training data, in the order that ``example_order`` names.
            optimiser: optimiser of the steps; a new one has no memory of earlier calls.
            purpose: name of the generator of the shuffles; two calls in one round need different names.
            follow: function of a batch of raw inputs and labels, for its mean loss and the direction of a step;
                default `loss_and_direction`.
            clips: see `clips`.
            batches: function for the batches of one epoch; default `batches`, the client's own data.

        Returns:
            The mean loss of the last epoch; 0 where none of its batches held an example.
        """
        rng, values = self.generator(purpose), []
        for _ in range(epochs):
            values = []
            for x, y in (batches or self.batches)(rng):
                value, direction = (follow or self.loss_and_direction)(parameters, x, y)
                direction = {**direction, **self.defended(direction, x, y, rng)}
                for pattern, bound in (clips or {}).items():
                    clip_norm({n: g for n, g in direction.items() if matches(n, [pattern])}, bound)
                optimiser.step(parameters, direction)
                self.steps_made += 1
                values += [value] * bool(len(y))
                del direction  # before the next one is computed: for a hypernetwork it takes 60 MB
        return sum(values) / max(1, len(values))

    # The client's own data.

    def indices(self, part: str) -> np.ndarray:
        """Return the indices of the client's own ``train``, ``test`` or ``validation`` examples in the data set."""
        return getattr(self.ctx.task.split, part)[self.ctx.partition]

    def batches(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one pass over the client's training data, in shuffled order unless it is fixed."""
        mine = self.indices("train")
        shuffled = self.ctx.local.example_order == "shuffled"
        order = torch.randperm(len(mine), generator=rng).numpy() if shuffled else np.arange(len(mine))
        for start in range(0, len(mine), self.ctx.local.batch_size):
            x, y = self.examples("train", mine[order[start : start + self.ctx.local.batch_size]], vary=rng)
            yield self.defended_batch(x, y, rng)

    def defended_batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the batch that a local step sees; the client's defence readies the model, and may change the batch."""
        if self.ctx.defence is None:
            return x, y
        self.ctx.defence.prepare(self.model, rng)
        return self.ctx.defence.batch(x, y, rng)

    def examples(self, part: str, indices: np.ndarray, vary: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return examples on the client's device; see `flfw.task.task.Task.examples`."""
        x, y = self.ctx.task.examples(part, indices, vary)
        if part == "train" and self.audited_batches is not None:
            self.audited_batches.append((indices, x, y))
        x, y = x.to(self.device), y.to(self.device)
        if part == "train":
            self._stored = y, indices
        return x, y

    def stored(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return training examples for a probe, on the CPU, as they are stored."""
        x, y = self.ctx.task.examples("train", indices)
        self._stored = y, indices
        return x, y

    def accuracy(self, part: str = "test") -> float:
        """Compute the model's accuracy on the client's own ``test``, ``validation`` or ``train`` data, in [0, 1].

        Where the model scores every place of a text, it is that of the tokens.
        """
        self.model.eval()
        mine, right = self.indices(part), 0.0
        with torch.no_grad():
            for start in range(0, len(mine), _EVALUATION_BATCH):
                indices = mine[start : start + _EVALUATION_BATCH]
                x, y = self.ctx.task.examples("train" if part == "train" else "test", indices)
                x, y = x.to(self.device), y.to(self.device)
                right += float(correct(self.model(self.ctx.task.inputs.normalise(x)), x, y).sum())
        self.model.train()
        return right / len(mine)

    def metrics_of(self, part: str, name: str) -> dict[str, float]:
        """Compute the metrics ``acc_NAME`` on a part, or of a regression ``mae_NAME``, ``rmse_NAME`` and ``r2_NAME``.

        Errors are in the target's own units; R2 is 1 - squared error / squared distance from the part's own mean. It
        is left out where all targets of the part are equal, which have no such distance.
        """
        number = self.ctx.task.dataset.columns.number if self.ctx.task.dataset.columns else None
        if number is None:
            return {f"acc_{name}": self.accuracy(part)}
        truths, guesses = self._predicted(part)
        return {f"{key}_{name}": value for key, value in regression_metrics(truths, guesses, number.std).items()}

    def _predicted(self, part: str) -> tuple[Tensor, Tensor]:
        """Return the labels and the model's outputs (N,) of a part of a regression, standardised."""
        self.model.eval()
        mine, parts = self.indices(part), []
        with torch.no_grad():
            for start in range(0, len(mine), _EVALUATION_BATCH):
                x, y = self.ctx.task.examples("train" if part == "train" else "test", mine[start:][:_EVALUATION_BATCH])
                scores = self.model(self.ctx.task.inputs.normalise(x.to(self.device)))
                parts.append(torch.stack([y.double(), scores[:, 0].double().cpu()]))
        self.model.train()
        truths, guesses = torch.cat(parts, 1)
        return truths, guesses

    def generator(self, purpose: str) -> torch.Generator:
        """Derive a generator of this client for one purpose in this round."""
        return torch_generator(self.ctx.plan.seed, purpose, self.ctx.round, self.ctx.partition, *self.ctx.probe)

    def defended(self, gradients: Tensors, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Return the gradients of the uploaded tensors for a local step, after the client's defence.

        Args:
            gradients: by name; those of other tensors are left out.
            x: raw inputs (B, ...) of the batch.
            y: its labels (B,).
            rng: generator of the defence's randomness.
        """
        leaving = {n: g for n, g in gradients.items() if matches(n, self.sharing.uploads)}
        if self.ctx.defence is None:
            return leaving
        return self.ctx.defence.step(
            LocalStep(
                leaving, x, y, self.model, self.ctx.task.inputs, lambda: self._public_examples, self._positions(y)
            ),
            rng,
        )

    def _positions(self, y: Tensor) -> Tensor:
        """Return the places of a batch's examples, if these are the stored ones that were taken last; else none."""
        stored = self._stored is not None and self._stored[0] is y
        return torch.from_numpy(self._stored[1]) if stored and self._stored else torch.empty(0, dtype=torch.int64)

    @cached_property
    def _public_examples(self) -> tuple[Tensor, Tensor]:
        """Raw inputs and labels of examples of no client, spread evenly: the defences' proxies, or else public data."""
        x, y = self.ctx.task.examples(*self.ctx.task.unowned)
        return x.to(self.device), y.to(self.device)
