"""Settings of clipping and noise, in each local step or on a client's whole update.

The scale of the noise, with sigma = ``noise_multiplier`` and C = ``clip``:

    sum_noise_multiplier  sigma, or sigma sqrt(B) for draws=example; times C, on the sum of a step's clipped gradients
    sum_deviation      sigma C, on the server's sum of clipped updates; if C moves, `server_multiplier` times C
    update_deviation   of a client's noise on its own update, see ``strategies/fed_sdp.py``; else 0

`flfw.nets.training.gaussian.SecureNoise` adds a margin for rounding to each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.bounds import NonNegativeFinite, NonNegativeInt, PositiveFinite, ShareBelowOne, ValueRange
from flfw.dp.quantile import update_multiplier
from flfw.errors import InputError, require
from flfw.files.earlier_names import EarlierHooks
from flfw.files.tensor_names import matches
from flfw.nets import running_statistics
from flfw.nets.net import Tensors
from flfw.nets.training.clipping import CLIP_FACTOR, Clipping, Grouping, factors, grouped
from flfw.nets.training.gaussian import GaussianNoise, SecureNoise, SeededNoise
from flfw.nets.training.optimisers import LocalTraining
from flfw.nets.training.per_example import PerExample
from flfw.privacy.mechanism import ClientSchedule, Mechanism
from flfw.rng import torch_generator

NoiseSource: TypeAlias = Literal["seed", "secure"]
Unit: TypeAlias = Literal["example", "client"]

LEAST_CLIP, LARGEST_CLIP = 1e-30, 1e30
"""Range of clipping bounds. Below it, float32 may round what is clipped up to twice the bound; above it, sums overflow,
and that a client fails tells of its data."""

LARGEST_DEVIATION = 1e34
"""Largest deviation of a noise, sigma C: float32 holds it, as often as noise of a batch is drawn for each example."""

_WIDE = 1e9  # a bound that no gradient or update reaches
_FAINT = 1e-6  # noise multiplier; with a bound of 4 the noise is far below the change of one step's weights


@dataclass(frozen=True)
class DPSettings(LocalTraining, EarlierHooks):
    """Settings of clipping and noise that are the same for local steps and whole updates."""

    EARLIER_HOOKS: ClassVar[Mapping[str, str]] = {"on_steps": "clips_examples", "on_update": "clips_updates"}

    noise_multiplier: NonNegativeFinite = 6.0  # sigma >= 0: the noise on a sum of clipped parts, in bounds C; 0: none
    clip: PositiveFinite = 4.0  # C, the L2 bound of each group of tensors; from 1e-30 to 1e30
    grouping: Grouping = "layer"  # clipped together: a layer's tensors, each tensor, or all that are sent (flat)
    clipping: Clipping = "abadi"  # g min(1, C / |g|); or automatic: g C / (|g| + 0.01), so that C is only a step size
    noise_source: NoiseSource = "seed"  # seed: whoever has it can take the noise off; secure: nobody can

    def __post_init__(self) -> None:
        super().__post_init__()
        require_in_float32(clip=self.clip)
        sent, held = self.sum_deviation, f"noise_multiplier * clip <= {LARGEST_DEVIATION:g}"
        require(sent <= LARGEST_DEVIATION, f"{held}, which float32 holds", noise_multiplier=self.noise_multiplier)

    def disabled(self) -> Self:
        """Return settings that clip nothing and add no noise."""
        return replace(self, noise_multiplier=0.0, clip=_WIDE, clipping="abadi")

    def weakest(self) -> Self:
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
    def clips_examples(self) -> bool:
        """True where the gradients of single examples are clipped, in every local step."""
        return False

    @property
    def clips_updates(self) -> bool:
        """True where a client's whole update is clipped."""
        return not self.clips_examples

    @property
    def sum_deviation(self) -> float:
        """Deviation of the noise on a sum of what is clipped."""
        return self.noise_multiplier * self.clip

    @property
    def update_deviation(self) -> float:
        """Deviation of the noise that a client adds to its clipped update; 0, unless a method has some (fed_sdp)."""
        return 0.0

    @property
    def follows_quantile(self) -> bool:
        """True where the bound of updates follows a quantile of their norms."""
        return False

    def check_model(self, model: nn.Module, chosen: Sequence[str]) -> None:
        """Refuse a model with tensors that would be sent unclipped, or cannot be clipped.

        Args:
            model: may be on the meta device.
            chosen: patterns of the tensors that are sent.

        Raises:
            InputError: naming the layer.
        """
        if self.clips_examples:
            PerExample(model, chosen, grouping=self.grouping)
        for name in running_statistics(model):
            if matches(name, chosen) and name != CLIP_FACTOR:
                module = model.get_submodule(name.rpartition(".")[0])
                way = (
                    "--expert norm=group, or adapter_norm=frozen of adapters"
                    if isinstance(module, _BatchNorm)
                    else "choose a network without"
                )
                why = f"its statistics follow no clipped gradient; {way}"
                raise InputError(f"Expected layers without buffers, got {type(module).__name__} with {name}; {why}.")

    def mechanism(self, schedule: ClientSchedule, chosen: Sequence[str], **own: Any) -> Mechanism | str:
        """Return the mechanism of one client in a whole run, or why nothing can be claimed; by default of its updates.

        Args:
            schedule: of the client.
            chosen: patterns of the tensors that are sent, and follow the noise.
            own: fields in which a method's updates differ from those to which the server adds noise.
        """
        of_updates: dict[str, Any] = {"noised_by": "server", "poisson": schedule.poisson} | own
        return Mechanism(
            noise_multiplier=self.noise_multiplier,
            steps=schedule.rounds,
            clipping_norm=self.clip,
            clipped="client",
            groups=self.groups(schedule.tensors, chosen),
            sampling_rate=schedule.client_rate,
            max_participations=schedule.max_participations,
            **of_updates,
        )

    def groups(self, names: Iterable[str], chosen: Sequence[str] = ("*",)) -> int:
        """Return M, the number of groups that the chosen tensors form."""
        return len(grouped([name for name in names if matches(name, chosen)], self.grouping))


