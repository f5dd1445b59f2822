"""The wire: named tensors there and back, byte for byte as Flower writes them, and the check of what may leave."""

import tracemalloc

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch import nn

from flfw.files.tensor_names import matches
from flfw.messages.sharing import select_shared
from flfw.messages.wire import deflate, inflate, nbytes, pack, unpack, views

TENSORS = {
    "float32": torch.tensor([[1.5, -2.0, 3.0], [0.0, float("inf"), float("nan")]]),
    "float64": torch.tensor([1e300, -0.0], dtype=torch.float64),
    "float16": torch.tensor([[[0.5]]], dtype=torch.float16),
    "int64": torch.tensor([2**62, -1, 0]),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(3.25),
    "counter": torch.tensor(7),
    "empty": torch.zeros(0),
    "no rows": torch.zeros(0, 3),
    "column": torch.arange(5.0).reshape(1, 5).T,
    "every other": torch.arange(10)[::2],
    "every other column": torch.arange(12.0).reshape(3, 4)[:, ::2],
    "transposed": torch.arange(6.0).reshape(2, 3).T,
}


def each_tensor(test):
    return pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS.keys())(test)


@each_tensor
def test_packing_writes_what_flower_writes(tensor) -> None:
    ours, flowers = pack({"w": tensor})["w"], Array(np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape))
    assert ours.data == flowers.data
    assert (ours.dtype, tuple(ours.shape), ours.stype) == (flowers.dtype, tuple(flowers.shape), flowers.stype)


@each_tensor
def test_unpacking_undoes_packing(tensor) -> None:
    result = unpack(pack({"w": tensor}))["w"]
    assert (result.dtype, result.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(result.nan_to_num(), tensor.nan_to_num())


@each_tensor
@pytest.mark.parametrize("packed_by", ["us", "Flower"])
def test_views_show_what_was_packed(tensor, packed_by) -> None:
    record = pack({"w": tensor}) if packed_by == "us" else ArrayRecord({"w": Array(tensor.numpy())})
    result = views(record)["w"]
    assert (result.dtype, result.shape) == (tensor.numpy().dtype, tuple(tensor.shape))
    np.testing.assert_array_equal(result, tensor.numpy())


@each_tensor
def test_views_copy_nothing_and_cannot_be_written(tensor) -> None:
    record = pack({"w": tensor})
    view = views(record)["w"]
    if view.size:
        assert np.shares_memory(view, np.frombuffer(record["w"].data, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        view[...] = 0


def test_unpacked_tensors_are_the_receivers_own() -> None:
    record = pack({"w": torch.tensor([1.0, 2.0])})
    unpack(record)["w"].zero_()
    assert views(record)["w"].tolist() == [1.0, 2.0]


def test_a_message_does_not_follow_the_model_it_was_packed_from() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    record = pack({"w": weight})
    with torch.no_grad():
        weight.zero_()
    assert unpack(record)["w"].tolist() == [1.0, 2.0]


def test_names_and_their_order_survive() -> None:
    record = pack({"b": torch.zeros(1), "a.weight": torch.zeros(2), "a.bias": torch.zeros(3)})
    assert list(record) == list(unpack(record)) == list(views(record)) == ["b", "a.weight", "a.bias"]


def test_bytes_are_the_arrays_with_their_headers() -> None:
    # A header of NumPy's format fills 128 bytes for any shape this short.
    record = pack({"a": torch.zeros(2, 3), "b": torch.zeros(5, dtype=torch.int64), "c": torch.tensor(True)})
    assert nbytes(record) == (128 + 24) + (128 + 40) + (128 + 1)
    assert nbytes(ArrayRecord({})) == 0


COUNTS = {
    "signs": [[0, -1, 1, -2]],
    "several": [[1, 2, 3], [300, -300, 0], [0, 0, 0], [70_000, 1, 2], [2**31 - 1, -(2**31), 5]],
    "no columns": np.zeros((0, 4)),
    "one row": [[7], [0]],
}


@pytest.mark.parametrize("columns", COUNTS.values(), ids=COUNTS.keys())
def test_inflating_undoes_deflating(columns) -> None:
    columns = np.asarray(columns, np.int32)
    result = inflate(*deflate(columns), columns.shape[1])
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, columns)


def test_a_column_has_as_many_planes_as_its_largest_number_needs() -> None:
    # The sign takes a bit: 127 and -128 are 254 and 255, and 128 is 256.
    columns = np.array([[0, 0], [127, -128], [128, 0], [-(2**15), 0], [2**15, 0], [2**23, 0]], np.int32)
    assert deflate(columns)[1].tolist() == [0, 1, 2, 2, 3, 4]


def test_small_numbers_take_few_bytes() -> None:
    rng = np.random.default_rng(0)
    columns = np.stack([rng.integers(-8, 8, 10_000), np.zeros(10_000), rng.random(10_000) < 0.01]).astype(np.int32)
    stream, _ = deflate(columns)
    assert len(stream) < 10_000 * (4 + 0.2) / 8 * 1.1  # 4 bits a number in the first column, next to nothing after it


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda stream, planes: (stream, planes + 4), "up to 5 bytes a number, of which 4 is the most"),
        (lambda stream, planes: (stream, planes[:1]), "a stream of other than 4 bytes"),
        (lambda stream, planes: (stream, np.append(planes, planes)), "a stream of other than 16 bytes"),
        (lambda stream, planes: (stream[:-1], planes), "a stream of other than 8 bytes"),
        (lambda stream, planes: (np.append(stream, stream), planes), "a stream of other than 8 bytes"),
        (lambda stream, planes: (stream[:0], planes), "a stream of other than 8 bytes"),
        (lambda stream, planes: (stream + 1, planes), "a stream that cannot be inflated"),
        (lambda stream, planes: (deflate(np.ones((9, 10**6), np.int32))[0], planes), "a stream of other than 8 bytes"),
    ],
)
def test_a_stream_of_something_else_is_refused(spoil, reason) -> None:
    stream, planes = spoil(*deflate(np.array([[1, -2, 3, 4], [5, 6, 7, 8]], np.int32)))
    with pytest.raises(ValueError, match=reason):
        inflate(stream, planes, 4)


def test_no_more_is_inflated_than_was_announced() -> None:
    bomb, planes = deflate(np.ones((1, 10**7), np.int32))
    assert len(bomb) < 10**5
    tracemalloc.start()
    with pytest.raises(ValueError, match="a stream of other than 4 bytes"):
        inflate(bomb, planes, 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6


@pytest.mark.parametrize(
    ("name", "patterns", "expected"),
    [
        ("hypernet.trunk.bias", ("hypernet.*",), True),
        ("hypernet", ("hypernet.*",), False),
        ("my.hypernet.bias", ("hypernet.*",), False),
        ("classifier.weight", ("extractor.*", "classifier.*"), True),
        ("Classifier.weight", ("classifier.*",), False),
        ("embedding", ("embedding",), True),
        ("embedding.0", ("embedding",), False),
        ("anything", ("*",), True),
        ("anything", (), False),
    ],
)
def test_a_name_matches_as_a_whole(name, patterns, expected) -> None:
    assert matches(name, patterns) is expected


def test_shared_tensors_are_those_that_match_in_their_order() -> None:
    tensors = {name: torch.zeros(1) for name in ("b.x", "a.x", "b.y", "c")}
    result = select_shared(tensors, ("c", "b.*"))
    assert list(result) == ["b.x", "b.y", "c"]
    assert result["b.y"] is tensors["b.y"]
