"""Compact recordings: every tensor comes back to the bit, predictions follow from the training, damage is found."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import pack, unpack
from flfw.recording.compact import Prediction, best, compacted, distances, moved, restored
from flfw.recording.grid import RecordingGrid
from flfw.recording.manifest import rewrite
from flfw.recording.reader import Recordings
from flfw.recording.retention import keep_last

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def same(read: dict[str, np.ndarray], tensors: dict[str, np.ndarray]) -> bool:
    return read.keys() == tensors.keys() and all(
        (read[name].dtype, read[name].shape, read[name].tobytes()) == (value.dtype, value.shape, value.tobytes())
        for name, value in tensors.items()
    )


# --- predictions --------------------------------------------------------------------------------------------------

AWKWARD = np.array(
    [0, 2**31, 1, 2**31 + 1, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF, 0x00800000, 0x7F7FFFFF], np.uint32
).view(np.float32)
"""Both zeros, the least numbers, infinities, NaNs with content, the least normal and the largest number."""


def test_distances_are_undone_for_every_kind_of_number_and_prediction() -> None:
    values, predicted = (grid.ravel() for grid in np.meshgrid(AWKWARD, AWKWARD))
    assert moved(predicted, distances(values, predicted)).tobytes() == values.tobytes()
    assert distances(np.float32([-0.0, 0.0, 1e-45]), np.float32([0, 0, 0])).tolist() == [1, 0, 2]


def test_a_prediction_is_the_received_matrix_times_the_decay_and_the_products() -> None:
    prediction = Prediction(0.5, np.float32([[1], [2], [0]]), np.array([[10.0, 100.0]]))
    received = np.float32([[2, 4], [6, 8], [1e-38, -2]])
    # 1e-38 / 2 is too small for a normal float32, and some processes have no others.
    assert prediction.at(slice(0, 3), received).tolist() == [[11.0, 102.0], [23.0, 204.0], [0.0, -1.0]]
    large = Prediction(0.0, np.float32([[3e38]]), np.array([[2.0, 1.0]]))
    assert large.at(slice(0, 1), None).tolist() == [[0.0, float(np.float32(3e38))]]


def test_the_gradient_of_one_example_is_its_biass_gradient_times_its_input() -> None:
    bias, inputs = normal(300), normal(40)
    matrix = bias[:, None] * inputs[None]
    prediction, given = best(matrix, normal(300, 40), bias)
    assert given and prediction.scale == 0.0 and prediction.right.tolist() == [inputs.astype(np.float64).tolist()]
    assert not prediction.to(matrix, None).any()


@pytest.mark.parametrize("shape", [(300, 40), (30, 600)])
def test_decay_and_a_few_steps_are_found_in_the_change_of_weights(shape: tuple[int, int]) -> None:
    received, left, right = normal(*shape), normal(shape[0], 3), normal(3, shape[1])
    matrix = (0.99 * received.astype(np.float64) + 0.1 * left.astype(np.float64) @ right).astype(np.float32)
    prediction, given = best(matrix, received, None)
    assert not given and abs(prediction.scale - 0.99) < 1e-3 and len(prediction.right) == 4  # 3 are needed: 1, 2, 4
    steps = prediction.to(matrix, received)
    assert np.median(steps) <= 4  # two steps of float32 to either side, of 2^32
    assert prediction.corrected(steps, received).tobytes() == matrix.tobytes()


def test_random_numbers_are_not_predicted() -> None:
    prediction, given = best(normal(300, 40), normal(300, 40), normal(300))
    assert len(prediction.right) == 0 and not given


# --- files --------------------------------------------------------------------------------------------------------


def tensors_of_all_kinds() -> dict[str, np.ndarray]:
    bias = normal(5000)
    odd = normal(90, 70)
    odd[0, : len(AWKWARD)] = AWKWARD
    return {
        "layer.weight": bias[:, None] * normal(12)[None],
        "layer.bias": bias,
        "conv.weight": normal(64, 16, 3, 3),
        "odd": odd,
        "turned": normal(80, 90).T,
        "flat": normal(6000),
        "zeros": np.zeros((100, 100), np.float32),
        "long.bias": normal(9),
        "counter": np.array(3),
        "half": normal(9000).astype(np.float16),
        "none": np.zeros((0, 4), np.float32),
    }


@pytest.mark.parametrize("knows", ["nothing", "all", "others"])
def test_every_tensor_comes_back_to_the_bit(knows: str) -> None:
    tensors = tensors_of_all_kinds()
    received = {
        "nothing": {},
        "all": {name: value + value.dtype.type(1) for name, value in tensors.items() if name != "odd"},
        "others": {"flat": normal(6000, 1), "conv.weight": normal(64, 16, 9), "turned": tensors["half"]},
    }[knows]
    data = compacted(tensors, received)
    size = sum(value.nbytes for value in tensors.values())
    assert same(restored(data, size, received), tensors)
    assert data == compacted(tensors, received)
    with pytest.raises(ValueError, match=r"and .* were written"):
        restored(data, size - 1, received)


def test_names_that_are_those_of_parts_are_kept_as_they_are() -> None:
    tensors = {"compact:0:plane0": normal(5000), "w": normal(5000)}
    assert same(restored(compacted(tensors, {}), 40_000, {}), tensors)


def test_a_gradient_of_one_example_takes_a_tenth() -> None:
    bias = normal(5000)
    gradient = {"layer.weight": bias[:, None] * normal(64)[None], "layer.bias": bias}
    assert len(compacted(gradient, {})) < 0.1 * len(save(gradient))


@given(
    st.integers(4, 40),
    st.sampled_from([10, 96, 768, 3072]),
    st.sampled_from(["initial", "thin", "bits", "moved"]),
    st.integers(0, 99),
)
def test_no_tensor_takes_more_than_its_own_bytes(rows: int, columns: int, kind: str, seed: int) -> None:
    """Of few rows or columns the products of a prediction may take more than the numbers do."""
    rng = np.random.default_rng(seed)
    matrix = rng.uniform(-1, 1, (max(rows, 4096 // columns + 1), columns)).astype(np.float32)
    thin = rng.standard_normal((len(matrix), 3)) @ rng.standard_normal((3, columns))
    bits = rng.integers(0, 2**32, matrix.shape, np.uint32).view(np.float32)
    sent = {"initial": matrix, "thin": thin.astype(np.float32), "bits": bits, "moved": matrix + thin}[kind]
    tensors, received = {"w": sent.astype(np.float32)}, {"w": matrix} if kind == "moved" else {}
    data = compacted(tensors, received)
    assert len(data) < len(save(tensors)) + 500 and same(restored(data, sent.size * 4, received), tensors)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shape": [2**40, 2**40]}, "and 400000 were written|of shape"),
        ({"shape": [-1, 5]}, "of shape"),
        ({"shape": [50, 100]}, "has .* bytes, not 5000"),
        ({"packed": [True]}, "of shape"),
        ({"packed": [True] * 4}, "cannot be decompressed"),
        ({"products": 99}, "no products"),
        ({"products": 1, "column": "nobody"}, "no products"),
        ({"received": True, "name": "nobody"}, "from a received tensor that is not there"),
        ({"scale": "zz"}, "hexadecimal"),
        ({"scale": 1}, "no compact file"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(change: dict[str, Any], text: str) -> None:
    data = compacted({"w": RNG.integers(0, 2**32, (100, 100), np.uint32).view(np.float32)}, {})
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    (one,) = json.loads(header["__metadata__"]["compact"])
    with pytest.raises(ValueError, match=text):
        restored(save(load(data), {"compact": json.dumps([one | change])}), 400_000, {})


@pytest.mark.parametrize("data", [b"", b"no file", save({"w": normal(2)}), save({"w": normal(2)}, {"compact": "[3]"})])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no compact file"):
        restored(data, 1000, {})


# --- in recordings ------------------------------------------------------------------------------------------------

app = ClientApp()


@app.train()
def step(message: Message, context: Context) -> Message:
    """Takes one step along an outer product of the client's own; its number is its weight in the mean."""
    received = unpack(message.content.array_records["arrays"])["w"]
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    w = received * 0.999 - 0.1 * torch.outer(*torch.randn(2, len(received), generator=generator))
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": pack({"w": w}), "metrics": metrics}), reply_to=message)


