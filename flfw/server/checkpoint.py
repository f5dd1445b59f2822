"""Checkpoints, from which a killed run continues: the experiment, and after every round the state of the server.

    experiment-SHA256.json          the experiment, written before any round
    data-SHA256.txt                 the digest of the run's data
    round-00003-SHA256.safetensors  the last round: tensors model/*, server/*, ema/*, canaries/* and versions/*, which
                                    name the version of each client's state; the rest: metadata
    history.jsonl                   a line for each round; the metadata give its length
    rounds.txt                      number of rounds, where a finished run got more

The folder also holds the rounds that were asked for, with their sums and the cohorts' key (`flfw.dp.releases`), the
sessions of the run (`flfw.runs.provenance`), and locks.

Random generators are not stored: each is derived from the seed, the round and its purpose. Clients keep their own
state; the server stores which version of it belongs to the last round. The model of the last checkpoint is what the
server would publish.
"""

import fcntl
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict
from uuid import uuid4

import torch
from flwr.app import ArrayRecord
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.earlier_names import settings_of_today
from flfw.files.folders import stored_at
from flfw.files.provenance import code_hash
from flfw.files.sealed import Journal, JournalMark, force_all, read_checked, seal, sealed, unseal, write_checked
from flfw.files.typed import from_json
from flfw.messages.wire import pack, unpack
from flfw.nets.net import Tensors

_FORMAT = 2
_OTHER_VERSION = "go on with the version of flfw that wrote it, or start a new run"
_ENDING_S = 30.0
_POLL_S = 0.1  # interval between two looks at a lock that another process holds
_CLIENTS, _ROUNDS = "versions/clients", "versions/rounds"
_SCORES = "canaries/scores"
_NOISE = "canaries/noise"
_ROUNDS_NOW = "rounds.txt"


class _Description(TypedDict):
    """Content of the experiment's file."""

    format: int
    id: str
    code: str
    experiment: dict[str, Any]


class _Metadata(TypedDict):
    """Metadata of a round's file."""

    format: int
    experiment: str
    round: int
    order: list[str]
    history: JournalMark
    recordings: JournalMark | None
    resumed: list[dict[str, Any]]


@dataclass(frozen=True)
class Snapshot:
    """State of the server after a round.

    Attributes:
        round: the last complete round, probes included; 0: only the steps before the first round.
        arrays: the next broadcast.
        state: tensors of the server that are never sent.
        state_versions: for each client the version of its private state that belongs to ``arrays``.
        recordings: mark at the end of the recordings; None: there are none.
        scores: (M,) scores of the run's canaries so far, see `flfw.dp.canary_audit`; None: there are no canaries.
        noise: memory of the test of the noise beside them, see `flfw.dp.noise_residual`; None: there is no such test.
        average: moving average of the broadcasts, see `flfw.server.aggregation`; empty: there is none.
    """

    round: int
    arrays: ArrayRecord
    state: Tensors
    state_versions: dict[int, int]
    recordings: JournalMark | None
    scores: Tensor | None = None
    noise: Tensor | None = None
    average: Tensors = field(default_factory=dict)

    @property
    def evaluated(self) -> Tensors:
        """Tensors that the final evaluation takes: the average if there is one, else those of ``arrays``."""
        return self.average or unpack(self.arrays)


