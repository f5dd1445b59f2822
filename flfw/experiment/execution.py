"""Settings of the engine and of a deployment; they do not change a run's numbers, except by dropped clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flfw.errors import require
from flfw.experiment.fields import require_finite


@dataclass(frozen=True)
class ExecutionSettings:
    """Settings of the engine, its resources, and the treatment of clients that fail."""

    engine: Literal["ray", "inproc", "flwr-sim", "flwr"] = "ray"
    """ray: clients in the processes of Ray; inproc: the same apps, called one after the other in this process;
    flwr-sim: Flower's simulation engine on Ray; flwr: Flower's own commands, with a SuperLink for this run alone."""
    cpus_per_client: float = 1
    """CPU cores set aside for each process that simulates clients, one at a time or, with --batched-clients, some at
    once (ray, flwr-sim, flwr)."""
    gpus_per_client: float = 0
    """Fraction of a GPU set aside for, and used by, each process that simulates clients (ray, flwr-sim, flwr); with
    one, what the server trains itself is computed on a GPU, too, if its machine has any."""
    ray_address: str = ""
    """A running Ray cluster to join, as host:port or auto; by default Ray is started and ended with the run."""
    round_deadline: float = 3600
    """Seconds that clients have for a round; later answers are failures. In process a client is not interrupted. To
    join at the start, they have at most two minutes of it, or ten seconds for each client. In s, > 0."""
    keep_state: bool = False
    """Keep the clients' private tensors in state/ once the run is over; for figures."""
    track: tuple[str, ...] = ()
    """Tools that get the run's figures while it goes on: tensorboard, mlflow, wandb, or package.module:Class; none."""
    out: Path | None = None
    """Folder to write; default: runs/METHOD-DATASET-TIME."""

    def __post_init__(self) -> None:
        require_finite(self, ("round_deadline", "cpus_per_client"))
        require_finite(self, ("gpus_per_client",), zero=True)
        joins = not self.ray_address or self.engine in ("ray", "flwr-sim")
        require(joins, "--engine ray with --ray-address", engine=self.engine)
        require(len(set(self.trackers)) == len(self.trackers), "each tracker once", track=" ".join(self.trackers))

    @property
    def trackers(self) -> tuple[str, ...]:
        """Trackers of the run; empty: none."""
        return () if self.track in (("none",), ()) else self.track


@dataclass(frozen=True)
class DeploymentSettings:
    """Settings of a federation of real sites, in place of a simulation."""

    federation: Path | None = None
    """Folder of a federation of real sites (python -m flfw.deploy) on which to run, rather than to simulate."""
    record: bool = False
    """With --federation: write down what sites send in audited rounds and, where all volunteer examples, their answers
    to probes, for an audit by --from. Both sides' logs say so, and a site's policy may refuse."""
