"""The defence of a foreign app, described by one of the project's: tested, known to attacks, left out in controls."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.clientapp.mod import LocalDpMod
from torch import Tensor, nn

from flfw.attacks.ig import IG, IGSettings
from flfw.audit.measures.public import PublicData
from flfw.clients.defences.dp_gaussian import DPGaussian, DPGaussianSettings
from flfw.clients.defences.low_precision import LowPrecision, LowPrecisionSettings
from flfw.clients.defences.prune import Prune, PruneSettings
from flfw.clients.defences.soteria import Soteria
from flfw.errors import InputError
from flfw.recorded_apps import consistency
from flfw.recorded_apps.description import TrainingDescription
from flfw.recording.observation import Truth
from flfw.rng import torch_generator
from flfw.task.defence import Defence
from tests.support.foreign_apps import LR, app_of, ask, client_app, dense, examples, recorded, step

CLIENTS = 8
ATTACK = {"ig": IG(IGSettings(iterations=400, tv=1e-6, tv_told=1e-6, schedule="constant"))}
QUICK = {"ig": IG(IGSettings(iterations=1))}


def gaussian(std: float, clip: float = 0.0) -> DPGaussian:
    return DPGaussian(DPGaussianSettings(std=std, clip=clip))


def entries(folder: Path, recordings: Path, defence: Defence | str, **given: Any) -> list[dict[str, Any]]:
    """Audit; the entry of the attacker who knows nothing, then that of the one who is told."""
    return ask(recordings, folder, attacks=ATTACK, defence=defence, victims=CLIENTS, **given)["audit"]


def control(entry: dict[str, Any], name: str) -> dict[str, Any]:
    return next(step for step in entry["ladder"] if step["rung"] == name)


def defended_app(defence: Defence, sends: str = "weights") -> Any:
    """An app whose clients take a step of SGD, and do to its change what the defence does."""

    def local(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        before = {name: value.clone() for name, value in net.state_dict().items()}
        step(net, x, y)
        change = {name: value - before[name] for name, value in net.state_dict().items()}
        change = defence.update(change, torch_generator(0, "its own", int(1e6 * float(x[0, 0, 0, 0]))))
        if sends == "weights":
            return {name: before[name] + way for name, way in change.items()}
        return {name: -way if sends == "negative delta" else way for name, way in change.items()}

    return app_of(dense, 1, local)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(
        tmp_path_factory.mktemp("noisy") / "recordings",
        client_app(dense, 1, noise=5.0),
        dense,
        clients=CLIENTS,
        one=True,
    )


@pytest.mark.slow
def test_noise_that_hides_the_data_is_no_leak_found_with_all_controls(noisy: Path, tmp_path: Path) -> None:
    result = ask(noisy, tmp_path / "audit", attacks=ATTACK, defence=gaussian(5.0), victims=CLIENTS)
    static, told = result["audit"]
    assert (static["verdict"], static["cause"], static["adaptive"]) == ("undecided", "static", False)
    assert (told["verdict"], told["cause"], told["adaptation"]) == ("no leak found", "nothing", "written")
    assert all(step["passed"] for step in told["ladder"]) and told["share_recovered"] == 0
    assert "dp_gaussian (std=5.0" in " ".join(told["granted"]) and told["candidate_test"]["messages"] == CLIENTS
    assert "not granted: that the clients use dp_gaussian" in static["granted"]
    assert any("random numbers are secret and drawn anew" in note for note in result["notes"])


@pytest.mark.slow
@pytest.mark.parametrize(("std", "sends"), [(0.3, "weights"), (0.3, "delta"), (0.01, "negative delta")])
def test_noise_that_hides_too_little_leaks_in_every_form_of_an_update(std: float, sends: str, tmp_path: Path) -> None:
    app = defended_app(gaussian(std), sends)
    recordings = recorded(tmp_path / "recordings", app, dense, clients=CLIENTS, one=True)
    described = TrainingDescription(LR, sends=sends)  # type: ignore[arg-type]
    _, told = entries(tmp_path / "audit", recordings, gaussian(std), training=described)
    assert control(told, "consistency")["passed"] and told["verdict"] == "leaks"
    assert told["evidence"] == ("identified" if std == 0.3 else "reconstructed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("described", "words"),
    [(gaussian(4.0), "its deviation is 1.2"), (gaussian(5.0, clip=1e-3), ""), (Prune(PruneSettings(0.5)), "")],
    ids=["less noise", "a bound that noise hides", "another defence"],
)
def test_noise_that_is_not_the_described_one_decides_nothing(
    described: Defence, words: str, noisy: Path, tmp_path: Path
) -> None:
    told = ask(noisy, tmp_path / "audit", attacks=QUICK, defence=described, victims=CLIENTS)["audit"][-1]
    assert told["verdict"] == "undecided" and words in told["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("defence", [Prune(PruneSettings(0.5)), LowPrecision(LowPrecisionSettings(bits=8))], ids=type)
def test_a_defence_without_noise_is_held_against_the_messages(defence: Defence, tmp_path: Path) -> None:
    recordings = recorded(tmp_path / "recordings", defended_app(defence), dense, clients=CLIENTS, one=True)
    told = ask(recordings, tmp_path / "right", attacks=QUICK, defence=defence, victims=CLIENTS)["audit"][-1]
    assert control(told, "consistency")["passed"]
    other = ask(recordings, tmp_path / "wrong", attacks=QUICK, defence=gaussian(1e-4), victims=CLIENTS)["audit"][-1]
    assert control(other, "consistency")["passed"] is False and other["verdict"] != "no leak found"


def test_a_bound_is_one_of_all_tensors_together(tmp_path: Path) -> None:
    defence = gaussian(0.0, clip=0.05)
    recordings = recorded(tmp_path / "recordings", defended_app(defence), dense, clients=CLIENTS, one=True)
    told = ask(recordings, tmp_path / "right", attacks=QUICK, defence=defence, victims=CLIENTS)["audit"][-1]
    assert control(told, "consistency")["passed"]
    other = ask(recordings, tmp_path / "wrong", attacks=QUICK, defence=gaussian(0.0, 0.06), victims=CLIENTS)["audit"]
    assert control(other[-1], "consistency")["passed"] is False


class WithTeacher(nn.Module):
    """Trains a network beside a frozen copy, which clients move as well: by the update, without noise."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = dense(), dense().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.student(x)


