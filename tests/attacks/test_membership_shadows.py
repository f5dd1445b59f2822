"""Shadow trainings in the attack on membership: an overfitted client, a client without the candidates, and refusals."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.attacks.membership import Membership, MembershipSettings
from flfw.errors import InputError
from flfw.inversion.client_models.local_steps import SteppedVictim
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.nets.training.local_steps import LocalSteps
from flfw.recording.observation import Examples

INPUTS = InputSpec.from_constants((60,), (0.0,), (1.0,))
OVERFITTING = LocalSteps(0.5, steps=100, batch_size=5)
STATISTICS = {"cosine", "gradient_difference", "whitened", "loss_drop", "trajectory", "label_only", "loss_only"}


def victim(received: Tensors) -> PlainVictim:
    """A client of one layer."""
    return PlainVictim(nn.Linear(60, 4), received, ("*",), INPUTS)


@cache
def data() -> Examples:
    """Inputs whose labels are chance, so that a client can only learn them by heart."""
    rng = torch.Generator().manual_seed(0)
    return Examples(torch.rand(400, 60, generator=rng), torch.randint(0, 4, (400,), generator=rng))


def part(first: int, last: int) -> Examples:
    """Some of the data."""
    return Examples(data().samples[first:last], data().labels[first:last])


def message(received: Tensors, local: LocalSteps, members: Examples, seed: int) -> Tensors:
    """What a client sends after training in a random order."""
    rng = torch.Generator().manual_seed(seed)
    epochs = [torch.randperm(len(members.labels), generator=rng).split(local.batch_size) for _ in range(local.steps)]
    order = tuple(tuple(batch.tolist()) for epoch in epochs for batch in epoch)[: local.steps]
    stepped = SteppedVictim(victim(received), received, replace(local, order=order))
    moved = stepped.gradient(members.samples, members.labels, {}, {})
    return {name: received[name] - local.lr * local.steps * moved[name].detach() for name in received}


def view(trained_on: Examples, local: LocalSteps | None = OVERFITTING, rounds: int = 1) -> MembershipView:
    """The view of a client with 20 examples; the first 20 of 40 candidates are its own if it was trained on them."""
    received = {"weight": torch.zeros(4, 60), "bias": torch.zeros(4)}
    taken = tuple(
        MembershipRound(number, received, {3: message(received, local or OVERFITTING, trained_on, number)}, 0.5, 100)
        for number in range(1, rounds + 1)
    )
    return MembershipView(3, taken, part(0, 40), part(100, 400), victim, local=local, examples=20)


def scores(seen: MembershipView, shadows: int = 8, seed: int = 5) -> dict[str, Tensor]:
    """The scores of an attack with few coordinates, all of which are in a sketch."""
    return Membership(MembershipSettings(shadows=shadows)).scores(seen, torch.Generator().manual_seed(seed))


def share(values: Tensor) -> float:
    """The AUC of 20 members against 20 others."""
    return float((values[:20, None] > values[None, 20:]).double().mean())


@pytest.mark.slow
def test_an_overfitted_client_is_told_by_both_forms() -> None:
    scored = scores(view(part(0, 20), rounds=3))
    assert share(scored["lira"]) > 0.9
    assert share(scored["lira_update"]) > 0.9


@pytest.mark.slow
def test_without_the_candidates_nothing_is_told() -> None:
    """The client was trained on other examples: over such clients the mean AUC is that of guesses."""
    means = {"lira": 0.0, "lira_update": 0.0}
    for first in range(40, 100, 20):
        for seed in range(2):
            scored = scores(view(part(first, first + 20)), seed=seed)
            for name in means:
                means[name] += share(scored[name]) / 6
    # The clients of one set of examples are alike: three independent AUC of 20 and 20, each with a deviation of 0.09.
    assert all(abs(mean - 0.5) < 2.6 * 0.092 / 3**0.5 for mean in means.values()), means


@pytest.mark.slow
def test_scores_depend_on_the_view_and_the_seed_alone() -> None:
    seen = view(part(0, 20), rounds=2)
    one, again, other = scores(seen), scores(seen), scores(seen, seed=6)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["lira"], other["lira"])


@pytest.mark.slow
def test_log_ratios_are_summed_over_rounds() -> None:
    seen = view(part(0, 20), rounds=2)
    singly = [scores(replace(seen, rounds=(one,))) for one in seen.rounds]
    for name in ("lira", "lira_update"):
        torch.testing.assert_close(scores(seen)[name], singly[0][name] + singly[1][name])


@pytest.mark.slow
def test_public_gradients_that_are_kept_change_nothing() -> None:
    seen = view(part(0, 20))
    attack = Membership()
    first = attack.scores(seen, torch.Generator().manual_seed(5))
    second = attack.scores(replace(seen, candidates=part(20, 60)), torch.Generator().manual_seed(5))
    alone = Membership().scores(replace(seen, candidates=part(20, 60)), torch.Generator().manual_seed(5))
    assert torch.equal(first["whitened"], scores(seen)["whitened"])
    assert torch.equal(second["whitened"], alone["whitened"])
    moved = {name: value + 0.1 for name, value in seen.rounds[0].received.items()}
    elsewhere = replace(seen, rounds=(replace(seen.rounds[0], received=moved),))
    scored = attack.scores(elsewhere, torch.Generator().manual_seed(5))["whitened"]
    assert torch.equal(scored, scores(elsewhere)["whitened"])
    assert not torch.equal(scored, first["whitened"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"local": None}, "what is seen is not one client's training in steps on one loss"),
        ({"examples": 0}, "an unknown number of examples of a client are too few for 40 candidates"),
        ({"examples": 321}, "shadow trainings need 301 public examples, and 300 are granted"),
        (
            {"model": lambda received: victim({"weight": received["weight"]})},
            "tensors of the clients' models are private",
        ),
    ],
)
def test_what_is_not_granted_leaves_lira_out_in_words(change: dict[str, object], why: str) -> None:
    seen = replace(view(part(0, 20)), **change)  # type: ignore[arg-type]
    assert Membership().unused_statistics(seen) == (f"No lira of membership: {why}.",)
    assert set(scores(seen)) == STATISTICS


def test_no_shadows_leave_it_out_without_words() -> None:
    attack = Membership(MembershipSettings(shadows=0))
    assert attack.unused_statistics(replace(view(part(0, 20)), local=None)) == ()
    assert set(scores(view(part(0, 20)), shadows=0)) == STATISTICS
    assert Membership().unused_statistics(view(part(0, 20))) == ()


def test_an_odd_number_of_shadows_is_refused() -> None:
    with pytest.raises(InputError, match="Expected an even number of shadows >= 0, got shadows=3"):
        MembershipSettings(shadows=3)
