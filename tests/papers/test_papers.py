"""The papers' tables: the numbers as printed, the settings behind them, and cells that are measured once and kept."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from flfw import data, plugins
from flfw.command.api.tables import measured
from flfw.data.splits import schemes
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.nets.backbones.architectures import VARIABLE
from flfw.papers import cells, command, fed_cdp, fedcg, hyperfl, layout, published
from flfw.papers.cells import Outcome
from flfw.papers.command import Reproduction
from flfw.papers.layout import Sheet, number, sheet
from flfw.papers.preset import Preset, Presets, ResultMetric, Scale, presets, varied
from flfw.papers.published import Cell, Table
from flfw.plans.run_plan import plan
from flfw.plugins import build_settings
from flfw.privacy.accountants import epsilon
from flfw.privacy.mechanism import Mechanism
from flfw.server.checkpoint import locked
from flfw.task.defence import Defence
from tests.support.paths import ROOT
from tests.support.planned import checked

SHARED = ROOT.parent / "shared" / "paper_tables.json"
STEMS = {"HyperFL": "hyperfl", "DCS^2": "dcs2", "FedCG": "fedcg", "Fed-CDP": "fed_cdp"}
ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7}


# --- the published numbers ----------------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.exists(), reason=f"the transcribed tables are not here: {SHARED}")
def test_every_number_is_the_transcribed_one() -> None:
    stored = json.loads((ROOT / "papers" / "published.json").read_text())
    shared = json.loads(SHARED.read_text())
    assert len(shared) == len(stored) == 16
    for theirs in shared:
        word = theirs["table"].split()[1]
        ours = stored[f"{STEMS[theirs['paper']]}.{ROMAN.get(word, word)}"]
        assert ours["cells"] == theirs["rows"]
        assert bool(ours.get("missing")) == bool(theirs.get("missing"))


def test_the_tables_have_their_cells_under_distinct_paths() -> None:
    tables = [published.table(name) for name in published.names()]
    count = {
        "hyperfl": 56 + 22 + 42 + 5 + 12,
        "dcs2": 104 + 28,
        "fedcg": 42 + 30,
        "fed_cdp": 50 + 48 + 20 + 30 + 30 + 40 + 48,
    }
    for paper, expected in count.items():
        paths = [cell.path for table in tables if table.name.startswith(f"{paper}.") for cell in table.cells]
        assert len(paths) == len(set(paths)) == expected
    assert all(bool(table.missing) == all(cell.lost for cell in table.cells) for table in tables)
    assert all(cell.value is None for table in tables for cell in table.cells if cell.lost)
    assert all(table.paper.endswith(".") and "et al." in table.paper for table in tables)


@pytest.mark.parametrize(
    ("path", "value", "std", "unit"),
    [
        ("hyperfl.1/HyperFL/CIFAR-10/20/accuracy", 73.03, None, "%"),
        ("hyperfl.2/HyperFL-LPM/EMNIST/ViT-S-16/accuracy", 79.92, None, "%"),
        ("hyperfl.3/FedAvg/CIFAR-10/psnr", 16.16, None, "dB"),
        ("hyperfl.4/HyperFL/seconds_per_round", 37, None, ""),
        ("fedcg.1/Local/FMNIST/4/accuracy", 79.66, 0.55, "%"),
        ("fedcg.1/FedDF/Office-Caltech10/4/accuracy", None, None, "%"),
        ("fedcg.2/FedCG/CIFAR10/dlg_psnr", 8.99, None, "dB"),
        ("fed_cdp.1/MNIST/features", "28*28", None, ""),
        ("fed_cdp.6/Fed-CDP/instance/100/MNIST/epsilon", 0.8227, None, ""),
        ("fed_cdp.7/non-private/MNIST/type 0&1/succeed", "Y", None, ""),
    ],
)
def test_a_path_leads_to_one_number(path: str, value: object, std: float | None, unit: str) -> None:
    (cell,) = published.table(path.partition("/")[0]).select(path)
    assert (cell.path, cell.value, cell.deviation, cell.unit) == (path, value, std, unit)


def test_a_path_s_beginning_selects_all_that_goes_on_from_it() -> None:
    table = published.table("hyperfl.1")
    assert table.select("") == table.select("hyperfl.1") == table.cells
    assert {cell.row for cell in table.select("hyperfl.1/FedAvg")} == {("FedAvg",)}  # and not DP-FedAvg
    assert [cell.columns for cell in table.select("hyperfl.1/FedAvg/EMNIST/")] == [("EMNIST", "20"), ("EMNIST", "100")]


@pytest.mark.parametrize(
    ("prefix", "known"),
    [
        ("hyperfl.2", "hyperfl.1"),
        ("hyperfl.1/Fed", "hyperfl.1/Local-only, hyperfl.1/FedAvg, hyperfl.1/pFedHN"),
        ("hyperfl.1/FedAvg/EMNIST/2", "hyperfl.1/FedAvg/EMNIST/20, hyperfl.1/FedAvg/EMNIST/100"),
        ("hyperfl.1/FedAvg/EMNIST/20/accuracy/x", "hyperfl.1/FedAvg/EMNIST/20/accuracy"),
    ],
)
def test_a_wrong_path_says_how_it_could_go_on(prefix: str, known: str) -> None:
    with pytest.raises(InputError, match=rf"^Expected a cell among {re.escape(known)}.*; got --cell {prefix}\.$"):
        published.table("hyperfl.1").select(prefix)


def test_an_unknown_table_says_which_ones_there_are() -> None:
    with pytest.raises(
        InputError,
        match=r"^Got --table hyperfl\.9; did you mean .* or hyperfl\.3\? Expected a table among hyperfl\.1, ",
    ):
        command.asked("hyperfl.9", "", "quick", Experiment())
    assert len(command.names()) == 16


# --- the presets --------------------------------------------------------------------------------------------------


def preset_of(path: str, scale: Scale) -> Preset:
    table = published.table(path.partition("/")[0])
    make = presets(table.name)
    assert make is not None
    return make(table.select(path)[0], scale)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["quick", "full"])
@pytest.mark.parametrize("table", [*hyperfl.TABLES, *fedcg.TABLES, *fed_cdp.TABLES])
def test_every_cell_resolves_to_experiments_that_fit_what_there_is(table: str, scale: Scale) -> None:
    for cell in published.table(table).cells:
        for experiment in preset_of(cell.path, scale).experiments:
            assert experiment.net != "auto" and experiment.split != "auto"
            assert Experiment.from_run_config(experiment.to_run_config()) == experiment
            if experiment.method in plugins.names(plugins.METHOD):
                plan(experiment).client.method, plan(experiment).client.settings
            if experiment.split in schemes.schemes():
                build_settings(schemes.scheme(experiment.split), experiment.split, experiment.set)


@pytest.mark.slow
def test_different_cells_are_different_runs() -> None:
    for table in ("hyperfl.1", "fedcg.1"):
        for scale in ("quick", "full"):
            runs = [run for cell in published.table(table).cells for run in preset_of(cell.path, scale).experiments]
            assert len({cells.folder_name(run) for run in runs}) == len(runs)


def test_hyperfl_s_settings_are_the_paper_s() -> None:
    preset = preset_of("hyperfl.1/HyperFL/EMNIST/100", "full")
    first, *others = preset.experiments
    assert first == Experiment(
        method="hyperfl", dataset="emnist", net="cnn1", split="dominant", clients=100, sample=30, rounds=200,
        local_epochs=5, batch_size=100, lr=0.01, seed=0, attack=("none",),
    )  # fmt: skip
    assert others == [replace(first, seed=1), replace(first, seed=2)]
    assert preset.figure.name == "final.acc_local" and not preset.also
    (quick,) = preset_of("hyperfl.1/FedAvg/CINIC-10/20", "quick").experiments
    assert (quick.net, quick.lr, quick.batch_size, quick.sample) == ("cnn2", 0.02, 50, 0)
    assert (quick.rounds, quick.local_epochs) == (10, 1)
    fedavg = preset_of("hyperfl.1/FedAvg/CINIC-10/20", "full")
    assert (fedavg.figure.name, [f.name for f in fedavg.also]) == ("final.acc_global", ["final.acc_local"])


PUBLISHED_IG = ("ig.signed=false", "ig.tv=1e-6", "ig.schedule=constant")


def test_hyperfl_s_table_of_attacks_has_the_paper_s_budget_and_ours_beside_it() -> None:
    preset = preset_of("hyperfl.3/HyperFL/CIFAR-10/psnr", "full")
    run, tailored = preset.experiments
    assert run == replace(run, images=50, audit_rounds="0,last", attack=("ig", "hyperfl"), net="cnn2", lr=0.02)
    assert run.set == ("ig.iterations=10000", *PUBLISHED_IG, "hyperfl.iterations=10000")
    assert preset.figure.name == "audit.attack=ig,adaptation=None,round=0.psnr.mean"
    beside = ["audit.attack=hyperfl,round=0.psnr.mean", "audit.attack=ig,adaptation=None,round=200.psnr.mean"]
    assert [figure.name for figure in preset.also] == beside
    two_stage = ("hyperfl.variant=two_stage", "hyperfl.iterations=10000", "hyperfl.signed=false", "hyperfl.tv=1e-6")
    assert tailored == replace(run, rounds=1, audit_rounds="0", attack=("hyperfl",), set=two_stage)
    (further,) = preset.further
    assert (further.name, further.figure.name) == ("tailored.psnr", "audit.attack=hyperfl,round=0.psnr.mean")
    (control,) = preset_of("hyperfl.3/FedAvg/CIFAR-10/ssim", "full").experiments
    assert control == replace(run, method="fedavg", attack=("ig",), set=run.set[:4])  # the same images and budget


def test_hyperfl_s_table_of_rog_has_the_ceiling_of_each_size_beside_it() -> None:
    preset = preset_of("hyperfl.5/HyperFL/CIFAR-10/psnr", "full")
    run = preset.choices[0][0]
    assert run == replace(run, attack=("rog",), images=50, audit_rounds="0", net="cnn2", image_size=0, set=())
    names = {one.name: (one.experiments[0], one.figure.name.rpartition("round=0.")[2]) for one in preset.further}
    doubled, closed = ("rog.sf=2",), ("rog.private=closed_form",)
    network = ("rog.post=unet", "rog.pairs=2000", "rog.post_epochs=10")
    expected = {"factor 2": doubled, "closed form, factor 4": closed, "closed form, factor 2": (*closed, *doubled)}
    expected |= {"closed form, factor 4 and a U-Net": (*closed, *network)}
    for words, chosen in expected.items():
        assert names[f"{words}.psnr"] == (replace(run, set=chosen), "psnr.mean")
    large = names["128 px.psnr"][0]
    assert (large.image_size, large.net, data.describe(large.dataset).shape) == (128, "lenet", (3, 32, 32))
    assert names["128 px.reduced_psnr"] == (large, "native_resolution.psnr")
    assert names["128 px.ceiling"] == (large, "ceiling")
    assert names["factor 2.ceiling"][0] == names["factor 2.psnr"][0] and preset.also[0].name.endswith("round=0.ceiling")
    (fedavg,) = preset_of("hyperfl.5/FedAvg/CIFAR-10/lpips", "full").choices[0]
    assert fedavg == replace(run, method="fedavg")
    quick = preset_of("hyperfl.5/FedAvg/EMNIST/psnr", "quick")
    assert {one.images for one in quick.experiments} == {8} and quick.choices[0][0].sample == 2
    assert len(quick.experiments) == 4 and len(preset.experiments) == 6  # a run with several figures is one run


def test_the_images_that_are_enlarged_are_a_set_s_first_ones(tmp_path: Path) -> None:
    full = replace(data.describe("mnist"), read=lambda root, side: _numbered(3000))
    arrays = hyperfl.first(full).read(tmp_path, None)
    assert [len(part) for part in (arrays.train_x, arrays.train_y, arrays.test_x, arrays.test_y)] == [1000] * 4
    assert arrays.train_y[-1] == 999 and arrays.test_y[0] == 0


def _numbered(count: int) -> data.DatasetArrays:
    images, labels = np.zeros((count, 1, 28, 28), np.uint8), np.arange(count)
    return data.DatasetArrays(images, labels, images, labels)


def test_hyperfl_s_hypernetworks_at_the_server_run_as_the_other_methods() -> None:
    fedavg, pfedhn = (preset_of(f"hyperfl.1/{method}/EMNIST/100", "full") for method in ("FedAvg", "pFedHN"))
    assert pfedhn.experiments == tuple(replace(run, method="pfedhn") for run in fedavg.experiments)
    assert (pfedhn.figure, pfedhn.also) == (hyperfl.AS_RECEIVED, (hyperfl.AFTER_TRAINING,))
    # Its authors step after each client, which diverges where 20 clients train from one hypernetwork: it stays ours.
    assert varied(pfedhn, "hyperfl.1", "authors") == pfedhn
    assert varied(preset_of("hyperfl.1/HyperFL/EMNIST/100", "full"), "hyperfl.1", "authors").beside
    control, whole, personal = (
        preset_of(f"hyperfl.3/{method}/EMNIST/psnr", "full") for method in ("FedAvg", "pFedHN", "pFedHN-PC")
    )
    (run,) = control.experiments
    assert tuple(whole.experiments) == (replace(run, method="pfedhn"),) and whole.also == control.also
    headless = replace(run, method="pfedhn_pc", attack=("ig", "hyperfl"), set=(*run.set, "hyperfl.iterations=10000"))
    assert tuple(personal.experiments) == (headless,)
    assert personal.also[0].name == "audit.attack=hyperfl,round=0.psnr.mean"
    checked(plan(headless))


@pytest.mark.parametrize(
    ("path", "method", "train", "lr", "augment"),
    [
        ("Local-only (fixed feature extractor)/EMNIST/ResNet-18", "local_only", "linear_probe", 0.01, "none"),
        ("FedAvg (adapter fine-tuning)/CIFAR-10/ViT-S-16", "fedavg", "adapter", 0.1, "flip"),
        ("FedAvg (full parameter tuning)/EMNIST/ViT-S-16", "fedavg", "full", 0.02, "none"),
        ("HyperFL-LPM/CIFAR-10/ResNet-18", "hyperfl_lpm", "adapter", 0.01, "crop_flip"),
    ],
)
def test_the_second_table_trains_a_part_of_a_pretrained_network(
    path: str, method: str, train: str, lr: float, augment: str
) -> None:
    net = "vit_small" if path.endswith("ViT-S-16") else "resnet18_imagenet"
    preset = preset_of(f"hyperfl.2/{path}/accuracy", "full")
    (first, *_), seeds = preset.choices[0], [run.seed for run in preset.choices[0]]
    assert (first.method, first.trainable, first.net, first.lr, first.augment) == (method, train, net, lr, augment)
    assert (first.clients, first.sample, first.rounds, first.local_epochs, first.batch_size) == (20, 0, 200, 5, 16)
    assert seeds == [0, 1, 2]
    begun = [run.set for one in preset.further for run in one.experiments]
    identity = (f"{net}.adapter_init=identity",)
    assert begun == ([identity] * 3 if train == "adapter" and method != "hyperfl_lpm" else [])


def test_adapters_of_the_authors_keep_batch_norm_in_evaluation_mode() -> None:
    table = "hyperfl.2"
    for row, net, frozen in (("ResNet-18", "resnet18_imagenet", True), ("ViT-S-16", "vit_small", False)):
        for method in ("FedAvg (adapter fine-tuning)", "HyperFL-LPM"):
            preset = varied(preset_of(f"{table}/{method}/CIFAR-10/{row}/accuracy", "full"), table, "authors")
            assert (f"{net}.adapter_norm=frozen" in preset.choices[0][0].set) == frozen
            assert not any("adapter_norm" in one for run in preset.beside for one in run.set)
    path = f"{table}/FedAvg (fixed feature extractor)/CIFAR-10/ResNet-18/accuracy"
    fixed = varied(preset_of(path, "full"), table, "authors")
    assert fixed.choices[0][0].set == () and not fixed.beside


def test_without_published_weights_another_backbone_stands_in_and_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = "hyperfl.2/FedAvg (fixed feature extractor)/CIFAR-10/ResNet-18/accuracy"
    preset = preset_of(path, "quick")  # the tests' random weights are nobody's
    assert preset.experiments[0].net == "efficientnet_lite0"
    assert "of another backbone, efficientnet_lite0, not to be compared" in preset.figure.words
    (tmp_path / "resnet18-f37072fd.pth").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    preset = preset_of(path, "quick")
    (run,) = preset.experiments
    assert run.net == "resnet18_imagenet" and "backbone" not in preset.figure.words
    assert (run.clients, run.rounds, run.local_epochs) == (4, 5, 1)


@pytest.mark.parametrize("method", ["DP-FedAvg", "CENTAUR", "PPSGD"])
def test_hyperfl_s_private_methods_have_the_authors_noise_and_their_epsilons_beside(method: str) -> None:
    result = preset_of(f"hyperfl.1/{method}/EMNIST/100", "full")
    (plain, *_), run = preset_of("hyperfl.1/FedAvg/EMNIST/100", "full").experiments, result.experiments[0]
    name = {"DP-FedAvg": "dp_fedavg", "CENTAUR": "centaur", "PPSGD": "ppsgd"}[method]
    assert run == replace(plain, method=name, accountant="paper", set=("noise_multiplier=11.62",))
    assert preset_of(f"hyperfl.1/{method}/CIFAR-10/20", "quick").experiments[0].set == ("noise_multiplier=10.63",)
    assert result.figure == (hyperfl.AS_RECEIVED if method == "DP-FedAvg" else hyperfl.AFTER_TRAINING)
    assert result.also[-2:] == hyperfl.EPSILONS
    attacked = preset_of(f"hyperfl.3/{method}/CIFAR-10/psnr", "quick")
    assert attacked.experiments[0].set == ("noise_multiplier=10.63", "ig.iterations=1000", *PUBLISHED_IG)
    assert [(figure.name, figure.absent) for figure in attacked.also] == [
        ("audit.attack=ig,adaptation!=None,round=0.psnr.mean", "")
    ]
    assert preset_of(f"hyperfl.4/{method}", "quick").experiments[0].set == ("noise_multiplier=11.62",)


@pytest.mark.parametrize(("batch", "examples", "sigma"), [(50, 600, 10.63), (100, 1000, 11.62)])
def test_the_authors_noise_is_epsilon_4_by_their_own_count(batch: int, examples: int, sigma: float) -> None:
    rate = batch / examples
    counted = Mechanism(sigma, round(200 * 5 / rate), sampling_rate=rate, poisson=True)
    assert epsilon(counted, 1e-5, "rdp") == pytest.approx(4, abs=0.02)


def test_hyperfl_s_table_of_times_is_of_whole_rounds() -> None:
    preset = preset_of("hyperfl.4/HyperFL", "quick")
    (run,) = preset.experiments
    assert (run.dataset, run.clients, run.rounds, run.local_epochs, run.attacks) == ("emnist", 20, 2, 5, ())
    assert preset.figure.name == "rounds.*.seconds" and preset.figure.factor == 1


@pytest.mark.parametrize("module", [hyperfl, fedcg, fed_cdp])
def test_a_paper_s_file_opens_with_its_card(module: Any) -> None:
    for label in ("Paper", "Settings", "Quick", "Departures"):
        assert re.search(rf"^{label}\s", module.__doc__, re.MULTILINE)


def test_settings_that_stand_at_their_defaults_do_not_name_a_folder() -> None:
    named = cells.folder_name(Experiment(method="a.b:C", dataset="folder:/x", lr=0.5))
    assert re.fullmatch(r"C-folder-[0-9a-f]{12}", named)
    assert named == cells.folder_name(Experiment(method="a.b:C", dataset="folder:/x", lr=0.5, engine="inproc"))
    assert named != cells.folder_name(Experiment(method="a.b:C", dataset="folder:/x", lr=0.5, augment="flip"))


# --- a table of tiny runs -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process dies here, as far as the program can tell."""


