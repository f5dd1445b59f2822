"""The attack on DCS^2: both features out of a genuine message, and nothing out of what is no such message."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attacks.dcs2 import DCS2Inversion, DCS2InversionSettings
from clients.defences.dcs2 import DCS2, DCS2Settings, Search
from flfw import nets
from flfw.adversary.attack import NotApplicable
from flfw.defence import LocalStep
from flfw.errors import BadInput
from flfw.inversion.closed_form.concealed import Separated, separate
from flfw.nets.inputs import Inputs
from flfw.nets.representation import representation
from flfw.rng import initialising, torch_generator
from tests.support.attackable import attackable, digits, generators

INPUTS = Inputs.from_constants((1, 12, 12), (0.5,), (0.25,))


def message(net: nn.Module, seed: int, label: int = 3, **settings: object) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """A gradient that the defence sends, and the features of the sensitive and of the concealed sample."""
    rng = torch_generator(seed, "dcs2 attacked")
    x, y = torch.rand(1, *INPUTS.shape, generator=rng), torch.tensor([label])
    public = torch.rand(20, *INPUTS.shape, generator=rng), torch.arange(20) % 10
    named = dict(net.named_parameters())
    gradients = torch.autograd.grad(cross_entropy(net(INPUTS.normalise(x)), y), list(named.values()))
    step = LocalStep(dict(zip(named, gradients, strict=True)), x, y, net, INPUTS, lambda: public)
    chosen = DCS2Settings(**{"steps": 30, "stop": "never", **settings})  # type: ignore[arg-type]
    sent = DCS2(chosen).step(step, torch_generator(seed, "s"))
    x_c, _ = Search(chosen, step, torch.ones(1, dtype=torch.bool), list(named)).concealed(torch_generator(seed, "s"))
    f_s, f_c = (representation(net, "classifier", one)[0] for one in (INPUTS.normalise(x), x_c))
    return sent, f_s, f_c


def separated(net: nn.Module, sent: dict[str, Tensor], label: int = 3, seed: int = 0) -> Separated:
    last = net.get_submodule("classifier")
    weight, bias = last.weight.detach(), last.bias.detach()  # type: ignore[union-attr]
    g = sent["classifier.weight"], sent["classifier.bias"]
    return separate(*g, weight, bias, label, torch_generator(seed, "sep"), starts=40, steps=400)  # type: ignore[arg-type]


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def network(name: str, seed: int) -> nn.Module:
    with initialising(seed, name):
        return nets.build(name, INPUTS.shape, 10)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["lenet", "mlp"])
def test_both_features_come_out_of_a_genuine_message(name: str, seed: int) -> None:
    net = network(name, seed)
    sent, f_s, f_c = message(net, seed, label=seed)
    result = separated(net, sent, label=seed)
    assert result.error < 1e-5 and apart(result.sensitive, f_s) < 1e-4 and apart(result.concealed, f_c) < 1e-4
    assert result.label != seed


def test_and_out_of_one_that_was_projected() -> None:
    net = network("lenet", 0)
    sent, f_s, f_c = message(net, 0)
    x = torch.rand(1, *INPUTS.shape, generator=torch_generator(0, "dcs2 attacked"))
    loss = cross_entropy(net(INPUTS.normalise(x)), torch.tensor([3]))
    g = dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(net.parameters())), strict=True))
    moved = {name: value + 0.8 * g[name] for name, value in sent.items()}
    result = separated(net, moved)
    assert result.error < 1e-5 and apart(result.sensitive, f_s) < 1e-4 and apart(result.concealed, f_c) < 1e-4


def test_another_label_another_mixture_and_noise_solve_no_equation() -> None:
    net = network("lenet", 1)
    sent, *_ = message(net, 1)
    noise = {n: torch.randn(v.shape, generator=torch_generator(0, n)) for n, v in sent.items()}
    other, *_ = message(net, 1, mixture=0.4)
    errors = [separated(net, sent, label=5).error, separated(net, noise).error, separated(net, other).error]
    assert min(errors) > 1e-3


def test_the_attack_finds_the_image_behind_an_undefended_and_a_defended_message() -> None:
    """Equal budgets, the same image: what the defence takes away is little."""
    observations, knowledge = attackable("lenet", 16, digits(0, side=16))
    attack = DCS2Inversion(DCS2InversionSettings(search_iterations=300))
    (plain,) = attack.run(observations, knowledge, generators(1))
    known, seen = knowledge[0], observations[0]
    x, y = digits(0, side=16)
    model = known.model.model
    model.load_state_dict(known.model.known)
    public = torch.rand(20, *x.shape[1:], generator=torch_generator(0, "p")), (torch.arange(20) % 10)
    step = LocalStep(seen.sent, x, y, model, known.model.inputs, lambda: public)
    sent = DCS2(DCS2Settings(steps=20, stop="never")).step(step, torch_generator(0, "s"))
    assert any(not torch.equal(sent[name], value) for name, value in seen.sent.items())
    observations[0].sent.update(sent)
    (defended,) = attack.run(observations, knowledge, generators(1))
    grey = float((x - x.mean()).square().mean())
    errors = [float((one.samples - x).square().mean()) for one in (plain, defended)]
    assert errors[0] < grey / 2 and errors[1] < 1.5 * errors[0] + 1e-4


def test_what_it_cannot_read_is_refused() -> None:
    attack = DCS2Inversion(DCS2InversionSettings(search_iterations=3))
    observations, knowledge = attackable("lenet", 8, digits(0, 2, side=8))
    with pytest.raises(NotApplicable, match="one example in a message"):
        attack.run(observations, knowledge, generators(1))
    observations, knowledge = attackable("lenet5", 32, digits(0, side=32))
    with pytest.raises(NotApplicable, match="ends in one fully connected layer"):
        attack.run(observations, knowledge, generators(1))
    for given, line in (
        ({"mixture": 1.0}, "0 < mixture < 1"),
        ({"starts": 0}, "starts >= 1"),
        ({"tv": -1.0}, "tv >= 0"),
    ):
        with pytest.raises(BadInput, match=line):
            DCS2InversionSettings(**given)  # type: ignore[arg-type]
