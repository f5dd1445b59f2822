"""Findings of a matrix: leakage pooled over the seeds, and the same victims compared between combinations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, final

import numpy as np

from flfw.audit.measures.statistics import Interval, Paired, paired, share_interval, worst
from flfw.comparisons.question import NO_DEFENCE
from flfw.comparisons.rows import AttackSetting, FinishedRun, MatrixRow
from flfw.comparisons.significance import mean_closeness
from flfw.files.outcomes import STATIC, UNDECIDED, outcome
from flfw.report.findings import number
from flfw.report.ranking import seriousness
from flfw.rng import numpy_generator


@final
@dataclass(frozen=True)
class Leak:
    """An attack at a round, pooled over the seeds of one combination.

    Attributes:
        setting: the attack and the round.
        seeds: seeds with this attack.
        images: number of attacked images.
        failures: images without a result, including those of clients that did not answer.
        recovered: number of recovered images; a failed one is not recovered.
        share: exact 95 % interval of the share recovered.
        psnr: PSNR in dB over the images with a result (for records, from their deviation); None: there are none.
        ssim: mean SSIM; None: there is none.
        rmsd: mean root-mean-square deviation; None: the attack gave no result.
        identified: share identified among look-alikes; None: not measured.
        worst: seed, client, victim, image and dB of the closest reconstruction; None: there is none.
        verdict: the most serious verdict of the seeds; evidence, cause and reason are those of its first seed.
        evidence: what was found, of a leak.
        cause: what decided that verdict, in one word.
        reason: what decided it, in sentences.
        seeds_with_verdict: number of seeds with that verdict and evidence.
        seconds: time of the attack, sum over the seeds.
    """

    setting: AttackSetting
    seeds: tuple[int, ...]
    images: int
    failures: int
    recovered: int
    share: tuple[float, float]
    psnr: Interval | None
    ssim: float | None
    rmsd: float | None
    identified: float | None
    worst: Mapping[str, Any] | None
    verdict: str
    evidence: str | None
    cause: str | None
    reason: str | None
    seeds_with_verdict: int
    seconds: float

    @property
    def share_recovered(self) -> float:
        """Share of the attacked images that were recovered, in [0, 1]."""
        return self.recovered / self.images if self.images else 0.0

    @property
    def concluded(self) -> dict[str, str | None]:
        """The verdict as an entry of results holds it."""
        return {"verdict": self.verdict, "evidence": self.evidence, "cause": self.cause}

    @property
    def severity(self) -> tuple[float, int, float]:
        """Sort key of the worst leak: share recovered, then seriousness of the verdict, then mean closeness."""
        return self.share_recovered, -seriousness(outcome(self.concluded)), self.psnr.mean if self.psnr else -np.inf


@final
@dataclass(frozen=True)
class Combination:
    """A method with a defence, whose runs differ in their seeds alone.

    Attributes:
        name: name for tables and figures.
        method: name of the method.
        defence: name of the defence, or ``none``.
        runs: finished runs, one for each seed.
        leaks: leaks, one for each attack and round.
    """

    name: str
    method: str
    defence: str
    runs: tuple[FinishedRun, ...]
    leaks: tuple[Leak, ...]

    def measured(self, key: str) -> list[float]:
        """Return a utility, by its key, for each seed that measured it."""
        return [value for run in self.runs if (value := run.utilities.get(key)) is not None]

    @property
    def claim(self) -> Mapping[str, Any] | None:
        """First claim of all seeds with a finite epsilon, the largest of theirs; else the first one.

        None: there is none that each of them makes.
        """
        each = [run.claims for run in self.runs]
        common = [key for key in each[0] if all(key in other for other in each)] if each else []
        weakest = [max((claims[key] for claims in each), key=lambda one: float(one["epsilon"])) for key in common]
        finite = [i for i, one in enumerate(weakest) if one["epsilon"] != "inf"]
        if not common:
            return None
        first = finite[0] if finite else 0
        seeded = any(claims[common[first]].get("noise_source") == "seed" for claims in each)
        return {**weakest[first], "noise_source": "seed" if seeded else weakest[first].get("noise_source")}

    @property
    def worst(self) -> Leak | None:
        """Attack and round that recovered most; None: there was no attack.

        A static attack that recovered nothing is skipped if an adaptive one answers for it.
        """
        settings = [leak.setting for leak in self.leaks]
        aside = [s for s in settings if any(other.answers(s) for other in settings)]
        counted = [leak for leak in self.leaks if outcome(leak.concluded) != STATIC or leak.setting not in aside]
        return max(counted, key=lambda leak: leak.severity, default=None)


@final
@dataclass(frozen=True)
class Comparison:
    """Comparison of the same victims under one attack at one round, in a combination and in the reference.

    Attributes:
        setting: attack setting of the combination.
        name: name of the combination.
        with_name: name of the reference.
        images: number of shared images.
        failures: failures among them, in the combination and in the reference.
        paired: paired statistics of the difference in dB; negative: less leakage than in the reference. None: no image
            is shared, or the attack failed on all in both.
    """

    setting: AttackSetting
    name: str
    with_name: str
    images: int
    failures: tuple[int, int]
    paired: Paired | None


def combine(method: str, defence: str, runs: Iterable[FinishedRun], name: str = "") -> Combination:
    """Make a combination with its leakage pooled over the runs, one for each seed.

    Args:
        method: name of the method.
        defence: name of the defence, or ``none``.
        runs: finished runs, at least one.
        name: name for tables and figures; empty: the method's with the defence's.
    """
    runs, name = tuple(runs), name or (method if defence == NO_DEFENCE else f"{method} with {defence}")
    everything = dict.fromkeys(setting for run in runs for setting, _ in run.entries)
    # If only some clients have the defence, the leakage of the others does not count for it.
    settings = [setting for setting in everything if setting.defence == defence] or list(everything)
    places = list(dict.fromkeys((setting.attack, *setting.place) for setting in settings))
    settings.sort(key=lambda setting: places.index((setting.attack, *setting.place)))  # kinds of one attack together
    return Combination(name, method, defence, runs, tuple(pooled(setting, runs) for setting in settings))


def pooled(setting: AttackSetting, runs: Sequence[FinishedRun]) -> Leak:
    """Pool one attack at one round over the seeds of the runs that have it."""
    entries = [(run.seed, entry) for run in runs for listed, entry in run.entries if listed == setting]
    rows = [row for run in runs for row in run.rows if row.setting == setting]
    recovered = sum(row.recovered for row in rows)
    gravest = _gravest(entries)
    found = [outcome(entry) for entry in gravest.values()]
    most = min(found, key=seriousness)
    first = list(gravest.values())[found.index(most)]
    counted = [(number(e.get("identification_rate")), number(e.get("images")) or 0) for _, e in entries]
    rated = [(rate, images) for rate, images in counted if rate is not None and images > 0]
    return Leak(
        setting=setting,
        seeds=tuple(dict.fromkeys(seed for seed, _ in entries)),
        images=len(rows),
        failures=sum(int(entry["failures"]) for _, entry in entries),
        recovered=recovered,
        share=share_interval(recovered, len(rows), len({row.message for row in rows})) if rows else (0.0, 1.0),
        psnr=mean_closeness(rows),
        ssim=_mean(rows, lambda row: row.ssim),
        rmsd=_mean(rows, lambda row: row.rmsd),
        identified=sum(rate * n for rate, n in rated) / sum(n for _, n in rated) if rated else None,
        worst=_worst(rows),
        verdict=first.get("verdict") or UNDECIDED,  # as `outcome` counts it
        evidence=first.get("evidence"),
        cause=first.get("cause"),
        reason=first.get("reason"),
        seeds_with_verdict=found.count(most),
        seconds=sum(float(entry.get("seconds") or 0) for _, entry in entries),
    )


def _gravest(entries: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[int, Mapping[str, Any]]:
    """Return the entry with the most serious verdict of each seed."""
    gravest: dict[int, Mapping[str, Any]] = {}
    for seed, entry in entries:
        gravest[seed] = min(gravest.get(seed, entry), entry, key=lambda one: seriousness(outcome(one)))
    return gravest


def _mean(rows: Sequence[MatrixRow], measure: Callable[[MatrixRow], float | None]) -> float | None:
    values = [value for value in map(measure, rows) if value is not None]
    return fmean(values) if values else None


def _worst(rows: Sequence[MatrixRow]) -> dict[str, Any] | None:
    pairs = [(row, row.closeness) for row in rows if row.closeness is not None]
    if not pairs:
        return None
    row, best = pairs[worst(np.array([value for _, value in pairs]))]
    client, victim, image = row.place
    return {"seed": row.seed, "client": client, "probe_slot": victim, "image": image, "psnr": best}


def reference(combinations: Sequence[Combination]) -> Combination | None:
    """Return the reference combination: the first without a defence, or the first of all."""
    plain = (combination for combination in combinations if combination.defence == NO_DEFENCE)
    return next(plain, next(iter(combinations), None))


def comparisons(combinations: Sequence[Combination]) -> list[Comparison]:
    """Compare each other combination with the reference, for each attack and round."""
    first = reference(combinations)
    return [
        compared(leak.setting, other, first, against)
        for other in combinations
        if first is not None and other is not first
        for leak in other.leaks
        if (against := _counterpart(leak.setting, first)) is not None
    ]


def _counterpart(setting: AttackSetting, first: Combination) -> AttackSetting | None:
    """Return the reference's setting to compare a setting with: of the same kind if there is one, else another."""
    there = [leak.setting for leak in first.leaks if leak.setting.attack == setting.attack]
    alike = [s for s in there if s._replace(defence=setting.defence).place == setting.place]
    return max(alike, key=lambda s: (s.informed == setting.informed, s.adaptive == setting.adaptive), default=None)


