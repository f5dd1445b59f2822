"""Rules that choose the training of a private run, by sizes that can be computed by hand, and the command for them."""

import json
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

import flfw
from flfw.command.arguments import parse
from flfw.command.program import main
from flfw.errors import InputError
from flfw.privacy.accountants import epsilon
from flfw.privacy.calibration import PublicSizes, calibrate_noise_multiplier, training_for
from flfw.privacy.mechanism import Mechanism, SeenMechanism
from flfw.runs.reach import Reach
from flfw.runs.run import check, choose_training
from flfw.runs.run_notes import left_out

SIZES = PublicSizes(noise=1.0, examples=8000, clients=10, share=1.0, weights=640, classes=4)


def test_one_full_step_keeps_the_budget() -> None:
    one = calibrate_noise_multiplier(4.0, [[SeenMechanism(Mechanism(1.0, 1))]], 1e-5)
    assert 3.99 < epsilon([Mechanism(8 * one, steps=64)], 1e-5) <= 4  # as the rules have it: sqrt(T) times


@pytest.mark.parametrize(
    ("noise", "batch", "rounds"),
    [
        (1.65, 100, 32),  # 256 steps, and not less than an eighth of 800 examples, for 8 steps a pass
        (0.4125, 200, 64),  # 1.65 / (0.4125 * 16) of 800
        (0.1, 800, 256),  # all of them, where even this has less noise than sampling asks for
        (5.0, 100, 13),  # (m / N_1)^2 = (0.5 / 0.05)^2 = 100 steps
        (10.0, 100, 8),  # 25, but 64 at least
    ],
)
def test_batches_are_as_large_as_the_noise_asks_for(noise: float, batch: int, rounds: int) -> None:
    values = training_for(replace(SIZES, noise=noise), {})[0]
    assert (values["batch_size"], values["rounds"], values["local_epochs"]) == (batch, rounds, 1)


def test_learning_rate_falls_with_the_noise() -> None:
    # 256 steps, N = 1 * sqrt(256 * 640 * 10) / 8000 = 0.16; m = 1/2; S = 16 / 0.525, R = 2 sqrt(S) = 11
    assert training_for(SIZES, {})[0]["lr"] == pytest.approx(11.04 / (16 * 0.525), rel=0.05)
    # 64 steps, N = 8, beside which m is nothing; S = 8 / 8, R = 2
    assert training_for(replace(SIZES, noise=100.0), {})[0]["lr"] == pytest.approx(2 / (8 * 8), rel=0.05)


@pytest.mark.parametrize(("clients", "local"), [(10, 6), (20, 3), (50, 1), (100, 1)])
def test_noise_that_moves_clients_apart_leaves_few_local_steps(clients: int, local: int) -> None:
    # 64 steps, beside whose noise m is nothing: a client's own noise is R after 64 / K of them
    values = training_for(replace(SIZES, noise=100.0, clients=clients, examples=800 * clients), {})[0]
    assert (values["batch_size"], values["rounds"]) == (ceil(800 / local), ceil(64 / local))


def test_training_goes_far_beyond_first_weights_that_are_noise() -> None:
    # 66 steps, N = 8.12, beside which m is nothing; R = 2 of the loss, and 3 times the first weights
    loud = replace(SIZES, noise=100.0)
    for first, radius in ((0.0, 2.0), (0.5, 2.0), (2.0, 6.0)):
        assert training_for(replace(loud, first=first), {})[0]["lr"] == pytest.approx(radius / 8.12**2, rel=0.05)
    hidden = flfw.Experiment(method="dp_fedavg", dataset="digits", split="iid", clients=50, target_epsilon=1.0)
    rates = {net: choose_training(replace(hidden, net=net), {"clients"}).lr for net in ("linear", "mlp")}
    assert rates == {"linear": pytest.approx(5.5 / (8 * 3.6), rel=0.05), "mlp": pytest.approx(0.015, rel=0.05)}


def test_what_was_given_stays_and_counts() -> None:
    given = {"rounds": 2, "batch_size": 800, "local_epochs": 1, "lr": 0.5, "ema": 0.0}
    assert training_for(SIZES, given | {"seed": 3})[0] == given
    # S = sqrt(2 / 0.25) = 2.83, lr = 2 sqrt(S) / sqrt(2 * 0.25)
    assert training_for(SIZES, {"rounds": 2, "batch_size": 800})[0]["lr"] == pytest.approx(4.76, rel=0.05)


def test_warns_where_noise_outweighs_what_can_be_learnt() -> None:
    learns = Reach(steps=64, movement=8.0, start=1.0, noise=0.0, weight=1.0, share=0.9)
    assert learns.obstacle == ""
    assert "outweighs what can be learnt 1.1 times" in replace(learns, share=1.1).obstacle
    assert "by at most 0.01" in replace(learns, share=1.1, movement=0.01).obstacle


