"""The recording grid: what any ServerApp gets for two lines, which files it writes, and that nothing else changes."""

import hashlib
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from safetensors import safe_open
from safetensors.torch import load_file

from flfw import __version__
from flfw.audit.probe import is_usable_probe
from flfw.errors import InputError
from flfw.files.sealed import JournalMark
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.streaming import StreamingGrid
from flfw.messages.wire import pack, unpack
from flfw.recording.grid import RecordingGrid
from flfw.recording.reader import Recordings

app = ClientApp()


@app.train()
@app.train("probe")
def add_own_number(message: Message, context: Context) -> Message:
    """Returns w + partition; client 9 always fails."""
    partition = int(context.node_config["partition-id"])
    if partition == 9:
        raise ZeroDivisionError("client 9 cannot")
    received = unpack(next(iter(message.content.array_records.values())))["w"]
    metrics = MetricRecord({"partition": 99, "num-examples": 10})  # what a client says of itself is not believed
    return Message(RecordDict({"arrays": pack({"w": received + partition}), "metrics": metrics}), reply_to=message)


@app.evaluate()
def measure(message: Message, context: Context) -> Message:
    """No arrays in the reply."""
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 0.5})}), reply_to=message)


@app.query("text")
def answer_in_words(message: Message, context: Context) -> Message:
    """An array that is none of numbers."""
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(np.array(["a", "b"]))})}), reply_to=message)


@app.query("lies")
def answer_with_lies(message: Message, context: Context) -> Message:
    """Bytes that are no array."""
    lie = Array("float32", (2,), "numpy.ndarray", b"\x80\x04 this is a pickle")
    return Message(RecordDict({"arrays": ArrayRecord({"w": lie})}), reply_to=message)


SMALL, LARGE = 104, 4104
"""Bytes of a recorded file with 2 and with 1000 numbers."""


def grid(clients: int = 10) -> InProcessGrid:
    return InProcessGrid(app, clients, {})


def message(partition: int, kind: str = "train", w: float = 1.0, numbers: int = 2, **config: Any) -> Message:
    config = {"round": 4, "client": partition, **config}
    content = RecordDict({"arrays": pack({"w": torch.full((numbers,), w)}), "config": ConfigRecord(config)})
    return Message(content, dst_node_id=partition + 1, message_type=kind, group_id="7")


def manifest(folder: Path) -> list[dict[str, Any]]:
    """What follows the header, without the seals."""
    header, *lines = map(json.loads, (folder / "manifest.jsonl").read_text().splitlines())
    for number, line in enumerate((header, *lines), start=1):
        assert re.fullmatch("[0-9a-f]{64}", line.pop("seal")) and line.pop("line") == number
    assert header == {"format": 1, "flfw": __version__}
    return lines


