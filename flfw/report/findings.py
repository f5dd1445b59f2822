"""Findings of an audit, read from a run's folder: each setting with its samples, the worst for the client first."""

import base64
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Undefined
from markupsafe import Markup, escape
from PIL import Image

from flfw.data.files.columns import TableSchema
from flfw.data.tables import plan_file
from flfw.experiment.curves import LADDER, SUM_SIZE
from flfw.files.outcomes import outcome
from flfw.files.result_entries import EntryFields
from flfw.files.result_file import read_rows, stored_example

# An attacker's grants and budget: settings that agree in all of these share one description.
GRANT = {
    "attack", "adaptive", "adaptation", "vantage", "source", "client", "defence", "granted", "batch", "steps", "mode",
    "iterations", "restarts", "selection", "seeds", "protected_by",
}  # fmt: skip
# Keys of an audit entry that an older run may lack: the page reads them as nothing.
FLOORS = ("noise", "grey", "normalisation", "mean", "class_mean", "random_public", "nearest_public", "unguided")
# Larger samples would make the page heavy without showing more at the size a reader sees.
_LARGEST_SIDE = 192
_BESIDE = ("undefended", "weak_defence")  # controls that belong to one target; the others belong to an attack
_SCORES = (
    "psnr", "ceiling", "ssim", "lpips", "feature_error", "rmsd", "gain", "rank", "candidates", "exact_features",
    "agreed", "agreed_exact", "iterations", "matching_loss",
    "label_accuracy", "rouge_1", "rouge_2", "floor_rouge_1", *(f"floor_{floor}" for floor in FLOORS),
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """An attacked sample: a row of `audit.csv`, its scores, its pictures; `nearness` is larger for a worse leak."""

    row: Mapping[str, str]
    scores: Mapping[str, float | None]
    failed: bool
    recovered: bool
    nearness: float
    original: str | None = None
    reconstruction: str | None = None
    strip: Markup | None = None

    @property
    def is_text(self) -> bool:
        """True if words were compared."""
        return self.scores["floor_rouge_1"] is not None


@dataclass(frozen=True)
class AuditEntry:
    """An audit entry of `result.json` (an attack at a round) with its samples, the worst for the client first.

    Attributes:
        entry: the entry as read; keys that an older run lacks are None.
        name: the attack, with its differences from the run's other entries.
        key: its id, unique on the page.
        samples: samples of the target itself.
        checks: samples of the controls below it.
    """

    entry: Mapping[str, Any]
    name: str
    key: str = ""
    samples: list[Sample] = field(default_factory=list)
    checks: list[Sample] = field(default_factory=list)

    @property
    def informed(self) -> bool:
        """True if the attacker knows the clients' defence, or the method's own operation, and adapts to it."""
        return bool(self.entry.get("adaptation"))

    @property
    def total(self) -> int:
        """Number of attacked samples, failures included."""
        return int(self.entry.get("images") or len(self.samples))

    @property
    def recovered(self) -> int:
        """Number of samples that count as recovered."""
        if self.samples:
            return sum(sample.recovered for sample in self.samples)
        return round((number(self.entry.get("share_recovered")) or 0.0) * self.total)

    @property
    def failures(self) -> int:
        """Number of samples for which the attack gave nothing."""
        return max(int(self.entry.get("failures") or 0), sum(sample.failed for sample in self.samples))

    @property
    def point(self) -> str:
        """Point of a curve, in words; empty for a plain target."""
        batch, steps = self.entry.get("batch"), self.entry.get("steps")
        words = {"batch": f"batch {batch}", "steps": f"{steps} local step{'' if steps == 1 else 's'}"}
        words[SUM_SIZE] = sum_words(self.entry)
        words[LADDER] = f"{words['batch']} and {words['steps']}"
        return words.get(str(self.entry.get("curve")), "")

    @property
    def title(self) -> str:
        """Name, with the point of a curve."""
        return f"{self.name}, {self.point}" if self.point else self.name

    @property
    def controls(self) -> dict[str, Mapping[str, Any]]:
        """Results of the controls below the target, by the control's name."""
        return {str(control["rung"]): control for control in self.entry.get("ladder") or []}

    @property
    def shown_to_work(self) -> bool:
        """True if the attack works on the same clients without the protection, and through its weakest form."""
        return all(self.controls.get(control, {}).get("passed") for control in _BESIDE)

    @property
    def cause(self) -> str:
        """Cause of the verdict in one word; empty where it needs none."""
        return str(self.entry.get("cause") or "")

    @property
    def outcome(self) -> str:
        """Evidence of a leak, or the verdict; see `flfw.files.outcomes.outcome`."""
        return outcome(self.entry)

    @property
    def control_samples(self) -> dict[str, Sample]:
        """Best sample of each control below the target."""
        best: dict[str, Sample] = {}
        for sample in sorted(self.checks, key=lambda sample: sample.nearness):
            best[str(sample.row.get("rung"))] = sample
        return best


def sum_words(entry: Mapping[str, Any]) -> str:
    """Return over how many clients an attacked sum goes: ``sums over 5 clients``; empty for single messages."""
    group = entry.get("sum_size")
    return f"sums over {group} client{'' if group == 1 else 's'}" if group else ""


def read_settings(folder: Path, entries: Sequence[Mapping[str, Any]], pictures: bool = True) -> list[AuditEntry]:
    """Join every audit entry with the rows of `audit.csv` that belong to it; without pictures no tensor is opened."""
    rows: list[dict[str, str]] = []
    if (folder / "audit.csv").is_file():
        rows = read_rows(folder / "audit.csv")
    schema = plan_file.kept(folder) if pictures else None

    def stored(row: Mapping[str, str], column: str) -> np.ndarray | None:
        # A folder without its ground truth still gets a report of its scores.
        return stored_example(folder, row[column], row["image"]) if pictures and row.get(column) else None

    settings = []
    for index, entry in enumerate(entries):
        shown = {**dict.fromkeys(EntryFields.model_fields), **entry}
        if shown["protected_by"] and not _is_defended(entry):
            shown["defence"] = shown["protected_by"]  # the page names it as known: here, the method itself
        setting = AuditEntry(shown, setting_name(entry, entries), f"s{index + 1}")
        for row in (row for row in rows if belongs(row, entry)):
            sample = read_sample(row, stored(row, "truth"), stored(row, "reconstruction"), setting.name, schema)
            (setting.samples if is_target(row) else setting.checks).append(sample)
        setting.samples.sort(key=lambda sample: sample.nearness, reverse=True)
        settings.append(setting)
    return settings


def is_target(row: Mapping[str, str]) -> bool:
    """Return whether a row of `audit.csv` is one of a target itself, and of no control below it."""
    return (row.get("rung") or "target") == "target"


def belongs(row: Mapping[str, str], entry: Mapping[str, Any]) -> bool:
    """Return whether a row of `audit.csv` belongs to an audit entry; an entry without a client covers all clients."""
    if not is_target(row):
        return row.get("attack") == str(entry.get("attack")) and _is_below(row, entry)
    if (row.get("curve") or None) != (entry.get("curve") or None):
        return False
    keys = ["round", "sum_size"] + ["client"] * (entry.get("client") is not None)
    keys += ["batch", "steps"] * bool(entry.get("curve"))
    texts = all(row.get(key) == str(entry.get(key)) for key in ("attack", "vantage", "source", "defence"))
    numbers = all(number(row.get(key)) == number(entry.get(key)) for key in keys)
    kind = is_true(row.get("adaptive")) == bool(entry.get("adaptive"))
    return texts and numbers and kind and bool(row.get("adaptation")) == bool(entry.get("adaptation"))


def _is_below(row: Mapping[str, str], entry: Mapping[str, Any]) -> bool:
    """Return whether the control of a row belongs to an entry of the same attack."""
    if row["rung"] not in _BESIDE:
        return True
    tried = {control["rung"] for control in entry.get("ladder") or [] if control["passed"] is not None}
    same = all(number(row.get(key)) == number(entry.get(key)) for key in ("round", "batch", "steps"))
    same &= (row.get("curve") or None) == (entry.get("curve") or None)
    # The two other vantages see the same bytes, whose controls are recorded once.
    same &= (row.get("vantage") == "client_example") == (entry.get("vantage") == "client_example")
    return same and row["rung"] in tried


def read_sample(
    row: Mapping[str, str],
    truth: np.ndarray | None,
    guess: np.ndarray | None,
    attack: str,
    schema: TableSchema | None = None,
) -> Sample:
    """Read a row with its pictures: PNGs for images, lines for text, for tabular data a strip of features or, where
    their plan is known, their values.
    """
    scores = {key: number(row.get(key)) for key in _SCORES}
    failed = is_true(row.get("failed"))
    # Decibels rank images and distances rank records; an attempt without a result comes last.
    psnr, rmsd = scores["psnr"], scores["rmsd"]
    nearness = -math.inf if failed else psnr if psnr is not None else -math.inf if rmsd is None else -rmsd
    sample = Sample(row, scores, failed, is_true(row.get("recovered")), nearness)
    guess = None if failed else guess
    if truth is not None and sample.is_text:
        return replace(sample, strip=text_pair(truth, guess))
    if truth is not None and truth.ndim == 1 and schema is not None and len(truth) == schema.width:
        return replace(sample, strip=row_pair(schema, truth, guess))
    if truth is not None and truth.ndim == 1:
        from flfw.report.figures import feature_strip  # matplotlib takes long to load, and few need it

        alt = f"Features of sample {row.get('probe_slot')} of client {row.get('client')}, and what {attack} gave"
        return replace(sample, strip=feature_strip(truth, guess, alt))
    original, reconstruction = (None if picture is None else png_uri(picture) for picture in (truth, guess))
    return replace(sample, original=original, reconstruction=reconstruction)


def png_uri(sample: np.ndarray) -> str:
    """Return a (C, H, W) sample in [0, 1] with one or three channels as the data URI of a PNG."""
    finite = np.nan_to_num(np.asarray(sample, dtype=np.float64), nan=0.0, posinf=1.0, neginf=0.0)
    pixels = np.rint(np.clip(finite, 0.0, 1.0) * 255).astype(np.uint8)
    image = Image.fromarray(pixels[0] if pixels.shape[0] == 1 else np.moveaxis(pixels, 0, -1))
    image.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE), Image.Resampling.BOX)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


