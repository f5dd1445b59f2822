"""Epsilon of a unit that is not the one that is clipped: a group of examples, or a part of a client.

If examples are clipped, a patient with several examples or a client with hundreds is a group, and a group's epsilon
grows with its size; it is not the epsilon of one example. If clients are clipped, removing one client is covered;
changing one of its examples exchanges an update for another, which counts as much as removing two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import exp, expm1, inf, isinf, log

from flfw.privacy.accountants import Accountant, AccountedEpsilon, compute_epsilon
from flfw.privacy.mechanism import GaussianEvent, Mechanism, gaussian_events


def accounted(
    mechanisms: Sequence[Mechanism], unit: str, delta: float, accountant: Accountant, examples: int
) -> tuple[AccountedEpsilon, tuple[str, ...]]:
    """Compute the epsilon of a unit, with sentences on how it was counted."""
    whole = f"Neighbours: one {unit} more or less, its places left empty. Exchanging one for another counts twice."
    clients = mechanisms[0].clipped == "client"
    if mechanisms[0].is_distributed and unit == "client":
        whole = (
            "Neighbours: one client with its data, or with none: then its update is 0, and it sends its noise all the"
            " same. That a client takes part is known; of one that stays away the noise is missing, and who sees what"
            " is sent or summed can tell. Exchanging one for another counts twice."
        )
    if clients and unit != "client":
        whole = f"Neighbours: all data of one {unit} added, taken away or exchanged for others."
    copies = 1 if unit in (mechanisms[0].clipped, "example") else examples
    if copies == 1 and (not clients or unit == "client"):
        return compute_epsilon(gaussian_events(mechanisms), delta, accountant), (whole,)
    if clients:
        size, group = 2, f"Whole clients are clipped: one {unit} can exchange one update for another."
        direct = compute_epsilon(gaussian_events(mechanisms, 2, amplified=False), delta, accountant)
    else:
        size, group = copies, f"Single examples are clipped: the {copies} examples of one {unit} count as a group."
        direct = compute_epsilon(gaussian_events(mechanisms, copies), delta, accountant)
    options = [(direct, "It is taken to change every step that it takes part in as much as the whole group can.")]
    if any(part.amplified for part in mechanisms):
        if not clients:
            most, parts = _truncated(mechanisms, copies, delta)
            options.append((
                _raised(compute_epsilon(parts, delta / 2, accountant), delta),
                f"No more than {most} of the group are drawn in one step; half of delta is set aside for the contrary.",
            ))  # fmt: skip
        # Many deltas are tried, so only the fast accountants are used.
        one = partial(
            compute_epsilon, gaussian_events(mechanisms), accountant="moments" if accountant == "moments" else "rdp"
        )
        grouped, inner = _group_privacy(one, size, delta)
        times = f"{size} times the epsilon of one {mechanisms[0].clipped} at delta {inner:.1e}"
        options.append((grouped, f"It is counted by group privacy: {times}, by the accountant {grouped.accountant}."))
    best, how = min(options, key=lambda one: one[0].epsilon)
    return best, (whole, group, *([] if isinf(best.epsilon) else [how]))


def _raised(accounted: AccountedEpsilon, by: float) -> AccountedEpsilon:
    return replace(accounted, epsilon=accounted.epsilon + by)


def _truncated(mechanisms: Sequence[Mechanism], copies: int, delta: float) -> tuple[int, list[GaussianEvent]]:
    """Return phases as if no step drew more than m of n copies; this fails with total probability at most delta / 2.

    Let each of T steps draw more than m with probability t <= delta / 2T. The truncated steps P' are within T t of the
    true steps P in total variation, and P' <= P / (1 - t)^T. So a bound (e, delta / 2) for P' gives (e, delta) for P in
    one direction and (e + T log(1 / (1 - t)), delta / 2) in the other, with T log(1 / (1 - t)) below delta.

    Returns:
        The largest m, and the phases.
    """
    from scipy.stats import binom

    total = sum(part.phase(copies).steps for part in mechanisms)
    largest, parts = 1, []
    for part in mechanisms:
        phase = part.phase(copies)
        if part.amplified and total:
            n = copies * (part.max_copies if part.noised_by == "server" else 1)
            allowed = delta / (2 * total)
            most = max(1, int(binom.isf(allowed, n, part.sampling_rate)))
            while most < n and binom.sf(most, n, part.sampling_rate) > allowed:
                most += 1
            largest, phase = max(largest, most), replace(phase, noise_multiplier=part.multiplier / min(most, n))
        parts.append(phase)
    return largest, parts


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