@pytest.mark.slow
def test_what_is_sent_beside_the_trained_tensors_leaves_nothing_decided(tmp_path: Path) -> None:
    def local(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        before = {name: value.clone() for name, value in net.state_dict().items()}
        step(net, x, y)
        rng = torch_generator(0, "its own", int(1e6 * float(x[0, 0, 0, 0])))
        moved = {name: value - before[name] for name, value in net.state_dict().items()}
        copied = {name: moved[name.replace("teacher", "student")] for name in moved}
        return {
            name: before[name] + way + (5.0 * torch.randn(way.shape, generator=rng) if "student" in name else 0)
            for name, way in copied.items()
        }

    recordings = recorded(
        tmp_path / "recordings", app_of(WithTeacher, 1, local), WithTeacher, clients=CLIENTS, one=True
    )
    _, told = entries(tmp_path / "audit", recordings, gaussian(5.0), net=WithTeacher)
    assert (told["verdict"], told["cause"]) == ("undecided", "unread") and "teacher" in told["reason"]


def test_noise_alone_is_no_finding_on_data_with_small_updates(tmp_path: Path) -> None:
    def local(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        rng = torch_generator(0, "its own", int(1e6 * float(x[0, 0, 0, 0])))
        return {name: value + 0.3 * torch.randn(value.shape, generator=rng) for name, value in net.state_dict().items()}

    def grey(client: int) -> Truth:
        x, y = examples(1, seed=client - 1)
        return Truth(0.5 + 1e-3 * (x - 0.5), y, torch.arange(1))

    recordings = recorded(tmp_path / "recordings", app_of(dense, 1, local), dense, clients=CLIENTS, one=True)
    given = {"attacks": QUICK, "defence": gaussian(0.3), "victims": CLIENTS, "truth": grey}
    told = ask(recordings, tmp_path / "audit", **given)["audit"][-1]
    assert "Noise covers all updates together" in control(told, "consistency")["failure_reason"]
    assert told["verdict"] == "undecided" and told["candidate_test"] is None


@pytest.mark.slow
def test_an_example_is_never_exchanged_for_one_of_a_client(tmp_path: Path) -> None:
    recordings = recorded(tmp_path / "recordings", defended_app(gaussian(0.1)), dense, clients=CLIENTS, one=True)
    x, y = (torch.cat(parts) for parts in zip(*(examples(1, seed=client) for client in range(CLIENTS)), strict=True))
    others = torch.linspace(0, 1, 3).view(3, 1, 1, 1).expand(3, 1, 6, 6)
    public = PublicData.from_arrays(torch.cat([x, others]).numpy(), torch.cat([y, torch.arange(3)]).numpy())
    given = {"attacks": ATTACK, "defence": gaussian(0.1), "victims": CLIENTS, "public": public}
    told = ask(recordings, tmp_path / "audit", **given)["audit"][-1]
    assert told["candidate_test"]["first"] == CLIENTS


@pytest.mark.parametrize("noticed", [1.0, 1.1], ids=["as Flower draws it", "a tenth more"])
def test_flowers_own_local_dp_is_the_bound_and_the_noise_that_describe_it(noticed: float, tmp_path: Path) -> None:
    bound, epsilon, delta = 0.05, 8.0, 1e-5

    def local(net: nn.Module, x: Tensor, y: Tensor) -> None:
        step(net, x, y)

    app = app_of(dense, 1, local, mods=[LocalDpMod(bound, bound, epsilon, delta)])
    recordings = recorded(tmp_path / "recordings", app, dense, clients=CLIENTS, one=True)
    std = bound * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    described = gaussian(noticed * std, clip=bound)
    told = ask(recordings, tmp_path / "audit", attacks=QUICK, defence=described, victims=CLIENTS)["audit"][-1]
    assert control(told, "consistency")["passed"] is (noticed == 1)


def test_a_random_training_cannot_be_told_from_noise(noisy: Path, tmp_path: Path) -> None:
    shuffled = TrainingDescription(LR, batch_size=1, augment=lambda x, rng: x)
    told = ask(noisy, tmp_path / "a", attacks=QUICK, defence=gaussian(5.0), victims=CLIENTS, training=shuffled)["audit"]
    assert (
        "the training is random, and cannot be told from dp_gaussian"
        in control(told[-1], "consistency")["failure_reason"]
    )
    assert told[-1]["verdict"] == "undecided"


def test_more_messages_than_memory_holds_decide_nothing(
    noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistency, "_MOST_NUMBERS", 4 * 643)
    told = ask(noisy, tmp_path / "audit", attacks=QUICK, defence=gaussian(5.0), victims=CLIENTS)["audit"][-1]
    assert "are kept at most: audit fewer victims or rounds" in control(told, "consistency")["failure_reason"]
    assert told["verdict"] == "undecided"


def test_a_defence_that_no_attack_can_be_told_of_is_refused(noisy: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^Expected a defence on updates .*, got soteria; give its name alone"):
        entries(tmp_path / "audit", noisy, Soteria())
    with pytest.raises(InputError, match=r"^Expected a name, or a defence with its settings, got defence=int"):
        entries(tmp_path / "audit", noisy, 5)  # type: ignore[arg-type]
    assert not (tmp_path / "audit").exists()
