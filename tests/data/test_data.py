"""Data sets: what is read, what is refused, what is kept, and what is never imported."""

import gzip
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flfw import data, nets
from flfw.data import DatasetArrays, DatasetCard, describe, fetch, load, names
from flfw.data.files import cache
from flfw.data.readers import pixels
from flfw.data.readers.cifar import ArrayUnpickler
from flfw.errors import InputError
from flfw.rng import numpy_generator
from tests.support.mnist_files import write_idx, write_mnist

REAL = Path(os.environ.get("FLFW_DATA", "no FLFW_DATA"))
UNPUBLISHED = "ignore:Expected the published"


def write_cifar(root, per_batch=2, protocol=2):
    """Five training batches and a test batch in CIFAR-10's layout; returns their pixels, batch by batch."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    pixels_of = np.random.default_rng(0).integers(0, 256, (6, per_batch, 3072), dtype=np.uint8)
    for i, name in enumerate([*(f"data_batch_{b}" for b in range(1, 6)), "test_batch"]):
        batch = {"batch_label": name, "labels": [i] * per_batch, "data": pixels_of[i], "filenames": ["x"] * per_batch}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
    return pixels_of


def toy(**changes):
    """A card of three training images and one test image of 1 x 4 x 4 that its reader makes up."""

    def read(root, side):
        return DatasetArrays(
            np.zeros((3, 1, 4, 4), np.uint8), np.arange(3), np.ones((1, 1, 4, 4), np.uint8), np.zeros(1, int)
        )

    fields = {"shape": (1, 4, 4), "classes": 3, "files": {"toy.bin": None}, "read": read, "source": "made up"}
    return DatasetCard(**{**fields, "fetch": "a pencil", "mean": (0.5,), "std": (0.5,), **changes})


@pytest.fixture
def register(tmp_path, monkeypatch):
    """Makes a card the data set ``toy``, with a ``toy.bin`` in the data root ``tmp_path``."""
    (tmp_path / "toy.bin").touch()
    return lambda card: monkeypatch.setitem(data.catalogue._CARDS, "toy", card)


def test_names_and_cards():
    known = "adult cancer cifar10 digit5 digits emnist fmnist mnist mnist_m svhn synthetic_digits usps"
    assert set(known.split()) <= set(names())
    assert list(names()) == sorted(names())
    with pytest.raises(
        InputError, match=r"=minst; .* among adult, cancer, .*, usps, folder:PATH, csv:.*, text:FILE, hf:NAME, site:"
    ):
        describe("minst")


def test_the_papers_examples_per_client():
    chosen = {name: dict(describe(name).per_client) for name in ("cancer", "cifar10", "digits", "emnist", "mnist")}
    assert chosen == {
        "cancer": {},
        "cifar10": {"dominant": (600, 300), "shards": (400, 0), "pools": (2000, 0)},
        "digits": {"dominant": (150, 45)},
        "emnist": {"dominant": (1000, 600)},
        "mnist": {"dominant": (600, 600), "shards": (500, 0), "pools": (200, 0)},
    }


@pytest.mark.parametrize("name", names())
def test_a_card_agrees_with_itself(name):
    card = describe(name)
    assert len(card.shape) in (1, 3)
    assert card.files or card.population
    assert callable(card.fetch) or card.fetch
    assert len(card.mean) == len(card.std)
    assert len(card.mean) in (0, card.shape[0])
    assert all(std > 0 for std in card.std)
    assert card.split != "dominant" or "dominant" in card.per_client
    assert card.held_out in ("", *card.domains)
    assert card.citation, "a published set is to be cited; its licence may be unknown"
    side = nets.card(card.net).side or card.shape[-1]
    shape = (card.shape[0], side, side) if len(card.shape) == 3 else card.shape
    nets.build(card.net, shape, card.classes)  # refuses inputs it is not made for


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    theirs, ours = load_digits(), load("digits")
    images = np.concatenate([ours.train_x, ours.test_x])[:, 0]
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(np.rint(images / 255 * 16), theirs.images)
    np.testing.assert_array_equal(np.concatenate([ours.train_y, ours.test_y]), theirs.target)
    assert (len(ours.train_y), len(ours.test_y), ours.train_y.dtype) == (1500, 297, np.int64)
    counts = np.bincount(ours.train_y), np.bincount(ours.test_y)
    assert [(c.min(), c.max()) for c in counts] == [(146, 153), (27, 33)]
    assert (ours.md5_ok, ours.victims, ours.shape, ours.is_image) == (None, range(0), (1, 8, 8), True)


def test_cancer_is_scikit_learns_scaled_by_its_training_part():
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import MinMaxScaler

    theirs, ours = load_breast_cancer(), load("cancer")
    order = numpy_generator(0, "cancer cut").permutation(569)
    scaler = MinMaxScaler(clip=True).fit(theirs.data[order[:426]])
    np.testing.assert_allclose(ours.train_x, scaler.transform(theirs.data[order[:426]]), atol=1e-6)
    np.testing.assert_allclose(ours.test_x, scaler.transform(theirs.data[order[426:]]), atol=1e-6)
    np.testing.assert_array_equal(ours.test_y, theirs.target[order[426:]])
    assert abs(ours.train_y.mean() - ours.test_y.mean()) < 0.1  # the file's blocks are broken up
    assert (ours.train_x.dtype, ours.shape, ours.is_image) == (np.float32, (30,), False)
    np.testing.assert_allclose(ours.mean, ours.train_x.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(ours.std, ours.train_x.std(axis=0), rtol=1e-4)


def test_digits_are_resized_and_normalised_as_used():
    digits = load("digits", side=28)
    assert digits.train_x.shape == (1500, 1, 28, 28)
    np.testing.assert_allclose(digits.mean, [(digits.train_x / 255).mean()])
    np.testing.assert_allclose(digits.std, [(digits.train_x / 255).std()])


def test_resize_by_hand():
    ramp = np.array([[[[0, 99], [0, 99]]]], dtype=np.uint8)
    # Pixel centres at -1/4, 1/4, 3/4, 5/4: 24.75 and 74.25 in between, rounded.
    assert pixels.resize(ramp, 4)[0, 0].tolist() == [[0, 25, 74, 99]] * 4
    # Every 16th column is white; without antialiasing a pixel of 16 columns sees only its middle two and misses it.
    comb = np.zeros((1, 1, 64, 64), dtype=np.uint8)
    comb[..., ::16] = 255
    assert pixels.resize(comb, 4)[0, 0, :, 1:3].tolist() == [[16, 16]] * 4
    assert pixels.resize(ramp, 2) is ramp
    mirrored = ramp[..., ::-1]
    mirrored.flags.writeable = False  # as arrays mapped from disk are
    assert pixels.resize(mirrored, 4)[0, 0].tolist() == [[99, 74, 25, 0]] * 4
    many = np.repeat(np.arange(251, dtype=np.uint8), 5).reshape(1255, 1, 1, 1)
    np.testing.assert_array_equal(pixels.resize(many, 3)[:, 0, 2, 1], many[:, 0, 0, 0])


@pytest.mark.parametrize(("name", "side", "line"), [("cancer", 28, "rows of 30 features"), ("digits", 0, "side=0")])
def test_impossible_side(name, side, line):
    with pytest.raises(InputError, match=line):
        load(name, side=side)


def test_missing_files_are_named_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("FLFW_DATA", str(tmp_path / "env"))
    with pytest.raises(InputError) as error:
        load("mnist", tmp_path / "given")
    line = str(error.value)
    assert line.startswith("Expected a data root with MNIST/raw/train-images-idx3-ubyte, MNIST/raw/train-labels")
    assert f"data_root={tmp_path / 'given'} without; " in line
    assert "get the files with flfw data get mnist (source: http://yann.lecun.com" in line
    assert "--data-root" in line
    assert "\n" not in line
    with pytest.raises(InputError, match=f"data_root={tmp_path / 'env'} "):
        load("cifar10")
    monkeypatch.delenv("FLFW_DATA")
    with pytest.raises(InputError, match=f"data_root={cache.user_cache() / 'data'} "):
        load("cifar10")


def test_a_set_that_is_got_by_hand_says_how(tmp_path, monkeypatch):
    monkeypatch.setitem(data.catalogue._CARDS, "toy", toy())
    with pytest.raises(InputError, match=r"with toy\.bin, .* get the files with a pencil \(source: made up\)"):
        load("toy", tmp_path)
    fetch("toy", tmp_path)  # nothing that could be done
    assert list(tmp_path.iterdir()) == []


def test_fetch_gets_what_is_missing_into_the_data_root(tmp_path, monkeypatch):
    requested = []

    def get(root):
        requested.append(root)
        (root / "toy.bin").touch()

    monkeypatch.setitem(data.catalogue._CARDS, "toy", toy(fetch=get))
    monkeypatch.setenv("FLFW_DATA", str(tmp_path))
    fetch("toy")
    fetch("toy")
    assert requested == [tmp_path]
    assert load("toy").train_y.tolist() == [0, 1, 2]


def test_a_card_may_name_its_own_root(tmp_path, register):
    register(toy(root=tmp_path))
    assert len(load("toy", Path("elsewhere")).train_y) == 3


@pytest.mark.parametrize(("side", "requested"), [(None, None), (4, None), (2, 2)])
def test_readers_are_told_the_side_unless_it_is_the_cards(tmp_path, register, side, requested):
    sides = []

    def read(root, side):
        sides.append(side)
        return toy().read(root, side)

    register(toy(read=read))
    edge = requested or 4
    assert load("toy", tmp_path, side).shape == (1, edge, edge)  # resized where the reader left it to others
    assert sides == [requested]


def test_a_card_whose_module_changed_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    imports, seen = "import numpy\nfrom tests.data.test_data import toy\n", []
    for value in (7, 250):
        made = f"toy().read(root, side)._replace(train_x=numpy.full((3, 1, 4, 4), {value}, 'u1'))"
        card = f"{imports}CARD = toy(files={{}}, read=lambda root, side: {made})"
        (tmp_path / "a_card_of_mine.py").write_text(card)
        sys.modules.pop("a_card_of_mine", None)
        seen.append(int(load("a_card_of_mine:CARD", tmp_path).train_x.max()))
    sys.modules.pop("a_card_of_mine", None)
    assert seen == [7, 250]


def test_domains_are_kept(tmp_path, register):
    def read(root, side):
        return toy().read(root, side)._replace(train_domain=np.array([1, 0, 1]), test_domain=np.array([1]))

    card = toy(read=read, domains=("chalk", "ink"), held_out="chalk", per_client={"domains": (1, 0)})
    register(card)
    made = load("toy", tmp_path)
    assert (made.train_domain.tolist(), made.test_domain.tolist()) == ([1, 0, 1], [1])
    assert (made.domains, made.held_out, made.per_client) == (card.domains, "chalk", card.per_client)
    digits = load("digits")
    assert (digits.train_domain.tolist(), digits.test_domain.tolist()) == ([0] * 1500, [0] * 297)


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (
            OSError("bad\nblock"),
            r"^Expected readable toy files in .*, got OSError: bad block; get them again: a pencil",
        ),
        (InputError("Expected ink, got chalk."), r"^Expected ink, got chalk\.$"),
    ],
)
def test_whatever_a_reader_stumbles_over_is_one_line(tmp_path, register, raised, line):
    def stumble(root, side):
        raise raised

    register(toy(read=stumble))
    with pytest.raises(InputError, match=line):
        load("toy", tmp_path)


ROWS, LEVELS, CLASSES = np.array([[0.0, 0.5], [1.0, 0.25]]), np.arange(8).reshape(2, 1, 2, 2), np.array([0, 1])


def as_test_part(x, y):
    made = DatasetArrays(ROWS if x.ndim == 2 else LEVELS, CLASSES, x, y)
    return pixels.read("toy", toy(shape=x.shape[1:], classes=2, read=lambda root, side: made), Path(), None)[2:4]


def test_arrays_of_another_type_are_read_where_they_say_the_same() -> None:
    for x, kind in ((ROWS, "f4"), (LEVELS, "u1"), (LEVELS.astype("f4"), "u1")):
        for y in (CLASSES == 1, CLASSES.astype("i4"), CLASSES.astype("f4"), CLASSES[:, None], np.eye(2)):
            inputs, labels = as_test_part(x, y)
            assert np.array_equal(inputs, x) and labels.tolist() == [0, 1]
            assert (inputs.dtype, labels.dtype) == (kind, "i8")


def test_arrays_that_say_something_else_are_refused() -> None:
    cases = [
        (ROWS[:0], CLASSES[:0], "inputs, got none"),
        (np.where(ROWS == 0.25, np.nan, ROWS), CLASSES, "inputs from 0 to 1, got nan in row 1, column 1; scale"),
        (6 * ROWS - 3, CLASSES, "inputs from 0 to 1, got -3 in row 0, column 0; scale"),
        (LEVELS / 7, CLASSES, "images of whole levels 0 to 255, got type=float64, lowest=0.0, highest=1.0"),
        (ROWS, CLASSES + 0.5, "inputs .* with labels 0-1, got .* among them 0.5, 1.5;"),
        (ROWS, CLASSES.astype(str), ", got types="),
    ]
    for x, y, line in cases:
        with pytest.raises(InputError, match=f"^Expected .*toy test {line}".replace(" ,", ",")):
            as_test_part(x, y)


def test_small_mnist_is_read_kept_and_read_again_when_it_changes(tmp_path):
    root = write_mnist(tmp_path)
    with pytest.warns(UserWarning, match="md5 sums for train-images-idx3-ubyte, train-labels"):
        first = load("mnist", root)
    assert first.train_x[:, 0, 5, 5].tolist() == [0, 1, 2]
    assert (first.train_y.tolist(), first.test_y.tolist()) == ([7, 8, 9], [7, 8])
    assert (first.md5_ok, first.mean, first.std) == (False, (0.1307,), (0.3081,))
    assert isinstance(first.train_x, np.memmap)
    assert not first.train_x.flags.writeable
    again = load("mnist", root, side=28)  # no warning, which would be an error: nothing was read anew
    assert again.train_x.filename == first.train_x.filename
    with pytest.warns(UserWarning, match="md5"):
        smaller = load("mnist", root, side=14)
    assert (smaller.shape, smaller.train_x[2].max()) == ((1, 14, 14), 2)
    write_mnist(root, grey=50)
    with pytest.warns(UserWarning, match="md5"):
        assert load("mnist", root).train_x[:, 0, 5, 5].tolist() == [50, 51, 52]


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_small_fashion_mnist_is_another_folder(tmp_path):
    write_mnist(tmp_path, grey=100, folder="FashionMNIST")
    assert load("fmnist", tmp_path).test_x[:, 0, 5, 5].tolist() == [100, 101]
    with pytest.raises(InputError, match="data root with MNIST/raw"):
        load("mnist", tmp_path)


def test_small_emnist_stands_upright(tmp_path):
    folder = tmp_path / "EMNIST" / "raw"
    upright = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    for half, part, labels in (("train", slice(3), [0, 61, 10]), ("test", slice(3, 5), [36, 9])):
        columns_first = np.array([[image[:, column] for column in range(28)] for image in upright[part]])
        write_idx(folder / f"emnist-byclass-{half}-images-idx3-ubyte", columns_first)
        write_idx(folder / f"emnist-byclass-{half}-labels-idx1-ubyte", np.array(labels))
    emnist = load("emnist", tmp_path)  # without a warning: nobody published sums of these files
    np.testing.assert_array_equal(np.concatenate([emnist.train_x, emnist.test_x])[:, 0], upright)
    assert (emnist.train_y.tolist(), emnist.test_y.tolist()) == ([0, 61, 10], [36, 9])
    assert (emnist.shape, emnist.classes, emnist.md5_ok) == ((1, 28, 28), 62, None)


def test_emnist_lies_where_torchvision_puts_it(tmp_path):
    from torchvision.datasets import EMNIST

    theirs = EMNIST.__new__(EMNIST)  # its constructor wants the files to be there
    theirs.root, theirs.split = tmp_path, "byclass"
    files = []
    for theirs.train in (True, False):
        files += [str(Path(path).relative_to(tmp_path)) for path in (theirs.images_file, theirs.labels_file)]
    assert list(describe("emnist").files) == files
    assert len(EMNIST.classes_split_dict["byclass"]) == describe("emnist").classes


@pytest.mark.filterwarnings(UNPUBLISHED)
@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("train-images-idx3-ubyte", b"", "Expected readable mnist files"),
        ("train-labels-idx1-ubyte", b"\0\0\x08\x01\0\0\0\x03\x01\x02\x63", r"labels 0-9, .* among them 99;"),
        ("t10k-labels-idx1-ubyte", b"\0\0\x08\x01\0\0\0\x01\x01", r"got \(2, 1, 28, 28\) with 1 labels"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, file, content, line):
    root = write_mnist(tmp_path)
    (root / "MNIST" / "raw" / file).write_bytes(content)
    with pytest.raises(InputError, match=line) as error:
        load("mnist", root)
    assert "\n" not in str(error.value)
    assert not (cache.user_cache() / "pixels").exists()


@pytest.mark.parametrize("protocol", [2, 4])
def test_small_cifar10_in_the_official_layout(tmp_path, protocol):
    batches = write_cifar(tmp_path, protocol=protocol)
    with pytest.warns(UserWarning, match=r"data_batch_1, .*test_batch; results say md5_ok=false"):
        cifar = load("cifar10", tmp_path)
    assert cifar.train_y.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    np.testing.assert_array_equal(cifar.train_x[3], batches[1][1].reshape(3, 32, 32))
    np.testing.assert_array_equal(cifar.test_x.reshape(2, 3072), batches[5])
    assert (cifar.md5_ok, cifar.mean, cifar.victims) == (False, (0.4914, 0.4822, 0.4465), range(10))


class Payload:
    """Pickled as a call of ``function``."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.filterwarnings(UNPUBLISHED)
