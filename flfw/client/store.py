"""Private tensors of a client between rounds: one sealed safetensors file per version, on the client's own disk."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from flfw.errors import InputError, OneLine
from flfw.files.sealed import seal, sealed, unseal
from flfw.messages.sharing import SharingViolationError
from flfw.nets.net import Tensors


class StateMissingError(OneLine, RuntimeError):
    """Error of a client whose disk has no intact state of the round that the server names."""


class ClientStore:
    """Store of the private state of one client in one experiment.

    The number of a version is the round that made it; rounds without this client make no version. Version 0 is the
    start, which has no file. Two versions are kept: the version that the server named last, and the version made from
    it. So the version that belongs to the server's last checkpoint is always there.

    An honest server names one of these two versions. It names the older one if it did not use the last update: the
    update was late or unusable, or the server was killed before its checkpoint. `allow` refuses every other version.
    So a server can make this client repeat its last step any number of times: the client cannot distinguish this from
    a server that was killed. The server cannot undo an earlier step, and cannot send the client back to its start
    after a second version was made from the first.

    Args:
        folder: the site's own state folder.
        experiment: id of the experiment; the state of another experiment is never read.
        partition: number of the client.
        force: whether each version is forced to disk as it is written; False: the server of a simulation forces those
            of all clients together, before its checkpoint names them.
    """

    def __init__(self, folder: Path, experiment: str, partition: int, *, force: bool = True) -> None:
        if not experiment.isalnum():  # the id comes from the server and becomes the name of a folder
            raise ValueError(f"Expected an experiment of letters and digits, got {experiment!r}.")
        self._experiment, self._partition = experiment, partition
        self._force = force
        # 256 folders: one with an entry for each of a million clients would be slow.
        self._folder = folder / experiment / f"{partition % 256:02x}" / f"client-{partition:04d}"

    def allow(self, version: int) -> None:
        """Refuse to continue from a version that an honest server would not name; see the class.

        A version that is not on the disk is allowed here: `load` refuses it. Every version is allowed where the newest
        file does not name the version it was made from: an earlier flfw wrote it.

        Args:
            version: the round; 0: the start.

        Raises:
            SharingViolationError: names the client and the versions it can continue from.
        """
        made = self._made()
        if not made:
            return
        newest, path = made[-1]
        allowed = (newest, self._origin(path))
        if version in allowed or allowed[1] is None or (version and not sealed(self._folder, _stem(version))):
            return
        named, there = (f"its state of round {one}" if one else "its start" for one in (version, allowed[1]))
        raise SharingViolationError(
            f"client {self._partition} was told to go on from {named}, but its last step, of round {allowed[0]}, was "
            f"made from {there}: it goes on from one of these two"
        )

    def load(self, version: int, like: Tensors | None = None) -> Tensors:
        """Read the tensors saved after round ``version``.

        Args:
            version: the round.
            like: tensors with the required names and shapes; None: names and shapes are not checked.

        Raises:
            StateMissingError: the version is missing, damaged or of another shape; a new start would silently
                change the method.
        """
        there = sealed(self._folder, _stem(version))
        if not there:
            raise StateMissingError(
                f"Expected private state of round {version} in {self._folder}, found none; restore it."
            )
        path = there[0][1]
        try:
            data = unseal(path)
            with safe_open(path, "pt") as header:
                whose = header.metadata() or {}
        except (InputError, SafetensorError) as error:
            raise StateMissingError(str(error)) from error
        if {name: whose.get(name) for name in self._label(version)} != self._label(version):
            raise StateMissingError(
                f"Expected private state of {self._label(version)} in {path}, got {whose}; restore it."
            )
        tensors = load(data)
        for name, value in tensors.items():
            expected = value if like is None else like.get(name)
            if expected is None or value.shape != expected.shape:
                wanted = "to be one of this method's" if expected is None else f"of shape {tuple(expected.shape)}"
                raise StateMissingError(f"Expected private {name} {wanted}, got {tuple(value.shape)}; restore {path}.")
        if like is not None and (absent := [name for name in like if name not in tensors]):
            raise StateMissingError(f"Expected private {absent[0]} in {path}, found none; restore it.")
        return tensors

    def save(self, version: int, tensors: Tensors, made_from: int) -> None:
        """Write a version atomically, readable by its owner only, and remove versions that are no longer needed.

        Args:
            version: the round.
            tensors: the tensors to keep, by name.
            made_from: the version from which this one was made; it is kept, and its number is written into the file,
                as ``after``; 0: the start.
        """
        for folder in (self._folder.parent.parent, self._folder.parent, self._folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        data = save(kept, {**self._label(version), "after": str(made_from)})
        new = seal(self._folder, _stem(version), ".safetensors", data, force=self._force)
        for number, old in self._made():
            # A late client may write an old round after a newer one: it must not remove the newer one.
            if number <= version and number != made_from and old != new:
                old.unlink(missing_ok=True)

    def _made(self) -> list[tuple[int, Path]]:
        """List the versions on the disk with their files, in the order of their rounds, not of their names."""
        there = ((int(stem.removeprefix("round-")), path) for stem, path in sealed(self._folder, "round-*"))
        return sorted(there, key=lambda version: version[0])

    def _origin(self, path: Path) -> int | None:
        """Read the version from which a file was made; None: the file does not name it."""
        try:
            with safe_open(path, "pt") as header:
                return int((header.metadata() or {})["after"])
        except (SafetensorError, OSError, KeyError, ValueError):
            return None

    def _label(self, version: int) -> dict[str, str]:
        return {"experiment": self._experiment, "client": str(self._partition), "round": str(version)}


def _stem(version: int) -> str:
    return f"round-{version:05d}"