def adds_own_noise(settings: object) -> bool:
    """Return whether the clients of a method with such settings add noise to their own updates."""
    return isinstance(settings, DPSettings) and settings.update_deviation > 0


@dataclass(frozen=True)
class AdaptiveClippingSettings(DPSettings):
    """Settings of a bound that may follow a quantile of the clients' update norms; see `flfw.dp.quantile`."""

    # Share of the updates that the bound shall leave whole, in (0, 1); 0: the bound stays.
    quantile: ShareBelowOne = 0.0
    quantile_lr: PositiveFinite = 0.2  # eta_C > 0, the rate at which the bound moves
    quantile_noise: Annotated[float, ValueRange(gt=0.5, lt=inf)] = 2.0  # sigma_b / sigma, of the count of short updates

    def __post_init__(self) -> None:
        super().__post_init__()
        flat = self.grouping == "flat" or not self.follows_quantile
        require(flat, f"grouping=flat with quantile={self.quantile:g}", grouping=self.grouping)

    @property
    def follows_quantile(self) -> bool:
        """True where the bound moves."""
        return self.quantile > 0

    @property
    def server_multiplier(self) -> float:
        """Multiplier of the server's noise on the sum of updates; larger than sigma where a count has noise beside."""
        sigma = self.noise_multiplier
        return update_multiplier(sigma, self.quantile_noise) if self.follows_quantile else sigma


