"""Running statistics that clients send: no attack on membership reads them, so that none says that nothing leaks."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from flfw.audit.membership.membership_evidence import MembershipEvidence, PairGuesses, ScoredClient, weigh
from flfw.audit.verdict import verdict_on
from flfw.nets.net import Net, moved_in_training
from flfw.plans.run_plan import plan
from flfw.runs import run as whole
from tests.support.small_runs import tiny

NORMED = "tests.audit.test_membership_statistics:normed"


def normed(shape: tuple[int, ...], classes: int) -> Net:
    """A network that normalises its inputs: its running mean is near the mean of the inputs of a batch."""
    size = shape[0] * shape[1] * shape[2]
    return Net(
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(size), nn.Linear(size, 16), nn.ReLU()), nn.Linear(16, classes)
    )


def test_statistics_are_found_by_a_trial_that_changes_nothing() -> None:
    net = normed((1, 8, 8), 10)
    net.register_buffer("constant", torch.ones(2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    moved = moved_in_training(net, torch.rand(4, 1, 8, 8))
    assert moved == ("extractor.1.running_mean", "extractor.1.running_var")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_only_those_that_are_sent_count() -> None:
    sent = {method: plan(tiny(net=NORMED, method=method)).client.sent_statistics for method in ("fedavg", "fedbn")}
    assert len(sent["fedavg"]) == 2 and sent["fedbn"] == ()
    assert plan(tiny(net="mlp")).client.sent_statistics == ()


def test_a_statistic_that_reads_none_never_says_that_nothing_leaks() -> None:
    """The mean of a batch of 40 told 93 % of the pairs, behind noise that hid the gradients."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 2000, generator=generator).double().numpy()
    pairs = weigh([ScoredClient(0, scores[0], scores[1])], tests=1)
    null = PairGuesses(200, 100, 0.4, 0.6, 0.5)
    verdicts = {}
    for unread in ("", "the running statistics of the network (x)"):
        more = {"adaptive": True, "protected_by": "dp_gaussian", "unread": unread, "step_auc": 1.0}
        verdicts[bool(unread)] = verdict_on(MembershipEvidence(pairs, 1.0, null, **more).findings())
    assert verdicts[False].verdict == "no leak found"
    assert verdicts[True][:2] == ("undecided", "static") and "which clients send as well" in verdicts[True].reason


@pytest.mark.slow
@pytest.mark.parametrize("defence", ["none", "dp_gaussian"])
def test_an_audit_names_the_statistics_that_it_does_not_read(tmp_path: Path, defence: str) -> None:
    given = {"split": "iid", "audit_rounds": "1", "dataset": "digits", "net": NORMED, "attack": ("membership",)}
    settings = ("membership.width=16", "membership.public=20", "membership.shadows=0")
    out = whole.run(tiny(tmp_path / "run", **given, membership_pairs="20", defence=defence, set=settings))
    items = json.loads((out / "result.json").read_text())["membership"]
    assert items and not any(row["verdict"] == "no leak found" for row in items)
    read = [row["reason"] for row in items if row["defence"] == "none" or row["adaptive"]]
    assert any("does not read the running statistics of the network (extractor.1.running_mean" in why for why in read)