@pytest.mark.parametrize("function", [os.system, eval])
def test_a_malicious_pickle_is_refused_before_it_runs(tmp_path, function):
    write_cifar(tmp_path)
    trace = tmp_path / "ran"
    argument = f"touch {trace}" if function is os.system else f"open({str(trace)!r}, 'w')"
    batch = {"data": Payload(function, argument), "labels": [0]}
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(batch))
    with pytest.raises(InputError, match=f"asks for {function.__module__}.{function.__name__}"):
        load("cifar10", tmp_path)
    assert not trace.exists()


def test_the_unpickler_takes_no_codec_but_latin1(tmp_path):
    (tmp_path / "p").write_bytes(b"c_codecs\nencode\n(Vx\nVrot13\ntR.")
    with (tmp_path / "p").open("rb") as file, pytest.raises(pickle.UnpicklingError, match="rot13"):
        ArrayUnpickler(file).load()


def test_the_first_of_two_writers_wins(tmp_path):
    target = tmp_path / "made" / "folder"

    def second(folder):
        cache.write_arrays(folder, {"x": np.full(1, 2)}, {})

    def first(folder):
        cache.publish(target, second)  # finishes while the other is still at work
        cache.write_arrays(folder, {"x": np.full(1, 1)}, {})

    cache.publish(target, first)
    assert cache.read_arrays(target, ["x"])[0][0].tolist() == [2]
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        load("digits")


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_clients_import_nothing_heavy_once_the_caches_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("FLFW_DATA", str(write_mnist(tmp_path)))
    code = """
from flfw.data import load
from flfw.data.splits.partition import split
from flfw.data.splits.schemes import IID, Dirichlet, Dominant
for name, scheme in (("digits", Dominant()), ("digits", Dirichlet(5.0)), ("cancer", IID()), ("mnist", IID())):
    split(load(name, side=None if name == "cancer" else 28), scheme, clients=2, seed=0)
"""
    exec(code)  # in this process, where the caches are made
    report = """
import sys
heavy = {"torchvision", "sklearn", "scipy", "flwr_datasets", "datasets", "pandas", "PIL", "rich"}
print(sorted(heavy & set(sys.modules)))
"""
    client = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    assert client.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "published"), [("mnist", "MNIST"), ("fmnist", "FashionMNIST")])
