"""A rehearsal: which sizes are probed, what is said of them, what is refused; and the sizes as any audit's curve."""

import csv
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import sim
from flfw.attacks.analytic import Analytic
from flfw.command import rehearse
from flfw.deploy import rehearsal
from flfw.deploy.allowed_settings import AllowedSettings
from flfw.deploy.policy import Policy
from flfw.engines.superlink import bundle_hash
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.experiment.curves import Point
from flfw.files.flags import parsed
from flfw.plans.run_plan import without_auto
from flfw.privacy.filter import spent
from flfw.privacy.mechanism import Mechanism
from flfw.recording.observation import Knowledge, Observation, Reconstruction
from tests.support.drawn_charts import charts_in, texts_at
from tests.support.paths import ROOT
from tests.support.pictures import save
from tests.support.reported_runs import conclusion
from tests.support.small_runs import ByGuess

CLASSES, EACH = 4, 10  # of which every fifth is of the test part: 32 train


class OneOnly(ByGuess):
    """The closed form for one example and one step, and grey for all else."""

    interrupted: ClassVar[str] = ""

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        if any(observation.point == OneOnly.interrupted for observation in observations):
            raise KeyboardInterrupt
        known = knowledge[0]
        if (known.batch, known.steps) == (1, 1):
            return Analytic().run(observations, knowledge, rngs)
        return [Reconstruction(torch.full((known.batch, *known.model.inputs.shape), 0.5)) for known in knowledge]


ONE_ONLY = f"{__name__}:OneOnly"
FLAGS = f"--method fedavg --net mlp --rounds 1 --local-epochs 3 --batch-size 8 --attack {ONE_ONLY}".split()


def folder_of(path: Path) -> Path:
    """Grey pictures, no two alike: 32 to train with, 8 to test with."""
    pixels = np.random.default_rng(0).integers(0, 256, (CLASSES, EACH, 8, 8), dtype=np.uint8)
    for label in range(CLASSES):
        for number in range(EACH):
            save(path / f"class{label}" / f"{number}.png", pixels[label, number])
    return path


