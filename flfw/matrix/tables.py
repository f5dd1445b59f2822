"""Writer of matrix.json, .csv, .md, .tex and .html, after each run, from the runs complete by then."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import flfw
from flfw.errors import InputError, require
from flfw.matrix.columns import claimed
from flfw.matrix.findings import Combination, Comparison, Leak, combine, comparisons, pooled, reference, uneven_budgets
from flfw.matrix.latex import latex
from flfw.matrix.markdown import markdown
from flfw.matrix.question import NO_DEFENCE, MatrixCell
from flfw.matrix.ranking_page import in_json, ranking
from flfw.matrix.rows import FinishedRun, read
from flfw.matrix.utility import ACCURACIES, Utility, family
from flfw.storage.checkpoint import is_complete
from flfw.storage.sealed import write_atomic


def write(folder: Path, question: Mapping[str, Any], cells: Sequence[MatrixCell], failed: Mapping[str, str]) -> None:
    """Write the five files.

    Args:
        folder: folder of the matrix.
        question: question of the matrix.
        cells: all cells, run or not.
        failed: reasons of failed cells, by the name of the cell's folder.
    """
    from flfw.matrix.page import render

    finished, states = _read(cells, failed)
    keys = dict.fromkeys((cell.method, cell.defence) for cell in cells if cell.folder.name in finished)
    combinations = [
        combine(
            *key, (finished[c.folder.name] for c in cells if (c.method, c.defence) == key and c.folder.name in finished)
        )
        for key in keys
    ]
    compared, rank, columns = comparisons(combinations), ranking(combinations), _columns(finished.values())
    record = {
        "flfw": flfw.__version__,
        "question": dict(question),
        "notes": _notes(states, combinations),
        "cells": states,
        "combinations": [_combination(combination, columns) for combination in combinations],
        "comparisons": [_comparison(comparison) for comparison in compared],
        "ranking": in_json(rank),
    }
    write_atomic(folder / "matrix.json", json.dumps(record, indent=1, allow_nan=False).encode())
    write_atomic(folder / "matrix.csv", _csv(combinations, columns).encode())
    write_atomic(folder / "matrix.md", markdown({"": record}).encode())
    write_atomic(folder / "matrix.tex", latex({"": record}).encode())
    write_atomic(folder / "matrix.html", render(record, combinations, compared, rank).encode())


def _read(
    cells: Iterable[MatrixCell], failed: Mapping[str, str]
) -> tuple[dict[str, FinishedRun], list[dict[str, Any]]]:
    """Return the finished runs by the name of their folder, and the state of each cell."""
    finished, states = {}, []
    for cell in cells:
        name, state, reason = cell.folder.name, "not run yet", ""
        if name in failed:
            state, reason = "failed", failed[name]
        elif is_complete(cell.folder):
            try:
                run = read(cell.folder)
                require(bool(run.result.get("final")), "a run with a final evaluation", folder=cell.folder)
                finished[name], state = run, "complete"
            except InputError as error:
                state, reason = "failed", str(error)
        states.append(
            {
                "method": cell.method,
                "defence": cell.defence,
                "seed": cell.seed,
                "folder": name,
                "state": state,
                "reason": reason,
            }
        )
    unknown = dict.fromkeys(one.key for one in _columns(finished.values()))
    return finished, [state | unknown | _utilities(finished.get(state["folder"])) for state in states]


def _utilities(run: FinishedRun | None) -> dict[str, float | None]:
    return run.utilities if run else {}


def _columns(runs: Iterable[FinishedRun]) -> list[Utility]:
    """Return the columns of utility: the accuracies, which a regression lacks, and then its errors."""
    return list(dict.fromkeys((*ACCURACIES, *family(run.utilities for run in runs))))


def _notes(states: Sequence[Mapping[str, Any]], combinations: Sequence[Combination]) -> list[str]:
    notes = [
        f"{state['folder']} failed and is not in the tables: {state['reason']}" for state in states if state["reason"]
    ]
    waiting = sum(state["state"] == "not run yet" for state in states)
    if waiting:
        notes.append(f"{waiting} of {len(states)} runs are not done yet; the same command goes on with them.")
    notes += uneven_budgets(run for combination in combinations for run in combination.runs)
    runs = [run for combination in combinations for run in combination.runs]
    if len({run.result.get("provenance", {}).get("code") for run in runs}) > 1:
        notes.append("The runs were made by different versions of the code.")
    first = reference(combinations)
    if first is not None and first.defence != NO_DEFENCE and len(combinations) > 1:
        notes.append(f"No combination is without a defence: the others are compared with {first.name}.")
    for note in dict.fromkeys(note for run in runs for note in run.result.get("notes") or []):
        names = [run.folder.name for run in runs if note in (run.result.get("notes") or [])]
        where = "all runs" if len(names) == len(runs) else ", ".join(names)
        notes.append(f"{note} ({where})")
    return notes


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    return {"mean": fmean(values), "least": min(values), "most": max(values)} if values else None


def _combination(combination: Combination, columns: Iterable[Utility]) -> dict[str, Any]:
    claim = combination.claim
    return {
        "method": combination.method,
        "defence": combination.defence,
        "seeds": [run.seed for run in combination.runs],
        **{one.key: _spread(combination.measured(one.key)) for one in columns},
        "claim": claim and {key: claim[key] for key in ("epsilon", "delta", "unit", "adversary", "noise_source")},
        "attacks": [_leak(leak) for leak in combination.leaks],
        "worst": _leak(combination.worst) if combination.worst else None,
    }


def _leak(leak: Leak) -> dict[str, Any]:
    facts = asdict(leak)
    low, high = facts.pop("share")
    del facts["setting"]
    words = leak.setting._asdict() | {"kind": leak.setting.kind}
    return {**words, **facts, "share_recovered": leak.share_recovered, "share_interval": [low, high]}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    statistics = comparison.paired
    return {
        **comparison.setting._asdict(),
        "combination": comparison.name,
        "with": comparison.with_name,
        "images": comparison.images,
        "failures": list(comparison.failures),
        "difference": statistics.difference.as_dict() if statistics else None,
        "more": statistics.better if statistics else None,
        "less": statistics.worse if statistics else None,
        "ties": statistics.ties if statistics else None,
        "p": statistics.p if statistics else None,
    }


def _csv(combinations: Iterable[Combination], columns: Sequence[Utility]) -> str:
    """Return CSV with a row for each method, defence, attack, round and seed."""
    lines = [
        _line(combination, run, pooled(leak.setting, [run]), columns)
        for combination in combinations
        for leak in combination.leaks
        for run in combination.runs
        if run.seed in leak.seeds
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else _EMPTY, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


_EMPTY = ["method", "defence", "attack", "round", "seed"]


def _line(combination: Combination, run: FinishedRun, leak: Leak, columns: Iterable[Utility]) -> dict[str, Any]:
    psnr, worst = leak.psnr, leak.worst or {}
    return {
        "method": combination.method,
        "defence": combination.defence,
        **leak.setting._asdict(),
        "seed": run.seed,
        **{one.key: run.utilities.get(one.key) for one in columns},
        "images": leak.images,
        "failures": leak.failures,
        "recovered": leak.recovered,
        "share_low": leak.share[0],
        "share_high": leak.share[1],
        "psnr_mean": psnr.mean if psnr else None,
        "psnr_low": psnr.low if psnr else None,
        "psnr_high": psnr.high if psnr else None,
        "psnr_max": worst.get("psnr"),
        "ssim": leak.ssim,
        "rmsd": leak.rmsd,
        "identified": leak.identified,
        "verdict": leak.verdict,
        "seconds": leak.seconds,
        "folder": run.folder.name,
    }


def lines(record: Mapping[str, Any]) -> list[str]:
    """Return a line for each combination in matrix.json: its utility and its worst leakage."""
    utilities, texts = family(record["combinations"]), []
    for row in record["combinations"]:
        worst = row["worst"]
        leak = "not attacked"
        if worst:
            kind = "" if worst["kind"] in ("static", "adaptive") else f" ({worst['kind']})"
            where = f"{worst['attack']} at round {worst['round']}{kind}"
            leak = f"{worst['verdict']}, {worst['recovered']} of {worst['images']} recovered by {where}"
        name = row["method"] + ("" if row["defence"] == NO_DEFENCE else f" with {row['defence']}")
        one = next((one for one in utilities if row.get(one.key)), None)
        utility = one.line(row[one.key]["mean"]) if one else f"no {utilities[0].name}"
        claims = [f"epsilon at most {claimed(row['claim'])}"] if row.get("claim") else []
        texts.append("; ".join([f"{name}: {utility}", *claims, leak]))
    return texts
