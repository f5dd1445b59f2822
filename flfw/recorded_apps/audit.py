"""Audit of the updates of any Flower app: the app knows nothing of this project but the recorder in its server.

The caller of `audit` has the recordings, the network and, for scoring, the clients' training data. `knowledge` alone
gives the knowledge of an attacker about one recorded update. `docs/recording.md` shows both.

The clients of a foreign app answer no probes, so the controls are computed here. Gradients are written and read back as
the recorder's files, so that the reader of recordings is tested as well.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import flfw
from flfw import nets, plugins
from flfw.adversary.attack import Attack, tuned_on
from flfw.audit.controls import UNDEFENDED, WEAK_DEFENCE
from flfw.audit.jobs import ANALYTIC, EASY, UPLOAD, AttackJob, Exchange, JobResult, ProbeSet
from flfw.audit.measures.noticed import TAMPERED, noticed
from flfw.audit.measures.public import PublicData
from flfw.audit.measures.statistics import significant
from flfw.audit.reconstruction import control_runs
from flfw.audit.reconstruction.control_runs import beside_target, by_slot, easy, searched, shown_by_weak
from flfw.audit.reconstruction.entries import description, entry
from flfw.audit.reconstruction.reconstruction_evidence import ControlResult, ControlResults, ReconstructionEvidence
from flfw.audit.reconstruction.scorer import Scorer, ScoreRow, columns
from flfw.audit.threat_model import ThreatModel
from flfw.errors import InputError, require
from flfw.files.outcomes import in_words
from flfw.files.progress import Steps
from flfw.files.provenance import code_hash, environment, requirements_hash
from flfw.files.result_entries import breakdowns
from flfw.files.result_file import to_json, write_rows
from flfw.files.sealed import write_atomic
from flfw.inversion.compute import watched
from flfw.nets.inputs import InputSpec
from flfw.nets.malicious_model import ModelModification
from flfw.nets.net import statistics_in_words
from flfw.recorded_apps.case import Chosen, Describe, ForeignCase, Victim, choose, lone_examples, nobodys
from flfw.recorded_apps.consistency import Consistency, UpdateCheck
from flfw.recorded_apps.cost import SearchLimits
from flfw.recorded_apps.defence import DescribedDefence
from flfw.recorded_apps.description import Mode, TrainingDescription
from flfw.recorded_apps.grants import Grants, Pair, attempt, threat_model_of
from flfw.recorded_apps.knowledge import InputSpace, described, granted, input_space, victim
from flfw.recorded_apps.residuals import EXCHANGED
from flfw.recording.client_examples import record_gradient
from flfw.recording.observation import Observation, Truth, key
from flfw.recording.reader import Recordings
from flfw.rng import initialising
from flfw.runs import provenance
from flfw.runs.provenance import now, outside_code
from flfw.task.defence import Defence

_NOTES = (
    "These are recorded updates of an app outside this project. The caller of the audit gave what the clients trained "
    "on. This audit did not measure accuracy.",
    "The analytic and the easy control ran on this machine with single examples of the clients' data: they did "
    "not pass through the app's clients and wire. The easy case computes in evaluation mode.",
)

_STATED = (
    "That the clients' defence is the described one was tested on the recorded messages alone. Not tested: that its "
    "random numbers are secret and drawn anew for each message, and what clients send beside these tensors. Attacks "
    "read one message each: over many rounds of a client noise averages out."
)

_FAINT = "Noise covers all updates together: no test sees whether data and training are the described ones."


def _traffic(kept: Recordings) -> list[dict[str, Any]]:
    """Return the recorded traffic of each round of training; accuracy is not recorded."""
    rows = []
    for number in sorted({line["round"] for line in kept.lines if line["type"] == "train"}):
        lines = kept.update_lines(number)
        up, down = (sum(line[side]["bytes"] for line in lines) for side in ("sent_by_client", "sent_to_client"))
        row = {"round": number, "loss": None, "acc_global": None, "acc_local": None, "clients": len(lines)}
        rows.append(row | {"upload_bytes": up, "download_bytes": down, "seconds": None, "failures": None})
    return rows


def probes(control: str, net: nn.Module, singles: Sequence[Truth], inputs: InputSpec) -> list[Observation]:
    """Return the gradient of each single example as a recorded probe; slots are places in ``singles``.

    Args:
        control: ``control`` or ``easy``.
        net: the network, wholly shared, in evaluation mode.
        singles: truths of one example each.
        inputs: the input space.
    """
    net = net.eval()
    received = {name: value.numpy() for name, value in nets.tensors(net).items()}
    with tempfile.TemporaryDirectory(prefix="flfw-controls-") as folder:
        for slot, single in enumerate(singles):
            config = {"control": control, "round": 0, "client": 0, "slot": slot, "own_slot": slot}
            config |= {"batch": 1, "steps": 1}
            record_gradient(Path(folder), 0, config, received, _gradient(net, single, inputs))
        return Recordings(Path(folder)).probes(control, 0)


def crafted(net: nn.Module, attack: Attack, case: ForeignCase) -> nn.Module:
    """Return a network with the numbers that an attack's malicious server sends; for any other attack as it is."""
    if not isinstance(attack, ModelModification):
        return net
    held, public = nets.tensors(net), case.inputs.normalise(torch.tensor(case.public.samples).float())
    made = {**attack.crafted(held, public), **attack.personal(0, held, public)}
    fitting = {name: value for name, value in made.items() if name in held and held[name].shape == value.shape}
    net.load_state_dict({**held, **fitting})
    return net


