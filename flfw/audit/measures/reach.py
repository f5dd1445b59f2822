"""Reach of an attack whose search gives images of one form alone: examples that it could not have recovered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flfw.audit.measures.recovery import GAIN_DB, IMAGE_RECOVERED_DB

NEAR_DB = 3.0
"""Distance to its ceiling within which a search did its work: at most twice the least squared error of its form."""
_SLACK_DB = 0.1  # a ceiling is itself the end of a search with the truth; other such searches came so much nearer


def out_of_reach(rows: Sequence[Mapping[str, Any]], floors: Sequence[str]) -> str:
    """Say how many images an attack could not have recovered, and where its search came near its ceiling.

    An image is out of reach if even the nearest one of the search's form is below what counts as recovered
    (`flfw.audit.measures.recovery.recovered`).

    Args:
        rows: rows of images with their ``ceiling``, ``psnr`` and floors; rows without a ceiling are not counted.
        floors: names of the floors.

    Returns:
        Sentences; empty if no image is out of reach.

    >>> out_of_reach([{"ceiling": 15.0, "psnr": 14.0, "floor_grey": 9.0}], ["grey"]).partition(":")[0]
    'This attack could not have recovered 1 of 1 images'
    """
    bound = [row for row in rows if row.get("ceiling") is not None]
    needed = [_needed(row, floors) for row in bound]
    beyond = [(row, least) for row, least in zip(bound, needed, strict=True) if row["ceiling"] + _SLACK_DB < least]
    if not beyond:
        return ""
    nearest, least = (float(np.mean(values)) for values in zip(*((r["ceiling"], db) for r, db in beyond), strict=True))
    close = sum(row["psnr"] is not None and row["psnr"] >= row["ceiling"] - NEAR_DB for row, _ in beyond)
    first = (
        f"This attack could not have recovered {len(beyond)} of {len(rows)} images: the nearest image that its search "
        f"can give is {nearest:.1f} dB from these on average, and a recovered one has {least:.1f} dB or more."
    )
    return f"{first} In {close} of them it came within {NEAR_DB:g} dB of that nearest image." if close else first


def _needed(row: Mapping[str, Any], floors: Sequence[str]) -> float:
    """Return the least PSNR in dB at which an image counts as recovered."""
    guessed = [value for name in floors if (value := row.get(f"floor_{name}")) is not None]
    return max([IMAGE_RECOVERED_DB, *(value + GAIN_DB for value in guessed)])
