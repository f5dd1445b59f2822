"""Checks of a further audit against the recordings of an earlier run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from flfw.audit.jobs import EXAMPLE, FRESH
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.plans.run_plan import AuditPlan, RunPlan, needs_pairs
from flfw.plugins import short_name, split_assignment
from flfw.recording.reader import Recordings, is_recorded

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
            raise InputError(
                f"Expected {name}={value} as in {source}, got {name}={got}; --from changes the audit only."
            )
    given, before = (_of_the_run(e) for e in (experiment, earlier))
    if given != before:
        raise InputError(
            f"Expected --set {_listed(before)} as in {source}, got {_listed(given)}; --from changes the audit only."
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
