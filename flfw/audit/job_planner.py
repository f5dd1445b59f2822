"""Jobs of an audit: which attacks run on which recordings, with which grants."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from flfw.adversary.attack import Attack
from flfw.adversary.sums import groups_of
from flfw.audit.adaptation import protection_of
from flfw.audit.jobs import ANALYTIC, EASY, UPLOAD, AttackJob, Exchange, ProbeSet, round_probe_sets
from flfw.audit.knowledge import hidden
from flfw.audit.membership.request import MembershipRequest
from flfw.audit.uploads import read_truth, upload_key, uploads_probe_set
from flfw.experiment import AGGREGATE, OUTSIDER, PEER, VANTAGES
from flfw.experiment.curves import SUM_SIZE
from flfw.plans.run_plan import AuditPlan
from flfw.recording.format import Line
from flfw.recording.observation import Truth, key
from flfw.recording.reader import Recordings, is_recorded
from flfw.task.client_plan import ClientPlan
from flfw.task.task import Task


@final
class JobPlanner:
    """Planner of the jobs of an audit.

    Args:
        clients: what the run's clients do, or do under a control.
        audit: the attacks and what they see.
        task: the source of the input space.
        source: the folder with ``observations/``, ``examples/`` and ``truth/``.
        attacks: the attacks by name.
        note: receives a sentence for each recording that is left out.
        public: writes the public data for jobs that grant them; returns the file and its number of examples.
    """

    def __init__(
        self,
        clients: ClientPlan,
        audit: AuditPlan,
        task: Task,
        source: Path,
        attacks: Mapping[str, Attack],
        note: Callable[[str], None],
        public: Callable[[], tuple[str, int]],
    ) -> None:
        self.clients, self.audit, self._task, self._source = clients, audit, task, source
        self._probes = audit.probes
        self.attacks, self._note = attacks, note
        self._public = public

    def probe_sets(self, last: int | None = None) -> list[ProbeSet]:
        """Return the probe sets, without the control, that this audit attacks in a run that ended after round ``last``.

        Without ``last``, the run is taken to be complete. Jobs are the same either way: they hold the requested
        experiment, which clients and attacks both use.
        """
        audited = self.audit.audited_by(self.audit.rounds if last is None else last)
        probed = [
            EASY,
            *(probe_set for r in audited for probe_set in round_probe_sets(self._probes, self.audit.record, r)),
        ]
        sent = [probe_set for r in audited if r and self.audit.attacks_uploads for probe_set in self._uploads(r)]
        return [probe_set for probe_set in probed + sent if self.vantages(probe_set) or self.sums(probe_set)]

    def _uploads(self, server_round: int) -> list[ProbeSet]:
        """Return the probe set of a round's uploads; none without any truth."""
        truths = [self._truth_of(line["client"], server_round) for line in self._upload_lines(server_round)]
        known = [truth for truth in truths if truth is not None]
        if not known:
            early = "" if server_round in self.audit.audited else "; that it was the last was not known before"
            self._note(f"The uploads of round {server_round} were left out: no client wrote what it trained on{early}.")
        return [uploads_probe_set(server_round, known)] if known else []

    def _upload_lines(self, server_round: int) -> list[Line]:
        """Return the lines of a round's uploads, of as many clients as there are to be probes."""
        return Recordings((self._source / "observations").absolute()).update_lines(server_round)[: self._probes.images]

    def _truth_of(self, client: int, server_round: int) -> Truth | None:
        return read_truth(self._source / "truth", upload_key(server_round, client))

    def vantages(self, probe_set: ProbeSet) -> list[str]:
        """Return the requested vantages that see a probe set's probes; attackers at all of them see the same bytes."""
        if probe_set.fresh:
            return ["server"]
        if probe_set.vantage:
            return [probe_set.vantage]
        single, on_client = [v for v in VANTAGES if v not in (AGGREGATE, PEER, OUTSIDER)], probe_set.on_client
        return [v for v in single if v in self._probes.vantage and (v == "client_example") == on_client]

    def sums(self, probe_set: ProbeSet) -> list[ProbeSet]:
        """Return the probe sets of the views of those who see none of a probe set's messages by itself.

        Sums are in the order of their sizes; of a peer's there are only those with another client in them. An outsider
        sees the last audited model.
        """
        if probe_set.control != "target" or probe_set.on_client or probe_set.source != "probe" or probe_set.vantage:
            return []
        requested, sizes = self._probes, self.audit.sum_sizes
        sizes = sizes[:1] if probe_set.curve else sizes
        curves = {size: probe_set.curve or (SUM_SIZE if turn else "") for turn, size in enumerate(sizes)}
        kinds = {AGGREGATE: (0, self.clients.task.network.isolated_client), PEER: (self.audit.colluding, None)}
        views = [view for vantage, view in kinds.items() if vantage in requested.vantage]
        seen = [probe_set.in_sums(n, curves[n], c, alone) for c, alone in views for n in sorted(sizes) if n > c]
        last = OUTSIDER in requested.vantage and probe_set.round == max(self.audit.audited) and not probe_set.curve
        return [*seen, *([probe_set.outside()] if last else [])]

    def jobs(self, probe_set: ProbeSet) -> list[AttackJob]:
        """Return every attack on a probe set's recordings and on their sums, and the adaptive forms that there are.

        An adaptive job grants the clients' defence, or the method's own operation for privacy.

        There are no jobs for the control, nor for probes that no requested vantage sees. An attack that reconstructs
        nothing has one job a round, on its uploads.
        """
        return [job for each in (probe_set, *self.sums(probe_set)) for job in self._jobs(each)]

    def _jobs(self, probe_set: ProbeSet) -> list[AttackJob]:
        if probe_set.control == ANALYTIC or not self.vantages(probe_set):
            return []
        exchanges, updates = self._exchanges(probe_set), self._probes.audit_source == "update"
        inferring = probe_set.control == "target" and probe_set.point == (UPLOAD if updates else "target")
        hidden = tuple(e for e in exchanges if self.adapts(probe_set, self.clients.defence_of(e.client)))
        jobs = []
        for name, attack in self.attacks.items():
            job = partial(self._job, name, probe_set)
            if not attack.reconstructs:
                asked = job(()) if inferring else None
                jobs += [asked] if asked and asked.uploads else []
                continue
            labels = attack.labels == "given"
            jobs.append(job(exchanges if labels else _unlabelled(exchanges)))
            if hidden and "defence" in attack.models:
                jobs.append(job(hidden if labels else _unlabelled(hidden), adaptive=True))
        return jobs

    def defences(self) -> list[str]:
        """Return the defences of the probed clients, ``none`` last; clients with and without one are kept apart."""
        probed = {self.clients.defence_of(slot % self.clients.rounds.clients) for slot in range(self._probes.images)}
        return sorted(probed, key=lambda defence: defence == "none")

    def defences_of(self, job: AttackJob) -> list[str]:
        """Return the defences whose clients a job attacks; an adaptive one leaves out those that need no adaptation."""
        return [d for d in self.defences() if not job.adaptive or self.adapts(job.probe_set, d)]

    def adapts(self, probe_set: ProbeSet, defence: str) -> bool:
        """Return whether an informed attacker can adapt to clients with this defence, or with ``none``.

        What each client does to its own message is not done to the sum of several.
        """
        return (
            probe_set.group <= 1
            and protection_of(
                self.clients, self.audit.settings.adaptation, probe_set, self.vantages(probe_set)[0], defence != "none"
            ).adapts
        )

    def game_job(self, request: MembershipRequest) -> AttackJob:
        """Return the job of a membership game: the uploads that are granted, the candidates and public data."""
        game = request.game
        control, read = "easy" if game.easy else "target", max(request.rounds, default=0)
        probe_set = ProbeSet(control, read, "", 1, 1, "-".join(filter(None, ["membership", request.name])))
        exchanges = tuple(Exchange(line["id"], line["client"], slot, None) for slot, line in enumerate(request.lines))
        grants = {"public": self._public(), "vantage": game.vantage, "adaptive": request.adaptive}
        return self._common(request.attack, probe_set, exchanges, game=game, **grants)

    def _job(
        self, attack: str, probe_set: ProbeSet, exchanges: tuple[Exchange, ...], adaptive: bool = False
    ) -> AttackJob:
        beside = self._beside(attack, probe_set, {exchange.slot for exchange in exchanges})
        vantage = self.vantages(probe_set)[0]
        return self._common(attack, probe_set, exchanges, adaptive=adaptive, vantage=vantage, **beside)

    def _common(self, attack: str, probe_set: ProbeSet, exchanges: tuple[Exchange, ...], **grants: Any) -> AttackJob:
        dataset, gpu = self._task.dataset, self.audit.settings.attack_gpus
        return AttackJob(
            attack=attack,
            probe_set=probe_set,
            exchanges=exchanges,
            recordings=self._recordings(probe_set),
            run_config=dict(self.audit.run_config),
            shape=tuple(dataset.shape),
            classes=dataset.classes,
            mean=tuple(map(float, dataset.mean)),
            std=tuple(map(float, dataset.std)),
            device="cuda" if gpu and torch.cuda.is_available() else "cpu",
            memory=min(gpu, 1.0) or 1.0,
            **grants,
        )

    def _beside(self, attack: str, probe_set: ProbeSet, slots: Set[int]) -> dict[str, Any]:
        """Return the other data that the attack uses, where available; nothing is private below the target."""
        uses, clients = self.attacks[attack].uses, self.clients
        grants: dict[str, Any] = {"public": self._public() if "public" in uses else None}
        if probe_set.fresh or probe_set.vantage:  # nobody's own messages are seen
            return grants
        grants["start"] = "start" in uses and bool(hidden(clients)) and clients.method.common_start(clients.settings)
        if "uploads" in uses and not probe_set.on_client:  # an observer on a client sees no other client's upload
            lines = Recordings(self._recordings(probe_set)).update_lines(probe_set.round)
            grants["uploads"] = tuple(line["id"] for line in lines)
            if not self.attacks[attack].reconstructs and clients.privacy.metrics == "all":
                train = self._task.split.train
                grants["examples"] = tuple((line["client"], len(train[line["client"]])) for line in lines)
        if "earlier" in uses and probe_set.source == "probe":
            grants["earlier"] = tuple(self._earlier(probe_set, slots))
        return grants

    def _earlier(self, probe_set: ProbeSet, slots: Set[int]) -> Iterator[str]:
        """Yield the recordings of the attacked probes after earlier rounds, the first round first."""
        recordings = Recordings(self._recordings(probe_set))
        for server_round in (r for r in sorted(self.audit.audited) if r < probe_set.round):
            for line in recordings.probe_lines(probe_set.control, server_round, point=probe_set.point):
                if int(line["config"]["slot"]) in slots:  # another client may not have answered in this round
                    yield line["id"]

    def _recordings(self, probe_set: ProbeSet) -> Path:
        """Return the folder of the probe set's recorded exchanges; it holds none of them if no client wrote any."""
        examples = (self._source / "examples").absolute()
        if probe_set.on_client and is_recorded(examples):
            return examples
        return (self._source / "observations").absolute()

    def _exchanges(self, probe_set: ProbeSet) -> tuple[Exchange, ...]:
        if probe_set.source == "update":  # clients train once, under no control
            return self._exchanges_of_uploads(probe_set.round) if probe_set.control == "target" else ()
        lines = Recordings(self._recordings(probe_set)).probe_lines(
            probe_set.control, probe_set.round, point=probe_set.recorded
        )
        exchanges = []
        for line in lines:
            slot = int(line["config"]["slot"])
            if slot >= self._probes.images:  # this audit is of fewer probes than were recorded
                continue
            truth = read_truth(self._source / "truth", key(probe_set.round, probe_set.recorded, slot))
            if truth is None:
                self._note(f"{line['id']} was left out: no truth of it can be read.")
                continue
            exchanges.append(Exchange(line["id"], line["client"], slot, tuple(truth.labels.tolist())))
        return self._grouped(exchanges, probe_set) if probe_set.group else tuple(exchanges)

    def _grouped(self, exchanges: Sequence[Exchange], probe_set: ProbeSet) -> tuple[Exchange, ...]:
        """Return an exchange for each sum; one in which a message is missing, or the isolated client, is left out."""
        by_slot, size = {exchange.slot: exchange for exchange in exchanges}, probe_set.group + probe_set.colluding
        groups = groups_of(self._probes.images, self.clients.rounds.clients, size)
        whole = [[by_slot[slot] for slot in slots] for slots in groups if by_slot.keys() >= set(slots)]
        if probe_set.isolated is None:
            return tuple(_sum_of(members[: probe_set.group], members[probe_set.group :]) for members in whole)
        return tuple(
            replace(member, summed=tuple(one.id for one in members), slots=(member.slot,))
            for members in whole
            for member in members
            if member.client == probe_set.isolated
        )

    def _exchanges_of_uploads(self, server_round: int) -> tuple[Exchange, ...]:
        exchanges = []
        for slot, line in enumerate(self._upload_lines(server_round)):
            truth = self._truth_of(line["client"], server_round)
            if truth is None or not truth.steps:
                self._note(f"{line['id']} was left out: no truth of it can be read.")
                continue
            exchanges.append(Exchange(line["id"], line["client"], slot, tuple(truth.labels.tolist()), truth.steps))
        return tuple(exchanges)


def _sum_of(members: Sequence[Exchange], known: Sequence[Exchange]) -> Exchange:
    """Return the exchange of a sum over members, off which the messages of ``known`` are taken."""
    labels = tuple(label for member in members for label in member.labels or ())
    ids, slots = (tuple(getattr(member, name) for member in members) for name in ("id", "slot"))
    return replace(members[0], labels=labels, summed=ids, slots=slots, colluders=tuple(one.id for one in known))


def _unlabelled(exchanges: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
    return tuple(replace(exchange, labels=None) for exchange in exchanges)
