"""Rehearsal of a run at one client: its plan and probes, its results, and its check against the site's policy.

The plan has a site's own settings at one client, and probes of growing sizes up to them. For each attack one
sentence says where leakage stops. The check names breaches and budget, and writes a policy for this run alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flfw.errors import InputError, abridged, require
from flfw.experiment import Experiment, Scalar
from flfw.files import outcomes
from flfw.files.result_file import read_result
from flfw.report.causes import plainly
from flfw.report.findings import number, read_settings, setting_name

if TYPE_CHECKING:
    from flfw.deploy.policy import Policy
    from flfw.task.task import Task

_FACTOR = 4  # from size to size


@dataclass(frozen=True)
class Rehearsal:
    """Settings of a rehearsal.

    Attributes:
        experiment: the run, without `auto`: one client, with the sizes as a curve.
        sizes: batch and local steps of each size of probes, from the easiest up.
        real: batch and local steps of real training at this site.
        examples: number of training examples of this site.
        messages: the differences from the requested settings, a sentence each.
    """

    experiment: Experiment
    sizes: tuple[tuple[int, int], ...]
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


def growing_sizes(batch: int, steps: int) -> tuple[tuple[int, int], ...]:
    """Return sizes from one example and one step: growing batches to ``batch``, then growing steps to ``steps``.

    >>> growing_sizes(16, 6)
    ((1, 1), (4, 1), (16, 1), (16, 6))
    """
    return tuple([(size, 1) for size in growth(batch)] + [(batch, count) for count in growth(steps)[1:]])


def plan_rehearsal(experiment: Experiment, max_steps: int) -> Rehearsal:
    """Plan the rehearsal of these settings at one site.

    Raises:
        InputError: a requested part does not exist, does not fit, or is not on this machine.
    """
    from flfw import data
    from flfw.runs import run

    require(max_steps >= 1, "max-steps >= 1", max_steps=max_steps)
    site = _at_one_site(_of_folder(experiment))
    if not data.is_here(data.absolute(site.dataset), site.data_root):
        raise InputError(
            f"Expected data that are on this machine, since a rehearsal downloads nothing, got dataset={site.dataset}; "
            "take --dataset folder:PATH, or get them first with flfw data get NAME."
        )
    run_plan, task, _ = run.check(replace(site, images=1))
    site = replace(run_plan.experiment, out=site.out)  # else the run makes one, which no other takes meanwhile
    held, examples = len(task.split.train[0]), len(task.dataset.train_y)
    batch = min(experiment.batch_size, held)
    real = batch, experiment.local_epochs * -(-held // batch)
    steps = min(real[1], max_steps)
    sizes = growing_sizes(batch, steps)
    curve = f"size={','.join(f'{b}x{s}' for b, s in sizes)}"
    audit = replace(site, victim_batch=batch, victim_steps=steps, curve=(curve,))
    audit = replace(audit, images=_max_probes(audit, task, experiment.images))
    messages = []
    if held < examples and not task.dataset.is_generated:
        messages.append(f"The site's client holds {held} of the {examples} training examples (split {site.split}).")
    if batch < experiment.batch_size:
        messages.append(f"A local step has {batch} examples, all that the client has, not {experiment.batch_size}.")
    if steps < real[1]:
        messages.append(
            f"The sizes end at {'one local step' if steps == 1 else f'{steps} local steps'} and not at the real "
            f"{real[1]}: --max-steps {real[1]} probes them all, and takes about {real[1] / steps:.2g} times as long."
        )
    if audit.images < experiment.images:
        messages.append(f"Probes of each size: {audit.images} and not {experiment.images}; its data fill no more.")
    return Rehearsal(audit, sizes, real, held, tuple(messages))


def _at_one_site(experiment: Experiment) -> Experiment:
    """Return the same settings with one client, which holds all data unless another split is requested by name."""
    require(experiment.engine == "inproc", "--engine inproc, a rehearsal's only one", engine=experiment.engine)
    alone = "no --federation: a rehearsal is on this machine alone"
    require(experiment.federation is None, alone, federation=experiment.federation)
    untracked = "no --track: nothing of a rehearsal leaves this machine"
    require(not experiment.trackers, untracked, track=" ".join(experiment.track))
    require(bool(experiment.attacks), "an attack to rehearse with", attack="none")
    require(experiment.vantage == ("server",), "--vantage server", vantage=" ".join(experiment.vantage))
    default_probe = not experiment.curve and (experiment.victim_batch, experiment.victim_steps) == (1, 1)
    given = {
        "curve": " ".join(experiment.curve),
        "victim_batch": experiment.victim_batch,
        "victim_steps": experiment.victim_steps,
    }
    require(default_probe, "--batch-size and --local-epochs alone, of which the sizes are made", **given)
    noise = "the noise itself (--set noise_multiplier=...), since what keeps an epsilon depends on all clients"
    require(not experiment.target_epsilon, noise, target_epsilon=experiment.target_epsilon)
    require(experiment.defended == "all", "--defended all or no --defence, of one client", defended=experiment.defended)
    split = "iid" if experiment.split == "auto" else experiment.split
    alone = replace(
        experiment, clients=1, sample=0, sampling="fixed", on_client_failure="fail", colluding_clients=0, split=split
    )
    # It depends on all clients, so it would end this training at another round.
    return replace(alone, epsilon_budget=0.0)


def _of_folder(experiment: Experiment) -> Experiment:
    """Return the same settings on the images in this site's data root, if they name data that only sites have."""
    from flfw import data
    from flfw.data.files import patients
    from flfw.data.tables import site_tables

    if not data.is_at_sites(experiment.dataset):
        return experiment
    if site_tables.parsed(data.configured(experiment.dataset, ()).partition(":")[2]):
        return _of_table(experiment)
    card = data.describe(experiment.dataset)
    require(len(card.shape) == 3, "images to rehearse with, or --dataset folder:PATH", dataset=experiment.dataset)
    require(experiment.data_root is not None, "--data-root with this site's images", data_root=None)
    name = data.absolute(f"folder:{experiment.data_root}/{patients.parsed(experiment.dataset)[1]}")
    channels, height, width = card.shape
    words = experiment.image_words
    data.here(experiment.dataset, experiment.data_root, data.ImageFormat(skip_damaged=True, bits=words.bits))
    form = [f"{height}x{width}", "stretch" if words.mode == "auto" else words.mode, "grey" if channels == 1 else "rgb"]
    images = ",".join([*form, *words.others])
    net = card.net if experiment.net == "auto" else experiment.net
    return replace(experiment, dataset=name, data_root=None, net=net, normalise="half", split="auto", own_images=images)


