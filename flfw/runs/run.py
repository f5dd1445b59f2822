"""Runs from start to report: check, train, audit, write; resumption of one, and another audit of a recorded one."""

import dataclasses
import os
import re
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from torch.nn.modules.batchnorm import _BatchNorm

from flfw import data, nets
from flfw.adversary.malicious_server import require_public
from flfw.audit.auditor import AuditContext, auditing
from flfw.audit.jobs import EXAMPLE, FRESH
from flfw.client.context import ClientContext
from flfw.client.site import Site
from flfw.data.splits.lazy_parts import looked_at, sizes, total
from flfw.data.tables import plan_file
from flfw.dp.canary_audit import refuse_canaries
from flfw.dp.resolve_noise import resolve_noise
from flfw.dp.run_accountant import is_known
from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.files.folders import make_folder, require_new, unused
from flfw.files.sealed import sealed
from flfw.plans.combinations import check_audit, check_clients
from flfw.plans.run_plan import AuditPlan, RunPlan, needs_pairs, plan, without_auto
from flfw.plugins import short_name, split_assignment
from flfw.privacy import calibration
from flfw.privacy.mechanism import Mechanism, SeenMechanism
from flfw.recording.reader import Recordings, is_recorded
from flfw.report.page_data import caveats
from flfw.runs import launch, provenance, results
from flfw.runs.provenance import outside_of
from flfw.runs.reach import first_weights, foreseen
from flfw.runs.run_notes import notes_on_data
from flfw.runs.tracking.following import tracked
from flfw.runs.tracking.tracker import check as check_trackers
from flfw.server import checkpoint
from flfw.server.central import sends_one_model
from flfw.task.method import Method
from flfw.task.task import Task


def run(experiment: Experiment, prefix: str = "") -> Path:
    """Run an experiment and its audit; return the folder with result.json and report.html.

    Where no folder is named, its default name begins with ``prefix``.

    Raises:
        InputError: something asked for does not exist or does not fit; nothing has been written.
        RunError: it started and could not be completed; what was written so far stays in the folder.
    """
    run_plan, task, notes = check(experiment)
    launch.check_resources(run_plan.experiment)
    _warn(notes)
    run_plan, audit = _with_folder(run_plan, task, experiment.out is not None, prefix)
    experiment, folder = run_plan.experiment, run_plan.experiment.folder
    plan_file.keep(task.dataset.columns, folder)
    checkpoint.ensure_experiment(folder, experiment)
    checkpoint.require_same_data(folder, task.dataset.digest)
    with checkpoint.locked(folder / "checkpoint" / ".run"):
        with tracked(experiment, folder), audit as auditor:
            provenance.begin(folder, outside_of(run_plan))
            with _told_how_to_go_on(folder):
                launch.run_on_engine(run_plan, site_of(experiment, folder))
                results.finish(run_plan, task, notes, auditor)
        results.tidy(experiment)
    return folder


@contextmanager
def _told_how_to_go_on(folder: Path) -> Iterator[None]:
    """Say at an interrupt how to go on; what was done since the last checkpoint is done again."""
    try:
        yield
    except KeyboardInterrupt:
        print(
            f"the run is cut short; python sim.py --resume {shlex.quote(str(folder))} goes on with it", file=sys.stderr
        )
        raise


def _with_folder(run_plan: RunPlan, task: Task, named: bool, prefix: str) -> tuple[RunPlan, AuditContext]:
    """Make the folder of a run, another one where one of the same second took its default name; return its audit."""
    while True:
        if not named:
            name = f"{prefix}{default_name(run_plan.experiment)}"
            run_plan = run_plan.replaced(out=unused(Path("runs") / name).absolute())
        folder = run_plan.experiment.folder
        audit = auditing(run_plan.client, run_plan.audit, task, folder)  # may refuse, so before the folder
        try:
            make_folder(folder)
        except InputError:
            if named or not folder.exists():
                raise
        else:
            return run_plan, audit


