"""Tables of a matrix of runs: matrix.json, .csv, .md, .tex and .html.

They are written after each run, from the runs complete by then. The tables in Markdown show the leakage of each
combination under each attack; those in LaTeX show what leaks more, and each attack.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import flfw
from flfw.comparisons.findings import (
    Combination,
    Comparison,
    Leak,
    combine,
    comparisons,
    pooled,
    reference,
    share_in_words,
    uneven_budgets,
)
from flfw.comparisons.question import NO_DEFENCE
from flfw.comparisons.rows import FinishedRun, read
from flfw.comparisons.significance import ranked, strongest
from flfw.comparisons.utility import ACCURACIES, Utility, claimed, family, shown
from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.files import outcomes
from flfw.files.result_file import csv_text
from flfw.files.sealed import write_atomic
from flfw.files.tables import escaped, floating, grid, tabular
from flfw.report.formats import capital
from flfw.server.checkpoint import is_complete

_NONE = "–"


def latex(records: Mapping[str, Mapping[str, Any]]) -> str:
    r"""Render matrices, two tables for each data set; the preamble needs ``\usepackage{booktabs}``.

    Args:
        records: contents of matrix.json, by the data set's title; an empty title is left out of captions.
    """
    head = r"% Needs \usepackage{booktabs}. Written by flfw; matrix.json beside it has all digits."
    return "\n".join([head, *(part for title, record in records.items() for part in _tables(title, record))])


def _tables(title: str, record: Mapping[str, Any]) -> list[str]:
    label = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")
    place, where = f"-{label}" * bool(label), f" on {_escaped(title)}" * bool(title)
    head = [_escaped(capital(name)) for name in _head(record, "{} (dB)")]
    groups = [[[*map(_escaped, row)] for row in rows] for rows in _attack_rows(record)]
    columns = f"llr{'l' * (len(head) - 8)}lrrrl"
    body, caption = tabular(columns, head, groups), f"Each attack{where}."
    parts = [floating("table", body, caption, f"matrix-attacks{place}", _notes_in_latex(record))]
    ranking = record.get("ranking") or {"standings": []}
    if len(ranking["standings"]) > 1:
        parts.insert(0, floating("table", *_ranking_in_latex(record, where), f"matrix{place}", _tests(record)))
    return parts


def _escaped(text: str) -> str:
    return escaped(text).replace(r" \%", r"\,\%")


def _ranking_in_latex(record: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Return the table of all attacks together, and its caption."""
    ranking, utility = record["ranking"], shown(record["combinations"])
    means = {_name(each): _mean(each, utility) for each in record["combinations"]}
    best = ranking["least"] if len(ranking["least"]) < len(ranking["standings"]) else []
    rows = []
    for each in ranking["standings"]:
        name = each["combination"]
        mean = means.get(name, _NONE)
        cells = [*map(_escaped, (name, mean, _share(each), _decibels(each["closeness"]), each["letters"]))]
        rows.append([*cells[:2], *(f"\\textbf{{{cell}}}" if name in best else cell for cell in cells[2:])])
    head = ["combination", utility.heading, "recovered by any", f"{_closeness(record)} (dB), best", "group"]
    caption = f"Leakage under all attacks together{where}. Combinations that share a letter do not differ at 5\\,\\%."
    return tabular("lrrrl", [_escaped(capital(name)) for name in head], [rows]), caption


def _tests(record: Mapping[str, Any]) -> list[str]:
    """Return the notes below the ranking: the test, the number of examples, and the meaning of bold figures."""
    ranking = record["ranking"]
    tests, standings = ranking["tests"], ranking["standings"]
    examples = " or ".join(map(str, sorted({each["images"] for each in standings})))
    messages = sorted({test["messages"] for test in tests})
    shared = f"; the pairs share {_span(messages)} messages" if messages else ""
    lines = [
        f"$n={examples}$ attacked examples of each combination, {_seeds(record)}{shared}. Intervals are 95\\,\\%.",
        f"McNemar's exact test (recovered) and Wilcoxon's signed-rank test (closeness) over the same examples, with "
        f"Holm's correction over all {len(tests)} tests.",
        "Bold: none leaks significantly less, and at least one leaks significantly more.",
        *_remark(record),
    ]
    if ranking["messages_needed"]:
        lines.append(
            f"With so few messages no difference could be significant: it takes at least {ranking['messages_needed']}."
        )
    return lines


