"""Releases that claims must pay for: rounds asked for again, budgets over restarts; cohorts, and noise of a seed."""

import dataclasses
from math import isinf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import sim
from flfw.dp.releases import Releases, RequestedRounds, RunBudgetExceededError
from flfw.dp.resolve_noise import resolve_noise
from flfw.dp.run_accountant import RunAccountant
from flfw.errors import RunError
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.plans.run_plan import plan
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.mechanism import GaussianEvent
from flfw.runs import run
from flfw.server.cohorts import drawn, secretly_drawn
from tests.dp.test_run_accountant import DELTA, OTHERS, apart, asked, claims
from tests.support.resumed_runs import killed
from tests.support.small_runs import result_of

SDP = ["noise_multiplier=6", "grouping=flat", "noise_source=secure"]


def gaussian(multiplier: float, steps: int) -> float:
    return compute_epsilon((GaussianEvent(multiplier, 1.0, steps),), DELTA).epsilon


@pytest.fixture
def small_sdp(small: Experiment, tmp_path: Path) -> Experiment:
    changes = {"method": "fed_sdp", "net": "mlp", "split": "sampled", "rounds": 3, "attack": ("none",)}
    return dataclasses.replace(small, **changes, set=("sampled.train=20", *SDP), out=tmp_path / "run")


def epsilon_of_clients(folder: Path) -> float:
    (entry,) = (e for e in result_of(folder)["privacy"] if (e["unit"], e["adversary"]) == ("client", "server"))
    return entry["epsilon"]


# --- rounds that are asked for again ---


@pytest.mark.slow
def test_each_restart_inside_one_round_is_another_release(small_sdp: Experiment) -> None:
    folder = killed(small_sdp, 2, 5)
    assert sim.main(["--resume", str(folder)]) == 0
    assert result_of(folder)["provenance"]["requested_rounds"] == [1, 2, 2, 2, 2, 2, 2, 3]
    assert epsilon_of_clients(folder) == gaussian(6, 8)


@pytest.mark.slow
def test_a_killed_first_round_counts_though_no_round_is_kept(small_sdp: Experiment) -> None:
    folder = killed(small_sdp, 1, 2)
    assert sim.main(["--resume", str(folder)]) == 0
    assert epsilon_of_clients(folder) == gaussian(6, 5)


@pytest.mark.slow
def test_seeded_noise_is_the_same_again_and_is_no_other_release(small_sdp: Experiment) -> None:
    folder = killed(dataclasses.replace(small_sdp, set=small_sdp.set[:-1]), 2, 2)
    assert sim.main(["--resume", str(folder)]) == 0
    assert epsilon_of_clients(folder) == gaussian(6, 3)
    assert {entry["noise_source"] for entry in result_of(folder)["privacy"]} == {"seed"}


