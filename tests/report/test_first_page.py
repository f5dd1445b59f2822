"""The first page of a report: each of its sentences is true for the kind of run that it stands on."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flfw.command.api.summary import claimed
from flfw.report.findings import read_settings
from flfw.report.page_data import scope, unit_of
from flfw.report.questions import ONLY_SUMS, questions
from flfw.report.recommendations import SEED_WITHHELD, UNASKED, OpinionFacts, opinion_facts, recommendations, untested
from flfw.report.report import write_report
from flfw.report.run_verdict import Severity, claims, decision, presence, small_rounds
from tests.report.test_report import Page, first_page, read
from tests.support.reported_runs import a_full_run, a_run, full_entry, judged, member_row

JARGON = r"\b(dB|PSNR|AUC|TPR|FPR|SSIM|LPIPS|RMSD|(?<!--)vantage|victim|floor|ladder|rung|probe|logits?|gradients?)\b"
CLAIM = {
    "unit": "example", "adversary": "server", "epsilon": 0.58, "delta": 1e-5, "accountant": "exact", "rounds": 3,
    "assumptions": ["A."], "max_guess_accuracy": 0.6411, "accounting": "exact",
}  # fmt: skip
CLASSES = {
    "attack": "label_distribution", "vantage": "server", "defence": "none", "rounds": [1], "verdict": "leaks",
    "reason": "The estimates are nearer.", "cause": "inferred", "clients": 10, "classes": 10, "shares": None,
    "presence": None, "tests": 2,
}  # fmt: skip
PEER = {"peer": {"smallest": 2, "round": 1, "left": 1, "verdict": "leaks", "reason": "Two.", "check": None}}
APART = {"peer": PEER["peer"] | {"verdict": "undecided"}}
TOLD, UNCLEAR = member_row("cosine", "leaks"), member_row("cosine", "undecided")
SEED_OF = f"{SEED_WITHHELD}, from which dp_gaussian may draw: who has it can take the draws off"
LEAKS, UNKNOWN, UNTESTED = Severity.LEAKS, Severity.UNKNOWN, Severity.UNTESTED
NO_LEAK, AT_PEER = judged("no leak found", "nothing"), {"vantage": "peer", "sum_size": 12}
NOT_AUDITED = "Not tested: no attack was run, so nothing is known."


def settings_of(folder: Path, *entries: dict[str, Any], tabular: bool = False) -> Any:
    return read_settings(folder, [full_entry("ig", 0, tabular, **one) for one in entries], pictures=False)


class Given(NamedTuple):
    """Entries of an audit, and all else that a result has."""

    entries: tuple[dict[str, Any], ...]
    membership: Any
    result: dict[str, Any]


def given(*entries: dict[str, Any], membership: Any = (), **result: Any) -> Given:
    return Given(entries, membership, result)


def decided(folder: Path, *entries: dict[str, Any], membership: Any = (), **result: Any) -> Any:
    settings = settings_of(folder, *entries)
    return decision(settings, membership, result, unit_of(settings))


@pytest.mark.parametrize(
    ("run", "level", "words"),
    [
        ({}, LEAKS, "The tested federation leaks: 2 of 3 attacked images were recovered. The attacker is the"),
        ({"source": "update"}, LEAKS, "It read messages that clients sent in training."),
        ({"vantage": "client_example"}, LEAKS, "It read what a client’s machine computes for a single example."),
        ({"vantage": "aggregate", "sum_size": 4}, LEAKS, "only sums. It read sums of clients’ messages."),
        (
            judged("message", "peer", vantage="peer", sum_size=2),
            LEAKS,
            "other clients can compute what one client sent. From it, not one",
        ),
        (judged("identified", "identified"), LEAKS, "leaks in part: true images can be told apart."),
        (
            {"verdict": "to a malicious server", "malicious_server": "imprint"},
            Severity.RULES_BROKEN,
            "leaks to a server that breaks the rules. 2 of 3",
        ),
        (judged("void", "analytic"), UNKNOWN, "recovered. A check of the test itself failed"),
        (judged("undecided", "few"), UNKNOWN, "It is not known whether training images can be recovered. Not one"),
        (judged("static", "static"), UNKNOWN, "no attack took account of everything that hides the data."),
        (judged("unheard", "unheard"), UNKNOWN, "the test gave no answer. So the data may be safe, or may leak."),
        (
            judged("no leak found", "nothing"),
            Severity.NOT_FOUND,
            "No leak was found: not one of 8 attacked images was recovered. This is no proof of safety.",
        ),
        (given(NO_LEAK, {"curve": "batch", "batch": 4}), LEAKS, "2 of 3 attacked"),
        (given(NO_LEAK | AT_PEER), Severity.NOT_FOUND, "by another client, the only view tested. Not one of 8"),
        (given(NO_LEAK | AT_PEER, NO_LEAK), Severity.NOT_FOUND, "No leak was found: not one of 8"),
        (given(), UNTESTED, NOT_AUDITED),
        (given(privacy=[CLAIM]), UNTESTED, NOT_AUDITED),
        (given(membership=[TOLD]), LEAKS, "leaks which samples it was trained on."),
        (given(membership=[TOLD | {"unit": "patient"}]), LEAKS, "leaks which patients it was trained on."),
        (given(membership=[member_row("whitened", "no leak found")]), Severity.NOT_FOUND, "used. This is no proof"),
        (given(membership=[UNCLEAR]), UNKNOWN, "It is not known whether anyone can tell which"),
        (given(inference=[CLASSES]), LEAKS, "leaks what kind of data a client has"),
        (given(inference=[CLASSES | {"verdict": "static"}]), UNKNOWN, "It is not known whether"),
        (given(secure_aggregation=PEER), LEAKS, "a round had too few clients. Another client can compute"),
        (given(secure_aggregation=APART), UNTESTED, NOT_AUDITED),
    ],
)
def test_each_verdict_has_a_headline(tmp_path: Path, run: Any, level: Severity, words: str) -> None:
    run = run if isinstance(run, Given) else given(run)
    one = decided(tmp_path, *run.entries, membership=run.membership, **run.result)
    assert one.level is level and words in f"{one.headline} {' '.join(one.meaning)}"
    assert len(one.headline.split()) <= 12


def test_what_is_not_sure_does_not_read_as_safe(tmp_path: Path) -> None:
    """A result that found nothing beside one that is not known is not known, and a leak comes before both."""
    found_none, few = judged("no leak found", "nothing"), judged("undecided", "few", round=2)
    assert decided(tmp_path, found_none, few).level is UNKNOWN
    both = decided(tmp_path, found_none, membership=[member_row("whitened", "undecided")])
    assert both.level is UNKNOWN and both.headline.startswith("It is not known whether anyone can tell which")
    assert any(text.startswith("No leak was found: ") for text in both.meaning)
    leak = decided(tmp_path, found_none, membership=[member_row("whitened", "leaks")])
    assert leak.level is LEAKS and "leaks which images" in leak.headline
    for entry in (found_none, few, judged("static", "static"), judged("void", "analytic")):
        words = " ".join((decided(tmp_path, entry).headline, *decided(tmp_path, entry).meaning))
        assert re.search("no proof of safety|the data may be safe, or may leak", words)
        assert not re.search(r"\b(anonymous|protected|secure)\b", words)


def test_a_leak_of_membership_by_its_tail_alone_does_not_boast_of_its_mean() -> None:
    mean = presence([member_row("whitened", "leaks", auc=0.9)], "images")
    assert "in 67\N{NO-BREAK SPACE}% of comparisons" in mean.meaning[0]
    guessed = {"guesses": 3000, "correct": 1500, "low": 0.48, "high": 0.52}
    tail = presence([member_row("whitened", "leaks", correct=guessed)], "images")
    assert "comparisons" not in tail.meaning[0] and "This is more than chance." in tail.meaning[0]
    assert small_rounds(None).level is UNTESTED


def test_a_claim_is_said_with_its_limits() -> None:
    (plain,) = claims(
        [CLAIM, CLAIM | {"adversary": "outsider"}, CLAIM | {"accounting": "as published", "unit": "client"}]
    )
    assert plain.startswith("Whatever the attack, the server is right at most 64.2\N{NO-BREAK SPACE}% of the time")
    assert "noise_source" not in plain
    (seeded,) = claims([CLAIM | {"noise_source": "seed", "adversary": "another client"}])
    assert "another client is right" in seeded and "here the run’s seed is enough to take the noise off" in seeded
    (empty,) = claims([CLAIM | {"max_guess_accuracy": 0.9999, "epsilon": 12.0}])
    assert empty.startswith("The claimed bound for one example excludes next to nothing: it lets the server be right")
    (unknown,) = claims([CLAIM | {"max_guess_accuracy": None}])
    assert "A bound is claimed for one example against the server" in unknown
    assert claims([], reported=True) == []


def test_an_infinite_epsilon_is_no_bound(tmp_path: Path) -> None:
    """It lets everybody be right always, whatever draws the noise: what it would be with secret noise is no matter."""
    none = CLAIM | {"epsilon": "inf", "max_guess_accuracy": 1.0, "noise_source": "seed"}
    nobody = ["No bound is claimed in this run, against anybody: the reason stands under Privacy."]
    assert claims([none, none | {"unit": "client"}], reported=True) == nobody
    (outside,) = claims([none, none | {"adversary": "aggregate"}, CLAIM | {"adversary": "outsider"}])
    assert "anyone who has the finished model is right at most 64.2" in outside
    assert outside.endswith("Against the server and a server that sees only sums nothing is claimed.")
    *_, last, reported = claims([CLAIM, none | {"unit": "patient"}, none | {"unit": "client"}], True, "errors")
    assert last == "For one patient and one client nothing is claimed." and "losses and errors that" in reported
    words = asked(tmp_path, privacy=[none], config=CONFIG)
    assert "Is there a bound that holds for every attack" in words and "none in this run; Privacy says why." in words
    assert "∞" not in words and "taken off" not in words
    half = asked(tmp_path, privacy=[none, CLAIM | {"adversary": "outsider", "max_guess_accuracy": 0.95}], config=CONFIG)
    assert "ε at most 0.58 lets" in half and "Is there a bound" not in half


def test_the_terminal_says_that_an_infinite_epsilon_is_no_claim() -> None:
    none = CLAIM | {"epsilon": "inf", "max_guess_accuracy": 1.0, "noise_source": "seed"}
    assert claimed([none, none | {"adversary": "outsider"}, CLAIM | {"unit": "client"}], "private") == [
        "no epsilon is claimed for one example against server, outsider",
        "epsilon at most 0.58 for one client against server",
    ]
    (measured,) = claimed([none | {"lower_bound": {"epsilon": 0.3, "confidence": 0.95}}], "all")
    assert measured == "no epsilon is claimed, and it is at least 0.3 (95% sure), for one example against server"


def test_the_terminal_names_the_settings_under_which_a_claim_holds() -> None:
    outside = CLAIM | {"adversary": "outsider"}
    assert claimed([CLAIM, outside], "all") == [
        "with metrics=none: epsilon at most 0.58 for one example against server",
        "epsilon at most 0.58 for one example against outsider",
    ]
    (both,) = claimed([CLAIM | {"noise_source": "seed"}], "all")
    assert both.startswith("with noise_source=secure and metrics=none: epsilon")
    assert claimed([CLAIM, outside], "none") == ["epsilon at most 0.58 for one example against server, outsider"]


def test_a_question_fits_a_single_client_and_an_attack_that_cannot_adapt(tmp_path: Path) -> None:
    one = judged("static", "static")
    assert "A round had 1 client." in asked(tmp_path, one, config=CONFIG | {"clients": 1})
    assert "(--expert adaptation=auto)" in asked(tmp_path, one, config=CONFIG | {"adaptation": "static"})
    able = asked(tmp_path, one, config=CONFIG | {"adaptation": "auto"})
    assert (
        "with an attack that can be told what hides the data (--attack)" in able and "--expert adaptation" not in able
    )


def test_a_bound_stands_before_an_attack_without_an_answer_and_behind_one_that_has_any(tmp_path: Path) -> None:
    """It is rounded up: 0.5801 is no bound of 0.58."""
    for more, place in ((judged("undecided", "few"), 0), (judged("no leak found", "nothing"), -1)):
        meaning = decided(tmp_path, {**more}, privacy=[CLAIM | {"epsilon": 0.5801}]).meaning
        assert (
            meaning[place].startswith("Whatever the attack, ")
            and "(epsilon at most 0.581, delta 1e-05)." in meaning[place]
        )
        idle = decided(tmp_path, {**more}, privacy=[EMPTY]).meaning
        assert idle[-1].startswith("The claimed bound for one client excludes next to nothing")
        both = decided(tmp_path, {**more}, privacy=[CLAIM, EMPTY]).meaning
        bound, next_to_nothing = both[:2] if place == 0 else both[-2:]
        assert bound.startswith("Whatever the attack, ") and next_to_nothing == idle[-1]
        none = decided(tmp_path, {**more}, privacy=[CLAIM | {"epsilon": "inf"}]).meaning
        assert none[-1].startswith("No bound is claimed in this run")


def test_a_bound_says_that_reported_accuracies_are_not_in_it(tmp_path: Path) -> None:
    def words(**result: Any) -> str:
        return " ".join(decided(tmp_path, privacy=[CLAIM], **result).meaning)

    assert "No bound here counts the losses" in words(rounds=[{}], config={"metrics": "all"})
    assert "losses" not in words(rounds=[{}], config={"metrics": "none"})
    assert "losses" not in words(config={"metrics": "all"})


def test_a_leak_from_sums_stands_beside_single_messages_that_nobody_attacked(tmp_path: Path) -> None:
    leak, *_ = questions(settings_of(tmp_path, {"vantage": "aggregate", "sum_size": 4}), [])
    assert leak.answer == "Not tested" and leak.words.endswith(
        "Sums of them leak, which hide more: see the last question."
    )
    none, *_ = questions(settings_of(tmp_path, judged("no leak found", "nothing", vantage="aggregate", sum_size=4)), [])
    assert none.answer == "Not tested" and "leak" not in none.words


def asked(folder: Path, *entries: dict[str, Any], membership: Any = (), **result: Any) -> str:
    settings = settings_of(folder, *entries)
    questions = recommendations(settings, membership, result, scope(settings))
    assert len({question for question, _ in questions}) == len(questions)
    return " ".join(f"{question} {because}" for question, because in questions)


CONFIG = {"method": "fedavg", "dataset": "digits", "rounds": 5, "batch_size": 50, "clients": 10, "metrics": "all"}
HIDDEN = {"defence": "dcs2", "protected_by": "dcs2"}
SUMS = {"vantage": "aggregate", "sum_size": 4}
SAFE = judged("no leak found", "nothing", vantage="aggregate", sum_size=8, min_safe_sum_size=8)
EMPTY = CLAIM | {"unit": "client", "max_guess_accuracy": 1.0}  # a claim that excludes nothing
KNOWN, NOISE = {"granted": [SEED_OF]}, {"defence": "dp_gaussian", "defence_randomness": "seed"}


@pytest.mark.parametrize(
    ("run", "yes", "no"),
    [
        (given({}), "Clients had no defence where this run found its leak", "What replaces"),
        (given(HIDDEN), "What replaces or strengthens defence dcs2?", "Clients had no defence"),
        (given({"protected_by": "fedavg"}), "What replaces or strengthens method fedavg?", "defence fedavg"),
        (given(membership=[TOLD]), "Which protection will be switched on", "Will you test"),
        (given(judged("no leak found", "nothing")), "Is there a bound that holds", "Which protection will be"),
        (given(judged("static", "static")), "with an attack that knows what hides the data", "switched on"),
        (given(judged("undecided", "few")), "with more messages (--images)", "with a stronger attack"),
        (given(judged("undecided", "easy")), "with a stronger attack (--attack)", "--images"),
        (given(membership=[UNCLEAR]), "with more pairs (--expert membership_pairs)", "--attack membership"),
        (given({}), "computed from a single example? The attacked messages held 1 example;", "from 1 example?"),
        (given({"batch": 4}), "computed from 4 examples?", "single example"),
        (given({"batch": 50}), "Is there a bound", "May a client ever send"),
        (given(SUMS | {"batch": 4}, config={"victim_batch": 1}), "The attacked messages held 1 example;", "4 examples"),
        (given({"source": "update"}), "Is there a bound", "May a client ever send"),
        (given({}), "Sums were not attacked here. A round had 10 clients.", "still leak"),
        (given({}, config={"sample": 3}), "A round had 3 clients.", "A round had 10"),
        (given(SUMS), "Some sums of this run still leak.", "Sums were not"),
        (
            given(SAFE),
            "at least 8 clients? From sums over so many the attacks here reached nothing;",
            "Sums were not attacked",
        ),
        (given(secure_aggregation=PEER), "Here a round had too few to hide one.", "Sums were not attacked"),
        (given(privacy=[CLAIM]), "The bound is for one example, not a person.", "Is there a bound"),
        (given(privacy=[CLAIM, CLAIM | {"unit": "patient"}]), "Will anyone try", "not a person"),
        (given(privacy=[CLAIM, EMPTY]), "The bound is for one example, not a person.", "Is there a bound"),
        (
            given(privacy=[CLAIM | {"max_guess_accuracy": 0.95}]),
            "ε at most 0.58 lets an attacker be right 95.0",
            "none in",
        ),
        (given(privacy=[CLAIM | {"noise_source": "seed"}]), "(noise_source=secure)? Here it can be taken", "smaller ε"),
        (given({"vantage": "outsider"}), "Is there a bound", "Who will get the finished model?"),
        (given({}, config={"dataset": "folder:/x"}), "Who will get the finished model?", "federation’s own data"),
        (given({}), "This one used the data set digits.", "Must clients report"),
        (given({}, rounds=[{}]), "Must clients report losses and accuracies?", "What replaces"),
        (given({}, rounds=[{}], config={"metrics": "none"}), "Is there a bound", "Must clients report"),
        (given({}), "Attacked: the time before training, of a run of 5 rounds.", "What replaces"),
        (given(*({"round": n} for n in range(6))), "Is there a bound", "Will later rounds"),
        (given({}, config={"defended": "3,5", "defence": "prune"}), "Here only these did: 3,5.", "What replaces"),
        (
            given(KNOWN, config=NOISE),
            "Will dp_gaussian draw in secret (--expert defence_randomness=secure)? Here the draws",
            "Only",
        ),
        (given(KNOWN, config=NOISE | {"defence_randomness": "secure"}), "Is there a bound", "in secret"),
        (given({}, config={"defence": "prune", "defence_randomness": "seed"}), "Is there a bound", "in secret"),
        (given(config={"malicious_server": "loki"}), "Attack loki did so in this run.", "What replaces"),
    ],
)
def test_what_to_ask_follows_from_the_run(tmp_path: Path, run: Given, yes: str, no: str) -> None:
    config = CONFIG | run.result.get("config", {})
    words = asked(tmp_path, *run.entries, membership=run.membership, **{**run.result, "config": config})
    assert yes in words and no not in words


def test_what_was_not_tested_is_what_was_not(tmp_path: Path) -> None:
    def items(*entries: dict[str, Any], membership: Any = (), **result: Any) -> str:
        settings = settings_of(tmp_path, *entries)
        return " ".join(untested(settings, membership, result, scope(settings)))

    bare = items()
    assert "recovered from what clients send" in bare and "Other observers" not in bare
    server = items({})
    assert "(membership)" in server and "Other rounds: only the time before training." in server
    assert "other clients, a reader on a client’s machine, a server that sees only sums, a server that" in server
    assert "The messages that training really sent" in server and "easier case" not in server
    sent = items({"source": "update", "round": 2})
    assert "easier case" in sent and "really sent" not in sent and "only round 2." in sent
    everywhere = items(*({"vantage": place} for place in ("server", "client_update", "aggregate", "peer", "outsider")))
    assert "Other observers: a server that breaks the rules." in everywhere and "finished model" not in everywhere
    summed = items({"granted": [f"{ONLY_SUMS}, as behind secure aggregation"]})
    assert "the server, where it reads single messages" in summed and "sees only sums" not in summed
    follows = items({}, config={"malicious_server": "loki"})
    assert "a server that follows the rules" in follows and "breaks the rules" not in follows
    one = items(membership=[member_row("cosine", "leaks")])
    assert "a person with several samples" in one and "(membership)" not in one and "Other rounds" not in one
    assert "several" not in items(membership=[member_row("cosine", "leaks", unit="patient")])
    assert "kinds of examples" not in items(inference=[CLASSES]) and "kinds of examples" in server


def test_facts_beside_the_opinion_are_of_the_most_serious_result(tmp_path: Path) -> None:
    settings = read_settings(
        tmp_path,
        [
            full_entry("ig", 0, False, **judged("undecided", "few")),
            full_entry("ig", 2, False),
            full_entry("dlg", 2, False, vantage="outsider"),
        ],
        pictures=False,
    )
    ig, other, membership, classes = opinion_facts(settings, [member_row("cosine", "leaks")], [CLASSES], "images")
    assert ig == OpinionFacts(
        "ig",
        "Yes: 2 of 3 images recovered.",
        "The server, 12 s of computing here.",
        UNASKED,
        "Between 9\N{NO-BREAK SPACE}% and 99\N{NO-BREAK SPACE}% of such images (95\N{NO-BREAK SPACE}% interval).",
    )
    assert other.queries.startswith("It reads the finished model.") and "finished model" in other.means
    assert membership.extraction.endswith("whether a single image was trained on: it can be told.")
    assert membership.likelihood.startswith("One that was trained on scores higher in 67")
    assert classes.extraction == "Which kinds of examples a client holds: it can be told."


@pytest.mark.parametrize(
    ("entry", "extraction", "likelihood"),
    [
        (
            judged("no leak found", "nothing"),
            "Not by this attack: 0 of 8",
            "Up to 31\N{NO-BREAK SPACE}% of such messages",
        ),
        (judged("undecided", "few"), "Not answered: 0 of 8 images recovered, which shows nothing.", "Not known."),
        (judged("static", "static"), "Not answered: 0 of 8", "Not known."),
        (judged("void", "analytic"), "Not answered: the test is void.", "Not known."),
        ({"share_interval": None}, "Yes: 2 of 3 images recovered.", "2 of 3 here; no interval is recorded."),
        (
            judged("identified", "identified", identification_rate=0.875),
            "In part: 0 of 8 images recovered, but the true image told",
            "88\N{NO-BREAK SPACE}% identified among look-alikes; by chance 1.0",
        ),
        (
            judged("identified", "candidates", candidate_test={"first": 6, "messages": 8, "null": 0.04, "p": 1e-7}),
            "In part: ",
            "6 of 8 messages point to the truth; by chance 4.0",
        ),
    ],
)
def test_likelihood_is_known_only_where_the_test_answers(
    tmp_path: Path, entry: dict[str, Any], extraction: str, likelihood: str
) -> None:
    (facts,) = opinion_facts(settings_of(tmp_path, entry), [], [], "images")
    assert facts.extraction.startswith(extraction) and facts.likelihood.startswith(likelihood)
    assert "insignificant" not in facts.likelihood


@pytest.mark.parametrize("tabular", [False, True])
def test_the_first_page_needs_no_knowledge_of_the_field(tmp_path: Path, tabular: bool) -> None:
    run = a_full_run(tmp_path / "run", tabular=tabular, membership=[member_row("cosine", "leaks")], privacy=[CLAIM])
    page = read(run)
    text = first_page(page)[page.text.index("Limits") :]
    assert not re.search(JARGON, text), re.search(JARGON, text)
    assert "What to ask of the federation" in text and "What was not tested" in text
    assert "EDPB Opinion 28/2024" in text and "the judgement is yours" in text


def test_a_run_on_classes_alone_is_not_called_unaudited(tmp_path: Path) -> None:
    page = read(a_run(tmp_path / "run", attacks=(), inference=[CLASSES]))
    assert page.verdict.startswith("The tested federation leaks what kind of data a client has")
    assert page.heading.startswith("Leaks: attack label_distribution on method HyperFL on digits sought")
    assert "no attack was run" not in page.text and "Nothing was tested for leaks" not in page.text


def test_a_run_without_accuracies_has_a_page(tmp_path: Path) -> None:
    """As a regression or a federation that reports none would write it."""
    rounds = [{"round": n, "loss": 0.5 / n, "clients": 4, "failures": 0, "seconds": 1.0} for n in (1, 2)]
    page = read(a_run(tmp_path / "run", rounds=rounds, final={"per_client": []}))
    assert not re.search(r"\b(None|nan|NaN|Undefined)\b|[{}]", page.text)
    assert "final accuracy" not in page.text


def test_attack_and_method_of_one_name_are_told_apart(tmp_path: Path) -> None:
    entry = full_entry("hyperfl", 0, False, defence="dcs2", protected_by="dcs2")
    page = Page(write_report(a_run(tmp_path / "run", entries=[entry])).read_text(encoding="utf-8"))
    assert page.heading.startswith("Method HyperFL with defence dcs2 on digits leaks: attack hyperfl")
    assert "recovered by attack hyperfl" in page.text and "strengthens defence dcs2?" in page.text


def test_the_largest_sum_answers_for_membership_and_smaller_ones_are_controls() -> None:
    alone = member_row("cosine", "leaks", vantage="aggregate", sum_size=1)
    twelve = member_row("cosine", "undecided", vantage="aggregate", sum_size=12, cause="few")
    assert presence([alone, twelve], "images").level is UNKNOWN
    assert presence([alone], "images").level is LEAKS
    assert presence([member_row("cosine", "leaks"), twelve], "images").level is LEAKS


def test_a_leak_through_a_wrong_description_carries_a_caveat(tmp_path: Path) -> None:
    def meaning(passed: bool) -> str:
        ladder = [{"rung": "consistency", "psnr": None, "passed": passed, "seconds": 0.0, "failure_reason": None}]
        return " ".join(decided(tmp_path, {"ladder": ladder}).meaning)

    assert "description of the clients does not explain what they sent" in meaning(False)
    assert "does not explain" not in meaning(True)


def test_recovered_images_come_first_and_an_audit_without_samples_has_a_page(tmp_path: Path) -> None:
    """Each image has floors of its own, so that the nearest one need not count as recovered."""
    audit = a_run(tmp_path / "run", entries=[full_entry("ig", 0, False, images=0)]) / "audit.csv"
    audit.write_text(re.sub(r"(?m)^(.*,31.2,.*False,)True", r"\1False", audit.read_text()))
    assert "client 0" in str(read(tmp_path / "run").every("img")[0]["alt"])
    audit.unlink()
    assert "leaks" in read(tmp_path / "run").heading
