"""Leftovers of ended runs: what goes, what stays, and that a run which can be resumed keeps its private tensors."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.supercore.state.schema import corestate_models, linkstate_models, objectstore_models
from sqlalchemy import create_engine

from flfw.deploy import leftovers
from flfw.deploy.__main__ import main
from flfw.engines.layout import FederationLayout
from flfw.experiment import Experiment
from flfw.server.checkpoint import Checkpoints, stored_experiment
from tests.support.paths import ROOT
from tests.support.sites_at_work import free_ports

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

DAY = 86400
ARRAY = b"what a client sent " * 1000


def tree(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def purge(folder: Path, capsys: pytest.CaptureFixture[str], *text: str) -> list[str]:
    """The lines that a removal prints."""
    assert main(["down", str(folder), "--purge", *text]) == 0
    return capsys.readouterr().out.splitlines()


def begun(out: Path, experiment: Experiment, *, over: bool) -> str:
    """Make the folder of a run; return the id under which sites keep its tensors."""
    experiment = replace(experiment, out=out)
    Checkpoints(out, experiment)
    if over:
        (out / "result.json").write_text("{}")
    return stored_experiment(out).id


def keep(folder: Path, name: str, days: float = 0.0) -> Path:
    path = folder / name / "client-0000" / "round-00001.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"private")
    aged(path, days)
    return folder / name


def aged(path: Path, days: float) -> None:
    when = time.time() - days * DAY
    os.utime(path, (when, when))


def filled(path: Path, outs: dict[int, tuple[Path, float]]) -> None:
    """Make a database with Flower's own tables; for each run its folder, and how many days ago it ended."""
    engine = create_engine(f"sqlite:///{path}")
    for models in (corestate_models, linkstate_models, objectstore_models):
        bases = (one for one in vars(models).values() if hasattr(one, "metadata"))
        next(bases).metadata.create_all(engine)
    engine.dispose()
    with closing(sqlite3.connect(path)) as one:
        one.execute("PRAGMA journal_mode=WAL")
        one.execute("INSERT INTO node (node_id, public_key, status) VALUES (7, ?, 'registered')", (b"a site's key",))
        for run, (out, days) in outs.items():
            when = time.strftime("%Y-%m-%d %H:%M:%S+00:00", time.gmtime(time.time() - days * DAY))
            config = f'{{"out": "{out}"}}'
            one.execute(
                "INSERT INTO run (run_id, override_config, primary_task_id) VALUES (?, ?, ?)", (run, config, -run)
            )
            values = (-run, "flwr-serverapp", run, when, when)
            one.execute(
                "INSERT INTO task (task_id, type, run_id, pending_at, finished_at) VALUES (?, ?, ?, ?, ?)", values
            )
            one.execute("INSERT INTO objects VALUES (?, ?, 1, 1)", (f"array {run}", ARRAY + bytes([run])))
            one.execute("INSERT INTO run_objects VALUES (?, ?)", (run, f"array {run}"))
            one.execute(
                "INSERT INTO message_res (message_id, run_id, content) VALUES (?, ?, ?)", (f"m{run}", run, ARRAY)
            )
            one.execute("INSERT INTO task_logs VALUES (0.0, ?, 'accuracy of a client')", (-run,))
        one.commit()


def insert(one: sqlite3.Connection, table: str, row: dict[str, object]) -> None:
    places = ", ".join("?" * len(row))
    one.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", tuple(row.values()))


def rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as one:
        return one.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "fed"
    assert main(["init", str(folder), "--clients", "2", "--methods", "fed_cdp", "--epsilon", "2"]) == 0
    return folder


@pytest.fixture
def fed(made: Path, tmp_path: Path, small: Experiment) -> Path:
    """A federation after three runs, of which one is over; of a fourth nobody knows here."""
    folder = tmp_path / "fed"
    shutil.copytree(made, folder)
    over = begun(tmp_path / "over", small, over=True)
    cut = begun(tmp_path / "cut", small, over=False)
    kept = begun(tmp_path / "kept", replace(small, keep_state=True), over=True)
    outs = {1: (tmp_path / "over", 10.0), 2: (tmp_path / "cut", 1.0), 3: (tmp_path / "kept", 0.0)}
    filled(folder / "superlink" / "superlink.db", outs)
    for site in ("site-0", "site-1"):
        for name in (over, cut, kept, "0123abcd"):
            keep(folder / site / "state", name, days=10)
        keep(folder / site / "truth", over, days=10)
        (folder / site / "home" / "apps" / "an-app").mkdir(parents=True)
        (folder / site / "home" / "apps" / "an-app" / "apps.py").write_text("code")
        (folder / site / "ledger").mkdir()
        (folder / site / "ledger" / "messages.jsonl").write_text("{}")
        (folder / site / "data" / "rows.csv").write_text("a,b")
        (folder / site / "supernode.log").write_text("said")
    return folder


