"""Data that only the sites of a federation have: what their name says, what each site reads, a run without any data."""

import csv
import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from PIL import Image
from torch.nn.functional import cross_entropy

import sim
from flfw import data, nets
from flfw.data.splits import partition, schemes
from flfw.dp.resolve_noise import resolve_noise
from flfw.dp.run_accountant import RunAccountant
from flfw.engines import apps
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import unpack
from flfw.plans.run_plan import plan
from flfw.rng import initialising
from flfw.runs import run
from flfw.runs.run import check as run_check
from flfw.server.checkpoint import Checkpoints, require_same_data
from tests.support.pictures import noise, save

NAME = "site:1x6x8:2"
GREY, COLOUR = (6, 8), (3, 12, 10)


@pytest.fixture(autouse=True)
def _no_data_but_the_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no data root of its own finds nothing anywhere."""
    monkeypatch.setenv("FLFW_DATA", str(tmp_path / "nowhere"))


def written(root: Path, size: tuple[int, ...] = GREY, count: int = 7, classes: Sequence[str] = ("cat", "dog")) -> Path:
    """A site's data: ``count`` images of each class, no two alike, whose grey levels tell the classes apart."""
    for label, name in enumerate(classes):
        for number in range(count):
            pixels = np.roll(noise(*size), 11 * number + label) // 2 + 120 * (label % 2)
            save(root / name / f"{number:02}.png", pixels.astype(np.uint8))
    return root


def asked(tmp_path: Path, **changes: object) -> Experiment:
    plain = Experiment(
        method="fedavg", dataset=NAME, net="linear", clients=2, rounds=1, local_epochs=1, batch_size=1000,
        lr=0.5, attack=("none",), federation=tmp_path / "federation", out=tmp_path / "run",
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def trained(experiment: Experiment, roots: Sequence[Path], **chosen: str) -> Experiment:
    """The run in its folder up to ``training.json``: both Flower apps in this process, with a data root for each.

    It is what `flfw.runs.run.run` does, with another way to the sites than Flower's SuperLink.
    """
    run_plan, task, _ = run.check(experiment)
    checked = run_plan.experiment
    assert checked.out is not None
    checked.out.mkdir()
    Checkpoints(checked.out, checked)
    require_same_data(checked.out, task.dataset.digest)
    config = checked.to_run_config()
    nodes = [{"data-root": str(root), **chosen} for root in roots]
    server = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=dict(config))
    apps.server(grid=InProcessGrid(apps.client, len(roots), config, nodes), context=server)
    return checked


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    apps._own_space.cache_clear()


# --- the name -------------------------------------------------------------------------------------------------------


def test_the_name_alone_makes_the_card() -> None:
    card = data.describe(NAME)
    assert (card.shape, card.classes, card.split, card.files) == ((1, 6, 8), 2, "dataset_per_client", {})
    assert (card.mean, card.std) == ((0.5,), (0.5,)) and "normalised with 0.5 and 0.5" in card.source
    assert data.describe("site:3x32x32:7").mean == (0.5, 0.5, 0.5)
    nets_of = {name: data.describe(f"site:{name}:7").net for name in ("1x28x28", "3x32x32", "3x28x28", "1x6x8", "5")}
    assert nets_of == {"1x28x28": "cnn1", "3x32x32": "cnn2", "3x28x28": "lenet", "1x6x8": "lenet", "5": "mlp"}
    assert data.describe("site:5:3").shape == (5,)
    assert data.title(NAME) == NAME and data.absolute(NAME) == NAME


@pytest.mark.parametrize("net", ["linear", "lenet"])
def test_the_networks_fit_what_the_name_says(net: str) -> None:
    experiment = Experiment(dataset=NAME, net=net, split="dataset_per_client")
    assert plan(experiment).task.input_space == ((1, 6, 8), 2)
    assert nets.build(net, *plan(experiment).task.input_space)(torch.zeros(3, 1, 6, 8)).shape == (3, 2)


@pytest.mark.parametrize(
    "word", ["", "28x28:10", "2x28x28:10", "1x28x28", "1x28x28:1", "1x0x28:10", "1x28x28:10:2", "0:2", "5:1", "photos"]
)
def test_other_names_are_refused(word: str) -> None:
    with pytest.raises(InputError) as caught:
        data.describe(f"site:{word}")
    message = (
        "Expected site:CxHxW:CLASSES, of images with C = 1 or 3 channels, or site:D:CLASSES, of rows of D numbers, "
    )
    message += f"and two classes or more, got site:{word}; for example site:1x28x28:10."
    assert str(caught.value) == message


