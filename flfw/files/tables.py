"""Tables as plain text, in GitHub's Markdown, and in LaTeX that compiles with ``booktabs`` and ``graphicx`` alone."""

import io
import re
from collections.abc import Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

_WIDEST = 2000  # characters, so that no line is broken: a terminal may cut long lines
_SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
    "’": "'",
    "[": "{[}",  # after the end of a row LaTeX would read a bare bracket as a height
}


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """Return a table as plain text, a line for each row.

    Args:
        head: words above the columns.
        rows: rows of cells.
        right: the words above columns that are flush right.
    """
    drawn = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in head:
        drawn.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        drawn.add_row(*row)
    return plain(_WIDEST, drawn)


def plain(width: int, *parts: RenderableType) -> str:
    """Return text and rich's tables below one another, in lines of at most ``width`` characters without colours."""
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None, markup=False, emoji=False, highlight=False)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in GitHub's Markdown."""
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"| {line} |" for line in lines)


def escaped(text: str) -> str:
    r"""Return plain text as LaTeX prints it.

    >>> escaped('50 % of "dp_gaussian"')
    "50 \\% of ``dp\\_gaussian''"
    """
    return re.sub('"([^"]*)"', r"``\1''", text).translate(str.maketrans(_SIGNS))


def tabular(columns: str, head: Sequence[str], groups: Sequence[Sequence[Sequence[str]]]) -> str:
    """Return a table in the style of booktabs, with a thin rule between groups of rows.

    Args:
        columns: alignment of each column, such as ``llr``.
        head: words above the columns, in LaTeX.
        groups: rows of cells in LaTeX, as many cells as columns.
    """
    assert all(len(row) == len(columns) for row in (head, *(row for group in groups for row in group))), "equal rows"
    blocks = [[" & ".join(row) + r" \\" for row in group] for group in groups if group]
    between = [line for block in blocks for line in (r"\midrule", *block)]
    lines = [r"\toprule", " & ".join(head) + r" \\", *between, r"\bottomrule"]
    return "\n".join([f"\\begin{{tabular}}{{{columns}}}", *lines, r"\end{tabular}"])


def floating(kind: str, body: str, caption: str, label: str, notes: Sequence[str] = ()) -> str:
    """Return a body as a float with caption, label and notes in small print.

    Args:
        kind: ``table`` or ``figure``, with a star for both columns.
        body: the body in LaTeX.
        caption: caption in LaTeX.
        label: label, without ``tab:`` or ``fig:``.
        notes: sentences below, in LaTeX.
    """
    place = kind.rstrip("*")
    small = [f"\\par\\smallskip\\begin{{minipage}}{{\\linewidth}}\\footnotesize {' '.join(notes)}\\end{{minipage}}"]
    lines = [r"\centering", f"\\caption{{{caption}}}", f"\\label{{{place[:3]}:{label}}}", body]
    if place == "figure":
        lines = [lines[0], body, *lines[1:3]]
    return "\n".join([f"\\begin{{{kind}}}[t]", *lines, *(small if notes else []), f"\\end{{{kind}}}"]) + "\n"
