"""Settings of the audit: the audited rounds, the attackers and their time limits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from flfw.bounds import NonNegativeFinite, NonNegativeInt, PositiveFinite, ValueRange
from flfw.errors import require
from flfw.experiment.curves import Point, groups, points
from flfw.experiment.fields import MOST, Count, FlagSettings, integer

AGGREGATE = "aggregate"
"""Position at the server behind secure aggregation, which sees sums over groups of clients."""
PEER = "peer"
"""Position at a client, which sees the models that it is sent and its own messages."""
OUTSIDER = "outsider"
"""Position of one who sees the finished model alone."""
VANTAGES = ("server", "client_update", "client_example", AGGREGATE, PEER, OUTSIDER)
"""Positions of an adversary: at the server, at a client's update, at the gradient of one example on a client, at the
server behind secure aggregation, at another client, or outside."""

SearchPrecision: TypeAlias = Literal["float32", "tf32", "bf16", "float32_compiled", "tf32_compiled", "bf16_compiled"]
"""Precisions of a search, and whether it is compiled."""
FEWEST_PAIRS = 2
"""Smallest number of pairs of a client in the membership game."""


@dataclass(frozen=True)
class ProbeSettings(FlagSettings):
    """Settings of what is attacked: the audited rounds, the probes in them, and where attackers stand."""

    audit_rounds: str = "0,last"
    """Rounds after which clients are probed; 0 is before training."""
    audit_source: Literal["probe", "update", "both"] = "probe"
    """What is attacked: probes, which are made for the audit, updates that clients upload in the audited rounds (after
    0), or both."""
    victim_batch: Count = 1
    """Examples in a probe."""
    victim_steps: Count = 1
    """Local steps in a probe; one is sent as its gradient, several as the weights after them."""
    images: Count = 8
    """Probes in each audited round, over as many clients as there are."""
    membership_pairs: str = "auto"
    """Pairs of a client's examples, alike in class, of which one is trained on and the other by nobody, to be told
    apart by attacks on membership: a number, all or none. auto: at most 300 a client with such an attack, else none."""
    curve: tuple[str, ...] = ()
    """Probes of other sizes besides, for curves: batch=1,4,16 or steps=1,5,20, or size=1x1,4x1,4x5 of both;
    sum_size=1,2,5,10 sums over so many clients (vantage aggregate)."""
    sum_size: NonNegativeInt = 0
    """Clients whose messages are summed (vantages aggregate and peer); 0: all that
    are probed and take part in a round. >= 0."""
    vantage: tuple[str, ...] = ("server",)
    """Where attackers stand: server, client_update (as sent), client_example (one gradient in local training),
    aggregate (the server behind secure aggregation, which sees sums over a group of clients), peer (another client,
    which takes its own part off such a sum), outsider (sees the finished model)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        words, pairs = ("auto", "none", "all"), self.membership_pairs
        counted = pairs.isdecimal() and FEWEST_PAIRS <= int(pairs) <= MOST
        required = f"membership-pairs auto, none, all or {FEWEST_PAIRS} to {MOST}"
        require(pairs in words or counted, required, membership_pairs=pairs)
        fits = bool(self.vantage) and set(self.vantage) <= set(VANTAGES) and len(set(self.vantage)) == len(self.vantage)
        require(fits, f"vantage among {', '.join(VANTAGES)}, each once", vantage=" ".join(self.vantage))
        _ = self.points
        requested = ["sum-size"] * bool(self.sum_size) + [word for word in self.curve if groups([word])]
        summing = bool({AGGREGATE, PEER} & set(self.vantage))
        require(summing or not requested, f"--vantage {AGGREGATE} or {PEER} with sum-size", given=" ".join(requested))
        for vantage in (v for v in (AGGREGATE, PEER, OUTSIDER) if v in self.vantage):
            only = f"audit-source=probe with --vantage {vantage}"
            require(self.audit_source == "probe", only, audit_source=self.audit_source)

    @property
    def points(self) -> tuple[Point, ...]:
        """Kinds of probe in an audited round: the target first, then the other points of the curves."""
        return points(self.curve, self.victim_batch, self.victim_steps)

    def rounds_audited(self, rounds: int, last: int) -> tuple[int, ...]:
        """Return the audited rounds, ascending, of a run that ended after round ``last`` of at most ``rounds``.

        Raises:
            InputError: a round is no whole number, or beyond ``rounds``.
        """
        numbers = {last if word == "last" else integer(word, "audit-rounds") for word in self.audit_rounds.split(",")}
        fits = all(number <= rounds for number in numbers)
        require(fits, f"0 <= audit-rounds <= rounds={rounds}", audit_rounds=self.audit_rounds)
        return tuple(number for number in sorted(numbers) if number <= last)

    def sum_sizes(self, per_round: int) -> tuple[int, ...]:
        """Return the numbers of clients in a sum, at `AGGREGATE` and `PEER`: the target's, then those of the curve.

        Args:
            per_round: clients that take part in a round.
        """
        return tuple(dict.fromkeys((self.sum_size or min(self.images, per_round), *groups(self.curve))))