def test_it_is_said_where_data_sets_are() -> None:
    places = r"folder:PATH, csv:FILE@TARGET, parquet:FILE@TARGET, text:FILE, hf:NAME, site:CxHxW:CLASSES or "
    places += r"package.module:CARD"
    with pytest.raises(InputError, match=rf"^Got dataset=sites:x; did you mean site\? .* {places}\.$"):
        data.describe("sites:x")


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [("5", "sensitive classes in 0..1"), ("at:3", "positions of the defended clients"), ("last:1001", "M <= 1000")],
)
def test_sensitive_samples_are_checked_without_the_data(tmp_path: Path, rule: str, complaint: str) -> None:
    settings = (f"dcs2.sensitive={rule}",)
    with pytest.raises(InputError, match=complaint):
        run_check(asked(tmp_path, defence="dcs2", set=settings))
    run_check(asked(tmp_path, defence="dcs2", set=("dcs2.sensitive=1",)))


# --- a site's own process -------------------------------------------------------------------------------------------


def grey(path: Path) -> np.ndarray:
    """(1, 6, 8): an image as every site must have it, by PIL."""
    with Image.open(path) as image:
        return np.asarray(image.convert("L").resize((8, 6), Image.Resampling.BILINEAR))[None]


@pytest.mark.parametrize("size", [GREY, COLOUR, (3, 6, 8), (5, 9)])
def test_images_become_what_the_name_says(tmp_path: Path, size: tuple[int, ...]) -> None:
    root = written(tmp_path / "own", size)
    chosen = data.load(NAME, root)
    train = [f"{name}/{number:02}.png" for number in (0, 2, 3, 4, 5) for name in ("cat", "dog")]
    test = [f"{name}/{number:02}.png" for number in (1, 6) for name in ("cat", "dog")]
    np.testing.assert_array_equal(chosen.train_x, [grey(root / file) for file in train])
    np.testing.assert_array_equal(chosen.test_x, [grey(root / file) for file in test])
    assert chosen.train_y.tolist() == [0, 1] * 5 and chosen.test_y.tolist() == [0, 1] * 2
    assert (chosen.name, chosen.mean, chosen.std, chosen.md5_ok) == (NAME, (0.5,), (0.5,), None)


