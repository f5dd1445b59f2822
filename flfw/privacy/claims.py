"""Claims on a unit's privacy against an adversary, with all their assumptions in plain sentences.

The possible claims depend on the clipped unit and on what the adversary sees. The server sees each client's message.
With secure aggregation it would see sums alone, in which the noises of all clients have added up: that adversary is
called aggregate. Where the noise is in local steps, sums give no more credit.

A unit may be another than the clipped one. If examples are clipped, a patient with several examples or a client with
hundreds is a group, and a group's epsilon grows with its size; it is not the epsilon of one example. If clients are
clipped, removing one client is covered; changing one of its examples exchanges an update for another, which counts as
much as removing two.

A paper's accounting as it was published is reported beside that of flfw, and never in its place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from math import exp, expm1, inf, isinf, log, sqrt
from typing import Any, Literal, TypeAlias, final, get_args

from flfw.errors import require
from flfw.privacy.accountants import Accountant, AccountedEpsilon, compute_epsilon
from flfw.privacy.mechanism import NO_OTHERS, GaussianEvent, Mechanism, Others, SeenMechanism, Unit, gaussian_events


@final
@dataclass(frozen=True)
class Published:
    """A paper's privacy accounting.

    Attributes:
        units: protected unit -> mechanism that the paper assumes for it; the unit that is clipped is the first.
        accountant: accountant that the paper uses.
        remarks: sentences on the paper's assumptions.
    """

    units: Mapping[Unit, Mechanism]
    accountant: Accountant
    remarks: tuple[str, ...]

    def epsilon(self, unit: Unit, delta: float) -> float:
        """Compute the epsilon that the paper would report for one of its units."""
        return compute_epsilon(gaussian_events(self.units[unit]), delta, self.accountant).epsilon


Adversary: TypeAlias = Literal["server", "aggregate", "another client", "outsider"]
ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)
_SEES = {
    "server": "The server sees every client's messages and knows who takes part; it keeps to the protocol.",
    "aggregate": (
        "The server is taken to see nothing of a round's updates but their sum, each update in one sum alone, as with"
        " secure aggregation. It knows who takes part, and keeps to the protocol."
    ),
    "another client": "Another client sees the models that it is sent, and does not work together with the server.",
    "outsider": "An outsider sees the models that are published, and nothing of the traffic.",
}
_PLAIN = (
    "No secure aggregation runs here, so that the server of this run sees every update: what holds for it are the"
    " claims against the server."
)
_SEEDED = ("Nobody can repeat the noise: who knows the seed it is drawn from can take it off again.",)
_SECURE = (
    "The noise is of real numbers, rounded to a grid after the sum, from bits that nobody can predict: AES-256 under"
    " keys of the operating system.",
    "Sums of clipped vectors are computed with rounding errors, and the noise allows for 0.1 % of the bound. Weights"
    " that a server makes for it can cause larger ones.",
)
_ALWAYS = (
    "Outside the count: the answers to an audit's probes, and the time at which an answer comes. Nothing else that"
    " depends on the data leaves a client, such as buffers; nor does it decide which run is shown.",
    "Inside a client the gradients are bare before the noise is added; nothing is claimed against one who reads there.",
)
_KNOWN = (
    "Everybody is taken to know each client's number of training examples, and the constants that inputs are normalised"
    " with. The size of the noise tells that number: a client with one example fewer, and no empty place for it, can"
    " be told from the one with it.",
)
_CLASSES = (
    "Everybody is taken to know the classes, the size and colour of images, and the split, also where they follow from"
    " the very examples: of labelled text, without the only example of its class the model has one output fewer; in a"
    " folder of grey images one in colour gives all three channels, one of more bits darkens all (--expert own_images)."
)
_REPORTED = (
    "Outside the count: the losses, accuracies, gradient norms, times and numbers of examples that clients report,"
    " which this adversary is not shown. Who sees them can tell presence: a number of examples is n or n - 1."
)
_IGNORED = (
    "The server ignores the losses, accuracies, gradient norms, times and numbers of examples that it receives:"
    " they have no noise, and tell presence. With metrics=none nobody sends them."
)
_UNREPORTED = (
    "Clients report no number beside the tensors: no loss, accuracy, gradient norm, time or number of examples."
)
_NOISY = (
    "Clients report {numbers} with Gaussian noise of {noise:g} times what one {thing}"
    " can change, in {answers} answers, which are counted; no gradient norm and no time. An example is in one of a"
    " client's training, validation and test data. An accuracy on the server's own test data is outside the count."
)
_BARE = (
    "Of a client that adds no noise, or gives it away, these numbers have none: it holds nothing of the unit that is"
    " protected."
)
_ADDED = (
    "Every client that holds data of the unit adds its noise, and gives it to nobody: only the claim against aggregate"
    " counts with others (--expert colluding_clients)."
)
Metrics: TypeAlias = Literal["all", "private", "none"]


def seen_by(
    mechanisms: Sequence[Mechanism], others: Sequence[Others], unit: Unit, adversary: Adversary
) -> tuple[SeenMechanism, ...]:
    """Return mechanisms, each with its others, as an adversary sees them, for one unit."""
    sums = adversary == "aggregate"
    return tuple(SeenMechanism(part, beside.seen(unit, sums)) for part, beside in zip(mechanisms, others, strict=True))


@lru_cache(maxsize=4096)
def accounted(
    parts: tuple[SeenMechanism, ...], unit: Unit, delta: float, accountant: Accountant, examples: int
) -> tuple[AccountedEpsilon, tuple[str, ...]]:
    """Compute the epsilon of a unit, with sentences on how it was counted; see `seen_by`."""
    first = parts[0].mechanism
    whole = f"Neighbours: one {unit} more or less, its places left empty. Exchanging one for another counts twice."
    clients = first.clipped == "client"
    if first.is_distributed and unit == "client":
        whole = (
            "Neighbours: one client with its data, or with none: then its update is 0, and it sends its noise all the"
            " same. That a client takes part is known; of one that stays away the noise is missing, and who sees what"
            " is sent or summed can tell. Exchanging one for another counts twice."
        )
    if clients and unit != "client":
        whole = f"Neighbours: all data of one {unit} added, taken away or exchanged for others."
    size = first.vectors(unit, examples)
    if size == 1:
        return compute_epsilon(gaussian_events(parts), delta, accountant), (whole,)
    group = f"Single examples are clipped: the {size} examples of one {unit} count as a group."
    if clients:
        group = f"Whole clients are clipped: one {unit} can exchange one update for another."
    direct = compute_epsilon(gaussian_events(parts, size, amplified=not clients), delta, accountant)
    options = [(direct, "It is taken to change every step that it takes part in as much as the whole group can.")]
    if any(mechanism.amplified for mechanism, _ in parts):
        if not clients:
            maximum, truncated = _truncated(parts, size, delta)
            fewer = compute_epsilon(truncated, delta / 2, accountant)
            how = f"No more than {maximum} of the group are drawn in one step; half of delta is set aside for more."
            options.append((replace(fewer, epsilon=fewer.epsilon + delta), how))
        # Many deltas are tried, so only the fast accountants are used.
        fast: Accountant = "moments" if accountant == "moments" else "rdp"
        grouped, inner = _group_privacy(partial(compute_epsilon, gaussian_events(parts), accountant=fast), size, delta)
        times = f"{size} times the epsilon of one {first.clipped} at delta {inner:.1e}"
        options.append((grouped, f"It is counted by group privacy: {times}, by the accountant {grouped.accountant}."))
    best, how = min(options, key=lambda one: one[0].epsilon)
    return best, (whole, group, *([] if isinf(best.epsilon) else [how]))


def _truncated(parts: Sequence[SeenMechanism], copies: int, delta: float) -> tuple[int, list[GaussianEvent]]:
    """Return phases as if no step drew more than m of n copies; this fails with total probability at most delta / 2.

    Let each of T steps draw more than m with probability t <= delta / 2T. The truncated steps P' are within T t of the
    true steps P in total variation, and P' <= P / (1 - t)^T. So a bound (e, delta / 2) for P' gives (e, delta) for P in
    one direction and (e + T log(1 / (1 - t)), delta / 2) in the other, with T log(1 / (1 - t)) below delta.

    Returns:
        The largest m, and the phases.
    """
    from scipy.stats import binom

    total = sum(part.phase(copies).steps for part in parts)
    largest, phases = 1, []
    for part in parts:
        phase, mechanism = part.phase(copies), part.mechanism
        if mechanism.amplified and total:
            n = copies * (part.others.max_copies if mechanism.noised_by == "server" else 1)
            allowed = delta / (2 * total)
            maximum = max(1, int(binom.isf(allowed, n, mechanism.sampling_rate)))
            while maximum < n and binom.sf(maximum, n, mechanism.sampling_rate) > allowed:
                maximum += 1
            least = mechanism.multiplier() / min(maximum, n)
            largest, phase = max(largest, maximum), replace(phase, noise_multiplier=least)
        phases.append(phase)
    return largest, phases


def _group_privacy(one: Callable[[float], AccountedEpsilon], size: int, delta: float) -> tuple[AccountedEpsilon, float]:
    """Return (size e, delta) and d, from (e, d) of one unit with d (1 + exp(e) + ... + exp((size - 1) e)) <= delta.

    Vadhan, The Complexity of Differential Privacy, 2017, lemma 2.2. It is inf if a smaller d only makes e larger.
    """
    inner = delta
    for _ in range(100):
        single = one(inner)
        e = single.epsilon
        if size * e > 600:
            break
        growth = log(expm1(size * e) / expm1(e)) if e > 0 else log(size)
        if log(inner) + growth <= log(delta):
            return replace(single, epsilon=size * e), inner
        inner = 0.99 * exp(log(delta) - growth)
    return AccountedEpsilon(inf, "none"), inner


@final
@dataclass(frozen=True)
class Claim:
    """Claim of a run for one unit and one adversary.

    Attributes:
        unit: the unit with the protected presence.
        adversary: the adversary that it is protected against.
        epsilon: an upper bound, >= 0; inf: no claim, and the first assumption gives the reason.
        delta: probability with which the bound may fail, in (0, 1).
        accountant: as in `flfw.privacy.accountants.AccountedEpsilon`.
        assumptions: sentences; if one is false, so is the claim.
        rounds: number of rounds that the claim covers.
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
        """Largest probability that the adversary guesses a unit's presence correctly, with prior probability 1/2.

        (exp(epsilon) + delta) / (1 + exp(epsilon)), from 0.5 to 1: Kairouz, Oh and Viswanath, ICML 2015.
        """
        other = exp(-self.epsilon)
        return (1 + self.delta * other) / (1 + other)

    def as_dict(self) -> dict[str, Any]:
        """Return the claim for result.json; infinity becomes the string ``inf``, as JSON has none."""
        entries = asdict(self) | {"assumptions": list(self.assumptions)}
        return entries | {"epsilon": "inf" if isinf(self.epsilon) else self.epsilon}


