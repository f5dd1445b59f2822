"""What a run is said to cost, against running it, and that finding out leaves nothing behind."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from benchmarks.process_family import descendants
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.files.folders import require_folder
from flfw.nets import Tensors
from flfw.plans.run_plan import plan
from flfw.runs import costs, measuring, membership_costs, timing
from flfw.runs import estimate as module
from flfw.runs.estimate import Estimate, estimate, lines
from flfw.runs.run import check
from flfw.server.aggregation import Update
from flfw.strategies.fedcg import FedCG
from tests.support.clock import Clock
from tests.support.paths import ROOT

FACTOR = 2  # between what is estimated and what is measured, either way
STORE = 100_000_000  # bytes of Ray's object store
CLIENT = {
    "ready_s": 4.0,
    "base_gib": 0.5,
    "peak_gib": 1.0,
    "fixed_s": 0.5,
    "epoch_s": 2.0,
    "largest": 1.0,
    "reply_s": 0.1,
    "server_s": 0.0,
    "server_gib": 0.0,
    "write_s": 0.0,
    "up": 1e6,
    "down": 1e6,
    "up_file": 4e5,
    "down_file": 9e5,
    "private": 1e3,
    "run_s": 0.0,
    "slower_alone": 1.0,
    "run_gib": 0.0,
    "exit_s": 0.0,
    "exit_gib": 0.0,
}
AUDIT = {"imports_s": 3.0, "easy_s": 10.0, "probes_s": 20.0, "peak_gib": 1.5}
AUDIT |= {"easy_file": 5e4, "easy_probe_file": 4e3, "probe_file": 2e5}
AUDIT |= {"uploads_s": 0.0, "beside": 0, "game_s": 0.0, "probed": 1, "uploads": 0}


@pytest.fixture
def audited(small: Experiment) -> Experiment:
    return dataclasses.replace(small, attack=("ig",), images=2, set=("ig.iterations=10",), audit_rounds="0,last")


def seconds(experiment: Experiment, actors: int = 1) -> module.Seconds:
    return module._seconds(experiment, actors, CLIENT, AUDIT if experiment.attacks else {})


def processor_s(*flags: str) -> float:
    """Run sim.py; return the processor's seconds of all its processes, but for the last fifth of a second of each."""
    process, used = subprocess.Popen([sys.executable, "sim.py", *flags], cwd=ROOT), dict[int, float]()
    while process.poll() is None:
        for pid in (process.pid, *descendants(process.pid)):
            with suppress(OSError):  # it has ended meanwhile
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                used[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        time.sleep(0.2)
    assert process.returncode == 0
    return sum(used.values())


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["inproc", "ray"])
def test_within_a_factor_of_two_of_what_running_it_takes_and_leaves_nothing_behind(
    audited: Experiment, tmp_path: Path, engine: str
) -> None:
    experiment = dataclasses.replace(audited, rounds=3, local_epochs=3, engine=engine)
    run_plan, _, _ = check(experiment)
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
    took, folder = processor_s(*flags.split()), checked.out
    assert folder is not None
    assert took / FACTOR < result.seconds.whole_processor < took * FACTOR
    size = sum(path.stat().st_size for path in (folder / "observations").rglob("*") if path.is_file())
    assert size / 2 < result.disk_bytes < 2 * size
    assert 0.3 < result.memory.actor_gib < 3 and result.memory.driver_gib > 0.5
    assert (result.memory.total_gib == result.memory.driver_gib) == (engine == "inproc")
    assert all(unit in lines(result) for unit in (" s", " GiB", "B by a client", "3 rounds", "load"))


