"""What a sum over clients tells of membership, against the prediction, and what a final model tells an outsider."""

from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flfw.adversary.membership.gradients import compared_gradients
from flfw.adversary.membership.informed import effective_dimension
from flfw.adversary.membership.statistics import Whitening
from flfw.adversary.membership_attack import MembershipRound, MembershipView, PublishedModel
from flfw.adversary.sums import Protocol
from flfw.attacks.membership import Membership, MembershipSettings
from flfw.audit.membership.game import in_sums
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.sketch import Sketch
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.recording.observation import Examples, Observation, Vantage
from flfw.rng import torch_generator

FEATURES, CLASSES, BATCH, DRAWS, LR = 16, 4, 16, 30, 0.1
INPUTS = InputSpec.from_constants((FEATURES,), (0.0,), (1.0,))


def predicted(dimension: float, examples: int) -> float:
    """AUC that normal gradients allow for a mean of so many, by their effective dimension."""
    return NormalDist().cdf((dimension / (2 * examples)) ** 0.5)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def model(received: Tensors) -> PlainVictim:
    return PlainVictim(net(), received, ("*",), INPUTS)


def normal(count: int, rng: torch.Generator) -> Examples:
    """Examples whose labels say nothing of them, so that a fresh network's gradients are about normal."""
    return Examples(torch.randn(count, FEATURES, generator=rng), torch.randint(CLASSES, (count,), generator=rng))


def part(examples: Examples, indices: slice) -> Examples:
    return Examples(examples.samples[indices], examples.labels[indices])


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 2, 5])
def test_after_one_step_a_sum_hides_as_little_as_is_predicted(group: int) -> None:
    """The AUC is Phi(sqrt(d_eff / (2 n B))) for sums over n clients with B examples: within three standard errors."""
    rng = torch_generator(0, "sums", group)
    public, received = normal(1600, rng), {name: value.detach() for name, value in net().state_dict().items()}
    attack, areas = Membership(MembershipSettings(width=FEATURES * CLASSES + CLASSES, public=1600)), []
    for draw in range(DRAWS):
        parts = [normal(2 * BATCH, rng) for _ in range(group)]
        seen = [upload(client, part(mine, slice(BATCH)), received) for client, mine in enumerate(parts)]
        cohorts = {1: dict.fromkeys(range(group), BATCH)}
        sums = in_sums(seen, cohorts, group, lambda number, first, draw=draw: Protocol(draw))
        one = MembershipRound(1, received, {0: sums[0].sent}, LR, 1)
        scores = attack.scores(MembershipView(0, (one,), parts[0], public, model), rng)["whitened"]
        areas.append(float((scores[:BATCH, None] > scores[BATCH:]).double().mean()))
    expected = predicted(dimension(public, received), group * BATCH)
    error = float(np.std(areas, ddof=1) / np.sqrt(DRAWS))
    assert abs(np.mean(areas) - expected) < 3 * error and error < 0.02
    assert abs(np.mean(areas) - predicted(dimension(public, received), 3 * group * BATCH)) > 3 * error


def upload(client: int, members: Examples, received: Tensors) -> Observation:
    gradient = model(received).gradient(members.samples, members.labels, {}, {})
    sent = {name: received[name] - LR * gradient[name].detach() for name in received}
    return Observation(Vantage.SERVER, "update", "target", 1, client, client, sent, received)


def dimension(public: Examples, received: Tensors) -> float:
    victim, like = model(received), dict(received)
    sketch = Sketch.draw(like, FEATURES * CLASSES + CLASSES, torch_generator(0, "sketch"))

    def gradient(x: Tensor, y: Tensor) -> Tensors:
        return victim.gradient(x, y, {}, {})

    rows = compared_gradients(gradient, sketch, [like], public.samples, public.labels).sketches
    return effective_dimension(Whitening.fit(rows[:800]), rows[800:], 0.0)


def outside(members: Examples, trained_on: Examples, steps: int) -> dict[str, float]:
    """Return an outsider's AUC on members against as many others, of the model that was trained on some examples."""
    rng = torch_generator(3, "outside")
    weights = {name: value.detach().clone() for name, value in net().state_dict().items()}
    for _ in range(steps):
        gradient = model(weights).gradient(trained_on.samples, trained_on.labels, {}, {})
        weights = {name: weights[name] - 0.5 * gradient[name].detach() for name in weights}
    count, others = len(members.labels), normal(len(members.labels), rng)
    both = Examples(*(torch.cat(pair) for pair in ((members.samples, others.samples), (members.labels, others.labels))))
    published = PublishedModel(weights, 0.5, 100, 16)
    view = MembershipView(0, (), both, normal(200, rng), model, published=published)
    scores = Membership(MembershipSettings()).published_scores(view, published, rng)
    assert set(scores) == {"loss", "rmia", "loss_only", "label_only"}
    return {n: float((scores[n][:count, None] > scores[n][count:]).double().mean()) for n in ("loss", "rmia")}


@pytest.mark.slow
def test_an_outsider_finds_the_members_of_a_client_that_learnt_them_by_heart() -> None:
    members = normal(12, torch_generator(4, "few"))
    scores = outside(members, members, 400)
    assert scores["loss"] > 0.9 and scores["rmia"] > 0.9


def test_an_outsider_finds_none_where_many_examples_were_trained_on() -> None:
    rng = torch_generator(5, "many")
    everyone = normal(4000, rng)
    scores = outside(part(everyone, slice(400)), everyone, 100)
    assert scores["loss"] < 0.55 and scores["rmia"] < 0.55
