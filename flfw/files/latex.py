"""Text and tables in LaTeX that compile with ``booktabs`` and ``graphicx`` alone."""

import re
from collections.abc import Sequence

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
