"""APRIL: the identity by hand, images read off undefended toys, and networks and batches that give nothing."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import sim
from flfw import nets
from flfw.adversary.attack import AttackCost, NotApplicableError
from flfw.attacks.april import APRIL, APRILSettings, unexplained, weighing_positions
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets.inputs import InputSpec
from flfw.nets.transformer import Block, VisionTransformer, joined, patches
from flfw.recording.observation import Knowledge, Observation, Reconstruction
from flfw.rng import torch_generator
from tests.support.attackable import KnownNoise, attackable, db, digits, fresh_net, generators, gradient, seen

SEARCH: dict[str, Any] = {"way": "search"}


def error(x: Tensor, result: Reconstruction) -> float:
    """Largest error of a pixel, in the range of pixels."""
    return float((x - result.samples).abs().max())


def attacked(name: str, x: Tensor, y: Tensor, **settings: Any) -> Reconstruction:
    observations, knowledge = attackable(name, x.shape[-1], (x, y))
    return APRIL(APRILSettings(**settings)).run(observations, knowledge, generators(1))[0]


def sides(net: nets.Net, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both sides of the linear system, and the true tokens (T, d) of the first image."""
    extractor = net.extractor
    assert isinstance(extractor, VisionTransformer)
    cross_entropy(net(x), y).backward()
    projection, positions = extractor.block(0).attention.query_key_value.weight, extractor.position.weight
    assert projection.grad is not None and positions.grad is not None
    return positions.grad.mT, projection.detach().mT @ projection.grad, extractor.embedded(x)[0].detach()


# --- the identity ---


def test_the_identity_holds_for_attention_by_hand_and_only_without_normalisation_and_sum() -> None:
    """Two tokens of two numbers, one head; derivatives by hand: dW = (dQ, dK, dV)^T z and dz = (dQ, dK, dV) W."""
    rng = torch_generator(0, "toy")
    kinds: dict[str, float] = {}
    for kind in ("plain", "normalised", "summed"):
        block, z = Block(2, 1, False, plain=kind != "normalised").double(), torch.tensor([[1.0, 2.0], [-1.0, 0.5]])
        for parameter in block.parameters():
            torch.nn.init.normal_(parameter, generator=rng)
        z = z.double().requires_grad_()
        entering = block.attention(block.attention_norm(z)) + z * (kind != "plain")
        (entering**2).sum().backward()
        projection = block.attention.query_key_value.weight
        assert z.grad is not None and projection.grad is not None
        right = projection.detach().mT @ projection.grad
        kinds[kind] = unexplained(z.grad.mT, right, z.detach())
    assert kinds["plain"] < 1e-14 and kinds["normalised"] > 0.1 and kinds["summed"] > 0.1, kinds


@pytest.mark.parametrize("side", [8, 28])
def test_a_gradient_in_float64_gives_the_pixels_below_1e_8(side: int) -> None:
    (x, y), net = digits(5, side=side), fresh_net("vit_plain", (1, side, side)).double()
    left, right, z = sides(net, x.double(), y)
    assert unexplained(left, right, z) < 1e-14
    solved = torch.linalg.lstsq(left, right, driver="gelsd").solution
    backwards = torch.linalg.pinv(net.get_parameter("extractor.patch.weight").detach()).mT
    assert float(((solved - z) @ backwards).abs().max()) < 1e-8


def test_patches_are_joined_again_and_have_their_pixels_row_by_row() -> None:
    x = torch.arange(2.0 * 2 * 8 * 12).view(2, 2, 8, 12)
    cut = patches(x)
    assert cut.shape == (2, 6, 32) and torch.equal(joined(cut, (2, 8, 12)), x)
    assert torch.equal(cut[1, 4], x[1, :, 4:8, 4:8].flatten())


# --- the undefended toys ---


