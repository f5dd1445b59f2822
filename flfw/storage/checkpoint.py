"""What a killed run goes on from: the experiment, and after every round all that the server holds.

Random generators are not kept: each is derived from the seed, the round and its purpose. Clients keep their own state;
the server remembers which version of it belongs to the last round.

    experiment-SHA256.json          what is run, written before anything else
    round-00003-SHA256.safetensors  the last round: model/*, server/* and canaries/* tensors, the rest in the metadata
    history.jsonl                   a line a round; the metadata say how far it goes
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import ArrayRecord
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from flfw.errors import BadInput
from flfw.experiment import Experiment
from flfw.messages.wire import pack, unpack
from flfw.nets.net import Tensors
from flfw.storage.journal import Journal, Mark
from flfw.storage.provenance import code_hash
from flfw.storage.sealed import seal, sealed, unseal

_FORMAT = 1
_SCORES = "canaries/scores"


@dataclass(frozen=True)
class Snapshot:
    """The server after a round.

    Attributes:
        round: the last round that is complete, probes included; 0: only what comes before the first.
        arrays: what it broadcasts next.
        state: its own tensors, which are never sent.
        last_round: for each client the version of its private state that belongs to ``arrays``.
        recordings: where the record of observed messages ended; None: nothing is recorded.
        scores: (M,) of the run's canaries so far, see `flfw.dp.canary_audit`; None: there are none.
    """

    round: int
    arrays: ArrayRecord
    state: Tensors
    last_round: dict[int, int]
    recordings: Mark | None
    scores: Tensor | None = None


class Checkpoints:
    """The ``checkpoint`` folder of one run; of each round only the last is kept.

    Args:
        folder: the run's.
        experiment: what is run. A new folder is given it; an old one must be of the same.

    Attributes:
        id: the experiment's own, under which clients keep their state.
        last: what to go on from; None: nothing but the experiment has been written yet.
        history: the rows of each round so far, by kind.
        code: hash of the code that started the run.
        resumed: after which rounds it was resumed, this time included, and by which code.

    Raises:
        BadInput: what lies there is damaged or belongs to another experiment.
    """

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self._folder = folder / "checkpoint"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not sealed(self._folder, "experiment"):
            config = experiment.to_run_config()
            about = {"format": _FORMAT, "id": uuid4().hex, "code": code_hash(), "experiment": config}
            seal(self._folder, "experiment", ".json", json.dumps(about, indent=1).encode())
        stored = stored_experiment(folder)
        self.id, self.code, self._seal = stored.id, stored.code, stored.seal
        stored.require_same(experiment, folder)
        self.resumed: list[dict[str, Any]] = []
        self.last, self._journal = self._load()
        if self.last:
            now = {"after_round": self.last.round, "code": code_hash(), "engine": experiment.engine}
            self.resumed.append(now)
        self.history = self._journal.rows

    def save(self, snapshot: Snapshot, rows: dict[str, Any]) -> None:
        """Write a round's end in one step, and drop the round before.

        Args:
            snapshot: the server.
            rows: what `history` gains.
        """
        self._journal.append(rows)
        about = {
            "format": _FORMAT,
            "experiment": self._seal,
            "round": snapshot.round,
            "order": list(snapshot.arrays),
            "last_round": {str(p): r for p, r in snapshot.last_round.items()},
            "history": self._journal.mark,
            "recordings": snapshot.recordings,
            "resumed": self.resumed,
        }
        tensors = {f"model/{name}": value for name, value in unpack(snapshot.arrays).items()}
        tensors |= {f"server/{name}": value.detach().cpu().contiguous() for name, value in snapshot.state.items()}
        tensors |= {} if snapshot.scores is None else {_SCORES: snapshot.scores.clone()}
        data = save(tensors, {"flfw": json.dumps(about)})
        self._drop_all_but(seal(self._folder, f"round-{snapshot.round:05d}", ".safetensors", data))

    def _drop_all_but(self, last: Path) -> None:
        for _, old in sealed(self._folder, "round-*"):
            if old != last:
                old.unlink()

    def _load(self) -> tuple[Snapshot | None, Journal]:
        rounds, history = sealed(self._folder, "round-*"), self._folder / "history.jsonl"
        if not rounds:
            if history.exists() and history.read_bytes().partition(b"\n")[2]:  # round 0 has the first line
                raise BadInput(f"Expected the last round's checkpoint in {self._folder}, got none; restore that file.")
            return None, Journal(history)
        path = rounds[-1][1]
        data = unseal(path)
        try:
            tensors = load(data)
            with safe_open(path, "pt") as header:
                about = json.loads(header.metadata()["flfw"])
            if about["experiment"] != self._seal:
                raise BadInput(f"Expected a checkpoint of this run, got {path} of another experiment; remove it.")
            snapshot = Snapshot(
                round=int(about["round"]),
                arrays=pack({name: tensors[f"model/{name}"] for name in about["order"]}),
                state={n.removeprefix("server/"): v for n, v in tensors.items() if n.startswith("server/")},
                last_round={int(p): int(r) for p, r in about["last_round"].items()},
                recordings=about["recordings"],
                scores=tensors.get(_SCORES),
            )
            self.resumed = list(about["resumed"])
            self._drop_all_but(path)
            return snapshot, Journal(history, about["history"])
        except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"Expected a checkpoint in format {_FORMAT}, got {path}: {error!r}; restore it.") from error


@dataclass(frozen=True)
class Stored:
    """What a run folder was started with.

    Attributes:
        experiment: what is run.
        id: its own, new in every run.
        code: hash of the code that started it.
        seal: binds all this to the rounds' checkpoints.
    """

    experiment: Experiment
    id: str
    code: str
    seal: str

    def require_same(self, experiment: Experiment, folder: Path) -> None:
        """Raise `BadInput` if another experiment's numbers would differ."""
        for key, value in self.experiment.decisive.items():
            got = experiment.decisive[key]
            if got != value:
                raise BadInput(f"Expected {key}={value} as in {folder}, got {key}={got}; start a new run for that.")


def require_same_data(folder: Path, digest: str) -> None:
    """Note which data the run in a folder began with; later, refuse others.

    Args:
        folder: the run's.
        digest: of the data that are about to be used.

    Raises:
        BadInput: the run began with other data.
    """
    noted = sealed(folder / "checkpoint", "data")
    if not noted:
        seal(folder / "checkpoint", "data", ".txt", digest.encode())
    elif (before := unseal(noted[-1][1]).decode()) != digest:
        raise BadInput(
            f"Expected the data that {folder} began with (digest {before}), got others ({digest}); "
            "restore them or start a new run."
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that no second process gets, and that the system takes back from a dead one.

    Raises:
        BadInput: another process holds it.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"Expected {path.parent.parent} to be nobody else's, got a run at work in it.") from None
        yield


def stored_experiment(folder: Path) -> Stored:
    """What the run in a folder was started with.

    Raises:
        BadInput: there is nothing to go on from, or it is damaged.
    """
    if not folder.exists():
        raise BadInput(f"Expected a run's folder, got {folder}, which does not exist.")
    found = sealed(folder / "checkpoint", "experiment")
    if not found:
        raise BadInput(f"Expected a run with a checkpoint, got {folder} without; start it anew.")
    path = found[-1][1]
    try:
        about = json.loads(unseal(path))
        experiment = Experiment.from_run_config(about["experiment"])
        return Stored(experiment, str(about["id"]), str(about["code"]), path.stem)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"Expected an experiment of this version of flfw, got {path}: {error!r}.") from error
