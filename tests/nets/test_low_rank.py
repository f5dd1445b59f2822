"""HyperFL's step in factors: the same as dense gradients, whatever the settings, and taken where it should be."""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import inf
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import hyperfl as benchmark
from benchmarks.hyperfl import HyperFLSection
from flfw.client.context import ClientContext
from flfw.clients.hyperfl import HyperFLClient
from flfw.data import Dataset
from flfw.data.splits.partition import Split
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets import Net, Tensors
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.training.low_rank import FactoredHeads, LowRankSGD
from flfw.nets.training.optimisers import SGD
from flfw.plans.run_plan import plan
from flfw.rng import initialising, numpy_generator, torch_generator
from flfw.task.defence import Defence
from flfw.task.pipeline import NetworkPlan
from flfw.task.task import Task, TaskPlan

EXACT = 1e-10


# --- against dense gradients and torch's own optimiser ---


def net() -> GeneratedNet:
    """Two generated layers of 15 and 12 numbers, 16 hidden units."""
    with initialising(0, "model"):
        extractor = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
        return GeneratedNet(Net(extractor, nn.Linear(3, 2)), 5, 16, "torch").double()


def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    rng = torch_generator(0, "batches")
    for _ in range(steps):
        x = torch.randn(6, 4, generator=rng, dtype=torch.float64)
        yield x, (x[:, 0] * x[:, 1] > 0).long()


@dataclasses.dataclass
class Way:
    """What became of a net; of each step the norms of hypernetwork's and embedding's gradient and the units at work."""

    net: GeneratedNet
    norms: list[tuple[float, float]]
    working: list[tuple[bool, ...]]


def lr_at(step: int, lr: float, drop: int | None) -> float:
    return lr if drop is None or step < drop else lr / 10


def dense(steps: int, lr: float, momentum: float, decay: float, clip: float, drop: int | None) -> Way:
    """Autograd through everything."""
    made = net()
    hypernet = list(made.hypernet.parameters())
    moving = [*hypernet, made.embedding]
    optimiser = torch.optim.SGD(moving, lr, momentum=momentum, weight_decay=decay)
    way = Way(made, [], [])
    for step, (x, y) in enumerate(batches(steps)):
        way.working.append(tuple((made.hypernet.hidden_units(made.embedding) > 0).tolist()))
        made.zero_grad()
        cross_entropy(made(x), y).backward()
        both = nn.utils.clip_grad_norm_(hypernet, clip), nn.utils.clip_grad_norm_([made.embedding], clip / 8)
        way.norms.append((float(both[0]), float(both[1])))
        optimiser.param_groups[0]["lr"] = lr_at(step, lr, drop)
        optimiser.step()
    return way


def low_rank(steps: int, lr: float, momentum: float, decay: float, clip: float, drop: int | None) -> GeneratedNet:
    made, plain = net(), SGD(lr, momentum, decay)
    optimiser = LowRankSGD(made, plain, clip=clip, embedding_clip=clip / 8)
    for step, (x, y) in enumerate(batches(steps)):
        loss = cross_entropy(made.classifier(made.features(x, optimiser.generated)), y)
        result = torch.autograd.grad(loss, list(optimiser.generated.values()))
        plain.lr = lr_at(step, lr, drop)
        optimiser.step(optimiser.generated, dict(zip(optimiser.generated, result, strict=True)))
    optimiser.write()
    return made


def assert_same_change(result: nn.Module, expected: nn.Module, start: nn.Module) -> None:
    """Against the size of each tensor's change: an error in one step is small against the weights."""
    for name, value in expected.state_dict().items():
        moved = float((value - start.state_dict()[name]).norm())
        assert float((result.state_dict()[name] - value).norm()) <= EXACT * moved, name


