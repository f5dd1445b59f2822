"""Facts behind the page's sentences: the scope of the audit, all that gave no result, and attributes inferred."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from flfw.data.tables.listing import DESCRIBING
from flfw.experiment import VANTAGES
from flfw.files import outcomes
from flfw.files.result_file import read_rows
from flfw.report.findings import AuditEntry, Sample, number
from flfw.report.formats import sentence

_ALPHA = 0.01  # greatest probability that chance alone marks any feature of the run
_CONTROLS = {"weak_defence": "mildest-defence"}


@final
@dataclass(frozen=True)
class Scope:
    """Scope of an audit.

    Attributes:
        unit: ``images``, ``texts``, ``records`` or, where no score says which, ``samples``.
        samples: number of different samples over all settings, without the points of curves.
        clients: number of their clients; None where the run kept no row of them.
        rounds: the audited rounds; 0 is before training.
        sources: ``probe``, ``update`` or both.
        vantages: the attackers' positions, the server first.
        verdicts: number of settings by verdict.
        seeds: largest number of repetitions of an attack.
    """

    unit: str
    samples: int
    clients: int | None
    rounds: tuple[int, ...]
    sources: tuple[str, ...]
    vantages: tuple[str, ...]
    verdicts: Mapping[str, int]
    seeds: int


def scope(settings: Sequence[AuditEntry], otherwise: str = "samples") -> Scope:
    """Count the scope of a run's settings.

    Args:
        settings: settings of the audit by reconstruction.
        otherwise: the unit where no score says which.
    """
    # The points of a curve attack the same clients again, with larger batches: only the answer's targets count.
    targets = [setting for setting in settings if not setting.entry["curve"]] or settings
    rows = [sample.row for setting in targets for sample in setting.samples]
    # The position in the training part names an example; without it, its place in the batch of a client.
    examples = {(row.get("client"), *_place(row)) for row in rows}
    places = {str(setting.entry.get("vantage")) for setting in settings}
    count_of: dict[str, int] = {}
    for setting in settings:
        word = outcomes.in_words(setting.entry)
        count_of[word] = count_of.get(word, 0) + 1
    return Scope(
        unit=otherwise if (unit := unit_of(settings)) == "samples" else unit,
        samples=len(examples) or max((setting.total for setting in targets), default=0),
        clients=len({row.get("client") for row in rows}) or None,
        rounds=tuple(sorted({int(setting.entry["round"] or 0) for setting in settings})),
        sources=tuple(sorted({str(setting.entry["source"]) for setting in settings})),
        vantages=tuple(sorted(places, key=lambda v: VANTAGES.index(v) if v in VANTAGES else len(VANTAGES))),
        verdicts=count_of,
        seeds=max((len(setting.entry["seeds"] or []) for setting in settings), default=0),
    )


def is_regression(result: Mapping[str, Any]) -> bool:
    """Return whether a run's target is a number, also where its clients reported no error of theirs."""
    notes = result.get("notes") or []
    return "mae_global" in (result.get("final") or {}) or any(str(one).startswith(DESCRIBING[1]) for one in notes)


def caveats(notes: Iterable[str]) -> list[str]:
    """Return the notes of a run but for those that only describe its table; all of them stand under Provenance.

    >>> caveats(["Table: 2 columns become 3 features in [0, 1]; 0 are left out.", "An attack was stopped."])
    ['An attack was stopped.']
    """
    return [note for note in notes if not str(note).startswith(DESCRIBING)]


def _place(row: Mapping[str, str]) -> tuple[str | None, ...]:
    return (row["index"],) if row.get("index") else (row.get("probe_slot"), row.get("image"))


def unit_of(settings: Iterable[AuditEntry]) -> str:
    """Return the unit of a sample: decibels are for images only, words for texts, distances alone for records."""
    settings = list(settings)
    scores = [sample.scores for setting in settings for sample in (*setting.samples, *setting.checks)]
    if any(setting.entry["psnr"] for setting in settings) or any(score["psnr"] is not None for score in scores):
        return "images"
    if any(score["floor_rouge_1"] is not None for score in scores):
        return "texts"
    distances = [(setting.entry["distance"] or {}).get("rmsd") for setting in settings]
    distances += [score["rmsd"] for score in scores]
    exact = any(setting.entry["exact_match"] for setting in settings)
    return "records" if exact or any(distance is not None for distance in distances) else "samples"


def grants(setting: AuditEntry | None) -> dict[str, list[str]]:
    """Return the sentences on grants in three groups: ``given``, ``withheld`` and ``unused``."""
    sentences: dict[str, list[str]] = {"given": [], "withheld": [], "unused": []}
    kinds = {"not granted": "withheld", "not made use of": "unused"}
    for grant in [] if setting is None else setting.entry["granted"] or []:
        opening, _, rest = str(grant).partition(":")
        kind = kinds.get(opening.lower(), "given")
        sentences[kind].append(rest.strip() if kind != "given" else str(grant))
    return sentences


def most_missed(messages: int) -> float:
    """Return the largest share of messages that could leak while none of those probed does, one-sided at 95 %."""
    return 1 - 0.05 ** (1 / messages)


@final
@dataclass(frozen=True)
class FailureLine:
    """A failure: an attack, samples, a client or a recording without a result.

    Attributes:
        kind: ``sample``, ``attack``, ``client`` or ``recording``.
        at: the stage of the run.
        who: the affected samples, client or messages.
        reason: the reason in words.
        count: number of samples, clients or recordings in this line.
    """

    kind: str
    at: str
    who: str
    reason: str
    count: int = 1


