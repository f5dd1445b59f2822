"""SPEAR, "Exact Gradient Inversion of Batches": a batch read off a fully connected ReLU layer's gradient; no descent.

Paper       Dimitrov et al., "SPEAR: Exact Gradient Inversion of Batches in Federated Learning", NeurIPS 2024, arXiv
            2403.03945.
Idea        the layer's gradient is D^T A, a row for each of B examples. Before a ReLU, a row of D is 0 where that
            example's output is negative. Such sparse rows are sought in the span of D by drawing sets of units.
Needs       a network whose first layer with weights is fully connected, with its bias, shared, and followed by a ReLU
            that does not leak; more units, and more inputs, than examples. All other tensors known.
Granted     nothing but the observation and the model. No labels.
Exact       up to rounding, for each example that the network proves: the gradient that it computes at the layer's
            outputs for the example, under the best label, lies in the span of D.
Adaptive    no. Any defence that adds noise or drops entries ends it; clipping of each example does not.
Departures  1. Each set of B units gives B candidates, not one; the independent ones with the most zeros are kept.
            2. The proof is by the network, not by the signs of the first layer alone. It also corrects the candidate
               of an example whose units include all units of another one, and saves the search for the last example.
            3. Zeros are told by bounds from the gradient's own rounding; float32 is enough.
            4. An example without proof is grey (0.5), never a guess: it sent no gradient above rounding, equals another
               one, or was not found within ``sets``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.func import vmap

from flfw.adversary.attack import ClosedFormAttack, NotApplicableError
from flfw.bounds import BoundedSettings, PositiveInt
from flfw.inversion.client_models.victim import VictimModel
from flfw.inversion.closed_form.linear import FirstLayer
from flfw.inversion.closed_form.rectified import SETS, separate_rectified
from flfw.nets.net import Tensors
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient
from flfw.rng import torch_generator

_TRIED = 8  # random inputs on which the network is tried


@dataclass(frozen=True)
class SPEARSettings(BoundedSettings):
    """Settings of the search for sparse rows."""

    sets: PositiveInt = SETS  # largest number of random sets of units


@final
class SPEAR(ClosedFormAttack):
    """Exact separation of a batch before a ReLU."""

    Settings = SPEARSettings
    reads_first_layer: ClassVar[bool] = True
    selection = "proof by the network"

    def read_off(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Reconstruction:
        """Separate the batch."""
        victim, gradient = knowledge.model, mean_gradient(observation, knowledge)
        name = _rectified_first_layer(victim, observation.sent)
        weight, bias = f"{name}.weight", f"{name}.bias"
        samples = victim.inputs.mean.new_full((knowledge.batch, *victim.inputs.shape), 0.5)
        compute = _gradient_of_one(victim, observation.sent)

        def responses(inputs: Tensor) -> Tensor:
            x = _raw(victim, inputs.to(gradient[weight]))
            labels = torch.arange(victim.classes, device=x.device)
            return torch.stack([compute(x, label.expand(len(x)))[bias] for label in labels], dim=1).cpu()

        slopes, layer = ((of[weight], of[bias]) for of in (gradient, victim.known))
        separated = separate_rectified(slopes, layer, knowledge.batch, rng, responses, self.settings.sets)
        if separated is not None:
            samples[: len(separated.inputs)] = _raw(victim, separated.inputs.to(samples))
        return Reconstruction(samples.clamp(*knowledge.box))


def _rectified_first_layer(victim: VictimModel, sent: Tensors) -> str:
    """Return the name of the first layer, after a trial that its outputs pass through a ReLU alone.

    Raises:
        NotApplicableError: there is none, or the model is not wholly known.
    """
    name, kind, dense = FirstLayer.of(victim.model, victim.inputs.shape)
    weight, bias = f"{name}.weight", f"{name}.bias"
    if not dense or not {weight, bias} <= {*victim.shared} & victim.known.keys():
        raise NotApplicableError(f"spear needs a known, shared, fully connected first layer with a bias, got {kind}")
    if victim.unknown:
        raise NotApplicableError(
            f"spear needs a network that is known as a whole, got unknown {', '.join(victim.unknown)}"
        )
    rng = torch_generator(0, "rectified first layer")
    x = torch.rand((_TRIED, *victim.inputs.shape), generator=rng).to(victim.known[weight])
    gradient = _gradient_of_one(victim, sent)(x, torch.arange(_TRIED, device=x.device) % victim.classes)
    inputs = victim.inputs.normalise(x).flatten(1)
    on = inputs @ victim.known[weight].T + victim.known[bias] > 0
    at_outputs = gradient[bias]
    silent = not bool(at_outputs[~on].any()) and bool((~on).any())
    heard = bool((at_outputs[on] != 0).float().mean() > 0.5)
    outer = at_outputs[..., None] * inputs[:, None]
    if not (silent and heard and torch.allclose(gradient[weight], outer, rtol=1e-3, atol=1e-6)):
        raise NotApplicableError(f"spear needs a ReLU right after {kind}, got other gradients at its outputs")
    return name


def _gradient_of_one(victim: VictimModel, sent: Tensors) -> Callable[[Tensor, Tensor], Tensors]:
    """Return the function of raw inputs (K, ...) and labels (K,) for the gradient of each example alone."""
    constants = victim.observed(sent)[1]
    return vmap(lambda x, y: victim.gradient(x[None], y[None], victim.unknown, constants))


def _raw(victim: VictimModel, inputs: Tensor) -> Tensor:
    """Undo flattening and normalisation of inputs (K, d)."""
    return inputs.view(-1, *victim.inputs.shape) * victim.inputs.std + victim.inputs.mean
