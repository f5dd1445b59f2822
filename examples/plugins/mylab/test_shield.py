import torch
from mylab.shield import Shield, ShieldSettings


def test_only_signs_are_sent() -> None:
    sent = Shield(ShieldSettings(scale=2)).update({"w": torch.tensor([3.0, -1.0])}, torch.Generator())
    assert sent["w"].tolist() == [4.0, -4.0]
