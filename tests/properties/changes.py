"""Strategies that change one thing in a valid input: a tree, a text, some bytes, a file of tensors, a sealed file.

A tree is a value of JSON, as a parser of a file returns it. A change alters a field's type, length, sign, exponent,
name, order or nesting, removes or repeats it, or puts an odd value in its place. Every choice is hypothesis' own, so
that it shrinks a change that fails to a small one and prints how to make it again.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from math import inf, nan
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from flfw.files.sealed import with_checksum
from flfw.recording.manifest import HEAD, sealed

Operator: TypeAlias = Callable[[bytes], SearchStrategy[bytes]]
"""Function of some content that returns a strategy of changed ones."""
Files: TypeAlias = Mapping[str, bytes | None]
"""Contents by names below a folder; None: there is no such file."""
Change: TypeAlias = Callable[[str, bytes], SearchStrategy[tuple[Files, bool]]]
"""Function of a file's name and content: the changed files, and whether a seal is left that no longer fits."""

_DEEP, _DIGITS, _EXPONENT = "@DEEP@", "@DIGITS@", "@EXPONENT@"
_AS_TEXT = {_DEEP: "[" * 4000 + "]" * 4000, _DIGITS: "9" * 5000, _EXPONENT: "1e999"}  # no encoder writes these
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 255, 2**31, 2**32, 2**53 + 1, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, -1e308, 5e-324, nan,
    inf, -inf,
)  # fmt: skip
WORDS = (
    "", " ", "0", "-1", "nan", "inf", "1e999", "none", "auto", "../../../etc/passwd", "/etc/passwd", "..", ".",
    "a/../../b", "/dev/zero", "/proc/self/environ", "~", "$HOME", "C:\\x", "two\nlines", "nul\x00",
    "\x1b[2J\x1b]0;x\x07", "\u202e\u200b", "é", "e\u0301", "=1+1", "-x", "--out", "'", '"', "\\", "%s{}",
    "x" * 300, "y" * 100_000,
)  # fmt: skip
HALF_A_PAIR = "\ud800"
_SHAPES: tuple[Any, ...] = (None, True, False, [], {}, [None], [[[]]], {"": None}, {"__class__": 1}, [0] * 1000)


def words() -> SearchStrategy[str]:
    """Odd words that UTF-8 can write."""
    return st.sampled_from(WORDS)


_ODD = st.one_of(
    *map(st.sampled_from, (NUMBERS, (*WORDS, HALF_A_PAIR), _SHAPES, (_DEEP, _DIGITS, _EXPONENT))),
    st.integers(),
    st.text(max_size=8),
)


def odd() -> SearchStrategy[Any]:
    """Odd values: a number, a word, or something of another shape."""
    return _ODD