class Strikes(Defence):
    """Sends what it is given, until ``left`` messages have been sent: then the process dies, or the client fails."""

    left: ClassVar[int] = 10**9
    by: ClassVar[type[BaseException]] = Killed

    def update(self, update: Any, rng: Any) -> Any:
        type(self).left -= 1
        if type(self).left < 0:
            raise self.by("struck")
        return update


@pytest.fixture(autouse=True)
def _nobody_strikes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Strikes, "left", 10**9)
    monkeypatch.setattr(Strikes, "by", Killed)


def cell(row: str, column: str = "digits", value: float | str | None = 50.0, **keys: Any) -> Cell:
    return Cell("tiny.1", {"method": row, "dataset": column, **keys}, (row,), (column,), "accuracy", "%", value)


def table(*members: Cell) -> Table:
    return Table("tiny.1", "A tiny table", "Nobody et al., 2026.", ("method",), ("dataset",), members)


def tiny(cell: Cell, scale: Scale) -> Preset:
    """Two seeds of two rounds on the embedded digits; three rounds on the full scale."""
    first = Experiment(
        method=str(cell.keys["method"]),
        dataset=str(cell.keys["dataset"]),
        net="linear",
        split="iid",
        clients=2,
        rounds=2 if scale == "quick" else 3,
        local_epochs=1,
        lr=0.05,
        defence="tests.papers.test_papers:Strikes" if cell.keys["method"] != "local_only" else "none",
        attack=("none",),
    )
    runs = (first, replace(first, seed=1))
    return Preset((runs,), hyperfl.AS_RECEIVED, also=(hyperfl.AFTER_TRAINING,))


