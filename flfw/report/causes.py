"""Clauses on the cause of a verdict: brief ones for headlines and the terminal, and others in plain words.

A clause completes a sentence such as "ig recovered 0 of 8 images, but ...". The audit's own reason is a longer text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flfw.report.findings import AuditEntry, number, setting_name, sum_words

BRIEF = {
    "tampered": "the network was changed by a malicious server ({by})",
    "analytic": "the positive control of {name} failed",
    "description": "the description of the client does not explain the messages that {name} attacked",
    "easy": "it did not solve the undefended easy case either",
    "easy, stopped": "it gave nothing on the undefended easy case ({below})",
    "failures": "it gave no result for {failures} of them",
    "failures, stopped": "it gave nothing ({stopped})",
    "undefended": "no defence hides the data there, and the attack is too weak for this case",
    "chance": "results for other messages fit its examples as well, so that closeness tells nothing",
    "outdone": "it got further without knowing of the defence",
    "consistency, untried": "it was not shown that its model of the client explains the message",
    "weak_defence": "it does not get through the weakest form of the protection either",
    "weak_defence, untried": "it was not shown that it gets through the weakest form of the protection",
    "undefended_control": "it does not work on these clients without the protection either",
    "undefended_control, untried": "it was not shown that it works on these clients without the protection",
    "search": "its search ended short of the true data in {short} of {searched} messages",
    "noise": "it took the defence's randomness for normal noise, independent in each entry, and it is another one",
    "unread": "clients send running statistics as well, which no attack reads",
    "few": "only {messages} attacked, too few for a conclusion",
    "group": "{left} left in a sum, too few for a conclusion",
    "alone": "it was not shown that it works where one client is left",
    "untried": "other kinds of attacks were not tried on the sums",
    "peer": "a client takes its own part off the mean and has the other one's update",
    "rounding": "the rounding of the model may be as large as all that is left of the sums",
}
PLAIN = {
    "tampered": "the server broke the rules and changed the network",
    "analytic": "a check that must always succeed has failed, so the measurement itself is at fault",
    "description": "what the clients computed is not what the test takes it for: the true {unit} do not lead to the "
    "messages that were attacked",
    "easy": "the same attack fails on an unprotected easy case as well",
    "easy, stopped": "the same attack gave nothing on an unprotected easy case ({below})",
    "failures": "the attack gave no result for {failures} of them",
    "failures, stopped": "the attack gave nothing ({stopped})",
    "undefended": "nothing protects the data in these messages, so this attack is too weak; a stronger one may succeed",
    "chance": "results for other messages came as close to them: these {unit} are too much alike, or too few, to tell "
    "a reconstruction from luck",
    "outdone": "the same attack got further without knowing of the defence",
    "consistency, untried": "it could not be checked that the attack takes the messages for what they are",
    "weak_defence": "the same attack does not get through the protection at its weakest either",
    "weak_defence, untried": "it was not shown that the same attack gets through the protection at its weakest",
    "undefended_control": "the same attack fails for these clients without the protection as well",
    "undefended_control, untried": "it was not shown that the attack succeeds for these clients without the protection",
    "search": "the attack ended its search too early: in {short} of {searched} messages the true {unit} explain the "
    "message better than what it gave",
    "noise": "the protection's noise is not the normal and independent one that the attack took it for; somebody who "
    "knows its law may take it off",
    "unread": "clients send means of their data as well, which were not attacked",
    "few": "only {messages} attacked, and that is too few for an answer",
    "group": "{left} left in a sum, and that is too few for an answer",
    "alone": "it was not shown that the same attack succeeds where a sum holds a single client's message",
    "untried": "sums were not tested by attacks of other kinds, which may find more",
    "peer": "the other clients of a round can compute what one of them sent",
    "rounding": "the steps are so small that the model's numbers may not hold what others sent",
}


def because(setting: AuditEntry) -> str:
    """Return the cause of a verdict in brief; empty for a verdict that needs none, or an unknown cause."""
    return _filled(BRIEF, setting, "examples")


def plainly(setting: AuditEntry, unit: str = "examples") -> str:
    """Return the cause of a verdict in plain words; empty as in `because`.

    Args:
        setting: the audited setting.
        unit: ``images``, ``records`` or another word for the samples.
    """
    return _filled(PLAIN, setting, unit)


def of_search(setting: AuditEntry, unit: str = "examples") -> str:
    """Return in a sentence whether a search failed or the information is lost to it; empty: it has no objective.

    Args:
        setting: the audited setting.
        unit: ``images``, ``records`` or another word for the samples.
    """
    objective = setting.entry.get("objective")
    if not objective:
        return ""
    short, total = objective["unconverged"], objective["total"]
    if 2 * short > total:
        return (
            f"The search failed: in {short} of {total} messages the true {unit} explain the message better than its "
            "result. The information may still be in the message, for a longer or better search."
        )
    reached = f"in {total - short} of {total} messages its result explains the message at least as well as the truth"
    if objective["truth"] >= objective["random"]:
        return (
            f"The search did not fail ({reached}), but the true {unit} explain the message no better than random "
            "guesses: what this attack minimises does not lead to them."
        )
    if setting.cause == "candidates":
        return (
            f"The search did not fail: {reached}. Among all possible {unit} others explain the messages as well, but "
            "among those of the client the true ones explain them best."
        )
    return (
        f"The search did not fail: {reached}. The information that tells the two apart is lost to this attack; to one "
        "that compares something else, it need not be."
    )


def fallen(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each attack on sums that reaches nothing from some number of clients on.

    Args:
        entries: ``audit`` of result.json.
    """
    least = [
        entry for entry in entries if entry.get("min_safe_sum_size") and entry["sum_size"] == entry["min_safe_sum_size"]
    ]
    return [
        f"{setting_name(entry, entries)} at round {entry['round']}: nothing from {sum_words(entry)} on "
        f"({entry['messages']} sum{'' if entry['messages'] == 1 else 's'}); a stronger attack may reach more"
        for entry in least
    ]


def _filled(clauses: Mapping[str, str], setting: AuditEntry, unit: str) -> str:
    return clauses.get(_variant(setting), "").format_map(_values(setting, unit))


def _variant(setting: AuditEntry) -> str:
    """Return the cause, with the reason for a missing result where that is the cause."""
    cause, control = setting.cause, setting.controls.get(setting.cause.removesuffix("_control"), {})
    if cause in ("undefended_control", "weak_defence", "consistency"):
        return f"{cause}, untried" if control.get("passed") is None else cause
    ended = (
        setting.entry.get("failure_reason")
        if cause == "failures"
        else control.get("failure_reason")
        if cause == "easy"
        else None
    )
    return f"{cause}, stopped" if ended else cause


def _values(setting: AuditEntry, unit: str) -> dict[str, Any]:
    objective = setting.entry.get("objective") or {}
    count = number(setting.entry.get("messages")) or 0
    left = (number(setting.entry.get("sum_size")) or 0) - (number(setting.entry.get("num_colluding")) or 0)
    return {
        "name": setting.name,
        "unit": unit,
        "by": setting.entry.get("malicious_server"),
        "failures": setting.failures,
        "stopped": _bare(setting.entry.get("failure_reason")),
        "below": _bare(setting.controls.get("easy", {}).get("failure_reason")),
        "short": objective.get("unconverged"),
        "searched": objective.get("total"),
        "left": f"{left:g} client{' is' if left == 1 else 's are'}",
        "messages": f"{count:g} independent message{' was' if count == 1 else 's were'}",
    }


def _bare(text: Any) -> str:
    return str(text or "").strip().rstrip(".")
