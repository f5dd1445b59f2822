"""Privacy claims of an experiment, from its course, known before it starts, and the method's mechanism.

Sampling of whole clients gives an example no credit against any adversary. It decides about all the other examples of
the client too, so a round without the client is not the round without the example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, isinf
from typing import Any, final

import numpy as np

from flfw import data
from flfw.data.splits import lazy_parts, patients
from flfw.data.splits.partition import Split
from flfw.dp import private_metrics
from flfw.dp.private_metrics import metrics_mechanism, most_examples, most_held
from flfw.errors import require
from flfw.experiment.training import RoundSettings
from flfw.privacy.claims import ADVERSARIES, Adversary, Claim, Unit, claim
from flfw.privacy.mechanism import Mechanism
from flfw.privacy.published import Published
from flfw.privacy.run_schedule import RunSchedule
from flfw.server.cohorts import most_participations
from flfw.task.client_plan import ClientPlan
from flfw.task.method import Method

_COUNTED = 10_000  # clients
_VOIDING = {
    "batch": "changes batches: one example may be in several rows.",
    "step": "looks at the batch again, after the noise that is counted.",
}
_FROM_THE_SEED = (
    "The noise of this run comes from its seed and protects from nobody who has it: the figure is that of the same run "
    "with noise_source=secure."
)
_KNOWN_SEED = (
    "The noise comes from the seed, which the server and every client have, and which others can guess: who knows it "
    "can take the noise off. Use noise_source=secure."
)
_COHORTS = (
    "Nobody but the server learns who was drawn, or how many were: it keeps its folder to itself, with the tables and "
    "the report in it, and no round ends the run for having too few clients (--expert on_client_failure)."
)
_RECEIVED = (
    "The server of this federation receives losses, accuracies and numbers of examples without noise (metrics=all), "
    "and they tell presence: against it nothing is claimed. Use metrics=private or none."
)
_AFTER_THE_NOISE = "update"  # the hook at which a defence changes what has its noise
_PATIENTS = (
    "One patient has at most {examples} examples at a client, and examples at no more than {clients} of the clients: "
    "nobody here can check that."
)
_COUNTED_PATIENTS = (
    "One patient has at most {examples} examples at a client, and examples of its own at no more than {clients} of the "
    "clients: that many were counted in these very data, and that number itself is told without noise."
)
_GIVEN_PATIENTS = (
    "One patient has at most {examples} examples at a client, and examples of its own at no more than {clients} of the "
    "clients, as was asked for; in these data they are {counted}, which was counted."
)
_ENDS_EARLY = (
    "When training ends follows from the validation accuracies that clients report: the figure is of all the rounds "
    "there may be, and what the end itself tells is outside the count."
)


def is_known(split: Split) -> bool:
    """Return whether each client's number of examples is known here; for data of sites it is not."""
    return any(lazy_parts.sizes(split.train))


def least_summed(rounds: RoundSettings, colluding: int) -> int:
    """Return how many updates with noise of their own there are in a round's sum at least.

    With fewer updates the run ends, and nothing is summed. Colluding clients may all be among them.

    Args:
        rounds: who takes part.
        colluding: number of clients that add no noise, or give theirs away.

    Raises:
        InputError: there may be no other client in a sum.
    """
    everybody = not rounds.drops_failures and not rounds.poisson
    surely = rounds.per_round if everybody else rounds.min_clients
    limit = (
        f"colluding-clients < {surely}, the updates that are surely in a round's sum "
        "(--sample, --expert on_client_failure)"
    )
    require(colluding < surely, limit, colluding_clients=colluding)
    return surely - colluding


def run_schedule(plan: ClientPlan, split: Split) -> RunSchedule:
    """Return the facts of a whole run that its privacy depends on."""
    who, local = plan.rounds, plan.local
    sizes, drawn = lazy_parts.sizes(split.train), isinstance(split.train, lazy_parts.LazyParts)
    once = drawn or all(len(np.unique(indices)) == len(indices) for indices in split.train)
    require(once, "each example once at a client, as a bound on one example's gradient is no bound on two", once=once)
    trained = {name: p.numel() for name, p in plan.model.named_parameters() if p.requires_grad}
    drawing = (who.clients, who.sample, who.sampling, plan.seed, who.rounds)
    min_separation = plan.method.min_separation(plan.settings)
    return RunSchedule(
        rounds=who.rounds,
        max_participations=most_participations(*drawing, min_separation),
        clients=who.clients,
        cohort_size=who.per_round,
        poisson=who.poisson,
        min_examples=min(sizes),
        max_examples=max(sizes),
        batch_size=local.batch_size,
        epochs=local.local_epochs,
        max_copies=lazy_parts.most_copies(split.train) or _max_held(split.train),
        tensors=trained,
        min_summed_updates=least_summed(who, plan.privacy.colluding_clients),
        colluding=plan.privacy.colluding_clients,
    )