def test_real_mnist_has_torchvisions_sums(name, published):
    if not (REAL / published).is_dir():
        pytest.skip(f"no {published} in FLFW_DATA={REAL}")
    import torchvision

    real = load(name, REAL)
    assert (real.md5_ok, real.train_x.shape, real.test_x.shape) == (True, (60000, 1, 28, 28), (10000, 1, 28, 28))
    theirs = getattr(torchvision.datasets, published)(REAL, train=False)
    np.testing.assert_array_equal(real.test_x[:, 0], theirs.data.numpy())
    np.testing.assert_array_equal(real.test_y, theirs.targets.numpy())
    sums = {Path(file).name: md5 for file, md5 in describe(name).files.items()}
    for file, md5 in theirs.resources:
        packed = (REAL / published / "raw" / file).read_bytes()
        assert hashlib.md5(packed).hexdigest() == md5
        assert hashlib.md5(gzip.decompress(packed)).hexdigest() == sums[file.removesuffix(".gz")]


def test_cifar10_sums_are_torchvisions():
    from torchvision.datasets import CIFAR10

    theirs = {f"{CIFAR10.base_folder}/{file}": md5 for file, md5 in CIFAR10.train_list + CIFAR10.test_list}
    assert describe("cifar10").files == theirs


@pytest.mark.slow
@pytest.mark.filterwarnings(UNPUBLISHED)
def test_real_cifar10():
    if not (REAL / "cifar-10-batches-py").is_dir():
        pytest.skip(f"no cifar-10-batches-py in FLFW_DATA={REAL}")
    cifar = load("cifar10", REAL)
    assert (cifar.train_x.shape, cifar.test_x.shape, cifar.victims) == (
        (50000, 3, 32, 32),
        (10000, 3, 32, 32),
        range(2000),
    )
    assert np.bincount(cifar.train_y).tolist() == [5000] * 10
    assert np.bincount(cifar.test_y).tolist() == [1000] * 10
    mean = cifar.train_x.mean(axis=(0, 2, 3), dtype=np.float64) / 255
    np.testing.assert_allclose(mean, cifar.mean, atol=2e-3)  # channels in the order of the constants


