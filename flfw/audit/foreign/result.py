"""Files of an audit of a foreign app: result.json, audit.csv and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flfw
from flfw.audit.measures.noticed import TAMPERED, noticed
from flfw.audit.scorer import ScoreRow
from flfw.formats.result_entries import breakdowns
from flfw.formats.result_file import to_json
from flfw.formats.rows import write_rows
from flfw.provenance import sittings
from flfw.provenance.external_plugins import outside_code
from flfw.recording.reader import Recordings
from flfw.storage.provenance import code_hash, environment, requirements_hash
from flfw.storage.sealed import write_atomic

_NOTES = (
    "These are recorded updates of an app of its own; what the clients trained on was told by whoever asked for the "
    "audit, and accuracy is the app's own affair.",
    "The ladder, control and easy case, was climbed on this machine with single examples of the clients' data: it did "
    "not pass through the app's clients and wire. The easy case computes in evaluation mode.",
)


def write(
    folder: Path,
    config: dict[str, Any],
    kept: Recordings,
    entries: list[dict[str, Any]],
    rows: list[ScoreRow],
    tuned: list[str],
    began: str,
) -> None:
    """Write the files of an audit.

    Args:
        folder: the audit's folder.
        config: the settings, for the report.
        kept: the recordings.
        entries: the entries of result.json.
        rows: a row per attacked example.
        tuned: attacks with tuned settings.
        began: time at which the audit began.
    """
    from flfw.report.report import write_report

    by = config["malicious_server"]
    changed = [TAMPERED.format(by), *noticed(kept, one_model=False)] if by else []
    notes = [*changed, *_NOTES, *breakdowns(entries), *kept.remarks(kept.refused)]
    origin = {"name": config["dataset"], "source": "as told by whoever asked", "md5_ok": None, "digest": None}
    origin |= {"licence": None, "citation": None}
    folder.mkdir(parents=True, exist_ok=True)
    sitting = sittings.describe_session(folder, outside_code({"attack": config["attack"]}))
    result = {
        "flfw": flfw.__version__,
        "config": config,
        "provenance": {
            "code": code_hash(),
            "lock": requirements_hash(),
            "data": origin,
            "weights": None,
            "tuned_on": tuned,
            "malicious_server": by or None,
            "resumed": [],
            "seeds": {"run": config["seed"], "attacks": {name: [config["seed"]] for name in config["attack"]}},
            "sessions": [{**sitting, "started_at": began, "ended_at": sittings.now()}],
        },
        "environment": environment("the app's own"),
        "notes": notes,
        "rounds": _traffic(kept),
        "final": {},
        "privacy": [],
        "audit": entries,
        "recordings": kept.summary(kept.refused),
    }
    write_rows(rows, folder / "audit.csv")
    write_atomic(folder / "result.json", to_json(result))
    write_report(folder)


def _traffic(kept: Recordings) -> list[dict[str, Any]]:
    """Return the recorded traffic of each round of training; accuracy is not recorded."""
    rows = []
    for number in sorted({line["round"] for line in kept.lines if line["type"] == "train"}):
        lines = kept.update_lines(number)
        up, down = (sum(line[side]["bytes"] for line in lines) for side in ("sent_by_client", "sent_to_client"))
        row = {"round": number, "loss": None, "acc_global": None, "acc_local": None, "clients": len(lines)}
        rows.append(row | {"upload_bytes": up, "download_bytes": down, "seconds": None, "failures": None})
    return rows