_SAME_PROBES = ("attack", "vantage", "source", "round", "curve", "batch", "steps")


def setting_name(entry: Mapping[str, Any], entries: Iterable[Mapping[str, Any]], kind: bool = True) -> str:
    """Return the attack's name, with the differences of this entry from the others of the run.

    Args:
        entry: the entry to name.
        entries: all entries of the run.
        kind: whether names say static or adaptive where both, or a defence, occur; an attack that knows the defence
            says so in any case, and needs no other word.
    """
    entries = list(entries)
    parts = [str(entry.get("attack"))]
    informed = any(other.get("adaptation") for other in entries if other.get("attack") == entry.get("attack"))
    # A point of a curve may be static where the plain targets are adaptive: only its own name has to say so.
    kinds = {bool(other.get("adaptive")) for other in entries if not other.get("curve") or other is entry}
    if kind and not informed and (_is_defended(entry) or len(kinds) > 1):
        parts.append("adaptive" if entry.get("adaptive") else "static")
    alike = [other for other in entries if all(other.get(key) == entry.get(key) for key in _SAME_PROBES)]
    partly = len({other.get("defence") for other in alike}) > 1  # only some of the clients defend themselves
    protected_by = entry.get("protected_by") or entry.get("defence")
    if partly and not (entry.get("adaptation") and protected_by == entry.get("defence")):
        parts.append(f"against {entry['defence']}" if _is_defended(entry) else "undefended")
    parts += [f"told of {protected_by}"] if entry.get("adaptation") else []
    where = [str(entry.get(key)) for key in ("vantage", "source") if len({other.get(key) for other in entries}) > 1]
    where += [] if entry.get("client") is None else [f"client {entry['client']}"]
    return " ".join([*parts, f"({', '.join(where)})"] if where else parts)


