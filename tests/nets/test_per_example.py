"""Clipped per-example gradients: the same as a loop over examples, whatever the layers, the groups and the way."""

from collections.abc import Callable, Mapping
from math import inf, nan, prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu

from flfw import nets
from flfw.errors import InputError
from flfw.nets.training.clipping import Grouping
from flfw.nets.training.per_example import ClippedSum, PerExample
from flfw.nets.training.per_example_layers import WAYS, Way
from flfw.rng import initialising, torch_generator

EXACT = {torch.float64: 1e-10, torch.float32: 3e-5}


def made(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    with initialising(0, "model"):
        return build().to(dtype)


def batch(examples: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Examples of very different sizes, so that some are clipped and others not; labels below 3."""
    rng = torch_generator(0, "batches")
    x = torch.randn(examples, *shape, generator=rng, dtype=torch.float64)
    x = x * torch.logspace(-1, 1, max(examples, 1), dtype=torch.float64)[:examples].view(-1, *[1] * len(shape))
    return x.to(dtype), torch.randint(0, 3, (examples,), generator=rng)


def clipped(
    tested: PerExample, model: nn.Module, x: Tensor, y: Tensor, bound: float | Mapping[str, float]
) -> ClippedSum:
    return tested.clipped_sum(lambda: cross_entropy(model(x), y, reduction="none"), bound)


def loop(
    model: nn.Module, groups: Mapping[str, tuple[str, ...]], x: Tensor, y: Tensor, bounds: Mapping[str, float]
) -> tuple[dict[str, Tensor], Tensor]:
    """One example at a time: differentiate, clip group by group, add."""
    chosen = {n: p for n, p in model.named_parameters() if any(n in members for members in groups.values())}
    sums, norms = {n: torch.zeros_like(p) for n, p in chosen.items()}, x.new_zeros(len(x), len(groups))
    for j in range(len(x)):
        loss = cross_entropy(model(x[j : j + 1]), y[j : j + 1])
        result = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
        given = {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(chosen.items(), result, strict=True)}
        for column, (group, members) in enumerate(groups.items()):
            norm = sum(float(given[n].double().square().sum()) for n in members) ** 0.5
            norms[j, column] = norm
            for n in members:
                sums[n] += given[n] / max(1.0, norm / bounds[group])
    return sums, norms


def assert_same(result: ClippedSum, sums: Mapping[str, Tensor], norms: Tensor) -> None:
    exact = EXACT[norms.dtype]
    assert list(result.sums) == list(sums)
    for name, expected in sums.items():
        assert result.sums[name].shape == expected.shape
        assert result.sums[name].dtype == expected.dtype
        assert float((result.sums[name] - expected).norm()) <= exact * float(expected.norm()) + 1e-300, name
    assert result.norms.shape == norms.shape
    assert torch.allclose(result.norms, norms, rtol=exact, atol=0)


def middle(norms: Tensor) -> list[float]:
    """Bounds between the examples' norms, so that some are clipped and some are not; a single one is clipped."""
    result = []
    for column in norms.unbind(1):
        minimum, maximum = float(column.min()), float(column.max())
        result.append((minimum + maximum) / 2 if minimum < maximum else 0.7 * maximum or 1.0)
    return result


def compare(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    chosen: tuple[str, ...] = ("*",),
    grouping: Grouping = "layer",
    way: Way = "rows",
) -> None:
    """Against the loop, with a bound for each group that clips some of the examples."""
    tested = PerExample(model, chosen, grouping=grouping, way=way)
    free = dict.fromkeys(tested.groups, inf)
    sums, norms = loop(model, tested.groups, x, y, free)
    assert_same(clipped(tested, model, x, y, inf), sums, norms)
    bounds = dict(zip(tested.groups, middle(norms), strict=True))
    result = clipped(tested, model, x, y, bounds)
    assert_same(result, *loop(model, tested.groups, x, y, bounds))
    expected = (torch.tensor(list(bounds.values()), dtype=norms.dtype) / norms).clamp(max=1)
    assert torch.allclose(result.scales, expected, rtol=1e-4)
    assert len(x) < 2 or bool(((result.scales < 1).any(0) & (result.scales == 1).any(0)).all())
    assert torch.allclose(result.losses, cross_entropy(model(x), y, reduction="none").detach())


# --- by hand ---


def test_by_hand() -> None:
    """One output w x + b with loss w x + b: the gradient is (x, 1), of norm 5 for x = (4, sqrt 8)."""
    model = made(lambda: nn.Linear(2, 1))
    x = torch.tensor([[4.0, 8.0**0.5], [0.0, 0.0]], dtype=torch.float64)
    result = PerExample(model).clipped_sum(lambda: model(x)[:, 0], 2.5)
    assert result.norms.tolist() == [[pytest.approx(5.0)], [pytest.approx(1.0)]]
    assert result.scales.tolist() == [[pytest.approx(0.5)], [1.0]]
    assert result.sums["weight"].tolist() == [[pytest.approx(2.0), pytest.approx(2.0**0.5)]]
    assert result.sums["bias"].tolist() == [pytest.approx(1.5)]


# --- every layer and option, against the loop ---

LINEARS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "with bias": (lambda: nn.Linear(4, 3), (4,)),
    "without bias": (lambda: nn.Linear(4, 3, bias=False), (4,)),
    "several rows": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.Linear(10, 3)), (5, 4)),
    "rows of rows": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.Linear(12, 3, bias=False)), (2, 3, 4)),
}


