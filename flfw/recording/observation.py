"""Observation, granted knowledge, and ground truth, kept apart; attacks never open the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from flfw.files.earlier_names import earlier_key
from flfw.files.sealed import write_atomic
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.client_models.victim import VictimModel
from flfw.nets.net import Tensors


class Vantage(Enum):
    """Position of the adversary; type 0, 1 and 2 leakage in the Fed-CDP paper."""

    SERVER = "server"
    CLIENT_UPDATE = "client_update"
    CLIENT_EXAMPLE = "client_example"
    AGGREGATE = "aggregate"
    PEER = "peer"
    OUTSIDER = "outsider"


@dataclass(frozen=True)
class Observation:
    """Tensors that the adversary saw of one exchange; no ground truth.

    Attributes:
        vantage: position of the adversary.
        source: ``probe`` (a requested gradient) or ``update`` (an update of training).
        control: for a probe, ``target``, or a control such as ``easy``.
        round: the observation is after this round; 0 is before training.
        client: partition of the client.
        slot: index of the probe in its round.
        sent: tensors the client sent, by name: the gradient for a probe of one step, else tensors after training;
            factors (`flfw.messages.factored_upload`) are multiplied out.
        received: tensors the client had received, by name.
        point: for a probe, the point of a curve such as ``batch-16``, where its round and control have several; else
            the control.
    """

    vantage: Vantage
    source: str
    control: str
    round: int
    client: int
    slot: int
    sent: Tensors
    received: Tensors
    point: str = ""

    @property
    def key(self) -> str:
        """Name of this observation's files."""
        return key(self.round, self.point or self.control, self.slot)


def key(server_round: int, point: str, slot: int) -> str:
    """Return the file name of an observation, its truth and its reconstructions."""
    return f"r{server_round:04d}-{point}-{slot:03d}"


@dataclass(frozen=True)
class Examples:
    """Labelled data of no client.

    Attributes:
        samples: (N, ...) raw inputs in [0, 1].
        labels: (N,).
    """

    samples: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Knowledge:
    """Knowledge granted to an attacker beside the observation.

    Attributes:
        model: the attacker's model of the client's gradient.
        batch: number of examples behind the observation.
        labels: (batch,) their labels, or None.
        box: smallest and largest value of a raw input.
        steps: number of local steps behind the observation.
        weights: whether the sent tensors are weights after training, rather than a gradient.
        lr: the learning rate of the steps; None: not granted.
        granted: the same in words, a sentence each, for the report.
        operator: the mechanism between the gradient and the observation; None: none, or not granted.
        unrolled: whether ``model`` computes the sent weights, through every local step, rather than a gradient.
        public: public data; None: not granted.
        start: the client's private tensors before training, by name; None: not granted.
        uploaded: the client's upload in the round before it was probed, by name; None: not granted, or it took no
            part.
        earlier: answers about the same examples after earlier rounds, the first one first, each with the knowledge
            granted about it.
    """

    model: VictimModel
    batch: int
    labels: Tensor | None
    box: tuple[float, float] = (0.0, 1.0)
    steps: int = 1
    weights: bool = False
    lr: float | None = None
    granted: tuple[str, ...] = ()
    operator: Operator | DifferentiableDefence | None = None
    unrolled: bool = False
    public: Examples | None = None
    start: Tensors | None = None
    uploaded: Tensors | None = None
    earlier: tuple[tuple[Observation, Knowledge], ...] = ()


def mean_gradient(observation: Observation, knowledge: Knowledge) -> Tensors:
    """Compute the gradient behind an observation: the sent gradient, or the weights' change over lr times steps.

    For several steps it is their mean gradient, as if the weights had not moved in between; it includes momentum and
    weight decay. Without a granted lr its length is unknown, and only its direction is meaningful.
    """
    if not knowledge.weights:
        return observation.sent
    scale = (1.0 if knowledge.lr is None else knowledge.lr) * knowledge.steps
    both = [
        name for name, value in observation.sent.items() if name in observation.received and value.is_floating_point()
    ]
    return {name: (observation.received[name] - observation.sent[name]) / scale for name in both}