def _is_defended(entry: Mapping[str, Any]) -> bool:
    return entry.get("defence") not in (None, "none")


def number(value: Any) -> float | None:
    """Read a finite or infinite number from JSON or CSV; None for an empty field or a NaN."""
    if value is None or isinstance(value, Undefined):
        return None
    try:
        read = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(read) else read


def is_true(text: Any) -> bool:
    """Read a flag as a CSV may spell it."""
    return str(text).strip().lower() in ("true", "1", "1.0", "yes")


_MOST = 60  # columns of a row that are shown
_SIGNS = {"\0": "·", "\n": "↵", "\t": "⇥"}
LEGEND = (
    "↵ ends a line, ⇥ is a tab, · a zero byte that fills up, \N{REPLACEMENT CHARACTER} another byte without a picture"
)
"""Words for the signs of what cannot be printed."""


def text_pair(truth: np.ndarray, reconstruction: np.ndarray | None) -> Markup:
    """Write a text above its reconstruction, with the wrong characters of the latter marked.

    Args:
        truth: raw inputs (T,) in [0, 1], byte k as k / 255.
        reconstruction: the same of the attack's result; None: there is none.
    """
    true = _bytes(truth)
    lines = [f'<div class="line">{"".join(shown for _, shown in _characters(true))}</div>']
    if reconstruction is None:
        lines.append('<div class="line soft">nothing</div>')
    else:
        guess = _bytes(reconstruction)
        marked = [
            shown if guess[index] == true[index] else f"<mark>{shown}</mark>" for index, shown in _characters(guess)
        ]
        lines.append(f'<div class="line">{"".join(marked)}</div>')
    return Markup(f'<div class="strip texts">{"".join(lines)}</div>')


