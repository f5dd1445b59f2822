"""What a run is said to cost, against running it, and that finding out leaves nothing behind."""

import dataclasses
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from benchmarks.estimates import spent
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.files.folders import require_folder
from flfw.plans.run_plan import plan
from flfw.runs import estimate as module
from flfw.runs.estimate import Estimate, disk_bytes, estimate, lines, memory
from flfw.runs.run import check
from flfw.runs.timed_phases import AuditCosts, TrainingCosts

FACTOR = 1.5  # between what is estimated and what is measured, either way
STORE = 100_000_000  # bytes of Ray's object store
CLIENT = TrainingCosts(
    4.0, 0.5, 2.0, client_gib=1.0, base_gib=0.5, up=1e6, down=1e6, message=1e6, private=1e3, reply_s=0.1
)
AUDIT = AuditCosts(
    images=2, imports_s=3.0, once_s=10.0, probes_s=20.0, messages=2, once_bytes=5e4, round_bytes=1.3e6, peak_gib=1.5
)


@pytest.fixture
def audited(small: Experiment) -> Experiment:
    return dataclasses.replace(small, attack=("ig",), images=2, set=("ig.iterations=10",), audit_rounds="0,last")


def seconds(experiment: Experiment, actors: int = 1, training: TrainingCosts = CLIENT) -> module.Seconds:
    return module.seconds(experiment, actors, training, AUDIT if experiment.attacks else None)


def shown(experiment: Experiment, spent_s: module.Seconds, sent: int = 1, disk: int = 1) -> str:
    return lines(Estimate(experiment, spent_s, memory(experiment, 1, CLIENT, None, STORE), sent, disk, "a machine"))


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["inproc", "ray"])
def test_within_a_factor_of_one_and_a_half_of_what_running_it_takes_and_leaves_nothing_behind(
    audited: Experiment, tmp_path: Path, engine: str
) -> None:
    run_plan, _, _ = check(dataclasses.replace(audited, rounds=3, local_epochs=3, engine=engine))
    checked = run_plan.experiment
    threads, random, cwd, temporary = torch.get_num_threads(), torch.get_rng_state(), Path.cwd(), tempfile.gettempdir()
    before = set(cwd.iterdir()) | set(Path(temporary).glob("flfw-estimate-*"))
    environment = dict(os.environ)
    result = estimate(plan(checked))
    assert (torch.get_num_threads(), Path.cwd(), dict(os.environ)) == (threads, cwd, environment)
    assert torch.equal(torch.get_rng_state(), random)
    assert set(cwd.iterdir()) | set(Path(temporary).glob("flfw-estimate-*")) == before
    assert not (tmp_path / "run").exists()
    flags = (
        f"--method fedavg --clients 3 --rounds 3 --local-epochs 3 --engine {engine} --attack ig --images 2 "
        f"--set ig.iterations=10 --out {checked.out}"
    )
    (_, took, _), folder = spent(flags), checked.out
    assert folder is not None
    assert took / FACTOR < result.seconds.whole_processor < took * FACTOR
    size = sum(path.stat().st_size for path in (folder / "observations").rglob("*") if path.is_file())
    assert size / 2 < result.disk_bytes < 2 * size
    assert 0.3 < result.memory.actor_gib < 3 and result.memory.driver_gib > 0.5
    assert (result.memory.total_gib == result.memory.driver_gib) == (engine == "inproc")
    assert all(unit in lines(result) for unit in (" s", " GiB", "B by a client", "3 rounds", "load"))


@pytest.mark.nightly
@pytest.mark.parametrize("defence", ["none", "prune"])  # of prune an informed attacker plays a second game
def test_a_membership_audit_is_within_the_same_factor(small: Experiment, defence: str) -> None:
    flags = "--method fedavg --clients 3 --rounds 3 --engine inproc --attack membership --audit-rounds 1,2,3"
    flags += f" --defence {defence}"
    game = {"attack": ("membership",), "membership_pairs": "auto", "audit_rounds": "1,2,3", "defence": defence}
    checked = check(dataclasses.replace(small, rounds=3, **game))[0].experiment
    result, folder = estimate(plan(checked)), checked.out
    assert folder is not None
    _, took, _ = spent(f"{flags} --local-epochs 1 --dataset {checked.dataset} --out {folder}")
    assert took / FACTOR < result.seconds.whole_processor < took * FACTOR
    size = sum(path.stat().st_size for path in (folder / "observations").rglob("*") if path.is_file())
    assert size / 2 < result.disk_bytes < 2 * size


def test_time_grows_with_rounds_and_local_epochs(small: Experiment) -> None:
    def grown(**changes: int) -> float:
        return seconds(dataclasses.replace(small, **changes)).total  # type: ignore[arg-type]

    assert grown(rounds=9) - grown(rounds=5) == pytest.approx(grown(rounds=5) - grown(rounds=1))
    epochs = [grown(rounds=1, local_epochs=n) for n in (1, 2, 3)]
    assert epochs[1] - epochs[0] == pytest.approx(epochs[2] - epochs[1])
    assert epochs[1] - epochs[0] == pytest.approx(2 * 3 * 2.0)  # three clients, in a round and in the last evaluation


