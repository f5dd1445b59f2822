"""PEFTLeak: frozen tensors and adapters of a malicious server, and the patches that it reads off."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, unfold

from flfw import nets
from flfw.errors import InputError
from flfw.inversion.closed_form.linear import read
from flfw.nets.backbones.architectures import RANDOM, VARIABLE
from flfw.nets.backbones.freezing import digest
from flfw.nets.hypernetwork import GeneratedNet
from flfw.rng import initialising, torch_generator
from research.measurements.malicious_hypernetwork import serving
from tests.support.crafted_backbone import (
    CraftedAdapters,
    PatchReadings,
    craft_adapters,
    craft_body,
    layout_of,
    read_patches,
)
from tests.support.rounds import descend

PLACES = tuple(range(20, 31))
DOWN = "blocks.0.mlp.adapter.down"


def images(count: int, purpose: str) -> Tensor:
    """Coloured noise of different brightness, normalised."""
    rng = torch_generator(0, purpose)
    return 2 * (torch.rand(count, 1, 1, 1, generator=rng) + torch.rand(count, 3, 32, 32, generator=rng)) - 2


def built(monkeypatch: pytest.MonkeyPatch, weights: Path | str, seed: int = 0) -> nets.Net:
    """A client's network, with the weights of a file."""
    monkeypatch.setenv(VARIABLE, str(weights))
    with initialising(seed, "client"):
        return nets.build("vit_tiny", (3, 32, 32), 10, tuning=nets.Tuning("adapter"))


def grouped(readings: PatchReadings) -> Tensor:
    """Group patches to images by their gains, which in float32 are within 1e-4 for one image."""
    order = readings.gains.argsort()
    ordered = readings.gains[order]
    distance = ordered.diff() > 1e-4 * torch.maximum(ordered[1:].abs(), ordered[:-1].abs())
    images = torch.zeros_like(order)
    images[order[1:]] = distance.cumsum(0)
    return images


def repeated_rows(weight: Tensor) -> float:
    """Share of the rows that are parallel to another one."""
    unit = normalize(weight.detach().double())
    return float(((unit @ unit.T).abs().fill_diagonal_(0).amax(1) > 0.999).double().mean())


def body_of(net: nn.Module) -> nn.Module:
    return net.get_submodule("extractor.body")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The server's file of weights."""
    save_file(craft_body(body_of(built(monkeypatch, RANDOM))), tmp_path / "crafted.safetensors")
    return tmp_path / "crafted.safetensors"


def watch(body: nn.Module, name: str, outputs: list[Tensor]) -> None:
    """Append what a layer gives from now on to a list."""

    def append(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        outputs.append(output.detach())

    body.get_submodule(name).register_forward_hook(append)


def gradient(net: nets.Net, adapters: nets.Tensors, x: Tensor, y: Tensor) -> nets.Tensors:
    body = body_of(net)
    body.load_state_dict(adapters)
    names, weights = zip(*body.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(cross_entropy(net(x), y), weights), strict=True))


def true_images(readings: PatchReadings, x: Tensor) -> list[int]:
    """The number of the image whose patch each reading is; -1 where no patch is closer than 1e-3."""
    true = unfold(x, 4, stride=4)[:, :, readings.places]
    distance = (true - readings.inputs.flatten(1).T).abs().amax(1)
    return torch.where(distance.amin(0) < 1e-3, distance.argmin(0), -1).tolist()


def crafted_for(net: nn.Module, places: tuple[int, ...] = PLACES) -> CraftedAdapters:
    return craft_adapters(body_of(net), images(300, "public"), places)


# --- the crafted network ---