TWO = table(cell("fedavg"), cell("fedprox"))


def reproduction(out: Path, given: Table = TWO, how: Presets | None = tiny) -> Reproduction:
    return Reproduction(given, how, "quick", Experiment(engine="inproc"), out)


def rows(out: Path, name: str = "tiny.1-quick.csv") -> pd.DataFrame:
    return pd.read_csv(out / name, keep_default_na=False).set_index("row")


def results_in(out: Path) -> dict[str, int]:
    """When each result below a folder was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (out / "cells").glob("*/result.json")}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny table was measured."""
    out = tmp_path_factory.mktemp("done")
    assert command.measured(reproduction(out), "").complete
    return out


@pytest.fixture
def copy(done: Path, tmp_path: Path) -> Path:
    return shutil.copytree(done, tmp_path / "copy")


@pytest.mark.slow
def test_a_cell_is_the_mean_over_its_seeds(done: Path) -> None:
    for name, row in rows(done).iterrows():
        results = [json.loads((done / "cells" / folder / "result.json").read_text()) for folder in row.folders.split()]
        first, second = (100 * result["final"]["acc_global"] for result in results)
        assert [result["config"]["method"] for result in results] == [name, name]
        assert [result["config"]["seed"] for result in results] == [0, 1] and row.seeds == "0 1"
        assert row.measured == pytest.approx((first + second) / 2)
        assert row.measured_deviation == pytest.approx(abs(first - second) / 2**0.5)  # of two: |a - b| / sqrt(2)
        local = sum(result["final"]["acc_local"] for result in results) / 2
        name, _, after_training = row.also.partition("=")
        assert name == "final.acc_local" and float(after_training) == pytest.approx(100 * local)
        assert (row.status, row.scale, row.code, row.published) == ("measured", "quick", code_hash(), 50)