def files(folder: Path) -> list[str]:
    """What is recorded, without the head, which `test_manifest` is about."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name != "manifest.head")


def sent_files(folder: Path) -> list[str]:
    return [line["sent_by_client"]["file"] for line in manifest(folder) if "skipped" not in line]


def answers(replies: Iterable[Message]) -> list[list[float]]:
    return [unpack(reply.content.array_records["arrays"])["w"].tolist() for reply in replies]


# --- in any ServerApp ---------------------------------------------------------------------------------------------


def flower_s_own(over: Any, rounds: int = 2) -> ArrayRecord:
    strategy = FedAvg(arrayrecord_key="model", configrecord_key="about")
    start = ArrayRecord({"w": Array(np.array([1.0, 2.0], dtype=np.float32))})
    return strategy.start(over, start, num_rounds=rounds, timeout=60).arrays


def test_two_lines_record_a_run_of_flowers_own_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = flower_s_own(RecordingGrid(grid(2), "recordings"))
    assert unpack(recorded)["w"].tolist() == unpack(flower_s_own(grid(2)))["w"].tolist() == [2.0, 3.0]
    lines = manifest(tmp_path / "recordings")
    assert [(line["type"], line["round"]) for line in lines] == [("train", 1)] * 2 + [("train", 2)] * 2
    assert sorted(line["client"] for line in lines) == [1, 1, 2, 2]  # nodes, for nobody names partitions
    assert [line["config"]["server-round"] for line in lines] == [1, 1, 2, 2]  # in one record, used again
    assert len({line["sent_to_client"]["file"] for line in lines}) == 2
    for line in lines:
        received = load_file(tmp_path / "recordings" / line["sent_to_client"]["file"])["w"]
        sent = load_file(tmp_path / "recordings" / line["sent_by_client"]["file"])["w"]
        assert received.tolist() == {1: [1.0, 2.0], 2: [1.5, 2.5]}[line["round"]]
        assert (sent - received).tolist() == [line["node"] - 1.0] * 2


def test_replies_that_came_as_a_list_are_passed_on_as_one(tmp_path: Path) -> None:
    replies = RecordingGrid(grid(), tmp_path).send_and_receive(message(p) for p in (1, 2))
    assert isinstance(replies, list)  # some strategies go through them twice
    assert answers(replies) == answers(replies) == [[2.0, 2.0], [3.0, 3.0]]


def test_a_folder_that_holds_recordings_is_refused(tmp_path: Path) -> None:
    list(RecordingGrid(grid(), tmp_path).send_and_receive([message(1)]))
    before = files(tmp_path)
    with pytest.raises(InputError) as error:
        RecordingGrid(grid(), tmp_path)
    assert str(error.value) == (
        f"Expected a new folder for recordings, got {tmp_path}, which holds some; choose another or remove it."
    )
    assert files(tmp_path) == before


@pytest.mark.parametrize("inside", ["relative/observations", "observations"])
def test_a_relative_folder_stays_where_it_was_meant(tmp_path: Path, monkeypatch, inside: str) -> None:
    monkeypatch.chdir(tmp_path)
    recording = RecordingGrid(grid(), inside)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # as Flower may
    list(recording.send_and_receive([message(1)]))
    assert len(manifest(tmp_path / inside)) == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_pushed_messages_are_recorded_once_when_their_replies_are_pulled(tmp_path: Path) -> None:
    recording = RecordingGrid(grid(), tmp_path)
    ids = list(recording.push_messages([message(1), message(2)]))
    assert manifest(tmp_path) == []
    assert answers(recording.pull_messages(ids)) == [[2.0, 2.0]]  # this grid gives one at a time
    assert answers(recording.pull_messages(ids)) == [[3.0, 3.0]]
    assert list(recording.pull_messages(ids)) == []
    assert [line["client"] for line in manifest(tmp_path)] == [1, 2]


class Generous(InProcessGrid):
    """Gives the same reply to everybody who asks, again and again."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.kept = getattr(self, "kept", None) or super().pull_messages(message_ids)
        return self.kept


def test_a_reply_that_comes_twice_is_recorded_once(tmp_path: Path) -> None:
    recording = RecordingGrid(Generous(app, 3, {}), tmp_path)
    ids = list(recording.push_messages([message(1)]))
    assert [len(list(recording.pull_messages(ids))) for _ in range(3)] == [1, 1, 1]
    assert len(manifest(tmp_path)) == 1


def test_replies_to_what_others_sent_pass_unrecorded(tmp_path: Path) -> None:
    inner = grid()
    (foreign,) = inner.push_messages([message(1)])
    assert answers(RecordingGrid(inner, tmp_path).pull_messages([foreign])) == [[2.0, 2.0]]
    assert manifest(tmp_path) == []


def test_a_message_is_recorded_as_it_was_when_it_was_sent(tmp_path: Path) -> None:
    recording, requested = RecordingGrid(grid(), tmp_path), message(1)
    ids = list(recording.push_messages([requested]))
    reply = list(recording._grid.pull_messages(ids))
    requested.content.config_records["config"]["round"] = 5
    requested.content.array_records["arrays"]["w"] = Array(np.zeros(2, dtype=np.float32))
    recording._grid.pull_messages = lambda message_ids: reply  # it was late
    list(recording.pull_messages(ids))
    (line,) = manifest(tmp_path)
    assert (line["round"], line["config"]["round"]) == (4, 4)
    assert load_file(tmp_path / line["sent_to_client"]["file"])["w"].tolist() == [1.0, 1.0]


