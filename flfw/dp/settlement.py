"""Settlement of what an experiment asks of privacy: the noise for a target, the last round of a budget, its source.

A target is met by the least noise, a budget by the last round that keeps it. Both apply to the unit that the method
protects, an example or a client, against the server; against an outsider where the server adds the noise; and against
who sees sums alone where each client adds a share of the noise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flfw.data.splits.lazy_parts import LazyParts, total
from flfw.data.splits.partition import Split
from flfw.dp.reporting import PrivatelyReporting
from flfw.dp.run_accountant import RunAccountant, is_known, least_summed
from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.plugins import short_name, split_assignment
from flfw.privacy.accountants import Accountant, compute_epsilon
from flfw.privacy.calibration import noise_for
from flfw.privacy.mechanism import Mechanism, gaussian_events
from flfw.privacy.rounding import at_most
from flfw.resolve import Resolved

_NOISE, _SOURCE, _SHARES = "noise_multiplier", "noise_source", "noise_shares"
_IN_THEIR_OWN = (
    "No epsilon is claimed here, as only each site knows its number of examples: a site with a budget counts for "
    "itself (python -m flfw.deploy status)."
)


def calibrate_noise(resolved: Resolved, split: Split) -> tuple[Resolved, list[str]]:
    """Find the noise for a target, and the last round within a budget.

    Args:
        resolved: the experiment. Settings that were found before stay as they are.
        split: of its data.

    Returns:
        The experiment with the noise among its settings and with no more rounds than the budget allows; notes.

    Raises:
        InputError: the method claims nothing, the noise was set as well, not even one round keeps the budget, a sum may
            hold fewer shares of the noise than make it up, only sites know their numbers of examples and the settings
            need them, or private metrics would protect nothing.
    """
    resolved = _with_secret_noise(resolved)
    _require_whole_noise(resolved)
    _require_noise_of_others(resolved, split)
    _require_noise_for_metrics(resolved, split)
    notes, experiment = [*_of_sites(resolved, split), *_remarks(resolved, split)], resolved.experiment
    if experiment.target_epsilon and experiment.epsilon_budget:
        raise InputError(
            "Expected either --target-epsilon or --epsilon-budget, got both; a target is met by the last round."
        )
    if experiment.target_epsilon:
        resolved = _with_noise_for(resolved, split)
    if experiment.epsilon_budget:
        resolved = _within_budget(resolved, split)
        last = resolved.experiment.rounds
        if last < experiment.rounds:
            notes.append(
                f"Training ends after round {last} of {experiment.rounds}: another one would exceed "
                f"--epsilon-budget {experiment.epsilon_budget:g}."
            )
    return resolved, notes


def _of_sites(resolved: Resolved, split: Split) -> list[str]:
    """Return notes on data of sites, for which nothing is claimed here: their numbers of examples are not known.

    Raises:
        InputError: a target or a budget, which would need these numbers, or noise that the server can repeat.
    """
    experiment = resolved.experiment
    if is_known(split) or _mechanism(resolved, split) is None:
        return []
    for name in ("target_epsilon", "epsilon_budget"):
        flag = name.replace("_", "-")
        way = f"no --{flag} for {experiment.dataset}, as only each site knows its number of examples"
        require(not getattr(experiment, name), f"{way}; let the sites set budgets", **{name: getattr(experiment, name)})
    source = getattr(resolved.settings, "noise_source", "secure")
    require(source == "secure", f"noise_source=secure for {experiment.dataset}", noise_source=source)
    return [_IN_THEIR_OWN]


def _mechanism(resolved: Resolved, split: Split) -> Mechanism | None:
    """Return the method's mechanism; of data that only sites have, as if each had one example."""
    one_each = LazyParts(resolved.experiment.clients, 1, lambda client: np.array([client]), copies=1)
    return RunAccountant(resolved, split if is_known(split) else replace(split, train=one_each)).mechanism