def test_images_become_rgb_and_of_the_networks_side(tmp_path: Path) -> None:
    root = written(tmp_path / "own")
    assert data.load("site:3x6x8:2", root).shape == (3, 6, 8)
    chosen = data.load("site:3x6x8:2", root, side=4)
    with Image.open(root / "cat" / "00.png") as image:
        expected = np.asarray(image.convert("RGB").resize((4, 4), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(chosen.train_x[0], expected)


def test_parts_of_their_own_are_kept(tmp_path: Path) -> None:
    written(tmp_path / "own" / "train", count=3)
    written(tmp_path / "own" / "test", count=2)
    chosen = data.load(NAME, tmp_path / "own")
    assert (len(chosen.train_y), len(chosen.test_y)) == (6, 4)


def test_every_client_of_a_site_holds_all_of_it(tmp_path: Path) -> None:
    root = written(tmp_path / "own")
    task = plan(asked(tmp_path, clients=5, split="dataset_per_client")).task.load(root)
    assert task.has_data and len(task.split.train) == len(task.split.test) == len(task.split.validation) == 5
    for client in range(5):
        assert task.split.train[client].tolist() == list(range(10))
        held = [*task.split.validation[client], *task.split.test[client]]
        assert len(task.split.test[client]) == 2 and sorted(held) == [0, 1, 2, 3]
    assert task.split.train[4] is task.split.train[0]  # not a copy for each site there is


def test_what_comes_and_goes_is_noticed(tmp_path: Path) -> None:
    root = written(tmp_path / "own", count=7)
    assert len(data.load(NAME, root).train_y) == 10
    save(root / "cat" / "99.png", noise(*GREY))
    assert len(data.load(NAME, root).train_y) == 11


@pytest.mark.parametrize(
    ("name", "classes", "message"),
    [
        ("site:1x6x8:3", ("cat", "dog"), r"^Expected 3 classes, a folder of images each, got 2 in \S+/own; set the "),
        ("site:1x6x8:3", ("a", "b", "c", "d"), r"^Expected 3 classes, a folder of images each, got 4 in \S+/own; "),
        ("site:5:2", ("cat", "dog"), r"^Expected train.csv and test.csv, or rows.csv, got \S+/own without; set the "),
        (NAME, ("cat",), r"^Expected one folder of images per class, or .* two classes or more, got \S+/own with cat"),
    ],
)
def test_data_of_another_kind_are_refused_in_one_line(
    tmp_path: Path, name: str, classes: Sequence[str], message: str
) -> None:
    root = written(tmp_path / "own", classes=classes)
    for refusing in (data.here, data.load):
        with pytest.raises(InputError, match=message) as caught:
            refusing(name, root)
        assert "\n" not in str(caught.value)


def test_a_data_root_that_is_not_there_is_named(tmp_path: Path) -> None:
    for root, named in ((tmp_path / "gone", "gone"), (None, "nowhere")):
        with pytest.raises(
            InputError, match=rf"of this site's own in \S+/{named}, got no folder there; set the site's"
        ):
            data.load(NAME, root)


# --- rows -----------------------------------------------------------------------------------------------------------


def test_rows_of_one_table_are_parted_by_class(tmp_path: Path) -> None:
    lines = [f"0.{number},{number / 20},{number % 2}" for number in range(9)]  # 5 rows of class 0 and 4 of class 1
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    chosen = data.load("site:2:2", tmp_path)
    test = [2, 3]  # the second of each class, and there is no seventh
    train = [0, 1, 4, 5, 6, 7, 8]
    np.testing.assert_allclose(chosen.test_x, [[number / 10, number / 20] for number in test], rtol=1e-6)
    np.testing.assert_allclose(chosen.train_x, [[number / 10, number / 20] for number in train], rtol=1e-6)
    assert chosen.train_y.tolist() == [0, 1, 0, 1, 0, 1, 0] and chosen.test_y.tolist() == [0, 1]
    assert chosen.train_x.dtype == np.float32 and chosen.mean == (0.5, 0.5)


def test_rows_of_two_tables_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("0,1,0\n1,0.25,2\n0,0,1\n")
    (tmp_path / "test.csv").write_text("0.5,0.5,2\n0,1,0\n")
    chosen = data.load("site:2:3", tmp_path)
    assert chosen.train_x.tolist() == [[0, 1], [1, 0.25], [0, 0]] and chosen.train_y.tolist() == [0, 2, 1]
    assert chosen.test_x.tolist() == [[0.5, 0.5], [0, 1]] and chosen.test_y.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n", r"^Expected lines of 2 numbers and a class in \S+/rows.csv, got 1; set the site's data root"),
        ("", r"^Expected lines of 2 numbers and a class in \S+/rows.csv, got 0; "),
        ("0,1,0\n0,1.5,1\n", r"2 numbers in \[0, 1\] and a class of 0 to 2 in \S+/rows.csv, got another in line 2; "),
        ("0,1,0\n0,nan,1\n", r"got another in line 2; scale the numbers"),
        ("0,1,0\n0,1,1\n0,1,3\n", r"got another in line 3; scale the numbers"),
        ("0,1,0.5\n", r"got another in line 1; scale the numbers"),
        ("age,bmi,class\n", r"^Expected lines of numbers in \S+/rows.csv, got others: could not convert string 'age'"),
        ("#0,1,0\n0,1,0\n", r"^Expected lines of numbers in \S+/rows.csv, got others: could not convert string '#0'"),
        ("0,1,0\n0,1\n", r"^Expected lines of numbers in \S+/rows.csv, got others: the number of columns changed"),
    ],
)
def test_other_rows_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        data.load("site:2:3", tmp_path)
    assert "\n" not in str(caught.value)


# --- the split ------------------------------------------------------------------------------------------------------


def test_whole_is_everything_of_one_client_and_refused_for_more() -> None:
    digits = data.load("digits")
    chosen = partition.split(digits, schemes.DatasetPerClient(), clients=1, seed=0)
    assert sorted(chosen.train[0]) == list(range(len(digits.train_y)))
    assert sorted([*chosen.validation[0], *chosen.test[0]]) == list(range(len(digits.test_y)))
    assert len(chosen.validation[0]) - len(chosen.test[0]) in (0, 1)
    with pytest.raises(InputError) as caught:
        partition.split(digits, schemes.DatasetPerClient(), clients=2, seed=0)
    message = "Expected clients=1 with split=dataset_per_client, as all of digits is one client's; "
    message += "choose another --split, got clients=2."
    assert str(caught.value) == message


# --- a run ----------------------------------------------------------------------------------------------------------