def main(*arguments: str | Path) -> int:
    return rehearse.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def done(chosen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rehearsal that leaks at one example alone: 3 epochs of 4 batches are 12 steps."""
    out = tmp_path_factory.mktemp("rehearsed") / "run"
    assert main("--dataset", f"folder:{chosen}", *FLAGS, "--max-steps", "20", "--out", out) == 0
    return out


def about(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "rehearsal.json").read_text())


# --- the sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "sizes"),
    [
        (1, [1]),
        (2, [1, 2]),
        (4, [1, 4]),
        (7, [1, 7]),
        (8, [1, 4, 8]),
        (50, [1, 4, 16, 50]),
        (64, [1, 4, 16, 64]),
        (100, [1, 4, 16, 100]),
    ],
)
def test_sizes_grow_fourfold_and_end_where_they_are_to(end: int, sizes: list[int]) -> None:
    assert rehearsal.growth(end) == sizes


def test_batches_grow_before_steps() -> None:
    assert rehearsal.growing_sizes(50, 20) == ((1, 1), (4, 1), (16, 1), (50, 1), (50, 4), (50, 20))
    assert rehearsal.growing_sizes(1, 1) == ((1, 1),)
    assert rehearsal.growing_sizes(1, 5) == ((1, 1), (1, 5))


def planned(chosen: Path, max_steps: int = 20, **changes: Any) -> rehearsal.Rehearsal:
    experiment = Experiment(
        **{"method": "fedavg", "engine": "inproc", "dataset": f"folder:{chosen}", "net": "mlp", **changes}
    )
    return rehearsal.plan_rehearsal(experiment, max_steps)


def test_the_largest_size_is_what_the_settings_ask_of_this_site(chosen: Path) -> None:
    result = planned(chosen, clients=12, sample=3, local_epochs=3, batch_size=10, images=3, split="auto")
    assert result.real == (10, 12)  # 32 examples make 4 batches
    assert result.sizes == ((1, 1), (4, 1), (10, 1), (10, 4), (10, 12))
    given = result.experiment
    assert (given.clients, given.sample, given.split, given.images) == (1, 0, "iid", 3)
    assert [point.name for point in given.points] == [
        "target", "ladder-1x1", "ladder-4x1", "ladder-10x1", "ladder-10x4",
    ]  # fmt: skip
    assert (given.victim_batch, given.victim_steps) == (10, 12)
    assert result.messages == ()


def test_what_is_lowered_is_said(chosen: Path) -> None:
    result = planned(chosen, max_steps=2, local_epochs=3, batch_size=10, images=8)
    assert (result.sizes[-1], result.real, result.experiment.images) == ((10, 2), (10, 12), 3)
    capped, images = result.messages
    assert capped.startswith("The sizes end at 2 local steps and not at the real 12: --max-steps 12")
    assert images == "Probes of each size: 3 and not 8; its data fill no more."


def test_a_batch_is_no_larger_than_what_the_site_holds(chosen: Path) -> None:
    result = planned(chosen, local_epochs=2, batch_size=100, images=1)
    assert (result.sizes[-1], result.real) == ((32, 2), (32, 2))
    assert result.messages == ("A local step has 32 examples, all that the client has, not 100.",)


def test_a_split_that_leaves_examples_out_is_named(chosen: Path) -> None:
    result = planned(chosen, split="pathological", batch_size=4, local_epochs=1)
    assert result.messages[0] == "The site's client holds 16 of the 32 training examples (split pathological)."


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--engine", "ray"], "Expected --engine inproc, a rehearsal's only one, got engine=ray."),
        (
            ["--federation", "fed"],
            "Expected no --federation: a rehearsal is on this machine alone, got federation=fed.",
        ),
        (["--track", "wandb"], "Expected no --track: nothing of a rehearsal leaves this machine, got track=wandb."),
        (["--attack", "none"], "Expected an attack to rehearse with, got attack=none."),
        (["--vantage", "client_update"], "Expected --vantage server, got vantage=client_update."),
        (
            ["--curve", "batch=1,2"],
            "Expected --batch-size and --local-epochs alone, of which the sizes are made, got curve=batch=1,2, "
            "victim_batch=1, victim_steps=1.",
        ),
        (
            ["--victim-batch", "2"],
            "Expected --batch-size and --local-epochs alone, of which the sizes are made, got curve=, victim_batch=2, "
            "victim_steps=1.",
        ),
        (
            ["--target-epsilon", "3"],
            "Expected the noise itself (--set noise_multiplier=...), since what keeps an epsilon depends on all "
            "clients, got target_epsilon=3.0.",
        ),
        (
            ["--defence", "prune", "--clients", "3", "--defended", "0,2"],
            "Expected --defended all or no --defence, of one client, got defended=0,2.",
        ),
        (["--max-steps", "0"], "Expected max-steps >= 1, got max_steps=0."),
        (
            ["--dataset", "hf:nobody/nothing"],
            "Expected data that are on this machine, since a rehearsal downloads nothing, got "
            "dataset=hf:nobody/nothing; take --dataset folder:PATH, or get them first with flfw data get NAME.",
        ),
        (
            ["--dataset", "mnist", "--data-root", "{empty}"],
            "Expected data that are on this machine, since a rehearsal downloads nothing, got dataset=mnist; take "
            "--dataset folder:PATH, or get them first with flfw data get NAME.",
        ),
        (["--nonsense"], "Unrecognized options: --nonsense; see python -m flfw.command.rehearse --help"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], chosen: Path
) -> None:
    (tmp_path / "empty").mkdir()
    given = [argument.format(empty=tmp_path / "empty") for argument in arguments]
    data = [] if "--dataset" in given else ["--dataset", f"folder:{chosen}"]
    attack = [] if "--attack" in given else ["--attack", "analytic"]
    assert main(*given, *data, *attack, "--method", "fedavg", "--net", "mlp", "--out", tmp_path / "run") == 2
    assert capsys.readouterr().err == f"flfw.command.rehearse: {line}\n"
    assert not (tmp_path / "run").exists()


def test_data_that_only_sites_have_are_the_images_in_this_sites_data_root(chosen: Path) -> None:
    settings = {"data_root": chosen, "net": "auto", "batch_size": 4, "local_epochs": 1}
    given = planned(chosen, **settings, dataset="site:1x8x8:4").experiment
    assert (given.dataset, given.own_images, given.normalise, given.split, given.net) == (
        f"folder:{chosen}",
        "8x8,stretch,grey",
        "half",
        "iid",
        "lenet",
    )
    assert planned(chosen, **settings, dataset="site:3x8x9:4").experiment.own_images == "8x9,stretch,rgb"


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("site:1x8x8:5", "Expected 5 classes, a folder of images each, got 4 in {own}; set the site's data root "),
        ("site:8:4", "Expected images to rehearse with, or --dataset folder:PATH, got dataset=site:8:4."),
    ],
)
def test_data_that_are_not_as_the_sites_have_them_are_refused(chosen: Path, dataset: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(chosen, data_root=chosen, dataset=dataset)
    assert str(caught.value).startswith(message.format(own=chosen, dataset=dataset))


def test_commands_on_the_page_parse() -> None:
    page = (ROOT / "docs" / "rehearsal.md").read_text()
    lines = re.findall(r"^python -m flfw\.command\.rehearse(.*)$", page, re.MULTILINE)
    result = [
        parsed(shlex.split(line), rehearse.RehearsalCommand(Experiment()), "rehearse").experiment for line in lines
    ]
    assert [(one.dataset, one.method) for one in result] == [
        ("folder:/data/scans", "fedavg"), ("folder:/data/scans", "hyperfl"),
    ]  # fmt: skip


# --- a whole rehearsal --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_leakage_stops_where_the_attack_does(done: Path) -> None:
    result = rehearsal.attempts(done)
    expected = [(1, 1, 4, 4), (4, 1, 0, 16), (8, 1, 0, 32), (8, 4, 0, 32), (8, 12, 0, 32)]
    for server_round in (0, 1):
        probed = [one for one in result if one.round == server_round]
        assert [(one.batch, one.steps, one.recovered, one.examples) for one in probed] == expected
        assert [one.verdict for one in probed] == ["leaks", *["undecided"] * 4]
        assert all("nothing protects the data" in one.because for one in probed[1:])
        assert (probed[0].best_psnr or 0) > 40 > (probed[1].best_psnr or 0)


@pytest.mark.slow
def test_what_was_found_is_written_down(done: Path) -> None:
    message = about(done)
    assert message["real"] == {"batch": 8, "steps": 12}
    assert [(size["batch"], size["steps"]) for size in message["sizes"]] == [(1, 1), (4, 1), (8, 1), (8, 4), (8, 12)]
    assert (message["images"], len(message["found"]), message["warnings"]) == (4, 10, [])
    assert message["answers"][ONE_ONLY].startswith(
        "leaks up to batch 1 and one step (4 of 4 examples recovered before training); at batch 4 and one step nothing "
        "was recovered, nor above. That is no evidence of protection: nothing protects the data in these messages, "
    )
    assert message["limits"] == list(rehearse.LIMITS)


@pytest.mark.slow
def test_the_terminal_says_the_same(chosen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*FLAGS, "--max-steps", "1", "--audit-rounds", "0", "--images", "9"]
    assert main("--dataset", f"folder:{chosen}", *flags, "--clients", "30", "--out", tmp_path / "run") == 0
    message = capsys.readouterr().out
    assert message.startswith(
        f"What could a server learn of this site's data? A trial of fedavg on {chosen.name}, at one client; nothing "
        "leaves this machine.\nIt attacks 4 messages of each of 3 sizes, up to batch 8 and one step; fewer --images or "
        "--max-steps take less time.\nThe sizes end at one local step and not at the real 12: "
    )
    assert re.search(
        r"\n      1      1 +4 of 4 +\d+\.\d dB  leaks\n      4      1 +0 of 16 +\d+\.\d dB  undecided", message
    )
    assert f"\n{ONE_ONLY}: {about(tmp_path / 'run')['answers'][ONE_ONLY]}\n" in message
    assert message.endswith(f"\n{tmp_path / 'run' / 'report.html'}\n")


@pytest.mark.nightly
def test_membership_is_rehearsed_beside_or_without_reconstruction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--method fedavg --dataset digits --net mlp --local-epochs 1 --rounds 2 --audit-rounds last".split()
    assert main(*flags, "--attack", "membership", "--expert", "membership_pairs=40", "--out", tmp_path / "alone") == 0
    message, record = capsys.readouterr().out, about(tmp_path / "alone")
    assert "sends nothing" not in message and "It attacks" not in message and not record["found"]
    assert [line for line in record["membership"] if line.startswith("membership by whitened in round 2: ")]
    assert [f"\n{line}" in message for line in record["membership"]].count(True) == 1
    assert not any("no leak found (" in line for line in record["membership"])
    assert record["limits"] == [*rehearse.LIMITS, rehearse.OF_MEMBERSHIP]
    few = ["--expert", "membership_pairs=40", "--images", "1", "--max-steps", "1", "--batch-size", "2"]
    assert main(*flags, *few, "--attack", "analytic", "membership", "--out", tmp_path / "both") == 0
    both = about(tmp_path / "both")
    assert list(both["answers"]) == ["analytic"] and len(both["membership"]) == len(record["membership"])


@pytest.mark.nightly  # a whole rehearsal; tests/report reads such charts of written results
def test_the_report_shows_the_sizes(done: Path) -> None:
    page = (done / "report.html").read_text()
    assert "By batch size and local steps" in page
    # Narrow and wide; the plain target is the largest size.
    sizes = ("1x1", "4x1", "8x1", "8x4", "8x12")
    drawn = [[(text, x) for text, x, _ in texts_at(svg) if text in sizes] for svg in charts_in(page)]
    drawn = [ticks for ticks in drawn if ticks]
    assert [[text for text, _ in ticks] for ticks in drawn] == [list(sizes)] * 2
    for ticks in drawn:
        at = [x for _, x in ticks]
        assert np.diff(at) == pytest.approx(np.full(4, at[1] - at[0]), abs=0.2)  # a size is a size, however large
        assert at[1] > at[0]
    assert page.count("<td>8 x 12</td>") == 2  # rounds 0 and 1
    assert "With a batch of 1 and 1 local step, however, it does leak" in re.sub(r"\s+", " ", page)


@pytest.mark.slow
def test_a_search_reads_one_example_and_its_settings_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], chosen: Path
) -> None:
    flags = "--method fedavg --net mlp --rounds 1 --local-epochs 1 --batch-size 1 --max-steps 1 --images 2 --lr 0.1"
    flags += " --audit-rounds 0 --attack ig --set ig.iterations=100 ig.tv=0"
    assert main("--dataset", f"folder:{chosen}", *flags.split(), "--out", tmp_path / "run") == 0
    (one,) = rehearsal.attempts(tmp_path / "run")
    assert (one.verdict, one.easy, one.recovered) == ("leaks", True, 2)
    assert "ig: leaks at the largest size, batch 1 and one step (2 of 2 examples" in capsys.readouterr().out


@pytest.mark.nightly
def test_nothing_leaves_the_machine(chosen: Path, tmp_path: Path) -> None:
    """Whoever opens a connection, looks a name up or sends a datagram ends the process."""
    code = (
        "import os, socket, sys\n"
        "def hook(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.sendto', 'socket.sendmsg', 'socket.getaddrinfo'):\n"
        "        os.write(2, f'{event} {arguments}'.encode()); os._exit(9)\n"
        "sys.addaudithook(hook)\n"
        "if sys.argv[1] == 'connect': socket.create_connection(('127.0.0.1', 1))\n"
        "from flfw.command.rehearse import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    run = lambda *words: subprocess.run(  # noqa: E731
        [sys.executable, "-c", code, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert run("connect").returncode == 9
    flags = "--method fedavg --net mlp --rounds 1 --local-epochs 1 --batch-size 8 --attack analytic --images 1"
    rehearsed = run("--dataset", f"folder:{chosen}", *flags.split(), "--out", tmp_path / "run")
    assert rehearsed.returncode == 0, rehearsed.stderr
    assert "analytic: leaks" in rehearsed.stdout


# --- the site's policy --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_policy_that_the_settings_break_is_warned_of(
    chosen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = Policy(("any",), ("extractor.*",), max_upload_mb=1e-3, metrics="none")
    (tmp_path / "policy.toml").write_text(policy.text())
    flags = [*FLAGS, "--audit-rounds", "0", "--max-steps", "1", "--policy", str(tmp_path / "policy.toml")]
    assert main("--dataset", f"folder:{chosen}", *flags, "--out", tmp_path / "run") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: The policy")]
    noise, kept, size = lines
    assert noise.startswith(
        "warning: The policy refuses these settings: this site's policy accepts at most metrics=none"
    )
    assert re.fullmatch(
        r"warning: The policy does not let classifier\.\S+( and \d+ more)? leave, which fedavg .*", kept
    )
    assert size.startswith("warning: The policy lets 0.001 MB leave; an update has ")
    assert [f"warning: {sentence}" for sentence in about(tmp_path / "run")["warnings"]] == lines


@pytest.mark.slow
@pytest.mark.parametrize("draws", ["auto", "seed"])
def test_a_rehearsed_defence_draws_at_sites_as_a_server_asks_for_it(
    draws: str, chosen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rehearsal itself draws from the seed, so that it repeats; only who asks for that is warned."""
    (tmp_path / "policy.toml").write_text(Policy(("any",), ("*",), 100, allowed_plugins=(ONE_ONLY,)).text())
    flags = [*FLAGS, "--audit-rounds", "0", "--max-steps", "1", "--policy", str(tmp_path / "policy.toml")]
    flags += ["--defence", "dp_gaussian", "--expert", f"defence_randomness={draws}", "--out", str(tmp_path / "run")]
    assert main("--dataset", f"folder:{chosen}", *flags) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: The policy")]
    assert [("lets no defence draw from the seed" in line) for line in lines] == [True] * (draws == "seed")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["config"]["defence_randomness"] == "seed"


def test_a_policy_that_is_kept_is_not_spoken_of() -> None:
    policy = Policy(("any",), ("*",), max_upload_mb=100)
    assert rehearsal.breaches(policy, Experiment(method="fedavg"), ["a.weight", "b.weight"]) == []
    one, more = (
        rehearsal.breaches(
            replace(policy, allowed_uploads=allowed), Experiment(method="fedavg"), ["a.weight", "b.weight"]
        )
        for allowed in (("a.*",), ("c.*",))
    )
    assert one == ["The policy does not let b.weight leave, which fedavg sends."]
    assert more == ["The policy does not let a.weight and 1 more leave, which fedavg sends."]


def test_all_settings_that_a_policy_pins_otherwise_are_warned_of(chosen: Path) -> None:
    """The rehearsal's one client, and its split, are not the federation's: they hide nothing that is."""
    rules = {
        "method": "fedavg",
        "net": "lenet",
        "clients": {"min": 3},
        "split": "dataset_per_client",
        "augment": "none",
    }
    pinned = AllowedSettings({**rules, "dataset": "site:1x28x28:4", "rounds": {"max": 9}})
    policy = Policy(("any",), ("*",), max_upload_mb=100, run=pinned)
    kept = replace(
        rehearse.DEFAULT, method="fedavg", net="lenet", augment="none", attack=("none",), batched_clients="1"
    )
    kept = replace(kept, dataset=f"folder:{chosen}", own_images="28x28,grey")
    assert rehearsal.breaches(policy, without_auto(kept), ["a.weight"]) == []
    begun = "The policy refuses these settings: this site's policy pins the run, which has "
    assert rehearsal.breaches(policy, without_auto(replace(kept, local_epochs=1, lr=0.5)), ["a.weight"]) == [
        f"{begun}local-epochs=1, and local-epochs is to be 5.",
        f"{begun}lr=0.5, and lr is to be 0.01.",
    ]
    assert rehearsal.breaches(policy, without_auto(replace(kept, clients=2)), ["a.weight"]) == [
        f"{begun}clients=2, and clients is to be at least 3."
    ]


def test_settings_of_attacks_are_not_among_those_that_sites_are_asked_for() -> None:
    kept = ("hyperfl.embedding=8", "dcs2.mixture=0.2")  # the second is the attack's as well as the defence's
    asked = Experiment(attack=("hyperfl", "dcs2", "ig"), defence="dcs2", set=(*kept, "hyperfl.tv=1", "ig.tv=1"))
    assert (rehearsal.without_attacks(asked).attack, rehearsal.without_attacks(asked).set) == (("none",), kept)


def test_the_round_in_which_a_budget_ends_is_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of mu = 1 / 6, of which the budget allows three."""
    limit = 1.001 * spent([(Mechanism(6.0, 3), 1)], 100.0, 1e-5)
    policy = Policy(("0" * 64,), ("*",), max_upload_mb=100, epsilon=limit, metrics="none")
    monkeypatch.setattr(Policy, "run_rejection", lambda self, config: None)
    settings = {"method": "fed_cdp", "net": "linear", "split": "iid", "local_epochs": 1, "attack": ("none",)}
    experiment = Experiment(**settings, set=("noise_source=secure",), rounds=9, metrics="none")  # type: ignore[arg-type]
    allowed = f"epsilon {limit:g} at delta 1e-05 for one example, allows 3 of 9 rounds."
    assert rehearsal.over_budget(policy, experiment, 50) == [f"The policy's budget, {allowed}"]
    assert rehearsal.over_budget(policy, replace(experiment, rounds=3), 50) == []
    assert rehearsal.over_budget(replace(policy, epsilon=inf), experiment, 50) == []
    (refused,) = rehearsal.over_budget(policy, replace(experiment, set=()), 50)
    assert refused.startswith("The policy refuses these settings: this site's budget: the server can repeat the noise")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_a_policy_is_written_that_allows_what_was_rehearsed_and_nothing_else(chosen: Path, tmp_path: Path) -> None:
    written, site = tmp_path / "policy.toml", ["--dataset", "site:1x8x8:4", "--data-root", str(chosen)]
    flags = [*site, *FLAGS, "--audit-rounds", "0", "--max-steps", "1", "--write-policy", written]
    assert main(*flags, "--set", "momentum=0.5", "--out", tmp_path / "run") == 0
    policy = Policy.read(written)
    assert policy.allowed_apps == (bundle_hash(),) and policy.allowed_uploads == ("*",) and policy.budget is None
    assert policy.allowed_plugins == ()  # sites are asked for training alone
    assert policy.max_messages == 2 * (1 + 1)  # a round and the evaluation; twice, for what is asked for again
    experiment = Experiment(
        method="fedavg", net="mlp", rounds=1, local_epochs=3, batch_size=8, dataset="site:1x8x8:4", clients=5,
        split="dataset_per_client", augment="none", set=("momentum=0.5",),
    )  # fmt: skip
    assert policy.run_rejection(experiment.to_run_config()) is None
    changes: dict[str, Any] = {
        "rounds": 2, "local_epochs": 4, "batch_size": 4, "lr": 0.5, "defence": "prune", "dataset": "hf:/home",
        "method": "hyperfl", "set": ("momentum=0.4",), "net": "lenet", "canaries": 3,
    }  # fmt: skip
    for key, value in changes.items():
        refused = policy.run_rejection(replace(experiment, **{key: value}).to_run_config())
        assert refused is not None and refused.startswith(
            f"this site's policy pins the run, which has {key}".replace("_", "-")
        )


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--dataset", "folder:{chosen}"], "Expected --dataset site:CxHxW:CLASSES with --write-policy"),
        (["--dataset", "site:1x8x8:4", "--write-policy", "{chosen}"], "Expected a new file for --write-policy"),
        (["--dataset", "site:1x8x8:4", "--metrics", "private"], "Expected --policy with an epsilon beside --metrics"),
    ],
)
def test_what_cannot_be_pinned_is_refused_before_anything_runs(
    flags: list[str], line: str, chosen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [flag.format(chosen=chosen) for flag in ["--write-policy", str(tmp_path / "new.toml"), *flags]]
    assert main(*FLAGS, "--data-root", chosen, "--out", tmp_path / "run", *given) == 2
    assert line in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_no_policy_is_no_rehearsal(chosen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "none.toml"
    assert main("--dataset", f"folder:{chosen}", *FLAGS, "--policy", policy, "--out", tmp_path / "run") == 2
    assert "Expected a policy in" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# --- the sentences ------------------------------------------------------------------------------------------------

SIZES = ((1, 1), (4, 1), (4, 3))


def attempt(size: int, verdict: str, server_round: int = 0, **changes: Any) -> rehearsal.SizeAttack:
    batch, steps = SIZES[size]
    got = 1 if verdict == "leaks" else 0
    words = conclusion(verdict)
    found = words["verdict"], words["evidence"], words["cause"] or ""
    made = rehearsal.SizeAttack("a", server_round, batch, steps, got, 2 * batch, 30.0 * got, *found, "why", True, True)
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("verdicts", "real", "sentence"),
    [
        (
            ("leaks", "leaks", "leaks"),
            (4, 3),
            "leaks at the real settings, batch 4 and 3 steps (1 of 8 examples recovered before training).",
        ),
        (
            ("leaks", "leaks", "leaks"),
            (4, 9),
            "leaks at the largest size, batch 4 and 3 steps (1 of 8 examples recovered before training); the real "
            "batch 4 and 9 steps were not tried.",
        ),
        (
            ("leaks", "leaks", "static"),
            (4, 3),
            "leaks up to batch 4 and one step (1 of 8 examples recovered before training); at batch 4 and 3 steps "
            "nothing was recovered. The attack did not reckon with all that hides the data, so that is no evidence of "
            "protection.",
        ),
        (
            ("no leak found", "leaks", "undecided"),
            (4, 3),
            "leaks up to batch 4 and one step (1 of 8 examples recovered before training), though not at batch 1 and "
            "one step; at batch 4 and 3 steps nothing was recovered. That is no evidence of protection: the attack is "
            "too weak.",
        ),
        (
            ("no leak found", "no leak found", "no leak found"),
            (4, 3),
            "nothing was recovered at any size; the control was, and so was the easy case. The attack knew what hides "
            "the data, and works on the same messages without it and where it is mild; that is not proof of safety.",
        ),
        (
            ("leaks", "identified", "no leak found"),
            (4, 3),
            "leaks up to batch 1 and one step (1 of 2 examples recovered before training); at batch 4 and one step "
            "nothing was recovered, nor above. But the true example can be told from public look-alikes "
            "there more often than chance explains. The attack knew what hides the data, and works on the same "
            "messages without it and where it is mild; that is not proof of safety.",
        ),
        (
            ("leaks", "leaks", "identified"),
            (4, 3),
            "leaks up to batch 4 and one step (1 of 8 examples recovered before training); at batch 4 and 3 steps "
            "nothing was recovered. But the true example can be told from public look-alikes there more often "
            "than chance explains.",
        ),
    ],
)
def test_where_leakage_stops_is_one_sentence(verdicts: tuple[str, ...], real: tuple[int, int], sentence: str) -> None:
    result = [attempt(size, verdict) for size, verdict in enumerate(verdicts)]
    assert rehearsal.answers(result, SIZES, real) == {"a": sentence}


def test_a_weak_attack_and_a_broken_control_say_nothing_of_the_data() -> None:
    weak = [attempt(size, "undecided", easy=False, because="it fails") for size in range(3)]
    assert rehearsal.answers(weak, SIZES, (4, 3))["a"] == (
        "nothing was recovered at any size; the control was, but not the easy case. That is no evidence of protection: "
        "it fails."
    )
    broken = [attempt(size, "void", control=False, recovered=1) for size in range(3)]
    assert rehearsal.answers(broken, SIZES, (4, 3))["a"] == (
        "the control was not recovered. The check of the measurement failed, so the result is void."
    )
    other = [attempt(0, "leaks"), attempt(1, "void", because="it is something else")]
    message = rehearsal.answers([*other, attempt(2, "static")], SIZES, (4, 3))["a"]
    assert message.endswith("nothing was recovered, nor above. The result is void: it is something else.")


def test_one_round_that_leaks_is_enough() -> None:
    later = [attempt(size, "leaks", 3, recovered=2) for size in (0, 1)]
    result = [attempt(0, "leaks"), *(attempt(size, "no leak found") for size in (1, 2)), *later]
    message = rehearsal.answers([*result, attempt(2, "no leak found", 3)], SIZES, (4, 3))["a"]
    assert message.startswith(
        "leaks up to batch 4 and one step (2 of 8 examples recovered after round 3); at batch 4 and 3"
    )


def test_rows_of_numbers_have_no_decibels() -> None:
    assert rehearsal.table([attempt(0, "leaks", 2, best_psnr=None)]).splitlines() == [
        "a, after round 2",
        "  batch  steps  recovered      best  verdict",
        "      1      1     1 of 2         -  leaks",
    ]


# --- the sizes as a curve ----------------------------------------------------------------------------------------


def test_growing_sizes_are_a_curve_of_both_sizes() -> None:
    result = Experiment(victim_batch=4, victim_steps=2, curve=("size=1x1,4x1,4x2,8x3",)).points
    assert result == (Point("", 4, 2), Point("ladder", 1, 1), Point("ladder", 4, 1), Point("ladder", 8, 3))
    assert [point.name for point in result] == ["target", "ladder-1x1", "ladder-4x1", "ladder-8x3"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ladder", "Expected curve as batch=1,4 or steps=1,5 or size=1x1,4x1,4x5 or sum_size=1,5, got curve=ladder."),
        ("size=4", "Expected sizes as BATCHxSTEPS, such as 4x1, got '4' in curve=size=4."),
        ("size=1x2x3", "Expected sizes as BATCHxSTEPS, such as 4x1, got '1x2x3' in curve=size=1x2x3."),
        ("size=1xa", "Expected whole numbers for curve, got '1xa'."),
        ("size=0x1", "Expected whole numbers >= 1 for curve, got curve=size=0x1."),
        ("batch=0", "Expected whole numbers >= 1 for curve, got curve=batch=0."),
        ("steps=x", "Expected whole numbers for curve, got 'x'."),
        ("size=4x1,1x4", "Expected sizes that only grow, got curve=size=4x1,1x4."),
        ("size=4x1,4x1", "Expected sizes that only grow, got curve=size=4x1,4x1."),
    ],
)
def test_a_curve_that_is_none_is_refused(word: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment(curve=(word,))
    assert str(caught.value) == message


SIM = (
    f"--method fedavg --net mlp --engine inproc --clients 1 --rounds 1 --local-epochs 1 --attack {ONE_ONLY} "
    "--audit-rounds 0 --images 1 --curve size=1x1,2x1,2x2"
)


def found_by(folder: Path) -> list[tuple[Any, ...]]:
    entries = json.loads((folder / "result.json").read_text())["audit"]
    return [(e["curve"], e["batch"], e["steps"], e["images"], e["verdict"]) for e in entries]


EXPECTED = [
    (None, 1, 1, 1, "leaks"),
    ("ladder", 2, 1, 2, "undecided"),  # there is no defence
    ("ladder", 2, 2, 2, "undecided"),
]


@pytest.mark.slow
def test_growing_sizes_are_attacked_again_from_its_recordings(
    chosen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert sim.main([*SIM.split(), "--dataset", f"folder:{chosen}", "--out", str(out)]) == 0
    message = capsys.readouterr().out
    assert ", ladder 2x1: undecided (" in message and ", ladder 2x2: undecided (" in message
    assert message.count("no defence hides the data there") == 2
    assert found_by(out) == EXPECTED
    with (out / "audit.csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["rung"] == "target"]
    assert [(row["curve"], row["batch"], row["steps"]) for row in rows] == [
        ("", "1", "1"), *[("ladder", "2", "1")] * 2, *[("ladder", "2", "2")] * 2,
    ]  # fmt: skip
    assert sim.main(["--from", str(out), "--curve", "size=1x1,2x1", "--out", str(tmp_path / "again")]) == 0
    assert found_by(tmp_path / "again") == EXPECTED[:2]
    assert sim.main(["--from", str(out), "--curve", "size=1x1,8x1", "--out", str(tmp_path / "other")]) == 2
    assert "Expected recordings of ladder-8x1 at round 0" in capsys.readouterr().err


@pytest.mark.slow
def test_growing_sizes_that_were_cut_short_are_probed_to_their_end(
    chosen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(OneOnly, "interrupted", "ladder-2x2")
    assert sim.main([*SIM.split(), "--dataset", f"folder:{chosen}", "--out", str(out)]) == 130
    monkeypatch.setattr(OneOnly, "interrupted", "")
    assert sim.main(["--resume", str(out)]) == 0
    assert found_by(out) == EXPECTED
