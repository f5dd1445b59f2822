"""Randomness: the same numbers for the same purpose everywhere, others for every other purpose."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from flfw.rng import initialising, numpy_generator, torch_generator

KEY = (3, "batches", 2, 5)
OTHERS = [(4, "batches", 2, 5), (3, "victims", 2, 5), (3, "batches", 3, 5), (3, "batches", 2, 4), (3, "batches", 5, 2)]


def numpys(*key) -> list[float]:
    return numpy_generator(*key).random(4).tolist()


def torchs(*key) -> list[float]:
    return torch.rand(4, generator=torch_generator(*key)).tolist()


def initials(*key) -> list[float]:
    with initialising(*key):
        return nn.Linear(2, 2).weight.flatten().tolist()


WAYS = [numpys, torchs, initials]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_purpose_gives_the_same_numbers(way) -> None:
    first = way(*KEY)
    torch.rand(3)  # whatever else is drawn meanwhile
    assert way(*KEY) == first
    assert len(set(first)) == 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("other", OTHERS)
def test_another_seed_purpose_round_or_partition_gives_others(way, other) -> None:
    assert not set(way(*KEY)) & set(way(*other))


@pytest.mark.slow
def test_another_process_draws_the_same() -> None:
    code = (
        "import torch; from torch import nn; from flfw.rng import *\n"
        f"key = {KEY!r}\n"
        "with initialising(*key): layer = nn.Linear(2, 2)\n"
        "print([numpy_generator(*key).random(4).tolist(), torch.rand(4, generator=torch_generator(*key)).tolist(),"
        " layer.weight.flatten().tolist()])\n"
    )
    # Python's own hash() differs from process to process; a purpose must not go through it.
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, env={"PYTHONHASHSEED": "7"})
    assert printed.strip() == str([way(*KEY) for way in WAYS])


@pytest.mark.parametrize("way", WAYS)
def test_no_number_is_not_zero(way) -> None:
    assert not set(way(3, "model")) & set(way(3, "model", 0))


def test_initialising_puts_the_global_generator_back() -> None:
    before = torch.get_rng_state()
    inside = initials(*KEY)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(100)
    assert initials(*KEY) == inside


def test_initialising_puts_the_global_generator_back_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), initialising(*KEY):
        torch.rand(5)
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)
