"""Three questions that a page answers first: is data seen, is its presence told, and what does a sum hide."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from flfw.experiment import AGGREGATE, OUTSIDER, PEER
from flfw.files import outcomes
from flfw.report.findings import AuditEntry, number
from flfw.report.formats import below, decimals, percent
from flfw.report.ranking import decisive_setting, worst_first

ONLY_SUMS = "of the clients' messages only their sum"
"""Start of the grant of an attack that sees sums from the server's place (`flfw.adversary.sums`)."""

_SEEN = {
    outcomes.RECONSTRUCTED: "Yes",
    outcomes.MESSAGE: "Yes",
    outcomes.IDENTIFIED: "Not recovered, but told from look-alikes",
    outcomes.MALICIOUS: "By a server that breaks the rules",
    outcomes.NO_LEAK_FOUND: "Not found",
}
_TOLD = {outcomes.LEAKS: "Yes", outcomes.NO_LEAK_FOUND: "Not found"}
_MEMBERSHIP_ORDER = (outcomes.LEAKS, outcomes.UNDECIDED, outcomes.NO_LEAK_FOUND)
_SUMS_LEAK = " Sums of them leak, which hide more: see the last question."
_DOUBTFUL = ("faint", "null", "floor")  # causes that another statistic does not remove
_OPEN, _UNTRIED, _LEAKS_STILL = "Not known", "Not tested", "Not enough: it still leaks"


@final
@dataclass(frozen=True)
class PageQuestion:
    """Question of the first screen with its answer.

    Attributes:
        asked: the question.
        subject: the leak or the protection that it is about.
        answer: the answer in a few words.
        words: what it rests on, in sentences.
        href: the section with the evidence; empty: there is none.
        leaks: whether the answer is a leak.
    """

    asked: str
    subject: str
    answer: str
    words: str
    href: str = ""
    leaks: bool = False


def questions(
    settings: Sequence[AuditEntry],
    membership: Sequence[Mapping[str, Any]],
    unit: str = "samples",
    figures: Mapping[str, Any] | None = None,
) -> list[PageQuestion]:
    """Return the three questions with the answers of a run.

    Args:
        settings: settings of the audit by reconstruction.
        membership: ``membership`` of result.json.
        unit: ``images``, ``records`` or another word for the samples.
        figures: ``sums`` of result.json; None: there are none.
    """
    messages = [setting for setting in settings if setting.entry.get("vantage") != OUTSIDER]
    single = [setting for setting in messages if not sees_sums(setting)]
    sums = [setting for setting in settings if sees_sums(setting)]
    singly = [row for row in membership if row["vantage"] != AGGREGATE]
    summed = _summed(sums, [row for row in membership if row["vantage"] == AGGREGATE], unit)
    return [_seen(single, sums, unit), _membership(singly, unit), _with_figures(summed, figures) if figures else summed]


