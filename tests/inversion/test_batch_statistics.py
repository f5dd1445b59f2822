"""BatchNorm in training: the attacker's victim against the client itself, and what an audit grants of it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from flfw import nets
from flfw.experiment import Experiment
from flfw.files.outcomes import outcome
from flfw.inversion.client_models.batch_statistics import normalise_by_batch, normalise_by_instance
from flfw.inversion.client_models.local_steps import SteppedVictim
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.evaluation import stacked
from flfw.nets import NetCard
from flfw.nets.backbones.freezing import TolerantBatchNorm
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Net, Tensors, tensors
from flfw.nets.training.local_steps import LocalSteps
from flfw.recorded_apps.knowledge import victim as victim_of_an_app
from flfw.recording.observation import Observation, Vantage
from flfw.rng import initialising, torch_generator
from flfw.runs import run as whole
from tests.support import rounds
from tests.support.attackable import gradient
from tests.support.method_rounds import normed
from tests.support.small_runs import tiny

CLOSE = 1e-6


@pytest.fixture
def asked(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Two clients of 60 digits, whose network has BatchNorm before and after its last convolution."""
    monkeypatch.setitem(nets._CARDS, "normed", NetCard(normed))
    return dataclasses.replace(small, clients=2, net="normed", split="sampled", set=("sampled.train=60",), lr=0.05)


def off(result: Tensors, expected: Tensors) -> float:
    """Length of the difference over that of what is expected."""
    return rounds.error(result, expected, {name: torch.zeros_like(value) for name, value in expected.items()})


def moved_on(model: nn.Module) -> None:
    """Change the running statistics, as if other data had been seen."""
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(0.5)
        if name.endswith("running_var"):
            buffer.mul_(3)


def guessed_right(
    experiment: Experiment, folder: Path, batch: int, moved: bool, by_batch: bool = True
) -> tuple[Tensors, Tensors]:
    """What a client answers to a probe, and what the attacker's victim gives at the true batch; in float64."""
    with rounds.exactly():
        client = rounds.client(experiment, folder, 0)
        if moved:
            moved_on(client.model)
        received = {name: value.detach().clone() for name, value in client.model.state_dict().items()}
        x, y = client.examples("train", client.indices("train")[:batch])
        sent = client.gradient(x.double(), y)
        method, settings, inputs = client.ctx.method, client.ctx.settings, client.ctx.task.inputs
        victim = method.victim_model(rounds.fresh(experiment), received, inputs, settings)
        assert isinstance(victim, PlainVictim)
        victim.precision = torch.float64
        if by_batch:
            normalise_by_batch(victim)
        return sent, victim.gradient(x.double(), y, victim.unknown, {})


@pytest.mark.parametrize("moved", [False, True], ids=["first statistics", "moved statistics"])
@pytest.mark.parametrize("batch", [2, 8])
def test_the_victim_gives_what_the_client_sends(asked: Experiment, tmp_path: Path, batch: int, moved: bool) -> None:
    sent, right = guessed_right(asked, tmp_path, batch, moved)
    assert off(right, sent) < CLOSE
    _, by_running = guessed_right(asked, tmp_path, batch, moved, by_batch=False)
    assert off(by_running, sent) > 1e-2  # such is the mistake of one that normalises by the running statistics


@pytest.mark.slow
@pytest.mark.parametrize("batch", [2, *(pytest.param(size, marks=pytest.mark.nightly) for size in (8, 1))])
def test_so_it_does_for_a_resnet(small: Experiment, tmp_path: Path, batch: int) -> None:
    """Also for one example: its last layers have a single number a channel, for which running statistics are used."""
    requested = dataclasses.replace(small, net="resnet18", image_size=32, split="sampled", set=("sampled.train=20",))
    sent, right = guessed_right(requested, tmp_path, batch, moved=True)
    assert off(right, sent) < CLOSE


def test_several_steps_normalise_each_by_its_batch(asked: Experiment, tmp_path: Path) -> None:
    with rounds.exactly():
        client = rounds.client(asked, tmp_path, 0)
        received = {name: value.detach().clone() for name, value in client.model.state_dict().items()}
        client.received = {name: value.numpy().copy() for name, value in received.items()}
        method, settings = client.ctx.method, client.ctx.settings
        x, y = client.examples("train", client.indices("train")[:4])
        sent = client.stepped(x.double(), y, 3)
        local = method.local_steps(settings, asked.lr, 3)
        assert local is not None
        plain = PlainVictim(rounds.fresh(asked), received, ("*",), client.ctx.task.inputs)
        normalise_by_batch(plain)
        victim = SteppedVictim(plain, received, local)
        assert "extractor.1.running_mean" in victim.known and victim.unknown == {}
        observed, _ = victim.observed(sent)
        assert off(victim.gradient(x.double(), y, {}, {}), observed) < CLOSE