def claim(
    mechanism: Mechanism | Sequence[Mechanism],
    unit: Unit,
    adversary: Adversary,
    delta: float,
    rounds: int,
    accountant: Accountant = "prv",
    examples: int | None = None,
    metrics: Metrics = "all",
    secure: bool = False,
    reported: Mechanism | None = None,
    others: Sequence[Others] = (),
) -> Claim:
    """Compute the claim of a run for a unit and an adversary.

    Args:
        mechanism: one or several in turn; ``clipped`` and ``noised_by`` must be the same in all.
        unit: the unit with the presence to protect.
        adversary: the adversary.
        delta: probability in (0, 1) with which the bound may fail.
        rounds: number of rounds that the mechanism covers, >= 0.
        accountant: as for `flfw.privacy.accountants.compute_epsilon`.
        examples: largest number of examples of a patient in one client, or of a client, >= 1; None: not known. It
            counts if examples are clipped.
        metrics: numbers that clients report: all, which the server must be trusted to ignore, private or none.
        secure: whether the noise is that of `flfw.nets.training.gaussian`; else that nobody repeats it is assumed.
        reported: mechanism of the private metrics, which every adversary may see; for metrics=private alone.
        others: the others of each mechanism and of ``reported``, if any.

    Raises:
        InputError: a value out of range.
    """
    mechanisms = (mechanism,) if isinstance(mechanism, Mechanism) else tuple(mechanism)
    require(unit in get_args(Unit), f"unit among {', '.join(get_args(Unit))}", unit=unit)
    require(adversary in ADVERSARIES, f"adversary among {', '.join(ADVERSARIES)}", adversary=adversary)
    require(0 < delta < 1, "0 < delta < 1", delta=delta)
    require(rounds >= 0, "rounds >= 0", rounds=rounds)
    require(examples is None or examples >= 1, "examples >= 1", examples=examples)
    require((reported is not None) == (metrics == "private"), "reported with metrics=private alone", metrics=metrics)
    tensors, mechanisms = len(mechanisms), (*mechanisms, *([reported] if reported else []))
    kinds = {(part.clipped, part.noised_by) for part in mechanisms}
    require(len(kinds) == 1, "mechanisms that agree on what is clipped and who adds noise", different=len(kinds))
    why = _unsupported(mechanisms, unit, adversary, examples)
    if why:
        return Claim(unit, adversary, inf, delta, "none", (why,), rounds)
    others = others or [NO_OTHERS] * len(mechanisms)
    receives, colluding = adversary in ("server", "aggregate"), any(one.colluding for one in others)
    parts = seen_by(mechanisms, others, unit, adversary)
    result, counted = accounted(parts, unit, delta, accountant, examples or 1)
    first = result.notes if isinf(result.epsilon) else ()
    beside = _REPORTED if metrics == "all" else _UNREPORTED
    if reported:
        thing, answers = reported.clipped, reported.steps
        numbers = "a loss, accuracies and a number of examples" if thing == "example" else "a loss and accuracies"
        beside = _NOISY.format(numbers=numbers, noise=reported.noise_multiplier, thing=thing, answers=answers)
    of_holders = (_ADDED,) if adversary != "aggregate" else (_BARE,) * bool(reported)
    holders = of_holders if colluding else ()
    trusted = (_IGNORED,) if metrics == "all" and receives else ()
    aggregated = (_SEES[adversary], _PLAIN) if adversary == "aggregate" else ()
    sentences = (*first, *aggregated, *trusted, *counted, *_of_the_run(parts[:tensors]), _SEES[adversary])
    sentences += (*(_KNOWN if mechanisms[0].clipped == "example" else ()), _CLASSES)
    sentences += (*(() if trusted else (beside,)), *holders, *(_SECURE if secure else _SEEDED), *_ALWAYS, *result.notes)
    return Claim(unit, adversary, result.epsilon, delta, result.accountant, tuple(dict.fromkeys(sentences)), rounds)


