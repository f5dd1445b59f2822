"""The attack on generated extractors: what is read off in closed form, the surrogate, separation, and what is found."""

import copy
import dataclasses
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from flfw import nets
from flfw.adversary.attack import AttackCost, NotApplicableError
from flfw.attacks.hyperfl import HyperFLInversion, HyperFLInversionSettings
from flfw.attacks.ig import IG, IGSettings
from flfw.audit.jobs import AttackJob, ProbeSet
from flfw.audit.measures.metrics import psnr
from flfw.audit.threat_model import threat_model_of
from flfw.client.store import ClientStore
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.inversion.client_models.victim import GeneratedVictim, PlainVictim
from flfw.inversion.closed_form.linear import RecoveredNetwork, linear_inputs, read, without_decay
from flfw.inversion.closed_form.rectified import directions, separate
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.private.extractor import SurrogateVictim, extractor_of, read_off, search, up_to_last_layer
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets import Net
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.nets.training.optimisers import SGD
from flfw.plans.run_plan import plan
from flfw.recording.observation import Knowledge, Observation, Reconstruction, Vantage
from flfw.recording.reader import Recordings
from flfw.rng import initialising, torch_generator
from flfw.runs import run as whole
from flfw.server.checkpoint import stored_experiment
from research.measurements.malicious_hypernetwork import alone_in_their_bins, imprint, serving
from tests.support import attackable
from tests.support.attackable import generators
from tests.support.planned import clients_and_attacks

SIDES = {"cnn1": 28, "mlp": 8, "lenet": 8}


@cache
def inputs_of(net: str) -> InputSpec:
    return attackable.digit_inputs(SIDES[net])


def digits(net: str, first: int, count: int = 1) -> tuple[Tensor, Tensor]:
    """Real digits: raw images in [0, 1] and their labels."""
    return attackable.digits(first, count, SIDES[net])


def generated(net: str = "cnn1", seed: int = 1, embedding: int = 64, hidden: int = 128) -> GeneratedNet:
    with initialising(seed, "generated"):
        return GeneratedNet(nets.build(net, inputs_of(net).shape, 10), embedding, hidden, "fan_in")


def small(net: str = "mlp", seed: int = 1) -> GeneratedNet:
    return generated(net, seed, embedding=6, hidden=16)


def hypernet(model: GeneratedNet) -> nets.Tensors:
    return {name: value.clone() for name, value in nets.tensors(model).items() if name.startswith("hypernet.")}


def sent_by(model: GeneratedNet, net: str, x: Tensor, y: Tensor) -> nets.Tensors:
    """The hypernetwork's gradient, by the ordinary way."""
    gradients = attackable.gradient(model, inputs_of(net), x, y)
    return {name: value for name, value in gradients.items() if name.startswith("hypernet.")}


def extractors_gradient(model: GeneratedNet, net: str, x: Tensor, y: Tensor) -> nets.Tensors:
    """The generated tensors' own gradient, as if they had been shared."""
    weights = {name: value.detach().requires_grad_() for name, value in model.extractor_weights().items()}
    loss = cross_entropy(model.classifier(model.features(inputs_of(net).normalise(x), weights)), y)
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