def _notes_in_latex(record: Mapping[str, Any]) -> list[str]:
    counts = sorted({leak["images"] for each in record["combinations"] for leak in each["attacks"]})
    lines = [f"$n={' or '.join(map(str, counts))}$ attacked examples, {_seeds(record)}. Intervals are 95\\,\\%."]
    return (lines if counts else []) + _remark(record) + [escaped(note) for note in record["notes"]]


def _seeds(record: Mapping[str, Any]) -> str:
    seeds = record["question"].get("seeds") or []
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if seeds else "one seed"


def _remark(record: Mapping[str, Any]) -> list[str]:
    return [escaped(line) for line in filter(None, [shown(record["combinations"]).remark])]


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def markdown(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Render the leakage in matrices, with a section for each data set and the notes of each below its table.

    Args:
        records: contents of matrix.json, by the title of their section; an empty title gives no heading.

    Returns:
        Markdown. Beside a share stands its exact 95 % interval, beside a PSNR its interval over seeds and images.
    """
    return "\n\n".join(_section(title, record) for title, record in records.items()) + "\n"


def _section(title: str, record: Mapping[str, Any]) -> str:
    parts = [f"## {title}"] if title else []
    parts.append(grid(_head(record, "{}, dB"), [row for rows in _attack_rows(record) for row in rows]))
    ranking = record.get("ranking") or {"standings": []}
    if len(ranking["standings"]) > 1:
        parts += [_ranking_grid(ranking["standings"]), _listing([_LETTERS, *ranking["sentences"]])]
    notes = [*filter(None, [shown(record["combinations"]).remark]), *record["notes"]]
    return "\n\n".join([*parts, _listing(notes)] if notes else parts)


_LETTERS = "Combinations that share a letter do not differ at 5 % over all comparisons."


def _ranking_grid(standings: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for each in standings:
        closest = f"{each['closeness']['mean']:.1f}" if each["closeness"] else _NONE
        rows.append([each["combination"], _share(each), closest, each["letters"]])
    return grid(["combination", "recovered by any", "closest, dB", "letter"], rows)


def _listing(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _head(record: Mapping[str, Any], closeness: str) -> list[str]:
    """Return the names of the columns of `_attack_rows`."""
    names = ["method", "defence", shown(record["combinations"]).heading, *["epsilon at most"] * _is_private(record)]
    return [*names, "attack", "recovered", closeness.format(_closeness(record)), "identified", "verdict"]


def _attack_rows(record: Mapping[str, Any]) -> list[list[list[str]]]:
    """Return the rows of each combination, one for each attack at each round."""
    utility, private = shown(record["combinations"]), _is_private(record)
    groups = []
    for each in record["combinations"]:
        first = [each["method"], each["defence"], _mean(each, utility)]
        first += [claimed(each["claim"]) if each.get("claim") else _NONE] * private
        rows = []
        for leak in each["attacks"] or [None]:
            rows.append([*first, *(_leak_cells(leak) if leak else ["not attacked", *[_NONE] * 4])])
            first = [""] * len(first)
        groups.append(rows)
    return groups


def _is_private(record: Mapping[str, Any]) -> bool:
    return any(each.get("claim") for each in record["combinations"])


def _closeness(record: Mapping[str, Any]) -> str:
    images = any(leak["ssim"] is not None for each in record["combinations"] for leak in each["attacks"])
    return "PSNR" if images else "closeness"


def _name(each: Mapping[str, Any]) -> str:
    return each["method"] if each["defence"] == NO_DEFENCE else f"{each['method']} with {each['defence']}"


def _mean(combination: Mapping[str, Any], utility: Utility) -> str:
    return utility.text((combination.get(utility.key) or {}).get("mean"), 0)


def _leak_cells(leak: Mapping[str, Any]) -> list[str]:
    failures = f", {leak['failures']} failed" if leak["failures"] else ""
    seeds = f" ({leak['seeds_with_verdict']} of {len(leak['seeds'])})" if len(leak["seeds"]) > 1 else ""
    return [
        f"{leak['attack']}, {leak['kind']}" + (f", round {leak['round']}" if leak["round"] else ""),
        f"{_share(leak)}{failures}",
        _decibels(leak["psnr"]),
        _NONE if leak["identified"] is None else f"{100 * leak['identified']:.0f} %",
        f"{outcomes.in_words(leak)}{seeds}",
    ]


def _share(each: Mapping[str, Any]) -> str:
    return share_in_words(each["recovered"], each["images"], each["share_interval"])


def _decibels(interval: Mapping[str, Any] | None) -> str:
    if not interval:
        return _NONE
    ends = f" ({interval['low']:.1f} to {interval['high']:.1f})" if interval["low"] is not None else ""
    return f"{interval['mean']:.1f}{ends}"


def write(folder: Path, question: Mapping[str, Any], cells: Sequence[Experiment], failed: Mapping[str, str]) -> None:
    """Write the five files.

    Args:
        folder: folder of the matrix.
        question: question of the matrix.
        cells: experiments of all cells, run or not.
        failed: reasons of failed cells, by the name of the cell's folder.
    """
    from flfw.comparisons.page import render

    finished, states = _read(cells, failed)
    runs = {cell: finished[name] for cell in cells if (name := cell.folder.name) in finished}
    combinations = [
        combine(*key, (run for cell, run in runs.items() if (cell.method, cell.defence) == key))
        for key in dict.fromkeys((cell.method, cell.defence) for cell in runs)
    ]
    compared, columns = comparisons(combinations), _columns(finished.values())
    ranking = ranked({one.name: strongest(one.runs, (leak.setting for leak in one.leaks)) for one in combinations})
    record = {
        "flfw": flfw.__version__,
        "question": dict(question),
        "notes": _notes(states, combinations),
        "cells": states,
        "combinations": [_combination(combination, columns) for combination in combinations],
        "comparisons": [_comparison(comparison) for comparison in compared],
        "ranking": ranking.as_dict(),
    }
    write_atomic(folder / "matrix.json", json.dumps(record, indent=1, allow_nan=False).encode())
    write_atomic(folder / "matrix.csv", _csv(combinations, columns).encode())
    write_atomic(folder / "matrix.md", markdown({"": record}).encode())
    write_atomic(folder / "matrix.tex", latex({"": record}).encode())
    write_atomic(folder / "matrix.html", render(record, combinations, compared, ranking).encode())


def _read(
    cells: Iterable[Experiment], failed: Mapping[str, str]
) -> tuple[dict[str, FinishedRun], list[dict[str, Any]]]:
    """Return the finished runs by the name of their folder, and the state of each cell."""
    finished, states = {}, []
    for cell in cells:
        folder = cell.folder
        name, state, reason = folder.name, "not run yet", ""
        if name in failed:
            state, reason = "failed", failed[name]
        elif is_complete(folder):
            try:
                run = read(folder)
                require(bool(run.result.get("final")), "a run with a final evaluation", folder=folder)
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
    measured = {name: run.utilities for name, run in finished.items()}
    return finished, [state | unknown | measured.get(state["folder"], {}) for state in states]


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
        "difference": asdict(statistics.difference) if statistics else None,
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
    return csv_text(lines, ("method", "defence", "attack", "round", "seed"))


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
        **leak.concluded,
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
            leak = f"{outcomes.in_words(worst)}, {worst['recovered']} of {worst['images']} recovered by {where}"
        one = next((one for one in utilities if row.get(one.key)), None)
        utility = one.line(row[one.key]["mean"]) if one else f"no {utilities[0].name}"
        claims = [f"epsilon at most {claimed(row['claim'])}"] if row.get("claim") else []
        texts.append("; ".join([f"{_name(row)}: {utility}", *claims, leak]))
    return texts
