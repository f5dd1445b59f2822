"""Privacy claims of a run, from a schedule for each client, known before it starts, and the method's mechanism.

Sampling of whole clients gives an example no credit against any adversary. It decides about all the other examples of
the client too, so a round without the client is not the round without the example.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import inf, isinf
from typing import Any, final

import numpy as np

from flfw import data
from flfw.data.splits import lazy_parts, patients
from flfw.data.splits.partition import Split
from flfw.dp import private_metrics
from flfw.dp.private_metrics import held_by_each, most_held
from flfw.errors import require
from flfw.experiment.training import RoundSettings
from flfw.privacy.accountants import Accountant, largest
from flfw.privacy.claims import ADVERSARIES, Adversary, Claim, Published, claim, seen_by
from flfw.privacy.mechanism import (
    NO_OTHERS,
    ClientSchedule,
    Mechanism,
    Others,
    SeenMechanism,
    Unit,
    gaussian_events,
    joined,
)
from flfw.server.cohorts import participations
from flfw.task.client_plan import ClientPlan
from flfw.task.method import Method

# Settings without `secure` are of a method that draws its noise in its own way. Nothing says that a seed gives it away:
# where that is asked, `secure` is True by default. Nor does anything say that the noise is that of
# `flfw.nets.training.gaussian`, anew at each try: where that is asked, it is False.
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
_MOVING = (
    "The stated bound of updates is the first one; it then follows a count, with noise, of the updates within it. The "
    "noise on the updates is so much larger that both together protect as the stated one."
)
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
_JOINED = (
    "Several clients may hold the same {unit}: each counts with the highest sampling rate, and as many steps, as any "
    "client has."
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


def schedules(plan: ClientPlan, split: Split, again: int = 0) -> list[ClientSchedule]:
    """Return the schedules of a run's clients; of clients with as many examples only the one that takes part most.

    Args:
        plan: of the run's clients.
        split: of its data.
        again: rounds that were asked for again, in which every client is taken to take part.
    """
    who, local, drawn = plan.rounds, plan.local, isinstance(split.train, lazy_parts.LazyParts)
    once = drawn or all(len(np.unique(indices)) == len(indices) for indices in split.train)
    require(once, "each example once at a client, as a bound on one example's gradient is no bound on two", once=once)
    min_separation = plan.method.min_separation(plan.settings)
    taken = participations(who.clients, who.sample, who.sampling, plan.seed, who.rounds, min_separation)
    sizes, held = lazy_parts.sizes(split.train), held_by_each(split) if plan.privacy.metrics == "private" else [0]
    busiest: dict[tuple[int, int], int] = {}
    for client in np.argsort(-taken, kind="stable").tolist():
        busiest.setdefault((sizes[client % len(sizes)], held[client % len(held)]), client)
        if len(sizes) == len(held) == 1:
            break
    same = ClientSchedule(
        examples=0,
        batch_size=local.batch_size,
        epochs=local.local_epochs,
        tensors={name: p.numel() for name, p in plan.model.named_parameters() if p.requires_grad},
        rounds=who.rounds + again,
        client_rate=who.per_round / who.clients,
        poisson=who.poisson,
        evaluations=1,
    )
    return [
        replace(same, examples=n, held=all_parts, client=client, max_participations=int(taken[client]) + again)
        for (n, all_parts), client in busiest.items()
    ]


def mechanisms_in(plan: ClientPlan, schedule: ClientSchedule) -> tuple[Mechanism, ...] | str | None:
    """Return the mechanisms of the tensors that one client sends and, if it has any, of its private metrics.

    Claims, the noise for a target and sites' budgets all rest on them. A sentence: why no epsilon holds, as beside a
    defence or constants that undo it. None: the method claims nothing.
    """
    mechanism = plan.method.mechanism(plan.settings, schedule)
    if not isinstance(mechanism, Mechanism):
        return mechanism
    if plan.real and not getattr(plan.settings, "secure", True):
        return _KNOWN_SEED
    if constants := data.private_constants(plan.task.data.dataset, plan.task.data.normalise):
        return constants
    for hook, action in _VOIDING.items():
        voiding = [stage.name for stage in plan.defences.stages if hook in stage.active_hooks]
        if voiding and plan.defences.partitions:
            return f"{voiding[0]} {action}"
    # Whole data are used in each answer, so that sampling gives no credit.
    answers = schedule.max_participations + schedule.evaluations
    metrics = Mechanism(private_metrics.NOISE_MULTIPLIER, answers, clipped=mechanism.clipped)
    return (mechanism, metrics) if plan.privacy.metrics == "private" else (mechanism,)


@final
@dataclass(frozen=True)
class CountedClient:
    """One client of a run as it counts in a claim.

    Attributes:
        schedule: its schedule; None: this one stands for several.
        examples: number of its examples, or of one patient's, that count: with private metrics those of all its parts.
        parts: see `mechanisms_in`.
    """

    schedule: ClientSchedule | None
    examples: int
    parts: tuple[Mechanism, ...]


@final
@dataclass(frozen=True)
class RunAccountant:
    """Privacy claims of a run.

    Args:
        plan: of the run's clients.
        split: of its data.
        again: how often rounds were asked for again, after the server was killed. If nobody can repeat the noise, each
            time it was another one, and that many more rounds are counted.
        summed: least number of updates in a sum that any attempt at the run allowed; 0: no attempt is noted, and
            the plan's number counts.
    """

    plan: ClientPlan
    split: Split
    again: int = 0
    summed: int = 0

    @cached_property
    def schedules(self) -> list[ClientSchedule]:
        """Schedules of the run's clients."""
        return schedules(self.plan, self.split, self.again if getattr(self.plan.settings, "secure", True) else 0)

    @cached_property
    def counted(self) -> list[CountedClient] | str | None:
        """Clients of the run, or why nothing can be claimed; None: by the method, or as sizes are not known here."""
        if not is_known(self.split):
            return None
        self.patients()  # refuses fewer examples of a patient than there are, whatever the method
        # Refuses more colluding clients than there are, whatever the method.
        least_summed(self.plan.rounds, self.plan.privacy.colluding_clients)
        if self.plan.method.mechanism.__func__ is Method.mechanism.__func__:  # type: ignore[attr-defined]
            return None
        clients = list[CountedClient]()
        for schedule in self.schedules:
            parts = mechanisms_in(self.plan, schedule)
            if not isinstance(parts, tuple):
                return parts
            clients.append(CountedClient(schedule, max(schedule.examples, schedule.held), parts))
        return clients

    @property
    def mechanism(self) -> Mechanism | None:
        """Mechanism that reveals at least as much as that of any client; None: nothing is claimed."""
        clients = self.counted
        return joined([one.parts[0] for one in clients]) if isinstance(clients, list) else None

    @cached_property
    def _alike(self) -> tuple[Others, ...]:
        """Others of each part of the `counted` clients, where a unit has one owner beside copies."""
        if not isinstance(self.counted, list):
            return (NO_OTHERS,)
        plan, (mechanism, *reported) = self.plan, self.counted[0].parts
        copies = lazy_parts.max_held(self.split.train)
        # What is left of a client's noise after a defence is not known: the noises no longer add up to a number.
        defended = plan.defences.partitions and any("update" in stage.active_hooks for stage in plan.defences.stages)
        surely = least_summed(plan.rounds, colluding := plan.privacy.colluding_clients)
        adds_up = mechanism.is_distributed and not defended
        sums = (min(surely, self.summed or surely), colluding) if adds_up else ()
        return (Others(copies, *sums), *(Others(most_held(self.split)) for _ in reported))

    def others(self, unit: Unit) -> tuple[Others, ...]:
        """Return the others of each part of the `counted` clients, for a unit: a patient has several owners."""
        owners = self.patients()[1] if unit == "patient" else 1
        return tuple(replace(one, max_copies=one.max_copies * owners) for one in self._alike)

    @property
    def hides_cohorts(self) -> bool:
        """True where claims rest on cohorts that nobody but the server knows."""
        mechanism = self.mechanism
        return mechanism is not None and mechanism.amplified and mechanism.clipped == "client"

    @property
    def published(self) -> list[Published]:
        """Accounting of the method's paper for each client, if it has one; of rounds that were asked for again, too."""
        if not is_known(self.split):
            return []
        each = [self.plan.method.published_accounting(self.plan.settings, one) for one in self.schedules]
        return [one for one in each if one is not None]

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
            counted = max(counted, patients.most_at_a_client(split.test_patients, [*split.test, *split.validation]))
        given, sites = privacy.patient
        enough = given == 0 or given >= counted
        limit = f"patient-examples >= {counted}, as many as one patient has at a client, or none to have them counted"
        require(enough, limit, patient_examples=given)
        owners = -(-patients.most_clients(split.patients, split.train) // lazy_parts.max_held(split.train))
        examples, clients = given or counted, max(sites, owners)
        how = _GIVEN_PATIENTS if (examples, clients) != (counted, owners) else _COUNTED_PATIENTS
        return examples, clients, how.format(examples=examples, clients=clients, counted=counted)

    @property
    def units(self) -> tuple[Unit, ...]:
        """Units of the claims; patients are among them where a number of examples of each is known."""
        return ("example", "client", "patient") if self.patients()[0] else ("example", "client")

    def claims(self) -> list[Claim]:
        """Return the claim on the whole run for each unit and adversary; empty: nothing is claimed."""
        if self.counted is None:
            return []
        return [self._claim(unit, adversary) for unit in self.units for adversary in ADVERSARIES]

    def against(self, unit: Unit, adversary: Adversary) -> list[tuple[SeenMechanism, ...]]:
        """Return what each client tells of a unit, as an adversary sees it; what they tell most is claimed."""
        return [seen_by(one.parts, self.others(unit), unit, adversary) for one in self._holders[unit]]

    @cached_property
    def _holders(self) -> dict[Unit, list[CountedClient]]:
        """Clients of which one has the largest epsilon for a unit.

        Where several clients may hold the same unit, it is a single one that tells at least as much as each of them.
        """
        assert isinstance(self.counted, list), "of what is not counted there is no claim"
        holders: dict[Unit, list[CountedClient]] = {}
        for unit in self.units:
            clients = self.counted
            if unit == "patient":
                clients = [replace(one, examples=self.patients()[0]) for one in clients]
            copied = unit != "client" and any(one.max_copies > 1 for one in self.others(unit))
            holders[unit] = [_joined(clients)] if copied else _telling_most(clients, unit)
        return holders

    def entries(self) -> list[dict[str, Any]]:
        """Return ``privacy`` of result.json: the claims and, if asked for, the paper's figures, each with its kind."""
        exact = {"accounting": "exact", "noise_source": getattr(self.plan.settings, "noise_source", "own")}
        entries = [{**one.as_dict(), "max_guess_accuracy": one.certainty, **exact} for one in self.claims()]
        delta, rounds = self.plan.privacy.delta, self.plan.rounds.rounds
        each = self.published if self.plan.privacy.accountant == "paper" else []
        for unit in each[0].units if each else ():
            epsilon, published = max(((one.epsilon(unit, delta), one) for one in each), key=lambda found: found[0])
            figures = {"unit": unit, "adversary": "not told apart", "epsilon": "inf" if isinf(epsilon) else epsilon}
            figures |= {"delta": delta, "accountant": published.accountant, "assumptions": list(published.remarks)}
            entries.append({**figures, "rounds": rounds, "accounting": "as published"})
        return entries

    def _claim(self, unit: Unit, adversary: Adversary) -> Claim:
        privacy, rounds = self.plan.privacy, self.plan.rounds
        if isinstance(self.counted, str):
            return Claim(unit, adversary, inf, privacy.delta, "none", (self.counted,), rounds.rounds)

        def counted(client: CountedClient, by: Accountant) -> Claim:
            secure, (sent, *reported) = bool(getattr(self.plan.settings, "secure", False)), client.parts
            assert privacy.metrics != "auto", "a plan has no auto"
            how = (privacy.delta, rounds.rounds, by, client.examples, privacy.metrics, secure)
            return claim(sent, unit, adversary, *how, *reported, others=self.others(unit))

        client, _ = largest(lambda one, by: counted(one, by).epsilon, self._holders[unit], privacy.tightest)
        result = counted(client, privacy.tightest)
        receives = adversary in ("server", "aggregate")
        if receives and self.plan.real and privacy.metrics == "all" and not isinf(result.epsilon):
            return replace(result, epsilon=inf, accountant="none", assumptions=(_RECEIVED,))
        if isinf(result.epsilon):
            return result
        more = {
            _said_of(client, unit): True,
            self.patients()[2]: unit == "patient",
            # By accuracies with counted noise the end tells nothing more.
            _ENDS_EARLY: rounds.patience and privacy.metrics == "all",
            _COHORTS: self.hides_cohorts,
            _MOVING: getattr(self.plan.settings, "follows_quantile", False),
        }
        first = () if getattr(self.plan.settings, "secure", True) else (_FROM_THE_SEED,)
        said = (*first, *result.assumptions, *(words for words, holds in more.items() if holds))
        return replace(result, assumptions=said)


def _joined(clients: Sequence[CountedClient]) -> CountedClient:
    """Return a client that tells at least as much as each."""
    parts = tuple(joined(alike) for alike in zip(*(one.parts for one in clients), strict=True))
    schedule = clients[0].schedule if len(clients) == 1 else None
    return CountedClient(schedule, max(one.examples for one in clients), parts)


def _said_of(client: CountedClient, unit: Unit) -> str:
    """Return a sentence on whose epsilon is claimed; numbers of examples count as known where examples are clipped."""
    if client.schedule is None:
        return _JOINED.format(unit=unit)
    known = client.parts[0].clipped == "example"
    size = f", which has {client.schedule.examples} training examples" if known else ""
    return f"No client has a larger epsilon than client {client.schedule.client}{size}."


def _telling_most(clients: Sequence[CountedClient], unit: Unit) -> list[CountedClient]:
    """Leave out each client for which there is another that tells at least as much; of equal ones the first stays."""

    def told(client: CountedClient) -> tuple[float, ...]:
        size = client.parts[0].vectors(unit, client.examples)
        events = (*gaussian_events(client.parts), *gaussian_events(client.parts, size))
        each = ((-one.noise_multiplier, one.sampling_rate, one.steps, -one.bins) for one in events)
        return size, *chain.from_iterable(each)

    kept: list[CountedClient] = []
    rows = np.empty((0, len(told(clients[0]))))
    for client in sorted(clients, key=told, reverse=True):  # nobody tells as much as one before
        row = np.array(told(client))
        if not (rows >= row).all(1).any():
            kept, rows = [*kept, client], np.vstack([rows, row])
    return kept
