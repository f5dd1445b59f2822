"""Controls beside the updates of a foreign app: the same updates computed anew, and other data held against them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from flfw.adversary.attack import Attack
from flfw.audit.measures.identification import Identified, convolved, identified_p
from flfw.audit.measures.public import PublicData
from flfw.audit.reconstruction.control_runs import Opened, fits
from flfw.recorded_apps.case import ForeignCase, Victim
from flfw.recorded_apps.consistency import Retraining
from flfw.recorded_apps.defence import DescribedDefence
from flfw.recorded_apps.knowledge import named
from flfw.recording.observation import Observation, Truth
from flfw.rng import numpy_generator, torch_generator

EXCHANGED = "the same data with one example exchanged for a public one of its class, in the mean over such exchanges"
_EXCHANGES = 19


def sent_again(
    case: ForeignCase, net: nn.Module, v: Victim, observation: Observation, defence: DescribedDefence
) -> Observation:
    """Return an update as its client would have sent it behind another defence, under the network's names.

    Args:
        case: the setting.
        net: the network.
        v: the update.
        observation: the update as it was recorded.
        defence: the other defence, or none.
    """
    observed, training = named(net, observation), case.described(observation, v.behind)
    rng = torch_generator(case.seed, "control", observation.round, observation.slot)
    repeated = Retraining(net, observed.received, v.behind, training, case.inputs, case.seed)
    change = defence.applied(repeated.finished(), rng)
    if training.sends == "weights":
        change = {name: observed.received[name] + way for name, way in change.items()}
    elif training.sends == "negative delta":
        change = {name: -way for name, way in change.items()}
    return replace(observed, sent={**observed.sent, **{n: change[n] for n in observed.sent if n in change}})


def exchanged(
    attack: Attack, name: str, messages: Sequence[Opened], public: PublicData, seed: int
) -> Identified | None:
    """Test whether messages are explained better by their true data than by data with one example exchanged.

    A message that does not depend on that example is explained better by either with a probability of one half.

    Args:
        attack: computes how badly data explain a message.
        name: its name in the run.
        messages: the messages.
        public: gives the examples for which one is exchanged.
        seed: of the audit.

    Returns:
        The count and its p; None: the attack computes no distance, or no class has public examples.
    """
    better: list[int] = []
    for opened in messages:
        observation, _, truth = opened
        rng = numpy_generator(seed, "exchanged", observation.round, observation.slot)
        others = [other for _ in range(_EXCHANGES) if (other := _with_another(truth, public, rng)) is not None]
        values = fits(attack, name, opened, [truth, *others], seed) if others else None
        if values is not None:
            better.append(int(np.mean([value.distance for value in values[1:]]) > values[0].distance))
    if not better:
        return None
    nulls = [np.array([0.5, 0.5])] * len(better)
    return Identified(sum(better), len(better), convolved(nulls), identified_p(better, nulls))


def _with_another(truth: Truth, public: PublicData, rng: np.random.Generator) -> Truth | None:
    """Return the data with one example exchanged for a public one of its class; None: there is no such one."""
    place = int(rng.integers(len(truth.labels)))
    alike = np.flatnonzero(public.labels == int(truth.labels[place]))
    if not len(alike):
        return None
    samples = truth.samples.clone()
    samples[place] = Tensor(public.samples[rng.choice(alike)])
    return replace(truth, samples=samples)
