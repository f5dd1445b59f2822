import pytest
import torch
from mylab.loss_after import LossAfter
from torch import nn

from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.inputs import InputSpec
from flfw.recording.observation import Examples


def test_what_fits_the_sent_weights_scores_higher() -> None:
    net, inputs = nn.Linear(2, 2, bias=False), InputSpec.from_constants((2,), (0.0, 0.0), (1.0, 1.0))
    one = MembershipRound(1, {"weight": torch.zeros(2, 2)}, {0: {"weight": torch.eye(2)}}, lr=0.1, steps=1)
    both = Examples(torch.eye(2), torch.tensor([0, 0]))
    view = MembershipView(0, (one,), both, both, lambda known: PlainVictim(net, known, ("*",), inputs))
    (scores,) = LossAfter().scores(view, torch.Generator()).values()
    assert scores.tolist() == pytest.approx([-0.3133, -1.3133], abs=1e-4)  # log(1 + 1/e), and 1 more
