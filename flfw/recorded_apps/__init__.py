"""Audits of apps that know nothing of this project: `audit` of the clients' updates, `knowledge` about one update."""

from flfw.audit.measures.public import PublicData
from flfw.recorded_apps.audit import audit
from flfw.recorded_apps.cost import SearchLimits
from flfw.recorded_apps.description import TrainingDescription
from flfw.recorded_apps.knowledge import knowledge, named
from flfw.recording.observation import Truth

__all__ = ["PublicData", "SearchLimits", "TrainingDescription", "Truth", "audit", "knowledge", "named"]
