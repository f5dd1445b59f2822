"""Audits of apps that know nothing of this project: `audit` of the clients' updates, `knowledge` about one update."""

from flfw.recorded_apps.audit import audit
from flfw.recorded_apps.cost import SearchLimits
from flfw.recorded_apps.description import TrainingDescription
from flfw.recorded_apps.knowledge import knowledge, named

__all__ = ["SearchLimits", "TrainingDescription", "audit", "knowledge", "named"]
