"""Apps of examples/any_app on this project's actors and on Flower's engine: the same last models, bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "any_app"
APPS = ["message_app", "numpy_app", "adam_app", "state_app"]

pytestmark = [pytest.mark.early, pytest.mark.nightly]


def digests(engine: str) -> dict[str, str]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "simulate.py", "--engine", engine]
    done = subprocess.run(command, cwd=FOLDER, env=variables, capture_output=True, text=True, timeout=500, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {words[0]: words[1] for words in lines if len(words) == 2 and words[0] in APPS}


def test_both_engines_end_with_the_same_models() -> None:
    ours = digests("flfw")
    assert list(ours) == APPS
    assert len(set(ours.values())) == len(APPS), "the apps differ"
    assert digests("flwr") == ours
