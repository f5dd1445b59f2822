"""Three things kept apart: what an adversary saw, what it was granted, and the truth that only scoring opens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor

from flfw.inversion.automatic import Automatic
from flfw.nets.net import Tensors
from flfw.storage.sealed import write_whole
from flfw.victims.operator import Operator
from flfw.victims.victim import VictimModel


class Vantage(Enum):
    """Where the adversary stands; type 0, 1 and 2 leakage in the Fed-CDP paper."""

    SERVER = "server"
    CLIENT_UPDATE = "client_update"
    CLIENT_EXAMPLE = "client_example"


@dataclass(frozen=True)
class Observation:
    """Exactly what the adversary saw of one exchange; no ground truth.

    Attributes:
        vantage: where it was seen.
        source: ``probe`` (a gradient asked for) or ``update`` (what training sent).
        rung: of a probe, ``control``, ``easy`` or ``target``.
        round: the round after which it was seen; 0 is before training.
        client: the partition that answered.
        slot: which probe of its round.
        sent: what the client sent, by name: of a probe of one step its gradient, else tensors after training; factors
            (`flfw.messages.factored_upload`) multiplied out.
        received: what the client had received, by name.
        point: of a probe, what its round and rung have several of: ``batch-16``, a point of a curve; else the rung.
    """

    vantage: Vantage
    source: str
    rung: str
    round: int
    client: int
    slot: int
    sent: Tensors
    received: Tensors
    point: str = ""

    @property
    def key(self) -> str:
        """A name for files about this observation."""
        return key(self.round, self.point or self.rung, self.slot)


def key(server_round: int, point: str, slot: int) -> str:
    """The name under which an observation, its truth and its reconstructions are filed."""
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
    """All that an attacker is granted beside the observation.

    Attributes:
        model: what it can compute of the client's gradient.
        batch: how many examples stand behind the observation.
        labels: (batch,) their labels, or None.
        box: smallest and largest value of a raw input.
        steps: how many local steps stand behind it.
        weights: whether what was sent are tensors after training, rather than a gradient.
        lr: the learning rate of those steps; None: not granted.
        granted: the same in words, a sentence each, for the report.
        mechanism: what stands between the gradient and what was sent; None: nothing, or it is not granted.
        unrolled: whether ``model`` computes the weights that were sent, through every local step, rather than a
            gradient.
        public: data that everybody may hold; None: not granted.
        start: the client's private tensors as they were before training, by name; None: not granted.
        uploaded: what the client uploaded in the round before it was probed, by name; None: not granted, or it took no
            part.
    """

    model: VictimModel
    batch: int
    labels: Tensor | None
    box: tuple[float, float] = (0.0, 1.0)
    steps: int = 1
    weights: bool = False
    lr: float | None = None
    granted: tuple[str, ...] = ()
    mechanism: Operator | Automatic | None = None
    unrolled: bool = False
    public: Examples | None = None
    start: Tensors | None = None
    uploaded: Tensors | None = None


def mean_gradient(seen: Observation, knowledge: Knowledge) -> Tensors:
    """The gradient behind an observation: what was sent or, if that is weights, their change over lr times steps.

    Of several steps it is their mean gradient, as if the weights had not moved in between; momentum and weight decay
    are in it. Without a granted lr its length is unknown, and only its direction means anything.
    """
    if not knowledge.weights:
        return seen.sent
    scale = (1.0 if knowledge.lr is None else knowledge.lr) * knowledge.steps
    both = [name for name, value in seen.sent.items() if name in seen.received and value.is_floating_point()]
    return {name: (seen.received[name] - seen.sent[name]) / scale for name in both}


@dataclass(frozen=True)
class Reconstruction:
    """What an attack found.

    Attributes:
        samples: (batch, ...) raw inputs in the box.
        matching_loss: what the attack minimised, at these samples; None for closed forms.
        iterations: how many it took, if fewer than its budget; None: all of them.
        labels: (batch,) those it was given or found; None: it says nothing of labels.
    """

    samples: Tensor
    matching_loss: float | None = None
    iterations: int | None = None
    labels: Tensor | None = None


@dataclass(frozen=True)
class Truth:
    """What a probe was made of; written by the client into its own folder, opened by scoring alone.

    Attributes:
        samples: (batch, ...) raw inputs in [0, 1].
        labels: (batch,).
        indices: (batch,) positions in the training part.
    """

    samples: Tensor
    labels: Tensor
    indices: Tensor

    def write(self, folder: Path, name: str) -> None:
        """Write to ``folder/name.safetensors``, readable by the owner only."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        data = save({"samples": self.samples, "labels": self.labels, "indices": self.indices})
        write_whole(folder / f"{name}.safetensors", data, 0o600)

    @classmethod
    def read(cls, folder: Path, name: str) -> Truth:
        """The inverse of `write`."""
        return cls(**load_file(folder / f"{name}.safetensors"))
