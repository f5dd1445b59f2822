"""The networks: sizes, shapes, initial values, and extractors whose weights a hypernetwork generates."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, linear, relu

import sim
from flfw.errors import InputError
from flfw.inversion.closed_form.linear import FirstLayer
from flfw.nets import Net, build, card, names, numel, tensors
from flfw.nets.hypernetwork import GeneratedNet, Hypernetwork
from flfw.nets.training.low_rank import HypernetworkTraining
from flfw.rng import initialising, torch_generator
from flfw.strategies.hyperfl import HyperFL

SHAPES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("cnn2", "convnet32", "convnet64", "lenet", "resnet18"), (3, 32, 32)),
    **dict.fromkeys(("cnn1", "cnn3x3"), (1, 28, 28)),
    **dict.fromkeys(("bert_tiny", "gpt_next", "gpt_tiny"), (32,)),
    "linear": (30,),
    "mlp": (30,),
} | {"alexnet": (1, 63, 63), "lenet5": (1, 32, 32), "vit_norm": (1, 8, 12), "vit_plain": (3, 8, 8)}


def fresh(name: str, shape: tuple[int, ...] | None = None, seed: int = 0) -> Net:
    with initialising(seed, "net"):
        return build(name, shape or SHAPES[name], 10)


def generated(name: str, embedding: int = 4, hidden: int = 6, head_init: str = "fan_in", seed: int = 0) -> GeneratedNet:
    with initialising(seed, "generated"):
        return GeneratedNet(build(name, SHAPES[name], 10), embedding, hidden, head_init)  # type: ignore[arg-type]


def some_inputs(name: str, count: int = 3) -> Tensor:
    return torch.randn((count, *SHAPES[name]), generator=torch_generator(0, "inputs"))


OWN = [name for name in names() if card(name).architecture is None]  # the others are in test_backbones.py


@pytest.mark.parametrize("name", OWN)
def test_a_net_is_its_classifier_after_its_extractor_and_gives_a_score_per_class(name: str) -> None:
    net, x = fresh(name), some_inputs(name)
    assert net(x).shape == ((3, 10, 32) if card(name).places else (3, 10))
    torch.testing.assert_close(net(x), net.classifier(net.extractor(x)))
    assert card(name).dense == (first.name if (first := FirstLayer.of(net, SHAPES[name])).dense else "")


def test_every_shape_above_is_of_a_net_that_exists() -> None:
    assert set(SHAPES) == set(OWN)


# --- sizes ---


@pytest.mark.parametrize(("name", "size", "features"), [("cnn1", 115_776, 800), ("cnn2", 106_400, 576)])
def test_hyperfl_extractors_have_the_papers_size(name: str, size: int, features: int) -> None:
    net = fresh(name)
    assert numel(dict(net.extractor.named_parameters())) == size
    layers = [m for m in net.extractor if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in layers] == [(features, 128)]
    assert net.extractor(some_inputs(name)).shape == (3, 128)
    assert numel(tensors(net.classifier)) == 128 * 10 + 10


FED_CDP_SIZES = {
    (1, 28, 28): 32 * 1 * 9 + 64 * 32 * 9 + 10 * 64 * 5 * 5,  # 28-26-13-11-5 pixels
    (3, 32, 32): 32 * 3 * 9 + 64 * 32 * 9 + 10 * 64 * 6 * 6,  # 32-30-15-13-6
    (2, 10, 15): 32 * 2 * 9 + 64 * 32 * 9 + 10 * 64 * 1 * 2,  # 10-8-4-2-1, 15-13-6-4-2
}


@pytest.mark.parametrize("shape", FED_CDP_SIZES)
def test_fed_cdps_network_has_its_size_for_images_of_any_size(shape: tuple[int, int, int]) -> None:
    net = fresh("cnn3x3", shape)
    assert numel(tensors(net)) == FED_CDP_SIZES[shape]
    assert net(torch.zeros(2, *shape)).tolist() == [[0.0] * 10] * 2  # no biases


@pytest.mark.parametrize(
    ("name", "sides"),
    [("cnn1", [24, 12, 12, 10, 5, 5]), ("cnn2", [28, 14, 14, 12, 6, 6, 6, 3, 3]), ("cnn3x3", [26, 13, 13, 11, 5, 5])],
)
def test_extractors_go_through_the_papers_resolutions(name: str, sides: list[int]) -> None:
    x, seen = some_inputs(name), []
    for layer in fresh(name).extractor:
        if isinstance(layer, nn.Flatten):
            break
        x = layer(x)
        seen.append(x.shape[-1])
    assert seen == sides


@pytest.mark.parametrize("name", ["cnn1", "cnn2", "cnn3x3"])
def test_pooling_before_the_rectifier_is_the_papers_network(name: str) -> None:
    """Bit for bit in the scores, and in the gradients but for the order of sums."""
    net, x = fresh(name), some_inputs(name)
    layers = list(net.extractor)
    for at, layer in enumerate(net.extractor):
        if isinstance(layer, nn.MaxPool2d):  # as printed: convolution, rectifier, pooling
            layers[at], layers[at + 1] = layers[at + 1], layer
    blocks = {"cnn1": 2, "cnn2": 3, "cnn3x3": 2}[name]
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in layers) == blocks
    slopes = [layer.negative_slope for layer in layers if isinstance(layer, nn.LeakyReLU)]
    assert slopes == ([] if name == "cnn3x3" else [0.01] * (blocks + 1))
    assert sum(isinstance(layer, nn.ReLU) for layer in layers) == (blocks if name == "cnn3x3" else 0)
    printed = Net(nn.Sequential(*layers), net.classifier)
    assert torch.equal(net(x), printed(x))
    weights = list(net.parameters())
    torch.testing.assert_close(gradients(net(x), weights), gradients(printed(x), weights))


def gradients(scores: Tensor, weights: list[nn.Parameter]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(scores.square().sum(), weights)


@pytest.mark.parametrize(("name", "size"), [("cnn1", 14_943_424), ("cnn2", 13_733_920)])
def test_hypernetworks_have_the_papers_size(name: str, size: int) -> None:
    with torch.device("meta"):
        net = GeneratedNet(build(name, SHAPES[name], 10), embedding=64, hidden=128, head_init="torch")
    assert numel(dict(net.hypernet.named_parameters())) == size


def test_linear_is_softmax_regression_on_the_raw_pixels() -> None:
    net, x = fresh("linear", (1, 3, 3)), torch.randn((2, 1, 3, 3), generator=torch_generator(0, "x"))
    assert [tuple(p.shape) for p in net.parameters()] == [(10, 9), (10,)]
    torch.testing.assert_close(net(x), x.view(2, 9) @ net.classifier.weight.T + net.classifier.bias)


def test_mlp_has_two_hidden_relu_layers_of_64() -> None:
    net, x = fresh("mlp"), some_inputs("mlp")
    w1, b1, w2, b2, w3, b3 = net.parameters()
    assert [tuple(w.shape) for w in (w1, w2, w3)] == [(64, 30), (64, 64), (10, 64)]
    torch.testing.assert_close(net(x), linear(relu(linear(relu(linear(x, w1, b1)), w2, b2)), w3, b3))


# --- LeNets ---


def test_lenet5_pools_before_the_sigmoid() -> None:
    net, x = fresh("lenet5"), 20 * some_inputs("lenet5")  # large, so that the two orders differ plainly
    w1, b1, w2, b2 = net.extractor.parameters()
    features = net.extractor(x).detach()
    assert features.shape == (3, 16, 5, 5)
    assert float(features.min()) > 0 and float(features.max()) < 1
    pooled_first = avg_pool2d(conv2d(x, w1, b1), 2).sigmoid()
    torch.testing.assert_close(features, avg_pool2d(conv2d(pooled_first, w2, b2), 2).sigmoid())
    pooled_last = avg_pool2d(conv2d(x, w1, b1).sigmoid(), 2)
    other = avg_pool2d(conv2d(pooled_last, w2, b2).sigmoid(), 2)
    assert float((features - other.detach()).abs().max()) > 0.01


def test_lenet5_classifier_is_400_120_84_classes_with_sigmoids() -> None:
    net = fresh("lenet5")
    f = torch.rand((2, 16, 5, 5), generator=torch_generator(0, "features"))
    w1, b1, w2, b2, w3, b3 = net.classifier.parameters()
    assert [tuple(w.shape) for w in (w1, w2, w3)] == [(120, 400), (84, 120), (10, 84)]
    hidden = linear(linear(f.flatten(1), w1, b1).sigmoid(), w2, b2).sigmoid()
    torch.testing.assert_close(net.classifier(f), linear(hidden, w3, b3))


@pytest.mark.parametrize(("shape", "features"), [((1, 28, 28), 588), ((3, 32, 32), 768), ((1, 8, 8), 48)])
def test_sigmoid_lenet_strides_down_to_12_channels_of_a_quarter_of_the_side(
    shape: tuple[int, ...], features: int
) -> None:
    net, x = fresh("lenet", shape), torch.randn((2, *shape), generator=torch_generator(0, "x"))
    assert (net.classifier.in_features, net.classifier.out_features) == (features, 10)
    w1, b1, w2, b2, w3, b3 = net.extractor.parameters()
    h = conv2d(x, w1, b1, stride=2, padding=2).sigmoid()
    h = conv2d(h, w2, b2, stride=2, padding=2).sigmoid()
    h = conv2d(h, w3, b3, stride=1, padding=2).sigmoid()
    torch.testing.assert_close(net.extractor(x), h.flatten(1))


def test_sigmoid_lenet_weights_are_uniform_on_plus_minus_one_half() -> None:
    for parameter in tensors(fresh("lenet")).values():
        assert float(parameter.abs().max()) < 0.5
        if parameter.numel() > 500:  # torch's default would stay within 0.12 here
            assert float(parameter.min()) < -0.48 and float(parameter.max()) > 0.48
            assert float(parameter.std()) == pytest.approx(12**-0.5, rel=0.05)


# --- ConvNets ---


@pytest.mark.parametrize(("name", "width"), [("convnet32", 32), ("convnet64", 64)])
def test_convnets_have_eight_blocks_of_one_two_and_four_widths(name: str, width: int) -> None:
    net, w = fresh(name), width
    blocks = [(3, w), (w, 2 * w), (2 * w, 2 * w), (2 * w, 4 * w)] + 4 * [(4 * w, 4 * w)]
    # Of each block: 3x3 weights and a bias for each filter, a scale and a shift of BatchNorm.
    assert numel(dict(net.extractor.named_parameters())) == sum(9 * a * b + 3 * b for a, b in blocks)
    assert [tuple(p.shape) for p in net.classifier.parameters()] == [(10, 36 * w), (10,)]


def test_convnets_pool_by_three_after_six_and_after_eight_blocks() -> None:
    x, seen = some_inputs("convnet32", 2), []
    for layer in fresh("convnet32").extractor:
        x = layer(x)
        seen.append((type(layer).__name__, x.shape[-1]))
    block = [("Conv2d", 32), ("BatchNorm2d", 32), ("ReLU", 32)]
    later = [(kind, 10) for kind, _ in block]
    assert seen == [*6 * block, ("MaxPool2d", 10), *2 * later, ("MaxPool2d", 3), ("Flatten", 1152)]


# --- torchvision's networks, as FedCG's code cuts them ---

TORCHVISIONS = {
    "resnet18": [(1, (128, 1, 1), 8), (3, (128, 4, 4), 32), (3, (128, 5, 5), 33), (3, (128, 28, 28), 224)],
    "alexnet": [(1, (256, 1, 1), 63), (3, (256, 1, 1), 64), (3, (256, 6, 6), 224)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHVISIONS)
def test_torchvisions_networks_extract_maps_in_0_to_1_from_images_of_many_sizes(name: str) -> None:
    for channels, features, side in TORCHVISIONS[name]:
        net = fresh(name, (channels, side, side))
        x = torch.randn((1, channels, side, side), generator=torch_generator(0, "x"))
        f = net.extractor(x).detach()
        assert f.shape == (1, *features) and float(f.min()) > 0 and float(f.max()) <= 1
        assert isinstance(list(net.extractor.modules())[-1], nn.Sigmoid)
        assert net.classifier(f).shape == (1, 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHVISIONS)
def test_torchvisions_networks_are_theirs_but_for_a_sigmoid_and_dropout(name: str) -> None:
    """The same weights from the same generator, and the same scores with a sigmoid where the network is cut."""
    import torchvision

    side = {"resnet18": 40, "alexnet": 80}[name]
    net = fresh(name, (3, side, side))
    with initialising(0, "net"):
        theirs = getattr(torchvision.models, name)(weights=None, num_classes=10)
    chosen = list(tensors(net).values())
    assert len(chosen) == len(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(chosen, theirs.state_dict().values(), strict=True))
    cut = theirs.layer2 if name == "resnet18" else theirs.features
    cut.register_forward_hook(lambda module, given, result: result.sigmoid())
    x = torch.randn((2, 3, side, side), generator=torch_generator(0, "x"))
    torch.testing.assert_close(net.eval()(x), theirs.eval()(x))
    if name == "resnet18":  # of the other the dropout is left out
        torch.testing.assert_close(net.train()(x), theirs.train()(x))


@pytest.mark.parametrize("name", TORCHVISIONS)
def test_torchvisions_networks_draw_nothing_in_training_and_leave_layers_outputs_alone(name: str) -> None:
    net, x = fresh(name).train(), some_inputs(name, 2)
    before = torch.get_rng_state()
    net(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(getattr(layer, "inplace", False) for layer in net.modules())


@pytest.mark.slow
def test_the_first_layer_of_other_channels_is_drawn_as_torchvisions_own() -> None:
    for channels in (1, 3):  # fan_out of a rectifier: 2 / (64 * 49); fan_in for the other: U of 1 / (channels * 121)
        weights = fresh("resnet18", (channels, 32, 32)).extractor.conv1.weight.detach()
        assert float(weights.std()) == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)
        weights = fresh("alexnet", (channels, 64, 64)).extractor[0].weight.detach()
        assert float(weights.abs().max()) == pytest.approx((channels * 121) ** -0.5, rel=0.01)


def test_one_example_whose_maps_are_one_pixel_is_normalised_by_the_running_statistics() -> None:
    """Torch would end the training; any more numbers are normalised by their own."""
    net, x = fresh("resnet18").train(), some_inputs("resnet18", 2)
    norm = net.classifier.layer4[1].bn2
    assert isinstance(norm, nn.BatchNorm2d)
    norm.running_mean.fill_(0.5)
    norm.running_var.fill_(4.0)
    one = torch.full((1, 512, 1, 1), 2.5)
    torch.testing.assert_close(norm(one), torch.full((1, 512, 1, 1), 2.0 / (4 + norm.eps) ** 0.5))
    assert float(norm.running_mean[0]) == 0.5 and int(norm.num_batches_tracked) == 0
    torch.testing.assert_close(norm(torch.cat([one, -one])).mean(0), torch.zeros(512, 1, 1))
    assert float(norm.running_mean[0]) == pytest.approx(0.45) and int(norm.num_batches_tracked) == 1
    net(x[:1]).sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


def test_a_hypernetwork_generates_no_running_statistics() -> None:
    with pytest.raises(InputError) as error:
        HyperFL.build_model(fresh("resnet18"), HypernetworkTraining())
    message = "Expected a network whose extractor is all weights, for a hypernetwork to generate, got the running "
    assert str(error.value) == f"{message}statistics bn1.running_mean; choose another --net."


# One round with few examples: (method, network, side, settings).
ROUNDS = [
    ("fedsplit", "resnet18", 8, ""),
    ("fedavg", "resnet18", 33, ""),
    ("fedavg", "alexnet", 63, ""),
    ("fedsplit", "alexnet", 64, ""),
    ("fedcg", "resnet18", 32, "iterations=2 gan_epochs=1"),
    ("fedcg", "alexnet", 63, "iterations=1 gan_epochs=1"),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("method", "net", "side", "settings"), ROUNDS)
def test_torchvisions_networks_train_and_repeat(
    tmp_path: Path, method: str, net: str, side: int, settings: str
) -> None:
    flags = f"--method {method} --net {net} --image-size {side} --clients 2 --rounds 1 --local-epochs 1 --lr 0.0003"
    flags += f" --batch-size 20 --engine inproc --attack none --set dominant.train=40 {settings}"
    models = []
    for name in ("one",) if (method, net) == ("fedcg", "alexnet") else ("one", "two"):  # that one takes a minute
        assert sim.main([*flags.split(), "--out", str(tmp_path / name)]) == 0
        (model,) = (tmp_path / name / "checkpoint").glob("round-*")
        models.append(load_file(model))
        shutil.rmtree(tmp_path / name)
    assert all(bool(value.isfinite().all()) for value in models[0].values())
    assert all(torch.equal(value, models[-1][name]) for name, value in models[0].items())


# --- building by name ---


@pytest.mark.parametrize(
    ("name", "shape", "line"),
    [
        ("cnn1", (3, 28, 28), "Expected inputs of 1x28x28 for net=cnn1, got 3x28x28; choose another --net."),
        ("cnn1", (1, 8, 8), "Expected inputs of 1x28x28 for net=cnn1, got 1x8x8; choose another --net."),
        ("cnn2", (3, 32, 28), "Expected inputs of 3x32x32 for net=cnn2, got 3x32x28; choose another --net."),
        ("convnet32", (1, 32, 32), "Expected inputs of 3x32x32 for net=convnet32, got 1x32x32; choose another --net."),
        ("lenet5", (1, 28, 28), "Expected inputs of Cx32x32 for net=lenet5, got 1x28x28; choose another --net."),
        ("lenet", (30,), "Expected inputs of CxHxW for net=lenet, got 30; choose another --net."),
        ("cnn3x3", (2, 9, 10), "Expected inputs of at least Cx10x10 for net=cnn3x3, got 2x9x10; choose another --net."),
        ("cnn3x3", (1, 28, 9), "Expected inputs of at least Cx10x10 for net=cnn3x3, got 1x28x9; choose another --net."),
        (
            "resnet18",
            (3, 7, 8),
            "Expected inputs of at least Cx8x8 for net=resnet18, got 3x7x8; choose another --net or --image-size.",
        ),
        (
            "alexnet",
            (3, 224, 62),
            "Expected inputs of at least Cx63x63 for net=alexnet, got 3x224x62; choose another --net or --image-size.",
        ),
        ("alexnet", (30,), "Expected inputs of CxHxW for net=alexnet, got 30; choose another --net."),
        ("cnn3x3", (30,), "Expected inputs of CxHxW for net=cnn3x3, got 30; choose another --net."),
        ("cnn1", (30,), "Expected inputs of 1x28x28 for net=cnn1, got 30; choose another --net."),
    ],
)
def test_a_net_refuses_inputs_it_is_not_made_for(name: str, shape: tuple[int, ...], line: str) -> None:
    with pytest.raises(InputError) as error:
        build(name, shape, 10)
    assert str(error.value) == line


def test_an_unknown_net_says_which_there_are() -> None:
    with pytest.raises(InputError) as error:
        card("resnet")
    first_ones = "alexnet, bert_tiny, cnn1, cnn2, cnn3x3, convnet32, convnet64, gpt_next, gpt_tiny, lenet, lenet5"
    fresh_ones = f"{first_ones}, linear, mlp, resnet18, vit_norm, vit_plain"
    pretrained = "efficientnet_lite0, resnet18_imagenet, vit_small, vit_tiny"
    there_are = f"{fresh_ones}, {pretrained}, or package.module:name"
    assert str(error.value) == f"Got net=resnet; did you mean resnet18? Expected a network among {there_are}."


def test_fully_connected_nets_take_rows_and_images() -> None:
    assert fresh("mlp", (7,))(torch.zeros(2, 7)).shape == fresh("mlp", (2, 3, 4))(torch.zeros(2, 2, 3, 4)).shape


# --- hypernetworks ---


def test_generated_tensors_are_heads_of_the_rectified_hidden_units_by_hand() -> None:
    hypernet = Hypernetwork({"a": torch.Size([2, 1]), "b": torch.Size([1])}, embedding=2, hidden=2, head_init="torch")
    values = {
        "trunk.weight": [[1.0, 0.0], [0.0, -1.0]],
        "trunk.bias": [0.0, 0.5],
        "heads.0.weight": [[1.0, 5.0], [2.0, 7.0]],
        "heads.0.bias": [0.5, -0.5],
        "heads.1.weight": [[3.0, 9.0]],
        "heads.1.bias": [1.0],
    }
    hypernet.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    v = torch.tensor([2.0, 1.0])  # A v + c = (2, -0.5), so h = (2, 0)
    assert hypernet.hidden_units(v).tolist() == [2.0, 0.0]
    theta = hypernet(v)
    assert theta["a"].tolist() == [[2.5], [3.5]]  # 1*2 + 0.5, 2*2 - 0.5
    assert theta["b"].tolist() == [7.0]  # 3*2 + 1


@pytest.mark.parametrize("name", ["cnn1", "lenet5", "mlp"])
def test_a_generated_net_computes_what_a_plain_net_with_those_weights_computes(name: str) -> None:
    net, plain, x = generated(name), fresh(name, seed=1), some_inputs(name)
    plain.extractor.load_state_dict(net.extractor_weights())
    plain.classifier.load_state_dict(net.classifier.state_dict())
    torch.testing.assert_close(net(x), plain(x))
    torch.testing.assert_close(net.features(x, net.extractor_weights()), plain.extractor(x))


def test_a_generated_net_changes_with_its_embedding() -> None:
    net, x = generated("mlp"), some_inputs("mlp")
    with torch.no_grad():
        before = net(x)
        net.embedding.mul_(-1)
        assert float((net(x) - before).abs().max()) > 1e-3


def test_only_hypernetwork_embedding_and_classifier_are_parameters_of_a_generated_net() -> None:
    net = generated("cnn1")
    trunk = ["hypernet.trunk.weight", "hypernet.trunk.bias"]
    heads = [f"hypernet.heads.{k}.{part}" for k in range(6) for part in ("weight", "bias")]
    expected = ["embedding", *trunk, *heads, "classifier.weight", "classifier.bias"]
    assert list(net.state_dict()) == [name for name, _ in net.named_parameters()] == expected
    # 6 hidden units: 6 weights and a bias for each generated number.
    assert numel(dict(net.named_parameters())) == 4 + (6 * 4 + 6) + 7 * 115_776 + 1_290


def test_generated_tensors_bear_the_names_and_shapes_of_the_extractors_own() -> None:
    chosen = {name: p.shape for name, p in fresh("cnn1").extractor.named_parameters()}
    theta = generated("cnn1").extractor_weights()
    assert {name: value.shape for name, value in theta.items()} == chosen
    assert list(theta) == [f"{layer}.{part}" for layer in (0, 3, 7) for part in ("weight", "bias")]


def test_the_gradient_reaches_hypernetwork_and_embedding_but_no_template() -> None:
    net = generated("mlp")
    net(some_inputs("mlp")).sum().backward()
    without = [name for name, p in net.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert without == []


# --- the scale of generated weights ---


def layer_deviations(nets: Iterable[GeneratedNet], draws: int = 16, scale: float = 1.0) -> dict[str, float]:
    """Root mean square of each layer's generated weights and biases over several embeddings, heads scaled."""
    sums: dict[str, tuple[float, int]] = {}
    rng = torch_generator(0, "embeddings")
    with torch.no_grad():
        for net in nets:
            for parameter in net.hypernet.heads.parameters():
                parameter.mul_(scale)
            for _ in range(draws):
                for name, value in net.hypernet(torch.randn(net.embedding.shape, generator=rng)).items():
                    total, count = sums.get(name.partition(".")[0], (0.0, 0))
                    sums[name.partition(".")[0]] = total + float((value**2).sum()), count + value.numel()
    return {layer: (total / count) ** 0.5 for layer, (total, count) in sums.items()}


