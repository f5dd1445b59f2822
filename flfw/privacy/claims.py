"""What may be said of a unit's privacy against an adversary, with all that it rests on in plain sentences.

What was clipped decides what can be said. If examples are, a patient with several or a client with hundreds of them is
a group, and a group's epsilon grows with its size; it is not the epsilon of one example. If clients are, leaving one
out is covered, while changing one example in one exchanges an update for another: as much as leaving out two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import exp, expm1, inf, isinf, log, sqrt
from typing import Any, Literal, TypeAlias, final, get_args

from flfw.errors import require
from flfw.privacy.accountants import Accountant, Accounted, account
from flfw.privacy.mechanism import Mechanism, Mechanisms, Phase, phases

Unit: TypeAlias = Literal["example", "patient", "client"]
Adversary: TypeAlias = Literal["server", "another client", "outsider"]

ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)

_SEES = {
    "server": "The server sees every client's messages and knows who takes part; it keeps to the protocol.",
    "another client": "Another client sees the models that it is sent, and does not work together with the server.",
    "outsider": "An outsider sees the models that are published, and nothing of the traffic.",
}
_ALWAYS = (
    "Nobody can repeat the noise: who knows the seed it is drawn from can take it off again.",
    "Outside the count: the losses, accuracies, gradient norms and numbers of examples that clients report, and the"
    " answers to an audit's probes. Nothing else that depends on the data leaves a client, such as buffers; nor does it"
    " decide which run is shown.",
    "Inside a client the gradients are bare before the noise is added; nothing is claimed against one who reads there.",
)


@final
@dataclass(frozen=True)
class Claim:
    """One line of what a run claims.

    Attributes:
        unit: whose presence is protected.
        adversary: against whom.
        epsilon: an upper bound, >= 0; inf: no claim, and the first assumption says why.
        delta: probability with which the bound may fail, in (0, 1).
        accountant: as `flfw.privacy.accountants.Accounted`.
        assumptions: sentences; if one is false, so is the claim.
        rounds: that it covers.
    """

    unit: Unit
    adversary: Adversary
    epsilon: float
    delta: float
    accountant: str
    assumptions: tuple[str, ...]
    rounds: int

    @property
    def certainty(self) -> float:
        """How often, at most, the adversary is right on whether a unit was there, if both are equally likely before.

        (exp(epsilon) + delta) / (1 + exp(epsilon)), from 0.5 to 1: Kairouz, Oh and Viswanath, ICML 2015.
        """
        other = exp(-self.epsilon)
        return (1 + self.delta * other) / (1 + other)

    def as_dict(self) -> dict[str, Any]:
        """As result.json holds it; JSON has no infinity, so that is the string ``inf``."""
        found = asdict(self) | {"assumptions": list(self.assumptions)}
        return found | {"epsilon": "inf" if isinf(self.epsilon) else self.epsilon}


def claim(
    mechanism: Mechanisms,
    unit: Unit,
    adversary: Adversary,
    delta: float,
    rounds: int,
    accountant: Accountant = "prv",
    examples: int | None = None,
) -> Claim:
    """What a run may claim.

    Args:
        mechanism: as this adversary meets it, one or several in turn; what is clipped and who adds the noise must be
            the same in all.
        unit: whose presence is to be protected.
        adversary: against whom. To the server the sampling of whole clients is never hidden.
        delta: probability in (0, 1) with which the bound may fail.
        rounds: that the mechanism covers, >= 0.
        accountant: as for `flfw.privacy.accountants.account`.
        examples: the most that a patient has in one client, or a client in all, >= 1; None: not known. It counts
            where examples are clipped.

    Raises:
        BadInput: a value out of range.
    """
    several = (mechanism,) if isinstance(mechanism, Mechanism) else tuple(mechanism)
    require(unit in get_args(Unit), f"unit among {', '.join(get_args(Unit))}", unit=unit)
    require(adversary in ADVERSARIES, f"adversary among {', '.join(ADVERSARIES)}", adversary=adversary)
    require(0 < delta < 1, "0 < delta < 1", delta=delta)
    require(rounds >= 0, "rounds >= 0", rounds=rounds)
    require(examples is None or examples >= 1, "examples >= 1", examples=examples)
    kinds = {(part.clipped, part.noised_by) for part in several}
    require(len(kinds) == 1, "mechanisms that agree on what is clipped and who adds noise", different=len(kinds))
    why = _unsupported(several, unit, adversary, examples)
    if why:
        return Claim(unit, adversary, inf, delta, "none", (why,), rounds)
    if unit == "client":  # its copies elsewhere are other clients'
        several = tuple(replace(part, replication=1) for part in several)
    if adversary == "server" and several[0].clipped == "client":  # whoever is drawn sends it a message
        several = tuple(replace(part, hidden=False) for part in several)
    found, counted = _accounted(several, unit, delta, accountant, examples or 1)
    first = found.notes if isinf(found.epsilon) else ()
    sentences = (*first, *counted, *_of_the_run(several), _SEES[adversary], *_ALWAYS, *found.notes)
    return Claim(unit, adversary, found.epsilon, delta, found.accountant, tuple(dict.fromkeys(sentences)), rounds)


def _unsupported(several: Sequence[Mechanism], unit: Unit, adversary: Adversary, examples: int | None) -> str:
    if several[0].noised_by == "server" and adversary == "server":
        return "The server adds the noise itself and sees every message without it: against it nothing is claimed."
    void = next((part.void for part in several if part.void), "")
    if void:
        return void
    if any(part.clip == inf and part.steps for part in several):
        return f"Nothing is clipped, so one {unit} can change a sum by any amount: no noise is known to be enough."
    if several[0].clipped == "example" and unit != "example" and examples is None:
        return f"Single examples are clipped, and how many of them one {unit} has is not known: no number holds."
    return ""


def _accounted(
    several: Sequence[Mechanism], unit: Unit, delta: float, accountant: Accountant, examples: int
) -> tuple[Accounted, tuple[str, ...]]:
    """The epsilon of a unit, and how it was counted."""
    whole = f"Neighbours: one {unit} more or less, its places left empty. Exchanging one for another counts twice."
    clients = several[0].clipped == "client"
    if clients and unit != "client":
        whole = f"Neighbours: all data of one {unit} added, taken away or exchanged for others."
    copies = 1 if unit in (several[0].clipped, "example") else examples
    if copies == 1 and (not clients or unit == "client"):
        return account(phases(several), delta, accountant), (whole,)
    if clients:
        size, group = 2, f"Whole clients are clipped: one {unit} can exchange one update for another."
        direct = account(phases(several, 2, amplified=False), delta, accountant)
    else:
        size, group = copies, f"Single examples are clipped: the {copies} examples of one {unit} count as a group."
        direct = account(phases(several, copies), delta, accountant)
    found = [(direct, "It is taken to change every step that it takes part in as much as the whole group can.")]
    if any(part.amplified for part in several):
        if not clients:
            most, parts = _truncated(several, copies, delta)
            found.append((
                _raised(account(parts, delta / 2, accountant), delta),
                f"No more than {most} of the group are drawn in one step; half of delta is set aside for the contrary.",
            ))  # fmt: skip
        # Many deltas are tried: with the quick accountants.
        one = partial(account, phases(several), accountant="moments" if accountant == "moments" else "rdp")
        grouped, inner = _group_privacy(one, size, delta)
        times = f"{size} times the epsilon of one {several[0].clipped} at delta {inner:.1e}"
        found.append((grouped, f"It is counted by group privacy: {times}, by the accountant {grouped.accountant}."))
    best, how = min(found, key=lambda one: one[0].epsilon)
    return best, (whole, group, *([] if isinf(best.epsilon) else [how]))


def _raised(found: Accounted, by: float) -> Accounted:
    return replace(found, epsilon=found.epsilon + by)


def _truncated(several: Sequence[Mechanism], copies: int, delta: float) -> tuple[int, list[Phase]]:
    """Phases as if no step drew more than m of n copies, which is false with a probability of at most delta / 2 in all.

    Of T steps let each draw more than m with probability t <= delta / 2T. The truncated steps P' are within T t of the
    true ones P in total variation, and P' <= P / (1 - t)^T: a bound (e, delta / 2) for P' is (e, delta) for P in one
    direction and (e + T log(1 / (1 - t)), delta / 2) in the other, with T log(1 / (1 - t)) below delta.

    Returns:
        The largest m, and the phases.
    """
    from scipy.stats import binom

    total = sum(part.phase(copies).steps for part in several)
    largest, parts = 1, []
    for part in several:
        phase = part.phase(copies)
        if part.amplified and total:
            n = copies * (part.replication if part.noised_by == "server" else 1)
            allowed = delta / (2 * total)
            most = max(1, int(binom.isf(allowed, n, part.sampling_rate)))
            while most < n and binom.sf(most, n, part.sampling_rate) > allowed:
                most += 1
            largest, phase = max(largest, most), replace(phase, multiplier=part.multiplier / min(most, n))
        parts.append(phase)
    return largest, parts


def _group_privacy(one: Callable[[float], Accounted], size: int, delta: float) -> tuple[Accounted, float]:
    """(size e, delta) from (e, d) of one with d (1 + exp(e) + ... + exp((size - 1) e)) <= delta, and d.

    Vadhan, The Complexity of Differential Privacy, 2017, lemma 2.2. It is inf where a smaller d only makes e larger.
    """
    inner = delta
    for _ in range(100):
        found = one(inner)
        e = found.epsilon
        if size * e > 600:
            break
        growth = log(expm1(size * e) / expm1(e)) if e > 0 else log(size)
        if log(inner) + growth <= log(delta):
            return replace(found, epsilon=size * e), inner
        inner = 0.99 * exp(log(delta) - growth)
    return Accounted(inf, "none"), inner


def _of_the_run(several: Sequence[Mechanism]) -> list[str]:
    """What was done to the data, phase by phase where phases differ."""
    said = [sentence for part in several for sentence in _of_a_mechanism(part)]
    steps = sum(part.steps for part in several)
    sigmas, rates = ([getattr(part, name) for part in several] for name in ("noise_multiplier", "sampling_rate"))
    noise = f"Gaussian noise of {_span(sigmas)} times the bound is added"
    by = (
        "each client, to its own sum"
        if several[0].noised_by == "client"
        else "the server, which is trusted, to the sum"
    )
    said.append(f"{noise} by {by}, in {steps} steps.")
    if any(part.amplified for part in several):
        said.append(f"The probability to be drawn in a step is {_span(rates)}.")
    return said


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _of_a_mechanism(part: Mechanism) -> list[str]:
    own = (part.clipped, part.noised_by) == ("client", "client")
    thing = "example's gradient" if part.clipped == "example" else "client's update"
    norm = f"Each {thing} is clipped to an L2 norm of {part.clip:g}"
    if part.groups > 1:
        norm += f" in each of {part.groups} groups of tensors, so that it counts {sqrt(part.groups):.3g} times"
    said = [f"{norm}."]
    if part.draws == "example":
        said.append(f"Noise is drawn {part.batch} times in each step, also where a batch holds fewer examples.")
    if part.amplified:
        said.append(f"Each {part.clipped} is drawn by a coin of its own, and the adversary never learns who was drawn.")
    else:
        why = "the adversary may know who is drawn" if part.poisson else "they are not drawn by independent coins"
        why = "who is not drawn adds no noise either" if part.poisson and own else why
        taken = part.steps if part.participations is None else part.participations
        said.append(f"Samples give no credit, for {why}.")
        said.append(f"One {part.clipped} takes part in at most {taken} of {part.steps} steps.")
    if part.replication > 1:
        said.append(f"No example is held by more than {part.replication} clients; all of them are counted.")
    return said
