"""What was recorded is read back as it was; what is damaged is refused by name, and the rest is still there."""

import gzip
import hashlib
import json
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import save

from flfw.errors import InputError
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import pack
from flfw.recording import manifest
from flfw.recording.grid import RecordingGrid
from flfw.recording.observation import Vantage
from flfw.recording.reader import Recordings
from flfw.recording.retention import keep_last, purge
from flfw.server.checkpoint import locked

app = ClientApp()


@app.train()
@app.train("probe")
def answer(message: Message, context: Context) -> Message:
    """Sends the number that the message asks for."""
    number = message.content.config_records["config"]["number"]
    metrics = MetricRecord({"partition": 99, "num-examples": 1})  # what a client says of itself is not believed
    value = torch.tensor([float(number), 0.0])  # type: ignore[arg-type]
    return Message(RecordDict({"arrays": pack({"w": value}), "metrics": metrics}), reply_to=message)


@pytest.fixture(autouse=True)
def _within_a_task() -> None:
    """Flower makes messages in a task only; a grid in process begins one, which may come later than a message here."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0


def message(client: int, server_round: int, number: float, model: float = 1.0, **config: Any) -> Message:
    kind = "train.probe" if "control" in config else "train"
    details = ConfigRecord({"round": server_round, "client": client, "number": number, **config})
    content = RecordDict({"arrays": pack({"w": torch.tensor([model, 7.0])}), "config": details})
    return Message(content, dst_node_id=client + 1, message_type=kind)


def probe(slot: int, number: float, control: str = "target", server_round: int = 1, **more: Any) -> Message:
    return message(more.pop("client", slot % 3), server_round, number, control=control, slot=slot, **more)


def record(folder: Path, *messages: Message, compression: str = "none") -> Path:
    list(RecordingGrid(InProcessGrid(app, 12, {}), folder, compression=compression).send_and_receive(messages))
    return folder


def sent(observations: list) -> list[float]:
    return [seen.sent["w"][0].item() for seen in observations]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any], number: int = 1) -> None:
    """Change one row of a manifest, and seal all of them anew; the header has number 0."""
    all_rows = rows(folder)
    change(all_rows[number])
    manifest.rewrite(folder, all_rows)


# --- probes and updates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_probes_are_loaded_by_control_and_round_in_the_order_of_their_slots(tmp_path: Path, compression: str) -> None:
    requested = [probe(slot, float(slot)) for slot in (2, 0, 10, 1)]  # as they arrived
    requested += [probe(0, 100.0, server_round=0), probe(0, 200.0, control="easy"), probe(-1, 300.0)]
    recordings = Recordings(record(tmp_path, *requested, compression=compression))
    probes = recordings.probes("target", 1)
    assert [observation.slot for observation in probes] == [0, 1, 2, 10]
    assert [observation.client for observation in probes] == [0, 1, 2, 1]
    assert sent(probes) == [0.0, 1.0, 2.0, 10.0]
    assert {
        (observation.vantage, observation.source, observation.control, observation.round) for observation in probes
    } == {(Vantage.SERVER, "probe", "target", 1)}
    assert sent(recordings.probes("easy", 1)) == [200.0]
    assert recordings.probes("analytic", 0) == [] and recordings.refused == []


@pytest.mark.parametrize("compression", ["none", "compact"])
def test_tensors_are_read_in_the_order_of_their_names(tmp_path: Path, compression: str) -> None:
    """The library gives them in another order in each process, which would move the last digits of sums over them."""
    names = [f"layer{number}.weight" for number in range(9)]
    requested = probe(0, 1.0)
    requested.content["arrays"] = pack({name: torch.ones(2) for name in reversed(names)})
    (observation,) = Recordings(record(tmp_path, requested, compression=compression)).probes("target", 1)
    assert list(observation.received) == names


def test_clients_that_received_the_same_share_it_and_others_do_not(tmp_path: Path) -> None:
    requested = [probe(slot, 1.0, model=model) for slot, model in enumerate((1.0, 2.0, 1.0))]
    recordings = Recordings(record(tmp_path, *requested))
    ids = [line["id"] for line in recordings.lines]
    for a, b, c in (recordings.probes("target", 1), recordings.observations(ids)):
        assert a is not None and b is not None and c is not None
        assert a.received is c.received and a.received is not b.received
        assert [observation.received["w"].tolist() for observation in (a, b, c)] == [[1.0, 7.0], [2.0, 7.0], [1.0, 7.0]]


def test_points_of_curves_are_told_apart(tmp_path: Path) -> None:
    requested = [
        probe(0, 1.0, batch=1, point="target"),
        probe(0, 2.0, batch=1, steps=1, point="batch-1"),
        probe(0, 3.0, batch=4, steps=1, point="batch-4"),
        probe(0, 4.0, batch=1, steps=5, point="steps-5"),
    ]
    recordings = Recordings(record(tmp_path, *requested))
    assert sent(recordings.probes("target", 1)) == [1.0, 2.0, 3.0, 4.0]
    assert sent(recordings.probes("target", 1, batch=1)) == [1.0, 2.0, 4.0]
    assert sent(recordings.probes("target", 1, batch=1, steps=1)) == [1.0, 2.0]  # one step, if nothing is said
    (observation,) = recordings.probes("target", 1, point="batch-1")
    assert sent([observation]) == [2.0]
    assert (observation.point, observation.key) == ("batch-1", "r0001-batch-1-000")


def test_updates_are_what_training_sent_in_a_round_by_client(tmp_path: Path) -> None:
    requested = [message(10, 2, 3.0), message(0, 2, 1.0), message(4, 2, 2.0), message(0, 1, 9.0), probe(0, 8.0)]
    recordings = Recordings(record(tmp_path, *requested))
    updates = recordings.updates(2)
    assert [(observation.client, observation.slot) for observation in updates] == [(0, 0), (4, 1), (10, 2)]
    assert sent(updates) == [1, 2, 3]
    assert {(observation.source, observation.control, observation.round) for observation in updates} == {
        ("update", "target", 2)
    }
    assert updates[0].key not in {observation.key for observation in recordings.probes("target", 1)}


def test_one_exchange_is_found_by_its_id(tmp_path: Path) -> None:
    recordings = Recordings(record(tmp_path, message(3, 2, 5.0), message(1, 2, 6.0), probe(4, 7.0)))
    ids = ["round-0002/client-003-000", "round-0002/client-001-000", "round-0001/client-001-000"]
    assert [line["id"] for line in recordings.lines] == ids
    assert [recordings.observation(exchange).sent["w"][0].item() for exchange in ids] == [5.0, 6.0, 7.0]
    assert [recordings.observation(exchange).slot for exchange in ids] == [1, 0, 4]
    with pytest.raises(InputError, match=r"round-0009/client-001-000 was left out: manifest\.jsonl does not name it"):
        recordings.observation("round-0009/client-001-000")


def test_lines_of_probes_are_found_without_their_tensors(tmp_path: Path) -> None:
    record(tmp_path, probe(1, 1.0), probe(0, 2.0))
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
    assert [line["config"]["slot"] for line in Recordings(tmp_path).probe_lines("target", 1)] == [0, 1]


def test_what_is_stored_and_what_was_skipped_is_said(tmp_path: Path) -> None:
    grid = RecordingGrid(InProcessGrid(app, 12, {}), tmp_path, limit_bytes=400)
    list(grid.send_and_receive([message(1, 1, 1.0), message(2, 1, 1.0), message(3, 1, 1.0)]))
    recordings = Recordings(tmp_path)
    assert len(recordings.lines) == 2 and [line["client"] for line in recordings.skipped] == [3]
    assert recordings.stored_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors")) <= 400


# --- what is refused ----------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def lose(path: Path) -> None:
    path.unlink()


def put_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(10_000_000)


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (flip, " has SHA-256 "),
        (cut, " has "),
        (lose, " is not there"),
        (put_a_folder, " is not there"),
        (grow, " has 10000000 bytes, and was written with 104"),
    ],
)
def test_a_damaged_answer_is_refused_and_the_rest_returned(
    tmp_path: Path, damage: Callable[[Path], None], text: str, compression: str
) -> None:
    record(tmp_path, *(probe(slot, float(slot)) for slot in range(3)), compression=compression)
    file = rows(tmp_path)[2]["sent_by_client"]["file"]
    damage(tmp_path / file)
    recordings = Recordings(tmp_path)
    for _ in range(2):  # said once, however often it is read
        probes = recordings.probes("target", 1)
        assert sent(probes) == [0.0, 2.0] and [observation.slot for observation in probes] == [0, 2]
        (sentence,) = recordings.refused
        assert sentence.startswith(f"round-0001/client-001-000 was left out: {file}{text}") and sentence.endswith(".")
    with pytest.raises(InputError, match=r"Expected an intact recording in .* was left out"):
        recordings.observation("round-0001/client-001-000")
    assert recordings.observations(["round-0001/client-001-000"]) == [None]


def replace(folder: Path, data: bytes, number: int = 1, side: str = "sent_by_client", size: int | None = None) -> None:
    """Put other bytes in a file's place, and their checksum into the manifest."""

    def change(row: dict[str, Any]) -> None:
        (folder / row[side]["file"]).write_bytes(data)
        row[side] |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data) if size is None else size}

    rewrite(folder, change, number)


