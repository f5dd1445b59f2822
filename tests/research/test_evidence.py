"""Evidence at the papers' scale: its list, its records, the words of agreement, and the page printed from it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from flfw.errors import InputError
from flfw.papers import published
from flfw.papers.evidence import records
from flfw.papers.evidence.records import FOLDER, Record, digest, file_of, read
from flfw.papers.preset import presets
from flfw.papers.published import Cell
from flfw.plans.run_plan import without_auto
from research.evidence import costs, page
from research.evidence.__main__ import main
from research.evidence.agreement import cause, measured, word
from research.evidence.gather import together
from research.evidence.items import PRIORITIES, cells_of, is_there, items

ORDERED = "fed_cdp.2/non-private/100/0.2/accuracy"
CELL = "hyperfl.1/FedAvg/Fashion-MNIST/20/accuracy"  # published: 85.67


def record(value: float | str = 85.0, **changes: object) -> Record:
    given = {
        "cell": CELL, "variant": "authors", "seed": 0, "choice": 0, "value": value, "also": {}, "chosen_by": None,
        "settings": {}, "digest": "0" * 12, "code": ("c",), "hardware": "a machine", "date": "2026-11-23",
        "seconds": 1800.0, "notes": (),
    }  # fmt: skip
    return Record(**{**given, **changes})


def cell(path: str = CELL) -> Cell:
    (one,) = published.table(path.partition("/")[0]).select(path)
    return one


# --- the list ---


@pytest.mark.slow
def test_all_that_is_wanted_is_there_once_and_at_full_scale() -> None:
    listed = list(items())
    assert len({item.name for item in listed}) == len(listed) > 300
    assert {wanted.cells.partition("/")[0] for wanted in PRIORITIES} == {item.cell.table for item in listed}
    for item in listed:
        make = presets(item.cell.table)
        assert make is not None
        full = make(item.cell, "full").choices[item.choice][0]
        if item.cell.table == "hyperfl.3":  # its figures are of gradients before training
            full = replace(full, rounds=1, audit_rounds="0")
            assert not any("round=200" in figure.name for figure in (item.preset.figure, *item.preset.also))
        same = replace(
            item.run, seed=full.seed, variant="ours", normalise=full.normalise, init="torch", example_order="shuffled"
        )
        assert same == full, item.name


@pytest.mark.nightly
def test_a_cell_without_a_difference_has_one_variant() -> None:
    variants = {
        name: [i.variant for i in items(name) if i.seed == 0] for name in (CELL, CELL.replace("FedAvg", "HyperFL"))
    }
    assert [*variants.values()] == [["authors"], ["authors", "ours"]]
    authors, ours = (item.run for item in items("hyperfl.1/HyperFL/Fashion-MNIST/20") if item.seed == 0)
    assert (authors.variant, ours.variant) == ("authors", "ours") and digest(authors) != digest(ours)


@pytest.mark.nightly
def test_rows_that_no_paper_has_stand_beside_its_own() -> None:
    (item,) = (one for one in items("hyperfl.1/FedPer/Fashion-MNIST/20") if one.seed == 0)
    assert item.run.method == "fedper" and item.cell.value is None
    assert item.cell in cells_of("hyperfl.1") and item.cell not in published.table("hyperfl.1").cells
    (silent, *_) = items("fed_cdp.5/Cancer/0/accuracy")
    assert "noise_multiplier=0" in silent.run.set and silent.cell.value is None and silent.cell.columns == ("0",)
    (column, *_) = (one for one in items("hyperfl.3/CENTAUR/MNIST/ssim"))
    assert (column.run.dataset, column.run.net, column.run.images, column.cell.columns) == (
        "mnist",
        "cnn1",
        50,
        ("MNIST",),
    )
    assert column.run.set == next(iter(items("hyperfl.3/CENTAUR/CIFAR-10/ssim"))).run.set  # the same attack and noise


# --- records ---


def test_a_record_is_read_as_it_was_written_and_found_by_its_settings(tmp_path: Path) -> None:
    item = next(item for item in items(CELL))
    right = record(digest=digest(item.run), also={"x": 1.0}, notes=("a note",))
    path = right.write(tmp_path)
    assert path == file_of(tmp_path, CELL, "authors", 0, 0) and path.parent.name == "hyperfl.1"
    assert read(tmp_path) == [right] and is_there(item, tmp_path)
    assert right.digest == digest(without_auto(item.run))  # a run has no auto in it
    record(digest="another").write(tmp_path)
    assert not is_there(item, tmp_path)  # measured with other settings: to be measured again


@pytest.mark.parametrize("text", ["", "{}", '{"cell": 1}'])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    path = file_of(tmp_path, CELL, "authors", 0, 0)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(InputError, match=r"damaged"):
        read(tmp_path)


LEAST_RECORDS = 183
SUPERSEDED: frozenset[str] = frozenset()
"""File names of records that are kept although their cell is to be measured again."""


@pytest.mark.slow
def test_the_committed_records_are_of_full_runs_and_found_by_the_list() -> None:
    kept = read(FOLDER)
    assert len(kept) >= LEAST_RECORDS
    names = {(item.cell.path, item.variant, item.seed, item.choice): item for item in items()}
    for one in kept:
        item = names[one.cell, one.variant, one.seed, one.choice]
        name = file_of(FOLDER, one.cell, one.variant, one.seed, one.choice).name
        assert is_there(item) != (name in SUPERSEDED), name
        settings = {"rounds": item.run.rounds, "clients": item.run.clients, "method": item.run.method}
        assert settings.items() <= {"method": "hyperfl", "rounds": 10, "clients": 10, **one.settings}.items(), one.cell
        assert (one.seconds > 0) == (item.preset.source == "run") and one.code and one.hardware


def test_records_are_written_anew_under_the_names_of_today(tmp_path: Path) -> None:
    (one,) = (record for record in read(FOLDER) if record.cell == ORDERED and record.variant == "authors")
    earlier = {{"example-order": "order"}.get(name, name): value for name, value in one.settings.items()}
    path = replace(one, settings=earlier, digest="0" * 12).write(tmp_path)
    assert '"order": "fixed"' in path.read_text() and main(["--migrate", "--folder", str(tmp_path)]) == 0
    assert '"example-order": "fixed"' in path.read_text() and read(tmp_path) == [one]


def test_core_hours_are_in_proportion_to_rounds_clients_and_local_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [item for item in items("fed_cdp.2/non-private/100/") if item.seed == 0]
    monkeypatch.setattr(costs, "items", lambda only="": listed)
    (first, *_) = (item for item in listed if item.variant == "authors")
    measured_in = {"digest": digest(first.run), "hardware": "8 cores, no GPU"}
    record(0.9, cell=first.cell.path, seconds=3600.0, **measured_in).write(tmp_path)
    lines = costs.listing(tmp_path).splitlines()
    assert lines[0].split() == ["recorded", "fed_cdp.2/non-private/100/0.05/accuracy", "authors", "seed", "0"]
    hours = {line.split()[3].split("/")[3]: line.split()[1] for line in lines[1:-1]}
    assert hours == {"0.05": "1.0", "0.1": "2.0", "0.2": "4.0", "0.5": "10.0"}  # shares of the 100 clients
    assert lines[-1] == "7 runs missing: 33 core-hours"  # 1 + 2 (2 + 4 + 10)
    record(0.9, cell=first.cell.path, **{**measured_in, "digest": "of other settings"}).write(tmp_path)
    assert costs.listing(tmp_path).splitlines()[-1] == "8 runs missing: 0 core-hours, and 8 without an estimate"


def test_core_hours_fall_back_on_other_methods_and_leave_out_attacks() -> None:
    (run,) = next(items(CELL)).preset.choices[0]
    known = {costs._keys(run)[1]: 3600 / costs.work(run)}
    assert costs.hours_of(run, known) == pytest.approx(1.0)
    assert costs.hours_of(replace(run, clients=100, sample=30), known) == pytest.approx(0.3)  # a fifth of the data each
    assert costs.hours_of(replace(run, net="cnn2"), known) is None
    assert costs.hours_of(replace(run, attack=("ig",)), known) is None


# --- agreement ---


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([86.6], "agrees"),
        ([84.7], "agrees"),
        ([84.6], "below"),
        ([86.7], "above"),
        ([80.0, 90.0], "agrees"),  # a mean of 85 with a deviation of 7
        ([70.0, 90.0], "undecided"),  # a mean of 80 with a standard error of 10
        ([80.0, 81.0], "below"),
        ([83.0, 84.0, 85.0], "below"),  # a mean of 84 with a standard error of 0.58
        ([82.5, 84.0, 86.0], "agrees"),  # 84.17 with 1.01, and 1.5 off
        ([83.0, 85.0], "undecided"),  # two seeds are too few for that
        ([78.0, 82.0, 88.0], "undecided"),  # 82.7 with 2.9
        ([math.inf, 85.0], "diverged"),
        ([math.nan], "diverged"),
    ],
)
def test_agreement_is_within_a_point_or_two_standard_errors(values: list[float], expected: str) -> None:
    mine = measured([record(value, seed=seed) for seed, value in enumerate(values)])
    assert mine is not None and mine.seeds == tuple(range(len(values)))
    assert word(cell(), mine) == expected


def test_the_papers_deviation_counts_as_well_and_words_are_no_numbers() -> None:
    fedcg = cell("fedcg.1/FedCG/CIFAR10/8/accuracy")  # 49.15 with a deviation of 0.48
    one = measured([record(48.3, cell=fedcg.path)])
    assert one is not None and word(fedcg, one) == "agrees"
    assert word(fedcg, replace(one, value=48.1)) == "below"
    assert measured([record("Y")]) is None and word(replace(fedcg, value=None), one) is None


def test_the_choice_is_made_by_validation_over_the_seeds_that_all_have() -> None:
    choices = [
        record(80.0, chosen_by=0.7), record(82.0, chosen_by=0.7, seed=1),
        record(90.0, chosen_by=0.6, choice=1), record(70.0, chosen_by=0.9, choice=1, seed=2),
    ]  # fmt: skip
    mine = measured(choices)
    assert mine is not None and mine.value == 80.0 and mine.seeds == (0,)


def test_a_reason_belongs_to_cells_and_not_to_their_neighbours() -> None:
    far = measured([record(0.5)])
    assert far is not None and cause(cell(), "authors", far) == "not explained"
    assert cause(cell("fed_cdp.5/Cancer/6/accuracy"), "authors", far) == "no noise in the released code"
    plain = cell("fed_cdp.2/non-private/100/0.1/accuracy")
    assert [cause(plain, variant, far) for variant in ("authors", "ours")] == ["not explained", "other settings"]
    assert cause(plain, "ours", replace(far, value=plain.value)) == "agrees, 1 seed"


# --- the page ---


def test_the_page_in_docs_is_printed_from_the_records() -> None:
    assert page.PAGE.read_text() == page.text(read(FOLDER))


def test_a_line_has_both_variants_their_words_and_the_seeds() -> None:
    after = [{"final.acc_local": value} for value in (87.0, 88.0)]
    given = [
        record(85.0, also=after[0], digest="a"),
        record(86.0, seed=1, also=after[1], digest="b"),
        record(90.0, variant="ours", digest="c"),
    ]
    lines = page.text(given).splitlines()
    (line,) = [line for line in lines if line.startswith("| FedAvg")]
    assert line == "| FedAvg Fashion-MNIST 20 | 85.67 | 85.50±0.71 | agrees | 90.00 | above | 87.50 | 0,1 / 0 |"
    assert "Beside (FedAvg): accuracy after one more local training." in lines
    assert (
        "| agrees, 2 seeds | 1 | 0 |" in lines and "| not explained | 0 | 1 |" in lines and "| all | 1 | 1 |" in lines
    )
    assert "- 3 runs, 1.5 hours in all, on a machine." in lines


def test_one_seed_that_agrees_is_marked_and_what_no_paper_has_is_counted_apart() -> None:
    silent = record(0.98, cell="fed_cdp.5/Cancer/0/accuracy", digest="1" * 12)
    text = page.text([record(85.0), silent, record(0.5, cell="fed_cdp.5/Cancer/6/accuracy", digest="1" * 12)])
    assert "agrees (1 seed)" in text and "| agrees, 1 seed | 1 | 0 |\n| no noise in the released code | 1 | 0 |" in text
    assert "| Cancer 0 | – | 0.98 | not in the paper: no noise, as in the released code |" in text
    assert "- 1 more that no paper has." in text and "- 2 runs, 1.0 hours in all" in text and "epsilons" not in text


def test_what_is_counted_without_training_stands_apart_from_trained_cells() -> None:
    counted = record(0.8227, cell="fed_cdp.6/Fed-CDP/instance/100/MNIST/epsilon", seconds=0.0)  # published: 0.8227
    text = page.text([record(85.0), counted, replace(counted, cell=counted.cell.replace("MNIST", "LFW"), value="N")])
    assert "| all | 1 | 0 |" in text and "- 1 epsilons, counted without training: at most 0 from" in text
    assert "| 0.8227 | agrees |" in text and "- 1 runs, 0.5 hours in all" in text


def test_the_picture_has_a_point_for_each_trained_accuracy_of_the_authors_variant() -> None:
    far = record(0.5, cell="fed_cdp.5/Cancer/6/accuracy")
    axes = page.picture([record(85.0), replace(far, variant="ours"), far]).axes[0]
    points = {str(line.get_label()): line.get_xydata().tolist() for line in axes.lines[1:]}
    assert points == {"agrees (1)": [[0.8567, 0.85]], "no noise in the released code (1)": [[0.979, 0.5]]}


def test_what_is_not_finite_is_written_as_json_and_printed(tmp_path: Path) -> None:
    endless = record(math.inf, also={"final.acc_local": math.inf})
    assert "Infinity" not in endless.write(tmp_path).read_text() and read(tmp_path) == [endless]
    assert "| inf | diverged |" in page.text([endless])


# --- gathering ---


def test_on_a_gpu_clients_compute_together_and_the_cell_stays_the_same() -> None:
    item = next(items(CELL))
    joined = together(item.preset)
    assert {run.batched_clients for runs in joined.choices for run in runs} == {"auto"}
    alone = [[replace(run, batched_clients="1") for run in runs] for runs in joined.choices]
    assert alone == [list(runs) for runs in item.preset.choices] and digest(item.run) == digest(alone[0][0])


def test_a_figure_is_read_by_the_keys_of_today(tmp_path: Path) -> None:
    record(85.0, also={"privacy.unit=example,counted=as published.epsilon": 1.0}).write(tmp_path)
    (read,) = records.read(tmp_path)
    assert read.also == {"privacy.unit=example,accounting=as published.epsilon": 1.0}
