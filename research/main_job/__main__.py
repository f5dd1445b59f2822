"""Command ``python -m research.main_job``: run the main job over seeds, and print docs/tables/main_job.md."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.files.provenance import code_hash
from flfw.runs import run
from flfw.server.checkpoint import is_complete
from research.main_job import page
from research.main_job.records import DOCS, add, read, take


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return exit_code("python -m research.main_job", lambda: _do(arguments))


def _do(arguments: Sequence[str]) -> int:
    ask = Parser(prog="python -m research.main_job", description=__doc__)
    ask.add_argument("--seeds", nargs="+", type=int, default=[], help="seeds to run on this machine")
    ask.add_argument("--take", nargs="+", type=Path, default=[], help="folders of finished main jobs to add")
    ask.add_argument("--engine", default="inproc", choices=("inproc", "ray"), help="engine of the runs (inproc)")
    ask.add_argument("--runs", type=Path, default=Path("runs/main-job"), help="folder of the runs")
    given = ask.parse_args(arguments)
    require(all(seed >= 0 for seed in given.seeds), "seeds >= 0", seeds=given.seeds)
    if not DOCS.is_dir():
        raise InputError(f"Expected a checkout, for its records and its page in {DOCS}, got an installed package.")
    add([take(folder) for folder in given.take])  # all are read before anything is run
    for seed in dict.fromkeys(given.seeds):
        # The folder has the code's hash: other code is another measurement.
        experiment = Experiment(seed=seed, engine=given.engine, out=given.runs / code_hash() / f"seed-{seed}")
        add([take(_finished(experiment))])
    page.write(read())
    print(page.PAGE)
    return 0


def _finished(experiment: Experiment) -> Path:
    """Run the experiment, or go on with it; a run that is complete is left as it is."""
    folder = experiment.folder.absolute()
    if not is_complete(folder):
        run.run_or_resume(replace(experiment, out=folder))
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
