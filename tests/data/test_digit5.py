"""Digits of five looks: each set in its official layout, and the five as one set of domains."""

import bz2
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from flfw import data
from flfw.data import describe, fetch, load, names
from flfw.data.files import cache
from flfw.data.readers import pixels
from flfw.errors import InputError
from tests.support.mnist_files import write_mnist

REAL = Path(os.environ.get("FLFW_DATA", "no FLFW_DATA"))
FIVE = ("mnist", "mnist_m", "svhn", "synthetic_digits", "usps")
UNPUBLISHED = "ignore:Expected the published"


def made_up(count, channels=3, side=32):
    return np.random.default_rng(count).integers(0, 256, (count, channels, side, side), dtype=np.uint8)


def write_mat(path, images, labels):
    path.parent.mkdir(exist_ok=True)
    savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": np.array(labels, np.uint8)[:, None]})


def write_svhn(root):
    """Four and three images; the digit 0 is written 10."""
    write_mat(root / "SVHN" / "train_32x32.mat", made_up(4), [1, 10, 9, 2])
    write_mat(root / "SVHN" / "test_32x32.mat", made_up(3), [10, 5, 5])


def write_synthetic_digits(root, labels=(0, 9, 9, 3, 1)):
    write_mat(root / "SynthDigits" / "synth_train_32x32.mat", made_up(5), labels)
    write_mat(root / "SynthDigits" / "synth_test_32x32.mat", made_up(2), [8, 0])


def write_usps(root):
    """Six and two images of grey levels in [-1, 1]; the digit d is written d + 1."""
    (root / "USPS").mkdir()
    for file, labels in (("usps.bz2", [1, 10, 3, 3, 2, 7]), ("usps.t.bz2", [10, 1])):
        lines = []
        for label, image in zip(labels, made_up(len(labels), 1, 16), strict=True):
            greys = enumerate(image.reshape(-1) / 127.5 - 1, 1)
            # Just above the whole grey level: torchvision cuts off what lies behind the point.
            lines.append(" ".join([str(label), *(f"{i}:{min(grey + 1e-4, 1):.6f}" for i, grey in greys)]))
        (root / "USPS" / file).write_bytes(bz2.compress("\n".join(lines).encode() + b"\n"))


def write_mnist_m(root, test_labels=(7, 0)):
    for half, labels in (("train", (5, 0, 4)), ("test", test_labels)):
        folder = root / "mnist_m" / f"mnist_m_{half}"
        folder.mkdir(parents=True)
        lines = []
        # The list has its own order, which is not that of the names.
        for i, (label, image) in reversed(list(enumerate(zip(labels, made_up(len(labels)), strict=True)))):
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{i:08}.png")
            lines.append(f"{i:08}.png {label}\n")
        (root / "mnist_m" / f"mnist_m_{half}_labels.txt").write_text("".join(lines))


def write_five(root):
    write_mnist(root)
    for write in (write_mnist_m, write_svhn, write_synthetic_digits, write_usps):
        write(root)
    return root


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_small_svhn(tmp_path):
    write_svhn(tmp_path)
    svhn = load("svhn", tmp_path)
    np.testing.assert_array_equal(svhn.train_x, made_up(4))
    np.testing.assert_array_equal(svhn.test_x, made_up(3))
    assert (svhn.train_y.tolist(), svhn.test_y.tolist(), svhn.md5_ok) == ([1, 0, 9, 2], [0, 5, 5], False)
    assert svhn.train_y.dtype == np.int64


def test_another_sum_than_svhns_is_said(tmp_path):
    write_svhn(tmp_path)
    with pytest.warns(UserWarning, match="md5 sums for train_32x32.mat, test_32x32.mat"):
        load("svhn", tmp_path)


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_small_usps(tmp_path):
    write_usps(tmp_path)
    usps = load("usps", tmp_path)
    np.testing.assert_array_equal(usps.train_x, made_up(6, 1, 16))
    np.testing.assert_array_equal(usps.test_x, made_up(2, 1, 16))
    assert (usps.train_y.tolist(), usps.test_y.tolist()) == ([0, 9, 2, 2, 1, 6], [9, 0])


def test_small_mnist_m(tmp_path):
    write_mnist_m(tmp_path)
    mnist_m = load("mnist_m", tmp_path)
    np.testing.assert_array_equal(mnist_m.train_x, made_up(3)[::-1])
    np.testing.assert_array_equal(mnist_m.test_x, made_up(2)[::-1])
    assert (mnist_m.train_y.tolist(), mnist_m.test_y.tolist(), mnist_m.md5_ok) == ([4, 0, 5], [0, 7], None)


