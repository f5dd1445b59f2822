"""App as ``flwr run .`` starts it: it checks, trains, audits and writes the report without `sim.py`.

Flower starts it in a folder of its own, so results are written to ``out`` or below the user's state folder. If that
folder holds a run of the same experiment, the run is resumed.
"""

import dataclasses
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flfw.audit.auditor import auditing
from flfw.client.site import home, simulation
from flfw.engines.federation import federate
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.folders import unused
from flfw.runs import provenance, run
from flfw.runs.provenance import outside_of
from flfw.runs.results import finish
from flfw.server.checkpoint import Checkpoints, awaits_audit, is_complete, locked, require_same_data, stored_experiment

server = ServerApp()


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the experiment of the run's configuration, from start to report.

    Raises:
        InputError: it cannot be run as asked.
        RunError: it was started and could not be completed.
    """
    requested = dataclasses.replace(Experiment.from_run_config(context.run_config), engine="flwr")
    runs = home() / "runs"
    folder = runs / requested.out if requested.out else unused(runs / run.default_name(requested))
    begun = (folder / "checkpoint").exists()
    run_plan, task, notes = run.check(dataclasses.replace(requested, out=folder), new=not begun)
    experiment = run_plan.experiment
    # Clients read the configuration as it is.
    if (experiment.set, experiment.rounds) != (requested.set, requested.rounds):
        needed = f"set={shlex.join(experiment.set)!r} rounds={experiment.rounds}"
        raise InputError(
            f"Expected what target-epsilon or epsilon-budget asks for in the configuration; give {needed}."
        )
    if begun:
        stored_experiment(folder).require_same(experiment, folder)
    clients = simulation(Checkpoints(folder, experiment).id)
    require_same_data(folder, task.dataset.digest)
    with locked(folder / "checkpoint" / ".run"):
        if not is_complete(folder):
            provenance.begin(folder, outside_of(run_plan))
        if not (awaits_audit(folder) or is_complete(folder)):
            federate(grid, run_plan)
        if not is_complete(folder):
            _fetch(clients, folder, ("truth", "examples", *(["state"] if experiment.keep_state else [])))
            with auditing(run_plan.client, run_plan.audit, task, folder) as auditor:
                finish(run_plan, task, notes, auditor)
        shutil.rmtree(clients, ignore_errors=True)
    print(folder / "report.html", flush=True)


def _fetch(clients: Path, folder: Path, kinds: Iterable[str]) -> None:
    """Copy files of virtual clients, from the only folder that these know of, into the run's folder."""
    for kind in kinds:
        if (clients / kind).exists():
            shutil.copytree(clients / kind, folder / kind, dirs_exist_ok=True)
