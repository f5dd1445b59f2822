"""Rehearsal of a site's leakage before it takes part: ``python -m flfw.rehearse --dataset folder:PATH``.

The site's own app runs on the site's own data, in this process. An audit climbs a ladder of probes, from one example
and one local step to the requested settings, and says where leakage stops. Nothing leaves the machine: no data are
downloaded, and messages between the two halves of the app stay in memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

import flfw
from flfw.errors import require
from flfw.experiment import Experiment, Scalar
from flfw.formats.paths import with_paths_from_home
from flfw.rehearse.plan import plan
from flfw.terminal.exit_code import exit_code
from flfw.terminal.flags import parsed

if TYPE_CHECKING:
    from flfw.deploy.policy import Policy

_PROG = "python -m flfw.rehearse"
DEFAULT = Experiment(engine="inproc", images=4, rounds=3, clients=1)

LIMITS = (
    "One client, this site: nobody else's data are here, so what other sites add to the average or to the model that "
    "comes back is not rehearsed.",
    "A probe of several steps takes each of them on the same batch, where training goes through all data: the highest "
    "rung is the probe closest to the real update, and still kinder to the attacker.",
    "This is of these attacks with this budget on few examples: a rare leak would not have been seen, and a stronger "
    "attacker may reach more. It is the record of a technical test, no proof that data are safe or anonymous.",
)
"""Limits of every rehearsal."""

OF_MEMBERSHIP = (
    "Whether an example was there is asked of this client alone: without others to compare it with some statistics say "
    "less, and the check on examples that nobody saw is not made, so that no leak found cannot come out of it."
)
"""Limit of a rehearsal with an attack on membership."""


@dataclass(frozen=True)
class RehearsalCommand:
    """Find out what a site would leak with these settings, on its own data, before it takes part.

    Flags are those of sim.py; a rehearsal is always in process and of one client, and makes its own probes.
    """

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    policy: Path | None = None
    """The site's policy (site-N/policy.toml): warn where these settings would break it."""
    write_policy: Path | None = None
    """Write a policy that allows this run alone, with the budget of --policy if given; for --dataset site:..."""
    most_steps: int = 5
    """Local steps of a probe at most: a search goes through all of them in each of its iterations."""


def breaches(policy: Policy, asked: Experiment, sends: Sequence[str]) -> list[str]:
    """Return the parts of a run that its site's policy forbids, as far as known before the run, a sentence each.

    Args:
        policy: the site's policy.
        asked: the requested settings.
        sends: names of the tensors that the method may send.
    """
    from flfw.messages.sharing import matches

    config = _as_asked_for(asked)
    if policy.run and asked.clients == DEFAULT.clients:  # a rehearsal has one, and the federation has others
        config["clients"] = policy.run.allowed("clients")
    refused = [policy.refuses_run(config) or ""]
    if policy.run:
        refused += [f"this site's policy pins the run, which has {one}" for one in policy.run.refusals(config)]
    kept = [name for name in sends if not matches(name, policy.uploads)]
    sentences = [f"The policy refuses these settings: {one}." for one in dict.fromkeys(refused) if one]
    if kept:
        more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
        sentences.append(f"The policy does not let {kept[0]}{more} leave, which {asked.method} sends.")
    return sentences


def _as_asked_for(asked: Experiment) -> dict[str, Scalar]:
    """Return the settings with which a server asks for the site's own data, such as the images of ``folder:PATH``."""
    from flfw import data
    from flfw.data.readers import at_site
    from flfw.data.tables.names import TableName
    from flfw.data.tables.site_tables import name_of
    from flfw.task import form_of

    config = asked.to_run_config()
    if data.is_table(asked.dataset):
        plan = data.describe(data.absolute(asked.dataset)).columns
        if plan is None or TableName.parse(asked.dataset).plan is None:
            return config
        return {**config, "dataset": name_of(plan), "split": at_site.SPLIT}
    if not asked.dataset.startswith(("folder:", "hf:")):
        return config
    card = data.describe(data.absolute(asked.dataset), form_of(asked, None))
    named = f"site:{'x'.join(map(str, card.shape))}:{card.classes}"  # of which the name says size and colour
    return {**config, "dataset": named, "resize": "", "colour": "auto", "split": at_site.SPLIT}


def _draws_at_sites(asked: Experiment) -> Literal["auto", "seed", "secret"]:
    """Return where a defence draws from when sites are asked for these settings; a rehearsal repeats, they do not."""
    return "secret" if asked.defence_draws == "auto" else asked.defence_draws


