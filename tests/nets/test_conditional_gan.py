"""The conditional GAN of features: FedCG's own layers, maps of every side, and what a generator is refused for."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, conv_transpose2d, leaky_relu
from torch.nn.utils import parametrizations

from flfw.errors import InputError
from flfw.nets import build
from flfw.nets.conditional_gan import (
    LATENT,
    Discriminator,
    GeneratingNet,
    Generator,
    diversity_loss,
    feature_shape,
    generator_and_classifier,
    labelled_noise,
    noise,
)
from flfw.rng import initialising, torch_generator


def fresh(cls: type[Any], *given: Any) -> Any:
    with initialising(0, "gan"):
        return cls(*given)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch_generator(0, "drawn"))


# --- the paper's, on 16x5x5 features ---


def layers(module: nn.Module) -> list[str]:
    return [type(layer).__name__.removeprefix("Parametrized") for layer in module.layers]  # type: ignore[union-attr]


def test_the_generator_is_the_papers() -> None:
    """110-512-256-128-16 channels, 1-2-3-4-5 pixels."""
    net = fresh(Generator, (16, 5, 5), 10)
    block = ["ConvTranspose2d", "BatchNorm2d", "LeakyReLU"]
    assert layers(net) == [*3 * block, "ConvTranspose2d", "Sigmoid"]
    result = [layer for layer in net.layers if isinstance(layer, nn.ConvTranspose2d)]
    assert [(c.in_channels, c.out_channels) for c in result] == [(110, 512), (512, 256), (256, 128), (128, 16)]
    assert all((c.kernel_size, c.stride, c.padding, c.bias) == ((2, 2), (1, 1), (0, 0), None) for c in result)
    assert tuple(net.embedding.weight.shape) == (10, 10) and net.embedding.weight.requires_grad


def test_the_discriminator_is_the_papers() -> None:
    """26-128-256-512-1 channels, spectrally normalised."""
    net = fresh(Discriminator, (16, 5, 5), 10)
    block = ["Conv2d", "BatchNorm2d", "LeakyReLU"]
    assert layers(net) == [*3 * block, "Conv2d", "Sigmoid"]
    result = [layer for layer in net.layers if isinstance(layer, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels) for c in result] == [(26, 128), (128, 256), (256, 512), (512, 1)]
    assert all((c.kernel_size, c.stride, c.padding, c.bias) == ((2, 2), (1, 1), (0, 0), None) for c in result)
    assert all(nn.utils.parametrize.is_parametrized(c, "weight") for c in result)


def test_a_generator_computes_what_its_layers_say() -> None:
    net = fresh(Generator, (16, 5, 5), 3).train()
    z, y = drawn(4, LATENT), torch.tensor([0, 2, 1, 2])
    x = torch.cat([z, net.embedding.weight[y]], 1).view(4, LATENT + 3, 1, 1)
    for index in (0, 3, 6):
        convolution, norm = net.layers[index], net.layers[index + 1]
        x = conv_transpose2d(x, convolution.weight)
        x = leaky_relu(batch_norm(x, None, None, norm.weight, norm.bias, training=True), 0.2)
    torch.testing.assert_close(net(z, y), conv_transpose2d(x, net.layers[9].weight).sigmoid())


def test_a_discriminator_computes_what_its_layers_say() -> None:
    net = fresh(Discriminator, (2, 3, 3), 3).eval()  # in training each pass goes on with the power iteration
    f, y = drawn(4, 2, 3, 3), torch.tensor([0, 2, 1, 2])
    planes = net.embedding.weight[y].view(4, 3, 1, 1).repeat(1, 1, 3, 3)
    x = conv2d(torch.cat([f, planes], 1), net.layers[0].weight)
    norm = net.layers[1]
    x = leaky_relu(batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias), 0.2)
    torch.testing.assert_close(net(f, y), conv2d(x, net.layers[3].weight).sigmoid().view(4))


@pytest.mark.slow
def test_spectral_norms_come_to_one_in_training() -> None:
    net = fresh(Discriminator, (16, 5, 5), 10).train()
    f, y = drawn(4, 16, 5, 5).sigmoid(), torch.tensor([0, 1, 2, 3])
    with torch.no_grad():
        for _ in range(200):
            net(f, y)
        for layer in net.eval().layers:
            if isinstance(layer, nn.Conv2d):
                norm = float(torch.linalg.matrix_norm(layer.weight.flatten(1), 2))
                assert norm == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("cls", [Generator, Discriminator])
def test_convolutions_start_with_deviation_002_and_normalisation_around_1(cls: type[Any]) -> None:
    chosen = dict(fresh(cls, (16, 5, 5), 10).named_parameters())
    convolutions = torch.cat([p.detach().flatten() for p in chosen.values() if p.dim() == 4])
    assert float(convolutions.mean()) == pytest.approx(0, abs=1e-3)
    assert float(convolutions.std()) == pytest.approx(0.02, rel=0.02)
    scales = torch.cat([p.detach() for name, p in chosen.items() if p.dim() == 1 and name.endswith("weight")])
    assert float(scales.mean()) == pytest.approx(1, abs=5e-3) and float(scales.std()) == pytest.approx(0.02, rel=0.15)
    assert not any(bool(p.any()) for name, p in chosen.items() if name.endswith("bias"))
    assert float(chosen["embedding.weight"].detach().std()) == pytest.approx(1, rel=0.2)  # torch's own


# --- other maps ---


@pytest.mark.parametrize("side", [*range(1, 33), 55, 56])
def test_maps_of_any_side_are_made_and_judged(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parametrizations._SpectralNorm, "_power_method", lambda *given: None)  # there are no numbers
    with torch.device("meta"):
        generator, discriminator = Generator((3, side, side), 4), Discriminator((3, side, side), 4)
        z, y = torch.zeros(2, LATENT), torch.zeros(2, dtype=torch.long)
        features = generator(z, y)
        assert features.shape == (2, 3, side, side)
        assert discriminator(features, y).shape == (2,)
    made = [(c.in_channels, c.out_channels) for c in generator.layers if isinstance(c, nn.ConvTranspose2d)]
    judged = [(c.in_channels, c.out_channels) for c in discriminator.layers if isinstance(c, nn.Conv2d)]
    assert made[0][0] == LATENT + 4 and made[-1][1] == 3 and judged[0][0] == 3 + 4 and judged[-1][1] == 1
    inner = [wide for _, wide in made[:-1]]
    assert inner == [512, 256, 128, 128][: len(inner)] and [wide for _, wide in judged[:-1]] == inner[::-1]
    assert side > 5 or len(made) == max(1, side - 1)  # a pixel a layer


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 6, 7, 28])
def test_a_generator_can_learn_from_one_example(side: int) -> None:
    """A last batch of one: normalisation needs more than one number a channel, which the first layer's map has."""
    net = fresh(Generator, (2, side, side), 3).train()
    net(drawn(1, LATENT), torch.tensor([1])).sum().backward()
    judge = fresh(Discriminator, (2, side, side), 3).train()
    judge(drawn(1, 2, side, side), torch.tensor([1])).sum().backward()
    both = [*net.parameters(), *judge.parameters()]
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in both)


