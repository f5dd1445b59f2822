"""What an attacker is granted, in words for the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from flfw import nets
from flfw import resolve as parts
from flfw.adversary.attack import Attack, Private
from flfw.audit.adaptation import hiding
from flfw.audit.jobs import EXAMPLE, Job, Ticket
from flfw.audit.knowledge import _unrolled, hidden
from flfw.experiment import Experiment
from flfw.messages.sharing import matches
from flfw.nets.conditional_gan import Discriminator, Generator
from flfw.task import input_space


@dataclass(frozen=True)
class Standing:
    """Where an attacker stands towards some of the clients.

    Attributes:
        granted: in words, what it is given and what it is not.
        adaptive: whether it knows, and makes use of, all that stands between the data and what was sent.
        adaptation: how it adapts to the clients' defence, or to the method: ``written`` for it, ``automatic``; None: it
            does not.
        hidden_by: the defence or the method that hides something of what is read; None: neither does.
    """

    granted: tuple[str, ...]
    adaptive: bool
    adaptation: str | None = None
    hidden_by: str | None = None


_LABELS = {
    "given": "the true labels",
    "not used": "not granted: the labels, of which it makes no use",
    "searched for": "not granted: the labels, which are searched for with the data",
}


_NAMED = 6  # private tensors that are named one by one


_RECOVERED = "not granted: the labels, which it reads off the last layer's gradient"


def standing(experiment: Experiment, job: Job, attack: Attack, defended: bool, vantage: str | None = None) -> Standing:
    """What the attacker of a job is granted, as `grant` does it.

    Args:
        experiment: what was run.
        job: names the probes, and says whether what hides the data is granted.
        attack: which makes use of some of it.
        defended: whether the clients in question use the experiment's defence.
        vantage: where it stands, if that is not what the job says.
    """
    ticket, vantage = job.ticket, vantage or job.vantage
    model, private = parts.blank_model(experiment), hidden(experiment)
    if ticket.rung != "target":
        with torch.device("meta"):
            model, private = nets.build(experiment.net, *input_space(experiment)), ()
    sizes = {name: value.numel() for name, value in model.state_dict().items()}
    known = sum(size for name, size in sizes.items() if name not in private)
    granted = [
        f"the method's code and the network ({experiment.net})",
        f"the tensors broadcast in the round ({known:,} numbers)",
        _what_is_seen(ticket),
        _LABELS.get(attack.labels, _RECOVERED),
        "the inputs' range and normalisation",
    ]
    if vantage == "client_update":
        granted.append("the same update, read on the client before it is sent")
    classifying = [part for part in model.children() if not isinstance(part, Generator | Discriminator)]
    by_batch = any(isinstance(module, _BatchNorm) for part in classifying for module in part.modules())
    begun = job.start and ticket.round == 0  # nothing has been trained: as they begin is as they are
    fate = "not needed" if begun else attack.private(model, ticket.batch)
    granted += _beside(job, private)
    granted += _hidden_from(() if begun else private, fate, by_batch)
    hides = hiding(experiment, ticket, vantage, defended)
    told = hides.told if job.adaptive and hides.method and hides.adapts else None
    steps = _unrolled(experiment, ticket, attack, told)
    if steps:
        granted.append(f"how these steps are made ({experiment.method}'s optimiser), through all of which it searches")
    elif ticket.steps > 1:
        granted.append("not made use of: how the weights moved between the steps; their mean gradient is attacked")
    granted += hides.words(job.adaptive)
    method, settings = parts.method(experiment)
    descended = ("*",) if ticket.rung != "target" else method.descended(model, settings)
    sent = [name for name, _ in model.named_parameters() if matches(name, descended)]
    if unused := attack.unused(sent, job.adaptive):
        granted.append(f"not made use of: {unused}")
    # Labels that are read off what was sent are read as if nothing had been done to it.
    knows = hides.how == "nothing to adapt to" or (job.adaptive and hides.adapts and attack.labels in _LABELS)
    knows = knows and not hides.beside and not (told and told.missed)
    seen_through = ticket.steps == 1 or steps is not None
    copes = (not private or fate == "not needed") and not by_batch and not unused
    way = hides.how if job.adaptive else None
    hidden_by = None if hides.how == "nothing to adapt to" else hides.by
    return Standing(tuple(granted), copes and knows and seen_through, way, hidden_by)


_MADE_OF_THEM: dict[Private, str] = {
    "searched for": "which are searched for as well",
    "searched for in part": "of which it reads off what it can, and searches for what they make of the data",
    "stood in for": "in whose place it puts what it learns from public data",
    "not needed": "which it reads off what was sent, or does without",
}


def _beside(job: Job, private: Sequence[str]) -> Iterator[str]:
    """In words, what is granted because the attack uses it."""
    if job.public:
        yield f"{job.public[1]:,} public examples with their labels, none of a client"
    if job.start:
        names = ", ".join(sorted({name.partition(".")[0] for name in private}))
        when = "which is what they are now" if job.ticket.round == 0 else "which they are no longer"
        yield f"how the private tensors of all clients ({names}) began, {when}"
    if job.uploads:
        count = len(job.uploads)
        yield f"what {count} client{'s' * (count > 1)} uploaded in the round, beside the probes"


def _hidden_from(private: Sequence[str], fate: Private, by_batch: bool) -> Iterator[str]:
    if private:
        yield f"not granted: the client's private tensors ({', '.join(_in_short(private))}), {_MADE_OF_THEM[fate]}"
    if by_batch:
        yield "not made use of: that BatchNorm takes the batch's statistics in training; the running ones are taken"


def _in_short(names: Sequence[str]) -> list[str]:
    """Names of tensors; of many only the parts of the model that they belong to."""
    if len(names) <= _NAMED:
        return list(names)
    return list(dict.fromkeys(f"{part}.*" if dot else part for part, dot, _ in (n.partition(".") for n in names)))


def _what_is_seen(ticket: Ticket) -> str:
    if ticket.point == EXAMPLE:
        return "the gradient of one example, read on the client during local training"
    what = f"{ticket.batch} example{'s' if ticket.batch > 1 else ''}"
    if ticket.steps == 1:
        return f"that the gradient is one local step on {what}"
    return f"that {ticket.steps} local steps on the same {what} were taken, and their learning rate"
