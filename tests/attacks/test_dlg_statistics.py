"""FedCG's own attack: the statistics in its objective, and that it works where nothing is private."""

from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flfw import nets
from flfw.adversary.attack import NotApplicableError
from flfw.attacks.dlg_statistics import DLGStatistics, DLGStatisticsSettings
from flfw.audit.jobs import AttackJob, ProbeSet
from flfw.audit.measures.metrics import psnr
from flfw.audit.threat_model import threat_model_of
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.matching import squared_distance
from flfw.inversion.private.extractor import StatisticsVictim, channel_statistics
from flfw.nets import Net
from flfw.nets.conditional_gan import GeneratingNet
from flfw.nets.inputs import InputSpec
from flfw.plans.run_plan import plan
from flfw.recording.observation import Knowledge, Observation, Vantage
from flfw.rng import initialising, torch_generator
from tests.support.attackable import gradient
from tests.support.planned import clients_and_attacks

INPUTS = InputSpec.from_constants((1, 6, 6), (0.4,), (0.5,))


def small(seed: int, hidden: int = 12) -> Net:
    """Features of 3x4x4 in (0, 1) below two layers."""
    with initialising(seed, "small"):
        extractor = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Sigmoid())
        net = Net(extractor, nn.Sequential(nn.Flatten(), nn.Linear(48, hidden), nn.Sigmoid(), nn.Linear(hidden, 10)))
    net.shape, net.classes = (1, 6, 6), 10
    return net


def images(count: int = 1) -> tuple[Tensor, Tensor]:
    return torch.rand(count, 1, 6, 6, generator=torch_generator(0, "images")), torch.arange(count) % 10


def seen_by(net: nn.Module, shared: str, x: Tensor, y: Tensor) -> Observation:
    sent = {n: v for n, v in gradient(net, INPUTS, x, y).items() if n.startswith(shared)}
    received = {n: v.clone() for n, v in nets.tensors(net).items() if n.startswith((shared, "generator."))}
    return Observation(Vantage.SERVER, "probe", "target", 1, 0, 0, sent, received)


def attacked(observation: Observation, model: nn.Module, y: Tensor | None, more: Any = None, **settings: Any) -> Tensor:
    victim = PlainVictim(model, observation.received, tuple(observation.sent), INPUTS)
    (result,) = DLGStatistics(DLGStatisticsSettings(**settings)).run(
        [observation], [Knowledge(victim, 1, y, uploaded=more)], [torch_generator(1, "attack")]
    )
    return result.samples


def test_statistics_by_hand() -> None:
    """Two examples of two channels of two pixels: 1, 3, 5, 7 and 0, 0, 0, 4."""
    features = torch.tensor([[[[1.0, 3.0]], [[0.0, 0.0]]], [[[5.0, 7.0]], [[0.0, 4.0]]]])
    result = channel_statistics(features)
    assert result["statistics.mean"].tolist() == [4.0, 1.0]
    assert result["statistics.variance"].tolist() == [5.0, 3.0]  # not the deviation, and without Bessel's correction


def test_the_objective_is_the_paper_s() -> None:
    (x, y), alpha, private = images(2), 0.3, small(8)
    observation = seen_by(small(0), "classifier.", x, y)
    plain = PlainVictim(private, observation.received, ("classifier.*",), INPUTS)
    victim, wanted = StatisticsVictim(plain, alpha), {"statistics.mean": torch.tensor([0.1, 0.5, 0.9])}
    wanted["statistics.variance"] = torch.tensor([0.01, 0.02, 0.03])
    guess, _ = images(3)
    guess = guess[1:]
    result = squared_distance(victim.gradient(guess, y, {}, {}), victim.observed({**observation.sent, **wanted})[0])
    joined = Net(private.extractor, small(0).classifier)
    expected = sum(
        float(((g - observation.sent[n]) ** 2).sum()) for n, g in seen_by(joined, "classifier.", guess, y).sent.items()
    )
    features = private.extractor(INPUTS.normalise(guess)).detach()
    for c in range(3):
        mean, variance = features[:, c].mean(), ((features[:, c] - features[:, c].mean()) ** 2).mean()
        expected += alpha * float((mean - wanted["statistics.mean"][c]) ** 2)
        expected += alpha * float((variance - wanted["statistics.variance"][c]) ** 2)
    assert float(result) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_without_a_generator_there_is_no_second_term() -> None:
    x, y = images()
    observation = seen_by(small(0), "classifier.", x, y)
    options = {"adam_iterations": 20, "lbfgs_iterations": 0}
    with_, without = (attacked(observation, small(8), y, alpha=alpha, **options) for alpha in (10.0, 0.0))
    assert torch.equal(with_, without)


@pytest.mark.slow
@pytest.mark.parametrize(("private", "lbfgs", "low", "high"), [("", 40, 40, inf), ("classifier.", 0, 0, 15)])
def test_where_all_is_shared_it_is_dlg_and_with_a_random_extractor_it_finds_little(
    private: str, lbfgs: int, low: float, high: float
) -> None:
    x, y = images()
    observation = seen_by(small(0, hidden=40), private, x, y)
    result = attacked(observation, small(8, hidden=40), y, adam_iterations=300, lbfgs_iterations=lbfgs)
    assert low < psnr(x[0].numpy(), result[0].numpy()) < high


def generating(seed: int) -> GeneratingNet:
    net = small(seed)
    with initialising(seed, "generating"):
        return GeneratingNet(net, judged=True)


@pytest.mark.slow
def test_the_uploaded_generator_counts_and_the_private_discriminator_does_not() -> None:
    """A model with counters among its private tensors, which nobody can search for."""
    x, y = images()
    observation = seen_by(generating(0), "classifier.", x, y)
    options = {"alpha": 10.0, "adam_iterations": 20, "lbfgs_iterations": 0}
    plain = attacked(observation, generating(8), y, **options)
    other = {name: value + 0.5 for name, value in observation.received.items() if name.startswith("generator.layers")}
    assert not torch.equal(attacked(observation, generating(8), y, more=other, **options), plain)
    assert not torch.equal(attacked(observation, generating(8), y, **{**options, "alpha": 0.0}), plain)


def test_it_is_static_and_says_so() -> None:
    job = AttackJob(
        "x", ProbeSet("target", 0, "", 1, 1, "target"), (), Path("none"), {}, (1, 32, 32), 10, (0.5,), (0.5,)
    )
    threat_model = threat_model_of(
        *clients_and_attacks(plan(Experiment(method="fedsplit", net="lenet5", dataset="mnist"))),
        job,
        DLGStatistics(),
        False,
    )
    assert not threat_model.adaptive and any("private tensors" in words for words in threat_model.granted)
    assert DLGStatistics().models == frozenset() and DLGStatistics().uses == {"uploads"}


def test_refusals() -> None:
    x, y = images()
    observation = seen_by(small(0), "classifier.", x, y)
    with pytest.raises(NotApplicableError, match="labels"):
        attacked(observation, small(8), None)
    with pytest.raises(InputError, match="0 <= alpha"):
        DLGStatisticsSettings(alpha=-1.0)
    with pytest.raises(InputError, match="at least one iteration"):
        DLGStatisticsSettings(adam_iterations=0, lbfgs_iterations=0)