def _unsupported(mechanisms: Sequence[Mechanism], unit: Unit, adversary: Adversary, examples: int | None) -> str:
    if mechanisms[0].noised_by == "server" and adversary == "server":
        return "The server adds the noise itself and sees every message without it: against it nothing is claimed."
    if mechanisms[0].noised_by == "server" and adversary == "aggregate":
        return "The server adds the noise to the sum, which it sees without it: against it nothing is claimed."
    if any(part.clipping_norm == inf and part.steps for part in mechanisms):
        return f"Nothing is clipped, so one {unit} can change a sum by any amount: no noise is known to be enough."
    if mechanisms[0].clipped == "example" and unit != "example" and examples is None:
        return f"Single examples are clipped, and how many of them one {unit} has is not known: no number holds."
    return ""


def _of_the_run(parts: Sequence[SeenMechanism]) -> list[str]:
    """Describe clipping, noise and sampling in sentences, for each mechanism and in total."""
    sentences = [sentence for part, others in parts for sentence in _of_a_mechanism(part, others.max_copies)]
    mechanisms = [part.mechanism for part in parts]
    steps = sum(part.steps for part in mechanisms)
    sigmas = [part.noise_multiplier / sqrt(part.noise_divisor) for part in mechanisms]
    rates = [part.sampling_rate for part in mechanisms]
    noise = f"Gaussian noise of {_span(sigmas)} times the bound is added"
    by = (
        "each client, to its own sum"
        if mechanisms[0].noised_by == "client"
        else "the server, which is trusted, to the sum"
    )
    sentences.append(f"{noise} by {by}, in {steps} steps.")
    sentences += _of_the_sums(parts)
    if any(part.amplified for part in mechanisms):
        sentences.append(f"The probability to be drawn in a step is {_span(rates)}.")
    return sentences


