"""Membership at other vantages than the server's: behind secure aggregation, at another client, and outside."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flfw.adversary.sums import Protocol
from flfw.audit.membership.game import in_sums, less_own_parts
from flfw.audit.membership.request import vantage_points
from flfw.audit.sums import with_min_safe_sum_size
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan
from flfw.recording.observation import Observation, Vantage
from flfw.recording.reader import Recordings
from flfw.runs import run as whole
from flfw.runs.run import stored
from tests.support.small_runs import tiny

RECEIVED = {"w": torch.tensor([1.0, -1.0]), "steps": torch.tensor(3)}


def upload(
    client: int, values: list[float], server_round: int = 1, received: dict[str, Tensor] | None = None
) -> Observation:
    sent = {"w": torch.tensor(values), "steps": torch.tensor(4)}
    given = RECEIVED if received is None else received
    return Observation(Vantage.SERVER, "update", "target", server_round, client, client, sent, given)


def protocol(server_round: int, first: int) -> Protocol:
    return Protocol(100 * server_round + first)


def values(observation: list[Observation]) -> dict[tuple[int, int], list[float]]:
    return {(one.round, one.client): one.sent["w"].tolist() for one in observation}


def test_clients_of_a_group_seem_to_have_sent_its_weighted_mean() -> None:
    seen = [upload(client, [2.0 * client, 0.5]) for client in range(5)]
    cohorts = {1: {0: 1, 1: 3, 2: 2, 3: 2, 4: 9}}
    known = values(in_sums(seen, cohorts, 2, protocol))
    step = Protocol(0).quantiser.step
    assert known.keys() == {(1, 0), (1, 1), (1, 2), (1, 3)}  # client 4 is left over
    assert known[1, 0] == known[1, 1] == pytest.approx([1.5, 0.5], abs=4 * step)  # (1 x 0 + 3 x 2) / 4
    assert known[1, 2] == known[1, 3] == pytest.approx([5.0, 0.5], abs=4 * step)


def test_a_sum_over_one_client_is_its_own_message_to_rounding() -> None:
    seen = [upload(client, [0.123456, -client / 3]) for client in range(2)]
    known = values(in_sums(seen, {1: {0: 7, 1: 9}}, 1, protocol))
    assert all(
        known[1, c] == pytest.approx(seen[c].sent["w"].tolist(), abs=2 * Protocol(0).quantiser.step) for c in (0, 1)
    )
    assert known[1, 1] != seen[1].sent["w"].tolist()


def test_groups_follow_who_takes_part_in_each_round() -> None:
    seen = [upload(c, [float(c), 0.0], r) for r, cohort in ((1, (0, 1, 2, 3)), (2, (0, 3))) for c in cohort]
    cohorts = {1: dict.fromkeys(range(4), 1), 2: {0: 1, 3: 1}}
    known = values(in_sums(seen, cohorts, 2, protocol))
    assert known[1, 0][0] == pytest.approx(0.5, abs=1e-4) and known[2, 0][0] == pytest.approx(1.5, abs=1e-4)


def test_a_sum_of_which_a_message_is_missing_is_left_out_and_no_group_moves_up() -> None:
    seen = [upload(client, [float(client), 0.0]) for client in (1, 2, 3)]  # the file of client 0 is damaged
    assert values(in_sums(seen, {1: dict.fromkeys(range(4), 1)}, 2, protocol)).keys() == {(1, 2), (1, 3)}


def test_clients_with_models_of_their_own_have_no_sum() -> None:
    other = {"w": torch.zeros(2), "steps": torch.tensor(3)}
    with pytest.raises(InputError, match="the same weights received by all clients of a sum"):
        in_sums([upload(0, [1.0, 1.0]), upload(1, [1.0, 1.0], received=other)], {1: {0: 1, 1: 1}}, 2, protocol)


def test_of_two_clients_one_knows_exactly_what_the_other_sent() -> None:
    mine, theirs, after = [3.0, 0.0], [-1.0, 0.5], {"w": torch.tensor([0.0, 0.375]), "steps": torch.tensor(4)}
    seen = [upload(1, mine), upload(1, [0.0, 0.0], 2, after)]  # after = (1 x mine + 3 x theirs) / 4
    known = less_own_parts(seen, {1: {0: 3, 1: 1}, 2: {0: 3, 1: 1}}, [1], 0, {})
    assert values(known) == {(1, 0): theirs, (1, 1): mine}
    assert all(one.received is RECEIVED and one.vantage is Vantage.PEER for one in known)


def test_two_peers_among_four_are_left_with_the_mean_of_the_other_two_and_the_final_model_ends_the_last_round() -> None:
    everyone = {0: [1.0, 0.0], 1: [3.0, 0.0], 2: [5.0, 1.0], 3: [7.0, 1.0]}
    final = {"w": torch.tensor([4.0, 0.5])}
    cohort = {1: dict.fromkeys(range(4), 1)}
    known = values(less_own_parts([upload(c, everyone[c]) for c in (2, 3)], cohort, [2, 3], 1, final))
    assert known == {(1, 0): [2.0, 0.0], (1, 1): [2.0, 0.0], (1, 2): [5.0, 1.0], (1, 3): [7.0, 1.0]}
    with pytest.raises(InputError, match="received the model after it"):
        less_own_parts([upload(c, everyone[c]) for c in (2, 3)], cohort, [2, 3], 2, final)  # round 2 was not recorded
    with pytest.raises(InputError, match="received the model after it"):
        less_own_parts([upload(2, everyone[2])], cohort, [2, 3], 1, final)  # the other peer's own part is not known


def test_each_size_of_a_group_is_a_vantage_point_of_its_own() -> None:
    requested = tiny(vantage=("client_update", "aggregate", "outsider", "peer"), sum_size=2, curve=("sum_size=1,2",))
    assert vantage_points(requested.vantage, requested.groups) == [
        ("server", 0),
        ("aggregate", 1),
        ("aggregate", 2),
        ("peer", 0),
        ("outsider", 0),
    ]
    outside = tiny(vantage=("outsider",))
    assert vantage_points(outside.vantage, outside.groups) == [("outsider", 0)]


def played(out: Path, **changes: Any) -> dict[tuple[str, int | None, str], dict[str, Any]]:
    requested = {
        "attack": ("membership",),
        "audit_rounds": "1,2",
        "rounds": 2,
        "set": ("membership.width=64",),
        **changes,
    }
    folder = whole.run(tiny(out, **requested))
    result = json.loads((folder / "result.json").read_text())
    assert result["recordings"]["refused"] == []
    items = result["membership"]
    return {(item["vantage"], item["sum_size"], item["statistic"]): item for item in items}


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int | None, str], dict[str, Any]]:
    """Items of the first of two clients, from everywhere: the second one is the peer."""
    out = tmp_path_factory.mktemp("vantages")
    direct = played(out / "direct", vantage=("server", "aggregate"), sum_size=1, images=1)
    return direct | played(out / "others", vantage=("peer", "outsider"))


def figures(item: dict[str, Any]) -> dict[str, Any]:
    """Figures that do not depend on the number of statistics which a run tries."""
    right = {name: item["correct"][name] for name in ("guesses", "correct")}
    return right | {name: item[name] for name in ("rounds", "pairs", "auc", "tpr", "fpr", "accuracy_gap")}


@pytest.mark.slow
@pytest.mark.parametrize("statistic", ["cosine", "gradient_difference", "whitened", "loss_drop", "trajectory"])
def test_a_peer_of_one_other_client_tells_its_members_as_the_server_does(items: Any, statistic: str) -> None:
    server, peer = items["server", None, statistic], items["peer", None, statistic]
    assert figures(server) == figures(peer)
    assert (peer["num_colluding"], peer["anonymity_set_size"], server["anonymity_set_size"]) == (1, 1, None)


@pytest.mark.slow
@pytest.mark.parametrize("statistic", ["cosine", "whitened", "loss_drop", "trajectory"])
def test_a_sum_over_one_client_tells_its_members_as_its_message_does(items: Any, statistic: str) -> None:
    server, alone = items["server", None, statistic], items["aggregate", 1, statistic]
    assert alone["auc"] == pytest.approx(server["auc"], abs=0.005)
    assert alone["rounds"] == server["rounds"] == [1, 2] and alone["anonymity_set_size"] == 1


def test_sizes_with_few_pairs_do_not_count_as_groups_that_tell_nothing() -> None:
    """Leaks from 1 client, something faint from 2, few pairs for 5, and nothing from 10 and 30."""
    causes = {1: "pairs", 2: "faint", 5: "few", 10: "group", 30: "nothing"}
    usual = {"attack": "a", "statistic": "s", "defence": "none", "adaptive": False, "rounds": [1]}
    items = [
        {**usual, "sum_size": size, "cause": cause, "verdict": "leaks" if cause == "pairs" else "undecided"}
        for size, cause in causes.items()
    ]
    assert {one["min_safe_sum_size"] for one in with_min_safe_sum_size(items)} == {10}
    assert {one["min_safe_sum_size"] for one in with_min_safe_sum_size(items[:3])} == {None}


@pytest.mark.slow
def test_an_outsider_reads_no_round(items: Any) -> None:
    outside = {key: item for key, item in items.items() if key[0] == "outsider"}
    assert {statistic for _, _, statistic in outside} == {"loss", "rmia"}
    for item in outside.values():
        assert item["rounds"] == [] and item["anonymity_set_size"] is None and item["controls"]["easy"]["passed"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "fedper", "vantage": ("outsider",)}, "ends with one whole model, for membership"),
        ({"vantage": ("peer",), "robust": "median"}, "the mean of the last round's weights, for membership"),
    ],
    ids=["outsider", "peer"],
)  # fmt: skip
def test_vantages_that_a_run_does_not_have_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    requested: Experiment = tiny(tmp_path / "run", **{"attack": ("membership",), "audit_rounds": "1", **changes})
    with pytest.raises(InputError, match=message):
        whole.check(requested)


@pytest.mark.slow
def test_each_vantage_has_its_own_claim_and_the_gap_is_members_less_held_out_examples(tmp_path: Path) -> None:
    """The noise of both clients hides one of them better in their sum; the gap is counted here example by example."""
    requested = {"method": "fed_sdp", "attack": ("membership",), "audit_rounds": "2", "rounds": 2, "lr": 0.1}
    few = ("membership.width=64", "membership.shadows=0", "membership.public=50", "noise_multiplier=1")
    folder = whole.run(tiny(tmp_path / "run", **requested, set=few, vantage=("server", "aggregate"), sum_size=1))
    result = json.loads((folder / "result.json").read_text())
    claims = {item["vantage"]: item["claimed_epsilon"] for item in result["membership"]}
    assert claims["aggregate"] < claims["server"]
    for vantage, claim in claims.items():
        assert claim == min(float(row["epsilon"]) for row in result["privacy"] if row["adversary"] == vantage)
    task, right = plan(stored(folder)).task.load(None), {"members": 0, "held_out": 0}
    recordings = Recordings(folder / "observations")
    for observation in recordings.observations([line["id"] for line in recordings.update_lines(2)]):
        assert observation is not None and task.pairs is not None
        weight, bias = (observation.received[f"classifier.{name}"] for name in ("weight", "bias"))
        for side in right:
            x, y = task.examples("train", getattr(task.pairs[observation.client], side))
            logits = task.inputs.normalise(x).flatten(1) @ weight.T + bias
            right[side] += int((logits.argmax(1) == y).sum())
    pairs = sum(len(game.members) for game in task.pairs or ())
    gap = (right["members"] - right["held_out"]) / pairs
    assert gap != 0 and result["membership"][0]["accuracy_gap"] == pytest.approx(gap)


@pytest.mark.slow
def test_a_sum_is_not_held_against_shadow_trainings_of_one_client(items: Any) -> None:
    has = {vantage for vantage, _, statistic in items if statistic in ("lira", "lira_update")}
    assert has == {"server"}
