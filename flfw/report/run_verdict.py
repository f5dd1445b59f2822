"""Verdict of a run in plain words, for readers who decide and do not know machine learning."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import takewhile
from math import inf
from typing import Any, final

from flfw.experiment import AGGREGATE, OUTSIDER, PEER
from flfw.files import outcomes
from flfw.report.findings import AuditEntry, number
from flfw.report.formats import above, capital, percent, percent_above
from flfw.report.page_data import is_regression
from flfw.report.questions import decisive, sees_sums, share_right
from flfw.report.ranking import decisive_setting

ONE = {"images": "image", "records": "record", "texts": "text", "samples": "sample", "patients": "patient"}
_WHERE = {
    "client_example": "what a client’s machine computes for a single example",
    "client_update": "what a client’s machine is about to send",
    AGGREGATE: "sums of clients’ messages",
    PEER: "what other clients add to the common model",
    OUTSIDER: "the finished model",
}
IN_PLACE = {
    "server": "the server",
    "client_update": "a reader on a client’s machine",
    "client_example": "a reader on a client’s machine",
    AGGREGATE: "a server that sees only sums",
    PEER: "another client",
    OUTSIDER: "anyone who has the finished model",
}
NOTHING = 0.995
"""Share of right guesses from which on a bound that allows them excludes next to nothing."""
_REPORTED = (
    "No bound here counts the losses and {} that clients report without noise (--metrics): they can tell who took part."
)
_NO_PROOF = "So the data may be safe, or may leak."


class Severity(IntEnum):
    """Seriousness of a verdict, the most serious first."""

    LEAKS = 0
    RULES_BROKEN = 1
    UNKNOWN = 2
    NOT_FOUND = 3
    UNTESTED = 4


@final
@dataclass(frozen=True)
class RunVerdict:
    """Verdict of a run, or on a kind of leak.

    Attributes:
        level: how serious the most serious result is.
        headline: it in a sentence.
        meaning: what follows from it, and the other results, a paragraph each.
    """

    level: Severity
    headline: str
    meaning: tuple[str, ...] = ()


def decision(
    settings: Sequence[AuditEntry],
    membership: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    unit: str = "samples",
) -> RunVerdict:
    """Return the verdict of a run in plain words.

    Args:
        settings: settings of the audit by reconstruction.
        membership: ``membership`` of result.json.
        result: result.json.
        unit: ``images``, ``records`` or another word for the samples.
    """
    kinds = [recovery(settings, unit), presence(membership, unit), classes(result.get("inference") or [])]
    kinds.append(small_rounds(result.get("secure_aggregation")))
    tested = sorted((kind for kind in kinds if kind.level != Severity.UNTESTED), key=lambda kind: kind.level)
    reported = bool(result.get("rounds")) and (result.get("config") or {}).get("metrics") == "all"
    bounds = tuple(claims(result.get("privacy") or [], reported, "errors" if is_regression(result) else "accuracies"))
    if not tested:
        headline = "Not tested: no attack was run, so nothing is known."
        useful = "A useful model is no sign that it keeps its data private."
        return RunVerdict(Severity.UNTESTED, headline, (useful, *bounds))
    first, *others = tested
    beside = [" ".join([other.headline, *other.meaning]) for other in others]
    if first.level == Severity.UNKNOWN and any(map(_excludes, result.get("privacy") or [])):
        # A bound says more than an attack without an answer.
        return RunVerdict(first.level, first.headline, (*bounds, *first.meaning, *beside))
    return RunVerdict(first.level, first.headline, (*first.meaning, *beside, *bounds))


def recovery(settings: Sequence[AuditEntry], unit: str) -> RunVerdict:
    """Return the result of the attacks that recover clients' data."""
    shown = decisive_setting(settings)
    if shown is None:
        return RunVerdict(Severity.UNTESTED, "")
    found, k, n, one = shown.outcome, shown.recovered, shown.total, ONE.get(unit, unit)
    got = f"{k or 'not one'} of {n} attacked {unit} {'was' if k < 2 else 'were'} recovered"
    place = place_shown(shown)
    read = f"The attacker is {IN_PLACE.get(place, 'not named')}. It read {_where(shown, place)}."
    if found == outcomes.MESSAGE:
        headline = "The tested federation leaks: other clients can compute what one client sent."
        return RunVerdict(Severity.LEAKS, headline, (f"From it, {got}. Another attack may recover more.",))
    if found == outcomes.RECONSTRUCTED:
        if shown.controls.get("consistency", {}).get("passed") is False:
            read += " The test’s description of the clients does not explain what they sent, so more may leak."
        more = "A stronger attacker may recover more."
        return RunVerdict(
            Severity.LEAKS, f"The tested federation leaks: {got}.", (f"{read} {_share(shown, unit)}{more}",)
        )
    if found == outcomes.IDENTIFIED:
        headline = f"The tested federation leaks in part: true {unit} can be told apart."
        pick = f"{capital(got)}. But among similar {unit} an attacker picks the true {one} more often than by chance."
        return RunVerdict(Severity.LEAKS, headline, (f"{read} {pick}",))
    if found == outcomes.MALICIOUS:
        told = number(shown.entry.get("identification_p")) is not None or shown.entry.get("candidate_test")
        got += f", but true {unit} were told from similar ones" * (not k and bool(told))
        by = f"{capital(got)}. The server had changed the network that clients train."
        headline = "The tested federation leaks to a server that breaks the rules."
        return RunVerdict(Severity.RULES_BROKEN, headline, (f"{by} This says nothing about a server that keeps them.",))
    if found == outcomes.NO_LEAK_FOUND:
        rest = f"This is no proof of safety. {read} {_found_none(shown, unit)}"
        headline = f"No leak was found: {got}."
        if all(one.entry.get("vantage") == PEER for one in settings):
            headline, rest = f"No leak was found by {IN_PLACE[PEER]}, the only view tested.", f"{capital(got)}. {rest}"
        return RunVerdict(Severity.NOT_FOUND, headline, (rest,))
    headline = f"It is not known whether training {unit} can be recovered."
    reason = {
        outcomes.VOID: "A check of the test itself failed, so its result is void.",
        outcomes.STATIC: f"{capital(got)}, but no attack took account of everything that hides the data.",
    }.get(found, f"{capital(got)}, but the test gave no answer.")
    return RunVerdict(Severity.UNKNOWN, headline, (f"{reason} {_NO_PROOF}",))