def compared(setting: AttackSetting, one: Combination, first: Combination, against: AttackSetting) -> Comparison:
    """Compare the same victims of a combination and the reference; a failed image counts with its best floor."""
    ours, theirs = _by_victim(one, setting), _by_victim(first, against)
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    failures = tuple(sum(pair[side].failed for pair in pairs) for side in (0, 1))
    both = [(a.counted, b.counted, a.seed, a.message) for a, b in pairs if None not in (a.counted, b.counted)]
    statistics = None
    if both and min(failures) < len(pairs):  # where both failed on all, there is nothing to compare
        a, b, seeds, messages = map(np.array, zip(*both, strict=True))
        statistics = paired(a, b, seeds, numpy_generator(0, "matrix"), messages)
    return Comparison(setting, one.name, first.name, len(both), (failures[0], failures[1]), statistics)


def _by_victim(combination: Combination, setting: AttackSetting) -> dict[tuple[object, ...], MatrixRow]:
    rows = (row for run in combination.runs for row in run.rows if row.setting == setting)
    # Equal label and position prove that the same slot held the same example.
    return {(row.seed, row.place, row.label, row.example): row for row in rows}


def share_in_words(recovered: int, images: int, interval: Sequence[float]) -> str:
    """Format a share with its interval: ``2 of 8 (3 to 65 %)``."""
    return f"{recovered} of {images} ({100 * interval[0]:.0f} to {100 * interval[1]:.0f} %)"


def uneven_budgets(runs: Iterable[FinishedRun]) -> list[str]:
    """Return a note for each attack with different budgets in the runs."""
    budgets: dict[str, dict[tuple[object, object], None]] = {}
    for run in runs:
        for setting, entry in run.entries:
            budget = (entry.get("iterations"), entry.get("restarts"))
            budgets.setdefault(setting.attack, {})[budget] = None
    return [
        f"The budget of {attack} is not the same in all runs: "
        + "; ".join(f"{iterations} iterations, {restarts} restarts" for iterations, restarts in seen)
        + "."
        for attack, seen in budgets.items()
        if len(seen) > 1
    ]
