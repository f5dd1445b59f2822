"""FedCG's tables: the paper's settings, what the quick scale changes, and what stands beside the paper's attack."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flfw import plugins
from flfw.experiment import Experiment
from flfw.papers import cells, fedcg, published
from flfw.papers.layout import sheet
from flfw.papers.preset import Preset, Scale
from flfw.papers.published import Cell
from flfw.plans.run_plan import plan, without_auto
from tests.support.planned import checked

METHODS = ["Local", "FedAvg", "FedProx", "FedDF", "FedSplit", "FedGen", "FedCG"]
BOTH = [cell for table in fedcg.TABLES for cell in published.table(table).cells]


def cell_of(path: str) -> Cell:
    return published.table(path.partition("/")[0]).select(path)[0]


def preset_of(path: str, scale: Scale) -> Preset:
    return fedcg.TABLES[path.partition("/")[0]](cell_of(path), scale)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_every_cell_has_a_preset_whose_parts_there_are(scale: Scale) -> None:
    assert len(BOTH) == 42 + 30
    for cell in BOTH:
        preset = fedcg.TABLES[cell.table](cell, scale)
        assert cells.obstacle(cell, preset) == ("paper value not available" if cell.value is None else "")
        for experiment in {replace(run, seed=0) for run in preset.experiments}:
            assert experiment.method in plugins.names(plugins.METHOD)
            assert without_auto(experiment) == experiment
            checked(plan(experiment))


def test_the_paper_s_settings() -> None:
    preset = preset_of("fedcg.1/FedProx/Digit5/4", "full")
    assert preset.seeds == (0, 1, 2, 3, 4)
    assert [runs[0].set[-1] for runs in preset.choices] == ["mu=0.001", "mu=0.01", "mu=0.1", "mu=1"]
    assert preset.figure.name == "final.best_validation.accuracy"
    assert preset.chosen_by and preset.chosen_by.name == "final.best_validation.validation"
    training = ("optimiser=adam", "weight_decay=1e-4", "momentum=0", "lasting=true")
    assert preset.experiments[0] == Experiment(
        method="fedprox", dataset="digit5", augment="none", normalise="imagenet", net="lenet5", split="domains",
        clients=4, rounds=100, patience=21, local_epochs=20, batch_size=16, lr=3e-4, attack=("none",),
        set=(*training, "mu=0.001"),
    )  # fmt: skip
    grey = preset_of("fedcg.1/FedAvg/FMNIST/4", "full").experiments[0]
    assert (grey.split, grey.augment, grey.normalise) == ("sampled", "flip", "half")
    assert preset_of("fedcg.1/FedAvg/DomainNet/5", "full").experiments[0].clients == 5


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_sets_is_the_paper_s(method: str) -> None:
    """Among them what stands at the method's own defaults, and so is not named by the preset."""
    (run, *_), *_ = preset_of(f"fedcg.1/{method}/CIFAR10/8", "full").choices
    assert run.clients == 8
    chosen: Any = plan(run).client.settings
    assert chosen.weight_decay == 1e-4
    if method != "FedCG":
        assert (chosen.optimiser, chosen.lasting) == ("adam", True)
    if method in ("FedDF", "FedGen", "FedCG"):
        assert (chosen.iterations, chosen.server_batch, chosen.server_lr) == (2000, 16, 3e-4)
    if method == "FedCG":
        assert (chosen.gan_epochs, chosen.gan_lr, chosen.gamma_rounds, chosen.diversity) == (0, 3e-4, 50, 0.2)


def test_the_quick_scale_differs_from_the_full_one_in_size_alone() -> None:
    for name in METHODS:
        quick, full = (preset_of(f"fedcg.1/{name}/CIFAR10/4", s).choices[0][0] for s in ("quick", "full"))
        sizes = {"rounds": 100, "patience": 21, "local_epochs": 20, "lr": 3e-4, "set": ()}
        assert replace(quick, **sizes) == replace(full, set=())
        assert (quick.rounds, quick.patience, quick.local_epochs, quick.lr) == (3, 0, 12, 1e-3)
        shorter = {"iterations=100", "gan_epochs=1", "gamma_rounds=1", "sampled.train=256", "mu=0.01"}
        assert set(quick.set) ^ set(full.set) <= shorter | {"mu=0.001"}
        assert ("iterations=100" in quick.set) == (name in ("FedDF", "FedGen", "FedCG"))
    assert preset_of("fedcg.1/FedCG/CIFAR10/4", "quick").seeds == (0, 1, 2)


