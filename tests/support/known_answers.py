"""Audits of known answer: their set-ups, the attacks that they begin with, faults of recordings, and a runner."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from flfw.audit.auditor import Auditor
from flfw.experiment import Experiment
from flfw.files.outcomes import outcome
from flfw.nets import Tensors
from flfw.nets.training.optimisers import LocalTraining
from flfw.plans.run_plan import plan, without_auto
from flfw.recording.format import PlainTensors, exchange_id
from flfw.recording.manifest import rewrite
from flfw.recording.observation import Knowledge, Observation, Reconstruction
from flfw.recording.reader import Recordings
from flfw.runs import run as whole
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy
from tests.support.pictures import save as save_picture
from tests.support.small_runs import Generators, Observations, WithoutSearch, tiny

LEAKS, IDENTIFIES, NO_LEAK, STATIC = "reconstructed", "identified", "no leak found", "static"
INCONCLUSIVE, BROKEN = "undecided", "void"

GREY_LEVELS = {
    "folder:FLAT": (2, (126, 130), (126, 130)),
    "folder:BRIGHT": (2, (200, 204), (200, 204)),
    "folder:NOISY": (10, (0, 256), (0, 256)),
    "folder:APART": (2, (250, 256), (0, 256)),
    "folder:PLAIN": (2, (240, 256), (0, 100)),
    "folder:DARK": (2, (0, 100), (0, 256)),
    "folder:SAME": (2, (99, 100), (0, 256)),
}
"""Folders of noise made here: how many classes, and between which levels of 255, for training and public images.
An image of PLAIN has one level."""


class Averaged(FederatedStrategy):
    """FedAvg of a network that a test builds."""

    Settings = LocalTraining
    downloads = ("*",)
    uploads = ("*",)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        return weighted_mean(updates)


class ByClosedForm(WithoutSearch):
    """Changes what the closed form gives for one example of a fully connected first layer."""

    def run(self, observations: Observations, knowledge: Sequence[Knowledge], rngs: Generators) -> list[Reconstruction]:
        exact = [_closed_form(observation, known) for observation, known in zip(observations, knowledge, strict=True)]
        return self.made_of(exact, observations, rngs)

    def made_of(self, exact: list[Tensor], observations: Observations, rngs: Generators) -> list[Reconstruction]:
        return [Reconstruction(self.one(x, o, rng)) for x, o, rng in zip(exact, observations, rngs, strict=True)]

    def one(self, x: Tensor, observation: Observation, rng: torch.Generator) -> Tensor:
        raise NotImplementedError


def _closed_form(observation: Observation, knowledge: Knowledge) -> Tensor:
    weight, bias = (observation.sent[name] for name, _ in list(knowledge.model.model.named_parameters())[:2])
    unit = int(bias.abs().argmax())
    inputs = knowledge.model.inputs
    raw = (weight[unit] / bias[unit]).view(1, *inputs.shape) * inputs.std + inputs.mean
    return raw.nan_to_num(nan=0.5).clamp(0, 1)


# --- faults of the measurement: each changes a copy of a run whose examples leak ---

Answers = list[Tensors]


def controls(change: Callable[[Answers], Answers]) -> Callable[[Path], None]:
    """Other answers to the control's probes, filed as if they had been recorded so."""

    def doctor(folder: Path) -> None:
        rows = _manifest(folder)
        lines = [row for row in rows if row.get("config", {}).get("control") == "analytic"]
        seen = [Recordings(folder / "observations").observation(exchange_id(_sent(line)["file"])) for line in lines]
        for line, one, answer in zip(lines, seen, change([one.sent for one in seen]), strict=True):
            record_answer(folder / "observations", line, answer, one.received)
        _rewrite(folder, rows)

    return doctor


def record_answer(folder: Path, line: dict[str, Any], answer: Tensors, received: Tensors) -> None:
    """Put other tensors in the place of what a client sent, stored as the line says."""
    before, after = ({name: value.numpy() for name, value in one.items()} for one in (received, answer))
    stored = PlainTensors.of(after).encoded(line["compression"], before)
    (folder / _sent(line)["file"]).write_bytes(stored.data)
    line["sent_by_client"] = stored.entry(_sent(line)["file"])


