"""Sums over all clients of a round of a foreign app, for attacks behind secure aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import nn

from flfw.adversary.observation import Observation
from flfw.adversary.sums import summed
from flfw.audit.foreign.case import ForeignCase, Victim
from flfw.audit.foreign.knowledge import named
from flfw.recording.reader import Recordings


@final
class SumsOfRounds:
    """Observations in which the sum over a round's clients stands for each client's own update.

    All recorded and readable updates of a round are in its sum, also those of clients whose data nobody told.

    Args:
        kept: the recordings.
        case: the setting.
    """

    def __init__(self, kept: Recordings, case: ForeignCase) -> None:
        self._kept, self._case = kept, case

    def seen(self, group: Sequence[Victim], net: nn.Module) -> tuple[list[Observation | None], str]:
        """Return the observations of some updates of a round, and why they have no sum; empty: they have one.

        Args:
            group: the updates; one that cannot be read is None.
            net: the network, for the names of the tensors.
        """
        lines = self._kept.update_lines(group[0].line["round"])
        read = zip(lines, self._kept.observations([line["id"] for line in lines]), strict=True)
        intact = {line["id"]: observation for line, observation in read if observation is not None}
        forms = {self._case.training(observation).sends for observation in intact.values()}
        if len(forms) > 1:
            return [intact.get(v.line["id"]) for v in group], f"there is no sum of {' and '.join(sorted(forms))}"
        sums = summed([named(net, observation) for observation in intact.values()], "weights" in forms)
        by_id = dict(zip(intact, sums, strict=True))
        return [by_id.get(v.line["id"]) for v in group], ""