def small_net(seed: int = 0) -> Net:
    with initialising(seed, "normalised"):
        extractor = nn.Sequential(nn.Conv2d(1, 3, 3), TolerantBatchNorm(3), nn.Tanh(), nn.Flatten())
        return Net(extractor, nn.Linear(12, 4))


SPACE = InputSpec.from_constants((1, 4, 4), (0.5,), (0.25,))


def test_victims_run_side_by_side_and_nothing_is_written() -> None:
    model = small_net()
    victim = PlainVictim(model, {n: v.clone() for n, v in tensors(model).items()}, ("*",), SPACE)
    normalise_by_batch(victim)
    before = {name: value.clone() for name, value in victim.known.items()}
    x, y = torch.rand((3, 2, 1, 4, 4), generator=torch_generator(0, "x")), torch.tensor([[0, 1], [2, 2], [3, 0]])
    together = vmap(lambda one, label: victim.gradient(one, label, {}, {}))(x, y)
    alone = stacked([victim.gradient(one, label, {}, {}) for one, label in zip(x, y, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in victim.known.items())


@pytest.mark.parametrize("count", [1, 2])
def test_its_derivative_by_the_guess_includes_that_of_the_statistics(count: int) -> None:
    """Against differences: what a search follows."""
    model = small_net().double()
    victim = PlainVictim(model, tensors(model), ("*",), SPACE)  # a float64 model stays so
    normalise_by_batch(victim)
    y, (x, way) = torch.arange(count), torch.rand((2, count, 1, 4, 4), generator=torch_generator(0, "x")).double()

    def length(x: Tensor) -> Tensor:
        return torch.stack([v.square().sum() for v in victim.gradient(x, y, {}, {}).values()]).sum()

    slope = (torch.func.grad(length)(x) * way).sum()
    assert float(slope) == pytest.approx(float(length(x + 1e-6 * way) - length(x - 1e-6 * way)) / 2e-6, rel=1e-5)


def test_of_private_statistics_none_is_searched_for_and_known_ones_stay_known() -> None:
    model = small_net()
    held = {n: v.clone() for n, v in tensors(model).items()}
    for known in (held, {n: v for n, v in held.items() if "running" not in n}):
        victim = PlainVictim(small_net(1), known, ("*",), SPACE)
        normalise_by_batch(victim)
        assert victim.unknown == {}
        assert ("extractor.1.running_mean" in victim.known) == (known is held)
        stepped = SteppedVictim(victim, known, LocalSteps(0.1, 2))
        assert stepped.unknown == {}
        assert ("extractor.1.running_mean" in stepped.known) == (known is held)


def test_a_single_number_a_channel_uses_the_statistics_that_were_received() -> None:
    layer = TolerantBatchNorm(2)
    layer.running_mean, layer.running_var = torch.tensor([1.0, -1.0]), torch.tensor([4.0, 9.0])
    victim = PlainVictim(nn.Sequential(nn.Conv2d(1, 2, 4), TolerantBatchNorm(2)), {}, ("*",), SPACE)
    normalise_by_batch(victim)
    given = {name: value for name, value in layer.state_dict().items() if value.is_floating_point()}
    x = torch.tensor([[[[3.0]], [[5.0]]]])
    torch.testing.assert_close(torch.func.functional_call(victim.model.get_submodule("1"), given, (x,)), layer(x))


def convolutional(shape: tuple[int, ...], classes: int) -> Net:
    """Build a network for probes of one example, too: BatchNorm over maps alone."""
    extractor = nn.Sequential(nn.Conv2d(shape[0], 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    return Net(extractor, nn.Linear(3 * (shape[1] - 2) ** 2, classes))


def audited(out: Path, **changes: Any) -> dict[str, Any]:
    few = {"split": "sampled", "victim_batch": 4, "images": 1, "audit_rounds": "0", "image_size": 8}
    run = tiny(out, **{**few, "net": f"{__name__}:convolutional", **changes})
    return json.loads((whole.run(run) / "result.json").read_text())["audit"][0]


@pytest.mark.nightly
def test_an_audit_says_so_and_finds_that_the_description_is_right(tmp_path: Path) -> None:
    entry = audited(tmp_path / "run", attack=("ig",), set=("sampled.train=20", "ig.iterations=3"))
    assert entry["adaptive"]
    assert "that BatchNorm takes the batch's statistics in training, as it does for a guess" in entry["granted"]
    (consistency,) = [control for control in entry["ladder"] if control["rung"] == "consistency"]
    assert consistency["passed"], consistency


# --- InstanceNorm, and dropout ---


def of_instances(shape: tuple[int, ...], classes: int, running: bool = True) -> Net:
    """Build a network that normalises each example's own maps."""
    norm = nn.InstanceNorm2d(3, affine=True, track_running_stats=running)
    return Net(
        nn.Sequential(nn.Conv2d(shape[0], 3, 3), norm, nn.Sigmoid(), nn.Flatten()),
        nn.Linear(3 * (shape[1] - 2) ** 2, classes),
    )


def without_running(shape: tuple[int, ...], classes: int) -> Net:
    return of_instances(shape, classes, running=False)


def dropping(shape: tuple[int, ...], classes: int) -> Net:
    """Build a network with dropout before its last layer."""
    pixels = shape[0] * shape[1] * shape[2]
    return Net(
        nn.Sequential(nn.Flatten(), nn.Linear(pixels, 32), nn.Sigmoid(), nn.Dropout(0.5)), nn.Linear(32, classes)
    )


@pytest.mark.parametrize("running", [True, False])
def test_a_layer_of_instances_is_as_in_training(running: bool) -> None:
    """By hand: the client's gradient in training, after other data have moved the running statistics."""
    with initialising(0, "instances"):
        net = of_instances((1, 4, 4), 4, running)
    moved_on(net)
    x, y = torch.rand((3, 1, 4, 4), generator=torch_generator(0, "x")), torch.tensor([0, 3, 1])
    held = {name: value.clone() for name, value in tensors(net).items()}
    net.train()
    sent = gradient(net, SPACE, x, y)
    for known in (held, {n: v for n, v in held.items() if "running" not in n}):
        with initialising(1, "attacker"):
            victim = PlainVictim(of_instances((1, 4, 4), 4, running), known, ("*",), SPACE)
        normalise_by_instance(victim)
        assert victim.unknown == {} and off(victim.gradient(x, y, {}, {}), sent) < 1e-5
        both = vmap(lambda one, label, victim=victim: victim.gradient(one, label, {}, {}))(x[:, None], y[:, None])
        alone = stacked([victim.gradient(x[k : k + 1], y[k : k + 1], {}, {}) for k in range(3)])
        assert off(both, alone) < 1e-5
    observation = Observation(Vantage.SERVER, "update", "", 1, 0, 0, sent, held)
    for mode, right in (("train", True), ("eval", not running)):
        foreign = victim_of_an_app(of_instances((1, 4, 4), 4, running), observation, SPACE, mode)
        assert (off(foreign.gradient(x, y, {}, {}), sent) < 1e-5) is right
    evaluated = PlainVictim(of_instances((1, 4, 4), 4, running), held, ("*",), SPACE).gradient(x, y, {}, {})
    assert (off(evaluated, sent) > 1e-2) is running


@pytest.mark.nightly
@pytest.mark.parametrize("builder", ["of_instances", "without_running"])
def test_an_audit_of_such_layers_explains_the_message(tmp_path: Path, builder: str) -> None:
    """After a round, when the running statistics have moved; also for attacks that know nothing of BatchNorm."""
    few = {"audit_rounds": "1", "set": ("sampled.train=20", "ig.iterations=3"), "net": f"{__name__}:{builder}"}
    entry = audited(tmp_path / "run", attack=("ig",), **few)
    assert entry["adaptive"] and outcome(entry) != "void"
    (consistency,) = [control for control in entry["ladder"] if control["rung"] == "consistency"]
    assert consistency["passed"], consistency


@pytest.mark.nightly
def test_an_audit_of_dropout_is_static_and_says_why(tmp_path: Path) -> None:
    """A failure behind the client's own draws is no evidence, whatever defence stands behind them."""
    few = {"set": ("sampled.train=20", "ig.iterations=3"), "net": f"{__name__}:dropping", "attack": ("ig",)}
    words = "not granted: the network's random draws in training, such as dropout; they are left out"
    for defence, verdicts in (("none", {"undecided"}), ("prune", {"static", "undecided"})):
        entry = audited(tmp_path / defence, defence=defence, **few)
        assert not entry["adaptive"] and words in entry["granted"]
        assert outcome(entry) in verdicts and "no leak found" not in entry["verdict"]
        assert not any(control["rung"] == "consistency" and control["passed"] for control in entry["ladder"])
