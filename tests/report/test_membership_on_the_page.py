"""Membership in a report: three questions on its first screen, a section of its own, and the words of each verdict."""

from pathlib import Path
from typing import Any

import pytest

from flfw.adversary.sums import SEEN
from flfw.command.api.summary import told
from flfw.report.findings import read_settings
from flfw.report.questions import ONLY_SUMS, decisive, membership_line, questions, rounds_read
from flfw.report.report import write_report
from tests.report.test_report import Page
from tests.support.reported_runs import a_run, entry, nothing
from tests.support.reported_runs import member_row as row


def read(folder: Path, *rows: dict[str, Any], **changes: Any) -> Page:
    return Page(write_report(a_run(folder, membership=list(rows), **changes)).read_text(encoding="utf-8"))


def test_a_run_without_membership_says_that_it_was_not_tested(tmp_path: Path) -> None:
    page = read(tmp_path / "run")
    first = page.text[: page.text.index("What the attacks reached")]
    assert "Can anyone see the data? images recovered from what clients send Yes" in first
    assert "Can anyone tell whose data were used? membership of single images Not tested" in first
    assert "What does a sum hide? a server behind secure aggregation sees only sums over clients Not tested" in first
    assert "Can it be told who was there?" not in page.text


def test_a_leak_of_membership_stands_in_the_headline_beside_that_of_images(tmp_path: Path) -> None:
    page = read(tmp_path / "run", row("cosine", "undecided"), row("whitened", "leaks"))
    assert "Method HyperFL on digits leaks: attack ig" in page.heading
    assert "And it tells who was there: statistic whitened tells members from held-out images" in page.heading
    assert "(AUC 0.67, where a coin gives 0.50; 8.2 % of the members found at 0.33 % false alarms)" in " ".join(
        page.heading.split()
    )
    assert "Yes Statistic whitened, one of 2 statistics, is right in 67 % of comparisons (a coin: 50 %)" in page.text
    section = page.text[page.text.index("Can it be told who was there?") :]
    assert "2001 of 3000 0.64 to 0.69 0.50 0.54 client 7 214 of 300" in section
    assert section.index("whitened") < section.index("cosine")


@pytest.mark.parametrize(
    ("verdict", "opens", "text"),
    [
        ("leaks", "Method HyperFL on digits leaks who was there", "It can be told that somebody’s data was there."),
        ("no leak found", "No leak found of membership in method HyperFL", "an effect above 53 % right guesses"),
        ("undecided", "Undecided on membership in method HyperFL", "Whether membership can be told is not known."),
    ],
)
def test_a_run_with_membership_alone_is_no_run_without_an_audit(
    tmp_path: Path, verdict: str, opens: str, text: str
) -> None:
    page = read(tmp_path / "run", row("whitened", verdict), attacks=())
    assert page.heading.strip().startswith(opens)
    assert text in page.text and "The reason of whitened." in page.text
    assert "Not audited" not in page.text and "Nothing was tested for leaks" not in page.text
    assert "Leaks, of membership" in page.text and "At least one training" not in page.text
    assert "Anything about leakage" not in page.text and "no attack tried" in page.text
    assert "Can anyone see the data? samples recovered from what clients send Not tested" in page.text


def test_what_is_the_same_for_all_statistics_is_said_once(tmp_path: Path) -> None:
    rows = row("whitened", "leaks"), row("cosine", "undecided")
    page = read(tmp_path / "run", *rows)
    assert "It sees what the server sees in rounds 1 to 2. 2 results" in page.text
    assert "Seen by" not in page.text and "whitened: leaks" in page.text
    distance = read(tmp_path / "other", rows[0], row("cosine", "undecided", vantage="peer", rounds=[2]))
    assert "Seen by" in distance.text and "It sees what" not in distance.text
    assert "cosine, peer, in round 2: undecided" in distance.text


FIGURES = {
    "rounds": [],
    "same_for_all": True,
    "participation": {
        "rounds": 2, "clients": 4, "smallest_group": 4, "rank": 1, "smallest_singular": 0.0, "separable": 0,
        "noise": [], "isolated": 0, "isolating": [], "recorded_only": False,
    },
    "peer": {"smallest": 4, "round": 1, "left": 3, "verdict": "undecided", "reason": "Three are left.",
             "check": None},
}  # fmt: skip


def test_figures_of_sums_leave_the_words_on_membership_as_they_are(tmp_path: Path) -> None:
    page = read(tmp_path / "run", row("whitened", "leaks"), attacks=(), sums=FIGURES)
    assert page.text.index("What a sum would hide") < page.text.index("That no stronger attack tells who was there")
    assert "tried, in rounds 1 to 2." in page.text