def _max_held(parts: Sequence[np.ndarray]) -> int:
    """Return how many clients hold the example that most of them hold; some thousand clients are counted at a time."""
    if isinstance(parts, lazy_parts.LazyParts):
        return _most_drawn(parts)
    return _counted(parts)


def _counted(parts: Sequence[np.ndarray]) -> int:
    copies = np.zeros(0, np.int64)
    for start in range(0, len(parts), _COUNTED):
        held = np.bincount(np.concatenate([np.unique(part) for part in parts[start : start + _COUNTED]]))
        length = max(len(copies), len(held))
        copies = np.pad(copies, (0, length - len(copies))) + np.pad(held, (0, length - len(held)))
    return int(copies.max())


_most_drawn = lru_cache(4)(_counted)  # for parts on demand, which know each other by identity, not by content


def mechanism_in(plan: ClientPlan, schedule: RunSchedule) -> Mechanism | None:
    """Return the mechanism of a run in a course; void beside a defence or constants that undo it.

    None: the method claims nothing.
    """
    mechanism = plan.method.mechanism(plan.settings, schedule)
    if mechanism is None:
        return None
    if plan.real and not getattr(plan.settings, "secure", True):
        return replace(mechanism, void=_KNOWN_SEED)
    if constants := data.private_constants(plan.task.data.dataset, plan.task.data.normalise):
        return replace(mechanism, void=constants)
    if not plan.defences.partitions:
        return mechanism
    for hook, action in _VOIDING.items():
        voiding = [stage.name for stage in plan.defences.stages if hook in stage.active_hooks]
        if voiding:
            return replace(mechanism, void=f"{voiding[0]} {action}")
    # What is left of a client's noise after a defence is not known: the noises no longer add up to a number.
    return (
        mechanism.alone if any(_AFTER_THE_NOISE in stage.active_hooks for stage in plan.defences.stages) else mechanism
    )


