"""Client whose private part is replaced by what public data teach, to compare gradients of given examples.

    private classifier    a classifier learnt upon the client's extractor, which is shared, or read off (hypernetwork)
    private extractor     an extractor learnt under the shared classifier

A stand-in agrees with the private part as far as both were taught by similar data. What it cannot know, it adds as
noise; so a statistic with it is no evidence of protection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from flfw.inversion.closed_form.shared_gradient import without_decay
from flfw.inversion.private.extractor import HeadlessVictim, named, read_off
from flfw.inversion.private.surrogate import SurrogateTraining, trained_under, trained_upon
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.net import Tensors
from flfw.victims.victim import VictimModel

_EXTRACTOR, _CLASSIFIER = "extractor", "classifier"
_AT_ONCE = 500


@final
@dataclass(frozen=True)
class StoodIn:
    """Client with a stand-in for its private part.

    Attributes:
        victim: model of the client.
        update: its mean gradient in the coordinates of the victim.
        constants: constants of the victim.
        unknown: values of its unknown tensors.
    """

    victim: VictimModel
    update: Tensors
    constants: Tensors
    unknown: Tensors


def replaceable(model: nn.Module, private: Collection[str]) -> str:
    """Return the part of a model that a stand-in can replace: ``classifier`` or ``extractor``; empty: neither.

    Args:
        model: the method's model.
        private: names of the tensors that clients keep.
    """
    parts = dict(model.named_children())
    if not (_EXTRACTOR in parts and _CLASSIFIER in parts):
        return ""
    held = {
        part: [f"{part}.{name}" in private for name, _ in parts[part].named_parameters()]
        for part in (_EXTRACTOR, _CLASSIFIER)
    }
    if all(held[_CLASSIFIER]) and not any(held[_EXTRACTOR]):
        return _CLASSIFIER
    whole = bool(held[_EXTRACTOR]) and all(held[_EXTRACTOR]) and not any(held[_CLASSIFIER])
    return _EXTRACTOR if whole else ""


def stood_in(
    victim: VictimModel,
    part: str,
    sent: Tensors,
    scale: float,
    public: tuple[Tensor, Tensor],
    teaching: SurrogateTraining,
    rng: torch.Generator,
) -> StoodIn:
    """Build the client with a stand-in.

    Args:
        victim: model of the client, with the tensors that it received.
        part: from `replaceable`.
        sent: tensors that the client sent after its steps.
        scale: learning rate times the number of steps.
        public: raw inputs (N, ...) and labels (N,) of no client.
        teaching: epochs and step size of the stand-in.
        rng: generator of its training.
    """
    if isinstance(victim.model, GeneratedNet):
        return _read(victim, victim.model, sent, scale, public, teaching, rng)
    moved = {name: (victim.known[name] - value) / scale for name, value in sent.items() if name in victim.known}
    update, constants = victim.observed(moved)
    model = deepcopy(victim.model)
    model.load_state_dict({**victim.known, **victim.unknown}, strict=False)
    extractor, classifier = (model.get_submodule(name) for name in (_EXTRACTOR, _CLASSIFIER))
    if part == _CLASSIFIER:
        features = _in_parts(extractor, victim.inputs.normalise(public[0]))
        learnt = trained_upon(features, public[1], classifier, teaching, rng)
    else:
        learnt = trained_under(classifier, extractor, public, victim.inputs, teaching, rng)
    values = {f"{part}.{name}": value.detach() for name, value in learnt.state_dict().items()}
    unknown = {name: values.get(name, value) for name, value in victim.unknown.items()}
    return StoodIn(victim, update, constants, unknown)


def _read(
    victim: VictimModel,
    model: GeneratedNet,
    sent: Tensors,
    scale: float,
    public: tuple[Tensor, Tensor],
    teaching: SurrogateTraining,
    rng: torch.Generator,
) -> StoodIn:
    """Read the generated extractor and its gradient off a hypernetwork's change, and learn a classifier upon it."""
    received = {name: victim.known[name] for name in sent if name in victim.known}
    change = without_decay(received, {name: sent[name] for name in received})
    reading = read_off(victim, {name: value / scale for name, value in change.items()})
    headless = HeadlessVictim(model, victim.inputs)
    update, constants = headless.observed(named(replace(reading, embedding=None)))

    def extract(x: Tensor) -> Tensor:
        return model.features(x, reading.weights)

    features = _in_parts(extract, victim.inputs.normalise(public[0]))
    learnt = trained_upon(features, public[1], model.classifier, teaching, rng)
    values = {f"{_CLASSIFIER}.{name}": value.detach() for name, value in learnt.state_dict().items()}
    return StoodIn(headless, update, constants, {**headless.unknown, **values})


@torch.no_grad()
def _in_parts(extract: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([extract(part) for part in x.split(_AT_ONCE)])
