"""Sketches: linear, of the right size, with inner products that are right on average."""

import pytest
import torch

from flfw.errors import InputError
from flfw.inversion.sketch import Sketch
from flfw.rng import torch_generator

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5)}


def test_with_a_number_for_each_coordinate_nothing_is_lost():
    sketch = Sketch.draw(TENSORS, 100, torch_generator(0, "sketch"))
    assert sketch.width == 11
    assert sorted(sketch.of(TENSORS).abs().tolist()) == sorted([*range(6), *[1] * 5])


def test_each_number_is_a_sum_of_as_many_coordinates_but_for_one():
    sketch = Sketch.draw(TENSORS, 4, torch_generator(0, "sketch"))
    ones = {name: torch.ones_like(value) for name, value in TENSORS.items()}
    plain = Sketch(sketch.names, sketch.order, torch.ones(11), sketch.width)
    assert sketch.depth == 3
    assert plain.of(ones).tolist() == [3, 3, 3, 2]


def test_a_sketch_is_linear():
    sketch = Sketch.draw(TENSORS, 3, torch_generator(0, "sketch"))
    other = {name: torch.rand(value.shape, generator=torch_generator(1, "other")) for name, value in TENSORS.items()}
    both = {name: 2 * TENSORS[name] - other[name] for name in TENSORS}
    torch.testing.assert_close(sketch.of(both), 2 * sketch.of(TENSORS) - sketch.of(other))


@pytest.mark.slow
def test_inner_products_are_right_on_average_and_their_spread_is_that_of_the_width():
    rng = torch_generator(0, "vectors")
    a, b = torch.randn(2, 400, generator=rng) + 1  # without signs, what meets in a sum would not cancel
    width, draws = 50, 4000
    products = []
    for draw in range(draws):
        sketch = Sketch.draw({"v": a}, width, torch_generator(draw, "sketch"))
        products.append(float(sketch.of({"v": a}) @ sketch.of({"v": b})))
    measured, exact = torch.tensor(products), float(a @ b)
    # Two coordinates meet in one sum with probability 7/399: their cross terms have random signs.
    cross = float((a @ a) * (b @ b) + (a @ b) ** 2 - 2 * ((a * b) ** 2).sum())
    std = (7 / 399 * cross) ** 0.5
    assert abs(float(measured.mean()) - exact) < 4 * std / draws**0.5
    assert 0.95 < float(measured.std()) / std < 1.05


def test_other_tensors_and_widths_are_refused():
    sketch = Sketch.draw(TENSORS, 3, torch_generator(0, "sketch"))
    with pytest.raises(InputError, match="Expected tensors a, b, got a"):
        sketch.of({"a": TENSORS["a"]})
    with pytest.raises(InputError, match="Expected 11 numbers, got numbers=12"):
        sketch.of({"a": TENSORS["a"], "b": torch.ones(6)})
    with pytest.raises(InputError, match="Expected width >= 1, got width=0"):
        Sketch.draw(TENSORS, 0, torch_generator(0, "sketch"))
    with pytest.raises(InputError, match="Expected some tensors to sketch"):
        Sketch.draw({}, 3, torch_generator(0, "sketch"))
