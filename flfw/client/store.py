"""A client's private tensors between rounds: one sealed safetensors file per version, on the client's own disk."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from flfw.errors import BadInput
from flfw.messages.sharing import SharingViolation
from flfw.nets.net import Tensors
from flfw.storage.sealed import seal, sealed, unseal


class StateMissing(RuntimeError):
    """The server says this client has state of a round, and the client's disk has none that is intact."""


class ClientStore:
    """The private state of one client in one experiment.

    A version is named by the round that made it, whatever rounds lie between; 0 is the start, which lies nowhere. Two
    are kept: the one the server named when it last asked, and the one made from it. So there is always the one that
    belongs to the server's last checkpoint.

    A server that keeps to the rules names one of these two: the newest version, or the one that was made from, for it
    did not use the last update (it was late or unusable, or the server was killed before its checkpoint). `allow`
    refuses every other one. So a server can take back this client's last step, and have it made anew as often as it
    likes: a client cannot tell that from a server that was killed. It cannot take back any step before that, nor send
    the client back to its start once a second version was made from the first.

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

    def allow(self, version: int) -> None:
        """Refuse to go on from a version that no honest server names; see the class.

        A version that is not on the disk is left to `load`. All are allowed where the newest file does not say what it
        was made from: it is of a run that was started by an earlier flfw.

        Args:
            version: the round; 0: the start.

        Raises:
            SharingViolation: naming the client and the versions it can go on from.
        """
        made = sealed(self._folder, "round-*")
        if not made:
            return
        newest, path = made[-1]
        allowed = (int(newest.removeprefix("round-")), self._origin(path))
        if version in allowed or allowed[1] is None or (version and not sealed(self._folder, _stem(version))):
            return
        named, there = (_in_words(one) for one in (version, allowed[1]))
        raise SharingViolation(
            f"client {self._partition} was told to go on from {named}, but its last step, of round {allowed[0]}, was "
            f"made from {there}: it goes on from one of these two"
        )

    def load(self, version: int, like: Tensors | None = None) -> Tensors:
        """Read the tensors saved after round ``version``.

        Args:
            version: the round.
            like: what they must fit, by name; None: they are not compared with anything.

        Raises:
            StateMissing: there is no such version, it is damaged, or of another shape; starting afresh would silently
                change the method.
        """
        there = sealed(self._folder, _stem(version))
        if not there:
            raise StateMissing(f"Expected private state of round {version} in {self._folder}, found none; restore it.")
        path = there[0][1]
        try:
            data = unseal(path)
            with safe_open(path, "pt") as header:
                whose = header.metadata() or {}
        except (BadInput, SafetensorError) as error:
            raise StateMissing(str(error)) from error
        if {name: whose.get(name) for name in self._label(version)} != self._label(version):
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
        """Write a version in one step, readable by its owner only, and drop those no server can ask for any more.

        Args:
            version: the round.
            tensors: to keep, by name.
            after: the version it was made from, which stays, and is put down beside the tensors; 0: the start.
        """
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        data = save(kept, {**self._label(version), "after": str(after)})
        new = seal(self._folder, _stem(version), ".safetensors", data)
        for stem, old in sealed(self._folder, "round-*"):
            # A client that was late may write an old round after a newer one: newer ones are not its to drop.
            if stem <= _stem(version) and stem != _stem(after) and old != new:
                old.unlink(missing_ok=True)

    def _origin(self, path: Path) -> int | None:
        """Read which version a file's was made from; None: it does not say."""
        try:
            with safe_open(path, "pt") as header:
                return int((header.metadata() or {})["after"])
        except (SafetensorError, OSError, KeyError, ValueError):
            return None

    def _label(self, version: int) -> dict[str, str]:
        return {"experiment": self._experiment, "client": str(self._partition), "round": str(version)}


def _stem(version: int) -> str:
    return f"round-{version:05d}"


def _in_words(version: int) -> str:
    return f"its state of round {version}" if version else "its start"
