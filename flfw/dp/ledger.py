"""Privacy claims of an experiment, from its course, known before it starts, and the method's mechanism.

A target is met by the least noise, a budget by the last round that keeps it. Both apply to the unit that the method
protects, an example or a client, against the server, or against an outsider where the server adds the noise.

Sampling of whole clients gives an example no credit against any adversary. It decides about all the other examples of
the client too, so a round without the client is not the round without the example.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isinf
from typing import Any, final

import numpy as np

from flfw.data.splits.partition import Split
from flfw.errors import BadInput, require
from flfw.experiment import Experiment
from flfw.plugins import short_name, split_assignment
from flfw.privacy.accountants import Accountant, account, noise_for
from flfw.privacy.claims import ADVERSARIES, Adversary, Claim, Unit, claim
from flfw.privacy.course import Course
from flfw.privacy.mechanism import Mechanism, phases
from flfw.privacy.published import Published
from flfw.resolve import Resolved
from flfw.server.cohorts import most_participations

_NOISE = "noise_multiplier"
_VOIDING = {
    "batch": "changes batches: one example may be in several rows.",
    "step": "looks at the batch again, after the noise that is counted.",
}
_FROM_THE_SEED = (
    "The noise of this run comes from its seed, which the server and every client have: the figure is that of the same "
    "run with noise_source=system."
)
_RECEIVED = (
    "The server of this federation receives losses, accuracies and numbers of examples without noise (metrics=all), "
    "and they tell presence: against it nothing is claimed. Use metrics=none."
)
_ENDS_EARLY = (
    "When training ends follows from the validation accuracies that clients report: the figure is of all the rounds "
    "there may be, and what the end itself tells is outside the count."
)


def course(resolved: Resolved, split: Split) -> Course:
    """Return the facts of a whole run that its privacy depends on."""
    experiment = resolved.experiment
    sizes = [len(indices) for indices in split.train]
    held = np.unique(np.concatenate([np.unique(indices) for indices in split.train]), return_counts=True)[1]
    trained = {name: p.numel() for name, p in resolved.model.named_parameters() if p.requires_grad}
    drawing = (experiment.clients, experiment.sample, experiment.sampling, experiment.seed, experiment.rounds)
    return Course(
        rounds=experiment.rounds,
        participations=most_participations(*drawing),
        clients=experiment.clients,
        cohort=experiment.cohort,
        poisson=experiment.sampling == "poisson" and experiment.cohort < experiment.clients,
        fewest=min(sizes),
        most=max(sizes),
        batch=experiment.batch_size,
        epochs=experiment.local_epochs,
        replication=int(held.max()),
        tensors=trained,
    )


@final
@dataclass(frozen=True)
class Ledger:
    """Privacy claims of an experiment.

    Args:
        resolved: the experiment.
        split: of its data.
        resumed: how often the run was resumed. Each time a round may have been sent twice. If nobody can repeat the
            noise, it had other noise, and that many more rounds are counted.
    """

    resolved: Resolved
    split: Split
    resumed: int = 0

    @property
    def experiment(self) -> Experiment:
        """Experiment whose privacy is claimed."""
        return self.resolved.experiment

    @property
    def mechanism(self) -> Mechanism | None:
        """Mechanism of the whole run; None: the method claims nothing, or numbers of examples are not known here."""
        if not _is_known(self.split):
            return None
        settings = self.resolved.settings
        mechanism = self.resolved.method.mechanism(settings, self._course(settings))
        if mechanism is None or not self.experiment.defended_partitions:
            return mechanism
        for hook, deed in _VOIDING.items():
            voiding = [stage.name for stage in self.resolved.stages if hook in stage.acts_at]
            if voiding:
                return replace(mechanism, void=f"{voiding[0]} {deed}")
        return mechanism

    def _course(self, settings: Any) -> Course:
        known = course(self.resolved, self.split)
        again = self.resumed if getattr(settings, "noise_source", "seed") == "system" else 0
        return replace(known, rounds=known.rounds + again, participations=known.participations + again)

    @property
    def published(self) -> Published | None:
        """Accounting of the method's paper, if it has one."""
        if not _is_known(self.split):
            return None
        return self.resolved.method.as_published(self.resolved.settings, course(self.resolved, self.split))

    def claims(self) -> list[Claim]:
        """Return the claim on the whole run for each unit and adversary; empty: nothing is claimed."""
        mechanism = self.mechanism
        if mechanism is None:
            return []
        patients = self.experiment.patient_examples
        sizes: dict[Unit, int | None] = {"example": 1, "client": max(map(len, self.split.train))}
        sizes |= {"patient": patients} if patients else {}
        return [
            self._claim(mechanism, unit, adversary, size) for unit, size in sizes.items() for adversary in ADVERSARIES
        ]

    def entries(self) -> list[dict[str, Any]]:
        """Return ``privacy`` of result.json: the claims and, if asked for, the paper's figures, each with its kind."""
        entries = [{**one.as_dict(), "certainty": one.certainty, "counted": "exact"} for one in self.claims()]
        published = self.published if self.experiment.accounting == "paper" else None
        if published is None:
            return entries
        delta, rounds = self.experiment.delta, self.experiment.rounds
        for unit in published.units:
            epsilon = published.epsilon(unit, delta)
            figures = {"unit": unit, "adversary": "not told apart", "epsilon": "inf" if isinf(epsilon) else epsilon}
            figures |= {"delta": delta, "accountant": published.accountant, "assumptions": list(published.remarks)}
            entries.append({**figures, "rounds": rounds, "counted": "as published"})
        return entries

    def _claim(self, mechanism: Mechanism, unit: Unit, adversary: Adversary, examples: int | None) -> Claim:
        asked = self.experiment
        result = claim(mechanism, unit, adversary, asked.delta, asked.rounds, asked.accountant, examples, asked.metrics)
        if adversary == "server" and asked.federation and asked.metrics == "all" and not isinf(result.epsilon):
            return replace(result, epsilon=inf, accountant="none", assumptions=(_RECEIVED,))
        settings = self.resolved.settings
        if isinf(result.epsilon):
            return result
        if asked.patience:  # a figure of the actual rounds would hold only for an end that depends on no data
            result = replace(result, assumptions=(*result.assumptions, _ENDS_EARLY))
        if getattr(settings, "noise_source", "system") == "system":
            return result
        return replace(result, assumptions=(_FROM_THE_SEED, *result.assumptions))


