"""Bases of all attacks, what they are granted, and what they cost.

An attack that reconstructs examples either searches for the data behind an observation, or reads them off it without
iterations and without labels. Other attacks infer from a client's uploads what its data are like as a whole.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, final

import torch
from torch import Tensor, nn

from flfw.files.earlier_names import EarlierHooks
from flfw.inversion.client_models.victim import VictimModel
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.fit import Fit
from flfw.nets.net import Tensors
from flfw.nets.training.local_steps import LocalSteps
from flfw.plugins import NoSettings
from flfw.recording.observation import Examples, Knowledge, Observation, Reconstruction

Models: TypeAlias = frozenset[Literal["defence", "steps", "batch_statistics"]]
"""Mechanisms between the data and the observation: a client-side defence, several local steps, normalisation by the
batch's statistics. An attack with the last is granted a `VictimModel` whose BatchNorm uses them, as training does."""

Uses: TypeAlias = frozenset[Literal["public", "start", "uploads", "earlier"]]
"""Knowledge that an attack may request: the public data; the initial private tensors, if the method gives all clients
the same; the client's upload in the round before it was probed; its answers to the same probe after earlier rounds."""

Private: TypeAlias = Literal["searched for", "searched for in part", "stood in for", "guessed", "not needed"]
"""Treatment of a client's private tensors."""


@final
@dataclass(frozen=True)
class Upload:
    """Upload of a client in a round of training.

    Attributes:
        seen: the observation.
        model: the attacker's model of the client, with the tensors that it received.
        local: the client's local training; None: it is more than steps on one loss, or their number is not known.
        public: public data; None: not granted.
    """

    seen: Observation
    model: VictimModel
    local: LocalSteps | None
    public: Examples | None

    def weights(self, place: float) -> Tensors:
        """Return all weights at a place between those received, 0, and those sent, 1; unknown ones are guessed."""
        before = {**self.model.unknown, **self.model.known}
        moved = {name: value for name, value in self.seen.sent.items() if name in before}
        return {
            name: value.lerp(moved[name], place) if name in moved and value.is_floating_point() else value
            for name, value in before.items()
        }


@dataclass(frozen=True)
class AttackCost:
    """Cost of an attack; printed in the report.

    Attributes:
        iterations: steps of its search; 0 for a closed form.
        restarts: number of searches from different starts.
        selection: the rule that chooses one result, without the truth.
    """

    iterations: int
    restarts: int
    selection: str


class NotApplicableError(RuntimeError):
    """Error: the attack cannot work on this network; the report says so, and it counts as a failure."""


class AttackPlugin(ABC):
    """Base of all files of attacks/: attacks that reconstruct examples, and attacks that tell who was trained on.

    Args:
        settings: the attack's hyper-parameters, an instance of ``Settings``.
        compute: limits of memory, and compilation.
    """

    Settings: ClassVar[type] = NoSettings
    tokens: ClassVar[bool] = False
    """Whether it works on networks that look tokens up, through which no gradient reaches the input."""
    numbers: ClassVar[bool] = False
    """Whether it works where labels are numbers, those of a regression, and no classes."""
    tuned_on: ClassVar[str] = ""
    """The data on which its default settings were chosen, in words; empty: they are a paper's, or untuned."""

    def __init__(self, settings: Any = None, compute: ComputeLimits | None = None) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.compute = compute or ComputeLimits()


