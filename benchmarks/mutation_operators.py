"""Operators of mutation: each changes one thing in a tree, a text, some bytes or a file of tensors.

A tree is a value of JSON: what a parser of a file gives. The operators know the structure: they change a field's type,
length, sign, exponent, name, order or nesting, remove it, repeat it, or put something odd in its place.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from math import inf, nan
from random import Random
from typing import Any, TypeAlias

Operator: TypeAlias = Callable[[bytes, Random], bytes]
"""Function that returns changed bytes."""

_DEEP, _DIGITS, _EXPONENT = "@DEEP@", "@DIGITS@", "@EXPONENT@"
_AS_TEXT = {_DEEP: "[" * 4000 + "]" * 4000, _DIGITS: "9" * 5000, _EXPONENT: "1e999"}  # no encoder writes these
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 255, 2**31, 2**32, 2**53 + 1, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, -1e308, 5e-324, nan,
    inf, -inf,
)  # fmt: skip
WORDS = (
    "", " ", "0", "-1", "nan", "inf", "1e999", "none", "auto", "../../../etc/passwd", "/etc/passwd", "..", ".",
    "a/../../b", "/dev/zero", "/proc/self/environ", "~", "$HOME", "C:\\x", "two\nlines", "nul\x00",
    "\x1b[2J\x1b]0;x\x07", "\u202e\u200b", "é", "e\u0301", "\ud800", "=1+1", "-x", "--out", "'", '"', "\\", "%s{}",
    "x" * 300, "y" * 100_000,
)  # fmt: skip
_SHAPES: tuple[Any, ...] = (None, True, False, [], {}, [None], [[[]]], {"": None}, {"__class__": 1}, [0] * 1000)


def odd(rng: Random) -> Any:
    """Return an odd value: a number, a word, or something of another shape."""
    return rng.choice(rng.choice((NUMBERS, WORDS, _SHAPES, (_DEEP, _DIGITS, _EXPONENT))))


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a tree, the whole first."""
    yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def tree_mutant(tree: Any, rng: Random) -> Any:
    """Return a copy of a tree with one value changed, moved, renamed, repeated or removed."""
    copy = json.loads(json.dumps(tree))
    by_depth: dict[int, list[tuple[Any, ...]]] = {}
    for path in places(copy):
        by_depth.setdefault(len(path), []).append(path)
    path = rng.choice(by_depth[rng.choice(list(by_depth))])  # outer fields are few, and matter most
    if not path:
        return _other(copy, rng)
    *outer, key = path
    parent = copy
    for step in outer:
        parent = parent[step]
    if rng.random() < 0.6:
        parent[key] = _other(parent[key], rng)
    elif isinstance(parent, list):
        _change_list(parent, key, rng)
    else:
        _change_table(parent, key, rng)
    return copy


def _other(value: Any, rng: Random) -> Any:
    """Return a value in place of another: a close one, or an odd one."""
    if rng.random() < 0.5:
        return odd(rng)
    if isinstance(value, bool):
        return rng.choice((not value, int(value), str(value).lower()))
    if isinstance(value, int | float):
        near = (value + 1, value - 1, -value, value * 1e30, value / 3, float(value), str(value), [value], value * 2)
        return rng.choice(near)
    if isinstance(value, str):
        return word_mutant(value, rng)
    if isinstance(value, list):
        return rng.choice((value[1:], value[::-1], value * 2, [value], {str(i): v for i, v in enumerate(value)}))
    if isinstance(value, dict):
        return rng.choice((list(value.items()), list(value), {**value, "more": odd(rng)}, [value], {"inner": value}))
    return odd(rng)


def _change_list(parent: list[Any], at: int, rng: Random) -> None:
    change = rng.randrange(4)
    if change == 0:
        del parent[at]
    elif change == 1:
        parent.insert(at, parent[at])
    elif change == 2:
        parent.insert(at, odd(rng))
    else:
        rng.shuffle(parent)


def _change_table(parent: dict[str, Any], key: str, rng: Random) -> None:
    change, other = rng.randrange(5), rng.choice(list(parent))
    if change == 0:
        del parent[key]
    elif change == 1:
        parent[word_mutant(key, rng)] = parent.pop(key)
    elif change == 2:
        parent[key], parent[other] = parent[other], parent[key]
    elif change == 3:
        parent[rng.choice(WORDS)] = odd(rng)
    else:
        parent[key] = parent[other]


def word_mutant(word: str, rng: Random) -> str:
    """Return a word that differs in a character, its case, its length or its ends, or another one."""
    if not word or rng.random() < 0.2:
        return rng.choice(WORDS)
    at, odd_one = rng.randrange(len(word)), rng.choice(WORDS[:-1])
    return rng.choice(
        (word[:at] + word[at + 1 :], word[:at] + odd_one + word[at:], word.swapcase(), f" {word}", f"{word}\n",
         word * 2, word[:at], word + odd_one, word.replace("/", "//../", 1), word.replace("0", "٠"),
         word.replace(word[at], "9", 1))
    )  # fmt: skip


def encoded(tree: Any) -> bytes:
    """Return a tree as JSON; its marks stand for text that no encoder writes, and are replaced."""
    text = json.dumps(tree)
    for mark, words in _AS_TEXT.items():
        text = text.replace(json.dumps(mark), words)
    return text.encode()