@pytest.mark.slow
def test_what_was_measured_is_not_run_again(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, table_before = results_in(copy), rows(copy)
    assert len(before) == 4
    assert command.measured(reproduction(copy), "").complete
    assert results_in(copy) == before
    assert rows(copy).equals(table_before)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("sent", [1, 3, 5, 7, 9, 11, 13, 15])
def test_a_killed_table_goes_on_where_it_was(done: Path, tmp_path: Path, sent: int, monkeypatch: Any) -> None:
    """Killed in each run of each cell, in its first round and in its second; four messages a run."""
    monkeypatch.setattr(Strikes, "left", sent)
    with pytest.raises(Killed):
        command.measured(reproduction(tmp_path), "")
    finished = results_in(tmp_path)
    assert len(finished) == sent // 4
    assert list(rows(tmp_path).status) == ["measured" if sent > 8 else "not run", "not run"]
    monkeypatch.setattr(Strikes, "left", 10**9)
    assert command.measured(reproduction(tmp_path), "").complete
    assert finished.items() <= results_in(tmp_path).items()
    assert rows(tmp_path).equals(rows(done))


@pytest.mark.nightly
def test_a_process_that_is_killed_leaves_what_it_measured(done: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, tests.papers.test_papers as t\n"
        "t.command.measured(t.reproduction(pathlib.Path(sys.argv[1])), '')"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and len(list(tmp_path.glob("cells/*/checkpoint/round-*"))) < 3:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        ended = process.wait()
    assert ended == -signal.SIGKILL
    finished = results_in(tmp_path)
    assert finished
    assert command.measured(reproduction(tmp_path), "").complete
    assert finished.items() <= results_in(tmp_path).items()
    assert rows(tmp_path).equals(rows(done))


def test_a_folder_without_a_checkpoint_is_started_anew(done: Path, copy: Path) -> None:
    folder = copy / "cells" / rows(copy).folders["fedprox"].split()[0]
    shutil.rmtree(folder)
    (folder / "checkpoint").mkdir(parents=True)
    assert command.measured(reproduction(copy), "").complete
    assert rows(copy).equals(rows(done))


def test_what_older_code_measured_is_used_and_marked(copy: Path) -> None:
    path = copy / "cells" / rows(copy).folders["fedavg"].split()[0] / "result.json"
    path.write_text(path.read_text().replace(code_hash(), "0123456789abcdef"))
    before = results_in(copy)
    shown = command.measured(reproduction(copy), "").text
    assert results_in(copy) == before
    assert rows(copy).code["fedavg"] == f"0123456789abcdef {code_hash()}"
    assert len(re.findall(r"±[0-9.]+\*", shown)) == 1 and "* by earlier code" in shown


@pytest.mark.slow
def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Strikes, "left", 1)
    monkeypatch.setattr(Strikes, "by", ValueError)
    two = table(cell("fedavg"), cell("local_only"))
    shown = command.measured(reproduction(tmp_path, two), "")
    assert not shown.complete
    result = rows(tmp_path)
    assert list(result.status) == ["failed", "measured"]
    assert "client" in result.reason["fedavg"] and "struck" in result.reason["fedavg"]
    assert "failed [1]" in shown.text and f"[1] {result.reason['fedavg'][:40]}" in shown.text
    monkeypatch.setattr(Strikes, "left", 10**9)
    again = command.measured(reproduction(tmp_path, two), "")
    assert again.complete  # what was saved before the failure is gone on from
    assert list(rows(tmp_path).status) == ["measured", "measured"]


def test_a_damaged_checkpoint_is_a_failure_of_its_cell(copy: Path) -> None:
    folder = copy / "cells" / rows(copy).folders["fedavg"].split()[1]
    (folder / "result.json").unlink()
    (checkpoint,) = (folder / "checkpoint").glob("round-*")
    checkpoint.write_bytes(b"nothing")
    assert not command.measured(reproduction(copy), "").complete
    assert list(rows(copy).status) == ["failed", "measured"] and "damaged" in rows(copy).reason["fedavg"]


@pytest.mark.slow
def test_only_what_is_asked_for_is_run_and_what_was_measured_stays(tmp_path: Path) -> None:
    shown = command.measured(reproduction(tmp_path), "tiny.1/fedprox")
    assert shown.complete and "fedprox" in shown.text and "fedavg" not in shown.text
    assert list(rows(tmp_path).reason) == ["not asked for", ""]
    assert command.measured(reproduction(tmp_path), "tiny.1/fedavg/digits/accuracy").complete
    assert list(rows(tmp_path).status) == ["measured", "measured"]
    assert "fedprox" in (tmp_path / "tiny.1-quick.md").read_text()


def test_two_tables_share_their_runs(copy: Path) -> None:
    before = results_in(copy)
    other = replace(TWO, name="tiny.2", cells=tuple(replace(c, table="tiny.2") for c in TWO.cells))
    assert command.measured(reproduction(copy, other), "").complete
    assert results_in(copy) == before
    assert list(rows(copy, "tiny.2-quick.csv").status) == ["measured", "measured"]


def test_one_command_at_a_time_works_in_a_folder(done: Path) -> None:
    with locked(done / "cells" / ".run"), pytest.raises(InputError, match=rf"^Expected {done} to be nobody else's"):
        command.measured(reproduction(done), "")


# --- what is not run, and why -------------------------------------------------------------------------------------


def reasons(out: Path, *members: Cell, how: Presets | None = tiny) -> list[str]:
    assert not command.measured(reproduction(out, table(*members), how), "").complete
    result = rows(out)
    assert set(result.status) == {"not run"} and not results_in(out)
    return list(result.reason)


def test_why_a_cell_is_not_run_is_found_out(tmp_path: Path) -> None:
    members = (
        cell("no_method"),
        cell("fedavg", "no_data"),
        cell("fedavg", value=None),
        replace(cell("fedprox", value=None), note="not supported"),
    )
    assert reasons(tmp_path, *members) == [
        "method no_method is not in this version",
        "data set no_data is not in this version",
        "paper value not available",
        "paper value not available (not supported)",
    ]
    assert reasons(tmp_path, cell("fedavg"), how=None) == ["no preset for tiny.1 in this version"]


@pytest.fixture
def _no_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "fetch", lambda name, data_root=None: None)


