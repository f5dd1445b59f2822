"""ROUGE of texts of bytes: the words, and the pairs of words, that a reconstruction shares with the true text.

Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004; the F-measure, on words in lower case. A sequence
of bytes may begin and end within words, whose parts count as words here.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from flfw.audit.measures.metrics import is_text
from flfw.errors import require

GRAMS = (1, 2)
"""Lengths of the runs of words that are compared."""


def decoded(tokens: np.ndarray) -> str:
    """Return the text of bytes (T,), without the zero bytes that fill it up; a broken character becomes a mark.

    >>> decoded(np.array([72, 105, 255, 0, 0], np.uint8))
    'Hi\\ufffd'
    """
    require(is_text(tokens), "tokens", dtype=tokens.dtype)
    return tokens.astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="replace")


def rouge(truth: str, guess: str, grams: int) -> float:
    """Compute the F-measure, in [0, 1], of the runs of ``grams`` words in two texts; without any run it is 0.

    >>> rouge("the cat sat", "the cat ran off", 1)  # 2 of 3 words, and 2 of 4
    0.5714285714285714
    >>> rouge("the cat sat", "cat the sat", 2)
    0.0
    """
    a, b = (_runs(text, grams) for text in (truth, guess))
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 0.0


def rouges(truth: np.ndarray, guess: np.ndarray | None, floor: np.ndarray) -> dict[str, float | None]:
    """Compute the scores ``rouge_1`` and ``rouge_2`` of a guess, and those of a guess without the message.

    Args:
        truth: bytes (T,).
        guess: bytes (T,); None: the attack gave nothing, and its scores are None.
        floor: bytes (T,) of a random public text, for ``floor_rouge_1`` and ``floor_rouge_2``.
    """
    true, beside = decoded(truth), decoded(floor)
    scores = {f"rouge_{n}": None if guess is None else rouge(true, decoded(guess), n) for n in GRAMS}
    return scores | {f"floor_rouge_{n}": rouge(true, beside, n) for n in GRAMS}


def _runs(text: str, grams: int) -> Counter[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return Counter(zip(*(words[start:] for start in range(grams)), strict=False))