@pytest.mark.slow
def test_tokens_pass_and_units_measure_one_place(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = built(monkeypatch, file), images(3, "batch")
    body_of(net).load_state_dict(crafted_for(net).tensors)
    tokens: list[Tensor] = []
    for number in (0, 10):
        watch(body_of(net), f"blocks.{number}.mlp.layer", tokens)
        watch(body_of(net), f"blocks.{number}.mlp.adapter.down", tokens)
    with torch.no_grad():
        net(x)
    first, units, last, _ = tokens
    assert torch.allclose(first[:, 1:, :115], last[:, 1:, :115], atol=1e-3)  # behind are those that adapters write to
    sigma = 20 / (first[:, 1:, 112] - first[:, 1:, 113])
    mean = -sigma * (first[:, 1:, 112] + first[:, 1:, 113]) / 2
    pixels = first[:, 1:, :48] * sigma[..., None] + mean[..., None]
    assert torch.allclose(pixels, unfold(x, 4, stride=4).transpose(1, 2), atol=1e-4)
    on = (units > 0).any(0).any(1)
    assert on.nonzero().flatten().tolist() == [1 + PLACES[0]] and (units[:, 21, 0] > 0).all()


@pytest.mark.nightly
def test_bins_hold_equal_shares_of_the_public_patches(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = built(monkeypatch, file)
    body_of(net).load_state_dict(crafted_for(net, (27,) * 2).tensors)
    outputs: list[Tensor] = []
    for number in (0, 1):
        watch(body_of(net), f"blocks.{number}.mlp.adapter.down", outputs)
    with torch.no_grad():
        net(images(300, "public"))
    on = [(z[:, 28] > 0).double().mean(0) for z in outputs]
    assert on[0].tolist() == pytest.approx([1 - k / 22 for k in range(12)], abs=0.01)  # eleven bins, then the rest
    assert on[1].tolist() == pytest.approx([0.5 - k / 24 for k in range(12)], abs=0.01)  # twelve


# --- what is read off ---


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_patches_of_a_batch_are_read_off_and_grouped(file: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    net, x, y = built(monkeypatch, file, seed), images(4, f"batch {seed}"), torch.tensor([3, 3, 5, 1])
    crafted = crafted_for(net)
    readings = read_patches(gradient(net, crafted.tensors, x, y), crafted)
    true = true_images(readings, x)
    assert len(true) >= 25 and -1 not in true  # of 44
    assert set(readings.places.tolist()) == set(PLACES)
    pairs = set(zip(grouped(readings).tolist(), true, strict=True))
    assert len(pairs) == len({label for label, _ in pairs}) == len(set(true)) == 4


@pytest.mark.slow
def test_one_gradient_holds_a_whole_image(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = built(monkeypatch, file), images(1, "batch")
    crafted = crafted_for(net, tuple(range(64)))
    readings = read_patches(gradient(net, crafted.tensors, x, torch.tensor([7])), crafted)
    assert readings.places.tolist() == list(range(64)) and set(true_images(readings, x)) == {0}
    assert grouped(readings).tolist() == [0] * 64


@pytest.mark.slow
def test_exactly_the_patches_alone_in_a_bin_are_read_off(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve bins in one block, or 122 in eleven."""
    net, x, y = built(monkeypatch, file), images(16, "batch"), torch.arange(16) % 10
    counts = []
    for places in ((27,), (27,) * 11):
        crafted = crafted_for(net, places)
        outputs: list[Tensor] = []
        for target in crafted.targets:
            watch(body_of(net), f"blocks.{target.block}.mlp.adapter.down", outputs)
        readings = read_patches(gradient(net, crafted.tensors, x, y), crafted)
        bins = torch.stack([(z[:, 28] > 0).sum(1) for z in outputs])  # units that are on, for each block and image
        alone = {
            int(image)
            for row in bins
            for number in range(1, 13)
            for image in ((row == number).nonzero() if (row == number).sum() == 1 else ())
        }
        assert set(true_images(readings, x)) == alone
        counts.append(len(alone))
    assert counts[0] < 8 and counts[1] >= 10  # of 16


@pytest.mark.slow
def test_images_darker_than_the_public_ones_fall_in_one_bin(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = built(monkeypatch, file)
    x, crafted = 0.02 * images(4, "batch") - 2, crafted_for(net)
    readings = read_patches(gradient(net, crafted.tensors, x, torch.arange(4)), crafted)
    assert true_images(readings, x).count(-1) == len(readings.places)


@pytest.mark.slow
def test_an_update_is_read_off_with_its_rounding(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = built(monkeypatch, file), images(4, "batch"), torch.arange(4)
    crafted = crafted_for(net)
    slopes = gradient(net, crafted.tensors, x, y)
    update = {name: value - (value - 0.01 * slopes[name]) for name, value in crafted.tensors.items()}
    assert len(read_patches(update, crafted).places) < 10
    true = true_images_of_an_update(read_patches(update, crafted, 1e-2), x)
    assert len(true) >= 20 and true.count(-1) <= 1


def true_images_of_an_update(readings: PatchReadings, x: Tensor) -> list[int]:
    """The same to 40 dB for pixels of range 4."""
    error = (unfold(x, 4, stride=4)[:, :, readings.places] - readings.inputs.flatten(1).T).square().mean(1)
    return torch.where(error.amin(0) < 16e-4, error.argmin(0), -1).tolist()


@pytest.mark.slow
def test_a_hypernetwork_serves_the_same_adapters(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HyperFL-LPM: the server sends no adapters, but its hypernetwork generates them from every embedding."""
    plain, x, y = built(monkeypatch, file), images(4, "batch"), torch.arange(4)
    crafted = crafted_for(plain)
    with initialising(3, "embedding"):
        client = GeneratedNet(built(monkeypatch, file), 8, 16, "identity")
    sent = {name: value for name, value in nets.tensors(client).items() if name.startswith("hypernet.")}
    received = serving(sent, {f"body.{name}": value for name, value in crafted.tensors.items()})
    client.load_state_dict(received, strict=False)
    assert list(client.hypernet.targets) == [f"body.{name}" for name in crafted.tensors]
    weights = {name: value for name, value in client.named_parameters() if name in sent}
    slopes = torch.autograd.grad(cross_entropy(client(x), y), list(weights.values()))
    result = read(client.hypernet.targets, received, dict(zip(weights, slopes, strict=True))).gradient
    expected = gradient(plain, crafted.tensors, x, y)
    for name, value in result.items():
        assert torch.allclose(value, expected[name.removeprefix("body.")], rtol=1e-4, atol=1e-7), name
    readings = read_patches({name.removeprefix("body."): value for name, value in result.items()}, crafted)
    assert len(readings.places) >= 25 and -1 not in true_images(readings, x)


# --- an honest body ---


def test_an_honest_body_gives_no_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = built(monkeypatch, RANDOM), images(1, "batch")
    crafted = crafted_for(net)
    for adapters, sent in (("honest", dict(body_of(net).named_parameters())), ("crafted", crafted.tensors)):
        slopes = gradient(net, {name: value.detach().clone() for name, value in sent.items()}, x, torch.tensor([3]))
        assert set(true_images(read_patches(slopes, crafted, 1.0), x)) <= {-1}, adapters


@pytest.mark.slow
def test_crafted_adapters_of_an_honest_body_give_outputs_of_its_mlp(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a server can do to a client with its own copy: bins of inner numbers, each of one token."""
    net, x = built(monkeypatch, RANDOM), images(1, "batch")
    crafted, tokens = crafted_for(net), list[Tensor]()
    watch(body_of(net), "blocks.0.mlp.layer", tokens)
    with torch.no_grad():
        net(images(100, "public"))
        net(x)
    public, true = (z.flatten(0, 1) for z in tokens)
    direction = torch.randn(192, generator=torch_generator(0, "direction"))
    bounds = torch.quantile(public @ direction, 1 - (12 - torch.arange(12)) / 65)
    chosen = {**crafted.tensors, f"{DOWN}.weight": direction.repeat(12, 1), f"{DOWN}.bias": -bounds}
    slopes = gradient(net, chosen, x, torch.tensor([3]))
    weight, bias = (-slopes[f"{DOWN}.{part}"].diff(dim=0) for part in ("weight", "bias"))
    held = bias.abs() > 1e-6 * slopes[f"{DOWN}.bias"].abs().max()
    error = torch.cdist(weight[held] / bias[held, None], true).amin(1) / true.norm(dim=1).mean()
    assert (error < 1e-2).sum() >= 3


@pytest.mark.slow
def test_a_client_with_its_own_copy_refuses_the_crafted_body(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = nets.card("vit_tiny").architecture
    assert architecture is not None
    monkeypatch.setenv(VARIABLE, str(file))
    crafted = nets.weights_digest(architecture)
    assert crafted == digest(craft_body(body_of(built(monkeypatch, file))))
    monkeypatch.setenv(VARIABLE, RANDOM)
    mine = nets.weights_digest(architecture)
    required = f"weights of net=vit_tiny with the SHA-256 {crafted}"
    with pytest.raises(InputError) as caught:
        nets.build("vit_tiny", (3, 32, 32), 10, tuning=nets.Tuning("adapter", sha256=crafted))
    assert str(caught.value) == f"Expected {required}, got {mine}; name the run's own file by --expert weights."
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(InputError, match="got " + crafted):
        nets.build("vit_tiny", (3, 32, 32), 10, tuning=nets.Tuning("adapter", sha256=mine))


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ((), "Expected 1 to 132 places among 0 to 63, got 0"),
        ((64,), "places among 0 to 63, got 1 from 64 to 64"),
        ((5,) * 133, "got 133"),
    ],
)
def test_targets_must_fit(monkeypatch: pytest.MonkeyPatch, places: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        crafted_for(built(monkeypatch, RANDOM), places)


def test_only_long_tokens_of_adapted_transformers_can_be_crafted(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="got a body without"):
        layout_of(nn.Linear(2, 2))
    with torch.device("meta"):
        small = nets.build("vit_small", (3, 384, 384), 10, tuning=nets.Tuning("adapter"))
    with pytest.raises(InputError, match="768 pixels, 576 places and 5 more, got a width of 384"):
        layout_of(body_of(small))


# --- detection ---


@pytest.mark.slow
def test_crafted_rows_are_repeated_and_others_are_not(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = built(monkeypatch, RANDOM), images(8, "batch"), torch.arange(8)
    weight = body_of(net).get_parameter(f"{DOWN}.weight")
    assert repeated_rows(weight) == 0
    steps = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(5):
        descend(steps, cross_entropy(net(x), y))
    assert repeated_rows(weight) == 0
    assert repeated_rows(crafted_for(net).tensors[f"{DOWN}.weight"]) == 1
    assert repeated_rows(crafted_for(net, tuple(range(64))).tensors[f"{DOWN}.weight"]) == 1
    assert repeated_rows(crafted_for(net, tuple(range(64)) * 2).tensors[f"{DOWN}.weight"]) == 0  # a unit for each place


@pytest.mark.slow
def test_a_server_can_hide_repeated_rows(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the rule is blind: numbers that sum to 0 in coordinates that are equal in all tokens change no unit."""
    net, x, y = built(monkeypatch, file), images(4, "batch"), torch.arange(4)
    crafted, rng = crafted_for(net), torch_generator(0, "noise")
    for name, value in crafted.tensors.items():
        if name.endswith("down.weight"):
            noise = torch.randn(12, 192 - 117, generator=rng)
            value[:, 117:] += 0.1 * (noise - noise.mean(1, keepdim=True))
    assert repeated_rows(crafted.tensors[f"{DOWN}.weight"]) == 0
    readings = read_patches(gradient(net, crafted.tensors, x, y), crafted)
    assert len(readings.places) >= 25 and -1 not in true_images(readings, x)
