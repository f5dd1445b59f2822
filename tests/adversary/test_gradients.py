"""Inner products, norms and sketches of per-example gradients, against explicit gradients."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from flfw.adversary.membership.gradients import derivatives_along, norm, sketched_gradients
from flfw.errors import InputError
from flfw.inversion.sketch import Sketch
from flfw.nets import build
from flfw.nets.net import Tensors
from flfw.rng import initialising, torch_generator


def _cnn(examples: int):
    with initialising(0, "net"):
        net = build("lenet", (1, 28, 28), 10).double().eval()
    rng = torch_generator(0, "images")
    x = torch.rand(examples, 1, 28, 28, generator=rng, dtype=torch.float64)
    y = torch.randint(10, (examples,), generator=rng)
    at = {name: value.detach() for name, value in net.named_parameters()}
    update = {name: torch.randn(value.shape, generator=rng, dtype=torch.float64) for name, value in at.items()}

    def losses(parameters: Tensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(net, parameters, (x,)), y, reduction="none")

    return losses, at, update, x, y


def _explicit(losses, at, x, y) -> list[Tensors]:
    rows = []
    for one in range(len(x)):
        moving = {name: value.clone().requires_grad_() for name, value in at.items()}
        loss = losses(moving, x[one : one + 1], y[one : one + 1]).sum()
        rows.append(dict(zip(moving, torch.autograd.grad(loss, list(moving.values())), strict=True)))
    return rows


@pytest.mark.slow
def test_derivatives_along_an_update_are_inner_products_with_explicit_gradients():
    losses, at, update, x, y = _cnn(7)
    values, products = derivatives_along(losses, at, update, x, y, chunk=3)
    expected = [sum((row[name] * update[name]).sum() for name in at) for row in _explicit(losses, at, x, y)]
    torch.testing.assert_close(products, torch.stack(expected), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(values, losses(at, x, y))


def test_norms_and_sketches_are_those_of_explicit_gradients():
    losses, at, _, x, y = _cnn(5)
    sketch = Sketch.draw(at, 64, torch_generator(0, "sketch"))
    sketches, norms = sketched_gradients(losses, at, sketch, x, y, chunk=2)
    rows = _explicit(losses, at, x, y)
    torch.testing.assert_close(norms, torch.stack([norm(row) for row in rows]))
    torch.testing.assert_close(sketches, torch.stack([sketch.of(row) for row in rows]))


def test_no_candidates_have_no_numbers():
    losses, at, update, x, y = _cnn(1)
    sketch = Sketch.draw(at, 64, torch_generator(0, "sketch"))
    assert [len(part) for part in derivatives_along(losses, at, update, x[:0], y[:0])] == [0, 0]
    assert [part.shape for part in sketched_gradients(losses, at, sketch, x[:0], y[:0])] == [(0, 64), (0,)]


def test_an_update_of_other_tensors_is_refused():
    losses, at, update, x, y = _cnn(1)
    first = next(iter(at))
    with pytest.raises(InputError, match="Expected an update of "):
        derivatives_along(losses, at, {name: value for name, value in update.items() if name != first}, x, y)
    with pytest.raises(InputError, match="Expected an update of "):
        derivatives_along(losses, at, {**update, first: update[first][:1]}, x, y)
    with pytest.raises(InputError, match="Expected chunk >= 1, got chunk=0"):
        derivatives_along(losses, at, update, x, y, chunk=0)