@final
@dataclass(frozen=True)
class RunAccountant:
    """Privacy claims of a run.

    Args:
        plan: of the run's clients.
        split: of its data.
        again: how often rounds were asked for again, after the server was killed. If nobody can repeat the noise, each
            time it was another one, and that many more rounds are counted.
        summed: least number of updates in a sum that any attempt at the run allowed; 0: the experiment's is that of
            all.
    """

    plan: ClientPlan
    split: Split
    again: int = 0
    summed: int = 0

    @property
    def mechanism(self) -> Mechanism | None:
        """Mechanism of the whole run; None: the method claims nothing, or numbers of examples are not known here."""
        if not is_known(self.split):
            return None
        self.patients()  # refuses fewer examples of a patient than there are, whatever the method
        if self.plan.method.mechanism.__func__ is Method.mechanism.__func__:  # type: ignore[attr-defined]
            least_summed(
                self.plan.rounds, self.plan.privacy.colluding_clients
            )  # refuses more colluding clients than there are, whatever the method
            return None
        mechanism = mechanism_in(self.plan, self._run_schedule(self.plan.settings))
        if mechanism is not None and _hides_cohorts(mechanism):
            return replace(mechanism, max_participations=None)  # nobody knows beforehand who will be drawn how often
        return mechanism

    @property
    def reported(self) -> Mechanism | None:
        """Mechanism of the whole run's private metrics: in each round of a client, and in one evaluation; else None."""
        mechanism, privacy = self.mechanism, self.plan.privacy
        if mechanism is None or privacy.metrics != "private":
            return None
        answers = self._run_schedule(self.plan.settings).max_participations + 1
        return metrics_mechanism(private_metrics.NOISE_MULTIPLIER, answers, mechanism.clipped, most_held(self.split))

    @property
    def hides_cohorts(self) -> bool:
        """True where claims rest on cohorts that nobody but the server knows."""
        mechanism = self.mechanism
        return mechanism is not None and _hides_cohorts(mechanism)

    def _run_schedule(self, settings: Any) -> RunSchedule:
        known = run_schedule(self.plan, self.split)
        again = self.again if getattr(settings, "secure", False) else 0
        summed = min(known.min_summed_updates, self.summed or known.min_summed_updates)
        return replace(
            known,
            rounds=known.rounds + again,
            max_participations=known.max_participations + again,
            min_summed_updates=summed,
        )

    @property
    def published(self) -> Published | None:
        """Accounting of the method's paper, if it has one; of rounds that were asked for again, too."""
        if not is_known(self.split):
            return None
        return self.plan.method.published_accounting(self.plan.settings, self._run_schedule(self.plan.settings))

    def patients(self) -> tuple[int, int, str]:
        """Count the examples of a patient at a client, and its clients beside copies, with a sentence on how.

        Where the data name patients, at least as many count as there are. 0 examples: not known.

        Raises:
            InputError: fewer are asked for than there are.
        """
        privacy, split = self.plan.privacy, self.split
        if split.patients is None:
            examples, clients = privacy.patient
            return examples, clients, _PATIENTS.format(examples=examples, clients=clients)
        counted = patients.most_at_a_client(split.patients, split.train)
        if privacy.metrics == "private" and split.test_patients is not None:  # a patient is in one part alone
            tests = [*split.test, *split.validation]
            counted = max(counted, patients.most_at_a_client(split.test_patients, tests))
        given, sites = privacy.patient
        enough = given == 0 or given >= counted
        limit = f"patient-examples >= {counted}, as many as one patient has at a client, or none to have them counted"
        require(enough, limit, patient_examples=given)
        owners = -(-patients.most_clients(split.patients, split.train) // _max_held(split.train))
        examples, clients = given or counted, max(sites, owners)
        how = _GIVEN_PATIENTS if (examples, clients) != (counted, owners) else _COUNTED_PATIENTS
        return examples, clients, how.format(examples=examples, clients=clients, counted=counted)

    def claims(self) -> list[Claim]:
        """Return the claim on the whole run for each unit and adversary; empty: nothing is claimed."""
        mechanism = self.mechanism
        if mechanism is None:
            return []
        of_patient = self.patients()[0]
        full = (
            most_examples(self.split)
            if self.plan.privacy.metrics == "private"
            else max(lazy_parts.sizes(self.split.train))
        )
        sizes: dict[Unit, int | None] = {"example": 1, "client": full}
        sizes |= {"patient": of_patient} if of_patient else {}
        return [
            self._claim(mechanism, unit, adversary, size) for unit, size in sizes.items() for adversary in ADVERSARIES
        ]

    def entries(self) -> list[dict[str, Any]]:
        """Return ``privacy`` of result.json: the claims and, if asked for, the paper's figures, each with its kind."""
        noise = getattr(self.plan.settings, "noise_source", "own")
        entries: list[dict[str, Any]] = []
        for one in self.claims():
            entries.append(
                {**one.as_dict(), "max_guess_accuracy": one.certainty, "accounting": "exact", "noise_source": noise}
            )
        published = self.published if self.plan.privacy.accountant == "paper" else None
        if published is None:
            return entries
        delta, rounds = self.plan.privacy.delta, self.plan.rounds.rounds
        for unit in published.units:
            epsilon = published.epsilon(unit, delta)
            figures = {"unit": unit, "adversary": "not told apart", "epsilon": "inf" if isinf(epsilon) else epsilon}
            figures |= {"delta": delta, "accountant": published.accountant, "assumptions": list(published.remarks)}
            entries.append({**figures, "rounds": rounds, "accounting": "as published"})
        return entries

    def _claim(self, mechanism: Mechanism, unit: Unit, adversary: Adversary, examples: int | None) -> Claim:
        privacy, rounds = self.plan.privacy, self.plan.rounds
        secure = bool(getattr(self.plan.settings, "secure", False))
        reported = self.reported
        if unit == "patient":  # the same factor for all that a patient's clients send
            times = self.patients()[1]
            mechanism = replace(mechanism, max_copies=mechanism.max_copies * times)
            reported = reported and replace(reported, max_copies=reported.max_copies * times)
        assert privacy.metrics != "auto", "a plan has no auto"
        how = (privacy.delta, rounds.rounds, privacy.tightest, examples, privacy.metrics, secure)
        result = claim(mechanism, unit, adversary, *how, reported)
        receives = adversary in ("server", "aggregate")
        if receives and self.plan.real and privacy.metrics == "all" and not isinf(result.epsilon):
            return replace(result, epsilon=inf, accountant="none", assumptions=(_RECEIVED,))
        settings = self.plan.settings
        if isinf(result.epsilon):
            return result
        if unit == "patient":
            result = replace(result, assumptions=(*result.assumptions, self.patients()[2]))
        if rounds.patience and privacy.metrics == "all":  # by accuracies with counted noise the end tells nothing more
            result = replace(result, assumptions=(*result.assumptions, _ENDS_EARLY))
        if _hides_cohorts(mechanism):
            result = replace(result, assumptions=(*result.assumptions, _COHORTS))
        if getattr(settings, "secure", True):
            return result
        return replace(result, assumptions=(_FROM_THE_SEED, *result.assumptions))


def _hides_cohorts(mechanism: Mechanism) -> bool:
    return mechanism.amplified and mechanism.clipped == "client"
