"""Table of finished matrices in Markdown: leakage of each combination under each attack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flfw.matrix.columns import claimed
from flfw.matrix.utility import shown

_NONE = "–"


def markdown(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Render the leakage in matrices, with a section for each data set and the notes of each below its table.

    Args:
        records: contents of matrix.json, by the title of their section; an empty title gives no heading.

    Returns:
        Markdown. Beside a share stands its exact 95 % interval, beside a PSNR its interval over seeds and images.
    """
    return "\n\n".join(_section(title, record) for title, record in records.items()) + "\n"


def _section(title: str, record: Mapping[str, Any]) -> str:
    images = any(leak["ssim"] is not None for each in record["combinations"] for leak in each["attacks"])
    closeness = "PSNR, dB" if images else "closeness, dB"
    utility = shown(record["combinations"])
    private = any(each.get("claim") for each in record["combinations"])
    names = ["method", "defence", utility.heading]
    names += ["epsilon at most"] if private else []
    header = [*names, "attack", "recovered", closeness, "identified", "verdict"]
    rows = [header, ["---"] * len(header)]
    for combination in record["combinations"]:
        mean = (combination.get(utility.key) or {}).get("mean")
        first = [combination["method"], combination["defence"], utility.text(mean, 0)]
        first += [claimed(combination["claim"]) if combination.get("claim") else _NONE] * private
        for leak in combination["attacks"] or [None]:
            rows.append([*first, *(_leak(leak) if leak else ["not attacked", *[_NONE] * 4])])
            first = [""] * len(names)
    parts = [f"## {title}"] if title else []
    parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    parts += _ranking(record.get("ranking") or {"standings": []})
    notes = [*filter(None, [utility.remark]), *record["notes"]]
    parts += ["\n".join(f"- {note}" for note in notes)] if notes else []
    return "\n\n".join(parts)


def _ranking(ranking: Mapping[str, Any]) -> list[str]:
    """Return a table of all attacks together, and the sentences on it; of one combination nothing."""
    if len(ranking["standings"]) < 2:
        return []
    rows = [["combination", "recovered by any", "closest, dB", "letter"], ["---"] * 4]
    for each in ranking["standings"]:
        low, high = each["share_interval"]
        share = f"{each['recovered']} of {each['images']} ({100 * low:.0f} to {100 * high:.0f} %)"
        closest = f"{each['closeness']['mean']:.1f}" if each["closeness"] else _NONE
        rows.append([each["combination"], share, closest, each["letters"]])
    lines = ["Combinations that share a letter do not differ at 5 % over all comparisons.", *ranking["sentences"]]
    return ["\n".join(f"| {' | '.join(row)} |" for row in rows), "\n".join(f"- {line}" for line in lines)]


def _leak(leak: Mapping[str, Any]) -> list[str]:
    low, high = leak["share_interval"]
    psnr = leak["psnr"]
    ends = f" ({psnr['low']:.1f} to {psnr['high']:.1f})" if psnr and psnr["low"] is not None else ""
    failures = f", {leak['failures']} failed" if leak["failures"] else ""
    seeds = f" ({leak['seeds_with_verdict']} of {len(leak['seeds'])})" if len(leak["seeds"]) > 1 else ""
    return [
        f"{leak['attack']}, {leak['kind']}" + (f", round {leak['round']}" if leak["round"] else ""),
        f"{leak['recovered']} of {leak['images']} ({100 * low:.0f} to {100 * high:.0f} %){failures}",
        f"{psnr['mean']:.1f}{ends}" if psnr else _NONE,
        _percent(leak["identified"]),
        leak["verdict"] + seeds,
    ]


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.0f} %"