W = torch.randn(100, 100, generator=torch.Generator().manual_seed(9))


def asked(number: int) -> list[Message]:
    return [
        Message(
            RecordDict({"arrays": pack({"w": W * number}), "config": ConfigRecord({"round": number, "client": c})}),
            dst_node_id=c + 1,
            message_type="train",
            group_id=str(number),
        )
        for c in range(3)
    ]


def recorded(folder: Path, rounds: tuple[int, ...] = (1,), compression: str = "compact", **options: Any) -> Path:
    grid = RecordingGrid(InProcessGrid(app, 3, {}), folder, compression=compression, **options)
    for number in rounds:
        list(grid.send_and_receive(asked(number)))
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()][1:]


def test_what_is_read_is_what_a_plain_recording_has(tmp_path: Path) -> None:
    plain = Recordings(recorded(tmp_path / "plain", compression="none"))
    compact = Recordings(recorded(tmp_path / "compact"))
    for one, other in zip(plain.updates(1), compact.updates(1), strict=True):
        assert one.sent["w"].equal(other.sent["w"]) and one.received["w"].equal(other.received["w"])
    assert compact.refused == [] and compact.received("round-0001/client-002-000", ["w"])["w"].equal(W)
    assert compact.stored_bytes < 0.6 * plain.stored_bytes  # of four matrices, one is random
    names = sorted(path.relative_to(tmp_path / "compact").as_posix() for path in (tmp_path / "compact").glob("*/*"))
    assert names[1] == "round-0001/client-000-000.compact.safetensors" and len(names) == 4
    for before, after in zip(rows(tmp_path / "plain"), rows(tmp_path / "compact"), strict=True):
        for side in ("sent_to_client", "sent_by_client"):
            assert (
                after[side]["plain_sha256"] == before[side]["sha256"] and after[side]["bytes"] == before[side]["bytes"]
            )
            file = tmp_path / "compact" / after[side]["file"]
            assert hashlib.sha256(file.read_bytes()).hexdigest() == after[side]["sha256"]