@pytest.mark.parametrize("kind", LINEARS)
def test_linear(kind: str) -> None:
    build, shape = LINEARS[kind]
    groupings: tuple[Grouping, ...] = ("layer", "tensor", "flat")
    for grouping in groupings:
        compare(made(build), *batch(5, shape), grouping=grouping)


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "without bias": {"bias": False},
    "stride": {"stride": (2, 3)},
    "padding": {"padding": (2, 1)},
    "dilation": {"dilation": (2, 1)},
    "groups": {"groups": 2},
    "depthwise": {"groups": 4},
    "same": {"padding": "same"},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "reflect": {"padding": 2, "padding_mode": "reflect", "bias": False},
    "a kernel of one": {"kernel_size": 1},
    "all at once": {"kernel_size": (3, 2), "stride": 2, "padding": 2, "dilation": (1, 2), "groups": 2},
}


def convolution(**options: Any) -> Callable[[], nn.Module]:
    layer = {"in_channels": 4, "out_channels": 8, "kernel_size": 3, **options}
    return lambda: nn.Sequential(nn.Conv2d(**layer), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", CONVOLUTIONS)
def test_convolution(options: str, way: Way) -> None:
    compare(made(convolution(**CONVOLUTIONS[options])), *batch(6, (4, 8, 7)), way=way)


@pytest.mark.parametrize("grouping", ["tensor", "flat"])
def test_convolution_in_other_groups(grouping: Grouping) -> None:
    compare(made(convolution(padding=1)), *batch(9, (4, 8, 7)), grouping=grouping)


NETS = [("cnn1", (1, 28, 28)), ("cnn2", (3, 32, 32)), ("mlp", (12,)), ("lenet", (1, 28, 28)), ("lenet5", (1, 32, 32))]


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize(("name", "shape"), NETS)
def test_nets(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    model = made(lambda: nets.build(name, shape, 3), dtype)
    groupings: tuple[Grouping, ...] = ("layer", "tensor", "flat")
    for grouping in groupings:
        compare(model, *batch(5, shape, dtype), grouping=grouping)
    compare(model, *batch(5, shape, dtype), chosen=("extractor.*",), grouping="flat", way="planes")


@pytest.mark.parametrize("examples", [1, 8, 9, 17])
def test_any_number_of_examples(examples: int) -> None:
    """Around the number whose windows are copied at a time."""
    ways: tuple[Way, ...] = ("rows", "planes")
    for way in ways:
        compare(made(convolution(groups=2, stride=2)), *batch(examples, (4, 8, 7)), way=way)


def test_no_example() -> None:
    model = made(convolution())
    result = clipped(PerExample(model), model, *batch(0, (4, 8, 7)), 1.0)
    assert {n: s.shape for n, s in result.sums.items()} == {n: p.shape for n, p in model.named_parameters()}
    assert all(not s.any() for s in result.sums.values())
    assert (result.norms.shape, result.scales.shape, result.losses.shape) == ((0, 2), (0, 2), (0,))


def test_the_way_does_not_matter() -> None:
    model, (x, y) = made(lambda: nets.build("cnn1", (1, 28, 28), 3)), batch(10, (1, 28, 28))
    ways: tuple[Way, ...] = ("fixed", "rows", "planes")
    assert ways == WAYS
    for way in ways:
        tested = PerExample(model, way=way)
        result = clipped(tested, model, x, y, 0.5)
        assert_same(result, *loop(model, tested.groups, x, y, dict.fromkeys(tested.groups, 0.5)))


def test_a_pinned_way_repeats_bit_for_bit() -> None:
    model, (x, y) = made(convolution(), torch.float32), batch(10, (4, 8, 7), torch.float32)
    ways: tuple[Way, ...] = ("planes", "fixed")
    for way in ways:
        one, other = (clipped(PerExample(model, way=way), model, x, y, 0.5).sums for _ in range(2))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_forward_of_the_layers_own_is_put_back() -> None:
    model, (x, y) = made(lambda: nn.Linear(4, 3)), batch(5, (4,))
    plain, calls = model.forward, []

    def counted(x: Tensor) -> Tensor:
        calls.append(len(x))
        return plain(x)

    model.forward = counted
    result = clipped(PerExample(model), model, x, y, 0.5)
    assert vars(model)["forward"] is counted
    assert calls == [5]
    assert_same(result, *loop(model, {"model": ("weight", "bias")}, x, y, {"model": 0.5}))


def lines(wide: int, channels: int, groups: int = 1) -> nn.Module:
    """A convolution whose output is so many pixels wide, and reads so many channels."""
    return nn.Sequential(
        nn.Conv2d(channels, 8 * groups, 3, groups=groups), nn.Flatten(), nn.Linear(8 * groups * 22 * wide, 3)
    )


@pytest.mark.parametrize(
    ("wide", "channels", "groups", "expected"),
    [(7, 7, 1, "rows"), (8, 7, 1, "planes"), (7, 14, 2, "rows"), (8, 14, 2, "planes"), (26, 1, 1, "planes")],
)
@pytest.mark.parametrize("examples", [5, 11])
def test_the_fixed_way_goes_by_the_channels_and_the_width(
    wide: int, channels: int, groups: int, expected: Way, examples: int
) -> None:
    """Bit for bit the way that the rule names, and not the other one."""
    model = made(lambda: lines(wide, channels, groups), torch.float32)
    x, y = batch(examples, (channels, 24, wide + 2), torch.float32)
    ways: tuple[Way, ...] = ("fixed", "rows", "planes")
    result = {way: clipped(PerExample(model, way=way), model, x, y, 0.5).sums["0.weight"] for way in ways}
    assert torch.equal(result["fixed"], result[expected])
    assert not torch.equal(result["rows"], result["planes"])


# --- what is chosen and how it is grouped ---


def test_only_what_is_chosen_takes_part() -> None:
    model = made(lambda: nets.build("mlp", (12,), 3))
    assert PerExample(model, ["extractor.*", "classifier.bias"]).groups == {
        "extractor.1": ("extractor.1.weight", "extractor.1.bias"),
        "extractor.3": ("extractor.3.weight", "extractor.3.bias"),
        "classifier": ("classifier.bias",),
    }
    compare(model, *batch(5, (12,)), chosen=("extractor.*", "classifier.bias"))
    compare(model, *batch(5, (12,)), chosen=("*.bias",), grouping="flat")


def test_frozen_parameters_take_no_part() -> None:
    model = made(lambda: nets.build("mlp", (12,), 3))
    for name in ("extractor.1.weight", "classifier.bias"):
        model.get_parameter(name).requires_grad_(False)
    assert [n for names in PerExample(model).groups.values() for n in names] == [
        "extractor.1.bias",
        "extractor.3.weight",
        "extractor.3.bias",
        "classifier.weight",
    ]
    compare(model, *batch(5, (12,)))


@pytest.mark.parametrize("grouping", ["layer", "tensor", "flat"])
def test_one_bound_holds_for_every_group(grouping: Grouping) -> None:
    model, (x, y) = made(lambda: nets.build("mlp", (12,), 3)), batch(5, (12,))
    tested = PerExample(model, grouping=grouping)
    assert len(tested.groups) == {"layer": 3, "tensor": 6, "flat": 1}[grouping]
    assert_same(clipped(tested, model, x, y, 0.7), *loop(model, tested.groups, x, y, dict.fromkeys(tested.groups, 0.7)))


# --- layers used in unusual ways ---


class Twice(nn.Module):
    """A layer that is called twice, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.first, self.tied = nn.Linear(8, 8), nn.Linear(8, 8)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(torch.tanh(self.conv(x))).flatten(1)
        return self.last(torch.tanh(self.tied(torch.tanh(self.first(x)))))


@pytest.mark.parametrize("grouping", ["layer", "tensor", "flat"])
def test_what_is_used_twice_is_added_up(grouping: Grouping) -> None:
    model = made(Twice)
    ways: tuple[Way, ...] = ("planes", "rows")
    for way in ways:
        compare(model, *batch(5, (2, 2, 2)), grouping=grouping, way=way)
    groups = {
        "first": ("first.weight", "first.bias"),
        "conv": ("conv.weight", "conv.bias"),
        "tied": ("tied.bias",),
        "last": ("last.weight", "last.bias"),
    }
    assert grouping != "layer" or PerExample(model).groups == groups


class Branch(nn.Module):
    """A layer that positive sums of the inputs alone reach."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.rare, self.never = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.usual(x) + self.rare(x) if float(x.sum()) > 0 else self.usual(x)


def test_a_layer_that_is_not_called_gets_nothing() -> None:
    model, (x, y) = made(Branch), batch(5, (4,))
    tested = PerExample(model)
    for inputs, reached in ((x.abs(), True), (-x.abs(), False), (x.abs(), True)):
        result = clipped(tested, model, inputs, y, 0.7)
        assert bool(result.sums["rare.weight"].any()) is reached
        assert not result.sums["never.weight"].any()
        assert_same(result, *loop(model, tested.groups, inputs, y, dict.fromkeys(tested.groups, 0.7)))


def test_what_comes_after_a_layer_may_change_its_output_in_place() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 4), nn.ELU(inplace=True)
    )
    compare(made(lambda: model.append(nn.Linear(4, 3))), *batch(5, (1, 4, 4)))


