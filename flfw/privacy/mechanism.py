"""Schedule of a client, and its mechanism of noisy sums for an accountant: multiplier, sampling rate, number of steps.

One example (or client) adds a vector to a sum; the sensitivity bounds its L2 norm. Gaussian noise with a deviation of z
times the sensitivity makes the step a Gaussian mechanism of multiplier z, and its privacy depends on z alone:

    z = sigma / sqrt(M)            each of M groups of tensors clipped to C: the sensitivity is sqrt(M) C, not C
    z = sigma sqrt(B) / sqrt(M)    with a draw of noise for each of B examples: their sum has deviation sqrt(B) sigma C
    z = sigma sqrt(S / n) / sqrt(M)    with an n-th of the noise's variance from each of S clients, seen as a sum alone

Sampling amplifies privacy if each example is drawn by its own coin, with probability q (Poisson), and the adversary
never learns which examples were drawn. Otherwise q counts as 1, for the steps in which an example takes part.
A schedule and a mechanism are of one client, by the client's own numbers; what others add is in `Others`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, expm1, inf, log1p, sqrt
from typing import ClassVar, Literal, NamedTuple, TypeAlias, final

from flfw.bounds import BoundedSettings, NonNegativeFinite, PositiveFloat, PositiveShare
from flfw.errors import require

Holder: TypeAlias = Literal["client", "server"]
Clipped: TypeAlias = Literal["example", "client"]
Unit: TypeAlias = Literal["example", "patient", "client"]


@final
@dataclass(frozen=True)
class ClientSchedule:
    """Data and participation of one client; by the defaults it is alone, for one round, as a site counts a message.

    Attributes:
        examples: number of its training examples, which everybody is taken to know.
        batch_size: B, examples in a local step.
        epochs: passes over its examples in a round.
        tensors: number of entries of each trained tensor, by name.
        rounds: T, number of training rounds of the run.
        max_participations: largest number of rounds in which this client takes part.
        evaluations: number of its answers without training, which private metrics alone tell of.
        client_rate: share of the clients that take part in a round.
        poisson: whether each client is drawn by an independent coin.
        client: number of this client.
        held: number of its training, validation and test examples; for private metrics alone.
    """

    examples: int
    batch_size: int
    epochs: int
    tensors: Mapping[str, int]
    rounds: int = 1
    max_participations: int = 1
    evaluations: int = 0
    client_rate: float = 1.0
    poisson: bool = False
    client: int = 0
    held: int = 0

    @property
    def batches(self) -> int:
        """Local steps of a pass."""
        return ceil(self.examples / self.batch_size)

    @property
    def local_steps(self) -> int:
        """L, local steps in a round."""
        return self.epochs * self.batches

    @property
    def example_rate(self) -> float:
        """Probability that a Poisson batch holds a given example."""
        return min(1.0, self.batch_size / max(1, self.examples))


@final
@dataclass(frozen=True)
class GaussianEvent:
    """Equal steps of a subsampled Gaussian mechanism of sensitivity 1.

    Attributes:
        noise_multiplier: deviation of the noise over the sensitivity, >= 0; 0: no noise.
        sampling_rate: probability that the unit is drawn in a step, in (0, 1].
        steps: number of steps, >= 0.
        bins: t; where it is above 1, a step stands for a pass of t steps, in one of which the unit takes part, by a
            uniform choice that the adversary does not know. Whoever does not use it gives no credit for the choice.
    """

    noise_multiplier: NonNegativeFinite
    sampling_rate: float
    steps: int
    bins: int = 1


def _require_whole(record: object, minimum: Mapping[str, int]) -> None:
    for name, lowest in minimum.items():
        value = getattr(record, name)
        require(isinstance(value, int) and value >= lowest, f"a whole number {name} >= {lowest}", **{name: value})


@final
@dataclass(frozen=True)
class Others:
    """Other clients beside the one that is counted: the same for each client of a run.

    Attributes:
        max_copies: r, number of clients that hold a copy of the same example.
        min_summed_updates: S, the least number of updates in a sum, each with its client's noise, for an adversary that
            sees nothing but these sums, also when others drop out; 1: it may see a single update.
        colluding: c, the most updates beside these in such a sum without noise that counts; copies of an example may be
            among them.
    """

    max_copies: int = 1
    min_summed_updates: int = 1
    colluding: int = 0

    def __post_init__(self) -> None:
        _require_whole(self, {"max_copies": 1, "min_summed_updates": 1, "colluding": 0})

    @property
    def adds_up(self) -> bool:
        """True if there are more updates in a sum than copies of an example, which then may all be in one."""
        return self.min_summed_updates + self.colluding > self.max_copies

    def seen(self, unit: Unit, sums: bool) -> Others:
        """Return the others as an adversary meets them, who sees sums alone or each update; copies are no client's own.

        Noises add up in sums alone, for who sees no more.
        """
        copies = 1 if unit == "client" else self.max_copies
        summed = Others(copies, self.min_summed_updates, self.colluding)
        return summed if sums and (summed.adds_up or self.colluding) else Others(copies)


NO_OTHERS = Others()
_NOT_DISTRIBUTED = "where clients do not add noise to their clipped updates"


@final
@dataclass(frozen=True)
class Mechanism(BoundedSettings):
    """Clipping, noise and sampling of one client.

    Attributes:
        noise_multiplier: sigma >= 0; the noise on the sum has deviation sigma C in each entry. 0: none.
        steps: number of steps with noise, of one client if clients add it, else of the server; >= 0.
        clipping_norm: C > 0, bound of each group's L2 norm; inf: nothing is clipped, so nothing can be claimed.
        clipped: the clipped vector: an example's gradient or a client's whole update.
        groups: M >= 1, number of groups of tensors that are clipped separately, each to C.
        noise_per: noise once per ``batch``, or once per ``example`` in it. The latter is for an adversary that sees
            only sums; for one that reads each noisy gradient, use noise per batch of one.
        batch: B, examples in a step's batch, the same number in every step; 0: it varies or is not known.
        noised_by: the party that adds the noise; clients add it independently of each other.
        sampling_rate: q in (0, 1], probability to be drawn in a step.
        poisson: whether each is drawn by its own coin, and no adversary learns who was drawn; False for passes in
            shuffled order, batches of fixed size, and draws that others may know.
        max_participations: largest number of steps in which one example (or client) takes part, at most ``steps``;
            None: all. It counts if sampling gives no credit: 1 a pass for passes in shuffled order.
        noise_divisor: n >= 1; a client's own noise on its clipped update has deviation sigma C / sqrt(n), so that n
            of them make sigma C together.
        bands: b >= 1, rounds whose sums are in one noisy sum, with weights of length 1; the rounds of one client are at
            least b apart, so that no noisy sum holds it twice: see `flfw.privacy.banded`. 1: each round's alone.
        bins: t >= 1, steps of a pass, in one of which each example takes part by its own uniform choice that nobody
            else learns; ``max_participations`` counts the passes. 0: there is no such choice.

    Raises:
        InputError: a value out of its range, noise per example with a batch that is not known, or shares of noise that
            is not each client's own on its whole update.
    """

    EARLIER_NAMES: ClassVar[Mapping[str, str]] = {
        "clip": "clipping_norm",
        "draws": "noise_per",
        "participations": "max_participations",
        "shares": "noise_divisor",
    }
    noise_multiplier: NonNegativeFinite
    steps: int
    clipping_norm: PositiveFloat = 1.0
    clipped: Clipped = "example"
    groups: int = 1
    noise_per: Literal["batch", "example"] = "batch"
    batch: int = 0
    noised_by: Holder = "client"
    sampling_rate: PositiveShare = 1.0
    poisson: bool = False
    max_participations: int | None = None
    bands: int = 1
    bins: int = 0
    noise_divisor: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        taken = self.max_participations
        _require_whole(self, {"steps": 0, "batch": 0, "bins": 0, "groups": 1, "noise_divisor": 1, "bands": 1})
        whole = taken is None or (isinstance(taken, int) and 0 <= taken <= self.steps)
        require(whole, f"a whole number 0 <= max_participations <= steps={self.steps}", max_participations=taken)
        passes = not self.bins or (self.clipped == "example" and not self.poisson and taken is not None)
        require(passes, "bins=0 unless examples choose among the steps of a known number of passes", bins=self.bins)
        require(self.noise_per == "batch" or self.batch >= 1, "batch >= 1 with noise_per=example", batch=self.batch)
        whole = f"noise_divisor=1 {_NOT_DISTRIBUTED}"
        require(self.is_distributed or self.noise_divisor == 1, whole, noise_divisor=self.noise_divisor)

    @property
    def is_distributed(self) -> bool:
        """True where each client adds noise of its own to its clipped update, so that in a sum these noises add up."""
        return self.clipped == "client" and self.noised_by == "client"

    def multiplier(self, noises: int = 1) -> float:
        """Return z: deviation of the noise on a step's sum over the L2 sensitivity of one clipped unit.

        Args:
            noises: number of clients whose noise is in the sum.
        """
        if self.clipping_norm == inf:
            return 0.0
        draws = noises * (self.batch if self.noise_per == "example" else 1)
        return self.noise_multiplier * sqrt(draws) / sqrt(self.groups * self.noise_divisor)

    @property
    def amplified(self) -> bool:
        """True if sampling amplifies privacy: independent coins that the adversary does not see.

        It does not if clients add their own noise: a client that is not drawn adds none, so the noise reveals the draw.
        Nor where noisy sums hold several rounds, for which no such count is here.
        """
        return self.poisson and self.sampling_rate < 1 and not self.is_distributed and self.bands == 1

    def vectors(self, unit: Unit, examples: int) -> int:
        """Return how many clipped vectors of one unit are in a sum of its client.

        A part of a client can exchange a whole clipped update for another, which counts as two.

        Args:
            unit: the unit.
            examples: largest number of a patient's examples, or number of the client's, >= 1.
        """
        if self.clipped == "client":
            return 1 if unit == "client" else 2
        return 1 if unit == "example" else examples

    def phase(self, copies: int = 1, amplified: bool = True, others: Others = NO_OTHERS) -> GaussianEvent:
        r"""Return the phase for a unit that counts several times in each client that holds it.

        Let n be the copies of a unit in one sum. Together they change it by at most n times the sensitivity.

        Replication: if each of r clients adds its own noise, the adversary gets r sums with r independent noises, and
        each contains the unit: r runs of the mechanism, composed, i.e. r times the steps at the same multiplier (for
        q = 1 that is z / sqrt(r); group privacy, z / r, would count the r noises as one). If the server adds the noise
        once, to the sum over the clients, all copies are in one sum: n is r times as large, and the steps are not.

        Sums: an adversary that sees sums of S or more noisy updates meets k of the r copies in a sum with the noise of
        m >= S clients, k <= min(r, m + c) with c colluding ones, and each client is in p sums at most. Such a sum
        counts by k^2 / m in the sum of squared shifts, so all of them by r (r p) / S at most, as k^2 <= r k: p steps
        with n = r and the noise of S. It is also k (m + c) / m at most, so all of them by r p (S + c) / S: r runs, with
        S / (S + c) of one client's variance. The smaller of both is taken.

        Sampling: of n copies, each with its own coin, at least one is drawn with probability q' = 1 - (1 - q)^n, and at
        most n are drawn. (z / n, q') bounds that: the hockey-stick divergence is jointly convex, a shift by k <= n is a
        shift by n followed by scaling and more noise, and such bounds on single steps compose (Zhu, Dong and Wang,
        AISTATS 2022). For small n q it is loose; group privacy may then be the better bound.

        Without sampling: with p participations (all steps, where coins hide who is drawn how often), the copies take
        part in at most copies p places, with at most m = min(copies, B) of them in one batch of fixed size B. Gaussian
        steps compose by the sum of their squared shifts, which is largest if the places are in the same steps:
        ceil(copies p / m) steps with m copies each.
        With bands the shifts of one client's rounds are at right angles to each other, so the same sum holds; those of
        r clients add up to r times that at most.

        A uniform choice among the steps of a pass amplifies for a single copy. Several copies get no credit: of n in a
        batch, which has no fixed size, the shifts add up to n at most.

        Args:
            copies: number of clipped vectors of the unit in one client, >= 1: the examples of a patient.
            amplified: False: give no credit for sampling even if the property `amplified` is True.
            others: r, S and c.

        Raises:
            InputError: fewer copies, or sums of noise that is not each client's own on its whole update.
        """
        require(copies >= 1, "copies >= 1", copies=copies)
        summed = others.min_summed_updates + others.colluding
        single = f"min_summed_updates=1 {_NOT_DISTRIBUTED}"
        require(self.is_distributed or summed == 1, single, min_summed_updates=summed)
        at_once = self.noised_by == "server" or others.adds_up
        copied, runs = (others.max_copies, 1) if at_once else (1, others.max_copies)
        multiplier = self.multiplier(others.min_summed_updates) / (1 if at_once else sqrt(summed))
        if self.amplified and amplified:
            n = copies * copied
            rate = self.sampling_rate if n == 1 else -expm1(n * log1p(-self.sampling_rate))
            return GaussianEvent(multiplier / n, rate, self.steps * runs)
        fixed = self.batch if self.clipped == "example" and not self.poisson and not self.bins else 0
        maximum = min(copies, fixed) if fixed else copies
        taken = self.steps if self.max_participations is None or self.amplified else self.max_participations
        together = min(self.steps, ceil(copies * taken / maximum))
        chosen = self.bins if amplified and copies * copied == 1 else 0
        return GaussianEvent(multiplier / (maximum * copied), 1.0, together * runs, max(1, chosen))


class SeenMechanism(NamedTuple):
    """Mechanism of one client as an adversary sees it: with what it meets of other clients."""

    mechanism: Mechanism
    others: Others = NO_OTHERS

    def phase(self, copies: int = 1, amplified: bool = True) -> GaussianEvent:
        """Return the phase; see `Mechanism.phase`."""
        return self.mechanism.phase(copies, amplified, self.others)


Mechanisms: TypeAlias = Mechanism | Sequence[Mechanism | SeenMechanism]


def joined(clients: Sequence[Mechanism]) -> Mechanism:
    """Return a mechanism that reveals at least as much as that of each client: the rate of one, the steps of another.

    It bounds what several clients tell of a unit that all of them hold. Each of its Gaussian steps is at least as
    telling as the client's, and so are all together, as such bounds on single steps compose.

    Args:
        clients: mechanisms that are alike in all else, such as the noise.

    >>> each = [Mechanism(1.0, 3, sampling_rate=0.5, poisson=True), Mechanism(1.0, 9, sampling_rate=0.1, poisson=True)]
    >>> joined(each) == Mechanism(1.0, 9, sampling_rate=0.5, poisson=True)
    True
    """
    first = clients[0]
    taken = [one.steps if one.max_participations is None else one.max_participations for one in clients]
    (full,) = {
        replace(
            one,
            steps=max(one.steps for one in clients),
            # Of noise for each example a larger batch has more of it.
            batch=max(one.batch for one in clients) if first.noise_per == "batch" else one.batch,
            sampling_rate=max(one.sampling_rate for one in clients),
            max_participations=None if first.max_participations is None else max(taken),
            bins=min(one.bins for one in clients),
        )
        for one in clients
    }
    return full


def gaussian_events(mechanisms: Mechanisms, copies: int = 1, amplified: bool = True) -> tuple[GaussianEvent, ...]:
    """Return the phases of one mechanism or of a sequence of mechanisms, see `Mechanism.phase`."""
    sequence = (mechanisms,) if isinstance(mechanisms, Mechanism) else tuple(mechanisms)
    require(len(sequence) > 0, "at least one mechanism", mechanisms=len(sequence))
    return tuple(mechanism.phase(copies, amplified) for mechanism in sequence)
