"""A federation of one site, as it lies on a disk; what ``flfw deploy status`` says of it is what is read."""

import re
from pathlib import Path

from tests.readable.outside import HERE, Ended, copied, flfw


def site(tmp_path: Path, policy: str = "budget") -> Path:
    """The site's folder, with a policy and today's ledger."""
    folder = copied("federation", tmp_path / "federation") / "site-0"
    (folder / "policy.toml").write_bytes((HERE / "policies" / f"{policy}.toml").read_bytes())
    return folder


def status(folder: Path) -> Ended:
    return flfw("deploy", "status", folder.parent)


def budget(folder: Path) -> tuple[str, float, int, int]:
    """The budget in words, the epsilon that is spent, the messages and the runs that status prints."""
    ended = status(folder)
    assert ended.code == 1, ended.err  # nothing is at work
    match = re.search(r"^budget +site 0: (.*); (\S+) is spent, messages (\d+), runs (\d+)$", ended.out, re.M)
    assert match, ended.out
    return match[1], float(match[2]), int(match[3]), int(match[4])