@pytest.mark.parametrize("field", ["client", "round"])
def test_a_truth_value_is_no_number_of_a_client_or_a_round(tmp_path: Path, field: str) -> None:
    record(tmp_path, probe(0, 1.0), probe(1, 2.0))
    assert len(Recordings(tmp_path).probes("target", 1)) == 2
    rewrite(tmp_path, lambda row: row.update({field: True}))
    recordings = Recordings(tmp_path)
    assert len(recordings.probes("target", 1)) == 1
    assert any("describes no exchange" in sentence for sentence in recordings.refused)


NUMBERS = {"w": torch.tensor([1.0, 2.0])}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (pickle.dumps({"w": 1}), "no safetensors file that can be read"),
        (b"", "no safetensors file that can be read"),
        (save(NUMBERS), "is in format None, not 1"),
        (save(NUMBERS, {"format": "2"}), "is in format 2, not 1"),
        (save({"w": torch.tensor([1.0, torch.nan])}, {"format": "1"}), "holds NaN or infinity"),
        (save({"w": torch.tensor([-torch.inf]).half()}, {"format": "1"}), "holds NaN or infinity"),
    ],
)
def test_files_of_no_use_are_refused_even_if_the_manifest_vouches_for_them(
    tmp_path: Path, data: bytes, text: str
) -> None:
    record(tmp_path, probe(0, 1.0), probe(1, 2.0))
    replace(tmp_path, data)
    recordings = Recordings(tmp_path)
    assert sent(recordings.probes("target", 1)) == [2.0]
    assert len(recordings.refused) == 1 and text in recordings.refused[0]


