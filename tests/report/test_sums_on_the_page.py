"""Sums over clients on the page and in the terminal: views of peers and outsiders, and how many clients are needed."""

from pathlib import Path
from typing import Any

import pytest

from flfw.report.causes import because, fallen, plainly
from flfw.report.findings import AuditEntry, read_settings
from flfw.report.questions import questions
from flfw.report.ranking import worst_first
from flfw.report.report import write_report
from tests.support.reported_runs import a_run, full_entry, nothing


def of_sum(group: int, **changes: Any) -> dict[str, Any]:
    usual = {
        "vantage": "aggregate",
        "sum_size": group,
        "num_colluding": 1,
        "min_safe_sum_size": 5,
        "messages": 9,
        "curve": "sum_size",
    }
    return full_entry("ig", 0, False, **{**usual, **changes})


def test_the_terminal_names_the_fewest_clients_once_for_each_attack() -> None:
    sizes = [of_sum(1), of_sum(5), of_sum(10)]
    words = "nothing from sums over 5 clients on (9 sums); a stronger attack may reach more"
    assert fallen(sizes) == [f"ig at round 0: {words}"]
    assert fallen([one | {"min_safe_sum_size": None} for one in sizes]) == [] == fallen([full_entry("ig", 0, False)])


def test_the_page_says_how_many_clients_do_not_collude(tmp_path: Path) -> None:
    folder = a_run(
        tmp_path / "run", entries=[of_sum(2), of_sum(5, num_colluding=2, **nothing()), of_sum(10, **nothing())]
    )
    page = write_report(folder).read_text()
    assert "nothing in 9 sums over 5 clients, the fewest from which on that was so; 3 of them do not work with" in page
    assert page.count("the fewest from which on that was so") == 1


@pytest.mark.parametrize(
    ("vantage", "text"),
    [("peer", "Another client of the federation"), ("outsider", "Somebody who sees the finished model")],
)
def test_an_attacker_elsewhere_is_described(tmp_path: Path, vantage: str, text: str) -> None:
    page = write_report(a_run(tmp_path / "run", entries=[full_entry("ig", 0, False, vantage=vantage)])).read_text()
    assert text in page and ("Other observers: other clients" in page) == (vantage == "outsider")


@pytest.mark.parametrize("cause", ["group", "alone", "untried", "peer"])
def test_every_cause_of_sums_has_words_in_brief_and_in_plain(cause: str) -> None:
    setting = AuditEntry(of_sum(5, num_colluding=2, cause=cause, verdict="undecided"), "ig")
    assert because(setting) and plainly(setting)
    assert ("3 clients are left" in because(setting)) == (cause == "group")


def test_one_outside_answers_no_question_and_is_nobodys_headline(tmp_path: Path) -> None:
    outside = full_entry("ig", 0, False, vantage="outsider", verdict="undecided")
    settings = read_settings(tmp_path, [outside, full_entry("ig", 0, False, **nothing())], pictures=False)
    assert [one.entry["vantage"] for one in worst_first(settings)] == ["server", "outsider"]
    assert questions(settings[:1], [])[0].answer == "Not tested"


def test_what_a_peer_computes_answers_for_sums(tmp_path: Path) -> None:
    settings = read_settings(tmp_path, [of_sum(2, vantage="peer", curve=None)], pictures=False)
    seen, _, summed = questions(settings, [])
    assert (seen.answer, summed.leaks) == ("Not tested", True) and "or another client" in summed.subject
