"""The verdicts on the page: each cause has a sentence, each control a line, and older results are still read."""

import inspect
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from flfw.audit import verdict as verdicts
from flfw.audit.measures.statistics import most_missed
from flfw.audit.reconstruction import reconstruction_evidence as evidence
from flfw.audit.reconstruction.reconstruction_evidence import SumFacts
from flfw.command.api.summary import summary
from flfw.files.outcomes import LEAK_CAUSES, MALICIOUS, POSITIVE, LeakCause
from flfw.report.causes import BRIEF, PLAIN, of_search
from flfw.report.findings import AuditEntry, read_settings
from flfw.report.page_data import most_missed as shown_missed
from flfw.report.ranking import ORDER, answers, worst_first
from tests.report.test_report import first_page, read, section, words_of
from tests.support.reported_runs import a_run, control, full_entry, judged

WITHOUT_A_CLAUSE = {"constant", "recovered", "identified", "candidates", "static", "nothing"}  # the verdict says it all
IN_PART = "Method HyperFL with defence prune on digits leaks in part: "
STOPPED = {"failure_reason": "crashed: no memory."}
CASES: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("void", "analytic", {}, "the positive control of ig", "check that must always succeed"),
    (
        "void",
        "description",
        control("consistency", False),
        "the description of the client does not explain the messages",
        "the true images do not lead to the messages that were attacked",
    ),
    (
        *("undecided", "easy"),
        control("easy", False),
        "did not solve the undefended easy case",
        "fails on an unprotected",
    ),
    (
        *("undecided", "easy"),
        control("easy", False, **STOPPED),
        "easy case (crashed: no memory),",
        "(crashed: no memory).",
    ),
    ("undecided", "failures", {"failures": 7}, "it gave no result for 7 of them", "gave no result for 7 of them"),
    (
        *("undecided", "failures"),
        STOPPED,
        "ig told of prune gave nothing (crashed: no memory)",
        "(crashed: no memory).",
    ),
    (
        *("undecided", "undefended"),
        {},
        "no defence hides the data there",
        "nothing protects the data in these messages",
    ),
    ("undecided", "outdone", {}, "it got further without knowing", "got further without knowing of the defence"),
    (
        *("undecided", "consistency"),
        control("consistency", None, failure_reason="clients keep tensors private"),
        "it was not shown that its model of the client explains the message",
        "it could not be checked that the attack takes the messages for what they are",
    ),
    (
        *("undecided", "weak_defence"),
        control("weak_defence", False),
        "does not get through the weakest form",
        "at its weakest either",
    ),
    (
        *("undecided", "weak_defence"),
        control("weak_defence", None),
        "not shown that it gets through the weakest",
        "at its weakest.",
    ),
    (
        *("undecided", "undefended_control"),
        control("undefended", False),
        "without the protection either",
        "fails for these clients",
    ),
    (
        *("undecided", "undefended_control"),
        control("undefended", None),
        "not shown that it works on these",
        "succeeds for these clients",
    ),
    (
        *("undecided", "search"),
        {"objective": {"truth": 1.0, "found": 2.0, "random": 3.0, "unconverged": 6, "total": 8}},
        "its search ended short of the true data in 6 of 8 messages",
        "in 6 of 8 messages the true images explain the message better than what it gave",
    ),
    ("undecided", "few", {"messages": 4}, "only 4 independent messages", "messages were attacked, and"),
    (
        *("undecided", "chance"),
        {"share_recovered": 0.0},
        "results for other messages fit its examples as well",
        "these images are too much alike, or too few, to tell a reconstruction from luck",
    ),
    (
        *("undecided", "tampered"),
        {"malicious_server": "imprint"},
        "the network was changed by a malicious server (imprint)",
        "the server broke the rules and changed the network",
    ),
    ("undecided", "noise", {}, "and it is another one", "not the normal and independent one"),
    ("undecided", "few", {"messages": 1}, "only 1 independent message was attacked", "message was attacked, and"),
    (
        *("undecided", "group"),
        {"vantage": "aggregate", "sum_size": 4},
        "4 clients are left in a sum",
        "4 clients are left in a sum, and that is too few for an answer",
    ),
    (
        *("undecided", "group"),
        {"vantage": "aggregate", "sum_size": 3, "num_colluding": 2},
        "1 client is left in a sum",
        "1 client is left in a sum, and that is too few for an answer",
    ),
    (
        *("undecided", "alone"),
        {"vantage": "aggregate", "sum_size": 4},
        "it was not shown that it works where one client is left",
        "succeeds where a sum holds a single client's message",
    ),
    (
        *("undecided", "untried"),
        {"vantage": "aggregate", "sum_size": 12},
        "other kinds of attacks were not tried on the sums",
        "sums were not tested by attacks of other kinds",
    ),
    (
        "message",
        "peer",
        {"vantage": "peer", "sum_size": 2, "num_colluding": 1},
        "a client takes its own part off the mean",
        "the other clients of a round can compute what one of them sent",
    ),
    (
        *("undecided", "rounding"),
        {"vantage": "peer", "sum_size": 2, "num_colluding": 1},
        "the rounding of the model may be as large as all that is left",
        "the steps are so small that the model's numbers may not hold what others sent",
    ),
    ("undecided", "unread", {}, "clients send running statistics as well", "means of their data as well"),
]


