"""Record of a run, which joins its groups of settings, and its conversion from Python and to Flower's run_config."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from flfw.bounds import NonNegativeFinite, PositiveFinite
from flfw.errors import InputError, require
from flfw.experiment.audit import AGGREGATE, PEER, AuditSettings
from flfw.experiment.fields import FlagSettings
from flfw.experiment.training import DataSettings, PrivacySettings, TrainingSettings
from flfw.files.earlier_names import earlier_setting, renames
from flfw.files.folders import from_home
from flfw.files.typed import SchemaMismatchError, fit
from flfw.plugins import Scalar


@dataclass(frozen=True)
class ExecutionSettings(FlagSettings):
    """Settings of the engine, its resources, and the treatment of clients that fail."""

    engine: Literal["ray", "inproc", "flwr-sim", "flwr"] = "ray"
    """ray: clients in the processes of Ray; inproc: the same apps, called one after the other in this process;
    flwr-sim: Flower's simulation engine on Ray; flwr: Flower's own commands, with a SuperLink for this run alone."""
    cpus_per_client: PositiveFinite = 1
    """CPU cores set aside for each process that simulates clients, one at a time or, with --batched-clients, some at
    once (ray, flwr-sim, flwr)."""
    gpus_per_client: NonNegativeFinite = 0
    """Fraction of a GPU set aside for, and used by, each process that simulates clients (ray, flwr-sim, flwr); with
    one, what the server trains itself is computed on a GPU, too, if its machine has any."""
    ray_address: str = ""
    """A running Ray cluster to join, as host:port or auto; by default Ray is started and ended with the run."""
    round_deadline: PositiveFinite = 3600
    """Seconds that clients have for a round; later answers are failures. In process a client is not interrupted. To
    join at the start, they have at most two minutes of it, or ten seconds for each client. In s, > 0."""
    keep_state: bool = False
    """Keep the clients' private tensors in state/ once the run is over; for figures."""
    track: tuple[str, ...] = ()
    """Tools that get the run's figures while it goes on: tensorboard, mlflow, wandb, or package.module:Class; none."""
    out: Path | None = None
    """Folder to write; default: runs/METHOD-DATASET-TIME."""

    def __post_init__(self) -> None:
        super().__post_init__()
        joins = not self.ray_address or self.engine in ("ray", "flwr-sim")
        require(joins, "--engine ray with --ray-address", engine=self.engine)
        require(len(set(self.trackers)) == len(self.trackers), "each tracker once", track=" ".join(self.trackers))

    @property
    def trackers(self) -> tuple[str, ...]:
        """Trackers of the run; empty: none."""
        return () if self.track in (("none",), ()) else self.track


@dataclass(frozen=True)
class DeploymentSettings(FlagSettings):
    """Settings of a federation of real sites, in place of a simulation."""

    federation: Path | None = None
    """Folder of a federation of real sites (python -m flfw.deploy) on which to run, rather than to simulate."""
    record: bool = False
    """With --federation: write down what sites send in audited rounds and, where all volunteer examples, their answers
    to probes, for an audit by --from. Both sides' logs say so, and a site's policy may refuse."""


_LARGEST = 2**63


def convert_fields(record: object) -> None:
    """Convert the fields of a new frozen record: one word to a tuple, text to a path, a mapping to assignments.

    A list becomes a tuple, a number or a truth of NumPy one of Python. `flfw.bounds` checks ranges and words.

    Raises:
        InputError: a value has another type; names the flag.
    """
    for name, kind in _kinds(type(record)).items():
        given = getattr(record, name)
        if type(given) is kind and (kind is not str or given.isascii()):
            continue
        value = _converted(given, kind)
        if not (kind in (int, float) and _is_beyond(value)):
            value = _fitted(value, Path if Path in get_args(kind) and value is not None else kind, name)
            value = from_home(value) if isinstance(value, Path) else value
        if value is not given:
            object.__setattr__(record, name, value)


@cache
def _kinds(record: type) -> dict[str, Any]:
    """Return the types of a record's fields by name; without words, which `flfw.bounds` checks alone."""
    hints, fields = get_type_hints(record), dataclasses.fields(cast(Any, record))
    return {field.name: hints[field.name] for field in fields if get_origin(hints[field.name]) is not Literal}


