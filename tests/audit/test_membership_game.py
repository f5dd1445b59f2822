"""The game of membership in an audit: its candidates, requests and entries, and the coin, which no attack reads."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flfw.adversary.sums import Protocol
from flfw.audit.auditor import Auditor
from flfw.audit.jobs import JobResult, MembershipGame
from flfw.audit.membership.candidates import GameCandidates
from flfw.audit.membership.game import own_exchanges, views
from flfw.audit.membership.request import NULL, TARGET, MembershipRequest
from flfw.audit.membership.views import game_views
from flfw.data.membership_pairs import MemberPairs, PatientGame
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.inversion.client_models.victim import PlainVictim
from flfw.plans.run_plan import RunPlan, plan
from flfw.recording.observation import Examples, Observation, Vantage
from flfw.recording.reader import Recordings
from flfw.rng import torch_generator
from flfw.runs import run as whole
from flfw.task.task import Task
from tests.support.attackable import digit_inputs, fresh_net
from tests.support.planned import clients_and_adaptation, clients_and_audit
from tests.support.silent_defences import SendsNothing
from tests.support.small_runs import tiny

NO_IMAGE = Examples(torch.zeros(1, 1, 1, 1), torch.zeros(1).long())
PAIRS = {0: MemberPairs(np.array([3, 5]), np.array([4, 8])), 2: MemberPairs(np.array([10]), np.array([11]))}
GAME: dict[str, Any] = {"attack": ("membership",), "split": "iid", "audit_rounds": "1", "membership_pairs": "6"}
GAME |= {"dataset": "digits", "set": ("membership.width=16", "membership.public=20")}


NOTHING = f"{SendsNothing.__module__}:{SendsNothing.__name__}"


def turned(pairs: MemberPairs | PatientGame) -> MemberPairs:
    """The same pairs with every coin on its other side."""
    return MemberPairs(pairs.held_out, pairs.members)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole.run(tiny(tmp_path_factory.mktemp("game") / "run", keep_recorded_rounds=-1, **GAME))


def checked(run: Path, **changes: Any) -> tuple[RunPlan, Task]:
    run_plan, task, _ = whole.check(replace(whole.stored(run), out=run, **changes), new=False)
    return run_plan, task


# --- candidates ---


def test_candidates_stand_in_the_order_of_their_content_and_are_sorted_back_by_pair() -> None:
    task = plan(plan(tiny(split="iid")).experiment).task.load(None)
    drawn = GameCandidates.of(task, PAIRS)
    assert drawn.clients.tolist() == [0, 0, 0, 0, 2, 2]
    places = {0: [3, 5, 4, 8], 2: [10, 11]}
    for client, there in places.items():
        samples, labels = task.examples("train", np.array(there))
        mine = drawn.clients == client
        order = drawn.owners[mine]
        assert sorted(order.tolist()) == list(range(len(there)))
        assert torch.equal(drawn.samples[mine], samples[order]) and torch.equal(drawn.labels[mine], labels[order])
        scored, _ = drawn.scored(client, [float(there[index]) for index in order])  # each scored with its own number
        assert scored.members.tolist() == there[: len(there) // 2]
        assert scored.held_out.tolist() == there[len(there) // 2 :]
    with pytest.raises(ValueError, match="3 scores for 4 candidates of client 0"):
        drawn.scored(0, [1.0, 2.0, 3.0])


def test_the_candidates_are_the_same_to_the_bit_on_whichever_side_the_coins_fell() -> None:
    task = plan(plan(tiny(split="iid")).experiment).task.load(None)
    one = GameCandidates.of(task, PAIRS)
    other = GameCandidates.of(task, {client: turned(pairs) for client, pairs in PAIRS.items()})
    assert one.granted().keys() == {"samples", "labels", "clients"}
    for name, value in one.granted().items():
        assert torch.equal(value, other.granted()[name])
    assert other.owners.tolist() == [(index + 2) % 4 for index in one.owners[:4]] + [
        (index + 1) % 2 for index in one.owners[4:].tolist()
    ]


def test_pairs_of_the_null_control_are_mixed_with_the_games_own_and_sorted_apart() -> None:
    task = plan(plan(tiny(split="iid")).experiment).task.load(None)
    drawn = GameCandidates.of(task, PAIRS, {0: MemberPairs(np.array([20, 21, 22]), np.array([30, 31, 32]))})
    assert drawn.clients.tolist() == [0] * 10 + [2] * 2
    there = [3, 5, 20, 21, 22, 4, 8, 30, 31, 32]
    scores = [float(there[index]) for index in drawn.owners[drawn.clients == 0]]
    game, untrained = drawn.scored(0, scores)
    assert (game.members.tolist(), game.held_out.tolist()) == ([3, 5], [4, 8])
    assert (untrained.members.tolist(), untrained.held_out.tolist()) == ([20, 21, 22], [30, 31, 32])
    game, untrained = drawn.unscored(2)
    assert np.isnan(game.members).tolist() == [True] and len(untrained.members) == 0


# --- views ---


def model(received: dict[str, Tensor]) -> PlainVictim:
    return PlainVictim(fresh_net("linear", (1, 8, 8)), received, ("*",), digit_inputs(8))


def no_training(steps: int) -> None:
    """Know no client's local training."""


