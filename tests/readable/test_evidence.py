"""Records of evidence of today: listed by the command, or refused in one line."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.readable.outside import Change, Ended, copied, edit, ended

FOLDER = "evidence"


def listed(folder: Path) -> Ended:
    """``python -m research.evidence --list --folder FOLDER``."""
    words = ["evidence", "--list", "--folder", str(folder), "--only", "fed_cdp.5/Adult/0/"]

    def program() -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            patch.delitem(sys.modules, "research.evidence.__main__", raising=False)  # another test imported it
            runpy.run_module("research.evidence", run_name="__main__", alter_sys=True)
        return 0

    return ended(program)


def one(folder: Path) -> Path:
    return folder / "fed_cdp.5" / "Adult.0.accuracy.authors.seed0.json"


@pytest.mark.slow
def test_a_record_of_today_counts(tmp_path: Path) -> None:
    """It is recorded, with the digest of the present settings; without its file it is missing."""
    folder = copied(FOLDER, tmp_path / FOLDER)
    whole = listed(folder)
    whole.require_done()
    assert re.search(r"^recorded +fed_cdp.5/Adult/0/accuracy authors seed 0$", whole.out, re.MULTILINE)
    assert whole.out.count("recorded") == 1
    one(folder).unlink()
    assert "recorded" not in listed(folder).out


RECORDS: dict[str, Change] = {
    "a field of a later version": lambda record: record.update(unit="%"),
    "no value": lambda record: record.pop("value"),
    "a seed in words": lambda record: record.update(seed="zero"),
    "a list of settings": lambda record: record.update(settings=[]),
}


@pytest.mark.parametrize("change", RECORDS.values(), ids=RECORDS)
def test_a_record_that_is_not_understood_is_refused(tmp_path: Path, change: Change) -> None:
    folder = copied(FOLDER, tmp_path / FOLDER)
    edit(one(folder), change)
    listed(folder).require_refused(str(one(folder)))


def test_a_record_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    folder = copied(FOLDER, tmp_path / FOLDER)
    one(folder).write_bytes(one(folder).read_bytes()[:99])
    listed(folder).require_refused(str(one(folder)))
