"""What an experiment may claim: its course, known before it starts, through the method's mechanism to epsilons.

A target is met by the least noise, a budget by the last round that keeps it. Both are about what the method itself
protects, an example or a client, against the server, or against an outsider where the server adds the noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isinf
from typing import Any, final

import numpy as np

from flfw import parts
from flfw.assignments import split_assignment
from flfw.cohorts import most_participations
from flfw.data.partition import Split
from flfw.errors import BadInput
from flfw.experiment import Experiment, require
from flfw.privacy.accountants import Accountant, account, noise_for
from flfw.privacy.claims import ADVERSARIES, Adversary, Claim, Unit, claim
from flfw.privacy.course import Course
from flfw.privacy.mechanism import Mechanism, phases
from flfw.privacy.published import Published

_NOISE = "noise_multiplier"


def course(experiment: Experiment, split: Split) -> Course:
    """Of a resolved experiment with its split."""
    sizes = [len(own) for own in split.train]
    held = np.unique(np.concatenate([np.unique(own) for own in split.train]), return_counts=True)[1]
    trained = {name: p.numel() for name, p in parts.blank_model(experiment).named_parameters() if p.requires_grad}
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
    """An experiment's claims.

    Args:
        experiment: resolved.
        split: of its data.
    """

    experiment: Experiment
    split: Split

    @property
    def mechanism(self) -> Mechanism | None:
        """What the whole run does; None: the method claims nothing."""
        cls, settings = parts.method(self.experiment)
        return cls.mechanism(settings, course(self.experiment, self.split))

    @property
    def published(self) -> Published | None:
        """As the method's paper counts, if it does."""
        cls, settings = parts.method(self.experiment)
        return cls.as_published(settings, course(self.experiment, self.split))

    def claims(self) -> list[Claim]:
        """For each unit and adversary what may be said of the whole run; empty: nothing is claimed."""
        found = self.mechanism
        if found is None:
            return []
        patients = self.experiment.patient_examples
        sizes: dict[Unit, int | None] = {"example": 1, "client": max(map(len, self.split.train))}
        sizes |= {"patient": patients} if patients else {}
        return [self._claim(found, unit, adversary, size) for unit, size in sizes.items() for adversary in ADVERSARIES]

    def entries(self) -> list[dict[str, Any]]:
        """``privacy`` of result.json: the claims and, if asked for, the paper's own figures, each with its kind."""
        entries = [{**one.as_dict(), "counted": "exact"} for one in self.claims()]
        published = self.published if self.experiment.accounting == "paper" else None
        if published is None:
            return entries
        delta, rounds = self.experiment.delta, self.experiment.rounds
        for unit in published.units:
            epsilon = published.epsilon(unit, delta)
            about = {"unit": unit, "adversary": "not told apart", "epsilon": "inf" if isinf(epsilon) else epsilon}
            about |= {"delta": delta, "accountant": published.accountant, "assumptions": list(published.remarks)}
            entries.append({**about, "rounds": rounds, "counted": "as published"})
        return entries

    def _claim(self, mechanism: Mechanism, unit: Unit, adversary: Adversary, examples: int | None) -> Claim:
        asked = self.experiment
        return claim(mechanism, unit, adversary, asked.delta, asked.rounds, asked.accountant, examples)


def settle(experiment: Experiment, split: Split) -> tuple[Experiment, list[str]]:
    """Find the noise for a target, and the last round within a budget.

    Args:
        experiment: resolved. What was settled before stays as it is.
        split: of its data.

    Returns:
        The experiment with the noise among its settings and with no more rounds than the budget allows; notes.

    Raises:
        BadInput: the method claims nothing, the noise was set as well, or not even one round keeps the budget.
    """
    notes: list[str] = []
    if experiment.target_epsilon:
        experiment = _with_noise_for(experiment, split)
    if experiment.epsilon_budget:
        asked, experiment = experiment.rounds, _within_budget(experiment, split)
        if experiment.rounds < asked:
            notes.append(
                f"Training ends after round {experiment.rounds} of {asked}: another one would exceed "
                f"--epsilon-budget {experiment.epsilon_budget:g}."
            )
    return experiment, notes


def _with_noise_for(experiment: Experiment, split: Split) -> Experiment:
    names = (_NOISE, f"{parts.short_name(experiment.method)}.{_NOISE}")
    given = [one for one in experiment.set if split_assignment(one)[0] in names]
    unset = replace(experiment, set=tuple(one for one in experiment.set if one not in given))
    counted, accountant = _goal(unset, split, "target-epsilon")
    found = noise_for(experiment.target_epsilon, counted, experiment.delta, accountant)[0]
    noise = f"{_NOISE}={found!r}"
    if given and given != [noise]:
        raise BadInput(f"Expected either --target-epsilon or --set {_NOISE}, got both; leave one out.")
    return replace(experiment, set=(*unset.set, noise))


def _within_budget(experiment: Experiment, split: Split) -> Experiment:
    def keeps(rounds: int) -> bool:
        counted, accountant = _goal(replace(experiment, rounds=rounds, audit_rounds="0"), split, "epsilon-budget")
        return account(phases(counted), experiment.delta, accountant).epsilon <= experiment.epsilon_budget

    if keeps(experiment.rounds):
        return experiment
    low, high = 0, experiment.rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    require(low > 0, "an epsilon-budget that one round keeps", epsilon_budget=experiment.epsilon_budget)
    return replace(experiment, rounds=low)


def _goal(experiment: Experiment, split: Split, flag: str) -> tuple[Mechanism, Accountant]:
    """What a target and a budget are about: what is clipped, as its adversary meets it; and who counts."""
    ledger = Ledger(experiment, split)
    found = ledger.mechanism
    if found is None:
        raise BadInput(f"Expected a method that claims privacy for --{flag}, got method={experiment.method}.")
    if found.void:
        raise BadInput(f"Expected settings with which something can be claimed for --{flag}. {found.void}")
    published = ledger.published if experiment.accounting == "paper" else None
    if published:
        return published.units[found.clipped], published.accountant
    return replace(found, hidden=found.hidden and not _seen_by_the_server(found)), experiment.accountant


def _seen_by_the_server(mechanism: Mechanism) -> bool:
    """Whether it is the server that the claim is against, who sees which clients were drawn."""
    return mechanism.clipped == "client" and mechanism.noised_by == "client"