def no_sum(server_round: int, first: int) -> Protocol:
    """Fail, as nobody asks for a sum."""
    raise AssertionError("no sum is seen here")


def upload(round_: int, client: int, received: dict[str, Tensor], number: float) -> Observation:
    sent = {"w": torch.full((1,), number)}
    return Observation(Vantage.SERVER, "update", "target", round_, client, client, sent, received)


def test_a_view_has_the_uploads_of_those_who_received_the_same_its_own_first() -> None:
    both, alone = {"w": torch.zeros(1)}, {"w": torch.ones(1)}
    seen = [upload(2, 1, both, 21), upload(2, 0, both, 20), upload(1, 0, alone, 10), upload(1, 1, both, 11)]
    held = {
        "samples": torch.arange(4.0).view(4, 1, 1, 1),
        "labels": torch.tensor([0, 1, 2, 3]),
        "clients": torch.tensor([0, 1, 0, 5]),
    }
    game = MembershipGame("file", 4, (0, 5), (7, 9), 0.5)
    (view,) = views(game, held, seen, NO_IMAGE, model, no_training, no_sum)
    assert view.client == 0 and view.candidates.labels.tolist() == [0, 2]  # of client 5 nothing was recorded
    assert [one.round for one in view.rounds] == [1, 2]
    assert [list(one.sent) for one in view.rounds] == [[0], [0, 1]]
    assert [float(one.sent[0]["w"]) for one in view.rounds] == [10, 20]
    assert {(one.lr, one.steps) for one in view.rounds} == {(0.5, 7)}


def test_the_easy_control_is_read_from_its_file() -> None:
    received, sent = {"w": torch.zeros(2)}, [{"w": torch.ones(2)}, {"w": torch.full((2,), 2.0)}]
    held = own_exchanges(received, sent) | {
        "samples": torch.zeros(4, 1, 1, 1),
        "labels": torch.zeros(4).long(),
        "clients": torch.tensor([0, 0, 1, 1]),
    }
    game = MembershipGame("file", 4, (0, 1), (1, 1), 0.1, easy=True)
    answers = list(views(game, held, [], NO_IMAGE, model, no_training, no_sum))
    assert [view.client for view in answers] == [0, 1]
    for client, view in enumerate(answers):
        (one,) = view.rounds
        assert list(one.sent) == [client, 1 - client] and torch.equal(one.sent[client]["w"], sent[client]["w"])


@pytest.mark.parametrize("steps", [(1,), (1, 0)])
def test_a_game_without_steps_for_each_client_is_refused(steps: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="a number of steps >= 1 for each client"):
        MembershipGame("file", 4, (0, 1), steps, 0.1)


# --- the audit of a run ---