def _of_table(experiment: Experiment) -> Experiment:
    """Return the same settings on the table in this site's data root, by the federation's plan there."""
    from flfw import data
    from flfw.data.tables.site_tables import table_name

    require(experiment.data_root is not None, "--data-root with this site's rows and plan of columns", data_root=None)
    assert experiment.data_root is not None
    data.here(data.configured(experiment.dataset, ()), experiment.data_root)  # it refuses what does not fit the plan
    return replace(experiment, dataset=str(table_name(experiment.data_root)), data_root=None, split="auto")


def _max_probes(experiment: Experiment, task: Task, requested: int) -> int:
    """Return the number of probes that the client's examples fill on every size, at most ``requested``."""
    for images in range(requested, 1, -1):
        try:
            task.check_victims(replace(experiment, images=images), experiment.seed)
        except InputError:
            continue
        return images
    task.check_victims(replace(experiment, images=1), experiment.seed)
    return 1


Sizes = Sequence[tuple[int, int]]
"""Batch and local steps of each size, from the easiest up."""

# The weakest evidence first; only the last is evidence of protection, and only to a degree.
_MEANS = {
    outcomes.VOID: "The result is void: {because}.",
    outcomes.UNDECIDED: "That is no evidence of protection: {because}.",
    outcomes.STATIC: "The attack did not reckon with all that hides the data, so that is no evidence of protection.",
    outcomes.NO_LEAK_FOUND: "The attack knew what hides the data, and works on the same messages without it and "
    "where it is mild; that is not proof of safety.",
}
_IDENTIFIES = "But the true example can be told from public look-alikes there more often than chance explains. "


