"""Sets of the Hugging Face Hub, from folders on disk that its library reads like downloaded ones."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pytest

from flfw.data import describe, load
from flfw.errors import InputError


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test may have imported these before, which is when they read the environment.
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def pictures(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def write(root: Path, part: str, columns: dict[str, list[Any]], features: dict[str, Any]) -> str:
    from datasets import Dataset, Features

    root.mkdir(exist_ok=True)
    Dataset.from_dict(columns, features=Features(features)).to_parquet(root / f"{part}.parquet")
    return f"hf:{root}"


def labelled(names: list[str]) -> dict[str, Any]:
    from datasets import ClassLabel, Image

    return {"img": Image(), "label": ClassLabel(names=names)}


def as_images(x: np.ndarray) -> list[Any]:
    from PIL import Image

    return [Image.fromarray(image) for image in x]


def truncated() -> bytes:
    file = io.BytesIO()
    as_images(pictures(1, 64, 64, 3))[0].save(file, format="PNG")
    return file.getvalue()[:-200]


def test_of_sixteen_grey_bits_the_upper_eight_of_those_that_are_used_count(tmp_path: Path) -> None:
    from PIL import Image

    for largest, shift in [(57_000, 8), (3_800, 4), (190, 0)]:
        levels = np.arange(5 * 4, dtype=np.uint16).reshape(5, 2, 2) * (largest // 19)
        columns = {"img": [Image.fromarray(image) for image in levels], "label": [0, 1, 0, 1, 0]}
        name = write(tmp_path / f"deep{shift}", "train", columns, labelled(["a", "b"]))
        assert (load(name).train_x[:, 0] == levels[:4] >> shift).all()
        assert f"{2 ** (8 + shift) - 1} of 16 bits is white" in describe(name).source


def test_images_of_other_levels_beside_sixteen_bits_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    for kind, level in ((np.uint8, 3), (np.float32, 3), (np.int32, 70_000), (np.int32, -1)):
        levels = [np.full((2, 2), 300, np.uint16)] * 4 + [np.full((2, 2), level, kind)]
        columns = {"img": [Image.fromarray(image) for image in levels], "label": [0, 1, 0, 1, 0]}
        with pytest.raises(InputError, match=r"row \d of hf:.* (16 bits beside|grey levels go from -?\d+ to)"):
            load(write(tmp_path / f"{kind.__name__}{level}", "train", columns, labelled(["a", "b"])))


def test_words_are_no_labels(tmp_path: Path) -> None:
    from datasets import Image, Value

    columns = {"img": as_images(pictures(5, 4, 4, 3)), "name": list("abcde")}
    name = write(tmp_path / "words", "train", columns, {"img": Image(), "name": Value("string")})
    with pytest.raises(InputError, match=r"whole numbers as labels .* got name of type <U1"):
        load(f"{name}@name")


def test_colour_images_with_their_own_test_part(tmp_path: Path) -> None:
    x, t = pictures(4, 6, 5, 3), pictures(2, 6, 5, 3, seed=1)
    features = labelled(["cat", "dog", "eel"])
    write(tmp_path / "pets", "train", {"img": as_images(x), "label": [0, 1, 2, 1]}, features)
    name = write(tmp_path / "pets", "test", {"img": as_images(t), "label": [2, 0]}, features)
    result = load(name)
    assert (result.train_x == x.transpose(0, 3, 1, 2)).all() and (result.test_x == t.transpose(0, 3, 1, 2)).all()
    assert (result.train_y.tolist(), result.test_y.tolist(), result.classes) == ([0, 1, 2, 1], [2, 0], 3)
    assert result.md5_ok is None and "train and test" in result.source
    assert (describe(name).net, describe(name).shape) == ("cnn2", (3, 6, 5))


def test_grey_images_without_a_test_part_hold_out_every_fifth_row(tmp_path: Path) -> None:
    from datasets import Image, Value

    x = pictures(10, 4, 4)
    columns = {"image": as_images(x), "coarse": [0] * 10, "fine": list(range(10))}
    name = write(
        tmp_path / "grey", "train", columns, {"image": Image(), "coarse": Value("int64"), "fine": Value("int64")}
    )
    with pytest.raises(InputError, match=r"one column of labels .* got coarse, fine; name one: hf:.*grey@COLUMN"):
        load(name)
    result = load(f"{name}@fine")
    assert result.train_y.tolist() == [0, 1, 2, 3, 5, 6, 7, 8] and result.test_y.tolist() == [4, 9]
    assert (result.test_x[:, 0] == x[[4, 9]]).all() and result.classes == 10 and describe(f"{name}@fine").net == "cnn1"
    with pytest.raises(InputError, match=r"a column among image, coarse, fine .* got hue"):
        load(f"{name}@hue")


def test_a_folder_that_changed_is_read_anew(tmp_path: Path) -> None:
    features = labelled(["a", "b"])
    for seed in (0, 1):
        x = pictures(5 + seed, 4, 4, 3, seed=seed)
        name = write(tmp_path / "set", "train", {"img": as_images(x), "label": [0, 1, 0, 1, 0, 1][: len(x)]}, features)
        kept = [row for row in range(len(x)) if row != 4]
        assert (load(name).train_x == x[kept].transpose(0, 3, 1, 2)).all()


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"img": as_images(pictures(2, 4, 4, 3)), "label": [0, -1]}, r"0 <= label < 65536 .* got -1 in row 1"),
        (
            {"img": [*as_images(pictures(1, 4, 4, 3)), {"bytes": truncated(), "path": None}], "label": [0, 1]},
            r"a readable image in row 1 of hf:.*odd, got OSError: .*truncated",
        ),
        (
            {"img": [*as_images(pictures(1, 4, 4, 3)), *as_images(pictures(4, 6, 4, 3))], "label": [0] * 5},
            r"one size .* got 4x4 and, in row 1, 4x6 pixels",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_row(tmp_path: Path, columns: dict[str, Any], line: str) -> None:
    write(tmp_path / "odd", "test", {"img": as_images(pictures(1, 4, 4, 3)), "label": [0]}, labelled(["a", "b"]))
    name = write(tmp_path / "odd", "train", columns, labelled(["a", "b"]))
    with pytest.raises(InputError, match=line):
        load(name)


def test_what_is_no_data_set_of_images_is_refused(tmp_path: Path) -> None:
    from datasets import Value

    name = write(
        tmp_path / "rows", "train", {"age": [1], "label": [0]}, {"age": Value("int64"), "label": Value("int64")}
    )
    with pytest.raises(InputError, match=r"one column of images .* got 0 among age, label"):
        load(name)
    with pytest.raises(InputError, match=r"hf:nobody/nothing \(.*\); check its name, or the network"):
        load("hf:nobody/nothing")
    with pytest.raises(InputError, match="got no name; for example hf:"):
        load("hf:")


def test_clients_do_without_the_library(tmp_path: Path) -> None:
    name = write(
        tmp_path / "set", "train", {"img": as_images(pictures(5, 4, 4, 3)), "label": [0] * 5}, labelled(["a", "b"])
    )
    load(name)
    code = f"import sys; from flfw.data import load; load({name!r}); print('datasets' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
