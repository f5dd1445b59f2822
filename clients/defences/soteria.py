"""Soteria: the representation below a fully connected layer is hidden, by zeroing columns of that layer's gradient.

Paper       Sun et al., "Soteria: Provable Defense Against Privacy Leakage in Federated Learning from Representation
            Perspective", CVPR 2021, arXiv 2012.06043. A baseline of DCS^2: 20 % on MNIST, 50 % on CIFAR-10.
Symbols     r(x) the inputs of the layer, J = dr/dx, p the share of its units that are hidden.
Acts on     each local step's gradient, with sight of the batch: on the layer's weight, and on no other tensor.
Departures  1. The paper hides the units with the largest |r_f| / |J_f|; its code those with the smallest
               |J_f| / (r_f + 0.1), which is nearly the same order. This is the code's.
            2. The Jacobian is computed with the model in evaluation mode, as in DCS^2's code.
            3. In batches the scores are added up, so that all examples share one choice.

    score_f = sum over examples of |J_f| / (r_f + 0.1)
    the columns f of dL/dW with |score_f| below the p-th quantile are set to 0
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from flfw.bounds import BoundedSettings, ShareBelowOne
from flfw.errors import InputError
from flfw.files.tensor_names import matches
from flfw.nets import Tensors
from flfw.nets.representation import representation, row_norms
from flfw.task.defence import Defence, LocalStep

_PARTS = ("extractor", "classifier")  # a hypernetwork or a generator has no data at its input
_OFFSET = 0.1  # in the denominator of the score; the code's


@dataclass(frozen=True)
class SoteriaSettings(BoundedSettings):
    """Share of the hidden units, and the layer."""

    ratio: ShareBelowOne = 0.5  # share of the layer's input units whose columns are set to 0
    layer: str = ""  # name of a fully connected layer, such as classifier.1; empty: the last one that is shared


@final
class Soteria(Defence):
    """Defence that zeroes columns of one layer's gradient, those that tell most of the input."""

    Settings = SoteriaSettings
    differentiates_inputs = True

    @classmethod
    def weakest_settings(cls, settings: SoteriaSettings) -> SoteriaSettings:
        """Return settings that hide at most a tenth of the units."""
        return replace(settings, ratio=min(settings.ratio, 0.1))

    def check_model(self, model: nn.Module, uploads: Sequence[str]) -> None:
        """Refuse a model without the layer, and a method that does not share its weight."""
        chosen, shared = self.settings.layer, _layers(model, uploads)
        if not shared:
            raise InputError("Expected a fully connected layer among the shared tensors for soteria, got none.")
        if chosen and chosen not in shared:
            raise InputError(f"Expected soteria.layer among {', '.join(shared)}; got {chosen}.")

    def step(self, step: LocalStep, rng: torch.Generator) -> Tensors:
        """Zero the columns of the units whose scores are lowest."""
        name = self.settings.layer or (_layers(step.model, tuple(step.gradients)) or [""])[-1]
        weight = step.gradients.get(f"{name}.weight")
        if weight is None:  # a step on other tensors, such as a private head's
            return step.gradients
        total = scores(step.model, name, step.inputs.normalise(step.x.to(_device(step.model)))).to(weight.device)
        hidden = total.abs() < torch.quantile(total.abs(), self.settings.ratio)
        return {**step.gradients, f"{name}.weight": weight.masked_fill(hidden, 0.0)}


def scores(model: nn.Module, layer: str, x: Tensor) -> Tensor:
    """Compute the summed scores (d,) of a layer's input units.

    Args:
        model: takes network inputs.
        layer: name of a fully connected layer with d inputs.
        x: network inputs (B, ...).
    """
    return (row_norms(model, layer, x) / (representation(model, layer, x) + _OFFSET)).sum(0)


def _layers(model: nn.Module, uploads: Sequence[str]) -> list[str]:
    """Name the fully connected layers that data pass through and whose weight is shared, in order."""
    named = [(name, one) for name, one in model.named_modules() if name.partition(".")[0] in _PARTS]
    return [name for name, one in named if isinstance(one, nn.Linear) and matches(f"{name}.weight", uploads)]


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