@pytest.mark.slow
def test_a_budget_holds_over_restarts(small_sdp: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    """Five rounds fit; three are spent on the second one, so that the fourth is the last."""
    budget = (gaussian(6, 5) + gaussian(6, 6)) / 2
    folder = killed(dataclasses.replace(small_sdp, rounds=9, epsilon_budget=budget, audit_rounds="0"), 2, 2)
    assert sim.main(["--resume", str(folder)]) == 0
    result = result_of(folder)
    assert result["provenance"]["requested_rounds"] == [1, 2, 2, 2, 3]
    assert epsilon_of_clients(folder) == gaussian(6, 5) <= budget
    assert any("Training ended after round 3 of 5: rounds were asked for again" in note for note in result["notes"])
    assert len(result["rounds"]) == 3


@pytest.mark.slow
def test_a_budget_by_the_papers_count_has_restarts_in_it(small_sdp: Experiment) -> None:
    """Its count of one round more than there are (table VI), of all the rounds that were asked for."""
    experiment = dataclasses.replace(small_sdp, rounds=9, accountant="paper", audit_rounds="0")
    (five,), (six,) = (
        RunAccountant(plan(dataclasses.replace(experiment, rounds=t)).client, apart(20, 20, 20)).published
        for t in (5, 6)
    )
    budget = (five.epsilon("client", DELTA) + six.epsilon("client", DELTA)) / 2
    folder = killed(dataclasses.replace(experiment, epsilon_budget=budget), 2, 2)
    assert sim.main(["--resume", str(folder)]) == 0
    result = result_of(folder)
    assert result["provenance"]["requested_rounds"] == [1, 2, 2, 2, 3]
    (printed,) = (entry for entry in result["privacy"] if entry["accounting"] == "as published")
    assert printed["epsilon"] == five.epsilon("client", DELTA) <= budget


@pytest.mark.slow
def test_a_round_that_never_ended_counts_though_the_budget_ends_the_run_before_it(small_sdp: Experiment) -> None:
    """Five messages left for rounds 1, 2 and three times 3; there is none for a fourth try."""
    budget = (gaussian(6, 5) + gaussian(6, 6)) / 2
    folder = killed(dataclasses.replace(small_sdp, rounds=9, epsilon_budget=budget, audit_rounds="0"), 3, 3)
    assert sim.main(["--resume", str(folder)]) == 0
    result = result_of(folder)
    assert result["provenance"]["requested_rounds"] == [1, 2, 3, 3, 3] and len(result["rounds"]) == 2
    assert epsilon_of_clients(folder) == gaussian(6, 5) <= budget


def test_a_budget_counts_rounds_after_a_checkpoint_that_was_restored(small_sdp: Experiment, tmp_path: Path) -> None:
    """Three rounds fit and were asked for; the server goes on after the first one again."""
    budget = (gaussian(6, 3) + gaussian(6, 4)) / 2
    experiment = dataclasses.replace(small_sdp, rounds=3, epsilon_budget=budget, audit_rounds="0")
    (tmp_path / "requested_rounds.txt").write_text("1\n2\n3\n")
    with pytest.raises(RunBudgetExceededError, match="round 2 would exceed epsilon"):
        Releases(plan(experiment).client, tmp_path).ask(2)
    assert (tmp_path / "requested_rounds.txt").read_text() == "1\n2\n3\n"


def test_a_budget_that_restarts_of_the_first_round_have_spent_ends_the_run(small_sdp: Experiment) -> None:
    experiment = dataclasses.replace(small_sdp, epsilon_budget=(gaussian(6, 1) + gaussian(6, 2)) / 2, rounds=1)
    killed(experiment, 1)
    with pytest.raises(RunError, match="The run cannot begin again: round 1 would exceed epsilon"):
        run.resume(experiment)


def test_a_round_is_on_disk_before_its_messages_leave(small_sdp: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, str]] = []
    whole = InProcessGrid.push_messages
    assert small_sdp.out is not None
    path = small_sdp.out / "checkpoint" / "requested_rounds.txt"

    def seen(self: InProcessGrid, messages: Any) -> Any:
        listed = list(messages)
        sent.extend((m.metadata.message_type, path.read_text() if path.exists() else "") for m in listed)
        return whole(self, listed)

    monkeypatch.setattr(InProcessGrid, "push_messages", seen)
    run.run(small_sdp)
    trained = [text.split() for kind, text in sent if kind == "train"]
    assert trained and [t[-1] for t in trained] == sorted(t[-1] for t in trained)
    assert trained[0] == ["1"] and trained[-1] == ["1", "2", "3"]


def test_a_line_that_a_kill_cut_short_counts(tmp_path: Path) -> None:
    """Nothing tells that its round was not sent."""
    (tmp_path / "requested_rounds.txt").write_text("1\n2\n3")
    record = RequestedRounds(tmp_path)
    assert record.rounds == [1, 2, 2] and record.again == 1
    assert record.note(3) == 0 and record.note(3) == 1
    assert RequestedRounds(tmp_path).rounds == [1, 2, 2, 3, 3]


def test_rounds_that_are_asked_for_again_count_though_the_first_ones_were_never_noted(tmp_path: Path) -> None:
    """As in a run that older code began."""
    record = RequestedRounds(tmp_path)
    for before in range(6):
        assert record.note(6) == before and record.again == before
    assert ((tmp_path / "requested_rounds.txt").stat().st_mode & 0o777) == 0o600


# --- cohorts ---


