"""Choice of the recorded updates of a foreign app that are attacked, and their common setting."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn

from flfw.adversary.attack import Attack
from flfw.audit.jobs import Exchange
from flfw.audit.measures.public import PublicData
from flfw.errors import InputError, require
from flfw.nets.inputs import InputSpec
from flfw.nets.malicious_model import ModelModification, imposed_names
from flfw.recorded_apps.defence import DescribedDefence
from flfw.recorded_apps.description import TrainingDescription
from flfw.recorded_apps.knowledge import classes, is_random, with_scores
from flfw.recording.format import Line
from flfw.recording.observation import Observation, Truth
from flfw.recording.reader import Recordings
from flfw.rng import initialising, torch_generator

Describe: TypeAlias = Callable[[Observation], TrainingDescription]
"""Gives the description of the training behind an observation."""


@final
@dataclass(frozen=True)
class ForeignCase:
    """Setting of all updates: the arguments of `flfw.recorded_apps.audit` of the same names, checked.

    Attributes:
        training: gives the description of the training behind an update.
    """

    net: Callable[[], nn.Module]
    inputs: InputSpec
    public: PublicData
    training: Describe
    seed: int
    defence: DescribedDefence = field(default_factory=DescribedDefence)
    tampered_by: str = ""

    def __post_init__(self) -> None:
        shape = self.public.samples.shape[1:]
        require(shape == self.inputs.shape, f"public inputs of shape {self.inputs.shape}", shape=shape)

    def check_attacks(self, attacks: Mapping[str, Attack]) -> None:
        """Refuse an empty set, and attacks and networks of malicious servers where no `tampered_by` names one.

        Args:
            attacks: the attacks by name.

        Raises:
            InputError: there is no attack, one needs a changed network, or the network has a malicious server's module.
        """
        require(bool(attacks), "at least one attack", attacks=list(attacks))
        for name, attack in attacks.items():
            required = "attacks that reconstruct examples: of these recordings, no coin drew members for a game"
            require(isinstance(attack, Attack), required, attack=name)
        if self.tampered_by:
            return
        changing = [name for name, attack in attacks.items() if isinstance(attack, ModelModification)]
        if changing:
            required = f"tampered_by with the attack {changing[0]}, whose malicious server changes the network"
            raise InputError(f"Expected {required}, got tampered_by=none; name its attack, if it was such a server.")
        imposed = imposed_names(self.fresh("server"))
        require(not imposed, "tampered_by for a network with a malicious server's module", module=imposed[:1])

    @cached_property
    def classes(self) -> int:
        """Number of classes of the network."""
        return classes(self.fresh("classes"), self.inputs)

    @cached_property
    def draws(self) -> bool:
        """Whether the network draws random numbers in training; in evaluation it draws none."""
        return is_random(self.fresh("random"), self.inputs)

    def fresh(self, purpose: str) -> nn.Module:
        """Build a network, which gives class scores, with the attacker's own seed.

        Raises:
            InputError: it is no network of PyTorch.
        """
        with initialising(self.seed, purpose):
            net = self.net()
        if not isinstance(net, nn.Module):
            kind = f"{type(net).__module__.partition('.')[0]}'s {type(net).__name__}"
            raise InputError(f"Expected a network of PyTorch (nn.Module), got {kind}; rebuild it as one, if it can be.")
        return with_scores(net, self.inputs)

    def described(self, observation: Observation, truth: Truth) -> TrainingDescription:
        """Describe the training behind an update; an order of the examples that the truth gives counts."""
        training = self.training(observation)
        return training if truth.steps is None else replace(training, order=truth.steps)

    def checked(self, client: int, truth: Truth, batch: int | None) -> Truth:
        """Check that a client's truth can be its training data, and return it as tensors."""
        given = (truth.samples, truth.labels, truth.indices)  # arrays are copied, as a reversed one fits no tensor
        x, y, at = (part if isinstance(part, Tensor) else torch.tensor(np.array(part, order="C")) for part in given)
        owner, count = f"client {client}", len(y)
        require(count > 0 and batch in (None, count), f"{batch or 'some'} examples of {owner}", examples=count)
        shape, low, high = tuple(x.shape), float(x.min()), float(x.max())
        require(shape == (count, *self.inputs.shape), f"inputs of {owner} in {self.inputs.shape}", shape=shape)
        require(low >= 0 and high <= 1, f"inputs of {owner} within [0, 1]", lowest=low, highest=high)
        y = y.flatten() if tuple(y.shape) == (count, 1) else y
        require(y.dim() == 1, f"a class for each example of {owner}", shape=tuple(y.shape))
        labels, places, classes = y.tolist(), at.tolist(), range(self.classes)
        require(all(label in classes for label in labels), f"0 <= labels < {self.classes} of {owner}", labels=labels)
        require(len(set(places)) == count, f"a place of its own for every example of {owner}", indices=places)
        return Truth(*(part.contiguous() for part in (x.float(), y.long(), at.long())), order=truth.order)


