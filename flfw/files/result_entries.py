"""Models of the parts of result.json: they check what is written and read, and give the tables of pandas their columns.

Further fields are kept as they are.
"""

from abc import ABC
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from annotated_types import Ge, Gt, Len, Lt
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasGenerator,
    BaseModel,
    ConfigDict,
    PlainValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from flfw.files import outcomes
from flfw.files.earlier_names import renames
from flfw.files.outcomes import CLASSES, MEMBER, MESSAGE, RECONSTRUCTED, Evidence, VerdictWord

Int: TypeAlias = Annotated[int, Gt(-(2**63)), Lt(2**63)]
NodeId: TypeAlias = Annotated[int, Ge(0), Lt(2**64)]
"""Number of a Flower node: it has 64 bits and no sign."""


def _check_number(value: Any) -> Any:
    is_finite = type(value) is float and isfinite(value)
    if is_finite or (type(value) is int and abs(value) < 2**63) or value is None or value in ("inf", "-inf"):
        return value
    raise PydanticCustomError("number", "a finite number, inf or -inf")


JsonNumber: TypeAlias = Annotated[int | float | Literal["inf", "-inf"] | None, PlainValidator(_check_number)]
"""Number of a result, or None; JSON has no infinity, so it is written in letters."""

ControlName: TypeAlias = Annotated[str, AfterValidator(lambda name: renames().controls.get(name, name))]
CauseName: TypeAlias = Annotated[str, AfterValidator(lambda name: renames().causes.get(name, name))]
CurveName: TypeAlias = Annotated[str, AfterValidator(lambda name: renames().curves.get(name, name))]
Interval: TypeAlias = Annotated[list[JsonNumber], Len(2, 2)]


def _names_of(key: str) -> AliasChoices:
    return AliasChoices(key, *(earlier for earlier, today in renames().keys.items() if today == key))


class ResultModel(BaseModel, ABC):
    """Part of a file of results: types are exact, numbers finite, and further fields kept.

    A key is read under its earlier name as well, of `flfw.files.earlier_names`.
    """

    model_config = ConfigDict(
        alias_generator=AliasGenerator(validation_alias=_names_of),
        strict=True,
        frozen=True,
        extra="allow",
        allow_inf_nan=False,
        str_max_length=2**40,  # with a limit, half of a surrogate pair is refused: it could not be written again
    )


class ConcludedFields(ResultModel, ABC):
    """Fields of which one is a verdict: one of earlier words is read as one of today, with its evidence."""

    _found: ClassVar[str] = RECONSTRUCTED

    @model_validator(mode="before")
    @classmethod
    def _of_today(cls, fields: Any) -> Any:
        return outcomes.of_today(fields, cls._found) if isinstance(fields, Mapping) else fields


class ScoreFigures(ResultModel):
    """Mean of a score with its interval, and the score that leaks most."""

    mean: JsonNumber = None
    low: JsonNumber = None
    high: JsonNumber = None
    max: JsonNumber = None
    min: JsonNumber = None


class ControlFigures(ResultModel):
    """Control below a target."""

    rung: ControlName
    passed: bool | None
    psnr: JsonNumber = None
    seconds: JsonNumber = None
    failure_reason: str | None = None
    reason: str | None = None


class ColumnFigures(ResultModel):
    """Feature of records."""

    p: JsonNumber
    floor: JsonNumber
    share: JsonNumber
    name: str = ""


class WorstFigures(ResultModel):
    """Image with the attacker's best result."""

    client: NodeId | None = None
    probe_slot: Int | None = None
    image: Int | None = None
    psnr: JsonNumber = None
    rmsd: JsonNumber = None


class ExactFigures(ResultModel):
    """Shares of records that were recovered exactly."""

    features: JsonNumber = None
    rows: JsonNumber = None
    floor: JsonNumber = None
    cells: JsonNumber = None
    floor_cells: JsonNumber = None
    agreed: JsonNumber = None
    agreed_exact: JsonNumber = None


class RougeFigures(ResultModel):
    """Words, and pairs of words, of texts that were recovered, and those that a random public text shares with them."""

    rouge_1: JsonNumber = None
    rouge_2: JsonNumber = None
    floor_rouge_1: JsonNumber = None
    floor_rouge_2: JsonNumber = None


class DistanceFigures(ResultModel):
    """Distance of an attack's results, and its iterations."""

    rmsd: JsonNumber = None
    success: JsonNumber = None
    iterations: JsonNumber = None


