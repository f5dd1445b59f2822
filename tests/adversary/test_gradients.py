"""Inner products, norms and sketches of per-example gradients, against explicit gradients."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from flfw.adversary.membership.gradients import compared_gradients, gradient_sketches, norm
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

    def gradient(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        return torch.func.grad(lambda parameters: cross_entropy(functional_call(net, parameters, (x,)), y))(at)

    return gradient, at, update, x, y


def test_products_norms_and_sketches_are_those_of_explicit_gradients():
    gradient, at, update, x, y = _cnn(5)
    sketch, other = Sketch.draw(at, 64, torch_generator(0, "sketch")), {n: 2 * value + 1 for n, value in update.items()}
    seen = compared_gradients(gradient, sketch, [update, other], x, y, chunk=2)
    rows = [gradient(x[one : one + 1], y[one : one + 1]) for one in range(len(x))]
    products = [[sum((row[name] * against[name]).sum() for name in at) for against in (update, other)] for row in rows]
    torch.testing.assert_close(seen.products, torch.tensor(products, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(seen.norms, torch.stack([norm(row) for row in rows]))
    torch.testing.assert_close(seen.sketches, torch.stack([sketch.of(row) for row in rows]))
    torch.testing.assert_close(gradient_sketches(gradient, sketch, x, y, chunk=2), seen.sketches)
    torch.testing.assert_close(seen.lengths, torch.stack([norm(update), norm(other)]))


def test_updates_of_unlike_tensors_are_refused():
    gradient, at, update, x, y = _cnn(1)
    first, sketch = next(iter(at)), Sketch.draw(at, 64, torch_generator(0, "sketch"))
    for other in (
        {name: value for name, value in update.items() if name != first},
        {**update, first: update[first][:1]},
    ):
        with pytest.raises(InputError, match="Expected an update of "):
            compared_gradients(gradient, sketch, [update, other], x, y)
    with pytest.raises(InputError, match="Expected chunk >= 1, got chunk=0"):
        compared_gradients(gradient, sketch, [update], x, y, chunk=0)
    with pytest.raises(InputError, match="Expected one update or more, got updates=0"):
        compared_gradients(gradient, sketch, [], x, y)
