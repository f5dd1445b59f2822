"""Form of an audit's entry in result.json; further fields are kept as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from flfw.formats.typed import NodeId

JsonNumber: TypeAlias = float | Literal["inf", "-inf"] | None
"""Number of a result; JSON has no infinity, so it is written in letters."""


class ScoreFigures(TypedDict, total=False):
    """Mean of a score with its interval, and the score that leaks most."""

    mean: JsonNumber
    low: JsonNumber
    high: JsonNumber
    max: JsonNumber
    min: JsonNumber


class RungFigures(TypedDict):
    """Rung below a target."""

    rung: str
    passed: bool | None
    psnr: NotRequired[JsonNumber]
    seconds: NotRequired[JsonNumber]
    stopped: NotRequired[str | None]
    reason: NotRequired[str | None]


class ColumnFigures(TypedDict):
    """Feature of records."""

    p: float
    floor: float
    share: float
    name: NotRequired[str]


class WorstFigures(TypedDict, total=False):
    """Image with the attacker's best result."""

    client: NodeId | None
    victim: int | None
    image: int | None
    psnr: JsonNumber
    rmsd: JsonNumber


class ExactFigures(TypedDict, total=False):
    """Shares of records that were recovered exactly."""

    features: JsonNumber
    rows: JsonNumber
    floor: JsonNumber
    cells: JsonNumber
    floor_cells: JsonNumber
    agreed: JsonNumber
    agreed_exact: JsonNumber


class RougeFigures(TypedDict, total=False):
    """Words, and pairs of words, of texts that were recovered, and those that a random public text shares with them."""

    rouge_1: JsonNumber
    rouge_2: JsonNumber
    floor_rouge_1: JsonNumber
    floor_rouge_2: JsonNumber


class DistanceFigures(TypedDict, total=False):
    """Distance of an attack's results, and its iterations."""

    rmsd: JsonNumber
    success: JsonNumber
    iterations: JsonNumber


class CandidateFigures(TypedDict, total=False):
    """Candidates held against messages."""

    first: int | None
    messages: int | None
    null: JsonNumber
    p: JsonNumber


class ObjectiveFigures(TypedDict, total=False):
    """Objective of a search at the truth, at its results and at random."""

    truth: JsonNumber
    found: JsonNumber
    random: JsonNumber
    short: int | None
    total: int | None


class PresenceFigures(TypedDict, total=False):
    """Inferred classes of clients."""

    clients: int
    right: float
    null: float


class ComparedFigures(TypedDict):
    """Estimates of clients' classes beside guesses without a message."""

    mean: JsonNumber
    low: JsonNumber
    high: JsonNumber
    floors: dict[str, JsonNumber]
    floor: str
    gain: JsonNumber
    gain_low: JsonNumber
    gain_high: JsonNumber
    better: int
    worse: int
    p: float
    true_rate: NotRequired[JsonNumber]
    true_interval: NotRequired[tuple[float, float] | None]
    false_rate: NotRequired[JsonNumber]
    false_interval: NotRequired[tuple[float, float] | None]


class InferenceFields(TypedDict):
    """Inference of the classes in clients' data."""

    attack: str
    vantage: str
    defence: str
    rounds: list[int]
    clients: int
    classes: int
    shares: ComparedFigures | None
    presence: ComparedFigures | None
    tests: int
    verdict: str
    cause: str
    reason: str
    alike: NotRequired[bool]
    worst: NotRequired[dict[str, JsonNumber] | None]
    hidden_by: NotRequired[str | None]
    stopped: NotRequired[str | None]


class AssignmentFigures(TypedDict, total=False):
    """Assignment of reconstructions to examples."""

    rule: str
    null: JsonNumber


