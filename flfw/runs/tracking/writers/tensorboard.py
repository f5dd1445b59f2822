"""TensorBoard: event files in the run's folder, ``tensorboard --logdir runs``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

from flfw.runs.tracking.tracker import AuditMetrics, RunEnd, TrackedRun, Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@final
class TensorBoard(Tracker):
    """Tracker that writes event files to ``tensorboard/`` in the run's folder; nothing leaves the machine."""

    packages = ("tensorboard",)
    _writer: SummaryWriter

    def on_start(self, run: TrackedRun) -> str:
        """Open an event file; of a run that goes on, rounds that are repeated replace those before."""
        from torch.utils.tensorboard import SummaryWriter

        self._folder = run.folder / "tensorboard"
        self._writer = SummaryWriter(str(self._folder), purge_step=run.after + 1 if run.earlier else None)
        if not run.earlier:
            rows = "\n".join(f"| {name} | `{value}` |" for name, value in run.config.items() if value != "")
            self._writer.add_text("config", f"| setting | value |\n|---|---|\n{rows}")
        self._writer.flush()
        return self._folder.name

    def on_round(self, number: int, figures: Mapping[str, float]) -> None:
        """Write a scalar for each figure."""
        for name, value in figures.items():
            self._writer.add_scalar(f"round/{name}", value, number)
        self._writer.flush()

    def on_audit(self, audited: Sequence[AuditMetrics]) -> None:
        """Write a scalar for each figure, and the verdicts as text, at the audited rounds."""
        for one in audited:
            for name, value in one.figures.items():
                self._writer.add_scalar(f"audit/{one.name}/{name}", value, one.round)
            self._writer.add_text(f"verdict/{one.name}", one.verdict, one.round)

    def on_end(self, end: RunEnd) -> None:
        """Write the final figures, and where the files lie, which an event file cannot hold."""
        for name, value in end.figures.items():
            self._writer.add_scalar(name, value)
        files = ", ".join(f"`{path.name}`" for path in end.files)
        where = f"; {files} lie beside this folder" if files else ""
        self._writer.add_text("status", f"{end.status}{where}")
        self._writer.close()
