"""Copies in the data: nobody trains on a copy of what is held out, and an audit says how many it does not ask for."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flfw.audit.membership.membership_audit import MembershipAudit
from flfw.data.membership_pairs import PatientGame, copied, games, said_of_copies, without_held_out
from flfw.errors import InputError


def _clients(copies: int) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """Return the places of two clients, inputs (240, 3) and labels: 40 apart, and 200 of which each has copies."""
    rng = np.random.default_rng(0)
    inputs = np.concatenate([rng.random((40, 3)), np.repeat(rng.random((200 // copies, 3)), copies, axis=0)])
    order = rng.permutation(240)
    return (order[:120], order[120:]), inputs, np.zeros(240, np.int64)


def test_nobody_trains_on_a_copy_of_what_is_held_out() -> None:
    train, inputs, labels = _clients(copies=8)
    pairs = games(train, inputs, labels, None, 0, None)
    trained = {inputs[index].tobytes() for places in without_held_out(train, pairs) for index in places}
    held_out = {inputs[index].tobytes() for one in pairs for index in one.held_out}
    assert held_out and not held_out & trained
    assert all(index < 40 for one in pairs for index in (*one.members, *one.held_out))


def test_data_without_copies_have_the_same_pairs_as_ever() -> None:
    train, inputs, labels = _clients(copies=1)
    assert not copied(train, inputs).any() and not said_of_copies(train, inputs, None)
    assert sum(one.count for one in games(train, inputs, labels, None, 0, None)) == 120


def test_copies_that_no_client_has_count_for_nothing() -> None:
    inputs = np.array([[1.0], [2.0], [1.0]])
    assert not copied([np.array([0, 1])], inputs).any()


def test_a_patient_whose_examples_others_have_is_in_no_pair() -> None:
    patients, rng = np.repeat(np.arange(6), 4), np.random.default_rng(0)
    inputs, train = rng.random((24, 3)), (np.arange(24),)
    inputs[2:4] = inputs[:2]  # twice at the same patient: its own
    inputs[20:] = inputs[16:20]  # patients 4 and 5 have the same
    inputs[12] = inputs[8]  # one example of patients 2 and 3 alone
    pairs = games(train, inputs, np.zeros(24, np.int64), patients, 0, None)
    assert isinstance(pairs[0], PatientGame)
    assert {*pairs[0].pairs.members, *pairs[0].pairs.held_out} == {0, 1, 2, 3}
    assert "8 training examples are of patients" in said_of_copies(train, inputs, patients)[0]


def test_data_of_copies_alone_are_refused_with_their_number() -> None:
    inputs = np.ones((8, 2))
    with pytest.raises(InputError, match=r"got 0 at client 0.* 8 of its examples have copies"):
        games((np.arange(8),), inputs, np.zeros(8, np.int64), None, 0, None)


def test_an_audit_says_how_many_examples_it_did_not_ask_for() -> None:
    train, inputs, _ = _clients(copies=8)
    task: Any = SimpleNamespace(
        split=SimpleNamespace(train=train, patients=None), dataset=SimpleNamespace(train_x=inputs)
    )
    nothing: Any = None
    (remark,) = MembershipAudit(nothing, nothing, task, nothing, nothing).remarks
    assert remark.startswith("200 training examples stand in the data more than once.")