def test_tensors_of_whole_numbers_and_empty_ones_are_loaded_too(tmp_path: Path) -> None:
    record(tmp_path, probe(0, 1.0))
    replace(tmp_path, save({"n": torch.tensor([3]), "none": torch.zeros(0, 4)}, {"format": "1"}))
    (observation,) = Recordings(tmp_path).probes("target", 1)
    assert observation.sent["n"].item() == 3 and observation.sent["none"].shape == (0, 4)


def test_a_file_that_would_unfold_to_more_than_was_written_is_refused_before_it_does(tmp_path: Path) -> None:
    record(tmp_path, probe(0, 1.0), probe(1, 2.0), compression="gzip")
    bomb = gzip.compress(bytes(20_000_000))
    replace(tmp_path, bomb, size=len(bomb))
    recordings = Recordings(tmp_path)
    tracemalloc.start()
    assert sent(recordings.probes("target", 1)) == [2.0]
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    text = f".safetensors.gz does not decompress to the {len(bomb)} bytes that were written."
    assert recordings.refused[0].endswith(text)


def test_a_compressed_file_that_is_none_or_ends_early_is_refused(tmp_path: Path) -> None:
    record(tmp_path, *(probe(slot, 1.0) for slot in range(3)), compression="gzip")
    replace(tmp_path, b"not compressed", number=1, size=104)
    whole = (tmp_path / rows(tmp_path)[2]["sent_by_client"]["file"]).read_bytes()
    replace(tmp_path, whole[:-9], number=2, size=104)
    recordings = Recordings(tmp_path)
    assert len(recordings.probes("target", 1)) == 1
    assert [" decompress" in sentence for sentence in recordings.refused] == [True, True]


def test_all_who_received_a_damaged_file_are_refused(tmp_path: Path) -> None:
    record(tmp_path, *(probe(slot, float(slot), model=model) for slot, model in enumerate((1.0, 2.0, 1.0))))
    file = rows(tmp_path)[1]["sent_to_client"]["file"]
    flip(tmp_path / file)
    recordings = Recordings(tmp_path)
    assert sent(recordings.probes("target", 1)) == [1.0]
    assert len(recordings.refused) == 2 and all(file in sentence for sentence in recordings.refused)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "received/../../outside.safetensors", ""])
@pytest.mark.parametrize("side", ["sent_to_client", "sent_by_client"])
def test_files_outside_the_folder_are_not_opened(tmp_path: Path, name: str, side: str) -> None:
    folder = record(tmp_path / "recordings", probe(0, 1.0), probe(1, 2.0))
    inside = folder / rows(folder)[1][side]["file"]
    (tmp_path / "outside.safetensors").write_bytes(inside.read_bytes())
    rewrite(folder, lambda row: row[side].update(file=name))
    recordings = Recordings(folder)
    assert sent(recordings.probes("target", 1)) == [2.0]
    (sentence,) = recordings.refused
    assert f"{name} is no file of these recordings" in sentence


