"""Attribute inference on the page, and probes beside what training sent."""

from pathlib import Path
from typing import Any

import pytest

from flfw.report.findings import AuditEntry
from flfw.report.page_data import attribute_tables
from flfw.report.ranking import probes_beside_uploads
from tests.report.test_report import read
from tests.support.reported_runs import a_run, full_entry


def column(share: float, floor: float, p: float, chance: float | None = None) -> dict[str, float | None]:
    return {"share": share, "low": share / 2, "high": (1 + share) / 2, "floor": floor, "chance": chance, "p": p}


COLUMNS = [column(0.5, 0.6, 0.9), column(0.9, 0.2, 0.002), column(1.0, 0.1, 0.001), column(0.7, 0.4, 0.003)]


def shown(source: str = "probe", **changes: Any) -> AuditEntry:
    return AuditEntry(full_entry("ig", 0, True, source=source, **changes), "ig", source)


def test_features_above_a_guess_come_first_and_p_is_corrected_for_all() -> None:
    (table,) = attribute_tables([shown(columns=COLUMNS)])
    # 4 tests: 0.01 / 4 = 0.0025.
    assert table.above == 2
    assert [(row["number"], row["above"]) for row in table.rows] == [(3, True), (2, True), (4, False), (1, False)]


def test_another_setting_makes_every_p_count_for_less() -> None:
    first, _ = attribute_tables([shown(columns=COLUMNS), shown(columns=COLUMNS)])
    # 8 tests: 0.01 / 8 = 0.00125.
    assert first.above == 1


@pytest.mark.parametrize(("messages", "needed"), [(8, 9), (9, 0)])  # 2 ** -8 > 0.01 / 4 > 2 ** -9
def test_too_few_messages_for_any_feature_to_be_above_a_guess_are_named(
    tmp_path: Path, messages: int, needed: int
) -> None:
    columns = [column(1.0, 0.1, 2.0**-messages)] * 4
    (table,) = attribute_tables([shown(columns=columns, messages=messages)])
    assert (table.needed, table.above) == (needed, 0 if needed else 4)
    entry = full_entry("ig", 0, True, columns=columns, messages=messages)
    words = read(a_run(tmp_path / "run", tabular=True, entries=[entry])).text
    assert ("none could be with 8 messages: it takes 9" in words) == bool(needed)


def test_images_have_no_table() -> None:
    assert attribute_tables([shown(columns=None), shown()]) == []


def test_a_probe_is_paired_with_the_upload_of_its_round_alone() -> None:
    probe, upload = shown(), shown("update", batch=150, steps=3)
    later, informed = shown("update", round=2), shown("update", adaptation="written")
    assert probes_beside_uploads([probe, upload, later, informed]) == [(probe, upload)]


@pytest.mark.parametrize("chance", [None, 0.15])
def test_the_page_shows_every_feature(tmp_path: Path, chance: float | None) -> None:
    columns = [{**one, "chance": chance} for one in COLUMNS]
    folder = a_run(tmp_path / "run", tabular=True, entries=[full_entry("ig", 0, True, columns=columns)])
    words = read(folder).text
    assert "2 of 4 features above a guess" in words
    assert ("By chance: how often the same guesses match" in words) == (chance is not None)
    assert "3 100.0" in words and "2 90.0" in words  # the largest gain over a guess first


def test_the_page_shows_a_probe_beside_an_upload(tmp_path: Path) -> None:
    upload = full_entry("ig", 0, False, source="update", batch=150, steps=3, share_recovered=0.0, verdict="undecided")
    words = read(a_run(tmp_path / "run", entries=[full_entry("ig", 0, False), upload])).text
    assert "A probe beside what training sent" in words
