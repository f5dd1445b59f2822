"""Rehearsals of a site's leakage on its own data: their arguments, and their answers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from flfw.command.api.arguments import experiment_of, folder_of, number_of, path_of
from flfw.command.api.library_calls import library_call
from flfw.command.api.result import Result
from flfw.errors import InputError
from flfw.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd

_FILE = "rehearsal.json"


@final
@dataclass(frozen=True)
class RehearsalResult:
    """Result of a rehearsal.

    Attributes:
        path: the folder, which holds copies of the probed examples.
        content: rehearsal.json, as it was when this was made.
    """

    path: Path
    content: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RehearsalResult:
        """Load the result of a finished rehearsal.

        Raises:
            InputError: the folder holds none, or a damaged one.
        """
        folder = folder_of(path, "path")
        try:
            content = json.loads((folder / _FILE).read_bytes())
            known = {name: content[name] for name in ("answers", "found", "warnings", "notes", "limits")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"Expected a rehearsal in {folder}, got no {_FILE} that can be read ({error}).") from error
        return cls(folder, {**content, **known})

    @property
    def answers(self) -> dict[str, str]:
        """Sentences on where leakage stops, by attack."""
        return dict(self.content["answers"])

    @property
    def attempts(self) -> pd.DataFrame:
        """Attacks on each size, a row each: the fields of `flfw.deploy.rehearsal.SizeAttack`."""
        from flfw.command.api.frames import columns, typed
        from flfw.deploy.rehearsal import SizeAttack
        from flfw.files.outcomes import of_today

        return typed([of_today(row) for row in self.content["found"]], columns(SizeAttack))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Breaches of the site's policy, a sentence each."""
        return tuple(self.content["warnings"])

    @property
    def limits(self) -> tuple[str, ...]:
        """Limits of every rehearsal, a sentence each."""
        return tuple(self.content["limits"])

    @property
    def result(self) -> Result:
        """Result of the run behind the answers, with its report."""
        return Result.load(self.path)


def run_rehearsal(
    experiment: Experiment | None = None,
    *,
    policy: str | os.PathLike[str] | None = None,
    write_policy: str | os.PathLike[str] | None = None,
    max_steps: int = 5,
    **fields: Any,
) -> RehearsalResult:
    """Measure the leakage of a site on its own data before it takes part, as ``python -m flfw.command.rehearse`` does.

    It is not called ``rehearse`` because that is a package, `flfw.command.rehearse`.

    Args:
        experiment: the settings of the federation; None: the command's defaults.
        policy: the site's policy; warnings say where these settings would break it.
        write_policy: a new file for a policy that allows this run alone.
        max_steps: local steps of a probe at most.
        fields: fields of `Experiment` with other values than the experiment's.

    Raises:
        InputError: something asked for does not exist or does not fit; nothing was run.
        RunError: it was begun and could not be completed.
    """
    with library_call():
        from flfw.command.rehearse import DEFAULT, RehearsalCommand, rehearse

        requested = experiment_of(DEFAULT if experiment is None else experiment, fields)
        rules = path_of(policy, "policy") if policy is not None else None
        written = path_of(write_policy, "write-policy") if write_policy is not None else None
        steps = number_of(max_steps, "max-steps")
        return RehearsalResult.load(rehearse(RehearsalCommand(requested, rules, written, steps)))