@dataclass(frozen=True)
class SizeAttack:
    """An attack on the probes of one size after one round.

    Attributes:
        attack: the attack's name, with the defence that it knows.
        round: the round; 0 is before training.
        batch: examples in each probe.
        steps: local steps in each.
        recovered: examples that count as recovered.
        examples: attacked examples.
        best_psnr: highest PSNR in dB over all examples; None for rows of numbers, or where the attack gave nothing.
        verdict: the audit's verdict.
        evidence: what was found, of a leak.
        cause: what decided the verdict, in one word.
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
    evidence: str | None
    cause: str
    reason: str
    control: bool
    easy: bool
    because: str = ""

    @property
    def found(self) -> str:
        """Evidence of a leak, or the verdict; see `flfw.files.outcomes.outcome`."""
        return outcomes.outcome(asdict(self))


def attempts(folder: Path) -> list[SizeAttack]:
    """Return all attempts of a run folder's audit on its target and all sizes."""
    entries = read_result(folder).get("audit") or []
    tried = []
    for setting in read_settings(folder, entries, pictures=False):
        entry = setting.entry
        passed = {control["rung"]: bool(control["passed"]) for control in entry["ladder"]}
        tried.append(
            SizeAttack(
                attack=setting_name(entry, entries, kind=False),
                round=entry["round"],
                batch=entry["batch"],
                steps=entry["steps"],
                recovered=setting.recovered,
                examples=setting.total,
                best_psnr=number((entry["psnr"] or {}).get("max")),
                verdict=entry["verdict"],
                evidence=entry["evidence"],
                cause=setting.cause,
                reason=entry["reason"],
                control=passed["analytic"],
                easy=passed["easy"],
                because=plainly(setting),
            )
        )
    return sorted(tried, key=lambda one: (one.steps, one.batch))  # stable: attacks and rounds stay in their order


def table(tried: Iterable[SizeAttack]) -> str:
    """Format a line per size, in a block for each attack and audited round."""
    blocks: dict[tuple[str, int], list[SizeAttack]] = {}
    for one in tried:
        blocks.setdefault((one.attack, one.round), []).append(one)
    lines = []
    for (attack, server_round), sizes in blocks.items():
        lines += [f"{attack}, {turn(server_round)}", "  batch  steps  recovered      best  verdict"]
        for one in sizes:
            best = "-" if one.best_psnr is None else f"{one.best_psnr:.1f} dB"
            got = f"{one.recovered} of {one.examples}"
            lines.append(f"  {one.batch:>5}  {one.steps:>5}  {got:>9}  {best:>8}  {outcomes.in_words(asdict(one))}")
    return "\n".join(lines)


def answers(tried: Sequence[SizeAttack], sizes: Sizes, real: tuple[int, int]) -> dict[str, str]:
    """Return for each attack where its success ends, and the worth of its failure above.

    Args:
        tried: the attempts from `attempts`.
        sizes: the probed sizes.
        real: batch and local steps of real training; the last size equals them, unless it was capped.
    """
    names = dict.fromkeys(one.attack for one in tried)
    return {name: _answer([one for one in tried if one.attack == name], sizes, real) for name in names}


def _answer(tried: Sequence[SizeAttack], sizes: Sizes, real: tuple[int, int]) -> str:
    if not all(one.control for one in tried):
        return "the control was not recovered. The check of the measurement failed, so the result is void."
    leaking = [one for one in tried if one.found == outcomes.RECONSTRUCTED]
    if not leaking:
        below = ", and so was the easy case" if all(one.easy for one in tried) else ", but not the easy case"
        return f"nothing was recovered at any size; the control was{below}. {_means(tried)}"
    height = max(sizes.index((one.batch, one.steps)) for one in leaking)
    there = [one for one in leaking if (one.batch, one.steps) == sizes[height]]
    best, size = max(there, key=lambda one: one.recovered), words(*sizes[height])
    when = f"{best.recovered} of {best.examples} examples recovered {turn(best.round)}"
    gaps = [size for size in sizes[:height] if size not in {(one.batch, one.steps) for one in leaking}]
    but = f", though not at {' or '.join(words(*gap) for gap in gaps)}" if gaps else ""
    if sizes[height] == real:
        return f"leaks at the real settings, {size} ({when}){but}."
    if height == len(sizes) - 1:
        return f"leaks at the largest size, {size} ({when}){but}; the real {words(*real)} were not tried."
    above = [one for one in tried if sizes.index((one.batch, one.steps)) > height]
    stops = f"at {words(*sizes[height + 1])} nothing was recovered"
    stops += ", nor above" if len(sizes) > height + 2 else ""
    return f"leaks up to {size} ({when}){but}; {stops}. {_means(above)}"