@pytest.mark.nightly
@pytest.mark.parametrize("defence", ["none", "prune"])  # of prune an informed attacker plays a second game
def test_a_membership_audit_is_within_a_factor_of_two(small: Experiment, defence: str) -> None:
    flags = "--method fedavg --clients 3 --rounds 3 --engine inproc --attack membership --audit-rounds 1,2,3"
    flags += f" --defence {defence}"
    game = {"attack": ("membership",), "membership_pairs": "auto", "audit_rounds": "1,2,3", "defence": defence}
    experiment = dataclasses.replace(small, rounds=3, **game)
    checked = check(experiment)[0].experiment
    result, folder = estimate(plan(checked)), checked.out
    assert folder is not None
    took = processor_s(*f"{flags} --local-epochs 1 --dataset {checked.dataset} --out {folder}".split())
    assert took / FACTOR < result.seconds.whole_processor < took * FACTOR
    size = sum(path.stat().st_size for path in (folder / "observations").rglob("*") if path.is_file())
    assert size / 2 < result.disk_bytes < 2 * size


@pytest.mark.parametrize(("defence", "again"), [("none", ()), ("prune", (0, 1))])
def test_who_is_told_of_a_defence_plays_against_its_clients_once_more(
    small: Experiment, defence: str, again: tuple[int, ...]
) -> None:
    game = dataclasses.replace(small, attack=("membership",), membership_pairs="auto", defence=defence, images=2)
    assert membership_costs._informed_of(plan(game), "membership", steps=3) == again


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
        asked, nobody = (
            {**changes, "final_eval_clients": each} for each in (changes.get("final_eval_clients", "all"), "none")
        )
        spent = [seconds(dataclasses.replace(small, local_epochs=1, **each)).training for each in (asked, nobody)]  # type: ignore[arg-type]
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


def test_attacks_are_counted_for_each_audited_round(audited: Experiment) -> None:
    once = seconds(dataclasses.replace(audited, audit_rounds="0"))
    assert seconds(audited).audit - once.audit == pytest.approx(20.0)
    assert seconds(dataclasses.replace(audited, attack=("none",))).audit == 0
    both = module._seconds(audited, 1, CLIENT, {**AUDIT, "uploads_s": 7.0})
    assert both.audit - seconds(audited).audit == pytest.approx(2 * 7.0)


def test_a_server_that_trains_is_waited_for_and_said(small: Experiment) -> None:
    two_rounds, trains = seconds(small), {**CLIENT, "server_s": 30.0}
    result = module._seconds(small, 1, trains, {})
    assert result.round - two_rounds.round == pytest.approx(30.0)
    assert result.total - two_rounds.total == pytest.approx(2 * 30.0)  # not in the last evaluation
    assert result.processor == pytest.approx(3 * (0.5 + 2.0 + 0.1) + 30.0)
    on_ray = dataclasses.replace(small, engine="ray")
    waiting = module._seconds(on_ray, 4, trains, {}).round - module._seconds(on_ray, 4, CLIENT, {}).round
    assert waiting == pytest.approx(30.0)  # cores that idle do not help
    large = module._memory(on_ray, 4, {**trains, "server_gib": 7.0}, {}, STORE)
    assert large.driver_gib > 7 > module._memory(on_ray, 4, CLIENT, {}, STORE).driver_gib
    message = lines(Estimate(small, result, module._memory(small, 1, trains, {}, STORE), 1, 1, "a machine"))
    assert "round   about 38 s of the processor, of which the server trains 30.0 s\n" in message
    few = module._seconds(small, 1, {**CLIENT, "server_s": 0.1}, {})
    assert "server trains" not in lines(
        Estimate(small, few, module._memory(small, 1, CLIENT, {}, STORE), 1, 1, "a machine")
    )


def test_iterations_are_extrapolated_on_a_line() -> None:
    asked: list[int] = []

    def passing(iterations: int) -> float:
        asked.append(iterations)
        return 0.5 + 0.1 * iterations

    assert timing.at_length(passing, 2000) == pytest.approx(200.5)
    assert max(asked) <= 64 and timing.at_length(passing, 1) == pytest.approx(0.6)


