"""Recipes of a search with a flow as its prior, made from one without it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from flfw.errors import require
from flfw.inversion.flow.denoising import GuidedFlow, PlugAndPlay, denoiser
from flfw.inversion.flow.training import FlowTraining, Velocity
from flfw.inversion.search import SearchConfig
from flfw.inversion.search_optimisers import AdamSearch, SearchOptimiser
from flfw.nets.inputs import InputSpec

_FALLING = 0.1  # last weight of the plug-and-play step over the first


@dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """Settings of the flow prior, of an attack that can use one."""

    flow_width: int = 16  # channels of the velocity network's first level, a multiple of 8; 32: full size
    flow_iterations: int = 1000  # Adam steps of its training, >= 1; 10,000 to 20,000: full size
    flow_batch: int = 64  # images in such a step, >= 1; 128: full size
    flow_lr: float = 2e-3  # first step size of its training, > 0; 2e-4: full size
    flow_tv: float = 0.05  # first weight of the total variation beside the flow, >= 0; it falls as without a flow
    flow_every: int = 10  # steps of the search for each plug-and-play step, >= 1
    flow_weight: float = 0.5  # first weight of that step, in [0, 1]; it falls to a tenth
    flow_steps: int = 50  # Euler steps of the guided flow, >= 1
    flow_guidance: float = 0.1  # root mean square of its steps down the objective, images in [-1, 1], >= 0

    def __post_init__(self) -> None:
        _ = self.training
        require(0 <= self.flow_tv < inf, "0 <= flow_tv < inf", flow_tv=self.flow_tv)
        require(self.flow_every >= 1, "flow_every >= 1", flow_every=self.flow_every)
        require(0 <= self.flow_weight <= 1, "0 <= flow_weight <= 1", flow_weight=self.flow_weight)
        require(self.flow_steps >= 1, "flow_steps >= 1", flow_steps=self.flow_steps)
        require(0 <= self.flow_guidance < inf, "0 <= flow_guidance < inf", flow_guidance=self.flow_guidance)

    @property
    def training(self) -> FlowTraining:
        """Settings of the network and its training."""
        return FlowTraining(self.flow_width, self.flow_iterations, self.flow_batch, self.flow_lr)


def flow_recipes(
    config: SearchConfig, velocity: Velocity, inputs: InputSpec, settings: FlowSettings
) -> tuple[SearchConfig, SearchConfig]:
    """Return the recipe with plug-and-play steps, and the recipe that begins at the end of a guided flow.

    The plug-and-play steps stand in its opening and main searches by Adam, not in the closing ones, where the prior is
    weak on purpose. So all three end in the same stages, and their distances can be compared.

    Args:
        config: the search without a flow; it starts from N(0, 1).
        velocity: the velocity network.
        inputs: the input space.
        settings: settings of the flow.
    """
    weights = settings.flow_weight, _FALLING * settings.flow_weight
    step = PlugAndPlay(denoiser(velocity), inputs, settings.flow_every, weights)

    def plugged(descent: SearchOptimiser) -> SearchOptimiser:
        return replace(descent, proximal=step) if isinstance(descent, AdamSearch) else descent

    opening = tuple(replace(stage, descent=plugged(stage.descent)) for stage in config.opening)
    plug_and_play = replace(config, descent=plugged(config.descent), opening=opening)
    flow = GuidedFlow(velocity, inputs, settings.flow_steps, settings.flow_guidance)
    guided = replace(config, opening=(replace(config.stages[0], descent=flow), *config.opening))
    return plug_and_play, guided
