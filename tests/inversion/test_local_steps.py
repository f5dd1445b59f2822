"""Victims of several local steps: the simulated training against plain loops, its derivative, and attacks on it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import cross_entropy, one_hot

from flfw.errors import InputError
from flfw.inversion.client_models.local_steps import SteppedVictim
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.graph import Graph
from flfw.inversion.matching import cosine_distance
from flfw.inversion.search import SearchConfig, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets import Net, Tensors, tensors
from flfw.nets.inputs import InputSpec
from flfw.nets.training.local_steps import LocalSteps
from flfw.rng import initialising, torch_generator

ROW = InputSpec.from_constants((8,), (0.5,) * 8, (0.25,) * 8)
HEAD = ("classifier.weight", "classifier.bias")
ALL = (tuple(range(5)),)
LABELS = torch.tensor([0, 2, 1, 3, 2])

# What torch.optim calls the same.
BUILT: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def rows(count: int, given: int = 0) -> Tensor:
    return torch.rand((count, 8), generator=torch_generator(0, "rows", given), dtype=torch.float64)


def net(seed: int = 0, activation: type[nn.Module] = nn.Tanh) -> Net:
    with initialising(seed, "stepped"):
        return Net(nn.Sequential(nn.Linear(8, 12), activation()), nn.Linear(12, 4)).double()


def known(model: nn.Module) -> Tensors:
    """Copies, for the model trains on."""
    return {name: value.clone() for name, value in tensors(model).items()}


def stepped(start: Tensors, local: LocalSteps, shared: Sequence[str] = ("*",)) -> SteppedVictim:
    return SteppedVictim(PlainVictim(net(9), start, shared, ROW), start, local)


def step(model: nn.Module, start: Tensors, local: LocalSteps, x: Tensor, y: Tensor) -> float:
    """Puts a batch's gradients into the model, proximal and clipped; their norm before."""
    model.zero_grad()
    loss = cross_entropy(model((x - 0.5) / 0.25), y)
    for name, parameter in model.named_parameters():
        loss = loss + local.proximal / 2 * ((parameter - start[name]) ** 2).sum()
    loss.backward()
    return float(nn.utils.clip_grad_norm_(model.parameters(), local.clip or 1e9))


def train(model: nn.Module, local: LocalSteps, order: Sequence[Sequence[int]], x: Tensor, y: Tensor) -> list[float]:
    """The ordinary way, on these batches; the norm of each step's gradient before it was clipped."""
    adam = {"betas": local.betas, "eps": local.epsilon}
    chosen: dict[str, Any] = {"momentum": local.momentum} if local.optimiser == "sgd" else adam
    optimiser = BUILT[local.optimiser](model.parameters(), lr=local.lr, weight_decay=local.weight_decay, **chosen)
    start, norms = known(model), []
    for indices in order:
        norms.append(step(model, start, local, x[list(indices)], y[list(indices)]))
        optimiser.step()
    return norms


def same(result: Tensors, start: Tensors, sent: Tensors, local: LocalSteps) -> None:
    assert result
    for name, value in result.items():
        expected = (start[name] - sent[name]) / (local.lr * local.steps)
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


# --- the coordinates ---


def test_one_step_of_plain_sgd_changes_the_weights_by_the_gradient() -> None:
    model, x = net(), rows(5)
    plain = PlainVictim(net(9), known(model), ("*",), ROW)
    expected = plain.gradient(x, LABELS, {}, {})
    result = stepped(known(model), LocalSteps(0.3, 1)).gradient(x, LABELS, {}, {})
    assert list(result) == list(expected) == list(plain.shared)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_what_was_sent_is_read_as_change_over_step_size_and_steps() -> None:
    start = {name: torch.full_like(value, 3.0) for name, value in known(net()).items()}
    sent = {name: torch.full_like(value, 2.0) for name, value in start.items()}
    observed, constants = stepped(start, LocalSteps(0.25, 2), ("extractor.*",)).observed(sent)
    assert constants == {} and list(observed) == ["extractor.0.weight", "extractor.0.bias"]
    assert all(bool((value == 2).all()) for value in observed.values())  # (3 - 2) / (0.25 * 2)