@pytest.mark.slow
def test_what_a_server_trains_is_measured_for_all_uploads_of_a_round(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "ENOUGH_S", 0.06)
    clock, trained, longest = Clock.read_by(monkeypatch, timing, costs), FedCG.trained, 0

    def training(self: FedCG, uploads: Sequence[Update], mean: Tensors) -> Tensors:
        """Train, and let a tenth of a second pass, and a millisecond for each upload in each iteration."""
        nonlocal longest
        longest = max(longest, self.settings.iterations)
        clock.pass_by(0.1 + 0.001 * self.settings.iterations * len(uploads))
        return trained(self, uploads, mean)

    monkeypatch.setattr(FedCG, "trained", training)
    for clients, iterations in [(2, 20), (2, 2000), (9, 2000)]:
        changes = {"method": "fedcg", "net": "lenet5", "clients": clients, "set": (f"iterations={iterations}",)}
        result: costs.Costs = {}
        costs.server_costs(plan(dataclasses.replace(small, **changes)), tmp_path, result)
        assert result["server_s"] == pytest.approx(0.1 + 0.001 * iterations * clients)
    assert longest <= 16


@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_a_client_that_answers_in_its_turns_alone_is_measured_in_one(
    small: Experiment, tmp_path: Path, rounds: int
) -> None:
    changes = {"method": "dp_ftrl", "net": "mlp", "clients": 6, "rounds": rounds, "set": ("bands=4",)}
    result: costs.Costs = {}
    costs.client_costs(plan(dataclasses.replace(small, **changes)), tmp_path, result)
    assert result["up"] > 0


def test_memory_and_disk_count_everybody(audited: Experiment) -> None:
    on_ray = dataclasses.replace(audited, engine="ray")
    memory = module._memory(on_ray, 4, CLIENT, AUDIT, STORE)
    assert memory.total_gib > memory.driver_gib + 4 * memory.actor_gib
    inline = module._memory(dataclasses.replace(on_ray, attack_process="inline"), 4, CLIENT, AUDIT, STORE)
    assert inline.driver_gib > AUDIT["peak_gib"] and memory.actor_gib > CLIENT["peak_gib"]
    assert memory.driver_gib < inline.driver_gib and memory.total_gib > memory.driver_gib + AUDIT["peak_gib"]
    rounds, images = 2, 2
    recorded = rounds * (9e5 + images * 2e5) + 5e4 + images * 4e3
    assert module._disk(on_ray, 4, CLIENT, AUDIT) == 1e6 + recorded + 2 * 3 * 1e3
    assert module._disk(on_ray, 4, CLIENT, {}) == 1e6 + 2 * 3 * 1e3


def test_the_size_of_recorded_files_is_that_of_their_compression(small: Experiment) -> None:
    rank_one = {"weight": torch.outer(torch.arange(1.0, 101.0), torch.linspace(-1.0, 1.0, 100))}  # one example's
    sizes = {c: costs.file_bytes(dataclasses.replace(small, compression=c), rank_one) for c in ("none", "predictive")}
    assert 40_000 < sizes["none"] < 40_500 and sizes["predictive"] < sizes["none"] / 4


def test_an_attack_on_membership_sends_no_probes_and_holds_all_uploads(audited: Experiment) -> None:
    game = dataclasses.replace(audited, attack=("membership",), rounds=3, audit_rounds="1,last")
    costs = {**AUDIT, "probed": 0, "uploads": 3, "game_s": 5.0, "easy_s": 0.0, "probes_s": 0.0}
    assert module._disk(game, 1, CLIENT, costs) == 1e6 + 2 * (9e5 + 3 * 4e5) + 2 * 3 * 1e3
    both = module._seconds(game, 1, CLIENT, costs)
    assert both.audit == pytest.approx(3.0 + 5.0)
    probed = module._seconds(game, 1, CLIENT, {**costs, "probed": 1})
    assert probed.training - both.training == pytest.approx(2 * 2 * 0.5)  # two probes in each of two rounds
    without = module._memory(game, 1, CLIENT, {**costs, "game_s": 0.0}, STORE)
    with_game = module._memory(game, 1, {**CLIENT, "up": 2.0**30}, costs, STORE)
    assert with_game.driver_gib - without.driver_gib > 2 * 3


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