def test_images_are_read_off_without_labels() -> None:
    for side, bound in ((8, 1e-5), (28, 0.02)):
        x, y = digits(5, side=side)
        observations, knowledge = attackable("vit_plain", side, (x, y))
        (result,) = APRIL().run(observations, [dataclasses.replace(knowledge[0], labels=None)], generators(1))
        assert error(x, result) < bound and (result.matching_loss or 1) < 1e-5


def test_colours_and_a_common_factor_do_not_matter() -> None:
    inputs = InputSpec.from_constants((3, 8, 12), (0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    x, y = torch.rand((1, 3, 8, 12), generator=torch_generator(0, "x")), torch.tensor([1])
    net = fresh_net("vit_plain", inputs.shape)
    sent = {name: 1e-3 * value for name, value in gradient(net, inputs, x, y).items()}  # as clipping scales it
    knowledge = Knowledge(PlainVictim(net, nets.tensors(net), ("*",), inputs), 1, None)
    assert error(x, APRIL().run([seen(sent, nets.tensors(net))], [knowledge], generators(1))[0]) < 1e-4


@pytest.mark.nightly  # two searches
def test_the_search_finds_images_behind_normalisation_by_the_positions_gradient() -> None:
    """Without it, it finds the patches but rarely their order: of eight such digits one."""
    both = [digits(place, side=8) for place in (61, 62)]
    observations, knowledge = attackable("vit_norm", 8, *both)
    quality: dict[float, list[float]] = {}
    for position in (10.0, 0.0):
        attack = APRIL(APRILSettings(way="search", iterations=200, position=position))
        results = attack.run(observations, knowledge, generators(2))
        quality[position] = [db(x, result) for (x, _), result in zip(both, results, strict=True)]
    assert min(quality[10.0]) > 40 and min(quality[0.0]) < 20, quality


# --- what gives nothing ---


def test_the_closed_form_says_where_it_does_not_apply() -> None:
    x, y = digits(5, side=8)
    for name in ("vit_norm", "lenet"):
        with pytest.raises(NotApplicableError, match=r"reads the tokens directly, as in vit_plain.*april\.way=search"):
            attacked(name, x, y)
    with pytest.raises(NotApplicableError, match=r"one example and one local step, got batch=2, steps=1"):
        attacked("vit_plain", *digits(5, 2, side=8))
    with pytest.raises(NotApplicableError, match="gradient of a transformer's learnt positions"):
        attacked("lenet", x, y, **SEARCH, iterations=1)


@pytest.mark.parametrize(("shape", "text"), [((1, 48, 48), "got 144 of 16"), ((9, 8, 8), "got 4 of 144")])
def test_images_that_the_system_does_not_determine_are_refused(shape: tuple[int, ...], text: str) -> None:
    inputs, net = InputSpec.from_constants(shape, (0.0,) * shape[0], (1.0,) * shape[0]), fresh_net("vit_plain", shape)
    sent = gradient(net, inputs, torch.zeros(1, *shape), torch.tensor([0]))
    knowledge = Knowledge(PlainVictim(net, nets.tensors(net), ("*",), inputs), 1, None)
    with pytest.raises(NotApplicableError, match=rf"fewer patches than 128.*, {text}"):
        APRIL().run([seen(sent, nets.tensors(net))], [knowledge], generators(1))


def changed(observation: Observation, kind: str) -> Observation:
    """The observation as other senders make it."""
    rng, sent = torch_generator(0, "noise"), dict(observation.sent)
    if kind == "noise":
        sent = {n: v + 0.01 * v.square().mean().sqrt() * torch.randn(v.shape, generator=rng) for n, v in sent.items()}
    if kind == "pruned":
        sent = {n: v * (v.abs() >= v.abs().flatten().quantile(0.5)) for n, v in sent.items()}
    return dataclasses.replace(observation, sent=sent)


@pytest.mark.parametrize("kind", ["two", "twins", "noise", "pruned"])
def test_a_message_that_is_not_one_image_s_gradient_gives_nothing(kind: str) -> None:
    x, y = digits(5, 2, side=8)
    if kind == "twins":  # one image with two labels: the sum of both gradients is that of one image
        x = x[:1].repeat(2, 1, 1, 1)
    x, y = (x, y) if kind in ("two", "twins") else (x[:1], y[:1])
    (observation,), (knowledge,) = attackable("vit_plain", 8, (x, y))
    lone = dataclasses.replace(knowledge, batch=1, labels=None)
    (result,) = APRIL().run([changed(observation, kind)], [lone], generators(1))
    if kind == "twins":
        assert error(x[:1], result) < 1e-4
    else:
        assert bool(result.samples.isnan().all()) and (result.matching_loss or 0) > 1e-3


# --- settings, budget, objective ---


def test_the_positions_distance_by_hand() -> None:
    a = {"w": torch.tensor([1.0, 0.0]), "position.weight": torch.tensor([0.0, 0.0])}
    b = {"w": torch.tensor([1.0, 0.0]), "position.weight": torch.tensor([1.0, 0.0])}
    c = {"w": torch.tensor([1.0, 0.0]), "position.weight": torch.tensor([0.0, -1.0])}
    assert float(weighing_positions(5.0)(b, b)) == pytest.approx(0, abs=1e-6)
    assert float(weighing_positions(5.0)(c, b)) == pytest.approx(0.5 + 5 * 1)
    assert float(weighing_positions(0.0)(a, b)) == pytest.approx(1 - 0.5**0.5)


def test_the_objective_is_least_at_the_truth_both_ways() -> None:
    x, y = digits(5, side=8)
    for settings in ({}, SEARCH):
        (observation,), (knowledge,) = attackable("vit_plain", 8, (x, y))
        guesses = [Reconstruction(one, labels=y) for one in (x, digits(6, side=8)[0])]
        attack = APRIL(APRILSettings(**settings))
        truth, other = attack.objective(observation, knowledge, guesses, generators(1)[0]) or []
        assert truth.distance < 1e-5 and other.distance > 0.1


def test_budget_labels_and_unused_knowledge_follow_the_way() -> None:
    closed, search = APRIL(), APRIL(APRILSettings(way="search", iterations=7, restarts=2, labels="idlg"))
    assert closed.cost.iterations == 0 and search.cost == AttackCost(7, 2, "lowest distance")
    assert (closed.labels, search.labels, APRIL(APRILSettings(way="search")).labels) == ("not used", "single", "given")
    assert closed.models == frozenset() and search.models == {"defence", "steps", "batch_statistics"}


def test_told_of_a_mechanism_the_search_follows_the_gradient_and_with_noise_a_likelihood() -> None:
    search, one = APRIL(APRILSettings(way="search")), {"w": torch.tensor([1.0])}
    assert search.recipe(None).descent == AdamSearch(500, 0.1, True, "cosine")
    noisy = search.recipe(KnownNoise({}))
    assert noisy.descent == AdamSearch(1000, 0.1, schedule="cosine")
    assert float(noisy.distance({"w": torch.tensor([2.0])}, one)) == pytest.approx(2.0)


# --- a whole audit ---


@pytest.mark.nightly
@pytest.mark.parametrize(("net", "verdict"), [("vit_plain", "leaks"), ("vit_norm", "undecided")])
def test_an_audit_ends_in_a_report(tmp_path: Path, net: str, verdict: str) -> None:
    requested = f"--method fedavg --dataset digits --net {net} --clients 2 --rounds 1 --local-epochs 1 --batch-size 16"
    requested += f" --engine inproc --lr 0.05 --images 2 --attack april --audit-rounds 0,last --out {tmp_path / 'out'}"
    assert sim.main(requested.split()) == 0
    entries = json.loads((tmp_path / "out" / "result.json").read_text())["audit"]
    assert [entry["verdict"] for entry in entries] == [verdict] * 2
    assert "april" in (tmp_path / "out" / "report.html").read_text()
