"""Types of a network's tensors: those that a message can hold, and of which there is a mean."""

from __future__ import annotations

import pytest

from flfw.errors import InputError
from flfw.nets import build


@pytest.mark.parametrize(("net", "kind"), [("brain", "bfloat16"), ("complex_valued", "complex64")])
def test_a_type_that_cannot_be_sent_or_averaged_is_refused(net: str, kind: str) -> None:
    required = f"^Expected a network of float16, float32, float64 or whole numbers, got extractor.2.weight of {kind}"
    with pytest.raises(InputError, match=required):
        build(f"tests.support.odd_nets:{net}", (1, 8, 8), 10)


def test_a_type_of_few_digits_is_not() -> None:
    assert build("tests.support.odd_nets:half", (1, 8, 8), 10).classes == 10
