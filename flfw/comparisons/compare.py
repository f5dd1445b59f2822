"""Comparison of runs: differences in their settings and in their results (``sim.py --compare runs/A runs/B``)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flfw.audit.measures.statistics import Interval, paired
from flfw.comparisons.findings import Leak, pooled, share_in_words, uneven_budgets
from flfw.comparisons.question import NO_DEFENCE
from flfw.comparisons.rows import AttackSetting, FinishedRun, MatrixRow, read
from flfw.comparisons.significance import across, common_places, joined_messages, listed, ranked
from flfw.comparisons.utility import ACCURACIES, ERRORS, Utility, bound, family
from flfw.files import outcomes
from flfw.files.folders import require_several
from flfw.files.tables import aligned
from flfw.report.formats import below, decimals
from flfw.report.questions import rounds_read, seen_by
from flfw.rng import numpy_generator

_NONE = "–"

_Key = tuple[object, ...]


def table(folders: Sequence[Path]) -> str:
    """Return as plain text the differing settings, the utilities, and the leakage under attacks in several runs.

    Victims that two runs share are compared one by one, with the first run that attacked them; a failed image counts
    with its best floor.

    Args:
        folders: folders of two or more finished runs.

    Raises:
        InputError: fewer than two folders, one twice, or one without a finished run.
    """
    require_several(folders)
    runs, names = [read(folder) for folder in folders], _names(folders)
    parts = [_configurations(runs, names), *_utilities(runs, names), *_claims(runs, names)]
    parts += [*_leakages(runs, names), *_ranking(runs, names), *_memberships(runs, names)]
    return "\n\n".join(parts)


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the names of the folders if they differ, else their paths."""
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]


def _configurations(runs: Sequence[FinishedRun], names: Sequence[str]) -> str:
    flat = [_flat(run.result.get("config") or {}) for run in runs]
    keys = dict.fromkeys(key for config in flat for key in config if key != "out")
    rows = [[key, *(config.get(key, _NONE) for config in flat)] for key in keys]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    return aligned(["configuration", *names], differing) if differing else "configuration: the same"


def _flat(config: Mapping[str, Any], before: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}.")
        else:
            words = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            flat[before + key] = words if words and value is not None else _NONE
    return flat


def _utilities(runs: Sequence[FinishedRun], names: Sequence[str]) -> list[str]:
    """Return a table of the accuracies, a table of the errors, or of classifications beside regressions both."""
    regressions = family(run.utilities for run in runs) is ERRORS
    classified = any(run.utilities[one.key] is not None for run in runs for one in ACCURACIES)
    tables = [ACCURACIES] if classified or not regressions else []
    tables += [ERRORS] if regressions else []
    return [_utility(utilities, runs, names) for utilities in tables]


def _utility(utilities: Sequence[Utility], runs: Sequence[FinishedRun], names: Sequence[str]) -> str:
    """Return both figures that clients report; where one of them does not, also that on the server's test data."""
    local, received, *central = utilities
    measured = {one: [run.utilities.get(one.key) for run in runs] for one in (received, local, *central)}
    lacking = any(value is None for one in (received, local) for value in measured[one])
    noisy = [name for run, name in zip(runs, names, strict=True) if run.is_noisy]
    words = {one: one.when for one in measured}
    words[received] += f" (with noise: {', '.join(noisy)})" if noisy else ""
    rows = [
        [words[one], *map(one.text, values)]
        for one, values in measured.items()
        if one not in central or (lacking and any(value is not None for value in values))
    ]
    return aligned([local.name, *names], rows)


def _claims(runs: Sequence[FinishedRun], names: Sequence[str]) -> list[str]:
    """Return a table of the claims of the runs, alone in a list; an empty list if there are none."""
    claims = [
        {
            f"one {line['unit']} against {line['adversary']}, {line['accounting']}": bound(line)
            for line in run.result.get("privacy") or []
        }
        for run in runs
    ]
    keys = dict.fromkeys(key for each in claims for key in each)
    rows = [[key, *(each.get(key, _NONE) for each in claims)] for key in keys]
    return [aligned(["epsilon at most", *names], rows)] if rows else []


def _leakages(runs: Sequence[FinishedRun], names: Sequence[str]) -> list[str]:
    """Return a table for each attack and round in several runs, and a line with those in one run only."""
    kinds: dict[tuple[str, str, str, int], list[tuple[int, AttackSetting]]] = {}
    for number, run in enumerate(runs):
        for setting in dict.fromkeys(setting for setting, _ in run.entries):
            kind = (setting.attack, setting.vantage, setting.source, setting.round)
            kinds.setdefault(kind, []).append((number, setting))
    parts, alone = [], []
    for (attack, vantage, source, at), settings in kinds.items():
        places = [word.replace("_", " ") for word in (source, vantage) if word not in ("probe", "server")]
        title = f"{attack} at round {at}" + (f" ({', '.join(places)})" if places else "")
        if len({number for number, _ in settings}) < 2:
            alone.append(f"{title}: {names[settings[0][0]]}")
            continue
        first_run, first_setting = runs[settings[0][0]], settings[0][1]
        rows = [_leakage(names[i], pooled(setting, [runs[i]]), _kind(setting, runs[i])) for i, setting in settings]
        for row, (number, setting) in zip(rows[1:], settings[1:], strict=True):
            row.append(_difference(runs[number], setting, first_run, first_setting))
        header = [title, "", "verdict", "recovered", "PSNR", "failed", f"difference from {names[settings[0][0]]}, dB"]
        parts.append(aligned(header, [[*row, _NONE] if len(row) < len(header) else row for row in rows]))
    if not kinds:
        return [] if any(run.result.get("membership") for run in runs) else ["leakage: none of them was attacked"]
    return [*parts, *(["only in one run: " + "; ".join(alone)] if alone else [])]


