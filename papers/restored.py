"""Clients of a finished run with their private tensors, which ``--expert keep_state=true`` has kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, final

from flfw.client.context import ClientContext
from flfw.client.store import ClientStore, StateMissingError
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.messages.sharing import matches
from flfw.messages.wire import unpack
from flfw.nets.conditional_gan import GeneratingNet
from flfw.plan import plan
from flfw.runs import run
from flfw.storage.checkpoint import Checkpoints, Snapshot, is_complete, require_same_data, stored_experiment
from flfw.task import Task


@final
@dataclass(frozen=True)
class Restored:
    """Finished run of a method whose clients keep an extractor and receive a generator of its features.

    Attributes:
        folder: of the run.
        id: of the run.
        experiment: without `auto`.
        task: data and split of the run.
        last: what the server would send next.
    """

    folder: Path
    id: str
    experiment: Experiment
    task: Task
    last: Snapshot

    @property
    def clients(self) -> list[int]:
        """Clients of which an update was used, ascending."""
        return [client for client in sorted(self.last.last_round) if self.last.last_round[client]]

    def model(self, client: int) -> GeneratingNet:
        """Return the model with which a client would begin the next round, on the CPU and in evaluation mode.

        Raises:
            InputError: its private tensors are not there, or damaged.
        """
        store = ClientStore(self.folder / "state", self.id, client)
        now = self.last.round + 1
        place = ClientContext(plan(self.experiment).client, self.task, client, now, None, store)
        made = plan(replace(self.experiment, gpus_per_client=0.0)).client_class(place)
        received = {name: value.numpy() for name, value in unpack(self.last.arrays).items()}
        try:
            made.load_received(received, self.last.last_round[client])
        except (OSError, StateMissingError) as error:
            raise InputError(f"Expected the whole state of the run in {self.folder}: {error}") from error
        return cast(GeneratingNet, made.model.cpu().eval())


def restored(folder: Path, data_root: Path | None = None) -> Restored:
    """Open a finished run.

    Args:
        folder: of a run with ``--expert keep_state=true``.
        data_root: present folder of the data; None: the folder that the run used.

    Raises:
        InputError: the run, its state or its data are not there, or its method has no extractor and generator.
    """
    stored = stored_experiment(folder)
    _require_generator(stored.experiment)
    if not (folder / "state").is_dir():
        raise InputError(
            f"Expected the clients' private tensors in {folder / 'state'}, got none; run with --expert keep_state=true."
        )
    asked = replace(stored.experiment, out=folder, data_root=data_root or stored.experiment.data_root)
    run_plan, task, _ = run.check(asked, new=False)
    require_same_data(folder, task.dataset.digest)
    last = Checkpoints(folder, stored.experiment).last
    if last is None or not is_complete(folder):
        raise InputError(
            f"Expected a finished run with rounds of training, got {folder}; name another, or --resume it."
        )
    return Restored(folder, stored.id, run_plan.experiment, task, last)


def _require_generator(experiment: Experiment) -> None:
    model, shared = plan(experiment).client.model, plan(experiment).client.sharing.downloads
    names = [name for name in model.state_dict() if name.startswith("extractor.")]
    if not isinstance(model, GeneratingNet) or any(matches(name, shared) for name in names):
        raise InputError(
            "Expected a method whose clients keep an extractor and receive a generator of features, got "
            f"{experiment.method}."
        )
