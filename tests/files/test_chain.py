"""A chain of lines: what is changed, removed or forged is noticed, and a killed process costs no line."""

import hashlib
import json
import multiprocessing
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from flfw.errors import InputError
from flfw.files.chain import Chain


def filled(path: Path, lines: int = 3) -> Path:
    for number in range(lines):
        append(path, number)
    return path


def append(path: Path, number: int) -> None:
    with Chain(path).held() as held:
        held.append({"number": number})


def numbers(path: Path) -> list[int]:
    return [row["number"] for row in Chain(path).rows()]


def test_lines_follow_each_other_and_are_their_owners_alone(tmp_path: Path) -> None:
    path = filled(tmp_path / "ledger" / "lines.jsonl")
    lines = path.read_bytes().splitlines()
    before = ["0" * 64, *(hashlib.sha256(line).hexdigest() for line in lines)]
    assert [json.loads(line)["before"] for line in lines] == before[:3]
    assert json.loads(path.with_suffix(".head").read_text()) == {"lines": 3, "sha256": before[3]}
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path, path.with_suffix(".head"))]
    assert modes == [0o700, 0o600, 0o600] and numbers(path) == [0, 1, 2]
    assert Chain(tmp_path / "none" / "lines.jsonl").rows() == [] and not (tmp_path / "none").exists()


