"""The frozen record of a run: the same as command-line flags, as Flower's run_config and in result.json."""

from flfw.experiment.audit import VANTAGES
from flfw.experiment.experiment import FREE_ON_RESUME, Experiment
from flfw.experiment.fields import Scalar

__all__ = ["FREE_ON_RESUME", "VANTAGES", "Experiment", "Scalar"]
