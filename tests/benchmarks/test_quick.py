"""Every benchmark with ``--quick``: it ends well, and its last line is one JSON object."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "output.parser(" in path.read_text())
WORDS = {"gpu": ["--device", "cpu"]}

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_quickly(name: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out.json")] if name == "gpu" else []
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", *WORDS.get(name, []), *out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "breaching_env` installs it" in done.stderr:
        pytest.skip("no environment of breaching")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])
