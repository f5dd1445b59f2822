"""Measurements of costs, each in a process of its own: ``python -m flfw.runs.measuring KIND EXPERIMENT FOLDER BEGUN``.

As many clients are measured at a time as will work at a time, because they share the memory bandwidth. Attacks are
measured in one more process, with all cores. So the caller's process does not change, and the peaks of memory are real.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flfw.audit.jobs import round_probe_sets
from flfw.engines import machine
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.files.exit_code import exit_code
from flfw.plans.run_plan import RunPlan, plan
from flfw.runs.attack_costs import ENOUGH_S
from flfw.runs.audit_costs import audit_costs
from flfw.runs.costs import Costs, client_costs, peak_gib, server_costs
from flfw.runs.timing import ENOUGH_S as OF_A_CLIENT_S
from flfw.runs.timing import announced

_PROGRAM = "measuring"
_NAMED = f"{_PROGRAM}: "
UNSAID_S = 10.0
"""Seconds that an estimate may take without a word."""
_WORTH_S = 1.0  # what is still to come and shorter is not announced
_CALLS = 2  # of an attack on a target, each of which takes `ENOUGH_S` or more
_OF_A_GAME = 5  # calls of an attack on membership
_AUDIT_IMPORTS = 2  # imports of an audit's process, in those of this one


def measuring_s(run_plan: RunPlan, kinds: int, own_s: float) -> float:
    """Return the expected seconds of all measurements.

    Args:
        run_plan: of the run.
        kinds: number of processes, one after the other.
        own_s: seconds that this process took so far: for imports and data, which each of the others needs as well.
    """
    experiment = run_plan.experiment
    alone = kinds * own_s + _CALLS * OF_A_CLIENT_S
    if not experiment.audited:
        return alone
    sizes = {probe_set.batch * probe_set.steps for probe_set in round_probe_sets(experiment, experiment.record, 0)}
    targets = 1 + min(2, len(sizes)) + (experiment.audit_source != "probe")
    searches = len(run_plan.audit.reconstructions) * targets * _CALLS * ENOUGH_S
    games = len(run_plan.audit.memberships) * _OF_A_GAME * ENOUGH_S
    return alone + (_AUDIT_IMPORTS - 1) * own_s + searches + games


def measured(kind: str, experiment: Experiment, copies: int, began: float) -> list[Costs]:
    """Measure costs in some processes at a time; a line on stderr says where the whole estimate takes long.

    Args:
        kind: ``client``, ``server`` (of a method whose server trains) or ``audit``.
        experiment: resolved and checked.
        copies: number of processes.
        began: beginning of the estimate, by `time.monotonic`.

    Raises:
        InputError: a measurement refused the experiment.
        RunError: a measurement failed, as the run would.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    variables |= machine.ALLOCATOR if kind == "client" and experiment.engine != "inproc" else {}
    started, notices = list[subprocess.Popen[str]](), list[float]()

    def measure(folder: str) -> Costs:
        arguments = [kind, json.dumps(experiment.to_run_config()), folder, str(time.time())]
        command = [sys.executable, "-m", __name__, *arguments]
        with (
            Path(f"{folder}.errors").open("w+") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables) as process,
        ):
            started.append(process)
            last = ""
            for last in process.stdout or ():
                more_s = announced(last) or 0.0
                if more_s >= _WORTH_S and time.monotonic() - began + more_s > UNSAID_S and not notices:
                    notices.append(more_s)
                    print(f"estimate: the measurement of the {kind} takes about {more_s:.0f} s more", file=sys.stderr)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = code = os.waitstatus_to_exitcode(status)
            errors.seek(0)
            message = errors.read().strip().rpartition("\n")[2].removeprefix(_NAMED)
        if code == 2:
            raise InputError(message)
        if code:
            raise RunError(f"The measurement of the {kind} failed: {message}")
        costs: Costs = json.loads(last)
        # At its end a process touches pages of its libraries that it never used.
        costs["exit_s"] = max(0.0, used.ru_utime + used.ru_stime - costs["all_s"])
        costs["exit_gib"] = max(0.0, used.ru_maxrss / 1024**2 - costs["all_gib"])
        return costs

    with tempfile.TemporaryDirectory(prefix="flfw-estimate-") as folder, ThreadPoolExecutor(copies) as pool:
        try:
            return list(pool.map(measure, [f"{folder}/{i}" for i in range(copies)]))
        except BaseException:  # an interrupt does not wait for them
            for process in started:
                process.kill()
            raise


def _measure(kind: str, config: str, folder: Path, begun: float) -> int:
    importlib.import_module("flfw.engines.apps")  # the modules that clients and server import
    costs: Costs = {"ready_s": min(time.time() - begun, time.process_time()), "base_gib": peak_gib()}
    folder.mkdir()
    kinds = {"client": client_costs, "server": server_costs, "audit": audit_costs}
    kinds[kind](plan(Experiment.from_run_config(json.loads(config))), folder, costs)
    print(json.dumps(costs | {"all_gib": peak_gib(), "all_s": time.process_time()}))
    return 0


if __name__ == "__main__":
    given = sys.argv
    sys.exit(exit_code(_PROGRAM, lambda: _measure(given[1], given[2], Path(given[3]), float(given[4]))))
