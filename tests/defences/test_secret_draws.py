"""Draws of a defence that nobody can repeat: at real sites always, in simulations where they are asked for."""

import dataclasses
import json
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import Tensor

from flfw.client.context import ClientContext
from flfw.command.api.arguments import experiment_of
from flfw.command.arguments import parse
from flfw.experiment import Experiment
from flfw.nets.net import Tensors
from flfw.plans.run_plan import RunPlan, plan, without_auto
from flfw.rng import torch_generator
from flfw.runs import run
from flfw.task.defence import Defence
from tests.support.method_rounds import initial_tensors

SEED, ROUND, PARTITION, PROBE, STD = 7, 1, 0, (3,), 3.0


@final
class Shaken(Defence):
    """Somebody's own defence: torch's numbers from the generator that it is given, in two hooks."""

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        self.measures = {"shaken": 1.0}
        return (x + 0.1 * torch.rand(x.shape, generator=rng)).clamp(0, 1), y

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value + torch.rand(value.shape, generator=rng) for name, value in update.items()}


DRAWING: dict[str, dict[str, Any]] = {
    "dp_gaussian": {},
    "low_precision": {"set": ("low_precision.rounding=stochastic",)},
    "ats": {"net": "lenet5"},
    "precode": {"net": "lenet5"},
    "dcs2": {"set": ("dcs2.start=noise", "dcs2.steps=2")},
    "low_precision+dp_gaussian": {},
    f"{__name__}:Shaken": {},
}


def asked(**changes: Any) -> Experiment:
    fields: dict[str, Any] = {"method": "fedavg", "net": "linear", "clients": 2, "seed": SEED, "engine": "inproc"}
    chosen = {"dataset": "digits", "rounds": 1, "local_epochs": 1, "attack": ("none",)}
    return Experiment(**{**fields, **chosen, **changes})


def resolved(**changes: Any) -> RunPlan:
    return plan(without_auto(asked(**changes)))


def message(defended: RunPlan) -> Tensors:
    """What a client answers to a probe of ten examples."""
    task = plan(defended.experiment).task.load(None)
    x, y = task.examples("train", task.split.train[0][:10])
    where = PARTITION, ROUND, defended.client.defences.of_client(PARTITION), None, PROBE
    client = defended.client_class(ClientContext(defended.client, task, *where))
    client.load_received(initial_tensors(defended.experiment), 0)
    return client.gradient(x, y)


def flat(tensors: Tensors) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def of_the_seed(like: Tensors) -> Tensors:
    """The noise that a server computes, which knows the seed, the round, the client and the probe."""
    rng = torch_generator(SEED, "probe", ROUND, PARTITION, *PROBE)
    return {name: STD * torch.randn(value.shape, generator=rng) for name, value in like.items()}


def test_a_server_takes_seeded_noise_off_and_no_secret_noise() -> None:
    bare = message(resolved(net="mlp"))
    with_seed, in_secret = (
        message(resolved(defence="dp_gaussian", set=(f"dp_gaussian.std={STD}",), defence_randomness=draws, net="mlp"))
        for draws in ("seed", "secure")
    )
    guessed = of_the_seed(bare)
    torch.testing.assert_close(flat(with_seed) - flat(guessed), flat(bare), atol=1e-5, rtol=0)
    noise = flat(in_secret) - flat(bare)
    assert 0.9 * STD < float(noise.std()) < 1.1 * STD and abs(float(noise.mean())) < 0.5 * STD
    assert len(noise) == 8970 and abs(float(torch.corrcoef(torch.stack([noise, flat(guessed)]))[0, 1])) < 0.1
    assert float((noise - flat(guessed)).std()) > 1.2 * STD  # taking that off makes it worse


@pytest.mark.parametrize("defence", DRAWING)
def test_a_message_that_is_asked_for_again_has_other_draws_in_secret_alone(defence: str) -> None:
    """As after a restart: each answer is made by a new process, with no memory of draws."""
    seeded, secret = (
        resolved(defence=defence, defence_randomness=way, **DRAWING[defence]) for way in ("seed", "secure")
    )
    assert torch.equal(flat(message(seeded)), flat(message(seeded)))
    one, again = flat(message(secret)), flat(message(secret))
    assert not torch.equal(one, again) and not torch.equal(one, flat(message(seeded)))


@pytest.mark.parametrize("defence", ["prune", "soteria"])
def test_a_defence_that_draws_nothing_is_the_same_either_way(defence: str) -> None:
    one, other = (message(resolved(defence=defence, defence_randomness=draws)) for draws in ("seed", "secure"))
    assert torch.equal(flat(one), flat(other))


def test_figures_and_hooks_of_the_defence_are_its_own() -> None:
    plain, secret = (
        resolved(defence=f"{__name__}:Shaken", defence_randomness=way).client for way in ("seed", "secure")
    )
    defence = secret.defences.of_client(PARTITION)
    assert defence is not None and plain.defence is not None
    assert defence.active_hooks == plain.defence.active_hooks == frozenset({"batch", "update"})
    assert defence.measures == {}
    defence.batch(torch.zeros(1, 1), torch.zeros(1), torch.Generator())
    assert defence.measures == {"shaken": 1.0}


def test_real_sites_draw_in_secret_unless_the_seed_is_asked_for(tmp_path: Path) -> None:
    for federation, expected in ((None, "seed"), (tmp_path, "secure")):
        settled = without_auto(asked(defence="dp_gaussian", federation=federation, defence_randomness="auto"))
        assert settled.defence_randomness == expected
        for chosen in ("seed", "secure"):
            assert without_auto(dataclasses.replace(settled, defence_randomness=chosen)).defence_randomness == chosen


def test_a_command_or_a_call_with_a_federation_asks_for_secret_draws(tmp_path: Path) -> None:
    there = f"--federation={tmp_path}"
    for arguments, expected in (
        ([], "seed"),
        ([there], "auto"),
        ([there, "--metrics", "all"], "auto"),
        ([there, "--expert", "defence_randomness=seed"], "seed"),
        ([there, "--expert=defence_randomness=secure"], "secure"),
    ):
        assert parse(["--method", "fedavg", *arguments]).experiment.defence_randomness == expected
    assert experiment_of(None, {"federation": tmp_path}).defence_randomness == "auto"
    assert experiment_of(None, {"federation": tmp_path, "defence_randomness": "seed"}).defence_randomness == "seed"
    assert experiment_of(None, {}).defence_randomness == "seed"


def finished(folder: Path, **changes: Any) -> dict[str, Any]:
    run.run(asked(out=folder, defence="dp_gaussian", **changes))
    return json.loads((folder / "result.json").read_text())


@pytest.mark.slow
def test_simulations_repeat_unless_secret_draws_are_asked_for(tmp_path: Path) -> None:
    one, two = (finished(tmp_path / f"seeded-{n}") for n in range(2))
    assert one["config"]["defence_randomness"] == "seed" and not any("Random numbers" in note for note in one["notes"])
    assert one["final"] == two["final"] and one["rounds"][0]["loss"] == two["rounds"][0]["loss"]
    three, four = (finished(tmp_path / f"secret-{n}", defence_randomness="secure") for n in range(2))
    assert three["config"]["defence_randomness"] == "secure" and three["final"] != four["final"]
    (note,) = (note for note in three["notes"] if "Random numbers" in note)
    assert "(dp_gaussian)" in note and "nobody can repeat them" in note
