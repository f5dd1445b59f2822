"""A site's ledger: what each message costs by the site's own numbers, and what is refused before anything leaves."""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from math import ceil, exp, inf, sqrt
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from PIL import Image
from scipy.stats import norm

from flfw.dp import site_ledger
from flfw.dp.budget import BudgetExceededError, EpsilonBudget, budgeted
from flfw.dp.message_cost import EVALUATE, PROBE, TRAIN, cost
from flfw.dp.site_ledger import MessageEntry, charge, epsilon_of, read
from flfw.engines import apps
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import broadcast
from flfw.plans.run_plan import RunPlan, plan
from flfw.privacy.mechanism import Mechanism
from flfw.privacy.rounding import at_most
from flfw.server.checkpoint import Checkpoints

DELTA = 1e-5
BUDGET = EpsilonBudget(10.0, DELTA)
ONE = MessageEntry("run1", 1, TRAIN, "fed_cdp", Mechanism(1.0, 1), examples=50)


def mu_of(entries: list[MessageEntry], budget: EpsilonBudget = BUDGET) -> float:
    """The mu of the Gaussian with the epsilon of these entries, at half of delta."""
    epsilon = epsilon_of(entries, budget)
    low, high = 0.0, 1000.0
    for _ in range(100):
        mu = (low + high) / 2
        delta = norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        low, high = (mu, high) if delta < budget.delta / 2 else (low, mu)
    return low


# --- sums ----------------------------------------------------------------------------------------------------------


def test_messages_of_all_runs_and_kinds_add_up() -> None:
    """Four times z = 1 is mu = 2; an evaluation adds nothing."""
    entries = [ONE, replace(ONE, run="run2"), replace(ONE, kind=PROBE), replace(ONE, method="dp_fedavg")]
    assert mu_of(entries) == pytest.approx(2.0, rel=1e-6)
    assert mu_of([*entries, replace(ONE, kind=EVALUATE, mechanism=None)]) == pytest.approx(2.0, rel=1e-6)


UPDATE = Mechanism(1.0, 1, clipped="client")
UNITS = {
    # an example of a sum of 5: once; a patient with 3: three times; all 5: five times
    ("example", "steps"): 1,
    ("patient", "steps"): 3,
    ("client", "steps"): 5,
    # another update in place of one: twice; an update or none: once
    ("example", "update"): 2,
    ("patient", "update"): 2,
    ("client", "update"): 1,
}


@pytest.mark.parametrize(("unit", "what"), UNITS)
def test_a_unit_counts_as_often_as_it_is_in_a_sum(unit: Any, what: str) -> None:
    entry = replace(ONE, mechanism=ONE.mechanism if what == "steps" else UPDATE, examples=5)
    budget = EpsilonBudget(1e4, DELTA, unit, patient_examples=3)
    assert mu_of([entry] * 4, budget) == pytest.approx(2.0 * UNITS[unit, what], rel=1e-4)


def test_an_example_that_a_site_has_twice_counts_twice() -> None:
    assert site_ledger.most_repeated(np.array([3, 5, 3, 4])) == 2
    assert mu_of([replace(ONE, repeated=2)]) == pytest.approx(2.0, rel=1e-6)


# --- what a message costs ------------------------------------------------------------------------------------------


def asked(method: str = "fed_cdp", *assignments: str, **changes: Any) -> RunPlan:
    """Plan a run whose clients send no numbers beside the tensors."""
    chosen: dict[str, Any] = {"net": "mlp", "split": "iid", "batch_size": 10, "local_epochs": 2, "attack": ("none",)}
    chosen["metrics"] = "none"
    settings = ("noise_source=secure", *assignments) if method != "fedavg" else assignments
    return plan(Experiment(method=method, set=settings, **{**chosen, **changes}))


