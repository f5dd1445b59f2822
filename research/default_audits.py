"""Default audits of methods behind defences: decided or not, and in which time. ``python -m research.default_audits``.

Each run is ``sim.py --dataset digits --method M --defence D --seed S`` and no more, so that it has the attacks, rounds
and budgets that a user gets. A finished run is not repeated. Nothing else should run beside them: the seconds are those
of the whole run, with its training.
"""

import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from itertools import product
from pathlib import Path

from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.files.provenance import code_hash
from flfw.files.result_file import read_result
from flfw.files.sealed import write_atomic
from flfw.report.findings import read_settings
from flfw.report.ranking import decisive_setting
from flfw.server.checkpoint import is_complete

METHODS = ("fedavg", "hyperfl", "fedcg", "fed_cdp", "dp_fedavg")
DEFENCES = ("none", "prune", "dp_gaussian", "soteria", "low_precision")
PAGE = Path(__file__).parents[1] / "docs" / "tables" / "default_audits.md"
_HEAD = """<!-- Written by python -m research.default_audits -->
# Default audits: verdicts and seconds

A cell has the verdict of each seed ({seeds}), and the seconds of the whole run. Code {code}, {machine}, {date}.

"""


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return exit_code("python -m research.default_audits", lambda: _do(arguments))


def _do(arguments: Sequence[str]) -> int:
    ask = Parser(prog="python -m research.default_audits", description=__doc__)
    ask.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of the runs (0 1 2)")
    ask.add_argument("--runs", type=Path, default=Path("runs/default-audits"), help="folder of the runs")
    given = ask.parse_args(arguments)
    root = given.runs.absolute() / code_hash()  # other code is another measurement
    for seed, defence, method in product(given.seeds, DEFENCES, METHODS):
        _run(root, method, defence, seed)
    rows = [f"| defence | {' | '.join(METHODS)} |", "| --- " * (len(METHODS) + 1) + "|"]
    for defence in DEFENCES:
        cells = ["; ".join(_cell(_folder(root, m, defence, seed)) for seed in given.seeds) for m in METHODS]
        rows.append(f"| {defence} | {' | '.join(cells)} |")
    session = read_result(_folder(root, METHODS[0], DEFENCES[0], given.seeds[0]))["provenance"]["sessions"][0]
    about = {"code": code_hash(), "machine": session["machine"]["hardware"], "date": session["started_at"][:10]}
    head = _HEAD.format(seeds=", ".join(map(str, given.seeds)), **about)
    write_atomic(PAGE, "\n".join([head + rows[0], *rows[1:], ""]).encode())
    print(PAGE)
    return 0


def _folder(root: Path, method: str, defence: str, seed: int) -> Path:
    return root / f"{method}-{defence}-s{seed}"


def _run(root: Path, method: str, defence: str, seed: int) -> None:
    """Run an audit unless it is complete; one that is refused leaves its reason."""
    folder = _folder(root, method, defence, seed)
    if is_complete(folder) or folder.with_suffix(".refused").exists():
        return
    flags = {"dataset": "digits", "method": method, "defence": defence, "seed": str(seed), "out": str(folder)}
    command = [sys.executable, "sim.py", *(word for name, value in flags.items() for word in (f"--{name}", value))]
    done = subprocess.run(command, cwd=PAGE.parents[2], capture_output=True, text=True)
    if done.returncode == 2:
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder.with_suffix(".refused"), done.stderr.encode())
    elif done.returncode:
        raise RuntimeError(f"{folder.name}: {done.stderr}")


def _cell(folder: Path) -> str:
    if folder.with_suffix(".refused").exists():
        return "refused"
    result = read_result(folder)
    decisive = decisive_setting(read_settings(folder, result["audit"], pictures=False))
    (session,) = result["provenance"]["sessions"]
    began, ended = (datetime.fromisoformat(session[name]) for name in ("started_at", "ended_at"))
    return f"{decisive.outcome if decisive else 'nothing attacked'}, {(ended - began).seconds} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