class CandidateFigures(ResultModel):
    """Candidates held against messages."""

    first: Int | None = None
    messages: Int | None = None
    null: JsonNumber = None
    p: JsonNumber = None


class ObjectiveFigures(ResultModel):
    """Objective of a search at the truth, at its results and at random."""

    truth: JsonNumber = None
    found: JsonNumber = None
    random: JsonNumber = None
    unconverged: Int | None = None
    total: Int | None = None


class PresenceFigures(ResultModel):
    """Inferred classes of clients."""

    clients: Int = 0
    correct: JsonNumber = 0.0
    null: JsonNumber = 0.0


class ComparedFigures(ResultModel):
    """Estimates of clients' classes beside guesses without a message."""

    mean: JsonNumber
    low: JsonNumber
    high: JsonNumber
    floors: dict[str, JsonNumber]
    floor: str
    gain: JsonNumber
    gain_low: JsonNumber
    gain_high: JsonNumber
    better: Int
    worse: Int
    p: JsonNumber
    true_rate: JsonNumber = None
    true_interval: Interval | None = None
    false_rate: JsonNumber = None
    false_interval: Interval | None = None


class InferenceFields(ConcludedFields):
    """Inference of the classes in clients' data."""

    _found = CLASSES

    attack: str
    vantage: str
    defence: str
    rounds: list[Int]
    clients: Int
    classes: Int
    shares: ComparedFigures | None
    presence: ComparedFigures | None
    tests: Int
    verdict: VerdictWord
    evidence: Evidence | None = None
    cause: str
    reason: str
    alike: bool = False
    worst: dict[str, JsonNumber] | None = None
    protected_by: str | None = None
    failure_reason: str | None = None


class AssignmentFigures(ResultModel):
    """Assignment of reconstructions to examples."""

    rule: str = ""
    null: JsonNumber = None


class EntryFields(ConcludedFields):
    """Attack on a target."""

    attack: str
    round: Int
    failures: Int
    adaptive: bool | None = None
    adaptation: str | None = None
    vantage: str | None = None
    source: str | None = None
    client: NodeId | None = None
    defence: str | None = None
    protected_by: str | None = None
    granted: list[str] | None = None
    batch: Int | None = None
    steps: Int | None = None
    curve: CurveName | None = None
    sum_size: Int | None = None
    num_colluding: Int | None = None
    min_safe_sum_size: Int | None = None
    mode: str | None = None
    iterations: Int | None = None
    restarts: Int | None = None
    selection: str | None = None
    seeds: list[Int] | None = None
    images: Int | None = None
    messages: Int | None = None
    psnr: ScoreFigures | None = None
    ssim: ScoreFigures | None = None
    lpips: ScoreFigures | None = None
    feature_error: ScoreFigures | None = None
    ceiling: JsonNumber = None
    native_resolution: dict[str, JsonNumber] | None = None
    gain: ScoreFigures | None = None
    adaptive_gain: ScoreFigures | None = None
    exact_match: ExactFigures | None = None
    rouge: RougeFigures | None = None
    identification_rate: JsonNumber = None
    identification_null: JsonNumber = None
    identification_p: JsonNumber = None
    candidate_test: CandidateFigures | None = None
    distance: DistanceFigures | None = None
    columns: list[ColumnFigures] | None = None
    label_accuracy: JsonNumber = None
    label_presence: PresenceFigures | None = None
    share_recovered: JsonNumber = None
    share_interval: Interval | None = None
    share_expected: JsonNumber = None
    malicious_server: str | None = None
    worst: WorstFigures | None = None
    assignment: AssignmentFigures | None = None
    floors: dict[str, JsonNumber] | None = None
    ladder: list[ControlFigures] | None = None
    objective: ObjectiveFigures | None = None
    verdict: VerdictWord | None = None
    evidence: Evidence | None = None
    cause: CauseName | None = None
    reason: str | None = None
    search_limit: str | None = None
    attempts: Int | None = None
    failure_reason: str | None = None
    seconds: JsonNumber = None
    scoring_seconds: JsonNumber = None


class RightFigures(ResultModel):
    """Guesses on pairs, of which the higher score is the member's."""

    guesses: Int = 0
    correct: Int = 0
    low: JsonNumber = None
    high: JsonNumber = None
    p: JsonNumber = None
    passed: bool | None = None


class AreaFigures(ResultModel):
    """Area under the curve within clients."""

    auc: JsonNumber = None
    auc_low: JsonNumber = None
    auc_high: JsonNumber = None
    passed: bool | None = None