#            steps   lr  momentum decay clip drop
SETTINGS = {
    "plain": (60, 0.1, 0.0, 0.0, inf, None),
    "momentum": (60, 0.1, 0.5, 0.0, inf, None),
    "decay": (60, 0.1, 0.0, 0.02, inf, None),
    "both": (60, 0.1, 0.5, 0.02, inf, None),
    "clipped in every step": (60, 0.1, 0.5, 0.02, 0.01, None),
    "clipped now and then": (60, 0.1, 0.5, 0.02, 0.5, None),
    "a smaller step size on the way": (60, 0.1, 0.5, 0.02, 0.5, 20),
    "units die and wake": (60, 1.0, 0.5, 0.02, inf, None),
    "much momentum": (60, 0.03, 0.95, 0.02, inf, None),
    "more steps than there is room for": (400, 0.1, 0.5, 0.02, 0.5, 150),
    "more steps, without momentum": (200, 0.1, 0.0, 0.0, inf, None),
    "more steps, much momentum": (200, 0.02, 0.9, 0.02, inf, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SETTINGS)
def test_sixty_steps_are_those_of_dense_gradients(case: str) -> None:
    settings = SETTINGS[case]
    way = dense(*settings)
    assert_same_change(low_rank(*settings), way.net, net())
    clip = settings[4]
    clipped = {(norm > clip, inner > clip / 8) for norm, inner in way.norms}
    if case == "clipped in every step":
        assert clipped == {(True, True)}
    if case == "clipped now and then":
        assert [set(one) for one in zip(*clipped, strict=True)] == [{True, False}, {True, False}]
    if case == "units die and wake":
        changes = {turn for a, b in pairwise(way.working) for turn in zip(a, b, strict=True)}
        assert {(True, False), (False, True)} <= changes


# --- the parts, by hand ---


def heads() -> nn.ModuleList:
    """A layer W h + b with W = [[2, 5, 7]] and b = [1]: one number from three units."""
    head = nn.Linear(3, 1)
    head.weight.data, head.bias.data = torch.tensor([[2.0, 5.0, 7.0]]), torch.tensor([1.0])
    return nn.ModuleList([head])


def test_two_steps_by_hand() -> None:
    layers, out = heads(), torch.empty(1)
    factored, plain, hidden = FactoredHeads(layers), SGD(0.1), torch.tensor([1.0, 3.0, 0.0, 0.0])
    factored.generate(hidden, out)
    assert out.tolist() == [7.0]
    units, square = factored.back([torch.tensor([0.5])])
    assert units[:2].tolist() == [0.5, 1.0] and float(square) == 0.25
    factored.descend(hidden, 1.0, plain)  # b = 1 - 0.1 * 0.5 = 0.95, w = 2 - 0.1 * 0.5 * 3 = 1.85
    factored.generate(hidden, out)
    assert out.tolist() == pytest.approx([1.85 * 3 + 0.95])
    units, square = factored.back([torch.tensor([-2.0])])
    assert units[:2].tolist() == pytest.approx([-1.9, -3.7]) and float(square) == 4.0
    factored.descend(hidden, 0.25, plain)  # b = 0.95 + 0.1 * 0.5 = 1.0, w = 1.85 + 0.1 * 0.5 * 3 = 2.0
    factored.write()
    (head,) = layers
    assert [p.flatten().tolist() for p in head.parameters()] == [pytest.approx([2.0, 5.0, 7.0]), pytest.approx([1.0])]


def test_a_unit_that_wakes_brings_its_column_and_one_that_dies_keeps_what_it_learnt() -> None:
    layers, out = heads(), torch.empty(1)
    factored, plain = FactoredHeads(layers), SGD(1.0)
    for hidden, generated in (
        ([1.0, 1.0, 0.0, 2.0], 17.0),  # 1 + 2 + 7 * 2; then b = 0, W = [1, 5, 5]
        ([1.0, 0.0, 1.0, 0.0], 5.0),  # 0 + 5; then b = -1, W = [1, 4, 5]
        ([1.0, 1.0, 1.0, 1.0], 9.0),  # -1 + 1 + 4 + 5; then b = -2, W = [0, 3, 4]
    ):
        factored.generate(torch.tensor(hidden), out)
        assert out.tolist() == [generated]
        factored.back([torch.tensor([1.0])])
        factored.descend(torch.tensor(hidden), 1.0, plain)
    factored.write()
    (head,) = layers
    assert [p.flatten().tolist() for p in head.parameters()] == [[0.0, 3.0, 4.0], [-2.0]]


@pytest.mark.parametrize("room", [1, 2, 5])
def test_without_momentum_one_factor_s_room_serves_any_number_of_steps(room: int) -> None:
    layers, out = heads(), torch.empty(1)
    factored, plain, hidden = FactoredHeads(layers, room), SGD(0.5, 0.0, 0.5), torch.tensor([1.0, 1.0, 0.0, 0.0])
    w, b, dead = 2.0, 1.0, 5.0
    for step in range(7):
        factored.generate(hidden, out)
        assert out.tolist() == pytest.approx([w + b])
        factored.back([torch.tensor([float(step)])])
        factored.descend(hidden, 1.0, plain)
        w, b, dead = (value - 0.5 * (slope + 0.5 * value) for value, slope in ((w, step), (b, step), (dead, 0.0)))
    factored.write()
    (head,) = layers
    assert torch.as_tensor(head.weight).flatten().tolist() == pytest.approx([w, dead, 7.0 / 5.0 * dead])
    assert factored.room == room


@pytest.mark.slow
def test_the_room_stays_as_it_is_when_the_momentum_forgets_in_time() -> None:
    factored, hidden, out = FactoredHeads(heads()), torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.empty(1)
    for momentum, room in ((0.5, 64), (0.9, 256)):
        plain = SGD(0.01, momentum, 5e-4)
        for _ in range(1000):
            factored.generate(hidden, out)
            factored.back([torch.tensor([1.0])])
            factored.descend(hidden, 1.0, plain)
        assert factored.room == room


def test_a_column_whose_unit_is_dead_in_every_step_is_left_alone() -> None:
    made = net()
    with torch.no_grad():
        made.hypernet.trunk.bias[3] = -1000.0
    before = [head.weight.detach().clone() for head in linear_heads(made)]
    optimiser = LowRankSGD(made, SGD(0.1, 0.5))
    for x, y in batches(20):
        loss = cross_entropy(made.classifier(made.features(x, optimiser.generated)), y)
        result = torch.autograd.grad(loss, list(optimiser.generated.values()))
        optimiser.step(optimiser.generated, dict(zip(optimiser.generated, result, strict=True)))
    optimiser.write()
    for old, head in zip(before, linear_heads(made), strict=True):
        changed = (old != head.weight).any(0)
        assert not changed[3] and changed.sum() >= 8


def linear_heads(made: GeneratedNet) -> list[nn.Linear]:
    return [head for head in made.hypernet.heads if isinstance(head, nn.Linear)]


# --- the client ---


@final
class OnGradients(Defence):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[set[str]] = []

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors:
        self.seen.append({name for name, value in gradients.items() if value.numel()})
        return gradients


@final
class OnBatches(Defence):
    """Halves the inputs."""

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return x / 2, y


def client(
    *assignments: str, defence: Defence | None = None, precision: torch.dtype = torch.float64, tests: int = 7
) -> HyperFLClient:
    """With 100 rows of 20 features of 3 classes in batches of 10, six epochs: 60 steps."""
    rng = numpy_generator(0, "rows")
    x = rng.standard_normal((100, 20)).astype(np.float64 if precision == torch.float64 else np.float32)
    y = (x[:, :3] * x[:, 3:6]).argmax(1)
    test_x, test_y = np.resize(x, (tests, 20)), np.resize(y, tests)
    zeros, ones = (0.0,) * 20, (1.0,) * 20
    dataset, nobody = Dataset("rows", x, y, test_x, test_y, 3, zeros, ones, "made up", None), np.zeros(0, np.int64)
    split = Split((np.arange(100),), (np.arange(tests),), (nobody,), nobody, nobody, nobody)
    experiment = Experiment(method="hyperfl", net="mlp", batch_size=10, local_epochs=6, lr=0.05, set=assignments)
    task = Task(dataset, split, NetworkPlan("mlp"))
    made = HyperFLClient(ClientContext(plan(experiment).client, task, 0, 1, defence, None))
    made.model.to(precision)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "assignments",
    [
        (),
        ("clip=0.5",),
        ("clip=0.01",),  # the embedding's as well
        ("momentum=0",),
        ("momentum=0.9", "weight_decay=0.01", "clip=0.2"),
        ("head_init=torch",),
        ("classifier_epochs=2", "weight_decay=0"),
    ],
)
def test_a_client_s_sixty_steps_are_those_of_descend(assignments: tuple[str, ...]) -> None:
    start, ours, other = client(*assignments), client(*assignments), client("step=dense", *assignments)
    metrics, expected = ours.train(), other.train()
    assert_same_change(ours.model, other.model, start.model)
    assert metrics == pytest.approx(expected, rel=1e-9)


