"""What a run asks of privacy, settled before it begins: the noise for a target, the last round of a budget, its source.

A target is met by the least noise, a budget by the last round that keeps it. Both apply to the unit that the method
protects, an example or a client, against the server; against an outsider where the server adds the noise; and against
who sees sums alone where each client adds a share of the noise.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from flfw import data
from flfw.data import catalogue
from flfw.data.readers.table import stating
from flfw.data.splits.lazy_parts import LazyParts, total
from flfw.data.splits.partition import Split
from flfw.dp.private_metrics import PrivatelyReporting
from flfw.dp.run_accountant import RunAccountant, is_known, least_summed
from flfw.dp.settings import adds_own_noise
from flfw.errors import InputError, require
from flfw.experiment import AGGREGATE, PEER
from flfw.plans.run_plan import RunPlan
from flfw.plugins import short_name, split_assignment
from flfw.privacy.accountants import Accountant, epsilon, largest
from flfw.privacy.calibration import calibrate_noise_multiplier
from flfw.privacy.mechanism import SeenMechanism
from flfw.privacy.rounding import at_most
from flfw.task.client_plan import ClientPlan

_NOISE, _SOURCE, _SHARES = "noise_multiplier", "noise_source", "noise_shares"
_IN_THEIR_OWN = (
    "No epsilon is claimed here, as only each site knows its number of examples: a site with a budget counts for "
    "itself (python -m flfw.deploy status)."
)


def resolve_noise(run: RunPlan, split: Split) -> tuple[RunPlan, list[str]]:
    """Find the noise for a target, and the last round within a budget.

    Args:
        run: the run. A noise that an earlier call found is computed again, and refused if it differs.
        split: of its data.

    Returns:
        The run with the noise among its settings and with no more rounds than the budget allows; notes.

    Raises:
        InputError: the method claims nothing, the noise was set as well, not even one round keeps the budget, a sum may
            hold fewer shares of the noise than make it up, only sites know their numbers of examples and the settings
            need them, or private metrics would protect nothing.
    """
    run = _with_secret_noise(run)
    plan, privacy = run.client, run.client.privacy
    one_each = LazyParts(plan.rounds.clients, 1, lambda client: np.array([client]), copies=1)
    known = is_known(split)  # of data that only sites have, a mechanism is found as if each had one example
    accountant = RunAccountant(plan, split if known else replace(split, train=one_each))
    sums = {AGGREGATE, PEER} & set(run.audit.probes.vantage)
    if not sums or adds_own_noise(plan.settings):  # else who colludes counts for attackers alone
        _require_whole_noise(plan)
        _require_noise_of_others(accountant)
    _require_noise_for_metrics(accountant)
    probed = bool(run.audit.audited)
    notes = [] if accountant.counted is None else _remarks(accountant, probed) if known else _of_sites(plan)
    if privacy.target_epsilon and privacy.epsilon_budget:
        raise InputError(
            "Expected either --target-epsilon or --expert epsilon_budget, got both; a target is met by the last round."
        )
    if privacy.target_epsilon:
        run = _with_noise_for(run, split)
    if privacy.epsilon_budget and (last := _last_round(plan, split)) < plan.rounds.rounds:
        run = run.replaced(rounds=last)
        notes.append(
            f"Training ends after round {last} of {plan.rounds.rounds}: another one would exceed "
            f"--expert epsilon_budget={privacy.epsilon_budget:g}."
        )
    return run, notes


def _of_sites(plan: ClientPlan) -> list[str]:
    """Return notes on data of sites, for which nothing is claimed here: their numbers of examples are not known.

    Raises:
        InputError: a target or a budget, which would need these numbers, or noise that the server can repeat.
    """
    for name, flag in (("target_epsilon", "--target-epsilon"), ("epsilon_budget", "--expert epsilon_budget")):
        way = f"no {flag} for {plan.task.data.dataset}, as only each site knows its number of examples"
        requested = getattr(plan.privacy, name)
        require(not requested, f"{way}; let the sites set budgets", **{name: requested})
    source = getattr(plan.settings, "noise_source", "secure")
    require(source == "secure", f"noise_source=secure for {plan.task.data.dataset}", noise_source=source)
    return [_IN_THEIR_OWN]


def _require_noise_for_metrics(accountant: RunAccountant) -> None:
    """Refuse private metrics beside a method that protects nothing against the server, or whose clients have none."""
    plan = accountant.plan
    if plan.privacy.metrics != "private":
        return
    noisy = accountant.counted is not None and issubclass(plan.client_class, PrivatelyReporting)
    require(noisy, "a method whose clients add noise for --metrics private", method=plan.name)
    if isinstance(accountant.counted, str):
        raise _nothing_claimed(plan, "metrics private", accountant.counted)
    server = "noise at the clients for --metrics private; the server adds it, so use --metrics all or none"
    by_client = accountant.mechanism is not None and accountant.mechanism.noised_by == "client"
    require(by_client, server, method=plan.name)


def _remarks(accountant: RunAccountant, probed: bool) -> list[str]:
    privacy, mechanism = accountant.plan.privacy, accountant.mechanism
    notes, examples = [], total(accountant.split.train)
    if probed:
        notes.append("Epsilons do not count the audit's probes, which are for whoever runs the experiment.")
    summed = accountant.others("client")[0].min_summed_updates > 1
    shared = mechanism is not None and mechanism.noise_divisor > 1 and summed
    if shared and (privacy.target_epsilon or privacy.epsilon_budget):
        notes.append(
            "The epsilon that is asked for is kept against who sees sums alone (aggregate), as each client adds a "
            "share of the noise; against the server, which sees every update, it is larger."
        )
    if privacy.delta * examples >= 1:
        notes.append(
            f"delta={privacy.delta:g} is not below one over the {examples} examples: with such a probability one of "
            "them may be given away whole."
        )
    return notes


def _require_whole_noise(plan: ClientPlan) -> None:
    """Refuse more shares of the noise than there surely are in a sum; a single client is one of others elsewhere."""
    shares, colluding = getattr(plan.settings, _SHARES, 1), plan.privacy.colluding_clients
    summed = least_summed(plan.rounds, colluding)
    honest = " of clients that do not collude" if colluding else ""
    surely = (
        f"{_SHARES} <= {summed}, the updates{honest} that are surely in a round's sum "
        "(--sample, --expert on_client_failure)"
    )
    require(plan.rounds.clients == 1 or shares <= summed, surely, **{_SHARES: shares})


def _require_noise_of_others(accountant: RunAccountant) -> None:
    """Refuse colluding clients where a sum counts as its single updates: of theirs nothing is known."""
    plan, colluding = accountant.plan, accountant.plan.privacy.colluding_clients
    if not colluding:
        return
    noisy, rest = adds_own_noise(plan.settings), "counts no noise of other clients in a sum"
    require(noisy, f"colluding-clients=0 with method={plan.name}, which {rest}", colluding_clients=colluding)
    beside = f"colluding-clients=0 with defence={plan.defences.name}, beside which a claim {rest}"
    counted = isinstance(accountant.counted, str) or accountant.others("client")[0].colluding > 0
    require(counted, beside, colluding_clients=colluding)


def require_calibrated(target_epsilon: float, assignments: Sequence[str]) -> None:
    """Refuse to train for a target epsilon whose noise was not computed: other noise would be used.

    Args:
        target_epsilon: of the run; 0: none.
        assignments: settings of plug-ins, as ``--set`` has them.

    Raises:
        InputError: naming the program that computes it.
    """
    is_set = any(split_assignment(one)[0].rpartition(".")[2] == _NOISE for one in assignments)
    way = f"a run started by sim.py, which finds the noise for --target-epsilon, or {_NOISE}=... in set"
    require(not target_epsilon or is_set, way, target_epsilon=target_epsilon)


def _with_noise_for(run: RunPlan, split: Split) -> RunPlan:
    given = _assigned(run, _NOISE)
    unset = tuple(one for one in run.task.assignments if one not in given)
    clients, by = _targeted(RunAccountant(run.replaced(set=unset).client, split), "target-epsilon")
    target, delta = run.client.privacy.target_epsilon, run.client.privacy.delta
    taken = max((epsilon(beside, delta, by) for _, *beside in clients if beside), default=0.0)
    more = f"target-epsilon > {at_most(taken, 4)}, which the private metrics take"
    require(taken < target, more, target_epsilon=target)
    minimum = calibrate_noise_multiplier(target, clients, delta, by)
    noise = f"{_NOISE}={minimum!r}"
    if given and given != [noise]:
        raise InputError(
            f"Expected either --target-epsilon or --set {_NOISE}, got both, and with these settings {target:g} needs "
            f"{minimum:.4g}; leave one out, or resume with the settings that the run began with."
        )
    return run.replaced(set=(*unset, noise))


def _assigned(run: RunPlan, field: str) -> list[str]:
    """Return the assignments of a field of the method."""
    names = (field, f"{short_name(run.client.name)}.{field}")
    return [one for one in run.task.assignments if split_assignment(one)[0] in names]


def _with_secret_noise(run: RunPlan) -> RunPlan:
    """Choose secret noise for real clients, in words that the run's record shows, unless a source was chosen."""
    if not run.client.real or _assigned(run, _SOURCE) or not hasattr(run.client.settings, _SOURCE):
        return run
    return run.replaced(set=(*run.task.assignments, f"{_SOURCE}=secure"))


