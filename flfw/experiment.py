"""What to run: one frozen record, the same as command-line flags, as Flower's flat run_config and in result.json."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from flfw.curves import Point, points
from flfw.errors import BadInput, require

Scalar = bool | int | float | str
S = TypeVar("S")

VANTAGES = ("server", "client_update", "client_example")
"""Where an adversary may stand: at the server or, on the client, at its update or at one example's gradient."""

FREE_ON_RESUME = (
    "on_client_failure",
    "min_clients",
    "round_deadline",
    "engine",
    "federation",
    "cpus_per_client",
    "gpus_per_client",
    "attack_gpus",
    "attack_server",
    "attack_seconds",
    "attack_retries",
    "compression",
    "observations_gb",
    "keep_observations",
    "keep_state",
    "pictures",
    "lpips_weights",
    "ray_address",
    "data_root",
    "out",
)


@dataclass(frozen=True)
class Experiment:
    """Everything that determines a run's numbers, and where it happens."""

    method: str = "hyperfl"
    """Federated method: a file of strategies/, or package.module:Class. See --list."""
    dataset: str = "digits"
    """Data set, see --list; folder:PATH for your own images, a folder a class; hf:NAME for the Hugging Face Hub;
    site:CxHxW:CLASSES for what only the sites of a federation have."""
    net: str = "auto"
    """Network; auto: the one the method names, else the one the papers use on this data set."""
    split: str = "auto"
    """How the data are cut into clients; auto: the data set's usual way. See --list and --show-split."""
    side: int = 0
    """Height and width in pixels that images are resized to; 0: what the network takes, else as published."""
    augment: Literal["auto", "none", "flip", "crop_flip"] = "auto"
    """How training images are varied; auto: as the papers do on this data set."""
    normalise: Literal["own", "imagenet", "half"] = "own"
    """Mean and deviation that images are normalised with: the data set's own, ImageNet's, or 0.5."""
    clients: int = 10
    """Clients in all."""
    sample: int = 0
    """Clients drawn in each round; 0: all of them."""
    sampling: Literal["fixed", "poisson"] = "fixed"
    """How they are drawn: exactly so many, or each by a coin of its own, so that their number varies."""
    rounds: int = 10
    """Rounds of training."""
    patience: int = 0
    """End when no client's validation accuracy has risen for so many rounds; 0: no such end."""
    local_epochs: int = 5
    """Passes over a client's own data in each round."""
    batch_size: int = 50
    """Examples in a local step."""
    lr: float = 0.01
    """Learning rate of the local steps."""
    seed: int = 0
    """Everything random is derived from it."""
    target_epsilon: float = 0.0
    """Find the least noise of the method that keeps this epsilon; 0: the noise is as set."""
    epsilon_budget: float = 0.0
    """Stop before the round that would exceed this epsilon; 0: no such end."""
    delta: float = 1e-5
    """Probability with which an epsilon may fail; to be below one over the number of whoever is protected."""
    accountant: Literal["prv", "rdp", "moments"] = "prv"
    """How epsilons are computed; all are upper bounds, prv the tightest, moments as in older papers."""
    accounting: Literal["exact", "paper"] = "exact"
    """paper: also as the method's paper counts, and a target and a budget by that; the true figure stands beside it."""
    patient_examples: int = 0
    """The most examples that one patient has at a client, for the privacy of patients; 0: not known."""
    canaries: int = 0
    """Examples that are left out by a coin, to measure from one run how much is certainly lost; 0: none."""
    defence: str = "none"
    """Client-side defence: a file of clients/defences/, or package.module:Class."""
    defended: str = "all"
    """Which clients use the defence: all, or partition numbers such as 3,5."""
    attack: tuple[str, ...] = ("ig", "auto")
    """Attacks of the audit (files of attacks/, or package.module:Class), or none. auto: the attack that bears the
    method's name, if there is one."""
    audit_rounds: str = "0,last"
    """Rounds after which clients are probed; 0 is before training."""
    victim_batch: int = 1
    """Examples in a probe."""
    victim_steps: int = 1
    """Local steps in a probe; one is sent as its gradient, several as the weights after them."""
    images: int = 8
    """Probes in each audited round, over as many clients as there are."""
    curve: tuple[str, ...] = ()
    """Probes of other sizes besides, for curves: batch=1,4,16 or steps=1,5,20, or ladder=1x1,4x1,4x5 of both sizes."""
    vantage: tuple[str, ...] = ("server",)
    """Where attackers stand: server, client_update (as sent), client_example (one gradient in local training)."""
    on_client_failure: Literal["fail", "drop"] = "fail"
    """What becomes of a client that fails: it ends the run, or it is dropped from the round. Either way it is named."""
    min_clients: int = 1
    """A round with fewer usable updates ends the run."""
    round_deadline: float = 3600
    """Seconds that clients have for a round; later answers are failures. In process a client is not interrupted."""
    engine: Literal["ray", "inproc", "flwr"] = "ray"
    """ray: Flower's simulation engine; inproc: the same apps, called one after the other in this process; flwr:
    Flower's own commands, with a SuperLink for this run alone."""
    federation: Path | None = None
    """Folder of a federation of real sites (python -m flfw.deploy) on which to run, rather than to simulate."""
    record: bool = False
    """With --federation: write down what sites send in audited rounds and, where all volunteer examples, their answers
    to probes, for an audit by --from. Both sides' logs say so, and a site's policy may refuse."""
    cpus_per_client: float = 1
    """CPU cores set aside for each concurrently simulated client (ray, flwr)."""
    gpus_per_client: float = 0
    """Fraction of a GPU set aside for, and used by, each concurrently simulated client (ray, flwr)."""
    server_device: Literal["cpu", "cuda"] = "cpu"
    """Where the server computes what it trains itself; averages are always taken on the CPU."""
    attack_gpus: float = 0
    """Fraction of a GPU that clients leave free for the attacks (ray)."""
    attack_server: Literal["auto", "beside", "after", "inline"] = "auto"
    """Attacks run in a process of their own, beside training or after it, or inline, in this one; auto: beside, but
    inline with --engine inproc."""
    attack_seconds: float = 3600.0
    """Seconds that a try of an attack may take on one kind of probe of one round; then it is ended, unless inline."""
    adaptation: Literal["auto", "automatic", "none"] = "auto"
    """Beside an attacker who does not know of a defence, one who does: with what is written for the defence, else with
    its own code in the objective; automatic: always with its own code; none: without."""
    attack_memory_gb: float = 4.0
    """Memory that a step of the searches done at once may take, in GB (1e9 bytes)."""
    attack_compile: bool = False
    """Compile the searches: up to a minute at the start, then faster steps. Needs a C++ compiler."""
    attack_retries: int = 1
    """How often an attack that crashed or was ended is tried again."""
    lpips_weights: Path | None = None
    """AlexNet's weights for LPIPS: torchvision's file, or its features as safetensors; without them LPIPS is null."""
    pictures: Literal["auto", "yes", "no"] = "auto"
    """Whether the report shows clients' samples; auto: not those of a user's own data (folder:, hf:)."""
    compression: Literal["none", "gzip"] = "none"
    """How recordings are stored."""
    observations_gb: float = 20.0
    """Recordings may grow to so many GB (1e9 bytes); what does not fit is left out, and said."""
    keep_observations: int = -1
    """After the audit, keep the recordings of the last so many recorded rounds (0 has the ladder); -1: of all."""
    keep_state: bool = False
    """Keep the clients' private tensors in state/ once the run is over; for figures."""
    ray_address: str = ""
    """A running Ray cluster to join, as host:port or auto; by default Ray is started and ended with the run."""
    data_root: Path | None = None
    """Folder with the data sets' own files; default: $FLFW_DATA, else the user cache."""
    out: Path | None = None
    """Folder to write; default: runs/METHOD-DATASET-TIME."""
    set: tuple[str, ...] = ()
    """Hyper-parameters: FIELD=VALUE for the method's, PLUGIN.FIELD=VALUE for another plug-in's."""

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "local_epochs", "batch_size", "victim_batch", "victim_steps", "images"):
            require(getattr(self, name) >= 1, f"{name.replace('_', '-')} >= 1", **{name: getattr(self, name)})
        require(0 <= self.sample <= self.clients, f"0 <= sample <= clients={self.clients}", sample=self.sample)
        require(0 < self.lr < inf, "0 < lr < inf", lr=self.lr)
        require(self.seed >= 0, "seed >= 0", seed=self.seed)
        require(self.side >= 0, "side >= 0", side=self.side)
        require(0 < self.delta < 1, "0 < delta < 1", delta=self.delta)
        for name in ("target_epsilon", "epsilon_budget"):
            value = getattr(self, name)
            require(0 <= value < inf, f"0 <= {name.replace('_', '-')} < inf", **{name: value})
        for name in ("patience", "patient_examples", "canaries"):
            require(getattr(self, name) >= 0, f"{name.replace('_', '-')} >= 0", **{name: getattr(self, name)})
        fits = bool(self.vantage) and set(self.vantage) <= set(VANTAGES) and len(set(self.vantage)) == len(self.vantage)
        require(fits, f"vantage among {', '.join(VANTAGES)}, each once", vantage=" ".join(self.vantage))
        self._check_resources()
        _ = self.audited, self.defended_partitions, self.points

    def _check_resources(self) -> None:
        fits = 1 <= self.min_clients <= self.cohort
        require(fits, f"1 <= min-clients <= {self.cohort}, the clients of a round", min_clients=self.min_clients)
        require(0 < self.round_deadline < inf, "0 < round-deadline < inf", round_deadline=self.round_deadline)
        require(0 < self.cpus_per_client < inf, "0 < cpus-per-client < inf", cpus_per_client=self.cpus_per_client)
        for name in ("gpus_per_client", "attack_gpus"):
            require(
                0 <= getattr(self, name) < inf, f"0 <= {name.replace('_', '-')} < inf", **{name: getattr(self, name)}
            )
        require(0 < self.attack_seconds < inf, "0 < attack-seconds < inf", attack_seconds=self.attack_seconds)
        require(0 < self.attack_memory_gb < inf, "0 < attack-memory-gb < inf", attack_memory_gb=self.attack_memory_gb)
        require(self.attack_retries >= 0, "attack-retries >= 0", attack_retries=self.attack_retries)
        require(0 < self.observations_gb < inf, "0 < observations-gb < inf", observations_gb=self.observations_gb)
        require(self.keep_observations >= -1, "keep-observations >= -1", keep_observations=self.keep_observations)
        joins = not self.ray_address or self.engine == "ray"
        require(joins, "--engine ray with --ray-address", engine=self.engine)

    @property
    def decisive(self) -> dict[str, Scalar]:
        """What the numbers depend on; the rest may change when a run is resumed."""
        free = {name.replace("_", "-") for name in FREE_ON_RESUME}
        return {key: value for key, value in self.to_run_config().items() if key not in free}

    @property
    def cohort(self) -> int:
        """Clients in each round."""
        return self.sample or self.clients

    @property
    def attacks(self) -> tuple[str, ...]:
        """The attacks to run; empty when there is no audit."""
        return () if self.attack in (("none",), ()) else self.attack

    @property
    def audited(self) -> tuple[int, ...]:
        """The audited rounds, ascending; empty when there is no audit and nothing is recorded for one."""
        return self.audited_by(self.rounds)

    def audited_by(self, last: int) -> tuple[int, ...]:
        """The audited rounds of a run that ended after round ``last``: of later ones there is nothing."""
        if not (self.attacks or self.record):
            return ()
        words = self.audit_rounds.split(",")
        rounds = {last if word == "last" else _integer(word, "audit-rounds") for word in words}
        fits = all(r <= self.rounds for r in rounds)
        require(fits, f"0 <= audit-rounds <= rounds={self.rounds}", audit_rounds=self.audit_rounds)
        return tuple(r for r in sorted(rounds) if r <= last)

    @property
    def points(self) -> tuple[Point, ...]:
        """What is probed in an audited round: the target first, then the curves' points that differ from it."""
        return points(self.curve, self.victim_batch, self.victim_steps)

    @property
    def defended_partitions(self) -> frozenset[int]:
        """The partitions whose clients use the defence."""
        everyone = range(self.clients)
        words = everyone if self.defended == "all" else self.defended.split(",")
        chosen = frozenset(_integer(str(word), "defended") for word in words)
        require(all(p in everyone for p in chosen), f"0 <= defended < {self.clients}", defended=self.defended)
        return chosen if self.defence != "none" else frozenset()

    def to_run_config(self) -> dict[str, Scalar]:
        """Flower's run_config: flat, scalars only; a tuple becomes one shell-quoted string."""
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
        """The inverse of `to_run_config`; keys of other apps are left alone."""
        hints, values = get_type_hints(cls), {}
        for field in dataclasses.fields(cls):
            value = config[field.name.replace("_", "-")]
            kind = hints[field.name]
            if get_origin(kind) is tuple:
                value = tuple(shlex.split(value))
            elif Path in get_args(kind):
                value = Path(value) if value else None
            elif kind is float:
                value = float(value)  # TOML reads 1.0 written as 1 back as an int
            values[field.name] = value
        return cls(**values)


def _integer(word: str, flag: str) -> int:
    if not word.strip().isdecimal():
        raise BadInput(f"Expected whole numbers for {flag}, got {word!r}.")
    return int(word)
