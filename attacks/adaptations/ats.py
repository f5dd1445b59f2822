"""Against ats: search for the transformed image as if there were no defence, then undo the transformation.

Paper       none has this adaptation. Balunovic et al., "Bayesian Framework for Gradient Leakage", ICLR 2022, arXiv
            2111.04706, invert early gradients under ATS, and compare with the transformed images.
Knows       the policy, and so the operations, their order and their magnitudes; neither sequence nor signs of an image.
Does        1. undoes all sequences with all choices of signs in the image that the search gives, y -> x'.
            2. applies each to its x' again and compares with y. A black margin on the wrong side, or brightness that
               would have been clipped, shows in the difference; those that differ by up to 2 levels more than the
               best one stay.
            3. of these takes the one most like the public images, where they are granted: in mean, deviation and
               mean difference of neighbours, each in deviations among these images. Else the largest deviation of
               the pixels: images mostly use the whole range.
Lost        the margins of translations, shears and rotations (filled with their nearest pixels), clipped and rounded
            levels (the nearest, the middle), the histogram before autocontrast and equalize, and the side of solarize
            (left as they are). `flfw.data.transformations.undo` has each.
Departures  1. of more than 256 choices the 256 are kept whose last operations leave the least difference.
            2. images of one batch are undone independently of each other.
"""

from itertools import product
from typing import NamedTuple, final

import torch
from torch import Tensor

from flfw.data.transformations import Operation, Step, patterns, replayed, sequences, undo
from flfw.inversion.client_models.operator import DataOperator

_MOST = 256  # choices of sequences and signs that are undone
_MOST_VERSIONS = 64  # of a batch, in an audit's comparison of given data
_EXACT = 2 / 255  # root mean square, above that of the best choice, that tells nothing


class Choice(NamedTuple):
    """Estimate of an image (1, C, H, W) under some steps, and the squared differences left by the steps so far."""

    image: Tensor
    steps: tuple[Step, ...] = ()
    left: float = 0.0


@final
class ATSAdaptation(DataOperator):
    """Known policy, undone in the result of a search."""

    def restored(self, samples: Tensor, public: Tensor | None) -> Tensor:
        """Undo each image's transformation under the likeliest sequence and signs."""
        return torch.cat([self._likeliest(y, public) for y in samples.split(1)])

    def versions(self, samples: Tensor) -> list[Tensor]:
        """List the transformed batches under all sequences and signs."""
        known = list(patterns(sequences(self.settings["policy"])))
        if len(known) ** len(samples) > _MOST_VERSIONS:
            return []
        each = [[replayed(x, steps) for steps in known] for x in samples.split(1)]
        return [torch.cat(batch) for batch in product(*each)]

    def augmentation_distance(self, samples: Tensor, result: Tensor) -> Tensor:
        """Compare each image with all versions of each sample."""
        rows = []
        for x in samples.split(1):
            each = [replayed(x, steps) for steps in patterns(sequences(self.settings["policy"]))]
            rows.append(torch.stack([(torch.cat(each) - y).square().flatten(1).mean(1).min() for y in result]))
        return torch.stack(rows).sqrt()

    def _likeliest(self, y: Tensor, public: Tensor | None) -> Tensor:
        choices = [one for sequence in sequences(self.settings["policy"]) for one in _choices(y, sequence)]
        errors = [_difference(replayed(one.image, one.steps), y) ** 0.5 for one in choices]
        fitting = [one.image for one, error in zip(choices, errors, strict=True) if error <= min(errors) + _EXACT]
        images = torch.cat(fitting)
        if public is None or len(public) < 2:
            return fitting[int(images.flatten(1).std(1).argmax())]
        std, mean = torch.std_mean(_statistics(public.to(images)), 0)
        strangeness = ((_statistics(images) - mean) / std.clamp(min=1e-6)).square().sum(1)
        return fitting[int(strangeness.argmin())]


def _choices(y: Tensor, sequence: tuple[Operation, ...]) -> list[Choice]:
    """Undo a sequence from its end, with all signs."""
    choices = [Choice(y)]
    for operation in reversed(sequence):
        choices = [_earlier(one, Step(operation, sign)) for one in choices for sign in operation.signs]
        choices = sorted(choices, key=lambda one: one.left)[:_MOST]
    return choices


def _earlier(choice: Choice, step: Step) -> Choice:
    """Undo one step more."""
    image = undo(choice.image, step)
    again = _difference(replayed(image, [step]), choice.image)
    return Choice(image, (step, *choice.steps), choice.left + again)


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).square().mean())


def _statistics(images: Tensor) -> Tensor:
    """Compute mean, deviation, and mean difference of neighbours of images (N, C, H, W): (N, 3)."""
    across, down = images.diff(dim=-1).abs(), images.diff(dim=-2).abs()
    each = images.flatten(1)
    return torch.stack([each.mean(1), each.std(1), across.flatten(1).mean(1) + down.flatten(1).mean(1)], 1)
