"""Exit codes: what the command line makes of a run's two bad ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from flfw.errors import BadInput, RunFailed


def exit_code(program: str, do: Callable[[], int]) -> int:
    """Do what a program was asked to; what went wrong is one line on stderr.

    Args:
        program: what it is called.
        do: returns 0, or another code of its own.

    Returns:
        That code; 2 for bad input, 1 for what failed, 130 for an interrupt.
    """
    # Flower reads these when it is imported, which is later: a privacy tool reports home about nothing.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    # Torch's threads spin while they wait for each other, which beside another busy process slows an attack down much.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return do()
    except BadInput as error:
        said, code = str(error), 2
    except RunFailed as error:
        said, code = str(error), 1
    except KeyboardInterrupt:
        said, code = "interrupted", 130
    print(f"{program}: {said}", file=sys.stderr)
    return code
