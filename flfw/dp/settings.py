"""Settings of clipping and noise, in each local step or on a client's whole update."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite, sqrt
from typing import Literal, Self, TypeAlias

import torch
from torch import nn

from flfw.errors import BadInput, require
from flfw.messages.sharing import matches
from flfw.nets.net import Tensors
from flfw.privacy.course import Course
from flfw.privacy.mechanism import Holder, Mechanism
from flfw.rng import torch_generator
from flfw.training.gaussian import GaussianNoise, SecureNoise, SeededNoise
from flfw.training.optimisers import LocalTraining
from flfw.training.per_example import Grouping, PerExample, grouped

NoiseSource: TypeAlias = Literal["seed", "secure"]
Unit: TypeAlias = Literal["example", "client"]

_WIDE = 1e9  # a bound that no gradient or update reaches
_FAINT = 1e-6  # noise multiplier; with a bound of 4 the noise is far below the change of one step's weights


@dataclass(frozen=True)
class Noise(LocalTraining):
    """Settings of clipping and noise that are the same for local steps and whole updates."""

    noise_multiplier: float = 6.0  # sigma >= 0: the noise on a sum has deviation sigma C in each entry; 0: none
    clip: float = 4.0  # C > 0, the L2 bound of each group of tensors
    grouping: Grouping = "layer"  # clipped together: a layer's tensors, each tensor, or all that are sent (flat)
    noise_source: NoiseSource = "seed"  # seed: whoever has it can take the noise off; secure: nobody can

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.noise_multiplier < inf, "0 <= noise_multiplier < inf", noise_multiplier=self.noise_multiplier)
        require(0 < self.clip < inf, "0 < clip < inf", clip=self.clip)

    def bare(self) -> Self:
        """Return settings that clip nothing and add no noise."""
        return replace(self, noise_multiplier=0.0, clip=_WIDE)

    def mildest(self) -> Self:
        """Return settings with so little noise that a message leaks; the clipping stays."""
        return replace(self, noise_multiplier=min(self.noise_multiplier, _FAINT))

    @property
    def secure(self) -> bool:
        """True where nobody can repeat the noise, the coins of batches, and the coins of cohorts."""
        return self.noise_source == "secure"

    def noise(self, seed: int, purpose: str, *numbers: int) -> GaussianNoise:
        """Return the source of the noise for one purpose, with the numbers that tell it from others of the purpose."""
        return SecureNoise() if self.secure else SeededNoise(torch_generator(seed, purpose, *numbers))

    @property
    def on_steps(self) -> bool:
        """True where the gradients of single examples are clipped, in every local step."""
        return False

    @property
    def on_update(self) -> bool:
        """True where a client's whole update is clipped."""
        return not self.on_steps

    @property
    def update_deviation(self) -> float:
        """Deviation of the noise that a client adds to its clipped update; 0: none."""
        return 0.0

    def check_model(self, model: nn.Module, chosen: Sequence[str]) -> None:
        """Refuse a model with tensors that would be sent unclipped, or cannot be clipped.

        Args:
            model: may be on the meta device.
            chosen: patterns of the tensors that are sent.

        Raises:
            BadInput: naming the layer.
        """
        if self.on_steps:
            PerExample(model, chosen, grouping=self.grouping)
        for name, _ in model.named_buffers():
            if matches(name, chosen):
                layer = type(model.get_submodule(name.rpartition(".")[0])).__name__
                why = "its statistics follow no clipped gradient; choose a network without"
                raise BadInput(f"Expected layers without buffers, got {layer} with {name}; {why}.")

    def groups(self, names: Iterable[str], chosen: Sequence[str] = ("*",)) -> int:
        """Return M, the number of groups that the chosen tensors form."""
        return len(grouped([name for name in names if matches(name, chosen)], self.grouping))


