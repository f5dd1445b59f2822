"""Rehearsal of a site's leakage before it takes part: ``python -m flfw.command.rehearse --dataset folder:PATH``.

The site's own app runs on the site's own data, in this process. An audit sends probes of growing sizes, from one
example and one local step to the requested settings, and says where leakage stops. Nothing leaves the machine: no data
are downloaded, and messages between the two halves of the app stay in memory.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

import flfw
from flfw.command.early import check_assignments, check_data, check_names, check_out
from flfw.command.flags import declared
from flfw.command.help import asked, page
from flfw.deploy import rehearsal
from flfw.experiment import EXPERT, Experiment
from flfw.files.exit_code import exit_code
from flfw.files.flags import parsed
from flfw.files.folders import with_paths_from_home

_PROG = "python -m flfw.command.rehearse"
_PURPOSE = (
    "Find out what a site would leak with these settings, on its own data, before it takes part. A rehearsal is "
    "always in process and of one client, and makes its own probes."
)
DEFAULT = Experiment(engine="inproc", images=4, rounds=3, clients=1, defence_randomness="auto")

LIMITS = (
    "One client, this site: nobody else's data are here, so what other sites add to the average or to the model that "
    "comes back is not rehearsed.",
    "A probe of several steps takes each of them on the same batch, where training goes through all data: the largest "
    "size is the probe closest to the real update, and still kinder to the attacker.",
    "This is of these attacks with this budget on few examples: a rare leak would not have been seen, and a stronger "
    "attacker may reach more. It is the record of a technical test, no proof that data are safe or anonymous.",
)
"""Limits of every rehearsal."""

OF_MEMBERSHIP = (
    "The test on membership knows this client alone. Without other clients to compare with, some statistics say less. "
    "Examples that nobody saw are not checked, so the answer can never be 'no leak found'."
)
"""Limit of a rehearsal with an attack on membership."""


@dataclass(frozen=True)
class RehearsalCommand:
    """Settings of a rehearsal: flags are those of sim.py, and some of its own."""

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    policy: Path | None = None
    """The site's policy (site-N/policy.toml): warn where these settings would break it."""
    write_policy: Path | None = None
    """Write a policy that allows this run alone, with the budget of --policy if given; for --dataset site:..."""
    max_steps: int = 5
    """Local steps of a probe at most: a search goes through all of them in each of its iterations."""


def rehearse(command: RehearsalCommand) -> Path:
    """Plan, run, and write the results to stdout and to ``rehearsal.json``; return the run's folder.

    Raises:
        InputError: nothing was run.
        RunError: it was begun and could not be completed.
    """
    from flfw import data
    from flfw.deploy.policy import Policy
    from flfw.files.result_file import read_result
    from flfw.files.sealed import write_atomic
    from flfw.plans.run_plan import plan, without_auto
    from flfw.report.questions import decisive, membership_line
    from flfw.runs import run

    policy = Policy.read(command.policy) if command.policy else None
    if command.write_policy:
        rehearsal.require_pinnable(command.experiment, command.write_policy, policy)
    planned = rehearsal.plan_rehearsal(command.experiment, command.max_steps)
    experiment, sizes = planned.experiment, planned.sizes
    draws = rehearsal.draws_at_sites(command.experiment)
    wanted = replace(without_auto(rehearsal.without_attacks(command.experiment)), defence_randomness=draws)
    warned = rehearsal.breaches(policy, wanted, rehearsal.sent(experiment)) if policy else []
    at_sites = replace(rehearsal.without_attacks(experiment), defence_randomness=draws)
    warned += rehearsal.over_budget(policy, at_sites, planned.examples) if policy else []
    _warn(warned)
    where = f"{experiment.method} on {data.title(experiment.dataset)}, at one client"
    print(f"What could a server learn of this site's data? A trial of {where}; nothing leaves this machine.")
    if any(attack.reconstructs for attack in plan(experiment).audit.reconstructions.values()):
        attacked = f"It attacks {experiment.images} messages of each of {len(sizes)} sizes"
        print(f"{attacked}, up to {rehearsal.words(*sizes[-1])}; fewer --images or --max-steps take less time.")
    print(*planned.messages, sep="\n", flush=True)
    folder = run.run(experiment, "rehearsal-")
    result = read_result(folder)
    if policy and (late := rehearsal.too_large(result["rounds"], policy)):
        _warn([late])
        warned.append(late)
    if command.write_policy:
        largest_mb = rehearsal.largest_mb_of(result["rounds"])
        rehearsal.write_policy(command.write_policy, command.experiment, policy, largest_mb)
    tried = rehearsal.attempts(folder)
    sentences = rehearsal.answers(tried, sizes, planned.real)
    membership = [membership_line(row) for row in result.get("membership") or []]
    limits = [*LIMITS, OF_MEMBERSHIP] if membership else list(LIMITS)
    record = {
        "flfw": flfw.__version__,
        "real": dict(zip(("batch", "steps"), planned.real, strict=True)),
        "sizes": [{"batch": batch, "steps": steps} for batch, steps in sizes],
        "images": experiment.images,
        "found": [asdict(one) for one in tried],
        "answers": sentences,
        "membership": membership,
        "said": list(planned.messages),
        "warnings": warned,
        "notes": result["notes"],
        "limits": limits,
        "report": "report.html",
    }
    write_atomic(folder / "rehearsal.json", json.dumps(record, indent=1, allow_nan=False).encode())
    nothing = [] if membership else [f"{experiment.method} sends nothing, so there was nothing to attack."]
    print("", *([rehearsal.table(tried), ""] if tried else nothing), sep="\n")
    told = [membership_line(row) for row in [decisive(result.get("membership") or [])] if row]
    print(*(f"{name}: {sentence}" for name, sentence in sentences.items()), *told, *result["notes"], sep="\n")
    print("", *limits, *planned.messages, sep="\n")
    print(f"The folder holds copies of the probed examples: python sim.py --purge {folder} removes them.")
    print(folder / "report.html")
    return folder


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
    if asked(arguments):
        print(page(program, arguments, _PURPOSE, of_its_own=declared(RehearsalCommand(DEFAULT)), default=DEFAULT))
        return 0
    command = with_paths_from_home(parsed(arguments, RehearsalCommand(DEFAULT), program, EXPERT))
    _check_spelling(command)
    rehearse(command)
    return 0


def _check_spelling(command: RehearsalCommand) -> None:
    """Refuse misspelt settings as the rehearsal itself would, as far as they can be told within a second."""
    from flfw.deploy.policy import Policy

    experiment = command.experiment
    check_names(experiment)
    if not experiment.dataset.startswith("site:"):  # of which only the data root tells
        check_data(experiment)
    check_assignments(experiment)
    check_out(experiment)
    if command.policy:
        Policy.read(command.policy)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