class Attack(EarlierHooks, AttackPlugin):
    """Base of the attacks that reconstruct examples; their arguments are those of `AttackPlugin`."""

    EARLIER_HOOKS: ClassVar[Mapping[str, str]] = {"budget": "cost"}

    against: ClassVar[str] = ""
    """Name of the defence whose recipe the attack is built on; empty: none. It is said among the grants."""
    of_sums: ClassVar[bool] = False
    """Whether it sees no client's message, but the sum over clients alone (`flfw.adversary.sums`), as behind secure
    aggregation. Uploads and earlier answers of single clients are not granted to it."""
    reconstructs: ClassVar[bool] = True
    """Whether it reconstructs examples. If not, it is only asked what it infers of clients from their uploads, by
    `presence` and `shares`, and has no entry among the reconstructions."""
    reads_first_layer: ClassVar[bool] = False
    """Whether it needs a fully connected first layer; on other networks a run says before training that it is idle."""
    sampled: ClassVar[bool] = False
    """Whether all its long loops run over `flfw.inversion.compute.steps`, as those of every search by `invert` do: then
    ``--estimate`` takes a few steps of each. Else it runs the attack with few of its ``iterations``."""

    @property
    def models(self) -> Models:
        """Mechanisms that it uses when they are granted; it assumes that all others are absent. By default none."""
        return frozenset()

    @property
    def uses(self) -> Uses:
        """Knowledge that it requests; no other of this kind is granted, or recorded for it. By default none."""
        return frozenset()

    @property
    def labels(self) -> str:
        """Source of the labels: ``given``, ``not used``, ``searched for``, or one of
        `flfw.inversion.closed_form.labels.WAYS` to recover them.

        Labels are granted only if they are ``given``.
        """
        return "given"

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return the treatment of a client's private tensors.

        A search for them, or for their outputs, ignores the architecture's leakage and counts as static. So do a
        surrogate learnt from public data (``stood in for``) and random values (``guessed``). ``not needed`` is for an
        attack that reads them off the observation, or works without them.

        Args:
            model: the client's model, with or without values.
            batch: examples in a probe.
        """
        return "searched for"

    def unused(self, uploads: Sequence[str], knows_defence: bool) -> str:
        """Return, in words, the available information that the attack ignores; empty: none. Else it counts as static.

        Args:
            uploads: the tensors whose gradient is sent.
            knows_defence: whether it knows of a defence.
        """
        return ""

    @property
    @abstractmethod
    def cost(self) -> AttackCost:
        """Cost of one run."""

    @abstractmethod
    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Reconstruct the data behind each observation.

        Args:
            observations: observations of one round and control, so that one search may work on all of them.
            knowledge: the knowledge granted for each.
            rngs: a generator for each, so that the result does not depend on the other victims.

        Raises:
            NotApplicableError: the network gives this attack nothing to work on.
        """

    def expected_share(self, batch: int) -> float | None:
        """Return the share of a batch, in [0, 1], that its theory expects to be found in the gradient of one step.

        By default None: there is no such theory. Reports print it beside the measured share.
        """
        return None

    def objective(
        self, observation: Observation, knowledge: Knowledge, guesses: Sequence[Reconstruction], rng: torch.Generator
    ) -> list[Fit] | None:
        """Compute the attack's objective at some guesses, without a search.

        An audit compares the true data, the reconstruction and a random guess, to tell a failed search from lost
        information; and the true data with public ones, to tell whether the message points to them. By default None:
        there is no objective, or it cannot be computed at a guess.

        Args:
            observation: the observation.
            knowledge: the knowledge granted for it.
            guesses: guesses (batch, ...) of raw inputs; labels where the attack has none are its own.
            rng: generator of the objective's randomness.
        """
        return None

    def ceiling(self, samples: Tensor) -> Tensor | None:
        """Return the images that come nearest to true ones among all that its search can give; they use the truth.

        By default None: its search can give any image. Reports print the PSNR of these images beside the measured one,
        and name those that the attack could not have recovered, if it is `bounded`.

        Args:
            samples: (N, ...) true raw inputs.

        Returns:
            (N, ...) raw inputs, or None.
        """
        return None

    @property
    def bounded(self) -> bool:
        """Property that no result is nearer to the truth than `ceiling`; false where a step behind the search adds.

        By default true.
        """
        return True

    def presence(self, uploads: Sequence[Observation], model: nn.Module) -> list[Tensor | None]:
        """Read off the uploads which classes the clients hold; by default nothing.

        Args:
            uploads: uploads of a round, one for each client that took part.
            model: the clients' model, for its names and layers; it holds no values.

        Returns:
            For each upload (classes,) of bool, or None.
        """
        return [None] * len(uploads)

    def shares(self, uploads: Sequence[Upload]) -> Sequence[Tensor | None]:
        """Estimate the shares of the classes in the clients' data; by default nothing.

        Args:
            uploads: uploads of a round, one for each client that took part, with what is granted about them.

        Returns:
            For each upload (classes,) with the sum 1, or None.

        Raises:
            NotApplicableError: the uploads give this attack nothing to work on.
        """
        return [None] * len(uploads)


def tuned_on(attacks: Mapping[str, AttackPlugin]) -> list[str]:
    """List the attacks with tuned default settings, each with its data, for the provenance."""
    return [f"{name}: {attack.tuned_on}" for name, attack in attacks.items() if attack.tuned_on]


class ClosedFormAttack(Attack, ABC):
    """Attack without iterations and labels; it defines `read_off`, or `run` for all observations at once."""

    selection: ClassVar[str] = "closed form"
    """The rule that chooses the result, without the truth; printed in the report."""

    @property
    def cost(self) -> AttackCost:
        """A budget without iterations."""
        return AttackCost(iterations=0, restarts=1, selection=self.selection)

    @property
    def labels(self) -> str:
        """``not used``."""
        return "not used"

    def read_off(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Reconstruction:
        """Reconstruct the data behind one observation.

        Args:
            observation: the observation.
            knowledge: the knowledge granted for it.
            rng: its generator.

        Raises:
            NotApplicableError: the network gives this attack nothing to work on.
        """
        raise NotImplementedError

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Reconstruct the data behind each observation by itself."""
        return [self.read_off(*one) for one in zip(observations, knowledge, rngs, strict=True)]
