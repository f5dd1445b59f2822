"""Measures of what an attack infers of the classes in clients' data, against guesses that saw no client's message.

A client is one case: its classes depend on one another. Estimates are compared by the total variation distance of
shares, claims of presence by the share of the classes that are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

import numpy as np

from flfw.audit.measures.statistics import significant
from flfw.audit.verdict import Findings, verdict_on
from flfw.errors import require
from flfw.files.outcomes import concluded

MATERIAL = 0.05
"""Least gain over the best guess that counts, as a share of a client's examples or classes."""
PRESENT = 0.25
"""An estimated share says that a class is there if it is at least this multiple of an equal share of all classes."""

_DRAWS = 2000
_CONFIDENCE = 0.95
_ALIKE = 0.99  # as the tests beside it: one in a hundred may be called different by chance

Measure = Literal["shares", "presence"]


@final
@dataclass(frozen=True)
class Inference:
    """Inferred classes of clients with one defence, with the truth.

    Attributes:
        description: the attack and its case, as result.json holds them.
        shares: (C, K) estimated shares of the classes; None: it gives none.
        held: (C, K) of bool, the classes that it says a client holds; None: it says nothing.
        counts: (C, K) true numbers of examples.
        clients: (C,) the clients' numbers.
        public: (K,) shares of the classes among public examples.
        protected_by: the defence or the method that changes what is sent; None: neither does.
        stopped: why nothing was inferred, if so.
    """

    description: Mapping[str, Any]
    shares: np.ndarray | None
    held: np.ndarray | None
    counts: np.ndarray
    clients: Sequence[int]
    public: np.ndarray
    protected_by: str | None = None
    stopped: str | None = None

    def compared(self, rng: np.random.Generator) -> dict[Measure, Compared]:
        """Compare it with guesses; each comparison is a test."""
        result: dict[Measure, Compared] = {}
        if self.shares is not None:
            result["shares"] = of_shares(self.shares, self.counts, self.public, rng)
        if self.held is not None:
            result["presence"] = of_presence(self.held, self.counts, rng)
        return result

    def entry(self, compared: Mapping[Measure, Compared], tests: int, rng: np.random.Generator) -> dict[str, Any]:
        """Return an item of ``inference`` of result.json."""
        same = bool(compared) and len(self.counts) > 1 and alike(self.counts, rng)
        shares, presence, worst = compared.get("shares"), compared.get("presence"), None
        if self.shares is not None:
            distance = distances(self.shares, _checked(self.counts, self.shares))
            worst = {"client": int(self.clients[int(distance.argmin())]), "distance": float(distance.min())}
        rated = None if presence is None or self.held is None else rates(self.held, self.counts)
        return {
            **self.description,
            "clients": len(self.clients),
            "classes": len(self.public),
            "shares": shares and figures(shares),
            "presence": presence and {**figures(presence), **(rated or {})},
            "alike": same,
            "tests": tests,
            "worst": worst,
            "protected_by": self.protected_by,
            "failure_reason": self.stopped,
            **concluded(*verdict_on(findings(compared, tests, same, self.protected_by, self.stopped))),
        }


@final
@dataclass(frozen=True)
class Compared:
    """Distances of the estimates to the truth, and those of the best guess.

    Attributes:
        measure: what is measured, ``shares`` or ``presence``.
        clients: number of clients.
        mean: mean distance over the clients, in [0, 1].
        low: lower end of its bootstrap interval over clients.
        high: upper end.
        floors: mean distance of each guess without a message.
        floor: the guess with the smallest one.
        gain: mean of this guess's distance minus the estimate's.
        gain_low: lower end of its interval.
        gain_high: upper end.
        better: clients of which the estimate is nearer than the guess.
        worse: clients of which it is farther; the others are alike.
        p: probability of at least so many better ones, were the guess as often the nearer one.
    """

    measure: Measure
    clients: int
    mean: float
    low: float
    high: float
    floors: dict[str, float]
    floor: str
    gain: float
    gain_low: float
    gain_high: float
    better: int
    worse: int
    p: float

    def leaks(self, tests: int) -> bool:
        """Return whether the gain is beyond chance, although it is one of several tests, and large enough."""
        return significant(self.p, tests) and self.gain_low > MATERIAL


