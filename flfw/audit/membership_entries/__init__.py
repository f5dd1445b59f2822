"""Entries of membership in result.json: the evidence in an attack's scores, and what may be concluded from it."""

from __future__ import annotations

from flfw.audit.membership_entries.conclusion import MembershipConclusion, MembershipFacts, conclude
from flfw.audit.membership_entries.entry import MembershipControls, SumSeen, claim_against, entry
from flfw.audit.membership_entries.evidence import MembershipEvidence, weigh
from flfw.audit.membership_entries.scored import ScoredClient

__all__ = [
    "MembershipConclusion",
    "MembershipControls",
    "MembershipEvidence",
    "MembershipFacts",
    "ScoredClient",
    "SumSeen",
    "claim_against",
    "conclude",
    "entry",
    "weigh",
]
