"""Conclusions where clients send running statistics beside the gradients that an audit attacks."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import nn

from flfw.audit.reconstruction.reconstruction_evidence import ReconstructionEvidence
from flfw.audit.verdict import Verdict, revised_if_unread
from flfw.nets.net import Net
from flfw.runs import run as whole
from tests.support.foreign_apps import Convolutional, ask, client_app, dense, recorded
from tests.support.small_runs import tiny

NORMED = "tests.audit.test_unread_statistics:normed"


def normed(shape: tuple[int, ...], classes: int) -> Net:
    """A network that normalises the colours of its images."""
    size = shape[0] * shape[1] * shape[2]
    return Net(nn.Sequential(nn.BatchNorm2d(shape[0]), nn.Flatten(), nn.Linear(size, 16)), nn.Linear(16, classes))


def nothing_found(_: ReconstructionEvidence) -> Iterator[tuple[str, str]]:
    yield "nothing", "Nothing came out."


def test_only_a_verdict_that_nothing_leaks_changes() -> None:
    for word in ("leaks", "identified", "void", "undecided", "static"):
        made = Verdict(word, "cause", "Reason.")
        assert revised_if_unread(made, "statistics") == made
    nothing = Verdict("no leak found", "nothing", "Reason.")
    assert revised_if_unread(nothing, "") == nothing
    turned = revised_if_unread(nothing, "statistics")
    assert (turned.verdict, turned.cause) == ("undecided", "unread")


@pytest.mark.slow
@pytest.mark.parametrize(("net", "method", "cause"), [(NORMED, "fedavg", "unread"), ("mlp", "fedavg", "nothing")])
def test_an_audit_of_a_network_with_statistics_does_not_say_that_nothing_leaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, net: str, method: str, cause: str
) -> None:
    monkeypatch.setattr(ReconstructionEvidence, "findings", nothing_found)
    given = {"net": net, "method": method, "dataset": "digits", "defence": "dp_gaussian", "attack": ("analytic",)}
    out = whole.run(tiny(tmp_path / "run", **given, audit_rounds="0", images=1))
    result = json.loads((out / "result.json").read_text())
    assert {entry["cause"] for entry in result["audit"]} == {cause}
    assert ("extractor.0.running_mean" in json.dumps(result["audit"])) == (cause == "unread")


@pytest.mark.parametrize(("build", "cause"), [(Convolutional, "unread"), (dense, "nothing")])
def test_nor_does_an_audit_of_a_recorded_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[[], nn.Module], cause: str
) -> None:
    monkeypatch.setattr(ReconstructionEvidence, "findings", nothing_found)
    folder = recorded(tmp_path / "recordings", client_app(build, 1), build)
    audited = ask(folder, tmp_path / "audit", net=build)["audit"]
    assert {entry["cause"] for entry in audited} == {cause}
    assert ("norm.running_mean" in json.dumps([entry["reason"] for entry in audited])) == (cause == "unread")
