"""DP-Gaussian and low precision: by hand, in the mean over many draws, and through a real client."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.clients.defences.dp_gaussian import DPGaussian, DPGaussianSettings, bounded
from flfw.clients.defences.low_precision import LowPrecision, LowPrecisionSettings, nearest, stochastic
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets import Tensors
from flfw.plans.run_plan import plan
from flfw.plugins import build_settings
from flfw.runs.run_notes import final_accuracies
from flfw.task.defence import Defence, LocalStep
from tests.support.small_runs import tiny

Rounding = Literal["nearest", "stochastic"]

SCALES = (2 / 3, 1.0, 3 / 2)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noisy(std: float = 0.01, clip: float = 0.0) -> DPGaussian:
    return DPGaussian(DPGaussianSettings(std, clip))


def coarse(bits: int, rounding: Rounding = "nearest") -> LowPrecision:
    return LowPrecision(LowPrecisionSettings(bits, rounding))


def joined(tensors: Tensors) -> Tensor:
    return torch.cat([value.flatten() for value in tensors.values()])


def has_deviation(values: Tensor, std: float) -> bool:
    """Within a tenth; the estimate from 10,000 normal values is itself uncertain by 0.7 %."""
    return abs(float(values.std()) / std - 1) < 0.1


def example() -> Tensors:
    return {"a": torch.tensor([3.0, 0.5]), "b": torch.tensor([[-1.0], [4.0]])}


# --- dp_gaussian: the noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [0.02, 3.0])
@pytest.mark.parametrize("sent", [0.0, 5.0])
def test_noise_has_the_deviation_it_is_set_to(std: float, sent: float) -> None:
    value = torch.full((100, 100), sent)
    noise = noisy(std).update({"w": value}, seeded())["w"] - value
    assert [has_deviation(noise, scale * std) for scale in SCALES] == [False, True, False]
    assert abs(float(noise.mean())) < 5 * std / 100


def test_noise_is_normal() -> None:
    noise = noisy(1.0).update({"w": torch.zeros(10_000)}, seeded())["w"].abs()
    within = [float((noise < stds).float().mean()) for stds in (1, 2, 3)]
    # Uniform noise would have 0.58 and 1, Laplace's 0.76.
    assert within == pytest.approx([0.6827, 0.9545, 0.9973], abs=0.015)


def test_entries_and_tensors_have_noise_of_their_own() -> None:
    noise = joined(noisy(1.0).update({n: torch.zeros(1000) for n in "abc"}, seeded()))
    assert len(set(noise.tolist())) > 2990  # 3000 but for a few chance ties of float32


def test_without_noise_and_bound_all_is_sent_as_it_is() -> None:
    sent = noisy(0.0, 0.0).update(example(), seeded())
    assert {n: v.tolist() for n, v in sent.items()} == {n: v.tolist() for n, v in example().items()}


# --- dp_gaussian: the bound ---------------------------------------------------------------------------------------


def test_clipping_by_hand_scales_all_tensors_together() -> None:
    sent = noisy(0.0, 2.5).update({"a": torch.tensor([3.0]), "b": torch.tensor([[0.0], [4.0]])}, seeded())  # norm 5
    assert (sent["a"].tolist(), sent["b"].tolist()) == ([1.5], [[0.0], [2.0]])


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e25])
def test_a_norm_above_the_bound_ends_on_it(size: float) -> None:
    update = {name: size * torch.randn(50, generator=seeded(seed)) for seed, name in enumerate("ab")}
    result = joined(noisy(0.0, size).update(update, seeded())).double().norm()
    assert joined(update).double().norm() > 9 * size
    assert float(result) == pytest.approx(size, rel=1e-6)


@pytest.mark.parametrize("bound", [5.1, 5.0])
def test_a_norm_within_the_bound_is_left_alone(bound: float) -> None:
    update = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    assert joined(noisy(0.0, bound).update(update, seeded())).tolist() == [3.0, 4.0]


def test_zeros_can_be_bounded() -> None:
    assert joined(bounded({"a": torch.zeros(2), "b": torch.zeros(1)}, 1.0)).tolist() == [0.0] * 3
    assert bounded({}, 1.0) == {}


def test_the_bound_comes_before_the_noise() -> None:
    sent = noisy(1.0, 1e-3).update({"w": torch.full((10_000,), 7.0)}, seeded())["w"]
    assert has_deviation(sent, 1.0) and abs(float(sent.mean())) < 0.05


def test_only_floating_tensors_are_bounded_and_get_noise() -> None:
    count = torch.tensor([400])
    sent = noisy(0.0, 2.5).update({"w": torch.tensor([3.0, 4.0]), "count": count}, seeded())
    assert list(sent) == ["w", "count"]
    assert sent["w"].tolist() == [1.5, 2.0]
    assert noisy(9.0).update({"count": count}, seeded())["count"] is count


# --- low_precision: by hand ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "value", "expected"),
    [
        (3, [6.0, 0.0, 0.9, 1.1, -0.9, -2.9, 3.1, -6.0], [6.0, 0.0, 0.0, 2.0, 0.0, -2.0, 4.0, -6.0]),  # step 6 / 3
        (2, [-4.0, 1.9, 2.1, -2.1], [-4.0, 0.0, 4.0, -4.0]),  # step 4 / 1
        (8, [127.0, 0.4, -63.6], [127.0, 0.0, -64.0]),  # step 1
        (1, [3.0, -1.0, 0.5, -1.5], [1.5, -1.5, 1.5, -1.5]),
        (1, [3.0, -1.0, 0.0, 0.0], [1.0, -1.0, 0.0, 0.0]),  # zeros count in the mean, and stay
        (16, [1.0], [1.0]),
    ],
)
def test_nearest_by_hand(bits: int, value: list[float], expected: list[float]) -> None:
    assert nearest(torch.tensor(value), bits).tolist() == expected


def test_the_sign_of_what_was_rounded_to_zero_is_gone() -> None:
    assert nearest(torch.tensor([6.0, -0.9, -0.0]), 3).signbit().tolist() == [False] * 3


def test_each_tensor_has_its_own_grid() -> None:
    one = torch.tensor([1.0, 0.4, -0.1])
    sent = coarse(3).update({"a": one, "b": 100 * one}, seeded())
    assert sent["a"].tolist() == pytest.approx([1, 1 / 3, 0])
    assert sent["b"].tolist() == pytest.approx([100, 100 / 3, 0])


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("bits", [1, 2, 4, 16])
def test_zeros_and_empty_tensors_stay_and_others_are_not_touched(bits: int, rounding: Rounding) -> None:
    count = torch.tensor([401])
    update = {"zeros": torch.zeros(2, 3), "empty": torch.zeros(0, 3), "count": count}
    sent = coarse(bits, rounding).update(update, seeded())
    assert (sent["zeros"].tolist(), sent["empty"].shape) == ([[0.0] * 3] * 2, (0, 3))
    assert sent["count"] is count


# --- low_precision: of many entries -------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 3, 5, 9, 16])
def test_nearest_is_off_by_half_a_step_at_most(bits: int) -> None:
    value = torch.randn(20_000, generator=seeded(), dtype=torch.float64)
    half = float(value.abs().max()) / (2 ** (bits - 1) - 1) / 2
    error = float((nearest(value, bits) - value).abs().max())
    assert 0.99 * half < error <= half * (1 + 1e-9)


@pytest.mark.parametrize(
    ("bits", "rounding", "levels"),
    [(1, "nearest", 2), (1, "stochastic", 2)]
    + [(b, r, 2**b - 1) for b in (2, 3, 4, 8) for r in ("nearest", "stochastic")],
)
def test_there_are_as_many_levels_as_the_bits_can_name(bits: int, rounding: Rounding, levels: int) -> None:
    value = torch.linspace(-3, 3, 20_000)  # an even number: 0 is not among them
    sent = coarse(bits, rounding).update({"w": value}, seeded())["w"]
    assert len(sent.unique()) == levels
    assert len(value.unique()) == 20_000


ROW = torch.tensor([8.0, -8.0, 0.0, 0.7, 3.0, -5.3, 7.9, -0.01], dtype=torch.float64)
DRAWS = 4000


def unbiased(rounded: Callable[[Tensor], Tensor], below: Tensor, above: Tensor) -> bool:
    """Whether the mean over 4000 rows is the row, to 4 deviations of a mean of draws from the two levels around."""
    mean = rounded(ROW.repeat(DRAWS, 1)).mean(0)
    std = ((above - ROW) * (ROW - below) / DRAWS).sqrt()
    return bool(((mean - ROW).abs() <= 4 * std + 1e-12).all())


@pytest.mark.parametrize("bits", [2, 3, 6])
def test_stochastic_rounding_is_unbiased_between_the_neighbouring_levels(bits: int) -> None:
    step = 8 / (2 ** (bits - 1) - 1)
    below, above = (ROW / step).floor() * step, (ROW / step).ceil() * step
    assert unbiased(lambda value: stochastic(value, bits, seeded()), below, above)
    assert not unbiased(lambda value: nearest(value, bits), below, above)
    result = stochastic(ROW.repeat(DRAWS, 1), bits, seeded())
    assert bool((torch.minimum((result - below).abs(), (result - above).abs()) < 1e-9).all())


def test_one_stochastic_bit_is_unbiased_between_the_ends() -> None:
    ends = torch.full_like(ROW, 8.0)
    assert unbiased(lambda value: stochastic(value, 1, seeded()), -ends, ends)
    assert not unbiased(lambda value: nearest(value, 1), -ends, ends)
    assert stochastic(ROW.repeat(DRAWS, 1), 1, seeded()).unique().tolist() == [-8.0, 8.0]


def test_one_stochastic_bit_by_hand() -> None:
    # (1 + 4 / 8) / 2 = 3/4 of the entries 4 go up; the ends never move.
    result = stochastic(torch.tensor([8.0, 4.0]).repeat(DRAWS, 1), 1, seeded())
    assert float((result[:, 1] == 8).double().mean()) == pytest.approx(0.75, abs=0.03)
    assert bool((result[:, 0] == 8).all())


# --- both ---------------------------------------------------------------------------------------------------------

RANDOM: list[Defence] = [noisy(0.1), noisy(0.1, 1.0), coarse(1, "stochastic"), coarse(4, "stochastic")]


@pytest.mark.parametrize("defence", RANDOM, ids=lambda d: str(d.settings))
def test_a_seed_repeats_and_another_differs(defence: Defence) -> None:
    update = {n: torch.linspace(-1, 1, 99) for n in "ab"}
    first, again, other = (joined(defence.update(update, seeded(s))) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("defence", [*RANDOM, coarse(1), coarse(4)], ids=lambda d: str(d.settings))
def test_what_is_handed_in_is_not_written_to(defence: Defence) -> None:
    update = example()
    sent = defence.update(update, seeded())
    assert torch.equal(joined(update), joined(example()))
    assert not torch.equal(joined(sent), joined(update))
    assert {n: (v.shape, v.dtype) for n, v in sent.items()} == {n: (v.shape, v.dtype) for n, v in update.items()}


def test_nearest_draws_nothing() -> None:
    rng = seeded()
    before = rng.get_state()
    coarse(4).update(example(), rng)
    assert torch.equal(rng.get_state(), before)


@pytest.mark.parametrize(
    ("cls", "assignment", "message"),
    [
        (DPGaussianSettings, "std=nan", "Expected 0 <= std < inf, got std=nan."),
        (DPGaussianSettings, "clip=nan", "Expected 0 <= clip < inf, got clip=nan."),
        (LowPrecisionSettings, "bits=0", "Expected 1 <= bits <= 16, got bits=0."),
        (LowPrecisionSettings, "bits=17", "Expected 1 <= bits <= 16, got bits=17."),
        (LowPrecisionSettings, "bits=2.5", "Expected int for p.bits, got p.bits=2.5."),
        (LowPrecisionSettings, "rounding=up", "Expected p.rounding among nearest, stochastic, got p.rounding=up."),
    ],
)
def test_settings_out_of_range_are_refused(cls: type, assignment: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_settings(cls, "p", [f"p.{assignment}"])
    assert str(caught.value) == message


def test_settings_at_the_edge_are_accepted() -> None:
    assert build_settings(DPGaussianSettings, "p", ["p.std=0", "p.clip=0"]) == DPGaussianSettings(0.0, 0.0)
    assert [build_settings(LowPrecisionSettings, "p", [f"p.bits={bits}"]).bits for bits in (1, 16)] == [1, 16]


def test_settings_that_a_client_could_change_for_others_are_refused() -> None:
    @dataclass
    class Loose:
        ratio: float = 0.5

    class Bare:
        pass

    unlike: tuple[type, ...] = (Loose, Bare)
    for cls in unlike:
        with pytest.raises(InputError, match=f"Expected the settings of p in a frozen dataclass, got {cls.__name__}"):
            build_settings(cls, "p", [])


def test_defaults() -> None:
    assert DPGaussian().settings == DPGaussianSettings(std=0.01, clip=0.0)
    assert LowPrecision().settings == LowPrecisionSettings(bits=4, rounding="nearest")


# --- through a real client ----------------------------------------------------------------------------------------


def worker(experiment: Experiment, *assignments: str, defence: str = "none") -> FederatedClient:
    experiment = replace(experiment, defence=defence, set=assignments)
    task = plan(experiment).task.load(None)
    ctx = ClientContext(plan(experiment).client, task, 1, 1, plan(experiment).client.defences.build(), None)
    return plan(experiment).client_class(ctx)


def probed(client: FederatedClient) -> Tensors:
    return client.gradient(torch.rand(1, 1, 28, 28, generator=seeded()), torch.tensor([3]))


def changed(client: FederatedClient) -> Tensors:
    """What a round's training changes, as the server finds out."""
    received = {name: value.numpy().copy() for name, value in client.model.state_dict().items()}
    sent, _ = client.fit_named(received, version=0)
    return {name: value - torch.from_numpy(received[name]) for name, value in sent.items()}


