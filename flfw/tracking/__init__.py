"""Trackers: a run's figures in TensorBoard, MLflow, Weights & Biases, or a tool of your own."""

from flfw.tracking.tracker import AuditFigures, RunEnd, TrackedRun, Tracker

__all__ = ["AuditFigures", "RunEnd", "TrackedRun", "Tracker"]
