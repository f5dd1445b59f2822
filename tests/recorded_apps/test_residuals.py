"""What a described noise leaves of messages: other data, other noise and exposed clients are told by its law alone."""

import numpy as np
import pytest
import torch

from flfw.audit.measures.noise import departure_of_residuals
from flfw.audit.measures.public import PublicData
from flfw.nets.net import Tensors
from flfw.recorded_apps.residuals import Residuals, with_another
from flfw.recording.observation import Truth
from flfw.rng import numpy_generator, torch_generator

SHAPES = {"weight": (10, 64), "bias": (10,)}
MESSAGES = 8


def drawn(seed: int, size: float = 1.0) -> Tensors:
    rng = torch_generator(seed, "residuals")
    return {name: size * torch.randn(shape, generator=rng) for name, shape in SHAPES.items()}


def plus(*parts: Tensors) -> Tensors:
    return {name: sum((part[name] for part in parts), torch.zeros(shape)) for name, shape in SHAPES.items()}


def residuals(size: float, behind: bool = True, described: bool = True, exposed: float = 0.0) -> Residuals:
    """Messages with or without their updates, held against these or others; ``exposed``: the first one's size."""
    result = Residuals()
    for at in range(MESSAGES):
        update = drawn(100 + at, exposed if exposed and not at else size)
        message = plus(drawn(at), update) if behind else drawn(at)
        other = drawn(200 + at, size)
        result.add(message, *((update, other) if described else (other, update)))
    return result


def test_updates_above_the_noise_are_told_from_others_and_leave_noise() -> None:
    found = residuals(0.3)
    assert not found.departure() and not found.faint
    test = found.exchanged()
    assert test is not None and (test.count, test.compared) == (8, 8) and test.p < 1e-20


def test_updates_below_the_noise_are_not_told_from_others() -> None:
    found = residuals(0.003)
    test = found.exchanged()
    assert not found.departure() and found.faint and test is not None and test.p > 0.01


def test_messages_of_other_data_point_along_an_update() -> None:
    assert "points along the update of the data" in residuals(0.1, described=False).departure()


def test_messages_without_any_data_do_not_show_small_updates_though_larger_ones_are_excluded() -> None:
    found = Residuals()
    for at in range(MESSAGES):
        found.add(drawn(at), drawn(100 + at, 1e-3), drawn(200 + at, 0.5))
    test = found.exchanged()
    assert found.faint and test is not None and test.p < 1e-6


def test_one_exposed_client_among_faint_ones_is_found() -> None:
    test = residuals(0.003, exposed=0.5).exchanged()
    assert test is not None and test.p < 1e-6


def test_one_client_with_less_noise_and_messages_without_a_tensor_are_no_described_noise() -> None:
    found = residuals(0.0)
    for name, value in found.rests[3].items():
        found.rests[3][name] = 0.5 * value
    assert "its deviation is 0.5" in found.departure()
    other = residuals(0.0)
    del other.rests[3]["bias"]
    assert other.departure() == "some messages lack tensors that others have"


@pytest.mark.parametrize(("axis", "messages"), [(0, 8), (1, 32)])
def test_rows_and_columns_that_follow_from_others_are_told(axis: int, messages: int) -> None:
    noise = {name: torch.stack([drawn(at)[name] for at in range(messages)]) for name in SHAPES}
    assert not departure_of_residuals(noise)
    rows = noise["weight"].movedim(1 + axis, 0)
    rows[3] = (rows[1] - rows[2]) / 2**0.5
    assert departure_of_residuals(noise) == "in weight some of its entries follow from others"


def test_an_example_is_exchanged_for_a_public_one_of_its_class_or_for_any() -> None:
    data = torch.tensor([[0.0], [1.0]])
    truth = Truth(data, torch.tensor([0, 1]), torch.arange(2))
    public = PublicData(np.array([[0.25], [0.5], [0.75]], np.float32), np.array([2, 0, 2]))
    seen: dict[int, set[float]] = {0: set(), 1: set()}
    for seed in range(40):
        other = with_another(truth, public, numpy_generator(seed, "exchange"))
        (place,) = np.flatnonzero((other.samples != data).numpy())
        seen[int(place)].add(float(other.samples[place]))
    assert seen == {0: {0.5}, 1: {0.25, 0.5, 0.75}}
    assert torch.equal(data, torch.tensor([[0.0], [1.0]]))
