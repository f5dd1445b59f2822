"""Image files: what their pixels become, which are refused, and the two sets of class folders."""

import re

import numpy as np
import pytest
from PIL import Image

from flfw.data import describe, load
from flfw.data.image_files import images
from flfw.errors import InputError
from tests.support.pictures import noise, save, truncate

CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def test_lossless_files_come_back_as_they_were_in_their_order(tmp_path):
    pixels = noise(120, 3, 5, 7)
    paths = [save(tmp_path / f"{row}.png", image) for row, image in enumerate(pixels)]
    np.testing.assert_array_equal(images.decode(paths, side=None), pixels)
    np.testing.assert_array_equal(images.decode(paths[::-1], side=None), pixels[::-1])


def test_jpeg_comes_back_nearly(tmp_path):
    ramp = np.broadcast_to(np.arange(0, 160, 10, dtype=np.uint8), (3, 16, 16))
    x = images.decode([save(tmp_path / "a.jpg", ramp, quality=95)], side=None)
    np.testing.assert_allclose(x[0].astype(int), ramp, atol=4)


def test_grey_becomes_colour(tmp_path):
    grey = save(tmp_path / "g.png", noise(4, 4))
    np.testing.assert_array_equal(images.decode([grey], side=None), [[noise(4, 4)] * 3])


def test_sixteen_bits_of_grey_keep_the_upper_eight(tmp_path):
    deep = np.array([[0, 255, 256, 0x1234, 0xFFFF]], dtype=np.uint16)
    path = save(tmp_path / "deep.png", deep)
    assert images.decode([path], side=None).tolist() == [[[[0, 0, 1, 0x12, 0xFF]]] * 3]


def test_resizing_by_hand(tmp_path):
    # Pixel centres at -1/4, 1/4, 3/4, 5/4: 24.75 and 74.25 in between, rounded.
    ramp = save(tmp_path / "ramp.png", np.array([[0, 99], [0, 99]], dtype=np.uint8))
    assert images.decode([ramp], side=4)[0, 0].tolist() == [[0, 25, 74, 99]] * 4
    # Every 16th column is white; without antialiasing a pixel of 16 columns would miss it.
    comb = np.zeros((64, 64), dtype=np.uint8)
    comb[:, ::16] = 255
    small = images.decode([save(tmp_path / "comb.png", comb)], side=4)
    np.testing.assert_allclose(small[0, 0, :, 1:3], 16, atol=1)


def test_the_crop_comes_before_the_resizing(tmp_path):
    numbered = np.arange(12, dtype=np.uint8).reshape(3, 4)
    path = save(tmp_path / "a.png", numbered)
    whole = images.decode([path], side=None, crop=images.center_square)
    assert whole.tolist() == [[numbered[:, :3].tolist()] * 3]
    framed = np.full((8, 8), 255, dtype=np.uint8)
    framed[2:6, 2:6] = 40
    framed_path = save(tmp_path / "b.png", framed)
    middle = images.decode([framed_path], side=3, crop=lambda image: images.center_square(image, edge=4))
    assert np.unique(middle).tolist() == [40]


def test_images_of_many_sizes_need_a_side(tmp_path):
    paths = [save(tmp_path / "a.png", noise(8, 8)), save(tmp_path / "b.png", noise(6, 9))]
    with pytest.raises(InputError, match=r"got \S+a.png of 8x8 and \S+b.png of 9x6 pixels; .*--image-size 64\.$"):
        images.decode(paths, side=None)
    assert images.decode(paths, side=4).shape == (2, 3, 4, 4)
    paths[0] = save(tmp_path / "c.png", noise(64, 64))
    with pytest.raises(InputError, match=r"--image-size 32\.$"):  # 64 is what it has
        images.decode(paths, side=None)


def write_fractions(path):
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(path)