def _means(tried: Sequence[SizeAttack]) -> str:
    """Return the worth of the failure at some sizes: that of the size with the weakest evidence."""
    identified = _IDENTIFIES if any(one.found == outcomes.IDENTIFIED for one in tried) else ""
    for found, sentence in _MEANS.items():
        causes = [one.because for one in tried if one.found == found]
        if causes:
            because = next(filter(None, causes), "the attack is too weak")
            return identified + sentence.format(because=because)
    return identified.strip() or "Nothing was attacked."


def words(batch: int, steps: int) -> str:
    """Return a size in words.

    >>> words(16, 1)
    'batch 16 and one step'
    """
    return f"batch {batch} and {'one step' if steps == 1 else f'{steps} steps'}"


def turn(server_round: int) -> str:
    """Return the time of an attack in words: ``before training`` or ``after round 3``."""
    return f"after round {server_round}" if server_round else "before training"


def breaches(policy: Policy, experiment: Experiment, sends: Sequence[str]) -> list[str]:
    """Return the parts of a run that its site's policy forbids, as far as known before the run, a sentence each.

    Args:
        policy: the site's policy.
        experiment: the requested settings.
        sends: names of the tensors that the method may send.
    """
    from flfw.files.tensor_names import matches

    config = _as_asked_for(experiment)
    if policy.run and experiment.clients == 1:  # a rehearsal has one, and the federation has others
        config["clients"] = policy.run.allowed("clients")
    refused = [policy.run_rejection(config) or ""]
    if policy.run:
        refused += [f"this site's policy pins the run, which has {one}" for one in policy.run.refusals(config)]
    kept = [name for name in sends if not matches(name, policy.allowed_uploads)]
    sentences = [f"The policy refuses these settings: {one}." for one in dict.fromkeys(refused) if one]
    if kept:
        sentences.append(f"The policy does not let {abridged(kept, 1)} leave, which {experiment.method} sends.")
    return sentences


def _as_asked_for(experiment: Experiment) -> dict[str, Scalar]:
    """Return the settings with which a server asks for the site's own data, such as the images of ``folder:PATH``."""
    from flfw import data
    from flfw.data.readers import at_site
    from flfw.data.tables.names import TableName
    from flfw.data.tables.site_tables import name_of
    from flfw.task.task import image_format

    config = experiment.to_run_config()
    if data.is_table(experiment.dataset):
        schema = data.describe(data.absolute(experiment.dataset)).columns
        if schema is None or TableName.parse(experiment.dataset).plan is None:
            return config
        return {**config, "dataset": name_of(schema), "split": at_site.SPLIT}
    if not experiment.dataset.startswith(("folder:", "hf:")):
        return config
    card = data.describe(data.absolute(experiment.dataset), image_format(experiment, None))
    named = f"site:{'x'.join(map(str, card.shape))}:{card.classes}"  # of which the name says size and colour
    words = experiment.image_words
    kept = ",".join([*[words.mode] * (words.mode != "auto"), *words.others])
    return {**config, "dataset": named, "own-images": kept, "split": at_site.SPLIT}


def draws_at_sites(experiment: Experiment) -> Literal["auto", "seed", "secure"]:
    """Return where a defence draws from when sites are asked for these settings; a rehearsal repeats, they do not."""
    return "secure" if experiment.defence_randomness == "auto" else experiment.defence_randomness


def over_budget(policy: Policy, experiment: Experiment, examples: int) -> list[str]:
    """Return the limit that the policy's budget sets for a run if nothing is spent yet, in at most one sentence.

    Args:
        policy: the site's policy.
        experiment: the settings of the run.
        examples: number of the site's training examples; its others are not known here, which matters for unit=client
            with private metrics alone.
    """
    from flfw.dp.budget import BudgetExceededError
    from flfw.dp.message_cost import TRAIN, cost
    from flfw.dp.site_ledger import MessageEntry, rounds_within
    from flfw.plans.run_plan import plan

    named = _as_asked_for(experiment)
    if (budget := policy.budget) is None or replace(policy, run=None).run_rejection(named):
        return []
    try:
        mechanism, metrics = cost(plan(experiment).client, TRAIN, {}, examples)
    except BudgetExceededError as error:
        return [f"The policy refuses these settings: {error}."]
    entry = MessageEntry("", 0, TRAIN, experiment.method, mechanism, examples, metrics=metrics, held=examples)
    allowed = rounds_within(entry, budget, experiment.rounds)
    if allowed == experiment.rounds:
        return []
    return [f"The policy's budget, {budget}, allows {allowed} of {experiment.rounds} rounds."]


