"""Numbers of the figures of leakage, a row for each mark; an interval stands beside each of them."""

from collections.abc import Sequence
from typing import Any

from flfw.audit.measures.statistics import Interval
from flfw.comparisons.figures.drawing import Rows
from flfw.comparisons.findings import Combination, Leak
from flfw.comparisons.significance import CombinationRanking, across, common_places, ranked
from flfw.comparisons.utility import UTILITIES
from flfw.errors import InputError
from flfw.experiment.curves import SUM_SIZE
from flfw.files import outcomes
from flfw.report.findings import number
from flfw.report.questions import rounds_read


def leakage(groups: Sequence[Combination]) -> Rows:
    """Return a row for each run, attack, place and round, pooled over the seeds.

    Raises:
        InputError: a run has no attack that reconstructs.
    """
    _require_audits(groups)
    return [{"run": group.name, **_leak(leak)} for group in groups for leak in group.leaks]


def rounds(groups: Sequence[Combination]) -> Rows:
    """Return the same rows, of runs that were audited at several rounds.

    Raises:
        InputError: no run was attacked, or none at two rounds.
    """
    rows = sorted(leakage(groups), key=lambda row: row["round"])
    if len({row["round"] for row in rows}) < 2:
        raise InputError(
            f"Expected runs audited at two rounds or more, got round {rows[0]['round']}; see --audit-rounds."
        )
    return rows


def curves(groups: Sequence[Combination]) -> Rows:
    """Return a row for each run, seed, attack and point of a curve by batch, local steps or clients in a sum.

    ``at`` is the size; where batch and steps grow together, their product.

    Raises:
        InputError: no run has such a curve.
    """
    rows = []
    for group in groups:
        for run in group.runs:
            for entry in (e for e in run.result.get("audit") or [] if e.get("curve")):
                curve, batch, steps = entry["curve"], int(entry["batch"]), int(entry["steps"])
                at = {SUM_SIZE: entry.get("sum_size"), "batch": batch, "steps": steps}.get(curve, batch * steps)
                ends, psnr = entry.get("share_interval") or (None, None), entry.get("psnr") or {}
                rows.append(
                    {
                        "run": group.name,
                        "seed": run.seed,
                        "attack": entry["attack"],
                        "informed": bool(entry.get("adaptation")),
                        "round": entry["round"],
                        "curve": curve,
                        "at": at,
                        "batch": batch,
                        "steps": steps,
                        "images": entry.get("images"),
                        **_with_ends("share", number(entry.get("share_recovered")), *ends),
                        **_with_ends("psnr", *(number(psnr.get(end)) for end in ("mean", "low", "high"))),
                    }
                )
    if not rows:
        raise InputError(
            f"Expected runs with a curve, got {_listed(groups)} without; run them again with --curve batch."
        )
    return rows


def _with_ends(name: str, mean: float | None, low: float | None, high: float | None) -> dict[str, float | None]:
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def _ends_of(name: str, interval: Interval | None) -> dict[str, float | None]:
    return _with_ends(name, *((interval.mean, interval.low, interval.high) if interval else (None,) * 3))


def membership(groups: Sequence[Combination]) -> Rows:
    """Return a row for each run, seed and statistic of an attack on membership; seeds are not pooled.

    Raises:
        InputError: no run has such an attack.
    """
    keys = ("statistic", "vantage", "pairs", "auc", "auc_low", "auc_high", "verdict")
    rows = [
        {
            "run": group.name,
            "seed": run.seed,
            "read": rounds_read(one),
            "informed": bool(one.get("adaptation")),
            **{key: number(one[key]) if key.startswith("auc") else one[key] for key in keys},
        }
        for group in groups
        for run in group.runs
        for one in run.result.get("membership") or []
    ]
    if not rows:
        way = "run them again with --attack membership"
        raise InputError(f"Expected runs with an attack on membership, got {_listed(groups)} without; {way}.")
    return rows


def frontier(groups: Sequence[Combination]) -> Rows:
    """Return a row for each run: utility, leakage under all its attacks together, and whether it is on the frontier.

    A run is off the frontier if another one leaks significantly less, and is at least as accurate in the mean. So all
    that cannot be told apart stays on it. The utilities, an accuracy or a regression's error, are compared by their
    means alone.

    Raises:
        InputError: a run was not attacked, no round was in all, or there is no utility that all have.
    """
    _require_audits(groups)
    usable = [one for one in UTILITIES.values() if all(group.measured(one.key) for group in groups)]
    if not usable:
        raise InputError(
            f"Expected runs that have one accuracy or one error in common, got {_listed(groups)}; see --metrics."
        )
    utility, order, rows = usable[0], ranking(groups), []
    measured = {group.name: group.measured(utility.key) for group in groups}
    means = {name: sum(values) / len(values) for name, values in measured.items()}
    for one in order.standings:
        less = [other for other in means if order.leaks_more(one.combination, other)]
        better = [other for other in less if utility.gain(means[other], means[one.combination]) >= 0]
        values = measured[one.combination]
        rows.append(
            {
                "run": one.combination,
                "measure": utility.key,
                **_with_ends(utility.column, means[one.combination], min(values), max(values)),
                "images": one.images,
                "recovered": one.recovered,
                **_with_ends("share", one.recovered / one.images, *one.share_interval),
                **_ends_of("closeness", one.closeness),
                "letters": one.letters,
                "on_frontier": not better,
                "beaten_by": "; ".join(better),
            }
        )
    return rows


def ranking(groups: Sequence[Combination]) -> CombinationRanking:
    """Rank the runs over their common examples; where seeds are pooled, an example under two seeds counts as two."""
    by_seed = any(len(group.runs) > 1 for group in groups)
    places = common_places(group.runs for group in groups)
    if not places:
        raise InputError(f"Expected runs attacked at a common round and vantage, got none of {_listed(groups)}.")
    return ranked({group.name: across(group.runs, by_seed, places) for group in groups})


def _leak(leak: Leak) -> dict[str, Any]:
    return {
        "attack": leak.setting.attack,
        "kind": leak.setting.kind,
        "round": leak.setting.round,
        "seeds": " ".join(map(str, leak.seeds)),
        "images": leak.images,
        "failures": leak.failures,
        "recovered": leak.recovered,
        **_with_ends("share", leak.share_recovered, *leak.share),
        **_ends_of("psnr", leak.psnr),
        "verdict": outcomes.in_words(leak.concluded),
    }


def _require_audits(groups: Sequence[Combination]) -> None:
    for group in groups:
        if not any(leak.images for leak in group.leaks):
            membership_only = any(run.result.get("membership") for run in group.runs)
            way = "draw --figure-names membership" if membership_only else "run it again with --attack ig"
            raise InputError(f"Expected runs with an attack that reconstructs, got {group.name} without; {way}.")


def _listed(groups: Sequence[Combination]) -> str:
    return " and ".join(group.name for group in groups)
