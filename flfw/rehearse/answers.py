"""Results of a rehearsal: a table of its rungs, and for each attack one sentence on where leakage stops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flfw.formats.result_file import read_result
from flfw.report.causes import plainly
from flfw.report.findings import number, read_settings, setting_name

Rungs = Sequence[tuple[int, int]]
"""Batch and local steps of each rung, from the easiest up."""

# The weakest evidence first; only the last is evidence of protection, and only to a degree.
_MEANS = {
    "attack broken": "The result is void: {because}.",
    "inconclusive": "That is no evidence of protection: {because}.",
    "static only": "The attack did not reckon with all that hides the data, so that is no evidence of protection.",
    "no leak found": "The attack knew what hides the data, and works on the same messages without it and where it is "
    "mild; that is not proof of safety.",
}
_IDENTIFIES = "But the true example can be told from public look-alikes there more often than chance explains. "


@dataclass(frozen=True)
class RungAttack:
    """An attack on the probes of one rung after one round.

    Attributes:
        attack: the attack's name, with the defence that it knows.
        round: the round; 0 is before training.
        batch: examples in each probe.
        steps: local steps in each.
        recovered: examples that count as recovered.
        examples: attacked examples.
        best_psnr: highest PSNR in dB over all examples; None for rows of numbers, or where the attack gave nothing.
        verdict: the audit's verdict.
        reason: the reason of the verdict, in sentences.
        control: whether the closed form recovered its examples; if not, the measurement is faulty.
        easy: whether the same attack works on the undefended network with fresh weights.
        because: the cause of the verdict in plain words; empty for a verdict that needs none.
    """

    attack: str
    round: int
    batch: int
    steps: int
    recovered: int
    examples: int
    best_psnr: float | None
    verdict: str
    reason: str
    control: bool
    easy: bool
    because: str = ""


def attempts(folder: Path) -> list[RungAttack]:
    """Return all attempts of a run folder's audit on its target and its ladder."""
    entries = read_result(folder).get("audit") or []
    tried = []
    for setting in read_settings(folder, entries, pictures=False):
        entry = setting.entry
        passed = {rung["rung"]: bool(rung["passed"]) for rung in entry["ladder"]}
        tried.append(
            RungAttack(
                attack=setting_name(entry, entries, kind=False),
                round=entry["round"],
                batch=entry["batch"],
                steps=entry["steps"],
                recovered=setting.recovered,
                examples=setting.total,
                best_psnr=number((entry["psnr"] or {}).get("max")),
                verdict=entry["verdict"],
                reason=entry["reason"],
                control=passed["analytic"],
                easy=passed["easy"],
                because=plainly(setting),
            )
        )
    return sorted(tried, key=lambda one: (one.steps, one.batch))  # stable: attacks and rounds stay in their order


def table(tried: Iterable[RungAttack]) -> str:
    """Format a line per rung, in a block for each attack and audited round."""
    blocks: dict[tuple[str, int], list[RungAttack]] = {}
    for one in tried:
        blocks.setdefault((one.attack, one.round), []).append(one)
    lines = []
    for (attack, server_round), rungs in blocks.items():
        lines += [f"{attack}, {turn(server_round)}", "  batch  steps  recovered      best  verdict"]
        for one in rungs:
            best = "-" if one.best_psnr is None else f"{one.best_psnr:.1f} dB"
            got = f"{one.recovered} of {one.examples}"
            lines.append(f"  {one.batch:>5}  {one.steps:>5}  {got:>9}  {best:>8}  {one.verdict}")
    return "\n".join(lines)


def answers(tried: Sequence[RungAttack], rungs: Rungs, real: tuple[int, int]) -> dict[str, str]:
    """Return for each attack where its success ends, and the worth of its failure above.

    Args:
        tried: the attempts from `attempts`.
        rungs: the climbed rungs.
        real: batch and local steps of real training; the last rung equals them, unless it was capped.
    """
    names = dict.fromkeys(one.attack for one in tried)
    return {name: _answer([one for one in tried if one.attack == name], rungs, real) for name in names}


def _answer(tried: Sequence[RungAttack], rungs: Rungs, real: tuple[int, int]) -> str:
    if not all(one.control for one in tried):
        return "the control was not recovered. The check of the measurement failed, so the result is void."
    leaking = [one for one in tried if one.verdict == "leaks"]
    if not leaking:
        below = ", and so was the easy case" if all(one.easy for one in tried) else ", but not the easy case"
        return f"nothing was recovered on any rung; the control was{below}. {_means(tried)}"
    height = max(rungs.index((one.batch, one.steps)) for one in leaking)
    there = [one for one in leaking if (one.batch, one.steps) == rungs[height]]
    best, size = max(there, key=lambda one: one.recovered), words(*rungs[height])
    when = f"{best.recovered} of {best.examples} examples recovered {turn(best.round)}"
    gaps = [rung for rung in rungs[:height] if rung not in {(one.batch, one.steps) for one in leaking}]
    but = f", though not at {' or '.join(words(*rung) for rung in gaps)}" if gaps else ""
    if rungs[height] == real:
        return f"leaks at the real settings, {size} ({when}){but}."
    if height == len(rungs) - 1:
        return f"leaks on the highest rung, {size} ({when}){but}; the real {words(*real)} were not tried."
    above = [one for one in tried if rungs.index((one.batch, one.steps)) > height]
    stops = f"at {words(*rungs[height + 1])} nothing was recovered"
    stops += ", nor above" if len(rungs) > height + 2 else ""
    return f"leaks up to {size} ({when}){but}; {stops}. {_means(above)}"


def _means(tried: Sequence[RungAttack]) -> str:
    """Return the worth of the failure on some rungs: that of the rung with the weakest evidence."""
    identified = _IDENTIFIES if any(one.verdict == "identifies" for one in tried) else ""
    for verdict, sentence in _MEANS.items():
        causes = [one.because for one in tried if one.verdict == verdict]
        if causes:
            because = next(filter(None, causes), "the attack is too weak")
            return identified + sentence.format(because=because)
    return identified.strip() or "Nothing was attacked."


def words(batch: int, steps: int) -> str:
    """Return a rung in words.

    >>> words(16, 1)
    'batch 16 and one step'
    """
    return f"batch {batch} and {'one step' if steps == 1 else f'{steps} steps'}"


def turn(server_round: int) -> str:
    """Return the time of an attack in words: ``before training`` or ``after round 3``."""
    return f"after round {server_round}" if server_round else "before training"
