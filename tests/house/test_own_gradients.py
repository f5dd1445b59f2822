"""The example on anybody's own gradients: it recovers its images, and needs neither Flower nor Ray."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "own_gradients"
ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
import attack
assert not {"flwr", "ray"} & set(sys.modules), "it needs more than it says"
print(min(attack.main(iterations=120)))
"""


@pytest.mark.nightly
def test_the_example_recovers_both_images_without_flower_or_ray() -> None:
    command = [sys.executable, "-W", "error", "-c", ALONE, str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 20, done.stdout
    assert done.stdout.startswith("cosine distance ")
