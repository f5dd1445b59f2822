"""Inversions of features: the search by hand, the nearest generated feature, and the command as a user calls it."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import sim
from flfw.comparisons.figures.tsne import restored
from flfw.errors import InputError
from flfw.nets.inputs import InputSpec
from flfw.plans.run_plan import plan
from flfw.rng import torch_generator
from research.papers import inversions
from research.papers.inversions import GENERATED, TRUE, InversionSettings, inverted
from tests.support import rounds

INPUTS = InputSpec.from_constants((1, 4, 4), (0.5,), (0.25,))
FEW = InversionSettings(images=2, iterations=4, lr=0.1, epochs=1, generated=5)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inversions") / "run"
    flags = "--method fedcg --clients 2 --rounds 1 --local-epochs 1 --lr 1e-3 --batch-size 64 --split sampled"
    flags += " --attack none --engine inproc --expert keep_state=true --set iterations=2 gan_epochs=1 gamma_rounds=1"
    assert sim.main([*flags.split(), "sampled.train=40", "--out", str(folder)]) == 0
    return folder


def extractor() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.Sigmoid()).requires_grad_(False)


def test_steps_are_adams_on_the_printed_loss() -> None:
    """In float64: after the first step pixels are equal but for 1e-8, and the total variation looks at their order."""
    with rounds.exactly():
        net, features = extractor(), torch.rand(2, 16, generator=torch_generator(0, "f"))
        settings = InversionSettings(iterations=5, lr=0.1)
        x, m, v = torch.zeros(2, 1, 4, 4), torch.zeros(()), torch.zeros(())
        for step in range(1, 6):
            guess = x.clone().requires_grad_()
            loss = torch.zeros(())
            for one, feature in zip(guess, features, strict=True):
                loss = loss + ((net(one[None])[0] - feature) ** 2).sum()
                vary = (one[:, 1:] - one[:, :-1]).abs().mean() + (one[..., 1:] - one[..., :-1]).abs().mean()
                loss = loss + 0.3 * vary
            loss.backward()
            assert guess.grad is not None
            m, v = 0.9 * m + 0.1 * guess.grad, 0.999 * v + 0.001 * guess.grad**2
            x = x - 0.1 * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
        expected = (0.5 + 0.25 * x).clamp(0, 1)
        torch.testing.assert_close(inverted(net, features, INPUTS, settings, 0.3), expected, atol=1e-7, rtol=0)


@pytest.mark.slow
def test_a_known_extractor_of_full_rank_gives_the_image_away() -> None:
    net, images = extractor(), 0.3 + 0.4 * torch.rand(3, 1, 4, 4, generator=torch_generator(0, "x"))
    features = net(INPUTS.normalise(images))
    settings = InversionSettings(iterations=4000, lr=1e-2)
    together = inverted(net, features, INPUTS, settings, 0.0)
    assert (together - images).abs().max() < 0.01
    alone = inverted(net, features[1:2], INPUTS, settings, 0.0)
    torch.testing.assert_close(alone[0], together[1], atol=1e-3, rtol=0)  # none has a part in another's search


@pytest.mark.slow
def test_the_generated_feature_is_the_nearest_of_those_drawn(finished: Path) -> None:
    run = restored(finished)
    model, task = run.model(0), run.task
    x, y = task.examples("train", task.split.train[0][:2])
    kinds = inversions._features(model, task.inputs, x, y, FEW, 0)
    rng = torch_generator(0, "inversions")
    with torch.no_grad():
        for i, label in enumerate(y):
            z = torch.randn(5, 100, generator=rng)
            made = [model.generator(one[None], label[None])[0] for one in z]
            distance = [float((one - kinds[TRUE][i]).norm()) for one in made]
            nearest = made[distance.index(min(distance))]
            torch.testing.assert_close(kinds[GENERATED][i], nearest)


@pytest.mark.slow
def test_the_command_compares_the_attackers(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--images 2 --iterations 4 --epochs 1 --generated 5"
    assert inversions.main([str(finished), *flags.split(), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    with (tmp_path / "inversions.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 2 * (1 + 3 * 2) and all(float(row["psnr"]) > 0 for row in rows)
    extractors = [inversions.VICTIM, inversions.SAME, inversions.LIKE]
    assert list(dict.fromkeys(row["row"] for row in rows)) == [
        inversions.MEAN,
        *(f"{name}, {kind} features" for name in extractors for kind in (TRUE, GENERATED)),
    ]
    shown = {row["row"]: row["tv"] for row in rows}
    assert shown.pop(inversions.MEAN) == "" and set(shown.values()) <= {"0.001", "1.0", "30.0"}
    assert all(row["row"] in printed for row in rows) and (tmp_path / "inversions.svg").stat().st_size > 1000


@pytest.mark.slow
def test_other_data_are_none_of_the_clients_own(finished: Path) -> None:
    run = restored(finished)
    with pytest.raises(InputError, match=r"Expected other data than the client's, got 40 of its own examples"):
        inversions.inversions(run, 0, FEW, run.task)
    assert inversions.main([str(finished), "--other", "digits", "--images", "1", "--iterations", "1"]) == 2
    negative = replace(run.task, dataset=replace(run.task.dataset, train_x=255 - run.task.dataset.train_x))
    rows = inversions.inversions(run, 0, FEW, negative).rows
    assert f"{inversions.OTHER}, {TRUE} features" in {row["row"] for row in rows}


@pytest.mark.slow
def test_a_run_that_did_not_end_is_refused(finished: Path, tmp_path: Path) -> None:
    begun = shutil.copytree(finished, tmp_path / "begun")
    (begun / "result.json").unlink()
    with pytest.raises(InputError, match="Expected a finished run with rounds of training"):
        restored(begun)


@pytest.mark.slow
def test_of_several_weights_the_best_is_shown(finished: Path) -> None:
    run, both = restored(finished), replace(FEW, tv=(0.0, 5.0))
    rows = [
        inversions.inversions(run, 1, each, None).rows for each in (both, *(replace(both, tv=(tv,)) for tv in both.tv))
    ]
    scores = [{row["row"]: 0.0 for row in each} for each in rows]
    for sums, each in zip(scores, rows, strict=True):
        for row in each:
            sums[row["row"]] += row["psnr"]
    assert all(best == max(one, other) for best, one, other in zip(*(each.values() for each in scores), strict=True))


def test_data_of_another_shape_are_refused(finished: Path) -> None:
    run = restored(finished)
    rows = plan(replace(run.experiment, dataset="cancer", net="mlp", split="iid", set=())).task.load(None)
    with pytest.raises(InputError, match="Expected other data of shape 1x32x32 with 10 classes, got 30 with 2 classes"):
        inversions.inversions(run, 0, FEW, rows)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--client 7", r"inversions: Expected a client among \[0, 1\], got client=7\."),
        ("--tv -1", r"inversions: Expected one finite tv >= 0 or several, got tv=\(-1\.0,\)\."),
        ("--other mnist-nowhere", r"inversions: Expected"),
        ("--other cancer", r"inversions: Expected inputs of Cx32x32"),
    ],
)
def test_wrong_input_is_one_line(finished: Path, flags: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert inversions.main([str(finished), *flags.split()]) == 2
    captured = capsys.readouterr()
    assert not captured.out and len(captured.err.splitlines()) == 1
    with pytest.raises(InputError, match=line):
        raise InputError(captured.err.strip())