def test_a_first_step_of_adam_leaves_the_signs_of_the_gradient() -> None:
    model, x = net(), rows(5)
    gradient = PlainVictim(net(9), known(model), ("*",), ROW).gradient(x, LABELS, {}, {})
    result = stepped(known(model), LocalSteps(0.1, 1, "adam", epsilon=1e-12)).gradient(x, LABELS, {}, {})
    torch.testing.assert_close(result, {n: v.sign() for n, v in gradient.items()}, rtol=0, atol=1e-6)


def test_small_changes_of_large_weights_are_not_rounded_away() -> None:
    model = net().float()
    start = {name: value + 1e3 * (name == "classifier.bias") for name, value in known(model).items()}
    x = rows(5).float()
    victim = PlainVictim(net(9).float(), start, ("*",), ROW)
    bias = SteppedVictim(victim, start, LocalSteps(1e-7, 2)).gradient(x, LABELS, {}, {})["classifier.bias"]
    expected = victim.gradient(x, LABELS, {}, {})["classifier.bias"]
    torch.testing.assert_close(bias, expected, rtol=1e-4, atol=1e-6)


# --- against plain loops ---

CASES = {
    "sgd": LocalSteps(0.5, 3),
    "momentum": LocalSteps(0.5, 4, momentum=0.9),
    "momentum and decay": LocalSteps(0.5, 4, momentum=0.5, weight_decay=0.05),
    "proximal": LocalSteps(0.5, 4, proximal=0.3),
    "proximal, clipped": LocalSteps(0.5, 4, proximal=0.3, clip=0.05),
    "adam": LocalSteps(0.05, 4, "adam"),
    "adam, decay": LocalSteps(0.05, 4, "adam", weight_decay=0.1),
    "adam, other means": LocalSteps(0.05, 4, "adam", betas=(0.5, 0.7), epsilon=1e-3, clip=0.05),
    "adamw": LocalSteps(0.05, 4, "adamw", weight_decay=0.2),
    "adamw, proximal": LocalSteps(0.05, 4, "adamw", weight_decay=0.2, proximal=0.3),
}


@pytest.mark.parametrize("local", CASES.values(), ids=CASES.keys())
def test_simulated_training_is_the_ordinary_loop(local: LocalSteps) -> None:
    model, x = net(), rows(5)
    start = known(model)
    train(model, local, ALL * local.steps, x, LABELS)
    same(stepped(start, local).gradient(x, LABELS, {}, {}), start, tensors(model), local)


@pytest.mark.parametrize(("bound", "binds"), [(0.1, True), (50.0, False)])
def test_a_steps_gradient_is_clipped_where_it_is_longer_than_the_bound(bound: float, binds: bool) -> None:
    local, x = LocalSteps(0.5, 3, momentum=0.5, clip=bound), rows(5)
    model = net()
    start = known(model)
    norms = train(model, local, ALL * 3, x, LABELS)
    assert [norm > bound for norm in norms] == [binds] * 3
    same(stepped(start, local).gradient(x, LABELS, {}, {}), start, tensors(model), local)


def test_a_private_head_moves_too_and_is_not_spoken_of() -> None:
    local, x = LocalSteps(0.5, 4, momentum=0.5, weight_decay=0.01, clip=0.3), rows(5)
    model = net()
    start = known(model)
    extractor = {n: v for n, v in start.items() if n not in HEAD}
    victim = stepped(extractor, local, ("extractor.*",))
    assert set(victim.unknown) == set(HEAD)
    train(model, local, ALL * 4, x, LABELS)
    result = victim.gradient(x, LABELS, {n: start[n] for n in HEAD}, {})
    assert list(result) == list(extractor)
    same(result, start, tensors(model), local)


