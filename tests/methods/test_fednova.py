"""FedNova: rounds against a loop that is written here, the closed forms against sums, and clients that do not count."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.messages.replies import UnusableReplyError
from flfw.nets import NetCard
from flfw.server.aggregation import Update
from flfw.strategies.fednova import FedNova, FedNovaSettings
from tests.support import rounds
from tests.support.method_rounds import normed

CLOSE = 1e-10  # of a change, in float64


@pytest.fixture
def asked(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Two clients of unlike sizes, so that one makes more steps than the other."""
    monkeypatch.setitem(nets._CARDS, "normed", NetCard(normed))
    given: dict[str, Any] = {"net": "normed", "split": "dirichlet", "clients": 2, "batch_size": 64, "lr": 0.05}
    return dataclasses.replace(small, method="fednova", **given)


def weights(steps: int, rho: float, alpha: float) -> list[float]:
    """a_i of the paper's section 4, as it is written out there."""
    if rho:
        return [(1 - rho ** (steps - k)) / (1 - rho) for k in range(steps)]
    return [(1 - alpha) ** (steps - 1 - k) for k in range(steps)]


CASES = [
    ((), 0.0, 0.0, "norm"),
    (("momentum=0.5",), 0.5, 0.0, "norm"),
    (("mu=2",), 0.0, 2.0, "norm"),
    (("mu=2", "tau_eff=steps"), 0.0, 2.0, "steps"),
]


@pytest.mark.parametrize(("chosen", "rho", "mu", "tau"), CASES)
def test_two_rounds_equal_a_loop(
    asked: Experiment, tmp_path: Path, chosen: tuple[str, ...], rho: float, mu: float, tau: str
) -> None:
    with rounds.exactly():
        experiment = dataclasses.replace(asked, set=("weight_decay=0", *chosen))
        result = rounds.play(experiment, tmp_path, 2)
        net = rounds.fresh(experiment)
        x = {name: value.clone() for name, value in net.state_dict().items()}
        moving = {name for name, _ in net.named_parameters()}
        for now in (1, 2):
            changes, states, norms, taus = [], [], [], []
            for partition in range(2):
                net.load_state_dict(x)
                sgd, steps = torch.optim.SGD(net.parameters(), lr=0.05, momentum=rho), 0
                for inputs, labels in rounds.batches(experiment, partition, "batches", 1, now):
                    sgd.zero_grad()
                    far = torch.stack([((p - x[n]) ** 2).sum() for n, p in net.named_parameters()]).sum()
                    (cross_entropy(net(inputs), labels) + mu / 2 * far).backward()
                    sgd.step()
                    steps += 1
                state = {name: value.clone() for name, value in net.state_dict().items()}
                states.append(state)
                norms.append(sum(weights(steps, rho, 0.05 * mu)))
                taus.append(steps)
                changes.append({name: (state[name] - x[name]) / norms[-1] for name in moving})
                assert result.uploads[now - 1][partition].metrics["steps"] == steps
            assert taus[0] != taus[1]
            lengths = norms if tau == "norm" else taus
            far = sum(p * length for p, length in zip(rounds.SHARES, lengths, strict=True))
            way = rounds.mean(changes)
            x = {n: x[n] + far * way[n] if n in moving else v for n, v in rounds.mean(states).items()}
            assert rounds.error(result.broadcasts[now], x, result.broadcasts[now - 1]) < CLOSE


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.3)])
def test_the_closed_forms_are_the_sums_of_the_papers_vectors(steps: int, rho: float, mu: float) -> None:
    result = FedNovaSettings(momentum=rho, mu=mu).norm(steps, 0.5)
    assert result == pytest.approx(sum(weights(steps, rho, 0.5 * mu)))


def test_equal_clients_make_fedavg(asked: Experiment, tmp_path: Path) -> None:
    with rounds.exactly():
        few = {"split": "sampled", "set": ("sampled.train=30", "momentum=0.5")}
        experiment = dataclasses.replace(asked, **few)  # type: ignore[arg-type]
        result = rounds.play(experiment, tmp_path / "one").broadcasts
        other = rounds.play(dataclasses.replace(experiment, method="fedavg"), tmp_path / "two").broadcasts
        assert rounds.error(result[1], other[1], result[0]) < CLOSE


@pytest.mark.parametrize("steps", [None, 0, -1, 2.0])
def test_an_update_without_its_steps_is_not_used(steps: Any) -> None:
    metrics = {"loss": 1.0} if steps is None else {"loss": 1.0, "steps": steps}
    with pytest.raises(UnusableReplyError, match=f"^expected steps >= 1, got {steps}$"):
        FedNova().check_metrics(metrics)
    FedNova().check_metrics({"steps": 1})


@pytest.mark.parametrize("chosen", [{"optimiser": "adam"}, {"mu": -1.0}, {"mu": 0.1, "momentum": 0.5}])
def test_what_has_no_closed_form_is_refused(chosen: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        FedNovaSettings(**chosen)


def test_it_says_what_it_cannot_do_alone() -> None:
    strategy = FedNova()
    update = Update(0, 1, {"w": Tensor([1.0])}, {"steps": 1})
    from flfw.messages.wire import pack

    with pytest.raises(RuntimeError, match=r"^Expected FedNova\.ctx, the ServerContext of a run, got none\.$"):
        strategy.aggregate_round(pack({"w": Tensor([0.0])}), iter([update]), 1)
