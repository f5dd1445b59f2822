"""Texts of a client beside what an attack made of them, for the page."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup, escape


def text_pair(truth: np.ndarray, reconstruction: np.ndarray | None) -> Markup:
    """Write a text above its reconstruction, with the wrong characters of the latter marked.

    Args:
        truth: raw inputs (T,) in [0, 1], byte k as k / 255.
        reconstruction: the same of the attack's result; None: there is none.
    """
    true = _bytes(truth)
    lines = [f'<div class="line">{"".join(map(_shown, true))}</div>']
    if reconstruction is None:
        lines.append('<div class="line soft">nothing</div>')
    else:
        pairs = zip(_bytes(reconstruction), true, strict=True)
        marked = [_shown(one) if one == other else f"<mark>{_shown(one)}</mark>" for one, other in pairs]
        lines.append(f'<div class="line">{"".join(marked)}</div>')
    return Markup(f'<div class="strip texts">{"".join(lines)}</div>')


def _bytes(values: np.ndarray) -> list[int]:
    return np.rint(255 * np.clip(np.nan_to_num(values.astype(np.float64)), 0, 1)).astype(int).tolist()


def _shown(byte: int) -> str:
    """Return a byte as text for HTML; a zero byte, which fills up, as a dot, and one that is not ASCII as a mark."""
    if byte == 0:
        return "·"
    return str(escape(chr(byte))) if 32 <= byte < 127 else "\N{REPLACEMENT CHARACTER}"