def test_the_last_evaluation_counts_for_those_who_are_asked(small: Experiment) -> None:
    """A client's round takes 0.5 s and 2 s of training; nobody is asked without metrics, nobody trains with private."""

    def evaluation(**changes: str) -> float:
        requested, nobody = (
            {**changes, "final_eval_clients": each} for each in (changes.get("final_eval_clients", "all"), "none")
        )
        spent = [seconds(dataclasses.replace(small, local_epochs=1, **each)).training for each in (requested, nobody)]  # type: ignore[arg-type]
        return spent[0] - spent[1]

    assert evaluation() == pytest.approx(3 * 2.5) and evaluation(final_eval_clients="2") == pytest.approx(2 * 2.5)
    assert evaluation(metrics="private") == pytest.approx(3 * 0.5)
    assert evaluation(metrics="none") == evaluation(final_eval_clients="none") == 0


def test_rounds_are_shared_by_the_actors(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    on_ray = dataclasses.replace(small, engine="ray", clients=8)
    assert module._actors(on_ray) == 4
    assert module._actors(dataclasses.replace(on_ray, cpus_per_client=3)) == 1
    assert seconds(on_ray, 1).round > 3 * seconds(on_ray, 4).round > 0
    assert seconds(dataclasses.replace(on_ray, sample=4), 4).round < 0.6 * seconds(on_ray, 4).round


def test_the_attacks_of_the_rounds_add_up(audited: Experiment) -> None:
    """Round 0 has no uploads; 16 images are twice the eight that were timed, but no more uploads than clients."""
    experiment = dataclasses.replace(audited, rounds=9, audit_rounds="0,3,last", images=16, clients=10)
    audit = AuditCosts(images=8, imports_s=3.0, once_s=10.0, probes_s=20.0, uploads_s=7.0, games_s=5.0, messages=8)
    added = 3.0 + 10.0
    for server_round in (0, 3, 9):
        added += 20.0 * 16 / 8
        added += 7.0 * 10 / 8 if server_round else 0.0
        added += 5.0 * 10 / 8 if server_round else 0.0
    assert module.seconds(experiment, 1, CLIENT, audit).audit == pytest.approx(added)
    assert seconds(dataclasses.replace(audited, attack=("none",))).audit == 0


def test_probes_take_a_round_without_its_epochs(audited: Experiment) -> None:
    training = seconds(audited).training - seconds(dataclasses.replace(audited, attack=("none",))).training
    assert training == pytest.approx(2 * 2 * 0.5)  # two probes in each of two rounds
    silent = module.seconds(audited, 1, CLIENT, dataclasses.replace(AUDIT, messages=0))
    assert seconds(audited).training - silent.training == pytest.approx(2 * 2 * 0.5)


def test_a_server_that_trains_is_waited_for_and_said(small: Experiment) -> None:
    two_rounds, trains = seconds(small), dataclasses.replace(CLIENT, round_s=30.0)
    result = seconds(small, 1, trains)
    assert result.round - two_rounds.round == pytest.approx(30.0)
    assert result.total - two_rounds.total == pytest.approx(2 * 30.0)  # not in the last evaluation
    assert result.processor == pytest.approx(3 * (0.5 + 2.0 + 0.1) + 30.0)
    on_ray = dataclasses.replace(small, engine="ray")
    assert seconds(on_ray, 4, trains).round - seconds(on_ray, 4).round == pytest.approx(30.0)  # idle cores do not help
    large = memory(on_ray, 4, dataclasses.replace(trains, server_gib=7.0), None, STORE)
    assert large.driver_gib > 7 > memory(on_ray, 4, CLIENT, None, STORE).driver_gib
    assert "round   about 38 s of the processor, of which the server trains 30.0 s\n" in shown(small, result)
    few = seconds(small, 1, dataclasses.replace(CLIENT, round_s=0.1))
    assert "server trains" not in shown(small, few)


def test_memory_and_disk_count_everybody(audited: Experiment) -> None:
    on_ray = dataclasses.replace(audited, engine="ray")
    concurrent = memory(on_ray, 4, CLIENT, AUDIT, STORE)
    assert concurrent.total_gib > concurrent.driver_gib + 4 * concurrent.actor_gib
    inline = memory(dataclasses.replace(on_ray, attack_process="inline"), 4, CLIENT, AUDIT, STORE)
    assert inline.driver_gib > AUDIT.peak_gib and concurrent.actor_gib > CLIENT.client_gib
    assert concurrent.driver_gib < inline.driver_gib
    assert concurrent.total_gib > concurrent.driver_gib + AUDIT.peak_gib
    assert disk_bytes(on_ray, CLIENT, AUDIT) == 1e6 + 5e4 + 2 * 1.3e6 + 2 * 3 * 1e3
    more = dataclasses.replace(on_ray, images=6)
    assert disk_bytes(more, CLIENT, AUDIT) - disk_bytes(on_ray, CLIENT, AUDIT) == 2 * 2 * 1.3e6
    assert disk_bytes(on_ray, CLIENT, None) == 1e6 + 2 * 3 * 1e3


def test_an_attack_on_membership_sends_no_probes_and_holds_all_uploads(audited: Experiment) -> None:
    game = dataclasses.replace(audited, attack=("membership",), rounds=3, audit_rounds="0,1,last", images=3)
    costs = AuditCosts(images=2, games_s=5.0, uploads=3, round_bytes=2e6, peak_gib=9.0)
    assert disk_bytes(game, CLIENT, costs) == 1e6 + 2 * 2e6 + 2 * 3 * 1e3
    large = dataclasses.replace(CLIENT, up=2.0**30)
    without = memory(game, 1, large, dataclasses.replace(costs, games_s=0.0), STORE)
    assert memory(game, 1, large, costs, STORE).driver_gib - without.driver_gib > 2 * 3 - 1


@pytest.mark.parametrize(
    ("amount", "message"),
    [(0, "0.0 s"), (0.04, "under 0.1 s"), (89, "89.0 s"), (150, "2.5 min"), (7200, "2.0 h")],
    ids=str,
)
def test_times_are_said_with_their_unit(amount: float, message: str) -> None:
    assert module._time(amount) == message


def python_that(tmp_path: Path, does: str) -> str:
    failing = tmp_path / "python"
    failing.write_text(f"#!/bin/sh\n{does}\n")
    failing.chmod(0o755)
    return str(failing)


def test_a_phase_that_refuses_is_bad_input(small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = python_that(tmp_path, "echo timed_phases: Expected more, got less. >&2\nexit 2")
    monkeypatch.setattr(sys, "executable", refusing)
    with pytest.raises(InputError, match=r"^Expected more, got less\.$"):
        module.timed(["client"], small)


def test_a_phase_that_fails_is_reported(small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = python_that(tmp_path, "echo Traceback >&2\necho ValueError: no data >&2\nexit 1")
    monkeypatch.setattr(sys, "executable", failing)
    with pytest.raises(RunError, match=r"The timing of the phase training failed: ValueError: no data$"):
        module.timed(["training", "client"], small)


def test_what_the_end_of_a_process_takes_counts(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printing = 'echo something else\necho \'{"all_gib": 0, "all_s": -2, "fixed_s": 7}\''
    monkeypatch.setattr(sys, "executable", python_that(tmp_path, printing))
    (costs,) = module.timed(["training"], small)
    assert costs["fixed_s"] == 7 and costs["exit_s"] >= 2 and costs["exit_gib"] > 0
    assert module.timed(["audit"], small) == [{"fixed_s": 7}]


def test_an_estimate_times_no_second_client_beside_an_audit_on_two_cores(
    audited: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = {phase: dataclasses.asdict(CLIENT) for phase in ("training", "client")}
    costs["audit"] = dataclasses.asdict(AUDIT) | {"untimed": 3}
    monkeypatch.setattr(module, "timed", lambda phases, *_: print(*phases) or [costs[phase] for phase in phases])
    monkeypatch.setattr(module, "_actors", lambda _: 2)
    result = estimate(plan(audited), claims_s=1.5)
    assert result.seconds.start == 4.0 + 1.5 and "; 3 jobs of attacks were not timed" in result.measured_on
    estimate(plan(dataclasses.replace(audited, attack=("none",), set=())))
    said = "estimate: the phases of the run are timed, for about ten seconds\n"
    assert capsys.readouterr() == ("training audit\ntraining client\n", said * 2)


def test_what_all_clients_receive_is_on_disk_once(audited: Experiment) -> None:
    """Six probes in each of two rounds for two that were timed; of their 1.3 MB all share 1 MB."""
    costs, more = dataclasses.replace(AUDIT, shared_bytes=1e6), dataclasses.replace(audited, images=6)
    assert disk_bytes(more, CLIENT, costs) == 1e6 + 5e4 + 2 * (1e6 + 3 * 0.3e6) + 2 * 3 * 1e3


def test_small_sizes_and_times_are_not_rounded_to_nothing(small: Experiment) -> None:
    text = shown(small, dataclasses.replace(seconds(small), round=0.02), 56_844, 137_000_000)
    assert "of under 0.1 s)" in text and "about 56.8 kB by a client" in text and "about 137.0 MB" in text


def test_lines_are_few(small: Experiment) -> None:
    assert shown(small, seconds(small), 1_040_000, 2_500_000).splitlines() == [
        "time    about 27.1 s: start 4.0 s, training 23.1 s (2 rounds of 7.8 s), audit 0.0 s",
        "memory  about 1.0 GiB: driver 1.0 GiB, clients 1 x 1.0 GiB",
        "sent    about 1.0 MB by a client in a round",
        "disk    about 2.5 MB",
        "from    a machine",
    ]


def test_a_folder_that_could_be_made_is_not_there_afterwards(tmp_path: Path) -> None:
    require_folder(tmp_path / "some" / "run")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Expected a folder that can be made for --out"):
        require_folder(tmp_path / "file" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
