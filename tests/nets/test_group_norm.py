"""GroupNorm in place of BatchNorm: which layers, gradients against a loop, both sides of a run, refusals."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

import sim
from flfw import nets
from flfw.experiment import Experiment
from flfw.nets.cnn import group_norm
from flfw.nets.training.per_example import PerExample
from flfw.rng import initialising, torch_generator
from flfw.runs import run

NORMED = {"convnet32": (3, 32, 32), "convnet64": (3, 32, 32), "resnet18": (1, 16, 16)}
WITHOUT = {"cnn1": (1, 28, 28), "cnn2": (3, 32, 32), "lenet": (1, 8, 8), "mlp": (1, 8, 8), "alexnet": (3, 64, 64)}


def built(name: str, norm: nets.Norm, init: nets.Init = "torch") -> nets.Net:
    with initialising(0, "net"):
        return nets.build(name, {**NORMED, **WITHOUT}[name], 10, init, norm)


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (3, 3), (32, 32), (64, 32), (96, 32), (40, 20), (37, 1)])
def test_the_groups_divide_the_channels(channels: int, groups: int) -> None:
    layer = group_norm(channels)
    assert (layer.num_groups, layer.num_channels) == (groups, channels)
    assert bool((layer.weight == 1).all()) and not layer.bias.any()


@pytest.mark.parametrize("name", NORMED)
def test_each_batch_norm_is_replaced_and_all_else_stays(name: str) -> None:
    original, changed = built(name, "own"), built(name, "group")
    places = [index for index, layer in original.named_modules() if isinstance(layer, _BatchNorm)]
    assert len(places) >= 8
    for index in places:
        layer, before = changed.get_submodule(index), original.get_submodule(index)
        assert isinstance(layer, nn.GroupNorm) and isinstance(before, _BatchNorm)
        assert layer.num_channels == before.num_features and layer.eps == before.eps
    assert not any(isinstance(layer, _BatchNorm) for layer in changed.modules())
    assert not list(changed.named_buffers())
    assert [name for name, _ in changed.named_parameters()] == [name for name, _ in original.named_parameters()]
    # The same first weights: gamma is 1, beta 0.
    torch.testing.assert_close([*changed.parameters()], [*original.parameters()], rtol=0, atol=0)
    assert (changed.shape, changed.classes) == (original.shape, original.classes)


@pytest.mark.parametrize("name", WITHOUT)
def test_other_networks_stay_as_they_are(name: str) -> None:
    plain, requested = built(name, "own"), built(name, "group")
    assert repr(plain) == repr(requested)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convnet32", "resnet18"])
def test_examples_no_longer_depend_on_each_other_and_have_gradients_as_in_a_loop(name: str) -> None:
    model = built(name, "group").train()
    x, y = torch.rand(2, *NORMED[name], generator=torch_generator(0, "x")), torch.tensor([3, 7])
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-3, atol=1e-4)
    tested = PerExample(model, grouping="flat")
    result = tested.clipped_sum(lambda: cross_entropy(model(x), y, reduction="none"), 0.1)
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for j in range(2):
        gradient = torch.autograd.grad(cross_entropy(model(x[j : j + 1]), y[j : j + 1]), list(model.parameters()))
        norm = float(torch.stack([g.double().square().sum() for g in gradient]).sum().sqrt())
        assert norm > 0.2 and float(result.norms[j, 0]) == pytest.approx(norm, rel=1e-3)
        for total, value in zip(expected, gradient, strict=True):
            total += value * 0.1 / norm
    for total, value in zip(expected, result.sums.values(), strict=True):
        assert float((value - total).norm()) <= 1e-3 * float(total.norm()) + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "dp_fedavg", "fed_sdp"])
def test_a_run_has_it_on_both_sides(small: Experiment, tmp_path: Path, method: str) -> None:
    """A client refuses a message that does not hold its own model's tensors."""
    few = {"split": "sampled", "set": ("sampled.train=4",), "batch_size": 2, "rounds": 1, "clients": 2}
    requested = dataclasses.replace(
        small, method=method, net="resnet18", image_size=8, norm="group", **few, out=tmp_path / "r"
    )
    result = json.loads((run.run(requested) / "result.json").read_text())
    assert result["config"]["norm"] == "group" and len(result["rounds"]) == 1


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--method", "dp_fedavg", "--net", "resnet18"], "--expert norm=group"),
        (["--method", "dp_fedavg", "--net", "resnet18", "--set", "unit=client"], "--expert norm=group"),
        (["--method", "fed_sdp", "--net", "resnet18"], "--expert norm=group"),
        (
            ["--method", "fedavg", "--net", "mlp", "--expert", "norm=group"],
            "Expected a network with BatchNorm for --expert norm=group",
        ),
    ],
)
def test_refusals_name_the_way_out(
    flags: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sim.main([*flags, "--attack", "none", "--out", str(tmp_path / "r")]) == 2
    printed = capsys.readouterr().err.strip()
    assert text in printed and "\n" not in printed
    assert not (tmp_path / "r").exists()
