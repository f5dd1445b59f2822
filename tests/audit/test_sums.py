"""What sums would have hidden of a run, by hand and in real runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flfw.audit.sums import Exposure, HeadSum, broadcast, head_of, participation, peers, remainder, took_part
from flfw.errors import InputError
from flfw.nets.hypernetwork import GeneratedNet
from flfw.plans.run_plan import plan
from flfw.recording.reader import Recordings
from flfw.runs import run
from tests.support.small_runs import tiny


def test_exposed_coordinates_are_those_counted_by_hand() -> None:
    counted = Exposure()
    counted.add({"a.weight": torch.tensor([1.0, 2.0, 0.0, 0.0]), "b.bias": torch.tensor([1.0, 1.0])})
    counted.add({"a.weight": torch.tensor([3.0, 0.0, 0.0, 0.0]), "b.bias": torch.tensor([1.0, 2.0])})
    figures = counted.figures()
    assert (figures["coordinates"], figures["share"], figures["untouched"]) == (6, 1 / 6, 2 / 6)
    layer, other = figures["layers"]
    # supports of 1/2 and 1/4: 1/2 * 3/4 + 1/2 * 1/4
    assert layer == {"layer": "a", "coordinates": 4, "share": 0.25, "independent": 0.5, "untouched": 0.5}
    assert (other["layer"], other["share"], other["independent"]) == ("b", 0.0, 0.0)
    with pytest.raises(InputError, match="the same tensors in all updates of a round"):
        counted.add({"a.weight": torch.ones(3), "b.bias": torch.ones(2)})


def test_fixed_groups_separate_nobody_and_one_drop_out_isolates_a_client() -> None:
    fixed = participation({1: {0, 1}, 2: {0, 1}})
    assert (fixed["rank"], fixed["smallest_singular"], fixed["separable"], fixed["isolated"]) == (1, 0.0, 0, 0)
    changing = participation({1: {0, 1, 2}, 2: {0, 1}})
    assert (changing["rank"], changing["separable"], changing["smallest_group"]) == (2, 1, 2)
    ((alone,), (noise,)) = changing["isolating"], changing["noise"]
    assert alone == {"client": 2, "present": 1, "absent": 2}
    # a difference of two sums has the square root of 2 of one's deviation
    assert noise["client"] == 2 and noise["factor"] == pytest.approx(2**0.5)


def test_rounds_that_differ_in_pairs_separate_all_three() -> None:
    figures = participation({1: {0, 1}, 2: {1, 2}, 3: {0, 2}})
    assert (figures["rank"], figures["separable"], figures["isolated"]) == (3, 3, 0)
    assert figures["smallest_singular"] == pytest.approx(1.0)
    # (A1 - A2 + A3) / 2
    assert [row["factor"] for row in figures["noise"]] == pytest.approx([0.75**0.5] * 3)


def test_too_large_a_matrix_is_not_decomposed_and_not_guessed() -> None:
    figures = participation({number: set(range(2000)) for number in range(1, 502)})
    assert (figures["rank"], figures["noise"], figures["rounds"]) == (None, None, 501)


def test_a_table_of_clients_that_is_damaged_is_refused(tmp_path: Path) -> None:
    assert took_part(tmp_path) == {}
    (tmp_path / "clients.csv").write_text("round,client\n1,a\n")
    with pytest.raises(InputError, match="rounds and clients in"):
        took_part(tmp_path)


def _hyperfl() -> GeneratedNet:
    model = plan(tiny(method="hyperfl", net="mlp", set=("hidden=8", "embedding=4"))).client.model
    assert isinstance(model, GeneratedNet)
    return model


def test_the_span_of_the_hidden_units_is_read_off_a_sum_and_full_rank_says_nothing() -> None:
    name = head_of(_hyperfl())
    assert name is not None
    rng = np.random.default_rng(0)
    changes = [torch.from_numpy(np.outer(rng.normal(size=64), rng.normal(size=16))) for _ in range(3)]
    few = HeadSum(name)
    for change in changes:
        few.add({name: change})
    figures = few.figures()
    assert figures is not None and (figures["rank"], figures["clients"], figures["recovered"]) == (3, 3, True)
    assert figures["largest_angle"] < 1e-6
    many = HeadSum(name)
    for _ in range(16):
        many.add({name: torch.from_numpy(np.outer(rng.normal(size=64), rng.normal(size=16)))})
    full = many.figures()
    assert full is not None and (full["rank"], full["angle_by_chance"], full["recovered"]) == (16, 0.0, False)
    assert HeadSum(name).figures() is None


def test_a_head_is_read_only_of_a_network_that_is_generated() -> None:
    assert head_of(torch.nn.Linear(2, 2)) is None
    assert str(head_of(_hyperfl())).startswith("hypernet.heads.")


def test_what_is_left_of_a_mean_of_two_is_the_other_s_change() -> None:
    # from 1: own change 2 with weight 1, the other's 6 with weight 3: mean 5
    left = remainder({"w": torch.tensor([1.0])}, {"w": torch.tensor([6.0])}, {"w": torch.tensor([2.0])}, (1.0, 3.0))
    assert left["w"].tolist() == [6.0]


def test_clients_with_another_broadcast_are_named() -> None:
    lines = [{"client": c, "sent_to_client": {"sha256": "a" if c else "b"}} for c in range(3)]
    assert broadcast(lines) == {"contents": 2, "differ": [0]}
    assert broadcast(lines[1:]) == {"contents": 1, "differ": []}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedAvg with two clients, and its recorded uploads."""
    out = tmp_path_factory.mktemp("sums") / "run"
    return run.run(tiny(out, rounds=2, audit_source="both", audit_rounds="1,2", image_size=8))


