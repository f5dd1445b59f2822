"""A client's private tensors between rounds: one safetensors file per version, on the client's own disk."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file

from flfw.nets.net import Tensors

_VERSIONS_KEPT = 2


class StateMissing(RuntimeError):
    """The server says this client has state of a round, and the client's disk has none."""


class ClientStore:
    """The private state of one client in one experiment.

    Args:
        folder: the site's own state folder.
        experiment: identifies the experiment; state of another one is never read.
        partition: the client's number.
    """

    def __init__(self, folder: Path, experiment: str, partition: int) -> None:
        self._folder = folder / experiment / f"client-{partition:04d}"

    def load(self, version: int) -> Tensors:
        """The tensors saved after round ``version``.

        Raises:
            StateMissing: there is no such version; starting afresh would silently change the method.
        """
        path = self._path(version)
        if not path.exists():
            raise StateMissing(f"Expected private state of round {version} in {path}, found none; restore that file.")
        return load_file(path)

    def save(self, version: int, tensors: Tensors) -> None:
        """Write a version atomically, readable by its owner only, and drop all but the last two."""
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self._path(version).with_suffix(".part")
        save_file({name: value.contiguous() for name, value in tensors.items()}, part)
        part.chmod(0o600)
        part.replace(self._path(version))
        for old in sorted(self._folder.glob("round-*.safetensors"))[:-_VERSIONS_KEPT]:
            old.unlink()

    def _path(self, version: int) -> Path:
        return self._folder / f"round-{version:05d}.safetensors"
