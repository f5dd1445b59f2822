"""Frozen record of a run, with the same fields in command-line flags, Flower's run_config and result.json."""

from flfw.experiment.audit import AGGREGATE, OUTSIDER, PEER, VANTAGES
from flfw.experiment.experiment import EXPERT, FREE_ON_RESUME, Experiment
from flfw.plugins import Scalar

__all__ = ["AGGREGATE", "EXPERT", "FREE_ON_RESUME", "OUTSIDER", "PEER", "VANTAGES", "Experiment", "Scalar"]