def stepped(root: Path, numbers: Sequence[int], seed: int) -> tuple[list[torch.Tensor], int]:
    """A client's linear model after one step on all its training images; and their number."""
    files = [(name, number) for name in ("cat", "dog") for number in numbers]
    x = torch.from_numpy(np.stack([grey(root / name / f"{number:02}.png") for name, number in files])).float() / 255
    y = torch.tensor([int(name == "dog") for name, _ in files])
    with initialising(seed, "model"):
        net = nets.build("linear", (1, 6, 8), 2)
    result = torch.autograd.grad(cross_entropy(net((x - 0.5) / 0.5), y), list(net.parameters()))
    return [p.detach() - 0.5 * g for p, g in zip(net.parameters(), result, strict=True)], len(files)


def test_a_round_is_the_mean_over_sites_weighted_by_their_sizes(tmp_path: Path) -> None:
    here, there = written(tmp_path / "a", GREY, count=7), written(tmp_path / "b", COLOUR, count=12)
    experiment = trained(asked(tmp_path, set=("weight_decay=0",)), [here, there])
    one, few = stepped(here, (0, 2, 3, 4, 5), experiment.seed)
    other, many = stepped(there, (0, 2, 3, 4, 5, 7, 8, 9, 10), experiment.seed)
    assert (few, many) == (10, 18)
    expected = [(few * a + many * b) / (few + many) for a, b in zip(one, other, strict=True)]
    assert experiment.out is not None
    last = Checkpoints(experiment.out, experiment).last
    assert last is not None
    for value, known in zip(unpack(last.arrays).values(), expected, strict=True):
        torch.testing.assert_close(value, known, rtol=1e-5, atol=1e-6)


def test_everything_is_written_without_data(tmp_path: Path) -> None:
    roots = [written(tmp_path / "a", count=7), written(tmp_path / "b", count=12)]
    experiment = trained(asked(tmp_path, patience=1), roots)
    for root in roots:
        shutil.rmtree(root)
    out = experiment.out
    assert out is not None
    assert run.resume(run.stored(out)) == out  # the training is over: what is left is to write
    result = json.loads((out / "result.json").read_text())
    details = {"name": NAME, "md5_ok": None, "digest": None, "licence": "unknown", "citation": "unknown"}
    details |= {"classes": 2, "mean": [0.5], "std": [0.5], "shape": [1, 6, 8], "reading": None}
    details["source"] = "the sites' own images, which only they have; normalised with 0.5 and 0.5"
    assert result["provenance"]["data"] == details
    assert (result["privacy"], result["audit"], result["config"]["split"]) == ([], [], "dataset_per_client")
    assert len(result["rounds"]) == 1 and result["final"]["best_validation"] is not None
    with (out / "clients.csv").open() as file:
        assert [int(row["num-examples"]) for row in csv.DictReader(file)] == [10, 18]
    assert [row["num-examples"] for row in result["final"]["per_client"]] == [2, 3]  # half of 4 and of 6
    assert "which only they have" in (out / "report.html").read_text()
    assert run.resume(run.stored(out)) == out


def test_private_tensors_and_rows_work_alike(tmp_path: Path) -> None:
    for site, rows in (("a", 12), ("b", 30)):
        (tmp_path / site).mkdir()
        lines = [f"0.{number % 7},0.{number % 5},{number % 2}" for number in range(rows)]
        (tmp_path / site / "rows.csv").write_text("\n".join(lines))
    experiment = asked(tmp_path, method="fedper", dataset="site:2:2", net="mlp", rounds=2)
    trained(experiment, [tmp_path / "a", tmp_path / "b"], state=str(tmp_path / "state"))
    training = json.loads((tmp_path / "run" / "training.json").read_text())
    assert [row["num-examples"] for row in training["clients"]] == [10, 24] * 2  # of 6 a class one, of 15 three


@pytest.mark.parametrize("method", ["fed_cdp", "fed_sdp"])
def test_a_noisy_method_runs_on_the_sites_own_data_and_claims_nothing_itself(tmp_path: Path, method: str) -> None:
    roots = [written(tmp_path / "a", count=7), written(tmp_path / "b", count=12)]
    experiment = trained(asked(tmp_path, method=method, set=("noise_source=secure",), rounds=2), roots)
    assert experiment.out is not None
    assert run.resume(run.stored(experiment.out)) == experiment.out
    result = json.loads((experiment.out / "result.json").read_text())
    assert result["privacy"] == [] and len(result["rounds"]) == 2


def test_a_site_with_other_classes_is_refused_by_name(tmp_path: Path) -> None:
    roots = [written(tmp_path / "a"), written(tmp_path / "b", classes=("cat", "dog", "emu"))]
    with pytest.raises(RunError) as caught:
        trained(asked(tmp_path), roots)
    message = f"client 1 failed in node assignment: Expected 2 classes, a folder of images each, got 3 in {roots[1]}; "
    assert str(caught.value).startswith(message + "set the ") and "\n" not in str(caught.value)


