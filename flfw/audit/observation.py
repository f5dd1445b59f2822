"""Three things kept apart: what an adversary saw, what it was granted, and the truth that only scoring opens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from flfw.errors import BadInput
from flfw.inversion.victim import VictimModel
from flfw.nets.net import Tensors
from flfw.sealed import write_whole


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
        sent: what the client sent, by name.
        received: what the client had received, by name.
    """

    vantage: Vantage
    source: str
    rung: str
    round: int
    client: int
    slot: int
    sent: Tensors
    received: Tensors

    @property
    def key(self) -> str:
        """A name for files about this observation."""
        return key(self.round, self.rung, self.slot)


def key(server_round: int, rung: str, slot: int) -> str:
    """The name under which an observation, its truth and its reconstructions are filed."""
    return f"r{server_round:04d}-{rung}-{slot:03d}"


@dataclass(frozen=True)
class Knowledge:
    """All that an attacker is granted beside the observation.

    Attributes:
        model: what it can compute of the client's gradient.
        batch: how many examples stand behind the observation.
        labels: (batch,) their labels, or None.
        box: smallest and largest value of a raw input.
        granted: the same in words, a sentence each, for the report.
    """

    model: VictimModel
    batch: int
    labels: Tensor | None
    box: tuple[float, float] = (0.0, 1.0)
    granted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reconstruction:
    """What an attack found.

    Attributes:
        samples: (batch, ...) raw inputs in the box.
        matching_loss: what the attack minimised, at these samples; None for closed forms.
    """

    samples: Tensor
    matching_loss: float | None = None


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


@dataclass
class Recordings:
    """The recorded probes of a run.

    Args:
        folder: where a `flfw.tap.RecordingGrid` wrote.
    """

    folder: Path
    lines: list[dict] = field(init=False)

    def __post_init__(self) -> None:
        manifest = self.folder / "manifest.jsonl"
        if not manifest.exists():
            raise BadInput(f"Expected recordings in {self.folder}, found no manifest.jsonl; run with --attack.")
        self.lines = [json.loads(line) for line in manifest.read_text().splitlines()]

    def probes(self, rung: str, server_round: int) -> list[Observation]:
        """The probes of one rung and round, by slot."""
        chosen = [
            line
            for line in self.lines
            if line["config"].get("rung") == rung and line["config"]["round"] == server_round
        ]
        received = {name: self._tensors(name) for name in {line["sent_to_client"] for line in chosen}}
        ordered = sorted(chosen, key=lambda line: line["config"]["slot"])
        return [self._load(line, received[line["sent_to_client"]]) for line in ordered]

    def _load(self, line: dict, received: Tensors) -> Observation:
        config = line["config"]
        return Observation(
            vantage=Vantage.SERVER,
            source="probe",
            rung=config["rung"],
            round=config["round"],
            client=int(config["client"]),
            slot=config["slot"],
            sent=self._tensors(line["sent_by_client"]),
            received=received,
        )

    def _tensors(self, name: str) -> Tensors:
        tensors = load_file(self.folder / f"{name}.safetensors")
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values() if value.is_floating_point()):
            raise BadInput(f"Expected finite tensors in {self.folder}/{name}.safetensors, got NaN or infinity.")
        return tensors
