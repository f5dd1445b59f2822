"""Jobs for attacks and their solutions: the records that the trusted side and an attacker exchange."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import torch

from flfw.bounds import BoundedSettings, NonNegativeInt, PositiveInt
from flfw.errors import require
from flfw.experiment import AGGREGATE, OUTSIDER, PEER
from flfw.experiment.audit import ProbeSettings
from flfw.experiment.curves import Point
from flfw.files.typed import from_json
from flfw.recording.observation import Reconstruction


@dataclass(frozen=True)
class ProbeSet(BoundedSettings):
    """Probes, or uploads, of one kind and round that attacks run on.

    Attributes:
        control: ``target``, or the control: ``analytic``, ``easy``, ``undefended`` or ``weak_defence``.
        round: the round after which they were sent.
        curve: the curve to which they belong as a point, if any.
        batch: examples in each probe.
        steps: local steps in each probe.
        point: their name within the round.
        group: number of clients whose messages are summed in what is seen; 0: each message is seen. Then ``batch``
            counts the examples of all of them.
        colluding: clients whose own messages were in that sum as well, and which another client took off.
        vantage: the only position that sees it; empty: all that see each message.
        isolated: client whose update alone is in the sums, by a lying server's doing; ``batch`` counts its examples.
    """

    control: str
    round: NonNegativeInt
    curve: str
    batch: PositiveInt
    steps: PositiveInt
    point: str
    group: int = 0
    colluding: int = 0
    vantage: str = ""
    isolated: int | None = None

    @property
    def name(self) -> str:
        """Stem of its file."""
        return f"r{self.round:04d}-{self.point}"

    @property
    def recorded(self) -> str:
        """Name under which the messages are recorded; the messages of a sum are those of its probes."""
        return self.point.replace(self._mark, "", 1) if self.vantage else self.point

    @property
    def _mark(self) -> str:
        """Part of the point's name that says who sees it."""
        if self.vantage == PEER:
            return f"-peer{self.group + self.colluding}"
        return f"-sum{self.group}" if self.group else f"-{self.vantage}"

    @property
    def pooled(self) -> bool:
        """True for sums over several clients, each of which has a part in them."""
        return self.group > 1 and self.isolated is None

    @property
    def fresh(self) -> bool:
        """True for probes of a fresh, wholly shared and undefended network, and not of the method's model."""
        return self.control in FRESH

    @property
    def on_client(self) -> bool:
        """True for probes whose answer stays on the client's own disk."""
        return self.point.partition("-")[0] == EXAMPLE

    @property
    def source(self) -> str:
        """Kind of the attacked messages: ``probe``, or ``update`` for the uploads of a round of training."""
        return "update" if self.point.partition("-")[0] == UPLOAD else "probe"

    def in_sums(self, group: int, curve: str, colluding: int = 0, isolated: int | None = None) -> ProbeSet:
        """Return the probe set of sums of these probes over so many clients each, as a point of a curve or of none.

        Args:
            group: number of clients in a sum.
            curve: name of the curve, or empty.
            colluding: clients among them that take their own parts off the sum; 0: the server sees it as it is.
            isolated: client whose update alone is in the sums, if any.
        """
        left, vantage = group - colluding, PEER if colluding else AGGREGATE
        batch = self.batch * (left if isolated is None else 1)
        sizes = {"group": left, "batch": batch, "colluding": colluding, "isolated": isolated}
        seen = replace(self, curve=curve, vantage=vantage, **sizes)
        return replace(seen, point=f"{self.point}{seen._mark}")

    def outside(self) -> ProbeSet:
        """Return the probe set of one who sees none of these probes, but the model that they were made with."""
        return replace(self, vantage=OUTSIDER, point=f"{self.point}-{OUTSIDER}")

    def at(self, control: str) -> ProbeSet:
        """Return the probe set of the same probes on a control beside the target; see `flfw.audit.controls`."""
        return replace(self, control=control, point=f"{self.point}-{control}")


ANALYTIC = "analytic"
FRESH = (ANALYTIC, "easy")
"""Controls on a fresh network."""
EASY = ProbeSet("easy", 0, "", 1, 1, "easy")
"""Probe set of the easy control, which is attacked once."""
UPLOAD = "update"
"""Point of uploads: what clients send in a round of training."""
EXAMPLE = "example"
"""Point of probes whose answer, one example's gradient, stays on the client's own disk."""


def target_probe_set(point: Point, server_round: int) -> ProbeSet:
    """Return the probe set of the target's probes of one point after a round."""
    return ProbeSet("target", server_round, point.curve, point.batch, point.steps, point.name)