# --- trees ---


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a tree, the whole first."""
    yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield from _paths(value, (*path, key))


@st.composite
def changed_tree(draw: DrawFn, tree: Any) -> Any:
    """A copy of a tree with one value changed, moved, renamed, repeated or removed."""
    copy = json.loads(json.dumps(tree))
    by_depth: dict[int, list[tuple[Any, ...]]] = {}
    for path in _paths(copy):
        by_depth.setdefault(len(path), []).append(path)
    depth = draw(st.sampled_from(list(by_depth)))  # outer fields are few, and matter most
    path = draw(st.sampled_from(by_depth[depth]))
    if not path:
        return draw(_other(copy))
    *outer, key = path
    parent = copy
    for step in outer:
        parent = parent[step]
    if draw(st.sampled_from(("value", "value", "place"))) == "value":
        parent[key] = draw(_other(parent[key]))
    elif isinstance(parent, list):
        _change_list(draw, parent, key)
    else:
        _change_table(draw, parent, key)
    return copy


@st.composite
def _other(draw: DrawFn, value: Any) -> Any:
    """A value in place of another: a close one, or an odd one."""
    near: tuple[Any, ...] = ()
    if isinstance(value, bool):
        near = (not value, int(value), str(value).lower())
    elif isinstance(value, int | float):
        near = (
            value + 1, value - 1, -value, value * 1e30, value / 3, float(value), bool(value), str(value), [value],
        )  # fmt: skip
    elif isinstance(value, list):
        near = (value[1:], value[::-1], value * 2, [value], {str(i): v for i, v in enumerate(value)})
    elif isinstance(value, dict):
        near = ([list(pair) for pair in value.items()], list(value), [value], {"inner": value}, {**value, "more": None})
    is_close = draw(st.booleans())
    if is_close and isinstance(value, str):
        return draw(changed_word(value))
    return draw(st.sampled_from(near)) if is_close and near else draw(odd())


def _change_list(draw: DrawFn, parent: list[Any], at: int) -> None:
    change = draw(st.sampled_from(("removed", "repeated", "added", "moved")))
    if change == "removed":
        del parent[at]
    elif change == "repeated":
        parent.insert(at, parent[at])
    elif change == "added":
        parent.insert(at, draw(odd()))
    else:
        parent.insert(draw(st.integers(0, len(parent) - 1)), parent.pop(at))


def _change_table(draw: DrawFn, parent: dict[str, Any], key: str) -> None:
    other = draw(st.sampled_from(list(parent)))
    change = draw(st.sampled_from(("removed", "renamed", "exchanged", "added", "copied")))
    if change == "removed":
        del parent[key]
    elif change == "renamed":
        parent[draw(changed_word(key))] = parent.pop(key)
    elif change == "exchanged":
        parent[key], parent[other] = parent[other], parent[key]
    elif change == "added":
        parent[draw(words())] = draw(odd())
    else:
        parent[key] = parent[other]


@st.composite
def changed_word(draw: DrawFn, word: str) -> str:
    """A word that differs in a character, its case, its length or its ends, or another one."""
    if not word or draw(st.integers(0, 4)) == 4:
        return draw(words())
    at = draw(st.integers(0, len(word) - 1))
    added = draw(st.sampled_from((*WORDS[:-1], HALF_A_PAIR)))
    return draw(
        st.sampled_from(
            (word[:at] + word[at + 1 :], word[:at] + added + word[at:], word.swapcase(), f" {word}", f"{word}\n",
             word * 2, word[:at], word + added, word.replace("/", "//../", 1), word.replace("0", "٠"),
             word.replace(word[at], "9", 1))
        )
    )  # fmt: skip


# --- texts and bytes ---


def encoded(tree: Any) -> bytes:
    """A tree as JSON; its marks stand for text that no encoder writes, and are replaced."""
    text = json.dumps(tree)
    for mark, written in _AS_TEXT.items():
        text = text.replace(json.dumps(mark), written)
    return text.encode()


_INSERTED = (b"\0", b"\xff\xfe", b"\n", b"\r\n", b'"', b"{" * 50)


@st.composite
def changed_bytes(draw: DrawFn, data: bytes) -> bytes:
    """Bytes with a bit flipped, cut short, a part removed, repeated, or something inserted or added."""
    if not data:
        return draw(st.binary(min_size=1, max_size=64))
    change = draw(st.sampled_from(("flip", "flip", "remove", "repeat", "cut", "add", "insert", "empty")))
    if change == "empty":
        return b""
    at = draw(st.integers(0, len(data) - 1))
    if change == "flip":
        return data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
    if change == "cut":
        return data[:at]
    if change == "add":
        return data + draw(st.binary(min_size=1, max_size=40))
    if change == "insert":
        return data[:at] + draw(st.sampled_from(_INSERTED)) + data[at:]
    until = draw(st.integers(at + 1, len(data)))
    return data[:at] + data[until:] if change == "remove" else data[:until] + data[at:]


@st.composite
def _changed_digit(draw: DrawFn, data: bytes) -> bytes:
    """A text of which one digit is another one: as a rule it is still valid."""
    digits = [index for index, byte in enumerate(data) if chr(byte).isdigit()]
    if not digits:
        return draw(changed_bytes(data))
    at = draw(st.sampled_from(digits))
    return data[:at] + str((data[at] - ord("0") + draw(st.integers(1, 9))) % 10).encode() + data[at + 1 :]


@st.composite
def changed_json(draw: DrawFn, data: bytes) -> bytes:
    """A changed file of JSON."""
    change = draw(st.integers(0, 19))
    if change >= 17:
        return draw(changed_bytes(data))
    if change >= 12:
        return draw(_changed_digit(data))
    changed = encoded(draw(changed_tree(json.loads(data))))
    if change == 11 and changed.startswith(b"{") and b":" in changed:
        first = changed[1 : changed.index(b":")]
        return b"{" + first + b": " + encoded(draw(odd())) + b", " + changed[1:]  # the key twice
    return changed


@st.composite
def changed_lines(draw: DrawFn, data: bytes) -> bytes:
    """A changed file of JSON lines: a line changed, moved, repeated or removed."""
    lines = data.splitlines(keepends=True)
    at, change = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, 9))
    if change < 7:
        lines[at] = draw(changed_json(lines[at].rstrip(b"\n"))) + b"\n"
    elif change == 7:
        del lines[at]
    elif change == 8:
        lines.insert(draw(st.integers(0, len(lines))), lines[at])
    else:
        return draw(changed_bytes(data))
    return b"".join(lines)


@st.composite
def changed_tensors(draw: DrawFn, data: bytes) -> bytes:
    """A changed safetensors file: its header as a tree, the length before it, its values, or any bytes."""
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    change = draw(st.integers(0, 9))
    if change < 5:
        new = encoded(draw(changed_tree(header)))
        return len(new).to_bytes(8, "little") + new + body
    if change == 5:
        length = draw(st.sampled_from((0, 1, size - 1, size + 1, 2**31, 2**63, 2**64 - 1)))
        return length.to_bytes(8, "little") + data[8:]
    if change < 8 and len(body) >= 4:
        at = 4 * draw(st.integers(0, len(body) // 4 - 1))
        value = struct.pack("<f", draw(st.sampled_from((nan, inf, -inf, 0.0, -1.0, 3e38, 1e-45))))
        return data[: 8 + size] + body[:at] + value + body[at + 4 :]
    return draw(changed_bytes(data))


@st.composite
def changed_metadata(draw: DrawFn, data: bytes) -> bytes:
    """A safetensors file with the JSON or the word in its metadata changed, or changed as any such file."""
    if draw(st.integers(0, 4)) >= 3:
        return draw(changed_tensors(data))
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    key = draw(st.sampled_from(list(header["__metadata__"])))
    word = header["__metadata__"][key]
    is_json = word[0] in "{["
    changed = draw(changed_json(word.encode())).decode(errors="replace") if is_json else draw(changed_word(word))
    header["__metadata__"][key] = changed
    new = json.dumps(header).encode()
    return len(new).to_bytes(8, "little") + new + data[8 + size :]


@st.composite
def changed_table(draw: DrawFn, data: bytes) -> bytes:
    """A changed text of lines with commas between: a field, a row, a separator, or any bytes."""
    rows = [line.split(",") for line in data.decode().splitlines()]
    row = draw(st.sampled_from(rows))
    at, change = draw(st.integers(0, len(row) - 1)), draw(st.integers(0, 9))
    if change < 5:
        row[at] = draw(st.one_of(changed_word(row[at]), st.sampled_from(NUMBERS).map(str)))
    elif change == 5:
        del row[at]
    elif change == 6:
        row.insert(at, draw(st.sampled_from(row)))
    elif change == 7:
        rows.remove(row)
    elif change == 8:
        rows.insert(0, row)
    else:
        return draw(changed_bytes(data))
    return "\n".join(map(",".join, rows)).encode(errors="replace") + b"\n"


@st.composite
def changed_toml(draw: DrawFn, data: bytes) -> bytes:
    """A changed text of TOML: a line's key or value, its table, its order, or any bytes."""
    lines = data.decode().splitlines()
    at, change = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, 19))
    key, equals, value = lines[at].partition(" = ")
    if change < 11 and equals:
        lines[at] = f"{key} = {draw(_toml_value(value))}"
    elif change < 13 and equals:
        lines[at] = f"{json.dumps(draw(changed_word(key)))} = {value}"
    elif change < 15:
        lines.insert(draw(st.integers(0, len(lines))), lines[at])
    elif change < 16:
        del lines[at]
    elif change < 17:
        added = ("[run]", "[[run]]", "[clients]", "a.b.c = 1", "more = 1", "[", "\x00")
        lines.insert(at, draw(st.sampled_from(added)))
    else:
        return draw(changed_bytes(data))
    return "\n".join(lines).encode(errors="replace") + b"\n"