def test_small_synthetic_digits(tmp_path):
    write_synthetic_digits(tmp_path)
    synthetic = load("synthetic_digits", tmp_path)
    np.testing.assert_array_equal(synthetic.train_x, made_up(5))
    np.testing.assert_array_equal(synthetic.test_x, made_up(2))
    assert (synthetic.train_y.tolist(), synthetic.test_y.tolist()) == ([0, 9, 9, 3, 1], [8, 0])
    assert synthetic.md5_ok is None


@pytest.mark.filterwarnings(UNPUBLISHED)
@pytest.mark.parametrize("dataset", ["own", "digit5"])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("svhn", "SVHN/test_32x32.mat"),
        ("usps", "USPS/usps.t.bz2"),
        ("synthetic_digits", "SynthDigits/synth_train_32x32.mat"),
        ("mnist_m", "mnist_m/mnist_m_train/00000001.png"),
    ],
)
def test_a_truncated_file_is_named(tmp_path, name, file, dataset):
    whole = (write_five(tmp_path) / file).read_bytes()
    (tmp_path / file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=rf"{tmp_path / file}\b") as error:
        load(name if dataset == "own" else dataset, tmp_path)
    assert "\n" not in str(error.value)
    assert not (cache.user_cache() / "pixels").exists()


def test_a_png_that_the_list_names_and_nobody_has(tmp_path):
    write_mnist_m(tmp_path)
    missing = tmp_path / "mnist_m" / "mnist_m_test" / "00000001.png"
    missing.unlink()
    with pytest.raises(InputError, match=str(missing)):
        load("mnist_m", tmp_path)


@pytest.mark.parametrize("line", ["00000001.png", "00000001.png five", "00000001.png -1", ""])
def test_a_malformed_list_is_named_with_the_line(tmp_path, line):
    write_mnist_m(tmp_path)
    listing = tmp_path / "mnist_m" / "mnist_m_train_labels.txt"
    listing.write_text(f"00000000.png 5\n{line}\n")
    with pytest.raises(InputError, match=rf"got '{line}' in {listing}:2; get the set again"):
        load("mnist_m", tmp_path)


def test_there_is_no_digit_ten(tmp_path):
    write_mnist_m(tmp_path, test_labels=(7, 10))
    with pytest.raises(InputError, match=r"mnist_m test inputs .* labels 0-9, got .* among them 10;"):
        load("mnist_m", tmp_path)
    write_synthetic_digits(tmp_path, labels=(0, 9, 10, 3, 1))
    with pytest.raises(InputError, match=r"synthetic_digits train inputs .* labels 0-9, got .* among them 10;"):
        load("synthetic_digits", tmp_path)
    with pytest.raises(InputError, match="synthetic_digits train inputs"):
        load("digit5:synthetic_digits,mnist_m", tmp_path)  # of the two, the first that is read


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_the_five_as_domains_of_one_set(tmp_path):
    five = load("digit5", write_five(tmp_path))
    assert (five.domains, five.held_out, five.shape, five.classes) == (FIVE, "mnist", (3, 32, 32), 10)
    assert five.train_domain.tolist() == [0] * 3 + [1] * 3 + [2] * 4 + [3] * 5 + [4] * 6
    assert five.test_domain.tolist() == [0] * 2 + [1] * 2 + [2] * 3 + [3] * 2 + [4] * 2
    for index, domain in enumerate(FIVE):
        alone = load(domain, tmp_path, side=32)
        for ours, theirs, where in (
            (five.train_x, alone.train_x, five.train_domain == index),
            (five.test_x, alone.test_x, five.test_domain == index),
        ):
            for channel in range(3):
                np.testing.assert_array_equal(ours[where][:, channel], theirs[:, channel % theirs.shape[1]])
        np.testing.assert_array_equal(five.train_y[five.train_domain == index], alone.train_y)
        np.testing.assert_array_equal(five.test_y[five.test_domain == index], alone.test_y)
    assert (five.mean, five.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (five.per_client, five.md5_ok) == ({"domains": (2000, 0)}, False)


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_chosen_domains_in_their_order_at_another_side(tmp_path):
    write_five(tmp_path)
    two = load("digit5:usps,mnist_m", tmp_path, side=16)
    assert (two.domains, two.held_out, two.shape) == (("usps", "mnist_m"), "", (3, 16, 16))
    assert two.train_domain.tolist() == [0] * 6 + [1] * 3
    np.testing.assert_array_equal(two.train_x[:6, 2], made_up(6, 1, 16)[:, 0])  # never enlarged and shrunk again
    np.testing.assert_array_equal(two.train_x[6:], pixels.resize(made_up(3)[::-1], 16))
    assert describe("digit5:usps,mnist").held_out == "mnist"


def test_the_card_of_digit5():
    assert "digit5" in names()
    card = describe("digit5")
    assert card.files == {file: md5 for domain in FIVE for file, md5 in describe(domain).files.items()}
    assert (card.net, card.split, card.augment) == ("lenet5", "domains", "none")
    for domain in FIVE:
        assert f"{domain}: " in card.source
    assert "SynthDigits.zip" in card.source  # which no command can get
    assert describe("digit5:usps,mnist").source.startswith("usps: https://www.csie.ntu.edu.tw/")
    assert "svhn" not in describe("digit5:usps,mnist").source


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("mnist,cifar10", "of mnist,mnist_m,svhn,synthetic_digits,usps, each once, got digit5:mnist,cifar10"),
        ("mnist,usps,mnist", "each once, got digit5:mnist,usps,mnist"),
        ("mnist,", "each once, got digit5:mnist,"),
        ("usps", "two domains or more, got dataset=digit5:usps; --dataset usps is that alone"),
    ],
)
def test_domains_that_make_no_sense(word, line):
    with pytest.raises(InputError, match=line):
        describe(f"digit5:{word}")


