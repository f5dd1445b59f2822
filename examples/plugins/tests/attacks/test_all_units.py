"""All units is exact for one example, and refuses a convolution."""

import pytest

from flfw.adversary.attack import NotApplicableError
from flfw.attacks.all_units import AllUnits
from tests.support.attackable import attackable, db, digits, generators


def test_one_digit_is_exact() -> None:
    x, y = digits(5, side=8)
    observations, knowledge = attackable("mlp", 8, (x, y))
    (result,) = AllUnits().run(observations, knowledge, generators(1))
    assert db(x, result) > 100


def test_a_convolution_is_refused() -> None:
    observations, knowledge = attackable("cnn1", 28, digits(0))
    with pytest.raises(NotApplicableError, match="fully connected"):
        AllUnits().run(observations, knowledge, generators(1))