def rewritten(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def forged(lines: list[bytes]) -> list[bytes]:
    """Another last line that follows the one before."""
    return [*lines[:-1], json.dumps({**json.loads(lines[-1]), "number": 7}).encode() + b"\n"]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a changed line": rewritten(lambda lines: [lines[0].replace(b"0}", b"5}"), *lines[1:]]),
    "a changed last line": rewritten(lambda lines: [*lines[:2], lines[2].replace(b"2}", b"5}")]),
    "a forged last line": rewritten(forged),
    "a removed line": rewritten(lambda lines: [lines[0], lines[2]]),
    "a removed first line": rewritten(lambda lines: lines[1:]),
    "a removed last line": rewritten(lambda lines: lines[:2]),
    "a last line without its end": rewritten(lambda lines: [*lines[:2], lines[2][:-1]]),
    "a last line of which a part is left": rewritten(lambda lines: [*lines[:2], lines[2][:30]]),
    "exchanged lines": rewritten(lambda lines: [lines[1], lines[0], lines[2]]),
    "a line that is none": rewritten(lambda lines: [*lines, b"[]\n"]),
    "an empty line": rewritten(lambda lines: [*lines, b"\n"]),
    "no lines": lambda path: path.unlink(),
    "no head": lambda path: path.with_suffix(".head").unlink(),
    "a head that is none": lambda path: path.with_suffix(".head").write_text("{}"),
    "no head, and no line": lambda path: (path.with_suffix(".head").unlink(), path.write_bytes(b"")),
    "no head, and a part of a line": lambda path: (
        path.with_suffix(".head").unlink(),
        path.write_bytes(b'{"before": "'),
    ),
    "no head, and a text of one line": lambda path: (path.with_suffix(".head").unlink(), path.write_bytes(b"no chain")),
    "no head, and other ends of lines": lambda path: (
        path.with_suffix(".head").unlink(),
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r")),
    ),
    "a head of fewer lines than none": lambda path: (
        path.with_suffix(".head").write_text(json.dumps({"lines": -1, "sha256": "0" * 64})),
        path.write_bytes(b""),
    ),
    "a head of a later version": lambda path: path.with_suffix(".head").write_text(
        json.dumps({"format": 2, **json.loads(path.with_suffix(".head").read_text())})
    ),
    "an older head": lambda path: path.with_suffix(".head").write_text(json.dumps({"lines": 1, "sha256": "0" * 64})),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_what_was_changed_is_noticed(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path = filled(tmp_path / "lines.jsonl")
    damage(path)
    with pytest.raises(InputError, match="it is damaged"):
        Chain(path).rows()
    with pytest.raises(InputError, match="it is damaged"), Chain(path).held():
        pass


ELSEWHERE: dict[str, Callable[[Path], object]] = {
    "a folder on a disk that is not mounted": lambda path: path.parent.symlink_to(
        path.parent.parent / "disk" / "ledger"
    ),
    "a file on such a disk": lambda path: (path.parent.mkdir(), path.symlink_to(path.parent / "disk" / "lines.jsonl")),
    "a file in place of the folder": lambda path: path.parent.write_text("no folder"),
    "a folder that links to itself": lambda path: path.parent.symlink_to(path.parent),
}


@pytest.mark.parametrize("place", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_a_chain_that_cannot_be_reached_is_not_new(tmp_path: Path, place: Callable[[Path], object]) -> None:
    path = tmp_path / "ledger" / "lines.jsonl"
    place(path)
    with pytest.raises(InputError, match="got none that can be read"):
        Chain(path).rows()
    with pytest.raises(InputError, match="got none that can be read"), Chain(path).held():
        pass


def test_a_process_that_was_killed_before_its_first_line_leaves_a_new_chain(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    with Chain(path).held():
        pass
    assert json.loads(path.with_suffix(".head").read_text()) == {"lines": 0, "sha256": "0" * 64}
    for left in (lambda: None, path.unlink, lambda: path.write_bytes(b'{"before": "')):
        left()
        assert numbers(path) == []
        with Chain(path).held() as held:
            assert held.rows == []
    append(path, 0)
    assert numbers(path) == [0]


def test_a_part_of_a_line_whose_append_never_returned_is_cut_off(tmp_path: Path) -> None:
    path = filled(tmp_path / "lines.jsonl")
    with path.open("ab") as file:
        file.write(b'{"before": "00')
    assert numbers(path) == [0, 1, 2] and path.read_bytes().endswith(b"00")  # looking changes nothing
    append(path, 3)
    assert numbers(path) == [0, 1, 2, 3]


def test_a_line_without_its_head_counts_each_time(tmp_path: Path) -> None:
    """As a power cut between the two leaves it, which may happen again and again."""
    path = filled(tmp_path / "lines.jsonl", 1)
    for number in (1, 2, 3):
        with Chain(path).held():  # repairs the head
            head = path.with_suffix(".head").read_bytes()
        append(path, number)
        path.with_suffix(".head").write_bytes(head)
    assert numbers(path) == [0, 1, 2, 3]
    first = filled(tmp_path / "first.jsonl", 1)
    first.with_suffix(".head").unlink()
    append(first, 1)
    assert numbers(first) == [0, 1]


@pytest.mark.slow
def test_processes_append_one_after_the_other(tmp_path: Path) -> None:
    path, started = tmp_path / "lines.jsonl", multiprocessing.get_context("spawn")
    both = [started.Process(target=_append_many, args=(path, first)) for first in (0, 100)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(numbers(path)) == [*range(25), *range(100, 125)]


def _append_many(path: Path, first: int) -> None:
    for number in range(first, first + 25):
        append(path, number)


KILLED = """
import sys, time
from pathlib import Path
from flfw.files.chain import Chain
number = 0
while True:
    with Chain(Path(sys.argv[1])).held() as held:
        held.append({"number": number})
    print(number, flush=True)  # what it says is on disk
    number += 1
"""


def test_a_process_that_is_killed_loses_no_line_that_it_spoke_of(tmp_path: Path) -> None:
    path, printed = tmp_path / "lines.jsonl", tmp_path / "printed"
    with printed.open("w") as out, Popen([sys.executable, "-c", KILLED, str(path)], stdout=out) as process:
        deadline = time.monotonic() + 240
        while len(printed.read_text().split()) < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    spoken = [int(word) for word in printed.read_text().split("\n")[:-1]]
    append(path, -1)
    *kept, last = numbers(path)
    assert last == -1 and kept == list(range(len(kept))) and 20 <= len(spoken) <= len(kept) <= len(spoken) + 1
