"""Plan of a rehearsal: a site's own settings at one client, and the ladder of probes that leads up to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flfw.errors import InputError, require
from flfw.experiment import Experiment

if TYPE_CHECKING:
    from flfw.task import Task

_FACTOR = 4  # from rung to rung


@dataclass(frozen=True)
class Rehearsal:
    """Settings of a rehearsal.

    Attributes:
        experiment: the run, without `auto`: one client, with the ladder as a curve.
        rungs: batch and local steps of each rung, from the easiest up.
        real: batch and local steps of real training at this site.
        examples: number of training examples of this site.
        messages: the differences from the requested settings, a sentence each.
    """

    experiment: Experiment
    rungs: tuple[tuple[int, int], ...]
    real: tuple[int, int]
    examples: int
    messages: tuple[str, ...]


def growth(end: int) -> list[int]:
    """Return 1, 4, 16 and so on up to a size; without the last power where the end is less than twice as far.

    >>> growth(50), growth(20), growth(1)
    ([1, 4, 16, 50], [1, 4, 20], [1])
    """
    sizes = [1]
    while 2 * _FACTOR * sizes[-1] <= end:
        sizes.append(_FACTOR * sizes[-1])
    return [*sizes, end] if end > 1 else sizes


def ladder(batch: int, steps: int) -> tuple[tuple[int, int], ...]:
    """Return rungs from one example and one step: growing batches to ``batch``, then growing steps to ``steps``.

    >>> ladder(16, 6)
    ((1, 1), (4, 1), (16, 1), (16, 6))
    """
    return tuple([(size, 1) for size in growth(batch)] + [(batch, count) for count in growth(steps)[1:]])


def plan_rehearsal(asked: Experiment, max_steps: int) -> Rehearsal:
    """Plan the rehearsal of these settings at one site.

    Raises:
        InputError: a requested part does not exist, does not fit, or is not on this machine.
    """
    from flfw import data
    from flfw.runs import run

    require(max_steps >= 1, "max-steps >= 1", max_steps=max_steps)
    site = _at_one_site(_of_folder(asked))
    if not data.is_here(data.absolute(site.dataset), site.data_root):
        raise InputError(
            f"Expected data that are on this machine, since a rehearsal downloads nothing, got dataset={site.dataset}; "
            "take --dataset folder:PATH, or get them first with python -m flfw.data.download NAME."
        )
    run_plan, task, _ = run.check(replace(site, images=1))
    site = replace(run_plan.experiment, out=site.out)  # else the run makes one, which no other takes meanwhile
    held, examples = len(task.split.train[0]), len(task.dataset.train_y)
    batch = min(asked.batch_size, held)
    real = batch, asked.local_epochs * -(-held // batch)
    steps = min(real[1], max_steps)
    rungs = ladder(batch, steps)
    curve = f"size={','.join(f'{b}x{s}' for b, s in rungs)}"
    climb = replace(site, victim_batch=batch, victim_steps=steps, curve=(curve,))
    climb = replace(climb, images=_most_images(climb, task, asked.images))
    messages = []
    if held < examples and not task.dataset.is_generated:
        messages.append(f"The site's client holds {held} of the {examples} training examples (split {site.split}).")
    if batch < asked.batch_size:
        messages.append(f"A local step has {batch} examples, all that the client holds, and not {asked.batch_size}.")
    if steps < real[1]:
        messages.append(
            f"The ladder ends at {'one local step' if steps == 1 else f'{steps} local steps'} and not at the real "
            f"{real[1]}: --max-steps {real[1]} climbs them all, and takes about {real[1] / steps:.2g} times as long."
        )
    if climb.images < asked.images:
        messages.append(f"Probes on each rung: {climb.images} and not {asked.images}; the client's data fill no more.")
    return Rehearsal(climb, rungs, real, held, tuple(messages))


def _at_one_site(asked: Experiment) -> Experiment:
    """Return the same settings with one client, which holds all data unless another split is requested by name."""
    require(asked.engine == "inproc", "--engine inproc, a rehearsal's only one", engine=asked.engine)
    alone = "no --federation: a rehearsal is on this machine alone"
    require(asked.federation is None, alone, federation=asked.federation)
    require(not asked.trackers, "no --track: nothing of a rehearsal leaves this machine", track=" ".join(asked.track))
    require(bool(asked.attacks), "an attack to rehearse with", attack="none")
    require(asked.vantage == ("server",), "--vantage server", vantage=" ".join(asked.vantage))
    default_probe = not asked.curve and (asked.victim_batch, asked.victim_steps) == (1, 1)
    given = {"curve": " ".join(asked.curve), "victim_batch": asked.victim_batch, "victim_steps": asked.victim_steps}
    require(default_probe, "--batch-size and --local-epochs alone, of which the ladder is made", **given)
    noise = "the noise itself (--set noise_multiplier=...), since what keeps an epsilon depends on all clients"
    require(not asked.target_epsilon, noise, target_epsilon=asked.target_epsilon)
    require(asked.defended == "all", "--defended all, or no --defence, of one client", defended=asked.defended)
    split = "iid" if asked.split == "auto" else asked.split
    alone = replace(asked, clients=1, sample=0, sampling="fixed", min_clients=1, colluding_clients=0, split=split)
    return replace(
        alone, epsilon_budget=0.0
    )  # it depends on all clients, so it would end this training at another round


def _of_folder(asked: Experiment) -> Experiment:
    """Return the same settings on the images in this site's data root, if they name data that only sites have."""
    from flfw import data
    from flfw.data.files import patients
    from flfw.data.tables import site_tables

    if not data.is_at_sites(asked.dataset):
        return asked
    if site_tables.is_planned(data.configured(asked.dataset, ()).partition(":")[2]):
        return _of_table(asked)
    card = data.describe(asked.dataset)
    require(len(card.shape) == 3, "images to rehearse with, or --dataset folder:PATH", dataset=asked.dataset)
    require(asked.data_root is not None, "--data-root with this site's images", data_root=None)
    name = data.absolute(f"folder:{asked.data_root}/{patients.parsed(asked.dataset)[1]}")
    local = data.describe(name)
    require(local.classes == card.classes, f"{card.classes} classes in {name}", classes=local.classes)
    channels, height, width = card.shape
    form = {
        "resize": f"{height}x{width}",
        "resize_mode": "stretch" if asked.resize_mode == "auto" else asked.resize_mode,
        "colour": "grey" if channels == 1 else "rgb",
    }
    net = card.net if asked.net == "auto" else asked.net
    return replace(asked, dataset=name, data_root=None, net=net, normalise="half", split="auto", **form)