def test_an_epsilon_stands_beside_the_claim(tmp_path: Path) -> None:
    page = read(tmp_path / "run", row("whitened", "leaks", claimed_epsilon=2.7541, delta=1e-5, epsilon_low=0.2879))
    assert "ε at most (claimed)" in page.text and "0.287 2.76 3000" in page.text
    assert "ε at most (claimed)" not in read(tmp_path / "other", row("whitened", "leaks")).text


def test_one_statistic_that_can_see_answers_for_blind_ones_of_the_same_messages_only() -> None:
    found_none, blind = row("whitened", "no leak found"), row("cosine", "undecided")
    assert decisive([blind, found_none]) is found_none
    assert decisive([found_none, row("cosine", "undecided", cause="faint")])["cause"] == "faint"  # type: ignore[index]
    elsewhere = row("cosine", "undecided", vantage="outsider")
    assert decisive([found_none, elsewhere]) is elsewhere
    assert decisive([]) is None


def test_rounds_have_words() -> None:
    rounds = ([3], [1, 2, 3], [1, 5, 9], [])
    words = ("in round 3", "in rounds 1 to 3", "in 3 rounds up to 9", "on the final model")
    assert tuple(rounds_read({"rounds": one}) for one in rounds) == words


def summed(tmp_path: Path, rows: list[dict[str, Any]], *entries: dict[str, Any]) -> tuple[str, str, bool]:
    one = questions(read_settings(tmp_path, entries, pictures=False), rows, "images")[2]
    return one.answer, one.words, one.leaks


def test_the_largest_sum_answers_for_sums(tmp_path: Path) -> None:
    small = entry("ig", 0, False, vantage="aggregate", sum_size=2)
    large = entry("ig", 0, False, vantage="aggregate", sum_size=10, **nothing())
    answer, words, leaks = summed(tmp_path, [], small, large)
    assert (answer, leaks) == ("Not known", False)  # membership from sums was not tried
    assert "From sums over 10 clients" in words and "Sums over 2 clients leak." in words
    assert "Membership from sums was not tried." in words
    none = row("whitened", "no leak found", vantage="aggregate")
    assert summed(tmp_path, [none], small, large)[0] == "No leak found in sums"
    assert summed(tmp_path, [row("whitened", "leaks", vantage="aggregate")], large)[2]
    assert summed(tmp_path, [], large | {"verdict": "leaks"})[0] == "Not enough: it still leaks"


def test_sums_are_no_answer_to_single_messages(tmp_path: Path) -> None:
    settings = read_settings(tmp_path, [entry("ig", 0, False, vantage="aggregate", sum_size=10)], pictures=False)
    seen, present, _ = questions(settings, [row("whitened", "leaks", vantage="aggregate")])
    assert (seen.answer, present.answer) == ("Not tested", "Not tested")


def test_an_attack_on_sums_from_the_server_answers_for_sums(tmp_path: Path) -> None:
    assert SEEN.startswith(ONLY_SUMS)
    loki = entry("loki", 0, False, granted=[SEEN], verdict="to a malicious server")
    seen, _, sums = questions(read_settings(tmp_path, [loki], pictures=False), [])
    assert (seen.answer, sums.answer, sums.leaks) == ("Not tested", "By a server that breaks the rules", False)
    assert "not tried" in sums.words and "loki recovered" in sums.words


@pytest.mark.parametrize(("verdict", "answer"), [("leaks", "Not enough: it still leaks"), ("undecided", "Not tested")])
def test_the_figures_on_sums_belong_to_the_third_answer(verdict: str, answer: str) -> None:
    sums = questions([], [], figures={"peer": {"verdict": verdict}})[2]
    assert (sums.answer, sums.leaks, sums.href) == (answer, verdict == "leaks", "sums")
    assert questions([], [])[2].href == ""


def test_the_statistic_that_answers_for_all_has_one_line_in_the_terminal() -> None:
    others = [row("cosine", "undecided"), row("loss", "undecided", vantage="outsider")]
    server, outsider = told([*others, row("whitened", "leaks")])
    assert server == f"{membership_line(row('whitened', 'leaks'))} (one of 2 statistics, see the report)"
    assert outsider == membership_line(others[1])
    assert membership_line(row("whitened", "leaks")) == (
        "membership by whitened in rounds 1 to 2: leaks (AUC 0.667 (0.641 to 0.689) on 3000 pairs, 8.2% of members "
        "found at 0.33% false alarms, epsilon at least 0.287)"
    )
    few = row("cosine", "undecided", vantage="peer", tpr=None, fpr=None, auc=None, auc_low=None, auc_high=None)
    assert membership_line(few) == (
        "membership by cosine (peer) in rounds 1 to 2: undecided (AUC – on 3000 pairs): The reason of cosine."
    )
