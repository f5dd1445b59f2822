"""Weights & Biases: a run of the project ``flfw``, or of ``WANDB_PROJECT``; ``WANDB_MODE=offline`` sends nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

from flfw.errors import InputError
from flfw.runs.tracking.tracker import AuditMetrics, RunEnd, TrackedRun, Tracker

if TYPE_CHECKING:
    import wandb

COPIES = "wandb/results"  # in the run's folder; `--purge` removes it
_OFFLINE = ("offline", "disabled", "dryrun")


@final
class WeightsAndBiases(Tracker):
    """Tracker that writes to the server of Weights & Biases, or as ``WANDB_MODE`` and ``WANDB_BASE_URL`` say."""

    packages = ("wandb",)
    _run: wandb.Run

    @classmethod
    def check(cls, name: str) -> None:
        """Refuse a run that would be sent to a server without a key for it. Whether it takes the key is not asked."""
        super().check(name)
        mode = os.environ.get("WANDB_MODE", "").lower()
        if mode in _OFFLINE:
            return
        _be_quiet()
        import wandb

        own = wandb.setup(wandb.Settings(x_disable_viewer=True))  # else login asks the server who this is, and waits
        if not mode and own.settings.mode in _OFFLINE:  # as `wandb offline` has noted
            return
        try:
            known = wandb.login(verify=False)
        except Exception as error:  # also where there is no terminal to ask at
            known, why = False, f" ({error})"
        else:
            why = ""
        if not known:
            way = "wandb login, or WANDB_MODE=offline, which sends nothing"
            raise InputError(f"Expected an API key for --track wandb, got none{why}; {way}.")

    def on_start(self, run: TrackedRun) -> str:
        """Begin the run, or go on with it; neither code, repository, output nor names of machine and user are sent."""
        _be_quiet()
        import wandb

        self._copies = run.folder / COPIES
        settings = wandb.Settings(
            console="off",
            disable_git=True,
            save_code=False,
            disable_code=True,
            x_disable_meta=True,
            host="-",
            silent=True,
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "flfw",
            name=run.name,
            id=run.earlier or None,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            settings=settings,
        )
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        return str(self._run.id)

    def on_round(self, number: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a round as one point."""
        self._run.log({"round": number, **{f"round/{name}": value for name, value in figures.items()}})

    def on_audit(self, audited: Sequence[AuditMetrics]) -> None:
        """Write the figures of each attack at its round, and the last verdict of each into the summary."""
        for one in audited:
            self._run.log({"round": one.round, **{f"audit/{one.name}/{name}": v for name, v in one.figures.items()}})
            self._run.summary[f"verdict/{one.name}"] = one.verdict

    def on_end(self, end: RunEnd) -> None:
        """Write the final figures into the summary, the files as an artefact, and close the run."""
        import wandb

        self._run.summary.update(dict(end.figures))
        if end.files:
            results = wandb.Artifact(f"results-{self._run.id}", type="results")
            self._copies.mkdir(parents=True, exist_ok=True)
            for path in end.files:  # the package's own copies would lie in the user's home, and stay there
                results.add_file(str(shutil.copyfile(path, self._copies / path.name)), policy="immutable")
            self._run.log_artifact(results)
        self._run.finish(exit_code=0 if end.status == "finished" else 1)


def _be_quiet() -> None:
    """Keep the package from telling its makers of errors."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