def _of_the_sums(parts: Sequence[SeenMechanism]) -> list[str]:
    """Describe the noise that adds up in a sum; nothing where each client's noise counts by itself."""
    summed = [others.min_summed_updates for _, others in parts]
    if max(others.min_summed_updates + others.colluding for _, others in parts) == 1:
        return []
    noises = [one.noise_multiplier * sqrt(s.min_summed_updates / one.noise_divisor) for one, s in parts]
    return [
        f"A sum has the noise of {_span(summed)} client{'s' * (max(summed) > 1)} or more in it, also where clients drop"
        f" out, and nobody takes it off: together {_span(noises)} times the bound. Clients that add none, or that work"
        " together with the adversary, are not among these (--expert colluding_clients)."
    ]


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _of_a_mechanism(part: Mechanism, copies: int) -> list[str]:
    noisy_clients = (part.clipped, part.noised_by) == ("client", "client")
    thing = "example's gradient" if part.clipped == "example" else "client's update"
    norm = f"Each {thing} is clipped to an L2 norm of {part.clipping_norm:g}"
    if part.groups > 1:
        norm += f" in each of {part.groups} groups of tensors, so that it counts {sqrt(part.groups):.3g} times"
    sentences = [f"{norm}."]
    if part.noise_per == "example":
        sentences.append(f"Noise is drawn {part.batch} times in each step, also where a batch holds fewer examples.")
    taken = part.steps if part.max_participations is None else part.max_participations
    if part.sampling_rate == 1 and taken == part.steps:
        sentences.append(f"No sampling is counted, for each {part.clipped} may be in every step: nobody need be drawn.")
    elif part.bins:
        sentences.append(
            f"Each example takes part in one of the {part.bins} or more steps of a pass, by a uniform choice of its own"
            f" that the adversary never learns, and in {part.max_participations} passes at most."
        )
    elif part.amplified:
        sentences.append(
            f"Each {part.clipped} is drawn by a coin of its own, and the adversary never learns who was drawn."
        )
    else:
        why = "they are not drawn by independent coins that nobody else knows"
        if part.poisson:
            why = "who is not drawn adds no noise either" if noisy_clients else "a noisy sum holds several steps"
        sentences.append(f"Samples give no credit, for {why}.")
        sentences.append(f"One {part.clipped} takes part in at most {taken} of {part.steps} steps.")
    if part.bands > 1:
        sentences.append(
            f"The noise of a step is added to a weighted sum of the last {part.bands} steps, with weights of length 1;"
            f" the steps of one {part.clipped} are at least {part.bands} apart, so that no such sum holds it twice. The"
            f" last {part.bands - 1} of them lie without noise in the server's checkpoint, which it keeps to itself."
        )
    if copies > 1:
        sentences.append(f"No example is held by more than {copies} clients; all of them are counted.")
    return sentences
