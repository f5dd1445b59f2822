"""Jobs for attacks and what comes of them: the records that a trusted side and an attacker hand each other."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from flfw.adversary.observation import Reconstruction
from flfw.curves import Point
from flfw.experiment import Experiment


@dataclass(frozen=True)
class Ticket:
    """Probes that have been recorded.

    Attributes:
        rung: of the ladder: ``control``, ``easy`` or ``target``.
        round: after which they were sent.
        curve: of which curve they are a point, if any.
        batch: examples in each.
        steps: local steps in each.
        point: names them within the round.
    """

    rung: str
    round: int
    curve: str
    batch: int
    steps: int
    point: str

    @property
    def name(self) -> str:
        """The stem of its file."""
        return f"r{self.round:04d}-{self.point}"


EASY = Ticket("easy", 0, "", 1, 1, "easy")
"""The ladder's middle rung, which is attacked once."""
EXAMPLE = "example"
"""The point of probes that are answered on the client's own disk only, with one example's gradient."""


def ticket_of(point: Point, server_round: int) -> Ticket:
    """The target's probes of one point after a round."""
    return Ticket("target", server_round, point.curve, point.batch, point.steps, point.name)


def tickets_of(experiment: Experiment, server_round: int) -> list[Ticket]:
    """All that is probed of the method after an audited round: the target, its curves, one example on the client."""
    found = [ticket_of(point, server_round) for point in experiment.points]
    if "client_example" in experiment.vantage:
        found.append(Ticket("target", server_round, "", 1, 1, EXAMPLE))
    return found


@dataclass(frozen=True)
class Exchange:
    """One recorded exchange in a job: its id in the recordings, whose it is, and the labels granted, if any."""

    id: str
    client: int
    slot: int
    labels: tuple[int, ...] | None


@dataclass(frozen=True)
class Job:
    """One attack on the probes of a ticket, with everything that is granted.

    Attributes:
        attack: its name.
        ticket: what was probed.
        exchanges: the recordings to attack.
        recordings: the folder they lie in.
        run_config: the experiment as every participant knows it, without the folders of this machine.
        shape: of one input.
        classes: how many there are.
        mean: of the inputs' normalisation, per channel or feature.
        std: the same.
        device: to attack on: ``cpu`` or ``cuda``.
        memory: the fraction of a GPU's memory that may be used.
        vantage: where the attacker stands, as `flfw.adversary.observation.Vantage` has it.
        adaptive: whether the clients' defence is granted.
        public: the file with the public data, and how many examples there are in it; None: not granted.
        start: whether it is granted how all clients' private tensors begin.
        uploads: the recordings of what clients uploaded in the round, as far as they are granted.
    """

    attack: str
    ticket: Ticket
    exchanges: tuple[Exchange, ...]
    recordings: Path
    run_config: dict[str, Any]
    shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: str = "cpu"
    memory: float = 1.0
    vantage: str = "server"
    adaptive: bool = False
    public: tuple[str, int] | None = None
    start: bool = False
    uploads: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The stem of its files."""
        told = "-adaptive" if self.adaptive else ""
        return f"{re.sub(r'[^A-Za-z0-9_.]+', '-', self.attack)}-{self.ticket.name}{told}"

    def to_json(self) -> bytes:
        """For its file."""
        return json.dumps(asdict(self) | {"recordings": str(self.recordings)}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Job:
        """The inverse of `to_json`."""
        about = json.loads(data)
        exchanges = [
            Exchange(**{**e, "labels": None if e["labels"] is None else tuple(e["labels"])}) for e in about["exchanges"]
        ]
        about |= {"ticket": Ticket(**about["ticket"]), "exchanges": tuple(exchanges)}
        about |= {name: tuple(about[name]) for name in ("shape", "mean", "std", "uploads")}
        about["public"] = None if about["public"] is None else tuple(about["public"])
        about["recordings"] = Path(about["recordings"])
        return cls(**about)


@dataclass(frozen=True)
class Solution:
    """What came of a job.

    Attributes:
        job: SHA-256 of the job's file.
        found: a reconstruction for each exchange of the job; None where the attack gave none.
        stopped: why it gave nothing at all; None if it did.
        seconds: the attack's own time.
        tries: how often it was started.
        refused: recordings that could not be used, a sentence each.
        present: which classes clients were found to hold: a client's number, and for each class whether it does.
    """

    job: str
    found: tuple[Reconstruction | None, ...]
    stopped: str | None = None
    seconds: float = 0.0
    tries: int = 1
    refused: tuple[str, ...] = ()
    present: tuple[tuple[int, tuple[bool, ...]], ...] = ()


def failed(job: Job, why: str) -> Solution:
    """The solution of a job that gave nothing."""
    return Solution(digest(job), (None,) * len(job.exchanges), stopped=why)


def solved(job: Job, found: Sequence[Reconstruction | None], seconds: float, **more: Any) -> Solution:
    """The solution of a job; reconstructions come to the CPU."""
    brought = [None if f is None else _on_cpu(f) for f in found]
    return Solution(digest(job), tuple(brought), seconds=seconds, **more)


def _on_cpu(found: Reconstruction) -> Reconstruction:
    samples = found.samples.detach().to("cpu", torch.float32, copy=True).contiguous()
    loss, taken = found.matching_loss, found.iterations  # an attack may give tensors
    labels = None if found.labels is None else found.labels.detach().to("cpu", torch.int64, copy=True)
    return Reconstruction(samples, None if loss is None else float(loss), None if taken is None else int(taken), labels)


def digest(job: Job) -> str:
    """SHA-256 of a job's file, by which a solution says which job it is of."""
    return hashlib.sha256(job.to_json()).hexdigest()