def _ranking(runs: Sequence[FinishedRun], names: Sequence[str]) -> list[str]:
    """Return a table of the runs under the attacks that all of them have, and sentences on their order."""
    places = common_places([run] for run in runs)
    if not places and sum(bool(run.rows) for run in runs) > 1:
        return ["all attacks together: not ranked, as no attack was made on all of them at the same place and round"]
    ranking = ranked({name: across([run], False, places) for name, run in zip(names, runs, strict=True)})
    if len(ranking.standings) < 2:
        return []
    rows = [
        [
            one.combination,
            share_in_words(one.recovered, one.images, one.share_interval),
            f"{one.closeness.mean:.1f}{_ends(one.closeness)}" if one.closeness else _NONE,
            one.letters,
        ]
        for one in ranking.standings
    ]
    ordered = len(ranking.most) < len(ranking.standings)
    words = [f"{listed(ranking.most)} leak{'s' * (len(ranking.most) == 1)} most"] if ordered else []
    attacks = sorted({attack for attack, *_ in places})
    budgets = uneven_budgets(replace(run, result={**run.result, "audit": _of(attacks, run)}) for run in runs)
    words_below = [*(f"{sentence}." for sentence in words), *ranking.sentences, *budgets]
    note = "Runs with a common letter do not differ at 5 %, over all pairs (McNemar, Wilcoxon; Holm's correction)."
    drawn = aligned([f"all attacks together ({listed(attacks)})", "recovered by any", "closest, dB", "letter"], rows)
    return ["\n".join([drawn, note, *words_below])]


def _of(attacks: Sequence[str], run: FinishedRun) -> list[Mapping[str, Any]]:
    return [entry for setting, entry in run.entries if setting.attack in attacks]


def _memberships(runs: Sequence[FinishedRun], names: Sequence[str]) -> list[str]:
    """Return a table of the statistics of membership, the same ones of several runs below each other."""
    rows: dict[tuple[str, ...], list[list[str]]] = {}
    for run, name in zip(runs, names, strict=True):
        for one in run.result.get("membership") or []:
            knowledge = f", told of {one.get('protected_by') or one['defence']}" if one.get("adaptation") else ""
            which = (str(one["attack"]), f"{one['statistic']}{knowledge}", seen_by(one), rounds_read(one))
            area, low, high = (decimals(one[key], 3) for key in ("auc", "auc_low", "auc_high"))
            minimum = below(one["epsilon_low"]) if one["epsilon_low"] else _NONE
            cells = [name, outcomes.in_words(one), f"{area} ({low} to {high})", str(one["pairs"]), minimum]
            rows.setdefault(which, []).append(cells)
    if not rows:
        return []
    lines = [
        [*(which if not turn else ("", "", "", "")), *line]
        for which, each in rows.items()
        for turn, line in enumerate(each)
    ]
    header = ["membership", "statistic", "seen", "read", "run", "verdict", "AUC", "pairs", "epsilon at least"]
    return [aligned(header, lines)]


def _kind(setting: AttackSetting, run: FinishedRun) -> str:
    """Return the attacker's knowledge and, if only some clients have a defence, whether these were attacked."""
    kind = setting._replace(vantage="server", source="probe").kind
    partly = len({other.defence for other, _ in run.entries}) > 1 and not setting.informed
    against = "undefended" if setting.defence == NO_DEFENCE else f"against {setting.defence}"
    return f"{kind}, {against}" if partly else kind


def _leakage(name: str, leak: Leak, kind: str) -> list[str]:
    share = share_in_words(leak.recovered, leak.images, leak.share)
    psnr = f"{leak.psnr.mean:.1f}{_ends(leak.psnr)}" if leak.psnr else _NONE
    return [name, kind, outcomes.in_words(leak.concluded), share, psnr, str(leak.failures)]


def _ends(interval: Interval) -> str:
    return "" if interval.low is None or interval.high is None else f" ({interval.low:.1f} to {interval.high:.1f})"


def _difference(run: FinishedRun, setting: AttackSetting, first: FinishedRun, against: AttackSetting) -> str:
    """Return the mean difference from the first run over the shared victims, with its interval."""
    ours, theirs = _victims(run, setting, first), _victims(first, against, run)
    both = [(ours[key], theirs[key]) for key in ours if key in theirs]
    groups = joined_messages([(a.message, b.message) for a, b in both])
    counted = [(a.counted, b.counted, group) for (a, b), group in zip(both, groups, strict=True)]
    values = [(a, b, group) for a, b, group in counted if a is not None and b is not None]
    if not values:
        return "no victim is shared"
    if all(a.failed and b.failed for a, b in both):
        return "both gave nothing"
    a, b, messages = map(np.array, zip(*values, strict=True))
    statistics = paired(a, b, None, numpy_generator(0, "compare"), messages)
    return f"{statistics.difference.mean:+.1f}{_ends(statistics.difference)} on {len(values)}, p = {statistics.p:.3g}"


def _victims(run: FinishedRun, setting: AttackSetting, other: FinishedRun) -> dict[_Key, MatrixRow]:
    """Return the attacked images by keys that are equal for the same example in both runs; empty if incomparable.

    The position in the training part identifies an example for any seed.
    """
    if run.data != other.data:
        return {}
    times: Counter[str] = Counter()
    keyed: dict[_Key, MatrixRow] = {}
    for row in run.rows:
        if row.setting == setting:  # with overlapping clients the same example may be attacked twice
            keyed[row.example, row.label, times[row.example]] = row
            times[row.example] += 1
    return keyed
