"""Shadow trainings side by side, against a loop of plain SGD; and the fitted priors of their ratio."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw.adversary.membership import shadow_models
from flfw.adversary.membership.shadow_models import (
    MOST_COUNTS,
    Prior,
    ShadowClients,
    ShadowSets,
    confidence,
    excess_ratio,
    fitted,
    in_turn,
)
from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.sketch import Sketch
from flfw.nets.inputs import InputSpec
from flfw.nets.training.local_steps import LocalSteps
from flfw.recording.observation import Examples
from flfw.rng import numpy_generator

POOL = Examples(torch.rand(9, 4, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3)
LOCAL = LocalSteps(0.5, steps=5, batch_size=2)


def victim() -> PlainVictim:
    """A client of one layer."""
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.copy_(torch.linspace(-1, 1, 12).view(3, 4))
        net.bias.zero_()
    return PlainVictim(net, net.state_dict(), ("*",), InputSpec.from_constants((4,), (0.0,), (1.0,)))


def sets() -> ShadowSets:
    """Two sets of 3 of 6 candidates with 2 of 3 public examples."""
    return ShadowSets.draw(6, 3, 5, 2, torch.Generator().manual_seed(1))


def trained_in_a_loop(indices: Tensor, order: Tensor) -> dict[str, Tensor]:
    """Weights after five steps of plain SGD: batches of 2, 2 and 1 in the first epoch, and 2 and 2 in the second."""
    net = victim().model
    for used in (order[0:2], order[2:4], order[4:5], order[5:7], order[7:9]):
        batch = indices[used]
        gradients = torch.autograd.grad(
            cross_entropy(net(POOL.samples[batch]), POOL.labels[batch]), [*net.parameters()]
        )
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter -= 0.5 * gradient
    return {name: value.detach() for name, value in net.named_parameters()}


@pytest.mark.parametrize("together", [1, 2**26])
def test_trainings_side_by_side_are_those_of_a_loop(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_models, "MOST_HELD", together)
    clients = ShadowClients.train(victim(), LOCAL, sets(), POOL, torch.Generator().manual_seed(2))
    rng = torch.Generator().manual_seed(2)
    orders = [torch.cat([torch.randperm(5, generator=rng), torch.randperm(5, generator=rng)]) for _ in range(2)]
    logits = clients.confidences(victim(), POOL)
    for index, order in enumerate(orders):
        after = trained_in_a_loop(sets().places[index], order)
        for name, value in after.items():
            moved = victim().known[name] - 0.5 * 5 * clients.updates[name][index]
            torch.testing.assert_close(moved, value)
        scores = POOL.samples @ after["weight"].T + after["bias"]
        torch.testing.assert_close(logits[index], confidence(scores, POOL.labels), rtol=1e-4, atol=1e-5)


def test_one_step_on_the_whole_set_is_its_gradient() -> None:
    clients = ShadowClients.train(victim(), LocalSteps(0.1, 1), sets(), POOL, torch.Generator().manual_seed(2))
    for index, members in enumerate(sets().places):
        gradient = victim().gradient(POOL.samples[members], POOL.labels[members], {}, {})
        torch.testing.assert_close(clients.updates["weight"][index], gradient["weight"])
        sketch = Sketch.draw(gradient, 7, torch.Generator().manual_seed(3))
        torch.testing.assert_close(clients.sketches(sketch)[index], sketch.of(gradient))


def test_batches_in_turn() -> None:
    assert in_turn(5, 2, 5) == ((0, 1), (2, 3), (4,), (5, 6), (7, 8))
    assert in_turn(4, 2, 2) == ((0, 1), (2, 3))
    assert in_turn(3, 3, 2) == ((0, 1, 2), (3, 4, 5))
    assert in_turn(3, 10, 1) == ((0, 1, 2),)


def test_a_prior_is_worth_the_variance_within_over_the_one_between() -> None:
    # Means 1 and 5 are 2 away from 3; of the 4 within-variance / 2 values explains 1: 2 / 3 shadows.
    values = np.array([[0.0, 2.0], [4.0, 6.0]])
    assert fitted(values, Prior(np.array([3.0, 3.0]), 2.0)).counts == pytest.approx(2 / 3)
    assert fitted(values, Prior(np.array([1.0, 5.0]), 2.0)).counts == MOST_COUNTS


def test_with_many_shadows_it_is_the_exact_ratio() -> None:
    rng, n, shadows = numpy_generator(0, "shadows"), 5, 40_000
    centre, spread, gain = 10.0 * np.arange(n), np.linspace(0.5, 2, n), np.array([1.0, 0.5, 2.0, 1.0, 0.0])
    inside = np.arange(shadows)[:, None] % 2 == np.zeros(n)
    values = centre + gain * inside + spread * rng.normal(size=(shadows, n))
    target = centre + 0.3
    exact = norm.logpdf(target, centre + gain, spread) - norm.logpdf(target, centre, spread)
    ratios = excess_ratio(*(torch.tensor(part) for part in (target, values, inside)))
    np.testing.assert_allclose(ratios, exact, atol=0.07)


def test_few_shadows_of_alike_candidates_are_pooled() -> None:
    """The sign of a difference of four and four values is often wrong; that of all candidates' together is not."""
    rng, n, shadows = numpy_generator(1, "shadows"), 2000, 8
    centre, member = 5 * rng.normal(size=n), np.arange(n) < n // 2
    inside = rng.permuted(np.tile(np.arange(shadows) < shadows // 2, (n, 1)), axis=1).T
    values = centre + 0.5 * inside + rng.normal(size=(shadows, n))
    target = centre + 0.5 * member + rng.normal(size=n)
    ratios = excess_ratio(*(torch.tensor(part) for part in (target, values, inside))).numpy()
    auc = (ratios[member][:, None] > ratios[~member][None]).mean()
    assert auc > 0.6  # Phi(0.5 / sqrt(2 (1 + 1/8))) = 0.631 with known effect
    assert auc < 0.65


def test_a_candidate_that_is_always_in_is_refused() -> None:
    inside = torch.tensor([[True, True], [True, False]])
    with pytest.raises(InputError, match="Expected each candidate in some shadow's training set and out of another's"):
        excess_ratio(torch.zeros(2), torch.zeros(2, 2), inside)


def test_values_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(InputError, match="Expected values"):
        excess_ratio(torch.zeros(2), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))


def test_a_diverged_shadow_gives_no_number() -> None:
    inside = torch.tensor([[True, False], [False, True]])
    assert excess_ratio(torch.zeros(2), torch.tensor([[1.0, torch.nan], [0.0, 0.0]]), inside).isnan().all()


def test_two_shadows_are_enough() -> None:
    inside = torch.tensor([[True, False, True], [False, True, False]])
    values = torch.tensor([[2.0, 1.0, 3.0], [1.0, 2.0, 2.0]])
    assert (excess_ratio(torch.tensor([2.0, 1.0, 3.0]), values, inside) > 0).tolist() == [True, False, True]
