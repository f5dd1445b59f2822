"""Images of a low resolution, enlarged by bicubic interpolation: the space of a search, and its best images.

Bicubic interpolation is linear and acts on rows and columns apart: ``x = R z C^T``. So the nearest image of this form
to a given one is a projection, and it limits every search for z.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from flfw.bounds import BoundedSettings, PositiveInt
from flfw.errors import require
from flfw.inversion.client_models.victim import VictimModel, WrappingVictim
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors

_ITERATIONS = 100  # of the search for the nearest image


def enlarging(small: int, large: int) -> Tensor:
    """Compute the matrix (large, small) of bicubic interpolation along one side, in float64.

    >>> enlarging(2, 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    columns = torch.eye(small, dtype=torch.float64)[:, None, :, None].expand(-1, -1, -1, 4)
    enlarged = interpolate(columns, size=(large, 4), mode="bicubic", align_corners=False)
    return enlarged[:, 0, :, 0].T


@dataclass(frozen=True)
class LowResolution(BoundedSettings):
    """Space of the images that bicubic interpolation makes of smaller ones.

    Attributes:
        shape: shape (C, H, W) of an image.
        factor: sides of an image over those of a small one, >= 1; a small side is rounded up.
    """

    shape: tuple[int, ...]
    factor: PositiveInt

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.shape) == 3, "images (C, H, W)", shape=self.shape)

    @property
    def small(self) -> tuple[int, int, int]:
        """Shape (C, h, w) of a small image."""
        channels, height, width = self.shape
        return channels, -(-height // self.factor), -(-width // self.factor)

    @cached_property
    def matrices(self) -> tuple[Tensor, Tensor]:
        """Matrices R (H, h) and C (W, w), in float64."""
        sides = zip(self.small[1:], self.shape[1:], strict=True)
        rows, columns = (enlarging(small, large) for small, large in sides)
        return rows, columns

    def enlarged(self, small: Tensor) -> Tensor:
        """Compute the enlarged images (..., C, H, W) of small ones (..., C, h, w); values are not clamped."""
        rows, columns = (matrix.to(small) for matrix in self.matrices)
        return rows @ small @ columns.T

    def nearest(self, images: Tensor, boxed: bool, iterations: int = _ITERATIONS) -> Tensor:
        """Compute the images of this space that come nearest to given ones, with the help of the given ones.

        First the least-squares images, clamped. A small image outside [0, 1] can come much nearer to an image of black
        and white, as what it loses by the clamp costs nothing there. So accelerated gradient steps (Beck and Teboulle,
        2009) follow, along clamp(u) - x. They minimise a convex function that is half the squared error within [0, 1],
        and linear outside; the second half of them minimises the squared error itself, which is constant there. The
        nearest image of all is kept. It is nearly the best one, which is not proven.

        Args:
            images: (N, C, H, W) in [0, 1].
            boxed: whether small images stay in [0, 1] in these steps.
            iterations: number of the steps, >= 0; 0: least squares.

        Returns:
            (N, C, H, W) in [0, 1].
        """
        require(iterations >= 0, "iterations >= 0", iterations=iterations)
        wanted = images.double()
        rows, columns = (matrix.to(wanted) for matrix in self.matrices)
        step = (torch.linalg.matrix_norm(rows, 2) * torch.linalg.matrix_norm(columns, 2)) ** -2
        before = torch.linalg.pinv(rows) @ wanted @ torch.linalg.pinv(columns).T
        best = self.enlarged(before).clamp(0, 1)
        minimum = (best - wanted).square().flatten(1).sum(1)
        ahead, pace = before, 1.0
        for done in range(iterations):
            image = self.enlarged(ahead)
            outside = (image != image.clamp(0, 1)) & (2 * done >= iterations)
            here = ahead - step * rows.T @ (image.clamp(0, 1) - wanted).masked_fill(outside, 0.0) @ columns
            here = here.clamp(0, 1) if boxed else here
            before_pace, pace = pace, (1 + (1 + 4 * pace**2) ** 0.5) / 2
            ahead, before = here + (before_pace - 1) / pace * (here - before), here
            image = self.enlarged(here).clamp(0, 1)
            error = (image - wanted).square().flatten(1).sum(1)
            best = torch.where((error < minimum)[:, None, None, None], image, best)
            minimum = torch.minimum(error, minimum)
        return best.to(images)


@final
class LowResolutionVictim(WrappingVictim):
    """Victim of another kind, whose data are searched for as small images.

    Its inputs are small images in the units of raw inputs. An enlarged image may leave [0, 1].

    Args:
        client: victim whose inputs are images.
        space: space of its images.
        constants: its constants for one observation. Then observations are in the coordinates of its gradient, such as
            those of a simulated client. None: observations are those of the victim.
    """

    def __init__(self, client: VictimModel, space: LowResolution, constants: Tensors | None = None) -> None:
        none, one = [0.0] * space.small[0], [1.0] * space.small[0]
        super().__init__(client, InputSpec.from_constants(space.small, none, one).to(client.inputs.mean.device))
        self._space, self._constants = space, constants
        # Computed here, as `gradient` is called while a graph is traced.
        rows, columns = (matrix.to(self.inputs.mean) for matrix in space.matrices)
        self._rows, self._columns = rows, columns.T

    def around(self, client: VictimModel) -> LowResolutionVictim:
        """Return the victim of another client in the same space."""
        return LowResolutionVictim(client, self._space, self._constants)

    def raw(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the enlarged images."""
        return self._rows @ x @ self._columns

    def check(self, sent: Tensors) -> None:
        """Refuse an observation that cannot be of this client; see `VictimModel.check`."""
        if self._constants is None:
            super().check(sent)

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the observation in the client's coordinates, and its constants."""
        return super().observed(sent) if self._constants is None else (sent, self._constants)