# --- beside a network ---


@pytest.mark.parametrize(
    ("name", "shape", "features"),
    [
        ("lenet5", (1, 32, 32), (16, 5, 5)),
        ("lenet5", (3, 32, 32), (16, 5, 5)),
        ("resnet18", (3, 32, 32), (128, 4, 4)),
        ("alexnet", (3, 224, 224), (256, 6, 6)),
    ],
)
def test_a_generator_fits_the_network_beside_it(
    name: str, shape: tuple[int, ...], features: tuple[int, int, int]
) -> None:
    with torch.device("meta"):
        net = build(name, shape, 7)
        model = GeneratingNet(net)
        assert feature_shape(net) == features
        z, y = torch.zeros(2, LATENT), torch.zeros(2, dtype=torch.long)
        assert model.generator(z, y).shape == (2, *features)
        assert model.discriminator(model.extractor(torch.zeros(2, *shape)), y).shape == (2,)
        assert model(torch.zeros(2, *shape)).shape == generator_and_classifier(model)(z, y).shape == (2, 7)
        unjudged = GeneratingNet(build(name, shape, 7), judged=False)
    parts = ["classifier", "discriminator", "extractor", "generator"]
    assert sorted({n.partition(".")[0] for n in model.state_dict()}) == parts
    assert not any("discriminator" in n for n in unjudged.state_dict())


def test_an_imagining_is_of_the_same_tensors() -> None:
    model = fresh(GeneratingNet, build("lenet5", (1, 32, 32), 3)).eval()
    z, y = drawn(2, LATENT), torch.tensor([0, 2])
    chosen = generator_and_classifier(model).eval()
    torch.testing.assert_close(chosen(z, y), model.classifier(model.generator(z, y)))
    names = {name for name in model.state_dict() if name.startswith(("generator.", "classifier."))}
    assert set(chosen.state_dict()) == names
    assert all(a is b for a, b in zip(chosen.classifier.parameters(), model.classifier.parameters(), strict=True))


def test_looking_at_the_features_changes_no_running_statistics() -> None:
    net = build("resnet18", (3, 16, 16), 2).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert feature_shape(net) == (128, 2, 2)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(module.training for module in net.modules())


@pytest.mark.parametrize(
    ("name", "shape", "features"),
    [
        ("lenet", (1, 28, 28), "588 after Flatten"),
        ("cnn1", (1, 28, 28), "128 after LeakyReLU"),
        ("mlp", (30,), "64 after ReLU"),
        ("resnet18", (3, 16, 32), "128x2x4 after Sigmoid"),
    ],
)
def test_features_that_no_generator_can_make_are_refused(name: str, shape: tuple[int, ...], features: str) -> None:
    with pytest.raises(InputError) as error:
        GeneratingNet(build(name, shape, 3))
    expected = "Expected a network whose extractor makes square maps in (0, 1), such as lenet5, got features of "
    assert str(error.value) == f"{expected}{features}; choose another --net."


# --- noise and diversity ---


def test_labelled_noise_is_standard_normal_with_labels_of_every_class() -> None:
    batches = list(labelled_noise(40, 16, 5, torch_generator(0, "noise")))
    z, y = (torch.cat(part) for part in zip(*batches, strict=True))
    assert z.shape == (640, LATENT) and y.shape == (640,)
    assert abs(float(z.mean())) < 0.02 and float(z.std()) == pytest.approx(1, rel=0.02)
    assert all(80 < count < 180 for count in torch.bincount(y, minlength=5).tolist()) and int(y.max()) == 4
    again = torch.cat([z for z, _ in labelled_noise(40, 16, 5, torch_generator(0, "noise"))])
    assert torch.equal(z, again) and not torch.equal(z[:16], z[16:32])
    assert noise(3, torch_generator(0, "noise")).shape == (3, LATENT)


def test_the_diversity_loss_by_hand() -> None:
    first, second = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.0]])  # mean |difference| 0.75
    z, other = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[0.0, -1.0, 1.0]])  # mean |difference| 1
    assert float(diversity_loss(first, second, z, other)) == pytest.approx(1 / (0.75 + 1e-5))
    assert float(diversity_loss(first, first, z, other)) == pytest.approx(1e5)
