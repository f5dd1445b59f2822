"""MLflow: a run on the tracking server, in the database or in the folder that ``MLFLOW_TRACKING_URI`` names.

Without the variable it is MLflow's own default, ``mlflow.db`` in the working directory. The experiment is ``flfw``, or
as ``MLFLOW_EXPERIMENT_NAME`` says.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

from flfw.runs.tracking.tracker import AuditMetrics, RunEnd, TrackedRun, Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient

_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_AT_ONCE = 100  # parameters, and the most metrics, of one request
_LONGEST = 6000  # characters of a parameter


@final
class MLflow(Tracker):
    """Tracker that writes to MLflow."""

    packages = ("mlflow",)
    _client: MlflowClient

    def on_start(self, run: TrackedRun) -> str:
        """Begin the run, or go on with it."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow would tell its makers of its use
        from mlflow import MlflowClient
        from mlflow.entities import Param

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its database's layers, about one another
            self._client = MlflowClient()
            if run.earlier:
                self._run = run.earlier
                self._client.update_run(self._run, status="RUNNING")
                return self._run
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "flfw"
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known else self._client.create_experiment(name)
            self._run = self._client.create_run(experiment, run_name=run.name).info.run_id
            settings = [Param(key, str(value)[:_LONGEST]) for key, value in run.config.items()]
            for start in range(0, len(settings), _AT_ONCE):
                self._client.log_batch(self._run, params=settings[start : start + _AT_ONCE])
        return self._run

    def on_round(self, number: int, figures: Mapping[str, float]) -> None:
        """Write a metric for each figure."""
        self._log({f"round/{name}": value for name, value in figures.items()}, number)

    def on_audit(self, audited: Sequence[AuditMetrics]) -> None:
        """Write a metric for each figure, at the audited rounds, and the last verdict of each attack as a tag."""
        for one in audited:
            self._log({f"audit/{one.name}/{name}": value for name, value in one.figures.items()}, one.round)
            self._client.set_tag(self._run, f"verdict/{one.name}", one.verdict)

    def on_end(self, end: RunEnd) -> None:
        """Write the final figures and the files, and close the run."""
        self._log(end.figures, 0)
        for path in end.files:
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run, _STATUS[end.status])

    def _log(self, figures: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(_allowed(name), value, now, step) for name, value in figures.items()]
        for start in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[start : start + _AT_ONCE])


def _allowed(name: str) -> str:
    """Replace the characters that MLflow takes in no name.

    >>> _allowed("round/extra/a=b")
    'round/extra/a-b'
    """
    return "".join(char if char.isalnum() or char in "_-./ :" else "-" for char in name)
