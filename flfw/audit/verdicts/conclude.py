"""Conclusion of an audit on one attack at one round: the verdict, and its limits in settings of their own.

Sums over clients, a server that changed the network, and statistics that no attack reads each have a rule.
"""

from __future__ import annotations

from flfw.audit.verdicts.evidence import EASY_SHARE, ControlResults, Evidence, Verdict
from flfw.audit.verdicts.sum_conclusion import SumEvidence, SumFacts, verdict_on_sums
from flfw.audit.verdicts.verdict import verdict_on_messages

MALICIOUS = "malicious server only"
"""Verdict on a network that a malicious server changed, where `verdict` would find a leak."""
POSITIVE = ("leaks", "identifies")


def verdict_on_attack(
    ladder: ControlResults, evidence: Evidence, sums: SumFacts | None = None, tampered_by: str = "", unread: str = ""
) -> Verdict:
    """Return the conclusion on an attack.

    Args:
        ladder: the rungs below it.
        evidence: its results.
        sums: facts of the sums that were attacked; None: single messages were.
        tampered_by: the attack whose malicious server changed the network; empty: the server followed the protocol.
        unread: in words, statistics of their data that clients send and that no attack reads; empty: there are none.
    """
    conclusion = of_gradients_alone(_of_sums(sums, ladder, evidence), unread)
    return of_malicious_server(conclusion, tampered_by) if tampered_by else conclusion


def _of_sums(facts: SumFacts | None, ladder: ControlResults, evidence: Evidence) -> Verdict:
    """Conclude; of sums without another defence by rules of their own."""
    conclusion, at = verdict_on_messages(ladder, evidence), evidence.searched
    if facts and facts.exposed and not evidence.defended and conclusion.verdict not in (*POSITIVE, "attack broken"):
        return facts.exposure()
    if facts and conclusion.cause == "undefended":
        short = at is not None and 2 * at.unconverged > at.total
        held = SumEvidence(facts, bool(ladder.consistency.passed), short, evidence.messages)
        return verdict_on_sums(held, EASY_SHARE)
    return conclusion


def of_gradients_alone(conclusion: Verdict, unread: str) -> Verdict:
    """Return a conclusion that does not say that nothing leaks where clients send statistics that were not attacked.

    Args:
        conclusion: on the gradients that were attacked.
        unread: the statistics in words; empty: none are sent.
    """
    if conclusion.verdict != "no leak found" or not unread:
        return conclusion
    reason = (
        f"Nothing was reconstructed from gradients. But in training clients send {unread} as well, which are means of "
        "their data, and no attack was made on these: what hides the gradients may not hide them."
    )
    return Verdict("inconclusive", "unread", reason)


def of_malicious_server(conclusion: Verdict, by: str) -> Verdict:
    """Return a conclusion on a network that a malicious server changed: it is none on the honest protocol.

    A leak becomes `MALICIOUS`; without a leak the verdict is at most ``inconclusive``.

    Args:
        conclusion: by the rules for honest servers.
        by: the attack that changed the network.

    >>> of_malicious_server(Verdict("no leak found", "nothing", "Nothing came out."), "x").verdict
    'inconclusive'
    """
    word, cause, reason = conclusion
    beyond = "It says nothing about a server that follows the protocol: audit that in a run of such a server."
    if word in POSITIVE:
        return Verdict(
            MALICIOUS, "tampered", f"In the network that a malicious server changed ({by}): {reason} {beyond}"
        )
    if word in ("attack broken", "inconclusive"):
        return Verdict(word, cause, f"{reason} {beyond}")
    nothing = f"Nothing was reconstructed in the network that a malicious server changed ({by})."
    return Verdict("inconclusive", "tampered", f"{nothing} {beyond}")