def _require_noise_for_metrics(resolved: Resolved, split: Split) -> None:
    """Refuse private metrics beside a method that protects nothing against the server, or whose clients have none."""
    if resolved.experiment.metrics != "private":
        return
    mechanism, method = _mechanism(resolved, split), resolved.experiment.method
    noisy = mechanism is not None and issubclass(resolved.client, PrivatelyReporting)
    require(noisy, "a method whose clients add noise for --metrics private", method=method)
    assert mechanism is not None
    if mechanism.void:
        raise InputError(
            f"Expected settings with which something can be claimed for --metrics private. {mechanism.void}"
        )
    server = "noise at the clients for --metrics private; the server adds it, so use --metrics all or none"
    require(mechanism.noised_by == "client", server, method=method)


def _remarks(resolved: Resolved, split: Split) -> list[str]:
    experiment = resolved.experiment
    if (mechanism := RunAccountant(resolved, split).mechanism) is None:
        return []
    notes, examples = [], total(split.train)
    if experiment.audited:
        notes.append("Epsilons do not count the audit's probes, which are for whoever runs the experiment.")
    if (
        (experiment.target_epsilon or experiment.epsilon_budget)
        and mechanism.noise_divisor > 1
        and mechanism.min_summed_updates > 1
    ):
        notes.append(
            "The epsilon that is asked for is kept against who sees sums alone (aggregate), as each client adds a "
            "share of the noise; against the server, which sees every update, it is larger."
        )
    if experiment.delta * examples >= 1:
        notes.append(
            f"delta={experiment.delta:g} is not below one over the {examples} examples: with such a probability one of "
            "them may be given away whole."
        )
    return notes


def _require_whole_noise(resolved: Resolved) -> None:
    """Refuse more shares of the noise than there surely are in a sum; a single client is one of others elsewhere."""
    experiment, shares = resolved.experiment, getattr(resolved.settings, _SHARES, 1)
    summed = least_summed(experiment)
    honest = " of clients that do not collude" if experiment.colluding_clients else ""
    surely = f"{_SHARES} <= {summed}, the updates{honest} that are surely in a round's sum (--sample, --min-clients)"
    require(experiment.clients == 1 or shares <= summed, surely, **{_SHARES: shares})


def _require_noise_of_others(resolved: Resolved, split: Split) -> None:
    """Refuse colluding clients where a sum counts as its single updates: of theirs nothing is known."""
    experiment, colluding = resolved.experiment, resolved.experiment.colluding_clients
    if not colluding:
        return
    noisy, rest = getattr(resolved.settings, "update_deviation", 0.0) > 0, "counts no noise of other clients in a sum"
    by_method = f"colluding-clients=0 with method={experiment.method}, which {rest}"
    require(noisy, by_method, colluding_clients=colluding)
    mechanism = _mechanism(resolved, split)
    beside = f"colluding-clients=0 with defence={experiment.defence}, beside which a claim {rest}"
    require(mechanism is not None and mechanism.colluding > 0, beside, colluding_clients=colluding)


def require_calibrated(experiment: Experiment) -> None:
    """Refuse to train for a target epsilon whose noise was not computed: other noise would be used.

    Raises:
        InputError: naming the program that computes it.
    """
    is_set = any(split_assignment(one)[0].rpartition(".")[2] == _NOISE for one in experiment.set)
    way = f"a run started by sim.py, which finds the noise for --target-epsilon, or {_NOISE}=... in set"
    require(not experiment.target_epsilon or is_set, way, target_epsilon=experiment.target_epsilon)