@pytest.mark.usefixtures("_no_downloads")
def test_missing_data_are_said_in_the_data_s_own_line(tmp_path: Path) -> None:
    given = Experiment(engine="inproc", data_root=tmp_path / "nothing")
    members = table(cell("fedavg", "cifar10"), cell("fedprox", "cifar10"))
    out = tmp_path / "out"
    shown = command.measured(Reproduction(members, tiny, "quick", given, out), "")
    assert not shown.complete
    assert all(re.match(r"Expected a data root with .*got data_root=", reason) for reason in rows(out).reason)
    assert re.findall(r"^\[\d+\]", shown.text, re.MULTILINE) == ["[1]"]  # equal reasons share a number


@pytest.mark.slow
@pytest.mark.usefixtures("_no_downloads")
@pytest.mark.parametrize("name", ["dcs2.1", "dcs2.2"])
def test_a_table_whose_numbers_are_lost_says_so_and_is_measured_all_the_same(name: str, tmp_path: Path) -> None:
    given = Experiment(engine="inproc", out=tmp_path, data_root=tmp_path / "nothing")
    shown = measured(name, "", "quick", given)
    assert not shown.complete and "paper value not available" in shown.text
    assert "paper value not available" in (tmp_path / f"{name}-quick.md").read_text()
    result = pd.read_csv(tmp_path / f"{name}-quick.csv", keep_default_na=False)
    assert len(result) == len(published.table(name).cells)
    assert all(reason.startswith("Expected a data root") for reason in result.reason)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dcs2.1", "dcs2.2"])
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_every_row_of_the_lost_tables_is_an_experiment_that_can_be_resolved(name: str, scale: Any) -> None:
    make = presets(name)
    assert make is not None
    chosen = [make(subject, scale) for subject in published.table(name).cells]
    for experiment in {preset.experiments[0] for preset in chosen}:
        checked(plan(experiment))
    searched = [preset.experiments[0] for preset in chosen if preset.experiments[0].attacks]
    assert all(("dcs2" in run.attack) == (run.defence == "none" or "dcs2" in run.defence) for run in searched)
    assert {run.images for run in searched} == ({4} if scale == "quick" else {64})
    ggl = [one.experiments[0] for preset in chosen for one in preset.further if one.name == "ggl"]
    assert len(ggl) == (len(searched) if name == "dcs2.2" else 0)
    for experiment in ggl:
        checked(plan(experiment))
        assert experiment.attack == ("generator",) and "generator.space=latent" in experiment.set
        assert not any(setting.startswith("ig.") for setting in experiment.set)
    runs = [preset.experiments[0] for preset in chosen]
    colour = {run.net for run in runs if run.dataset != "mnist"}
    assert colour == ({"lenet"} if scale == "quick" else {"convnet32"})
    assert {run.net for run in runs if run.dataset == "mnist"} <= {"lenet"}
    concealing = [run for run in runs if "dcs2" in run.defences]
    steps = {(bool(run.attacks), setting) for run in concealing for setting in run.set if "dcs2.steps" in setting}
    trained = {(False, "dcs2.steps=20")} if name == "dcs2.1" else set()
    assert steps == ({(True, "dcs2.steps=100"), *trained} if scale == "quick" else set())