def bits(made: HyperFLClient) -> Tensor:
    made.train()
    return torch.cat([value.flatten() for value in made.model.state_dict().values()])


@pytest.mark.parametrize("assignments", [("optimiser=adam",), ("momentum=0.97",)])
def test_a_rule_without_low_rank_is_computed_densely(assignments: tuple[str, ...]) -> None:
    single = torch.float32
    assert torch.equal(
        bits(client(*assignments, precision=single)), bits(client("step=dense", *assignments, precision=single))
    )


def test_a_defence_that_acts_on_gradients_is_given_all_of_them() -> None:
    defence = OnGradients()
    result = bits(client(defence=defence, precision=torch.float32))
    shared = {name for name in client().model.state_dict() if name.startswith("hypernet.")}
    assert defence.seen == [set()] * 10 + [shared] * 60  # step A changes nothing that is shared
    assert torch.equal(result, bits(client("step=dense", precision=torch.float32)))


@pytest.mark.slow
def test_a_defence_that_does_not_leaves_the_step_as_it_is() -> None:
    ours, other = client(defence=OnBatches()), client("step=dense", defence=OnBatches())
    ours.train()
    other.train()
    assert_same_change(ours.model, other.model, client().model)
    assert not torch.equal(bits(client(defence=OnBatches())), bits(client("step=dense", defence=OnBatches())))