def error(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


def assert_read(result: RecoveredNetwork, client: GeneratedNet, bound: float) -> None:
    """The embedding and the weights of the client's extractor."""
    assert result.embedding is not None and error(result.embedding, client.embedding.detach()) < bound
    for name, value in client.extractor_weights().items():
        assert error(result.weights[name], value.detach()) < bound, name


# --- what is read off ---


@pytest.mark.parametrize("count", [1, 5])
def test_embedding_extractor_and_gradient_are_read_off_float32_gradients(count: int) -> None:
    client, (x, y) = generated(), digits("cnn1", 0, count)
    result = read(client.hypernet.targets, hypernet(client), sent_by(client, "cnn1", x, y))
    assert_read(result, client, 1e-5)
    chosen = extractors_gradient(client, "cnn1", x, y)
    assert list(result.weights) == list(result.gradient) == list(client.extractor_weights())
    for name, value in result.gradient.items():
        assert result.weights[name].dtype == torch.float32
        assert error(value, chosen[name]) < 1e-5, name


def two_heads() -> tuple[dict[str, torch.Size], nets.Tensors, nets.Tensors]:
    """Embedding (2, -1), one hidden unit of two alive, heads of two numbers and of one; gradients by hand.

    h = ReLU((1*2 + 3*-1 + 4, 1*2 + 0 - 5)) = (3, 0). With dL/dtheta = (1, 2 | -1): dL/dW = dL/dtheta h^T and
    dL/dh = (1*1 + 2*0 - 1*2, .) = (-1, .), of which the dead unit hands on nothing.
    """
    known = {
        "hypernet.trunk.weight": torch.tensor([[1.0, 3.0], [1.0, 0.0]]),
        "hypernet.trunk.bias": torch.tensor([4.0, -5.0]),
        "hypernet.heads.0.weight": torch.tensor([[1.0, 7.0], [0.0, 7.0]]),
        "hypernet.heads.0.bias": torch.tensor([0.5, 1.0]),
        "hypernet.heads.1.weight": torch.tensor([[2.0, 7.0]]),
        "hypernet.heads.1.bias": torch.tensor([0.0]),
    }
    gradient = {
        "hypernet.trunk.weight": torch.tensor([[-2.0, 1.0], [0.0, 0.0]]),
        "hypernet.trunk.bias": torch.tensor([-1.0, 0.0]),
        "hypernet.heads.0.weight": torch.tensor([[3.0, 0.0], [6.0, 0.0]]),
        "hypernet.heads.0.bias": torch.tensor([1.0, 2.0]),
        "hypernet.heads.1.weight": torch.tensor([[-3.0, 0.0]]),
        "hypernet.heads.1.bias": torch.tensor([-1.0]),
    }
    return {"a": torch.Size([2, 1]), "b": torch.Size([1])}, known, gradient


def test_reading_by_hand() -> None:
    result = read(*two_heads())
    assert result.embedding is not None and result.embedding.tolist() == [2.0, -1.0]
    assert result.weights["a"].tolist() == [[3.5], [1.0]] and result.weights["b"].tolist() == [6.0]
    assert result.gradient["a"].tolist() == [[1.0], [2.0]] and result.gradient["b"].tolist() == [-1.0]
    assert any(bool(value.any()) for value in result.gradient.values())


def test_the_hidden_layer_serves_where_the_trunk_says_nothing() -> None:
    targets, known, gradient = two_heads()
    quiet = {n: torch.zeros_like(v) if "trunk" in n else v for n, v in gradient.items()}
    result = read(targets, known, quiet)
    assert result.embedding is None
    assert result.weights["a"].tolist() == [[3.5], [1.0]] and result.weights["b"].tolist() == [6.0]


def test_a_dead_hidden_layer_leaves_the_biases_which_are_the_extractor() -> None:
    client, (x, y) = small(), digits("mlp", 0)
    with torch.no_grad():
        client.hypernet.trunk.bias.fill_(-100.0)
    sent = sent_by(client, "mlp", x, y)
    assert not any(bool(sent[n].any()) for n in sent if "trunk" in n or n.endswith("heads.0.weight"))
    result = read(client.hypernet.targets, hypernet(client), sent)
    assert result.embedding is None
    torch.testing.assert_close(result.weights, client.extractor_weights(), rtol=0, atol=0)
    torch.testing.assert_close(result.gradient, extractors_gradient(client, "mlp", x, y))


def test_a_gradient_of_zeros_is_silent() -> None:
    targets, known, gradient = two_heads()
    result = read(targets, known, {n: torch.zeros_like(v) for n, v in gradient.items()})
    assert not any(bool(value.any()) for value in result.gradient.values()) and result.embedding is None
    assert result.weights["a"].flatten().tolist() == [0.5, 1.0]


# --- several local steps ---


def trained(client: GeneratedNet, net: str, x: Tensor, y: Tensor, steps: int, lr: float, decay: float) -> nets.Tensors:
    """The hypernetwork after the client's own steps; beside them, the momentum-weighted sum of its raw gradients."""
    moving = {name: p for name, p in client.named_parameters() if not name.startswith("classifier.")}
    optimiser = SGD(lr, momentum=0.5, weight_decay=decay)
    for _ in range(steps):
        loss = cross_entropy(client(inputs_of(net).normalise(x)), y)
        optimiser.step(moving, dict(zip(moving, torch.autograd.grad(loss, list(moving.values())), strict=True)))
    return hypernet(client)


def test_weight_decay_is_taken_out_of_an_update() -> None:
    """By hand: where no gradient acts, decay and momentum multiply by a factor that a loop on one number gives."""
    before = {n: v * 10 for n, v in two_heads()[1].items()}
    lr, decay, steps = 0.1, 0.01, 4
    velocity, left, share = 0.0, 1.0, 0.0
    weight_of_first = 0.0
    for step in range(steps):  # one weight of 1, and the change that a gradient of 1 in the first step makes
        velocity = 0.5 * velocity + decay * left
        left -= lr * velocity
        share = 0.5 * share + (1.0 if step == 0 else 0.0) + decay * -weight_of_first
        weight_of_first += lr * share
    gradient = two_heads()[2]
    after = {n: left * v - weight_of_first * gradient[n] for n, v in before.items()}
    result = without_decay(before, after)
    expected, bias = {n: weight_of_first * v for n, v in gradient.items()}, "hypernet.heads.0.bias"
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert error(before[bias] - after[bias], expected[bias]) > 0.01


def test_without_decay_an_update_stays_what_it_is() -> None:
    _, before, gradient = two_heads()
    result = without_decay(before, {n: v - 0.1 * gradient[n] for n, v in before.items()})
    torch.testing.assert_close(result, {n: 0.1 * v for n, v in gradient.items()}, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "bound"), [(1, 1e-4), (10, 2e-3)])
def test_embedding_and_extractor_before_several_steps_are_read_off_their_update(steps: int, bound: float) -> None:
    client, (x, y) = generated(), digits("cnn1", 0, 2)
    before, untrained = hypernet(client), copy.deepcopy(client)
    after = trained(client, "cnn1", x, y, steps, 0.01, 5e-4)
    assert_read(read(client.hypernet.targets, before, without_decay(before, after)), untrained, bound)