@pytest.mark.slow
@pytest.mark.usefixtures("_no_downloads")
@pytest.mark.parametrize("name", ["hyperfl.1", "fedcg.1", "fedcg.2", "hyperfl.3", "hyperfl.5", "fed_cdp.2"])
def test_a_real_table_s_reasons_agree_with_what_there_is(name: str, tmp_path: Path) -> None:
    given = Experiment(engine="inproc", data_root=tmp_path / "nothing", out=tmp_path / "out")
    assert not measured(name, "", "quick", given).complete
    result = pd.read_csv(tmp_path / "out" / f"{name}-quick.csv", keep_default_na=False)
    assert len(result) == len(published.table(name).cells) and set(result.status) == {"not run"}
    make = presets(name)
    for reason, subject in zip(result.reason, published.table(name).cells, strict=True):
        if subject.value is None:
            assert reason.startswith("paper value not available")
        elif make is None:
            assert reason == f"no preset for {name} in this version"
        else:
            first = make(subject, "quick").experiments[0]
            there = first.method in plugins.names(plugins.METHOD), first.dataset.partition(":")[0] in data.names()
            names = (f"method {first.method} ", f"data set {first.dataset} ")
            expected = next((name for name, has in zip(names, there, strict=True) if not has), "Expected ")
            assert reason.startswith(expected)


# --- flags --------------------------------------------------------------------------------------------------------


def test_flags_that_decide_numbers_are_refused_beside_a_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^Expected only flags that decide no numbers beside --table, got rounds=3;"):
        measured("hyperfl.1", "", "quick", Experiment(rounds=3, out=tmp_path))
    assert not list(tmp_path.iterdir())


def test_flags_that_decide_none_reach_the_runs(tmp_path: Path) -> None:
    given = Experiment(engine="inproc", round_deadline=77, out=tmp_path / "ignored")
    for run in cells.placed(tiny(cell("fedavg"), "quick"), given, tmp_path / "cells").experiments:
        assert (run.engine, run.round_deadline) == ("inproc", 77)
        assert run.out is not None and run.out.parent == tmp_path / "cells"


@pytest.mark.slow
@pytest.mark.usefixtures("_no_downloads")
def test_a_cell_s_path_names_its_table(tmp_path: Path) -> None:
    given = Experiment(engine="inproc", out=tmp_path, data_root=tmp_path / "nothing")
    shown = measured("", "dcs2.1", "quick", given)
    assert not shown.complete and "Defences against the GS attack" in shown.text
    with pytest.raises(InputError, match=r"Expected a cell among hyperfl\.3; got --cell hyperfl\.1/FedAvg"):
        measured("hyperfl.3", "hyperfl.1/FedAvg", "quick", given)


# --- what is read from results ------------------------------------------------------------------------------------


def completed(folder: Path, figures: Mapping[str, Any], notes: tuple[str, ...] = ()) -> None:
    """A run folder as a finished run leaves it, with these figures."""
    folder.mkdir(parents=True)
    result = {"final": figures, "notes": notes, "provenance": {"code": code_hash()}}
    (folder / "result.json").write_text(json.dumps(result))


def fake(tmp_path: Path, *variants: tuple[Mapping[str, Any], ...], by: ResultMetric | None = None) -> Preset:
    """A preset whose runs are all over: for each variant the figures of each seed."""
    runs = tuple(
        tuple(Experiment(seed=seed, lr=lr, out=tmp_path / f"{lr}-{seed}") for seed in range(len(seeds)))
        for lr, seeds in enumerate(variants, 1)
    )
    for run, figures in zip([r for v in runs for r in v], [f for v in variants for f in v], strict=True):
        assert run.out is not None
        completed(run.out, figures, ("A note.",))
    return Preset(runs, ResultMetric("final.test", "test accuracy"), chosen_by=by)


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    outcome = cells.read(cell("fedavg"), fake(tmp_path, ({"test": 0.1}, {"test": 0.2}, {"test": 0.6})))
    assert outcome.value == pytest.approx(30)
    assert outcome.deviation == pytest.approx(700**0.5)  # (20^2 + 10^2 + 30^2) / 2
    assert outcome.notes == ("A note.",)


LIST = [{"attack": "ig", "round": 0, "psnr": 1.0}, {"attack": "ig", "round": 2, "psnr": 2.0}, {"round": 2, "psnr": 6.0}]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("final.of.attack=ig,round=2.psnr", 2.0),
        ("final.of.round=0.psnr", 1.0),
        ("final.of.*.psnr", 3.0),
        ("final.of.attack=ig.psnr", None),  # two entries
        ("final.of.round=5.psnr", None),
        ("final.of.attack!=ig.psnr", 6.0),
        ("final.of.attack=None,round=2.psnr", 6.0),  # without one
        ("final.of.round!=5.psnr", None),  # three entries
        ("final.of.*.attack", None),  # words, and one without
        ("final.of.psnr=1.0,round=0.attack", None),  # a word
    ],
)
def test_a_figure_in_a_list_is_found_by_what_stands_beside_it(tmp_path: Path, name: str, value: float | None) -> None:
    preset = replace(fake(tmp_path, ({"of": LIST},)), figure=ResultMetric(name, "a figure", 1))
    if value is None:
        assert cells.measured(cell("fedavg"), preset).reason.endswith(f"has no {name}.")
    else:
        assert cells.read(cell("fedavg"), preset).value == value