def test_links_that_lead_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder = record(tmp_path / "recordings", probe(0, 1.0), probe(1, 2.0))
    inside = folder / rows(folder)[1]["sent_by_client"]["file"]
    inside.rename(tmp_path / "outside.safetensors")
    inside.symlink_to(tmp_path / "outside.safetensors")
    recordings = Recordings(folder)
    assert sent(recordings.probes("target", 1)) == [2.0]
    assert recordings.refused[0].endswith(f"{inside.relative_to(folder)} is no file of these recordings.")


# --- the manifest -------------------------------------------------------------------------------------------------


def test_a_folder_without_a_manifest_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Recordings(tmp_path)
    assert str(error.value) == f"Expected recordings in {tmp_path}, found no manifest.jsonl; run with --attack."


@pytest.mark.parametrize(
    ("header", "result"),
    [
        (b'{"format": 2, "flfw": "9"}\n', "2"),
        (b'{"type": "train.probe", "sent_to_client": "ab"}\n', "an older one or none"),
        (b"", "an older one or none"),
        (b"\x80\x04garbage\n", "an older one or none"),
        (b"[1]\n", "an older one or none"),
    ],
)
def test_another_format_is_refused(tmp_path: Path, header: bytes, result: str) -> None:
    (tmp_path / "manifest.jsonl").write_bytes(header)
    with pytest.raises(InputError) as error:
        Recordings(tmp_path)
    where = tmp_path / "manifest.jsonl"
    assert str(error.value) == f"Expected recordings in format 1, got {result} in {where}; record them anew."


def test_a_line_that_a_killed_process_left_unfinished_is_said_and_passed_over(tmp_path: Path) -> None:
    record(tmp_path, probe(0, 1.0), probe(1, 2.0))
    path = tmp_path / "manifest.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    recordings = Recordings(tmp_path)
    assert sent(recordings.probes("target", 1)) == [1.0]
    assert recordings.refused == ["Line 3 of manifest.jsonl was left out: it was cut short, or is being written."]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.pop("compression"),
        lambda row: row.update(compression="zip"),
        lambda row: row.update(round="1"),
        lambda row: row.update(config=[]),
        lambda row: row.update(sent_to_client="ab"),
        lambda row: row["sent_by_client"].update(bytes=-1),
        lambda row: row["sent_by_client"].pop("sha256"),
    ],
)
def test_a_line_that_describes_no_exchange_is_said_and_passed_over(tmp_path: Path, change) -> None:
    rewrite(record(tmp_path, probe(0, 1.0), probe(1, 2.0)), change)
    recordings = Recordings(tmp_path)
    assert sent(recordings.probes("target", 1)) == [2.0]
    assert recordings.refused == ["Line 2 of manifest.jsonl was left out: it describes no exchange."]


# --- retention ----------------------------------------------------------------------------------------------------


def of_rounds(folder: Path, *rounds: int) -> Path:
    """Two clients in each round; all rounds start from model 1, but for odd ones, which start from their own."""
    requested = [message(c, r, 10.0 * r + c, model=float(r) if r % 2 else 1.0) for r in rounds for c in range(2)]
    return record(folder, *requested)


def test_the_last_rounds_are_kept_and_older_files_deleted(tmp_path: Path) -> None:
    of_rounds(tmp_path, 0, 2, 3, 6)
    gone = keep_last(tmp_path, 2)
    assert [path.relative_to(tmp_path).as_posix() for path in gone] == [
        f"round-000{r}/client-00{c}-000.safetensors" for r in (0, 2) for c in range(2)
    ]
    assert not any(path.exists() for path in gone) and not (tmp_path / "round-0000").exists()
    recordings = Recordings(tmp_path)
    assert [sent(recordings.updates(r)) for r in (0, 2, 3, 6)] == [[], [], [30.0, 31.0], [60.0, 61.0]]
    assert recordings.forgotten == [0, 2] and recordings.refused == []


