"""A client's private tensors between rounds: one sealed safetensors file per version, on the client's own disk."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from flfw.errors import BadInput
from flfw.nets.net import Tensors
from flfw.storage.sealed import seal, sealed, unseal


class StateMissing(RuntimeError):
    """The server says this client has state of a round, and the client's disk has none that is intact."""


class ClientStore:
    """The private state of one client in one experiment.

    A version is named by the round that made it, whatever rounds lie between. Two are kept: the one the server named
    when it last asked, and what came of it. So there is always the one that belongs to the server's last checkpoint.

    Args:
        folder: the site's own state folder.
        experiment: identifies the experiment; state of another one is never read.
        partition: the client's number.
    """

    def __init__(self, folder: Path, experiment: str, partition: int) -> None:
        if not experiment.isalnum():  # it comes from the server, and names a folder here
            raise ValueError(f"Expected an experiment of letters and digits, got {experiment!r}.")
        self._experiment, self._partition = experiment, partition
        self._folder = folder / experiment / f"client-{partition:04d}"

    def load(self, version: int, like: Tensors | None = None) -> Tensors:
        """The tensors saved after round ``version``.

        Args:
            version: the round.
            like: what they must fit, by name; None: they are not compared with anything.

        Raises:
            StateMissing: there is no such version, it is damaged, or of another shape; starting afresh would silently
                change the method.
        """
        found = sealed(self._folder, _stem(version))
        if not found:
            raise StateMissing(f"Expected private state of round {version} in {self._folder}, found none; restore it.")
        path = found[0][1]
        try:
            data = unseal(path)
            with safe_open(path, "pt") as header:
                whose = header.metadata()
        except (BadInput, SafetensorError) as error:
            raise StateMissing(str(error)) from error
        if whose != self._label(version):
            raise StateMissing(f"Expected private state of {self._label(version)} in {path}, got {whose}; restore it.")
        tensors = load(data)
        for name, value in tensors.items():
            expected = value if like is None else like.get(name)
            if expected is None or value.shape != expected.shape:
                wanted = "to be one of this method's" if expected is None else f"of shape {tuple(expected.shape)}"
                raise StateMissing(f"Expected private {name} {wanted}, got {tuple(value.shape)}; restore {path}.")
        if like is not None and (absent := [name for name in like if name not in tensors]):
            raise StateMissing(f"Expected private {absent[0]} in {path}, found none; restore it.")
        return tensors

    def save(self, version: int, tensors: Tensors, after: int) -> None:
        """Write a version in one step, readable by its owner only, and drop what no server can ask for any more.

        Args:
            version: the round.
            tensors: what to keep.
            after: the version it was made from, which stays; 0: none.
        """
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        own = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        data = save(own, self._label(version))
        new = seal(self._folder, _stem(version), ".safetensors", data)
        for stem, old in sealed(self._folder, "round-*"):
            # A client that was late may write an old round after a newer one: newer ones are not its to drop.
            if stem <= _stem(version) and stem != _stem(after) and old != new:
                old.unlink(missing_ok=True)

    def _label(self, version: int) -> dict[str, str]:
        return {"experiment": self._experiment, "client": str(self._partition), "round": str(version)}


def _stem(version: int) -> str:
    return f"round-{version:05d}"
