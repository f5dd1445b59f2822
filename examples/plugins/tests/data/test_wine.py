"""Wine: sizes and range."""

from flfw.data import load


def test_wine_has_its_rows() -> None:
    wine = load("wine")
    assert (wine.train_x.shape, wine.test_x.shape) == ((133, 13), (45, 13))
    assert set(wine.train_y.tolist()) == set(wine.test_y.tolist()) == {0, 1, 2}
    assert wine.train_x.min() == 0 and wine.train_x.max() == 1
