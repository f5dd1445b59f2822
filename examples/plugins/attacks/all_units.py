"""All units: the input of a fully connected first layer, from all units together; no search.

Paper       none; proposition 3.1 of Geiping et al., NeurIPS 2020, solved for all units.
Needs       a network whose first layer with weights is fully connected and shared, with its bias.
Granted     nothing but the observation. No labels.
Exact       for one example: dL/dW_k = dL/db_k x for each unit k, so x = sum_k b_k W_k / sum_k b_k^2.
Departures  several examples give their mixture, once for each.
"""

from typing import final

import torch
from torch import nn

from flfw.adversary.attack import ClosedFormAttack, NotApplicableError
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient


@final
class AllUnits(ClosedFormAttack):
    """Closed form for a fully connected first layer."""

    def read_off(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Reconstruction:
        """Solve for the input."""
        victim, gradient = knowledge.model, mean_gradient(observation, knowledge)
        name, layer = next((n, m) for n, m in victim.model.named_modules() if list(m.parameters(recurse=False)))
        weight, bias = gradient.get(f"{name}.weight"), gradient.get(f"{name}.bias")
        if not isinstance(layer, nn.Linear) or weight is None or bias is None:
            raise NotApplicableError(f"all_units needs a shared fully connected first layer, got {name}")
        x = (bias @ weight / bias.square().sum()).view(1, *victim.inputs.shape)
        raw = (x * victim.inputs.std + victim.inputs.mean).nan_to_num(nan=0.5).clamp(*knowledge.box)
        return Reconstruction(raw.repeat(knowledge.batch, *[1] * len(victim.inputs.shape)))