def test_the_variant_ours_stands_beside_the_authors(tmp_path: Path) -> None:
    both = fake(
        tmp_path, ({"test": 0.1}, {"test": 0.3}), ({"test": 0.5}, {"test": 0.9}), by=ResultMetric("final.test", "t")
    )
    authors, ours = both.choices
    outcome = cells.read(cell("fedavg"), Preset((authors,), both.figure, beside=ours))
    assert outcome.value == pytest.approx(20) and outcome.also == {cells.OURS: pytest.approx(70)}
    assert outcome.runs == authors  # what is beside counts for nothing else


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("hyperfl.1/HyperFL/Fashion-MNIST/20", {"variant": "authors"}),
        ("hyperfl.1/FedAvg/Fashion-MNIST/20", {}),
        ("fedcg.1/FedGen/FMNIST/4", {"variant": "authors"}),
        ("fed_cdp.5/Cancer/6", {"variant": "authors", "normalise": "none", "init": "glorot"}),
        ("fed_cdp.2/non-private/100/0.1", {"normalise": "none", "init": "glorot", "example_order": "fixed"}),
        ("fed_cdp.7/non-private/MNIST/type 2/succeed", {"normalise": "none", "example_order": "fixed"}),
    ],
)
def test_tables_run_the_authors_variant_and_ours_only_where_it_differs(
    tmp_path: Path, path: str, changed: dict[str, str]
) -> None:
    table = published.table(path.partition("/")[0])
    whole = Reproduction(table, presets(table.name), "quick", Experiment(), tmp_path)
    outcome = next(iter(whole.outcomes(table.select(path))))[table.select(path)[0].path]
    assert outcome.preset is not None
    run, plain = outcome.preset.choices[0][0], preset_of(path, "quick").choices[0][0]
    assert {name: getattr(run, name) for name in changed} == changed
    same = ("variant", "normalise", "init", "example_order")
    assert all(getattr(run, name) == getattr(plain, name) for name in same if name not in changed)
    assert len(outcome.preset.beside) == (len(outcome.preset.choices[0]) if changed else 0)
    assert all(one.variant == "ours" and one.init == "torch" for one in outcome.preset.beside)


def test_a_number_that_says_nothing_is_marked_with_the_reason(tmp_path: Path) -> None:
    preset = fake(tmp_path, ({"test": 0.1},))
    folder = preset.choices[0][0].out
    assert folder is not None
    stored = {"sentence": "", "obstacle": "it moves by 0.096", "classes": 10, "largest_class": 0.1}
    (folder / "reach.json").write_text(json.dumps(stored))
    result = json.loads((folder / "result.json").read_text())
    result["final"]["acc_global"] = 0.127
    (folder / "result.json").write_text(json.dumps(result))
    outcome = cells.read(cell("fedavg"), preset)
    shown = layout.markdown(sheet(published.table("hyperfl.1"), [outcome], "quick"))
    reason = "it moves by 0.096, and the accuracy is that of guessing"
    assert outcome.uninformative == reason and f"? uninformative: {reason} (" in shown
    assert "10.00?" in shown.replace("*", "")


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    assert cells.read(cell("fedavg"), fake(tmp_path, ({"test": 0.1},))).deviation is None


def test_an_epsilon_that_is_infinite_is_a_number(tmp_path: Path) -> None:
    outcome = cells.read(cell("fedavg"), fake(tmp_path, ({"test": 0.5}, {"test": "inf"})))
    assert (outcome.value, outcome.deviation) == (float("inf"), None)
    assert number(outcome.value, "") == "inf"


def test_what_a_result_may_lack_is_a_word_or_left_out(tmp_path: Path) -> None:
    preset = fake(tmp_path, ({"test": 0.1, "one": 0.5}, {"test": 0.3}))
    one = ResultMetric("final.one", "one", 1, absent="")
    both = (ResultMetric("final.test", "test", 1, absent=""), one, replace(one, absent="no such thing"))
    outcome = cells.read(cell("fedavg"), replace(preset, also=both[:2]))
    assert outcome.also == {"final.test": pytest.approx(0.2)}
    outcome = cells.read(cell("fedavg"), replace(preset, figure=both[2]))
    assert (outcome.value, outcome.deviation) == ("no such thing", None)


def test_the_variant_that_counts_is_the_best_by_validation_and_not_by_test(tmp_path: Path) -> None:
    preset = fake(
        tmp_path,
        ({"val": 0.5, "test": 0.9}, {"val": 0.5, "test": 0.9}),
        ({"val": 0.9, "test": 0.3}, {"val": 0.4, "test": 0.5}),  # mean validation 0.65, the best
        ({"val": 0.6, "test": 0.8}, {"val": 0.6, "test": 0.8}),
        by=ResultMetric("final.val", "validation accuracy"),
    )
    outcome = cells.read(cell("fedprox"), preset)
    assert outcome.value == pytest.approx(40)
    assert [run.lr for run in outcome.runs] == [2, 2]


@pytest.mark.parametrize("figures", [{}, {"test": None}, {"test": "high"}])
def test_a_result_without_the_figure_is_a_failure(tmp_path: Path, figures: Mapping[str, Any]) -> None:
    outcome = cells.measured(cell("fedavg"), fake(tmp_path, (figures,)))
    assert outcome.status == "failed"
    assert outcome.reason == f"{tmp_path / '1-0' / 'result.json'} has no final.test."


@pytest.mark.parametrize(("weights", "status"), [(None, "not run"), (Path("alex.pth"), "failed")])
def test_lpips_without_weights_was_not_measured(tmp_path: Path, weights: Path | None, status: str) -> None:
    preset = fake(tmp_path, ({"lpips": None},))
    runs = tuple(replace(run, lpips_weights=weights) for run in preset.choices[0])
    preset = replace(preset, choices=(runs,), figure=ResultMetric("final.lpips.mean", "LPIPS", 1))
    outcome = cells.measured(cell("fedavg"), preset)
    assert outcome.status == status
    assert ("--lpips-weights" in outcome.reason) == (weights is None)


def test_a_damaged_result_is_a_failure(tmp_path: Path) -> None:
    preset = fake(tmp_path, ({"test": 1},))
    (tmp_path / "1-0" / "result.json").write_text("{")
    outcome = cells.measured(cell("fedavg"), preset)
    assert outcome.status == "failed" and "remove its folder" in outcome.reason