@st.composite
def _toml_value(draw: DrawFn, value: str) -> str:
    if draw(st.integers(0, 4)) == 4:
        bare = value.partition("#")[0]
        return draw(st.sampled_from((f"[{bare}]", value.replace('"', "'"), f"{{a = {bare}}}")))
    made = draw(odd())
    if isinstance(made, str) and made in _AS_TEXT:
        return "[" * 500 + "]" * 500 if made == _DEEP else _AS_TEXT[made]
    if isinstance(made, dict):
        return "{a = 1}" if made else "{}"
    written = json.dumps(made).replace("NaN", "nan").replace("Infinity", "inf")
    return written.replace("null", "1979-05-27T07:32:00Z")


# --- files, with seals and without ---


def unsealed(operator: Operator) -> Change:
    """Change a file without a seal."""
    return lambda name, data: operator(data).map(lambda changed: ({name: changed}, False))


def broken(operator: Operator) -> Change:
    """Change a sealed file and leave its seal as it was."""
    return lambda name, data: operator(data).map(lambda changed: ({name: changed}, True))


def renamed(operator: Operator) -> Change:
    """Change a file with its SHA-256 in its name, which is made to fit."""

    def made(name: str, changed: bytes) -> tuple[Files, bool]:
        path = Path(name)
        stem, digest = path.stem.rpartition("-")[0], hashlib.sha256(changed).hexdigest()
        return {name: None, str(path.with_name(f"{stem}-{digest}{path.suffix}")): changed}, False

    return lambda name, data: operator(data).map(lambda changed: made(name, changed))