def test_fetch_gets_the_domains_that_are_missing(tmp_path, monkeypatch):
    from flfw.data.readers import numerals

    requested = []
    for domain in ("svhn", "usps", "mnist"):
        spy = data.DatasetCard(
            **{**vars(describe(domain)), "fetch": lambda root, domain=domain: requested.append((domain, root))}
        )
        monkeypatch.setitem(numerals._SETS, domain, spy)
    write_mnist(tmp_path)
    fetch("digit5:usps,synthetic_digits,svhn,mnist", tmp_path)
    assert requested == [("usps", tmp_path), ("svhn", tmp_path)]
    with pytest.raises(InputError, match=r"SynthDigits/synth_train_32x32\.mat, .*by a browser: SynthDigits\.zip"):
        load("digit5:mnist,synthetic_digits", tmp_path)


def test_sums_and_addresses_are_torchvisions(monkeypatch, tmp_path):
    from torchvision.datasets import SVHN, USPS

    from flfw.data.files import remote

    wanted = []
    monkeypatch.setattr(remote, "download", lambda file, root: wanted.append(file))
    for name in ("svhn", "usps"):
        fetch(name, tmp_path)
    theirs = [(cls, *cls.split_list[part]) for cls in (SVHN, USPS) for part in ("train", "test")]
    assert [(file.url, file.file, file.md5) for file in wanted] == [
        (url, f"{cls.__name__}/{file}", md5) for cls, url, file, md5 in theirs
    ]
    for name, files in (("svhn", wanted[:2]), ("usps", wanted[2:])):
        assert describe(name).files == {file.file: file.md5 for file in files}


def test_the_archive_of_mnist_m_becomes_its_folder(tmp_path, monkeypatch):
    import tarfile

    from flfw.data.files import remote

    write_mnist_m(tmp_path / "elsewhere")

    def download(file, root):
        assert (file.file, file.md5) == ("mnist_m.tar.gz", "859df31c91afe82e80e5012ba928f279")
        with tarfile.open(root / file.file, "w:gz") as packed:
            packed.add(tmp_path / "elsewhere" / "mnist_m", "mnist_m")

    monkeypatch.setattr(remote, "download", download)
    (tmp_path / "root").mkdir()
    fetch("mnist_m", tmp_path / "root")
    assert load("mnist_m", tmp_path / "root").train_y.tolist() == [4, 0, 5]


def real(name, folder):
    if not (REAL / folder).is_dir():
        pytest.skip(f"no {folder} in FLFW_DATA={REAL}")
    return load(name, REAL)


@pytest.mark.slow
@pytest.mark.filterwarnings(UNPUBLISHED)
def test_real_usps():
    usps = real("usps", "USPS")
    assert (usps.train_x.shape, usps.test_x.shape) == ((7291, 1, 16, 16), (2007, 1, 16, 16))
    assert np.bincount(usps.train_y).tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert np.bincount(usps.test_y).tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


@pytest.mark.slow
def test_real_mnist_m_shows_mnists_digits():
    mnist_m = real("mnist_m", "mnist_m")
    assert (mnist_m.train_x.shape[1:], mnist_m.test_x.shape[1:]) == ((3, 32, 32), (3, 32, 32))
    assert (len(mnist_m.train_y), len(mnist_m.test_y)) in ((10000, 5000), (59001, 9001))  # a shortened copy, the whole
    if (REAL / "MNIST").is_dir():
        mnist = load("mnist", REAL)
        assert mnist_m.train_y[:100].tolist() == mnist.train_y[:100].tolist()
        assert mnist_m.test_y[:100].tolist() == mnist.test_y[:100].tolist()