@pytest.mark.parametrize(
    ("name", "damage", "why"),
    [
        ("b.png", truncate, "truncated"),
        ("b.jpg", truncate, "truncated"),
        ("b.png", lambda path: path.write_text("<html>404</html>"), "UnidentifiedImageError"),
        ("b.png", lambda path: path.unlink(), "FileNotFoundError"),
        ("b.png", lambda path: path.write_bytes(b""), "UnidentifiedImageError"),
        ("b.tif", write_fractions, "fractions"),
    ],
)
def test_a_damaged_image_is_named_with_the_reason(tmp_path, name, damage, why):
    paths = [save(tmp_path / file, noise(3, 40, 40)) for file in ("a.png", name, "c.png")]
    damage(paths[1])
    truncate(paths[2])
    for listed in (paths, paths[1:]):  # the first of two is named, wherever it is
        with pytest.raises(InputError, match=rf"readable image, got {re.escape(str(paths[1]))} \(.*{why}") as error:
            images.decode(listed, side=None)
        assert "\n" not in str(error.value)


def test_no_images_are_no_images():
    assert images.decode([], side=8).shape == (0, 3, 8, 8)


@pytest.mark.parametrize(("terminal", "many", "shown"), [("1", 3, True), ("1", 4, False), ("", 3, False)])
def test_a_bar_shows_many_images_on_a_terminal(tmp_path, monkeypatch, capsys, terminal, many, shown):
    monkeypatch.setenv("FORCE_COLOR", terminal)  # rich takes it for a terminal
    monkeypatch.setattr(images, "_MANY", many)
    images.decode([save(tmp_path / "a.png", noise(4, 4))] * 4, side=None)
    printed = capsys.readouterr()
    assert ("decoding" in printed.err, printed.out) == (shown, "")


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((4, 6), kind) for kind in (np.uint8, bool, np.uint16)]
    + [np.zeros((channels, 4, 6), np.uint8) for channels in (3, 4)],  # the last with transparency
)
def test_the_shape_of_a_file(tmp_path, pixels):
    assert images.decode([save(tmp_path / "a.png", pixels)], None).shape == (1, 3, 4, 6)


def write_cinic(root, per_class=3):
    """CINIC-10's layout, ``per_class`` training images of a class and one less to test; returns pixels by part."""
    pixels = {}
    for part, count in (("train", per_class), ("test", per_class - 1)):
        pixels[part] = noise(10, count, 3, 32, 32)
        for name, of_class in zip(CINIC_CLASSES, pixels[part], strict=True):
            for number, image in enumerate(of_class):
                save(root / "CINIC-10" / part / name / f"cifar10-{part}-{number}.png", image)
    (root / "CINIC-10" / "valid" / "airplane").mkdir(parents=True)
    (root / "CINIC-10" / "valid" / "airplane" / "unused.png").write_text("no image")
    return pixels


def test_cinic10_takes_the_classes_in_turn(tmp_path):
    pixels = write_cinic(tmp_path)
    cinic = load("cinic10", tmp_path)
    assert cinic.train_y.tolist() == [*range(10)] * 3
    assert cinic.test_y.tolist() == [*range(10)] * 2
    for part, x in (("train", cinic.train_x), ("test", cinic.test_x)):
        expected = [pixels[part][label, number] for number in range(pixels[part].shape[1]) for label in range(10)]
        np.testing.assert_array_equal(x, expected)
    assert (cinic.md5_ok, cinic.victims, cinic.test_start, cinic.mean[0]) == (None, range(30), 500, 0.47889522)


def test_a_cinic10_image_that_came_later_is_read(tmp_path):
    write_cinic(tmp_path)
    assert len(load("cinic10", tmp_path).train_y) == 30
    save(tmp_path / "CINIC-10" / "train" / "cat" / "more.png", noise(3, 32, 32))
    assert load("cinic10", tmp_path).train_y.tolist()[-1] == 3


def test_damaged_cinic10(tmp_path):
    write_cinic(tmp_path)
    extra = save(tmp_path / "CINIC-10" / "train" / "zebra" / "a.png", noise(3, 32, 32))
    with pytest.raises(InputError, match=r"with labels 0-9, got .* labels, among them 10;"):
        load("cinic10", tmp_path)
    extra.unlink()
    extra.parent.rmdir()
    broken = truncate(tmp_path / "CINIC-10" / "test" / "dog" / "cifar10-test-1.png")
    with pytest.raises(InputError, match=re.escape(str(broken))):
        load("cinic10", tmp_path)
    save(broken, noise(3, 32, 31))
    with pytest.raises(InputError, match=r"of 32x32 and \S+dog/cifar10-test-1.png of 31x32"):
        load("cinic10", tmp_path)
    for file in (tmp_path / "CINIC-10" / "test" / "dog").iterdir():
        file.unlink()
    with pytest.raises(InputError, match="no valid file for the classes dog"):
        load("cinic10", tmp_path)
    broken.parent.rmdir()
    with pytest.raises(InputError, match=r"a data root with CINIC-10/test/dog, got .*flfw data get cinic10"):
        load("cinic10", tmp_path)