def json_mutant(data: bytes, rng: Random) -> bytes:
    """Return a changed file of JSON."""
    if rng.random() < 0.15:
        return bytes_mutant(data, rng)
    changed = encoded(tree_mutant(json.loads(data), rng))
    if rng.random() < 0.05 and changed.startswith(b"{") and b":" in changed:
        first = changed[1 : changed.index(b":")]
        return b"{" + first + b": " + encoded(odd(rng)) + b", " + changed[1:]  # the key twice
    return changed


def lines_mutant(data: bytes, rng: Random) -> bytes:
    """Return a changed file of JSON lines: a line changed, moved, repeated or removed."""
    lines = data.splitlines(keepends=True)
    at, change = rng.randrange(len(lines)), rng.random()
    if change < 0.7:
        lines[at] = json_mutant(lines[at].rstrip(b"\n"), rng) + b"\n"
    elif change < 0.8:
        del lines[at]
    elif change < 0.9:
        lines.insert(rng.randrange(len(lines) + 1), lines[at])
    else:
        return bytes_mutant(data, rng)
    return b"".join(lines)


def bytes_mutant(data: bytes, rng: Random) -> bytes:
    """Return changed bytes: bits flipped, cut short, a part removed, repeated, overwritten, or something inserted."""
    if not data:
        return rng.randbytes(rng.randrange(1, 64))
    at, until = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    change = rng.randrange(8)
    if change <= 1:
        place = rng.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    part = (data[:at] + data[until:], data[:until] + data[at:], data[:at], data + rng.randbytes(rng.randrange(1, 40)))
    more = (data[:at] + rng.choice((b"\0", b"\xff\xfe", b"\n", b"\r\n", b'"', b"{" * 50)) + data[at:], b"")
    return (*part, *more)[change - 2]


def tensors_mutant(data: bytes, rng: Random) -> bytes:
    """Return a changed safetensors file: its header as a tree, the length before it, its numbers, or any bytes."""
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    change = rng.random()
    if change < 0.5:
        new = encoded(tree_mutant(header, rng))
        return len(new).to_bytes(8, "little") + new + body
    if change < 0.6:
        length = rng.choice((0, 1, size - 1, size + 1, 2**31, 2**63, 2**64 - 1))
        return length.to_bytes(8, "little") + data[8:]
    if change < 0.8 and len(body) >= 4:
        at = rng.randrange(len(body) // 4) * 4
        number = struct.pack("<f", rng.choice((nan, inf, -inf, 0.0, -1.0, 3e38, 1e-45)))
        return data[: 8 + size] + body[:at] + number + body[at + 4 :]
    return bytes_mutant(data, rng)


def table_mutant(data: bytes, rng: Random) -> bytes:
    """Return a changed text of lines with commas between: a field, a row, a separator, or any bytes."""
    rows = [line.split(",") for line in data.decode().splitlines()]
    row = rng.choice(rows)
    at, change = rng.randrange(len(row)), rng.random()
    if change < 0.5:
        row[at] = rng.choice((word_mutant(row[at], rng), str(rng.choice(NUMBERS)))).replace("\ud800", "?")
    elif change < 0.6:
        del row[at]
    elif change < 0.7:
        row.insert(at, rng.choice(row))
    elif change < 0.8:
        rows.remove(row)
    elif change < 0.85:
        rows.insert(0, row)
    else:
        return bytes_mutant(data, rng)
    return "\n".join(map(",".join, rows)).encode(errors="replace") + b"\n"


def toml_mutant(data: bytes, rng: Random) -> bytes:
    """Return a changed text of TOML: a line's key or value, its table, its order, or any bytes."""
    lines = data.decode().splitlines()
    at = rng.randrange(len(lines))
    key, equals, value = lines[at].partition(" = ")
    change = rng.random()
    if change < 0.55 and equals:
        lines[at] = f"{key} = {_toml_value(value, rng)}"
    elif change < 0.65 and equals:
        lines[at] = f"{json.dumps(word_mutant(key, rng).replace(chr(0xD800), '?'))} = {value}"
    elif change < 0.72:
        lines.insert(rng.randrange(len(lines) + 1), lines[at])
    elif change < 0.79:
        del lines[at]
    elif change < 0.85:
        lines.insert(at, rng.choice(("[run]", "[[run]]", "[clients]", "a.b.c = 1", "more = 1", "[", "\x00")))
    else:
        return bytes_mutant(data, rng)
    return "\n".join(lines).encode(errors="replace") + b"\n"


def _toml_value(value: str, rng: Random) -> str:
    if rng.random() < 0.2:
        return rng.choice(
            (f"[{value.partition('#')[0]}]", value.replace('"', "'"), f"{{a = {value.partition('#')[0]}}}")
        )
    made = odd(rng)
    if made in (_DEEP, _DIGITS, _EXPONENT):
        return "[" * 500 + "]" * 500 if made == _DEEP else _AS_TEXT[made]
    if isinstance(made, dict):
        return "{}" if not made else "{a = 1}"
    words = json.dumps(made).replace("NaN", "nan").replace("Infinity", "inf")
    return words.replace("null", "1979-05-27T07:32:00Z")