@pytest.mark.slow
def test_of_two_clients_one_s_update_follows_from_two_broadcasts(two: Path) -> None:
    figures = json.loads((two / "result.json").read_text())["secure_aggregation"]
    peer = figures["peer"]
    assert (peer["verdict"], peer["smallest"], peer["left"]) == ("leaks", 2, 1)
    # computed in float64; the broadcast itself is rounded to float32
    assert peer["check"]["largest_change"] > 1e-3
    assert peer["check"]["largest_difference"] < 1e-5 * peer["check"]["largest_change"]
    assert [row["broadcast"]["contents"] for row in figures["rounds"]] == [1, 1]
    assert [row["exposed"]["share"] for row in figures["rounds"]] == [0.0, 0.0]
    assert not figures["participation"]["recorded_only"]


@pytest.mark.slow
def test_a_peer_of_a_server_that_sends_no_mean_has_no_verdict(two: Path) -> None:
    figures = peers(Recordings(two / "observations"), {1: {0, 1}}, sends_mean=False, clients=2)
    assert (figures["verdict"], figures["check"]) == ("undecided", None)
    three = peers(Recordings(two / "observations"), {1: {0, 1, 2}}, sends_mean=True, clients=3)
    assert three["verdict"] == "undecided" and "n - c = 2" in three["reason"]


def test_a_federation_of_one_client_has_no_peer(tmp_path: Path) -> None:
    alone = run.run(tiny(tmp_path / "run", clients=1, audit_source="both", audit_rounds="1", image_size=8))
    peer = json.loads((alone / "result.json").read_text())["secure_aggregation"]["peer"]
    assert peer["verdict"] == "undecided" and "there is no other one" in peer["reason"]
    page = (alone / "report.html").read_text()
    assert "leaks to another client" not in page and "so few clients" not in page


@pytest.mark.slow
def test_the_report_says_it_in_words(two: Path) -> None:
    page = (two / "report.html").read_text()
    assert 'id="sums"' in page and "n - c = 1" in page and "received the same bytes" in page


@pytest.mark.slow
def test_an_audit_again_has_the_same_sums_and_an_audit_of_probes_has_none(two: Path, tmp_path: Path) -> None:
    earlier = run.stored(two)
    again = run.audit_recordings(two, earlier, replace(earlier, out=tmp_path / "again"))
    first, second = (json.loads((folder / "result.json").read_text())["secure_aggregation"] for folder in (two, again))
    assert first == second
    probes = run.run(tiny(tmp_path / "probes", image_size=8))
    assert json.loads((probes / "result.json").read_text())["secure_aggregation"] is None
    assert 'id="sums"' not in (probes / "report.html").read_text()
