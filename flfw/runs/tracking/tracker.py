"""Interface of a tracker, the records that it is handed, and the choice of trackers by name.

Trackers that cannot work on this machine are refused.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal, final

from flfw.errors import InputError
from flfw.experiment import Scalar
from flfw.plugins import PluginKind, load_class


@final
@dataclass(frozen=True)
class TrackedRun:
    """Beginning of a run.

    Attributes:
        name: name of the run's folder; of an audit of an earlier run, with that folder's before it.
        folder: folder of the run, in which a tracker may write.
        config: settings of the run by flag; tuples are one text. Folders of this machine are left out.
        earlier: what `Tracker.on_start` returned when the run was begun; empty: it is new.
        after: last round that was handed over before; 0: none.
    """

    name: str
    folder: Path
    config: Mapping[str, Scalar]
    earlier: str = ""
    after: int = 0


@final
@dataclass(frozen=True)
class AuditMetrics:
    """Figures of one attack on one kind of message of one round.

    Attributes:
        name: name of the attack, with what tells it apart from others of the run, such as ``ig-adaptive``.
        round: the audited round, 0: before training.
        figures: the figures by name.
        verdict: the audit's conclusion.
    """

    name: str
    round: int
    figures: Mapping[str, float]
    verdict: str


@final
@dataclass(frozen=True)
class RunEnd:
    """End of a run.

    Attributes:
        status: whether it was completed, failed, or was interrupted by its user.
        figures: final accuracies, and the privacy claims as ``epsilon/UNIT/ADVERSARY``; empty without a result.
        files: files that may leave the machine: ``result.json`` and the report, which shows no pictures unless the run
            was asked for them by ``pictures=yes``.
    """

    status: Literal["finished", "failed", "interrupted"]
    figures: Mapping[str, float]
    files: Sequence[Path]


class Tracker(ABC):
    """Writer of a run's figures to another tool. Its functions are called in one order, never two at once.

    Whatever it raises is said once; then it is called no more, and the run goes on.
    """

    packages: ClassVar[Sequence[str]] = ()
    """Packages that it imports. They must be there before a run begins; its own module must do without them."""

    @classmethod
    def check(cls, name: str) -> None:
        """Refuse, before the run begins, a missing package; a subclass that refuses more calls this first.

        Args:
            name: the tracker's, as in ``--track``.

        Raises:
            InputError: names what is missing, and the way out.
        """
        if missing := [package for package in cls.packages if find_spec(package) is None]:
            packages = " ".join(missing) if ":" in name else "flfw[tracking]"
            raise InputError(
                f"Expected the package {', '.join(missing)} for --track {name}, got none; pip install {packages}."
            )

    @abstractmethod
    def on_start(self, run: TrackedRun) -> str:
        """Begin, or go on with, the tool's record of a run.

        Args:
            run: the run; with ``earlier`` it is one that goes on.

        Returns:
            The name under which the tool finds the record again; kept in the run's folder.
        """

    @abstractmethod
    def on_round(self, number: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a round, while the run goes on.

        Args:
            number: the round, from 1.
            figures: the columns of ``rounds.csv`` that have a number.
        """

    @abstractmethod
    def on_audit(self, audited: Sequence[AuditMetrics]) -> None:
        """Write the figures of the attacks; called once, after the audit. Not called for a run without one."""

    @abstractmethod
    def on_end(self, end: RunEnd) -> None:
        """Write the final figures and the files, and close the record."""


TRACKER = PluginKind("tracker", "flfw.runs.tracking.writers")


def chosen(names: Sequence[str]) -> dict[str, type[Tracker]]:
    """Find the classes of trackers by their names.

    Raises:
        InputError: there is no such tracker.
    """
    return {name: load_class(TRACKER, name, Tracker) for name in names}


def check(names: Sequence[str]) -> None:
    """Refuse trackers that do not exist, lack a package, or say themselves that they cannot work.

    Raises:
        InputError: names what is missing, and the way out.
    """
    for name, cls in chosen(names).items():
        cls.check(name)
