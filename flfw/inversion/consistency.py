"""Group consistency: searches for the same data from several starts keep near their registered mean.

(Yin et al., "See through Gradients", CVPR 2021, section 3.3.) Different starts find the same objects at different
places. So each image is first shifted onto the mean of all starts, and the mean of the shifted ones is the one to
which all are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flfw.bounds import BoundedSettings, NonNegativeFloat, NonNegativeInt, PositiveInt, Share
from flfw.inversion.matching import Guess
from flfw.inversion.search_optimisers import Evaluate
from flfw.nets.net import Tensors

_EVERY = 10  # evaluations between two computations of the mean, each of which waits for the device
_TINY = 1e-12


@final
@dataclass(frozen=True)
class GroupConsistency(BoundedSettings):
    """Influence of a target's starts on each other; it is a `flfw.inversion.search.Together`.

    It adds the gradient of ``weight * mean over images of ||x - E||^2``, with E as a constant, to that of each start's
    guess. Objective and distance stay as they are, so that they compare guesses before and after it begins.

    Attributes:
        starts: number of starts of each target, >= 1.
        weight: weight of the squared distance, >= 0.
        after: share of the iterations without it, in [0, 1]; noise has no place to be registered by.
        reach: largest shift of an image, in pixels along each axis, >= 0.
    """

    starts: PositiveInt
    weight: NonNegativeFloat
    after: Share = 0.5
    reach: NonNegativeInt = 4

    def __call__(self, evaluate: Evaluate, labels: Tensor | None, iterations: int) -> Evaluate:
        """Return an evaluation that draws the starts of each target together, counted from its first call."""
        done, mean = 0, torch.empty(0)

        def drawn(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
            nonlocal done, mean
            gradients, objective, matched = evaluate(guess)
            past, done = done - int(self.after * iterations), done + 1
            if past < 0 or self.starts == 1 or not self.weight:
                return gradients, objective, matched
            if past % _EVERY == 0:
                mean = self.means(guess["x"], labels)
            pull = 2 * self.weight * (guess["x"] - mean) / guess["x"].shape[1]
            return {**gradients, "x": gradients["x"] + pull}, objective, matched

        return drawn

    def means(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """Compute each start's E: the registered mean of its target's starts, in its own order of the images.

        A start that left the finite numbers has no part in the mean of the others.

        Args:
            x: (P, B, ...) guesses; the starts of a target stand side by side.
            labels: (P, B); None: any image may stand for any other of its batch.
        """
        result = x.clone()
        for at in range(0, len(x), self.starts):
            sound = [i for i in range(at, at + self.starts) if bool(x[i].isfinite().all())]
            places = [_alike(x[sound[0]], x[i], None if labels is None else labels[at]) for i in sound]
            if not sound:
                continue
            ordered = torch.stack([x[i][order] for i, order in zip(sound, places, strict=True)])
            coarse = ordered.mean(0)
            mean = torch.stack([registered(one, coarse, self.reach) for one in ordered]).mean(0)
            for i, order in zip(sound, places, strict=True):
                result[i] = mean[order.argsort()]
        return result


def registered(x: Tensor, onto: Tensor, reach: int) -> Tensor:
    """Move images by whole pixels to where they agree most with others, by phase correlation (Kuglin and Hines, 1975).

    Rows and columns that leave an image return on its other side. Rows of numbers are not shifted.

    Args:
        x: (B, C, H, W), or (B, d).
        onto: the same shape.
        reach: largest shift along each axis, in pixels, >= 0.
    """
    if x.dim() < 4 or reach == 0:
        return x
    cross = torch.fft.fft2(onto) * torch.fft.fft2(x).conj()
    agreement = torch.fft.ifft2(cross / cross.abs().clamp_min(_TINY)).real.sum(1)  # (B, H, W)
    height, width = (min(reach, (side - 1) // 2) for side in x.shape[-2:])
    near = agreement.roll((height, width), (1, 2))[:, : 2 * height + 1, : 2 * width + 1]  # shifts from -reach on
    best = near.flatten(1).argmax(1).tolist()
    shifts = [(at // near.shape[2] - height, at % near.shape[2] - width) for at in best]
    return torch.stack([one.roll(shift, (1, 2)) for one, shift in zip(x, shifts, strict=True)])


def _alike(reference: Tensor, x: Tensor, labels: Tensor | None) -> Tensor:
    """Return the order of images (B, ...) in which they are nearest to others, each to one of its own label."""
    from scipy.optimize import linear_sum_assignment  # imported here, because it takes a second

    costs = torch.cdist(reference.flatten(1).double(), x.flatten(1).double()).square()
    if labels is not None:  # all starts have the labels of the target, in one order
        costs = costs + (labels[:, None] != labels[None, :]) * (costs.sum() + 1)
    return torch.from_numpy(linear_sum_assignment(costs.cpu().numpy())[1]).to(x.device)