def over_budget(policy: Policy, experiment: Experiment, examples: int) -> list[str]:
    """Return the limit that the policy's budget sets for a run if nothing is spent yet, in at most one sentence.

    Args:
        policy: the site's policy.
        experiment: the settings of the run.
        examples: number of the site's training examples; its others are not known here, which matters for unit=client
            with private metrics alone.
    """
    from flfw.dp.budget import OverBudget
    from flfw.dp.message_cost import TRAIN, cost, cost_of_metrics
    from flfw.dp.site_ledger import MessageEntry, rounds_within
    from flfw.resolve import resolve

    named = _as_asked_for(experiment)
    if (budget := policy.budget) is None or replace(policy, run=None).refuses_run(named):
        return []
    try:
        resolved = resolve(experiment)
        mechanism, metrics = cost(resolved, TRAIN, {}, examples), cost_of_metrics(resolved, TRAIN)
    except OverBudget as error:
        return [f"The policy refuses these settings: {error}."]
    entry = MessageEntry("", 0, TRAIN, experiment.method, mechanism, examples, metrics=metrics, held=examples)
    allowed = rounds_within(entry, budget, experiment.rounds)
    if allowed == experiment.rounds:
        return []
    return [f"The policy's budget, {budget}, allows {allowed} of {experiment.rounds} rounds."]


def sent(experiment: Experiment) -> list[str]:
    """Return the names of the tensors that the method's clients may send."""
    from flfw.messages.sharing import matches
    from flfw.resolve import resolve

    resolved = resolve(experiment)
    return [name for name in resolved.model.state_dict() if matches(name, resolved.sharing.uploads)]


def rehearse(command: RehearsalCommand) -> Path:
    """Plan, run, and write the results to stdout and to ``rehearsal.json``; return the run's folder.

    Raises:
        BadInput: nothing was run.
        RunFailed: it was begun and could not be completed.
    """
    from flfw import data
    from flfw.deploy.policy import Policy
    from flfw.formats.result_file import read_result
    from flfw.rehearse.answers import answers, attempts, table, words
    from flfw.report.questions import membership_line
    from flfw.resolve import without_auto
    from flfw.runs import run
    from flfw.storage.sealed import write_whole

    policy = Policy.read(command.policy) if command.policy else None
    if command.write_policy:
        _require_pinnable(command, policy)
    rehearsal = plan(command.experiment, command.most_steps)
    experiment, rungs = rehearsal.experiment, rehearsal.rungs
    draws = _draws_at_sites(command.experiment)
    asked = replace(without_auto(command.experiment), defence_draws=draws)
    warned = breaches(policy, asked, sent(experiment)) if policy else []
    at_sites = replace(experiment, defence_draws=draws)
    warned += over_budget(policy, at_sites, rehearsal.examples) if policy else []
    _warn(warned)
    where = f"{experiment.method} on {data.title(experiment.dataset)}, at one client"
    print(f"Rehearsal of {where}, up to {words(*rungs[-1])}; nothing leaves this machine.")
    print(*rehearsal.messages, *_costs(experiment, rungs), sep="\n", flush=True)
    folder = run.run(experiment, "rehearsal-")
    result = read_result(folder)
    if policy and (late := _too_large(result["rounds"], policy)):
        _warn([late])
        warned.append(late)
    if command.write_policy:
        _write_policy(command.write_policy, command.experiment, policy, _largest_mb(result["rounds"]))
    tried = attempts(folder)
    sentences = answers(tried, rungs, rehearsal.real)
    membership = [membership_line(row) for row in result.get("membership") or []]
    limits = [*LIMITS, OF_MEMBERSHIP] if membership else list(LIMITS)
    record = {
        "flfw": flfw.__version__,
        "real": dict(zip(("batch", "steps"), rehearsal.real, strict=True)),
        "rungs": [{"batch": batch, "steps": steps} for batch, steps in rungs],
        "images": experiment.images,
        "found": [asdict(one) for one in tried],
        "answers": sentences,
        "membership": membership,
        "said": list(rehearsal.messages),
        "warnings": warned,
        "notes": result["notes"],
        "limits": limits,
        "report": "report.html",
    }
    write_whole(folder / "rehearsal.json", json.dumps(record, indent=1, allow_nan=False).encode())
    nothing = [] if membership else [f"{experiment.method} sends nothing, so there was nothing to attack."]
    print("", *([table(tried), ""] if tried else nothing), sep="\n")
    print(*(f"{name}: {sentence}" for name, sentence in sentences.items()), *membership, *result["notes"], sep="\n")
    print("", *limits, *rehearsal.messages, sep="\n")
    print(f"The folder holds copies of the probed examples: python sim.py --purge {folder} removes them.")
    print(folder / "report.html")
    return folder


