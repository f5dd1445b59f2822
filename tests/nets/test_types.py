"""Types of a network's tensors: those that a message can hold, and of which there is a mean."""

import pytest

from flfw.errors import InputError
from flfw.nets import build


@pytest.mark.parametrize(("net", "kind"), [("brain", "bfloat16"), ("complex_valued", "complex64"), ("lazy", "a lazy")])
def test_a_tensor_that_cannot_be_sent_or_averaged_is_refused(net: str, kind: str) -> None:
    with pytest.raises(InputError, match=rf"^Expected a network of .*, got \S+\.weight of {kind}"):
        build(f"tests.support.odd_nets:{net}", (1, 8, 8), 10)


def test_a_type_of_few_digits_is_not() -> None:
    assert build("tests.support.odd_nets:half", (1, 8, 8), 10).classes == 10
