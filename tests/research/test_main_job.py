"""The main job over seeds and machines: records from finished runs, and the page from the records."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.plans.run_plan import without_auto
from flfw.runs import run
from research.main_job import page
from research.main_job.__main__ import main
from research.main_job.records import FILE, MainJob, MainJobEntry, add, read, take
from tests.support.small_runs import tiny

STATIC = MainJobEntry("ig", False, 10, 8, 2, (0.03, 0.65), 16.42, "leaks")
JOB = MainJob(0, "a chip, 2 cores, no GPU", "AVX512", "2.0", "2026-11-27", "c" * 16, "inproc", 0.91, (STATIC,))


def finished(folder: Path, **changes: Any) -> Path:
    """A folder with the result of a main job, as far as it is read."""
    config = asdict(without_auto(replace(Experiment(), **{"seed": 3, **changes})))
    common = {"attack": "ig", "adaptive": False, "images": 8, "failures": 0}
    leaking = {"psnr": {"mean": 16.4}, "share_recovered": 0.25, "share_interval": [0.03, 0.65], "verdict": "leaks"}
    none = {"psnr": None, "share_recovered": 0.0, "share_interval": [0.0, 0.369], "verdict": "undecided"}
    session = {"ended_at": "2026-11-27T23:30:00-02:00", "machine": {"torch": {"instructions": "AVX2"}}}
    result = {
        "config": {key: str(value) if isinstance(value, Path) else value for key, value in config.items()},
        "provenance": {"code": "c" * 16, "sessions": [session]},
        "environment": {"hardware": "a chip, 2 cores, no GPU", "torch": "2.0"},
        "final": {"acc_local": 0.91},
        "audit": [{**common, "round": 0, **leaking}, {**common, "round": 10, **none}],
    }
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_a_finished_main_job_gives_a_record(tmp_path: Path) -> None:
    job = take(finished(tmp_path / "run"))
    assert (job.seed, job.date, job.instructions) == (3, "2026-11-27", "AVX2")
    assert [(e.round, e.recovered, e.images, e.psnr, e.verdict) for e in job.entries] == [
        (0, 2, 8, 16.4, "leaks"), (10, 0, 8, None, "undecided"),
    ]  # fmt: skip


def test_another_run_is_no_main_job(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Expected rounds=10, the main job's, got rounds=3 in "):
        take(finished(tmp_path / "run", rounds=3))
    with pytest.raises(InputError, match=r"Expected \w+=.*, the main job's"):
        take(run.run(tiny(attack=("none",), out=tmp_path / "tiny")))


def test_a_record_of_the_same_machine_code_and_seed_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    first = add([replace(JOB, seed=10), JOB], file)
    assert [job.seed for job in first] == [0, 10] == [job.seed for job in read(file)]
    elsewhere, anew = replace(JOB, instructions="AVX2"), replace(JOB, accuracy=0.5)
    assert add([elsewhere, anew], file) == [elsewhere, anew, first[1]] == read(file)


def test_a_table_has_a_column_for_each_seed_and_their_range() -> None:
    other = replace(JOB, seed=1, entries=(replace(STATIC, recovered=4, psnr=None, verdict="undecided"),))
    text = page.text([JOB, other])
    assert "2 runs on 1 machine." in text and "## a chip, 2 cores, no GPU (AVX512)" in text
    assert "| attack | after round | seed 0 | seed 1 | over the seeds |" in text
    row = "| ig, static | 10 | 2 of 8 (3 to 65 %), 16.4 dB, leaks | 4 of 8 (3 to 65 %), undecided | 2 to 4 |"
    assert row in text and "| accuracy after training | 10 | 0.910 | 0.910 | 0.910 |" in text


def test_machines_and_versions_of_the_code_have_tables_of_their_own() -> None:
    text = page.text([JOB, replace(JOB, hardware="another"), replace(JOB, code="d" * 16)])
    assert text.count("| attack | after round | seed 0 |\n|---|---|---|\n") == 3 and "3 runs on 2 machines." in text
    assert "over the seeds" not in text.partition("\n## ")[2]  # a table of one seed shows no difference of seeds


def test_the_page_in_docs_is_printed_from_the_records() -> None:
    assert page.PAGE.read_text() == page.text(read(FILE))


def test_bad_input_is_one_line_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--seeds", "-1"], ["--take", str(tmp_path / "none"), "--seeds", "0"], ["--seeds", "x"]):
        assert main([*words, "--runs", str(tmp_path / "runs")]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()
