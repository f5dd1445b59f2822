"""The adaptation to drop_entries explains what the defence sends."""

import torch

from flfw.attacks.adaptations.drop_entries import DropEntriesAdaptation
from flfw.clients.defences.drop_entries import DropEntries
from flfw.rng import torch_generator


def test_the_true_gradient_explains_the_observation() -> None:
    true = {"w": torch.randn(100, generator=torch_generator(0, "test"))}
    sent = DropEntries().update(true, torch_generator(1, "test"))
    adaptation = DropEntriesAdaptation({"share": 0.5})
    explained = adaptation.apply(true, sent, adaptation.read(sent))
    torch.testing.assert_close(explained, sent)
