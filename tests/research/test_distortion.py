"""Distortions that keep a class: exact for a linear model, never too long for others, and the command."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sim
from flfw import nets
from flfw.errors import InputError
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Net
from flfw.rng import initialising, torch_generator
from research.papers import distortion
from research.papers.distortion import constant, distortions

INPUTS = InputSpec.from_constants((1, 12, 12), (0.5,), (0.25,))


def linear(rows: list[list[float]]) -> Net:
    layer = nn.Linear(2, len(rows), bias=False)
    layer.weight.data = torch.tensor(rows)
    return Net(nn.Flatten(), layer).eval()


def test_of_a_linear_model_it_is_the_distance_to_the_boundary() -> None:
    inputs = InputSpec.from_constants((2,), (0.0, 0.0), (0.5, 0.5))
    result = distortions(linear([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0]]), inputs)
    # In network units (2, 0): margins 6 to both; the rows' differences are 5 and 3 long; one raw unit is two of those.
    assert result.proven.tolist() == pytest.approx([6 / 5 / 2]) and result.first_order.tolist() == pytest.approx([0.6])


def test_equal_scores_and_tiny_weights_have_no_false_bound() -> None:
    inputs, x = InputSpec.from_constants((2,), (0.0, 0.0), (1.0, 1.0)), torch.tensor([[0.5, 0.5]])
    tied = distortions(linear([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), x, inputs)
    assert tied.proven.tolist() == [0.0] and tied.first_order.tolist() == [0.0]
    tiny = distortions(linear([[1e-24, 0.0], [0.0, 5e-25]]), x, inputs)  # in float32 their squares are 0
    assert tiny.proven.tolist() == pytest.approx([0.25 / (1.25**0.5)], rel=1e-6)
    with pytest.raises(InputError, match="Expected finite scores"):
        distortions(linear([[float("inf"), 0.0], [0.0, 1.0]]), x, inputs)


def true_norm(layer: nn.Module, shape: tuple[int, ...]) -> float:
    """Largest singular value of a linear layer, from its matrix."""
    basis = torch.eye(torch.Size(shape).numel(), dtype=torch.float64).view(-1, *shape)
    columns = layer(basis).flatten(1)
    return float(torch.linalg.matrix_norm(columns - layer(torch.zeros_like(basis)).flatten(1), 2))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 3, 3),
        nn.Conv2d(2, 3, 5, padding=2),
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.Conv2d(2, 4, 3, groups=2),
        nn.AvgPool2d(2),
        nn.AvgPool2d((1, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(128, 5)),
    ],
    ids=str,
)
def test_a_layers_constant_is_at_least_its_largest_singular_value(layer: nn.Module) -> None:
    layer = layer.double().requires_grad_(False)
    at, last = torch.zeros(1, 2, 8, 8, dtype=torch.float64), layer[-1] if isinstance(layer, nn.Sequential) else layer
    bound, true = constant(last, at), true_norm(layer, (2, 8, 8))
    assert true <= bound * (1 + 1e-9)
    assert bound < (1.6 if getattr(last, "stride", 1) != (2, 2) else 2.5) * true  # a stride leaves out outputs


@pytest.mark.parametrize("name", ["lenet", "cnn1", "mlp"])
def test_no_distortion_below_it_changes_a_class(name: str) -> None:
    """The worst that a search finds: steps along the gradient of the margin, as long as the bound allows."""
    inputs = InputSpec.from_constants((1, 28, 28), (0.5,), (0.25,))
    with initialising(3, name):
        net = nets.build(name, inputs.shape, 10).eval().requires_grad_(False)
    x = torch.rand(4, 1, 28, 28, generator=torch_generator(0, "x"))
    result = distortions(net, x, inputs)
    assert (result.proven > 0).all() and (result.proven <= result.first_order).all()
    for one, radius in zip(x, result.proven, strict=True):
        z = net(inputs.normalise(one[None]))[0]
        for other in range(10):
            if other == int(z.argmax()):
                continue
            moved = pushed(net, inputs, one, int(z.argmax()), other, float(radius))
            assert int(net(inputs.normalise(moved[None]))[0].argmax()) == int(z.argmax())


def pushed(net: nn.Module, inputs: InputSpec, x: Tensor, top: int, other: int, radius: float) -> Tensor:
    d = torch.zeros_like(x)
    for _ in range(10):
        guess = (x + d).requires_grad_()
        z = net(inputs.normalise(guess[None]))[0]
        (slope,) = torch.autograd.grad(z[other] - z[top], guess)
        d = d + radius / 4 * slope / slope.norm()
        d = d * min(1.0, 0.999 * radius / float(d.norm()))
    return x + d


def test_a_layer_without_a_bound_is_refused() -> None:
    for layer in (
        nn.BatchNorm2d(1),
        nn.MaxPool2d(3, 1),
        nn.MaxPool2d(2, dilation=2),
        nn.AvgPool2d(2, divisor_override=1),
        nn.LeakyReLU(2.0),
    ):
        with pytest.raises(InputError, match="known Lipschitz constant"):
            constant(layer, torch.zeros(1, 1, 8, 8))
    with pytest.raises(InputError, match="ends in a fully connected layer"):
        distortions(Net(nn.Flatten(), nn.ReLU()), torch.zeros(1, 1, 12, 12), INPUTS)


@pytest.mark.slow
def test_the_command_reads_the_last_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--method fed_cdp --clients 4 --rounds 1 --local-epochs 1 --net cnn1 --attack none --engine inproc"
    assert sim.main([*flags.split(), "--dataset", "digits", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert distortion.main([str(tmp_path / "run"), "--examples", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    proven, near = ([float(cell) for cell in line.split("|")[2:-1]] for line in lines[-2:])
    assert "20 test examples" in lines[0] and proven == sorted(proven)
    assert all(0 < a <= b for a, b in zip(proven, near, strict=True))
    (tmp_path / "run" / "result.json").unlink()
    assert distortion.main([str(tmp_path / "run")]) == 2 and "finished run" in capsys.readouterr().err
    assert distortion.main([str(tmp_path / "nowhere")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