def test_the_quick_scale_has_the_domains_at_hand_and_says_so() -> None:
    for path in ("fedcg.1/FedDF/Digit5/4", "fedcg.2/FedCG/Digit5/accuracy"):
        quick, full = (preset_of(path, scale) for scale in ("quick", "full"))
        run = quick.experiments[0]
        assert (run.dataset, run.clients, run.split) == ("digit5:mnist_m,usps,mnist", 2, "domains")
        assert "domains.train=256" in run.set
        assert quick.figure.words.endswith("column Digit5: of MNIST-M and USPS alone")
        assert full.figure == fedcg.TEST and full.experiments[0].dataset == "digit5"


# --- table 2 ---


def test_a_row_of_the_second_table_is_one_run_a_seed() -> None:
    for scale in ("quick", "full"):
        for row in {cell.row[0] for cell in published.table("fedcg.2").cells}:
            accuracy, psnr = (preset_of(f"fedcg.2/{row}/CIFAR10/{name}", scale) for name in ("accuracy", "dlg_psnr"))
            assert accuracy.experiments == psnr.experiments
            first = accuracy.experiments[0]
            assert (first.attack, first.audit_rounds) == (("dlg_statistics", "fedcg"), "last")
            assert (first.images, len(accuracy.seeds)) == ((4, 3) if scale == "quick" else (20, 5))


def test_the_second_table_s_runs_are_the_first_one_s_with_an_audit() -> None:
    for scale in ("quick", "full"):
        for row in ("FedAvg", "FedSplit", "FedCG"):
            (before, *_) = preset_of(f"fedcg.1/{row}/CIFAR10/4", scale).experiments
            (run, *_) = preset_of(f"fedcg.2/{row}/CIFAR10/accuracy", scale).experiments
            assert run.set[: len(before.set)] == before.set
            usual = {"attack": ("none",), "audit_rounds": before.audit_rounds, "images": before.images}
            assert replace(run, set=before.set, **usual) == before


@pytest.mark.parametrize("variance", [0.001, 0.1])
def test_noise_has_the_paper_s_variance(variance: float) -> None:
    run = preset_of(f"fedcg.2/FedAvg + Gaussian noise variance {variance}/CIFAR10", "full").experiments[0]
    assert (run.method, run.defence) == ("fedavg", "dp_gaussian")
    defence = plan(run).client.defences.build()
    assert defence is not None and defence.settings.std**2 == pytest.approx(variance, rel=1e-4)
    assert defence.settings.clip == 0


PAPERS = {"attack": "dlg_statistics", "adaptation": None, "psnr": {"mean": 6.5}, "floors": {"class_mean": 15.0}}
UNTOLD = {"attack": "fedcg", "adaptation": None, "psnr": {"mean": 7.0}, "floors": {"class_mean": 15.0}}
TOLD = [{**entry, "adaptation": "defence", "psnr": {"mean": 2 * entry["psnr"]["mean"]}} for entry in (PAPERS, UNTOLD)]


@pytest.mark.parametrize(
    ("row", "audit", "beside"),
    [
        ("FedCG", [PAPERS, UNTOLD], [7.0, 15.0]),
        ("FedAvg", [PAPERS, UNTOLD], [7.0, 15.0]),
        ("FedAvg + Gaussian noise variance 0.1", [PAPERS, UNTOLD, *TOLD], [14.0, 15.0]),
        ("FedSplit", [PAPERS, {**UNTOLD, "psnr": None}], ["none", 15.0]),
    ],
)
def test_beside_the_paper_s_attack_stand_the_adaptive_one_and_the_class_s_mean(
    tmp_path: Path, row: str, audit: list[dict[str, Any]], beside: list[float | str]
) -> None:
    cell = cell_of(f"fedcg.2/{row}/CIFAR10/dlg_psnr")
    preset = fedcg.attacked(cell, "quick")
    runs = tuple(replace(run, out=tmp_path / str(run.seed)) for run in preset.experiments)
    for run in runs:
        assert run.out is not None
        run.out.mkdir()
        result = {
            "audit": [{"round": 0, "failures": 0, **one} for one in audit],
            "notes": [],
            "provenance": {"code": "c"},
        }
        (run.out / "result.json").write_text(json.dumps(result))
    outcome = cells.read(cell, replace(preset, choices=(runs,)))
    assert (outcome.value, list(outcome.also.values())) == (6.5, beside)
    message = " ".join(sheet(published.table("fedcg.2"), [outcome], "quick").heading)
    assert "adaptive attack" in message and "5 to 9 dB is less than a constant image has" in message
