"""Analytic: the input of a fully connected first layer, read off its gradient; no search.

Paper       Phong et al., "Privacy-Preserving Deep Learning via Additively Homomorphic Encryption", IEEE TIFS 2018;
            Geiping et al., NeurIPS 2020, proposition 3.1.
Needs       a network whose first layer with weights is fully connected and shared, with its bias.
Granted     nothing but the observation. No labels.
Exact       for one example: x = dL/dW_k / dL/db_k for any unit k. With several, each unit gives a mixture; there must
            be as many units as examples, or more.
Departures  The units with the largest |dL/db_k| are used, one for each example. Results are kept in the inputs' range;
            a dead unit, 0 / 0, gives grey.
"""

from typing import ClassVar, final

import torch

from flfw.adversary.attack import ClosedFormAttack, NotApplicableError
from flfw.inversion.closed_form.linear import FirstLayer, linear_inputs
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient


@final
class Analytic(ClosedFormAttack):
    """Closed form for a fully connected first layer."""

    numbers: ClassVar[bool] = True
    reads_first_layer: ClassVar[bool] = True

    def read_off(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Reconstruction:
        """Read the inputs off the gradient of the first layer."""
        victim = knowledge.model
        first = FirstLayer.of(victim.model, victim.inputs.shape)
        gradient = mean_gradient(observation, knowledge)
        weight, bias = (gradient.get(f"{first.name}.{part}") for part in ("weight", "bias"))
        if not first.dense or weight is None or bias is None:
            raise NotApplicableError(f"analytic needs a shared fully connected first layer, got {first.kind}")
        if len(bias) < knowledge.batch:
            required = f"a first layer with {knowledge.batch} units or more, one for each example"
            raise NotApplicableError(f"analytic needs {required}, got {first.kind} with {len(bias)}")
        inputs = linear_inputs(weight, bias, knowledge.batch).view(-1, *victim.inputs.shape)
        raw = inputs * victim.inputs.std + victim.inputs.mean
        return Reconstruction(raw.nan_to_num(nan=0.5).clamp(*knowledge.box))
