"""Networks of users, and clients of plug-ins, in joint steps: exact, or refused before the run."""

from pathlib import Path
from typing import Any, final

import pytest
import torch

from flfw.client.gradient_client import GradientClient
from flfw.client.phases import run_phases_together
from flfw.clients.sgd import SGDClient
from flfw.errors import InputError
from flfw.messages.wire import pack, views
from flfw.nets.training.optimisers import SGD, Optimiser
from flfw.plans.run_plan import plan
from flfw.runs.launch import resolve_batched_clients
from tests.support.joint_clients import apart, asked, clients
from tests.support.rounds import exactly, fresh

NETS = "tests.support.odd_nets"
EXACT = 1e-10


def test_what_fills_a_batch_up_has_no_part_in_a_step(tmp_path: Path) -> None:
    """Raw zeros have no length, and no gradient of it: times no loss that is still no number."""
    experiment = asked(net=f"{NETS}:lengthwise", normalise="none", batch_size=4)
    with exactly():
        assert apart(experiment, tmp_path) <= EXACT


MIXING = "which computes an example's scores from the others of its batch as well"


@pytest.mark.parametrize("method", ["fedavg", "dp_fedavg"])
@pytest.mark.parametrize(
    ("net", "reason"),
    [
        ("centred", MIXING),
        ("batch_norm", MIXING),
        ("branching", r"which cannot be computed for stacked weights \(vmap: .*"),
        ("recurrent", r"which cannot be computed for stacked weights \(Batching rule not implemented for aten::lstm"),
    ],
)
def test_a_network_whose_joint_steps_would_be_wrong_or_fail_is_refused(net: str, reason: str, method: str) -> None:
    experiment = asked(batched_clients="3", net=f"{NETS}:{net}", method=method)
    with pytest.raises(
        InputError, match=f"^Expected --batched-clients 1 with net={NETS}:{net}, {reason}.*, got batched_clients=3.$"
    ):
        resolve_batched_clients(plan(experiment))
    run_plan, (note,) = resolve_batched_clients(plan(asked(batched_clients="auto", net=f"{NETS}:{net}", method=method)))
    assert run_plan.experiment.batched_clients == "1" and note.startswith(
        f"batched-clients=auto became 1: net={NETS}:{net}, which"
    )


@pytest.mark.parametrize("net", ["lengthwise", "half"])
def test_others_are_joined(net: str) -> None:
    assert (
        resolve_batched_clients(plan(asked(batched_clients="3", net=f"{NETS}:{net}")))[0].experiment.batched_clients
        == "3"
    )


@pytest.mark.nightly
@pytest.mark.parametrize("net", ["gpt_tiny", "gpt_next", "bert_tiny"])
def test_texts_of_unlike_numbers_train_together_exactly(net: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"".join(bytes([65 + k % 26, 97 + k * k % 26, 32]) for k in range(700)))
    experiment = asked(net=net, dataset=f"text:{text}@8", local_epochs=1, batch_size=5, lr=0.01)
    with exactly():
        assert apart(experiment, tmp_path) <= EXACT


def played(
    experiment: Any, cls: type[GradientClient], folder: Path, *, together: bool
) -> list[dict[str, torch.Tensor]]:
    """Train clients of a class; return what they send."""
    received = views(pack(fresh(experiment).state_dict()))
    workers = [cls(one.ctx) for one in clients(experiment, folder)]
    if together:
        results = run_phases_together(workers, [worker.round(received, 0) for worker in workers])
    else:
        results = [worker.fit_named(received, 0) for worker in workers]
    assert all(isinstance(result, tuple) for result in results)
    return [result[0] for result in results]  # type: ignore[index]


@final
class Paced(GradientClient):
    """Client with a learning rate of its own."""

    def optimiser(self) -> Optimiser:
        return SGD(0.1 / (1 + self.ctx.partition))


def test_clients_whose_optimisers_differ_take_their_own_steps(tmp_path: Path) -> None:
    alone, joint = (played(asked(), Paced, tmp_path / str(both), together=both) for both in (False, True))
    for one, other in zip(alone, joint, strict=True):
        assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    "hook", ["loss", "penalised", "local_loss", "loss_and_direction", "trainable_parameters", "defended"]
)
def test_clients_that_change_a_part_of_their_steps_stay_apart(hook: str) -> None:
    run_plan = plan(asked())
    changed = type("Changed", (SGDClient,), {hook: lambda *_: None})
    assert not SGDClient.not_batchable_reason(run_plan.client.model, run_plan.client.settings)
    reason = changed.not_batchable_reason(run_plan.client.model, run_plan.client.settings)
    assert reason == "whose clients take local steps in a way of their own"
