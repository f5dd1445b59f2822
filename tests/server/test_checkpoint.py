"""What a killed run goes on from: bit-equal wherever the kill fell, and never from something damaged or foreign."""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from safetensors.torch import load_file

import sim
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.files import sealed
from flfw.files.sealed import Journal
from flfw.messages.wire import pack
from flfw.plans.run_plan import without_auto
from flfw.runs import results, run
from flfw.server import checkpoint
from flfw.server.checkpoint import Checkpoints, Snapshot, is_complete, locked, require_same_data, stored_experiment
from flfw.task import task
from tests.support.paths import ROOT
from tests.support.pictures import noise, save
from tests.support.resumed_runs import assert_same, cut_short, without_times
from tests.support.small_runs import tiny

pytestmark = pytest.mark.early

SIX_ROUNDS = (
    "--method fedper --net lenet --engine inproc --clients 4 --sample 2 --rounds 6 --local-epochs 1 "
    "--attack analytic --images 2 --audit-rounds 0,2,last"
)


# --- a run that is cut short --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A six-round run in a process of its own, and the seconds from its first recording to its end."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    process = subprocess.Popen([sys.executable, "sim.py", *SIX_ROUNDS.split(), "--out", str(folder)], cwd=ROOT)
    while not (folder / "observations").exists() and process.poll() is None:
        time.sleep(0.005)
    started = time.monotonic()
    assert process.wait() == 0
    return folder, time.monotonic() - started


_MOMENTS = [random.Random(seed).sample(range(1000), 2) for seed in range(5)]


@pytest.mark.nightly  # the quick one kills a run at a write, below
@pytest.mark.parametrize("moments", _MOMENTS)
def test_a_killed_run_resumes_bit_equal(uninterrupted: tuple[Path, float], tmp_path: Path, moments: list[int]) -> None:
    """Killed at a random moment between its first file and its end, whatever it was doing; two at a time."""
    whole, seconds = uninterrupted
    with ThreadPoolExecutor(2) as pool:
        at = [moment / 1000 * seconds * 0.9 for moment in moments]
        folders = list(pool.map(kill, [tmp_path / str(moment) for moment in moments], at))
    for folder in folders:
        assert sim.main(["--resume", str(folder)]) == 0
        assert_same(whole, folder)


def kill(folder: Path, after: float) -> Path:
    """Start the run in a folder and kill it some seconds after its first recording; sooner, if it was over by then."""
    process = subprocess.Popen([sys.executable, "sim.py", *SIX_ROUNDS.split(), "--out", str(folder)], cwd=ROOT)
    try:
        while not (folder / "observations").exists() and process.poll() is None:
            time.sleep(0.005)
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        code = process.wait()
    if code == -signal.SIGKILL:
        return folder
    assert code == 0
    shutil.rmtree(folder)
    return kill(folder, after / 2)


# A process that was started in the background of a shell may have been told to ignore interrupts. It waits after the
# checkpoint of round 3, so that it is there to be ended.
INTERRUPTIBLE = """
import signal, sys, time, sim
from flfw.server.checkpoint import Checkpoints
save = Checkpoints.save
Checkpoints.save = lambda self, last, rows: (save(self, last, rows), last.round == 3 and time.sleep(600))
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(sim.main(sys.argv[1:]))
"""
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F")  # 127.0.0.1 as the kernel writes it


def listening() -> set[tuple[str, str]]:
    """Addresses and ports, in hexadecimal, on which some process listens."""
    tables = [Path("/proc/net/tcp").read_text(), Path("/proc/net/tcp6").read_text()]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {(row[1].partition(":")[0], row[1].partition(":")[2]) for row in rows if row[3] == "0A"}


class Killed(BaseException):
    """The process dies here, as far as the program can tell."""