def ids(folder: Path, tmp_path: Path) -> dict[str, str]:
    return {name: stored_experiment(tmp_path / name).id for name in ("over", "cut", "kept")} | {"unknown": "0123abcd"}


def left(folder: Path, tmp_path: Path, place: str = "state") -> set[str]:
    names = ids(folder, tmp_path)
    there = [{path.name for path in (folder / site / place).iterdir()} for site in ("site-0", "site-1")]
    assert there[0] == there[1]
    return {name for name, one in names.items() if one in there[0]}


@pytest.mark.slow
def test_private_tensors_go_where_the_run_is_over_alone(
    fed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(fed)
    lines = purge(fed, capsys)
    assert left(fed, tmp_path) == {"cut", "kept", "unknown"} and left(fed, tmp_path, "truth") == {"over"}
    names = ids(fed, tmp_path)
    assert f"goes   site-1/state/{names['over']}: 7 bytes, private tensors: {tmp_path}/over is over" in lines
    assert f"stays  site-1/state/{names['cut']}: 7 bytes, private tensors: {tmp_path}/cut can be resumed" in lines
    assert any(
        line.startswith(f"stays  site-0/state/{names['kept']}") and "--expert keep_state=true" in line for line in lines
    )
    assert any(line.startswith("stays  site-0/state/0123abcd") and "--also unknown" in line for line in lines)
    assert lines[-1].startswith("freed ") and lines[0].startswith("ended 0 processes")
    after = tree(fed)
    gone = {path for path in before if path not in after}
    assert {path.split("/")[1] for path in gone if path.startswith("site-")} == {"state", "home"}
    assert all(before[path] == after[path] for path in after if not path.startswith("superlink/superlink.db"))
    kept = ("node-key", "policy.toml", "ledger/messages.jsonl", "data/rows.csv", "supernode.log")
    assert all(f"site-1/{name}" in after for name in kept)
    assert purge(fed, capsys)[-1].startswith("freed ")  # again, with nothing left to remove


def test_a_clean_database_is_not_said_to_go(fed: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert any(line.startswith("goes   superlink/superlink.db: ") for line in purge(fed, capsys, "--dry-run"))
    purge(fed, capsys)
    again = purge(fed, capsys)
    assert not any(line.startswith("goes ") for line in again) and again[-1].startswith("freed 0 ")
    path = made / "superlink" / "superlink.db"
    filled(path, {})
    assert purge(made, capsys)[1] == "no run left anything"
    with closing(sqlite3.connect(path)) as one:  # as of a run that was killed before its row was written
        insert(one, "objects", {"object_id": "lost", "content": ARRAY, "is_available": 1, "ref_count": 1})
        one.commit()
    assert "goes   superlink/superlink.db" in purge(made, capsys)[1] and rows(path, "objects") == 0
    path.unlink()


def test_more_goes_where_it_is_asked_for(fed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    purge(fed, capsys, "--also", "truth", "logs", "unknown")
    assert left(fed, tmp_path) == {"cut", "kept"} and left(fed, tmp_path, "truth") == set()
    assert not (fed / "site-0" / "supernode.log").exists()


def test_a_run_whose_folder_was_moved_keeps_its_tensors(
    fed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = ids(fed, tmp_path)["over"]
    (tmp_path / "over").rename(tmp_path / "elsewhere")
    lines = purge(fed, capsys)
    assert (fed / "site-0" / "state" / over).exists()
    assert any(line.startswith(f"stays  site-0/state/{over}") and "unknown here" in line for line in lines)


def test_the_database_keeps_keys_and_dates_and_no_byte_of_an_array(
    fed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fed / "superlink" / "superlink.db"
    before = leftovers.size(path)
    purge(fed, capsys)
    assert leftovers.size(path) < before - 3 * len(ARRAY)
    assert [rows(path, table) for table in ("node", "run", "task")] == [1, 3, 3]
    assert [rows(path, table) for table in ("objects", "run_objects", "message_res", "task_logs")] == [0] * 4
    assert b"what a client sent" not in b"".join(file.read_bytes() for file in path.parent.glob("superlink.db*"))


def test_by_age_the_young_stays(fed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, young = fed / "superlink" / "superlink.db", ids(fed, tmp_path)["over"]
    aged(next((fed / "site-0" / "state" / young).rglob("*.safetensors")), 2)
    lines = purge(fed, capsys, "--older-than", "5")
    assert (fed / "site-0" / "state" / young).exists() and not (fed / "site-1" / "state" / young).exists()
    assert any(line.startswith(f"stays  site-0/state/{young}") and "within 5 days" in line for line in lines)
    assert [rows(path, table) for table in ("objects", "message_res", "task_logs", "run")] == [2, 2, 2, 3]
    assert not any("an-app" in line and line.startswith("goes") for line in lines)  # received today
    purge(fed, capsys, "--older-than", "0.5")
    assert rows(path, "objects") == 1 and not (fed / "site-0" / "state" / young).exists()


def test_a_dry_run_and_bad_input_remove_nothing(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(fed)
    assert "nothing was removed" in purge(fed, capsys, "--dry-run")[-1]
    assert main(["down", str(fed), "--purge", "--older-than", "-1"]) == 2
    assert {name: data for name, data in tree(fed).items() if "-shm" not in name and "-wal" not in name} == {
        name: data for name, data in before.items() if "-shm" not in name and "-wal" not in name
    }


def test_a_site_on_its_own_machine_decides_by_itself(
    fed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hospital = tmp_path / "hospital"
    hospital.mkdir()
    shutil.copy(fed / "federation.toml", hospital)
    shutil.copytree(fed / "site-0", hospital / "site-0")
    state = hospital / "site-0" / "state"
    lines = purge(hospital, capsys)
    assert len(list(state.iterdir())) == 4
    assert sum("unknown here; --also unknown" in line for line in lines) == 5
    purge(hospital, capsys, "--also", "unknown", "--older-than", "11")
    assert len(list(state.iterdir())) == 4
    purge(hospital, capsys, "--also", "unknown", "--older-than", "9")
    assert list(state.iterdir()) == [] and (hospital / "site-0" / "node-key").exists()


# --- a real federation ------------------------------------------------------------------------------------------


@contextmanager
def run_of(fed: Path, out: Path, temporary: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    given = "--method hyperfl --clients 2 --local-epochs 1 --attack none --set hidden=16 embedding=8"
    words = [sys.executable, str(ROOT / "sim.py"), "--federation", str(fed), "--out", str(out), *flags, *given.split()]
    variables = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, env=variables, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_real_federation_is_tidied_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ports, fed, temporary = free_ports(4), tmp_path / "fed", tmp_path / "tmp"
    temporary.mkdir()
    places = ["--port", str(ports[0]), "--control-port", str(ports[1]), "--site-port", str(ports[2])]
    assert main(["init", str(fed), "--clients", "2", *places]) == 0
    layout = FederationLayout.read(fed)
    try:
        assert main(["up", str(fed)]) == 0
        with run_of(fed, tmp_path / "over", temporary, "--rounds", "2") as process:
            assert process.wait(240) == 0
        with run_of(fed, tmp_path / "cut", temporary, "--rounds", "30") as process:
            assert process.stderr is not None
            while not process.stderr.readline().startswith("round 2/"):
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
        assert list(temporary.iterdir()) == []  # also where Flower's own programs were killed
        over, cut = (stored_experiment(tmp_path / name).id for name in ("over", "cut"))
        before = leftovers.size(layout.superlink / "superlink.db")
        capsys.readouterr()
        assert purge(fed, capsys)[0].startswith("ended 3 processes")
        assert leftovers.size(layout.superlink / "superlink.db") < before / 2
        assert not (layout.site(0) / "state" / over).exists() and (layout.site(0) / "state" / cut).exists()
        assert not any((folder / "tmp").exists() for folder in (layout.superlink, layout.site(0), layout.site(1)))
        assert main(["up", str(fed)]) == 0  # the keys are known still
        words = [sys.executable, str(ROOT / "sim.py"), "--resume", str(tmp_path / "cut")]
        done = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.stderr is not None
        first = next(line for line in iter(done.stderr.readline, "") if line.startswith("round "))
        assert first.startswith(("round 2/", "round 3/"))  # from the private tensors that stayed
        done.send_signal(signal.SIGTERM)
        assert done.wait(60) == 143
        done.stderr.close()
    finally:
        assert main(["down", str(fed)]) == 0
