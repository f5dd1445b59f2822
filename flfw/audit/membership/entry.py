"""Item of membership in result.json: a statistic over the pairs of all clients, summed up and judged."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flfw.adversary.membership.operating_points import Area, area
from flfw.audit.membership.membership_evidence import (
    EASY_PAIRS,
    NULL_LEVEL,
    NULL_PAIRS,
    MembershipEvidence,
    PairGuesses,
    ScoredClient,
    comparable,
    finds_members,
    finds_none,
    pair_guesses,
    weigh,
)
from flfw.audit.verdict import verdict_on
from flfw.files.outcomes import concluded
from flfw.rng import numpy_generator

LABELS = "label_only"
"""Name of the floor that knows nothing but labels: what it tells apart is no leak."""
OVERFITTED, ONE_STEP, NULL = "easy", "one_step", "null"
"""Controls of a statistic, where the answer is known: pairs of an overfitted client, which must be told apart; those of
clients that take a single step on one member; and examples both held out, of which a coin calls one a member.
"""

_ADVERSARIES = {"server": "server", "aggregate": "aggregate", "peer": "another client", "outsider": "outsider"}


def entry(
    description: Mapping[str, Any],
    scored: Sequence[ScoredClient],
    floors: Mapping[str, Sequence[ScoredClient]],
    controls: Mapping[str, Sequence[ScoredClient]],
    *,
    missed: str = "",
    unread: str = "",
    claim: tuple[float, float] | None = None,
    tests: int = 1,
    accuracy_gap: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Return a statistic's item of ``membership`` in result.json.

    Args:
        description: the attack, its statistic and its targets; these keys are copied.
        scored: its scores of the pairs, for each client.
        floors: scores of the same pairs by ``label_only`` and ``loss_only``.
        controls: scores of the same statistic in each control; one that is missing was not tried.
        missed: what its model of that which hides the data leaves out, in words; empty: nothing.
        unread: running statistics that clients send and it does not read, in words; empty: none.
        claim: epsilon and delta that are claimed for one example against this adversary, see `claim_against`.
        tests: number of statistics, vantages and sets of rounds that the run tries.
        accuracy_gap: accuracy on training data less that on held-out data.
        seed: of the draws of the bootstrap.

    Raises:
        InputError: no client, a client twice, or a floor of other clients or pairs.
    """
    kept, failed, unlike = comparable(scored, floors.get(LABELS))
    epsilon, delta = claim or (None, None)
    pairs = weigh(kept, tests, delta or 0.0)
    easy = _easy(controls.get(OVERFITTED), seed, "easy")
    single = _easy(controls.get(ONE_STEP), seed, "one step")
    defence = description["defence"]
    evidence = MembershipEvidence(
        pairs,
        easy and easy.auc,
        _null(controls.get(NULL), 1 - NULL_LEVEL / tests),
        failed=failed,
        label_separable=unlike if LABELS in floors else None,
        adaptive=description["adaptive"],
        protected_by=description["protected_by"] or ("" if defence == "none" else defence),
        missed=missed,
        unread=unread,
        claimed=epsilon,
        unit=description["unit"],
        step_auc=single and single.auc,
        summed=description["anonymity_set_size"] or 0,
    )
    return {
        **description,
        "clients": len(scored),
        "pairs": sum(len(one.members) for one in scored),
        "failed": failed,
        "label_separable": evidence.label_separable,
        "tests": tests,
        **_as_figures(_area(kept, seed, description["statistic"])),
        "correct": pairs.guessed._asdict(),
        **{key: getattr(pairs.tail, key, None) for key in ("fpr", "fpr_high", "tpr", "tpr_low", "tpr_high")},
        "epsilon_low": pairs.epsilon_low,
        "delta": delta,
        "claimed_epsilon": epsilon,
        "accuracy_gap": accuracy_gap,
        "floor": {name: _as_figures(_area(_finite(rows), seed, name)) for name, rows in floors.items()},
        "worst_client": _worst_client(evidence, kept, seed),
        "controls": _controls(evidence, easy, single),
        **concluded(*verdict_on(evidence.findings())),
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


def _controls(evidence: MembershipEvidence, easy: Area | None, single: Area | None) -> dict[str, Any]:
    finding = {
        name: {**_as_figures(shown), "passed": finds_members(shown and shown.auc)}
        for name, shown in ((OVERFITTED, easy), (ONE_STEP, single))
    }
    untried = {"guesses": 0, "correct": 0, "low": None, "high": None, "p": None}
    guessed = evidence.null._asdict() if evidence.null else untried
    return {**finding, NULL: {**guessed, "passed": finds_none(evidence.null)}}


def _worst_client(evidence: MembershipEvidence, scored: Sequence[ScoredClient], seed: int) -> dict[str, Any] | None:
    """Return the worst client, with its area and the interval that allows for the choice among all."""
    worst = evidence.pairs.worst
    if worst is None:
        return None
    mine = _area([one for one in scored if one.client == worst.client], seed, f"client {worst.client}")
    return {"client": worst.client, "pairs": worst.pairs, **_as_figures(mine), "correct": worst.guessed._asdict()}
