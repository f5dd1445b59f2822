"""Conclusions on membership from scores whose answer is known, and from scores that know nothing."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from flfw.audit.membership.entry import claim_against, entry
from flfw.audit.membership.membership_evidence import ScoredClient, pair_guesses, rejected_epsilon, weigh
from flfw.errors import InputError
from flfw.files.result_entries import MembershipFields
from flfw.privacy.lower_bound import lower_bound
from flfw.rng import numpy_generator
from tests.support.membership_views import ITEM

Noise = Callable[[np.random.Generator, int], np.ndarray]


def normal(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.standard_normal(count)


def cauchy(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.standard_cauchy(count)


def coarse(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.round(rng.standard_normal(count))


def clients(
    *shifts: float, pairs: int = 300, noise: Noise = normal, part: float = 1.0, scale: float = 1.0, seed: int = 0
) -> list[ScoredClient]:
    """Return a client for each shift, by which the scores of a part of its members are raised."""
    rng = numpy_generator(seed, "scores of a test")
    made = []
    for number, shift in enumerate(shifts):
        raised = shift * (np.arange(pairs) < part * pairs)
        factor = scale**number
        made.append(ScoredClient(number, factor * (noise(rng, pairs) + raised), factor * noise(rng, pairs)))
    return made


def alike(scored: list[ScoredClient]) -> dict[str, list[ScoredClient]]:
    """Return the floor of pairs whose two examples are of one class."""
    return {
        "label_only": [ScoredClient(one.client, np.ones(len(one.members)), np.ones(len(one.members))) for one in scored]
    }


EASY, NULL = clients(8.0, pairs=20, seed=1), clients(0.0, pairs=400, seed=2)
PASSED, UNFOUND = {"easy": EASY, "null": NULL}, {"easy": NULL, "null": NULL}
FAULTY = {"easy": EASY, "null": clients(1.0)}


def judged(scored: list[ScoredClient], **given: Any) -> dict[str, Any]:
    description = {name: given.pop(name, value) for name, value in ITEM.items()}
    more: dict[str, Any] = {"floors": alike(scored), "controls": PASSED} | given
    return entry(description, scored, **more)


def replaced(scored: list[ScoredClient], value: float, every: int, members: bool = True) -> list[ScoredClient]:
    """Return scores with every so many of them replaced."""
    rows = []
    for one in scored:
        changed = np.where(np.arange(len(one.members)) % every == 0, value, one.members)
        rows.append(ScoredClient(one.client, changed if members else one.members, one.held_out))
    return rows


QUIET = (0.0,) * 10
CASES: dict[str, tuple[list[ScoredClient], dict[str, Any], str, str]] = {
    "every client leaks": (clients(*(1.0,) * 10), {}, "leaks", "pairs"),
    "one client with 300 pairs leaks": (clients(1.0), {}, "leaks", "pairs"),
    "one client among ten leaks": (clients(*(0.0,) * 9, 3.0), {"tests": 8}, "leaks", "client"),
    "three of 600 members stand far out": (clients(*(30.0,) * 5, pairs=600, part=0.004), {}, "undecided", "faint"),
    "a twentieth of the members stands far out": (clients(*(30.0,) * 10, part=0.05), {}, "leaks", "tail"),
    "heavy tails without a leak": (clients(*QUIET, noise=cauchy), {}, "no leak found", "nothing"),
    "heavy tails with a leak": (clients(*(2.0,) * 10, noise=cauchy), {}, "leaks", "pairs"),
    "clients of very different scales leak": (clients(*(1.0,) * 10, scale=100.0), {}, "leaks", "pairs"),
    "clients of very different scales do not": (clients(*QUIET, scale=100.0), {}, "no leak found", "nothing"),
    "nothing is there": (clients(*QUIET), {}, "no leak found", "nothing"),
    "nothing is there, eight were tried": (clients(*QUIET), {"tests": 8}, "no leak found", "nothing"),
    "900 pairs": (clients(0.0, 0.0, 0.0), {}, "undecided", "few"),
    "five pairs, all right": (clients(9.0, pairs=5), {}, "undecided", "few"),
    "one pair": (clients(9.0, pairs=1), {}, "undecided", "few"),
    "all scores are equal": ([ScoredClient(0, np.ones(2000), np.ones(2000))], {}, "undecided", "few"),
    "coarse scores without a leak": (clients(*QUIET, noise=coarse), {}, "no leak found", "nothing"),
    "coarse scores with a leak": (clients(*(1.0,) * 10, noise=coarse), {}, "leaks", "pairs"),
    "a small effect is neither": (clients(*(0.1,) * 10, pairs=1000), {}, "undecided", "faint"),
    "members score lower": (clients(*(-1.0,) * 10), {}, "leaks", "reversed"),
    "most scores are NaN": (replaced(clients(*QUIET), np.nan, 1), {}, "undecided", "failures"),
    "a tenth of the scores is NaN": (replaced(clients(*QUIET, pairs=500), np.nan, 10), {}, "undecided", "failures"),
    "a hundredth of the scores is NaN": (replaced(clients(*QUIET), np.nan, 100), {}, "no leak found", "nothing"),
    "a tenth is infinite, the rest leaks": (replaced(clients(*(1.0,) * 10), np.inf, 10), {}, "leaks", "pairs"),
    "a static statistic behind noise": (clients(*QUIET), {"defence": "prune"}, "undecided", "static"),
    "a static statistic behind a network": (clients(*QUIET), {"protected_by": "HyperFL"}, "undecided", "static"),
    "an adaptive one": (clients(*QUIET), {"defence": "prune", "adaptive": True}, "no leak found", "nothing"),
    "one that is told a part": (clients(*QUIET), {"defence": "prune", "missed": "a part"}, "undecided", "static"),
    "a static statistic that leaks": (clients(*(1.0,) * 10), {"defence": "prune"}, "leaks", "pairs"),
    "a claim that does not hold": (clients(*(0.1,) * 10, pairs=1000), {"claim": (0.01, 1e-9)}, "leaks", "claim"),
    "a claim that may hold": (clients(*(0.1,) * 10, pairs=1000), {"claim": (0.5, 1e-6)}, "undecided", "faint"),
    "no control": (clients(*QUIET), {"controls": {}}, "undecided", "easy"),
    "no null control": (clients(*QUIET), {"controls": {"easy": EASY}}, "undecided", "null"),
    "the easy control is not found": (clients(*QUIET), {"controls": UNFOUND}, "undecided", "easy"),
    "the null control is found": (clients(*(1.0,) * 10), {"controls": FAULTY}, "undecided", "null"),
    "a leak without controls": (clients(*(1.0,) * 10), {"controls": {}}, "leaks", "pairs"),
    "a leak without the floor of labels": (clients(*(1.0,) * 10), {"floors": {}}, "undecided", "floor"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_scores_with_a_known_answer_get_it(name: str) -> None:
    scored, given, verdict, cause = CASES[name]
    result = judged(scored, **given)
    assert (result["verdict"], result["cause"]) == (verdict, cause), result["reason"]
    assert result["reason"].endswith(".")
    MembershipFields.model_validate_json(json.dumps(result, allow_nan=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 200), marks=pytest.mark.nightly)], ids=["first 100", "next 100"]
)
def test_the_best_of_eight_statistics_on_permuted_marks_leaks_in_few_trials(seeds: range) -> None:
    """Which of a pair is called the member is a coin: whatever is found is an error, at most 5 of 100 are allowed."""
    hits = 0
    for seed in seeds:
        rng = numpy_generator(seed, "permuted marks")
        common = rng.standard_normal((2, 4, 25))  # eight statistics of the same pairs resemble each other
        for _ in range(8):
            scores = common + rng.standard_t(2, (2, 4, 25))
            coins = rng.random((4, 25)) < 0.5
            members, others = np.where(coins, scores, scores[::-1])
            scored = [ScoredClient(k, members[k], others[k]) for k in range(4)]
            evidence = weigh(scored, tests=8)
            tail = evidence.tail is not None and evidence.tail.tpr_low > evidence.tail.fpr_high
            worst = evidence.worst is not None and evidence.worst.guessed.low > 0.5
            apart = not evidence.guessed.low <= 0.5 <= evidence.guessed.high
            if tail or worst or apart or evidence.epsilon_low > 0:  # even before any size of effect is asked for
                hits += 1
                break
    assert hits <= 5


def test_a_leak_that_labels_explain_is_none() -> None:
    """Members are of class 1 and their counterparts of class 0, which a score of the class alone tells."""
    members, others = np.ones(2000), np.zeros(2000)
    by_class = [ScoredClient(0, members, others)]
    result = judged(by_class, floors={"label_only": by_class})
    assert (result["verdict"], result["cause"], result["label_separable"]) == ("undecided", "few", 2000)
    assert result["floor"]["label_only"]["auc"] == 1


def test_a_leak_beyond_the_labels_is_found_on_pairs_of_one_class() -> None:
    scored = clients(1.0, pairs=2000)
    mixed = ScoredClient(0, np.arange(2000) % 2.0, np.zeros(2000))  # every other pair is of two classes
    result = judged(scored, floors={"label_only": [mixed]})
    assert (result["verdict"], result["label_separable"], result["correct"]["guesses"]) == ("leaks", 1000, 1000)


def test_pairs_of_one_class_have_a_floor_of_one_half() -> None:
    scored = clients(1.0)
    assert judged(scored)["floor"]["label_only"]["auc"] == 0.5


def test_numbers_are_those_of_a_count_by_hand() -> None:
    result = judged([ScoredClient(3, np.array([3.0, 1.0, 2.0]), np.array([0.0, 2.0, 2.0]))])
    # Right, wrong and a tie; of the nine comparisons 3 beats 3, 1 beats 1, 2 beats 1 and ties with 2.
    assert (result["correct"]["guesses"], result["correct"]["correct"]) == (2, 1)
    assert result["auc"] == pytest.approx((3 + 1 + 1 + 2 / 2) / 9)
    assert (result["pairs"], result["clients"], result["worst_client"]["client"]) == (3, 1, 3)
    assert result["tpr"] is None and result["fpr"] is None  # three pairs can show no rate


@pytest.mark.parametrize(("right", "guesses"), [(0, 7), (7, 7), (3, 7), (560, 1000)])
def test_the_interval_of_the_guesses_is_scipys(right: int, guesses: int) -> None:
    scored = ScoredClient(0, np.where(np.arange(guesses) < right, 1.0, -1.0), np.zeros(guesses))
    ours, test = pair_guesses([scored], 0.99), binomtest(right, guesses, alternative="greater")
    ends = binomtest(right, guesses).proportion_ci(0.99, method="exact")
    assert (ours.low, ours.high, ours.p) == pytest.approx((ends.low, ends.high, test.pvalue), abs=1e-9)


@pytest.mark.slow
def test_ten_thousand_pairs_show_a_smaller_false_positive_rate() -> None:
    assert [judged(clients(0.0, pairs=n))["fpr"] for n in (1000, 10_000)] == [0.01, 0.001]


def test_an_epsilon_of_presence_is_half_of_that_of_a_replacement() -> None:
    assert rejected_epsilon(100, 100, 90, 0.0, 0.95) == pytest.approx(lower_bound(100, 100, 90) / 2, abs=1e-4)
    assert rejected_epsilon(100, 100, 90, 1e-3, 0.95) < rejected_epsilon(100, 100, 90, 0.0, 0.95)


def test_a_delta_that_explains_everything_leaves_no_epsilon() -> None:
    assert rejected_epsilon(100, 100, 90, 0.5, 0.95) == 0.0


def test_more_statistics_make_every_interval_wider() -> None:
    one, eight = (judged(clients(0.3), tests=tests) for tests in (1, 8))
    assert eight["correct"]["low"] < one["correct"]["low"] and eight["correct"]["high"] > one["correct"]["high"]
    assert eight["tpr_low"] < one["tpr_low"] and eight["epsilon_low"] < one["epsilon_low"]
    assert eight["worst_client"]["correct"]["low"] < one["worst_client"]["correct"]["low"]


@pytest.mark.slow
def test_the_worst_of_many_clients_has_a_wider_interval_than_one_alone() -> None:
    alone, chosen = clients(1.0), clients(1.0, *(0.0,) * 29)
    assert np.array_equal(alone[0].members, chosen[0].members)
    low, lower = (judged(scored)["worst_client"]["correct"]["low"] for scored in (alone, chosen))
    assert lower < low


@pytest.mark.parametrize(
    ("scored", "floors"),
    [
        ([], {}),
        (clients(0.0) * 2, {}),
        (clients(0.0), {"label_only": clients(0.0, pairs=299)}),
        (clients(0.0, 0.0), {"label_only": clients(0.0)}),
    ],
    ids=["no client", "a client twice", "other pairs", "a client is missing"],
)
def test_scores_that_do_not_fit_are_refused(scored: list[ScoredClient], floors: dict[str, list[ScoredClient]]) -> None:
    with pytest.raises(InputError, match="Expected"):
        judged(scored, floors=floors)


def test_members_without_counterparts_are_refused() -> None:
    with pytest.raises(InputError, match="client 7"):
        ScoredClient(7, np.zeros(3), np.zeros(2))


def test_the_smallest_claim_against_a_vantage_is_taken() -> None:
    def line(adversary: str, epsilon: Any, counted: str = "here") -> dict[str, Any]:
        return {"unit": "example", "adversary": adversary, "epsilon": epsilon, "delta": 1e-5, "accounting": counted}

    lines = [
        line("server", 4.0),
        line("server", 3.0),
        line("server", 1.0, "as published"),
        line("another client", "inf"),
    ]
    assert claim_against(lines, "server") == (3.0, 1e-5)
    assert [claim_against(lines, vantage) for vantage in ("peer", "outsider", "client_update")] == [None] * 3