def spent(plan: ClientPlan, split: Split, rounds: int, again: int = 0, summed: int = 0) -> float:
    """Return what a run takes of its budget in so many rounds, with some asked for again; see `RunAccountant`."""
    fewer = replace(plan, rounds=replace(plan.rounds, rounds=rounds))
    clients, by = _targeted(RunAccountant(fewer, split, again, summed), "epsilon-budget")
    return largest(lambda client, by: epsilon(client, plan.privacy.delta, by), clients, by)[1]


def _last_round(plan: ClientPlan, split: Split) -> int:
    """Return the last round that keeps the run's budget."""
    through, last = partial(spent, plan, split), plan.rounds.rounds
    budget, minimum = plan.privacy.epsilon_budget, through(1)
    require(minimum <= budget, f"epsilon-budget >= {at_most(minimum, 4)}, which one round takes", epsilon_budget=budget)
    return last if through(last) <= budget else 1 + bisect_right(range(2, last), budget, key=through)


def _nothing_claimed(plan: ClientPlan, flag: str, why: str) -> InputError:
    """Return the refusal of a flag; for a user's own table with the two commands that give it a public plan."""
    name, privacy = plan.task.data.dataset, plan.privacy
    if data.is_table(name) and why == catalogue.OWN_SCALES:
        command, name = stating(name)
        target = f" --target-epsilon {privacy.target_epsilon:g}" * (privacy.target_epsilon > 0)
        again = f"flfw run --method {plan.name} --dataset {name}{target}"
        ranges = "LOW:HIGH of numbers or days, or WORD,WORD"
        why += f" Two commands, with {ranges} for each RANGE, and with your other flags: `{command}` and `{again}`."
    return InputError(f"Expected settings with which something can be claimed for --{flag}. {why}")