def resume(experiment: Experiment, longer: bool = False) -> Path:
    """Resume the run in ``experiment.out`` from its last checkpoint; return its folder.

    Until ``training.json`` is written, `Checkpoints` reads the last round, and `Federation` goes on there. Then only
    the audit is left. A complete run goes on where more rounds are asked for; else only files are removed that it
    needs no more. With the same code, machine and seeded noise the result equals that of an uninterrupted run, bit for
    bit.

    Args:
        experiment: as stored in the folder; fields that do not decide its numbers may have been changed.
        longer: whether it may have more rounds than a finished run had.

    Raises:
        InputError: the folder holds no run, a damaged one or another one.
        RunError: see `run`.
    """
    folder = experiment.folder
    stored = checkpoint.stored_experiment(folder)
    before = stored.experiment.rounds
    more = longer and experiment.rounds > before
    if more and experiment.target_epsilon:
        raise _ended(folder, before, f"the noise for --target-epsilon was chosen for {before} rounds")
    run_plan, task, notes = check(experiment, new=False)
    experiment = run_plan.experiment
    stored.require_same(dataclasses.replace(experiment, rounds=before) if more else experiment, folder)
    checkpoint.require_same_data(folder, task.dataset.digest)
    with checkpoint.locked(folder / "checkpoint" / ".run"):
        if more:
            _require_open_end(run_plan, task, folder, before)
        elif checkpoint.is_complete(folder):
            results.tidy(experiment)
            return folder
        _warn(notes)
        provenance.begin(folder, outside_of(run_plan))
        audit = auditing(run_plan.client, run_plan.audit, task, folder)
        with tracked(experiment, folder), audit as auditor, _told_how_to_go_on(folder):
            if not checkpoint.awaits_audit(folder):
                launch.check_resources(experiment)
                if more:
                    checkpoint.add_rounds(folder, experiment.rounds)
                launch.run_on_engine(run_plan, site_of(experiment, folder))
            results.finish(run_plan, task, notes, auditor)
        results.tidy(experiment)
    return folder


def _require_open_end(run_plan: RunPlan, task: Task, folder: Path, rounds: int) -> None:
    """Refuse more rounds for a finished run that would not be the same as one of so many rounds from the start."""
    experiment, client = run_plan.experiment, run_plan.client
    kept = client.client_class(ClientContext(client, task, 0, rounds, None, None)).private_state()
    uncounted = experiment.metrics == "private" and not getattr(client.settings, "secure", True)
    for holds, why in (
        (not checkpoint.is_complete(folder), "it is not over, and can be resumed without --rounds"),
        (checkpoint.last_snapshot(folder).round < rounds, "it ended early"),
        (experiment.federation, "its sites agreed on the number of rounds"),
        (client.method.depends_on_rounds(client.settings), f"{client.name} trains by the number of rounds"),
        (uncounted, "no claim counts a second final evaluation by --metrics private with seeded noise"),
        ("last" in experiment.audit_rounds and experiment.audited, f"round {rounds} was audited as the last one"),
        (experiment.audited and experiment.keep_recorded_rounds >= 0, "keep_recorded_rounds removed recordings"),
        (kept and not (folder / "state").is_dir(), "clients' tensors are gone, as without --expert keep_state=true"),
    ):
        if holds:
            raise _ended(folder, rounds, why)


def _ended(folder: Path, rounds: int, why: str) -> InputError:
    return InputError(f"Expected a run that can go on after round {rounds}, got {folder}: {why}; start a new run.")


def run_or_resume(experiment: Experiment) -> None:
    """Run an experiment in its folder, or go on with what stands there.

    Raises:
        InputError: the experiment cannot be run, or the folder holds another one.
        RunError: the run failed.
    """
    folder = experiment.folder
    if sealed(folder / "checkpoint", "experiment"):
        resume(experiment)
        return
    if folder.exists():  # a kill fell between the folder and its first file
        shutil.rmtree(folder)
    run(experiment)