def test_what_does_not_move_stays_as_it_is_and_counts_for_no_clipping() -> None:
    local, x = LocalSteps(0.5, 4, clip=0.1, moves=("extractor.*",)), rows(5)
    model = net()
    start = known(model)
    model.classifier.requires_grad_(False)
    assert min(train(model, local, ALL * 4, x, LABELS)) > 0.1
    result = stepped(start, local).gradient(x, LABELS, {}, {})
    assert list(result) == ["extractor.0.weight", "extractor.0.bias"]
    same(result, start, tensors(model), local)


def test_buffers_stay_as_they_are() -> None:
    def normed() -> Net:
        with initialising(0, "normed"):
            return Net(nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh()), nn.Linear(6, 4)).double()

    local, x, model = LocalSteps(0.5, 3), rows(5), normed().eval()
    model.get_buffer("extractor.1.running_mean").add_(0.3)
    start = known(model)
    train(model, local, ALL * 3, x, LABELS)
    victim = SteppedVictim(PlainVictim(normed(), start, ("*",), ROW), start, local)
    same(victim.gradient(x, LABELS, {}, {}), start, tensors(model), local)
    assert torch.equal(victim.known["extractor.1.running_mean"], start["extractor.1.running_mean"])


# --- batches ---


@pytest.mark.parametrize(
    ("local", "count", "expected"),
    [
        (LocalSteps(1.0, 2), 3, ((0, 1, 2), (0, 1, 2))),
        (LocalSteps(1.0, 3, batch_size=2), 4, ((0, 1), (2, 3), (0, 1))),
        (LocalSteps(1.0, 4, batch_size=2), 5, ((0, 1), (2, 3), (4,), (0, 1))),
        (LocalSteps(1.0, 2, batch_size=9), 2, ((0, 1), (0, 1))),
        (LocalSteps(1.0, 2, order=((1, 0), (2,))), 3, ((1, 0), (2,))),
        (LocalSteps(1.0, 2, batch_size=1, order=((1, 0), (2,))), 3, ((1, 0), (2,))),
    ],
)
def test_batches_by_hand(local: LocalSteps, count: int, expected: tuple[tuple[int, ...], ...]) -> None:
    assert local.batches(count) == expected


@pytest.mark.parametrize(
    ("local", "order"),
    [
        (LocalSteps(0.5, 4, order=((3, 0), (1, 2), (4, 1, 0), (2,))), ((3, 0), (1, 2), (4, 1, 0), (2,))),
        (LocalSteps(0.5, 4, batch_size=2), ((0, 1), (2, 3), (4,), (0, 1))),
        (LocalSteps(0.05, 4, "adam", batch_size=3), ((0, 1, 2), (3, 4), (0, 1, 2), (3, 4))),
    ],
    ids=["known order", "unknown order, ragged", "adam, unknown order"],
)
def test_training_in_batches_is_the_ordinary_loop(local: LocalSteps, order: tuple[tuple[int, ...], ...]) -> None:
    model, x = net(), rows(5)
    start = known(model)
    train(model, local, order, x, LABELS)
    same(stepped(start, local).gradient(x, LABELS, {}, {}), start, tensors(model), local)