_FEW = range(0, 30, 5)  # before and after a file in turns


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [_FEW, *(pytest.param(m, marks=pytest.mark.nightly) for m in (sorted({*range(30)} - {*_FEW}), range(30, 200)))],
)
def test_a_run_killed_at_any_write_resumes_bit_equal(
    uninterrupted: tuple[Path, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moments: Iterable[int]
) -> None:
    """Before and after every file that is replaced: between a client's step and the checkpoint as well."""
    whole, replace = uninterrupted[0], Path.replace
    killed = []
    for moment in moments:
        folder, count = tmp_path / f"run-{moment}", iter(range(10_000))

        def dying(self: Path, target: Path, moment: int = moment, count: Any = count) -> Path:
            at = next(count)
            if at == moment and at % 2:
                raise Killed
            done = replace(self, target)
            if at == moment:
                raise Killed
            return done

        monkeypatch.setattr(Path, "replace", dying)
        try:
            sim.main([*SIX_ROUNDS.split(), "--out", str(folder)])
        except Killed:
            killed.append(moment)
        finally:
            monkeypatch.setattr(Path, "replace", replace)
        if moment not in killed:
            break  # the run has fewer writes than this
        assert sim.main(["--resume", str(folder)]) == 0
        assert_same(whole, folder)
        shutil.rmtree(folder)
    assert killed, "no moment of this range was before the end of the run"


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_a_run_on_ray_resumes_in_process_bit_equal(
    uninterrupted: tuple[Path, float], tmp_path: Path, by: signal.Signals
) -> None:
    """And while it runs, Ray's ports are open on the loopback interface only: whoever reaches them can run code."""
    folder, before = tmp_path / "run", listening()
    flags = SIX_ROUNDS.replace("inproc", "ray").split()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    command = [sys.executable, "-c", INTERRUPTIBLE, *flags, "--out", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        while not list((folder / "checkpoint").glob("round-00003-*")) and process.poll() is None:
            time.sleep(0.02)
        opened = listening() - before
        process.send_signal(by)
        assert process.wait(60) == {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}[by]
    finally:
        process.kill()
        process.wait()
    assert not (folder / "result.json").exists(), "the run was over before it could be killed"
    assert opened and all(address in LOOPBACK for address, _ in opened), opened
    assert sim.main(["--resume", str(folder), "--engine", "inproc"]) == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["provenance"]["resumed"][0]["after_round"] == 3
    assert result["config"]["engine"] == "inproc"
    for name in ("rounds", "final"):
        whole = json.loads((uninterrupted[0] / "result.json").read_text())
        assert without_times(result[name]) == without_times(whole[name])


@pytest.mark.slow
def test_a_complete_run_is_left_alone(uninterrupted: tuple[Path, float], capsys: pytest.CaptureFixture[str]) -> None:
    before = (uninterrupted[0] / "result.json").stat().st_mtime_ns
    for further, warning in (([], ""), (["--show-samples", "no"], "flags that were given anew change nothing of it")):
        assert sim.main(["--resume", str(uninterrupted[0]), *further]) == 0
        assert (uninterrupted[0] / "result.json").stat().st_mtime_ns == before
        printed = capsys.readouterr()
        assert "report.html" in printed.out and warning in printed.err and bool(warning) == ("warning" in printed.err)


QUIET: dict[str, Any] = {"attack": ("none",)}


@pytest.mark.slow
def test_a_finished_run_goes_on_to_the_bits_of_a_longer_one(tmp_path: Path) -> None:
    longer: dict[str, dict[str, Any]] = {
        "fedavg": {**QUIET, "ema": 0.9, "clients": 4, "sample": 2},
        "fedper": {**QUIET, "method": "fedper", "net": "lenet", "keep_state": True},
        "pfedhn": {**QUIET, "method": "pfedhn", "net": "lenet"},
        "dp_fedavg": {**QUIET, "method": "dp_fedavg", "canaries": 20, "clients": 4, "sample": 2},
        "audited": {"audit_rounds": "0,1"},
    }
    for name, fields in longer.items():
        whole = run.run(tiny(tmp_path / f"{name}-4", **{**fields, "rounds": 4}))
        short = run.run(tiny(tmp_path / f"{name}-2", **{**fields, "rounds": 2}))
        assert sim.main(["--resume", str(short), "--rounds", "4"]) == 0
        assert_same(whole, short)
    kept = run.run(tiny(tmp_path / "kept", **QUIET, rounds=2))
    cut = Path(shutil.copytree(kept, tmp_path / "cut"))
    (kept / "result.json").unlink()  # a kill fell between the two steps: it ends as it was
    assert sim.main(["--resume", str(kept)]) == 0 and stored_experiment(kept).experiment.rounds == 2
    checkpoint.add_rounds(cut, 4)  # and a kill after both: it goes on
    assert [sim.main(["--resume", str(cut), *more]) for more in ([], ["--rounds", "5"])] == [0, 0]
    assert_same(run.run(tiny(tmp_path / "again", **QUIET, rounds=5)), cut)


@pytest.mark.slow
def test_more_rounds_are_refused_where_something_depends_on_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = {**QUIET, "method": "fed_cdp"}
    depends: dict[str, dict[str, Any]] = {
        "round 2 was audited as the last one": {},
        "clients' tensors are gone, as without --expert keep_state=true": {**QUIET, "method": "fedper", "net": "lenet"},
        "the noise for --target-epsilon was chosen for 2 rounds": {**private, "target_epsilon": 8.0},
        "fed_cdp trains by the number of rounds": {**private, "set": ("bound=decay",)},
        "dp_ftrl trains by the number of rounds": {**QUIET, "method": "dp_ftrl", "set": ("bands=2",)},
        "no claim counts a second final evaluation by --metrics private": {**private, "metrics": "private"},
        "keep_recorded_rounds removed recordings": {"audit_rounds": "1", "keep_recorded_rounds": 0},
    }
    for number, (why, fields) in enumerate(depends.items()):
        folder = run.run(tiny(tmp_path / str(number), **{**fields, "rounds": 2}))
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        capsys.readouterr()
        assert sim.main(["--resume", str(folder), "--rounds", "4"]) == 2
        expected = f"sim.py: Expected a run that can go on after round 2, got {folder}: {why}"
        now = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert capsys.readouterr().err.startswith(expected) and now == before
    half = cut_short(tiny(tmp_path / "half", **QUIET, rounds=2), 1)
    damaged, early = (Path(shutil.copytree(folder, tmp_path / name)) for name in ("damaged", "early"))
    (damaged / "checkpoint" / "rounds.txt").write_text("4")
    sealed.write_checked(early / "checkpoint" / "rounds.txt", b"3")
    for refused, message in (
        (half, "it is not over, and can be resumed without --rounds; start a new run."),
        (early, "it ended early; start a new run."),
        (damaged, "it is damaged; remove or restore it."),
    ):
        assert sim.main(["--resume", str(refused), "--rounds", "4"]) == 2 and message in capsys.readouterr().err


def test_only_what_decides_no_numbers_may_change(small: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cut_short(small, 1)
    assert sim.main(["--resume", str(folder), "--lr", "0.5"]) == 2
    assert f"Expected lr=0.01 as in {folder}, got lr=0.5; start a new run for that." in capsys.readouterr().err
    assert not (folder / "result.json").exists()


def test_a_folder_that_there_is_can_be_forced_to_disk(tmp_path: Path) -> None:
    sealed.force_all(tmp_path)
    with pytest.raises(FileNotFoundError):
        sealed.force_all(tmp_path / "none")


def test_there_must_be_something_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--resume", str(tmp_path)]) == 2
    message = f"sim.py: Expected a run with a checkpoint, got {tmp_path} without; start it anew.\n"
    assert capsys.readouterr().err == message
    for left, message in (("result.json", "an audit; name its run, or"), ("rounds.csv", "which was purged;")):
        (tmp_path / left).write_text("{}")
        assert sim.main(["--from", str(tmp_path), "--attack", "ig"]) == 2
        assert capsys.readouterr().err.endswith(f"a checkpoint, got {tmp_path}, {message} start it anew.\n")
    assert sim.main(["--resume", str(tmp_path / "none")]) == 2
    message = f"sim.py: Expected a run's folder, got {tmp_path / 'none'}, which does not exist.\n"
    assert capsys.readouterr().err == message


@pytest.mark.slow
def test_other_code_is_noted(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cut_short(small, 1)
    with monkeypatch.context() as patch:
        for module in ("flfw.server.checkpoint", "flfw.engines.apps", "flfw.engines.federation", "flfw.runs.results"):
            patch.setattr(f"{module}.code_hash", lambda: "0" * 16)
        run.resume(small)
    result = json.loads((folder / "result.json").read_text())
    assert result["provenance"]["resumed"] == [{"after_round": 1, "code": "0" * 16, "engine": "inproc"}]
    assert any("The code changed while this run lasted" in note for note in result["notes"])


MOMENTUM = """
from typing import final
from flfw.nets.training.optimisers import LocalTraining
from flfw.server.aggregation import weighted_mean
from flfw.server.strategy import FederatedStrategy


@final
class Momentum(FederatedStrategy):
    Settings = LocalTraining

    def aggregate(self, updates):
        mean = weighted_mean(updates)
        old = self.state or {name: 0 * value for name, value in mean.items()}
        self.state = {name: 0.9 * old[name] + 0.1 * value for name, value in mean.items()}
        return dict(self.state)
"""


@pytest.mark.slow
def test_what_the_server_keeps_for_itself_is_resumed(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method with state of its own: a server that forgot it would broadcast another model from round 2 on."""
    (tmp_path / "kept_momentum.py").write_text(MOMENTUM)
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = dataclasses.replace(small, method="kept_momentum:Momentum", net="lenet", rounds=3)
    run.run(dataclasses.replace(experiment, out=tmp_path / "whole"))
    cut_short(experiment, 2)
    run.resume(experiment)
    models = [load_file(next((tmp_path / name / "checkpoint").glob("round-00003-*"))) for name in ("whole", "run")]
    assert {name.partition("/")[0] for name in models[0]} == {"model", "server", "versions"}
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.slow
def test_lost_client_state_is_an_error_that_names_it(small: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cut_short(dataclasses.replace(small, method="fedper"), 1)
    shutil.rmtree(next((folder / "state").glob("*/*/client-0001")))
    assert sim.main(["--resume", str(folder)]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("sim.py: client 1 failed in round 2: Expected private state of round 1 in ")


# --- what a checkpoint holds --------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, without_auto(Experiment()))


def some(server_round: int) -> Snapshot:
    return Snapshot(
        round=server_round,
        arrays=pack({"z.weight": torch.arange(6.0).reshape(2, 3) / 7, "a.count": torch.tensor(5)}),
        state={"momentum": torch.tensor([0.1], dtype=torch.float64)},
        state_versions={3: 2, 11: server_round},
        recordings={"bytes": 7, "sha256": "f" * 64},
    )


def same_arrays(one: ArrayRecord, two: ArrayRecord) -> bool:
    return [(n, a.dtype, a.shape, a.data) for n, a in one.items()] == [
        (n, a.dtype, a.shape, a.data) for n, a in two.items()
    ]


def test_what_was_saved_is_loaded(kept: Checkpoints, tmp_path: Path) -> None:
    kept.save(some(0), {})
    kept.save(some(1), {"rounds": [{"loss": 1 / 3}], "clients": [{"client": 3}]})
    again = Checkpoints(tmp_path, without_auto(Experiment()))
    assert again.id == kept.id and again.last is not None
    assert again.history == [{}, {"rounds": [{"loss": 1 / 3}], "clients": [{"client": 3}]}]
    assert same_arrays(again.last.arrays, some(1).arrays)
    assert (again.last.round, again.last.state_versions) == (1, {3: 2, 11: 1})
    assert again.last.recordings == some(1).recordings
    assert torch.equal(again.last.state["momentum"], torch.tensor([0.1], dtype=torch.float64))


def test_only_the_last_round_is_kept_and_for_its_owner_alone(kept: Checkpoints, tmp_path: Path) -> None:
    for server_round in range(3):
        kept.save(some(server_round), {})
    assert [name for name, _ in sealed.sealed(tmp_path / "checkpoint")] == ["experiment", "round-00002"]
    assert (tmp_path / "checkpoint").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for _, path in sealed.sealed(tmp_path / "checkpoint"))


def test_of_two_rounds_that_a_kill_left_the_later_one_counts(kept: Checkpoints, tmp_path: Path) -> None:
    kept.save(some(1), {})
    (_, first), *_ = sealed.sealed(tmp_path / "checkpoint", "round-*")
    copy = first.read_bytes()
    kept.save(some(2), {})
    first.write_bytes(copy)
    last = Checkpoints(tmp_path, without_auto(Experiment())).last
    assert last is not None and last.round == 2


def test_a_journal_forgets_what_came_after_its_mark(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    journal.append({"round": 1})
    mark = journal.mark
    journal.append({"round": 2})
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"round": 3, "los')
    again = Journal(tmp_path / "rows.jsonl", mark)
    assert again.rows == [{"round": 1}] and again.mark == mark
    again.append({"round": 7})
    assert (tmp_path / "rows.jsonl").read_text() == '{"round": 1}\n{"round": 7}\n'


# --- what is not gone on from -------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_experiment_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Checkpoints(tmp_path / name, without_auto(Experiment())).save(some(1), {})
    (_, foreign), *_ = sealed.sealed(tmp_path / "two" / "checkpoint", "round-*")
    (_, chosen), *_ = sealed.sealed(tmp_path / "one" / "checkpoint", "round-*")
    chosen.unlink()
    shutil.copy(foreign, chosen.parent)
    with pytest.raises(InputError, match="of another experiment; remove it"):
        Checkpoints(tmp_path / "one", without_auto(Experiment()))


def test_a_lost_round_is_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, without_auto(Experiment()))
    for server_round in range(2):
        kept.save(some(server_round), {})
    (_, path), *_ = sealed.sealed(tmp_path / "checkpoint", "round-*")
    path.unlink()
    with pytest.raises(InputError, match="Expected the last round's checkpoint in "):
        Checkpoints(tmp_path, without_auto(Experiment()))
    assert (tmp_path / "checkpoint" / "history.jsonl").stat().st_size, "what is left must not be cut off"


@pytest.mark.slow
def test_a_run_at_work_is_nobody_elses(
    small: Experiment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cut_short(small, 1)
    monkeypatch.setattr(checkpoint, "_ENDING_S", 0.3)
    for lock in (".run", ".server"):
        capsys.readouterr()
        with locked(folder / "checkpoint" / lock):
            assert sim.main(["--resume", str(folder)]) == 2
        message = f"sim.py: Expected {folder} to be nobody else's, got a run at work in it.\n"
        assert capsys.readouterr().err == message
    assert sim.main(["--resume", str(folder)]) == 0


@pytest.mark.slow
def test_a_server_that_is_about_to_end_is_waited_for(small: Experiment) -> None:
    folder = cut_short(small, 1)
    holding = ExitStack()
    holding.enter_context(locked(folder / "checkpoint" / ".server"))
    timer = threading.Timer(2, holding.close)
    timer.start()
    assert sim.main(["--resume", str(folder)]) == 0
    timer.join()


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.run(tiny(tmp_path_factory.mktemp("complete") / "run", attack=("none",)))


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--out elsewhere", "Expected a run to be resumed where it lies, "),
        (
            "--estimate",
            "Expected one of --resume, --estimate, --show-split, --table or --cell, --from, --purge, --matrix or "
            "--seeds, --compare, --figures, --verify, --pdf FOLDER, got --resume and --estimate; ",
        ),
        ("--lr 0.5", "Expected lr=0.01 as in "),
    ],
)
def test_what_makes_no_sense_beside_resume_is_refused(
    complete: Path, capsys: pytest.CaptureFixture[str], flags: str, line: str
) -> None:
    """Also for a run that is complete."""
    assert sim.main(["--resume", str(complete), *flags.split()]) == 2
    assert capsys.readouterr().err.startswith(f"sim.py: {line}")


@pytest.mark.slow
def test_an_audit_that_was_stopped_can_be_repeated(small: Experiment, tmp_path: Path) -> None:
    experiment = dataclasses.replace(small, net="lenet", attack=("analytic",), images=1, audit_rounds="0", rounds=1)
    assert experiment.out is not None
    manifest, moved = experiment.out / "observations" / "manifest.jsonl", tmp_path / "manifest"
    with pytest.MonkeyPatch.context() as patch:
        finish = results.finish

        def without_recordings(*given: Any) -> None:
            shutil.move(manifest, moved)
            finish(*given)

        patch.setattr("flfw.runs.results.finish", without_recordings)
        with pytest.raises(RunError, match="The audit was stopped: Expected recordings in"):
            run.run(experiment)
    assert json.loads((experiment.out / "result.json").read_text())["audit"] == []
    shutil.move(moved, manifest)
    run.resume(experiment)
    assert len(json.loads((experiment.out / "result.json").read_text())["audit"]) == 1


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut off, cut out, put in or swapped for other ones; never the same ones."""
    at, length = rng.randrange(len(data)), rng.randrange(1, 9)
    result = rng.choice(
        [
            data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :],
            data[:at],
            data[:at] + data[at + length :],
            data[:at] + rng.randbytes(length) + data[at:],
            data[:at] + rng.randbytes(length) + data[at + length :],
        ]
    )
    return result if result != data else data + b" "


@pytest.mark.nightly
def test_of_a_thousand_mutations_none_is_gone_on_from_and_none_crashes(tmp_path: Path) -> None:
    """Any file of the checkpoint: the run's experiment, the last round, the history before it."""
    rng, experiment = random.Random(0), without_auto(Experiment())
    kept = Checkpoints(tmp_path, experiment)
    kept.save(some(1), {"round": {"loss": 0.5}, "clients": []})
    files = [path for _, path in sealed.sealed(tmp_path / "checkpoint")] + [tmp_path / "checkpoint" / "history.jsonl"]
    assert len(files) == 3
    for i in range(1000):
        path = files[i % 3]
        whole = path.read_bytes()
        changed = mutated(whole, rng)
        if path.name == "history.jsonl" and changed.startswith(whole):
            continue  # what a kill left behind the mark is cut off: not damage
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"(damaged|of this version)"):
            Checkpoints(tmp_path, experiment)
        path.write_bytes(whole)
    assert Checkpoints(tmp_path, experiment).last is not None


@pytest.mark.slow
def test_a_mutation_under_a_matching_name_does_not_crash_either(tmp_path: Path) -> None:
    """Somebody who changes a file and names it by its new SHA-256: what cannot be read is refused in one line."""
    rng, experiment = random.Random(1), without_auto(Experiment())
    Checkpoints(tmp_path, experiment).save(some(1), {})
    refused = 0
    for i in range(600):
        stem, path = sealed.sealed(tmp_path / "checkpoint")[i % 2]
        whole = path.read_bytes()
        path.unlink()
        forged = sealed.seal(path.parent, stem, path.suffix, mutated(whole, rng))
        try:
            Checkpoints(tmp_path, experiment)
        except InputError as error:
            refused += 1
            assert "\n" not in str(error)
        forged.unlink()
        path.write_bytes(whole)
    assert refused > 400


@pytest.mark.slow
def test_a_damaged_checkpoint_ends_the_command_in_one_line(
    small: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cut_short(small, 1)
    (_, path), *_ = sealed.sealed(folder / "checkpoint", "round-*")
    path.write_bytes(path.read_bytes()[:-100])
    capsys.readouterr()
    assert sim.main(["--resume", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sim.py: Expected SHA-256 ") and line.endswith("it is damaged; restore it.")


@pytest.mark.slow
def test_a_moved_run_is_resumed_where_it_lies_now(small: Experiment, tmp_path: Path) -> None:
    folder = cut_short(dataclasses.replace(small, method="fedper"), 1)
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    assert run.resume(run.stored(moved)) == moved
    assert is_complete(moved) and stored_experiment(moved).experiment.out == folder


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    Checkpoints(tmp_path, without_auto(Experiment()))
    require_same_data(tmp_path, "abc")
    require_same_data(tmp_path, "abc")
    with pytest.raises(
        InputError, match=r"the data that .* began with \(digest abc\), got others \(abd\); restore them"
    ):
        require_same_data(tmp_path, "abd")


@pytest.mark.slow
def test_a_changed_folder_of_images_stops_a_resumed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(6):
        for name in ("a", "b"):
            save(tmp_path / "own" / name / f"{number}.png", noise(3, 8, 8 + number))
    flags = (
        f"--dataset folder:{tmp_path / 'own'} --image-size 8 --net linear --method fedavg --engine inproc --clients 2"
    )
    assert sim.main(f"{flags} --rounds 1 --attack none --out {tmp_path / 'run'}".split()) == 0
    assert sim.main(["--resume", str(tmp_path / "run")]) == 0
    save(tmp_path / "own" / "a" / "0.png", noise(3, 9, 9))
    task._dataset.cache_clear()  # as in the new process that a user resumes in
    assert sim.main(["--resume", str(tmp_path / "run")]) == 2
    assert "began with (digest" in capsys.readouterr().err.splitlines()[-1]