class Checkpoints:
    """Folder ``checkpoint`` of a run; only the last round is kept.

    Args:
        folder: folder of the run.
        experiment: the experiment. It is written to a new folder; an old folder must hold the same one.
        state: folder of the clients' private states, which are forced to disk before a checkpoint names them; None:
            the clients do so.

    Attributes:
        id: id of the run, under which clients keep their state.
        last: snapshot from which the run continues; None: only the experiment has been written yet.
        history: for each round that an earlier process wrote, its rows by kind; `save` adds none here.
        code: hash of the code that started the run.
        resumed: rounds after which the run was resumed, this time included, each with the hash of the code.

    Raises:
        InputError: the checkpoint is damaged or belongs to another experiment.
    """

    def __init__(self, folder: Path, experiment: Experiment, state: Path | None = None) -> None:
        self._state = state
        self._folder = folder / "checkpoint"
        stored = ensure_experiment(folder, experiment)
        self.id, self.code, self._seal = stored.id, stored.code, stored.seal
        self.resumed: list[dict[str, Any]] = []
        self.last, self._journal = self._load()
        if self.last:
            self.resumed.append({"after_round": self.last.round, "code": code_hash(), "engine": experiment.engine})
        self.history = self._journal.rows

    def save(self, snapshot: Snapshot, rows: dict[str, Any]) -> None:
        """Write the end of a round in one step, and remove the round before.

        Args:
            snapshot: state of the server.
            rows: rows of the round by kind, which are appended to ``history.jsonl``.
        """
        if self._state and self._state.exists():
            force_all(self._state)
        self._journal.append(rows)
        metadata = {
            "format": _FORMAT,
            "experiment": self._seal,
            "round": snapshot.round,
            "order": list(snapshot.arrays),
            "history": self._journal.mark,
            "recordings": snapshot.recordings,
            "resumed": self.resumed,
        }
        tensors = {f"model/{name}": value for name, value in unpack(snapshot.arrays).items()}
        tensors |= {f"server/{name}": value.detach().cpu().contiguous() for name, value in snapshot.state.items()}
        # Two tensors, as text for each of a million clients would be long.
        versions = torch.tensor(list(snapshot.state_versions.items()), dtype=torch.int64).reshape(-1, 2)
        tensors |= {_CLIENTS: versions[:, 0].contiguous(), _ROUNDS: versions[:, 1].contiguous()}
        tensors |= {f"ema/{name}": value.clone() for name, value in snapshot.average.items()}
        tensors |= {} if snapshot.scores is None else {_SCORES: snapshot.scores.clone()}
        tensors |= {} if snapshot.noise is None else {_NOISE: snapshot.noise.clone()}
        data = save(tensors, {"flfw": json.dumps(metadata)})
        self._drop_all_but(seal(self._folder, f"round-{snapshot.round:05d}", ".safetensors", data))

    def _drop_all_but(self, last: Path) -> None:
        for _, old in sealed(self._folder, "round-*"):
            if old != last:
                old.unlink()

    def _load(self) -> tuple[Snapshot | None, Journal]:
        rounds, history = sealed(self._folder, "round-*"), self._folder / "history.jsonl"
        if not rounds:
            if history.exists() and history.read_bytes().partition(b"\n")[2]:  # the first line is round 0
                raise InputError(f"Expected the last round's checkpoint in {self._folder}, got none; restore it.")
            return None, Journal(history)
        snapshot, metadata = _read(rounds[-1][1], self._seal)
        self.resumed = list(metadata["resumed"])
        self._drop_all_but(rounds[-1][1])
        return snapshot, Journal(history, metadata["history"])


def _read(path: Path, experiment: str) -> tuple[Snapshot, _Metadata]:
    """Read the file of a round, which names the experiment's file."""
    try:
        tensors = load(unseal(path))
        with safe_open(path, "pt") as header:
            metadata = from_json(header.metadata()["flfw"].encode(), _Metadata, path)
        _require_format(metadata["format"], path)
        if metadata["experiment"] != experiment:
            raise InputError(f"Expected a checkpoint of this run, got {path} of another experiment; remove it.")
        snapshot = Snapshot(
            round=_round(metadata["round"]),
            arrays=pack({name: tensors[f"model/{name}"] for name in metadata["order"]}),
            state=_under("server/", tensors),
            state_versions=dict(zip(tensors[_CLIENTS].tolist(), tensors[_ROUNDS].tolist(), strict=True)),
            recordings=metadata["recordings"],
            scores=tensors.get(_SCORES),
            noise=tensors.get(_NOISE),
            average=_under("ema/", tensors),
        )
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"Expected a checkpoint in format {_FORMAT}, got {path}: {error!r}; restore it.") from error
    return snapshot, metadata


@dataclass(frozen=True)
class Stored:
    """Experiment with which a run folder was started.

    Attributes:
        experiment: the experiment.
        id: id of the run, new in every run.
        code: hash of the code that started the run.
        seal: name of the experiment's file, which the checkpoints of the rounds repeat.
    """

    experiment: Experiment
    id: str
    code: str
    seal: str

    def require_same(self, experiment: Experiment, folder: Path) -> None:
        """Raise `InputError` if the numbers of another experiment would differ."""
        for key, value in self.experiment.decisive.items():
            got = experiment.decisive[key]
            if got != value:
                raise InputError(f"Expected {key}={value} as in {folder}, got {key}={got}; start a new run for that.")