def place_shown(setting: AuditEntry) -> str:
    """Return the attacker's place; an attacker at the server who sees sums stands where secure aggregation puts it."""
    vantage = str(setting.entry.get("vantage"))
    return AGGREGATE if vantage != PEER and sees_sums(setting) else vantage


def presence(membership: Sequence[Mapping[str, Any]], unit: str) -> RunVerdict:
    """Return the result of the attacks on membership."""
    row = decisive(membership)
    if row is None:
        return RunVerdict(Severity.UNTESTED, "")
    what = "patients" if row.get("unit") == "patient" else unit
    verdict, low = row["verdict"], number((row.get("correct") or {}).get("low"))
    if verdict == outcomes.LEAKS:
        headline = f"The tested federation leaks which {what} it was trained on."
        right = percent(share_right(row), 0)
        scored = f"Of two {what}, the attacker names the one that was used in {right} of comparisons; "
        chance = f"{scored}a coin gives 50\N{NO-BREAK SPACE}%. " if low is not None and low > 0.5 else ""
        sure = "This is more than chance. A stronger attacker may tell more."
        return RunVerdict(Severity.LEAKS, headline, (f"{chance}{sure}",))
    if verdict == outcomes.NO_LEAK_FOUND:
        headline = f"No leak was found of which {what} were used."
        high = number((row.get("correct") or {}).get("high"))
        seen = f"The test could have seen more than {percent(high, 0)} right guesses; a coin gives 50\u00a0%. "
        meaning = f"This is no proof of safety. {seen if high is not None else ''}A smaller effect may be there."
        return RunVerdict(Severity.NOT_FOUND, headline, (meaning,))
    headline = f"It is not known whether anyone can tell which {what} were used."
    return RunVerdict(Severity.UNKNOWN, headline, (f"The test gave no answer. {_NO_PROOF}",))


def classes(inference: Iterable[Mapping[str, Any]]) -> RunVerdict:
    """Return the result of the attacks on the kinds of examples that clients hold."""
    concluded = {str(one.get("verdict")) for one in inference}
    if not concluded:
        return RunVerdict(Severity.UNTESTED, "")
    if outcomes.LEAKS in concluded:
        headline = "The tested federation leaks what kind of data a client has."
        what = "This is about a client’s data as a whole: their classes, or the shares of these."
        return RunVerdict(Severity.LEAKS, headline, (what,))
    return RunVerdict(Severity.UNKNOWN, "It is not known whether clients’ kinds of data leak.", (_NO_PROOF,))


