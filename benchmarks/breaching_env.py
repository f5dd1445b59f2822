"""An environment of its own for the public framework `breaching`: ``python -m benchmarks.breaching_env``.

The last released version, with the Python, PyTorch, NumPy and safetensors of this environment, so that two timings
differ only in the attack's own code. The first call installs about 3 GB (6 GB unpacked) below the user's cache; later
calls find it there. The only line on stdout is the path of the environment's Python.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from flfw.data.files.cache import user_cache

VERSION = "0.1.2"

# breaching pins nothing. These are not among this project's plain dependencies; an attack never imports lpips.
_PINNED = (
    f"breaching=={VERSION}",
    "hydra-core==1.3.8",
    "omegaconf==2.3.1",
    "antlr4-python3-runtime==4.9.3",
    "lpips==0.1.4",
)
_SHARED = ("torch", "torchvision", "numpy", "scipy", "pillow", "safetensors")


def packages() -> list[str]:
    """What gets installed, as ``name==version``.

    A local build's mark, as in ``2.15.0+cpu``, is left out.
    """
    shared = [f"{name}=={version(name).partition('+')[0]}" for name in _SHARED]
    return [*_PINNED, *shared]


def interpreter() -> Path:
    """The environment's Python; made if it is not there or was made for other versions.

    Raises:
        subprocess.CalledProcessError: a package could not be installed; uv has said why on stderr.
    """
    folder = user_cache() / f"breaching-{VERSION}"
    python, made_for = folder / "bin" / "python", folder / "made-for.txt"
    wanted = "\n".join([sys.version, *packages()])
    if made_for.exists() and made_for.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _uv("venv", "--python", sys.executable, str(folder))
    _uv("pip", "install", "--python", str(python), *packages())
    made_for.write_text(wanted)  # last: an interrupted installation is begun anew
    return python


def _uv(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", *arguments, "--quiet"], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    print(interpreter())
