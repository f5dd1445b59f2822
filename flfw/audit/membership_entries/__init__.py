"""Entries of membership in result.json: the evidence in an attack's scores, and what may be concluded from it."""

from __future__ import annotations

from flfw.audit.membership_entries.entry import MembershipControls, SumSeen, claim_against, entry
from flfw.audit.membership_entries.evidence import MembershipEvidence, weigh
from flfw.audit.membership_entries.scored import ScoredClient
from flfw.audit.membership_entries.verdict import MembershipFacts, MembershipVerdict, verdict_on_membership

__all__ = [
    "MembershipControls",
    "MembershipEvidence",
    "MembershipFacts",
    "MembershipVerdict",
    "ScoredClient",
    "SumSeen",
    "claim_against",
    "entry",
    "verdict_on_membership",
    "weigh",
]
