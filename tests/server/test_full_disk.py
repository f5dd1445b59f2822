"""A run whose disk was full ends in one line, and goes on to the same numbers once there is room."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.resumed_runs import assert_same

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

FLAGS = shlex.split(
    "--method fedper --net lenet --engine inproc --clients 3 --rounds 3 --local-epochs 1 "
    "--attack ig --set ig.iterations=20 --images 2 --audit-rounds 0,last"
)


def run(*text: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "sim.py", *text]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert run(*FLAGS, "--out", str(out)).returncode == 0
    return out


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty disk in memory, whose size a test sets by mounting it again."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], capture_output=True, check=False).returncode:
        pytest.skip("this user may mount nothing")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def resize(disk: Path, kilobytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(disk)], check=True)


@pytest.mark.parametrize("share", [0.4, 0.7, 0.9, 0.97])
def test_it_goes_on_to_the_same_numbers(whole: Path, disk: Path, share: float) -> None:
    """Wherever the room ended: in training, at a recording, or in the audit, whose results are compared, too."""
    needed = sum(-(-path.stat().st_size // 4096) * 4 for path in whole.rglob("*") if path.is_file())
    resize(disk, round(share * needed))
    full = run(*FLAGS, "--out", str(disk / "run"))
    assert full.returncode == 1 and full.stderr.splitlines()[-1].startswith("sim.py: "), full.stderr
    assert "No space left on device" in full.stderr.splitlines()[-1] and "Traceback" not in full.stderr
    assert not (disk / "run" / "result.json").exists()
    resize(disk, 4 * needed)
    begun = any((disk / "run" / "checkpoint").glob("round-*"))
    again = run("--resume", str(disk / "run")) if begun else run(*FLAGS, "--out", str(disk / "again"))
    assert again.returncode == 0, again.stderr
    assert_same(whole, disk / ("run" if begun else "again"))