def membership_first(membership: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort statistics by the weakest evidence of protection, and then by how often they are right."""

    def rank(row: Mapping[str, Any]) -> tuple[int, float]:
        return _MEMBERSHIP_ORDER.index(row["verdict"]), -(number(row["auc"]) or 0.0)

    return sorted(membership, key=rank)


def decisive(membership: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the statistic that answers for all: the one that leaks most, or else the one of the weakest evidence.

    Of the statistics of the same messages, one that is able to see a leak and sees none answers for those that are not
    able to. It does not for other messages, or for somebody who sees more. Of sums the largest answer: smaller ones
    are controls.
    """
    largest: Counter[str] = Counter()
    for row in membership:
        largest[row["vantage"]] = max(largest[row["vantage"]], row.get("sum_size") or 0)
    membership = [row for row in membership if row.get("sum_size") in (None, 0, largest[row["vantage"]])]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in membership_first(membership):
        groups.setdefault((row["vantage"], row.get("sum_size"), row["defence"], tuple(row["rounds"])), []).append(row)
    return next(iter(membership_first(map(_of_one_place, groups.values()))), None)


def _of_one_place(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the statistic that answers for all of the same messages, of which the weakest evidence comes first."""
    leak = next((row for row in rows if row["verdict"] == outcomes.LEAKS), None)
    doubtful = next((row for row in rows if row.get("cause") in _DOUBTFUL), None)
    found_none = next((row for row in rows if row["verdict"] == outcomes.NO_LEAK_FOUND), None)
    return leak or doubtful or found_none or rows[0]


def membership_line(row: Mapping[str, Any]) -> str:
    """Return a statistic in one line for the terminal."""
    area, low, high = (decimals(row[key], 3) for key in ("auc", "auc_low", "auc_high"))
    interval = "" if number(row["auc_low"]) is None else f" ({low} to {high})"
    of_patients = " of patients" if row.get("unit") == "patient" else ""
    shown = f"AUC {area}{interval} on {compared(row)} pair{'' if row['pairs'] == 1 else 's'}{of_patients}"
    if number(row["tpr"]) is not None:
        shown += f", {row['tpr']:.1%} of members found at {row['fpr']:.2%} false alarms"
    if number(row["epsilon_low"]):
        shown += f", epsilon at least {below(row['epsilon_low'])}"
    vantage = "" if row["vantage"] == "server" else f" ({seen_by(row)})"
    cause = "" if row["verdict"] == outcomes.LEAKS else f": {row['reason']}"
    knowledge = f", told of {row.get('protected_by') or row['defence']}," if row.get("adaptation") else ""
    return f"membership by {row['statistic']}{vantage}{knowledge} {rounds_read(row)}: {row['verdict']} ({shown}){cause}"


def compared(row: Mapping[str, Any]) -> str:
    """Return the number of a statistic's pairs, and how many of them were compared where it is fewer.

    >>> compared({"pairs": 24, "label_separable": 22, "failed": 0})
    '2 of 24'
    >>> compared({"pairs": 24, "label_separable": None, "failed": 0})
    '24'
    """
    left = row["pairs"] - (row.get("failed") or 0) - (row.get("label_separable") or 0)
    return f"{row['pairs']}" if left == row["pairs"] else f"{left} of {row['pairs']}"


def share_right(row: Mapping[str, Any]) -> float | None:
    """Return the share of pairs in which a statistic scores the member higher; of an older result the AUC.

    >>> share_right({"correct": {"guesses": 24, "correct": 18}, "auc": 0.7})
    0.75
    """
    pairs = row.get("correct") or {}
    return pairs["correct"] / pairs["guesses"] if pairs.get("guesses") else number(row["auc"])


def seen_by(row: Mapping[str, Any]) -> str:
    """Return the vantage of a statistic, with the clients in a sum and the smallest group that tells nothing."""
    group, among, needed = (row.get(name) for name in ("sum_size", "anonymity_set_size", "min_safe_sum_size"))
    sums = ""
    if group:
        enough = f", nothing found from {needed} on" if needed else ""
        sums = f", sums over {group} client{'' if group == 1 else 's'}{enough}"
    elif among:
        sums = f", left with {among} client{'' if among == 1 else 's'}"
    return f"{row['vantage']}{sums}"


def rounds_read(row: Mapping[str, Any]) -> str:
    """Return the rounds that a statistic read, in words."""
    rounds = sorted(row["rounds"])
    if not rounds:
        return "on the final model"
    if len(rounds) == 1:
        return f"in round {rounds[0]}"
    joined = rounds == list(range(rounds[0], rounds[-1] + 1))
    return f"in rounds {rounds[0]} to {rounds[-1]}" if joined else f"in {len(rounds)} rounds up to {rounds[-1]}"


def _seen(settings: Sequence[AuditEntry], sums: Sequence[AuditEntry], unit: str) -> PageQuestion:
    requested = "Can anyone see the data?", f"{unit} recovered from what clients send"
    shown = decisive_setting(settings)
    if shown is None:
        nobody = "No attack tried to recover data from single messages."
        leaks = any(one.outcome in outcomes.POSITIVE for one in sums)
        return PageQuestion(*requested, _UNTRIED, f"{nobody}{_SUMS_LEAK if leaks else ''}")
    told = shown.entry.get("protected_by") or shown.entry.get("defence")
    by = f"attack {shown.title.replace(f' told of {told}', '')}"
    by = f"an attacker who knows {told}: {by}" if shown.informed else by
    words = f"{shown.recovered} of {shown.total} recovered by {by}. Verdict: {outcomes.in_words(shown.entry)}."
    leaks = shown.outcome in outcomes.POSITIVE
    return PageQuestion(*requested, _SEEN.get(shown.outcome, _OPEN), words, "results", leaks)


def _membership(membership: Sequence[Mapping[str, Any]], unit: str) -> PageQuestion:
    row = decisive(membership)
    unit = "patients" if row and row.get("unit") == "patient" else unit
    requested = "Can anyone tell whose data were used?", f"membership of single {unit}"
    if row is None:
        return PageQuestion(*requested, _UNTRIED, "No attack tried to tell members from others.")
    verdict = str(row["verdict"])
    beside = f", one of {len(membership)} statistics" if len(membership) > 1 else ""
    right = f"is right in {percent(share_right(row), 0)} of comparisons (a coin: 50\u00a0%)"
    on = f" on {few} pairs" if " of " in (few := compared(row)) else ""
    area = "gave no score" if number(row["auc"]) is None else f"{right}{on}"
    area = area if (row.get("correct") or {}).get("guesses", 1) else f"tells no pair apart{on}"
    words = f"Statistic {row['statistic']}{beside}, {area} {rounds_read(row)}. Verdict: {verdict}."
    return PageQuestion(*requested, _TOLD.get(verdict, _OPEN), words, "membership", verdict == outcomes.LEAKS)


def _summed(settings: Sequence[AuditEntry], membership: Sequence[Mapping[str, Any]], unit: str) -> PageQuestion:
    peers = any(setting.entry.get("vantage") == PEER for setting in settings)
    who = "a server behind secure aggregation" + ", or another client," * peers
    requested = "What does a sum hide?", f"{who} sees only sums over clients"
    if not settings and not membership:
        return PageQuestion(*requested, _UNTRIED, "No attack was tried on sums over clients.")
    sentences, found = [], [setting.outcome for setting in settings]
    largest = _largest(settings)
    if largest is not None:
        reached = f"attack {largest.name} recovered {largest.recovered} of {largest.total} {unit}"
        sentences.append(f"From sums over {_clients(largest)} {reached}: {outcomes.in_words(largest.entry)}.")
        found = [largest.outcome]
        smaller = [one for one in settings if one.outcome in outcomes.POSITIVE and _group(one) != _group(largest)]
        if smaller and found[0] not in outcomes.POSITIVE:
            sentences.append(f"Sums over {_clients(max(smaller, key=_group))} leak.")
    row = decisive(membership)
    if row is not None:
        group = f" from sums over {row['sum_size']} clients" if (row.get("sum_size") or 0) > 1 else ""
        sentences.append(f"Membership by {row['statistic']}{group}: {row['verdict']}.")
        found.append(outcomes.outcome(row))
    leaks = any(one in outcomes.POSITIVE for one in found)
    untried = not settings or not membership
    sentences += [f"{'Reconstruction' if not settings else 'Membership'} from sums was not tried."] if untried else []
    hidden = not leaks and not untried and all(one == outcomes.NO_LEAK_FOUND for one in found)
    answer = "No leak found in sums" if hidden else _SEEN[outcomes.MALICIOUS] if outcomes.MALICIOUS in found else _OPEN
    answer = _LEAKS_STILL if leaks else answer
    return PageQuestion(*requested, answer, " ".join(sentences), "results" if settings else "membership", leaks)


def _with_figures(summed: PageQuestion, figures: Mapping[str, Any]) -> PageQuestion:
    """Return the question about sums, with the run's figures on sums in its answer."""
    if figures["peer"]["verdict"] == outcomes.LEAKS and not summed.leaks:
        alone = "A round had so few clients that another one can compute a single client's update."
        return replace(summed, answer=_LEAKS_STILL, words=f"{alone} {summed.words}", href="sums", leaks=True)
    more = "What follows from who took part stands under Sums."
    return replace(summed, words=f"{summed.words} {more}", href=summed.href or "sums")


def sees_sums(setting: AuditEntry) -> bool:
    """Return whether an attack saw sums over clients alone."""
    granted = setting.entry.get("granted") or []
    return setting.entry.get("vantage") in (AGGREGATE, PEER) or any(str(one).startswith(ONLY_SUMS) for one in granted)


def _largest(settings: Sequence[AuditEntry]) -> AuditEntry | None:
    """Return the worst setting among those of the largest group."""
    most = max(map(_group, settings), default=0.0)
    return next(iter(worst_first([setting for setting in settings if _group(setting) == most])), None)


def _group(setting: AuditEntry) -> float:
    return number(setting.entry.get("sum_size")) or 0.0


def _clients(setting: AuditEntry) -> str:
    group = _group(setting)
    return f"{group:g} client{'' if group == 1 else 's'}" if group else "clients"