def full_size(head_init: str, seeds: range) -> Iterable[GeneratedNet]:
    return (generated("cnn1", embedding=64, hidden=128, head_init=head_init, seed=seed) for seed in seeds)


@pytest.mark.slow
def test_torchs_own_initialisation_generates_deviation_024_in_every_layer() -> None:
    result = layer_deviations(full_size("torch", range(3)))
    assert set(result) == {"0", "3", "7"}
    assert all(0.21 < std < 0.27 for std in result.values()), result


FAN_INS = {"0": 25, "3": 400, "7": 800}  # 1x5x5, 16x5x5, 32x5x5


def off_by(result: dict[str, float]) -> list[float]:
    """How far each layer's deviation is from that of U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as a share of it."""
    return [abs(result[layer] * (3 * fan_in) ** 0.5 - 1) for layer, fan_in in FAN_INS.items()]


@pytest.mark.slow
def test_fan_in_scaling_gives_each_layer_its_usual_deviation_and_no_other_scale_would_pass() -> None:
    assert max(off_by(layer_deviations(full_size("fan_in", range(2))))) < 0.15
    for wrong in (2 / 3, 3 / 2):
        assert min(off_by(layer_deviations(full_size("fan_in", range(1)), scale=wrong))) > 0.15


def test_fan_in_scaling_holds_at_other_widths_too() -> None:
    nets = (generated("cnn1", embedding=32, hidden=32, seed=seed) for seed in range(3))
    assert max(off_by(layer_deviations(nets))) < 0.15


def test_fan_in_scaling_leaves_the_trunk_alone() -> None:
    a, b = generated("cnn1", head_init="torch"), generated("cnn1", head_init="fan_in")
    assert torch.equal(a.hypernet.trunk.weight, b.hypernet.trunk.weight)
    assert torch.equal(a.embedding, b.embedding)
    ratio = a.hypernet.heads[2].weight / b.hypernet.heads[2].weight
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio))  # one factor for the head