def test_secret_cohorts_are_coins_of_their_key_round_and_attempt() -> None:
    everyone, key = list(range(40)), b"k" * 32
    one = secretly_drawn(everyone, 10, key, 1, 0)
    assert one == secretly_drawn(everyone, 10, key, 1, 0)
    others = [(b"l" * 32, 1, 0), (key, 2, 0), (key, 1, 1)]
    assert all(secretly_drawn(everyone, 10, *other) != one for other in others)
    taken = np.array([np.isin(everyone, secretly_drawn(everyone, 10, key, r, 0)) for r in range(1, 501)])
    low, high = binom.ppf([1e-7, 1 - 1e-7], 500, 0.25)
    assert ((low <= taken.sum(0)) & (taken.sum(0) <= high)).all()  # each client
    assert abs(taken.sum() - 5000) < 5 * sqrt(20_000 * 0.25 * 0.75)
    pairs = np.corrcoef(taken.T)[~np.eye(40, dtype=bool)]
    assert abs(pairs).max() < 6 / sqrt(500)


def cohorts(folder: Path) -> list[list[int]]:
    rows = [line.split(",") for line in (folder / "clients.csv").read_text().splitlines()[1:]]
    return [[int(row[1]) for row in rows if int(row[0]) == r] for r in range(1, 9)]


@pytest.mark.slow
def test_nobody_with_the_seed_knows_the_cohorts_of_secure_noise(small: Experiment, tmp_path: Path) -> None:
    changes = {"method": "dp_fedavg", "net": "mlp", "split": "sampled", "rounds": 8, "attack": ("none",), "clients": 6}
    drawing = {"sample": 3, "sampling": "poisson"}
    for source, same in (("seed", True), ("secure", False)):
        chosen = ("sampled.train=10", "unit=client", f"noise_source={source}")
        experiment = dataclasses.replace(small, **changes, **drawing, set=chosen, out=tmp_path / source)
        run.run(experiment)
        known = [drawn(range(6), 3, "poisson", experiment.seed, r) for r in range(1, 9)]
        assert (cohorts(tmp_path / source) == known) == same
    (key,) = (tmp_path / "secure" / "checkpoint").glob("cohort-key-*.bin")
    assert len(key.read_bytes()) == 32 and key.stat().st_mode & 0o777 == 0o600
    assert not list((tmp_path / "seed" / "checkpoint").glob("cohort-key-*"))


@pytest.mark.slow
def test_cohorts_are_drawn_from_the_seed_where_no_claim_rests_on_them(small: Experiment, tmp_path: Path) -> None:
    """Then the rounds of one client are known beforehand, and the claim counts these."""
    changes = {"method": "fed_cdp", "net": "mlp", "split": "sampled", "rounds": 8, "attack": ("none",), "clients": 6}
    chosen = ("sampled.train=10", "noise_source=secure")
    run.run(dataclasses.replace(small, **changes, sample=3, sampling="poisson", set=chosen, out=tmp_path / "run"))
    assert cohorts(tmp_path / "run") == [drawn(range(6), 3, "poisson", small.seed, r) for r in range(1, 9)]


