"""Trackers: a run's figures in TensorBoard, MLflow, Weights & Biases, or a tool of your own."""

from flfw.runs.tracking.tracker import AuditMetrics, RunEnd, TrackedRun, Tracker

__all__ = ["AuditMetrics", "RunEnd", "TrackedRun", "Tracker"]