# --- by Opacus ---


class Scale(nn.Module):
    """A layer of one's own, which Opacus differentiates by torch.func."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class ToIndex(nn.Module):
    """One of six indices for each number; without a second dimension where there is but one number."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().mul(3).long().clamp(max=5).squeeze(1)


class TiedWords(nn.Module):
    """Words in and out by one weight: its row of the padding has a gradient from the output alone."""

    def __init__(self) -> None:
        super().__init__()
        self.index, self.words = ToIndex(), nn.Embedding(6, 4, padding_idx=5)
        self.last = nn.Linear(4, 6, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.words(self.index(x)).sum(1)))


OTHERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)), (4,)),
    "layer norm, no bias": (lambda: nn.Sequential(nn.LayerNorm(4, bias=False), nn.Linear(4, 3)), (4,)),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)),
        (2, 3, 3),
    ),
    "embedding": (lambda: nn.Sequential(nn.Flatten(), ToIndex(), nn.Embedding(6, 4), nn.Linear(4, 3)), (1,)),
    "embeddings": (
        lambda: nn.Sequential(ToIndex(), nn.Embedding(6, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)),
        (2,),
    ),
    "padding": (
        lambda: nn.Sequential(ToIndex(), nn.Embedding(6, 4, padding_idx=0), nn.Flatten(), nn.Linear(8, 3)),
        (2,),
    ),
    "padding of a tied weight": (lambda: TiedWords(), (2,)),
    "conv 1d": (lambda: nn.Sequential(nn.Conv1d(2, 4, 2, stride=2), nn.Flatten(), nn.Linear(8, 3)), (2, 4)),
    "one's own": (lambda: nn.Sequential(Scale(4), nn.Linear(4, 5), nn.Tanh(), Scale(5), nn.Linear(5, 3)), (4,)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_layers(kind: str) -> None:
    build, shape = OTHERS[kind]
    groupings: tuple[Grouping, ...] = ("layer", "flat")
    for grouping in groupings:
        compare(made(build), *batch(5, shape), grouping=grouping)


def test_the_same_as_opacus_gives() -> None:
    """Its own module on a copy, clipped tensor by tensor as its optimiser does."""
    from opacus.grad_sample import GradSampleModule

    x, y = batch(5, (1, 28, 28))
    model, copy = (made(lambda: nets.build("cnn1", (1, 28, 28), 3)) for _ in range(2))
    wrapped = GradSampleModule(copy, loss_reduction="sum")
    cross_entropy(wrapped(x.clone().requires_grad_()), y, reduction="sum").backward()
    result = clipped(PerExample(model, grouping="tensor"), model, x, y, 0.5)
    for name, parameter in copy.named_parameters():
        each: Tensor = parameter.grad_sample  # pyright: ignore[reportAttributeAccessIssue]
        scale = (0.5 / each.flatten(1).norm(dim=1)).clamp(max=1)
        expected = torch.einsum("b,b...->...", scale, each)
        assert float((result.sums[name] - expected).norm()) <= 1e-10 * float(expected.norm())


# --- the model is left as it was ---


def test_nothing_is_left_behind() -> None:
    model, (x, y) = made(lambda: nn.Sequential(Scale(4), nn.Linear(4, 3))), batch(5, (4,))
    before = {place: set(vars(layer)) for place, layer in model.named_modules()}
    values = {name: value.clone() for name, value in model.state_dict().items()}
    clipped(PerExample(model), model, x, y, 0.5)
    with pytest.raises(InputError):
        PerExample(model).clipped_sum(lambda: cross_entropy(model(x), y), 0.5)
    assert {place: set(vars(layer)) for place, layer in model.named_modules()} == before
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in model.modules())
    assert all(p.grad is None and not hasattr(p, "grad_sample") for p in model.parameters())
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


