"""Lists of what a run did not test, from what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flfw.report.findings import AuditEntry
from flfw.report.page_data import Scope
from flfw.report.questions import AGGREGATE, OUTSIDER, PEER
from flfw.report.run_verdict import place_shown

_ON_CLIENT = ("client_update", "client_example")


def untested(
    settings: Sequence[AuditEntry], membership: Sequence[Mapping[str, Any]], result: Mapping[str, Any], scope: Scope
) -> list[str]:
    """Return the questions that were not tested, an item each, the one that matters most first.

    Args:
        settings: settings of the audit by reconstruction.
        membership: ``membership`` of result.json.
        result: result.json.
        scope: scope of the audit by reconstruction.
    """
    config = result.get("config") or {}
    places = {place_shown(setting) for setting in settings} | {str(row["vantage"]) for row in membership}
    inferred = result.get("inference") or []
    places |= {str(one.get("vantage")) for one in inferred}
    items = []
    if not settings:
        items.append(f"Whether training {scope.unit} can be recovered from what clients send.")
    if not membership:
        items.append("Whether it can be told that a person took part (membership).")
    elif all(row.get("unit") != "patient" for row in membership):
        items.append(f"Whether it can be told that a person with several {scope.unit} took part.")
    if not inferred:
        items.append("What a client’s data have in common, such as the kinds of examples in them.")
    if OUTSIDER not in places:
        items.append("What the finished model gives away to those who use it.")
    if not places:
        return items
    others = [
        "other clients" if PEER not in places else "",
        "somebody on a client’s machine" if not places & set(_ON_CLIENT) else "",
        "the server, where it reads single messages" if "server" not in places else "",
        "a server that sees sums alone" if AGGREGATE not in places else "",
        "a server that follows the rules" if config.get("tampered_by") else "a server that breaks the rules",
    ]
    items.append(f"Other observers: {', '.join(filter(None, others))}.")
    if settings:
        items.append(f"Other rounds: only {rounds_in_words(scope.rounds)}.")
    if settings and "update" not in scope.sources:
        items.append("The messages that training really sent: only messages made for the test were attacked.")
    if settings and "probe" not in scope.sources:
        items.append("The easier case for an attacker: messages computed from few examples.")
    if any(setting.entry.get("verdict") == "no leak found" for setting in settings):
        best = f"the true {scope.unit} need not be the data that explain it best"
        items.append(f"Attacks of other kinds: those here look for data that explain a message, and {best}.")
    items.append("Stronger attacks, other data, other people and other settings than those of this run.")
    return items


def rounds_in_words(rounds: Sequence[int]) -> str:
    """Return the attacked rounds in words, the time before training as such.

    >>> rounds_in_words([0, 2, 5])
    'the time before training, round 2 and round 5'
    """
    words = ["the time before training" if turn == 0 else f"round {turn}" for turn in rounds]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else "no round"
