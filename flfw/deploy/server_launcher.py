"""Launcher of a federation's server: Flower's SuperLink, which waits for a slow disk and does not end by halves.

    python -m flfw.deploy.server_launcher <arguments of flower-superlink>

Flower's own waits 5 s for its database. After that every call fails, and the process that starts the apps ends at its
first failed call: such a server looks alive and starts no run any more. Here it waits longer, and a server without that
process ends, so that whoever keeps it at work starts it again.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import wraps
from typing import Any

from flwr.supercore import sql_mixin
from flwr.supercore.constant import SQLITE_PRAGMAS

_DATABASE_S = 25  # below the 30 s after which Flower's own programs repeat a call, which would then be done twice
_GRACE_S = 5.0  # a server that ends ends that process first


def main(arguments: Sequence[str]) -> int:
    """Run a SuperLink until it ends."""
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, flower_superlink

    wait_for_database()
    end_with_executor(SuperLinkLifespan)
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()
    return 0


def wait_for_database() -> None:
    """Let each call of this process wait longer for the database."""
    pragmas = dict(SQLITE_PRAGMAS) | {"busy_timeout": str(1000 * _DATABASE_S)}
    setattr(sql_mixin, "SQLITE_PRAGMAS", tuple(pragmas.items()))  # noqa: B010 Flower's


def end_with_executor(lifespan: Any) -> None:
    """End this process when the process that starts the apps has ended.

    Args:
        lifespan: Flower's class of a SuperLink at work.
    """
    start = lifespan._start_superexec_if_needed

    @wraps(start)
    def watched(self: Any) -> None:
        start(self)
        if self.superexec_process is not None:
            threading.Thread(target=_end_with, args=(self.superexec_process,), daemon=True).start()

    lifespan._start_superexec_if_needed = watched


def _end_with(executor: subprocess.Popen[bytes]) -> None:
    code = executor.wait()
    time.sleep(_GRACE_S)
    print(f"flfw.deploy.server_launcher: the executor ended with {code}, and so does the server", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