def test_no_message_holds_the_key(small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    whole = InProcessGrid.push_messages

    def seen(self: InProcessGrid, messages: Any) -> Any:
        listed = list(messages)
        sent.extend(f"{dict(r)}" for m in listed for r in m.content.config_records.values())
        sent.extend(" ".join(record) for m in listed for record in m.content.array_records.values())
        return whole(self, listed)

    monkeypatch.setattr(InProcessGrid, "push_messages", seen)
    changes = {"method": "dp_fedavg", "net": "mlp", "split": "sampled", "rounds": 2, "attack": ("none",)}
    chosen = ("sampled.train=10", "unit=client", "noise_source=secure")
    experiment = dataclasses.replace(small, **changes, sample=2, sampling="poisson", set=chosen, out=tmp_path / "run")
    run.run(experiment)
    (path,) = (tmp_path / "run" / "checkpoint").glob("cohort-key-*.bin")
    key = path.read_bytes()
    assert sent and not any(key.hex() in text or str(list(key)) in text or "cohort" in text for text in sent)


def test_a_client_may_be_drawn_in_every_round_as_far_as_anybody_knows() -> None:
    """Of an example, which whole clients exchange, no round is hidden: it counts in all of them."""
    chosen = ("unit=client", "noise_multiplier=6", "noise_source=secure")
    experiment = asked("dp_fedavg", *chosen, clients=3, sample=1, sampling="poisson", rounds=9, seed=4)
    result = claims(experiment, apart(25, 20, 20))
    for adversary in OTHERS:
        assert result["client", adversary].epsilon == compute_epsilon((GaussianEvent(6.0, 1 / 3, 9),), DELTA).epsilon
        assert result["example", adversary].epsilon < gaussian(3, 9)  # as a group: one update less, and another more
        assert any("Nobody but the server learns" in one for one in result["client", adversary].assumptions)
    assert isinf(result["client", "server"].epsilon)
    mechanism = RunAccountant(plan(experiment).client, apart(25, 20, 20)).mechanism
    assert mechanism is not None and mechanism.phase(amplified=False) == GaussianEvent(6.0, 1.0, 9)


@pytest.mark.slow
def test_the_number_of_clients_in_a_round_is_as_secret_as_who_they_are(small: Experiment, tmp_path: Path) -> None:
    """Who knows all other coins learns the last one from it; and from a run that goes on, where it needs everybody."""
    changes = {"method": "dp_fedavg", "net": "mlp", "split": "sampled", "rounds": 8, "attack": ("none",), "clients": 3}
    drawing = {"sample": 2, "sampling": "poisson", "set": ("sampled.train=10", "unit=client", "noise_source=secure")}
    experiment = dataclasses.replace(small, **changes, **drawing, out=tmp_path / "run")
    run.run(experiment)
    shown = [row["clients"] for row in result_of(tmp_path / "run")["rounds"]]
    assert shown == [len(cohort) for cohort in cohorts(tmp_path / "run")]
    # Of 99 cohorts none has one client with probability 10^-11.
    needy = dataclasses.replace(experiment, on_client_failure="fail:2", rounds=99, out=tmp_path / "needy")
    with pytest.raises(RunError, match=r"Expected at least 2 clients in round \d+, got 1"):
        run.run(needy)
    for one in RunAccountant(plan(experiment).client, apart(10, 10, 10)).claims():
        if one.adversary not in ("server", "aggregate"):
            assert any("how many were" in words and "--expert on_client_failure" in words for words in one.assumptions)


# --- whoever has the seed ---


@pytest.mark.parametrize(("method", "chosen"), [("fed_cdp", ()), ("fed_sdp", ()), ("dp_fedavg", ("unit=client",))])
def test_real_clients_have_the_seed_so_that_nothing_is_claimed_of_its_noise(
    method: str, chosen: tuple[str, ...], tmp_path: Path
) -> None:
    experiment = asked(method, "noise_multiplier=6", "noise_source=seed", *chosen, federation=tmp_path)
    for one in RunAccountant(plan(experiment).client, apart(25, 20)).claims():
        assert isinf(one.epsilon)
        without = ("sees every message without it", "which it sees without it")
        assert "noise_source=secure" in one.assumptions[0] or any(words in one.assumptions[0] for words in without)


def test_noise_is_secure_with_real_clients_unless_it_is_chosen_otherwise(tmp_path: Path) -> None:
    for method, given, expected in (
        ("fed_cdp", (), "secure"),
        ("fed_cdp", ("noise_source=seed",), "seed"),
        ("fed_cdp", ("fed_cdp.noise_source=seed",), "seed"),
    ):
        run_plan, _ = resolve_noise(plan(asked(method, *given, federation=tmp_path)), apart(25, 20))
        assert run_plan.client.settings.noise_source == expected
    simulated, _ = resolve_noise(plan(asked("fed_cdp")), apart(25, 20))
    assert simulated.client.settings.noise_source == "seed"
    without, _ = resolve_noise(plan(asked("fedavg", federation=tmp_path)), apart(25, 20))
    assert without.experiment.set == ()


@pytest.mark.nightly
def test_a_simulation_says_that_its_figures_are_of_secure_noise(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--method fed_sdp --net mlp --clients 2 --rounds 1 --attack none --engine inproc --estimate"
    for more, words in (([], "with noise_source=secure"), (["--set", "noise_source=secure"], "epsilon")):
        assert sim.main([*flags.split(), *more]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if "epsilon at most" in line]
        assert lines and all(line.startswith(words) or "at most inf" in line for line in lines)
