"""Texts and rows of a table of a client beside what an attack made of them, for the page."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from markupsafe import Markup, escape

from flfw.data.files.columns import TableSchema

_MOST = 60  # columns of a row that are shown
_SIGNS = {"\0": "·", "\n": "↵", "\t": "⇥"}
LEGEND = (
    "↵ ends a line, ⇥ is a tab, · a zero byte that fills up, \N{REPLACEMENT CHARACTER} another byte without a picture"
)
"""Words for the signs of what cannot be printed."""


def text_pair(truth: np.ndarray, reconstruction: np.ndarray | None) -> Markup:
    """Write a text above its reconstruction, with the wrong characters of the latter marked.

    Args:
        truth: raw inputs (T,) in [0, 1], byte k as k / 255.
        reconstruction: the same of the attack's result; None: there is none.
    """
    true = _bytes(truth)
    lines = [f'<div class="line">{"".join(shown for _, shown in _characters(true))}</div>']
    if reconstruction is None:
        lines.append('<div class="line soft">nothing</div>')
    else:
        guess = _bytes(reconstruction)
        marked = [
            shown if guess[index] == true[index] else f"<mark>{shown}</mark>" for index, shown in _characters(guess)
        ]
        lines.append(f'<div class="line">{"".join(marked)}</div>')
    return Markup(f'<div class="strip texts">{"".join(lines)}</div>')


def _bytes(values: np.ndarray) -> bytes:
    return np.rint(255 * np.clip(np.nan_to_num(values.astype(np.float64)), 0, 1)).astype(np.uint8).tobytes()


def _characters(text: bytes) -> Iterator[tuple[slice, str]]:
    """Yield the characters of a text as HTML, each after its place; a byte that is none stands for itself."""
    at = 0
    while at < len(text):
        size = next((size for size in range(1, 5) if _decoded(text[at : at + size])), 1)
        yield slice(at, at + size), _shown(_decoded(text[at : at + size]))
        at += size


def _decoded(part: bytes) -> str:
    """Return the one character that some bytes are in UTF-8; empty if they are none."""
    character = part.decode(errors="ignore")
    return character if len(character) == 1 and character.encode() == part else ""


def _shown(character: str) -> str:
    """Return a character for HTML; those without a picture, and bytes that are none, have signs of their own."""
    if character.isprintable() and character:
        return str(escape(character))
    return _SIGNS.get(character, "\N{REPLACEMENT CHARACTER}")


def row_pair(schema: TableSchema, truth: np.ndarray, reconstruction: np.ndarray | None) -> Markup:
    """Write a table of a row's columns, with the true and the reconstructed value of each; wrong ones are marked.

    A number is right within a twentieth of its range, as the audit counts.

    Args:
        schema: the table's columns.
        truth: features (d,) in [0, 1].
        reconstruction: the same of the attack's result; None: there is none.
    """
    true, right = schema.row(truth), schema.right(truth, reconstruction)
    made = ["nothing"] * len(true) if reconstruction is None else schema.row(reconstruction)
    lines = []
    for column, value, guess, same in list(zip(schema.kept, true, made, right, strict=True))[:_MOST]:
        shown = escape(guess) if same else Markup("<mark>{}</mark>").format(guess)
        lines.append(
            Markup(
                '<tr><th scope="row" class="text">{}</th><td class="text">{}</td><td class="text">{}</td></tr>'
            ).format(column.name, value, shown)
        )
    rest = len(true) - _MOST
    note = Markup('<p class="soft">and {} more columns</p>').format(rest) if rest > 0 else Markup("")
    head = Markup(
        '<thead><tr><th scope="col" class="text">Column</th><th scope="col" class="text">True</th>'
        '<th scope="col" class="text">Attack</th></tr></thead>'
    )
    body = Markup("").join(lines)
    return Markup('<div class="strip scroll"><table>{}<tbody>{}</tbody></table>{}</div>').format(head, body, note)
