"""Drop entries: the share, the mean, the draws."""

import torch

from flfw.clients.defences.drop_entries import DropEntries, DropEntriesSettings
from flfw.rng import torch_generator


def test_the_share_is_dropped_and_the_mean_is_kept() -> None:
    sent = DropEntries(DropEntriesSettings(0.75)).update({"w": torch.ones(10_000)}, torch_generator(0, "test"))["w"]
    assert sorted(set(sent.tolist())) == [0.0, 4.0]
    assert abs(float(sent.mean()) - 1) < 0.1


def test_a_seed_repeats_and_another_differs() -> None:
    first, again, other = (
        DropEntries().update({"w": torch.ones(99)}, torch_generator(seed, "test"))["w"] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
