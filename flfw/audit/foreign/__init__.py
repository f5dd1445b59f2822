"""Audits of apps that know nothing of this project: `audit` of the clients' updates, `knowledge` about one update."""

from flfw.audit.foreign.audit import audit
from flfw.audit.foreign.cost import SearchLimits
from flfw.audit.foreign.description import TrainingDescription
from flfw.audit.foreign.knowledge import knowledge, named

__all__ = ["SearchLimits", "TrainingDescription", "audit", "knowledge", "named"]
