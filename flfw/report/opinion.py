"""Facts of a run beside the questions of EDPB Opinion 28/2024 on anonymous models; the judgement is the reader's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from flfw.report.findings import AuditEntry, number
from flfw.report.formats import capital, decimals, percent
from flfw.report.page_data import most_missed
from flfw.report.questions import OUTSIDER, decisive
from flfw.report.ranking import POSITIVE, worst_first
from flfw.report.run_verdict import IN_PLACE, ONE, place_shown

UNASKED = "Not tested: it reads what is computed or sent in training, and asks the model nothing."
_MODEL = "It reads the finished model."
_UNKNOWN = "Not known."


@final
@dataclass(frozen=True)
class OpinionFacts:
    """Facts on an attack.

    Attributes:
        attack: the attack.
        extraction: whether personal data were extracted.
        means: who did it, with what.
        queries: whether outputs of the model relate to persons.
        likelihood: the measured likelihood.
    """

    attack: str
    extraction: str
    means: str
    queries: str
    likelihood: str


def opinion_facts(
    settings: Sequence[AuditEntry],
    membership: Sequence[Mapping[str, Any]],
    inference: Iterable[Mapping[str, Any]],
    unit: str = "samples",
) -> list[OpinionFacts]:
    """Return the facts on each attack of a run, from its most serious result.

    Args:
        settings: settings of the audit by reconstruction.
        membership: ``membership`` of result.json.
        inference: ``inference`` of result.json.
        unit: ``images``, ``records`` or another word for the samples.
    """
    worst: dict[str, AuditEntry] = {}
    for setting in worst_first(settings):
        worst.setdefault(str(setting.entry.get("attack")), setting)
    facts = [_of_recovery(name, setting, unit) for name, setting in worst.items()]
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in membership:
        rows.setdefault(str(row["attack"]), []).append(row)
    facts += [_of_membership(name, shown, unit) for name, some in rows.items() if (shown := decisive(some))]
    return facts + [_of_classes(one) for one in inference]


def _of_recovery(name: str, setting: AuditEntry, unit: str) -> OpinionFacts:
    entry, verdict = setting.entry, setting.entry.get("verdict")
    got = f"{setting.recovered} of {setting.total} {unit} recovered"
    answer = {
        "leaks": f"Yes: {got}.",
        "identifies": f"In part: {got}, but the true {ONE.get(unit, unit)} told from similar ones.",
        "malicious server only": f"By a server that changed what clients train: {got}, or told from similar ones.",
        "no leak found": f"Not by this attack: {got}.",
        "attack broken": "Not answered: the test is void.",
    }.get(str(verdict), f"Not answered: {got}, which shows nothing.")
    seconds = number(entry.get("seconds"))
    spent = f", {decimals(seconds, 0)} s of computing here" if seconds is not None else ""
    place = place_shown(setting)
    requested = f"{_MODEL} {answer}" if place == OUTSIDER else UNASKED
    return OpinionFacts(
        name, answer, f"{capital(IN_PLACE.get(place, place))}{spent}.", requested, _likely(setting, unit)
    )


def _likely(setting: AuditEntry, unit: str) -> str:
    entry, verdict = setting.entry, setting.entry.get("verdict")
    span, messages = entry.get("share_interval"), number(entry.get("messages"))
    if verdict == "identifies" and (held := entry.get("candidate_test")) and setting.cause == "candidates":
        return f"{held['first']} of {held['messages']} messages point to the truth; by chance {percent(held['null'])}."
    if verdict == "identifies" and number(entry.get("identification_rate")) is not None:
        chance = number(entry.get("identification_null"))
        by = f"; by chance {percent(chance)}" if chance is not None else ""
        return f"{percent(entry.get('identification_rate'), 0)} identified among look-alikes{by}."
    if verdict == "no leak found" and setting.recovered == 0 and messages:
        return (
            f"Up to {percent(most_missed(int(messages)), 0)} of such messages could leak unseen (95\u00a0%, one-sided)."
        )
    if verdict in (*POSITIVE, "no leak found", "malicious server only"):
        if span:
            return f"Between {percent(span[0], 0)} and {percent(span[1], 0)} of such {unit} (95\u00a0% interval)."
        return f"{setting.recovered} of {setting.total} here; no interval is recorded."
    return _UNKNOWN


def _of_membership(name: str, row: Mapping[str, Any], unit: str) -> OpinionFacts:
    what = "a patient" if row.get("unit") == "patient" else f"a single {ONE.get(unit, unit)}"
    verdict, place = row["verdict"], str(row["vantage"])
    sought = f"Data were not sought, but whether {what} was trained on:"
    answer = {"leaks": "it can be told.", "no leak found": "not found."}.get(verdict, "not answered.")
    low, high = number(row["auc_low"]), number((row.get("correct") or {}).get("high"))
    likely = _UNKNOWN
    if verdict == "leaks":
        compared = (
            f"One that was trained on scores higher in {percent(row['auc'], 0)} of comparisons (a coin: 50\u00a0%)."
        )
        likely = compared if low is not None and low > 0.5 else "For some of them more than chance explains."
    elif verdict == "no leak found" and high is not None:
        likely = f"Up to {percent(high, 0)} right guesses could go unseen (a coin: 50\u00a0%)."
    requested = f"{_MODEL} {capital(answer)}" if place == OUTSIDER else UNASKED
    means = f"{capital(IN_PLACE.get(place, place))}, who knows both of a pair, one of which was trained on."
    return OpinionFacts(name, f"{sought} {answer}", means, requested, likely)


def _of_classes(one: Mapping[str, Any]) -> OpinionFacts:
    verdict, place = str(one.get("verdict")), str(one.get("vantage"))
    answer = {"leaks": "it can be told.", "malicious server only": "by a server that breaks the rules."}
    kinds = f"Which kinds of examples a client holds: {answer.get(verdict, 'not answered.')}"
    requested = f"{_MODEL} {kinds}" if place == OUTSIDER else UNASKED
    return OpinionFacts(
        str(one.get("attack")),
        kinds,
        f"{capital(IN_PLACE.get(place, place))}.",
        requested,
        "Not measured for one person.",
    )
