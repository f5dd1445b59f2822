"""Exit codes of the command line for bad input and for failed runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from flfw.errors import BadInput, RunFailed


def exit_code(program: str, do: Callable[[], int]) -> int:
    """Run a program's task, and return its exit code; an error is one line on stderr.

    Args:
        program: name of the program.
        do: the task; returns 0 or another exit code.

    Returns:
        The code of the task; 2 for bad input, 1 for a failure, 130 for an interrupt.
    """
    # Flower reads these at its import, which comes later: a privacy tool must send no telemetry.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    # Torch's threads spin while they wait for each other, which makes an attack beside another busy process very slow.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return do()
    except BadInput as error:
        message, code = str(error), 2
    except RunFailed as error:
        message, code = str(error), 1
    except KeyboardInterrupt:
        message, code = "interrupted", 130
    print(f"{program}: {message}", file=sys.stderr)
    return code
