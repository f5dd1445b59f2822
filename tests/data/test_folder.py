"""Anybody's own images: how folders are read, which part an image is of, what shape they have, what is refused."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import sim
from flfw.command import data_sets
from flfw.data import ImageFormat, describe, load, names
from flfw.data.files import cache
from flfw.data.image_files import listing
from flfw.data.splits.partition import split
from flfw.data.splits.schemes import IID
from flfw.errors import InputError
from flfw.recording.observation import Truth
from tests.support.pictures import noise, save, truncate


def write(place, classes, size=(3, 8, 8)):
    """``count`` images of each class; returns the pixels of each, no two alike, by its path below ``place``."""
    pixels = {}
    for label, (name, count) in enumerate(classes.items()):
        for number in range(count):
            file = f"{name}/{number:02d}.png"
            pixels[file] = np.roll(noise(*size), 10 * label + number)
            save(place / file, pixels[file])
    return pixels


def test_every_fifth_image_of_a_class_is_of_the_test_part(tmp_path):
    pixels = write(tmp_path / "own", {"dog": 7, "ant": 2})
    chosen = load(f"folder:{tmp_path / 'own'}")
    train = ["ant/00", "dog/00", "dog/02", "dog/03", "dog/04", "dog/05"]
    test = ["ant/01", "dog/01", "dog/06"]
    np.testing.assert_array_equal(chosen.train_x, [pixels[f"{file}.png"] for file in train])
    np.testing.assert_array_equal(chosen.test_x, [pixels[f"{file}.png"] for file in test])
    assert (chosen.train_y.tolist(), chosen.test_y.tolist()) == ([0, 1, 1, 1, 1, 1], [0, 1, 1])
    assert (chosen.classes, chosen.shape, chosen.md5_ok, chosen.victims) == (2, (3, 8, 8), None, range(0))
    card = describe(chosen.name)
    assert (card.split, card.source) == ("iid", f"images in {tmp_path / 'own'}")


@pytest.mark.parametrize("parts", ["train test", "train test val", "Train dev", "TRAINING eval_set"])
def test_parts_of_their_own_are_kept(tmp_path, parts):
    first, second, *unused = parts.split()
    train, test = write(tmp_path / first, {"b": 3, "a": 1}), write(tmp_path / second, {"b": 1, "a": 2})
    for third in unused:
        write(tmp_path / third, {"b": 1, "a": 1})
    chosen = load(f"folder:{tmp_path}")
    np.testing.assert_array_equal(chosen.train_x, [train[f"{file}.png"] for file in ("a/00", "b/00", "b/01", "b/02")])
    np.testing.assert_array_equal(chosen.test_x, [test[f"{file}.png"] for file in ("a/00", "b/00", "a/01")])
    assert (chosen.train_y.tolist(), chosen.test_y.tolist()) == ([0, 1, 1, 1], [0, 1, 0])
    note = "val with 2 images is not used." if unused else f"{first} is the training part, {second} the test part."
    assert chosen.notes[:-1] == (() if parts == "train test" else (note,))


def test_trains_may_be_a_class(tmp_path):
    write(tmp_path, {"car": 2, "test": 2, "train": 2})
    chosen = load(f"folder:{tmp_path}")
    assert chosen.classes == 3
    assert chosen.train_y.tolist() == chosen.test_y.tolist() == [0, 1, 2]
    assert chosen.notes[:-1] == ("Read as classes, not as parts: test, train.",)
    assert chosen.notes[-1] == "Examples: 3 for training and 3 for tests; by class: car 2, test 2, train 2."


def test_val_is_the_test_part_where_test_has_no_labels(tmp_path):
    for part in ("train", "val"):
        write(tmp_path / part, {"a": 1, "b": 1})
    save(tmp_path / "test" / "unlabelled.png", noise(3, 8, 8))
    chosen = load(f"folder:{tmp_path}")
    assert chosen.test_y.tolist() == [0, 1] and "1 file is not read: 1 .png in no class's folder." in chosen.notes


def test_files_are_listed_as_torchvision_does(tmp_path, capsys):
    from torchvision.datasets import ImageFolder
    from torchvision.datasets.folder import IMG_EXTENSIONS

    assert listing.EXTENSIONS[:9] == IMG_EXTENSIONS
    chosen, other = tmp_path / "own", tmp_path / "elsewhere"
    for file in "b/2.png|b/10.JPG|b/deep/er/1.bmp|b/deep/9.png|B/x.webp|B/a b.Png|é/1.tiff|é/2.ppm".split("|"):
        save(chosen / file, noise(3, 4, 4))
    save(other / "3.png", noise(3, 4, 4))
    (chosen / "B" / "link").symlink_to(other)
    (chosen / "é" / "notes.txt").write_text("no image")
    (chosen / "readme.png").write_text("in no class")
    (chosen / "b" / "Scan.Andersson").write_text("a name")
    theirs = ImageFolder(chosen)
    listed = [example for label, name in enumerate(theirs.classes) for example in listing._images(chosen / name, label)]
    assert [(str(path), label) for path, label in listed] == theirs.samples
    assert listing._folders(chosen) == theirs.classes == ["B", "b", "é"]
    card = describe(f"folder:{chosen}")
    assert {str(chosen / file) for file in card.files} == {path for path, _ in theirs.samples}
    assert data_sets.main(["show", f"folder:{chosen}"]) == 0
    note = "  note     3 files are not read: 1 .png in no class's folder, 1 .txt, 1 of other kinds.\n"
    assert note in capsys.readouterr().out


def test_masks_copies_and_classes_that_differ_in_capitals_are_said_and_links_to_nothing_refused(tmp_path):
    for name in "Cat/0.png|Cat/0_mask.png|Cat/1.png|cat/0.png|cat/0.bmp|cat/1.png".split("|"):
        save(tmp_path / name, noise(4, 4) // 128)  # levels 0 and 1
    alike, twins, dark, _ = load(f"folder:{tmp_path}").notes
    assert alike == "Classes 'Cat' and 'cat' differ in capitals, blanks or dots alone." and twins[:12] == "2 images are"
    assert dark == "The brightest level of the first 256 images of a part is 1 of 255."
    (tmp_path / "cat" / "2.png").symlink_to(tmp_path / "annexed")
    with pytest.raises(InputError, match=r"got 1 links to none; get these, or remove the links\.$"):
        describe(f"folder:{tmp_path}")


@pytest.mark.parametrize(("size", "shape", "net"), [((6, 8), (1, 6, 8), "cnn1"), ((3, 6, 8), (3, 6, 8), "cnn2")])
def test_the_first_image_says_the_shape(tmp_path, size, shape, net):
    pixels = write(tmp_path, {"a": 2, "b": 2}, size)
    chosen, card = load(f"folder:{tmp_path}"), describe(f"folder:{tmp_path}")
    assert chosen.shape == card.shape == shape
    assert card.net == net
    np.testing.assert_array_equal(chosen.train_x[1], pixels["b/00.png"].reshape(-1, 6, 8)[: shape[0]])


@pytest.mark.parametrize("side", [8, 6, 16])  # the width, the height and neither
def test_images_that_are_not_square_are_brought_to_any_side(tmp_path, side):
    write(tmp_path, {"a": 2, "b": 2}, (3, 6, 8))
    assert load(f"folder:{tmp_path}", side=side).shape == (3, side, side)


@pytest.mark.parametrize(("brightest", "bits", "level"), [(0xFFFF, 16, 0x03), (0x0FFF, 12, 0x33), (0xFF, 10, 0xCD)])
def test_sixteen_bit_grey_is_scaled_by_what_all_files_use(tmp_path, brightest, bits, level):
    for name, value in {"a/0.png": 0x0334, "a/1.tif": brightest, "b/0.tif": 0x0334, "b/1.png": 0x0334}.items():
        save(tmp_path / name, np.full((4, 4), value, dtype=np.uint16))
    chosen, fixed = (load(f"folder:{tmp_path}", image_format=ImageFormat(bits=bits)) for bits in (0, 16))
    assert chosen.shape == (1, 4, 4) and (chosen.train_x == level).all() and (fixed.train_x == 0x03).all()
    said = f"Grey levels of 16 bits use {bits}: {2**bits - 1} is white (--expert own_images={bits}bits)."
    assert (chosen.notes[:-1], fixed.notes[:-1]) == ((said,) if bits < 16 else (), ())


def test_images_of_many_sizes_are_refused_unless_a_side_is_asked_for(tmp_path):
    write(tmp_path, {"a": 2, "b": 2})
    save(tmp_path / "b" / "01.png", noise(3, 9, 7))
    for side in (8, 64):  # the first image's own size among them
        assert load(f"folder:{tmp_path}", side=side).shape == (3, side, side)
    with pytest.raises(InputError, match=r"got \S+a/00.png of 8x8 and \S+b/01.png of 7x9 pixels; .*--image-size 64"):
        load(f"folder:{tmp_path}")  # although it was read before, at that size


def test_a_folder_that_changes_is_read_anew(tmp_path):
    pixels = write(tmp_path, {"a": 2, "b": 2})
    name = f"folder:{tmp_path}"
    first = load(name)
    assert load(name).train_x.filename == first.train_x.filename
    save(tmp_path / "a" / "02.png", pixels["b/01.png"])
    assert load(name).train_y.tolist() == [0, 1, 0]
    (tmp_path / "a" / "02.png").unlink()
    assert load(name).train_x.filename == first.train_x.filename
    save(tmp_path / "a" / "00.png", pixels["b/01.png"])
    os.utime(tmp_path / "a" / "00.png", ns=(1, 1))  # as a clock that is coarser than the test would not
    np.testing.assert_array_equal(load(name).train_x[0], pixels["b/01.png"])


def test_copies_of_private_images_are_the_users_alone(tmp_path):
    write(tmp_path / "own", {"dog": 7, "ant": 4})
    before = os.umask(0)
    try:
        split(load(f"folder:{tmp_path / 'own'}"), IID(), 1, 0)
    finally:
        os.umask(before)
    kept = [cache.user_cache(), *cache.user_cache().rglob("*")]
    assert {path.name for path in kept} >= {"pixels", "splits", "train_x.npy"}
    assert {oct(path.stat().st_mode & 0o777) for path in kept} == {"0o600", "0o700"}


def test_a_path_may_lead_from_here_or_from_home(tmp_path, monkeypatch):
    write(tmp_path / "own", {"a": 2, "b": 2})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("own", "./own/", "~/own"):
        assert describe(f"folder:{path}").root == tmp_path / "own"
    assert len(load("folder:own", data_root=tmp_path / "no matter").train_y) == 2


@pytest.mark.parametrize("name", ["folder", "folder:", "folder:no such place"])
def test_no_folder(name):
    with pytest.raises(InputError, match=r"^Expected folder:PATH of a folder with one folder of images per class"):
        load(name)


def test_the_users_own_sets_are_not_listed_but_said():
    assert "folder" not in names()
    with pytest.raises(
        InputError, match=r"Got dataset=flodder:x; did you mean folder\? .*hf:NAME, site:\S+ or package.module:CARD\."
    ):
        describe("flodder:x")


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ([], r"two classes or more, got \S+ with none\.$"),
        (["a.png", "b.png"], r"two classes or more, got \S+ with none\.$"),
        (["a/0.png", "a/1.png"], r"two classes or more, got \S+ with a\.$"),
        (["a/0.png", "a/1.png", "b/0.png"], r"2 images or more \(.jpg, .*\) of each class, got 1 in \S+/b;"),
        (["a/0.png", "a/1.png", "b/notes.txt"], r"got 0 in \S+/b; add some or remove the folder\.$"),
        (["train/a/0.png", "train/b/0.png"], r"got \S+ with train; add parts, or rename classes\.$"),
        (["test/a/0.png", "val/b/0.png"], r"got \S+ with test, val; add parts, or rename classes\.$"),
        (["Train/0.png", "Train/1.png", "Test/0.png", "Test/1.png"], r"got \S+ with Test, Train; add parts"),
        (["train/a/0.png", "Train/a/0.png", "test/a/0.png"], r"got \S+ with Train, test, train; add parts"),
        ([f"{s}/{c}/{i}.png" for s in "st" for c in "ab" for i in "01"], r"got s, t in \S+, each with 2 .*@patient"),
        (["train/a/0.png", "train/b/0.png", "test/a/0.png", "test/c/0.png"], r"and \S+/test, got b, c in one\.$"),
        (["train/a/0.png", "train/b/0.png", "val/a/0.png", "val/b/0.txt"], r"1 images or more .* got 0 in \S+/val/b;"),
        (["train/a/0.png", "test/a/0.png"], r"two classes or more, got \S+ with a\.$"),
    ],
)
def test_other_layouts_are_refused(tmp_path, files, line):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(InputError, match=line) as error:
        describe(f"folder:{tmp_path}")
    assert "\n" not in str(error.value)


def test_damaged_images_are_named(tmp_path):
    write(tmp_path, {"a": 2, "b": 2}, (3, 40, 40))
    truncate(tmp_path / "b" / "01.png")
    with pytest.raises(InputError, match=r"b/01.png \(OSError.*truncated"):
        load(f"folder:{tmp_path}")
    assert not (cache.user_cache() / "pixels").exists()
    (tmp_path / "a" / "00.png").write_text("no image")
    why = r"2 that .*a/00.png \(UnidentifiedImageError: cannot identify image file\);.*b/01.png \(OSError.*truncated"
    with pytest.raises(InputError, match=why):
        describe(f"folder:{tmp_path}", ImageFormat())


def test_clients_import_no_torchvision_and_no_pydicom_for_it(tmp_path):
    write(tmp_path / "own", {"a": 2, "b": 2})
    load(f"folder:{tmp_path / 'own'}")
    code = f"import sys, flfw.data; flfw.data.load('folder:{tmp_path / 'own'}'); print('torchvision' in sys.modules"
    code += " or 'pydicom' in sys.modules)"
    client = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert client.stdout == "False\n"


@pytest.mark.slow
def test_a_folder_nobody_has_seen_is_trained_on_and_audited(tmp_path, monkeypatch):
    write(tmp_path / "own", {"leaf": 12, "rose": 12, "sea": 12}, size=(3, 64, 64))
    monkeypatch.chdir(tmp_path)
    flags = "--dataset folder:own --method fedavg --net linear --clients 2 --rounds 1 --local-epochs 1 --engine inproc"
    assert (
        sim.main([*flags.split(), *["--attack", "analytic", "--images", "2", "--audit-rounds", "0", "--out", "run"]])
        == 0
    )
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["config"]["dataset"] == f"folder:{tmp_path / 'own'}"
    assert result["provenance"]["data"]["source"] == f"images in {tmp_path / 'own'}"
    (entry,) = result["audit"]
    assert (entry["verdict"], entry["share_recovered"]) == ("leaks", 1.0) and entry["psnr"]["low"] > 60
    report = (tmp_path / "run" / "report.html").read_text()
    assert "fedavg on own" in report
    truth = Truth.read(tmp_path / "run" / "truth", next((tmp_path / "run" / "truth").glob("*target*")).stem)
    assert truth.samples.shape == (1, 3, 64, 64)
    assert sim.main([*flags.split(), "--attack", "none", "--show-split", "--out", "drawn"]) == 0
    assert (tmp_path / "drawn" / "split.png").read_bytes().startswith(b"\x89PNG")