def round_probe_sets(probes: ProbeSettings, record: bool, server_round: int) -> list[ProbeSet]:
    """Return the probe sets of the probes after an audited round: the target, its curves, one example on the client.

    Args:
        probes: settings of the probes.
        record: whether probes are sent for a later audit, whatever this one attacks.
        server_round: the round.
    """
    if probes.audit_source == "update" and not record:
        return []
    probe_sets = [target_probe_set(point, server_round) for point in probes.points]
    if "client_example" in probes.vantage:
        probe_sets.append(ProbeSet("target", server_round, "", 1, 1, EXAMPLE))
    return probe_sets


@dataclass(frozen=True)
class Exchange(BoundedSettings):
    """Recorded exchange of a job.

    Attributes:
        id: its id in the recordings.
        client: its client.
        slot: its place among the probes, or among the uploads of the round.
        labels: the granted labels; None: none are.
        order: of an upload, the places of each local step's examples; None for a probe.
        summed: of a sum, the ids of its messages, whose first or isolated one is in ``id`` and ``client``.
        slots: of a sum, the places of these messages; where one client is isolated, of its message alone.
        colluders: of a peer's view, the ids of the messages that it knows.
    """

    id: str
    client: NonNegativeInt
    slot: NonNegativeInt
    labels: tuple[int, ...] | tuple[float, ...] | None
    order: tuple[tuple[int, ...], ...] | None = None
    summed: tuple[str, ...] = ()
    slots: tuple[int, ...] = ()
    colluders: tuple[str, ...] = ()

    @property
    def examples(self) -> int | None:
        """Number of examples behind an upload; None for a probe."""
        return None if self.order is None else 1 + max(place for step in self.order for place in step)


@dataclass(frozen=True)
class MembershipGame:
    """Membership game of a job.

    Attributes:
        file: the file of the candidates, each with its client; in a control it holds the exchanges as well.
        candidates: their number.
        clients: the target clients.
        steps: number of local steps of each of them in a round.
        lr: learning rate of these steps.
        easy: whether the exchanges are those of a control on a fresh network, see `flfw.audit.membership.game`.
        vantage: what the adversary sees: ``server``, ``aggregate``, ``peer`` or ``outsider``.
        group: at ``aggregate`` the number of clients in a sum, else 0.
        peers: at ``peer`` the clients that put together what they know.
        cohorts: for sums, a round, a client that took part in it, and the client's weight in the mean, in turn.
        last: the round after which the final model stands in the file; 0: it does not.
        trained: for an outsider, local steps of a client in all rounds together.
        batch: for an outsider, examples in a step.
        examples: number of examples that each target trains on, which the server is told; empty: it is not.
    """

    file: str
    candidates: int
    clients: tuple[int, ...]
    steps: tuple[int, ...]
    lr: float
    easy: bool = False
    vantage: str = "server"
    group: int = 0
    peers: tuple[int, ...] = ()
    cohorts: tuple[tuple[int, int, int], ...] = ()
    last: int = 0
    trained: int = 1
    batch: int = 1
    examples: tuple[int, ...] = ()

    def among(self, clients: Collection[int]) -> MembershipGame:
        """Return the game of some of the targets."""
        kept = [client in clients for client in self.clients]
        rows = {"clients": self.clients, "steps": self.steps, "examples": self.examples}
        return replace(self, **{name: tuple(compress(row, kept)) for name, row in rows.items()})

    def __post_init__(self) -> None:
        for name, counts in {"steps": self.steps, "examples": self.examples or self.steps}.items():
            fits = len(counts) == len(self.clients) and all(count >= 1 for count in counts)
            require(fits, f"a number of {name} >= 1 for each client of a membership game", **{name: counts})