def test_a_site_whose_classes_bear_other_names_is_refused(tmp_path: Path) -> None:
    roots = [written(tmp_path / "a"), written(tmp_path / "b", classes=("dog", "emu")), written(tmp_path / "c")]
    with pytest.raises(RunError) as caught:
        trained(asked(tmp_path, clients=3), roots)
    message = "names its classes otherwise than client 0; give their folders the same names at every site"
    assert str(caught.value) == f"client 1 failed in node assignment: {message}"
    trained(asked(tmp_path, clients=3, on_client_failure="drop", out=tmp_path / "again"), roots)
    training = json.loads((tmp_path / "again" / "training.json").read_text())
    assert [row["client"] for row in training["clients"]] == [0, 2]


# --- what cannot be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"federation": None}, f"--federation with {NAME}, .* or folder:PATH for images on this machine, got federat"),
        ({"attack": ("ig",)}, f"--attack none with {NAME}, as no truth leaves a site to be compared with, got attack="),
        ({"split": "iid"}, f"split=dataset_per_client for {NAME}, as each site has its own, got split=iid"),
        ({"canaries": 10}, f"canaries=0 for {NAME}, as the server would need the data to find canaries, got canaries="),
        ({"method": "feddf"}, "data that no client holds for the server to distil on, got a split that sets none"),
        ({"dataset": "site:1x6:2"}, "site:CxHxW:CLASSES, .* got site:1x6:2; for example"),
        ({"target_epsilon": 1.0}, "a method that claims privacy for --target-epsilon, got method=fedavg"),
    ],
)
def test_what_the_server_cannot_do_without_data_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=rf"^Expected {message}") as caught:
        run.check(asked(tmp_path, **changes))
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


DP = ("fed_cdp", "fed_sdp", "dp_fedavg")
COUNTED_THERE = (
    "No epsilon is claimed here, as only each site knows its number of examples: a site with a budget counts "
)


@pytest.mark.parametrize("method", DP)
def test_without_the_numbers_of_examples_nothing_is_claimed_and_it_is_said(tmp_path: Path, method: str) -> None:
    run_plan, _, notes = run.check(asked(tmp_path, method=method, set=("noise_source=secure",)))
    assert [note for note in notes if "epsilon" in note] == [
        COUNTED_THERE + "for itself (python -m flfw.deploy status)."
    ]
    assert RunAccountant(run_plan.client, partition.nobodys(2)).claims() == []


@pytest.mark.parametrize("method", DP)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"set": ("noise_source=seed",)}, f"Expected noise_source=secure for {NAME}, got noise_source=seed."),
        (
            {"set": ("noise_source=secure",), "target_epsilon": 2.0},
            f"Expected no --target-epsilon for {NAME}, as only each site knows its number of examples; let the sites "
            "set budgets, got target_epsilon=2.0.",
        ),
        (
            {"set": ("noise_source=secure",), "epsilon_budget": 2.0},
            f"Expected no --expert epsilon_budget for {NAME}, as only each site knows its number of examples; "
            f"let the sites "
            "set budgets, got epsilon_budget=2.0.",
        ),
    ],
)
def test_what_takes_the_numbers_of_examples_is_refused(
    tmp_path: Path, method: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        run.check(asked(tmp_path, method=method, **changes))
    assert str(caught.value) == message


def test_an_epsilon_is_claimed_where_the_numbers_are_known(tmp_path: Path) -> None:
    experiment = asked(tmp_path, method="fed_cdp", split="dataset_per_client")
    known = plan(experiment).task.load(written(tmp_path / "own")).split
    settled = resolve_noise(plan(experiment), known)[0]
    assert settled.experiment.set == (*experiment.set, "noise_source=secure") and settled.experiment.rounds == 1


@pytest.mark.parametrize("flag", ["--show-split", "--estimate"])
def test_nothing_is_shown_or_estimated_of_data_that_are_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    flags = f"--dataset {NAME} --method fedavg --net linear --clients 2 --attack none --federation fed {flag}"
    assert sim.main([*flags.split(), "--out", str(tmp_path / "run")]) == 2
    message = (
        f"Expected data on this machine for {flag}, such as folder:PATH, got dataset={NAME}, which only the sites have."
    )
    assert capsys.readouterr().err == f"sim.py: {message}\n"
    assert not (tmp_path / "run").exists()