@pytest.mark.parametrize("way", [probed, changed])
def test_what_a_client_sends_carries_the_noise(small: Experiment, way: Callable[[FederatedClient], Tensors]) -> None:
    sent = way(worker(small, "dp_gaussian.std=0.3", defence="dp_gaussian"))
    noise = joined(sent) - joined(way(worker(small)))
    assert [has_deviation(noise, scale * 0.3) for scale in SCALES] == [False, True, False]


@pytest.mark.parametrize(("way", "blur"), [(probed, 1e-5), (changed, 1e-2)])
def test_what_a_client_sends_lies_on_the_grid(
    small: Experiment, way: Callable[[FederatedClient], Tensors], blur: float
) -> None:
    sent, true = way(worker(small, "low_precision.bits=3", defence="low_precision")), way(worker(small))
    for name, value in sent.items():
        step = true[name].abs().max() / 3
        assert float((value / step - (value / step).round()).abs().max()) < blur
        assert float((value - true[name]).abs().max()) <= step * (0.5 + blur)
        assert float((value / step).abs().max()) == pytest.approx(3, abs=blur)


def test_a_defended_client_gives_the_accuracy_on_the_data_that_it_protects(small: Experiment) -> None:
    client, plain = worker(small, defence="prune"), worker(small)
    received = {name: value.numpy().copy() for name, value in client.model.state_dict().items()}
    model = plain.model.eval()
    x, y = plain.ctx.task.examples("train", plain.indices("train"))
    with torch.no_grad():
        right = float((model(plain.ctx.task.inputs.normalise(x)).argmax(1) == y).float().mean())
    assert client.evaluate_named(received, version=0)["acc_protected"] == pytest.approx(right)
    assert "acc_protected" not in plain.evaluate_named(received, version=0)