def _of_table(asked: Experiment) -> Experiment:
    """Return the same settings on the table in this site's data root, by the federation's plan there."""
    from flfw import data
    from flfw.data.tables.plan_file import KEPT
    from flfw.data.tables.site_tables import files_of

    require(asked.data_root is not None, "--data-root with this site's rows and plan of columns", data_root=None)
    assert asked.data_root is not None
    card = data.here(data.configured(asked.dataset, ()), asked.data_root)  # refuses what does not fit the plan
    assert card.columns is not None, "a site's table has a plan"
    files = files_of(asked.data_root)
    prefix = files[0].suffix.removeprefix(".")
    beside = [f"{prefix}.columns={asked.data_root / KEPT}", *(f"{prefix}.test={file}" for file in files[1:])]
    name = data.configured(f"{prefix}:{files[0]}@{card.columns.target}", beside)
    return replace(asked, dataset=name, data_root=None, split="auto")


def _most_images(experiment: Experiment, task: Task, asked: int) -> int:
    """Return the number of probes that the client's examples fill on every rung, at most ``asked``."""
    for images in range(asked, 1, -1):
        try:
            task.check_victims(replace(experiment, images=images), experiment.seed)
        except InputError:
            continue
        return images
    task.check_victims(replace(experiment, images=1), experiment.seed)
    return 1
