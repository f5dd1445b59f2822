"""ATS: each training image is transformed by a searched sequence of operations, as if by augmentation.

Paper       Gao et al., "Privacy-preserving Collaborative Learning with Automatic Transformation Search", CVPR 2021,
            arXiv 2011.12505; extended in TPAMI 2023. A baseline of DCS^2. `research.papers.transformation_search` is
            its search.
Symbols     T a policy: ids of operations, in order; with `+` one of several sequences for each image, uniformly.
Acts on     the images of each local step, after the augmentation; not on the labels.
Departures  1. The paper gives each operation a probability. The authors' code lists it and never uses it: the whole
               sequence is applied, here as there. Only the sign of each magnitude is random.
            2. Sequences and signs are drawn in each batch; that is anew in each epoch, as the authors do.
            3. The authors' search also draws the id 50, which does not exist; here it is refused.
            4. The operations are torchvision's; they differ by at most one level of 255 from PIL's, the authors'. On
               images of one channel color does nothing, as PIL's on grey images; images are bytes in between.

    x -> T(x)      in each local step; the gradient is that of T(x), and nothing hides T(x) in it
"""

from dataclasses import dataclass, replace
from itertools import islice
from typing import final

import torch
from torch import Tensor

from flfw.data.transformations import patterns, sequences, transformed
from flfw.errors import InputError, require
from flfw.task.defence import Defence

_INVERT = "47"
_IDENTITIES = {"28", "39"}
_CHANNELS = (1, 3)
_MOST_VERSIONS = 512  # an audit tries them all


@dataclass(frozen=True)
class ATSSettings:
    """The policy."""

    policy: str = "3-1-7"  # ids from 0 to 49 joined by -, sequences joined by +; the CVPR paper's for CIFAR-100

    def __post_init__(self) -> None:
        count = sum(1 for _ in islice(patterns(sequences(self.policy)), _MOST_VERSIONS + 1))
        most = f"a policy with at most {_MOST_VERSIONS} versions of an image"
        require(count <= _MOST_VERSIONS, most, policy=self.policy)


@final
class ATS(Defence):
    """Defence that trains on transformed images."""

    Settings = ATSSettings

    @classmethod
    def weakest_settings(cls, settings: ATSSettings) -> ATSSettings:
        """Return the policy that inverts images, which is undone exactly; one that changes nothing stays."""
        changes = set(settings.policy.replace("+", "-").split("-")) - _IDENTITIES
        return replace(settings, policy=_INVERT) if changes else settings

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        """Refuse data that are no grey or colour images."""
        if len(shape) != 3 or shape[0] not in _CHANNELS:
            raise InputError(f"Expected images of 1 or 3 channels for ats, got inputs of {'x'.join(map(str, shape))}.")

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Transform each image by a sequence of the policy."""
        return transformed(x, sequences(self.settings.policy), rng), y