def resummed(operator: Operator) -> Change:
    """Change a file whose last line is its SHA-256, which is made to fit."""
    return lambda name, data: operator(data.rpartition(b"\n")[0]).map(
        lambda changed: ({name: with_checksum(changed)}, False)
    )


def missummed(operator: Operator) -> Change:
    """Change a file whose last line is its SHA-256, which is left as it was."""

    def change(name: str, data: bytes) -> SearchStrategy[tuple[Files, bool]]:
        content, _, digest = data.rpartition(b"\n")
        return operator(content).map(lambda changed: ({name: changed + b"\n" + digest}, True))

    return change


def resealed(name: str, data: bytes) -> SearchStrategy[tuple[Files, bool]]:
    """Change a line of a manifest; its seals and its head are made to fit."""

    def made(changed: bytes) -> tuple[Files, bool]:
        lines: list[bytes] = []
        for number, line in enumerate(changed.split(b"\n"), start=1):
            row = _row(line)
            lines.append(line if row is None else json.dumps(sealed(row, number)).encode())
        head = json.dumps({"lines": len(lines) - 1}).encode()
        return {name: b"\n".join(lines), str(Path(name).with_name(HEAD)): with_checksum(head)}, False

    return changed_lines(data).map(made)


def rechained(name: str, data: bytes) -> SearchStrategy[tuple[Files, bool]]:
    """Change a chain of lines; all its sums and its head are made to fit."""

    def made(changed: bytes) -> tuple[Files, bool]:
        before, lines = "0" * 64, []
        for line in filter(None, changed.split(b"\n")):
            row = _row(line)
            lines.append(line if row is None else json.dumps({**row, "before": before}).encode())
            before = hashlib.sha256(lines[-1]).hexdigest()
        head = json.dumps({"lines": len(lines), "sha256": before}).encode()
        return {name: b"".join(line + b"\n" for line in lines), str(Path(name).with_suffix(".head")): head}, False

    return changed_lines(data).map(made)


def unchained(name: str, data: bytes) -> SearchStrategy[tuple[Files, bool]]:
    """Change a chain of lines and leave its sums; what stands behind its last whole line was never acknowledged."""
    return st.one_of(changed_lines(data), changed_bytes(data)).map(
        lambda changed: ({name: changed}, not changed.startswith(data))
    )


def either(*changes: Change) -> Change:
    """Change a file in one of these ways."""
    return lambda name, data: st.one_of(*(change(name, data) for change in changes))


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
