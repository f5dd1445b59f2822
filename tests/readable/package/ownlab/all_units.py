"""All units: the input of a fully connected first layer, from all units together; no search.

Paper       none; proposition 3.1 of Geiping et al., NeurIPS 2020, solved for all units.
Needs       a network whose first layer with weights is fully connected and shared, with its bias.
Granted     nothing but the observation. No labels.
Exact       for one example: dL/dW_k = dL/db_k x for each unit k, so x = sum_k b_k W_k / sum_k b_k^2.
Departures  several examples give their mixture, once for each.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from flfw.adversary.attack import NotApplicable
from flfw.adversary.closed_form import ClosedFormAttack
from flfw.adversary.observation import Knowledge, Observation, Reconstruction, mean_gradient


@final
class AllUnits(ClosedFormAttack):
    """Closed form for a fully connected first layer."""

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Solve for the input of each observation."""
        return [_solved(seen, known) for seen, known in zip(observations, knowledge, strict=True)]


def _solved(seen: Observation, known: Knowledge) -> Reconstruction:
    victim, gradient = known.model, mean_gradient(seen, known)
    name, layer = next((n, m) for n, m in victim.model.named_modules() if list(m.parameters(recurse=False)))
    weight, bias = gradient.get(f"{name}.weight"), gradient.get(f"{name}.bias")
    if not isinstance(layer, nn.Linear) or weight is None or bias is None:
        raise NotApplicable(f"all_units needs a shared fully connected first layer, got {name}")
    x = (bias @ weight / bias.square().sum()).view(1, *victim.inputs.shape)
    raw = (x * victim.inputs.std + victim.inputs.mean).nan_to_num(nan=0.5).clamp(*known.box)
    return Reconstruction(raw.repeat(known.batch, *[1] * len(victim.inputs.shape)))