# --- what is shown ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "std", "text"),
    [
        (63.6, "%", None, "63.60"),
        (79.66, "%", 0.55, "79.66±0.55"),
        (16.16, "dB", None, "16.16"),
        (0.8227, "", None, "0.8227"),
        (37, "", None, "37"),
        (60000, "", None, "60000"),
        (0.123456, "", 0.0123, "0.1235±0.012"),
        ("Y", "", None, "Y"),
        (None, "%", None, "none"),
    ],
)
def test_a_number_is_printed_as_papers_do(value: Any, unit: str, std: float | None, text: str) -> None:
    assert number(value, unit, std) == text


def outcomes() -> list[Outcome]:
    """A table with everything that can be shown, in signs that Markdown and LaTeX read otherwise."""
    preset = tiny(cell("fedavg"), "quick")
    return [
        Outcome(cell("a_b", "x & y", 70.02), "measured", "", preset, 61.41, 0.5, {"final.acc_local": 66.1}),
        Outcome(cell("a_b", "z|w", 1.0), "not run", "method m_1 is not in this version", preset),
        Outcome(cell("50% {c}", "x & y", None), "failed", 'client 3 < 4: #1 | ~^\\ "$"', preset, notes=()),
        Outcome(cell("50% {c}", "v", 3.0), "not run", "method m_1 is not in this version", None),
    ]


def laid_out() -> Sheet:
    return sheet(table(*(outcome.cell for outcome in outcomes())), outcomes(), "quick")


def test_the_terminal_shows_published_above_measured() -> None:
    lines = layout.terminal(laid_out(), 120).splitlines()
    assert lines[:2] == ["tiny.1  A tiny table", "Nobody et al., 2026."]
    assert "Columns: dataset; numbers: accuracy (%)" in lines
    assert "QUICK: 2 seeds, 2 rounds of 1 epoch; not the paper's settings; departures: papers/tiny.py" in lines
    row = next(index for index, line in enumerate(lines) if line.startswith("a_b"))
    assert re.fullmatch(r"a_b +paper 70\.02 +paper 1\.00", lines[row])
    assert re.fullmatch(r" +ours 61\.41 +not run \[1\]", lines[row + 1])
    assert [line.strip() for line in lines[row + 2 : row + 4]] == ["±0.50", "a 66.10"]
    assert re.fullmatch(r" +failed \[2\] +not run \[1\]", lines[row + 5])
    assert "[1] method m_1 is not in this version" in lines


@pytest.mark.parametrize("scale", ["quick", "full"])
@pytest.mark.parametrize(("name", "columns"), [("hyperfl.1", 8), ("fedcg.1", 6)])
def test_all_columns_of_measured_numbers_stand_side_by_side(name: str, columns: int, scale: Scale) -> None:
    given, std = published.table(name), None if scale == "quick" else 0.432
    shown = [
        Outcome(member, "measured", "", None, 61.411, std, {"x": 61.4}, codes=("older",)) for member in given.cells
    ]
    lines = layout.terminal(sheet(given, shown, scale), 120).splitlines()
    row = given.cells[0].row[0]
    assert [line.count("paper ") for line in lines if line.startswith(f"{row} ")] == [columns]
    assert "".join(lines).count("*") == len(given.cells) + 1  # and the footnote


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("name", published.names())
def test_the_widest_table_fits_the_terminal(name: str, width: int) -> None:
    given = published.table(name)
    shown = [Outcome(member, "not run", f"reason {member.row}") for member in given.cells]
    whole = layout.terminal(sheet(given, shown, "full"), width)
    assert max(map(len, whole.splitlines())) <= width
    assert whole.count("paper ") >= len(given.cells) and "…" not in whole
    assert whole.count("not run [") == len(given.cells)


def test_a_block_that_is_too_wide_goes_on_below() -> None:
    lines = layout.terminal(laid_out(), 40).splitlines()
    assert sum(line.startswith("a_b") for line in lines) == 2
    assert max(map(len, lines)) <= 40


def test_markdown_has_as_many_columns_in_each_row() -> None:
    text = layout.markdown(laid_out())
    grid = [line for line in text.splitlines() if line.startswith("|")]
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in grid}
    assert bars == {5} and len(grid) == 4
    assert grid[2] == "| a_b | 70.02 / **61.41±0.50** (also a 66.10) | 1.00 / not run [1] |  |"


def test_latex_is_balanced_and_has_as_many_columns_in_each_row() -> None:
    text = layout.latex(laid_out())
    assert "QUICK: 2 seeds" in text
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert body[0] == r"\begin{tabular}{lrrr}" and r"\end{tabular}" in body
    between = body[body.index(r"\toprule") + 1 : body.index(r"\bottomrule")]
    assert [line for line in between if not line.endswith(r" \\")] == [r"\midrule"]
    ampersands = {len(re.findall(r"(?<!\\)&", line)) for line in between if line != r"\midrule"}
    assert ampersands == {3}
    bare = re.sub(r"\\[&%$#_{}]", "", "\n".join(body))  # without escaped signs
    assert bare.count("{") == bare.count("}")
    assert not re.search(r"[%#~^<>|\"]", bare) and bare.count("$") == 2 * bare.count(r"$\pm$")
    assert "_" not in bare


def test_csv_has_a_row_for_every_cell() -> None:
    given = published.table("fed_cdp.6")
    text = layout.csv(given, [Outcome(member, "not run", 'a, "quoted" reason') for member in given.cells], "full")
    read = pd.read_csv(io.StringIO(text))
    assert len(read) == 40 and set(read.reason) == {'a, "quoted" reason'}
    assert list(read.columns[:4]) == ["table", "row", "dataset", "metric"]
    assert read.published.isna().sum() == 10 and read.row[0] == "Fed-CDP instance 1"


def test_notes_of_runs_name_their_cells() -> None:
    shown = [replace(outcome, notes=("Not the original data.",)) for outcome in outcomes()]
    (line,) = [line for line in sheet(table(), shown, "quick").footnotes if line.startswith("Not the")]
    assert line == "Not the original data. (tiny.1/a_b/x & y/accuracy, tiny.1/a_b/z|w/accuracy, " + (
        "tiny.1/50% {c}/x & y/accuracy and 1 more)"
    )


def test_tables_are_found_where_only_the_package_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout also has a folder papers/ on the path; an installed package has flfw.papers alone."""
    monkeypatch.setitem(sys.modules, "papers", None)
    published._tables.cache_clear()
    cell = published.table("hyperfl.1").cells[0]
    make = presets(cell.table)
    assert make is not None and varied(make(cell, "quick"), cell.table, "authors").source == "run"