# --- what is refused ---


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"lr": 0.0}, "Expected 0 < lr < inf, got lr=0.0."),
        ({"steps": 0}, "Expected steps >= 1, got steps=0."),
        ({"optimiser": "lion"}, "Expected optimiser among sgd, adam, adamw, got optimiser=lion."),
        ({"momentum": 1.0}, "Expected 0 <= momentum < 1, got momentum=1.0."),
        ({"optimiser": "adam", "momentum": 0.5}, "Expected momentum=0 with adam, got momentum=0.5."),
        ({"weight_decay": -1.0}, "Expected 0 <= weight_decay < inf, got weight_decay=-1.0."),
        ({"betas": (0.9, 1.0)}, "Expected betas in [0, 1), got betas=(0.9, 1.0)."),
        ({"epsilon": 0.0}, "Expected epsilon > 0, got epsilon=0.0."),
        ({"clip": -0.1}, "Expected 0 <= clip < inf, got clip=-0.1."),
        ({"batch_size": -1}, "Expected batch_size >= 0, got batch_size=-1."),
        ({"proximal": -1.0}, "Expected 0 <= proximal < inf, got proximal=-1.0."),
        ({"order": ((0,),)}, "Expected an order of 2 steps, got steps=1."),
        ({"order": ((0,), ())}, "Expected an order of batches of at least one example, got order=((0,), ())."),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(LocalSteps(0.1, 2), **settings)
    assert str(caught.value) == complaint


@pytest.mark.parametrize("index", [5, -1])
def test_an_order_of_places_that_there_are_not_is_refused(index: int) -> None:
    victim = stepped(known(net()), LocalSteps(0.1, 2, order=((0, 1), (index, 2))))
    with pytest.raises(InputError, match=f"Expected places 0 to 4 in the order of 5 examples, got place={index}"):
        victim.gradient(rows(5), LABELS, {}, {})


def test_training_that_started_from_other_tensors_is_refused() -> None:
    start = known(net())
    plain = PlainVictim(net(9), start, ("*",), ROW)
    with pytest.raises(InputError, match=r"Expected extractor.0.weight among what was received, got received=nothing"):
        SteppedVictim(plain, {}, LocalSteps(0.1, 2))
    with pytest.raises(InputError, match=r"Expected classifier.bias of shape \(4,\), got received=\(3,\)"):
        SteppedVictim(plain, {**start, "classifier.bias": torch.zeros(3)}, LocalSteps(0.1, 2))
    with pytest.raises(InputError, match=r"Expected a shared tensor that local training moves, got moves=\('head',\)"):
        SteppedVictim(plain, start, LocalSteps(0.1, 2, moves=("head",)))


# --- its derivative ---

THROUGH = {
    "sgd": LocalSteps(0.5, 3, momentum=0.5, weight_decay=0.05, clip=0.1, proximal=0.3, order=((1, 0), (2,), (2, 0))),
    "adam": LocalSteps(0.05, 3, "adam", weight_decay=0.05, epsilon=0.05, batch_size=2),
    "adamw": LocalSteps(0.05, 3, "adamw", weight_decay=0.05, epsilon=0.05, batch_size=2),
}


