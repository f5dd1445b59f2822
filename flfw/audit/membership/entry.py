"""Item of membership in result.json: a statistic over the pairs of all clients, summed up and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from flfw.adversary.membership.operating_points import Area, area
from flfw.audit.membership.evidence import (
    ClientGuesses,
    MembershipEvidence,
    PairGuesses,
    ScoredClient,
    comparable,
    pair_guesses,
    weigh,
)
from flfw.audit.membership.verdict import (
    EASY_PAIRS,
    NULL_LEVEL,
    NULL_PAIRS,
    MembershipFacts,
    finds_members,
    finds_none,
    verdict_on_membership,
)
from flfw.files.verdicts import concluded
from flfw.rng import numpy_generator

LABELS = "label_only"
"""Name of the floor that knows nothing but labels: what it tells apart is no leak."""

_ADVERSARIES = {"server": "server", "aggregate": "aggregate", "peer": "another client", "outsider": "outsider"}


@final
@dataclass(frozen=True)
class MembershipControls:
    """Scores of the same statistic where the answer is known.

    Attributes:
        easy: pairs of an overfitted client, which must be told apart; None: it was not tried.
        null: pairs of examples that are both held out, of which a coin calls one a member; None: it was not tried.
        one_step: pairs of clients that take a single step on one member; None: it was not tried.
    """

    easy: Sequence[ScoredClient] | None = None
    null: Sequence[ScoredClient] | None = None
    one_step: Sequence[ScoredClient] | None = None


class SumSeen(NamedTuple):
    """Sums that an adversary sees.

    Attributes:
        group: number of clients in a sum that is made for the audit; 0: none is.
        hidden: number of clients in a sum that the adversary cannot take apart; 0: it sees no sum.
        colluding: number of clients that the adversary is.
    """

    group: int = 0
    hidden: int = 0
    colluding: int = 0


def entry(
    statistic: str,
    scored: Sequence[ScoredClient],
    *,
    rounds: Sequence[int],
    defence: str = "none",
    vantage: str = "server",
    sums: SumSeen | None = None,
    adaptive: bool = False,
    adaptation: str | None = None,
    missed: str = "",
    unread: str = "",
    floors: Mapping[str, Sequence[ScoredClient]],
    claim: tuple[float, float] | None = None,
    controls: MembershipControls | None = None,
    tests: int = 1,
    protected_by: str | None = None,
    accuracy_gap: float | None = None,
    attack: str = "membership",
    unit: str = "example",
    seed: int = 0,
) -> dict[str, Any]:
    """Return a statistic's item of ``membership`` in result.json.

    Args:
        statistic: name of the statistic.
        scored: its scores of the pairs, for each client.
        rounds: the rounds that it read.
        defence: defence of the clients; ``none``.
        vantage: what the adversary sees.
        sums: the sums that the adversary sees; None: it sees none.
        adaptive: whether the statistic takes account of all that stands between the data and what is seen.
        adaptation: how it adapts to what hides the data: ``written`` for it; None: it is not told of it.
        missed: what its model of that leaves out, in words; empty: nothing.
        unread: running statistics that clients send and it does not read, in words; empty: none.
        floors: scores of the same pairs by ``label_only`` and ``loss_only``.
        claim: epsilon and delta that are claimed for one example against this adversary, see `claim_against`.
        controls: the same statistic where the answer is known.
        tests: number of statistics, vantages and sets of rounds that the run tries.
        protected_by: what hides the data, if it is not the defence: an operation of the method.
        accuracy_gap: accuracy on training data less that on held-out data.
        attack: name of the attack.
        unit: whose membership the pairs are about: ``example``, or ``patient`` with all of its examples.
        seed: of the draws of the bootstrap.

    Raises:
        InputError: no client, a client twice, or a floor of other clients or pairs.
    """
    controls, labels = controls or MembershipControls(), floors.get(LABELS)
    kept, failed, unlike = comparable(scored, labels)
    evidence = weigh(kept, tests, claim[1] if claim else 0.0)
    easy, single = _easy(controls.easy, seed, "easy"), _easy(controls.one_step, seed, "one step")
    null = _null(controls.null, 1 - NULL_LEVEL / tests)
    counted = {"failed": failed, "label_separable": None if labels is None else unlike}
    areas = {"easy_auc": None if easy is None else easy.auc, "step_auc": None if single is None else single.auc}
    behind = protected_by or ("" if defence == "none" else defence)
    seen = {"missed": missed, "unread": unread, "summed": sums.hidden if sums else 0, "protected_by": behind}
    claimed = claim and claim[0]
    facts = MembershipFacts(**areas, **counted, **seen, null=null, adaptive=adaptive, claimed=claimed, unit=unit)
    requested = {"attack": attack, "statistic": statistic, "vantage": vantage, "defence": defence}
    return {
        **requested | _as_sums(sums) | {"adaptive": adaptive, "adaptation": adaptation, "protected_by": protected_by},
        **{"unit": unit, "rounds": list(rounds)} | _as_sizes(scored) | counted | {"tests": tests},
        **_as_figures(_area(kept, seed, statistic)) | _as_evidence(evidence),
        **_as_claim(claim) | {"accuracy_gap": accuracy_gap},
        "floor": {name: _as_figures(_area(_finite(rows), seed, name)) for name, rows in floors.items()},
        "worst_client": _as_client(evidence.worst, kept, seed),
        "controls": _as_controls(easy, single, null),
        **concluded(*verdict_on_membership(evidence, facts)),
    }


def claim_against(
    privacy: Sequence[Mapping[str, Any]], vantage: str, unit: str = "example"
) -> tuple[float, float] | None:
    """Return the smallest epsilon that a run claims against a vantage, with its delta; None: there is no claim.

    A claim for a patient or a client covers one example as well, and one for an example covers no patient. A client's
    own machine is claimed nothing against.

    Args:
        privacy: ``privacy`` of result.json.
        vantage: what the adversary sees.
        unit: ``example`` or ``patient``.
    """
    against = [
        (float(line["epsilon"]), float(line["delta"]))
        for line in privacy
        if line["adversary"] == _ADVERSARIES.get(vantage)
        and line["accounting"] != "as published"
        and (unit == "example" or line["unit"] in (unit, "client"))
    ]
    return min((claim for claim in against if np.isfinite(claim[0])), default=None)


def _easy(scored: Sequence[ScoredClient] | None, seed: int, name: str) -> Area | None:
    """Return the area where members must be found; None: too few of the pairs have scores."""
    kept = _finite(scored) if scored else []
    return _area(kept, seed, name) if sum(len(one.members) for one in kept) >= EASY_PAIRS else None


def _null(scored: Sequence[ScoredClient] | None, confidence: float) -> PairGuesses | None:
    """Return the guesses of the null control; None: too few for it to fail."""
    guessed = pair_guesses(_finite(scored), confidence) if scored else None
    return guessed if guessed and guessed.guesses >= NULL_PAIRS else None


def _finite(scored: Sequence[ScoredClient]) -> list[ScoredClient]:
    return comparable(scored, None).clients


def _area(scored: Sequence[ScoredClient], seed: int, name: str) -> Area | None:
    """Return the area within clients with its bootstrap interval, which says how clients differ."""
    if not scored:
        return None
    counts = [2 * len(one.members) for one in scored]
    return area(
        np.concatenate([part for one in scored for part in (one.members, one.held_out)]),
        np.concatenate([np.arange(count) < count // 2 for count in counts]),
        np.repeat([one.client for one in scored], counts),
        numpy_generator(seed, f"bootstrap of membership: {name}"),
    )


def _as_figures(result: Area | None) -> dict[str, float | None]:
    if result is None:
        return {"auc": None, "auc_low": None, "auc_high": None}
    return {"auc": result.auc, "auc_low": result.low, "auc_high": result.high}


def _as_right(guessed: PairGuesses | None) -> dict[str, Any]:
    if guessed is None:
        return {"guesses": 0, "correct": 0, "low": None, "high": None, "p": None}
    return guessed._asdict()


def _as_evidence(evidence: MembershipEvidence) -> dict[str, Any]:
    tail = _as_tail(evidence.tail.as_dict() if evidence.tail else {})
    return {"correct": _as_right(evidence.guessed), **tail, "epsilon_low": evidence.epsilon_low}


def _as_controls(easy: Area | None, single: Area | None, null: PairGuesses | None) -> dict[str, Any]:
    finding = {
        name: {**_as_figures(shown), "passed": finds_members(None if shown is None else shown.auc)}
        for name, shown in (("easy", easy), ("one_step", single))
    }
    return {**finding, "null": {**_as_right(null), "passed": finds_none(null)}}


def _as_claim(claim: tuple[float, float] | None) -> dict[str, float | None]:
    epsilon, delta = claim or (None, None)
    return {"delta": delta, "claimed_epsilon": epsilon}


def _as_sizes(scored: Sequence[ScoredClient]) -> dict[str, int]:
    return {"clients": len(scored), "pairs": sum(len(one.members) for one in scored)}


def _as_sums(sums: SumSeen | None) -> dict[str, int | None]:
    group, hidden, colluding = sums or SumSeen()
    return {"sum_size": group or None, "anonymity_set_size": hidden or None, "num_colluding": colluding or None}


def _as_tail(point: Mapping[str, float]) -> dict[str, float | None]:
    return {key: point.get(key) for key in ("fpr", "fpr_high", "tpr", "tpr_low", "tpr_high")}


def _as_client(worst: ClientGuesses | None, scored: Sequence[ScoredClient], seed: int) -> dict[str, Any] | None:
    """Return the worst client, with its area and the interval that allows for the choice among all."""
    if worst is None:
        return None
    mine = _area([one for one in scored if one.client == worst.client], seed, f"client {worst.client}")
    return {"client": worst.client, "pairs": worst.pairs, **_as_figures(mine), "correct": _as_right(worst.guessed)}