def _with_noise_for(resolved: Resolved, split: Split) -> Resolved:
    experiment = resolved.experiment
    names = (_NOISE, f"{short_name(experiment.method)}.{_NOISE}")
    given = [one for one in experiment.set if split_assignment(one)[0] in names]
    unset = tuple(one for one in experiment.set if one not in given)
    (counted, *beside), accountant = _goal(resolved.replaced(set=unset), split, "target-epsilon")
    target, delta = experiment.target_epsilon, experiment.delta
    if beside:
        taken = compute_epsilon(gaussian_events(beside), delta, accountant).epsilon
        more = f"target-epsilon > {at_most(taken, 4)}, which the private metrics take"
        require(taken < target, more, target_epsilon=target)
    least = noise_for(target, counted, delta, accountant, beside)[0]
    noise = f"{_NOISE}={least!r}"
    if given and given != [noise]:
        raise InputError(
            f"Expected either --target-epsilon or --set {_NOISE}, got both, and with these settings {target:g} needs "
            f"{least:.4g}; leave one out, or resume with the settings that the run began with."
        )
    return resolved.replaced(set=(*unset, noise))


def _with_secret_noise(resolved: Resolved) -> Resolved:
    """Choose secret noise for real clients, in words that the run's record shows, unless a source was chosen."""
    experiment = resolved.experiment
    names = (_SOURCE, f"{short_name(experiment.method)}.{_SOURCE}")
    chosen = any(split_assignment(one)[0] in names for one in experiment.set)
    if experiment.federation is None or chosen or not hasattr(resolved.settings, _SOURCE):
        return resolved
    return resolved.replaced(set=(*experiment.set, f"{_SOURCE}=secure"))


def within_budget(resolved: Resolved, split: Split, rounds: int, again: int, summed: int = 0) -> bool:
    """Return whether a run keeps its budget after so many rounds, with some asked for again; see `RunAccountant`."""
    return _spent(resolved, split, rounds, again, summed) <= resolved.experiment.epsilon_budget


def _spent(resolved: Resolved, split: Split, rounds: int, again: int = 0, summed: int = 0) -> float:
    fewer = resolved.replaced(rounds=rounds, audit_rounds="0")
    counted, accountant = _goal(fewer, split, "epsilon-budget", again, summed)
    return compute_epsilon(gaussian_events(counted), resolved.experiment.delta, accountant).epsilon


def _within_budget(resolved: Resolved, split: Split) -> Resolved:
    experiment = resolved.experiment

    def spent(rounds: int) -> float:
        return _spent(resolved, split, rounds)

    budget, least = experiment.epsilon_budget, spent(1)
    require(least <= budget, f"epsilon-budget >= {at_most(least, 4)}, which one round takes", epsilon_budget=budget)
    if spent(experiment.rounds) <= budget:
        return resolved
    low, high = 1, experiment.rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if spent(middle) <= budget else (low, middle)
    return resolved.replaced(rounds=low)


def _goal(
    resolved: Resolved, split: Split, flag: str, again: int = 0, summed: int = 0
) -> tuple[tuple[Mechanism, ...], Accountant]:
    """Return the mechanisms and the accountant of a target or a budget, for the unit that is clipped.

    The method's mechanism is the first. That of private metrics follows, if there are any and they are counted.
    """
    ledger, experiment = RunAccountant(resolved, split, again, summed), resolved.experiment
    mechanism, reported = ledger.mechanism, ledger.reported
    if mechanism is None:
        raise InputError(f"Expected a method that claims privacy for --{flag}, got method={experiment.method}.")
    published = ledger.published if experiment.accounting == "paper" else None
    if published and mechanism.clipped in published.units:
        return (published.units[mechanism.clipped],), published.accountant
    if mechanism.void:
        raise InputError(f"Expected settings with which something can be claimed for --{flag}. {mechanism.void}")
    if experiment.federation is not None and experiment.metrics == "all" and mechanism.noised_by == "client":
        raise InputError(
            f"Expected --metrics private or none with --{flag} on real clients, got metrics=all: their server receives "
            "what they report, and nothing is claimed against it."
        )
    counted = (mechanism, reported) if reported else (mechanism,)
    if mechanism.clipped == "client":  # copies of an example in other clients belong to those clients
        counted = tuple(replace(part, max_copies=1) for part in counted)
    return tuple(part if part.noise_divisor > 1 else part.alone for part in counted), experiment.accountant
