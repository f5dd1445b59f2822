"""FedCG: rounds against a loop that is written here, what it keeps to itself, and where clients start."""

import dataclasses
from copy import deepcopy
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, cross_entropy, kl_div, log_softmax, softmax

from flfw.client.store import ClientStore
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets.conditional_gan import GeneratingNet
from flfw.plans.run_plan import plan
from flfw.rng import torch_generator
from flfw.runs import run
from tests.support import rounds

FEW = ("iterations=20", "server_batch=8", "gamma_rounds=4", "sampled.train=30")
CLOSE = 1e-10  # of a change, in float64


def asked(small: Experiment, *settings: str, **changes: Any) -> Experiment:
    """Two clients of 30 digits: a batch of 20 and one of 10."""
    given = {"method": "fedcg", "net": "lenet5", "split": "sampled", "clients": 2, "batch_size": 20, "lr": 3e-3}
    return dataclasses.replace(small, set=(*FEW, *settings), **{**given, **changes})


class Party:
    """A client of the loop: its networks and torch's own optimisers, which live as long as it does."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        assert isinstance(model, GeneratingNet)
        self.model = model
        both = [*model.extractor.parameters(), *model.classifier.parameters()]
        self.task = torch.optim.Adam(both, lr=lr, weight_decay=1e-4)
        self.generating = torch.optim.Adam(model.generator.parameters(), lr=3e-4, betas=(0.5, 0.999))
        self.judging = torch.optim.Adam(model.discriminator.parameters(), lr=3e-4, betas=(0.5, 0.999))


def apart(features: Tensor, made: Tensor, kind: str) -> Tensor:
    """The distance of stage 1, written out."""
    a, b = features.flatten(1), made.flatten(1)
    if kind == "cosine":
        return sum((1 - u @ v / (u.norm() * v.norm()) for u, v in zip(a, b, strict=True)), a.new_zeros(())) / len(a)
    squared = (a - b).square().sum(1).mean()
    return squared if kind == "norm" else squared / 400


def local_round(
    party: Party,
    experiment: Experiment,
    partition: int,
    now: int,
    diversity: float,
    distance: str = "mse",
    saturating: bool = False,
    grain: float = 0.0,
) -> dict[str, Tensor]:
    """Stages 1 and 2 of the paper's algorithm; what is sent."""
    model, key = party.model, (now, partition)
    model.train()
    model.generator.eval()
    gamma = 2 / (1 + exp(-10 * min((now - 1) / 4, 1))) - 1
    rng = torch_generator(experiment.seed, "generated features", *key)
    noise = torch_generator(experiment.seed, "image noise", *key)

    def seen(x: Tensor) -> Tensor:
        return x + grain * torch.randn(x.shape, generator=noise) if grain else x

    for x, y in rounds.batches(experiment, partition, "batches", experiment.local_epochs, now):
        features = model.extractor(seen(x))
        loss = cross_entropy(model.classifier(features), y)
        if now > 1:
            made = model.generator(torch.randn(len(y), 100, generator=rng), y).detach()
            loss = loss + (gamma * apart(features, made, distance) if distance != "none" else 0.0)
        rounds.descend(party.task, loss)
    model.generator.train()
    rng = torch_generator(experiment.seed, "noise", *key)
    judge = model.discriminator
    for x, y in rounds.batches(experiment, partition, "generator", experiment.local_epochs, now):
        z = torch.randn(len(y), 100, generator=rng)
        real, made = model.extractor(seen(x)).detach(), model.generator(z, y)
        one, zero = torch.ones(len(y)), torch.zeros(len(y))
        judged = binary_cross_entropy(judge(real, y), one) + binary_cross_entropy(judge(made.detach(), y), zero)
        rounds.descend(party.judging, judged)
        loss = (1 - judge(made, y)).log().mean() if saturating else binary_cross_entropy(judge(made, y), one)
        if diversity:
            half = max(1, len(y) // 2)
            other = torch.randn(half, 100, generator=rng)
            both = model.generator(torch.cat([z[:half], other]), torch.cat([y[:half], y[:half]]))
            ratio = (both[:half] - both[half:]).abs().mean() / (z[:half] - other).abs().mean()
            loss = loss + diversity / (ratio + 1e-5)
        rounds.descend(party.generating, loss)
    return {n: v.clone() for n, v in model.state_dict().items() if n.startswith(("classifier.", "generator."))}


class Server:
    """The loop's server: one Adam for all rounds."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        moved = [p for n, p in model.named_parameters() if n.startswith(("classifier.", "generator."))]
        self.adam = torch.optim.Adam(moved, lr=3e-4)

    def round(self, experiment: Experiment, sent: list[dict[str, Tensor]], now: int) -> dict[str, Tensor]:
        rng = torch_generator(experiment.seed, "server training", now)
        self.model.load_state_dict(rounds.mean(sent), strict=False)
        self.model.train()
        teachers = [deepcopy(self.model).eval() for _ in sent]
        for teacher, chosen in zip(teachers, sent, strict=True):
            teacher.load_state_dict(chosen, strict=False)
        for _ in range(20):
            y = torch.randint(10, (8,), generator=rng)
            z = torch.randn(8, 100, generator=rng)
            with torch.no_grad():
                message = [t.classifier(t.generator(z, y)) for t in teachers]  # type: ignore[operator]
                agreed = torch.stack([w * scores for w, scores in zip(rounds.SHARES, message, strict=True)]).sum(0)
            scores = self.model.classifier(self.model.generator(z, y))  # type: ignore[operator]
            rounds.descend(self.adam, kl_div(log_softmax(scores, 1), softmax(agreed, 1), reduction="batchmean"))
        return {n: self.model.state_dict()[n].clone() for n in sent[0]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("diversity", "start", "distance", "saturating", "grain"),
    [
        (0.2, "common", "mse", False, 0.0),
        pytest.param(0.0, "independent", "mse", False, 0.0, marks=pytest.mark.nightly),
        pytest.param(0.2, "common", "norm", True, 0.0, marks=pytest.mark.nightly),
        pytest.param(0.2, "common", "cosine", False, 0.5, marks=pytest.mark.nightly),
    ],
)
def test_two_rounds_equal_a_loop(
    small: Experiment, tmp_path: Path, diversity: float, start: str, distance: str, saturating: bool, grain: float
) -> None:
    with rounds.exactly():
        settings = (f"diversity={diversity}", f"start={start}", f"distance={distance}", f"image_noise={grain}")
        experiment = asked(small, *settings, f"adversary={'' if saturating else 'non_'}saturating")
        result = rounds.play(experiment, tmp_path, 2)
        parties = []
        for partition in range(2):
            chosen = rounds.fresh(experiment, *([partition] if start == "independent" else []))
            chosen.load_state_dict(result.broadcasts[0], strict=False)
            parties.append(Party(chosen, experiment.lr))
        begun = [{n: v.clone() for n, v in party.model.state_dict().items()} for party in parties]
        server, broadcast = Server(rounds.fresh(experiment)), result.broadcasts[0]
        for now in (1, 2):
            sent = []
            for partition, party in enumerate(parties):
                party.model.load_state_dict(broadcast, strict=False)
                sent.append(local_round(party, experiment, partition, now, diversity, distance, saturating, grain))
                assert rounds.error(result.uploads[now - 1][partition].tensors, sent[-1], broadcast) < CLOSE
            broadcast = server.round(experiment, sent, now)
            assert rounds.error(result.broadcasts[now], broadcast, rounds.mean(sent)) < CLOSE
        for party, client, before in zip(parties, result.clients, begun, strict=True):
            state, chosen = party.model.state_dict(), client.model.state_dict()
            kept = [n for n in state if n.startswith(("extractor.", "discriminator."))]
            assert rounds.error({n: chosen[n] for n in kept}, {n: state[n] for n in kept}, before) < CLOSE


def test_the_papers_distance_is_four_hundred_times_ours(small: Experiment, tmp_path: Path) -> None:
    """A feature has 400 entries: the squared norm against the mean over them."""
    client = {
        name: rounds.client(asked(small, *given, variant=name), tmp_path / name, 0, 2)
        for name, given in (("ours", ()), ("paper", ()), ("authors", ("distance=none",)))
    }
    x, y = client["ours"].examples("train", client["ours"].indices("train")[:4])
    losses = {name: float(one.local_loss(x, y).detach()) for name, one in client.items()}  # type: ignore[attr-defined]
    gamma = client["ours"].gamma  # type: ignore[attr-defined]
    assert gamma > 0 and losses["ours"] > losses["authors"]
    far = (losses["ours"] - losses["authors"]) / gamma
    assert losses["paper"] - losses["authors"] == pytest.approx(400 * gamma * far, rel=1e-4)


@pytest.mark.parametrize(
    ("now", "wanted"), [(1, 0.0), (2, 0.0996680), (11, 0.7615942), (50, 0.9998891), (51, 0.9999092), (200, 0.9999092)]
)
def test_gamma_rises_as_in_the_authors_code(small: Experiment, tmp_path: Path, now: int, wanted: float) -> None:
    experiment = asked(small, "gamma_rounds=50")
    assert rounds.client(experiment, tmp_path, 0, now).gamma == pytest.approx(wanted, abs=1e-7)  # type: ignore[attr-defined]
    at_once = asked(small, "gamma_rounds=0")
    assert rounds.client(at_once, tmp_path, 0, now).gamma == pytest.approx(0.9999092, abs=1e-7)  # type: ignore[attr-defined]


def test_the_networks_are_the_papers(small: Experiment) -> None:
    """Written out with torch's modules and given the same weights."""
    model = rounds.fresh(asked(small))
    assert isinstance(model, GeneratingNet)
    up = [
        *(nn.ConvTranspose2d(110, 512, 2, bias=False), nn.BatchNorm2d(512), nn.LeakyReLU(0.2)),
        *(nn.ConvTranspose2d(512, 256, 2, bias=False), nn.BatchNorm2d(256), nn.LeakyReLU(0.2)),
        *(nn.ConvTranspose2d(256, 128, 2, bias=False), nn.BatchNorm2d(128), nn.LeakyReLU(0.2)),
        *(nn.ConvTranspose2d(128, 16, 2, bias=False), nn.Sigmoid()),
    ]
    generator = nn.Sequential(*up)
    generator.load_state_dict(model.generator.layers.state_dict())
    rng = torch_generator(0, "test")
    z, y = torch.randn(4, 100, generator=rng), torch.tensor([3, 1, 3, 9])
    whole = torch.cat([z, model.generator.embedding.weight[y]], 1)[:, :, None, None]
    features = model.generator(z, y)
    torch.testing.assert_close(features, generator(whole))
    assert features.shape == (4, 16, 5, 5)
    norm = torch.nn.utils.parametrizations.spectral_norm
    judge = nn.Sequential(
        *(norm(nn.Conv2d(26, 128, 2, bias=False)), nn.BatchNorm2d(128), nn.LeakyReLU(0.2)),
        *(norm(nn.Conv2d(128, 256, 2, bias=False)), nn.BatchNorm2d(256), nn.LeakyReLU(0.2)),
        *(norm(nn.Conv2d(256, 512, 2, bias=False)), nn.BatchNorm2d(512), nn.LeakyReLU(0.2)),
        *(norm(nn.Conv2d(512, 1, 2, bias=False)), nn.Sigmoid()),
    )
    judge.load_state_dict(model.discriminator.layers.state_dict())
    planes = model.discriminator.embedding.weight[y][:, :, None, None] * torch.ones(5, 5)
    expected = judge(torch.cat([features, planes], 1))[:, 0, 0, 0]
    torch.testing.assert_close(model.discriminator(features, y), expected)


# --- what is whose ---


@pytest.mark.slow
def test_what_is_private_is_kept_and_never_travels(small: Experiment, tmp_path: Path) -> None:
    result = rounds.play(asked(small), tmp_path, 2)
    kept = ClientStore(tmp_path, "test", 1).load(2)
    assert {name.partition(".")[0].partition("/")[0] for name in kept} == {
        *("extractor", "discriminator", "adam", "adam_generator", "adam_discriminator")
    }
    moved = {name.split("/", 2)[2] for name in kept if name.startswith("adam/mean/")}
    assert moved and {name.partition(".")[0] for name in moved} == {"extractor", "classifier"}
    for name in ("adam", "adam_generator", "adam_discriminator"):  # two batches in each of two rounds
        assert {float(v) for n, v in kept.items() if n.startswith(f"{name}/steps/")} == {4}
    seen = [*result.broadcasts, *(update.tensors for uploads in result.uploads for update in uploads)]
    assert {name.partition(".")[0] for tensors in seen for name in tensors} == {"classifier", "generator"}
    secret = [v for n, v in kept.items() if v.numel() > 50 and v.std() > 0]
    same = [v for tensors in seen for v in tensors.values() if any(torch.equal(v, chosen) for chosen in secret)]
    assert len(secret) > 20 and not same
    assert {n.partition("/")[0] for n in result.strategy.state} == {"mean", "square", "steps"}
    assert {float(v) for n, v in result.strategy.state.items() if n.startswith("steps/")} == {40}


@pytest.mark.parametrize("method", ["fedcg", "fedsplit", "fedgen"])
def test_private_parts_start_alike_or_each_by_itself(small: Experiment, tmp_path: Path, method: str) -> None:
    for start, alike in (("common", True), ("independent", False)):
        experiment = asked(small, method=method)
        few = ("sampled.train=30",) if method == "fedsplit" else ("iterations=2", "sampled.train=30")
        experiment = dataclasses.replace(experiment, set=(f"start={start}", *few))
        clients = [rounds.client(experiment, tmp_path, partition) for partition in (0, 1)]
        one, other = (client.model.state_dict() for client in clients)
        private = [n for n in one if n.startswith(("extractor.", "discriminator.")) and "weight" in n]
        drawn = [n for n in private if one[n].numel() > 100 and one[n].std() > 0]
        assert len([n for n in drawn if n.startswith("extractor.")]) == 2
        assert all(torch.equal(one[n], other[n]) == alike for n in drawn)
        shared = [n for n in one if n.startswith(("classifier.", "generator."))]
        assert all(torch.equal(one[n], other[n]) for n in shared)
        method_class, settings = plan(experiment).client.method, plan(experiment).client.settings
        assert method_class.common_start(settings) is alike


def test_a_client_without_a_class_is_refused_before_anything_is_written(small: Experiment, tmp_path: Path) -> None:
    experiment = asked(small, split="pathological", out=tmp_path / "out")
    experiment = dataclasses.replace(experiment, set=FEW[:3])
    with pytest.raises(InputError, match=r"^Expected training examples of all 10 classes at each client, got none of"):
        run.run(experiment)
    assert not (tmp_path / "out").exists()