def _sent(line: dict[str, Any]) -> dict[str, Any]:
    return line["sent_by_client"]


def damaged(control: str, *slots: int) -> Callable[[Path], None]:
    """Recordings of a control of which a byte is another one."""

    def doctor(folder: Path) -> None:
        for row in _manifest(folder):
            config = row.get("config", {})
            if config.get("control") == control and config["slot"] in slots:
                path = folder / "observations" / row["sent_by_client"]["file"]
                data = bytearray(path.read_bytes())
                data[-1] ^= 1
                path.write_bytes(bytes(data))

    return doctor


def unrecorded(control: str) -> Callable[[Path], None]:
    """A control of which nothing is there."""

    def doctor(folder: Path) -> None:
        _rewrite(folder, [row for row in _manifest(folder) if row.get("config", {}).get("control") != control])

    return doctor


def garbled(folder: Path) -> None:
    """A manifest with lines that mean nothing, and one that was cut short."""
    with (folder / "observations" / "manifest.jsonl").open("a") as file:
        file.write('{"type": 3}\nnonsense\n{"type": "train.pro')


def swapped_truth(folder: Path) -> None:
    """Each client's truth is the other's."""
    for first in sorted((folder / "truth").glob("*-000.safetensors")):
        second = first.with_name(first.name.replace("-000.", "-001."))
        one, other = first.read_bytes(), second.read_bytes()
        first.unlink(), second.unlink()
        first.write_bytes(other), second.write_bytes(one)


def shifted_truth(folder: Path) -> None:
    """The truth is of another input range than what was attacked."""
    for path in (folder / "truth").glob("*.safetensors"):
        truth = load_file(path)
        path.unlink()
        save_file({**truth, "samples": truth["samples"] / 2}, path)


def torn_truth(name: str) -> Callable[[Path], None]:
    """A file of truth that ends early."""

    def doctor(folder: Path) -> None:
        path = folder / "truth" / f"{name}.safetensors"
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[:-1])

    return doctor


def swapped_files(kind: str, control: str) -> Callable[[Path], None]:
    """Each two neighbours of a control have one another's files: their truth, or what they sent."""

    def doctor(folder: Path) -> None:
        if kind == "truth":
            _swap(sorted((folder / "truth").glob(f"*-{control}-[0-9]*.safetensors")))
            return
        rows = _manifest(folder)
        lines = [row for row in rows if row.get("config", {}).get("control") == control]
        lines.sort(key=lambda row: row["config"]["slot"])
        for one, other in zip(lines[::2], lines[1::2], strict=True):
            one["sent_by_client"], other["sent_by_client"] = other["sent_by_client"], one["sent_by_client"]
        _rewrite(folder, rows)

    return doctor


def _swap(paths: Sequence[Path]) -> None:
    for one, other in zip(paths[::2], paths[1::2], strict=True):
        contents = one.read_bytes(), other.read_bytes()
        one.unlink(), other.unlink()
        one.write_bytes(contents[1]), other.write_bytes(contents[0])


def unkept_truth(folder: Path) -> None:
    """No client kept the truth of its control."""
    for path in (folder / "truth").glob("*-analytic-*"):
        path.unlink()


def _manifest(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / "observations" / "manifest.jsonl").read_text().splitlines()]


def _rewrite(folder: Path, rows: list[dict[str, Any]]) -> None:
    rewrite(folder / "observations", rows)


# --- set-ups, and what they come to ---