def audit_recordings(source: Path, earlier: Experiment, experiment: Experiment) -> Path:
    """Attack the recordings of an earlier run; return the folder of the new audit.

    Args:
        source: folder of the earlier run, with ``observations/`` and ``truth/``.
        earlier: the experiment that was run.
        experiment: the same with other attacks, and with ``out`` for the new folder (None: ``audit-N`` there).

    Raises:
        InputError: other fields than those of an audit were changed, or the probes to attack were not recorded.
        RunError: the attack process could not go on.
    """
    source = source.absolute()
    out = experiment.out or next(p for n in count(1) if not (p := source / f"audit-{n}").exists())
    experiment = without_other_attacks(experiment, earlier)
    require_pairs(experiment, earlier, source)
    run_plan, task, notes = check(dataclasses.replace(experiment, out=out))
    experiment = run_plan.experiment
    last = results.last_round(results.read_earlier(source), earlier)
    came = run_plan.audit.audited_by(last)
    if experiment.attacks and not came:
        requested = f"audit-rounds={experiment.audit_rounds}"
        raise InputError(
            f"Expected audit-rounds <= {last}, after which the training in {source} ended, got {requested}."
        )
    rounds = ",".join(map(str, came)) or experiment.audit_rounds
    require_recorded(run_plan.replaced(audit_rounds=rounds), earlier, source)
    checkpoint.require_same_data(source, task.dataset.digest)
    audit = auditing(run_plan.client, run_plan.audit, task, out, source)
    with checkpoint.locked(source / "checkpoint" / ".run"):
        make_folder(out)
        plan_file.keep(task.dataset.columns, out)
        with tracked(experiment, out, source), audit as auditor:
            assert auditor is not None, "it was required to be there"
            results.finish_audit(run_plan, source, out, notes, auditor)
        shutil.rmtree(out / "queue")
    return out


def stored(folder: Path) -> Experiment:
    """Return the experiment with which a run folder was started, as it is to be resumed there.

    Raises:
        InputError: there is nothing to go on from, or it is damaged.
    """
    return dataclasses.replace(checkpoint.stored_experiment(folder).experiment, out=folder.absolute())


def reopened(folder: Path, data_root: Path | None = None) -> tuple[Experiment, Task]:
    """Return the experiment of a run's folder, without `auto`, and its task, to measure more of it.

    Args:
        folder: of the run.
        data_root: present folder of the data; None: the folder that the run used.

    Raises:
        InputError: the run or its data are not there.
    """
    experiment = checkpoint.stored_experiment(folder).experiment
    requested = dataclasses.replace(experiment, out=folder, data_root=data_root or experiment.data_root)
    run_plan, task, _ = check(requested, new=False)
    checkpoint.require_same_data(folder, task.dataset.digest)
    return run_plan.experiment, task


def check(experiment: Experiment, *, new: bool = True) -> tuple[RunPlan, Task, list[str]]:
    """Plan a run, open its data, downloading them if needed, and set the noise for a target; write nothing else.

    Args:
        experiment: as asked for.
        new: whether its folder must not exist yet.

    Returns:
        The plan of the run, whose ``out`` is absolute; its task; notes on the data.

    Raises:
        InputError: something does not exist or does not fit.
    """
    nets.look_in(experiment.weights)
    run_plan = plan(_with_absolute_paths(experiment, new))
    experiment = run_plan.experiment
    _require_sites(experiment)
    check_trackers(experiment.trackers)
    check_audit(run_plan.client, run_plan.audit)
    check_clients(run_plan.client)
    if (architecture := nets.card(experiment.net).architecture) is not None:
        nets.require_weights(architecture, experiment.weights_sha256)  # a run that goes on names those that it had
    run_plan, joined = launch.resolve_batched_clients(run_plan)
    experiment = run_plan.experiment
    _require_memory(run_plan)
    if experiment.canaries:
        refuse_canaries(experiment.method, run_plan.strategy, run_plan.client.settings, run_plan.client.model)
    data.fetch(experiment.dataset, experiment.data_root)  # may take an hour: after all checks without data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # printed below, on every run and not only when the cache is made
        task = run_plan.task.load_at_server(experiment.data_root)
    if experiment.malicious_server:
        require_public(task)
    run_plan.client.method.check_task(task, run_plan.client.settings)
    if run_plan.client.defence and experiment.defended_partitions:
        defended = (one for one in looked_at(task.split.train) if one in experiment.defended_partitions)
        run_plan.client.defence.check_data(task.defended_data(defended, experiment.batch_size))
    _check_clients(run_plan, task)
    _require_metrics(run_plan)
    _require_average(run_plan)
    if experiment.patience and task.has_data and not all(sizes(task.split.validation)):
        without = f"split={experiment.split} without; choose another --split, such as sampled"
        raise InputError(
            f"Expected validation data at each client for --expert patience={experiment.patience}, got {without}."
        )
    run_plan, settled = resolve_noise(run_plan, task.split)
    if run_plan.audit.reconstructions:
        task.check_victims(run_plan.audit.probes, experiment.seed)
    return run_plan, task, [*notes_on_data(run_plan.experiment, task), *joined, *settled, *foreseen(run_plan, task)]