def distances(shares: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Compute the total variation distances of shares (C, K) or (K,) to true ones (C, K).

    >>> distances(np.array([0.5, 0.5]), np.array([[1.0, 0.0], [0.5, 0.5]])).tolist()
    [0.5, 0.0]
    """
    return np.abs(shares - truth).sum(-1) / 2


def of_shares(shares: np.ndarray, counts: np.ndarray, public: np.ndarray, rng: np.random.Generator) -> Compared:
    """Compare estimated shares with equal ones, the other clients' and the public ones.

    Args:
        shares: (C, K) estimates.
        counts: (C, K) true numbers of examples, at least one of each client.
        public: (K,) shares of the classes among public examples.
        rng: generator of the bootstrap.
    """
    truth = _checked(counts, shares)
    floors = {"equal": np.full(shares.shape[1], 1 / shares.shape[1]), "public": public}
    if len(counts) > 1:
        others = counts.sum(0) - counts
        floors["other clients"] = others / others.sum(1, keepdims=True)
    losses = {name: distances(guess, truth) for name, guess in floors.items()}
    return _compared("shares", distances(shares, truth), losses, rng)


def of_presence(patterns: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Compared:
    """Compare claims of presence with every class, no class, and the classes of most other clients.

    Args:
        patterns: (C, K) of bool.
        counts: (C, K) true numbers of examples.
        rng: generator of the bootstrap.
    """
    truth = _checked(counts, patterns) > 0
    floors = {"every class": np.ones_like(truth), "no class": np.zeros_like(truth)}
    if len(truth) > 1:
        floors["most other clients"] = 2 * (truth.sum(0) - truth) > len(truth) - 1
    losses = {name: (guess != truth).mean(1) for name, guess in floors.items()}
    return _compared("presence", (patterns != truth).mean(1), losses, rng)


def rates(patterns: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
    """Return the rates of true and of false claims of presence, with the exact intervals of Clopper and Pearson.

    The intervals take each class of each client as a case of its own; a rate without a case is None.

    Args:
        patterns: (C, K) of bool.
        counts: (C, K) true numbers of examples.
    """
    from scipy.stats import binomtest

    result: dict[str, Any] = {}
    for name, cases in (("true", counts > 0), ("false", counts == 0)):
        hits, total = int((patterns & cases).sum()), int(cases.sum())
        ends = binomtest(hits, total).proportion_ci(_CONFIDENCE, method="exact") if total else None
        result |= {f"{name}_positives": hits, f"{name}_cases": total, f"{name}_rate": hits / total if total else None}
        result[f"{name}_interval"] = None if ends is None else [float(ends.low), float(ends.high)]
    return result


def alike(counts: np.ndarray, rng: np.random.Generator) -> bool:
    """Return whether the clients' shares differ no more than those of random draws from all of them together (99 %).

    Then an update tells of a client only which examples chance gave to it.
    """
    everybody = counts.sum(0) / counts.sum()
    distance = distances(everybody, counts / counts.sum(1, keepdims=True)).mean()
    drawn = np.zeros(_DRAWS)
    for examples in counts.sum(1):
        drawn += distances(everybody, rng.multinomial(examples, everybody, size=_DRAWS) / examples) / len(counts)
    return bool(distance <= np.quantile(drawn, _ALIKE))


def findings(
    compared: Mapping[Measure, Compared], tests: int, same: bool, protected_by: str | None, stopped: str | None
) -> Findings:
    """Yield what decides the verdict on the inferred classes, the first first.

    A failure is never evidence of protection here: no easier case is attacked beside it.

    Args:
        compared: by what is measured; empty: nothing was inferred.
        tests: number of tests in the run.
        same: whether the clients are `alike`.
        protected_by: the defence or the method that changes what is sent; None: neither does.
        stopped: why nothing was inferred, if so.
    """
    if not compared:
        why = (stopped or "no upload could be read").rstrip(".")
        yield "stopped", f"Nothing was inferred: {why}."
    measure, best = max(compared.items(), key=lambda item: (item[1].leaks(tests), item[1].gain))
    unit = "of a client's examples" if measure == "shares" else "of the classes of a client"
    sentence = (
        f"The estimates are wrong about {best.mean:.1%} {unit}, the best guess without a message ({best.floor}) about "
        f"{best.floors[best.floor]:.1%}; they are nearer for {best.better} and farther for {best.worse} of "
        f"{best.clients} clients (p = {best.p:.2g}, one of {tests} tests)."
    )
    if same:
        yield (
            "alike",
            f"{sentence} But the clients' classes differ no more than random draws from all clients' data do: an "
            "update can tell only which examples chance gave to a client, and this says nothing of other splits.",
        )
    if best.leaks(tests):
        yield "inferred", sentence
    if not significant(0.5**best.clients, tests):
        yield "few", f"{sentence} With so few clients no result would be beyond chance."
    if protected_by:
        yield (
            "static",
            f"{sentence} That is no finding, but the attack did not know of {protected_by}, which changes the "
            "message: its failure is not evidence of protection.",
        )
    yield (
        "weak",
        f"{sentence} That is no finding: at least {MATERIAL:.0%} must be gained, and beyond chance. Nothing hides "
        "the data in what was sent: the attack is too weak for this case.",
    )


def figures(compared: Compared) -> dict[str, Any]:
    """Return a comparison as result.json holds it."""
    return {name: value for name, value in asdict(compared).items() if name not in ("measure", "clients")}


def _checked(counts: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return the true shares."""
    require(counts.shape == given.shape, "an estimate for each class of each client", shape=given.shape)
    require(bool((counts.sum(1) > 0).all()), "an example of each client", examples=counts.sum(1).min())
    return counts / counts.sum(1, keepdims=True)


def _compared(
    measure: Measure, losses: np.ndarray, floors: Mapping[str, np.ndarray], rng: np.random.Generator
) -> Compared:
    from scipy.stats import binomtest

    floor = min(floors, key=lambda name: floors[name].mean())
    gains = floors[floor] - losses
    drawn = rng.integers(len(losses), size=(_DRAWS, len(losses)))
    ends = [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2]
    low, high = (float(end) for end in np.quantile(losses[drawn].mean(1), ends))
    gain_low, gain_high = (float(end) for end in np.quantile(gains[drawn].mean(1), ends))
    better, worse = int((gains > 1e-9).sum()), int((gains < -1e-9).sum())
    # Ties count against the estimate: half of the clients would be nearer by chance at most.
    p = float(binomtest(better, len(gains), 0.5, alternative="greater").pvalue)
    means = {name: float(values.mean()) for name, values in floors.items()}
    return Compared(
        measure, len(losses), float(losses.mean()), low, high, means, floor,
        float(gains.mean()), gain_low, gain_high, better, worse, p,
    )  # fmt: skip
