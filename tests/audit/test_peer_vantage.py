"""Another client, and one outside: an audit on what is left of a mean, and one without any message."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from flfw.adversary.sums import others_mean, rounding
from flfw.audit.reconstruction.reconstruction_evidence import SumFacts
from flfw.audit.verdict import verdict_on
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets.net import Tensors
from flfw.recording.observation import Observation, Vantage
from flfw.runs import run as whole
from tests.support.small_runs import tiny


def seen(client: int, sent: Tensors, received: Tensors) -> Observation:
    return Observation(Vantage.PEER, "probe", "target", 0, client, client, sent, received)


# --- what a client computes ---


@pytest.mark.parametrize("weights", [False, True], ids=["gradient", "weights"])
def test_of_two_clients_one_has_the_others_message_but_for_the_rounding_of_the_model(weights: bool) -> None:
    rng = torch.Generator().manual_seed(1)
    received = {"w": torch.randn(50, generator=rng), "b": torch.randn(3, generator=rng)}
    gradients = [{name: torch.randn(value.shape, generator=rng) for name, value in received.items()} for _ in "ab"]
    after = [{name: received[name] - 0.1 * value for name, value in each.items()} for each in gradients]
    sent = after if weights else gradients
    mean = others_mean([seen(0, sent[0], received)], [seen(1, sent[1], received)], weights, 0.1)
    changes = [mean.sent[n] - sent[0][n] for n in received]
    length = float(torch.cat(changes).norm()) * (1.0 if weights else 0.1)
    assert mean.client == 0 and 0 < length <= rounding(received, ["w", "b"], 2, 1) + 1e-6
    assert all(torch.allclose(mean.sent[n], sent[0][n], atol=1e-5) for n in received)


def test_of_four_clients_two_have_the_mean_of_the_other_two() -> None:
    received = {"w": torch.zeros(2)}
    clients = [seen(c, {"w": torch.tensor([float(c), 2.0**c])}, received) for c in range(4)]
    assert others_mean(clients[:2], clients[2:], False, 0.5).sent["w"].tolist() == [0.5, 1.5]
    assert others_mean(clients[:2], clients[2:], True, 0.5).sent["w"].tolist() == [0.5, 1.5]


def test_a_step_that_the_models_numbers_cannot_hold_is_lost_to_a_peer() -> None:
    received = {"w": torch.tensor([1.0])}
    lost = others_mean(
        [seen(0, {"w": torch.ones(1)}, received)], [seen(1, {"w": torch.zeros(1)}, received)], False, 1e-9
    )
    assert lost.sent["w"].tolist() == [0.0]


def test_clients_with_different_models_or_nobody_else_are_refused() -> None:
    one, other = (seen(c, {"w": torch.ones(1)}, {"w": torch.tensor([float(c)])}) for c in (0, 1))
    with pytest.raises(InputError, match="the same weights received"):
        others_mean([one], [other], False, 0.1)
    with pytest.raises(InputError, match="another and a colluding client"):
        others_mean([one], [], False, 0.1)


# --- the audit ---


def asked(folder: Path, **changes: Any) -> Experiment:
    wanted = {"clients": 4, "images": 4, "audit_rounds": "0", "vantage": ("peer",), "lr": 0.1, **changes}
    return tiny(folder, **wanted)


def entries(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "result.json").read_text())["audit"]


@pytest.mark.slow
def test_a_peer_recovers_what_two_other_clients_hold_and_one_outside_has_nothing_to_attack(tmp_path: Path) -> None:
    changes = {"vantage": ("server", "peer", "outsider"), "attack": ("spear",), "sum_size": 3, "curve": ("sum_size=2",)}
    audited = entries(whole.run(asked(tmp_path / "run", net="mlp", **changes)))
    at = {(e["vantage"], e["sum_size"]): e for e in audited}
    assert {where: (e["num_colluding"], e["batch"], e["images"]) for where, e in at.items()} == {
        ("server", None): (None, 1, 4), ("outsider", None): (None, 1, 4),
        ("peer", 3): (1, 2, 2), ("peer", 2): (1, 1, 2),
    }  # fmt: skip
    shares = [at[where]["share_recovered"] for where in (("server", None), ("peer", 3), ("peer", 2))]
    assert shares == [1.0] * 3
    words = " ".join(at["peer", 3]["granted"])
    assert "in rounds of 3 clients, what 1 client sent; of the others' messages only the sum over groups of 2" in words
    outside = at["outsider", None]
    assert outside["verdict"] == "undecided" and outside["failure_reason"].endswith("an outsider sees the model alone")
    assert any(word.startswith("not granted: any message") for word in outside["granted"])
    assert not any("step" in word for word in outside["granted"])


@pytest.mark.slow
def test_two_clients_are_never_called_protected(tmp_path: Path) -> None:
    run = asked(tmp_path / "run", net="mlp", sum_size=2, attack=("ig",), set=("ig.iterations=1",))
    (entry,) = entries(whole.run(run))
    assert (entry["share_recovered"], entry["verdict"], entry["cause"]) == (0.0, "leaks", "peer")
    assert entry["reason"].startswith("In a round of 2 clients, of which 1 works with it, a client takes the own part")


@pytest.mark.slow
def test_what_the_rounding_of_the_model_swallows_leaks_to_no_peer(tmp_path: Path) -> None:
    run = asked(tmp_path / "run", net="mlp", sum_size=2, lr=1e-12, attack=("analytic",))
    (entry,) = entries(whole.run(run))
    assert (entry["share_recovered"], entry["verdict"], entry["cause"]) == (0.0, "undecided", "rounding")


@pytest.mark.slow
@pytest.mark.parametrize("robust", ["none", "median"])
def test_a_client_that_is_not_sent_the_mean_of_all_has_nothing_to_attack(tmp_path: Path, robust: str) -> None:
    changes = {"robust": robust} if robust != "none" else {"method": "fednova"}
    (entry,) = entries(whole.run(asked(tmp_path / "run", net="mlp", sum_size=2, attack=("analytic",), **changes)))
    assert entry["failure_reason"].startswith("not applicable: a client of") and entry["verdict"] == "undecided"
    assert entry["share_recovered"] == 0.0


def test_a_peers_failure_needs_ten_others_and_the_same_attack_on_one() -> None:
    def verdict(**changes: Any) -> tuple[str, str, str]:
        facts = SumFacts(**{"group": 12, "colluding": 2, "alone": 1.0, "peer": True, **changes})
        return verdict_on(chain(facts.exposed(defended=False), facts.findings(True, False, 8)))

    assert verdict()[:2] == ("no leak found", "nothing") and verdict(group=11)[:2] == ("undecided", "group")
    assert "(`--curve sum_size=3`)" in verdict(alone=None)[2]
    assert verdict(group=3)[:2] == ("leaks", "peer")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colluding_clients": 4}, "0 <= colluding-clients < 4 clients, got colluding_clients=4"),
        ({"sum_size": 2, "colluding_clients": 2}, "more than 2 clients, the peer and who works with it, in a sum"),
        ({"audit_source": "both"}, "audit-source=probe with --vantage peer"),
    ],
    ids=["everybody", "nobody left", "source"],
)
def test_peers_without_another_client_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        asked(tmp_path, **changes)
