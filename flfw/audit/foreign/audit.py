"""Audit of the updates of any Flower app: the app knows nothing of this project but the recorder in its server.

The caller of `audit` has the recordings, the network and, for scoring, the clients' training data. `knowledge` alone
gives the knowledge of an attacker about one recorded update. `docs/recording.md` shows both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, final

from torch import nn

import flfw
from flfw.adversary.attack import Attack, tuned_on
from flfw.adversary.observation import Observation, Truth, key
from flfw.audit.entries import breakdowns, entry, write_rows
from flfw.audit.foreign.attempt import Pair, attempt, standing
from flfw.audit.foreign.case import Chosen, ForeignCase, Victim, choose, lone_examples
from flfw.audit.foreign.knowledge import InputSpace, UpdateDescription, granted, input_space, named, victim
from flfw.audit.foreign.ladder import control, probes
from flfw.audit.jobs import EASY, Exchange, Job, Solution, Ticket
from flfw.audit.ladder import easy
from flfw.audit.measures.public import Public
from flfw.audit.scorer import Scorer, ScoreRow
from flfw.audit.standing import Standing
from flfw.audit.verdict import Rung
from flfw.errors import BadInput, require
from flfw.recording.reader import Recordings
from flfw.storage.provenance import code_hash, environment, requirements_hash
from flfw.storage.sealed import write_whole
from flfw.terminal.progress import Steps
from flfw.victims.victim import PlainVictim

_NOTES = (
    "These are recorded updates of an app of its own; what the clients trained on was told by whoever asked for the "
    "audit, and accuracy is the app's own affair.",
    "The ladder, control and easy case, was climbed on this machine with single examples of the clients' data: it did "
    "not pass through the app's clients and wire. The easy case computes in evaluation mode.",
)


def audit(
    recordings: str | Path,
    net: Callable[[], nn.Module],
    *,
    attacks: Mapping[str, Attack],
    truth: Callable[[int], Truth | None],
    public: Public,
    inputs: InputSpace,
    name: str,
    dataset: str,
    lr: float | None,
    out: str | Path,
    rounds: Sequence[int] | None = None,
    batch: int | None = None,
    steps: int | Callable[[Observation], int] = 1,
    mode: str = "train",
    defence: str = "none",
    seed: int = 0,
    victims: int = 8,
    pictures: bool = False,
) -> Path:
    """Attack recorded updates, score the results, and write ``result.json``, ``audit.csv`` and ``report.html``.

    Call it once the app has ended. The attacks run in this process, one after the other. An attack that raises counts
    as failed, and the others go on.

    Args:
        recordings: the folder of the recorder.
        net: builds a fresh network, as `knowledge` takes it.
        attacks: by the name under which they are reported.
        truth: gives a client's training data by its number in the recordings; None: unknown, the client is left out.
            An example's ``indices`` name it among all clients' examples.
        public: data that an attacker may hold, none of them a client's.
        inputs: the input space.
        name: the app's name, for the report.
        dataset: the name of its data, for the report.
        lr: learning rate of the local steps, taken as plain SGD; None: any other optimiser, attacks count as static.
        out: a new folder.
        rounds: the rounds to audit; None: all recorded rounds.
        batch: number of examples that every client trained on, to be checked against the truth.
        steps: number of local steps of an update.
        mode: mode of the network in local training, ``train`` or ``eval``; see `knowledge`.
        defence: operation of the clients on an update before it is sent, such as noise; attacks then count as static.
        seed: seed of the attacks, floors and intervals.
        victims: number of audited clients of a round, those with the lowest numbers.
        pictures: whether the report shows the examples.

    Returns:
        ``out``.

    Raises:
        BadInput: there are no such recordings, no client's training data are known, or the network, a truth or the
            public data do not fit.
    """
    folder = Path(out)
    if folder.exists():
        raise BadInput(f"Expected a new folder for the audit, got {folder}; choose another or remove it.")
    require(bool(attacks), "at least one attack", attacks=list(attacks))
    require(victims >= 1, "victims >= 1", victims=victims)
    config = {"method": name, "dataset": dataset, "seed": seed, "attack": list(attacks), "lr": lr, "mode": mode}
    config |= {"defence": defence, "victims": victims, "pictures": "yes" if pictures else "no"}
    case = ForeignCase(net, input_space(inputs), public, lr, steps, mode, seed, defence)
    kept = Recordings(Path(recordings))
    chosen = choose(case, kept, rounds, truth, batch, victims)
    entries, rows = _Audit(case, kept, chosen, folder).run(attacks)
    _write(folder, config, kept, entries, rows, tuned_on(attacks))
    return folder


@final
class _Audit:
    """An audit: its ladder, its attacks and their results.

    Args:
        case: the setting.
        kept: the recordings.
        chosen: the attacked ones, by round.
        out: the folder of all output; made once it is known that the network fits.
    """

    def __init__(self, case: ForeignCase, kept: Recordings, chosen: Chosen, out: Path) -> None:
        self._case, self._kept, self._chosen, self._out = case, kept, chosen, out
        self._model = case.fresh("attacker")
        self._scorers: dict[int, Scorer] = {}
        self._grant(next(iter(chosen.values()))[:1])
        out.mkdir(parents=True, mode=0o700)

    def run(self, attacks: Mapping[str, Attack]) -> tuple[list[dict[str, Any]], list[ScoreRow]]:
        """Run all attacks; return the entries of result.json, attack by attack, and a row per example."""
        lone = lone_examples(self._chosen)
        for i, (_, single) in enumerate(lone):
            single.write(self._out / "truth", key(0, "easy", i))
        checked = control([single for _, single in lone], self._case.inputs, self._case.classes, self._case.seed)
        entries: dict[str, list[dict[str, Any]]] = {name: [] for name in attacks}
        easy, rows = {}, []
        with Steps("attack", len(attacks) * (1 + len(self._chosen))) as steps:
            for name, attack in attacks.items():
                easy[name], scored = self._easy(name, attack, lone)
                rows += scored
                steps.done(f"{name} on the easy rung: {easy[name].psnr:.1f} dB")
            for number in self._chosen:
                for name, attack in attacks.items():
                    summary, scored = self._round(name, attack, number, (checked, easy[name]))
                    entries[name].append(summary)
                    rows += scored
                    steps.done(f"{name} at round {number}: {summary['verdict']}")
        return [summary for summaries in entries.values() for summary in summaries], rows

    def _grant(self, group: Sequence[Victim]) -> list[Pair | None]:
        """Return the observations of a round with the knowledge granted about each; None for a refused one."""
        models: dict[tuple[int, tuple[str, ...]], PlainVictim] = {}
        pairs: list[Pair | None] = []
        withheld = () if self._case.defence == "none" else (f"not granted: that the clients use {self._case.defence}",)
        for v, o in zip(group, self._kept.observations([v.line["id"] for v in group]), strict=True):
            if o is None:
                pairs.append(None)
                continue
            place = (
                id(o.received),
                tuple(sorted(o.sent)),
            )  # an attack handles all observations that share a model at once
            seen = named(self._model, o)
            if place not in models:
                models[place] = victim(self._model, seen, self._case.inputs, self._case.mode)
            description = self._case.update(seen, len(v.truth.labels))
            known = granted(models[place], description, v.truth.labels.clone(), self._case.random)
            pairs.append((seen, replace(known, granted=known.granted + withheld)))
        return pairs

    def _easy(self, name: str, attack: Attack, lone: Sequence[tuple[int, Truth]]) -> tuple[Rung, list[ScoreRow]]:
        net = self._case.fresh("easy")
        seen = probes("easy", net, [single for _, single in lone], self._case.inputs)
        model, description = (
            victim(net, seen[0], self._case.inputs, "eval"),
            UpdateDescription(1, 1, 1.0, "eval", weights=False),
        )
        pairs: list[Pair | None] = [(o, granted(model, description, lone[o.slot][1].labels, False)) for o in seen]
        exchanges = [Exchange(f"easy-{i}", client, i, None) for i, (client, _) in enumerate(lone)]
        job = self._job(name, EASY, exchanges)
        solution = attempt(job, attack, pairs, self._case.seed)
        rows = self._rows(job, pairs, solution, standing(pairs, False))
        return easy(rows, len(exchanges), solution), rows

    def _round(
        self, name: str, attack: Attack, number: int, ladder: tuple[Rung, Rung]
    ) -> tuple[dict[str, Any], list[ScoreRow]]:
        group = self._chosen[number]
        pairs = self._grant(group)  # again, because an attack may have changed the tensors in place
        for v in group:
            v.truth.write(self._out / "truth", key(number, "update", v.slot))
        sizes = [len(v.truth.labels) for v in group]
        steps = max((pair[1].steps for pair in pairs if pair), default=1)
        ticket = Ticket("target", number, "", max(sizes), steps, "update")
        job = self._job(name, ticket, [v.exchange for v in group])
        stands, solution = standing(pairs, self._case.hidden), attempt(job, attack, pairs, self._case.seed)
        started = time.monotonic()
        rows = self._rows(job, pairs, solution, stands)
        description = {
            "attack": name,
            "adaptive": stands.adaptive,
            "vantage": "server",
            "source": "update",
            "round": number,
            "client": None,
            "defence": self._case.defence,
            "granted": list(stands.granted),
            "batch": max(sizes),
            "steps": steps,
            "curve": None,
            "mode": self._case.mode,
            **asdict(attack.budget),
            "seeds": [self._case.seed],
        }
        summary = entry(description, solution, rows, sum(sizes), ladder, self._case.seed)
        return summary | {"scoring_seconds": round(time.monotonic() - started, 3)}, rows

    def _job(self, attack: str, ticket: Ticket, exchanges: Sequence[Exchange]) -> Job:
        inputs = self._case.inputs
        mean, std = (tuple(value.flatten().tolist()) for value in (inputs.mean, inputs.std))
        setting = (self._kept.folder.absolute(), {}, inputs.shape, self._case.classes, mean, std)
        return Job(attack, ticket, tuple(exchanges), *setting)

    def _rows(self, job: Job, pairs: Sequence[Pair | None], solution: Solution, stands: Standing) -> list[ScoreRow]:
        ticket, rows = job.ticket, []
        source = "update" if ticket.rung == "target" else "probe"
        common: ScoreRow = {"attack": job.attack, "adaptive": stands.adaptive, "vantage": "server", "source": source}
        common |= {"rung": ticket.rung, "curve": "", "round": ticket.round, "seed": self._case.seed}
        for exchange, pair, reconstruction in zip(job.exchanges, pairs, solution.reconstructions, strict=True):
            # Floors are kept by an example's index, and callers may count these anew for each client.
            scorer = self._scorers.setdefault(exchange.client, self._scorer())
            where = {"client": exchange.client, "victim": exchange.slot}
            where |= {"batch": pair[1].batch, "steps": pair[1].steps} if pair else {"batch": None, "steps": None}
            name = key(ticket.round, ticket.point, exchange.slot)
            rows += scorer.rows(job, exchange, common | where, name, reconstruction)
        return rows

    def _scorer(self) -> Scorer:
        return Scorer(self._case.public, self._out / "truth", self._out, self._case.seed, None)


def _write(
    folder: Path,
    config: dict[str, Any],
    kept: Recordings,
    entries: list[dict[str, Any]],
    rows: list[ScoreRow],
    tuned: list[str],
) -> None:
    from flfw.report.report import write_report

    notes = [*_NOTES, *breakdowns(entries), *kept.remarks(kept.refused)]
    origin = {"name": config["dataset"], "source": "as told by whoever asked", "md5_ok": None, "digest": None}
    result = {
        "flfw": flfw.__version__,
        "config": config,
        "provenance": {
            "code": code_hash(),
            "lock": requirements_hash(),
            "data": origin,
            "weights": None,
            "tuned_on": tuned,
            "resumed": [],
        },
        "environment": environment("the app's own"),
        "notes": notes,
        "rounds": _traffic(kept),
        "final": {},
        "privacy": [],
        "audit": entries,
        "recordings": kept.summary(kept.refused),
    }
    write_rows(rows, folder / "audit.csv")
    write_whole(folder / "result.json", json.dumps(result, indent=1, allow_nan=False).encode())
    write_report(folder)


def _traffic(kept: Recordings) -> list[dict[str, Any]]:
    """Return the recorded traffic of each round of training; accuracy is not recorded."""
    rows = []
    for number in sorted({line["round"] for line in kept.lines if line["type"] == "train"}):
        lines = kept.update_lines(number)
        up, down = (sum(line[side]["bytes"] for line in lines) for side in ("sent_by_client", "sent_to_client"))
        row = {"round": number, "loss": None, "acc_global": None, "acc_local": None, "clients": len(lines)}
        rows.append(row | {"upload_bytes": up, "download_bytes": down, "seconds": None, "failures": None})
    return rows