def _costs(experiment: Experiment, rungs: Sequence[tuple[int, int]]) -> list[str]:
    """Return the costs of the ladder's searches, in a line; none for a rehearsal of membership alone."""
    from flfw.resolve import resolve

    if not any(attack.reconstructs for attack in resolve(experiment).attacks.values()):
        return []
    work = experiment.images * len(experiment.audited) * sum(batch * steps for batch, steps in rungs)
    each = f"Probes on each of {len(rungs)} rungs: {experiment.images}."
    return [f"{each} Searches in all of them take about {work:,} times as long as in one of one example and one step."]


def _require_pinnable(command: RehearsalCommand, policy: Policy | None) -> None:
    """Refuse to write a policy where something stands, or that pins no site's data, or has no budget for its noise.

    Raises:
        BadInput: see above.
    """
    from flfw import data

    asked, path = command.experiment, command.write_policy
    assert path is not None, "asked of no other"
    require(not path.exists(), "a new file for --write-policy; choose another or remove it", write_policy=path)
    way_out = "--dataset site:CxHxW:CLASSES with --write-policy, as a server names the data (--data-root has them)"
    require(data.is_at_sites(asked.dataset), way_out, dataset=asked.dataset)
    counted = "--policy with an epsilon beside --metrics private, whose noise nothing else bounds"
    require(asked.metrics != "private" or (policy is not None and policy.budget is not None), counted, policy="none")


def _write_policy(path: Path, asked: Experiment, policy: Policy | None, largest_mb: float) -> None:
    """Write a policy for the rehearsed run alone: this code, the method's uploads, these settings.

    Args:
        path: the file.
        asked: the settings.
        policy: has the budget, the volunteered examples and a bound of messages; None: there are none. Without a bound,
            and without probes, the site answers the messages of the run twice, as a round that was interrupted is
            asked for again.
        largest_mb: of an update in the rehearsal; a tenth and 0.1 MB more are allowed, for the message around it.
    """
    from flfw.deploy.pins import pins_of
    from flfw.deploy.policy import Policy, plugins_of
    from flfw.deploy.submit import bundle_hash
    from flfw.resolve import resolve, without_auto
    from flfw.storage.sealed import write_whole

    asked = without_auto(asked)
    most = round(1.1 * largest_mb + 0.1, 3)
    metrics = "none" if asked.metrics == "none" else "all"
    allowed = policy or Policy(("any",), (), most, metrics=metrics)
    uploads = resolve(asked).sharing.uploads
    foreign = tuple(dict.fromkeys((*allowed.plugins, *plugins_of(asked.to_run_config()))))
    pins = pins_of(asked, asked.dataset)
    pinned = replace(allowed, apps=(bundle_hash(),), uploads=uploads, largest_upload_mb=most, plugins=foreign, run=pins)
    if pinned.most_messages == inf and not pinned.record:
        pinned = replace(pinned, most_messages=2 * (asked.rounds + 1))  # each round, and the evaluation at the end
    write_whole(path, pinned.text().encode())
    print(path)


def _largest_mb(rounds: Sequence[Mapping[str, Any]]) -> float:
    """Return the size of the client's largest update in MB (1e6 bytes)."""
    return max((row["upload_bytes"] for row in rounds), default=0) / 1e6


def _too_large(rounds: Sequence[Mapping[str, Any]], policy: Policy) -> str:
    """Return a warning if an update of the client was larger than the policy allows; else an empty string."""
    largest = _largest_mb(rounds)
    if largest <= policy.largest_upload_mb:
        return ""
    return f"The policy lets {policy.largest_upload_mb:g} MB leave; an update has {largest:.1f} MB."


def _warn(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        print(f"warning: {sentence}", file=sys.stderr)


def main(arguments: list[str], program: str = _PROG) -> int:
    """Return the exit code: 0 done, also where it leaks, 1 failed, 2 bad input.

    Args:
        arguments: words behind the program's name.
        program: how it was called, for messages.
    """
    return exit_code(program.removeprefix("python -m "), lambda: _do(arguments, program))


def _do(arguments: list[str], program: str) -> int:
    command = with_paths_from_home(parsed(arguments, RehearsalCommand(DEFAULT), program))
    _check_spelling(command)
    rehearse(command)
    return 0


def _check_spelling(command: RehearsalCommand) -> None:
    """Refuse misspelt settings as the rehearsal itself would, as far as they can be told within a second."""
    from flfw.deploy.policy import Policy
    from flfw.spelling.names import check_assignments, check_data, check_names
    from flfw.storage.folders import require_new

    experiment = command.experiment
    check_names(experiment)
    if not experiment.dataset.startswith("site:"):  # of which only the data root tells
        check_data(experiment)
    check_assignments(experiment)
    if experiment.out:
        require_new(experiment.out.absolute())
    if command.policy:
        Policy.read(command.policy)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