def without_attacks(experiment: Experiment) -> Experiment:
    """Return the settings with which a server asks sites for this run: it attacks nothing there."""
    from flfw.plans.run_plan import plan
    from flfw.plugins import short_name

    audit, by = plan(experiment).audit, short_name(experiment.malicious_server)
    kept = tuple(word for word in experiment.set if word.startswith(f"{by}.") or not audit.takes(word))
    return replace(experiment, attack=("none",), set=kept)


def sent(experiment: Experiment) -> list[str]:
    """Return the names of the tensors that the method's clients may send."""
    from flfw.files.tensor_names import matches
    from flfw.plans.run_plan import plan

    run_plan = plan(experiment)
    return [name for name in run_plan.client.model.state_dict() if matches(name, run_plan.client.sharing.uploads)]


def require_pinnable(experiment: Experiment, path: Path, policy: Policy | None) -> None:
    """Refuse to write a policy where something stands, or that pins no site's data, or has no budget for its noise.

    Args:
        experiment: the settings.
        path: the file.
        policy: as for `write_policy`.

    Raises:
        InputError: see above.
    """
    from flfw import data

    require(not path.exists(), "a new file for --write-policy; choose another or remove it", write_policy=path)
    way_out = "--dataset site:CxHxW:CLASSES with --write-policy, as a server names the data (--data-root has them)"
    require(data.is_at_sites(experiment.dataset), way_out, dataset=experiment.dataset)
    counted = "--policy with an epsilon beside --metrics private, whose noise nothing else bounds"
    require(
        experiment.metrics != "private" or (policy is not None and policy.budget is not None), counted, policy="none"
    )


def write_policy(path: Path, experiment: Experiment, policy: Policy | None, largest_mb: float) -> None:
    """Write a policy for the rehearsed run alone: this code, the method's uploads, these settings.

    Args:
        path: the file.
        experiment: the settings.
        policy: has the budget, the volunteered examples and a bound of messages; None: there are none. Without a bound,
            and without probes, the site answers the messages of the run twice, as a round that was interrupted is
            asked for again.
        largest_mb: of an update in the rehearsal; a tenth and 0.1 MB more are allowed, for the message around it.
    """
    from flfw.deploy.allowed_settings import pins_of, plugins_of
    from flfw.deploy.policy import Policy
    from flfw.engines.superlink import bundle_hash
    from flfw.files.sealed import write_atomic
    from flfw.plans.run_plan import plan, without_auto

    experiment = without_auto(without_attacks(experiment))
    maximum = round(1.1 * largest_mb + 0.1, 3)
    allowed = policy or Policy(("any",), (), maximum, metrics="none" if experiment.metrics == "none" else "all")
    uploads = plan(experiment).client.sharing.uploads
    pinned = replace(
        allowed,
        allowed_apps=(bundle_hash(),),
        allowed_uploads=uploads,
        max_upload_mb=maximum,
        allowed_plugins=tuple(dict.fromkeys((*allowed.allowed_plugins, *plugins_of(experiment.to_run_config())))),
        run=pins_of(experiment, experiment.dataset),
    )
    if pinned.max_messages == inf and not pinned.allow_recording:
        pinned = replace(pinned, max_messages=2 * (experiment.rounds + 1))  # each round, and the evaluation at the end
    write_atomic(path, pinned.text().encode())
    print(path)


def largest_mb_of(rounds: Sequence[Mapping[str, Any]]) -> float:
    """Return the size of the client's largest update in MB (1e6 bytes)."""
    return max((row["upload_bytes"] for row in rounds), default=0) / 1e6


def too_large(rounds: Sequence[Mapping[str, Any]], policy: Policy) -> str:
    """Return a warning if an update of the client was larger than the policy allows; else an empty string."""
    largest = largest_mb_of(rounds)
    if largest <= policy.max_upload_mb:
        return ""
    return f"The policy lets {policy.max_upload_mb:g} MB leave; an update has {largest:.1f} MB."
