"""Check of a rehearsed run against its site's policy: its breaches, its budget, and a policy for this run alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flfw.errors import require
from flfw.experiment import Experiment, Scalar

if TYPE_CHECKING:
    from flfw.deploy.policy import Policy


def breaches(policy: Policy, asked: Experiment, sends: Sequence[str]) -> list[str]:
    """Return the parts of a run that its site's policy forbids, as far as known before the run, a sentence each.

    Args:
        policy: the site's policy.
        asked: the requested settings.
        sends: names of the tensors that the method may send.
    """
    from flfw.messages.sharing import matches

    config = _as_asked_for(asked)
    if policy.run and asked.clients == 1:  # a rehearsal has one, and the federation has others
        config["clients"] = policy.run.allowed("clients")
    refused = [policy.run_rejection(config) or ""]
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
    from flfw.task import image_format

    config = asked.to_run_config()
    if data.is_table(asked.dataset):
        schema = data.describe(data.absolute(asked.dataset)).columns
        if schema is None or TableName.parse(asked.dataset).plan is None:
            return config
        return {**config, "dataset": name_of(schema), "split": at_site.SPLIT}
    if not asked.dataset.startswith(("folder:", "hf:")):
        return config
    card = data.describe(data.absolute(asked.dataset), image_format(asked, None))
    named = f"site:{'x'.join(map(str, card.shape))}:{card.classes}"  # of which the name says size and colour
    return {**config, "dataset": named, "resize": "", "colour": "auto", "split": at_site.SPLIT}


def draws_at_sites(asked: Experiment) -> Literal["auto", "seed", "secure"]:
    """Return where a defence draws from when sites are asked for these settings; a rehearsal repeats, they do not."""
    return "secure" if asked.defence_randomness == "auto" else asked.defence_randomness


def over_budget(policy: Policy, experiment: Experiment, examples: int) -> list[str]:
    """Return the limit that the policy's budget sets for a run if nothing is spent yet, in at most one sentence.

    Args:
        policy: the site's policy.
        experiment: the settings of the run.
        examples: number of the site's training examples; its others are not known here, which matters for unit=client
            with private metrics alone.
    """
    from flfw.dp.budget import BudgetExceededError
    from flfw.dp.message_cost import TRAIN, cost, cost_of_metrics
    from flfw.dp.site_ledger import MessageEntry, rounds_within
    from flfw.plan import plan

    named = _as_asked_for(experiment)
    if (budget := policy.budget) is None or replace(policy, run=None).run_rejection(named):
        return []
    try:
        clients = plan(experiment).client
        mechanism, metrics = cost(clients, TRAIN, {}, examples), cost_of_metrics(clients, TRAIN)
    except BudgetExceededError as error:
        return [f"The policy refuses these settings: {error}."]
    entry = MessageEntry("", 0, TRAIN, experiment.method, mechanism, examples, metrics=metrics, held=examples)
    allowed = rounds_within(entry, budget, experiment.rounds)
    if allowed == experiment.rounds:
        return []
    return [f"The policy's budget, {budget}, allows {allowed} of {experiment.rounds} rounds."]


def sent(experiment: Experiment) -> list[str]:
    """Return the names of the tensors that the method's clients may send."""
    from flfw.messages.sharing import matches
    from flfw.plan import plan

    run_plan = plan(experiment)
    return [name for name in run_plan.client.model.state_dict() if matches(name, run_plan.client.sharing.uploads)]


def require_pinnable(asked: Experiment, path: Path, policy: Policy | None) -> None:
    """Refuse to write a policy where something stands, or that pins no site's data, or has no budget for its noise.

    Args:
        asked: the settings.
        path: the file.
        policy: as for `write_policy`.

    Raises:
        InputError: see above.
    """
    from flfw import data

    require(not path.exists(), "a new file for --write-policy; choose another or remove it", write_policy=path)
    way_out = "--dataset site:CxHxW:CLASSES with --write-policy, as a server names the data (--data-root has them)"
    require(data.is_at_sites(asked.dataset), way_out, dataset=asked.dataset)
    counted = "--policy with an epsilon beside --metrics private, whose noise nothing else bounds"
    require(asked.metrics != "private" or (policy is not None and policy.budget is not None), counted, policy="none")


def write_policy(path: Path, asked: Experiment, policy: Policy | None, largest_mb: float) -> None:
    """Write a policy for the rehearsed run alone: this code, the method's uploads, these settings.

    Args:
        path: the file.
        asked: the settings.
        policy: has the budget, the volunteered examples and a bound of messages; None: there are none. Without a bound,
            and without probes, the site answers the messages of the run twice, as a round that was interrupted is
            asked for again.
        largest_mb: of an update in the rehearsal; a tenth and 0.1 MB more are allowed, for the message around it.
    """
    from flfw.deploy.allowed_settings import pins_of, plugins_of
    from flfw.deploy.policy import Policy
    from flfw.deploy.submit import bundle_hash
    from flfw.plan import plan, without_auto
    from flfw.storage.sealed import write_atomic

    asked = without_auto(asked)
    most = round(1.1 * largest_mb + 0.1, 3)
    metrics = "none" if asked.metrics == "none" else "all"
    allowed = policy or Policy(("any",), (), most, metrics=metrics)
    uploads = plan(asked).client.sharing.uploads
    foreign = tuple(dict.fromkeys((*allowed.plugins, *plugins_of(asked.to_run_config()))))
    pins = pins_of(asked, asked.dataset)
    pinned = replace(allowed, apps=(bundle_hash(),), uploads=uploads, largest_upload_mb=most, plugins=foreign, run=pins)
    if pinned.most_messages == inf and not pinned.record:
        pinned = replace(pinned, most_messages=2 * (asked.rounds + 1))  # each round, and the evaluation at the end
    write_atomic(path, pinned.text().encode())
    print(path)


def largest_mb_of(rounds: Sequence[Mapping[str, Any]]) -> float:
    """Return the size of the client's largest update in MB (1e6 bytes)."""
    return max((row["upload_bytes"] for row in rounds), default=0) / 1e6


def too_large(rounds: Sequence[Mapping[str, Any]], policy: Policy) -> str:
    """Return a warning if an update of the client was larger than the policy allows; else an empty string."""
    largest = largest_mb_of(rounds)
    if largest <= policy.largest_upload_mb:
        return ""
    return f"The policy lets {policy.largest_upload_mb:g} MB leave; an update has {largest:.1f} MB."