def test_messages_whose_time_is_up_are_not_waited_for(tmp_path: Path) -> None:
    recording, late = RecordingGrid(grid(), tmp_path), message(1)
    late.metadata.ttl = 0.05
    recording.push_messages([late])
    time.sleep(0.1)
    recording.push_messages([message(2)])
    assert [requested.message.metadata.dst_node_id for requested in recording._pushed] == [3]


# --- what is recorded ---------------------------------------------------------------------------------------------


def test_an_exchange_is_a_line_with_both_sides(tmp_path: Path) -> None:
    list(RecordingGrid(grid(), tmp_path).send_and_receive([message(2, "train.probe", w=5.0)]))
    (line,) = manifest(tmp_path)
    sent, answered = line.pop("sent_to_client"), line.pop("sent_by_client")
    assert line == {
        "type": "train.probe",
        "round": 4,
        "client": 2,
        "node": 3,
        "group": "7",
        "config": {"round": 4, "client": 2},
        "metrics": {"partition": 99, "num-examples": 10},
        "compression": "none",
    }
    assert answered["file"] == "round-0004/client-002-000.safetensors"
    assert sent["file"] == f"received/{sent['sha256']}.safetensors"
    assert load_file(tmp_path / sent["file"])["w"].tolist() == [5.0, 5.0]
    assert load_file(tmp_path / answered["file"])["w"].tolist() == [7.0, 7.0]
    for entry in (sent, answered):
        data = (tmp_path / entry["file"]).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (entry["sha256"], entry["bytes"])
        with safe_open(tmp_path / entry["file"], "pt") as header:
            assert header.metadata() == {"format": "1"}


def test_several_exchanges_with_a_client_in_a_round_are_numbered(tmp_path: Path) -> None:
    recording = RecordingGrid(grid(), tmp_path)
    for _ in range(2):
        list(recording.send_and_receive([message(1), message(0), message(1, round=5)]))
    names = ["round-0004/client-001", "round-0004/client-000", "round-0005/client-001"]
    assert sent_files(tmp_path) == [f"{name}-00{number}.safetensors" for number in range(2) for name in names]


@pytest.mark.parametrize(
    ("config", "group", "result"),
    [
        ({"round": 3, "server-round": 8}, "9", 3),
        ({"server-round": 8}, "9", 8),
        ({}, "9", 9),
        ({}, "warm-up", 0),
        ({"round": True}, "", 0),
        ({"round": -1, "server-round": 2}, "", 2),
        ({"round": "../../x"}, "", 0),
    ],
)
def test_the_round_is_what_the_server_says(tmp_path: Path, config: dict, group: str, result: int) -> None:
    content = RecordDict({"arrays": pack({"w": torch.ones(1)}), "config": ConfigRecord(config)})
    list(RecordingGrid(grid(), tmp_path).send_and_receive([Message(content, 2, "train", group_id=group)]))
    (line,) = manifest(tmp_path)
    assert line["round"] == result
    assert line["sent_by_client"]["file"] == f"round-{result:04d}/client-002-000.safetensors"


def test_replies_without_arrays_and_failures_pass_and_are_not_recorded(tmp_path: Path) -> None:
    replies = RecordingGrid(grid(), tmp_path).send_and_receive([message(9), message(1, "evaluate"), message(1)])
    assert [reply.has_error() for reply in replies] == [True, False, False]
    assert [line["type"] for line in manifest(tmp_path)] == ["train"]


def test_the_app_may_say_what_is_wanted(tmp_path: Path) -> None:
    def evaluations(sent: Message, reply: Message) -> bool:
        return sent.metadata.message_type == "evaluate"

    list(RecordingGrid(grid(), tmp_path, evaluations).send_and_receive([message(1), message(2, "evaluate")]))
    (line,) = manifest(tmp_path)
    assert (line["client"], line["metrics"]) == (2, {"num-examples": 1, "loss": 0.5})
    assert load_file(tmp_path / line["sent_by_client"]["file"]) == {}


def test_only_sound_probes_are_recorded_where_these_are_wanted(tmp_path: Path) -> None:
    requested = [message(1), message(2, "train.probe"), message(9, "train.probe"), message(3, "query.lies")]
    list(RecordingGrid(grid(), tmp_path, is_usable_probe).send_and_receive(requested))
    assert [(line["type"], line["client"]) for line in manifest(tmp_path)] == [("train.probe", 2)]


