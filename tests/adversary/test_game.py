"""The membership game of a run: nobody trains on what is held out, and the order of candidates tells nothing."""

import numpy as np
import pytest
import torch

from flfw.audit.membership.candidates import ordered
from flfw.data.membership_pairs import game, without_held_out
from flfw.errors import InputError


def test_nobody_trains_on_what_is_held_out() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    train = (np.array([0, 1, 4, 5]), np.array([2, 3, 6, 7]))
    pairs = game(train, labels, 0, None)
    left = without_held_out(train, pairs)
    assert [sorted(places) for places in left] == [sorted(one.members) for one in pairs]
    assert all((labels[one.members] == labels[one.held_out]).all() for one in pairs)


def test_clients_that_share_examples_or_have_one_pair_are_refused() -> None:
    labels = np.zeros(6, int)
    with pytest.raises(InputError, match="without common training examples"):
        game((np.array([0, 1, 2, 3]), np.array([3, 4, 5, 0])), labels, 0, None)
    with pytest.raises(InputError, match="got 1 at client 0"):
        game((np.array([0, 1]),), labels, 0, None)


def test_the_order_of_candidates_is_that_of_their_content() -> None:
    samples, labels = torch.rand(6, 2, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    turned = torch.tensor([3, 4, 5, 0, 1, 2])
    one, other = ordered(samples, labels), ordered(samples[turned], labels[turned])
    assert labels[one].tolist() == labels[turned][other].tolist()