class WorstClientFigures(ResultModel):
    """Client with the most evidence."""

    client: NodeId
    pairs: Int
    correct: RightFigures
    auc: JsonNumber = None
    auc_low: JsonNumber = None
    auc_high: JsonNumber = None


class MembershipControlFigures(ResultModel):
    """Results of a statistic where the answer is known."""

    easy: AreaFigures = AreaFigures()
    null: RightFigures = RightFigures()
    one_step: AreaFigures = AreaFigures()


class MembershipFields(ConcludedFields):
    """Statistic of membership over the pairs of all clients."""

    _found = MEMBER

    attack: str
    statistic: str
    vantage: str
    defence: str
    adaptive: bool
    rounds: list[Int]
    clients: Int
    pairs: Int
    verdict: VerdictWord
    evidence: Evidence | None = None
    reason: str
    cause: str | None = None
    adaptation: str | None = None
    protected_by: str | None = None
    unit: str = ""
    sum_size: Int | None = None
    anonymity_set_size: Int | None = None
    num_colluding: Int | None = None
    min_safe_sum_size: Int | None = None
    failed: Int | None = None
    label_separable: Int | None = None
    tests: Int | None = None
    auc: JsonNumber
    auc_low: JsonNumber
    auc_high: JsonNumber
    correct: RightFigures | None = None
    fpr: JsonNumber
    fpr_high: JsonNumber = None
    tpr: JsonNumber
    tpr_low: JsonNumber
    tpr_high: JsonNumber
    epsilon_low: JsonNumber
    delta: JsonNumber = None
    claimed_epsilon: JsonNumber
    accuracy_gap: JsonNumber
    floor: dict[str, AreaFigures]
    worst_client: WorstClientFigures | None = None
    controls: MembershipControlFigures | None = None


class CoordinateFigures(ResultModel, ABC):
    """Shares of coordinates."""

    coordinates: Int
    share: JsonNumber
    independent: JsonNumber
    untouched: JsonNumber


class LayerFigures(CoordinateFigures):
    """Shares of a layer's coordinates."""

    layer: str


class ExposureFigures(CoordinateFigures):
    """Shares of all coordinates of a round."""

    layers: list[LayerFigures]


class HeadFigures(ResultModel):
    """Span of a summed head's changes, beside the clients' own directions."""

    head: str
    clients: Int
    width: Int
    rank: Int
    largest_angle: JsonNumber
    angle_by_chance: JsonNumber
    recovered: bool


class BroadcastFigures(ResultModel):
    """Contents that the clients of a round received."""

    contents: Int
    differ: list[Int]


class SumRound(ResultModel):
    """Round with recorded uploads."""

    round: Int
    clients: Int
    exposed: ExposureFigures | None
    heads: HeadFigures | None
    broadcast: BroadcastFigures


class NoiseFigures(ResultModel):
    """Noise of a client's separated update."""

    client: Int
    factor: JsonNumber


class IsolationFigures(ResultModel):
    """Pair of rounds whose groups differ in one client; ``absent`` is 0 where this client was alone."""

    client: Int
    present: Int
    absent: Int


class ParticipationFigures(ResultModel):
    """Separability of the clients by their participation."""

    rounds: Int
    clients: Int
    smallest_group: Int
    rank: Int | None
    smallest_singular: JsonNumber
    separable: Int | None
    noise: list[NoiseFigures] | None
    isolated: Int
    isolating: list[IsolationFigures]
    recorded_only: bool


class CheckFigures(ResultModel):
    """Comparison of a subtracted update with the recorded one."""

    round: Int
    client: Int
    largest_difference: JsonNumber
    largest_change: JsonNumber


class PeerFigures(ConcludedFields):
    """Other clients as observers."""

    _found = MESSAGE

    smallest: Int
    round: Int
    left: Int
    verdict: VerdictWord
    evidence: Evidence | None = None
    reason: str
    check: CheckFigures | None


class SumFields(ResultModel):
    """Sums over the clients of a run."""

    rounds: list[SumRound]
    same_for_all: bool
    participation: ParticipationFigures
    peer: PeerFigures


def breakdowns(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each attack that broke; an attack that does not apply to a network did not break."""
    broke = [(f"at round {e['round']}", e["attack"], e["failure_reason"]) for e in entries]
    broke += [("on the easy case", e["attack"], e["ladder"][1]["failure_reason"]) for e in entries]
    reported = [(where, attack, why) for where, attack, why in broke if why and not why.startswith("not applicable")]
    lines = (f"The attack {attack} gave nothing {where}: {why.rstrip('.')}." for where, attack, why in reported)
    return list(dict.fromkeys(lines))
