"""Last lines of a run on the terminal: accuracy, claims of privacy, and the audit's verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flfw.curves import Point
from flfw.errors import BadInput
from flfw.formats.result_file import read_result
from flfw.privacy.rounding import at_least, at_most
from flfw.report.causes import because, fallen
from flfw.report.findings import AuditEntry, setting_name, sum_words
from flfw.report.questions import membership_line


def summary(folder: Path) -> str:
    """Return what a run or an audit found, and the path of its report.

    Raises:
        BadInput: the folder holds no whole result.
    """
    try:
        return "\n".join([*lines(read_result(folder)), str(folder / "report.html")])
    except (KeyError, TypeError, ValueError) as error:  # a finished run may be resumed, and its result be incomplete
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"Expected the figures of a run in {folder}/result.json, got {error!r}; restore it.") from error


def lines(result: dict[str, Any]) -> list[str]:
    """Return a line for each finding of a result, as ``result.json`` holds it."""
    final = result["final"]
    said = []
    if final and final["acc_local"] is not None:
        said = [f"accuracy {final['acc_global']:.3f} as received, {final['acc_local']:.3f} after training"]
    elif final:
        noisy, central = final["acc_global"], final["acc_central"]
        said = [f"accuracy {noisy:.3f} as received, by clients' numbers with noise"] if noisy is not None else []
        said += [f"accuracy {central:.3f} as sent, on the server's own test data"] if central is not None else []
    said += claimed(result["privacy"])
    for entry in result["audit"]:
        where = f"{setting_name(entry, result['audit'])} at round {entry['round']}"
        if entry.get("group"):
            where += f", {sum_words(entry)}"
        elif curve := entry.get("curve"):
            where += f", {curve} {Point(curve, entry['batch'], entry['steps']).value}"
        best = f", best {entry['psnr']['max']:.1f} dB" if entry["psnr"] else ""
        if entry.get("cause") == "candidates":
            best += f", {entry['candidates']['first']} of {entry['candidates']['messages']} messages point to the truth"
        elif entry["verdict"] == "identifies":
            best += f", {entry['identification_rate']:.0%} told from look-alikes"
        cause = because(AuditEntry(entry, entry["attack"]))
        expected = f", {entry['share_expected']:.0%} expected" if entry.get("share_expected") is not None else ""
        line = f"{where}: {entry['verdict']} ({entry['share_recovered']:.0%} recovered{expected}{best})"
        said.append(f"{line}: {cause}" if cause else line)
    said += fallen(result["audit"])
    return [*said, *map(membership_line, result.get("membership") or []), *result["notes"]]


def claimed(privacy: list[dict[str, Any]]) -> list[str]:
    """Format the claims of a run: ``epsilon at most 2.75 for one example against server, another client, outsider``."""
    shown = {"aggregate": "aggregate (who sees sums alone)"}  # nobody does in this run
    against: dict[str, list[str]] = {}
    for line in privacy:
        if line["counted"] == "as published":
            bound = f"epsilon {float(line['epsilon']):.4f} for one {line['unit']} as the paper counts, adversaries"
        else:
            lower = line.get("lower")
            least = f", at least {at_least(lower['epsilon'])} ({lower['confidence']:.0%} sure)," if lower else ""
            secret = "with noise_source=secure: " if line.get("noise") == "seed" and line["epsilon"] != "inf" else ""
            bound = f"{secret}epsilon at most {at_most(float(line['epsilon']))}{least} for one {line['unit']} against"
        adversary = str(line["adversary"])
        against.setdefault(bound, []).append(shown.get(adversary, adversary))
    return [f"{bound} {', '.join(adversaries)}" for bound, adversaries in against.items()]
