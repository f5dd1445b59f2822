"""Stand-ins for private parts: what is read off exactly, and what public data teach."""

import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from flfw.inversion.client_models.victim import GeneratedVictim, PlainVictim
from flfw.inversion.private.surrogate import SurrogateTraining, replaceable, stood_in
from flfw.nets import build
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.rng import initialising, torch_generator

INPUTS = InputSpec.from_constants((1, 4, 4), (0.0,), (1.0,))
LR = 0.1


def examples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bright images of class 1 and dark ones of class 0."""
    rng = torch_generator(seed, "images")
    y = torch.randint(2, (count,), generator=rng)
    return (0.4 * torch.rand(count, 1, 4, 4, generator=rng) + 0.6 * y[:, None, None, None]), y


def hypernetwork(seed: int) -> GeneratedNet:
    with initialising(seed, "net"):
        return GeneratedNet(build("mlp", (1, 4, 4), 2), 4, 8, "fan_in")


def test_a_hypernetwork_s_step_gives_the_extractor_and_its_gradient_exactly() -> None:
    client, (x, y) = hypernetwork(0), examples(6, 0)
    shared = {name: p for name, p in client.named_parameters() if name.startswith("hypernet.")}
    moved = dict(zip(shared, torch.autograd.grad(cross_entropy(client(x), y), list(shared.values())), strict=True))
    known = {name: p.detach() for name, p in shared.items()}
    sent = {name: value - LR * moved[name] for name, value in known.items()}

    weights = {name: value.detach().requires_grad_() for name, value in client.extractor_weights().items()}
    loss = cross_entropy(client.classifier(client.features(x, weights)), y)
    true = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))

    victim = GeneratedVictim(hypernetwork(1), known, INPUTS)
    # What the plain victim observes of the heads' biases is this gradient already; it has not the weights behind it.
    seen, _ = victim.observed(moved)
    torch.testing.assert_close(seen["heads.bias"], torch.cat([value.flatten() for value in true.values()]))

    known_client = stood_in(
        victim, "classifier", sent, LR, examples(40, 1), SurrogateTraining(), torch_generator(0, "stand-in")
    )
    for name, value in true.items():
        torch.testing.assert_close(known_client.update[name], value, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(
            known_client.constants[f"weights.{name}"], weights[name].detach(), rtol=1e-3, atol=1e-5
        )

    classifier = {f"classifier.{name}": value.detach() for name, value in client.classifier.state_dict().items()}
    again = known_client.victim.gradient(x, y, {**known_client.unknown, **classifier}, known_client.constants)
    for name, value in true.items():  # with the client's own classifier nothing is missing
        torch.testing.assert_close(again[name], value, rtol=1e-3, atol=1e-6)


def _plain(private: str) -> tuple[PlainVictim, Tensors]:
    with initialising(0, "net"):
        net = build("mlp", (1, 4, 4), 2)
    shared = {name: value for name, value in net.state_dict().items() if not name.startswith(f"{private}.")}
    return PlainVictim(net, shared, tuple(shared), INPUTS), shared


def _accuracy(victim: PlainVictim, unknown: Tensors) -> float:
    x, y = examples(60, 2)
    scores = functional_call(victim.model, {**victim.known, **unknown}, (INPUTS.normalise(x),))
    return float((scores.argmax(1) == y).float().mean())


def test_a_stand_in_fits_the_shared_part_on_public_data() -> None:
    for private in ("classifier", "extractor"):
        victim, shared = _plain(private)
        sent = {name: value - LR * 0.5 for name, value in shared.items()}
        training = SurrogateTraining(surrogate_epochs=20)
        known_client = stood_in(victim, private, sent, LR, examples(600, 1), training, torch_generator(0, "stand-in"))
        assert known_client.unknown.keys() == victim.unknown.keys()
        assert _accuracy(victim, known_client.unknown) > 0.9
        assert all(torch.allclose(value, torch.tensor(0.5), atol=1e-5) for value in known_client.update.values())
        assert known_client.update.keys() == shared.keys()


def test_no_part_is_replaced_that_is_private_in_part_or_beside_the_other() -> None:
    model = hypernetwork(0)
    names = [name for name in model.state_dict() if not name.startswith("hypernet.")]
    assert replaceable(model, names) == "classifier"
    assert replaceable(torch.nn.Linear(2, 2), ["weight"]) == ""
    plain = build("mlp", (1, 4, 4), 2)
    assert replaceable(plain, list(plain.state_dict())) == ""
    assert replaceable(plain, ["classifier.bias"]) == replaceable(plain, ["extractor.1.bias"]) == ""
