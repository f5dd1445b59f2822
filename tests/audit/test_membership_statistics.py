"""Networks with running statistics, which clients send, under an audit of membership."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from flfw.nets.net import Net
from flfw.runs import run as whole
from tests.support.small_runs import tiny

NORMED = "tests.audit.test_membership_statistics:normed"


def normed(shape: tuple[int, ...], classes: int) -> Net:
    """A network that normalises its inputs: its running mean is near the mean of the inputs of a batch."""
    size = shape[0] * shape[1] * shape[2]
    return Net(
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(size), nn.Linear(size, 16), nn.ReLU()), nn.Linear(16, classes)
    )


def test_an_audit_of_such_a_network_ends(tmp_path: Path) -> None:
    given = {"split": "iid", "audit_rounds": "1", "dataset": "digits", "net": NORMED, "attack": ("membership",)}
    settings = ("membership.width=16", "membership.public=20", "membership.shadows=0")
    out = whole.run(tiny(tmp_path / "run", **given, membership_pairs="20", set=settings))
    assert json.loads((out / "result.json").read_text())["membership"]