def test_what_many_clients_were_sent_is_stored_once_over_several_exchanges(tmp_path: Path) -> None:
    recording, content = RecordingGrid(grid(), tmp_path), message(0).content
    list(recording.send_and_receive([Message(content, p + 1, "train") for p in (1, 2)]))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("received/*")}
    list(recording.send_and_receive([message(3)]))  # equal, but not the same
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("received/*")} == written and len(written) == 1
    lines = manifest(tmp_path)
    assert len({line["sent_to_client"]["sha256"] for line in lines}) == 1
    assert len({line["sent_by_client"]["sha256"] for line in lines}) == 3


def test_all_records_of_a_message_are_kept_and_of_bytes_their_checksum(tmp_path: Path) -> None:
    record = ConfigRecord({"key": b"secret", "parts": [b"a", b""], "rates": [0.1, 0.2], "on": True})
    content = RecordDict({"model": pack({"w": torch.ones(1)}), "extra": pack({"w": torch.zeros(3)}), "about": record})
    list(RecordingGrid(grid(), tmp_path).send_and_receive([Message(content, 2, "train")]))
    (line,) = manifest(tmp_path)
    received = load_file(tmp_path / line["sent_to_client"]["file"])
    assert {name: value.tolist() for name, value in received.items()} == {"model/w": [1.0], "extra/w": [0.0] * 3}
    digests = [hashlib.sha256(value).hexdigest() for value in (b"secret", b"a", b"")]
    assert line["config"] == {
        "key": f"6 bytes, SHA-256 {digests[0]}",
        "parts": [f"1 bytes, SHA-256 {digests[1]}", f"0 bytes, SHA-256 {digests[2]}"],
        "rates": [0.1, 0.2],
        "on": True,
    }


def contents(messages: Iterable[Message]) -> list[tuple]:
    """All that the messages carry, with the bytes of every array."""
    return [
        (
            m.metadata.message_type,
            {name: {k: a.data for k, a in record.items()} for name, record in m.content.array_records.items()},
            {name: dict(record) for name, record in m.content.metric_records.items()},
            {name: dict(record) for name, record in m.content.config_records.items()},
        )
        for m in messages
    ]


def test_recording_changes_nothing_of_what_passes(tmp_path: Path) -> None:
    kinds = ((1, "train.probe"), (2, "train"), (3, "evaluate"), (4, "query.text"), (5, "query.lies"))
    sent = [message(p, kind) for p, kind in kinds]
    before, objects = contents(sent), [m.content for m in sent]
    recorded = contents(RecordingGrid(grid(), tmp_path).send_and_receive(sent))
    assert recorded == contents(grid().send_and_receive([message(p, kind) for p, kind in kinds]))
    assert contents(sent) == before
    assert all(m.content is content for m, content in zip(sent, objects, strict=True))


def test_replies_are_recorded_as_they_pass_and_not_all_at_the_end(tmp_path: Path) -> None:
    replies = RecordingGrid(StreamingGrid(grid()), tmp_path).send_and_receive([message(p) for p in range(3)])
    for recorded, _ in enumerate(replies, start=1):
        assert len(manifest(tmp_path)) == recorded


def test_recordings_are_their_owner_s_alone(tmp_path: Path) -> None:
    list(RecordingGrid(grid(), tmp_path / "new").send_and_receive([message(1)]))
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*") if path.is_dir()}
    assert modes | {(tmp_path / "new").stat().st_mode & 0o777} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*.safetensors")} == {0o600}


# --- what cannot be recorded --------------------------------------------------------------------------------------


def test_arrays_that_are_none_are_skipped_and_said(tmp_path: Path) -> None:
    recording = RecordingGrid(grid(), tmp_path)
    replies = list(recording.send_and_receive([message(1, "query.text"), message(2, "query.lies"), message(3)]))
    assert len(replies) == 3 and recording.skipped == 2
    words, lies, fine = manifest(tmp_path)
    assert words["skipped"].startswith("the arrays cannot be stored: a header that does not describe plain numbers")
    assert lies["skipped"].startswith("the arrays cannot be stored: ")
    assert (lies["type"], lies["round"], lies["client"], lies["node"]) == ("query.lies", 4, 2, 3)
    assert fine["sent_by_client"]["file"] in files(tmp_path) and len(files(tmp_path)) == 3


