"""Scores of reconstructions against the truth."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from safetensors.torch import save
from torch import Tensor, from_numpy

from flfw.audit.jobs import AttackJob, Exchange
from flfw.audit.measures import metrics, recovery
from flfw.audit.measures.columns import column_chance, column_rates
from flfw.audit.measures.exchange import MOST_DB, Fitting, luck
from flfw.audit.measures.identification import CONTROLLED, Identified, against_controls, identify
from flfw.audit.measures.metrics import reduced_scores, rouges
from flfw.audit.measures.perceptual import Extractor, Perceptual
from flfw.audit.measures.permutations import GuessedBatch, exchanged
from flfw.audit.measures.public import PublicData
from flfw.audit.threat_model import ThreatModel
from flfw.audit.uploads import is_unusable, joined_truth, label_accuracy, opened
from flfw.data import Dataset
from flfw.nets.inputs import InputSpec
from flfw.recording import format as file_format
from flfw.recording.observation import Reconstruction, Truth, truth_file
from flfw.rng import numpy_generator

FLOORS = ("noise", "grey", "normalisation", "mean", "class_mean", "random_public", "nearest_public")
UNGUIDED = "unguided"  # a floor of attacks that say what they would give without a message

ScoreRow = dict[str, Any]

_CONTROLS, _CONTROLS_OF_ONE = 3, 7  # turns of the results between messages, and those of single examples
_DRAWS, _LARGE, _DRAWS_OF_LARGE = 4999, 32, 999  # arrangements; of batches above 32 examples: matching them takes long


def columns(job: AttackJob, exchange: Exchange, threat_model: ThreatModel, defence: str, seed: int) -> ScoreRow:
    """Return the columns of ``audit.csv`` that say what an example was attacked by, the same for all of an exchange.

    Args:
        job: the attack.
        exchange: one of its exchanges.
        threat_model: the attacker's grants.
        defence: the client's defence, or ``none``.
        seed: seed of the attack.
    """
    probe_set = job.probe_set
    return {
        "attack": job.attack,
        "vantage": job.vantage,
        "source": probe_set.source,
        "rung": probe_set.control,
        "curve": probe_set.curve,
        "batch": probe_set.batch,
        "steps": probe_set.steps,
        "sum_size": probe_set.group + probe_set.colluding or "",
        "defence": defence,
        "adaptive": threat_model.adaptive,
        "adaptation": threat_model.adaptation,
        "round": probe_set.round,
        "client": exchange.client,
        "probe_slot": exchange.slot,
        "seed": seed,
    }


@final
class Scorer:
    """Scores of one run, a row per image.

    Args:
        public: data that an attacker may hold, for floors and look-alikes.
        truth: the folder in which the clients wrote the examples of the probes.
        out: the run's folder; reconstructions go there, in the order of the truth.
        seed: the run's seed.
        perceptual: LPIPS; None without its weights.
        own_side: pixels of the data set's own images, where they were enlarged; else 0.
        dataset: the data set, for the classes of labels; None: labels are classes.
    """

    def __init__(
        self,
        public: PublicData,
        truth: Path,
        out: Path,
        seed: int,
        perceptual: Perceptual | None,
        own_side: int = 0,
        dataset: Dataset | None = None,
    ) -> None:
        self._public, self._truth, self._out, self._seed = public, truth, out, seed
        self._kinds = dataset.kinds if dataset else lambda labels: labels
        self._perceptual, self._own_side = perceptual, own_side
        self._floors: dict[tuple[int, bytes], dict[str, float]] = {}
        self._guessable: dict[tuple[int, bytes], bool] = {}
        self._batches: dict[tuple[str, int], GuessedBatch] = {}

    def rows(
        self,
        job: AttackJob,
        exchange: Exchange,
        columns: ScoreRow,
        names: Sequence[str],
        reconstruction: Reconstruction | None,
        extractor: Extractor | None = None,
        ceiling: Callable[[Tensor], Tensor | None] = lambda samples: None,
    ) -> list[ScoreRow]:
        """Return a row for each example of one probe, with or without a result of the attack.

        Args:
            job: the attack.
            exchange: one of its exchanges.
            columns: columns that are the same for all rows.
            names: the names of the truth's files, several of a sum.
            reconstruction: the attack's result.
            extractor: of the attacked network, for errors of features; None: it is not known.
            ceiling: the attack's `flfw.adversary.attack.Attack.ceiling`; by default it has none.
        """
        stem = f"r{job.probe_set.round:04d}-{job.probe_set.point}-{exchange.slot:03d}"
        parts = [opened(self._truth, name) for name in names]
        recorded, path = joined_truth(parts, truth_file(self._truth, names[0]), self._out, stem)
        truth = replace(recorded, labels=from_numpy(self._kinds(recorded.labels.numpy())))
        samples, agreement = None, None
        if reconstruction is not None and not is_unusable(reconstruction, truth):
            order = self._order(truth.samples, reconstruction.samples)
            samples = reconstruction.samples.numpy()[order]
            agreement = None if reconstruction.agreement is None else reconstruction.agreement.numpy()[order]
        shared = columns | {
            "matching_loss": None if reconstruction is None else reconstruction.matching_loss,
            "iterations": None if reconstruction is None else reconstruction.iterations,
            "label_accuracy": label_accuracy(exchange, recorded, reconstruction),
            "reconstruction": self._keep(f"{job.name}-{exchange.slot:03d}", samples),
            "truth": os.path.relpath(path, self._out),
        }
        distances: Sequence[float | None] = [None] * len(truth.labels)
        if self._perceptual and samples is not None and truth.samples.dim() == 4:
            distances = self._perceptual.many(truth.samples.numpy(), samples).tolist()
        errors: Sequence[float | None] = [None] * len(truth.labels)
        if extractor is not None and samples is not None:
            errors = extractor.errors(truth.samples, _tensor(samples))
        alike = [
            self._public.lookalike_indices(int(label), numpy_generator(self._seed, "look-alikes", int(index)))
            for label, index in zip(truth.labels, truth.indices, strict=True)
        ]
        if samples is not None:
            inputs, labels = self._public.compared(truth.samples.numpy()), truth.labels.numpy()
            guesses = self._public.compared(samples)
            self._batches[job.name, exchange.slot] = GuessedBatch(inputs, guesses, labels, alike)
        best, drawn = ceiling(truth.samples), None if reconstruction is None else reconstruction.unguided
        unguided = None if drawn is None else drawn.numpy()
        rows, centre = [], InputSpec.from_constants(job.shape, job.mean, job.std).mean.expand(job.shape).numpy()
        for i in range(len(truth.labels)):
            guess = None if samples is None else self._public.compared(samples[i])
            floors = dict(self._floors_of(truth, i, centre))
            if (nearest := recovery.nearest(truth.samples[i].numpy(), unguided)) is not None:
                floors[UNGUIDED] = nearest
            maximum = None if best is None else metrics.psnr(truth.samples[i].numpy(), best[i].numpy())
            row = shared | {"image": i, "lpips": distances[i], "feature_error": errors[i], "ceiling": maximum}
            row |= reduced_scores(truth.samples[i].numpy(), guess, self._own_side)
            if guess is not None and agreement is not None:
                row |= recovery.agreed_features(truth.samples[i].numpy(), guess, self._public.binary, agreement[i])
            rows.append(row | self._scores(truth, i, guess, alike[i], floors))
        if len(rows) > 1 and truth.samples.dim() == 4:
            rng = numpy_generator(self._seed, "assignment", int(truth.indices[0]))
            null = recovery.assignment_null(truth.samples.numpy(), self._public.samples, rng)
            rows = [row | {"assignment_null": null} for row in rows]
        return rows

    def controlled(self, job: AttackJob, rows: Sequence[ScoreRow]) -> list[ScoreRow]:
        """Return the rows of one job and defence; where chance explains its recoveries, these are taken back.

        Chance explains them where results for other messages fit as well, or where the results fit public examples; see
        `flfw.audit.measures.exchange`.

        Args:
            job: the attack.
            rows: its rows of all messages of clients with the same defence.
        """
        slots = {row["probe_slot"] for row in rows}
        batches = list({batch.truth.tobytes(): batch for batch in self._of(job, slots)}.values())
        if not any(row["recovered"] for row in rows):
            return [row | {"chance_match": False} for row in rows]
        fit = lambda truth, guess: self._fit(batches[truth], batches[guess])  # noqa: E731
        outcome = luck(batches, fit, self._public, numpy_generator(self._seed, "exchanged", job.probe_set.round))
        by_luck = [
            row["recovered"] and outcome.p > CONTROLLED and min(row["db"], MOST_DB) < outcome.beyond for row in rows
        ]
        return [
            row | {"chance_match": lucky, "recovered": row["recovered"] and not lucky}
            for row, lucky in zip(rows, by_luck, strict=True)
        ]

    def _fit(self, batch: GuessedBatch, other: GuessedBatch) -> Fitting:
        """Compute the closeness of one batch's guesses to the truth of another one."""
        guesses = other.guesses[recovery.assign(batch.truth, other.guesses)]
        matched = list(zip(batch.truth, guesses, map(int, batch.labels), strict=True))
        count = sum(self._recovered(true, guess, label) for true, guess, label in matched)
        closeness = [min(MOST_DB, metrics.psnr(true, guess)) for true, guess, _ in matched]
        return Fitting(count, float(np.mean(closeness)), max(closeness))

    def _recovered(self, true: np.ndarray, guess: np.ndarray, label: int) -> bool:
        known = label, true.tobytes()
        if true.ndim > 1:
            return recovery.recovered(true, guess, self._floors[known])
        if known not in self._guessable:
            self._guessable[known] = self._public.guessable(true, label)
        public = self._public
        return recovery.recovered(true, guess, self._floors[known], public.binary, self._guessable[known], public.plan)

    def identified(self, job: AttackJob, slots: Collection[int]) -> Identified | None:
        """Return how many examples of some messages were identified, and how many are by chance; None: none compared.

        Args:
            job: the attack.
            slots: the messages.
        """
        batches = self._of(job, slots)
        draws = draws_of(len(batch.truth) for batch in batches)
        result = identify(batches, self._public, numpy_generator(self._seed, "identification"), draws)
        if not result.compared:
            return None
        alike = len({batch.guesses.shape for batch in batches}) == 1
        if result.p > CONTROLLED or not alike:
            return result
        # Truths unlike the public examples as a group are told from these by any guess that is like the group.
        controls = []
        maximum = _CONTROLS if len(batches[0].truth) > 1 else _CONTROLS_OF_ONE
        for turn in range(1, min(maximum, len(batches) - 1) + 1):
            rng = numpy_generator(self._seed, "identification control", turn)
            controls.append(identify(exchanged(batches, turn), self._public, rng, draws))
            if controls[-1].p <= CONTROLLED:
                return replace(result, p=1.0)
        return replace(result, p=max(result.p, against_controls(result, controls)))

    def columns(self, job: AttackJob, slots: Collection[int]) -> list[dict[str, Any]] | None:
        """Return for each column of a table how often it was recovered, and by guessing; None: no table, no guess.

        Args:
            job: the attack.
            slots: the messages.
        """
        batches = self._of(job, slots)
        if not batches or batches[0].truth.ndim != 2 or metrics.is_text(batches[0].truth):
            return None
        binary = self._public.binary
        truth, guesses = (np.concatenate([getattr(b, part) for b in batches]) for part in ("truth", "guesses"))
        usual = np.stack([self._public.usual(int(label)) for b in batches for label in b.labels])
        sizes, chance = [len(b.truth) for b in batches], None
        messages = np.repeat(np.arange(len(batches)), sizes)
        if max(sizes) > 1:
            chance = column_chance(batches, self._public, numpy_generator(self._seed, "columns"), draws_of(sizes))
        both = (recovery.column_matches(truth, values, binary) for values in (guesses, usual))
        matches, floors = map(self._public.cells, both)
        names = (
            [{"name": column.name} for column in self._public.plan.kept]
            if self._public.plan
            else [{}] * floors.shape[1]
        )
        rates = column_rates(matches, floors, messages, chance)
        return [asdict(rate) | name for rate, name in zip(rates, names, strict=True)]

    def _of(self, job: AttackJob, slots: Collection[int]) -> list[GuessedBatch]:
        """Return the guesses of an attack on some messages, with their truths."""
        return [batch for (name, slot), batch in self._batches.items() if name == job.name and slot in slots]

    def _scores(
        self, truth: Truth, i: int, guess: np.ndarray | None, alike: np.ndarray, floors: Mapping[str, float]
    ) -> ScoreRow:
        label, index = int(truth.labels[i]), int(truth.indices[i])
        true = self._public.compared(truth.samples[i].numpy())
        row: ScoreRow = {"index": index, "label": label, "failed": guess is None}
        row |= dict.fromkeys(
            ("db", "psnr", "ssim", "rmsd", "gain", "rank", "candidates", "exact_features", "exact", "cells")
        )
        row |= {"succeeded": False, "recovered": False}
        row |= {f"floor_{name}": value for name, value in floors.items()}
        row |= dict.fromkeys(("floor_features", "floor_cells"))
        if true.ndim == 1:
            row["floor_features"] = recovery.matched_features(true, self._public.typical(label), self._public.binary)
            row["floor_cells"] = self._cells(true, self._public.usual(label))
        if metrics.is_text(true):
            rng = numpy_generator(self._seed, "random text", index)
            row |= rouges(true, guess, self._public.samples[rng.integers(len(self._public.samples))])
        if guess is None:
            return row
        db = metrics.psnr(true, guess)
        row |= {"db": db, "rmsd": metrics.rmsd(true, guess), "gain": recovery.gain(db, floors)}
        row["succeeded"] = recovery.succeeded(true, guess)
        if len(alike):
            row["rank"], row["candidates"] = recovery.identification(true, guess, self._public.samples[alike])
        row["recovered"] = self._recovered(true, guess, label)
        if true.ndim > 1:
            row["recovered"] = row["recovered"] and row["gain"] >= recovery.GAIN_DB
            return row | {"psnr": db, "ssim": metrics.ssim(true, guess)}
        binary = self._public.binary
        row["exact_features"] = recovery.matched_features(true, guess, binary)
        return row | {"exact": recovery.exact_match(true, guess, binary), "cells": self._cells(true, guess)}

    def _cells(self, true: np.ndarray, guess: np.ndarray) -> float | None:
        """Return the share of a row's cells that were recovered, a category only as a whole; None without a plan."""
        if self._public.plan is None:
            return None
        return float(self._public.cells(recovery.column_matches(true, guess, self._public.binary)).mean())

    def _floors_of(self, truth: Truth, i: int, centre: np.ndarray) -> dict[str, float]:
        """Return the closeness in dB of guesses without the message; ``centre`` is the mean granted to attackers."""
        true, label = self._public.compared(truth.samples[i].numpy()), int(truth.labels[i])
        known = label, true.tobytes()
        if known not in self._floors:  # a victim is probed in every audited round
            floors = self._public.floors(true, label, numpy_generator(self._seed, "floors", int(truth.indices[i])))
            text = metrics.is_text(true)  # no token is the mean of others
            self._floors[known] = floors | ({} if text else {"normalisation": metrics.psnr(true, centre)})
        return self._floors[known]

    def _order(self, truth: Tensor, samples: Tensor) -> np.ndarray:
        """Return the places (B,) of the samples in the order of the truth."""
        return recovery.assign(*(self._public.compared(x.numpy()) for x in (truth, samples)))

    def _keep(self, name: str, samples: np.ndarray | None) -> str:
        if samples is None:
            return ""
        folder = self._out / "reconstructions"
        folder.mkdir(exist_ok=True, mode=0o700)
        picture = save({"samples": _tensor(samples)})  # not brought to disk: it can be made again
        file_format.write(folder / f"{name}.safetensors", picture)
        return f"reconstructions/{name}.safetensors"


def _tensor(samples: np.ndarray) -> Tensor:
    return from_numpy(np.ascontiguousarray(samples))


def draws_of(sizes: Iterable[int]) -> int:
    """Return the number of random arrangements for batches of these sizes; its inverse is the smallest p-value."""
    return _DRAWS_OF_LARGE if max(sizes, default=0) > _LARGE else _DRAWS
