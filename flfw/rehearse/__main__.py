"""A site finds out what it would leak before it takes part: ``python -m flfw.rehearse.__main__ --dataset folder:PATH``.

The site's own app runs on the site's own data, in this process. An audit climbs a ladder of probes, from one example
and one local step to the settings with which the site was asked to take part, and says where leakage stops. Nothing
leaves the machine: no data are downloaded, and messages go from one half of the app to the other in memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import flfw
from flfw.experiment import Experiment
from flfw.rehearse.plan import plan
from flfw.terminal.exit_code import exit_code
from flfw.terminal.flags import parsed

if TYPE_CHECKING:
    from flfw.deploy.policy import Policy

_PROG = "python -m flfw.rehearse.__main__"
_DEFAULT = Experiment(engine="inproc", images=4, rounds=3, clients=1)

LIMITS = (
    "One client, this site: nobody else's data are here, so what other sites add to the average or to the model that "
    "comes back is not rehearsed.",
    "A probe of several steps takes each of them on the same batch, where training goes through all data: the highest "
    "rung is the probe closest to the real update, and still kinder to the attacker.",
    "This is of these attacks with this budget on few examples: a rare leak would not have been seen, and a stronger "
    "attacker may reach more. It is the record of a technical test, no proof that data are safe or anonymous.",
)
"""What no rehearsal shows."""


@dataclass(frozen=True)
class RehearsalCommand:
    """Find out what a site would leak with these settings, on its own data, before it takes part.

    Flags are those of sim.py; a rehearsal is always in process and of one client, and makes its own probes.
    """

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    policy: Path | None = None
    """The site's policy (site-N/policy.toml): warn where these settings would break it."""
    most_steps: int = 5
    """Local steps of a probe at most: a search goes through all of them in each of its iterations."""


def breaches(policy: Policy, asked: Experiment, sends: Sequence[str]) -> list[str]:
    """What of a run its site's policy does not allow, as far as that is known before it, a sentence each.

    Args:
        policy: the site's.
        asked: the settings.
        sends: names of the tensors that the method may send.
    """
    from flfw.messages.sharing import matches

    refused = policy.refuses_run(asked.to_run_config())
    kept = [name for name in sends if not matches(name, policy.uploads)]
    found = [f"The policy refuses these settings: {refused}."] if refused else []
    if kept:
        more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
        found.append(f"The policy does not let {kept[0]}{more} leave, which {asked.method} sends.")
    return found


def sent(experiment: Experiment) -> list[str]:
    """Names of the tensors that the method's clients may send."""
    from flfw import resolve as parts
    from flfw.messages.sharing import matches

    (method, settings), model = parts.method(experiment), parts.blank_model(experiment)
    uploads = method.shared(model, settings).uploads
    return [name for name in model.state_dict() if matches(name, uploads)]


def rehearse(command: RehearsalCommand) -> Path:
    """Plan, run, and say what was found on stdout and in ``rehearsal.json``; the run's folder.

    Raises:
        BadInput: nothing was run.
        RunFailed: it was begun and could not be completed.
    """
    from flfw import data
    from flfw.deploy.policy import Policy
    from flfw.rehearse.answers import answers, attempts, table, words
    from flfw.runs import run
    from flfw.storage.sealed import write_whole

    policy = Policy.read(command.policy) if command.policy else None
    rehearsal = plan(command.experiment, command.most_steps)
    of, rungs = rehearsal.experiment, rehearsal.rungs
    warned = breaches(policy, command.experiment, sent(of)) if policy else []
    _warn(warned)
    where = f"{of.method} on {data.title(of.dataset)}, at one client"
    print(f"Rehearsal of {where}, up to {words(*rungs[-1])}; nothing leaves this machine.")
    work = of.images * len(of.audited) * sum(batch * steps for batch, steps in rungs)
    each = f"Probes on each of {len(rungs)} rungs: {of.images}."
    cost = f"Searches in all of them take about {work:,} times as long as in one of one example and one step."
    print(*rehearsal.said, f"{each} {cost}", sep="\n", flush=True)
    folder = run.run(of)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if policy and (late := _too_large(result["rounds"], policy)):
        _warn([late])
        warned.append(late)
    found = attempts(folder)
    sentences = answers(found, rungs, rehearsal.real)
    about = {
        "flfw": flfw.__version__,
        "real": dict(zip(("batch", "steps"), rehearsal.real, strict=True)),
        "rungs": [{"batch": batch, "steps": steps} for batch, steps in rungs],
        "images": of.images,
        "found": [asdict(one) for one in found],
        "answers": sentences,
        "said": list(rehearsal.said),
        "warnings": warned,
        "notes": result["notes"],
        "limits": list(LIMITS),
        "report": "report.html",
    }
    write_whole(folder / "rehearsal.json", json.dumps(about, indent=1, allow_nan=False).encode())
    nothing = f"{of.method} sends nothing, so there was nothing to attack."
    print("", *([table(found)] if found else [nothing]), "", sep="\n")
    print(*(f"{name}: {sentence}" for name, sentence in sentences.items()), *result["notes"], sep="\n")
    print("", *LIMITS, *rehearsal.said, sep="\n")
    print(f"The folder holds copies of the probed examples: python sim.py --purge {folder} removes them.")
    print(folder / "report.html")
    return folder


def _too_large(rounds: Sequence[Mapping[str, Any]], policy: Policy) -> str:
    """What to say where an update of the one client was larger than the policy lets leave; else nothing."""
    largest = max((row["upload_bytes"] for row in rounds), default=0) / 1e6
    if largest <= policy.largest_upload_mb:
        return ""
    return f"The policy lets {policy.largest_upload_mb:g} MB leave; an update has {largest:.1f} MB."


def _warn(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        print(f"warning: {sentence}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 done, also where it leaks, 1 failed, 2 bad input."""
    return exit_code("flfw.rehearse.__main__", lambda: _do(arguments))


def _do(arguments: list[str]) -> int:
    rehearse(parsed(arguments, RehearsalCommand(_DEFAULT), _PROG))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
