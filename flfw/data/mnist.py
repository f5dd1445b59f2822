"""MNIST and the sets published in its file format."""

from __future__ import annotations

from pathlib import Path

from flfw.data.dataset import Arrays, DatasetCard


def idx(paths: tuple[Path, ...]) -> Arrays:
    """Images (N, 1, H, W) of four idx files: training images and labels, test images and labels."""
    # torchvision costs 160 MB and 3 s: only the process that fills the cache pays for it. Its readers rather than its
    # MNIST class, which prefers an old processed/training.pt to the files whose sums were checked.
    from torchvision.datasets.mnist import read_image_file, read_label_file

    train_x, train_y, test_x, test_y = map(str, paths)
    return Arrays(
        read_image_file(train_x).unsqueeze(1).numpy(),
        read_label_file(train_y).numpy(),
        read_image_file(test_x).unsqueeze(1).numpy(),
        read_label_file(test_y).numpy(),
    )


# torchvision publishes the sums of the packed files; these are the sums of what the packed files hold.
MNIST = DatasetCard(
    shape=(1, 28, 28),
    classes=10,
    files={
        "MNIST/raw/train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "MNIST/raw/train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "MNIST/raw/t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "MNIST/raw/t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    read=idx,
    source="http://yann.lecun.com/exdb/mnist",
    fetch="torchvision.datasets.MNIST(ROOT, download=True)",
    per_client=(600, 600),
    mean=(0.1307,),
    std=(0.3081,),
)

FASHION_MNIST = DatasetCard(
    shape=(1, 28, 28),
    classes=10,
    files={
        "FashionMNIST/raw/train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "FashionMNIST/raw/train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "FashionMNIST/raw/t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "FashionMNIST/raw/t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    read=idx,
    source="https://github.com/zalandoresearch/fashion-mnist",
    fetch="torchvision.datasets.FashionMNIST(ROOT, download=True)",
    per_client=(600, 600),
    mean=(0.1307,),
    std=(0.3081,),
)