@dataclass(frozen=True)
class AttackJob(BoundedSettings):
    """An attack on the probes of a probe set, with all its grants.

    Attributes:
        attack: the attack's name.
        probe_set: the probes.
        exchanges: the recordings to attack.
        recordings: the folder of the recordings.
        run_config: the experiment as every participant knows it, without the folders of this machine.
        shape: shape of one input.
        classes: number of classes.
        mean: mean of the inputs' normalisation, per channel or feature.
        std: standard deviation of the inputs' normalisation, likewise.
        device: device of the attack: ``cpu`` or ``cuda``.
        memory: usable fraction of a GPU's memory.
        vantage: the attacker's position, a value of `flfw.recording.observation.Vantage`.
        adaptive: whether the clients' defence is granted.
        public: the file with the public data, and its number of examples; None: not granted.
        start: whether the initial private tensors of all clients are granted.
        uploads: the recordings of the clients' uploads in the round, as far as they are granted.
        examples: clients, each with its number of training examples, where the server is told these.
        earlier: the recordings of the same probes after earlier rounds, likewise.
        game: the membership game, of which the exchanges are the targets' uploads; None: the examples are searched for.
    """

    attack: str
    probe_set: ProbeSet
    exchanges: tuple[Exchange, ...]
    recordings: Path
    run_config: dict[str, Any]
    shape: tuple[int, ...]
    classes: PositiveInt
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: str = "cpu"
    memory: float = 1.0
    vantage: str = "server"
    adaptive: bool = False
    public: tuple[str, int] | None = None
    start: bool = False
    uploads: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    examples: tuple[tuple[int, int], ...] = ()
    game: MembershipGame | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(size >= 1 for size in self.shape), "sizes >= 1 of a job's inputs", shape=self.shape)

    @property
    def name(self) -> str:
        """Stem of its files."""
        suffix = "-adaptive" if self.adaptive else ""
        return f"{re.sub(r'[^A-Za-z0-9_.]+', '-', self.attack)}-{self.probe_set.name}{suffix}"

    def to_json(self) -> bytes:
        """Return the content of the job's file."""
        return json.dumps(asdict(self) | {"recordings": str(self.recordings)}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> AttackJob:
        """Read a job from the output of `to_json`.

        Raises:
            InputError: it is none.
        """
        return from_json(data, cls, "a job of the attacks' queue", "start the audit again")


def alone(job: AttackJob, exchange: Exchange) -> AttackJob:
    """Return a job's attack on the clients of one sum, each with its own examples, for an attack that tells them apart.

    Args:
        job: the job, on sums.
        exchange: one of its sums.
    """
    size = len(exchange.slots)
    each = job.probe_set.batch // size
    probe_set = replace(job.probe_set, group=0, vantage="", batch=each, point=job.probe_set.recorded)
    places = zip(exchange.summed, exchange.slots, strict=True)
    given = [exchange.labels and exchange.labels[each * turn : each * (turn + 1)] for turn in range(size)]
    members = tuple(
        Exchange(id_, exchange.client, slot, labels) for (id_, slot), labels in zip(places, given, strict=True)
    )
    return replace(job, probe_set=probe_set, exchanges=members)


@dataclass(frozen=True)
class JobResult:
    """Result of a job.

    Attributes:
        job: SHA-256 of the job's file.
        reconstructions: one for each exchange of the job; None where the attack gave none.
        stopped: why the attack gave no result at all; None if it gave one.
        seconds: run time of the attack.
        tries: number of starts.
        refused: unusable recordings, a sentence each.
        present: the classes inferred for clients: a client's number, and for each class whether it holds the class.
        shares: the shares of the classes inferred for clients: a client's number, and the share of each class.
        scores: of a membership game: a client's number, a statistic, and the score of each of the client's candidates.
    """

    job: str
    reconstructions: tuple[Reconstruction | None, ...]
    stopped: str | None = None
    seconds: float = 0.0
    tries: int = 1
    refused: tuple[str, ...] = ()
    present: tuple[tuple[int, tuple[bool, ...]], ...] = ()
    shares: tuple[tuple[int, tuple[float, ...]], ...] = ()
    scores: tuple[tuple[int, str, tuple[float | None, ...]], ...] = ()


def failed(job: AttackJob, why: str) -> JobResult:
    """Return the solution of a job without a result."""
    return JobResult(digest(job), (None,) * len(job.exchanges), stopped=why)


def solved(job: AttackJob, reconstructions: Sequence[Reconstruction | None], seconds: float, **more: Any) -> JobResult:
    """Return the solution of a job, with its reconstructions on the CPU."""
    return JobResult(digest(job), tuple(f and _on_cpu(f) for f in reconstructions), seconds=seconds, **more)


def _on_cpu(reconstruction: Reconstruction) -> Reconstruction:
    optional = (reconstruction.searched, reconstruction.agreement, reconstruction.unguided)
    searched, agreed, unguided = (None if one is None else _inputs(one) for one in optional)
    loss, taken, labels = reconstruction.matching_loss, reconstruction.iterations, reconstruction.labels
    if labels is not None:
        labels = _inputs(labels) if labels.is_floating_point() else labels.detach().cpu().long().clone()
    loss, taken = None if loss is None else float(loss), None if taken is None else int(taken)  # perhaps tensors
    return Reconstruction(_inputs(reconstruction.samples), loss, taken, labels, searched, agreed, unguided)


def _inputs(samples: torch.Tensor) -> torch.Tensor:
    return samples.detach().to("cpu", torch.float32, copy=True).contiguous()


def digest(job: AttackJob) -> str:
    """Return the SHA-256 of a job's file, which links a solution to its job."""
    return hashlib.sha256(job.to_json()).hexdigest()
