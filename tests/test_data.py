"""Data sets: what is read, what is refused, what is kept, and what is never imported."""

import gzip
import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flfw.data import cache, describe, load, names, pixels
from flfw.data.cifar import ArrayUnpickler
from flfw.errors import BadInput
from flfw.rng import numpy_generator

REAL = Path(os.environ.get("FLFW_DATA", "no FLFW_DATA"))
UNPUBLISHED = "ignore:Expected the published"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_mnist(root, grey=0):
    """Three training and two test images of 28 x 28 in MNIST's layout; image i is all ``grey + i``."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 3), ("t10k", 2)):
        images = np.repeat(np.arange(grey, grey + count, dtype=np.uint8), 784).tobytes()
        head = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images)
        labels = b"\0\0\x08\x01" + count.to_bytes(4, "big") + bytes(range(7, 7 + count))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return root


def write_cifar(root, per_batch=2, protocol=2):
    """Five training batches and a test batch in CIFAR-10's layout; returns their pixels, batch by batch."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    pixels_of = np.random.default_rng(0).integers(0, 256, (6, per_batch, 3072), dtype=np.uint8)
    for i, name in enumerate([*(f"data_batch_{b}" for b in range(1, 6)), "test_batch"]):
        batch = {"batch_label": name, "labels": [i] * per_batch, "data": pixels_of[i], "filenames": ["x"] * per_batch}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
    return pixels_of


def test_names_and_cards():
    assert names() == ("cancer", "cifar10", "digits", "fmnist", "mnist")
    assert [describe(name).per_client for name in names()] == [None, (600, 300), (150, 45), (600, 600), (600, 600)]
    assert [describe(name).net for name in names()] == ["mlp", "cnn2", "cnn1", "cnn1", "cnn1"]
    with pytest.raises(BadInput, match=r"among cancer, cifar10, digits, fmnist, mnist; got dataset=minst"):
        describe("minst")


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
    many = np.repeat(np.arange(251, dtype=np.uint8), 5).reshape(1255, 1, 1, 1)
    np.testing.assert_array_equal(pixels.resize(many, 3)[:, 0, 2, 1], many[:, 0, 0, 0])


@pytest.mark.parametrize(("name", "side", "line"), [("cancer", 28, "rows of 30 features"), ("digits", 0, "side=0")])
def test_impossible_side(name, side, line):
    with pytest.raises(BadInput, match=line):
        load(name, side=side)


def test_missing_files_are_named_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("FLFW_DATA", str(tmp_path / "env"))
    with pytest.raises(BadInput) as error:
        load("mnist", tmp_path / "given")
    line = str(error.value)
    assert line.startswith("Expected a data root with MNIST/raw/train-images-idx3-ubyte, MNIST/raw/train-labels")
    assert f"data_root={tmp_path / 'given'} without; " in line
    assert "torchvision.datasets.MNIST(ROOT, download=True)" in line
    assert "--data-root" in line
    assert "\n" not in line
    with pytest.raises(BadInput, match=f"data_root={tmp_path / 'env'} "):
        load("cifar10")
    monkeypatch.delenv("FLFW_DATA")
    with pytest.raises(BadInput, match=f"data_root={cache.user_cache() / 'data'} "):
        load("cifar10")


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
@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("train-images-idx3-ubyte", b"", "Expected readable mnist files"),
        ("train-labels-idx1-ubyte", b"\0\0\x08\x01\0\0\0\x03\x01\x02\x63", r"labels 0-9, .*\[1, 2, 99\]"),
        ("t10k-labels-idx1-ubyte", b"\0\0\x08\x01\0\0\0\x01\x01", r"got \(2, 1, 28, 28\) with 1 labels"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, file, content, line):
    root = write_mnist(tmp_path)
    (root / "MNIST" / "raw" / file).write_bytes(content)
    with pytest.raises(BadInput, match=line) as error:
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
    with pytest.raises(BadInput, match=f"asks for {function.__module__}.{function.__name__}"):
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
    with pytest.raises(BadInput, match="set XDG_CACHE_HOME"):
        load("digits")


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_clients_import_nothing_heavy_once_the_caches_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("FLFW_DATA", str(write_mnist(tmp_path)))
    code = """
from flfw.data import load
from flfw.data.partition import IID, Dirichlet, Dominant, split
for name, scheme in (("digits", Dominant()), ("digits", Dirichlet(5.0)), ("cancer", IID()), ("mnist", IID())):
    split(load(name, side=None if name == "cancer" else 28), scheme, clients=2, seed=0)
"""
    exec(code)  # in this process, where the caches are made
    report = """
import sys
print(sorted({"torchvision", "sklearn", "flwr_datasets", "datasets", "pandas", "PIL"} & set(sys.modules)))
"""
    client = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    assert client.stdout == "[]\n"


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