class EntryFields(TypedDict):
    """Attack on a target."""

    attack: str
    round: int
    failures: int
    adaptive: NotRequired[bool | None]
    adaptation: NotRequired[str | None]
    vantage: NotRequired[str | None]
    source: NotRequired[str | None]
    client: NotRequired[NodeId | None]
    defence: NotRequired[str | None]
    hidden_by: NotRequired[str | None]
    granted: NotRequired[list[str] | None]
    batch: NotRequired[int | None]
    steps: NotRequired[int | None]
    curve: NotRequired[str | None]
    group: NotRequired[int | None]
    colluding: NotRequired[int | None]
    group_needed: NotRequired[int | None]
    mode: NotRequired[str | None]
    iterations: NotRequired[int | None]
    restarts: NotRequired[int | None]
    selection: NotRequired[str | None]
    seeds: NotRequired[list[int] | None]
    images: NotRequired[int | None]
    messages: NotRequired[int | None]
    psnr: NotRequired[ScoreFigures | None]
    ssim: NotRequired[ScoreFigures | None]
    lpips: NotRequired[ScoreFigures | None]
    feature_error: NotRequired[ScoreFigures | None]
    ceiling: NotRequired[JsonNumber]
    reduced: NotRequired[dict[str, JsonNumber] | None]
    gain: NotRequired[ScoreFigures | None]
    knowing_gains: NotRequired[ScoreFigures | None]
    exact_match: NotRequired[ExactFigures | None]
    rouge: NotRequired[RougeFigures | None]
    identification_rate: NotRequired[JsonNumber]
    identification_null: NotRequired[JsonNumber]
    identification_p: NotRequired[JsonNumber]
    candidates: NotRequired[CandidateFigures | None]
    distance: NotRequired[DistanceFigures | None]
    columns: NotRequired[list[ColumnFigures] | None]
    labels_found: NotRequired[JsonNumber]
    label_presence: NotRequired[PresenceFigures | None]
    share_recovered: NotRequired[JsonNumber]
    share_interval: NotRequired[tuple[float, float] | None]
    share_expected: NotRequired[JsonNumber]
    tampered_by: NotRequired[str | None]
    worst: NotRequired[WorstFigures | None]
    assignment: NotRequired[AssignmentFigures | None]
    floors: NotRequired[dict[str, JsonNumber] | None]
    ladder: NotRequired[list[RungFigures] | None]
    objective: NotRequired[ObjectiveFigures | None]
    verdict: NotRequired[str | None]
    cause: NotRequired[str | None]
    reason: NotRequired[str | None]
    reach: NotRequired[str | None]
    tries: NotRequired[int | None]
    stopped: NotRequired[str | None]
    seconds: NotRequired[JsonNumber]
    scoring_seconds: NotRequired[JsonNumber]


class RightFigures(TypedDict, total=False):
    """Guesses on pairs, of which the higher score is the member's."""

    guesses: int
    right: int
    low: JsonNumber
    high: JsonNumber
    p: JsonNumber
    passed: bool | None


class AreaFigures(TypedDict, total=False):
    """Area under the curve within clients."""

    auc: JsonNumber
    auc_low: JsonNumber
    auc_high: JsonNumber
    passed: bool | None


class WorstClientFigures(TypedDict):
    """Client with the most evidence."""

    client: NodeId
    pairs: int
    right: RightFigures
    auc: NotRequired[JsonNumber]
    auc_low: NotRequired[JsonNumber]
    auc_high: NotRequired[JsonNumber]


class MembershipControlFigures(TypedDict, total=False):
    """Results of a statistic where the answer is known."""

    easy: AreaFigures
    null: RightFigures
    one_step: AreaFigures


class MembershipFields(TypedDict):
    """Statistic of membership over the pairs of all clients."""

    attack: str
    statistic: str
    vantage: str
    defence: str
    adaptive: bool
    rounds: list[int]
    clients: int
    pairs: int
    verdict: str
    why: str
    cause: NotRequired[str | None]
    adaptation: NotRequired[str | None]
    hidden_by: NotRequired[str | None]
    unit: NotRequired[str]
    group: NotRequired[int | None]
    hidden_among: NotRequired[int | None]
    colluding: NotRequired[int | None]
    group_needed: NotRequired[int | None]
    failed: NotRequired[int | None]
    unlike: NotRequired[int | None]
    tests: NotRequired[int | None]
    auc: JsonNumber
    auc_low: JsonNumber
    auc_high: JsonNumber
    right: NotRequired[RightFigures | None]
    fpr: JsonNumber
    fpr_high: NotRequired[JsonNumber]
    tpr: JsonNumber
    tpr_low: JsonNumber
    tpr_high: JsonNumber
    epsilon_low: JsonNumber
    delta: NotRequired[JsonNumber]
    claimed_epsilon: JsonNumber
    accuracy_gap: JsonNumber
    floor: dict[str, AreaFigures]
    worst_client: NotRequired[WorstClientFigures | None]
    controls: NotRequired[MembershipControlFigures | None]


def breakdowns(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each attack that broke; an attack that does not apply to a network did not break."""
    broke = [(f"at round {e['round']}", e["attack"], e["stopped"]) for e in entries]
    broke += [("on the easy case", e["attack"], e["ladder"][1]["stopped"]) for e in entries]
    reported = [(where, attack, why) for where, attack, why in broke if why and not why.startswith("not applicable")]
    lines = (f"The attack {attack} gave nothing {where}: {why.rstrip('.')}." for where, attack, why in reported)
    return list(dict.fromkeys(lines))
