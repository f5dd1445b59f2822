"""Grants of one attack about a round of a foreign app's updates, and the execution of the attack in this process.

The grants are the observations, the knowledge, and the costs beforehand. For attacks behind secure aggregation, the
observations are sums over all clients of a round.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from torch.nn.functional import cross_entropy

from flfw.adversary.attack import Attack, NotApplicableError
from flfw.adversary.sums import SEEN, summed
from flfw.audit.jobs import AttackJob, JobResult, failed, solved
from flfw.audit.measures.public import PublicData
from flfw.audit.threat_model import ThreatModel
from flfw.inversion.client_models.local_steps import SteppedVictim
from flfw.inversion.client_models.victim import PlainVictim
from flfw.recorded_apps.case import Chosen, ForeignCase, Victim
from flfw.recorded_apps.cost import CostEstimate, SearchLimits, bearable, refuse
from flfw.recorded_apps.defence import DescribedDefence
from flfw.recorded_apps.description import TrainingDescription
from flfw.recorded_apps.knowledge import granted, named, needs_steps, stepped, victim, with_public
from flfw.recording.observation import Knowledge, Observation, Reconstruction
from flfw.recording.reader import Recordings
from flfw.rng import torch_generator

Pair = tuple[Observation, Knowledge]


def threat_model_of(
    pairs: Sequence[Pair | None], hidden: bool, defence: str = "none", informed: bool = False
) -> ThreatModel:
    """Return the grants about some updates.

    Args:
        pairs: observation and knowledge of each update; None for a refused one.
        hidden: whether an operation between data and update is not known or used.
        defence: of the clients.
        informed: whether the attacker knows it.
    """
    given = [knowledge for _, knowledge in filter(None, pairs)]
    sentences = tuple(dict.fromkeys(sentence for knowledge in given for sentence in knowledge.granted))
    private = any(knowledge.model.unknown for knowledge in given)
    adaptive = bool(given) and not hidden and not private
    protected_by = None if defence == "none" else defence
    return ThreatModel(sentences, adaptive, "written" if informed else None, protected_by, private)


def attempt(
    job: AttackJob, attack: Attack, pairs: Sequence[Pair | None], seed: int, not_applicable: str = ""
) -> JobResult:
    """Run an attack; one that raises is a failure with its reason.

    Args:
        job: names the attack and the exchanges.
        attack: to run.
        pairs: observation and knowledge for each exchange; None for a refused one.
        seed: seed of its generators.
        not_applicable: why it is not tried; empty: it is.
    """
    if not_applicable:
        return failed(job, f"not applicable: {not_applicable}")
    given = [pair for pair in pairs if pair is not None]
    rngs = [torch_generator(seed, f"attack {job.attack}", o.round, o.slot) for o, _ in given]
    reconstructions: Sequence[Reconstruction] = []
    started, stopped = time.monotonic(), None if given else "none of its recordings could be used"
    try:
        reconstructions = attack.run([o for o, _ in given], [k for _, k in given], rngs) if given else []
        if len(reconstructions) != len(given):
            raise RuntimeError(f"it returned {len(reconstructions)} reconstructions of {len(given)}")
    except NotApplicableError as error:
        stopped = f"not applicable: {error}"
    except Exception as error:  # an attack is third-party code: any exception is reported as its failure
        stopped = f"crashed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    seconds, rest = time.monotonic() - started, iter([] if stopped else reconstructions)
    return solved(job, [pair and next(rest, None) for pair in pairs], seconds, stopped=stopped)


@final
@dataclass(frozen=True)
class RoundGrants:
    """Grants of one attack about the updates of a round.

    Attributes:
        pairs: observation and knowledge of each update; None for a refused one.
        hidden: whether an operation between the data and an update is not granted, or not made use of.
        not_applicable: why the attack cannot be tried; empty: it can.
    """

    pairs: Sequence[Pair | None]
    hidden: bool
    not_applicable: str


@final
class Grants:
    """Grants of an audit.

    Args:
        case: the setting.
        kept: the recordings.
        limits: limits of the searches.
        public: the public data that are granted to attacks that use some; no client's.
    """

    def __init__(self, case: ForeignCase, kept: Recordings, limits: SearchLimits, public: PublicData) -> None:
        self._case, self._kept, self._limits, self._public = case, kept, limits, public
        self.net = case.fresh("attacker")

    def recorded(self, group: Sequence[Victim]) -> list[Observation | None]:
        """Read the observations of a round; None for a refused one."""
        return self._kept.observations([v.line["id"] for v in group])

    def check(self, chosen: Chosen, attacks: Mapping[str, Attack]) -> TrainingDescription:
        """Check that the network fits and that no attack costs too much; return the first update's description.

        Raises:
            InputError: the network does not fit, or an attack costs too much.
        """
        group = next(iter(chosen.groups.values()))
        observation = next((o for o in self.recorded(group) if o is not None), None)
        training = TrainingDescription() if observation is None else self._case.described(observation, group[0].behind)
        for name, attack in attacks.items():
            self.granted(group[:1], attack)
            most = max(group, key=lambda v: len(v.truth.labels))
            steps, _ = self._steps(training, most, attack)
            cost = self._costs.of_search(attack, len(most.truth.labels), max(1, steps), len(group))
            refuse(cost, name, attack, len(most.truth.labels), self._limits)
        return training

    def granted(
        self,
        group: Sequence[Victim],
        attack: Attack,
        defence: DescribedDefence | None = None,
        seen: Sequence[Observation | None] | None = None,
    ) -> RoundGrants:
        """Return the grants of an attack about the updates of a round.

        Args:
            group: the updates.
            attack: the attack.
            defence: the defence of whose operation it is told; None: of none.
            seen: the messages, as in a control; None: those that were recorded.
        """
        models: dict[tuple[int, tuple[str, ...], str], PlainVictim] = {}
        through: dict[tuple[int, int, TrainingDescription], SteppedVictim] = {}
        pairs: list[Pair | None] = []
        recorded = self.recorded(group) if seen is None else seen
        hidden = seen is None and self._case.defence.acts and defence is None
        observed, not_applicable = self._summed(group) if attack.of_sums else (recorded, "")
        for v, o, read in zip(group, recorded, observed, strict=True):
            if o is None or read is None:
                pairs.append(None)
                continue
            training, count = self._case.described(o, v.behind), len(v.behind.labels)
            observation = named(self.net, read, training, count)
            index = (id(o.received), tuple(sorted(o.sent)), training.mode)
            if index not in models:  # an attack handles all observations that share a model at once
                models[index] = victim(self.net, observation, self._case.inputs, training.mode)
            steps, why = self._steps(training, v, attack)
            unrolled = steps > 0 and needs_steps(training, count) and training.known
            same = (id(models[index]), count, training)
            if unrolled and same not in through:
                through[same] = stepped(models[index], training, count)
            random = training.mode == "train" and self._case.draws
            knowledge = granted(models[index], training, count, v.truth.labels.clone(), random, through.get(same), why)
            knowledge, beside = replace(knowledge, batch=len(v.truth.labels)), _beside(v)
            if defence is not None:
                steps = len(training.batches(count))
                operator = defence.operator(1.0 if training.sends == "gradient" else -(training.lr or 1.0) * steps)
                knowledge = replace(knowledge, operator=operator)
                beside = (
                    *beside,
                    f"that the clients use {defence.words}, to which it adapts with what is written for it",
                )
                left = operator.unmodelled_part(count, steps) if operator else ""
                undone = needs_steps(training, count) or not (training.weight_decay or training.nesterov)
                if left or not undone:
                    hidden = True
                    beside = (*beside, f"not made use of: {left or 'the weight decay before it'}")
            pairs.append((observation, self.beside(knowledge, attack, beside, informed=defence is not None)))
            explained = training.known and not training.is_random(count) and not v.sampled
            hidden = hidden or random or not explained or (needs_steps(training, count) and not unrolled)
            if training.loss is not cross_entropy and attack.labels not in ("given", "not used"):
                not_applicable = "it finds the labels as cross entropy leaves them, and the local loss is another"
        return RoundGrants(pairs, hidden, not_applicable)

    def _summed(self, group: Sequence[Victim]) -> tuple[list[Observation | None], str]:
        """Return for each update of a round the sum over all clients; and why there is none, else an empty text.

        All recorded and readable updates are in the sum, also those of clients whose data nobody told.
        """
        lines = self._kept.update_lines(group[0].line["round"])
        read = zip(lines, self._kept.observations([line["id"] for line in lines]), strict=True)
        intact = {line["id"]: observation for line, observation in read if observation is not None}
        forms = {self._case.training(observation).sends for observation in intact.values()}
        if len(forms) > 1:
            return [intact.get(v.line["id"]) for v in group], f"there is no sum of {' and '.join(sorted(forms))}"
        sums = summed([named(self.net, observation) for observation in intact.values()], "weights" in forms)
        by_id = dict(zip(intact, sums, strict=True))
        return [by_id.get(v.line["id"]) for v in group], ""

    def beside(
        self, knowledge: Knowledge, attack: Attack, more: tuple[str, ...] = (), informed: bool = False
    ) -> Knowledge:
        """Return the knowledge with all that does not come from one update.

        Args:
            knowledge: the knowledge about an update, or about a probe of a control.
            attack: the attack.
            more: further sentences.
            informed: whether ``more`` names the clients' defence.
        """
        by, defence = self._case.tampered_by, self._case.defence
        network, *others = knowledge.granted
        changed = (f"a malicious server's change of it ({by}), with numbers of its choice",) if by else ()
        withheld = (f"not granted: that the clients use {defence.name}",) if defence.acts and not informed else ()
        sums = (SEEN,) if attack.of_sums else ()
        knowledge = replace(knowledge, granted=(network, *changed, *others, *sums, *withheld, *more))
        return with_public(knowledge, self._public) if "public" in attack.uses else knowledge

    def _steps(self, training: TrainingDescription, v: Victim, attack: Attack) -> tuple[int, str]:
        """Return the number of steps through which an attack searches, 0: their mean gradient; and why it does not."""
        count = len(v.behind.labels)
        steps = len(training.batches(count))
        if "steps" not in attack.models or not training.known or not needs_steps(training, count):
            return 0, ""
        if v.sampled:
            return 0, "fewer examples than the steps had are searched for"
        if steps > self._limits.most_steps:
            return 0, f"{steps} steps are more than most_steps={self._limits.most_steps}"
        cost = self._costs.of_search(attack, count, steps, 1)
        if not bearable(cost, attack, self._limits):
            return 0, f"through all steps it would take {cost.words}"
        return steps, ""

    @cached_property
    def _costs(self) -> CostEstimate:
        return CostEstimate(self.net, self._case.inputs)


def _beside(v: Victim) -> tuple[str, ...]:
    if not v.sampled:
        return ()
    searched, count = len(v.truth.labels), len(v.behind.labels)
    return (f"not made use of: that the update has {count} examples; {searched} of them are searched for",)
