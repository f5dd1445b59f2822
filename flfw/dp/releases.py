"""Releases of a run while it goes on: the rounds that are asked for, their sums and budget, the key of the cohorts.

Each round that a server asks its clients for is on disk before the first message leaves. A killed server asks for its
last round again, and its clients answer with other noise. Every such time is a release of its own, for which a claim
must pay, however the round ends.
"""

import os
import secrets
from pathlib import Path
from typing import final

from flfw.data.splits.partition import Split
from flfw.dp.resolve_noise import spent
from flfw.dp.run_accountant import RunAccountant, least_summed
from flfw.dp.settings import adds_own_noise
from flfw.errors import InputError
from flfw.files.sealed import seal, sealed, unseal
from flfw.task.client_plan import ClientPlan

_KEY, _SUMMED = "cohort-key", "summed"
_REQUESTED, _EARLIER = "requested_rounds.txt", "asked.txt"  # a run goes on in the file that it has
_DIGITS = 9  # of a round


@final
class RequestedRounds:
    """Record of the rounds that were asked for: a number a line, only ever added to.

    Args:
        folder: folder of the run's checkpoints.
        name: name of the file.

    Attributes:
        rounds: the numbers, in their order. A line that a kill has cut short counts as the round of the line before,
            or as round 1: it was begun before anything was sent, but nothing tells that nothing was.

    Raises:
        InputError: another line is no number, or there are two files.
    """

    def __init__(self, folder: Path, name: str = _REQUESTED) -> None:
        self._path = folder / name
        if name == _REQUESTED and (folder / _EARLIER).exists():
            if self._path.exists():
                raise InputError(f"Expected one record of rounds in {folder}, got {_REQUESTED} and {_EARLIER}.")
            self._path = folder / _EARLIER
        whole, _, cut = self._text().rpartition("\n")
        self.rounds = [self._number(line) for line in whole.split("\n")] if whole else []
        if cut:
            self.rounds.append(self.rounds[-1] if self.rounds else 1)
            self._write("\n".join(map(str, self.rounds)) + "\n", os.O_TRUNC)

    def _text(self) -> str:
        try:
            return self._path.read_bytes().decode("ascii", "replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise InputError(f"Expected {self._path}, got none that can be read ({error.strerror}).") from error

    def _number(self, line: str) -> int:
        if not (line.isdecimal() and len(line) <= _DIGITS):
            raise InputError(
                f"Expected a round in each line of {self._path}, got {line[:80]}: it is damaged; restore it."
            )
        return int(line)

    def note(self, server_round: int) -> int:
        """Add a round, on disk when this returns; return how often it was asked for before."""
        before = self.rounds.count(server_round)
        self._write(f"{server_round}\n", os.O_APPEND)
        self.rounds.append(server_round)
        return before

    @property
    def again(self) -> int:
        """Number of times that a round was asked for again."""
        return len(self.rounds) - len(set(self.rounds))

    def _write(self, text: str, how: int) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | how, 0o600)
        try:
            os.write(file, text.encode())
            os.fsync(file)
        finally:
            os.close(file)


class RunBudgetExceededError(Exception):
    """Exception: a round may not be asked for, since the answers would exceed the run's budget."""


@final
class Releases:
    """Count of the rounds that a server asks its clients for.

    Args:
        plan: of the run's clients.
        folder: folder of the run's checkpoints.
    """

    def __init__(self, plan: ClientPlan, folder: Path) -> None:
        self._plan, self._requested, self._folder = plan, RequestedRounds(folder), folder
        self._evaluated = RequestedRounds(folder, "evaluated.txt")

    @property
    def rounds(self) -> list[int]:
        """Rounds that were asked for, in their order; one that was asked for again stands there again.

        With private metrics the evaluations come last, each as the round after the last one.
        """
        return [*self._requested.rounds, *self._evaluated.rounds]

    @property
    def evaluations(self) -> int:
        """Number of the evaluations among `rounds`."""
        return len(self._evaluated.rounds)

    @property
    def summed(self) -> int:
        """Least number of updates in a sum that any attempt at the run has allowed; a resumed run may change it.

        1, if rounds were asked for and nothing is noted, as by older code.
        """
        kept = [int(unseal(path)) for _, path in sealed(self._folder, _SUMMED)]
        unknown = [1] if self._requested.rounds and not kept else []
        return min([least_summed(self._plan.rounds, self._plan.privacy.colluding_clients), *kept, *unknown])

    def ask(self, server_round: int) -> int:
        """Note a round before its first message is sent; return how often it was asked for before.

        Raises:
            RunBudgetExceededError: with this round the run would exceed its budget; nothing was noted.
        """
        again = self._requested.again + (server_round in self._requested.rounds) + self.evaluations
        if self._exceeds_budget(server_round, again):
            budget = self._plan.privacy.epsilon_budget
            raise RunBudgetExceededError(f"round {server_round} would exceed epsilon {budget:g}")
        adds_up = adds_own_noise(self._plan.settings)  # the clients' noise, in sums
        if adds_up and not any(int(unseal(path)) == self.summed for _, path in sealed(self._folder, _SUMMED)):
            seal(self._folder, _SUMMED, ".txt", str(self.summed).encode())
        return self._requested.note(server_round)

    def may_evaluate(self, last: int) -> bool:
        """Return whether the budget allows for the evaluation after the last round; its answers may be releases, too.

        With private metrics it is noted, as the round after the last one. The claim has one evaluation in it; one that
        is asked for again counts as a round.
        """
        if self._plan.privacy.metrics != "private":
            return True
        if self._exceeds_budget(last, self._requested.again + self.evaluations):
            return False
        self._evaluated.note(last + 1)
        return True

    def _exceeds_budget(self, server_round: int, again: int) -> bool:
        budget = self._plan.privacy.epsilon_budget
        last = max([server_round, *self._requested.rounds])  # an older checkpoint may have been restored
        return budget > 0 and spent(self._plan, self._split, last, again, self.summed) > budget

    @property
    def _split(self) -> Split:
        task = self._plan.task
        return task.load_at_server(task.data.data_root).split

    def cohort_key(self) -> bytes:
        """Return the key of the cohorts, which stays with the server; empty: cohorts are drawn from the seed.

        Claims rest on cohorts that nobody knows where the server's noise hides whole clients.
        """
        secure = getattr(self._plan.settings, "secure", False)
        if not (secure and RunAccountant(self._plan, self._split).hides_cohorts):
            return b""
        if not (kept := sealed(self._folder, _KEY)):
            seal(self._folder, _KEY, ".bin", secrets.token_bytes(32))
            kept = sealed(self._folder, _KEY)
        return unseal(kept[0][1])