@final
@dataclass(frozen=True)
class Victim:
    """A recorded update that is attacked.

    Attributes:
        line: its line of the manifest.
        slot: its place in the round.
        truth: the examples that are searched for.
        behind: its client's training data; more than ``truth`` only where these are a sample.
    """

    line: Line
    slot: int
    truth: Truth
    behind: Truth

    @property
    def exchange(self) -> Exchange:
        """The update as an exchange of a job."""
        labels = tuple(int(label) for label in self.truth.labels)
        return Exchange(self.line["id"], self.line["client"], self.slot, labels)

    @property
    def sampled(self) -> bool:
        """True if fewer examples are searched for than the update has."""
        return len(self.truth.labels) < len(self.behind.labels)


@final
@dataclass(frozen=True)
class Chosen:
    """Updates to attack.

    Attributes:
        groups: the updates of each round.
        truths: all clients whose training data are known, attacked or not, by their numbers in the recordings.
    """

    groups: Mapping[int, Sequence[Victim]]
    truths: Mapping[int, Truth]


def choose(
    case: ForeignCase,
    kept: Recordings,
    rounds: Sequence[int] | None,
    truth: Callable[[int], Truth | None],
    batch: int | None,
    maximum: int,
    sample: int | None = None,
) -> Chosen:
    """Choose the updates to attack, by round; rounds without any known truth are left out.

    Args:
        case: the setting.
        kept: the recordings.
        rounds: the wanted rounds; None: all.
        truth: gives a client's training data.
        batch: required number of these examples; None: any.
        maximum: most clients of a round, those with the lowest numbers.
        sample: most examples of a client that are searched for; None: all.

    Raises:
        InputError: there are no such rounds, a truth does not fit, or there is none.
    """
    require(maximum >= 1, "victims >= 1", victims=maximum)
    there = sorted({line["round"] for line in kept.lines if line["type"] == "train"})
    reasons = {"skipped": kept.skipped[0]["skipped"]} if kept.skipped else {}
    types = {"types": ", ".join(sorted({line["type"] for line in kept.lines}))} if kept.lines else {}
    count = len(kept.lines)
    require(bool(there), f"recorded updates of training in {kept.folder}", exchanges=count, **types, **reasons)
    wanted = there if rounds is None else sorted(set(rounds))
    for number in wanted:
        require(number in there, f"a recorded round among {', '.join(map(str, there))}", round=number)
    truths: dict[int, Truth | None] = {}
    groups: dict[int, list[Victim]] = {}
    for number in wanted:
        groups[number] = []
        for slot, line in enumerate(kept.update_lines(number)):
            client = line["client"]
            if client not in truths:
                given = truth(client)
                truths[client] = None if given is None else case.checked(client, given, batch)
            known = truths[client]
            if known is not None and len(groups[number]) < maximum:
                groups[number].append(Victim(line, slot, _sampled(known, sample, case.seed, client), known))
    if not any(groups.values()):
        raise InputError(
            f"Expected to be told what a client trained on, got nothing of {len(truths)} in {kept.folder}."
        )
    held = {client: known for client, known in truths.items() if known is not None}
    return Chosen({number: group for number, group in groups.items() if group}, held)


def nobodys(public: PublicData, truths: Iterable[Truth]) -> PublicData:
    """Return public data without the examples that are a client's: none could be told from a floor.

    Args:
        public: the public data.
        truths: the clients' examples.

    Raises:
        InputError: none are left.
    """
    held = {_bytes(row) for truth in truths for row in public.compared(truth.samples.numpy())}
    kept = np.array([_bytes(row) not in held for row in public.samples])
    require(bool(kept.any()), "a public example that is no client's", public=len(kept), of_clients=len(kept))
    return public if kept.all() else replace(public, samples=public.samples[kept], labels=public.labels[kept])


def _bytes(example: np.ndarray) -> bytes:
    return example.astype(np.float32).tobytes()


def _sampled(truth: Truth, sample: int | None, seed: int, client: int) -> Truth:
    if sample is None or sample >= len(truth.labels):
        return replace(truth, order=None)
    drawn = torch.randperm(len(truth.labels), generator=torch_generator(seed, "foreign sample", client))
    indices = drawn[:sample].sort().values
    return Truth(truth.samples[indices], truth.labels[indices], truth.indices[indices])


def lone_examples(chosen: Chosen, maximum: int = 8) -> list[tuple[int, Truth]]:
    """Return single examples for the fresh controls, one of each client in turn, each with its client."""
    by_client = {v.line["client"]: v.truth for group in chosen.groups.values() for v in group}
    turns = max(len(truth.labels) for truth in by_client.values())
    lone = [
        (client, Truth(truth.samples[i : i + 1], truth.labels[i : i + 1], truth.indices[i : i + 1]))
        for i in range(turns)
        for client, truth in by_client.items()
        if i < len(truth.labels)
    ]
    return lone[:maximum]
