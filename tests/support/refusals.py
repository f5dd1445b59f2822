"""Commands that must be refused."""

from pathlib import Path

import pytest

import sim


def assert_refused(text: str, flags: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Give a command that is refused in one line with these words, and leaves nothing behind."""
    assert sim.main([*flags, "--attack", "none", "--out", str(out)]) == 2
    printed = capsys.readouterr().err.strip()
    assert text in printed and "\n" not in printed
    assert not out.exists()
