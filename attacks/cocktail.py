"""Cocktail party attack: a batch of images unmixed by independent component analysis of a first layer's gradient.

Paper       Kariyappa et al., "Cocktail Party Attack: Breaking Aggregation-Based Privacy in Federated Learning using
            Independent Component Analysis", ICML 2023, arXiv 2209.05578.
Idea        the gradient of a fully connected layer is D^T A: each row is a mixture of the inputs A. Images are the
            mixtures whose values are least like a normal distribution.
Needs       a network whose first layer with weights is fully connected and shared, with its bias; images; more units
            than examples. Several local steps are a mixture, too, but weight decay adds the weights to it.
Granted     nothing but the observation. No labels; no other tensor of the network.
Adaptive    no. Noise that covers the smallest of the batch's singular values ends it.
Departures  1. The components are those of the images' differences between neighbouring pixels, which are sparse and
               nearly independent; the pixels themselves are not (digits share their background). This replaces the
               paper's total variation and decorrelation, and turns its descent into FastICA, by scikit-learn.
            2. Sign and length of an image follow from the bias's gradient. The paper leaves both open.
            3. Only the first layer: the paper's search for images behind the features of a later layer is not here.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from flfw.adversary.attack import Attack, AttackCost, NotApplicableError, Private
from flfw.bounds import BoundedSettings, PositiveInt
from flfw.inversion.closed_form.linear import FirstLayer
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient

_ROUNDING = 1e-6  # a singular value below this share of the largest one is rounding


@dataclass(frozen=True)
class CocktailSettings(BoundedSettings):
    """Settings of the independent component analysis."""

    iterations: PositiveInt = 500  # largest number of FastICA's fixed-point steps


@final
class Cocktail(Attack):
    """Independent component analysis of a fully connected first layer's gradient."""

    Settings = CocktailSettings
    reads_first_layer: ClassVar[bool] = True

    @property
    def cost(self) -> AttackCost:
        """Budget of FastICA's steps, from one start."""
        return AttackCost(iterations=self.settings.iterations, restarts=1, selection="one search")

    @property
    def labels(self) -> str:
        """Return ``not used``: the analysis needs none."""
        return "not used"

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return ``not needed``: the first layer is enough."""
        return "not needed"

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Separate the batch of each observation."""
        return [self._unmixed(*one) for one in zip(observations, knowledge, rngs, strict=True)]

    def _unmixed(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Reconstruction:
        weight, bias = _first_layer(observation, knowledge)
        inputs = knowledge.model.inputs
        images = unmix(weight, bias, knowledge.batch, inputs.shape, self.settings.iterations, rng).to(inputs.mean)
        samples = inputs.mean.new_full((knowledge.batch, *inputs.shape), 0.5)  # a grey one for each missing component
        samples[: len(images)] = (images * inputs.std + inputs.mean).nan_to_num(nan=0.5)
        return Reconstruction(samples.clamp(*knowledge.box))


def unmix(
    weight: Tensor, bias: Tensor, count: int, shape: Sequence[int], iterations: int, rng: torch.Generator
) -> Tensor:
    """Separate the images that are mixed in a fully connected layer's gradient.

    Args:
        weight: (n, d) gradient of the weight.
        bias: (n,) gradient of the bias.
        count: largest number of images, 1 <= count.
        shape: (C, H, W) of an image, d values.
        iterations: largest number of FastICA's steps.
        rng: generator of its start, on the CPU.

    Returns:
        (K, C, H, W) float64 on the CPU; K is less than ``count`` where singular values are missing.
    """
    left, sizes, mixtures = torch.linalg.svd(weight.detach().double().cpu(), full_matrices=False)
    present = int((sizes[:count] > _ROUNDING * sizes[0]).sum())
    if present == 0:
        return mixtures.new_zeros(0, *shape)
    mixtures, total = mixtures[:present], left.T[:present] @ bias.detach().double().cpu() / sizes[:present]
    components = torch.eye(1, dtype=torch.float64)
    if present > 1:
        components = _components(_differences(mixtures.view(-1, *shape)), iterations, rng)
    lengths = components @ total  # of an image in its mixture: 1 for a layer's bias, as for a constant pixel of 1
    return ((components @ mixtures) / lengths[:, None]).view(-1, *shape)


def _differences(images: Tensor) -> Tensor:
    """Compute the differences of neighbouring pixels (K, P) of images (K, C, H, W)."""
    return torch.cat([images.diff(dim=-2).flatten(1), images.diff(dim=-1).flatten(1)], dim=1)


def _components(mixtures: Tensor, iterations: int, rng: torch.Generator) -> Tensor:
    """Return the vectors (K, K) that unmix independent signals (K, P)."""
    seed = int(torch.randint(2**31, (), generator=rng))
    search = FastICA(fun="exp", whiten="unit-variance", whiten_solver="svd", max_iter=iterations, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last step's vectors are the result
        search.fit(mixtures.T.numpy())
    return torch.from_numpy(np.asarray(search.components_, dtype=np.float64))


def _first_layer(observation: Observation, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Return the gradients of the first layer's weight (n, d) and bias (n,).

    Raises:
        NotApplicableError: it is not fully connected, not shared or without a bias, or the inputs are no images.
    """
    first = FirstLayer.of(knowledge.model.model, knowledge.model.inputs.shape)
    shape = knowledge.model.inputs.shape
    gradient = mean_gradient(observation, knowledge)
    weight, bias = (gradient.get(f"{first.name}.{part}") for part in ("weight", "bias"))
    if not first.dense or weight is None or bias is None or len(bias) < knowledge.batch:
        required = f"a shared fully connected first layer with {knowledge.batch} units"
        raise NotApplicableError(f"cocktail needs {required}, got {first.kind}")
    if len(shape) != 3 or min(shape[1:]) < 2:
        raise NotApplicableError(f"cocktail needs images, got inputs of shape {tuple(shape)}")
    return weight, bias
