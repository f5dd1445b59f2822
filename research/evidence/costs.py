"""Costs of the list: core-hours of what is missing, from the measured rounds of what is recorded."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from flfw.experiment import Experiment
from flfw.papers.evidence.records import FOLDER, digest, read
from research.evidence.items import is_there, items

_ON_EACH, _ALONE = "shards", "no GPU"


def listing(folder: Path = FOLDER, only: str = "") -> str:
    """Return the list of items, a line each, recorded or missing with its core-hours; and the sum of these."""
    known = rates(folder)
    lines, hours = list[str](), dict[str, float | None]()
    for item in items(only):
        if is_there(item, folder):
            lines.append(f"recorded          {item.name}")
            continue
        counted = item.preset.source == "plan"  # before a run, in seconds
        key = f"{item.preset.source} {digest(item.run)}"  # items share runs
        hours[key] = estimate = 0.0 if counted else hours_of(item.run, known)
        lines.append(f"missing {'?' if estimate is None else f'{estimate:.1f}':>6} h  {item.name}")
    numbers = [one for one in hours.values() if one is not None]
    unknown = len(hours) - len(numbers)
    more = f", and {unknown} without an estimate" if unknown else ""
    return "\n".join([*lines, f"{len(hours)} runs missing: {sum(numbers):.0f} core-hours{more}"])


def rates(folder: Path = FOLDER) -> dict[tuple[str, ...], float]:
    """Return mean seconds of a unit of work by data set and network, and by these and the method, as recorded."""
    given = {(one.cell, one.variant, one.seed, one.choice): one for one in read(folder) if _ALONE in one.hardware}
    seconds: dict[tuple[str, ...], list[float]] = {}
    for item in items():
        record = given.get((item.cell.path, item.variant, item.seed, item.choice))
        if record is not None and record.seconds and not item.run.attacks and record.digest == digest(item.run):
            for key in _keys(item.run):
                seconds.setdefault(key, []).append(record.seconds / work(item.run))
    return {key: fmean(values) for key, values in seconds.items()}


def hours_of(run: Experiment, known: dict[tuple[str, ...], float]) -> float | None:
    """Return the core-hours of a run; None: nothing like it is recorded, or attacks take an unknown time."""
    rate = next((known[key] for key in _keys(run) if key in known), None)
    return None if rate is None or run.attacks else rate * work(run) / 3600


def work(run: Experiment) -> float:
    """Return rounds x clients x local steps, up to a factor that runs on the same data and split share."""
    share = 1.0 if run.split == _ON_EACH else 1 / run.clients  # shards have the same size with any number of clients
    return run.rounds * run.per_round * run.local_epochs * share / run.batch_size


def _keys(run: Experiment) -> Sequence[tuple[str, ...]]:
    return (run.dataset, run.net, run.split, run.method), (run.dataset, run.net, run.split)
