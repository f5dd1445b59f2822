"""Clients and uploads of which an attack on membership has nothing: each is said, and none of it is protection."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sim
from flfw.adversary.attack import NotApplicableError
from flfw.adversary.membership.gradients import Products
from flfw.adversary.membership.statistics import cosine
from flfw.adversary.membership_attack import MembershipAttack, MembershipView
from flfw.audit.jobs import MembershipGame
from flfw.audit.membership.candidates import GameCandidates
from flfw.audit.membership.game import as_scores, unusable
from flfw.audit.membership.request import MembershipRequest
from flfw.data.membership_pairs import MemberPairs
from flfw.errors import InputError
from flfw.nets.net import Tensors
from flfw.recording.observation import Examples, Observation, Vantage
from flfw.task.defence import Defence
from tests.support.small_runs import plug_in

RUN = "--dataset digits --net linear --engine inproc --rounds 1 --audit-rounds 1 --expert membership_pairs=5"
SMALL = "--set membership.public=20 membership.width=8"


def result_of(folder: Path, flags: str) -> dict[str, Any]:
    assert sim.main([*f"{RUN} {flags}".split(), "--out", str(folder)]) == 0
    return json.loads((folder / "result.json").read_text())


def upload(sent: Tensors, received: Tensors) -> Observation:
    return Observation(Vantage.SERVER, "update", "target", 1, 0, 0, sent, received)


def test_what_makes_an_upload_unfit_for_a_comparison() -> None:
    received = {"w": torch.zeros(2)}
    assert unusable(upload({"w": torch.ones(2), "more": torch.ones(3)}, received)) == ""
    assert unusable(upload({"w": torch.ones(3)}, received)) == "w has the shape (3,), and the client received (2,)"


def paired(count: int) -> MemberPairs:
    return MemberPairs(np.arange(count), np.arange(count, 2 * count))


def test_a_client_without_scores_has_pairs_that_failed() -> None:
    """Clients 4 and 7 with one pair each; the attack scores the second alone."""
    clients, indices = torch.tensor([4, 4, 7, 7]), torch.tensor([0, 1, 1, 0])
    pairs, labels = {client: paired(1) for client in (4, 7)}, torch.zeros(4, dtype=torch.int64)
    candidates = GameCandidates(torch.zeros(4, 1), labels, clients, indices, pairs, {})
    requested = MembershipRequest("a", MembershipGame("file", 4, (4, 7), (1, 1), 0.1), (1,), (), candidates)
    first, second = requested.scored([(7, "cosine", (0.2, 0.9))])["target"]["cosine"]
    assert (first.client, second.client) == (4, 7)
    assert np.isnan(first.members).all() and np.isnan(first.held_out).all() and len(first.members) == 1
    assert (second.members.tolist(), second.held_out.tolist()) == ([0.9], [0.2])
    assert requested.scored([]) == {"target": {}, "null": {}}
    alone = MembershipRequest("a", MembershipGame("file", 4, (4,), (1,), 0.1), (1,), (), candidates)
    assert (requested.where, alone.where) == ("on 2 clients", "on 1 client")


def test_labels_alone_tell_no_two_of_one_band_apart() -> None:
    """A pair of two numbers of one band, to which an attack's own bands give different shares of members."""
    clients, indices, numbers = torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1]), torch.tensor([0.4, 0.6])
    made = GameCandidates(torch.zeros(2, 1), numbers, clients, indices, {0: paired(1)}, {}, torch.tensor([3, 3]))
    floor, _ = made.scored(0, [0.25, 0.75], "label_only")
    assert (floor.members.tolist(), floor.held_out.tolist()) == ([0.5], [0.5])
    played, _ = made.scored(0, [0.25, 0.75], "cosine")
    assert (played.members.tolist(), played.held_out.tolist()) == ([0.25], [0.75])


def test_a_cosine_of_nothing_is_no_evidence_and_of_zeros_is_zero() -> None:
    values = Products(torch.zeros(2), torch.tensor([torch.nan, 0.0]), torch.tensor([1.0, 0.0]), 1.0)
    assert cosine(values).isnan().tolist() == [True, False] and cosine(values)[1] == 0


@pytest.mark.slow
def test_clients_that_sent_nothing_or_are_beyond_the_images_are_said(tmp_path: Path) -> None:
    result = result_of(
        tmp_path / "run", f"--method fedavg --clients 4 --sample 3 --images 2 --attack membership {SMALL}"
    )
    words = "membership says nothing about 2 of 4 clients: 1 sent nothing in its rounds, 1 is beyond --images 2."
    assert words in result["notes"]
    assert {(item["clients"], item["pairs"]) for item in result["membership"]} == {(2, 10)}


