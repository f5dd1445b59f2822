"""Choice of the recorded updates of a foreign app that are attacked, and their common setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from torch import nn

from flfw.adversary.observation import Observation, Truth
from flfw.audit.foreign.knowledge import UpdateDescription, classes, is_random
from flfw.audit.jobs import Exchange
from flfw.audit.measures.public import Public
from flfw.errors import BadInput, require
from flfw.nets.inputs import Inputs
from flfw.recording.format import Line
from flfw.recording.reader import Recordings
from flfw.rng import initialising


@final
@dataclass(frozen=True)
class ForeignCase:
    """Setting of all updates: the arguments of `flfw.audit.foreign.audit` of the same names, checked."""

    net: Callable[[], nn.Module]
    inputs: Inputs
    public: Public
    lr: float | None
    steps: int | Callable[[Observation], int]
    mode: str
    seed: int
    defence: str

    def __post_init__(self) -> None:
        UpdateDescription(1, 1 if callable(self.steps) else self.steps, self.lr, self.mode)
        shape = self.public.samples.shape[1:]
        require(shape == self.inputs.shape, f"public inputs of shape {self.inputs.shape}", shape=shape)

    @cached_property
    def classes(self) -> int:
        """Number of classes of the network."""
        return classes(self.fresh("classes"), self.inputs)

    @property
    def hidden(self) -> bool:
        """True if an operation between the data and an update is granted to no attacker."""
        return self.random or self.defence != "none"

    @cached_property
    def random(self) -> bool:
        """True if training draws random numbers within the network."""
        return is_random(self.fresh("random"), self.inputs, self.mode)

    def fresh(self, purpose: str) -> nn.Module:
        """Build a network with the attacker's own seed."""
        with initialising(self.seed, purpose):
            return self.net()

    def update(self, seen: Observation, batch: int) -> UpdateDescription:
        """Describe an update of ``batch`` examples."""
        return UpdateDescription(batch, self.steps(seen) if callable(self.steps) else self.steps, self.lr, self.mode)

    def checked(self, client: int, truth: Truth, batch: int | None) -> Truth:
        """Check that a client's truth can be its training data, and return it."""
        owner, count = f"client {client}", len(truth.labels)
        shape, low, high = tuple(truth.samples.shape), float(truth.samples.min()), float(truth.samples.max())
        require(count > 0 and batch in (None, count), f"{batch or 'some'} examples of {owner}", examples=count)
        require(shape == (count, *self.inputs.shape), f"inputs of {owner} in {self.inputs.shape}", shape=shape)
        require(low >= 0 and high <= 1, f"inputs of {owner} within [0, 1]", lowest=low, highest=high)
        labels, indices = truth.labels.tolist(), truth.indices.tolist()
        require(all(0 <= y < self.classes for y in labels), f"0 <= labels < {self.classes} of {owner}", labels=labels)
        require(len(set(indices)) == count, f"a place of its own for every example of {owner}", indices=indices)
        return Truth(truth.samples.float(), truth.labels, truth.indices)


@final
@dataclass(frozen=True)
class Victim:
    """A recorded update that is attacked.

    Attributes:
        line: its line of the manifest.
        slot: its place in the round.
        truth: its client's training data.
    """

    line: Line
    slot: int
    truth: Truth

    @property
    def exchange(self) -> Exchange:
        """The update as an exchange of a job."""
        labels = tuple(int(label) for label in self.truth.labels)
        return Exchange(self.line["id"], self.line["client"], self.slot, labels)


Chosen = Mapping[int, Sequence[Victim]]


def choose(
    case: ForeignCase,
    kept: Recordings,
    rounds: Sequence[int] | None,
    truth: Callable[[int], Truth | None],
    batch: int | None,
    most: int,
) -> Chosen:
    """Choose the updates to attack, by round; rounds without any known truth are left out.

    Args:
        case: the setting.
        kept: the recordings.
        rounds: the wanted rounds; None: all.
        truth: gives a client's training data.
        batch: required number of these examples; None: any.
        most: most clients of a round, those with the lowest numbers.

    Raises:
        BadInput: there are no such rounds, a truth does not fit, or there is none.
    """
    there = sorted({line["round"] for line in kept.lines if line["type"] == "train"})
    require(bool(there), f"recorded updates of training in {kept.folder}", exchanges=len(kept.lines))
    wanted = there if rounds is None else sorted(set(rounds))
    for number in wanted:
        require(number in there, f"a recorded round among {', '.join(map(str, there))}", round=number)
    truths: dict[int, Truth | None] = {}
    chosen: dict[int, list[Victim]] = {}
    for number in wanted:
        chosen[number] = []
        for slot, line in enumerate(kept.update_lines(number)):
            client = line["client"]
            if client not in truths:
                given = truth(client)
                truths[client] = None if given is None else case.checked(client, given, batch)
            known = truths[client]
            if known is not None and len(chosen[number]) < most:
                chosen[number].append(Victim(line, slot, known))
    if not any(chosen.values()):
        raise BadInput(f"Expected to be told what a client trained on, got nothing of {len(truths)} in {kept.folder}.")
    return {number: group for number, group in chosen.items() if group}


def lone_examples(chosen: Chosen, most: int = 8) -> list[tuple[int, Truth]]:
    """Return single examples for the ladder, one of each client in turn, each with its client."""
    by_client = {v.line["client"]: v.truth for group in chosen.values() for v in group}
    turns = max(len(truth.labels) for truth in by_client.values())
    lone = [
        (client, Truth(truth.samples[i : i + 1], truth.labels[i : i + 1], truth.indices[i : i + 1]))
        for i in range(turns)
        for client, truth in by_client.items()
        if i < len(truth.labels)
    ]
    return lone[:most]