def test_what_comes_or_goes_deep_in_a_folder_is_noticed(tmp_path, register):
    (tmp_path / "deep" / "a" / "b").mkdir(parents=True)
    counted = []

    def read(root, side):
        counted.append(len(list((root / "deep" / "a" / "b").iterdir())))
        return toy().read(root, side)

    register(toy(files={"deep": None}, read=read))
    for number in range(2):
        load("toy", tmp_path)
        load("toy", tmp_path)
        place = tmp_path / "deep" / "a" / "b"
        (place / str(number)).touch()
        os.utime(place, ns=(number, number))  # as a clock that is coarser than the test would not
    load("toy", tmp_path)
    assert counted == [0, 1, 2]


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_sums_are_said_to_be_right_only_if_all_are(tmp_path, register):
    right = hashlib.md5(b"").hexdigest()
    (tmp_path / "other.bin").touch()
    for files, ok in (
        ({"toy.bin": right, "other.bin": right}, True),
        ({"toy.bin": right, "other.bin": None}, None),
        ({"toy.bin": "0" * 32, "other.bin": None}, False),
    ):
        shutil.rmtree(cache.user_cache(), ignore_errors=True)
        register(toy(files=files))
        assert load("toy", tmp_path).md5_ok is ok


def test_the_digest_is_of_what_is_read(tmp_path, register):
    register(toy())
    one = load("toy", tmp_path).digest
    shutil.rmtree(cache.user_cache())
    os.utime(tmp_path / "toy.bin", ns=(1, 1))
    assert load("toy", tmp_path).digest == one
    register(toy(read=lambda root, side: toy().read(root, side)._replace(train_y=np.array([0, 1, 1]))))
    shutil.rmtree(cache.user_cache())
    assert load("toy", tmp_path).digest != one