def analytic(singles: Sequence[Truth], inputs: InputSpec, classes: int, seed: int) -> ControlResult:
    """Run the closed form on softmax regression, which must recover every example."""
    with initialising(seed, "control"):  # its first name: the weights stay the same
        net = nets.build("linear", inputs.shape, classes)
    pairs = [(observation, singles[observation.slot]) for observation in probes(ANALYTIC, net, singles, inputs)]
    return control_runs.analytic(pairs, len(singles), inputs)


def _gradient(net: nn.Module, single: Truth, inputs: InputSpec) -> nets.Tensors:
    moving = {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
    loss = cross_entropy(net(inputs.normalise(single.samples)), single.labels)
    gradients = torch.autograd.grad(loss, list(moving.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(moving, gradients, strict=True))


def audit(
    recordings: str | Path,
    net: Callable[[], nn.Module],
    *,
    attacks: Sequence[str] | Mapping[str, Attack],
    truth: Callable[[int], Truth | None],
    public: PublicData,
    inputs: InputSpace,
    name: str = "",
    dataset: str = "data of the app",
    out: str | Path = "",
    lr: float | None = None,
    rounds: Sequence[int] | None = None,
    batch: int | None = None,
    steps: int | Callable[[Observation], int] = 1,
    mode: Mode = "train",
    defence: str | Defence = "none",
    seed: int = 0,
    victims: int = 8,
    pictures: bool = False,
    training: TrainingDescription | Callable[[Observation], TrainingDescription] | None = None,
    limits: SearchLimits | None = None,
    tampered_by: str = "",
) -> Path:
    """Attack recorded updates, score the results, write ``result.json``, ``audit.csv`` and the report; return ``out``.

    Call it once the app has ended. Before any attack, each update is computed anew from the truth, as described; where
    the two differ and nothing leaks, nothing is decided. An attack that raises counts as failed, the others go on.

    Args:
        recordings: the folder of the recorder.
        net: builds a fresh network, as `knowledge` takes it.
        attacks: by the name under which they are reported; names alone: those attacks with their usual settings.
        truth: gives a client's training data by its number in the recordings, also as arrays or lists; None: unknown,
            the client is left out. An example's ``indices`` name it among all clients' examples.
        public: data that an attacker may hold, and uses if it can; a client's in ``truth`` are left out of them.
        inputs: the input space.
        name: the app's name, for the report; empty: that of the folder of the recordings.
        dataset: the name of its data, for the report.
        out: a new folder; empty: that of the recordings with ``-audit`` behind its name.
        lr: learning rate of the local steps, taken as plain SGD; None: any other optimiser, attacks count as static.
        rounds: the rounds to audit; None: all recorded rounds.
        batch: number of examples that every client trained on, to be checked against the truth.
        steps: number of local steps of an update, all on the client's whole data.
        mode: mode of the network in local training, ``train`` or ``eval``; see `knowledge`.
        defence: operation of the clients on an update before it is sent: a name, and attacks count as static; or a
            defence such as ``DPGaussian(...)``, of which attacks are told, that does the same to the sent change.
        seed: seed of the attacks, floors and intervals.
        victims: number of audited clients of a round, those with the lowest numbers.
        pictures: whether the report shows the examples.
        training: the description of training, or of an update's by a function; for ``lr``, ``steps`` and ``mode``.
        limits: limits of the searches; None: the usual ones.
        tampered_by: the attack whose malicious server changed the network or its numbers; empty: it was an honest one.

    Raises:
        InputError: there are no such recordings, no client's training data are known, the network, a truth or the
            public data do not fit, or an attack is unknown, takes too much memory or time, or needs a malicious server.
    """
    path = Path(recordings).absolute()
    folder, limits, began = _new(out or path.with_name(f"{path.name}-audit")), limits or SearchLimits(), now()
    attacks, describe = _built(attacks), _describe(training, steps, lr, mode)
    case = ForeignCase(net, input_space(inputs), public, describe, seed, DescribedDefence.of(defence), tampered_by)
    case.check_attacks(attacks)
    kept = Recordings(path)
    work = _Audit(case, kept, choose(case, kept, rounds, truth, batch, victims, limits.sample), folder, attacks, limits)
    config = {"method": name or path.name, "dataset": dataset, "attack": list(attacks), "seed": seed}
    config |= {"defence": case.defence.name, "victims": victims, "lr": work.described.lr, "mode": work.described.mode}
    config |= {"show_samples": "yes" if pictures else "no", "malicious_server": tampered_by}
    work.write(config, began)
    return folder


def _built(attacks: Sequence[str] | Mapping[str, Attack]) -> Mapping[str, Attack]:
    if isinstance(attacks, Mapping):
        return attacks
    named = [attacks] if isinstance(attacks, str) else attacks
    classes: dict[str, Any] = {name: plugins.load_class(plugins.ATTACK, name, Attack) for name in named}
    return {name: attack() for name, attack in classes.items()}


def _new(out: str | Path) -> Path:
    folder = Path(out)
    if folder.exists():
        raise InputError(f"Expected a new folder for the audit, got {folder}; choose another or remove it.")
    return folder


def _describe(
    training: TrainingDescription | Describe | None,
    steps: int | Callable[[Observation], int],
    lr: float | None,
    mode: Mode,
) -> Describe:
    """Return the function that describes an update, from either form of the arguments."""
    if callable(training):
        described(TrainingDescription(), 0 if callable(steps) else steps, lr, mode)
        return training
    if callable(steps):
        require(training is None, "steps within training, or without it", steps="a function")
        described(None, 1, lr, mode)
        return lambda seen: described(None, steps(seen), lr, mode)
    constant = described(training, steps, lr, mode)
    return lambda seen: constant


def _unmoved(seen: Sequence[Observation]) -> str:
    """Say that all updates are what their clients received, or zeros; empty: one is not.

    That is more often a record of the wrong tensors than an app that sends nothing, so it is no evidence of protection.
    """
    moved = (
        value
        for observation in seen
        for name, value in observation.sent.items()
        if value.any() and not (name in observation.received and torch.equal(value, observation.received[name]))
    )
    if not seen or any(True for _ in moved):
        return ""
    return (
        "All that was recorded is what clients had received, or zeros: name the record of what they send (RecordMap)."
    )


@final
class _Audit:
    """An audit: its controls, its attacks and their results.

    Args:
        case: the setting.
        kept: the recordings.
        chosen: the updates to attack.
        out: the folder of all output; made once it is known that the network fits.
        attacks: the attacks, by name.
        limits: limits of the searches.

    Attributes:
        described: the description of the first update.
    """

    def __init__(
        self,
        case: ForeignCase,
        kept: Recordings,
        chosen: Chosen,
        out: Path,
        attacks: Mapping[str, Attack],
        limits: SearchLimits,
    ) -> None:
        self._case, self._kept, self._chosen, self._out, self._attacks = case, kept, chosen, out, attacks
        public = nobodys(case.public, chosen.truths.values())
        self._grants = Grants(case, kept, limits, public)
        exchanging = replace(case, public=public)  # an example is exchanged for one that is no client's
        self._consistency = Consistency(exchanging, self._grants.net, chosen.truths, limits.seconds)
        self._scorer = Scorer(public, out / "truth", out, case.seed, None)
        self.described = self._grants.check(chosen, attacks)
        out.mkdir(parents=True, mode=0o700)

    def write(self, config: dict[str, Any], began: str) -> None:
        """Run all attacks, and write the files of the audit.

        Args:
            config: the settings, for the report.
            began: time at which the audit began.
        """
        from flfw.report.report import write_report

        entries, rows = self.run()
        by, kept, seed = config["malicious_server"], self._kept, config["seed"]
        changed = [TAMPERED.format(by), *noticed(kept, one_model=False)] if by else []
        origin = {"name": config["dataset"], "source": "as the caller of the audit said"}
        session = provenance.describe_session(self._out, outside_code({"attack": config["attack"]}))
        result = {
            "flfw": flfw.__version__,
            "config": config,
            "provenance": {
                "code": code_hash(),
                "lock": requirements_hash(),
                "data": origin | dict.fromkeys(("md5_ok", "digest", "licence", "citation")),
                "weights": None,
                "tuned_on": tuned_on(self._attacks),
                "malicious_server": by or None,
                "resumed": [],
                "seeds": {"run": seed, "attacks": {name: [seed] for name in config["attack"]}},
                "sessions": [{**session, "started_at": began, "ended_at": now()}],
            },
            "environment": environment("the app's own"),
            "notes": [
                *changed,
                *_NOTES,
                *[_STATED] * self._case.defence.known,
                *breakdowns(entries),
                *kept.remarks(kept.refused),
            ],
            "rounds": _traffic(kept),
            "final": {},
            "privacy": [],
            "audit": entries,
            "recordings": kept.summary(kept.refused),
        }
        write_rows(rows, self._out / "audit.csv")
        write_atomic(self._out / "result.json", to_json(result))
        write_report(self._out)

    def run(self) -> tuple[list[dict[str, Any]], list[ScoreRow]]:
        """Run all attacks; return the entries of result.json, attack by attack, and a row per example."""
        lone, groups = lone_examples(self._chosen), self._chosen.groups
        for i, (_, single) in enumerate(lone):
            single.write(self._out / "truth", key(0, "easy", i))
        base = analytic([single for _, single in lone], self._case.inputs, self._case.classes, self._case.seed)
        entries: dict[str, list[dict[str, Any]]] = {name: [] for name in self._attacks}
        easy, rows = {}, []
        told = {
            name: (False, True) if self._can_be_told(attack) else (False,) for name, attack in self._attacks.items()
        }
        count = len(groups) + sum(1 + len(groups) * len(forms) for forms in told.values())
        with Steps("attack", count) as steps, watched(steps.part):
            checks = {n: self._consistency.checked(group, self._grants.recorded(group)) for n, group in groups.items()}
            if departure := self._consistency.residuals.departure():
                another = ControlResult(
                    None, False, reason=f"What data and defence leave of it is not the described noise: {departure}."
                )
                checks = {number: (another, each) for number, (_, each) in checks.items()}
            elif self._consistency.residuals.faint:
                shown = self._consistency.residuals.exchanged()  # only as much as that the data have a small update
                vague = ControlResult(None, None, failure_reason=_FAINT) if shown and significant(shown.p, 1) else None
                checks = {
                    number: (vague or replace(one, reason=f"{one.reason} {_FAINT}"), each)
                    for number, (one, each) in checks.items()
                }
            for number in groups:
                passed = checks[number][0].passed
                word = "not possible" if passed is None else "explained" if passed else "not explained"
                steps.done(f"round {number} computed anew from the truth: {word}")
            for name, attack in self._attacks.items():
                easy[name], scored = self._easy(name, attack, lone)
                rows += scored
                steps.done(f"{name} on the easy control: {'passed' if easy[name].passed else 'not passed'}")
            for number in groups:
                for name, attack in self._attacks.items():
                    consistent, each = checks[number]
                    controls = ControlResults(base, easy[name], consistent)
                    static: list[ScoreRow] = []
                    for informed in told[name]:
                        summary, static = self._round(name, attack, number, controls, each, informed, static)
                        entries[name].append(summary)
                        rows += static
                        steps.done(f"{name} at round {number}: {in_words(summary)}")
        return [summary for summaries in entries.values() for summary in summaries], rows

    def _easy(
        self, name: str, attack: Attack, lone: Sequence[tuple[int, Truth]]
    ) -> tuple[ControlResult, list[ScoreRow]]:
        net = crafted(self._case.fresh("easy"), attack, self._case)
        seen = probes("easy", net, [single for _, single in lone], self._case.inputs)
        model, training = victim(net, seen[0], self._case.inputs, "eval"), TrainingDescription(1.0, sends="gradient")
        labels = [single.labels for _, single in lone]
        known = [granted(model, training, 1, labels[o.slot], False) for o in seen]
        pairs: list[Pair | None] = [(o, self._grants.beside(one, attack)) for o, one in zip(seen, known, strict=True)]
        exchanges = [Exchange(f"easy-{i}", client, i, None) for i, (client, _) in enumerate(lone)]
        job = self._job(name, EASY, exchanges)
        result = attempt(job, attack, pairs, self._case.seed)
        rows = self._rows(job, pairs, result, threat_model_of(pairs, False))
        return easy(rows, len(exchanges), result), rows

    def _can_be_told(self, attack: Attack) -> bool:
        return self._case.defence.known and "defence" in attack.models and not attack.of_sums

    def _round(
        self,
        name: str,
        attack: Attack,
        number: int,
        controls: ControlResults,
        checks: Sequence[UpdateCheck],
        informed: bool,
        static_rows: Sequence[ScoreRow],
    ) -> tuple[dict[str, Any], list[ScoreRow]]:
        """Return the entry and the rows of an attack on a round, told of the clients' known defence or not."""
        group, defence, seed = self._chosen.groups[number], self._case.defence, self._case.seed
        known = defence if informed else None
        granting = self._grants.granted(group, attack, known)  # again: an attack may have changed tensors in place
        for v in group:
            v.truth.write(self._out / "truth", key(number, "update", v.slot))
        sizes = [len(v.truth.labels) for v in group]
        steps = max((pair[1].steps for pair in granting.pairs if pair), default=1)
        probe_set = ProbeSet("target", number, "", max(sizes), steps, "update")
        job = self._job(name, probe_set, [v.exchange for v in group], informed)
        threat_model = threat_model_of(granting.pairs, granting.hidden, defence.name, informed)
        result = attempt(job, attack, granting.pairs, seed, granting.not_applicable)
        started = time.monotonic()
        rows = self._rows(job, granting.pairs, result, threat_model)
        if unmoved := _unmoved([o for o in self._grants.recorded(group) if o is not None]):
            controls = replace(controls, consistency=ControlResult(None, False, reason=unmoved))
        opened = [(*pair, v.truth) for pair, v in zip(granting.pairs, group, strict=True) if pair]
        open_case = informed and threat_model.adaptive and not any(row["recovered"] for row in rows)
        consistent = controls.consistency.passed
        if open_case and consistent and controls.easy.passed:
            controls = self._beside_target(job, attack, group, controls)
        slots = {row["probe_slot"] for row in rows}
        about = description(job, attack, threat_model, defence.name, seed, mode=self.described.mode)
        target = ReconstructionEvidence(
            controls,
            private=threat_model.private,
            defended=threat_model.protected_by is not None,
            num_tests=len(self._attacks) * len(self._chosen.groups) * (1 + defence.known),  # two where it is known
            tampered_by=self._case.tampered_by,
            bounded=attack.bounded,
            unread=self._unread(granting.pairs),
            searched=searched(attack, name, opened, by_slot(job, result), seed) if open_case else None,
            identified=self._scorer.identified(job, slots) if defence.known else None,
            candidate_test=self._consistency.residuals.exchanged() if open_case and consistent else None,
            candidates=EXCHANGED,
        )
        # Here the controls become the verdict: the control ``consistency`` is the one of `Consistency.checked`.
        summary = entry(about, result, rows, sum(sizes), seed, target, static_rows)
        summary |= {"consistency": [check.as_dict() for check in checks]}
        return summary | {"scoring_seconds": round(time.monotonic() - started, 3)}, rows

    def _beside_target(
        self, job: AttackJob, attack: Attack, group: Sequence[Victim], controls: ControlResults
    ) -> ControlResults:
        """Run the attack on the same updates computed anew, behind the defence in its weakest form or, else, bare."""
        results = {}
        for control, defence in ((WEAK_DEFENCE, self._case.defence.weakest()), (UNDEFENDED, DescribedDefence())):
            if defence is None:
                reason = f"{self._case.defence.name} has no settings for this control: write `weakest_settings`"
                results[control] = ControlResult(None, None, failure_reason=reason)
                continue
            recorded = self._grants.recorded(group)
            pairs = zip(group, recorded, strict=True)
            seen = [o and self._consistency.sent_again(v, o, defence) for v, o in pairs]
            granting = self._grants.granted(group, attack, defence if defence.known else None, seen)
            below = replace(job, probe_set=job.probe_set.at(control))
            result = attempt(below, attack, granting.pairs, self._case.seed, granting.not_applicable)
            rows = self._rows(below, granting.pairs, result, threat_model_of(granting.pairs, granting.hidden))
            results[control] = beside_target(rows, result)
            if results[control].passed and control == WEAK_DEFENCE:
                return replace(controls, weak_defence=results[control], undefended=shown_by_weak(results[control]))
        return replace(controls, **results)

    def _unread(self, pairs: Sequence[Pair | None]) -> str:
        """Name what clients sent, changed, beside the tensors that they train: no attack reads it; empty: nothing."""
        trained = {name for name, parameter in self._grants.net.named_parameters() if parameter.requires_grad}
        moved = [
            name
            for observation, _ in filter(None, pairs)
            for name, value in observation.sent.items()
            if name not in trained and name in observation.received and value.is_floating_point()
            if not torch.equal(value, observation.received[name])
        ]
        return statistics_in_words(list(dict.fromkeys(moved)))

    def _job(
        self, attack: str, probe_set: ProbeSet, exchanges: Sequence[Exchange], informed: bool = False
    ) -> AttackJob:
        inputs = self._case.inputs
        mean, std = (tuple(value.flatten().tolist()) for value in (inputs.mean, inputs.std))
        setting = (self._kept.folder.absolute(), {}, inputs.shape, self._case.classes, mean, std)
        return AttackJob(attack, probe_set, tuple(exchanges), *setting, adaptive=informed)

    def _rows(
        self, job: AttackJob, pairs: Sequence[Pair | None], result: JobResult, threat_model: ThreatModel
    ) -> list[ScoreRow]:
        probe_set, rows = job.probe_set, []
        defence = "none" if probe_set.fresh else self._case.defence.name
        for exchange, pair, reconstruction in zip(job.exchanges, pairs, result.reconstructions, strict=True):
            where = columns(job, exchange, threat_model, defence, self._case.seed)
            where |= {"batch": pair[1].batch, "steps": pair[1].steps} if pair else {"batch": None, "steps": None}
            name = key(probe_set.round, UPLOAD if probe_set.source == UPLOAD else probe_set.point, exchange.slot)
            ceiling = self._attacks[job.attack].ceiling
            rows += self._scorer.rows(job, exchange, where, (name,), reconstruction, ceiling=ceiling)
        return self._scorer.controlled(job, rows)
