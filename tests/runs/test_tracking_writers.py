"""Records of the three tools, read back by the tools' own readers."""

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flfw.errors import InputError
from flfw.recording.retention import purge
from flfw.runs import run
from flfw.runs.tracking.writers.wandb import WeightsAndBiases
from tests.support.resumed_runs import cut_short
from tests.support.small_runs import result_of, tiny


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Send MLflow to a folder, and Weights & Biases nowhere; its caches too are kept out of the user's home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "wandb-own"))
    return tmp_path


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


@pytest.mark.slow
def test_tensorboard_has_rounds_audit_and_end_of_a_run_that_was_resumed(places: Path) -> None:
    folder = cut_short(tiny(places / "run", rounds=3, track=("tensorboard",)), 2)
    run.resume(run.stored(folder))
    result = result_of(folder)
    losses = [(row["round"], pytest.approx(row["loss"])) for row in result["rounds"]]
    assert scalars(folder, "round/loss") == losses
    psnr = [(entry["round"], pytest.approx(entry["psnr"]["mean"])) for entry in result["audit"]]
    assert scalars(folder, "audit/analytic/psnr/mean") == psnr
    assert scalars(folder, "final/acc_local") == [(0, pytest.approx(result["final"]["acc_local"]))]


@pytest.mark.slow
def test_mlflow_has_one_run_with_metrics_settings_and_files(places: Path) -> None:
    from mlflow import MlflowClient

    folder = cut_short(tiny(places / "run", rounds=3, track=("mlflow",)), 2)
    client = MlflowClient()
    experiment = client.get_experiment_by_name("flfw")
    assert experiment is not None
    (half,) = client.search_runs([experiment.experiment_id])
    assert half.info.status == "FAILED"
    run.resume(run.stored(folder))
    (whole,) = client.search_runs([experiment.experiment_id])
    assert (whole.info.run_id, whole.info.status) == (half.info.run_id, "FINISHED")
    assert (whole.info.run_name, whole.data.params["method"], whole.data.params["rounds"]) == ("run", "fedavg", "3")
    assert str(places) not in str(whole.data.params)  # folders of this machine
    result = result_of(folder)
    losses = [(point.step, point.value) for point in client.get_metric_history(whole.info.run_id, "round/loss")]
    assert losses == [(row["round"], row["loss"]) for row in result["rounds"]]
    reached = [(p.step, p.value) for p in client.get_metric_history(whole.info.run_id, "audit/analytic/psnr/mean")]
    assert reached == [(entry["round"], entry["psnr"]["mean"]) for entry in result["audit"]]
    assert whole.data.tags["verdict/analytic"] == "leaks"
    listed = [file.path for file in client.list_artifacts(whole.info.run_id)]
    files = {path: client.download_artifacts(whole.info.run_id, path) for path in listed}
    assert files.keys() == {"report.html", "result.json"}
    assert Path(files["result.json"]).read_bytes() == (folder / "result.json").read_bytes()
    assert b"data:image" not in Path(files["report.html"]).read_bytes()


def records(file: Path) -> Iterator[Any]:
    """Read the records of an offline run of Weights & Biases, which has no reader of its own.

    The file is a log as LevelDB's: blocks of 32 KiB, with parts that each begin with checksum, length, and whether the
    part is whole (1), the first (2), a middle (3) or the last (4) one of a record. The first block begins with 7 bytes.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, collected = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if (left := -at % 32768) and left < 7:  # no place for another part's head
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        collected += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(collected)
            collected = b""
            yield record


@pytest.mark.slow
def test_wandb_offline_has_rounds_audit_summary_and_files_in_the_runs_folder(places: Path) -> None:
    folder = run.run(tiny(places / "run", rounds=2, track=("wandb",)))
    (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    read = list(records(file))
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in one.history.item}
        for one in read
        if one.WhichOneof("record_type") == "history"
    ]
    result = result_of(folder)
    losses = [(row["round"], row["round/loss"]) for row in rows if "round/loss" in row]
    assert losses == [(row["round"], row["loss"]) for row in result["rounds"]]
    reached = [(row["round"], row[key]) for row in rows if (key := "audit/analytic/psnr/mean") in row]
    assert reached == [(entry["round"], entry["psnr"]["mean"]) for entry in result["audit"]]
    config = {
        update.key: update.value_json
        for one in read
        if one.WhichOneof("record_type") == "run"
        for update in one.run.config.update
    }
    assert config["method"] == '"fedavg"'
    artefacts = [one.request.log_artifact.artifact for one in read if one.request.HasField("log_artifact")]
    artefacts += [one.artifact for one in read if one.WhichOneof("record_type") == "artifact"]
    assert {entry.path for one in artefacts for entry in one.manifest.contents} == {"result.json", "report.html"}
    kept = {path.name: path for path in (folder / "wandb" / "results").iterdir()}
    assert kept.keys() == {"result.json", "report.html"} and not list((places / "wandb-own").rglob("staging/*"))
    assert kept["result.json"].read_bytes() == (folder / "result.json").read_bytes()
    assert {Path(entry.local_path) for one in artefacts for entry in one.manifest.contents} == set(kept.values())
    purge(folder)
    assert not (folder / "wandb" / "results").exists() and file.exists()
    runs = [one.run for one in read if one.WhichOneof("record_type") == "run"]
    assert {(one.host, one.git.remote_url) for one in runs} == {("-", "")}  # no name of the machine
    notes = json.loads((folder / "tracking.json").read_text())
    assert notes["wandb"] == {"record": runs[0].run_id, "round": 2}


def test_wandb_without_a_key_is_refused_before_the_run(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(places / "none"))
    with pytest.raises(InputError, match=r"^Expected an API key for --track wandb, got none.*; wandb login, or "):
        run.run(tiny(places / "run", track=("wandb",)))
    assert not (places / "run").exists()
    monkeypatch.setenv("WANDB_MODE", "offline")
    WeightsAndBiases.check("wandb")


@pytest.mark.slow
def test_wandb_with_a_key_is_taken_without_a_word_to_its_server(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_API_KEY", 40 * "a")
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        wandb.teardown()  # what an earlier test has set
        WeightsAndBiases.check("wandb")
        wandb.teardown()
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has called
            server.accept()


def test_wandb_offline_of_the_folders_settings_needs_no_key(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(places / "none"))
    (places / "wandb").mkdir()
    (places / "wandb" / "settings").write_text("[default]\nmode = offline\n")  # as `wandb offline` writes
    wandb = pytest.importorskip("wandb")
    wandb.teardown()
    WeightsAndBiases.check("wandb")
    wandb.teardown()
