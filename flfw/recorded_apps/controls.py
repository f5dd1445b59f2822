"""Controls beside the updates of a foreign app: the same updates computed anew behind another defence."""

from dataclasses import replace

from torch import nn

from flfw.recorded_apps.case import ForeignCase, Victim
from flfw.recorded_apps.consistency import Retraining
from flfw.recorded_apps.defence import DescribedDefence
from flfw.recorded_apps.knowledge import named
from flfw.recording.observation import Observation
from flfw.rng import torch_generator


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