def page_of(folder: Path, *entries: dict[str, Any], tabular: bool = False) -> Any:
    return read(a_run(folder, tabular=tabular, entries=[full_entry("ig", 0, tabular, **entry) for entry in entries]))


def setting(folder: Path, **changes: Any) -> AuditEntry:
    (one,) = read_settings(folder, [full_entry("ig", 0, False, **changes)], pictures=False)
    return one


def test_the_cases_here_are_all_causes_of_the_verdicts() -> None:
    on_sums, of_all = (re.findall(r'yield \(?\s*"(\w+)",', inspect.getsource(one)) for one in (SumFacts, evidence))
    revised = re.findall(r'Verdict\([A-Z_]+, "(\w+)"', inspect.getsource(verdicts))
    causes = {*of_all, *revised, *(cause for cause, _ in evidence._TO_SHOW.values())}
    assert {"peer", "undefended", "alone", "group", "untried"} <= set(on_sums)
    assert causes - WITHOUT_A_CLAUSE == {cause for _, cause, *_ in CASES}
    assert {key.partition(",")[0] for key in BRIEF} == {cause for _, cause, *_ in CASES}
    assert BRIEF.keys() == PLAIN.keys()
    assert all(evidence in (*POSITIVE, MALICIOUS) for evidence in LEAK_CAUSES.values())
    assert LEAK_CAUSES.keys() == set(get_args(LeakCause))


@pytest.mark.parametrize(("verdict", "cause", "changes", "brief", "plain"), CASES)
def test_each_cause_has_its_sentences(
    tmp_path: Path, verdict: str, cause: str, changes: dict[str, Any], brief: str, plain: str
) -> None:
    page = page_of(tmp_path / "run", judged(verdict, cause, **changes))
    leaks = "Method HyperFL with defence prune on digits leaks"
    opening = {"message": f"{leaks}: ", "to a malicious server": f"{leaks} to a malicious server: "}.get(
        verdict, "Undecided"
    )
    assert page.heading.startswith(opening) and brief in page.heading
    words = words_of(page)
    sure = "follows by arithmetic, whatever an attack makes of it" if cause == "peer" else "Not sure at all."
    assert plain in words and sure in words
    assert f"The reason of {cause}." in page.text[: page.text.index("What the attacks reached")]
    assert not re.search(r"\b(None|nan|NaN|inf|Undefined)\b|[{}]", page.text)
    records = page_of(tmp_path / "rows", judged(verdict, cause, **changes), tabular=True)
    assert plain.replace("images", "records") in words_of(records)


