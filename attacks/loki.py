"""Loki: a malicious server that sends each client a convolution of its own, so that their sum falls apart again.

Paper       Zhao et al., "LOKI: Large-scale Data Reconstruction Attack against Federated Learning through Model
            Manipulation", IEEE S&P 2024, arXiv 2303.12233.
Needs       images, and a network of the server's making (``--malicious-server loki``) whose first layers are shared;
            all that it finds is a malicious server's finding. A client that builds its own network does not take part.
Granted     only the sum over clients of what they sent, as behind secure aggregation; what each was sent; public
            data, for the quantiles, when the server makes its weights; none when it reads a sum. No labels.

    client z receives a convolution: a(x) = scale (x + offset) in its own channels, 0 in those of all other clients
    u_i = hardtanh((<h, a> / scale - q_i) / (q_{i+1} - q_i)), output = c mean_i(u_i)     the same at every pixel
    the sum's dL/dW_i is in z's columns the sum of s_j a(x_j) over the examples of z alone with q_i < <h, x_j> < q_{i+1}
    at the pixels that padding adds a = scale offset: so the sum of s_j is there, and the ratio is x_j

Exact       for an example alone in its bin among those of its own client, whatever the number of clients.
Queries     two, each with k bins: the mean, and a mode of the discrete cosine transform. Expected share of a batch of
            n that is alone in one of them: 1 - (1 - (1 - 1/k)^(n-1))^2, if the queries are independent.
Kept        if there are more readings than examples: first images that both queries give alike, then those in whose
            bin of the other query there is anything, unless several of its images lie in their own bin; then those
            with the largest |sum of s_j|. The truth is not used. Missing ones are the mean colour.
Adaptive    nothing private is needed. A defence that changes gradients is not adapted to: static.
Departures  1. The slopes are read at the pixels of the padding. The published code has them in the shared biases, mixed
               over clients, and brings its images to the range of their own smallest and largest pixel.
            2. Units are chosen by these slopes and verified by the second query; the code chooses them by the true
               activations of the examples.
            3. The other clients do contribute to the sum: an audit adds up what it recorded.
            4. The output is a small mean over the units, in place of a large sum, with which training diverges.
            5. ``scale`` is 1e6; the code has 500. Local training then moves a unit so far, at the first example in its
               bin, that it is saturated for all later ones: so local steps mix less than one gradient of all does.
               With a small scale the bins drift, and float32 rounds the weights' change away.
            6. Local steps are read by their mean gradient, as if no bin had moved: approximate, and static.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from flfw.adversary.attack import ClosedFormAttack, NotApplicableError, Private
from flfw.bounds import PositiveFinite
from flfw.errors import require
from flfw.inversion.closed_form.client_columns import ClientColumns, bin_ends, client_convolution, read_columns, shared
from flfw.inversion.closed_form.imprint import BinSettings, dct_query, expected_alone, mean_query, thresholds
from flfw.nets.malicious_model import ModelModification, in_front
from flfw.nets.net import Net, Tensors
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient

_FIRST = "spread.weight"  # of the module; what stands before it in a name is the module's place


@dataclass(frozen=True)
class LokiSettings(BinSettings):
    """Settings of the module: of two queries, the second of them a cosine transform."""

    scale: PositiveFinite = 1e6  # of the convolution; the units have its inverse


@final
class Loki(ClosedFormAttack, ModelModification):
    """Closed form for the summed gradient of a module with columns for each client."""

    Settings = LokiSettings
    of_sums = True
    tuned_on = "MNIST test images, drawn at random (the convolution's scale)"
    selection = "closed form; images that both queries give alike first"

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return ``not needed``: only the module's own gradient is used."""
        return "not needed"

    def expected_share(self, batch: int) -> float:
        """Compute the share of a client's examples that are alone in a bin of one query, if the quantiles are right."""
        return 1 - (1 - expected_alone(self.settings.bins, batch)) ** 2

    def network(self, net: Net) -> Net:
        """Put the module for one client in front of the network."""
        return self.network_for(net, 1)

    def network_for(self, net: Net, clients: int) -> Net:
        """Put the module in front of the network."""
        require(len(net.shape) == 3, "images (C, H, W) with --malicious-server loki", shape=net.shape)
        chosen = self.settings
        chosen.require_mode(torch.Size(net.shape).numel(), "loki")
        return in_front(net, ClientColumns(net.shape, clients, 2 * chosen.bins, chosen.added))

    def crafted(self, tensors: Tensors, public: Tensor) -> Tensors:
        """Compute the fully connected layers of the module from public measurements; all clients get them."""
        index = _place(tensors)
        if index is None:  # the control of an audit has no module
            return {}
        chosen, flat = self.settings, public.flatten(1)
        queries = [mean_query(flat.shape[1]), dct_query(flat.shape[1], chosen.mode)]
        queries = [query / (flat @ query).std() for query in queries]
        ends = [bin_ends(thresholds(flat @ query, chosen.bins, chosen.quantiles)) for query in queries]
        clients = len(tensors[index + _FIRST]) // public.shape[1]
        images = [query.view(public.shape[1:]) for query in queries]
        made = shared(images, ends, clients, chosen.scale, _offset(public), chosen.output)
        return {index + name: value for name, value in made.items()}

    def personal(self, client: int, tensors: Tensors, public: Tensor) -> Tensors:
        """Compute the convolution of one client."""
        index = _place(tensors)
        if index is None:
            return {}
        channels = public.shape[1]
        clients = len(tensors[index + _FIRST]) // channels
        made = client_convolution(channels, clients, client, self.settings.scale, _offset(public))
        return {index + name: value for name, value in made.items()}

    def read_off(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Reconstruction:
        """Read a client's columns of the sum."""
        victim, gradient = knowledge.model, mean_gradient(observation, knowledge)
        places = [f"{name}." for name, part in victim.model.named_modules() if isinstance(part, ClientColumns)]
        name = f"{places[0]}measure.weight" if places else ""
        if name not in gradient:
            raise NotApplicableError("loki needs its module in a shared part of the network: --malicious-server loki")
        sent = {
            n.removeprefix(places[0]): value for n, value in observation.received.items() if n.startswith(places[0])
        }
        try:
            readings = read_columns(gradient[name], sent, tuple(victim.inputs.shape))
        except ValueError as error:
            raise NotApplicableError(f"loki needs the convolution that its server sends: {error}") from error
        images = readings.best(knowledge.batch)
        blank = torch.zeros(knowledge.batch - len(images), *victim.inputs.shape, device=images.device)
        raw = torch.cat([images, blank]) * victim.inputs.std + victim.inputs.mean
        return Reconstruction(raw.nan_to_num(nan=0.5).clamp(*knowledge.box).float())


def _place(tensors: Tensors) -> str | None:
    places = [name.removesuffix(_FIRST) for name in tensors if name.endswith(_FIRST)]
    return places[0] if places else None


def _offset(public: Tensor) -> float:
    """Return a number that makes all pixels positive, and those of the padding."""
    return 1.0 - min(0.0, float(public.min()))
