"""Text of a user, as sequences of bytes of one length: ``--dataset text:FILE`` or ``text:FILE@LENGTH``.

Bytes are the vocabulary, so that nobody has to train or publish a tokeniser. An input is a row (length,) of numbers in
[0, 1], byte k as k / 255, as pixels are. A file in which every line is ``label<TAB>text`` is for classification; any
other file is for the prediction of the byte that follows a sequence.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.tables.plan_file import tested
from flfw.errors import InputError, alike

BYTES = 256
"""Size of the vocabulary."""
PAD = 0
"""Byte that fills up a text that is too short; no text that is read may hold it."""

_LENGTH, _LONGEST = 32, 1024
_LEAST = 5  # sequences: every fifth one is for testing
_FORM = re.compile(r"(.+?)(?:@(\d+))?")


def located(word: str) -> tuple[str, int]:
    """Return the path and the length in ``PATH`` or ``PATH@LENGTH``; a path that ends so needs its length as well.

    Raises:
        InputError: there is no path, or the length is not 2 to 1024.

    >>> located("notes.txt"), located("notes.txt@64")
    (('notes.txt', 32), ('notes.txt', 64))
    """
    parsed = _FORM.fullmatch(word)
    length = int(parsed[2] or _LENGTH) if parsed else 0
    if not parsed or not 2 <= length <= _LONGEST:
        raise InputError(f"Expected text:FILE or text:FILE@LENGTH with 2 <= LENGTH <= {_LONGEST}, got text:{word}.")
    return parsed[1], length


def text(word: str) -> DatasetCard:
    """Return the card of the sequences in a UTF-8 file.

    Lines ``label<TAB>text`` are an example each: the first bytes of the text, filled up with zero bytes. The classes
    are the labels in the order of their names; of each class every fifth line, from the second on, is for testing.

    Any other file is cut into pieces of ``LENGTH`` + 1 bytes, of which the last one is the label (256 classes). Every
    fifth piece, from the second on, is for testing. A piece may begin or end within a character.

    Raises:
        InputError: there is no such file, it is not UTF-8, it has a zero byte, or too little text.
    """
    path, length = located(word)
    location = Path(path).expanduser().absolute()
    lines, content = _content(location)
    labels = sorted({line.partition("\t")[0] for line in lines})
    return DatasetCard(
        shape=(length,),
        classes=len(labels) or BYTES,
        files={location.name: None},
        read=partial(_labelled, lines=lines, length=length) if lines else partial(_pieces, data=content, length=length),
        source=f"text in {path}, {'a label for each line' if lines else 'the byte after each sequence as its label'}",
        fetch="a UTF-8 file of text, or of lines label<TAB>text",
        root=location.parent,
        notes=(lambda _: (f"Labels {same}.",)) if (same := alike(labels)) else None,
        net="gpt_tiny",
        split="iid",
        vocabulary=BYTES,
        mean=(0.0,) * length,
        std=(1.0,) * length,
    )


def _content(path: Path) -> tuple[list[str], bytes]:
    """Return the lines of a labelled file, or none, and the file's bytes."""
    if not path.is_file():
        raise InputError(f"Expected text:FILE with a file of text, got {path}; no file is there.")
    content = path.read_bytes().removeprefix(BOM_UTF8)
    try:
        lines = [line for line in content.decode().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"Expected UTF-8 in {path}, got another byte at {error.start}; convert the file.") from error
    if PAD in content:
        raise InputError(f"Expected text in {path}, got a zero byte at {content.index(PAD)}; remove it.")
    plain = [line for line in lines if "\t" not in line]
    if len(lines) < 2 * len(plain) or not lines:
        return [], content
    if plain:
        got = f"{plain[0][:40]!r}; add it, or use none"
        raise InputError(f"Expected a tab in all lines of {path}, as in most, got {got}.")
    classes = {label for label, _, _ in (line.partition("\t") for line in lines)}
    if len(classes) < 2:
        raise InputError(f"Expected two labels or more in {path}, got only {', '.join(classes)}; add another class.")
    return lines, content


def _labelled(root: Path, side: int | None, lines: Sequence[str], length: int) -> DatasetArrays:
    """Return the examples of labelled lines."""
    pairs = [(label, words) for label, _, words in (line.partition("\t") for line in lines)]
    names = sorted({label for label, _ in pairs})
    x = np.full((len(pairs), length), PAD, np.uint8)
    for row, (_, words) in zip(x, pairs, strict=True):
        head = words.encode()[:length]
        row[: len(head)] = np.frombuffer(head, np.uint8)
    return _parted(x, np.array([names.index(label) for label, _ in pairs], np.int64), by_class=True)


def _pieces(root: Path, side: int | None, data: bytes, length: int) -> DatasetArrays:
    """Return the sequences of a plain file, each with the byte that follows it."""
    count = len(data) // (length + 1)
    if count < _LEAST:
        need = f"{_LEAST * (length + 1)} bytes or more for sequences of {length}"
        raise InputError(f"Expected {need}, got {len(data)}; take a longer file or another LENGTH.")
    pieces = np.frombuffer(data, np.uint8)[: count * (length + 1)].reshape(count, length + 1)
    return _parted(pieces[:, :-1], pieces[:, -1].astype(np.int64), by_class=False)


def _parted(x: np.ndarray, y: np.ndarray, by_class: bool) -> DatasetArrays:
    """Divide the examples into training and test part, as numbers in [0, 1]."""
    test, numbers = tested(y, None, by_class), x.astype(np.float32) / np.float32(BYTES - 1)
    return DatasetArrays(numbers[~test], y[~test], numbers[test], y[test])