def _bytes(values: np.ndarray) -> bytes:
    return np.rint(255 * np.clip(np.nan_to_num(values.astype(np.float64)), 0, 1)).astype(np.uint8).tobytes()


def _characters(text: bytes) -> Iterator[tuple[slice, str]]:
    """Yield the characters of a text as HTML, each after its place; a byte that is none stands for itself."""
    at = 0
    while at < len(text):
        size = next((size for size in range(1, 5) if _decoded(text[at : at + size])), 1)
        yield slice(at, at + size), _shown(_decoded(text[at : at + size]))
        at += size


def _decoded(part: bytes) -> str:
    """Return the one character that some bytes are in UTF-8; empty if they are none."""
    character = part.decode(errors="ignore")
    return character if len(character) == 1 and character.encode() == part else ""


def _shown(character: str) -> str:
    """Return a character for HTML; those without a picture, and bytes that are none, have signs of their own."""
    if character.isprintable() and character:
        return str(escape(character))
    return _SIGNS.get(character, "\N{REPLACEMENT CHARACTER}")


def row_pair(schema: TableSchema, truth: np.ndarray, reconstruction: np.ndarray | None) -> Markup:
    """Write a table of a row's columns, with the true and the reconstructed value of each; wrong ones are marked.

    A number is right within a twentieth of its range, as the audit counts.

    Args:
        schema: the table's columns.
        truth: features (d,) in [0, 1].
        reconstruction: the same of the attack's result; None: there is none.
    """
    true, right = schema.row(truth), schema.right(truth, reconstruction)
    made = ["nothing"] * len(true) if reconstruction is None else schema.row(reconstruction)
    lines = []
    for column, value, guess, same in list(zip(schema.kept, true, made, right, strict=True))[:_MOST]:
        shown = escape(guess) if same else Markup("<mark>{}</mark>").format(guess)
        lines.append(
            Markup(
                '<tr><th scope="row" class="text">{}</th><td class="text">{}</td><td class="text">{}</td></tr>'
            ).format(column.name, value, shown)
        )
    rest = len(true) - _MOST
    note = Markup('<p class="soft">and {} more columns</p>').format(rest) if rest > 0 else Markup("")
    head = Markup(
        '<thead><tr><th scope="col" class="text">Column</th><th scope="col" class="text">True</th>'
        '<th scope="col" class="text">Attack</th></tr></thead>'
    )
    body = Markup("").join(lines)
    return Markup('<div class="strip scroll"><table>{}<tbody>{}</tbody></table>{}</div>').format(head, body, note)
