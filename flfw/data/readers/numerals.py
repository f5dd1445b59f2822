"""Digit data sets, and others in MNIST's file format: house numbers, postcodes, coloured and synthetic digits.

Digit5 has digits in five domains, one for each of FedCG's clients (Wu et al., IJCAI 2022).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.files.remote import Remote, remotes, torchvision_set, unchecked
from flfw.data.image_files import images
from flfw.data.readers import pixels
from flfw.data.readers.by_domain import chosen
from flfw.errors import InputError


def _idx(
    folder: str, prefix: str = "", test: str = "t10k", transposed: bool = False
) -> Callable[[Path, int | None], DatasetArrays]:
    """Return a reader of four idx files below ``ROOT/folder/raw``: images (N, 1, H, W) and labels of both parts.

    Args:
        folder: folder of the set.
        prefix: prefix of the file names.
        test: name of the test part in the file names.
        transposed: whether the files store each image column by column, i.e. transposed.
    """

    def read(root: Path, side: int | None) -> DatasetArrays:
        raw = root / folder / "raw"
        images, labels = (
            [_idx_bytes(raw / f"{prefix}{half}-{kind}-ubyte", axes) for half in ("train", test)]
            for kind, axes in (("images-idx3", 3), ("labels-idx1", 1))
        )
        train_x, test_x = ((x.swapaxes(1, 2) if transposed else x)[:, None] for x in images)
        return DatasetArrays(train_x, labels[0], test_x, labels[1])

    return read


def _idx_bytes(path: Path, axes: int) -> np.ndarray:
    """Read an idx file of bytes: two zeros, 8 for bytes, the number of axes, their sizes, the values."""
    content, start = np.fromfile(path, np.uint8), 4 + 4 * axes
    if content[:4].tolist() != [0, 0, 8, axes]:
        raise ValueError(f"not an idx file of bytes with {axes} axes")
    return content[start:].reshape(content[4:start].view(">u4"))


_idx_card = partial(DatasetCard, shape=(1, 28, 28), mean=(0.1307,), std=(0.3081,))

# torchvision publishes the sums of the packed files; these are the sums of the unpacked files.
MNIST = _idx_card(
    classes=10,
    files={
        "MNIST/raw/train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "MNIST/raw/train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "MNIST/raw/t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "MNIST/raw/t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    read=_idx("MNIST"),
    source="http://yann.lecun.com/exdb/mnist",
    licence="none stated by the publishers; the documentation of Keras names CC BY-SA 3.0",
    citation="LeCun, Bottou, Bengio and Haffner: Gradient-based learning applied to document recognition. IEEE, 1998",
    fetch=torchvision_set("MNIST"),
    per_client={"dominant": (600, 600), "shards": (500, 0), "pools": (200, 0)},
)

FASHION_MNIST = _idx_card(
    classes=10,
    files={
        "FashionMNIST/raw/train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "FashionMNIST/raw/train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "FashionMNIST/raw/t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "FashionMNIST/raw/t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    read=_idx("FashionMNIST"),
    source="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    citation="Xiao, Rasul and Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
    fetch=torchvision_set("FashionMNIST"),
    per_client={"dominant": (600, 600)},
)

# By class: 10 digits, 26 capital and 26 small letters. The files hold every image transposed.
EMNIST = _idx_card(
    classes=62,
    files=dict.fromkeys(
        f"EMNIST/raw/emnist-byclass-{half}-{kind}-ubyte"
        for half in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ),
    read=_idx("EMNIST", prefix="emnist-byclass-", test="test", transposed=True),
    source="https://www.nist.gov/itl/products-and-services/emnist-dataset",
    citation="Cohen, Afshar, Tapson and van Schaik, EMNIST, arXiv:1702.05373, 2017",
    fetch=torchvision_set("EMNIST", split="byclass"),
    per_client={"dominant": (1000, 600)},
)


_Half = tuple[np.ndarray, np.ndarray]  # images (N, C, H, W) uint8, labels (N,) int64


def _both(half: Callable[[Path, str], _Half]) -> Callable[[Path, int | None], DatasetArrays]:
    """Return a reader for a set with both parts in the same format."""
    return lambda root, side: DatasetArrays(*half(root, "train"), *half(root, "test"))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a damaged file can make scipy and bz2 raise anything, and they do not name it
        raise InputError(
            f"Expected a readable {path}, got {type(error).__name__}: {' '.join(str(error).split())}; "
            "remove it and get it again."
        ) from error


def _svhn(root: Path, part: str) -> _Half:
    from torchvision.datasets import SVHN

    with _reading(root / "SVHN" / f"{part}_32x32.mat"):
        half = unchecked(SVHN)(root / "SVHN", split=part)
    return half.data, half.labels


def _usps(root: Path, part: str) -> _Half:
    from torchvision.datasets import USPS

    with _reading(root / "USPS" / ("usps.bz2" if part == "train" else "usps.t.bz2")):
        half = USPS(root / "USPS", train=part == "train")
    return half.data[:, None], np.array(half.targets)


def _mnist_m(root: Path, part: str) -> _Half:
    """Read the images in the list of labels, in its order."""
    folder, listing = root / "mnist_m" / f"mnist_m_{part}", root / "mnist_m" / f"mnist_m_{part}_labels.txt"
    paths, labels = [], []
    for number, line in enumerate(listing.read_text().splitlines(), 1):
        name, _, label = line.partition(" ")
        if not label.isdecimal():
            raise InputError(
                f"Expected lines such as 00000000.png 5, got {line!r} in {listing}:{number}; get the set again."
            )
        paths.append(folder / name)
        labels.append(int(label))
    return images.decode(paths, side=None), np.array(labels)


def _synthetic_digits(root: Path, part: str) -> _Half:
    from scipy.io import loadmat

    path = root / "SynthDigits" / f"synth_{part}_32x32.mat"
    with _reading(path):
        content = loadmat(path, variable_names=["X", "y"])
        return content["X"].transpose(3, 2, 0, 1), content["y"].reshape(-1).astype(np.int64)


_HOUSE_NUMBERS = "http://ufldl.stanford.edu/housenumbers"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"

# Both are published file by file; these are torchvision's sums.
_SVHN_FILES = (
    Remote(f"{_HOUSE_NUMBERS}/train_32x32.mat", "SVHN/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
    Remote(f"{_HOUSE_NUMBERS}/test_32x32.mat", "SVHN/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
)
_USPS_FILES = (
    Remote(f"{_LIBSVM}/usps.bz2", "USPS/usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
    Remote(f"{_LIBSVM}/usps.t.bz2", "USPS/usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
)

_card = partial(DatasetCard, shape=(3, 32, 32), classes=10, net="cnn2", split="iid")

SVHN = _card(
    files={remote.file: remote.md5 for remote in _SVHN_FILES},
    read=_both(_svhn),
    source=_HOUSE_NUMBERS,
    licence="non-commercial use only",
    citation="Netzer, Wang, Coates, Bissacco, Wu and Ng, Reading digits in natural images, NIPS workshop, 2011",
    fetch=remotes(*_SVHN_FILES),
)

USPS = DatasetCard(
    shape=(1, 16, 16),
    classes=10,
    files={remote.file: remote.md5 for remote in _USPS_FILES},
    read=_both(_usps),
    source=f"{_LIBSVM}.html#usps",
    citation="Hull, A database for handwritten text recognition research, IEEE TPAMI 16(5), 1994",
    fetch=remotes(*_USPS_FILES),
    split="iid",
)

MNIST_M = _card(
    files=dict.fromkeys(f"mnist_m/mnist_m_{part}" for part in ("train", "test", "train_labels.txt", "test_labels.txt")),
    read=_both(_mnist_m),
    source="http://yaroslav.ganin.net (MNIST-M)",
    citation="Ganin and Lempitsky, Unsupervised domain adaptation by backpropagation, ICML 2015",
    fetch=remotes(
        Remote(
            "https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi",
            "mnist_m.tar.gz",
            "859df31c91afe82e80e5012ba928f279",
            unpack="mnist_m",
        )
    ),
)

SYNTHETIC_DIGITS = _card(
    files={"SynthDigits/synth_train_32x32.mat": None, "SynthDigits/synth_test_32x32.mat": None},
    read=_both(_synthetic_digits),
    source="http://yaroslav.ganin.net (Synthetic Digits)",
    citation="Ganin and Lempitsky, Unsupervised domain adaptation by backpropagation, ICML 2015",
    fetch="a browser: SynthDigits.zip on http://yaroslav.ganin.net, to be unpacked into SynthDigits",
)


_SETS = {"mnist": MNIST, "mnist_m": MNIST_M, "svhn": SVHN, "synthetic_digits": SYNTHETIC_DIGITS, "usps": USPS}
_SHAPE = (3, 32, 32)
_HELD_OUT = "mnist"


def digit5(word: str) -> DatasetCard:
    """Return the card of all five domains, or of those listed in ``word``, in its order: ``usps,mnist``.

    Every image is resized to 3 x 32 x 32; grey ones get three equal channels. If MNIST is among the domains, the server
    holds it and the clients hold the others.

    Raises:
        InputError: an unknown or repeated domain, or fewer than two.
    """
    domains = chosen("digit5", word, tuple(_SETS))
    if len(domains) < 2:
        raise InputError(f"Expected two domains or more, got dataset=digit5:{word}; --dataset {word} is that alone.")
    cards = [_SETS[domain] for domain in domains]
    return DatasetCard(
        shape=_SHAPE,
        classes=10,
        files={file: md5 for card in cards for file, md5 in card.files.items()},
        read=partial(_read, domains),
        source="; ".join(f"{domain}: {_origin(card)}" for domain, card in zip(domains, cards, strict=True)),
        licence="; ".join(f"{name}: {card.licence or 'unknown'}" for name, card in zip(domains, cards, strict=True)),
        citation="; ".join(dict.fromkeys(card.citation for card in cards)),
        fetch=partial(_fetch, cards),
        net="lenet5",
        split="domains",
        per_client={"domains": (2000, 0)},
        mean=(0.485, 0.456, 0.406),  # ImageNet's, as FedCG takes them
        std=(0.229, 0.224, 0.225),
        domains=domains,
        held_out=_HELD_OUT if _HELD_OUT in domains else "",
    )


def _origin(card: DatasetCard) -> str:
    return f"by {card.fetch}" if isinstance(card.fetch, str) else card.source


def _fetch(cards: Sequence[DatasetCard], root: Path) -> None:
    for card in cards:
        if callable(card.fetch) and not all((root / file).exists() for file in card.files):
            card.fetch(root)


def _read(domains: Sequence[str], root: Path, side: int | None) -> DatasetArrays:
    side = side or _SHAPE[-1]
    arrays: list[np.ndarray] = []
    places: list[np.ndarray] = []
    members = [pixels.read(domain, _SETS[domain], root, side) for domain in domains]
    for half in ([member[:2] for member in members], [member[2:4] for member in members]):
        colour = [np.broadcast_to(pixels.resize(x, side), (len(x), _SHAPE[0], side, side)) for x, _ in half]
        arrays += [np.concatenate(colour), np.concatenate([y for _, y in half])]
        places.append(np.repeat(np.arange(len(half)), [len(y) for _, y in half]))
    return DatasetArrays(*arrays, *places)
