"""Git commit of a file's repository, and whether its tree is dirty."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import TypedDict

_PATIENCE_S = 20


class Revision(TypedDict):
    """Commit of a repository; dirty: tracked files differ from it, or there are Python files that it does not know."""

    commit: str
    dirty: bool


@cache
def revision(file: Path) -> Revision | None:
    """Return the revision of the repository that a file belongs to; a process looks once.

    Args:
        file: a file.

    Returns:
        The revision; None: the file is in no repository or is ignored there, as an installed package is; the
        repository has no commit; or git is not installed or refuses.
    """
    file = file.resolve()
    if not file.exists() or _git(file.parent, "check-ignore", "--quiet", file.name) is not None:
        return None
    commit = _git(file.parent, "rev-parse", "HEAD")
    root = _git(file.parent, "rev-parse", "--show-toplevel")
    if not commit or not root:
        return None
    status = _git(Path(root), "status", "--porcelain", "--untracked-files=all")
    if status is None:
        return None
    changed = [line for line in status.splitlines() if not line.startswith("??") or line.rstrip('"').endswith(".py")]
    return {"commit": commit, "dirty": bool(changed)}


def _git(folder: Path, *words: str) -> str | None:
    """Run git in a folder, without the programs that a repository's settings name; None: it failed."""
    # A hook's environment names another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip("\n") if done.returncode == 0 else None