def _converted(value: Any, kind: Any) -> Any:
    """Convert a value to the type of a field, where it can be meant so; else return it as it is."""
    if get_origin(kind) is tuple:
        if isinstance(value, Mapping):
            return tuple(f"{name}={_word(setting)}" for name, setting in value.items())
        words = (value,) if isinstance(value, str) else value
        return tuple(words) if isinstance(words, list) else words
    if Path in get_args(kind) and isinstance(value, str | os.PathLike):
        return os.fspath(value) or None
    if kind in (int, float) and not isinstance(value, bool | int | float):
        if isinstance(value, Integral):
            return int(value)
        return float(value) if kind is float and isinstance(value, Real) else value
    if kind is bool and type(value).__name__ in ("bool", "bool_"):  # NumPy's names of its truths
        return bool(value)
    return value


def _is_beyond(value: Any) -> bool:
    """Return whether a number is infinite, none at all, or of more than 64 bits: a field's own check says its range."""
    return type(value) in (int, float) and not (isfinite(value) and abs(value) < _LARGEST)


def _word(setting: Any) -> str:
    """Return a setting as ``--set`` has it.

    >>> _word(True), _word(0.5)
    ('true', '0.5')
    """
    return str(setting).lower() if isinstance(setting, bool) else str(setting)


def _fitted(value: Any, kind: Any, name: str) -> Any:
    try:
        return fit(value, kind, name.replace("_", "-"))
    except SchemaMismatchError as error:
        raise InputError(f"Expected {error}.") from error


FREE_ON_RESUME = (
    "on_client_failure",
    "round_deadline",
    "engine",
    "federation",
    "cpus_per_client",
    "gpus_per_client",
    "attack_gpus",
    "attack_process",
    "attack_timeout",
    "keep_recorded_rounds",
    "keep_state",
    "show_samples",
    "lpips_weights",
    "weights",
    "ray_address",
    "track",
    "data_root",
    "out",
)
"""Settings that may change when a run is resumed, as none of them decides its numbers."""

EXPERT = (
    *("robust", "patience", "ema", "final_eval_clients", "init", "norm", "example_order"),
    *("weights", "defence_randomness", "test", "own_images", "augment", "normalise"),
    *("epsilon_budget", "delta", "accountant", "patient_examples", "colluding_clients", "canaries"),
    *("membership_pairs", "sum_size", "adaptation", "attack_process", "attack_timeout"),
    *("attack_precision", "keep_recorded_rounds", "keep_state", "record"),
    *("on_client_failure", "round_deadline"),
)
"""Settings that are no flags of their own: the command line takes them behind ``--expert`` as KEY=VALUE."""

DERIVED = ("weights_sha256",)
"""Settings that nobody gives: a plan finds them, and they travel with the others."""

_SOURCE = "the run's configuration"