def test_a_round_costs_what_its_steps_do() -> None:
    """2 passes over 25 examples in batches of 10: 6 steps, of which an example is in 2; each of 3 layers is clipped."""
    result, _ = cost(asked().client, TRAIN, {}, 25)
    assert result is not None
    assert (result.steps, result.max_participations, result.groups, result.sampling_rate) == (6, 2, 3, 1.0)
    assert mu_of([replace(ONE, mechanism=result)]) == pytest.approx(sqrt(2 * 3) / 6, rel=1e-6)
    by_coins, _ = cost(asked("fed_cdp", "batches=poisson").client, TRAIN, {}, 25)
    assert by_coins is not None
    assert (by_coins.steps, by_coins.max_participations, by_coins.sampling_rate) == (6, None, 10 / 25)


def test_the_servers_cohorts_and_rounds_give_no_credit() -> None:
    few, many = (cost(asked(clients=100, sample=drawn, rounds=9).client, TRAIN, {}, 25) for drawn in (10, 100))
    assert few == many == cost(asked(clients=1, rounds=1).client, TRAIN, {}, 25)
    update, _ = cost(asked("fed_sdp", clients=100, sample=10, rounds=9, sampling="poisson").client, TRAIN, {}, 25)
    assert update is not None
    assert (update.steps, update.clipped, update.amplified) == (1, "client", False)


def test_a_probe_costs_each_of_its_steps() -> None:
    """3 steps on the same 4 examples, without credit for coins, which nobody throws there."""
    for method in ("fed_cdp", "dp_fedavg"):
        for batches in ("shuffled", "poisson"):
            result, _ = cost(
                asked(method, f"batches={batches}").client, PROBE, {"control": "target", "batch": 4, "steps": 3}, 25
            )
            assert result is not None
            assert (result.phase().sampling_rate, result.phase().steps) == (1.0, 3)
    update, _ = cost(asked("fed_sdp").client, PROBE, {"control": "target", "batch": 4, "steps": 3}, 25)
    assert update is not None and update.phase().steps == 1


def test_an_evaluation_without_numbers_costs_nothing() -> None:
    assert cost(asked().client, EVALUATE, {}, 25) == (None, None)


AROUND = {
    "the server's own noise": (
        "dp_fedavg",
        ("unit=client", "noise_multiplier=100", "clip=1e6"),
        "the server is to add",
    ),
    "fed_sdp's server": ("fed_sdp", ("noised_by=server",), "the server is to add the noise of fed_sdp"),
    "centaur": ("centaur", (), "the head learns from the same examples without noise"),
    "ppsgd": ("ppsgd", (), "the head learns from the same examples without noise"),
    "a median": ("fed_cdp", ("bound=median",), "the bound is the median of a client's own gradient norms"),
    "zeroes": ("fed_cdp", ("compress=before",), "which entries are zeroed before the noise"),
    "the seed": ("fed_cdp", ("noise_source=seed",), "the server can repeat the noise with noise_source=seed"),
    "no noise at all": ("fedavg", (), "fedavg adds no noise that can be counted"),
}


@pytest.mark.parametrize(("method", "assignments", "message"), AROUND.values(), ids=AROUND.keys())
@pytest.mark.parametrize("kind", [TRAIN, PROBE])
def test_the_ways_around_least_noise_are_closed(
    method: str, assignments: tuple[str, ...], message: str, kind: str
) -> None:
    with pytest.raises(BudgetExceededError, match=f"^this site's budget: {message}") as caught:
        cost(asked(method, *assignments).client, kind, {"control": "target", "batch": 1, "steps": 1}, 25)
    assert "\n" not in str(caught.value)


def test_a_million_rounds_end_where_the_budget_does(tmp_path: Path) -> None:
    """At z = 6 / sqrt(6) a round, mu reaches 2 after 24 rounds, however many the server asks for."""
    run_plan, path = asked(rounds=10**6), tmp_path / "lines.jsonl"
    entry = replace(ONE, mechanism=cost(run_plan.client, TRAIN, {}, 25)[0])
    budget = EpsilonBudget(epsilon_of([replace(ONE, mechanism=Mechanism(1.0, 4))], BUDGET) * (1 + 1e-9), DELTA)
    answered = 0
    with pytest.raises(BudgetExceededError):
        for number in range(1, 10**6):
            charge(path, budget, replace(entry, round=number))
            answered = number
    assert answered == 24