def test_an_unknown_cause_leaves_a_page(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", judged("undecided", "unheard"))
    assert "but the attack is too weak for a conclusion, so its failure" in page.heading


def test_settings_are_ranked_by_how_serious_their_verdict_is(tmp_path: Path) -> None:
    entries = [full_entry("ig", n, False, **judged(verdict, "")) for n, verdict in enumerate([*ORDER, "unheard"])]
    ranked = worst_first(reversed(read_settings(tmp_path, entries, pictures=False)))
    assert [one.outcome for one in ranked if one.entry["round"] < len(ORDER)] == [*ORDER]
    assert [one.outcome for one in ranked].count("undecided") == 2


def test_no_leak_found_says_what_was_shown_and_what_may_have_been_missed(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", judged("no leak found", "nothing", messages=10))
    assert page.heading.endswith(
        "although the same attack reconstructs the same clients’ images without the protection and through its weakest "
        "form."
    )
    words = words_of(page)
    assert "From the same clients, the same model and messages of the same size" in words
    assert "recovers at least half of the images when nothing protects them, and also through the protection" in words
    assert "It was tried on 10 independent messages: if more than 26 % of such messages leaked to it" in words
    assert "A smaller share could have been missed. It does not prove that there is none." in words
    assert "as many as 26 % of such messages could leak to this attack and this audit would still have seen" in words
    assert "the true images need not be the data that explain it best" in first_page(page)
    assert "what it minimises need not be smallest at the true images" in section(page, "What this does", "Other seeds")
    assert [shown_missed(n) for n in (1, 8, 59)] == [most_missed(n) for n in (1, 8, 59)]


def test_no_leak_found_of_an_older_run_claims_the_easy_case_only(tmp_path: Path) -> None:
    old = {"verdict": "no leak found", "share_recovered": 0.0, "share_interval": [0.0, 0.37]}
    page = page_of(tmp_path / "run", old)
    assert page.heading.endswith("although the same attack succeeds on an undefended easy case.")
    assert "does succeed on an unprotected easy case" in words_of(page) and "independent message" not in page.text


def test_identifies_is_about_look_alikes_and_not_membership(tmp_path: Path) -> None:
    rates = {"identification_rate": 0.875, "identification_null": 0.001, "identification_p": 1e-9}
    page = page_of(tmp_path / "run", judged("identified", "identified", **rates))
    assert page.heading.startswith(f"{IN_PART}attack ig told of prune recovered 0 of 8")
    assert page.heading.endswith(
        "among look-alikes more often than chance explains (88\N{NO-BREAK SPACE}%, by chance less than 1 %)."
    )
    words = words_of(page)
    assert "Not recovered, but told from look-alikes. Not one of the 8 training images was recovered." in words
    assert "candidate images, one of which was in the training data of a message, can tell which one" in words
    assert "(membership) was not tested" in words and "would have a probability of at most 1 %" in words
    assert "In 88 % of the cases the result pointed to the right image" in words
    assert "Nothing follows" not in words and "too little to count as recovered" not in words


def test_messages_that_point_to_the_truth_are_told_from_results_that_do(tmp_path: Path) -> None:
    held = {"first": 6, "messages": 8, "null": 0.04, "p": 1e-7}
    page = page_of(tmp_path / "run", judged("identified", "candidates", candidate_test=held))
    sentence = (
        "6 of 8 messages are explained better by their true images than by any others of the same client and "
        "classes (chance gives 4.0 %)"
    )
    assert page.heading.startswith(IN_PART) and sentence in _plain(page.heading)
    words = words_of(page)
    assert "tell the true images from others of the same client and classes: 6 of 8 messages" in words
    assert "with candidate images" in words and "results point to the true image among look-alikes of" not in words
    none = {**held, "first": 0, "p": 1.0}
    page = page_of(tmp_path / "none", judged("no leak found", "nothing", candidate_test=none, messages=8))
    assert "None of these are explained best by the true images; chance alone gives 4.0 %." in words_of(page)
    assert "Points to the truth" in section(page, "What the attacks reached", "What the attacker had")
    assert "Points to the truth" not in page_of(tmp_path / "old", judged("no leak found", "nothing")).text


def _plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_a_peer_that_has_a_message_leaks_no_more_on_a_curve(tmp_path: Path) -> None:
    point = judged("leaks", "recovered", vantage="peer", curve="batch", batch=4)
    assert "But with" not in page_of(tmp_path, judged("message", "peer", vantage="peer", sum_size=2), point).heading


def test_a_curve_that_identifies_is_told_where_the_target_shows_less(tmp_path: Path) -> None:
    target, point = judged("undecided", "few"), judged("identified", "identified", curve="batch", batch=4)
    page = page_of(tmp_path / "run", target, point)
    assert (
        "But with a batch of 4 it leaks in part: with attack ig told of prune before the first round its results"
        in page.heading
    )
    assert "With a batch of 4, however, its results point to the true image" in words_of(page)
    settings = read_settings(tmp_path, [full_entry("ig", 0, False, **one) for one in (point, judged("leaks", ""))])
    assert answers(settings) == (settings[1], None)


def test_each_control_has_a_line_in_plain_words(tmp_path: Path) -> None:
    changes = control("consistency", None, failure_reason="clients keep tensors private", reason="")
    page = page_of(tmp_path / "run", judged("undecided", "consistency", **changes))
    controls = section(page, "Control Shown Round", "Floors:")
    assert "must find every sample yes 0 150.0 As analytic." in controls
    assert "give the recorded message not tried 0 – Clients keep tensors private." in controls
    assert "the same attack on the same clients, weights and sizes yes 0 60.0 As undefended." in controls
    assert "at its weakest settings yes 0 45.0 As weak_defence." in controls
    failed = page_of(tmp_path / "failed", judged("undecided", "weak_defence", **control("weak_defence", False)))
    assert "at its weakest settings no 0 – As weak_defence." in section(failed, "Control Shown Round", "Floors:")
    old = section(read(a_run(tmp_path / "old")), "Control Shown Round", "Floors:")
    assert "must find every sample yes all 60.0 –" in old


def test_values_of_the_objective_tell_a_failed_search_from_lost_information(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", judged("no leak found", "nothing"), {"verdict": "leaks"})
    table = section(page, "Failed search, or lost information?", "What the attacker had")
    assert "ig told of prune 0 403 355 484 0 of 8" in table and table.count("of 8") == 2
    assert "before the first round: The search did not fail: in 8 of 8 messages its result explains" in table
    assert "Failed search" not in read(a_run(tmp_path / "old")).text


def objective_of(truth: float, found: float, unconverged: int) -> dict[str, float]:
    return {"truth": truth, "found": found, "random": 3.0, "unconverged": unconverged, "total": 8}


@pytest.mark.parametrize(
    ("objective", "sentence"),
    [
        (objective_of(1.0, 2.0, 5), "The search failed: in 5 of 8 messages the true images explain the message better"),
        (objective_of(1.0, 0.5, 4), "The information that tells the two"),
        (objective_of(3.0, 0.5, 0), "the true images explain the message no better than random guesses"),
        (None, ""),
    ],
)
def test_one_sentence_tells_where_the_truth_stands(tmp_path: Path, objective: Any, sentence: str) -> None:
    result = of_search(setting(tmp_path, objective=objective), "images")
    assert sentence in result and bool(result) == bool(objective)


def test_samples_of_a_control_belong_to_the_target_beside_it(tmp_path: Path) -> None:
    entries = [
        full_entry("ig", 0, False, **judged("no leak found", "nothing")),
        full_entry("ig", 2, False, **judged("no leak found", "nothing")),
        full_entry("ig", 0, False, **judged("undecided", "few", curve="batch", batch=4)),
        full_entry("ig", 0, False, **judged("static", "static", adaptive=False, adaptation=None)),
    ]
    entries[3]["ladder"] = entries[3]["ladder"][:3]
    header = "attack,vantage,rung,round,curve,batch,steps,client,victim,image,psnr,failed,recovered\n"
    lines = [
        f"ig,server,{name},{n},,1,1,0,0,0,{psnr},False,True"
        for name, n, psnr in (("weak_defence", 0, 45.0), ("weak_defence", 2, 46.0))
    ]
    lines += ["ig,server,easy,0,,1,1,0,0,0,80.0,False,True"]
    (tmp_path / "audit.csv").write_text(header + "\n".join(lines) + "\n")
    controls = [
        {name: best.nearness for name, best in one.control_samples.items()} for one in read_settings(tmp_path, entries)
    ]
    assert controls == [
        {"weak_defence": 45.0, "easy": 80.0},
        {"weak_defence": 46.0, "easy": 80.0},
        {"easy": 80.0},
        {"easy": 80.0},
    ]


def test_terminal_gives_the_cause(tmp_path: Path) -> None:
    telling = judged("identified", "identified", identification_rate=0.875, attack="dlg")
    entries = [judged("undecided", "search", **CASES[13][2]), telling, judged("no leak found", "nothing", round=2)]
    folder = a_run(tmp_path / "run", entries=[{**full_entry("ig", 0, False), **one} for one in entries])
    result = json.loads((folder / "result.json").read_text())
    assert [one["cause"] for one in result["audit"]] == ["search", "identified", "nothing"]
    assert summary(folder).splitlines()[1:4] == [
        "attack ig told of prune at round 0: undecided (0% recovered, best 31.2 dB): its search ended short of the "
        "true data in 6 of 8 messages",
        "attack dlg told of prune at round 0: leaks (identified, 0% recovered, best 31.2 dB, 88% identified among "
        "look-alikes)",
        "attack ig told of prune at round 2: no leak found (0% recovered, best 31.2 dB)",
    ]


def test_a_search_that_missed_candidates_is_not_said_to_have_lost_them(tmp_path: Path) -> None:
    held = {"first": 8, "messages": 8, "null": 0.04, "p": 1e-9}
    values = objective_of(2.0, 1.0, 0)
    one = setting(tmp_path, **judged("identified", "candidates", candidate_test=held, objective=values))
    assert "among those of the client the true ones explain them best" in of_search(one, "images")
    other = setting(tmp_path, **judged("no leak found", "nothing", objective=values))
    assert "lost to this attack" in of_search(other, "images")