@pytest.mark.slow
def test_a_method_that_sends_nothing_leaves_nothing_to_attack(tmp_path: Path) -> None:
    result = result_of(tmp_path / "run", f"--method local_only --clients 2 --attack membership {SMALL}")
    assert result["membership"] == []
    assert "local_only sends nothing, so there was nothing to attack." in result["notes"]


class Silent(MembershipAttack):
    """Attack that no message suits."""

    def scores(self, view: MembershipView, rng: torch.Generator) -> dict[str, torch.Tensor]:
        """Refuse."""
        raise NotApplicableError("nothing fits")


class Choosy(MembershipAttack):
    """Attack that cannot use the message of client 0."""

    def scores(self, view: MembershipView, rng: torch.Generator) -> dict[str, torch.Tensor]:
        """Score by the brightness."""
        if view.client == 0 and view.rounds[0].round:  # the easy control has round 0
            raise InputError("Expected another message, got this one.")
        count = len(view.candidates.labels)
        return {"brightness": view.candidates.samples.view(count, -1).mean(1), "label_only": torch.zeros(count)}


@pytest.mark.slow
def test_an_attack_that_does_not_apply_gives_no_item_and_a_sentence(tmp_path: Path) -> None:
    result = result_of(tmp_path / "run", f"--method fedavg --clients 2 --attack {plug_in(Silent)}")
    where = f"{plug_in(Silent)} on 2 clients gave no scores: not applicable: nothing fits."
    assert f"{where} Whether members can be told is not known." in result["notes"]
    assert result["membership"] == [] and result["recordings"]["refused"] == []


@pytest.mark.slow
def test_one_client_whose_message_does_not_fit_does_not_silence_the_others(tmp_path: Path) -> None:
    result = result_of(tmp_path / "run", f"--method fedavg --clients 3 --attack {plug_in(Choosy)}")
    (item,) = result["membership"]
    assert (item["clients"], item["pairs"], item["failed"]) == (3, 15, 5) and item["verdict"] != "no leak found"
    assert result["recordings"]["refused"] == ["Client 0 has no scores: Expected another message, got this one."]


class Diverges(Defence):
    """Sends NaN."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Replace all numbers."""
        return {name: torch.full_like(value, torch.nan) for name, value in update.items()}


@pytest.mark.slow
def test_an_upload_of_nan_is_left_out_and_the_other_clients_are_scored(tmp_path: Path) -> None:
    flags = f"--defence {plug_in(Diverges)} --defended 1 --expert on_client_failure=drop:2"
    result = result_of(tmp_path / "run", f"--method fedavg --clients 3 {flags} --attack membership {SMALL}")
    (sentence,) = result["recordings"]["refused"]
    assert "was left out" in sentence and "holds NaN or infinity" in sentence
    by_defence = {(item["defence"], item["statistic"]): item for item in result["membership"]}
    silent, heard = (by_defence[name, "cosine"] for name in (plug_in(Diverges), "none"))
    assert (silent["pairs"], silent["failed"], silent["correct"]["guesses"], silent["clients"]) == (5, 5, 0, 1)
    assert silent["verdict"] == "undecided" and (heard["failed"], heard["clients"]) == (0, 2)


def test_scores_that_are_no_finite_numbers_are_written_as_such_that_can_be_read() -> None:
    """Infinite ones stay beyond all others; NaN is none, and comes back as NaN."""
    nothing = Examples(torch.zeros(0, 1), torch.zeros(0))
    shown = MembershipView(4, (), nothing, nothing, lambda _: pytest.fail("no model is asked for"))
    row = as_scores(shown, {"s": torch.tensor([torch.inf, -torch.inf, torch.nan, 0.5])})
    assert row == [(4, "s", (1e300, -1e300, None, 0.5))]
    indices = torch.tensor([0, 1, 2, 3])
    candidates = GameCandidates(torch.zeros(4, 1), torch.zeros(4), torch.full((4,), 4), indices, {4: paired(2)}, {})
    (scored,) = MembershipRequest("a", MembershipGame("file", 4, (4,), (1,), 0.1), (1,), (), candidates).scored(row)[
        "target"
    ]["s"]
    assert scored.members.tolist() == [1e300, -1e300] and np.isnan(scored.held_out[0]) and scored.held_out[1] == 0.5