@pytest.mark.parametrize("local", THROUGH.values(), ids=THROUGH.keys())
def test_derivative_in_data_labels_and_private_tensors_is_that_of_finite_differences(local: LocalSteps) -> None:
    start = known(net())
    victim = stepped({n: v for n, v in start.items() if n not in HEAD}, local, ("extractor.*",))
    probabilities = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.2, 0.2, 0.5, 0.1], [0.1, 0.4, 0.4, 0.1]]).double()

    def change(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return tuple(victim.gradient(x, y, dict(zip(HEAD, (weight, bias), strict=True)), {}).values())

    at = [value.clone().requires_grad_() for value in (rows(3), probabilities, start[HEAD[0]], start[HEAD[1]])]
    moved = torch.autograd.grad(change(*at)[0].square().sum(), at)
    assert all(float(derivative.norm()) > 1e-6 for derivative in moved)
    assert torch.autograd.gradcheck(change, at, rtol=1e-5, atol=1e-8, fast_mode=True)


def test_class_probabilities_serve_as_labels() -> None:
    victim, x = stepped(known(net()), LocalSteps(0.5, 3, batch_size=2)), rows(5)
    hard, soft = (victim.gradient(x, y, {}, {}) for y in (LABELS, one_hot(LABELS, 4).double()))
    torch.testing.assert_close(soft, hard, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("local", [LocalSteps(0.1, 2, "adam"), LocalSteps(0.1, 2, clip=0.1)], ids=["adam", "clip"])
def test_dead_units_leave_the_derivative_finite(local: LocalSteps) -> None:
    model = net(activation=nn.ReLU)
    start = known(model) | {"extractor.0.bias": torch.full((12,), -100.0, dtype=torch.float64)}
    victim = SteppedVictim(PlainVictim(model, start, ("*",), ROW), start, local)

    def length(x: Tensor) -> Tensor:
        return torch.stack([value.square().sum() for value in victim.gradient(x, LABELS, {}, {}).values()]).sum()

    assert float(length(rows(5))) > 0  # the classifier's bias moves still
    assert bool(torch.isfinite(grad(length)(rows(5))).all())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_traced_for_several_problems_at_once_it_is_what_it_is_for_each(name: str) -> None:
    local, start = THROUGH[name], known(net())
    victim = stepped({n: v for n, v in start.items() if n not in HEAD}, local, ("extractor.*",))

    def slope(x: Tensor, y: Tensor, unknown: Tensors) -> Tensor:
        return grad(lambda x: victim.gradient(x, y, unknown, {})["extractor.0.weight"].square().sum())(x)

    x, y = torch.stack([rows(3), rows(3, 1)]), torch.stack([LABELS[:3], LABELS[1:4]])
    heads = {n: torch.stack([start[n], 2 * start[n]]) for n in HEAD}
    problems = [(x[i], y[i], {n: value[i] for n, value in heads.items()}) for i in range(2)]
    graph = Graph(slope, problems[0], ComputeLimits(compiled=False))
    assert graph.light  # so it is traced under vmap
    together = graph(x, y, heads)
    for i, problem in enumerate(problems):
        alone = slope(*problem)
        assert float(alone.norm()) > 0
        torch.testing.assert_close(together[i], alone, rtol=1e-9, atol=1e-12)


# --- attacks ---

RECIPE = SearchConfig(cosine_distance, AdamSearch(150, 0.2, schedule="cosine"))


def errors(local: LocalSteps, order: Sequence[Sequence[int]], count: int) -> tuple[float, float]:
    """The RMSE of what is found behind training: with all steps, and as if one step had sent the mean gradient."""
    model, x, y = net().float(), rows(count).float(), torch.arange(count)
    start = known(model)
    train(model, local, order, x, y)
    plain = PlainVictim(net(9).float(), start, ("*",), ROW)
    unrolled = SteppedVictim(plain, start, local)
    mean, _ = unrolled.observed(tensors(model))
    result = [
        invert(
            victim, [SearchTarget(sent, y, torch_generator(0, "attack"))], RECIPE, compute=ComputeLimits(compiled=False)
        )[0]
        for victim, sent in ((unrolled, tensors(model)), (plain, mean))
    ]
    many, one = (float((each.samples - x).square().mean().sqrt()) for each in result)
    return many, one


@pytest.mark.slow
def test_attack_on_four_steps_finds_rows_that_one_step_does_not_explain() -> None:
    many, one = errors(LocalSteps(1.0, 4), ((0, 1),) * 4, 2)
    assert many < 0.005 and one > 0.04  # 0.0009 and 0.058


@pytest.mark.slow
@pytest.mark.parametrize(("again", "bound"), [(((0, 1), (2, 3)), 0.03), (((1, 2), (3, 0)), 0.13)], ids=["same", "anew"])
def test_attack_on_two_epochs_in_unknown_order(again: tuple[tuple[int, ...], ...], bound: float) -> None:
    """The second epoch is taken to go as the first; where it does not, what is found is worse."""
    many, one = errors(LocalSteps(0.5, 4, batch_size=2), ((0, 1), (2, 3), *again), 4)
    assert many < bound and one > 0.15  # 0.008 and 0.17; 0.098 and 0.18