def choose_training(experiment: Experiment, given: Collection[str]) -> Experiment:
    """Choose what a private run trains with, by `flfw.privacy.calibration`; say what was chosen and why.

    Args:
        experiment: of DP-FedAvg, with a target epsilon.
        given: names of the fields that were given, whose values stay.

    Returns:
        The experiment with the choices among its settings. Of data of sites they are none, as the sizes are not known.

    Raises:
        InputError: see `check`; or clients are to be protected, for which there are no rules.
    """
    settings = dict(map(split_assignment, (word.removeprefix(f"{experiment.method}.") for word in experiment.set)))
    unit = settings.get("unit", "example")
    require(unit == "example", f"--method with unit={unit}, for which no training is chosen", method="none")
    nets.look_in(experiment.weights)
    planned = plan(experiment)
    own = nets.card(planned.experiment.net).architecture is None and "norm" not in given
    if own and any(isinstance(layer, _BatchNorm) for layer in planned.client.model.modules()):
        experiment = dataclasses.replace(experiment, norm="group")
    run_plan, task, _ = check(dataclasses.replace(experiment, target_epsilon=0.0), new=False)
    if not is_known(task.split):
        return experiment
    privacy, clients = run_plan.client.privacy, experiment.per_round
    share, first = clients / experiment.clients, first_weights(run_plan.client)
    linear = len(list(run_plan.client.model.parameters())) <= 2 and not experiment.weights
    sizes = calibration.PublicSizes(
        calibration.calibrate_noise_multiplier(
            experiment.target_epsilon, [[SeenMechanism(Mechanism(1.0, 1))]], privacy.delta, privacy.tightest
        ),
        max(1, round(total(task.split.train) * share)), clients, share,
        len(first), task.dataset.classes, float(first.norm()) * linear,
    )  # fmt: skip
    named = {name: value for name, value in vars(experiment).items() if name in given}
    values, more, reasons = calibration.training_for(sizes, named)
    print(*reasons, sep="\n")
    chosen = (f"{name}={value}" for name, value in more.items() if name not in settings)
    return dataclasses.replace(experiment, **values, set=(*chosen, *experiment.set))


def _check_clients(run_plan: RunPlan, task: Task) -> None:
    """Refuse a run with a client whose data the method cannot use; each client checks itself, too, in its first round.

    That must be enough for data that are not here, and for those of clients beyond `looked_at`.
    """
    method = run_plan.client.method
    if task.has_data and method.check_client.__func__ is not Method.check_client.__func__:  # type: ignore[attr-defined]
        for partition in looked_at(task.split.train):
            method.check_client(task, partition, run_plan.client.settings)


def _with_absolute_paths(experiment: Experiment, new: bool) -> Experiment:
    """Return the experiment without ``auto`` and with absolute paths, ``out`` among them."""
    experiment = without_auto(experiment)
    out = (experiment.out or unused(Path("runs") / default_name(experiment))).absolute()
    require(str(out).isprintable(), "an --out of printable characters", out=repr(str(out)))
    if new:
        require_new(out)
    root = experiment.data_root.absolute() if experiment.data_root else None
    weights = experiment.lpips_weights.absolute() if experiment.lpips_weights else None
    return dataclasses.replace(experiment, out=out, data_root=root, lpips_weights=weights)


def default_name(experiment: Experiment) -> str:
    """Return the name of a run that was given none."""
    dataset = re.sub(r"[^\w-]+", "-", data.title(experiment.dataset))
    return f"{short_name(experiment.method)}-{dataset}-{time.strftime('%Y%m%d-%H%M%S')}"