@dataclass(frozen=True)
class DPSGDSettings(DPSettings):
    """Settings of local steps, each on a noisy sum of clipped gradients of single examples."""

    draws: Literal["batch", "example"] = "batch"  # noise: one draw on the sum of a batch, or one for each example in it
    # poisson: each step draws each example by its own coin; balls: each example draws its step.
    batches: Literal["shuffled", "poisson", "balls"] = "shuffled"
    physical_batch: NonNegativeInt = 0  # examples whose gradients are in memory at once; 0: the whole batch's
    # The gradient read on the client: after clipping and noise, or before.
    observed: Literal["sanitised", "bare"] = "sanitised"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = self.clips_examples or not self.physical_batch
        require(whole, "physical_batch=0 where no single gradients are clipped", physical_batch=self.physical_batch)

    @property
    def clips_examples(self) -> bool:
        """True: each example's gradient is clipped."""
        return True

    @property
    def void(self) -> str:
        """Reason why nothing can be claimed for examples; empty if something can."""
        return ""

    def mechanism(self, schedule: ClientSchedule, chosen: Sequence[str], **own: Any) -> Mechanism | str:
        """Return the mechanism of the steps, if these are clipped; see the base."""
        if not self.clips_examples:
            return super().mechanism(schedule, chosen, **own)
        if self.void:
            return self.void
        poisson = self.batches == "poisson"
        return Mechanism(
            noise_multiplier=self.noise_multiplier,
            steps=schedule.max_participations * schedule.local_steps,
            clipping_norm=self.clip,
            groups=self.groups(schedule.tensors, chosen),
            noise_per=self.draws,
            batch=schedule.batch_size if self.draws == "example" else min(schedule.batch_size, schedule.examples),
            sampling_rate=schedule.example_rate if poisson else 1.0,
            poisson=poisson,
            max_participations=None if poisson else schedule.max_participations * schedule.epochs,
            bins=schedule.batches if self.batches == "balls" else 0,
        )

    def sum_noise_multiplier(self, batch: int) -> float:
        """Return the deviation of the noise on a batch's sum, over the bound: of one draw, or of ``batch`` draws."""
        return self.noise_multiplier * (sqrt(batch) if self.draws == "example" else 1.0)


@dataclass(frozen=True)
class DPUnitSettings(DPSGDSettings, AdaptiveClippingSettings):
    """Settings of noisy local steps, to protect examples, or of updates with a server's noise, to protect clients.

    As for `LocalTraining`, the defaults are those of HyperFL's comparison, from its code.
    """

    noise_multiplier: float = 10.63
    clip: float = 0.04
    grouping: Grouping = "flat"
    unit: Unit = "example"  # example: clipping and noise in each local step, at the client; client: on its whole update

    def __post_init__(self) -> None:
        super().__post_init__()
        fixed = not (self.follows_quantile and self.clips_examples)
        require(fixed, "quantile=0 with unit=example, whose bound is the same in all steps", quantile=self.quantile)

    @property
    def clips_examples(self) -> bool:
        """True where examples are protected."""
        return self.unit == "example"


@dataclass(frozen=True)
class PrivateHeadSettings(DPUnitSettings):
    """Settings for clients that train a private head without noise, and through it the sent tensors with noise."""

    head_lr: PositiveFinite = 0.1  # of the head's SGD, > 0

    @property
    def void(self) -> str:
        """Reason: the noise covers an example's own gradient, but not its effect on others through the head."""
        return (
            "The head learns from the same examples without noise, and the gradient of each goes through it: by the "
            "head, one example changes those of all others in a batch, each by up to twice the bound."
        )


def require_in_float32(**bound: float) -> None:
    """Refuse a clipping bound that float32 cannot keep.

    Raises:
        InputError: naming the bound.
    """
    ((name, value),) = bound.items()
    require(LEAST_CLIP <= value <= LARGEST_CLIP, f"{LEAST_CLIP:g} <= {name} <= {LARGEST_CLIP:g}", **bound)


def clipped_change(change: Tensors, bound: float, grouping: Grouping, clipping: Clipping = "abadi") -> Tensors:
    """Scale each group of a client's change to an L2 norm of at most ``bound``.

    A group whose norm is not a number, or is infinite, becomes 0, as no scale would make the bound hold.

    Args:
        change: by name, floating.
        bound: > 0.
        grouping: tensors that are clipped together.
        clipping: the rule.

    >>> clipped_change({"a.w": torch.tensor([3.0]), "a.b": torch.tensor([4.0])}, 2.5, "layer")
    {'a.w': tensor([1.5000]), 'a.b': tensor([2.])}
    """
    clipped: Tensors = {}
    for members in grouped(change, grouping).values():
        norm = torch.stack([change[name].double().square().sum() for name in members]).sum().sqrt()
        scale = float(factors(norm, torch.full_like(norm, bound), clipping))
        clipped |= {n: change[n] * scale if isfinite(norm) else torch.zeros_like(change[n]) for n in members}
    return {name: clipped[name] for name in change}
