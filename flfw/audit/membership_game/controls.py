"""Controls of the membership game: clients of a fresh network whose members a statistic must find.

Nothing stands between the data and what is seen: the run's own network, undefended, with all of its tensors shared.
Labels are assigned by lot, each class as often as the others, so that nothing general can be learnt from a client's
examples: what lowers a member's loss is its own trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, TypeAlias, final

import numpy as np
import torch

from flfw.audit.membership_game.candidates import GameCandidates
from flfw.audit.membership_game.game import MembershipGame, own_exchanges
from flfw.audit.membership_game.request import ONE_STEP, OVERFITTED, MembershipRequest
from flfw.experiment import OUTSIDER
from flfw.membership.pairs import MemberPairs, PatientGame
from flfw.nets.net import Net, Tensors, losses
from flfw.rng import numpy_generator
from flfw.task import Task
from flfw.victims.victim import PlainVictim

Put: TypeAlias = Callable[[str, Tensors], str]
"""Function that writes the candidates of a name for the attacks, and returns the file."""

_LR = 0.1
_MEMBERS, _CLIENTS = 10, 8  # of the client that learns by heart, and of how many there are
_EPOCHS, _MOST_EPOCHS, _FITTED = 50, 400, 0.3  # it goes on after 50 epochs until its mean loss is below 0.3
_SINGLE = 12  # clients of one step, each with one member


class _Trained(NamedTuple):
    """Weights after a control's training, and the number of its steps."""

    sent: Tensors
    steps: int


@final
class Controls:
    """Clients of a fresh network whose members are known to be there to find.

    Their members are drawn from members and held-out examples of the game alike: who finds them learns nothing about
    the game's coins.

    Args:
        task: source of the examples.
        pairs: of the attacked clients.
        fresh: builds the network.
        put: writes the candidates of a name for the attacks, and returns the file.
        seed: of the experiment.
    """

    def __init__(
        self, task: Task, pairs: Sequence[MemberPairs | PatientGame], fresh: Callable[[], Net], put: Put, seed: int
    ) -> None:
        rng = numpy_generator(seed, "controls of membership")
        places = np.sort(np.concatenate([part for one in pairs for part in (one.members, one.held_out)]))
        self._places, self._fresh, self._put = rng.permutation(places), fresh, put
        singles = min(_SINGLE, len(places) // 2)
        self._singles = self._groups(0, singles, 1)
        left = (len(places) - 2 * singles) // 2
        members = min(_MEMBERS, left)
        self._overfitted = self._groups(2 * singles, min(_CLIENTS, left // members), members) if members else []
        self._task = self._relabelled(task, rng)

    def _groups(self, start: int, count: int, members: int) -> list[MemberPairs]:
        """Return groups of places that are in no other."""
        rows = self._places[start : start + 2 * count * members].reshape(count, 2, members)
        return [MemberPairs(row[0], row[1]) for row in rows]

    def _relabelled(self, task: Task, rng: np.random.Generator) -> Task:
        """Return the task with labels by lot; both of a pair have the same."""
        labels, classes = np.array(task.dataset.train_y), task.dataset.classes
        together = np.array([group.members[0] for group in self._singles], np.int64)
        for places in (together, *(group.members for group in self._overfitted)):
            by_lot = rng.standard_normal if task.dataset.is_regression else lambda count: np.arange(count) % classes
            labels[places] = rng.permutation(by_lot(len(places)))
        for group in (*self._singles, *self._overfitted):
            labels[group.held_out] = labels[group.members]
        return replace(task, dataset=replace(task.dataset, train_y=labels))

    def requests(self, attack: str, vantage: str = "server") -> list[MembershipRequest]:
        """Return the requests to an attack; each group is numbered as a client of its own.

        Args:
            attack: its name.
            vantage: ``outsider`` sees what was learnt by heart, and no message; all others see messages.
        """
        kinds = [(OVERFITTED, self._overfitted, self._by_heart)]
        kinds += [(ONE_STEP, self._singles, self._stepped)] if vantage != OUTSIDER else []
        return [self._request(attack, kind, groups, trained, vantage) for kind, groups, trained in kinds if groups]

    def _request(
        self, attack: str, kind: str, groups: Sequence[MemberPairs], trained: Sequence[_Trained], vantage: str
    ) -> MembershipRequest:
        candidates = GameCandidates.of(self._task, dict(enumerate(groups)))
        exchanges = own_exchanges(self._received, [one.sent for one in trained])
        file = self._put(kind.replace("_", "-"), candidates.granted() | exchanges)
        steps = tuple(one.steps for one in trained)
        game = MembershipGame(
            file, len(candidates.labels), tuple(range(len(groups))), steps, _LR, easy=True, vantage=vantage
        )
        examples = tuple(len(group.members) for group in groups)
        game = replace(game, trained=max(steps), batch=max(examples), examples=examples)
        return MembershipRequest(attack, game, (), (), candidates, kind)

    @cached_property
    def _victim(self) -> PlainVictim:
        net = self._fresh()
        return PlainVictim(net, net.state_dict(), ("*",), self._task.inputs)

    @cached_property
    def _received(self) -> Tensors:
        return {name: value.detach().clone() for name, value in self._victim.model.state_dict().items()}

    @cached_property
    def _by_heart(self) -> list[_Trained]:
        return [self._trained(group, _EPOCHS, _MOST_EPOCHS) for group in self._overfitted]

    @cached_property
    def _stepped(self) -> list[_Trained]:
        return [self._trained(group, 1, 1) for group in self._singles]

    def _trained(self, group: MemberPairs, least: int, most: int) -> _Trained:
        """Train on a group's members, all in one batch, until they are fitted."""
        x, y = self._task.examples("train", group.members)
        held = {name: value.clone() for name, value in self._received.items()}  # buffers too: files share no memory
        for step in range(most):
            if step >= least and self._loss(held, x, y) < _FITTED:
                return _Trained(held, step)
            at = PlainVictim(self._victim.model, held, ("*",), self._task.inputs)
            gradient = at.gradient(x, y, {}, {})
            held = {n: value - _LR * gradient[n].detach() if n in gradient else value for n, value in held.items()}
        return _Trained(held, most)

    @torch.no_grad()
    def _loss(self, held: Tensors, x: torch.Tensor, y: torch.Tensor) -> float:
        scores = torch.func.functional_call(self._victim.model, held, (self._task.inputs.normalise(x),))
        return float(losses(scores, x, y).mean())