def test_what_would_go_over_the_limit_is_skipped_and_what_still_fits_is_not(tmp_path: Path) -> None:
    # Both downloads and three uploads fit: the second large one does not.
    recording = RecordingGrid(grid(), tmp_path, limit_bytes=3 * SMALL + 2 * LARGE)
    small, large = [message(p, numbers=2) for p in (1, 2)], [message(p, numbers=1000) for p in (3, 4)]
    replies = recording.send_and_receive([small[0], *large, small[1]])
    assert [len(answer) for answer in answers(replies)] == [2, 1000, 1000, 2]
    assert [line["client"] for line in manifest(tmp_path)] == [1, 3, 4, 2]
    (skipped,) = (line for line in manifest(tmp_path) if "skipped" in line)
    assert skipped["client"] == 4 and recording.skipped == 1
    assert skipped["skipped"] == f"the recordings would take {2 * SMALL + 3 * LARGE} bytes of {3 * SMALL + 2 * LARGE}"
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors")) == 3 * SMALL + 2 * LARGE


def test_a_download_that_was_skipped_is_written_when_it_is_needed(tmp_path: Path) -> None:
    recording = RecordingGrid(grid(), tmp_path, limit_bytes=9000)
    heavy, light = message(1, numbers=2000).content, message(2)
    list(recording.send_and_receive([Message(heavy, 2, "train"), Message(heavy, 3, "train"), light]))
    assert ["skipped" in line for line in manifest(tmp_path)] == [True, True, False]
    assert len(files(tmp_path)) == 3