def test_the_usual_step_is_in_factors() -> None:
    single = torch.float32
    usual, requested, dense_one = (
        bits(client(*a, precision=single)) for a in ((), ("step=low_rank",), ("step=dense",))
    )
    assert torch.equal(usual, requested) and not torch.equal(usual, dense_one)


def counted(made: HyperFLClient, work: Callable[[], object]) -> int:
    """How often the extractor is generated meanwhile."""
    calls: list[None] = []
    hook = made.net.hypernet.register_forward_hook(lambda *_: calls.append(None))
    work()
    hook.remove()
    return len(calls)


def test_an_evaluation_generates_the_extractor_once_and_from_then_on_anew() -> None:
    made = client(tests=1100)
    x, y = torch.tensor(made.ctx.task.dataset.test_x), torch.tensor(made.ctx.task.dataset.test_y)

    def right() -> float:
        return float((made.model(x).argmax(1) == y).double().mean())

    assert counted(made, made.accuracy) == 1
    assert made.accuracy() == pytest.approx(right())
    before = right()
    made.train()
    assert made.accuracy() == pytest.approx(right()) and right() > before
    assert made.net(x).requires_grad


def test_an_evaluation_that_fails_leaves_nothing_behind() -> None:
    made = client()
    with pytest.raises(RuntimeError, match="stop"), made.net.generated_once():
        raise RuntimeError("stop")
    assert counted(made, lambda: made.net(torch.zeros(1, 20, dtype=torch.float64))) == 1


def test_step_a_generates_the_extractor_once_and_step_b_never_through_the_hypernetwork() -> None:
    made = client("classifier_epochs=3")
    assert counted(made, made.train_classifier) == 1
    assert counted(made, made.train_hypernetwork) == 0


# --- the benchmark ---


def test_a_gate_that_is_not_passed_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    case = dataclasses.replace(benchmark.CASES["cnn1"])
    for error, passes in ((9e-11, True), (2e-10, False), (float("nan"), False)):
        monkeypatch.setattr(benchmark, "apart", lambda _, error=error: error)
        if passes:
            assert benchmark.gate([case]) == {"cnn1": error}
        else:
            with pytest.raises(SystemExit, match=r"^Expected the same change .* got cnn1=.*nothing was timed\.$"):
                benchmark.gate([case])


@pytest.mark.parametrize(
    ("at_most", "met"), [(True, {"cnn1": True, "cnn2": False}), (False, {"cnn1": False, "cnn2": True})]
)
def test_a_section_says_beside_each_figure_whether_its_goal_is_met(at_most: bool, met: dict[str, bool]) -> None:
    beside = {name: {"ours_s": 0.5} for name in ("cnn1", "cnn2")}
    section = HyperFLSection("a over b", {"cnn1": 1.3, "cnn2": 1.6}, {"cnn1": 1.4, "cnn2": 1.5}, at_most, beside)
    assert section.met == met
    first, second, third = section.lines("P3")
    sign = "<=" if at_most else ">="
    assert first == "P3, a over b:"
    assert second == f"  cnn1   1.30  (goal {sign} 1.40: {'met' if at_most else 'missed'}); ours_s 0.5"
    assert third == f"  cnn2   1.60  (goal {sign} 1.50: {'missed' if at_most else 'met'}); ours_s 0.5"


def test_a_ratio_is_the_median_of_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter([(2.0, 1.0), (30.0, 10.0), (9.0, 1.0), (1.0, 1.0), (1.0, 4.0), (1.0, 2.0)])
    section = benchmark.ratios("a over b", lambda case: next(turns), ("a", "b"), {}, at_most=True, turns=3)
    assert section.figures == {"cnn1": 3.0, "cnn2": 0.5}
    assert section.beside == {"cnn1": {"a_s": 9.0, "b_s": 1.0}, "cnn2": {"a_s": 1.0, "b_s": 2.0}}


@pytest.mark.slow
def test_the_straightforward_round_is_a_client_s(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two steps instead of 72, on random pixels: a test before may have read the real data, which stay in memory.
    def without_files(*_: Any) -> Any:
        raise InputError("no files")

    monkeypatch.setattr(TaskPlan, "load", without_files)
    monkeypatch.setattr(benchmark, "_IMAGES", 4)
    benchmark.images.cache_clear()
    case = benchmark.HyperFLCase("cnn1", "fmnist", (1, 28, 28), 0.01)
    assert benchmark.images(case).name == "random pixels"
    assert benchmark.apart(case) <= EXACT
    benchmark.images.cache_clear()