def test_rounding_is_not_taken_for_an_embedding() -> None:
    client, (x, y) = small(), digits("mlp", 0)
    with torch.no_grad():
        client.hypernet.trunk.bias.fill_(-100.0)
    before = hypernet(client)
    result = read(client.hypernet.targets, before, without_decay(before, trained(client, "mlp", x, y, 7, 0.1, 5e-4)))
    assert result.embedding is None
    for k, value in enumerate(result.weights.values()):
        torch.testing.assert_close(value.flatten(), before[f"hypernet.heads.{k}.bias"], rtol=0, atol=1e-4)


# --- the surrogate ---


def cotangents(model: GeneratedNet, net: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(B, n) the loss's derivative at the outputs of the extractor's last layer, and (B, d) that layer's inputs."""
    layers, last = up_to_last_layer(extractor_of(model))
    assert isinstance(layers, nn.Sequential)
    after = extractor_of(model)[len(layers) :]  # type: ignore[index]
    weights = {name: value.detach() for name, value in model.extractor_weights().items()}
    below = {name: value for name, value in weights.items() if not name.startswith(last)}
    features = torch.func.functional_call(layers[:-1], below, (inputs_of(net).normalise(x),))
    outputs = nn.functional.linear(features, weights[f"{last}.weight"], weights[f"{last}.bias"]).requires_grad_()
    loss = cross_entropy(model.classifier(after(outputs)), y)
    return torch.autograd.grad(loss, outputs)[0], features


@pytest.mark.parametrize("count", [1, 3])
def test_the_surrogate_has_the_true_gradient_at_the_true_data(count: int) -> None:
    client, (x, y) = generated().double(), digits("cnn1", 0, count)
    x, true = x.double(), extractors_gradient(client, "cnn1", x.double(), y)
    weights = {name: value.detach() for name, value in client.extractor_weights().items()}
    victim = SurrogateVictim(extractor_of(client), inputs_of("cnn1"), count)
    informed = victim.sent(RecoveredNetwork(weights, true), torch_generator(0, "separation"))
    if count > 1:
        informed["cotangents"] = cotangents(client, "cnn1", x, y)[0]
    observed, constants = victim.observed({n: v.double() for n, v in informed.items()})
    result = victim.gradient(x, torch.zeros(count), {n: v.double() for n, v in victim.unknown.items()}, constants)
    assert list(result) == list(true) == list(observed)
    for name, value in true.items():
        assert error(result[name], value) < 1e-10, name


def test_the_distance_of_features_counts_the_last_layers_weight_once_more() -> None:
    """By hand: all as one vector, 1 - 12/(5*4); in the last layer's weight, (3 - 4)^2 / 4^2."""
    victim = SurrogateVictim(extractor_of(small("mlp")), inputs_of("mlp"), 1)
    trial = {"1.weight": torch.tensor([[4.0]]), "3.weight": torch.tensor([[3.0]])}
    observed = {"1.weight": torch.tensor([[0.0]]), "3.weight": torch.tensor([[4.0]])}
    assert float(victim.features(trial, observed)) == pytest.approx(0.4 + 1 / 16)


def test_the_extractor_is_cut_behind_its_last_layer_with_weights() -> None:
    for net, (count, last) in {"cnn1": (8, "7"), "mlp": (4, "3"), "lenet": (5, "4")}.items():
        layers, name = up_to_last_layer(extractor_of(small(net)))
        assert isinstance(layers, nn.Sequential) and (len(layers), name) == (count, last)


def test_what_is_no_reading_of_the_extractor_is_refused() -> None:
    client, (x, y) = small(), digits("mlp", 0)
    reading = read(client.hypernet.targets, hypernet(client), sent_by(client, "mlp", x, y))
    victim = SurrogateVictim(extractor_of(client), inputs_of("mlp"), 1)
    informed = victim.sent(reading, torch_generator(0, "x"))
    victim.check(informed)
    with pytest.raises(InputError, match=r"Expected weights\.1\.bias of the extractor"):
        victim.check({n: v for n, v in informed.items() if n != "weights.1.bias"})
    with pytest.raises(InputError, match=r"finite numbers in gradient\.3\.weight"):
        victim.check({**informed, "gradient.3.weight": informed["gradient.3.weight"] * torch.nan})


# --- telling a batch apart ---


def matched(result: Tensor, expected: Tensor) -> tuple[list[int], Tensor]:
    """For each expected row the found one of the largest cosine, and these cosines."""
    cosines = cosine_similarity(expected[:, None].float(), result[None].float(), dim=-1)
    return cosines.argmax(1).tolist(), cosines.max(1).values


def layer_of(client: GeneratedNet, net: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients and values of the extractor's last layer's weight and bias."""
    chosen, weights = extractors_gradient(client, net, x, y), client.extractor_weights()
    weight, bias = list(chosen)[-2:]
    return chosen[weight], chosen[bias], weights[weight].detach(), weights[bias].detach()


@pytest.mark.parametrize("first", [0, 4, 8])
def test_four_examples_are_told_apart_at_the_last_layer(first: int) -> None:
    client, (x, y) = generated(), digits("cnn1", first, 4)
    expected, features = cotangents(client, "cnn1", x, y)
    result = separate(*layer_of(client, "cnn1", x, y), 4, torch_generator(0, "separation"))
    assert result is not None and result.agreement > 0.95
    places, cosines = matched(result.outputs, expected)
    assert sorted(places) == [0, 1, 2, 3] and float(cosines.min()) > 0.999
    for b, index in enumerate(places):
        assert error(result.outputs[index], expected[b]) < 0.05
        assert error(result.inputs[index], features[b].detach()) < 0.05


def a_layer() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A weight, a bias, three inputs, and three outputs which nothing rectifies."""
    generator, shapes = torch_generator(0, "layer"), ((48, 20), (48,), (3, 20), (3, 48))
    weight, bias, inputs, outputs = (torch.randn(s, generator=generator).double() for s in shapes)
    return weight, bias, inputs, outputs


def test_behind_a_rectifier_that_does_not_leak_separation_is_exact() -> None:
    weight, bias, inputs, above = a_layer()
    outputs = torch.where(inputs @ weight.T + bias > 0, above, 0.0)
    result = separate(outputs.T @ inputs, outputs.sum(0), weight, bias, 3, torch_generator(0, "separation"))
    assert result is not None and result.agreement > 1 - 1e-6
    indices, _ = matched(result.outputs, outputs)
    assert sorted(indices) == [0, 1, 2]
    torch.testing.assert_close(result.outputs[indices], outputs.float(), rtol=0, atol=1e-4)
    torch.testing.assert_close(result.inputs[indices], inputs.float(), rtol=0, atol=1e-4)


def test_what_cannot_be_told_apart_is_not() -> None:
    weight, bias, inputs, dense = a_layer()

    def told(outputs: Tensor, inputs: Tensor) -> Any:
        rng = torch_generator(0, "separation")
        return separate(outputs.T @ inputs, outputs.sum(0), weight, bias, len(outputs), rng)

    assert told(dense, inputs) is None
    rectified = torch.where(inputs @ weight.T + bias > 0, dense, 0.0)
    assert told(rectified, inputs) is not None
    assert told(rectified[[0, 1, 1]], inputs[[0, 1, 1]]) is None  # one example twice
    assert told(rectified.repeat(5, 1), inputs.repeat(5, 1)) is None


def test_directions_span_the_rows_of_a_batch() -> None:
    outputs, inputs = torch.tensor([[1.0, 2.0, 2.0], [0.0, 1.0, -1.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    basis = directions(outputs.T @ inputs, 2)
    torch.testing.assert_close(basis @ basis.T, torch.eye(2).double())
    torch.testing.assert_close(outputs.double() @ basis.T @ basis, outputs.double())
    assert directions(outputs[:1].T @ inputs[:1], 2).shape == (1, 3)  # as many as there are


# --- the attack ---


class Federation:
    """One generated client, what it sends of several batches, and the same network shared as it is."""

    def __init__(self, net: str, *batches: tuple[Tensor, Tensor], tiny: bool = False) -> None:
        make = small if tiny else generated
        self.net, self.batches, self.client = net, batches, make(net)
        known, self.inputs = hypernet(self.client), inputs_of(net)
        self.victim = GeneratedVictim(make(net, seed=7), known, self.inputs)
        self.sent = [sent_by(self.client, net, x, y) for x, y in batches]
        self.seen = [self.observation(sent, known, i) for i, sent in enumerate(self.sent)]
        self.known = [Knowledge(self.victim, len(y), y) for _, y in batches]

    def observation(
        self, sent: nets.Tensors, received: nets.Tensors, slot: int, control: str = "target"
    ) -> Observation:
        return Observation(Vantage.SERVER, "probe", control, 0, 0, slot, sent, received)

    def shared_as_it_is(self, control: str = "target") -> tuple[list[Observation], list[Knowledge]]:
        """What fedavg would send of a network with the same weights, classifier and all."""
        plain = nets.build(self.net, self.inputs.shape, 10)
        chosen = {f"extractor.{name}": value.detach() for name, value in self.client.extractor_weights().items()}
        plain.load_state_dict(
            {**chosen, **{f"classifier.{n}": v for n, v in self.client.classifier.state_dict().items()}}
        )
        received, observations = nets.tensors(plain), []
        for i, (x, y) in enumerate(self.batches):
            sent = attackable.gradient(plain, self.inputs, x, y)
            observations.append(self.observation(sent, received, i, control))
        victim = PlainVictim(plain, received, ("*",), self.inputs)
        return observations, [Knowledge(victim, len(y), y) for _, y in self.batches]

    def scale(self, name: str, factor: float) -> None:
        """Multiplies one tensor of the first message."""
        sent = {**self.sent[0], name: factor * self.sent[0][name]}
        self.seen[0] = dataclasses.replace(self.seen[0], sent=sent)

    def run(self, **settings: Any) -> list[Reconstruction]:
        return HyperFLInversion(HyperFLInversionSettings(**settings)).run(
            self.seen, self.known, generators(len(self.seen))
        )

    def db(self, result: Sequence[Reconstruction]) -> list[float]:
        return [batch_db(x, one.samples) for (x, _), one in zip(self.batches, result, strict=True)]


def batch_db(x: Tensor, result: Tensor) -> float:
    """Mean PSNR over a batch of at most two, in the better of its orders."""
    each = np.array([[psnr(a[None].numpy(), b[None].numpy()) for b in result] for a in x])
    assert len(x) <= 2
    return max(float(np.mean(np.diag(each))), float(np.mean(np.diag(each[::-1]))))


@pytest.mark.nightly
def test_closed_form_is_as_good_as_ig_where_the_same_network_is_shared() -> None:
    """Equal images, starts and iterations, one search each, one TV weight; only `IG` is granted labels."""
    federation = Federation("cnn1", *(digits("cnn1", i) for i in range(4)))
    same: dict[str, Any] = {"iterations": 250, "tv": 1e-3}
    hidden = federation.db(federation.run(distance="relative", **same))
    shared = IG(IGSettings(**same, schedule="constant")).run(*federation.shared_as_it_is(), generators(4))
    assert np.mean(hidden) > np.mean(federation.db(shared)) - 1
    assert min(hidden) > 20


@pytest.mark.nightly
def test_closed_form_needs_neither_labels_nor_the_attackers_own_private_tensors() -> None:
    federation = Federation("mlp", digits("mlp", 0), digits("mlp", 1), tiny=True)
    expected = federation.run(iterations=20)
    other = GeneratedVictim(small("mlp", seed=8), federation.victim.known, federation.inputs)
    federation.known = [Knowledge(other, 1, None) for _ in federation.known]
    for one, same in zip(federation.run(iterations=20), expected, strict=True):
        assert torch.equal(one.samples, same.samples) and one.labels is None


@pytest.mark.slow
def test_closed_form_reads_nothing_else_of_an_observation_of_a_gradient() -> None:
    federation = Federation("mlp", digits("mlp", 0), tiny=True)
    expected, nonsense = federation.run(iterations=20), {n: v * torch.nan for n, v in federation.victim.known.items()}
    lost: dict[str, Any] = {"round": float("nan"), "client": float("nan"), "slot": float("nan"), "point": "poison"}
    federation.seen = [
        dataclasses.replace(
            o, received=nonsense, vantage=Vantage.CLIENT_EXAMPLE, source="poison", control="poison", **lost
        )
        for o in federation.seen
    ]
    federation.known = [dataclasses.replace(k, lr=float("nan"), granted=("poison",)) for k in federation.known]
    assert torch.equal(federation.run(iterations=20)[0].samples, expected[0].samples)


@pytest.mark.slow
def test_closed_form_recovers_what_a_fully_connected_extractor_saw() -> None:
    federation = Federation("mlp", digits("mlp", 0), digits("mlp", 3), tiny=True)
    assert min(federation.db(federation.run(iterations=300, distance="relative"))) > 40


@pytest.mark.nightly
def test_the_search_that_came_closest_by_one_measure_is_kept() -> None:
    federation, rngs = Federation("mlp", *(digits("mlp", i) for i in range(4)), tiny=True), generators(4)
    each = [  # from the same generators, one after the other, as the three searches are made
        HyperFLInversion(HyperFLInversionSettings(iterations=12, distance=distance)).run(
            federation.seen, federation.known, rngs
        )
        for distance in ("cosine", "relative", "features")
    ]
    chosen = set()
    for i, one in enumerate(federation.run(iterations=12)):
        losses = [float(result[i].matching_loss or 0) for result in each]
        chosen.add(int(np.argmin(losses)))
        assert one.matching_loss == pytest.approx(min(losses), rel=1e-3)
        torch.testing.assert_close(one.samples, each[int(np.argmin(losses))][i].samples, rtol=0, atol=1e-3)
    assert len(chosen) > 1, "the choice must be visible"


@pytest.mark.slow
def test_two_examples_are_found() -> None:
    federation = Federation("cnn1", digits("cnn1", 0, 2))
    (result,) = federation.run(iterations=400, distance="relative")
    assert result.samples.shape == (2, 1, 28, 28)
    assert federation.db([result])[0] > 20


@pytest.mark.slow
def test_more_examples_than_can_be_told_apart_are_searched_for_with_their_mixing() -> None:
    federation = Federation("mlp", digits("mlp", 0, 20), tiny=True)
    (few,), (many,) = (federation.run(iterations=n, distance="relative") for n in (1, 200))
    assert few.matching_loss is not None and many.matching_loss is not None
    assert many.samples.shape == (20, 1, 8, 8) and many.matching_loss < few.matching_loss / 4


@pytest.mark.slow
def test_an_extractor_that_ends_in_a_convolution_is_searched_for_with_its_cotangents() -> None:
    federation = Federation("lenet", digits("lenet", 0))
    assert federation.db(federation.run(iterations=200, distance="cosine"))[0] > 30  # with Adam, 11


@pytest.mark.slow
def test_a_dead_hidden_layer_does_not_hinder_the_closed_form() -> None:
    federation = Federation("mlp", digits("mlp", 0), tiny=True)
    with torch.no_grad():
        federation.client.hypernet.trunk.bias.fill_(-100.0)
    known = hypernet(federation.client)
    federation.known = [Knowledge(GeneratedVictim(small("mlp", seed=7), known, federation.inputs), 1, None)]
    federation.seen = [federation.observation(sent_by(federation.client, "mlp", *federation.batches[0]), known, 0)]
    assert federation.db(federation.run(iterations=300, distance="relative"))[0] > 30


@pytest.mark.nightly
def test_of_who_sent_nothing_but_zeros_nothing_is_found() -> None:
    federation = Federation("mlp", digits("mlp", 0), digits("mlp", 1), tiny=True)
    expected = federation.run(iterations=20)[1].samples
    federation.seen[0] = dataclasses.replace(
        federation.seen[0], sent={n: torch.zeros_like(v) for n, v in federation.sent[0].items()}
    )
    nothing, other = federation.run(iterations=20)
    assert bool(nothing.samples.isnan().all()) and nothing.samples.shape == (1, 1, 8, 8)
    torch.testing.assert_close(other.samples, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_several_local_steps_are_attacked_as_one_gradient_without_their_decay() -> None:
    federation = Federation("cnn1", digits("cnn1", 1))
    received = hypernet(federation.client)
    after = trained(federation.client, "cnn1", *federation.batches[0], steps=4, lr=1e-4, decay=0.5)
    federation.seen = [federation.observation(after, received, 0)]
    federation.known = [dataclasses.replace(federation.known[0], steps=4, weights=True, lr=1e-4)]
    assert federation.db(federation.run(iterations=250, distance="relative"))[0] > 18  # about 14 with the decay left in


@pytest.mark.slow
def test_an_extractor_that_is_shared_as_it_is_leaves_nothing_to_be_read_off() -> None:
    federation = Federation("mlp", digits("mlp", 0), tiny=True)
    observations, known = federation.shared_as_it_is()
    headless = PlainVictim(
        known[0].model.model, {n: v for n, v in observations[0].received.items() if "extractor" in n},
        ("extractor.*",), federation.inputs,
    )  # fmt: skip
    observations[0] = dataclasses.replace(
        observations[0], sent={n: v for n, v in observations[0].sent.items() if "extractor" in n}
    )
    attack = HyperFLInversion(HyperFLInversionSettings(iterations=300, distance="relative"))
    result = attack.run(observations, [Knowledge(headless, 1, None)], generators(1))  # as fedper shares
    assert federation.db(result)[0] > 40
    easy = federation.shared_as_it_is("easy")
    assert federation.db(attack.run(*easy, generators(1)))[0] > 40
    result = HyperFLInversion(HyperFLInversionSettings(iterations=20, variant="two_stage")).run(*easy, generators(1))
    assert result[0].labels is not None  # as an attacker who is granted them


def test_what_has_no_extractor_to_attack_is_not_applicable() -> None:
    received = nets.tensors(nets.build("linear", (1, 8, 8), 10))
    sent = {name: torch.ones_like(value) for name, value in received.items()}
    observation = Observation(Vantage.SERVER, "probe", "target", 0, 0, 0, sent, received)

    def attack(victim: PlainVictim) -> None:
        HyperFLInversion().run([observation], [Knowledge(victim, 1, None)], generators(1))

    inputs = inputs_of("mlp")
    with pytest.raises(NotApplicableError, match="an extractor with weights"):
        attack(PlainVictim(nets.build("linear", (1, 8, 8), 10), received, ("*",), inputs))
    with pytest.raises(NotApplicableError, match="an extractor, generated or shared, got Linear"):
        attack(PlainVictim(nn.Linear(64, 10), {}, ("*",), inputs))
    with pytest.raises(NotApplicableError, match=r"all of extractor\.\*.*, got none of extractor\.1\.weight"):
        attack(PlainVictim(nets.build("mlp", (1, 8, 8), 10), {}, (), inputs))


# --- the paper's own two attacks ---


@pytest.mark.slow
def test_the_first_stage_finds_embedding_and_gradient_by_search() -> None:
    federation = Federation("mlp", digits("mlp", 0), digits("mlp", 1), tiny=True)
    adam = AdamSearch(600, 0.1, schedule="cosine")
    many = search(federation.victim, federation.sent, generators(2), adam, ComputeLimits())
    for sent, result in zip(federation.sent, many, strict=True):
        expected = read_off(federation.victim, sent)
        assert result.embedding is not None and error(result.embedding, federation.client.embedding.detach()) < 1e-2
        for name in expected.weights:
            assert error(result.weights[name], expected.weights[name]) < 1e-2, name
            assert error(result.gradient[name], expected.gradient[name]) < 1e-2, name


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["joint", "two_stage"])
def test_the_papers_attacks_are_granted_the_labels_and_get_closer(variant: Any) -> None:
    federation = Federation("mlp", digits("mlp", 0), tiny=True)
    (few,), (many,) = (federation.run(iterations=n, variant=variant) for n in (2, 150))
    assert few.matching_loss is not None and many.matching_loss is not None
    assert many.matching_loss < 0.9 * few.matching_loss
    assert many.labels is not None and many.labels.tolist() == federation.batches[0][1].tolist()
    federation.known = [dataclasses.replace(knowledge, labels=None) for knowledge in federation.known]
    with pytest.raises(NotApplicableError, match="need the labels"):
        federation.run(variant=variant)


def test_budget_and_labels_are_those_of_the_variant() -> None:
    attack = HyperFLInversion(HyperFLInversionSettings(iterations=7, restarts=2))
    assert (attack.cost, attack.labels) == (AttackCost(7, 6, "lowest matching distance"), "not used")
    assert HyperFLInversion(HyperFLInversionSettings(distance="cosine")).cost == AttackCost(
        500, 1, "lowest matching distance"
    )
    attack = HyperFLInversion(HyperFLInversionSettings(variant="two_stage", iterations=7))
    assert (attack.cost, attack.labels) == (AttackCost(14, 1, "lowest matching distance"), "given")
    attack = HyperFLInversion(HyperFLInversionSettings(variant="joint", iterations=7))
    assert (attack.cost, attack.labels) == (AttackCost(7, 1, "lowest matching distance"), "given")


# --- a malicious server's hypernetwork ---


def test_a_malicious_server_chooses_the_extractor_and_reads_a_batch_off() -> None:
    clients, inputs, (x, y) = [small(seed=1), small(seed=2)], inputs_of("mlp"), digits("mlp", 0, 16)
    public = inputs.normalise(digits("mlp", 500, 200)[0]).flatten(1).mean(1)
    targets, extractor = clients[0].hypernet.targets, extractor_of(clients[0])
    chosen = imprint(extractor, public)
    sent = serving(hypernet(clients[0]), chosen)
    assert {n: v.shape for n, v in sent.items()} == {n: v.shape for n, v in hypernet(clients[0]).items()}
    honest = read(targets, hypernet(clients[0]), sent_by(clients[0], "mlp", x, y)).gradient
    for client in clients:  # of different embeddings and classifiers
        client.load_state_dict(sent, strict=False)
        torch.testing.assert_close(client.extractor_weights(), chosen, rtol=0, atol=0)
    result = read(targets, sent, sent_by(clients[1], "mlp", x, y))
    assert result.embedding is None and all(torch.equal(result.weights[name], chosen[name]) for name in chosen)
    true = inputs.normalise(x).flatten(1)
    assert read_exactly(alone_in_their_bins(extractor, result.gradient), true) >= 14
    weight, bias = honest["1.weight"], honest["1.bias"]
    rows = bias != 0
    by_the_same = linear_inputs(weight[rows], bias[rows], int(rows.sum()))
    assert read_exactly(by_the_same, true) <= 4


def read_exactly(readings: Tensor, true: Tensor) -> int:
    """How many inputs (B, d) are among the readings (k, d)."""
    return int(((readings[None] - true[:, None]).abs().amax(2) < 1e-2).any(1).sum())


def test_units_switch_on_between_the_quantiles_of_public_means() -> None:
    """By hand: three units on two inputs, public means 0, 1, 4, so that the middle unit switches on at 1."""
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU())
    chosen = imprint(extractor, torch.tensor([4.0, 0.0, 1.0]))
    assert chosen["1.weight"].tolist() == [[0.5, 0.5]] * 3 and chosen["1.bias"].tolist() == [0.0, -1.0, -4.0]
    assert chosen["3.weight"].flatten().tolist() == pytest.approx([1 / 3] * 6) and chosen["3.bias"].tolist() == [1, 1]


def test_only_fully_connected_extractors_can_be_imprinted() -> None:
    with pytest.raises(InputError, match="Expected an extractor of fully connected layers, got Conv2d, Conv2d"):
        imprint(extractor_of(generated()), torch.zeros(3))
    with pytest.raises(InputError, match="got none"):
        imprint(nn.Sequential(nn.Flatten()), torch.zeros(3))


# --- in an audit ---


def audited(out: Path, **changes: Any) -> Path:
    """The folder of a run of one round on the digits."""
    details: dict[str, Any] = {"method": "hyperfl", "attack": ("hyperfl",), "engine": "inproc"}
    return whole.run(Experiment(**details, rounds=1, local_epochs=1, out=out, **changes))


@pytest.mark.slow
def test_an_audit_says_that_it_leaks(tmp_path: Path) -> None:
    chosen = ("hyperfl.iterations=200", "hyperfl.distance=relative", "hidden=16", "embedding=6")
    folder = audited(tmp_path / "run", net="mlp", image_size=8, clients=2, images=2, audit_rounds="0", set=chosen)
    (entry,) = json.loads((folder / "result.json").read_text())["audit"]
    assert entry["verdict"] == "leaks" and entry["share_recovered"] == 1.0
    assert [(control["rung"], control["passed"]) for control in entry["ladder"]] == [
        ("analytic", True), ("easy", True), ("consistency", None),
    ]  # fmt: skip
    assert entry["ladder"][2]["failure_reason"] == "clients keep tensors private"
    assert "not granted: the labels, of which it makes no use" in entry["granted"]
    assert entry["adaptive"] is True
    assert any(line.endswith("which it reads off what was sent, or does without") for line in entry["granted"])


@pytest.mark.nightly
def test_what_a_trained_client_kept_private_is_read_off_the_recorded_bytes(tmp_path: Path) -> None:
    """Embeddings from the client's disk, which no attack may open, against the closed form of one recorded probe."""
    details: dict[str, Any] = {"net": "cnn1", "image_size": 28, "clients": 3, "images": 3, "keep_state": True}
    chosen = ("hyperfl.iterations=1", "hyperfl.distance=cosine")
    folder = audited(tmp_path / "run", audit_rounds="last", set=chosen, **details)
    stored, seen = stored_experiment(folder), Recordings(folder / "observations").probes("target", 1)
    embeddings = []
    for observation in seen:
        embedding = ClientStore(folder / "state", stored.id, observation.client).load(1)["embedding"]
        client = generated("cnn1", seed=9)
        client.load_state_dict({**observation.received, "embedding": embedding}, strict=False)
        assert_read(read(client.hypernet.targets, observation.received, observation.sent), client, 1e-5)
        embeddings.append(embedding)
    assert len(embeddings) == 3 and not torch.equal(embeddings[0], embeddings[1])


STANDS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"method": "fedper"}, True),
    ({"variant": "joint"}, False),
    ({"variant": "two_stage"}, False),
    ({"steps": 4}, False),
    ({"batch": 2}, False),  # told apart or not, which nobody knows beforehand
    (
        {"net": "lenet", "shape": (1, 28, 28)},
        False,
    ),  # whose extractor ends in a convolution: all of delta is searched for
    ({"method": "fedper", "net": "lenet5", "shape": (1, 32, 32)}, False),
    ({"method": "fedper", "net": "convnet32", "shape": (3, 32, 32), "dataset": "cifar10"}, False),  # BatchNorm
    ({"defence": "prune"}, False),
    ({"method": "fedavg", "batch": 2}, True),  # where nothing is hidden
]


@pytest.mark.parametrize(
    ("case", "adaptive"), STANDS, ids=lambda case: " ".join(map(str, case.values())) if isinstance(case, dict) else None
)
def test_only_who_reads_off_all_that_is_hidden_is_adaptive(case: dict[str, Any], adaptive: bool) -> None:
    details = {"method": "hyperfl", "net": "mlp", "dataset": "digits", "defence": "none"}
    experiment = Experiment(**{**details, **{key: value for key, value in case.items() if key in details}})
    probe_set = ProbeSet("target", 0, "", case.get("batch", 1), case.get("steps", 1), "target")
    job = AttackJob("hyperfl", probe_set, (), Path("none"), {}, case.get("shape", (1, 8, 8)), 10, (0.5,), (0.5,))
    attack = HyperFLInversion(HyperFLInversionSettings(variant=case.get("variant", "closed_form")))
    defended = experiment.defence != "none"
    assert threat_model_of(*clients_and_attacks(plan(experiment)), job, attack, defended).adaptive is adaptive


# --- what is refused, and what is said of nothing ---


@pytest.mark.slow
def test_a_search_that_explains_nothing_has_found_nothing() -> None:
    federation = Federation("mlp", digits("mlp", 0), tiny=True)
    federation.scale("hypernet.heads.3.bias", 0.0)  # of the last layer's bias: delta
    for distance in ("relative", "cosine"):
        (result,) = federation.run(iterations=30, distance=distance)
        assert bool(result.samples.isnan().all()), distance


@pytest.mark.slow
def test_a_batch_without_a_gradient_of_the_last_bias_gives_numbers_or_nothing() -> None:
    federation = Federation("mlp", digits("mlp", 0, 2), tiny=True)
    federation.scale("hypernet.heads.3.bias", 0.0)
    (result,) = federation.run(iterations=60, distance="cosine")
    assert bool(result.samples.isfinite().all()) and result.matching_loss is not None and result.matching_loss < 1


@pytest.mark.parametrize("variant", ["closed_form", "two_stage", "joint"])
def test_what_is_not_finite_is_refused_before_anything_is_computed_of_it(variant: Any) -> None:
    federation = Federation("mlp", digits("mlp", 0, 2), tiny=True)
    federation.scale("hypernet.heads.2.weight", torch.nan)
    with pytest.raises(InputError, match=r"finite numbers in hypernet\.heads\.2\.weight"):
        federation.run(iterations=5, variant=variant)


def test_an_extractor_of_which_a_layer_was_not_sent_is_not_applicable() -> None:
    federation = Federation("mlp", digits("mlp", 0), tiny=True)
    observations, known = federation.shared_as_it_is()
    frozen = tuple(n for n in observations[0].sent if n != "extractor.3.weight")
    victim = PlainVictim(known[0].model.model, observations[0].received, frozen, federation.inputs)
    observations[0] = dataclasses.replace(observations[0], sent={n: observations[0].sent[n] for n in frozen})
    with pytest.raises(NotApplicableError, match=r"got none of extractor\.3\.weight"):
        HyperFLInversion().run(observations, [Knowledge(victim, 1, None)], generators(1))


def test_batch_normalisation_uses_the_statistics_that_were_received() -> None:
    """In the surrogate, at the true image: with other running statistics its gradient is far off."""
    with initialising(0, "normalised"):
        net = Net(
            nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 8), nn.ReLU()
            ),
            nn.Linear(8, 10),
        ).eval()
    received = {n: v.clone() for n, v in nets.tensors(net).items()}
    received["extractor.1.running_mean"] += 0.5
    received["extractor.1.running_var"] *= 3
    inputs, (x, y) = inputs_of("mlp"), digits("mlp", 0)
    net.load_state_dict(received)
    sent = attackable.gradient(net, inputs, x, y)
    layers = [nn.BatchNorm2d(4) if isinstance(layer, nn.BatchNorm2d) else layer for layer in net.extractor]
    fresh = Net(nn.Sequential(*layers), net.classifier).eval()  # the attacker's, with initial statistics
    victim = SurrogateVictim(extractor_of(fresh), inputs, 1)
    reading = read_off(PlainVictim(fresh, received, tuple(sent), inputs), sent)
    observed, constants = victim.observed(victim.sent(reading, torch_generator(0, "x")))
    torch.testing.assert_close(victim.gradient(x, y, victim.unknown, constants), observed, rtol=1e-4, atol=1e-6)


def test_reading_keeps_the_precision_of_what_was_sent() -> None:
    client, (x, y) = small().double(), digits("mlp", 0)
    result = read(client.hypernet.targets, hypernet(client), sent_by(client, "mlp", x.double(), y))
    assert_read(result, client, 1e-12)
    assert {value.dtype for value in result.weights.values()} == {torch.float64}