def test_a_disk_that_takes_no_more_stops_the_run(tmp_path: Path) -> None:
    recording = RecordingGrid(grid(), tmp_path)
    (tmp_path / "received").write_text("a file where a folder must go")
    with pytest.raises(OSError, match="received"):
        list(recording.send_and_receive([message(1)]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"compression": "zip"}, "Expected compression none, gzip or compact, got compression=zip."),
        ({"limit_bytes": 0}, "Expected limit_bytes > 0 or None, got limit_bytes=0."),
    ],
)
def test_options_that_do_not_exist_are_refused(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        RecordingGrid(grid(), tmp_path / "new", **options)
    assert str(error.value) == text and not (tmp_path / "new").exists()


def test_compressed_files_are_the_same_every_time_and_smaller_where_that_is_possible(tmp_path: Path) -> None:
    for name in ("one", "two"):
        recording = RecordingGrid(grid(), tmp_path / name, compression="gzip")
        list(recording.send_and_receive([message(1, numbers=10_000)]))
    assert files(tmp_path / "one") == files(tmp_path / "two")
    (line,), other = manifest(tmp_path / "one"), manifest(tmp_path / "two")
    assert [line] == other and line["compression"] == "gzip"
    entry = line["sent_by_client"]
    assert entry["file"] == "round-0004/client-001-000.safetensors.gz" and entry["bytes"] > 40_000
    data = (tmp_path / "one" / entry["file"]).read_bytes()
    assert len(data) < 1000 and data[4:8] == bytes(4)  # no time of writing


# --- going on -----------------------------------------------------------------------------------------------------


def test_a_later_process_goes_on_at_the_mark_and_forgets_what_followed(tmp_path: Path) -> None:
    first = RecordingGrid(grid(), tmp_path)
    list(first.send_and_receive([message(1)]))
    mark = json.loads(json.dumps(first.mark))
    list(first.send_and_receive([message(1), message(2, w=3.0)]))
    (tmp_path / "round-0004" / "notes.txt").write_text("mine")
    assert len(files(tmp_path)) == 7
    second = RecordingGrid(grid(), tmp_path, resume_at=mark)
    assert second.mark == mark
    assert len(manifest(tmp_path)) == 1 and len(files(tmp_path)) == 4  # what is no recording stays
    list(second.send_and_receive([message(1)]))
    assert sent_files(tmp_path) == [f"round-0004/client-001-00{n}.safetensors" for n in (0, 1)]
    assert len({line["sent_to_client"]["file"] for line in manifest(tmp_path)}) == 1


def test_a_process_that_repeats_another_writes_the_same_bytes(tmp_path: Path) -> None:
    def bytes_of(folder: Path) -> dict[str, bytes]:
        return {name: (folder / name).read_bytes() for name in files(folder)}

    whole = RecordingGrid(grid(), tmp_path / "whole", limit_bytes=8 * SMALL)
    cut = RecordingGrid(grid(), tmp_path / "cut", limit_bytes=8 * SMALL)
    requested = [[message(p, w=1.0 + n) for p in (1, 2)] for n in range(3)]
    for messages in requested:
        list(whole.send_and_receive(messages))
    list(cut.send_and_receive(requested[0]))
    mark = cut.mark
    list(cut.send_and_receive(requested[2]))  # lost with its process
    resumed = RecordingGrid(grid(), tmp_path / "cut", resume_at=mark, limit_bytes=8 * SMALL)
    for messages in requested[1:]:
        list(resumed.send_and_receive(messages))
    assert bytes_of(tmp_path / "cut") == bytes_of(tmp_path / "whole")
    assert resumed.skipped == whole.skipped == 1 and resumed.mark == whole.mark


def test_skipped_exchanges_are_counted_over_processes(tmp_path: Path) -> None:
    first = RecordingGrid(grid(), tmp_path)
    list(first.send_and_receive([message(1, "query.lies")]))
    assert RecordingGrid(grid(), tmp_path, resume_at=first.mark).skipped == 1


def test_a_run_that_starts_anew_forgets_all_that_was_recorded(tmp_path: Path) -> None:
    list(RecordingGrid(grid(), tmp_path).send_and_receive([message(1), message(2)]))
    recording = RecordingGrid(grid(), tmp_path, overwrite=True)
    assert (manifest(tmp_path), files(tmp_path)) == ([], ["manifest.jsonl"])
    list(recording.send_and_receive([message(2)]))
    assert sent_files(tmp_path) == ["round-0004/client-002-000.safetensors"]


def test_a_manifest_that_is_not_as_the_mark_says_is_refused(tmp_path: Path) -> None:
    first = RecordingGrid(grid(), tmp_path)
    list(first.send_and_receive([message(1)]))
    path = tmp_path / "manifest.jsonl"
    path.write_text(path.read_text().replace('"client": 1', '"client": 2'))
    with pytest.raises(InputError, match="it is damaged; restore it"):
        RecordingGrid(grid(), tmp_path, resume_at=first.mark)


def test_a_record_in_another_format_is_not_gone_on_with(tmp_path: Path) -> None:
    data = b'{"type": "train", "sent_by_client": "ab"}\n'
    (tmp_path / "manifest.jsonl").write_bytes(data)
    mark = JournalMark(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(InputError) as error:
        RecordingGrid(grid(), tmp_path, resume_at=mark)
    assert str(error.value) == (f"Expected recordings in format 1, got an older one in {tmp_path}; start a new run.")


def test_only_their_owner_reads_the_recordings_also_in_a_folder_that_was_there(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    list(RecordingGrid(grid(), tmp_path).send_and_receive([message(1)]))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()} == {0o600}


def test_an_app_without_checkpoints_has_its_lines_counted_too(tmp_path: Path) -> None:
    """Messages of one call, as they have passed."""
    list(RecordingGrid(grid(), tmp_path).send_and_receive([message(1), message(2)]))
    path = tmp_path / "manifest.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert Recordings(tmp_path).refused == ["manifest.jsonl is not as it was written: 1 at the end are missing."]


def test_an_exchange_without_its_round_is_not_gone_on_from(tmp_path: Path) -> None:
    """As where somebody wrote the journal anew, with a mark that fits."""
    list(RecordingGrid(grid(), tmp_path).send_and_receive([message(1)]))
    path = tmp_path / "manifest.jsonl"
    data = re.sub(rb'"round": \d+, ', b"", path.read_bytes())
    path.write_bytes(data)
    mark = JournalMark(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(InputError, match="Expected whole lines of exchanges in"):
        RecordingGrid(grid(), tmp_path, resume_at=mark)