def add_rounds(folder: Path, rounds: int) -> None:
    """Give a finished run another number of rounds, so that it is not over: its result goes first.

    Killed between the two steps, the run is finished again as it was.
    """
    (folder / "result.json").unlink()
    write_checked(folder / "checkpoint" / _ROUNDS_NOW, str(rounds).encode())


def require_same_data(folder: Path, digest: str) -> None:
    """Store the digest of a run's data at its start; later, refuse other data.

    Args:
        folder: folder of the run.
        digest: digest of the present data.

    Raises:
        InputError: the run began with other data.
    """
    noted = sealed(folder / "checkpoint", "data")
    if not noted:
        seal(folder / "checkpoint", "data", ".txt", digest.encode())
    elif (before := unseal(noted[-1][1]).decode(errors="replace")) != digest:
        raise InputError(
            f"Expected the data that {folder} began with (digest {before}), got others ({digest}); "
            "restore them or start a new run."
        )


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock that only one process can have; the system releases it when the process dies.

    Args:
        path: file of the lock.
        patience: time in which another process may release it, in seconds.

    Raises:
        InputError: another process holds it.
    """
    until = time.monotonic() + patience
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    at_work = f"Expected {path.parent.parent} to be nobody else's, got a run at work in it."
                    raise InputError(at_work) from None
            time.sleep(_POLL_S)
        yield


def server_lock(folder: Path) -> AbstractContextManager[None]:
    """Return the lock of a run's server; the process of one that was stopped has some time to end."""
    return locked(folder / "checkpoint" / ".server", _ENDING_S)


def awaits_audit(folder: Path) -> bool:
    """Return whether the training in a run folder is over, but not the rest."""
    return (folder / "training.json").exists()


def is_complete(folder: Path) -> bool:
    """Return whether nothing is left to do in a run folder."""
    return (folder / "result.json").exists() and not awaits_audit(folder)


def ensure_experiment(folder: Path, experiment: Experiment) -> Stored:
    """Write the experiment to the folder of a new run, with a new id; or check it against the one there; return that.

    Raises:
        InputError: the folder holds another experiment, or a damaged one.
    """
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not sealed(checkpoint, "experiment"):
        config = experiment.to_run_config()
        description = {"format": _FORMAT, "id": uuid4().hex, "code": code_hash(), "experiment": config}
        seal(checkpoint, "experiment", ".json", json.dumps(description, indent=1).encode())
    stored = stored_experiment(folder)
    stored.require_same(experiment, folder)
    return stored


def stored_experiment(folder: Path) -> Stored:
    """Read the experiment with which the run in a folder was started.

    Raises:
        InputError: there is no checkpoint, or it is damaged.
    """
    path = stored_at(folder)
    description = from_json(unseal(path), _Description, path)
    _require_format(description["format"], path)
    settings = settings_of_today(description["experiment"])
    _require_known(settings, path)
    if (more := folder / "checkpoint" / _ROUNDS_NOW).exists():
        settings["rounds"] = from_json(read_checked(more), int, more)
    try:
        experiment = Experiment.from_run_config(settings)
    except InputError as error:
        raise InputError(f"Expected an experiment of this version of flfw, got {path}: {error}") from error
    return Stored(experiment, description["id"], description["code"], path.stem)


def _require_format(written: int, path: Path) -> None:
    if written != _FORMAT:
        raise InputError(f"Expected a checkpoint in format {_FORMAT}, got {written} in {path}; {_OTHER_VERSION}.")


def _require_known(config: Mapping[str, Any], path: Path) -> None:
    """Refuse settings that this version lacks, which it would drop without a word, or that the other version lacked."""
    known = Experiment().to_run_config()
    odd = [*(f"no {key}" for key in known if key not in config), *sorted(set(config) - set(known))]
    if odd:
        raise InputError(f"Expected the settings of this version of flfw in {path}, got {odd[0]}; {_OTHER_VERSION}.")


def _round(number: int) -> int:
    if number < 0:
        raise ValueError(f"round {number}")
    return number


def last_snapshot(folder: Path) -> Snapshot:
    """Read the server's state after the last round of a run; nothing in the folder changes.

    Raises:
        InputError: the checkpoint is missing or damaged.
    """
    rounds = sealed(folder / "checkpoint", "round-*")
    if not rounds:
        raise InputError(f"Expected the last round's checkpoint in {folder / 'checkpoint'}, got none; restore it.")
    return _read(rounds[-1][1], stored_at(folder).stem)[0]


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