@dataclass(frozen=True)
class NoisySteps(Noise):
    """Settings of local steps, each on a noisy sum of clipped gradients of single examples."""

    draws: Literal["batch", "example"] = "batch"  # noise: one draw on the sum of a batch, or one for each example in it
    batches: Literal["shuffled", "poisson", "balls"] = (
        "shuffled"  # poisson: each step draws each example by its own coin; balls: each example draws its step
    )
    observed: Literal["sanitised", "bare"] = (
        "sanitised"  # the gradient read on the client: after clipping and noise, or before
    )

    @property
    def on_steps(self) -> bool:
        """True: each example's gradient is clipped."""
        return True

    def mechanism_of_steps(self, course: Course, chosen: Sequence[str]) -> Mechanism:
        """Return the mechanism of a whole run for the examples of one client, as the server sees it.

        Args:
            course: of the run.
            chosen: patterns of the tensors that follow the noisy steps.
        """
        poisson = self.batches == "poisson"
        return Mechanism(
            noise_multiplier=self.noise_multiplier,
            steps=course.participations * course.local_steps,
            clip=self.clip,
            groups=self.groups(course.tensors, chosen),
            draws=self.draws,
            batch=min(course.batch, course.most),
            sampling_rate=course.example_rate if poisson else 1.0,
            poisson=poisson,
            hidden=True,  # nobody sees which examples a client draws
            participations=None if poisson else course.participations * course.epochs,
            replication=course.replication,
            bins=ceil(course.fewest / course.batch) if self.batches == "balls" else 0,
        )

    def deviation(self, bound: float, batch: int) -> float:
        """Return the deviation of noise on a batch's sum clipped to ``bound``: of one draw, or of ``batch`` draws."""
        return self.noise_multiplier * bound * (sqrt(batch) if self.draws == "example" else 1.0)


@dataclass(frozen=True)
class EitherUnit(NoisySteps):
    """Settings of noisy local steps, to protect examples, or of updates with a server's noise, to protect clients.

    As for `LocalTraining`, the defaults are those of HyperFL's comparison, from its code.
    """

    noise_multiplier: float = 10.63
    clip: float = 0.04
    grouping: Grouping = "flat"
    unit: Unit = "example"  # example: clipping and noise in each local step, at the client; client: on its whole update

    @property
    def on_steps(self) -> bool:
        """True where examples are protected."""
        return self.unit == "example"

    @property
    def void(self) -> str:
        """Reason why nothing can be claimed for examples; empty if something can."""
        return ""

    def mechanism(self, course: Course, chosen: Sequence[str]) -> Mechanism:
        """Return the mechanism of the chosen unit."""
        if self.on_steps:
            return replace(self.mechanism_of_steps(course, chosen), void=self.void)
        return mechanism_of_updates(self, course, chosen, "server")


@dataclass(frozen=True)
class BesideOwnHead(EitherUnit):
    """Settings for clients that train a private head without noise, and through it the sent tensors with noise."""

    head_lr: float = 0.1  # of the head's SGD, > 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.head_lr < inf, "0 < head_lr < inf", head_lr=self.head_lr)

    @property
    def void(self) -> str:
        """Reason: the noise covers an example's own gradient, but not its effect on others through the head."""
        return (
            "The head learns from the same examples without noise, and the gradient of each goes through it: by the "
            "head, one example changes those of all others in a batch, each by up to twice the bound."
        )


def mechanism_of_updates(noise: Noise, course: Course, chosen: Sequence[str], noised_by: Holder) -> Mechanism:
    """Return the mechanism of a whole run for one client's updates, of which each is clipped.

    Args:
        noise: settings of the clipping and the noise.
        course: of the run.
        chosen: patterns of the tensors that are sent.
        noised_by: party that adds the noise: each client to its own update, or the server to the sum.
    """
    return Mechanism(
        noise_multiplier=noise.noise_multiplier,
        steps=course.rounds,
        clip=noise.clip,
        clipped="client",
        groups=noise.groups(course.tensors, chosen),
        noised_by=noised_by,
        sampling_rate=course.client_rate,
        poisson=course.poisson,
        hidden=True,  # from all but the server, for which `flfw.privacy.claims` changes it back
        participations=course.participations,
        replication=course.replication,
    )


def clipped_change(change: Tensors, bound: float, grouping: Grouping) -> Tensors:
    """Scale each group of a client's change down to an L2 norm of at most ``bound``.

    A group whose norm is not a number, or is infinite, becomes 0, as no scale would make the bound hold.

    Args:
        change: by name, floating.
        bound: > 0.
        grouping: tensors that are clipped together.

    >>> clipped_change({"a.w": torch.tensor([3.0]), "a.b": torch.tensor([4.0])}, 2.5, "layer")
    {'a.w': tensor([1.5000]), 'a.b': tensor([2.])}
    """
    clipped: Tensors = {}
    for members in grouped(change, grouping).values():
        squares = [change[name].double().square().sum() for name in members]
        norm = float(torch.stack(squares).sum().sqrt())
        scale = min(1.0, bound / norm) if norm else 1.0
        clipped |= {n: change[n] * scale if isfinite(norm) else torch.zeros_like(change[n]) for n in members}
    return {name: clipped[name] for name in change}