@pytest.mark.parametrize(("dataset", "warned"), [("cancer", False), ("digits", True)])  # 0.94 and 0.5 are reached
def test_warns_by_the_number_of_classes(dataset: str, warned: bool) -> None:
    asked = flfw.Experiment(method="dp_fedavg", dataset=dataset, net="linear", split="iid", attack=("none",))
    notes = check(choose_training(replace(asked, clients=50, target_epsilon=1.0), {"clients"}))[2]
    assert any("outweighs what can be learnt" in note for note in notes) == warned


@pytest.mark.slow
def test_learns_the_smaller_class_of_two(tmp_path: Path) -> None:
    """It is the larger one of red rows alone: 0.825 of all are right then, and 0.775 by always naming the other."""
    ones = {"red": 6, "blue": 1, "green": 1, "grey": 1}  # of ten
    rows = [f"{colour},{int(at < ones[colour])}" for at in range(10) for colour in ones] * 50
    (tmp_path / "rows.csv").write_text("\n".join(["colour,income", *rows]) + "\n")
    table = f"csv:{tmp_path / 'rows.csv'}@income"
    assert main(["data", "columns", table, "--public", "colour=red,blue,green,grey", "income=0,1"]) == 0
    words = "--net linear --clients 2 --split iid --target-epsilon 8 --engine inproc --attack none".split()
    assert main(["run", "--dataset", table, *words, "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run/result.json").read_text())["final"]["acc_global"] > 0.8


@pytest.mark.slow
def test_an_epsilon_alone_trains_and_is_recorded_as_if_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--target-epsilon", "8", "--net", "linear", "--clients", "5", "--split", "dirichlet", "--lr", "0.01"]
    words += ["--rounds", "3", "--set", "clip=2", "--engine", "inproc", "--attack", "none"]
    assert main(["run", *words, "--out", str(tmp_path / "a")]) == 0
    assert "3 rounds of" in (text := capsys.readouterr().out)
    assert "against the server" in text
    result = json.loads((tmp_path / "a/result.json").read_text())
    config = result["config"]
    assert (config["method"], config["rounds"], config["lr"]) == ("dp_fedavg", 3, 0.01)
    assert "clip=2" in config["set"]
    assert "clip=1" not in config["set"]
    assert {"batches=poisson", "clipping=abadi", "momentum=0"} <= set(config["set"])
    assert max(float(one["epsilon"]) for one in result["privacy"] if one["unit"] == "example") <= 8
    noiseless = [word for word in config["set"] if not word.startswith("noise_multiplier")]
    named = {name: config[name] for name in ("local_epochs", "batch_size", "ema", "method")} | {"set": noiseless}
    fields = {"target_epsilon": 8.0, "net": "linear", "clients": 5, "split": "dirichlet", "lr": 0.01, "rounds": 3}
    fields |= {"engine": "inproc", "attack": ("none",)}
    for name, more in (("b", named), ("c", {"set": ("clip=2",)})):
        flfw.run(**fields, **more, out=tmp_path / name)
        again = json.loads((tmp_path / name / "result.json").read_text())
        assert again["final"] == result["final"]
        assert again["config"] | {"out": ""} == config | {"out": ""}


def test_refuses_to_protect_clients_without_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--target-epsilon", "8", "--set", "unit=client"]) == 2
    assert "Expected --method with unit=client, for which no training is chosen" in capsys.readouterr().err
    with pytest.raises(InputError, match="unit=client, for which no training is chosen"):
        flfw.estimate(target_epsilon=8.0, set=("unit=client",))


def test_leaves_the_method_without_a_target_and_of_an_experiment_made_before() -> None:
    assert parse(["--target-epsilon", "0"]).experiment == flfw.Experiment()
    with pytest.raises(InputError, match="a method that claims privacy for --target-epsilon, got method=hyperfl"):
        flfw.estimate(flfw.Experiment(target_epsilon=8.0))


def test_seeds_may_go_on_in_a_folder_that_exists(tmp_path: Path) -> None:
    asked = flfw.Experiment(method="dp_fedavg", net="linear", split="iid", attack=("none",), out=tmp_path)
    assert choose_training(replace(asked, target_epsilon=8.0), {"out"}).batch_size < 150


def test_a_split_that_leaves_examples_out_is_noted() -> None:
    whole = flfw.Experiment(method="fedavg", split="iid", attack=("none",))
    assert left_out("iid", check(whole)[1]) == []
    part = check(replace(whole, split="sampled", set=("sampled.train=100",)))[1]
    assert left_out("sampled", part) == ["The split holds 1,000 of 1,500 training examples (split=sampled)."]
    held_out = "training examples are held out to test who is a member: nobody trains on them."
    game = check(replace(whole, attack=("membership",), membership_pairs="all"))[1]
    away = sum(len(one.held_out) for one in game.pairs or ())
    assert away > 700 and left_out("iid", game) == [f"{away:,} {held_out}"]
    both = check(replace(whole, split="sampled", set=("sampled.train=100",), attack=("membership",)))[1]
    words = left_out("sampled", both)
    assert words[0].endswith(held_out) and words[1].startswith("The split holds 1,000 of 1,500")