def test_a_measurement_that_refuses_is_bad_input(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = python_that(tmp_path, "echo measuring: Expected more, got less. >&2\nexit 2")
    monkeypatch.setattr(sys, "executable", refusing)
    with pytest.raises(InputError, match=r"^Expected more, got less\.$"):
        measuring.measured("client", small, 1, time.monotonic())


def test_the_measurements_are_foretold_from_the_own_imports_the_attacks_and_the_kinds_of_probe(
    small: Experiment, audited: Experiment
) -> None:
    alone = measuring.measuring_s(plan(small), 1, 4.0)
    assert alone == 1 * 4.0 + 2 * timing.ENOUGH_S
    one = measuring.measuring_s(plan(audited), 2, 4.0)  # its easy rung and its probes, each attacked twice
    assert one == 3 * 4.0 + 2 * timing.ENOUGH_S + 2 * 2 * 1.0
    more = plan(dataclasses.replace(audited, attack=("ig", "dlg"), set=(), curve=("batch=1,2",)))
    assert measuring.measuring_s(more, 2, 4.0) == one + (2 * 3 - 2) * 2 * 1.0


@pytest.mark.slow
def test_a_process_knows_how_old_it_is() -> None:
    code = (
        "import time; time.sleep(1); from flfw.runs.timing import since_start_s as s; print(s(), time.process_time())"
    )
    began = time.monotonic()
    age, used_s = map(float, subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split())
    assert 1 + used_s - 0.1 < age < time.monotonic() - began + 0.1


@pytest.mark.parametrize(
    ("more_s", "notice"), [(3, ""), (41, "estimate: the measurement of the audit takes about 41 s")]
)
def test_an_estimate_that_takes_long_says_so(
    small: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more_s: int,
    notice: str,
) -> None:
    announcing = python_that(
        tmp_path,
        f'echo \'{{"more_s": {more_s}}}\'\necho \'{{"more_s": {more_s}}}\'\necho \'{{"all_gib": 0, "all_s": 0}}\'',
    )
    monkeypatch.setattr(sys, "executable", announcing)
    assert measuring.measured("audit", small, 1, time.monotonic())[0].keys() >= {"exit_s", "exit_gib"}
    heard = capsys.readouterr().err
    assert heard.startswith(notice) and heard.count("\n") == bool(notice)


def test_an_estimate_that_takes_long_announces_nothing_shorter_than_a_second(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = 'echo \'{"more_s": 0.4}\'\necho \'{"all_gib": 0, "all_s": 0}\''
    monkeypatch.setattr(sys, "executable", python_that(tmp_path, ending))
    measuring.measured("audit", small, 1, time.monotonic() - 60)
    assert capsys.readouterr().err == ""


def test_a_measurement_that_fails_is_reported(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "executable", python_that(tmp_path, "echo Traceback >&2\necho ValueError: no data >&2\nexit 1")
    )
    with pytest.raises(RunError, match=r"The measurement of the client failed: ValueError: no data$"):
        measuring.measured("client", small, 2, time.monotonic())


def test_small_sizes_and_times_are_not_rounded_to_nothing(small: Experiment) -> None:
    few = dataclasses.replace(seconds(small), round=0.02)
    result = Estimate(small, few, module._memory(small, 1, CLIENT, {}, STORE), 56_844, 137_000_000, "a machine")
    shown = lines(result)
    assert "of under 0.1 s)" in shown and "about 56.8 kB by a client" in shown and "about 137 MB" in shown


def test_lines_are_few(small: Experiment) -> None:
    result = Estimate(
        small, seconds(small), module._memory(small, 1, CLIENT, {}, STORE), 1_040_000, 2_500_000, "a machine"
    )
    assert lines(result).splitlines() == [
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
