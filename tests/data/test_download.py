"""Downloads from a server on this machine: whole or not at all, gone on with after a break, refused when wrong."""

import hashlib
import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flfw import data
from flfw.command import data_sets
from flfw.data.files.remote import Remote, download, remotes, torchvision_set, unpack
from flfw.data.readers.embedded import DIGITS
from flfw.errors import InputError

CONTENT = bytes(range(256)) * 40
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server:
    """Serves ``content`` at any address.

    Attributes:
        content: what is there.
        ranges: whether it goes on in the middle when asked to.
        breaks_after: bytes after which it drops the connection; None: never.
        chunked: whether it sends pieces without saying how many bytes there will be.
        asked: the Range header of every request so far.
    """

    def __init__(self, url):
        self.url, self.content, self.ranges, self.breaks_after, self.chunked = url, CONTENT, True, None, False
        self.asked = []

    def answer(self, request):
        span = request.headers["Range"]
        self.asked.append(span)
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span and self.ranges else 0
        if start and start >= len(self.content):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(self.content)}")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        rest = self.content[start:]
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        name, value = ("Transfer-Encoding", "chunked") if self.chunked else ("Content-Length", str(len(rest)))
        request.send_header(name, value)
        request.end_headers()
        sent = rest[: self.breaks_after]
        request.wfile.write(b"%x\r\n%b\r\n" % (len(sent), sent) if self.chunked else sent)
        if self.chunked and self.breaks_after is None:
            request.wfile.write(b"0\r\n\r\n")
        request.close_connection = True


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            served.answer(self)

        def log_message(self, format, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        served = Server(f"http://127.0.0.1:{listening.server_port}/file.bin")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        listening.shutdown()
        thread.join()


@pytest.fixture
def nobody():
    """An address on this machine at which nobody answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # taken, but not listening
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def break_off(server, remote, root, after=1000):
    """A first try that ends after so many bytes."""
    server.breaks_after = after
    with pytest.raises(InputError):
        download(remote, root)
    server.breaks_after = None
    server.asked.clear()


def test_a_whole_transfer(server, tmp_path):
    path = download(Remote(server.url, "deep/down/file.bin", MD5), tmp_path)
    assert path == tmp_path / "deep" / "down" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert files(tmp_path) == ["deep", "deep/down", "deep/down/file.bin"]  # and no part beside it
    assert server.asked == [None]
    assert download(Remote(server.url, "deep/down/file.bin", MD5), tmp_path) == path
    assert server.asked == [None]  # it was there


@pytest.mark.parametrize("chunked", [False, True])
def test_a_broken_connection_is_one_line_and_no_file(server, tmp_path, chunked):
    server.breaks_after, server.chunked = 1000, chunked
    with pytest.raises(InputError, match=f"Expected to download {server.url}, got .*with a network try again") as error:
        download(Remote(server.url, "file.bin", MD5), tmp_path)
    assert "\n" not in str(error.value)
    assert chunked or "after 1000 of 10240 bytes" in str(error.value)
    assert files(tmp_path) == ["file.bin.part"]


def test_a_broken_transfer_goes_on_where_it_ended(server, tmp_path):
    remote = Remote(server.url, "file.bin", MD5)
    break_off(server, remote, tmp_path)
    server.content = bytes(1000) + CONTENT[1000:]  # had it begun anew, these zeros would be in the file
    assert download(remote, tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]
    assert files(tmp_path) == ["file.bin"]


def test_a_server_that_ignores_ranges_sends_all_of_it_again(server, tmp_path):
    remote = Remote(server.url, "file.bin", MD5)
    break_off(server, remote, tmp_path)
    server.ranges = False
    assert download(remote, tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_part_that_is_all_of_it_is_taken(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert download(Remote(server.url, "file.bin", MD5), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=10240-"]


def test_a_part_longer_than_the_file_is_no_beginning_of_it(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    assert download(Remote(server.url, "file.bin"), tmp_path).read_bytes() == CONTENT  # even without a sum
    assert server.asked == ["bytes=10244-", None]


@pytest.mark.parametrize("beside", ["file.bin", "file.bin.part", None])
def test_a_wrong_sum_is_said_and_the_bytes_are_removed(server, tmp_path, beside):
    server.content = b"wrong"
    if beside:
        (tmp_path / beside).write_bytes(b"wrong")
    with pytest.raises(
        InputError, match=f"with md5 {MD5}, got 5 bytes with {hashlib.md5(b'wrong').hexdigest()}; they w"
    ):
        download(Remote(server.url, "file.bin", MD5), tmp_path)
    assert files(tmp_path) == []


def test_no_network_is_one_line(nobody, tmp_path):
    with pytest.raises(InputError, match=f"Expected to download {nobody}/x, got URLError: .*--data-root") as error:
        download(Remote(f"{nobody}/x", "x"), tmp_path)
    assert "\n" not in str(error.value)
    assert files(tmp_path) == []


def test_a_file_that_is_not_there_is_one_line(server, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "answer", lambda request: request.send_error(404))
    with pytest.raises(InputError, match="HTTPError: Not Found"):
        download(Remote(server.url, "x"), tmp_path)
    assert files(tmp_path) == []


def test_something_that_speaks_no_http_is_one_line(server, tmp_path, monkeypatch):
    def mumble(request):
        request.wfile.write(b"220 mail server\r\n\r\n")
        request.close_connection = True

    monkeypatch.setattr(server, "answer", mumble)
    with pytest.raises(InputError, match="BadStatusLine: 220 mail server"):
        download(Remote(server.url, "x"), tmp_path)


def test_a_root_that_cannot_be_written_is_one_line(server, tmp_path):
    (tmp_path / "root").touch()
    with pytest.raises(InputError, match="name another folder by --data-root"):
        download(Remote(server.url, "folder/x"), tmp_path / "root")


def tar(*members, mode="w:gz"):
    """An archive of (name, content) pairs, or of whole members."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for member in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member[0])
            content = b"" if isinstance(member, tarfile.TarInfo) else member[1]
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def zipped(*members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return packed.getvalue()


TWO = ("set/a.txt", b"a" * 2000), ("set/deep/b.bin", CONTENT)
MAKERS = {"tar": lambda *members: tar(*members, mode="w"), "tar.gz": tar, "zip": zipped}


@pytest.mark.parametrize("kind", MAKERS)
def test_archives_become_folders(tmp_path, kind):
    archive = tmp_path / f"packed.{kind}"
    archive.write_bytes(MAKERS[kind](*TWO, ("__MACOSX/set/._a.txt", b"x"), ("._set", b"x")))
    unpack(archive, tmp_path / "below" / "set")
    assert files(tmp_path / "below") == ["set", "set/a.txt", "set/deep", "set/deep/b.bin"]
    assert (tmp_path / "below" / "set" / "deep" / "b.bin").read_bytes() == CONTENT
    assert (tmp_path / "below" / "set").stat().st_mode & 0o777 == tmp_path.joinpath("below").stat().st_mode & 0o777
    unpack(archive, tmp_path / "other")  # no folder of that name inside: everything goes into one
    assert {"other/set/a.txt", "other/._set"} <= set(files(tmp_path))


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("share", [0, 0.1, 0.4, 0.6])  # a tar of so little ends in padding
def test_a_truncated_archive_is_refused(tmp_path, kind, share):
    whole = MAKERS[kind](*TWO)
    archive = tmp_path / "packed"
    archive.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(InputError, match=f"Expected a whole archive, got {archive} .* get it again") as error:
        unpack(archive, tmp_path / "set")
    assert "\n" not in str(error.value)
    assert files(tmp_path) == ["packed"]


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_a_damaged_archive_is_refused(tmp_path, kind):
    noise = os.urandom(5000)  # cannot be packed, so its bytes lie in the middle of the archive as they are
    damaged = bytearray(MAKERS[kind](("set/a.txt", noise)))
    for index in range(len(damaged) // 2, len(damaged) // 2 + 50):
        damaged[index] ^= 0xFF
    (tmp_path / "packed").write_bytes(damaged)
    with pytest.raises(InputError, match="Expected a whole archive"):
        unpack(tmp_path / "packed", tmp_path / "set")
    assert files(tmp_path) == ["packed"]


def link(target):
    member = tarfile.TarInfo("set/link")
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


@pytest.mark.parametrize(
    "content",
    [
        tar(TWO[0], ("../evil", b"x")),
        tar(TWO[0], ("set/../../evil", b"x")),
        tar(link("../.."), ("set/link/evil", b"x")),
        tar(link("/etc")),
        zipped(TWO[0], ("../evil", b"x")),
        zipped(TWO[0], ("set/../../evil", b"x")),
        zipped(TWO[0], ("/evil", b"x")),
    ],
    ids="tar_up tar_up_from_inside tar_link tar_absolute_link zip_up zip_up_from_inside zip_absolute".split(),
)
def test_an_archive_that_would_write_outside_is_refused(tmp_path, content):
    root = tmp_path / "root"
    root.mkdir()
    (root / "packed").write_bytes(content)
    with pytest.raises(InputError, match=r"Expected a whole archive, got .*(outside|absolute path)"):
        unpack(root / "packed", root / "set")
    assert files(tmp_path) == ["root", "root/packed"]


def test_an_absolute_place_in_a_tar_lies_in_the_folder(tmp_path):
    (tmp_path / "packed").write_bytes(tar((f"{tmp_path}/evil", b"x")))
    unpack(tmp_path / "packed", tmp_path / "set")
    assert not (tmp_path / "evil").exists()
    assert (tmp_path / "set" / str(tmp_path)[1:] / "evil").exists()


def test_remotes_get_and_unpack_what_is_missing(server, tmp_path, capsys):
    server.content = zipped(*TWO)
    get = remotes(Remote(server.url, "one.bin"), Remote(server.url, "set.zip", unpack="set"))
    get(tmp_path)
    assert files(tmp_path) == ["one.bin", "set", "set.zip", "set/a.txt", "set/deep", "set/deep/b.bin"]
    get(tmp_path)
    assert len(server.asked) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"downloading {server.url} into {tmp_path}\n" * 2)


def test_a_damaged_archive_leaves_no_folder_that_passes_for_the_set(server, tmp_path):
    server.content = zipped(*TWO)[:500]
    with pytest.raises(InputError, match="whole archive"):
        remotes(Remote(server.url, "set.zip", unpack="set"))(tmp_path)
    assert files(tmp_path) == ["set.zip"]


@pytest.mark.parametrize("name", ["MNIST", "CIFAR10"])
def test_torchvisions_own_downloads_without_a_network(nobody, tmp_path, monkeypatch, name):
    for variable in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, nobody)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(InputError, match=rf"Expected to download torchvision\.datasets\.{name}, got ") as error:
        torchvision_set(name, "below")(tmp_path)
    assert "\n" not in str(error.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


class Finds:
    """Stands for a class of torchvision.datasets: writes a file and talks."""

    def __init__(self, root, download, split):
        print("Downloading...")
        (root / f"{split}-{download}").touch()


def test_torchvisions_classes_are_asked_to_download(tmp_path, monkeypatch, capsys):
    import torchvision.datasets

    monkeypatch.setattr(torchvision.datasets, "Finds", Finds, raising=False)
    torchvision_set("Finds", "below", split="byclass")(tmp_path / "root")
    assert files(tmp_path) == ["root", "root/below", "root/below/byclass-True"]
    assert capsys.readouterr().out == ""  # what it says goes to stderr


@pytest.fixture
def toy(server, monkeypatch):
    """The digits, whose file a server on this machine has, as the data set ``toy``."""
    published = data._root(DIGITS, None) / "datasets" / "data" / "digits.csv.gz"
    server.content = published.read_bytes()
    file = "datasets/data/digits.csv.gz"
    card = {**vars(DIGITS), "package": None, "fetch": remotes(Remote(server.url, file))}
    monkeypatch.setitem(data.catalogue._CARDS, "toy", data.DatasetCard(**card))
    return file


def test_the_command_gets_a_set_and_reads_it(server, toy, tmp_path, capsys):
    assert data_sets.main(["get", "toy", "digits", "--root", str(tmp_path)]) == 0
    assert (tmp_path / toy).read_bytes() == server.content
    assert capsys.readouterr().out == "".join(f"{n}: 1500 training examples are ready\n" for n in ("toy", "digits"))


def test_the_command_fails_with_2_and_one_line(server, toy, tmp_path, capsys):
    server.breaks_after = 10
    assert data_sets.main(["get", "toy", "--root", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[1].startswith(f"flfw data: Expected to download {server.url}, got OSError: ")
    assert len(err.splitlines()) == 2
    server.breaks_after = None
    assert data_sets.main(["get", "toy", "--root", str(tmp_path)]) == 0  # goes on


def test_what_is_got_by_hand_is_said(tmp_path, capsys):
    assert data_sets.main(["get", "synthetic_digits", "--root", str(tmp_path)]) == 2
    assert "get the files with a browser: SynthDigits.zip" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["digits"], 0, "digits: 1500 training examples are ready\n", ""),
        (["minst"], 2, "", "flfw data: Got dataset=minst; did you mean mnist? Expected a data set among"),
        ([], 2, "", "flfw data: the following arguments are required: NAME"),
    ],
)
def test_the_command_line(words, code, out, err, capsys):
    assert data_sets.main(["get", *words]) == code
    printed = capsys.readouterr()
    assert printed.out == out
    assert printed.err.startswith(err)
    assert printed.err or not err


def test_the_command_is_a_process_without_warnings():
    command_line = [sys.executable, "-W", "error", "-m", "flfw", "data", "get", "digits"]
    done = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "digits: 1500 training examples are ready\n")