def settle(resolved: Resolved, split: Split) -> tuple[Resolved, list[str]]:
    """Find the noise for a target, and the last round within a budget.

    Args:
        resolved: the experiment. Settings that were found before stay as they are.
        split: of its data.

    Returns:
        The experiment with the noise among its settings and with no more rounds than the budget allows; notes.

    Raises:
        BadInput: the method claims nothing, the noise was set as well, not even one round keeps the budget, or the
            method would claim something where only sites know their numbers of examples.
    """
    _require_known(resolved, split)
    notes, experiment = _remarks(resolved, split), resolved.experiment
    if experiment.target_epsilon and experiment.epsilon_budget:
        raise BadInput(
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


def _is_known(split: Split) -> bool:
    """Return whether each client's number of examples is known here; for data of sites it is not."""
    return any(map(len, split.train))


def _require_known(resolved: Resolved, split: Split) -> None:
    """Refuse claims on data of sites: an example's sampling rate depends on each client's number of examples."""
    if _is_known(split):
        return
    experiment = resolved.experiment
    one_each = replace(split, train=tuple(np.array([client]) for client in range(experiment.clients)))
    nothing = f"a method that claims no epsilon for {experiment.dataset}, as that depends on each client's number of "
    nothing += "examples, which only its site knows; claim it for folder:PATH in a simulation"
    require(Ledger(resolved, one_each).mechanism is None, nothing, method=experiment.method)


def _remarks(resolved: Resolved, split: Split) -> list[str]:
    experiment = resolved.experiment
    if Ledger(resolved, split).mechanism is None:
        return []
    notes, examples = [], sum(map(len, split.train))
    if experiment.audited:
        notes.append("Epsilons do not count the audit's probes, which are for whoever runs the experiment.")
    if experiment.delta * examples >= 1:
        notes.append(
            f"delta={experiment.delta:g} is not below one over the {examples} examples: with such a probability one of "
            "them may be given away whole."
        )
    return notes


def require_settled(experiment: Experiment) -> None:
    """Refuse to train for a target epsilon whose noise was not computed: other noise would be used.

    Raises:
        BadInput: naming the program that computes it.
    """
    is_set = any(split_assignment(one)[0].rpartition(".")[2] == _NOISE for one in experiment.set)
    way = f"a run started by sim.py, which finds the noise for --target-epsilon, or {_NOISE}=... in set"
    require(not experiment.target_epsilon or is_set, way, target_epsilon=experiment.target_epsilon)


def _with_noise_for(resolved: Resolved, split: Split) -> Resolved:
    experiment = resolved.experiment
    names = (_NOISE, f"{short_name(experiment.method)}.{_NOISE}")
    given = [one for one in experiment.set if split_assignment(one)[0] in names]
    unset = tuple(one for one in experiment.set if one not in given)
    counted, accountant = _goal(resolved.replaced(set=unset), split, "target-epsilon")
    least = noise_for(experiment.target_epsilon, counted, experiment.delta, accountant)[0]
    noise = f"{_NOISE}={least!r}"
    if given and given != [noise]:
        raise BadInput(f"Expected either --target-epsilon or --set {_NOISE}, got both; leave one out.")
    return resolved.replaced(set=(*unset, noise))


def _within_budget(resolved: Resolved, split: Split) -> Resolved:
    experiment = resolved.experiment

    def spent(rounds: int) -> float:
        counted, accountant = _goal(resolved.replaced(rounds=rounds, audit_rounds="0"), split, "epsilon-budget")
        return account(phases(counted), experiment.delta, accountant).epsilon

    budget, least = experiment.epsilon_budget, spent(1)
    require(least <= budget, f"epsilon-budget >= {least:.4g}, which one round takes", epsilon_budget=budget)
    if spent(experiment.rounds) <= budget:
        return resolved
    low, high = 1, experiment.rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if spent(middle) <= budget else (low, middle)
    return resolved.replaced(rounds=low)


def _goal(resolved: Resolved, split: Split, flag: str) -> tuple[Mechanism, Accountant]:
    """Return the mechanism and the accountant of a target or a budget, for the unit that is clipped."""
    ledger, experiment = Ledger(resolved, split), resolved.experiment
    mechanism = ledger.mechanism
    if mechanism is None:
        raise BadInput(f"Expected a method that claims privacy for --{flag}, got method={experiment.method}.")
    published = ledger.published if experiment.accounting == "paper" else None
    if published and mechanism.clipped in published.units:
        return published.units[mechanism.clipped], published.accountant
    if mechanism.void:
        raise BadInput(f"Expected settings with which something can be claimed for --{flag}. {mechanism.void}")
    if mechanism.clipped == "client":  # copies of an example in other clients belong to those clients
        mechanism = replace(mechanism, replication=1)
    return mechanism, experiment.accountant