def write_tiny(root, wnids=("n30", "n10", "n20")):
    """Tiny ImageNet's layout with two training images of a class and one to test; returns pixels by file name."""
    folder = root / "tiny-imagenet-200"
    folder.mkdir()
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in wnids))
    (folder / "words.txt").write_text("".join(f"{wnid}\tthing, object\n" for wnid in wnids))
    pixels, lines = {}, []
    for shade, wnid in enumerate(sorted(wnids), start=1):
        for number in range(2):
            pixels[f"{wnid}_{number}.JPEG"] = np.full((3, 64, 64), 30 * shade + 10 * number, dtype=np.uint8)
        for file in (f"{wnid}_0.JPEG", f"{wnid}_1.JPEG"):
            save(folder / "train" / wnid / "images" / file, pixels[file])
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t63\t63\n")
        pixels[f"val_{shade}.JPEG"] = np.full((64, 64), 200 + 10 * shade, dtype=np.uint8)  # a grey file
        save(folder / "val" / "images" / f"val_{shade}.JPEG", pixels[f"val_{shade}.JPEG"])
        lines.append(f"val_{shade}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return pixels


def test_tiny_imagenets_labels_are_places_in_its_list(tmp_path):
    write_tiny(tmp_path)
    tiny = load("tiny_imagenet", tmp_path)
    assert tiny.train_y.tolist() == [0, 1, 2, 0, 1, 2]  # n30, n10, n20: as wnids.txt has them
    np.testing.assert_allclose(tiny.train_x[:, 1, 5, 50], [90, 30, 60, 100, 40, 70], atol=2)
    assert tiny.test_y.tolist() == [0, 1, 2]
    np.testing.assert_allclose(tiny.test_x[:, :, 5, 50], np.repeat([[230], [210], [220]], 3, axis=1), atol=2)
    assert (tiny.shape, tiny.classes, tiny.md5_ok) == ((3, 64, 64), 200, None)
    assert load("tiny_imagenet", tmp_path, side=32).shape == (3, 32, 32)


def test_damaged_tiny_imagenet(tmp_path):
    write_tiny(tmp_path)
    folder = tmp_path / "tiny-imagenet-200"
    annotations = folder / "val" / "val_annotations.txt"
    whole = annotations.read_text()
    annotations.write_text(whole.replace("n20", "n99"))
    with pytest.raises(InputError, match=r"wnids.txt in val_annotations.txt, got n99 for val_2.JPEG"):
        load("tiny_imagenet", tmp_path)
    annotations.write_text(whole + "val_9.JPEG\tn10\t0\t0\t63\t63\n")
    with pytest.raises(InputError, match=r"got \S+/val/images/val_9.JPEG \(FileNotFoundError"):
        load("tiny_imagenet", tmp_path)
    annotations.write_text(whole)
    (folder / "wnids.txt").write_text("n10\nn20\nn30\nn40\n")
    with pytest.raises(InputError, match="no valid file for the classes n40"):
        load("tiny_imagenet", tmp_path)


def test_both_sets_come_from_their_publishers(tmp_path, monkeypatch):
    from flfw.data.files import remote

    requested = []

    def refuse(url, part):
        requested.append((url, part.name))
        raise OSError("no network")

    monkeypatch.setattr(remote, "_transfer", refuse)
    for name in ("cinic10", "tiny_imagenet"):
        card = describe(name)
        with pytest.raises(InputError, match="no network"):
            card.fetch(tmp_path)
    assert requested == [
        ("https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz", "CINIC-10.tar.gz.part"),
        ("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "tiny-imagenet-200.zip.part"),
    ]
