"""Downloads of published files: complete or not at all, checked by their sums, resumed after a broken transfer."""

import fcntl
import hashlib
import importlib
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO, Any

from flfw.errors import InputError

_TIMEOUT_S = 30
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Remote:
    """A published file.

    Attributes:
        url: address of the file.
        file: path of the file below the data root.
        md5: published md5 sum; None: there is none.
        unpack: folder below the data root to unpack the archive into; None: the file is used as it is.
    """

    url: str
    file: str
    md5: str | None = None
    unpack: str | None = None


def torchvision_set(name: str, folder: str = "", **options: object) -> Callable[[Path], None]:
    """Return a function that lets torchvision download its data set NAME into a folder below a data root."""

    def fetch(root: Path) -> None:
        _announce(name, root)
        cls = getattr(importlib.import_module("torchvision.datasets"), name)
        try:
            (root / folder).mkdir(parents=True, exist_ok=True)
            with redirect_stdout(sys.stderr):
                cls(root / folder, download=True, **options)
        except (OSError, HTTPException, RuntimeError, ModuleNotFoundError) as error:
            raise _unreachable(f"torchvision.datasets.{name}", root, error) from error

    return fetch


def unchecked(kind: type[Any]) -> type[Any]:
    """Return a set of torchvision that takes files with other sums; `flfw.data.readers.pixels` warns of these."""
    return type(kind.__name__, (kind,), {"_check_integrity": lambda self: True})


def remotes(*wanted: Remote) -> Callable[[Path], None]:
    """Return a function that downloads files into a data root and unpacks the archives among them."""

    def fetch(root: Path) -> None:
        for remote in wanted:
            done = root / (remote.unpack or remote.file)
            if not done.exists():
                _announce(remote.url, root)
                download(remote, root)
                if remote.unpack is not None:
                    unpack(root / remote.file, done)

    return fetch


def download(remote: Remote, root: Path) -> Path:
    """Download a file below ``root`` and return its path; a broken transfer is resumed.

    Raises:
        InputError: the file cannot be reached, ends early, or is not the published one.
    """
    target = root / remote.file
    if target.exists():
        _check(remote, target)
        return target
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _transfer(remote.url, part)
    except (OSError, HTTPException) as error:
        raise _unreachable(remote.url, root, error) from error
    _check(remote, part)
    part.replace(target)
    return target


def _transfer(url: str, part: Path) -> None:
    """Download ``url`` into ``part``, after the bytes it already has if the server can resume there."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with error:  # it holds the connection
            if error.code != 416 or not have:
                raise
            span = error.headers.get("Content-Range", "")
        if span == f"bytes */{have}":  # the server has no more bytes: the file is complete
            return
    else:
        with answer:
            span = answer.headers.get("Content-Range", "")
            if not have or answer.status != 206 or span.startswith(f"bytes {have}-"):
                _write(answer, part, have if answer.status == 206 else 0)
                return
    part.unlink()  # the part is not the beginning of the server's file
    _transfer(url, part)


def _write(answer: HTTPResponse, part: Path, start: int) -> None:
    """Write the rest of a file after its first ``start`` bytes."""
    rest = int(answer.headers.get("Content-Length") or 0)
    with part.open("ab" if start else "wb") as file:
        got = _copy(answer, file, part.name, start, start + rest if rest else None)
    if got < rest:
        raise OSError(f"the connection ended after {got} of {rest} bytes")


def _copy(answer: IO[bytes], file: IO[bytes], name: str, start: int, total: int | None) -> int:
    """Copy the answer to the file with a progress bar on a terminal, and return the number of bytes."""
    # Imported here: every client process imports this file with the cards, and none of them draws bars.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console, got = Console(stderr=True), 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(name.removesuffix(".part"), total=total, completed=start)
        while block := answer.read(_BLOCK):
            file.write(block)
            got += len(block)
            progress.advance(bar, len(block))
    return got


def md5_of(path: Path) -> str:
    """Return the MD5 sum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _check(remote: Remote, path: Path) -> None:
    if remote.md5 is not None and (md5 := md5_of(path)) != remote.md5:
        size = path.stat().st_size
        path.unlink()
        raise InputError(
            f"Expected {remote.url} with md5 {remote.md5}, got {size} bytes with {md5}; they were removed, try again."
        )


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tar or zip archive as the folder ``target``, completely or not at all.

    If the archive holds only a folder of the target's name, that folder becomes the target.

    Raises:
        InputError: the archive is truncated, no archive, or would write outside the folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        content = Path(scratch) / "content"
        content.mkdir()
        try:
            _extract(archive, content)
        except Exception as error:  # a damaged archive can make its readers raise anything
            if isinstance(error, OSError) and error.errno:  # the archive is not to blame
                raise InputError(f"Expected room to unpack {archive} in {target.parent}, got {error}.") from error
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"Expected a whole archive, got {archive} ({type(error).__name__}: {reason}); "
                "remove it and get it again."
            ) from error
        inner = content / target.name
        alone = [path for path in content.iterdir() if not path.name.startswith(("._", "__MACOSX"))] == [inner]
        (inner if alone else content).replace(target)


def _extract(archive: Path, folder: Path) -> None:
    if not zipfile.is_zipfile(archive):
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")  # this filter refuses paths outside the folder
            while packed.fileobj and packed.fileobj.read(_BLOCK):
                pass  # tarfile stops before the end of the file, but gzip's checksum is there
        return
    with zipfile.ZipFile(archive) as packed:
        for path in map(PurePosixPath, packed.namelist()):
            if path.is_absolute() or ".." in path.parts:
                raise zipfile.BadZipFile(f"{path} would lie outside the folder")
        packed.extractall(folder)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Wait until no other process downloads into this data root, and lock it.

    Raises:
        InputError: the data root cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = (root / ".downloading").open("w")
    except OSError as error:
        raise InputError(
            f"Expected a data root to write to, got {root} ({error.strerror}); pass --data-root."
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _announce(what: str, root: Path) -> None:
    print(f"downloading {what} into {root}", file=sys.stderr)


def _unreachable(what: str, root: Path, error: Exception) -> InputError:
    reason = " ".join(str(getattr(error, "reason", None) or error).split())
    return InputError(
        f"Expected to download {what}, got {type(error).__name__}: {reason}; with a network try again, without one "
        f"copy the files into {root} or name another folder by --data-root."
    )
