"""Imprint: a module that a malicious server puts in front of the network, which sorts a batch's examples into bins.

Paper       Fowl et al., "Robbing the Fed: Directly Obtaining Private Data in Federated Learning with Modified Models",
            ICLR 2022, arXiv 2110.13057.
Needs       a network of the server's making (``--malicious-server imprint``) whose first layers are shared; all that it
            finds is a malicious server's finding. A client that builds its own network does not take part.
Granted     public data, for the quantiles, when the server makes its weights; none when it reads a gradient. No labels.

    u_i = ReLU(gain <h, x> - gain q_i), output = c mean_i(u_i / gain - q_i)          the same at every pixel
    dL/dW_i - dL/dW_{i+1} = sum of s_j x_j over the examples with q_i < <h, x_j> <= q_{i+1}, and for the bias of s_j
    their ratio is x_j if example j is alone in its bin; the last bin has no upper end and is read off alone

Exact       for an example alone in its bin; expected share of a batch of n: (1 - 1/k)^(n-1). Others give mixtures.
Query       h = 1/d (``mean``), or a mode of the discrete cosine transform (``dct``), over its public deviation.
Quantiles   of public measurements (``public``), or of a normal or a Laplace distribution with their mean and deviation.
Kept        if there are more readings than examples: first those whose own measurement lies in their bin, then those
            with the largest |difference of dL/db|. The truth is not used. Missing ones are the mean colour.
Adaptive    nothing private is needed. A defence that changes gradients is not adapted to: static.
Departures  1. ``public`` quantiles by default; the paper assumes a distribution.
            2. The output is a mean over the units, times c = 0.01, in place of their sum. A large one saturates the
               network, and an example of the class that it then says has no gradient; local training may diverge.
            3. ``connection=added`` adds the input to the module's output: then the network also learns.
            4. Several local steps move the bins, and their mean gradient is read as if they had not: approximate. A
               larger ``gain`` moves them less, but float32 then rounds the weights' change away.
"""

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from flfw.adversary.attack import ClosedFormAttack, NotApplicableError, Private
from flfw.bounds import PositiveFinite
from flfw.inversion.closed_form.imprint import (
    BinSettings,
    ImprintModule,
    crafted,
    dct_query,
    expected_alone,
    mean_query,
    read_bins,
    thresholds,
)
from flfw.nets.malicious_model import ModelModification, in_front
from flfw.nets.net import Net, Tensors
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient

_FIRST = "measure.weight"  # of the module; what stands before it in a name is the module's place


@dataclass(frozen=True)
class ImprintSettings(BinSettings):
    """Settings of the module."""

    query: Literal["mean", "dct"] = "mean"  # quantity that the units measure
    gain: PositiveFinite = 1e-3  # of the first layer; the second has its inverse


@final
class Imprint(ClosedFormAttack, ModelModification):
    """Closed form for the gradient of an imprint module."""

    Settings = ImprintSettings
    tuned_on = "MNIST training images, drawn at random (the size of the module's output)"
    selection = "closed form; readings that fit their bins first"

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return ``not needed``: only the module's own gradient is used."""
        return "not needed"

    def expected_share(self, batch: int) -> float:
        """Compute the share of examples that are alone in their bins, if the quantiles are right."""
        return expected_alone(self.settings.bins, batch)

    def network(self, net: Net) -> Net:
        """Put the module in front of the network."""
        chosen = self.settings
        if chosen.query == "dct":
            chosen.require_mode(torch.Size(net.shape).numel(), "imprint")
        return in_front(net, ImprintModule(net.shape, chosen.bins, chosen.added))

    def crafted(self, tensors: Tensors, public: Tensor) -> Tensors:
        """Compute the module's tensors from public measurements."""
        names = [name for name in tensors if name.endswith(_FIRST)]
        if not names:  # the control of an audit has no module
            return {}
        flat = public.flatten(1)
        inputs, mode = flat.shape[1], self.settings.mode
        query = mean_query(inputs) if self.settings.query == "mean" else dct_query(inputs, mode)
        query = query / (flat @ query).std()
        ends = thresholds(flat @ query, self.settings.bins, self.settings.quantiles)
        output = self.settings.output / self.settings.bins
        return crafted(query, ends, self.settings.gain, output, names[0].removesuffix(_FIRST))

    def read_off(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Reconstruction:
        """Read the bins."""
        victim, gradient = knowledge.model, mean_gradient(observation, knowledge)
        places = [name for name, part in victim.model.named_modules() if isinstance(part, ImprintModule)]
        names = [f"{places[0]}.measure.{part}" for part in ("weight", "bias")] if places else []
        if not names or any(name not in gradient for name in names):
            raise NotApplicableError(
                "imprint needs its module in a shared part of the network: --malicious-server imprint"
            )
        readings = read_bins(*(gradient[name] for name in names), *(observation.received[name] for name in names))
        inputs = readings.best(knowledge.batch).view(-1, *victim.inputs.shape)
        blank = torch.zeros(knowledge.batch - len(inputs), *victim.inputs.shape, device=inputs.device)
        raw = torch.cat([inputs, blank]) * victim.inputs.std + victim.inputs.mean
        return Reconstruction(raw.nan_to_num(nan=0.5).clamp(*knowledge.box).float())