@dataclass(frozen=True)
class AttackSettings(FlagSettings):
    """Settings of the attacks, their process and their resources."""

    attack: tuple[str, ...] = ("ig", "auto")
    """Attacks of the audit (files of attacks/, or package.module:Class), or none. auto: the attack that bears the
    method's name, if there is one."""
    adaptation: Literal["auto", "defence_code", "none"] = "auto"
    """Beside an attacker who does not know of a defence, one who does: with what is written for the defence, else with
    its own code in the objective; defence_code: always with its own code; none: without."""
    attack_gpus: NonNegativeFinite = 0
    """Fraction of a GPU that clients leave free for the attacks (ray, flwr-sim)."""
    attack_process: Literal["auto", "concurrent", "after", "inline"] = "auto"
    """Attacks run in a process of their own, concurrent with training or after it, or inline, in this one; auto:
    concurrent, but inline with --engine inproc."""
    attack_timeout: PositiveFinite = 3600.0
    """Seconds that a try of an attack may take on one kind of probe of one round; then it is ended, unless inline. In
    s, > 0."""
    attack_precision: SearchPrecision = "float32"
    """Precision of the networks in searches: tf32 (with --attack-gpus) and bf16 are faster for large ones, and their
    results are less close. Compiled, searches take up to a minute at the start, then faster steps; a C++ compiler is
    needed."""
    lpips_weights: Path | None = None
    """AlexNet's weights for LPIPS: torchvision's file, or its features as safetensors; without them LPIPS is null."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(set(self.attacks)) == len(self.attacks), "each attack once", attack=" ".join(self.attacks))

    @property
    def attacks(self) -> tuple[str, ...]:
        """Attacks to run; empty when there is no audit."""
        return () if self.attack in (("none",), ()) else self.attack

    @property
    def attack_compile(self) -> bool:
        """Whether searches are compiled."""
        return self.attack_precision.endswith("_compiled")


@dataclass(frozen=True)
class RecordingSettings(FlagSettings):
    """Settings of the recordings, and of what the report shows of them."""

    show_samples: Literal["auto", "yes", "no"] = "auto"
    """Whether the report shows clients' samples; auto: not those of a user's own data (csv:, folder:, hf:,
    parquet:, text:)."""
    keep_recorded_rounds: Annotated[int, ValueRange(ge=-1)] = -1
    """After the audit, keep the recordings of the last so many recorded rounds (0 has the controls); -1: of all. >=
    -1."""


@dataclass(frozen=True)
class AuditSettings(RecordingSettings, AttackSettings, ProbeSettings):
    """Settings of the attacks, their probes and the recordings: what the help has in one section."""
