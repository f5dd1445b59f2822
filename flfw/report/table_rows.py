"""Rows of a table beside what an attack made of them, for the page: the names of the columns and their values."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup, escape

from flfw.data.files.columns import Columns

_MOST = 60  # columns that are shown


def row_pair(plan: Columns, truth: np.ndarray, reconstruction: np.ndarray | None) -> Markup:
    """Write a table of a row's columns, with the true and the reconstructed value of each; wrong ones are marked.

    A number is right within a twentieth of its range, as the audit counts.

    Args:
        plan: the table's columns.
        truth: features (d,) in [0, 1].
        reconstruction: the same of the attack's result; None: there is none.
    """
    true, right = plan.row(truth), plan.right(truth, reconstruction)
    made = ["nothing"] * len(true) if reconstruction is None else plan.row(reconstruction)
    lines = []
    for column, value, guess, same in list(zip(plan.kept, true, made, right, strict=True))[:_MOST]:
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