def _targeted(accountant: RunAccountant, flag: str) -> tuple[list[tuple[SeenMechanism, ...]], Accountant]:
    """Return each client's mechanisms and the accountant of a target or a budget, for the unit that is clipped.

    The method's mechanism is a client's first. That of private metrics follows, if there are any and they are counted.
    """
    plan, privacy = accountant.plan, accountant.plan.privacy
    if (counted := accountant.counted) is None:
        way = "; dp_fedavg does, which a run without --method takes" * (flag == "target-epsilon")
        raise InputError(f"Expected a method that claims privacy for --{flag}, got method={plan.name}{way}.")
    if privacy.accountant == "paper" and (published := accountant.published):
        return [(SeenMechanism(next(iter(one.units.values()))),) for one in published], published[0].accountant
    if isinstance(counted, str):
        raise _nothing_claimed(plan, flag, counted)
    mechanism = counted[0].parts[0]
    if plan.real and privacy.metrics == "all" and mechanism.noised_by == "client":
        raise InputError(
            f"Expected --metrics private or none with --{flag} on real clients, got metrics=all: their server receives "
            "what they report, and nothing is claimed against it."
        )
    adversary = "outsider" if mechanism.noised_by == "server" else "server"
    adversary = "aggregate" if mechanism.noise_divisor > 1 else adversary
    return accountant.against(mechanism.clipped, adversary), privacy.tightest
