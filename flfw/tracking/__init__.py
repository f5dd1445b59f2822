"""Trackers: a run's figures in TensorBoard, MLflow, Weights & Biases, or a tool of your own."""

from flfw.tracking.tracker import AuditFigures, End, TrackedRun, Tracker

__all__ = ["AuditFigures", "End", "TrackedRun", "Tracker"]
