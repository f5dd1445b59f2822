"""Against dp_gaussian: bound a guess's gradient as the client does, and weigh errors by the noise's known size.

Paper       no paper's own. Balunovic et al., "Bayesian Framework for Gradient Leakage", ICLR 2022, derive the same for
            noise without a bound: the likelihood of a Gaussian beside a prior of images.
Knows       the noise's standard deviation and the bound, not the noise.
Does        scales a trial gradient by min(1, clip / ||trial||), the norm over all tensors jointly, and names the
            deviation in `noise`; an attack then minimises ||trial - sent||^2 / (2 std^2) plus a prior, both in nats.
Departures  none.
"""

from __future__ import annotations

from typing import final

from flfw.inversion.matching import inner
from flfw.nets.net import Tensors
from flfw.victims.operator import Operator

_TINY = 1e-30  # keeps the derivative of the norm finite where the norm is 0


@final
class DPGaussianAdaptation(Operator):
    """The bound, and the size of the noise."""

    def apply(self, trial: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """The trial within the bound; without noise, whose mean is 0."""
        bound = self.settings["clip"]
        own = {name: trial[name] for name in sent}
        if not bound:
            return own
        factor = (bound / (inner(own, own) + _TINY).sqrt()).clamp(max=1.0)
        return {name: value * factor for name, value in own.items()}

    @property
    def noise(self) -> float | None:
        """The client's ``std``; None where it is 0."""
        return self.settings["std"] or None