def small_rounds(figures: Mapping[str, Any] | None) -> RunVerdict:
    """Return whether a round had so few clients that one of them can compute another one's message."""
    if (figures or {}).get("peer", {}).get("verdict") != outcomes.LEAKS:
        # No leak here says nothing of larger attacks: it is no result of its own.
        return RunVerdict(Severity.UNTESTED, "")
    headline = "The tested federation leaks: a round had too few clients."
    what = "Another client can compute what one client sent. This follows from who took part; no attack is needed."
    return RunVerdict(Severity.LEAKS, headline, (what,))


def claims(privacy: Sequence[Mapping[str, Any]], reported: bool = False, measured: str = "accuracies") -> list[str]:
    """Return the claimed bound in plain words, the first that is one for each unit.

    Args:
        privacy: ``privacy`` of result.json.
        reported: whether clients report losses and accuracies, or errors, without noise, which no bound counts.
        measured: what they report beside losses: ``accuracies`` or ``errors``.
    """
    by_unit: dict[str, list[Mapping[str, Any]]] = {}
    for line in privacy:
        if line.get("accounting") != "as published":
            by_unit.setdefault(str(line.get("unit")), []).append(line)
    if not by_unit:
        return []
    lines, without = [], []
    for unit, rows in by_unit.items():
        bounded = [line for line in rows if is_bound(line)]
        lines += [_claim(bounded[0]) + _not_against(rows)] if bounded else []
        without += [] if bounded else [f"one {unit}"]
    if not lines:
        return ["No bound is claimed in this run, against anybody: the reason stands under Privacy."]
    lines += [f"For {' and '.join(without)} nothing is claimed."] if without else []
    return [*lines, _REPORTED.format(measured)] if reported else lines


def is_bound(line: Mapping[str, Any]) -> bool:
    """Return whether a line of ``privacy`` bounds anything: an infinite epsilon is no claim."""
    return number(line.get("epsilon")) != inf


def _excludes(line: Mapping[str, Any]) -> bool:
    """Return whether a line of ``privacy`` is a claim that leaves an attacker in doubt."""
    certainty = number(line.get("max_guess_accuracy"))
    claimed = is_bound(line) and line.get("accounting") != "as published"
    return claimed and certainty is not None and certainty < NOTHING


def _not_against(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on those whom a unit's first bound stands behind, as nothing is claimed against them."""
    ahead = takewhile(lambda line: not is_bound(line), rows)
    whom = " and ".join(_named(str(line.get("adversary"))) for line in ahead)
    return f" Against {whom} nothing is claimed." if whom else ""


def _claim(line: Mapping[str, Any]) -> str:
    certainty, against = number(line.get("max_guess_accuracy")), _named(str(line.get("adversary")))
    if certainty is None:
        return f"A bound is claimed for one {line.get('unit')} against {against}; it stands under Privacy."
    unit, right = line.get("unit"), percent_above(certainty)
    bound = (
        f"Whatever the attack, {against} is right at most {right} of the time on whether one {unit} was there, if that "
        "was as likely as not before, and while the assumptions under Privacy hold (epsilon at most "
        f"{above(line.get('epsilon'))}, delta {line.get('delta')})."
    )
    if certainty >= NOTHING:
        allowed = f"it lets {against} be right {right} of the time."
        bound = f"The claimed bound for one {unit} excludes next to nothing: {allowed}"
    secret = " It holds with noise_source=secure: here the run’s seed is enough to take the noise off."
    return f"{bound}{secret if line.get('noise_source') == 'seed' else ''}"


def _named(adversary: str) -> str:
    known = {"aggregate": IN_PLACE[AGGREGATE], "outsider": IN_PLACE[OUTSIDER], PEER: IN_PLACE[PEER]}
    return known.get(adversary) or (adversary if adversary.startswith("another") else f"the {adversary}")


def _where(entry: AuditEntry, place: str) -> str:
    sent = "sent in training" if entry.entry.get("source") == "update" else "made for this test"
    return _WHERE.get(place, f"messages that clients {sent}")


def _share(entry: AuditEntry, unit: str) -> str:
    span = entry.entry.get("share_interval")
    if not span:
        return ""
    low, high = (percent(edge, 0) for edge in span)
    return f"Of more such {unit} it recovers {low} to {high} (95\u00a0% interval, for chance in their choice alone). "


def _found_none(entry: AuditEntry, unit: str) -> str:
    works = ""
    if entry.cause == "constant":
        return "The tested messages are the same to the byte, though their data differ. Others may leak."
    if entry.shown_to_work:
        works = f"The same attack recovers {unit} of the same clients without protection, so it can see such a leak. "
    elif entry.controls.get("easy", {}).get("passed"):
        works = "The same attack succeeds on an easy case without protection. "
    return f"{works}A stronger attack, another round or other data may leak."
