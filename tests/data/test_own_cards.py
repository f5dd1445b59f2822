"""Cards of a user's own module: the examples are those of the code as it is now."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from flfw.data import load

CARD = """
import numpy as np
from flfw.data import DatasetArrays, DatasetCard

def read(root, side):
    x = np.full((3, 1, 4, 4), {value}, np.uint8)
    return DatasetArrays(x, np.arange(3), x[:1], np.zeros(1, int))

CARD = DatasetCard(
    shape=(1, 4, 4), classes=3, files={{}}, read=read, source="made up", fetch="a pencil", mean=(0.5,), std=(0.5,)
)
"""


def test_a_card_whose_module_changed_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    seen = []
    for value in (7, 250):
        (tmp_path / "a_card_of_mine.py").write_text(CARD.format(value=value))
        sys.modules.pop("a_card_of_mine", None)
        seen.append(int(np.asarray(load("a_card_of_mine:CARD", tmp_path).train_x).max()))
    sys.modules.pop("a_card_of_mine", None)
    assert seen == [7, 250]