def _require_sites(experiment: Experiment) -> None:
    """Refuse to simulate or audit with data that only sites have: their truth is not known here."""
    name = experiment.dataset
    if not data.is_at_sites(name):
        return
    sites = f"--federation with {name}, data that only its sites have, or folder:PATH for images on this machine"
    require(experiment.federation is not None, sites, federation=experiment.federation)
    unaudited = f"--attack none with {name}, as no truth leaves a site to be compared with"
    require(not experiment.attacks, unaudited, attack=" ".join(experiment.attacks))


def _require_memory(run_plan: RunPlan) -> None:
    """Refuse a model that does not fit this machine's memory, in which the server keeps it and its own tensors."""
    kept = run_plan.client.method.kept_by_server(
        run_plan.client.model, run_plan.client.settings, run_plan.experiment.clients
    )
    needed = 4 * (nets.numel(run_plan.client.model.state_dict()) + kept)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise InputError(
            f"Expected a model of at most {there / 1e9:.1f} GB, this machine's memory, got {needed / 1e9:.1f} GB; "
            "lower the sizes in --set, choose another --net or take fewer --clients."
        )


def _require_average(run_plan: RunPlan) -> None:
    """Refuse a moving average where there is no one model that all clients are sent."""
    experiment, method = run_plan.experiment, run_plan.client.method
    sends = "a model of its own to each client" if method.downloads else "no model"
    averaged = not experiment.ema or (method.downloads and sends_one_model(method))
    require(bool(averaged), f"--expert ema=0 for method={experiment.method}, which sends {sends}", ema=experiment.ema)


def _require_metrics(run_plan: RunPlan) -> None:
    """Refuse ``metrics`` of private or none where the server needs another number of the clients."""
    experiment, needed = run_plan.experiment, run_plan.client.method.needed_metric
    if experiment.metrics == "all":
        return
    follows = "which follows validation accuracies of clients"
    silent = f"--metrics all or private for --expert patience={experiment.patience}, {follows}"
    require(not (experiment.patience and experiment.metrics == "none"), silent, metrics=experiment.metrics)
    numbered = f"--metrics all for method={experiment.method}, whose server needs {needed} of each client"
    require(not needed, numbered, metrics=experiment.metrics)


def site_of(experiment: Experiment, folder: Path) -> Site:
    """Return the folders of a run's simulated clients."""
    truth = folder / "truth" if experiment.audited else None
    examples = folder / "examples" if truth and "client_example" in experiment.vantage else None
    return Site(experiment.data_root, state=folder / "state", truth=truth, examples=examples)


def _warn(notes: list[str]) -> None:
    for note in caveats(notes):
        print(f"warning: {note}", file=sys.stderr)


_OF_AN_AUDIT = (
    "attack", "audit-rounds", "audit-source", "images", "curve", "sum-size", "colluding-clients", "vantage",
    "adaptation", "attack-precision", "set",
)  # fmt: skip


def without_other_attacks(experiment: Experiment, earlier: Experiment) -> Experiment:
    """Return the experiment without the earlier run's settings for attacks that it does not name."""
    gone = {short_name(name) for name in earlier.attacks} - {short_name(n) for n in experiment.attacks}
    kept = tuple(a for a in experiment.set if not (a in earlier.set and _plugin(a) in gone))
    return dataclasses.replace(experiment, set=kept)


def require_pairs(experiment: Experiment, earlier: Experiment, source: Path) -> None:
    """Refuse an attack on membership where the earlier run trained on all examples, so that none was held out.

    Args:
        experiment: the experiment asked for; fields may be ``auto``.
        earlier: the experiment that was run.
        source: the folder of that run.

    Raises:
        InputError: naming the way to train for such an attack.
    """
    if needs_pairs(experiment.attacks) and earlier.membership_pairs in (
        "auto",
        "none",
    ):  # in what was run, auto means none
        raise InputError(
            f"Expected a run with --expert membership_pairs for an attack on membership, got {source}, which "
            f"held no example "
            f"out; train it anew with --attack {' '.join(experiment.attacks)}, or on real clients with "
            "--expert membership_pairs=300 record=true."
        )


