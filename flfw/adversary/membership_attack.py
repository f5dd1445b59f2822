"""Base of the attacks on membership: scores of candidates, higher for those that a client trained on."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from flfw.adversary.attack import AttackPlugin, NotApplicableError
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.client_models.victim import VictimModel
from flfw.nets.net import Tensors
from flfw.nets.training.local_steps import LocalSteps
from flfw.recording.observation import Examples


@dataclass(frozen=True)
class MembershipRound:
    """Round of training as the server sees it.

    Attributes:
        round: its number.
        received: tensors that the target client received, by name; equal ones of several targets are one object.
        sent: tensors that clients sent after training, by client and name: the target's, and those of other clients
            that received the same.
        lr: learning rate of the local steps.
        steps: number of the target's local steps.
        operator: what stands between the target's gradient and its message; None: nothing, or it is not granted.
    """

    round: int
    received: Tensors
    sent: Mapping[int, Tensors]
    lr: float
    steps: int
    operator: Operator | None = None


@dataclass(frozen=True)
class PublishedModel:
    """Final model of a run, the whole view of an outsider, with the settings of the training that are granted.

    Attributes:
        tensors: the model, by name.
        lr: learning rate of the clients' steps.
        steps: local steps of a client in all rounds together, >= 1.
        batch: examples in a step.
    """

    tensors: Tensors
    lr: float
    steps: int
    batch: int


@dataclass(frozen=True)
class MembershipView:
    """Grants of an attack on one client's membership, all of them; nothing in it marks the members.

    Behind secure aggregation ``sent`` of a round holds, for the target, the mean over the group that it is in, and for
    a client of each other group that group's mean. For a peer it holds the mean over all other clients, and its own
    uploads. An outsider has no rounds but a published model, and the candidates of all clients.

    Attributes:
        client: number of the target client.
        rounds: the audited rounds in which it sent something, ascending; none for an outsider, else at least one.
        candidates: labelled examples, half of which the client trained on, in an order without meaning.
        public: labelled examples of no client.
        model: builds the attacker's model of a client from received tensors; private tensors are the attacker's guess.
        local: the client's local training, with its batch size; None: it is more than steps on one loss.
        examples: number of the client's training examples, which the server is told; 0: it is not.
        adaptive: whether what hides the data is granted: the mechanism of each round.
        replaced: part of the model that is private, and in whose place a stand-in may be learnt; empty: none.
        granted: the same in words, a sentence each, for the report.
        published: for an outsider, the final model; else None.
        owners: (N,) the client of each candidate; None: the target.
    """

    client: int
    rounds: tuple[MembershipRound, ...]
    candidates: Examples
    public: Examples
    model: Callable[[Tensors], VictimModel]
    local: LocalSteps | None = None
    examples: int = 0
    adaptive: bool = False
    replaced: str = ""
    granted: tuple[str, ...] = ()
    published: PublishedModel | None = None
    owners: Tensor | None = None


class MembershipAttack(AttackPlugin):
    """Base of the attacks on membership; their arguments are those of `AttackPlugin`."""

    reads_statistics: ClassVar[bool] = False
    """Whether all of its statistics read the running statistics that clients send, such as BatchNorm's. Without this
    claim none of them says "no leak found" where some are sent: the mean of a batch's inputs may be among them."""

    def unused_statistics(self, view: MembershipView) -> tuple[str, ...]:
        """Return a sentence for each statistic of messages that the grants do not allow; by default none."""
        return ()

    def replaceable(self, model: nn.Module, private: Collection[str]) -> str:
        """Return the private part of a model for which it learns a stand-in if it is told of it; by default none.

        Args:
            model: the method's model, for its parts.
            private: names of the tensors that clients keep.
        """
        return ""

    @abstractmethod
    def scores(self, view: MembershipView, rng: torch.Generator) -> dict[str, Tensor]:
        """Score the candidates by one statistic or more.

        Args:
            view: what is granted about one client.
            rng: generator on the CPU; it starts from the same state for every client.

        Returns:
            For each statistic (N,), higher for a member. ``label_only`` and ``loss_only`` are floors: the first reads
            labels alone, the second the loss at a model that all clients received.

        Raises:
            NotApplicableError: nothing that the client sent can be compared with a gradient.
        """

    def published_scores(
        self, view: MembershipView, published: PublishedModel, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """Score the candidates by the final model of a run, without any client's message.

        Args:
            view: what is granted.
            published: the model.
            rng: generator on the CPU.

        Returns:
            As `scores` does.

        Raises:
            NotApplicableError: the attack reads messages of clients.
        """
        raise NotApplicableError("it reads what clients send, and an outsider sees the final model alone")
