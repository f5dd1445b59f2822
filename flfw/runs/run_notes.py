"""Accuracies after the last round, and notes of a result on the data, on training and on a malicious server."""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np

from flfw import data
from flfw.audit.measures.noticed import ISOLATING, TAMPERED, noticed
from flfw.audit.sums import isolation
from flfw.client.broadcast_checks import zeros_at_first
from flfw.data.files.dataset import Dataset
from flfw.data.splits.lazy_parts import LazyParts, total
from flfw.data.tables import listing
from flfw.errors import abridged
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.inversion.compute import compiler
from flfw.plans.run_plan import plan
from flfw.recording.reader import Recordings
from flfw.rng import initialising
from flfw.server.central import sends_one_model
from flfw.task.client_plan import ClientPlan
from flfw.task.task import Task, image_format


def finals(experiment: Experiment, training: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``final`` of result.json from the content of training.json."""
    exact = experiment.clients if experiment.metrics == "all" else 0
    return final_accuracies(training["final"], training["clients"], training.get("central"), exact)


def drawn_of(experiment: Experiment, answers: int) -> list[str]:
    """Return a note on a final evaluation of some of the clients, or of none; empty for one of all.

    Args:
        experiment: of the run.
        answers: number of clients that answered.
    """
    requested, everyone = experiment.finally_asked, experiment.clients
    if requested == everyone or experiment.metrics == "none":
        return []
    if not requested:
        return ["No client was asked for a final evaluation (final=none)."]
    whose = (
        f"{answers:,} of {everyone:,} clients; {requested:,} {'was' if requested == 1 else 'were'} drawn by the seed"
    )
    return [f"The final accuracies are those of {whose} (final={experiment.final_eval_clients})."]


def final_accuracies(
    rows: list[dict[str, Any]], history: list[dict[str, Any]], central: float | None, clients: int = 0
) -> dict[str, Any]:
    """Return ``final`` of result.json: means over the clients that report a number; None where nobody does.

    Beside the means before and after local training stand 95 % intervals of the means over all clients. A regression
    has no accuracies, but ``mae_global`` and its like.

    Args:
        rows: one row per client, of the evaluation after the last round.
        history: one row per client and round.
        central: accuracy of the last model on the server's test data; None: not measured.
        clients: number of all clients of the run; 0: no intervals, as numbers with noise have none.
    """
    accuracies = {key: [row[key] for row in rows if row.get(key) is not None] for key in ("acc_global", "acc_local")}
    mean = {key: fmean(values) if values else None for key, values in accuracies.items()}
    further: dict[str, Any] = {f"{key}_interval": interval(values, clients) for key, values in accuracies.items()}
    further["acc_central"] = central
    for key in ("acc_protected", "acc_global_validation", "acc_validation"):
        values = [row[key] for row in rows if row.get(key) is not None]
        further[key] = fmean(values) if values else None
    return {**mean, **further, **_errors(rows), "best_validation": best_validation(history), "per_client": rows}


def _errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the means over the clients of a regression's errors and R2; nothing of a classification."""
    names = [f"{kind}_{when}" for kind in ("mae", "rmse", "r2") for when in ("global", "local")]
    values = {name: [row[name] for row in rows if row.get(name) is not None] for name in names}
    return {name: fmean(column) for name, column in values.items() if column}


def interval(values: Sequence[float], clients: int) -> list[float] | None:
    """Compute a 95 % interval of the mean accuracy of all clients, from those of some that were drawn at random.

    It is Student's, with the correction for draws from a finite number, cut to [0, 1]; its ends are equal where all
    clients have a value. Where all draws are equal, their deviation says nothing of the clients that were not drawn:
    then as many of these as may be missed are taken to have 0, or 1. Clients that failed count as not drawn.

    Args:
        values: in [0, 1].
        clients: number of all clients.

    Returns:
        Both ends; None for fewer than two of more clients.

    >>> interval([0.25, 0.75], 2), interval([0.5], 3)
    ([0.5, 0.5], None)
    """
    count = len(values)
    if count < min(2, clients) or not 0 < count <= clients:
        return None
    mean = fmean(values)
    if count == clients:
        return [mean, mean]
    if min(values) == max(values):
        missed = _max_missed(count, clients) / clients
        return [mean - missed * mean, mean + missed * (1 - mean)]
    from scipy.special import stdtrit  # imported here: few runs draw their clients

    half = float(stdtrit(count - 1, 0.975)) * stdev(values) * sqrt((1 - count / clients) / count)
    return [max(0.0, mean - half), min(1.0, mean + half)]


def _max_missed(count: int, clients: int) -> int:
    """Return the most clients of which some draws have none with a probability of 5 % at least.

    Args:
        count: number of draws, without replacement.
        clients: number of all clients.
    """
    missed, chance = 0, 1.0
    while (chance := chance * (clients - missed - count) / (clients - missed)) >= 0.05:
        missed += 1
    return missed


def best_validation(history: list[dict[str, Any]]) -> dict[str, float] | None:
    """Average each client's test accuracy after local training in the round of its best validation accuracy.

    Of rounds with equal validation accuracy the first counts. Round and accuracies are means over the clients.

    Args:
        history: one row per client and round, with ``acc_validation`` and ``acc_local``.

    Returns:
        ``round``, ``accuracy`` and ``validation``, the accuracy that chose the round; None without validation data.
    """
    best: dict[int, dict[str, Any]] = {}
    for row in history:
        validation = row.get("acc_validation")
        if (
            validation is not None
            and row.get("acc_local") is not None
            and validation > best.get(row["client"], {}).get("acc_validation", -1.0)
        ):
            best[row["client"]] = row
    if not best:
        return None
    means = {"round": "round", "accuracy": "acc_local", "validation": "acc_validation"}
    return {name: fmean(row[key] for row in best.values()) for name, key in means.items()}


_NAMED = 6  # classes with their names in a note
_SILENT = (
    "Clients reported no numbers (metrics=none): there is no loss and no accuracy of theirs, and all of them count "
    "alike in a mean, as their numbers of examples are not known."
)
_NOISY = (
    "Losses, accuracies and numbers of examples that clients reported have noise (metrics=private, "
    "a noise multiplier of 10) and are cut to their ranges: those of one client may say little. In a mean "
    "over clients the noise is smaller."
)
_SECRET = (
    "Random numbers of the clients' defence ({}), if it draws any, came from each client's own operating system "
    "(defence_randomness=secure): nobody can repeat them, and the run does not repeat bit for bit."
)
_KNOWN = (
    "Random numbers of the clients' defence ({}), if it draws any, came from the run's seed (defence_randomness=seed): "
    "the server knows it, and can repeat them and take added noise off."
)


def notes_on_training(experiment: Experiment, training: Mapping[str, Any]) -> list[str]:
    """List notes on the clients' numbers, on dropped updates and on changes meanwhile.

    Args:
        experiment: of the run.
        training: content of ``training.json``.
    """
    notes = {"none": [_SILENT], "private": [_NOISY]}.get(experiment.metrics, [])
    notes += _of_draws(experiment)
    notes += drawn_of(experiment, len(training["final"]))
    if experiment.metrics == "private" and experiment.finally_asked and not training["final"]:
        notes.append(f"No final evaluation: asked for again, it would exceed {_budget(experiment)}.")
    notes += what_was_done(experiment)
    return [*notes, *_of_rounds(training)]


def notes_on_end(experiment: Experiment, last: int, spent: bool) -> list[str]:
    """List notes on a training that ended before its last round; empty for any other.

    Args:
        experiment: of the run.
        last: the round in which training ended.
        spent: whether it ended because of the budget of epsilon, and not for want of progress.
    """
    if last == experiment.rounds:
        return []
    why = f"no client's validation accuracy had risen above its best for {experiment.patience} rounds"
    if spent:
        why = f"rounds were asked for again, and another would exceed {_budget(experiment)}"
    notes = [f"Training ended after round {last} of {experiment.rounds}: {why}."]
    words = experiment.audit_rounds.split(",") if experiment.attacks else []
    missed = sorted({int(word) for word in words if word != "last" and int(word) > last})
    return [*notes, f"Never came, and so were not audited: rounds {', '.join(map(str, missed))}."] if missed else notes


def what_was_done(experiment: Experiment) -> list[str]:
    """Return the note that an experiment's server was malicious; none where it was not."""
    by = experiment.malicious_server
    note = TAMPERED if not by or plan(experiment).task.network.isolated_client is None else ISOLATING
    return [note.format(by)] if by else []


def what_came_of_it(plan: ClientPlan, recordings: Recordings) -> list[str]:
    """Return notes on the messages of a run with a malicious server; none where its server was honest."""
    malicious = plan.task.network.malicious
    if malicious is None:
        return []
    with initialising(plan.seed, "model"):
        fresh = plan.build_model()
    one_model, at_first = sends_one_model(plan.method), zeros_at_first(fresh)
    return [*isolation(recordings, malicious), *noticed(recordings, one_model, at_first)]


def _of_draws(experiment: Experiment) -> list[str]:
    """Return a note on who can repeat the draws of a defence; none for a simulation whose draws come from the seed."""
    by = " and ".join(experiment.defences)
    if not (by and experiment.defended_partitions):
        return []
    if experiment.defence_randomness == "secure":
        return [_SECRET.format(by)]
    return [_KNOWN.format(by)] if experiment.federation is not None else []


def _of_rounds(training: Mapping[str, Any]) -> list[str]:
    rounds = [row for row in training["rounds"] if row["failures"]]
    dropped = sum(row["failures"] for row in rounds)
    notes = [f"Updates dropped: {dropped}, in {len(rounds)} of the rounds; failures.csv says why."] if dropped else []
    later = [*(entry["code"] for entry in training["resumed"]), code_hash()]
    codes = list(dict.fromkeys(code for code in later if code != training["code"]))
    if codes:
        notes.append(f"The code changed while this run lasted: {training['code']}, then {', '.join(codes)}.")
    if training["without_gpu"]:
        notes.append("Clients were given shares of a GPU and see none: they computed on the CPU.")
    if training["probes"]:
        notes.append(f"Probes without a usable answer: {len(training['probes'])}; failures.csv says why.")
    return notes + [f"Client {f['client']} has no final accuracy: {f['reason']}." for f in training["final_failed"]]


def _budget(experiment: Experiment) -> str:
    return f"--expert epsilon_budget={experiment.epsilon_budget:g}"


def _classes_in_one_part(dataset: Dataset) -> list[str]:
    """Return a note for each part of a table that has no row of some class; none for other data."""
    if dataset.columns is None or dataset.is_regression:
        return []
    notes = []
    parts = (("training", dataset.train_y, "it is not learnt"), ("test", dataset.test_y, "no accuracy counts it"))
    for part, labels, so in parts:
        there = np.bincount(np.asarray(labels), minlength=dataset.classes)
        names = [name for name, count in zip(dataset.columns.classes, there, strict=True) if not count]
        if names:
            notes.append(f"No {part} row is of class {abridged(names, _NAMED)}: {so}.")
    return notes


def notes_on_data(experiment: Experiment, task: Task) -> list[str]:
    """List notes on the data as they were read, and on attacks that this machine cannot compile."""
    notes = [*listing.sentences(task.dataset.columns), *_classes_in_one_part(task.dataset)]
    published = data.describe(experiment.dataset, image_format(experiment, None)).shape
    if experiment.attacks and experiment.attack_compile and compiler() is None:
        notes.append(
            "The attacks were to be compiled, but there is no C++ compiler (g++, clang++ or $CXX) on this machine: "
            "they run uncompiled, which takes longer."
        )
    if task.dataset.md5_ok is False:
        notes.append(
            f"The files of {task.dataset.name} do not have the published md5 sums: these are not the original data, "
            "and accuracies on them may differ from published ones."
        )
    if any(now < before for now, before in zip(task.dataset.shape, published, strict=True)):
        before, now = ("x".join(map(str, shape[1:])) for shape in (published, task.dataset.shape))
        notes.append(f"Images of {before} pixels were resized to {now}; these are what the audit calls originals.")
    notes += task.dataset.notes
    return notes


def left_out(split: str, task: Task) -> list[str]:
    """Note on training examples that a split or an audit gives to no client; none where the data are elsewhere."""
    held, there = total(task.split.train), len(task.dataset.train_y) - len(task.dataset.victims)
    if held >= there or not task.has_data or isinstance(task.split.train, LazyParts):
        return []
    tested = sum(len(drawn.held_out) for drawn in task.pairs or ())
    notes = (
        [f"{tested:,} training examples are held out to test who is a member: nobody trains on them."] if tested else []
    )
    if held + tested < there:
        notes.append(f"The split holds {held + tested:,} of {there:,} training examples (split={split}).")
    return notes
