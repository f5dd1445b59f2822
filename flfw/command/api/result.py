"""Result of a finished run, read from its folder: tables, figures, verdicts, and its report in a notebook."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from flfw.command.api.arguments import folder_of
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.result_file import RESULT, read_result

if TYPE_CHECKING:
    import pandas as pd

_NEEDED = ("config", "rounds", "final", "privacy", "audit", "notes")
_INFINITE = {"inf": float("inf"), "-inf": float("-inf")}


@final
@dataclass(frozen=True)
class Result:
    """Result of a finished run or of a further audit; tables and settings of it are copies, and may be changed.

    Attributes:
        path: the folder.
        content: result.json, as it was when this was made.
    """

    path: Path
    content: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Load the result in the folder of a finished run.

        Raises:
            InputError: the folder has no result, or a damaged one.
        """
        folder = folder_of(path, "path")
        if not (folder / RESULT).is_file():
            way_out = "flfw.resume finishes one" if (folder / "checkpoint").is_dir() else "name the folder of a run"
            raise InputError(f"Expected {RESULT} of a finished run in {folder}, got none; {way_out}.")
        content = read_result(folder)
        if missing := [name for name in _NEEDED if name not in content]:
            raise InputError(f"Expected {missing[0]} in {folder / RESULT}, got none; restore it, or run anew.")
        return cls(folder, content)

    @property
    def rounds(self) -> pd.DataFrame:
        """Rounds of training, a row each: losses and accuracies (0 to 1), clients, bytes, seconds."""
        from flfw.command.api.frames import frame
        from flfw.files.result_file import RoundFigures

        return frame(self.content.get("rounds"), RoundFigures, ("failed",))

    @property
    def clients(self) -> pd.DataFrame:
        """Clients' own figures, a row for each client and round; missing where clients report none."""
        from flfw.command.api.frames import CLIENTS

        return self._table("clients.csv", CLIENTS)

    @property
    def failures(self) -> pd.DataFrame:
        """Failures of clients, a row each, with the reason."""
        from flfw.command.api.frames import FAILURES

        return self._table("failures.csv", FAILURES)

    @property
    def audit(self) -> pd.DataFrame:
        """Attacks that reconstruct, a row for each attack and target, with its verdict."""
        from flfw.command.api.frames import frame
        from flfw.files.result_entries import EntryFields

        return frame(self.content.get("audit"), EntryFields)

    @property
    def images(self) -> pd.DataFrame:
        """Reconstructed examples, a row for each example, attack and target, with its scores; also of the controls."""
        from flfw.command.api.frames import IMAGES, read_table, typed

        path = self._folder() / "audit.csv"
        return read_table(path, IMAGES) if path.exists() else typed([], IMAGES)

    @property
    def membership(self) -> pd.DataFrame:
        """Statistics of attacks on membership, a row each, with its verdict."""
        from flfw.command.api.frames import frame
        from flfw.files.result_entries import MembershipFields

        return frame(self.content.get("membership"), MembershipFields)

    @property
    def inference(self) -> pd.DataFrame:
        """Inferences of the classes in clients' data, a row each, with its verdict."""
        from flfw.command.api.frames import frame
        from flfw.files.result_entries import InferenceFields

        return frame(self.content.get("inference"), InferenceFields)

    @property
    def privacy(self) -> pd.DataFrame:
        """Claims, a row for each unit and adversary: epsilon, delta, accountant, assumptions."""
        from flfw.command.api.frames import frame
        from flfw.files.result_file import ClaimFields

        return frame(self.content.get("privacy"), ClaimFields)

    @property
    def final(self) -> dict[str, Any]:
        """Accuracies (0 to 1), of a regression errors, after the last round; empty where nothing was evaluated."""
        return _plain(self.content.get("final") or {})

    @property
    def verdicts(self) -> dict[str, str]:
        """Verdicts by question, of those that were asked: ``reconstruction``, ``membership``, ``inference``."""
        from flfw.command.api.notebook import conclusions

        return {name: str(entry["verdict"]) for name, entry in conclusions(self.path, self.content).items()}

    @property
    def verdict(self) -> str | None:
        """Gravest of the verdicts: a leak if there is one, else the weakest evidence; None without an audit."""
        from flfw.report.ranking import seriousness

        return min(self.verdicts.values(), key=seriousness, default=None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the run, a sentence each."""
        return tuple(self.content.get("notes") or ())

    @property
    def config(self) -> dict[str, Any]:
        """Settings of the run, without `auto`, by the names of the fields of `Experiment`."""
        return _plain(self.content.get("config") or {})

    @property
    def experiment(self) -> Experiment:
        """Settings of the run as an `Experiment` without a folder, to run it again with changes.

        Raises:
            InputError: it is an audit of another app, or a value does not fit.
        """
        from flfw.command.api.arguments import experiment_from

        return experiment_from(self.config)

    @property
    def report(self) -> Path:
        """Path of the report, one file of HTML."""
        return self.path / "report.html"

    def show(self, height: int = 700) -> None:
        """Show the report: in a notebook inside it, so that the notebook's file holds it; else name its path.

        Args:
            height: of the frame, in pixels.
        """
        from flfw.command.api.notebook import show

        show(self.path, height)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        from flfw.command.api.summary import summary

        return summary(self.path)

    def _repr_html_(self) -> str:
        from flfw.command.api.notebook import html

        return html(self.path, self.content)

    def _table(self, name: str, kinds: Mapping[str, str]) -> pd.DataFrame:
        """Return a CSV of the training, which a further audit has in the folder of its run."""
        from flfw.command.api.frames import read_table, typed

        path = self._trained() / name
        return read_table(path, kinds) if path.exists() else typed([], kinds)

    def _folder(self) -> Path:
        """Return the folder, which must be there: a table would be empty without a word."""
        if not self.path.is_dir():
            raise InputError(f"Expected the result in {self.path}, got no such folder; load it from where it is now.")
        return self.path

    def _trained(self) -> Path:
        """Return the folder of the training: of a further audit that of its run, with which it may have been moved."""
        folder = self._folder()
        if not (earlier := (self.content.get("provenance") or {}).get("from")):
            return folder
        around = folder.parent
        if (around / RESULT).is_file() and read_result(around).get("rounds") == self.content.get("rounds"):
            return around
        if not Path(earlier).is_dir():
            raise InputError(f"Expected the run of the audit {folder} in {earlier}, got no such folder; put it back.")
        return Path(earlier)


def _plain(value: Any) -> Any:
    """Return a copy of JSON with infinities as numbers."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return _INFINITE.get(value, value) if isinstance(value, str) else copy.copy(value)
