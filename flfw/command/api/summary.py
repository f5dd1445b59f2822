"""Summary of a finished run, as the command line prints it: accuracies, claims, and a line for each attack."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flfw.errors import InputError
from flfw.experiment.curves import Point
from flfw.files import outcomes
from flfw.files.result_file import read_result
from flfw.privacy.rounding import at_least, at_most
from flfw.report.causes import because, fallen
from flfw.report.findings import AuditEntry, setting_name, sum_words
from flfw.report.questions import decisive, membership_line


def summary(folder: os.PathLike[str]) -> str:
    """Return the lines of a finished run, and the path of its report.

    Raises:
        InputError: there is no result, or it is damaged.
    """
    try:
        return "\n".join([*lines(read_result(Path(folder))), str(Path(folder) / "report.html")])
    except (KeyError, TypeError, ValueError) as error:  # a finished run may be resumed, and its result be incomplete
        if isinstance(error, InputError):
            raise
        raise InputError(f"Expected figures of a run in {folder}/result.json, got {error!r}; restore it.") from error


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the lines of a finished run: accuracies, claims, attacks and notes."""
    shown = [
        *_accuracies(result["final"]),
        *claimed(result["privacy"], (result.get("config") or {}).get("metrics", "")),
    ]
    shown += [_attack_line(entry, result["audit"]) for entry in result["audit"]]
    shown += fallen(result["audit"])
    return [*shown, *told(result.get("membership") or []), *result["notes"]]


def told(membership: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each vantage, of the statistic that answers for all of them."""
    by_vantage: dict[str, list[Mapping[str, Any]]] = {}
    for row in membership:
        by_vantage.setdefault(row["vantage"], []).append(row)
    answers = [(decisive(rows) or {}, len(rows)) for rows in by_vantage.values()]
    return [membership_line(row) + f" (one of {n} statistics, see the report)" * (n > 1) for row, n in answers]


def _accuracies(final: Mapping[str, Any] | None) -> list[str]:
    if not final:
        return []
    if final.get("mae_global") is not None:
        pair = [f"MAE {final[f'mae_{when}']:.4g}, RMSE {final[f'rmse_{when}']:.4g}" for when in ("global", "local")]
        return [f"{pair[0]} as received; {pair[1]} after local training, in the target's units"]
    if final["acc_local"] is not None:
        return [f"accuracy {final['acc_global']:.3f} as received, {final['acc_local']:.3f} after local training"]
    noisy, central = final["acc_global"], final["acc_central"]
    words = [f"accuracy {noisy:.3f} as received, by clients' numbers with noise"] if noisy is not None else []
    return [*words, f"accuracy {central:.3f} as sent, on the server's own test data"] if central is not None else words


def _attack_line(entry: dict[str, Any], entries: Sequence[Mapping[str, Any]]) -> str:
    where = f"attack {setting_name(entry, entries)} at round {entry['round']}"
    if entry.get("sum_size"):
        where += f", {sum_words(entry)}"
    elif curve := entry.get("curve"):
        where += f", {curve} {Point(curve, entry['batch'], entry['steps']).value}"
    best = f", best {entry['psnr']['max']:.1f} dB" if entry["psnr"] else ""
    if entry.get("cause") == "candidates":
        best += (
            f", {entry['candidate_test']['first']} of {entry['candidate_test']['messages']} messages point to the truth"
        )
    elif entry["evidence"] == outcomes.IDENTIFIED:
        best += f", {entry['identification_rate']:.0%} identified among look-alikes"
    cause = because(AuditEntry(entry, entry["attack"]))
    expected = f", {entry['share_expected']:.0%} expected" if entry.get("share_expected") is not None else ""
    share = entry["share_recovered"]
    recovered = "less than 1%" if 0 < share < 0.005 else f"{share:.0%}"
    more = f"{word}, " if (word := outcomes.qualifier(entry)) else ""
    line = f"{where}: {entry['verdict'] or 'not judged'} ({more}{recovered} recovered{expected}{best})"
    return f"{line}: {cause}" if cause else line


def claimed(privacy: Sequence[Mapping[str, Any]], metrics: str) -> list[str]:
    """Format the claims of a run: ``epsilon at most 2.75 for one example against server, another client, outsider``.

    Before a claim stand the settings under which it holds, where the run has others.

    Args:
        privacy: the claims, as in result.json.
        metrics: numbers that clients report; ``all`` have no noise, and whoever runs the server sees them.
    """
    shown = {"aggregate": "aggregate (who sees sums alone)"}  # nobody does in this run
    against: dict[str, list[str]] = {}
    for line in privacy:
        if line["accounting"] == "as published":
            bound = f"epsilon {float(line['epsilon']):.4f} for one {line['unit']} as the paper counts, adversaries"
        else:
            lower = line.get("lower_bound")
            least = f", at least {at_least(lower['epsilon'])} ({lower['confidence']:.0%} sure)," if lower else ""
            others = ["noise_source=secure"] if line.get("noise_source") == "seed" else []
            others += ["metrics=none"] if metrics == "all" and line["adversary"] in ("server", "aggregate") else []
            only = f"with {' and '.join(others)}: " if others and line["epsilon"] != "inf" else ""
            most = f"epsilon at most {at_most(float(line['epsilon']))}{least}"
            if line["epsilon"] == "inf":
                most = f"no epsilon is claimed{least.replace(', at', ', and it is at')}"
            bound = f"{only}{most} for one {line['unit']} against"
        adversary = str(line["adversary"])
        against.setdefault(bound, []).append(shown.get(adversary, adversary))
    return [f"{bound} {', '.join(adversaries)}" for bound, adversaries in against.items()]