@dataclass(frozen=True)
class Setup:
    """An audit of known answer.

    Attributes:
        expected: the verdict, or those that would all be right.
        why: it must be this one.
        attack: whose verdict is meant.
        fields: of the experiment, where they are not those of `base`.
        round: of the audit, if it has several.
        stops: whether the attack as such gives nothing there: it raises, is not applicable, or has nothing to attack.
        doctor: what is changed in a copy of the run before it is audited again.
        cause: of the verdict; empty: any.
        adapted: which entry is meant where a defence is adapted to: the one that is told of it, or the one that is not.
    """

    expected: str | tuple[str, ...]
    why: str
    attack: str = "analytic"
    fields: dict[str, Any] = field(default_factory=dict)
    round: int = 0
    stops: bool = False
    doctor: Callable[[Path], None] | None = None
    cause: str = ""
    adapted: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The right verdicts."""
        return (self.expected,) if isinstance(self.expected, str) else self.expected

    def fits(self, entry: Mapping[str, Any]) -> bool:
        """Compare an entry of the audit with what is known."""
        caused = self.cause in ("", entry.get("cause"))
        return outcome(entry) in self.words and bool(entry.get("failure_reason")) == self.stops and caused


def base(folder: Path, **fields: Any) -> Experiment:
    """Two probes before the only round."""
    return tiny(folder, **{"audit_rounds": "0", **fields})


@final
class Laboratory:
    """Runs each experiment once, with all attacks that set-ups ask of it."""

    def __init__(self, path: Path, setups: Mapping[str, Setup]) -> None:
        self._place, self._setups = path, setups
        self._done: dict[str, tuple[Path, Experiment] | Exception] = {}

    def entry(self, name: str) -> dict[str, Any]:
        """The audit's entry for a set-up."""
        setup = self._setups[name]
        folder, experiment = self._run(setup.fields)
        if setup.doctor is None:
            entries = json.loads((folder / "result.json").read_text())["audit"]
        else:
            with TemporaryDirectory(dir=self._place) as place:
                copy = Path(place) / "run"
                shutil.copytree(folder, copy)
                setup.doctor(copy)
                again = plan(without_auto(dataclasses.replace(experiment, attack=(setup.attack,), out=copy)))
                with Auditor(again.client, again.audit, again.task.load(None), copy, copy) as auditor:
                    entries = auditor.run()[0]
            json.dumps(entries, allow_nan=False)  # as result.json is written
        result = [e for e in entries if (e["attack"], e["round"]) == (setup.attack, setup.round)]
        meant = [e for e in result if (e["adaptation"] in ("written", "automatic")) == setup.adapted]
        assert meant, f"{name}: no such entry among {[(e['attack'], e['adaptation']) for e in result]}"
        return next((e for e in meant if setup.fits(e)), meant[0])  # clients with and without a defence have their own

    def wrong(self) -> list[str]:
        """Run all set-ups; a line for each whose answer is wrong."""
        lines = []
        for name, setup in self._setups.items():
            try:
                entry = self.entry(name)
            except Exception as error:  # an audit that ends in an error has given no verdict: a miss like others
                entry = {"verdict": f"{type(error).__name__}: {error}", "reason": ""}
            if not setup.fits(entry):
                got = f"{entry['verdict']} ({entry.get('cause')}): {entry['reason']} {entry.get('stopped') or ''}"
                lines.append(f"{name}: {' or '.join(setup.words)} {setup.cause} ({setup.why}), got {got}")
        print(*lines, sep="\n")
        return lines

    def _run(self, fields: dict[str, Any]) -> tuple[Path, Experiment]:
        key = repr(sorted(fields.items()))
        if key not in self._done:
            attacks = {s.attack for s in self._setups.values() if s.fields == fields}
            informed = {**fields, **({"dataset": self._folder(fields["dataset"])} if "dataset" in fields else {})}
            experiment = base(self._place / f"run-{len(self._done)}", attack=tuple(sorted(attacks)), **informed)
            try:
                self._done[key] = whole.run(experiment), experiment
            except Exception as error:  # no verdict for any set-up of this run
                self._done[key] = error
        result = self._done[key]
        if isinstance(result, Exception):
            raise result
        return result

    def _folder(self, dataset: str) -> str:
        """A data set; one of those made here is made."""
        if dataset not in GREY_LEVELS:
            return dataset
        place, rng = self._place / dataset.partition(":")[2], np.random.default_rng(0)
        classes, *levels = GREY_LEVELS[dataset]
        for part, label, i in np.ndindex(2, classes, 12):
            pixels = rng.integers(*levels[part], (8, 8), dtype=np.uint16).astype(np.uint8)
            pixels = np.full_like(pixels, pixels[0, 0]) if dataset == "folder:PLAIN" else pixels
            save_picture(place / ("train", "test")[part] / f"class-{label}" / f"{i}.png", pixels)
        return f"folder:{place}"