FOREIGN = "flfw.strategies.fed_cdp:FedCDP"
REFUSED: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "buffers": (lambda: asked("fed_sdp", net="resnet18"), TRAIN, {}, "Expected layers without buffers"),
    "a plug-in": (lambda: asked(FOREIGN), TRAIN, {}, f"{FOREIGN} is no plug-in of "),
    "a voiding defence": (lambda: asked(defence="ats"), TRAIN, {}, "ats changes batches"),
    "the analytic control": (asked, PROBE, {"control": "analytic", "batch": 1, "steps": 1}, "a probe is answered"),
    "the undefended control": (asked, PROBE, {"control": "undefended", "batch": 1, "steps": 1}, "a probe is answered"),
    "behind a weak defence": (asked, PROBE, {"control": "weak_defence", "batch": 1, "steps": 1}, "a probe is answered"),
    "no steps": (lambda: asked(), PROBE, {"control": "target", "batch": 1, "steps": 0}, "a probe is of one example"),
    "half an example": (lambda: asked(), PROBE, {"control": "target", "batch": 0.5, "steps": 1}, "a probe is of one"),
    "a draw for each": (lambda: asked("fed_cdp", "draws=example"), PROBE, {"control": "target", "batch": 4, "steps": 1},
                        "a probe with a draw of noise for each example"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "kind", "config", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_counted_is_refused(made: Any, kind: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(BudgetExceededError, match=f"^this site's budget: {message}"):
        cost(made().client, kind, config, 25)


def test_numbers_beside_the_tensors_are_refused() -> None:
    for kind in (TRAIN, EVALUATE):
        with pytest.raises(
            BudgetExceededError, match="metrics=all cannot be counted; run with metrics=private or none"
        ):
            cost(asked(metrics="all").client, kind, {}, 25)


# --- the budget ----------------------------------------------------------------------------------------------------


def test_a_message_beyond_the_budget_is_refused_and_not_entered(tmp_path: Path) -> None:
    path = tmp_path / "ledger" / "lines.jsonl"
    four, five = (epsilon_of([ONE] * times, BUDGET) for times in (4, 5))
    budget = EpsilonBudget((four + five) / 2, DELTA)
    for _ in range(4):
        charge(path, budget, ONE)
    whole = f"this site's budget: epsilon {budget.epsilon:g} at delta 1e-05 for one example; "
    for _ in range(3):  # again and again
        with pytest.raises(BudgetExceededError) as caught:
            charge(path, budget, ONE)
        assert str(caught.value) == f"{whole}{at_most(four)} is spent, and this message would make it {at_most(five)}"
    assert read(path, budget) == site_ledger.Spent(four, 4, 1)
    charge(path, budget, replace(ONE, run="run2", kind=EVALUATE, mechanism=None))
    assert read(path, budget).of(budget) == f"{budget}; {at_most(four)} is spent, messages 5, runs 2"
    with pytest.raises(BudgetExceededError):  # a lower budget than what is spent
        charge(path, EpsilonBudget(four / 2, DELTA), replace(ONE, kind=EVALUATE, mechanism=None))


def test_the_unit_of_the_policy_counts_also_for_earlier_messages(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    charge(path, BUDGET, ONE)
    assert read(path, replace(BUDGET, epsilon=1e4, unit="client")).epsilon > 50 * read(path, BUDGET).epsilon


def test_a_damaged_ledger_answers_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    for _ in range(2):
        charge(path, BUDGET, ONE)
    path.write_bytes(path.read_bytes().replace(b'"steps": 1', b'"steps": 0', 1))
    with pytest.raises(
        BudgetExceededError, match="its ledger is damaged, and nothing is answered until it is restored"
    ):
        charge(path, BUDGET, ONE)
    with pytest.raises(InputError, match="it is damaged"):
        read(path, BUDGET)


def test_a_budget_goes_through_the_node_config(tmp_path: Path) -> None:
    for budget in (BUDGET, EpsilonBudget(0.1 + 0.2, 1e-7, "patient", 12)):
        assert budgeted(budget.to_node_config(tmp_path / "a b")) == (budget, tmp_path / "a b")
    assert budgeted({"partition-id": 0}) is None


@pytest.mark.slow
def test_two_processes_never_spend_the_same_epsilon(tmp_path: Path) -> None:
    """Of a budget for 5 messages two processes that try 5 each get 5 in all."""
    path, started = tmp_path / "lines.jsonl", multiprocessing.get_context("spawn")
    budget = EpsilonBudget(epsilon_of([ONE] * 5, BUDGET) * (1 + 1e-9), DELTA)
    both = [started.Process(target=_charge_many, args=(path, budget)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        assert process.exitcode == 0
    assert read(path, budget).messages == 5


def _charge_many(path: Path, budget: EpsilonBudget) -> None:
    for _ in range(5):
        try:
            charge(path, budget, ONE)
        except BudgetExceededError:
            return


# --- the app -------------------------------------------------------------------------------------------------------


def run(folder: Path, out: str, budget: EpsilonBudget | None = BUDGET, run_plan: RunPlan | None = None) -> None:
    """A run of one site in this process, up to ``training.json``."""
    chosen = (run_plan or asked("fed_cdp", **SMALL)).experiment
    experiment = replace(chosen, out=folder / out, engine="inproc")
    (folder / out).mkdir(exist_ok=True)
    Checkpoints(folder / out, experiment)
    node = budget.to_node_config(folder / "lines.jsonl") if budget else {}
    config = experiment.to_run_config()
    server = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=dict(config))
    grid = InProcessGrid(apps.client, 1, config, [{"state": str(folder / "state"), **node}])
    apps.server(grid=grid, context=server)


SMALL: dict[str, Any] = {"dataset": "digits", "net": "linear", "clients": 1, "rounds": 2, "local_epochs": 1,
                         "batch_size": 500}  # fmt: skip


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]


def test_each_message_of_a_run_is_a_line(tmp_path: Path) -> None:
    private = asked("fed_cdp", metrics="private", **SMALL)  # without numbers nobody asks for an evaluation
    run(tmp_path, "a", run_plan=private)
    first = rows(tmp_path)
    assert [(row["round"], row["kind"]) for row in first] == [(1, TRAIN), (2, TRAIN), (3, EVALUATE)]
    assert [row["mechanism"] is None for row in first] == [False, False, True]
    assert first[0]["sends"] == ["*"] and first[2]["sends"] == [] and first[0]["method"] == "fed_cdp"
    n = first[0]["examples"]
    assert n > 500 and first[0]["mechanism"]["steps"] == ceil(n / 500)
    assert abs(first[0]["time"] - time.time()) < 600
    run(tmp_path, "b", run_plan=private)  # another run of the same settings
    assert len(rows(tmp_path)) == 6 and len({row["run"] for row in rows(tmp_path)}) == 2
    run(tmp_path, "c", budget=None, run_plan=private)
    assert len(rows(tmp_path)) == 6


def test_a_run_ends_with_the_sites_line(tmp_path: Path) -> None:
    one = epsilon_of([replace(ONE, mechanism=cost(asked("fed_cdp", **SMALL).client, TRAIN, {}, 1000)[0])], BUDGET)
    with pytest.raises(RunError, match=r"client 0 failed in round 2: this site's budget: epsilon \S+ at delta 1e-05 "):
        run(tmp_path, "a", EpsilonBudget(1.01 * one, DELTA))
    with pytest.raises(RunError, match="client 0 failed in round 1: this site's budget: the server is to add the"):
        run(tmp_path, "b", run_plan=asked("dp_fedavg", "unit=client", **SMALL))
    assert [(row["round"], row["kind"]) for row in rows(tmp_path)] == [(1, TRAIN)]


KILLED = """
import os, sys, time
from pathlib import Path
from flfw.engines import apps
from flfw.client.federated_client import FederatedClient
from tests.dp import test_site_ledger as here

def waits(self, *_):
    print("training", flush=True)
    time.sleep(600)

FederatedClient.fit_named = waits
here.run(Path(sys.argv[1]), "a")
"""


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Popen[str]]:
    """A process that has begun to train."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with Popen(command, stdout=PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "training\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_what_was_killed_before_it_answered_is_counted(tmp_path: Path, training: Popen[str]) -> None:
    os.kill(training.pid, signal.SIGKILL)
    training.wait(60)
    assert [(row["round"], row["kind"]) for row in rows(tmp_path)] == [(1, TRAIN)]
    assert 0 < read(tmp_path / "lines.jsonl", BUDGET).epsilon < inf


# --- a server that would learn from a refusal ------------------------------------------------------------------------


def refused(folder: Path, kind: str, run_plan: RunPlan) -> tuple[str, bool]:
    """The reason of client 0, and whether anything was entered in its ledger."""
    folder.mkdir()
    experiment = replace(run_plan.experiment, out=folder / "a", engine="inproc")
    node = {"state": str(folder / "state"), **BUDGET.to_node_config(folder / "lines.jsonl")}
    grid = InProcessGrid(apps.client, 2, experiment.to_run_config(), [node, node])
    to = min(grid.get_node_ids())
    config = {"round": 1, "client": 0, "state_version": 0, "code": apps.code_hash(), "experiment": "b", "deadline": 2e9}
    sent = broadcast(run_plan.client.build_model(), run_plan.client.sharing.downloads)
    record = RecordDict({"arrays": sent, "config": ConfigRecord(config)})
    (reply,) = grid.send_and_receive([Message(record, dst_node_id=to, message_type=kind)])
    return str(reply.error.reason) if reply.has_error() else "answered", (folder / "lines.jsonl").exists()


@pytest.mark.parametrize("kind", [TRAIN, EVALUATE])
def test_no_refusal_tells_whether_a_site_has_every_class(tmp_path: Path, kind: str) -> None:
    """The method fedcg needs every class, and said so: a server could ask for nothing, at no cost."""
    chosen: dict[str, Any] = {"dataset": "digits", "net": "lenet5", "image_size": 32, "clients": 2, "attack": ("none",)}
    chosen["metrics"] = "none"
    reasons = []
    for split in ("iid", "pathological"):  # where all classes are at client 0, and where only some are
        run_plan = plan(Experiment(method="fedcg", split=split, **chosen))
        reasons.append(refused(tmp_path / split, kind, run_plan))
    assert reasons[0] == reasons[1]
    assert "this site's budget: fedcg" in reasons[0][0] and not reasons[0][1]


def test_no_refusal_names_a_file_of_the_site(tmp_path: Path) -> None:
    """Words of the budget leave the site; these are a reader's on an image that cannot be read."""
    data = tmp_path / "scans"
    for index in range(6):
        (data / "ab"[index % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(data / "ab"[index % 2] / f"{index}.png")
    chosen: dict[str, Any] = {"dataset": f"folder:{data}", "net": "linear", "split": "iid", "augment": "none"}
    chosen |= {"normalise": "half", "clients": 1, "attack": ("none",), "metrics": "none"}
    run_plan = plan(Experiment(method="fed_cdp", **chosen, set=("noise_source=secure",)))
    assert cost(run_plan.client, TRAIN, {}, 3)[0] is not None
    (data / "a" / "0 Jane Roe.png").write_bytes(b"no image")
    anew = replace(run_plan.client, task=replace(run_plan.task))  # that has read nothing
    with pytest.raises(InputError, match="0 Jane Roe"):  # which is no reason that leaves
        cost(anew, TRAIN, {}, 3)
