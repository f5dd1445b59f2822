"""Runs the attacks on what was recorded, scores them, and says what may be concluded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file

from flfw import nets, parts
from flfw.audit.attack import Attack, NotApplicable
from flfw.audit.observation import Knowledge, Observation, Reconstruction, Recordings, Truth
from flfw.audit.probe import ladder_net
from flfw.audit.score import Public, assign, psnr, recovered, rmsd, ssim
from flfw.audit.verdict import CONTROL_DB, EASY_SHARE, Rung, verdict
from flfw.experiment import Experiment
from flfw.inversion.closed_form import linear_inputs
from flfw.inversion.victim import Inputs, PlainVictim, VictimModel
from flfw.progress import Steps
from flfw.rng import initialising, numpy_generator, torch_generator
from flfw.task import Task

_PUBLIC_AT_MOST = 10_000
_FLOORS = ("noise", "grey", "mean", "class_mean", "random_public", "nearest_public")


@dataclass
class Auditor:
    """One audit of one run folder.

    Args:
        experiment: what was run.
        folder: with ``observations/`` and ``truth/``; reconstructions are written beside them.
        task: for the public data and the input space.
    """

    experiment: Experiment
    folder: Path
    task: Task

    def __post_init__(self) -> None:
        self._recordings = Recordings(self.folder / "observations")
        self._method, self._settings = parts.method(self.experiment)
        public = evenly(self.task.split.public, _PUBLIC_AT_MOST)
        samples, labels = self.task.examples("test", public)
        self._public = Public(samples.numpy(), labels.numpy())
        self._floors: dict[bytes, dict[str, float]] = {}

    def run(self) -> tuple[list[dict[str, Any]], pd.DataFrame]:
        """The audit's entries of result.json, and a row for each image, attack and setting."""
        attacks, rounds = parts.attacks(self.experiment), self.experiment.audited
        control = self._control()
        entries, rows = [], []
        with Steps("attack", len(attacks) * (1 + len(rounds))) as steps:
            for name, attack in attacks.items():
                easy, easy_rows = self._easy(name, attack)
                steps.done(f"{name} on the easy rung: {easy.psnr:.1f} dB")
                rows += easy_rows
                for server_round in rounds:
                    entry, target_rows = self._target(name, attack, server_round, control, easy)
                    steps.done(f"{name} at round {server_round}: {entry['verdict']}")
                    entries.append(entry)
                    rows += target_rows
        return entries, pd.DataFrame(rows)

    # --- the ladder ---

    def _control(self) -> Rung:
        values = []
        inputs = self._inputs
        for seen in self._recordings.probes("control", 0):
            truth = Truth.read(self.folder / "truth", seen.key)
            raw = linear_inputs(seen.sent["classifier.weight"], seen.sent["classifier.bias"], 1)
            found = raw.view(1, *inputs.shape) * inputs.std + inputs.mean
            values.append(psnr(truth.samples[0].numpy(), found[0].numpy()))
        found_all = bool(values) and all(v >= CONTROL_DB for v in values)
        return Rung("control", float(np.mean(values)) if values else 0.0, found_all)

    def _easy(self, name: str, attack: Attack) -> tuple[Rung, list[dict[str, Any]]]:
        seen = self._recordings.probes("easy", 0)
        rows = self._attack(name, attack, seen, self._knowledge_of_everything(seen), adaptive=True)
        return Rung("easy", _mean(rows, "db") or 0.0, (_mean(rows, "recovered") or 0.0) >= EASY_SHARE), rows

    # --- what the method really sends ---

    def _target(
        self, name: str, attack: Attack, server_round: int, control: Rung, easy: Rung
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        started = time.monotonic()
        seen = self._recordings.probes("target", server_round)
        knowledge = self._knowledge(seen)
        adaptive = not any(k.model.unknown for k in knowledge) and not self.experiment.defended_partitions
        rows = self._attack(name, attack, seen, knowledge, adaptive)
        share = _mean(rows, "recovered") or 0.0  # of what was observed; clients that did not answer are failures
        missing = (self.experiment.images - len(seen)) * self.experiment.victim_batch
        failures = sum(row["failed"] for row in rows) + missing
        word, reason = verdict(control, easy, share, adaptive, failures / (len(rows) + missing))
        images = self.task.dataset.is_image
        budget = attack.budget
        entry = {
            "attack": name,
            "adaptive": adaptive,
            "vantage": "server",
            "source": "probe",
            "round": server_round,
            "client": None,
            "defence": self.experiment.defence,
            "granted": list(knowledge[0].granted) if knowledge else [],
            "batch": self.experiment.victim_batch,
            "steps": self.experiment.victim_steps,
            "mode": "train",
            "iterations": budget.iterations,
            "restarts": budget.restarts,
            "selection": budget.selection,
            "seeds": [self.experiment.seed],
            "images": len(rows) + missing,
            "failures": failures,
            "psnr": self._summary(rows, "psnr") if images else None,
            "ssim": self._summary(rows, "ssim") if images else None,
            "lpips": None,
            "distance": {"rmsd": _mean(rows, "rmsd"), "success": share, "iterations": budget.iterations},
            "identification_rate": None,
            "share_recovered": share,
            "floors": {floor: _mean(rows, f"floor_{floor}") for floor in _FLOORS},
            "ladder": [asdict(control), asdict(easy)],
            "verdict": word,
            "reason": reason,
            "seconds": round(time.monotonic() - started, 3),
        }
        return entry, rows

    def _attack(
        self, name: str, attack: Attack, seen: Sequence[Observation], knowledge: Sequence[Knowledge], adaptive: bool
    ) -> list[dict[str, Any]]:
        rngs = [torch_generator(self.experiment.seed, f"attack {name}", o.round, o.slot) for o in seen]
        try:
            results: Sequence[Reconstruction | None] = attack.run(seen, knowledge, rngs)
        except NotApplicable:
            results = [None] * len(seen)
        return [row for o, found in zip(seen, results, strict=True) for row in self._score(name, o, found, adaptive)]

    def _score(
        self, name: str, seen: Observation, found: Reconstruction | None, adaptive: bool
    ) -> list[dict[str, Any]]:
        truth = Truth.read(self.folder / "truth", seen.key)
        samples = None if found is None else found.samples
        diverged = found is not None and found.matching_loss is not None and isnan(found.matching_loss)
        failed = samples is None or diverged or not bool(torch.isfinite(samples).all())
        file = "" if failed else f"reconstructions/{name.replace(':', '-')}-{seen.key}.safetensors"
        if samples is not None and not failed:
            (self.folder / "reconstructions").mkdir(exist_ok=True, mode=0o700)
            samples = samples[assign(truth.samples.numpy(), samples.numpy())]
            save_file({"samples": samples.contiguous()}, self.folder / file)
        rows = []
        for i, true in enumerate(truth.samples.numpy()):
            guess = None if failed or samples is None else samples[i].numpy()
            rows.append(self._row(name, seen, adaptive, i, true, int(truth.labels[i]), guess))
            rows[-1] |= {"matching_loss": None if found is None else found.matching_loss, "reconstruction": file}
        return rows

    def _row(
        self,
        name: str,
        seen: Observation,
        adaptive: bool,
        i: int,
        true: np.ndarray,
        label: int,
        guess: np.ndarray | None,
    ) -> dict[str, Any]:
        floors, images = self._floors_of(true, label), self.task.dataset.is_image
        db = None if guess is None else psnr(true, guess)
        return {
            "attack": name,
            "adaptive": adaptive,
            "vantage": seen.vantage.value,
            "source": seen.source,
            "rung": seen.rung,
            "round": seen.round,
            "client": seen.client,
            "victim": seen.slot,
            "image": i,
            "label": label,
            "psnr": db if images else None,
            "ssim": ssim(true, guess) if images and guess is not None else None,
            "rmsd": None if guess is None else rmsd(true, guess),
            "failed": guess is None,
            "recovered": guess is not None and recovered(true, guess, floors),
            **{f"floor_{floor}": value for floor, value in floors.items()},
            "truth": f"truth/{seen.key}.safetensors",
            "db": db,
        }

    def _floors_of(self, true: np.ndarray, label: int) -> dict[str, float]:
        key = true.tobytes()  # a victim is probed in every audited round
        if key not in self._floors:
            rng = numpy_generator(self.experiment.seed, "floors", len(self._floors))
            self._floors[key] = self._public.floors(true, label, rng)
        return self._floors[key]

    def _summary(self, rows: Sequence[dict[str, Any]], column: str) -> dict[str, float | None] | None:
        values = np.array([row[column] for row in rows if row[column] is not None])
        if not len(values):
            return None
        low = high = None
        if len(values) > 1:
            from scipy.stats import bootstrap

            rng = numpy_generator(self.experiment.seed, "bootstrap")
            interval = bootstrap((values,), np.mean, method="percentile", rng=rng).confidence_interval
            low, high = float(interval.low), float(interval.high)
        return {"mean": float(values.mean()), "low": low, "high": high, "max": float(values.max())}

    # --- what is granted ---

    @property
    def _inputs(self) -> Inputs:
        return self.task.inputs

    def _knowledge(self, seen: Sequence[Observation]) -> list[Knowledge]:
        """One victim model for all who received the same tensors, so that a search can work on them together."""
        models: dict[int, VictimModel] = {}
        for o in seen:
            if id(o.received) not in models:
                with initialising(self.experiment.seed, "attacker"):
                    model = self._method.build_model(self.task.build_net(), self._settings)
                models[id(o.received)] = self._method.victim_model(model, o.received, self._inputs)
        return [self._granting(o, models[id(o.received)], self.experiment.victim_batch) for o in seen]

    def _knowledge_of_everything(self, seen: Sequence[Observation]) -> list[Knowledge]:
        models: dict[int, VictimModel] = {}
        for o in seen:
            if id(o.received) not in models:
                net = ladder_net(o.rung, self.experiment, self.task.build_net)
                models[id(o.received)] = PlainVictim(net, o.received, ("*",), self._inputs)
        return [self._granting(o, models[id(o.received)], 1) for o in seen]

    def _granting(self, seen: Observation, model: VictimModel, batch: int) -> Knowledge:
        labels = Truth.read(self.folder / "truth", seen.key).labels
        granted = [
            f"the method's code and the network ({self.experiment.net})",
            f"the tensors broadcast in the round ({nets.numel(model.known):,} numbers)",
            f"that the gradient is one local step on {batch} example{'s' if batch > 1 else ''}",
            "the true labels",
            "the inputs' range and normalisation",
        ]
        if model.unknown:
            hidden = ", ".join(model.unknown)
            granted.append(f"not granted: the client's private tensors ({hidden}), which are searched for as well")
        if seen.client in self.experiment.defended_partitions and seen.rung == "target":
            granted.append(f"not granted: that the client uses {self.experiment.defence}")
        return Knowledge(model=model, batch=batch, labels=labels, granted=tuple(granted))


def _mean(rows: Sequence[dict[str, Any]], column: str) -> float | None:
    values = [row[column] for row in rows if row[column] is not None]
    return float(np.mean(values)) if values else None


def evenly(indices: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the indices, from all over: sets of several domains have these one behind the other."""
    places = np.linspace(0, len(indices) - 1, min(len(indices), most)).round().astype(int)
    return indices[places]
