"""Who holds what, in words and as a picture."""

import numpy as np
import pytest
from PIL import Image

from flfw.data import load
from flfw.data.splits import picture as shares
from flfw.data.splits.partition import split
from flfw.data.splits.schemes import Dominant, FullCopy, Natural, Pools, Sampled, SampledOnDemand
from tests.support.toys import toy


def words(text):
    return [line.split() for line in text.splitlines()]


def test_a_row_says_what_a_client_holds():
    data = toy()
    rows = words(shares.table(data, split(data, Dominant(train=10, test=5), clients=11, seed=0)))
    assert rows[0] == ["client", "train", "test", *(f"c{label}" for label in range(10))]
    # See test_partition: one of each class, and 2, 2, 4 of the dominant ones.
    assert rows[2] == [*map(str, (0, 18, 14, 3, 3, 5, 1, 1, 1, 1, 1, 1, 1))]
    assert rows[3] == [*map(str, (1, 18, 14, 1, 1, 3, 3, 5, 1, 1, 1, 1, 1))]
    assert rows[12][0] == "10" and rows[13] == []


def test_below_the_rows_stands_what_they_do_not_say():
    data = toy(victims=20)
    text = shares.table(data, split(data, FullCopy(), clients=3, seed=0))
    assert "180 of 200 examples held, 180 in more than one client, at most in 3" in text
    assert "20 training examples that no client holds" in text
    assert "100 of 100 test examples" in text
    sampled = shares.table(data, split(data, Sampled(50, 25), clients=3, seed=0))
    assert "150 of 200 examples held, 0 in more than one client\n" in sampled
    assert words(sampled)[0][:4] == ["client", "train", "valid.", "test"]
    assert words(sampled)[2][:4] == ["0", "50", "17", "17"]
    assert "25 training examples, unlabelled" in sampled
    assert "120 training examples with the clients' defences" in shares.table(
        toy(victims=40), split(toy(victims=40), Pools(6), clients=6, seed=0)
    )


def test_what_nobody_holds_is_said_in_words_and_not_as_nought():
    data = toy()
    text = shares.table(data, split(data, FullCopy(), clients=3, seed=0))
    assert "victims       none are set apart: an audit attacks training examples of the clients" in text
    assert "proxy         no training examples with the clients' defences" in text
    assert "distillation  no training examples, unlabelled, with the server" not in text
    assert "distillation  no training examples with the server" in text


def test_many_classes_and_clients_stay_readable():
    data = toy(62, train=100, test=100)
    rows = shares.table(data, split(data, Dominant(1000, 1000), clients=1000, seed=0)).splitlines()
    assert len(rows) < 50 and max(map(len, rows)) < 100
    assert rows[0].split() == ["client", "train", "test", "classes", "most", "frequent"]
    assert rows[2].split(maxsplit=4) == ["0", "1,000", "1,000", "62", "0: 83, 1: 83, 2: 83, 3: 83, 4: 83, ..."]
    assert "⋮" in rows[40]
    assert rows[41].split()[0] == "999"


def test_the_most_frequent_classes_are_named_first():
    assert shares._largest(np.array([0, 5, 9, 5])) == "2: 9, 1: 5, 3: 5"
    assert shares._largest(np.array([1, 1200, 1, 1, 1, 1])) == "1: 1,200, 0: 1, 2: 1, 3: 1, 4: 1, ..."


def test_the_picture_is_dark_where_examples_are_and_white_elsewhere(tmp_path):
    data = toy(classes=2, train=30, test=4)
    made = split(data, Pools(5, share=1.0, classes=1), clients=2, seed=seed_of_two_classes(data))
    shares.picture(data, made, tmp_path / "shares.png", "pools")
    with Image.open(tmp_path / "shares.png") as image:
        pixels = np.asarray(image.convert("L"))
    assert pixels.shape[1] > 600
    # Within the axes: each client fills one of two cells, so about half of the picture is dark.
    height, width = pixels.shape
    inside = pixels[int(0.2 * height) : int(0.7 * height), int(0.15 * width) : int(0.7 * width)]
    assert 0.3 < (inside < 100).mean() < 0.7
    assert 0.3 < (inside == 255).mean() < 0.7


def seed_of_two_classes(data):
    """A seed for which the two clients draw different classes."""
    for seed in range(50):
        made = split(data, Pools(5, share=1.0, classes=1), clients=2, seed=seed)
        if {int(data.train_y[chosen[0]]) for chosen in made.train} == {0, 1}:
            return seed
    raise AssertionError("no seed below 50 gives the clients different classes")


@pytest.mark.parametrize(("classes", "clients"), [(10, 1), (10, 400), (62, 100), (2, 5)])
def test_pictures_of_any_shape_are_of_a_size_to_look_at(tmp_path, classes, clients):
    data = toy(classes, train=40, test=40)
    shares.picture(data, split(data, FullCopy(), clients, seed=0), tmp_path / "shares.png")
    with Image.open(tmp_path / "shares.png") as image:
        assert 600 < image.width < 2400 and 400 < image.height < 1700


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scheme", "held"),
    [
        (
            "digits",
            SampledOnDemand(train=3),
            "1,500 of 1,500 examples held, 1,500 in more than one client, at most in 2",
        ),
        ("synthetic", Natural(train=3, test=1), "3,000 generated examples held, none in more than one client"),
    ],
)
def test_of_a_million_clients_the_first_ones_are_shown(tmp_path, name, scheme, held):
    known = load(name)
    many = split(known, scheme, clients=1_000_000, seed=0)
    assert shares.holdings(known, many).shape == (1000, 10)
    text = shares.table(known, many)
    assert "the first 1,000 of 1,000,000, whose data are made on demand" in text and held in text
    assert text.splitlines()[-7 - 2].split()[0] == "999"
    shares.picture(known, many, tmp_path / "split.png")
    with Image.open(tmp_path / "split.png") as image:
        assert image.size[0] > 500
    few = split(known, scheme, clients=5, seed=0)
    assert shares.holdings(known, few).shape == (5, 10) and "on demand" not in shares.table(known, few)