@dataclass(frozen=True)
class Reconstruction:
    """Result of an attack.

    Attributes:
        samples: (batch, ...) raw inputs in the box.
        matching_loss: the minimised loss at these samples; None for closed forms.
        iterations: iterations used, if fewer than the budget; None: all of them.
        labels: (batch,) given or recovered labels; None: the attack gives none.
        searched: (batch, ...) the result of the search, before a known change of the data was undone in it; None: the
            same as ``samples``.
        agreement: (batch, ...) for each input the share of several searches that agree with ``samples``, in [0, 1];
            None: not known.
        unguided: (N, ...) raw inputs that the attack would give without the observation, for a floor; None: none.
    """

    samples: Tensor
    matching_loss: float | None = None
    iterations: int | None = None
    labels: Tensor | None = None
    searched: Tensor | None = None
    agreement: Tensor | None = None
    unguided: Tensor | None = None


def truth_file(folder: Path, name: str) -> Path:
    """Return the file of a truth, which an earlier version may have named otherwise."""
    path = folder / f"{name}.safetensors"
    return path if path.exists() else folder / f"{earlier_key(name)}.safetensors"


@dataclass(frozen=True)
class Truth:
    """Ground truth of a probe, written by the client into its own folder.

    The trusted side of an audit opens it: to score, to grant labels and for the controls.

    Attributes:
        samples: (batch, ...) raw inputs in [0, 1].
        labels: (batch,).
        indices: (batch,) positions in the training part.
        order: of an upload, for each local step the places of its examples, (steps, most) padded with -1; None: every
            step used all examples.
    """

    samples: Tensor
    labels: Tensor
    indices: Tensor
    order: Tensor | None = None

    def write(self, folder: Path, name: str) -> None:
        """Write to ``folder/name.safetensors``, readable by the owner only."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tensors = {"samples": self.samples, "labels": self.labels, "indices": self.indices, "order": self.order}
        data = save({name: value for name, value in tensors.items() if value is not None})
        write_atomic(folder / f"{name}.safetensors", data, 0o600)

    @property
    def steps(self) -> tuple[tuple[int, ...], ...] | None:
        """Places of each step's examples; None where every step used all of them."""
        if self.order is None:
            return None
        return tuple(tuple(place for place in row if place >= 0) for row in self.order.tolist())

    @classmethod
    def joined(cls, parts: Sequence[Truth]) -> Truth:
        """Return the truth of a sum of messages: the examples of all of them, in their order."""
        names = ("samples", "labels", "indices")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    @classmethod
    def read(cls, folder: Path, name: str) -> Truth:
        """Read the file that `write` made.

        Raises:
            ValueError: it holds something else, or numbers that are not finite.
        """
        tensors = load(truth_file(folder, name).read_bytes())
        samples = tensors.get("samples")
        full = [part for name, part in tensors.items() if name not in ("samples", "labels")]
        full += [part for name, part in tensors.items() if name == "labels" and part.dtype != torch.float32]
        known = {"samples", "labels", "indices"} <= tensors.keys() <= {"samples", "labels", "indices", "order"}
        if samples is None or not known or not samples.is_floating_point() or not _finite(samples, tensors["labels"]):
            raise ValueError(f"expected samples, labels and indices of probes, got {', '.join(tensors)}")
        if any(part.dtype != torch.int64 for part in full) or not (
            len(samples) == len(tensors["labels"]) == len(tensors["indices"])
        ):
            raise ValueError("expected a label and an index for each sample")
        return cls(**tensors)


def _finite(samples: Tensor, labels: Tensor) -> bool:
    """Return whether inputs, and labels that are numbers, are finite."""
    return bool(samples.isfinite().all()) and bool(labels.isfinite().all())