def require_recorded(run_plan: RunPlan, earlier: Experiment, source: Path) -> None:
    """Refuse an audit of something that the earlier run did not record.

    Args:
        run_plan: of the run asked for, with the rounds that came.
        earlier: the experiment that was run.
        source: the folder of that run.

    Raises:
        InputError: naming the setting that differs, or the recording that is missing.
    """
    experiment = run_plan.experiment
    for name, value in earlier.decisive.items():
        got = experiment.decisive[name]
        if got != value and name not in _OF_AN_AUDIT:
            raise InputError(f"Expected {name}={value} as in {source}, got {name}={got}; --from changes audits only.")
    given, before = (_of_the_run(e) for e in (experiment, earlier))
    if given != before:
        raise InputError(
            f"Expected --set {_listed(before)} as in {source}, got {_listed(given)}; --from changes audits only."
        )
    if not experiment.audited:
        raise InputError("Expected --attack with --from, got none; name the attacks to run.")
    if run_plan.audit.memberships:
        _require_uploads(experiment, source)
    if not run_plan.audit.reconstructions:
        return  # uploads and pairs are all that the rest needs
    if not (source / "truth").is_dir():
        why = "it was purged or never kept"
        if earlier.record:
            why = "the sites have it, in site-N/truth: copy the files of their folders for this run into it"
        raise InputError(f"Expected {source / 'truth'} to score against, got none; {why}.")
    most = earlier.images
    if experiment.images > most:
        raise InputError(f"Expected images <= {most}, as many as were probed in {source}, got {experiment.images}.")
    _require_probes(run_plan.audit, source)
    if "client_example" in experiment.vantage:
        _require_examples(experiment, source)


def _of_the_run(experiment: Experiment) -> set[str]:
    """Return the assignments of ``--set`` that are not for the attacks."""
    attacks = {short_name(name) for name in experiment.attacks}
    return {assignment for assignment in experiment.set if _plugin(assignment) not in attacks}


def _listed(assignments: set[str]) -> str:
    return " ".join(sorted(assignments)) or "for attacks only"


def _plugin(assignment: str) -> str:
    return split_assignment(assignment)[0].rpartition(".")[0]


def _require_probes(audit: AuditPlan, source: Path) -> None:
    recordings = Recordings(source / "observations")
    if not all(recordings.probe_lines(control, 0) for control in FRESH):
        raise InputError(
            f"Expected the controls of the audit in {source}, got none; --expert keep_recorded_rounds removed it."
        )
    for server_round in audit.audited:
        if audit.attacks_uploads_of(server_round):
            _require_upload(recordings, server_round, source)
        for point in audit.probes.points if audit.probes.audit_source != "update" else ():
            if not recordings.probe_lines("target", server_round, point=point.name):
                have = ", ".join(_recorded_targets(recordings)) or "nothing"
                what = f"recordings of {point.name} at round {server_round}"
                raise InputError(f"Expected {what} in {source}, got none; there are: {have}.")


def _require_uploads(experiment: Experiment, source: Path) -> None:
    """Refuse an attack on membership without recorded uploads of the audited rounds of training."""
    recordings = Recordings(source / "observations")
    for server_round in filter(None, experiment.audited):
        _require_upload(recordings, server_round, source)


def _require_upload(recordings: Recordings, server_round: int, source: Path) -> None:
    if not recordings.update_lines(server_round):
        rounds = sorted({line["round"] for line in recordings.lines if line["type"] == "train"})
        have = ", ".join(map(str, rounds))
        what = f"recorded uploads of round {server_round} in {source}"
        ways = "only --expert record=true, --audit-source update or an attack on uploads records them"
        raise InputError(f"Expected {what}, got those of {have or 'no round'}; {ways}, of the audited rounds.")


def _require_examples(experiment: Experiment, source: Path) -> None:
    folder = source / "examples"
    recordings = Recordings(folder) if is_recorded(folder) else None
    for server_round in experiment.audited:
        if recordings is None or not recordings.probe_lines("target", server_round, point=EXAMPLE):
            what = f"recordings of client_example at round {server_round}"
            raise InputError(f"Expected {what} in {source}, got none; only a run with that --vantage records them.")


def _recorded_targets(recordings: Recordings) -> list[str]:
    """List the recorded probes of the method itself: ``target at round 0`` and so on."""
    lines = [line for line in recordings.lines if line["config"].get("control") == "target"]
    points = {(line["round"], str(line["config"].get("point", "target"))) for line in lines}
    return [f"{name} at round {server_round}" for server_round, name in sorted(points)]