def test_a_result_has_their_mean_over_the_defended_clients() -> None:
    rows = [{"acc_global": 0.5, "acc_local": 0.5, "acc_protected": share} for share in (0.2, 0.4)]
    assert final_accuracies(rows, [], None)["acc_protected"] == pytest.approx(0.3)
    assert final_accuracies([{"acc_global": 0.5, "acc_local": 0.5}], [], None)["acc_protected"] is None


@pytest.mark.parametrize("split", ["pools", "iid"])
def test_proxies_come_from_their_pool_or_else_from_public_data(small: Experiment, split: str) -> None:
    chosen = ("pools.train=20",) if split == "pools" else ()
    client = worker(replace(small, split=split), *chosen)
    x, _ = client._public_examples
    cut, data = client.ctx.task.split, client.ctx.task.dataset
    pool = data.train_x[cut.proxy] if split == "pools" else data.test_x[cut.public]
    places = {bytes(row) for row in pool.reshape(len(pool), -1)}
    raw = (x.numpy() * 255).round().astype("uint8") if pool.dtype.kind == "u" else x.numpy().astype(pool.dtype)
    assert len(x) and all(bytes(row) in places for row in raw.reshape(len(raw), -1))


class Notes(Defence):
    """Notes the examples of each local step with their positions."""

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """A copy of the inputs."""
        return x.clone(), y

    def step(self, step: LocalStep, rng: torch.Generator) -> Tensors:
        """The gradients as they are."""
        self.steps.append((step.x, step.y, step.positions))
        return step.gradients


