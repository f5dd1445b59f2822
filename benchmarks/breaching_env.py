"""Separate environment for the public framework `breaching`: ``python -m benchmarks.breaching_env``.

It has the last released version, and the Python, PyTorch, NumPy and safetensors of this environment, so that two
timings differ only in the code of the attack. The first call installs about 3 GB (6 GB unpacked) below the user's
cache; later calls use it. The only line on stdout is the path of the environment's Python.
"""

import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import output
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
    """Return the packages to install, as ``name==version``.

    The mark of a local build, as in ``2.15.0+cpu``, is left out.
    """
    shared = [f"{name}=={version(name).partition('+')[0]}" for name in _SHARED]
    return [*_PINNED, *shared]


def required() -> Path:
    """Return the environment's Python; refuse, and install nothing, if there is none for these versions."""
    python = installed()
    if python is None:
        command = "python -m benchmarks.breaching_env"
        output.refuse(f"Expected an environment with breaching {VERSION}, found none; `{command}` installs it (3 GB).")
    return python


def installed() -> Path | None:
    """Return the environment's Python; None: there is none for these versions."""
    try:
        python, made_for, wanted = _places()
    except PackageNotFoundError:  # where one of ours is not installed
        return None
    return python if made_for.exists() and made_for.read_text() == wanted else None


def interpreter() -> Path:
    """Return the environment's Python; install it if it is not there or was made for other versions.

    Raises:
        subprocess.CalledProcessError: a package could not be installed; uv has written the reason to stderr.
    """
    if there := installed():
        return there
    python, made_for, wanted = _places()
    folder = made_for.parent
    print(f"Installing breaching {VERSION} into {folder}: 3 GB, some minutes.", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _uv("venv", "--python", sys.executable, str(folder))
    _uv("pip", "install", "--python", str(python), *packages())
    made_for.write_text(wanted)  # last: an interrupted installation is begun anew
    return python


def _places() -> tuple[Path, Path, str]:
    """Return the environment's Python, its file of versions, and the contents that this file should have."""
    folder = user_cache() / f"breaching-{VERSION}"
    return folder / "bin" / "python", folder / "made-for.txt", "\n".join([sys.version, *packages()])


def _uv(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", *arguments, "--quiet"], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    print(interpreter())