def test_two_processes_do_not_get_the_same_files_at_once(tmp_path, register):
    root, at_work = tmp_path / "root", []

    def get(root):
        at_work.append("begins")
        time.sleep(0.2)
        (root / "toy.bin").touch()
        at_work.append("ends")

    register(toy(fetch=get))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: fetch("toy", root), range(2)))
    assert at_work == ["begins", "ends"]  # the other waited, and then had nothing to do


def test_moments_are_numpys_whatever_the_block(monkeypatch):
    x = np.random.default_rng(0).integers(0, 256, (7, 3, 4, 5), dtype=np.uint8)
    monkeypatch.setattr(pixels, "_BLOCK", 2)
    mean, std = pixels.moments(x)
    np.testing.assert_allclose(mean, (x / 255).mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(std, (x / 255).std(axis=(0, 2, 3)))
    flat = pixels.moments(np.full((2, 1, 2, 2), 51, np.uint8))
    assert (flat[0], flat[1]) == (pytest.approx([0.2]), [1.0])


def test_what_a_folder_lacks_is_not_asked_for_in_circles(tmp_path, register):
    register(toy(files={"set/a": None, "set/b": None}, fetch=lambda root: None))
    (tmp_path / "set").mkdir()
    with pytest.raises(InputError, match=r"with set/a, set/b, .* after removing what is incomplete \(\S+/set\)"):
        load("toy", tmp_path)


def test_names_with_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    for name, expected in (
        ("folder:own", f"folder:{tmp_path}/own"),
        ("hf:own@fine", f"hf:{tmp_path}/own@fine"),
        ("hf:who/cifar@fine", "hf:who/cifar@fine"),
        ("digit5:usps,mnist", "digit5:usps,mnist"),
    ):
        assert data.absolute(name) == expected
    assert [data.title(name) for name in ("folder:/a/own", "hf:who/cifar@fine", "mnist")] == [
        "own",
        "who/cifar",
        "mnist",
    ]


def test_a_cache_that_earlier_versions_made_readable_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "flfw").mkdir(mode=0o755)
    cache.publish(tmp_path / "flfw" / "data" / "x", lambda path: path.mkdir())
    assert (tmp_path / "flfw").stat().st_mode & 0o777 == 0o700