# --- refusals ---

WRONG_BOUNDS = {0.0: "0.0", -1.0: "-1.0", nan: "nan"}


@pytest.mark.parametrize("bound", WRONG_BOUNDS)
def test_bounds_that_are_none(bound: float) -> None:
    model, (x, y) = made(lambda: nn.Linear(4, 3)), batch(5, (4,))
    for given in (bound, {"model": bound}):
        with pytest.raises(InputError) as refused:
            clipped(PerExample(model), model, x, y, given)
        assert str(refused.value) == f"Expected bound > 0, got bound={WRONG_BOUNDS[bound]}."


def test_bounds_for_other_groups() -> None:
    model, (x, y) = made(lambda: nets.build("mlp", (12,), 3)), batch(5, (12,))
    with pytest.raises(InputError, match=r"a bound for each of extractor\.1, extractor\.3, classifier, got bounds="):
        clipped(PerExample(model), model, x, y, {"classifier": 1.0})


def test_settings_that_are_none() -> None:
    model = made(lambda: nn.Linear(4, 3))
    with pytest.raises(InputError, match="some parameters that require gradients, got chosen="):
        PerExample(model, ["head.*"])
    with pytest.raises(InputError, match="grouping among layer, tensor, flat, got grouping=global"):
        PerExample(model, grouping="global")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="way among fixed, rows, planes, got way=fast"):
        PerExample(model, way="fast")  # pyright: ignore[reportArgumentType]


