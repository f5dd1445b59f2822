"""Command ``python -m research.evidence.landed COMMIT ...``: gather evidence by the code of a commit.

The code runs from a git worktree of its own, so that nobody's work in the checkout changes or breaks a run under way.
Worktrees and runs lie in the user's cache, where git and the tests do not look at them; records go to the checkout.

    $XDG_CACHE_HOME/flfw/evidence/COMMIT/    the worktree of a commit; those that nobody uses are removed
    $XDG_CACHE_HOME/flfw/evidence/runs/      the runs of all commits: one that is cut goes on with later code
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from flfw.data.files.cache import user_cache
from flfw.errors import InputError
from flfw.files.exit_code import exit_code

CHECKOUT = Path(__file__).resolve().parents[2]
_PROGRAM = "python -m research.evidence.landed"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def main(arguments: Sequence[str]) -> int:
    """Run the command; where nothing is refused, this process becomes ``python -m research.evidence``."""
    return exit_code(_PROGRAM, lambda: _become(arguments))


def _become(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        raise InputError(f"Expected {_PROGRAM} COMMIT and flags of python -m research.evidence, got no COMMIT.")
    place = user_cache() / "evidence"
    code = worktree(arguments[0], CHECKOUT, place)
    print(f"the code of {code.name} runs from {code}", file=sys.stderr, flush=True)
    os.execve(sys.executable, command(code, CHECKOUT, place, arguments[1:]), environment(code))


def worktree(commit: str, checkout: Path, path: Path) -> Path:
    """Return a worktree of a commit, made if there is none, and locked until this process ends; remove unused ones.

    Args:
        commit: a commit, branch or tag of the checkout's repository.
        checkout: a working tree.
        path: folder of the worktrees.

    Raises:
        InputError: there is no such commit, or other code lies in its worktree.
    """
    full = _git(checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if not full:
        raise InputError(f"Expected a commit of {checkout}, got COMMIT={commit}; give a branch, such as COMMIT=HEAD.")
    path.mkdir(parents=True, exist_ok=True)
    code = path / full
    _lock(code, fcntl.LOCK_SH)
    if not code.exists() and (_git(checkout, "worktree", "add", "--force", "--detach", str(code), full) is None):
        raise InputError(f"Expected a git worktree of {full} in {code}, and git cannot make it; see git worktree list.")
    if _git(code, "rev-parse", "HEAD") != full or _git(code, "status", "--porcelain") != "":
        raise InputError(f"Expected the files of commit {full} in {code}, got others; remove that folder.")
    for other in path.glob("[0-9a-f]" * len(full)):
        if other != code and _lock(other, fcntl.LOCK_EX | fcntl.LOCK_NB):
            _git(checkout, "worktree", "remove", "--force", str(other))
    return code


def _lock(code: Path, kind: int) -> bool:
    """Hold a worktree until this process, and the program that it becomes, end; False: others use it."""
    file = os.open(code.with_name(f".{code.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(file, True)
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        os.close(file)
        return False
    return True


def command(code: Path, checkout: Path, path: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that gathers by some code, with records in the checkout and runs beside the worktrees."""
    folders = ["--code", str(code), "--runs", str(path / "runs"), "--folder", str(checkout / "papers" / "evidence")]
    return [sys.executable, "-m", "research.evidence", *folders, *arguments]


def environment(code: Path, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return variables with which Python finds some code first, before the folder it runs in, and takes one thread."""
    paths = os.pathsep.join(filter(None, (str(code), given.get("PYTHONPATH"))))
    return {**given, **dict.fromkeys(_THREADS, "1"), "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}


def _git(folder: Path, *text: str) -> str | None:
    """Run git in a folder and return its output; None: it failed. A hook's environment names another repository."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    quiet = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-C", str(folder)]
    try:
        done = subprocess.run([*quiet, *text], env=given, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise InputError("Expected git, got none; install it, or call python -m research.evidence.") from error
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