def read_failures(
    folder: Path, recordings: Mapping[str, Any] | None, settings: Iterable[AuditEntry]
) -> list[FailureLine]:
    """Read all failures of a run: attacks, samples, clients' answers and recordings without a result."""
    failures = [failure for setting in settings for failure in _of_setting(setting)]
    if (folder / "failures.csv").is_file():
        failures += map(_of_client, read_rows(folder / "failures.csv"))
    kept = recordings or {}
    failures += [
        FailureLine("recording", "reading the recordings", "–", str(text)) for text in kept.get("refused") or []
    ]
    if skipped := int(kept.get("skipped") or 0):
        reason = "Not recorded: the recordings had reached the size that they may take."
        failures.append(FailureLine("recording", "training", _count(skipped, "message"), reason, skipped))
    # Settings of one attack share the controls below them, and so its failures.
    return list(dict.fromkeys(failures))


def _of_setting(setting: AuditEntry) -> Iterable[FailureLine]:
    entry = setting.entry
    at = f"{setting.title}, {_when(entry['round'])}"
    if entry["failure_reason"]:
        yield FailureLine("attack", at, "the whole attack", sentence(entry["failure_reason"]))
    failed = [sample for sample in setting.samples if sample.failed]
    if failed:
        reason = (
            "The attack gave nothing, as said above."
            if entry["failure_reason"]
            else "The attack gave no finite result."
        )
        yield FailureLine("sample", at, "; ".join(who(sample) for sample in failed), reason, len(failed))
    if missing := setting.failures - len(failed):
        reason = "Nothing of them was recorded, or the run kept no row of them."
        yield FailureLine("sample", at, f"{_count(missing, 'more sample' if failed else 'sample')}", reason, missing)
    for sample in setting.checks:
        if sample.failed:
            control = f"{entry['attack']}, {_CONTROLS.get(sample.row['rung'], sample.row['rung'])} control"
            yield FailureLine("sample", control, who(sample), "The attack gave no finite result.")


def _of_client(row: Mapping[str, str]) -> FailureLine:
    at, turn = row.get("at") or "training", number(row.get("round"))
    place = at if turn is None else f"{at}, {_when(turn)}"
    client = number(row.get("client"))
    return FailureLine(
        "client", place, "a client" if client is None else f"client {client:g}", row.get("reason") or "–"
    )


def _when(turn: float) -> str:
    return "before the first round" if turn == 0 else f"round {turn:g}"


def who(sample: Sample) -> str:
    """Return the name of a sample and its client, as the whole page uses it."""
    batch = number(sample.row.get("batch")) or 1
    place = f", place {sample.row['image']} in the batch" if batch > 1 and sample.row.get("image") else ""
    name = sample.row.get("probe_slot") or sample.row.get("image")
    return f"client {sample.row.get('client')}, sample {name}{place}"


def _count(number_: int, word: str) -> str:
    return f"{number_} {word}{'' if number_ == 1 else 's'}"


def first_screen(failures: Iterable[FailureLine]) -> str:
    """Return the failures in one line; an empty string if there are none.

    >>> first_screen([FailureLine("sample", "", "", "", 2), FailureLine("attack", "", "", "")])
    '1 attack ended early, 2 attempts without a result'
    """
    counts: dict[str, int] = {}
    for failure in failures:
        counts[failure.kind] = counts.get(failure.kind, 0) + failure.count
    words = {
        "attack": ("attack ended early", "attacks ended early"),
        "sample": ("attempt without a result", "attempts without a result"),
        "client": ("client’s answer missing", "clients’ answers missing"),
        "recording": ("recording refused or left out", "recordings refused or left out"),
    }
    return ", ".join([f"{counts[kind]} {words[kind][counts[kind] != 1]}" for kind in words if counts.get(kind)])


@final
@dataclass(frozen=True)
class AttributeTable:
    """Features of one setting, those above chance first.

    Attributes:
        setting: the setting.
        rows: for each feature the keys of `flfw.audit.measures.columns.ColumnRate`, its ``number`` from 1 on, and
            whether it is recovered ``above`` chance.
        needed: messages without which no feature could be above chance, as the test flips a coin for each; 0: there
            are enough.
    """

    setting: AuditEntry
    rows: tuple[Mapping[str, Any], ...]
    needed: int = 0

    @property
    def above(self) -> int:
        """Number of features that are recovered more often than a guess explains."""
        return sum(row["above"] for row in self.rows)


def attribute_tables(settings: Iterable[AuditEntry]) -> list[AttributeTable]:
    """Return a table for each setting of rows; the p-values are corrected for all features of all
    settings (Bonferroni).
    """
    tabular = [setting for setting in settings if setting.entry.get("columns")]
    tests = sum(len(setting.entry["columns"]) for setting in tabular)
    tables = []
    for setting in tabular:
        rows = [
            {**column, "number": number, "above": column["p"] * tests <= _ALPHA}
            for number, column in enumerate(setting.entry["columns"], 1)
        ]
        rows.sort(key=lambda row: (not row["above"], row["floor"] - row["share"], row["number"]))
        needed = math.ceil(math.log2(tests / _ALPHA))
        enough = (setting.entry.get("messages") or needed) >= needed
        tables.append(AttributeTable(setting, tuple(rows), 0 if enough else needed))
    return tables