def test_a_loss_that_is_already_summed() -> None:
    model, (x, y) = made(lambda: nn.Linear(4, 3)), batch(5, (4,))
    with pytest.raises(InputError, match=r"a loss for each example, of shape \(B,\), got shape=\(\)"):
        PerExample(model).clipped_sum(lambda: cross_entropy(model(x), y), 1.0)


class Mixing(nn.Module):
    """Subtracts the batch's mean."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Past(nn.Module):
    """Uses a layer's weight without calling the layer a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(relu(linear(self.inner(x), self.inner.weight)))


class Parametrised(nn.Module):
    """A layer of which nothing is ever called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.inner.weight, self.inner.bias)


class Overwriting(nn.Module):
    """Changes a layer's input after the call, which autograd would not forgive either."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(x)
        return self.last(self.inner(hidden) + hidden.mul_(2.0))


REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "batch norm": (
        lambda: nets.build("convnet32", (3, 32, 32), 3),
        (3, 32, 32),
        "BatchNorm2d at extractor.1; its output depends on the whole batch",
    ),
    "batch norm without parameters": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)),
        (4,),
        "BatchNorm1d at 1; its output depends on the whole batch",
    ),
    "running statistics": (
        lambda: nn.Sequential(
            nn.InstanceNorm2d(2, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(18, 3)
        ),
        (2, 3, 3),
        "InstanceNorm2d at 0; its buffers",
    ),
    "words that the batch shortens": (
        lambda: nn.Sequential(nn.Embedding(6, 4, max_norm=1.0).requires_grad_(False), nn.Linear(4, 3)),
        (2,),
        "Embedding at 0; max_norm changes its weights",
    ),
    "words by their number in the batch": (
        lambda: nn.Sequential(nn.Embedding(6, 4, scale_grad_by_freq=True), nn.Linear(4, 3)),
        (2,),
        "Embedding at 0; max_norm changes its weights, scale_grad_by_freq its gradients",
    ),
    "examples mixed": (
        lambda: nn.Sequential(nn.Linear(4, 4), Mixing(), nn.Linear(4, 3)),
        (4,),
        "Linear at 0; the loss of one example depends on what it makes of another",
    ),
    "examples not first": (
        lambda: nn.Sequential(
            nn.Flatten(0, 1), nn.Linear(4, 3), nn.Unflatten(0, (5, 2)), nn.Flatten(), nn.Linear(6, 3)
        ),
        (2, 4),
        r"Linear at 1; its input of shape \(10, 4\) does not have the 5 examples first",
    ),
    "a weight used past its layer": (Past, (4,), "Linear at inner; its weight is also used otherwise"),
    "a layer that is not called": (Parametrised, (4,), "Linear at inner; its weight is also used otherwise"),
    "a recurrent layer": (
        lambda: nn.LSTM(4, 3, batch_first=True),
        (2, 4),
        "LSTM at the model itself; not from tensors to one tensor; dp_fedavg with unit=client trains it",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_gradients_by_example_is_refused_by_name(kind: str) -> None:
    build, shape, complaint = REFUSED[kind]
    model, (x, y) = made(build), batch(5, shape)
    with pytest.raises(InputError, match=f"^Expected layers with per-example gradients, got {complaint}") as refused:
        clipped(PerExample(model), model, x, y, 1.0)
    assert "\n" not in str(refused.value)


def test_an_input_that_is_overwritten() -> None:
    model, (x, y) = made(Overwriting), batch(5, (4,))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        clipped(PerExample(model), model, x, y, 1.0)


def test_a_mixture_is_seen_in_the_first_batch_of_two_or_more() -> None:
    model = made(lambda: nn.Sequential(nn.Linear(4, 4), Mixing(), nn.Linear(4, 3)))
    tested = PerExample(model)
    clipped(tested, model, *batch(1, (4,)), 1.0)
    with pytest.raises(InputError, match="Linear at 0"):
        clipped(tested, model, *batch(2, (4,)), 1.0)


def test_the_result_is_no_part_of_a_graph() -> None:
    model, (x, y) = made(lambda: nets.build("mlp", (12,), 3)), batch(5, (12,))
    result = clipped(PerExample(model), model, x, y, 1.0)
    assert not any(value.requires_grad for value in (*result.sums.values(), result.norms, result.scales, result.losses))
    assert sum(value.numel() for value in result.sums.values()) == sum(prod(p.shape) for p in model.parameters())
