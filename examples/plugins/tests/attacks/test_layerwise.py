"""Layerwise recovers a digit from the undefended sigmoid LeNet."""

from flfw.attacks.layerwise import Layerwise, LayerwiseSettings
from tests.support.attackable import attackable, db, digits, generators


def test_a_digit_is_recovered_from_the_sigmoid_lenet() -> None:
    x, y = digits(0, side=8)
    observations, knowledge = attackable("lenet", 8, (x, y))
    (result,) = Layerwise(LayerwiseSettings(iterations=200)).run(observations, knowledge, generators(1))
    assert db(x, result) > 20