def test_a_defence_sees_where_the_examples_of_a_step_are_stored() -> None:
    experiment = tiny(defence=f"{__name__}:Notes", batch_size=16, split="iid")
    run_plan, task = plan(experiment), plan(experiment).task.load(None)
    defence = run_plan.client.defences.build()
    assert isinstance(defence, Notes)
    worker = run_plan.client_class(ClientContext(plan(experiment).client, task, 1, 1, defence, None))
    worker.load_received({name: v.numpy().copy() for name, v in worker.model.state_dict().items()}, 0)
    worker.train()
    mine = worker.indices("train")
    assert sorted(torch.cat([positions for *_, positions in defence.steps]).tolist()) == sorted(mine.tolist())
    trained = len(defence.steps)
    probed = mine[[4, 2]]
    worker.gradient(*worker.stored(probed))
    worker.stepped(*worker.stored(probed), 2)
    assert [positions.tolist() for *_, positions in defence.steps[trained:]] == [probed.tolist()] * 3
    for x, y, positions in defence.steps:
        expected = task.examples("train", positions.numpy())
        assert torch.equal(x, expected[0]) and torch.equal(y, expected[1])
    worker.gradient(torch.rand(2, *task.dataset.shape), torch.tensor([0, 1]))  # of nobody
    assert not len(defence.steps[-1][2])
