"""Against dp_gaussian: clip a guess's gradient as the client does, and weight errors by the noise's known size.

Paper       none has this adaptation. Balunovic et al., "Bayesian Framework for Gradient Leakage", ICLR 2022, derive the
            same for noise without a bound: a Gaussian likelihood plus an image prior.
Knows       the noise's standard deviation and the bound, not the noise.
Does        scales a trial gradient by min(1, clip / ||trial||), with the joint norm over all tensors, and gives the
            deviation in `noise`; an attack then minimises ||trial - sent||^2 / (2 std^2) plus a prior, both in nats.
Departures  none.
"""

from typing import final

from flfw.inversion.client_models.operator import TRAITS, Operator, ResidualMechanism, Trait
from flfw.inversion.matching import inner
from flfw.nets.net import Tensors

_TINY = 1e-30  # keeps the derivative of the norm finite where the norm is 0


@final
class DPGaussianAdaptation(Operator):
    """Clipping bound, and the size of the noise."""

    @property
    def requires(self) -> frozenset[Trait]:
        """The noise, if there is any; the bound needs nothing."""
        return frozenset(("noise",)) if self.settings["std"] else frozenset()

    @property
    def preserves(self) -> frozenset[Trait]:
        """Scale and noise unless there is a bound, and the others unless noise covers them."""
        by_a_bound: frozenset[Trait] = frozenset(("scale", "noise"))
        left = TRAITS - by_a_bound if self.settings["clip"] else TRAITS
        return left & by_a_bound if self.settings["std"] else left

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Clip the trial; the noise is left out, its mean is 0."""
        bound = self.settings["clip"]
        gradients = {name: simulated[name] for name in sent}
        if not bound:
            return gradients
        factor = (bound / (inner(gradients, gradients) + _TINY).sqrt()).clamp(max=1.0)
        return {name: value * factor for name, value in gradients.items()}

    def residual(self, sent: Tensors) -> ResidualMechanism:
        """Return the rest of an example: its gradient below noise, at the scale that a bound gives to all."""
        return ResidualMechanism(deviation=self.settings["std"], scaled=bool(self.settings["clip"]))

    @property
    def noise(self) -> float | None:
        """The client's ``std``; None where it is 0."""
        return self.settings["std"] or None
