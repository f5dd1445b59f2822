"""Tables of finished matrices in LaTeX: what leaks more, and each attack."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from flfw.formats.latex import escaped, floating, tabular
from flfw.matrix.columns import claimed
from flfw.matrix.utility import Utility, shown

_NONE = "--"


def latex(records: Mapping[str, Mapping[str, Any]]) -> str:
    r"""Render matrices, two tables for each data set; the preamble needs ``\usepackage{booktabs}``.

    Args:
        records: contents of matrix.json, by the data set's title; an empty title is left out of captions.
    """
    head = r"% Needs \usepackage{booktabs}. Written by flfw; matrix.json beside it has all digits."
    return "\n".join([head, *(part for title, record in records.items() for part in _tables(title, record))])


def _tables(title: str, record: Mapping[str, Any]) -> list[str]:
    label = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")
    place, where = f"-{label}" * bool(label), f" on {escaped(title)}" * bool(title)
    parts = [floating("table", *_each_attack(record, where), f"matrix-attacks{place}", _notes(record))]
    ranking = record.get("ranking") or {"standings": []}
    if len(ranking["standings"]) > 1:
        parts.insert(0, floating("table", *_ranking(record, where), f"matrix{place}", _tests(record)))
    return parts


def _ranking(record: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Return the table of all attacks together, and its caption."""
    ranking, utility = record["ranking"], shown(record["combinations"])
    means = {_name(each): (each.get(utility.key) or {}).get("mean") for each in record["combinations"]}
    best = ranking["least"] if len(ranking["least"]) < len(ranking["standings"]) else []
    rows = []
    for each in ranking["standings"]:
        low, high = each["share_interval"]
        name, mean = each["combination"], _utility(utility, means.get(each["combination"]))
        share = f"{each['recovered']} of {each['images']} ({100 * low:.0f} to {100 * high:.0f}\\,\\%)"
        strong = name in best
        cells = [escaped(name), mean, share, _decibels(each["closeness"]), escaped(each["letters"])]
        rows.append([cells[0], cells[1], *(f"\\textbf{{{cell}}}" if strong else cell for cell in cells[2:])])
    head = ["Combination", _heading(utility), "Recovered by any", f"{_closeness(record)}, best", "Group"]
    caption = f"Leakage under all attacks together{where}. Combinations that share a letter do not differ at 5\\,\\%."
    return tabular("lrrrl", head, [rows]), caption


def _tests(record: Mapping[str, Any]) -> list[str]:
    """Return the notes below the ranking: the test, the number of examples, and the meaning of bold figures."""
    ranking = record["ranking"]
    tests, standings = ranking["tests"], ranking["standings"]
    counts = sorted({each["images"] for each in standings})
    examples = " or ".join(map(str, counts))
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


def _each_attack(record: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Return the table of each attack at each round, and its caption."""
    utility = shown(record["combinations"])
    private = any(each.get("claim") for each in record["combinations"])
    head = ["Method", "Defence", _heading(utility), *["Epsilon at most"] * private]
    head += ["Attack", "Recovered", _closeness(record), "Identified", "Verdict"]
    groups = []
    for each in record["combinations"]:
        mean = (each.get(utility.key) or {}).get("mean")
        first = [escaped(each["method"]), escaped(each["defence"]), _utility(utility, mean)]
        first += [escaped(claimed(each["claim"])) if each.get("claim") else _NONE] * private
        rows = []
        for leak in each["attacks"] or [None]:
            rows.append([*first, *(_leak(leak) if leak else ["not attacked", *[_NONE] * 4])])
            first = [""] * len(first)
        groups.append(rows)
    return tabular(f"llr{'l' * private}lrrrl", head, groups), f"Each attack{where}."


def _leak(leak: Mapping[str, Any]) -> list[str]:
    low, high = leak["share_interval"]
    share = f"{leak['recovered']} of {leak['images']} ({100 * low:.0f} to {100 * high:.0f}\\,\\%)"
    share += f", {leak['failures']} failed" if leak["failures"] else ""
    seeds = f" ({leak['seeds_with_verdict']} of {len(leak['seeds'])})" if len(leak["seeds"]) > 1 else ""
    name = f"{leak['attack']}, {leak['kind']}" + (f", round {leak['round']}" if leak["round"] else "")
    return [
        escaped(name),
        share,
        _decibels(leak["psnr"]),
        _percent(leak["identified"]),
        escaped(leak["verdict"] + seeds),
    ]


def _notes(record: Mapping[str, Any]) -> list[str]:
    counts = sorted({leak["images"] for each in record["combinations"] for leak in each["attacks"]})
    lines = [f"$n={' or '.join(map(str, counts))}$ attacked examples, {_seeds(record)}. Intervals are 95\\,\\%."]
    return (lines if counts else []) + _remark(record) + [escaped(note) for note in record["notes"]]


def _seeds(record: Mapping[str, Any]) -> str:
    seeds = record["question"].get("seeds") or []
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if seeds else "one seed"


def _name(each: Mapping[str, Any]) -> str:
    return each["method"] if each["defence"] == "none" else f"{each['method']} with {each['defence']}"


def _heading(utility: Utility) -> str:
    return escaped(utility.heading.capitalize())


def _utility(utility: Utility, value: float | None) -> str:
    return _NONE if value is None else escaped(utility.text(value, 0)).replace(r" \%", r"\,\%")


def _remark(record: Mapping[str, Any]) -> list[str]:
    return [escaped(line) for line in filter(None, [shown(record["combinations"]).remark])]


def _closeness(record: Mapping[str, Any]) -> str:
    images = any(leak["ssim"] is not None for each in record["combinations"] for leak in each["attacks"])
    return "PSNR (dB)" if images else "Closeness (dB)"


def _decibels(interval: Mapping[str, Any] | None) -> str:
    if not interval:
        return _NONE
    ends = f" ({interval['low']:.1f} to {interval['high']:.1f})" if interval["low"] is not None else ""
    return f"{interval['mean']:.1f}{ends}"


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.0f}\\,\\%"


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