@pytest.mark.slow
def test_the_requests_name_all_uploads_and_nothing_of_the_coin(run: Path, tmp_path: Path) -> None:
    run_plan, task = checked(run)
    control, target = [
        requested for requested, _ in Auditor(*clients_and_audit(run_plan), task, run, tmp_path).membership_jobs()
    ]
    assert (control.kind, target.kind) == ("one_step", "target")  # twelve steps need all 24 examples
    assert (control.game.easy, control.lines, control.rounds) == (True, (), ())
    assert (target.game.clients, target.game.candidates, target.rounds) == ((0, 1), 24, (1,))
    assert [line["client"] for line in target.lines] == [0, 1]
    batches = [-(-len(indices) // run_plan.experiment.batch_size) for indices in task.split.train]
    assert list(target.game.steps) == batches  # one local epoch


@pytest.mark.slow
def test_the_requests_are_of_as_many_clients_as_images(run: Path, tmp_path: Path) -> None:
    run_plan, task = checked(run, images=1)
    *_, (target, _) = Auditor(*clients_and_audit(run_plan), task, run, tmp_path).membership_jobs()
    assert target.game.clients == (0,) and len(target.lines) == 2  # the other client's upload stays a null


def test_the_members_were_trained_on_and_the_others_by_nobody(run: Path) -> None:
    _, task = checked(run)
    assert task.pairs is not None and [len(pairs.members) for pairs in task.pairs] == [6, 6]
    trained = np.concatenate(task.split.train)
    for client, pairs in enumerate(task.pairs):
        assert np.isin(pairs.members, task.split.train[client]).all()
        assert not np.isin(pairs.held_out, trained).any()


def test_a_lie_about_the_coin_changes_nothing_that_an_attack_reads(run: Path, tmp_path: Path) -> None:
    run_plan, task = checked(run)
    assert task.pairs is not None
    lied = replace(task, pairs=tuple(turned(pairs) for pairs in task.pairs))
    inputs, results = [], []
    for name, variant in (("a", task), ("b", lied)):
        *_, (requested, job) = Auditor(*clients_and_audit(run_plan), variant, run, tmp_path / name).membership_jobs()
        assert job.game is not None and job.public is not None
        inputs.append((Path(job.game.file).read_bytes(), Path(job.public[0]).read_bytes()))
        inputs.append(replace(job, game=replace(job.game, file=""), public=("", job.public[1])).to_json())
        results.append((requested, scores_of(run_plan, job)))
    assert inputs[0] == inputs[2] and inputs[1] == inputs[3]
    (requested, scores), (other, same) = results
    assert scores == same
    assert requested.scored(scores).keys() == {TARGET, NULL}
    for statistic, rows in requested.scored(scores)[TARGET].items():
        for one, turned_one in zip(rows, other.scored(same)[TARGET][statistic], strict=True):
            assert np.array_equal(one.members, turned_one.held_out)
            assert np.array_equal(one.held_out, turned_one.members)


def scores_of(run_plan: RunPlan, job: Any) -> list[tuple[int, str, tuple[float, ...]]]:
    attack = run_plan.audit.memberships["membership"]
    seen = Recordings(job.recordings).observations([exchange.id for exchange in job.exchanges])
    answers = []
    clients, adaptation = clients_and_adaptation(run_plan.with_input_space(job.shape, job.classes))
    for view in game_views(job, job.game, clients, attack, adaptation, [one for one in seen if one is not None]):
        for name, values in attack.scores(view, torch_generator(0, "attack")).items():
            answers.append((view.client, name, tuple(map(float, values.tolist()))))
    return answers


def test_a_round_of_which_no_upload_was_recorded_is_refused(run: Path, tmp_path: Path) -> None:
    run_plan, task = checked(run, rounds=2, audit_rounds="2")
    with pytest.raises(InputError, match="Expected recorded uploads of rounds 2 for membership, got uploads=0"):
        Auditor(*clients_and_audit(run_plan), task, run, tmp_path).membership_jobs()


def test_a_run_without_recordings_is_refused(run: Path, tmp_path: Path) -> None:
    run_plan, task = checked(run)
    with pytest.raises(InputError, match=r"Expected recordings in .*elsewhere"):
        Auditor(*clients_and_audit(run_plan), task, tmp_path / "elsewhere", tmp_path).membership_jobs()


# --- entries ---


def answer(**given: Any) -> JobResult:
    return JobResult("", (), seconds=1.0, **given)


def rows(request: MembershipRequest, value: float) -> tuple[tuple[int, str, tuple[float, ...]], ...]:
    """Scores with which every member stands ``value`` above its counterpart, and a floor that knows nothing."""
    answers = []
    candidates = request.candidates
    for client in request.game.clients:
        owners = candidates.owners[candidates.clients == client].tolist()
        half = len(owners) // 2
        answers.append((client, "cosine", tuple(value if index < half else 0.0 for index in owners)))
        answers.append((client, "label_only", (0.0,) * len(owners)))
    return tuple(answers)


def test_an_entry_stands_for_each_statistic_and_defence_and_floors_have_none(run: Path, tmp_path: Path) -> None:
    run_plan, task = checked(run, defence=NOTHING, defended="0")
    auditor, noted = Auditor(*clients_and_audit(run_plan), task, run, tmp_path), list[str]()
    requested = [request for request, _ in auditor.membership_jobs()]
    answers = [answer(scores=rows(requested[0], 1.0)), answer(scores=rows(requested[1], 1.0), refused=("damaged",))]
    claimed = [{"adversary": "server", "accounting": "exact", "epsilon": 3.0, "delta": 1e-5}]

    def note(sentences: Sequence[str]) -> None:
        noted.extend(sentences)

    items = auditor._game.play(requested, answers, note, claimed)  # pyright: ignore[reportPrivateUsage]
    assert [(item["statistic"], item["defence"]) for item in items] == [("cosine", NOTHING), ("cosine", "none")]
    assert noted == ["damaged"]
    for item in items:
        assert (item["correct"]["correct"], item["pairs"], item["clients"], item["tests"]) == (6, 6, 1, 2)
        assert (item["auc"], item["claimed_epsilon"], item["rounds"]) == (1.0, 3.0, [1])
        assert item["floor"]["label_only"]["auc"] == 0.5


def test_an_attack_without_scores_has_no_entry_and_a_note(run: Path, tmp_path: Path) -> None:
    run_plan, task = checked(run)
    auditor, noted = Auditor(*clients_and_audit(run_plan), task, run, tmp_path), list[str]()
    requested = [request for request, _ in auditor.membership_jobs()]
    answers = [answer(scores=rows(requested[0], 1.0)), answer(stopped="not applicable: nothing to compare")]
    game = auditor._game  # pyright: ignore[reportPrivateUsage]
    assert game.play(requested, answers, lambda sentences: noted.extend(sentences), []) == []
    unknown = "Whether members can be told is not known."
    assert game.remarks == [f"membership on 2 clients gave no scores: not applicable: nothing to compare. {unknown}"]
    assert noted == []


def test_a_game_needs_pairs() -> None:
    experiment: Experiment = replace(tiny(**GAME), membership_pairs="none")
    with pytest.raises(InputError, match="membership-pairs auto, all or a number with --attack membership"):
        whole.check(experiment)