def test_a_broadcast_is_stored_once_also_after_a_resumption(tmp_path: Path) -> None:
    first = RecordingGrid(InProcessGrid(app, 3, {}), tmp_path, compression="compact")
    list(first.send_and_receive(asked(1)))
    again = RecordingGrid(InProcessGrid(app, 3, {}), tmp_path, compression="compact", resume_at=first.mark)
    list(again.send_and_receive(asked(1)))
    assert len(list((tmp_path / "received").iterdir())) == 1 and len(rows(tmp_path)) == 6
    list(RecordingGrid(InProcessGrid(app, 3, {}), tmp_path, resume_at=again.mark).send_and_receive(asked(1)))
    seen = Recordings(tmp_path)
    assert len(seen.updates(1)) == 9 and seen.refused == []  # the lines say how each file is stored
    assert len(list((tmp_path / "received").iterdir())) == 2


@pytest.mark.parametrize("side", ["sent_to_client", "sent_by_client"])
def test_a_file_that_comes_back_as_other_tensors_is_refused(tmp_path: Path, side: str) -> None:
    recorded(tmp_path)
    row = rows(tmp_path)[0]
    file = tmp_path / row[side]["file"]
    (changed,) = restored(file.read_bytes(), 10**6, {"w": W.numpy()}).values()
    data = compacted({"w": changed + np.float32(1)}, {"w": W.numpy()})
    file.write_bytes(data)
    lines = [json.loads(line) for line in (tmp_path / "manifest.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        if line[side]["file"] == row[side]["file"]:
            line[side]["sha256"] = hashlib.sha256(data).hexdigest()
    rewrite(tmp_path, lines)
    seen = Recordings(tmp_path)
    assert len(seen.updates(1)) == (0 if side == "sent_to_client" else 2)
    assert all("brought back to" in sentence for sentence in seen.refused) and seen.refused


def test_a_limit_counts_the_compact_files(tmp_path: Path) -> None:
    recorded(tmp_path, limit_bytes=60_000)
    assert [("skipped" in row) for row in rows(tmp_path)] == [False, False, False]
    recorded(tmp_path / "plain", compression="none", limit_bytes=60_000)
    assert [("skipped" in row) for row in rows(tmp_path / "plain")] == [True, True, True]


def test_rounds_are_forgotten_with_their_files(tmp_path: Path) -> None:
    recorded(tmp_path, (1, 2))
    assert len(keep_last(tmp_path, 1)) == 4 and len(list(tmp_path.glob("*/*"))) == 4
    seen = Recordings(tmp_path).updates(2)
    assert [one.client for one in seen] == [0, 1, 2] and seen[0].received["w"].equal(W * 2)
