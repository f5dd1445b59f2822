"""Membership by a conditional generator: whether a candidate's feature is nearer to what a client's generator makes.

A generator that was trained on few features may place its own near them. For a candidate of class y with the feature f,

    U(f) = P(|f - G_k(z, y)| < |f - G'(z', y)|)

is Mann and Whitney's statistic of two sets of distances: to features of the client's generator and of others'. All are
of the candidate's class, so that the class tells nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flfw.errors import require


def nearer_share(features: Tensor, labels: Tensor, made: Tensor, others: Tensor) -> Tensor:
    """Compute U (N,), in [0, 1]: the share of pairs of which the client's own is nearer; equal ones count half.

    Args:
        features: (N, d) of the candidates.
        labels: (N,) their classes.
        made: (classes, n, d) features that the client's generator makes for each class, n >= 1.
        others: (classes, m, d) those of others' generators, m >= 1.

    Raises:
        InputError: nothing generated, or sizes that do not belong together.

    >>> made, others = torch.tensor([[[1.0], [4.0]]]), torch.tensor([[[2.0], [3.0]]])
    >>> nearer_share(torch.tensor([[0.0], [2.6]]), torch.tensor([0, 0]), made, others).tolist()
    [0.5, 0.0]
    """
    fitting = made.dim() == others.dim() == 3 and features.shape[1:] == made.shape[2:] == others.shape[2:]
    shapes = f"{tuple(features.shape)}, {tuple(made.shape)}, {tuple(others.shape)}"
    some = fitting and made.shape[1] >= 1 and others.shape[1] >= 1
    require(some, "features (N, d) and (classes, n, d) of each side, n >= 1", shapes=shapes)
    result = features.new_zeros(len(features), dtype=torch.float64)
    for label in labels.unique().tolist():
        rows = labels == label
        near, far = (torch.cdist(features[rows], one[label])[:, :, None] for one in (made, others))
        far = far.transpose(1, 2)
        result[rows] = ((near < far).double() + 0.5 * (near == far).double()).mean((1, 2))
    return result