@dataclass(frozen=True)
class Experiment(
    DeploymentSettings, ExecutionSettings, AuditSettings, PrivacySettings, DataSettings, TrainingSettings
):  # the last base's fields come first
    """Settings of a run: those that determine its numbers, and those of its engine.

    Code that needs one group of the settings takes that group as its parameter type: `TrainingSettings`,
    `DataSettings`, `PrivacySettings`, `AuditSettings`, `ExecutionSettings` or `DeploymentSettings`. An experiment is an
    instance of each of them.
    """

    set: tuple[str, ...] = ()
    """Hyper-parameters: FIELD=VALUE for the method's, PLUGIN.FIELD=VALUE for another plug-in's."""

    def __new__(cls, *given: object, **fields: object) -> Experiment:
        """Refuse a field by the name of an earlier version."""
        for name in fields:
            if refused := earlier_setting(name.replace("_", "-")):
                raise InputError(f"{refused}.")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        convert_fields(self)
        for name in ("curve", "set", *(flag.replace("-", "_") for flag in renames().values)):
            given = getattr(self, name)
            if refused := earlier_setting(name.replace("_", "-"), given if isinstance(given, tuple) else (given,)):
                raise InputError(f"{refused}.")
        super().__post_init__()
        _ = self.audited
        alone = self.membership_pairs in ("auto", "none") or not self.canaries
        require(alone, f"canaries=0 with membership-pairs={self.membership_pairs}", canaries=self.canaries)
        if PEER in self.vantage:
            number, fewer = self.colluding_clients, f"0 <= colluding-clients < {self.clients} clients"
            require(number < self.clients, fewer, colluding_clients=number)
            beside = f"more than {self.colluding_attackers} clients, the peer and who works with it, in a sum, "
            beside += "probed and in a round"
            require(self.groups[0] > self.colluding_attackers, beside, sum_size=self.groups[0])
        if {AGGREGATE, PEER} & set(self.vantage):
            maximum = min(self.images, self.per_round)
            required = f"groups of 1 to {maximum} clients, as many as are probed and take part in a round"
            require(max(self.groups) <= maximum, required, sum_size=max(self.groups))
            alike = len(self.defended_partitions) in (0, self.clients)
            require(alike, f"all clients or none defended with --vantage {AGGREGATE} or {PEER}", defended=self.defended)

    @property
    def folder(self) -> Path:
        """Output folder of a run that has its place: the check of a run, a matrix or a table named it."""
        assert self.out is not None, "the run was placed"
        return self.out

    @property
    def groups(self) -> tuple[int, ...]:
        """Numbers of clients in a sum, at `AGGREGATE` and `PEER`: the target's first, then those of the curve."""
        return self.sum_sizes(self.per_round)

    @property
    def colluding_attackers(self) -> int:
        """Clients whose messages an attacker on sums knows: a peer's own, and of those that work together with it."""
        return max(1, self.colluding_clients)

    @property
    def decisive(self) -> dict[str, Scalar]:
        """Fields on which the run's numbers depend; all others may change when the run is resumed."""
        free = {name.replace("_", "-") for name in FREE_ON_RESUME}
        return {key: value for key, value in self.to_run_config().items() if key not in free}

    @property
    def audited(self) -> tuple[int, ...]:
        """Audited rounds, ascending; empty when there is no audit and no recording for an audit."""
        return self.rounds_audited(self.rounds, self.rounds) if self.attacks or self.record else ()

    def to_run_config(self) -> dict[str, Scalar]:
        """Convert to Flower's run_config: flat, scalars only; a tuple becomes one shell-quoted string."""
        flat: dict[str, Scalar] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                value = shlex.join(value)
            elif value is None or isinstance(value, Path):
                value = str(value or "")
            flat[field.name.replace("_", "-")] = value
        return flat

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Experiment:
        """Read an experiment from a run_config, the inverse of `to_run_config`; keys of other apps are ignored.

        Raises:
            InputError: a key is missing, or its value has another type or is out of its range.
        """
        earlier = {today: key for key, today in renames().flags.items() if key in config}
        for key in _keys():
            if key not in config and key in earlier:
                raise InputError(f"Expected {key} in {_SOURCE}, got its earlier name {earlier[key]}; rename it.")
            if key not in config:
                raise InputError(f"Expected {key} in {_SOURCE}, got none; give every key of this version of flfw.")
            if not isinstance(config[key], Scalar):
                raise InputError(f"Expected {key} as text or number in {_SOURCE}, got a {type(config[key]).__name__}.")
        for key in renames().values:
            if refused := earlier_setting(key, [config[key]]):
                raise InputError(f"{refused}.")
        return _read(*(config[key] for key in _keys()))


@cache
def _keys() -> tuple[str, ...]:
    """List the keys of a run_config, in the order of the fields."""
    return tuple(field.name.replace("_", "-") for field in dataclasses.fields(Experiment))


@lru_cache(16, typed=True)  # each message of a run has the same configuration
def _read(*config: Scalar) -> Experiment:
    """Read an experiment from the values of its fields in a run_config, in the fields' order."""
    hints, values = get_type_hints(Experiment), {}
    for field, value in zip(dataclasses.fields(Experiment), config, strict=True):
        kind, key = hints[field.name], field.name.replace("_", "-")
        try:
            if get_origin(kind) is tuple:
                values[field.name] = tuple(shlex.split(fit(value, str, key)))
            elif Path in get_args(kind):
                values[field.name] = fit(value, Path, key) if value else None
            else:
                fitting = fit(value, kind, key)
                values[field.name] = float(fitting) if kind is float else fitting  # TOML reads 1.0 back as 1
        except SchemaMismatchError as error:
            raise InputError(f"Expected {error} in {_SOURCE}.") from error
        except ValueError as error:  # of quotes that do not end
            raise InputError(f"Expected words as in a shell for {key} in {_SOURCE}, got {value} ({error}).") from error
    return Experiment(**values)
