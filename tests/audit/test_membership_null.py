"""Membership where there is nothing to find: p-values are uniform, unless the audit's own order or labels give it away.

The checks must fail when the pipeline is broken on purpose: candidates in the order of membership, held-out examples of
other classes than the members, controls that repeat the coins of the game.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from flfw.audit.attack_worker import solve
from flfw.audit.auditor import Auditor
from flfw.audit.membership import candidates as module
from flfw.audit.membership.candidates import GameCandidates, untrained_pairs
from flfw.audit.membership.membership_audit import Controls
from flfw.audit.membership.membership_evidence import weigh
from flfw.audit.membership.request import MembershipRequest
from flfw.data.membership_pairs import MemberPairs
from flfw.experiment import Experiment
from flfw.nets import Net, build
from flfw.plans.run_plan import plan, without_auto
from flfw.rng import initialising, numpy_generator
from flfw.runs import run as whole
from flfw.task.task import Task
from tests.support.planned import clients_and_audit
from tests.support.small_runs import tiny

Scores = Sequence[tuple[int, str, Sequence[float | None]]]
SEEDS = range(20)


def asked(out: Path, **fields: object) -> Experiment:
    """Ask for one step of a fresh network at each of ten clients, which tells its members."""
    common: dict[str, object] = {"dataset": "digits", "net": "mlp", "split": "iid", "attack": ("membership",)}
    common |= {"clients": 10, "images": 10, "batch_size": 200, "lr": 0.1, "audit_rounds": "1"}
    return tiny(out, **{**common, **fields})


def scored_by(experiment: Experiment, task: Task, out: Path) -> tuple[MembershipRequest, Scores]:
    """Let the attack score the clients' candidates of a run, as its audit does; return what was asked, too."""
    out.mkdir()
    folder = experiment.out
    assert folder is not None
    with Auditor(*clients_and_audit(plan(dataclasses.replace(experiment, out=out))), task, folder, out) as auditor:
        request, job = auditor.membership_jobs()[-1]
        return request, solve(job).scores


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, MembershipRequest, Scores]:
    experiment = without_auto(asked(tmp_path_factory.mktemp("null") / "run"))
    whole.run(experiment)
    task = plan(experiment).task.load(None)
    return task, *scored_by(experiment, task, tmp_path_factory.mktemp("null") / "again")


def p_values(request: MembershipRequest, scores: Scores) -> dict[str, float]:
    """Return the probability of so many right guesses on the game's pairs, for each statistic."""
    return {name: weigh(rows, 1).guessed.p for name, rows in request.scored(scores)["target"].items()}


def require_uniform(values: Sequence[float]) -> None:
    """Fail if p-values of twenty tests are not those of chance; one in a thousand times also where they are."""
    assert kstest(values, "uniform").pvalue > 0.001, values
    assert sum(value < 0.05 for value in values) <= 5, values


def permuted(pairs: MemberPairs, seed: int) -> MemberPairs:
    """Return pairs with the mark of each given by another coin; no two clients have the same coins."""
    swapped = numpy_generator(seed, "permuted marks", int(pairs.members[0])).random(len(pairs.members)) < 0.5
    ends = pairs.members, pairs.held_out
    return MemberPairs(np.where(swapped, *ends[::-1]), np.where(swapped, *ends))


def played(request: MembershipRequest, task: Task, change: Callable[[MemberPairs], MemberPairs]) -> MembershipRequest:
    """Return the request with the candidates of changed pairs; their order is that of the scores."""
    drawn = {client: (task.pairs or ())[client] for client in request.game.clients}
    mine = {client: change(pairs) for client, pairs in drawn.items() if isinstance(pairs, MemberPairs)}
    labels = np.asarray(task.dataset.train_y)
    null = untrained_pairs(task.pairs or (), request.game.clients, labels, 0)
    untrained = {client: pairs for client, pairs in null.items() if isinstance(pairs, MemberPairs)}
    return dataclasses.replace(request, candidates=GameCandidates.of(task, mine, untrained))


@pytest.mark.nightly
def test_the_marks_of_the_run_are_told(one_run: tuple[Task, MembershipRequest, Scores]) -> None:
    _, request, scores = one_run
    assert p_values(request, scores)["whitened"] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("statistic", ["cosine", "gradient_difference", "whitened", "loss_drop", "trajectory"])
def test_permuted_marks_give_uniform_p_values(statistic: str, one_run: tuple[Task, MembershipRequest, Scores]) -> None:
    task, request, scores = one_run
    again = [played(request, task, lambda pairs, s=seed: permuted(pairs, s)) for seed in SEEDS]
    assert all(torch.equal(one.candidates.samples, request.candidates.samples) for one in again)
    require_uniform([p_values(one, scores)[statistic] for one in again])


def by_place(candidates: GameCandidates) -> Scores:
    """Score the first candidates of each client highest, as a fault of an attack or of the order might."""
    return _for_each(candidates, lambda mine: -torch.arange(int(mine.sum())).double())


def by_class(candidates: GameCandidates) -> Scores:
    """Score by class alone."""
    return _for_each(candidates, lambda mine: candidates.labels[mine].double())


def _for_each(candidates: GameCandidates, score: Callable[[Tensor], Tensor]) -> Scores:
    clients = candidates.clients
    return [(int(c), "it", tuple(score(clients == c).tolist())) for c in clients.unique()]