def test_received_files_go_with_the_last_who_refers_to_them(tmp_path: Path) -> None:
    of_rounds(tmp_path, 1, 2, 3)  # models 1, 1 and 3
    (tmp_path / "mine.txt").write_text("no recording")
    assert len(keep_last(tmp_path, 2)) == 2 and len(list(tmp_path.glob("received/*"))) == 2
    assert len(keep_last(tmp_path, 1)) == 3 and len(list(tmp_path.glob("received/*"))) == 1
    assert Recordings(tmp_path).forgotten == [1, 2]
    assert len(keep_last(tmp_path, 0)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.head", "manifest.jsonl", "mine.txt"]
    assert (Recordings(tmp_path).lines, Recordings(tmp_path).forgotten) == ([], [1, 2, 3])


def test_where_nothing_is_too_old_nothing_changes(tmp_path: Path) -> None:
    of_rounds(tmp_path, 1, 2)
    before = (tmp_path / "manifest.jsonl").read_bytes()
    assert keep_last(tmp_path, 2) == keep_last(tmp_path, 99) == []
    assert (tmp_path / "manifest.jsonl").read_bytes() == before
    with pytest.raises(InputError, match="Expected rounds >= 0, got rounds=-1"):
        keep_last(tmp_path, -1)


def test_files_that_an_interrupted_deletion_left_go_the_next_time(tmp_path: Path) -> None:
    of_rounds(tmp_path, 1, 2)
    copy = (tmp_path / "round-0001" / "client-000-000.safetensors").read_bytes()
    keep_last(tmp_path, 1)
    (tmp_path / "round-0001").mkdir()
    (tmp_path / "round-0001" / "client-000-000.safetensors").write_bytes(copy)
    assert [path.parent.name for path in keep_last(tmp_path, 1)] == ["round-0001"]


def test_deletion_does_not_follow_links(tmp_path: Path) -> None:
    folder, other = of_rounds(tmp_path / "recordings", 1, 2), of_rounds(tmp_path / "other", 1)
    (folder / "round-0009").symlink_to(other / "round-0001")
    keep_last(folder, 1)
    assert len(list((other / "round-0001").iterdir())) == 2


GIVES_AWAY = ("observations", "truth", "reconstructions", "queue", "state", "checkpoint")


def a_run(folder: Path) -> Path:
    for name in GIVES_AWAY:
        (folder / name / "deep").mkdir(parents=True)
        (folder / name / "deep" / "data.safetensors").write_bytes(bytes(1500))
    (folder / "checkpoint" / ".run").touch()
    for name in ("result.json", "rounds.csv", "audit.csv"):
        (folder / name).write_text("{}")
    (folder / "report.html").write_bytes(bytes(2_500_000))
    return folder


def test_a_purge_leaves_the_numbers_and_says_what_it_took(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run")
    a_run(folder / "audit-2")
    (folder / "audit-plan").mkdir()
    text = purge(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("audit-2", "audit-plan", "audit.csv", "result.json", "rounds.csv")
    ]
    assert sorted(path.name for path in (folder / "audit-2").iterdir()) == ["audit.csv", "result.json", "rounds.csv"]
    assert "observations/: 1 file, 1.5 kB." in text and "audit-2/truth/: 1 file, 1.5 kB." in text
    assert "checkpoint/: 2 files, 1.5 kB." in text and "report.html: 2.5 MB." in text and len(text) == 14
    assert purge(folder) == []


def test_a_run_that_is_not_over_or_at_work_is_not_purged(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run")
    a_run(folder / "audit-1")
    for at_work in (folder, folder / "audit-1"):
        with locked(at_work / "checkpoint" / ".run"), pytest.raises(InputError, match="got a run at work in it"):
            purge(folder)
    (folder / "result.json").unlink()
    with pytest.raises(InputError) as error:
        purge(folder)
    assert str(error.value) == (
        f"Expected a run that is over, got {folder} without result.json; finish it or remove it."
    )
    assert all((folder / name / "deep" / "data.safetensors").exists() for name in GIVES_AWAY)


def test_a_purge_does_not_follow_links(tmp_path: Path) -> None:
    folder, elsewhere = a_run(tmp_path / "run"), a_run(tmp_path / "elsewhere")
    for name in ("truth", "audit-1"):
        if (folder / name).exists():
            (folder / name).rename(tmp_path / "away")
        (folder / name).symlink_to(elsewhere)
    (folder / "state" / "link").symlink_to(elsewhere / "truth")
    text = purge(folder)
    assert f"truth: a link to {elsewhere}, which is left as it is." in text
    assert f"audit-1: a link to {elsewhere}, which is left as it is." in text
    assert not (folder / "truth").is_symlink() and not (folder / "state").exists()
    assert sum(path.is_file() for path in elsewhere.rglob("*")) == len(GIVES_AWAY) + 5


def test_numpy_reads_the_recordings_too(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    record(tmp_path, probe(0, 3.0))
    np.testing.assert_array_equal(load_file(tmp_path / rows(tmp_path)[1]["sent_by_client"]["file"])["w"], [3.0, 0.0])