@pytest.mark.slow
def test_the_order_of_candidates_tells_nothing_unless_it_is_broken(
    one_run: tuple[Task, MembershipRequest, Scores], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, request, _ = one_run

    def p_of_order() -> tuple[list[float], float]:
        again = [played(request, task, lambda pairs, s=seed: permuted(pairs, s)) for seed in SEEDS]
        values = [p_values(one, by_place(one.candidates))["it"] for one in again]
        control = again[0].scored(by_place(again[0].candidates))["null"]["it"]
        return values, weigh(control, 1).guessed.p

    values, null = p_of_order()
    require_uniform(values)
    assert null > 0.001
    monkeypatch.setattr(module, "ordered", lambda samples, labels: list(range(len(labels))))  # members come first
    broken, null = p_of_order()
    with pytest.raises(AssertionError):
        require_uniform(broken)
    assert null < 1e-9  # the control of every run sees it, too


@pytest.mark.slow
def test_held_out_examples_of_other_classes_are_noticed(one_run: tuple[Task, MembershipRequest, Scores]) -> None:
    task, request, _ = one_run
    labels = np.asarray(task.dataset.train_y)

    def of_higher_classes(pairs: MemberPairs) -> MemberPairs:
        both = np.concatenate([pairs.members, pairs.held_out])
        held_out, members = np.split(both[np.argsort(labels[both], kind="stable")], 2)
        return MemberPairs(members, held_out)

    def values(change: Callable[[MemberPairs], MemberPairs]) -> list[float]:
        again = [played(request, task, lambda pairs, s=seed: change(permuted(pairs, s))) for seed in SEEDS]
        return [p_values(one, by_class(one.candidates))["it"] for one in again]

    assert set(values(lambda pairs: pairs)) == {1.0}  # both of a pair are of one class, so that there is no guess
    with pytest.raises(AssertionError):
        require_uniform(values(of_higher_classes))


def kept(files: dict[str, dict[str, Tensor]]) -> Callable[[str, dict[str, Tensor]], str]:
    """Return a function that keeps what would be written for the attacks."""

    def put(name: str, tensors: dict[str, Tensor]) -> str:
        files[name] = tensors
        return name

    return put


@pytest.mark.slow
def test_controls_tell_nothing_of_the_coins(one_run: tuple[Task, MembershipRequest, Scores]) -> None:
    """What an attack sees of the controls is the same, to the bit, if every coin of the game had fallen otherwise."""
    task, request, _ = one_run

    def seen(swap: bool) -> Mapping[str, Mapping[str, Tensor]]:
        files: dict[str, dict[str, Tensor]] = {}
        pairs = [(task.pairs or ())[client] for client in request.game.clients]
        pairs = [MemberPairs(one.held_out, one.members) for one in pairs] if swap else pairs

        def fresh() -> Net:
            with initialising(0, "easy"):
                return build("mlp", task.dataset.shape, task.dataset.classes)

        assert len(Controls(task, pairs, fresh, kept(files), 0).requests("membership")) == 2
        return files

    one, other = seen(False), seen(True)
    assert one.keys() == other.keys() == {"easy", "one-step"}
    assert all(torch.equal(one[name][key], other[name][key]) for name in one for key in one[name])


@pytest.mark.slow
def test_a_control_learns_its_members_and_not_their_partners(one_run: tuple[Task, MembershipRequest, Scores]) -> None:
    task, request, _ = one_run
    labels = np.array(task.dataset.train_y)
    pairs = [(task.pairs or ())[client] for client in request.game.clients]
    net = build("mlp", task.dataset.shape, task.dataset.classes)
    learnt, single = Controls(task, pairs, lambda: net, lambda name, tensors: name, 0).requests("membership")
    assert (learnt.kind, single.kind, single.game.steps) == ("easy", "one_step", (1,) * 12)
    assert len(learnt.game.clients) == 8 and min(learnt.game.steps) >= 50
    for client in learnt.game.clients:
        given = learnt.candidates.labels[learnt.candidates.clients == client]
        assert given.bincount(minlength=10).tolist() == [2] * 10  # each class once among the ten members
    assert np.array_equal(np.asarray(task.dataset.train_y), labels)  # the run's own stay as they are


def test_pairs_of_the_null_control_are_held_out_by_others() -> None:
    pairs = [MemberPairs(np.array([4 * k, 4 * k + 1]), np.array([4 * k + 2, 4 * k + 3])) for k in range(3)]
    drawn = untrained_pairs(pairs, [0, 2], np.zeros(12, int), 0)
    ends = {client: sorted([*one.members, *one.held_out]) for client, one in drawn.items()}
    assert ends == {0: [6, 7, 10, 11], 2: [2, 3, 6, 7]}
    alone = untrained_pairs(pairs[:1], [0], np.zeros(12, int), 0)[0]
    assert sorted([*alone.members, *alone.held_out]) == [2, 3]  # with no other client they are its own


@pytest.mark.nightly
def test_twenty_runs_whose_candidates_were_all_held_out(tmp_path: Path) -> None:
    """Each run draws its own data, network and pairs; both of a pair were held out."""
    by_statistic: dict[str, list[float]] = {}
    for seed in SEEDS:
        fields = {"seed": seed, "clients": 4, "images": 4}
        experiment = without_auto(asked(tmp_path / f"run-{seed}", **fields, membership_pairs="100"))
        whole.run(experiment)
        task = plan(experiment).task.load(None)
        halves = [np.split(one.held_out[: len(one.held_out) // 2 * 2], 2) for one in task.pairs or ()]
        untrained = dataclasses.replace(task, pairs=tuple(MemberPairs(*half) for half in halves))
        for name, p in p_values(*scored_by(experiment, untrained, tmp_path / f"again-{seed}")).items():
            by_statistic.setdefault(name, []).append(p)
    for name in ("cosine", "gradient_difference", "whitened", "loss_drop", "trajectory"):
        require_uniform(by_statistic[name])
