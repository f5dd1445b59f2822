"""Statistics of a candidate, which are higher for examples that an update was trained on, and their inputs.

``W`` is the broadcast model, ``W_k`` the one that client k sent back, and u = (W - W_k) / (lr steps), about the mean
gradient of its examples. The statistics are pure functions of what `flfw.adversary.membership.gradients` computes.

The whitened projection is the inner product of an example's gradient with an update, where noise is as loud everywhere.
Gradients of other examples are the noise of this test, and they are loud in few directions. With their mean m and
covariance S, from public examples and in a random sketch,

    T(x) = (g(x) - m)^T S^-1 (u - m) / sqrt((g(x) - m)^T S^-1 (g(x) - m))

is the likelihood ratio of "x is one of the N examples whose mean gradient is u", for normal gradients, up to a monotone
function of each example. Under "out" it is about N(0, 1/N). The plain inner product and the cosine leave most of this
on the table: loud directions drown the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.func import functional_call

from flfw.adversary.attack import NotApplicableError
from flfw.adversary.membership.gradients import Products
from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.errors import require
from flfw.inversion.client_models.victim import VictimModel
from flfw.nets.net import Tensors, losses
from flfw.recording.observation import Examples

RIDGE = 1e-3
"""Share of the mean variance that is added to each, as few public examples leave directions without any."""


@final
@dataclass(frozen=True)
class Whitening:
    """Mean and covariance of sketched gradients of public examples; `fit` makes one.

    Attributes:
        mean: (width,) float64.
        factor: (width, width) float64, lower triangular: the covariance with its ridge is ``factor @ factor.T``.
    """

    mean: Tensor
    factor: Tensor

    @classmethod
    def fit(cls, public: Tensor, ridge: float = RIDGE, noise: Tensor | float = 0.0) -> Whitening:
        """Fit the mean and the covariance.

        Args:
            public: (P, width) sketched gradients of examples of no client, P >= 2.
            ridge: share of the mean variance that is added to each, > 0.
            noise: variance, >= 0, of known noise on each number of the update's sketch, times the N examples that the
                update is a mean over: its other noise, the other examples, has the covariance over N. One, or (width,).

        Raises:
            InputError: too few examples, or a value out of range.
        """
        require(len(public) >= 2, "at least 2 public examples", public=len(public))
        require(ridge > 0, "ridge > 0", ridge=ridge)
        minimum = float(torch.as_tensor(noise).min())
        require(minimum >= 0, "noise >= 0", noise=minimum)
        rows = public.double()
        covariance = torch.atleast_2d(torch.cov(rows.T))
        size = len(covariance)
        added = (ridge * covariance.trace() / size + noise).expand(size)
        # Examples that are all alike have no covariance; the least positive number keeps the factor defined.
        added = added.clamp(min=torch.finfo(torch.float64).tiny ** 0.5)
        return cls(rows.mean(0), torch.linalg.cholesky(covariance + torch.diag(added)))

    def whitened(self, sketches: Tensor) -> Tensor:
        """Compute ``factor^-1 (sketch - mean)`` of sketches (N, width), in float64."""
        return torch.linalg.solve_triangular(self.factor, (sketches.double() - self.mean).T, upper=False).T

    def scores(self, sketches: Tensor, update: Tensor) -> Tensor:
        """Compute T for candidates.

        Args:
            sketches: (N, width) sketched gradients of the candidates.
            update: (width,) the sketch of a mean gradient.

        Returns:
            (N,) float64, higher for members; 0 for a candidate whose gradient is the public mean.
        """
        return self.against(sketches, update[None])[0]

    def against(self, sketches: Tensor, updates: Tensor) -> Tensor:
        """Compute T (K, N) for candidates against each of K updates (K, width); see `scores`."""
        rows = self.whitened(sketches)
        lengths = torch.linalg.vector_norm(rows, dim=1)
        products = self.whitened(updates) @ rows.T
        return torch.where(lengths > 0, products / lengths.clamp(min=torch.finfo(lengths.dtype).tiny), 0.0)


_STABILITY = 1e-8  # FedMIA's, added to a variance
_BANDS = 10  # of labels that are numbers


def cosine(products: Products) -> Tensor:
    """Compute the cosine (N,), in [-1, 1], of each candidate's gradient and the update; 0 where one of them is 0.

    FedMIA's second measurement (Zhu et al., CVPR 2025, arXiv 2402.06289). Under "out" its mean is near that of the
    class's other examples, not 0.
    """
    lengths = products.norms * products.length
    return torch.where(lengths == 0, 0.0, products.products / lengths.clamp(min=torch.finfo(lengths.dtype).tiny))


def gradient_difference(products: Products) -> Tensor:
    """Compute |u|^2 - |u - g|^2 = 2 <g, u> - |g|^2 (N,): how much nearer to 0 the update is without the candidate.

    The update must have the scale of a mean gradient. Li et al., "Effective Passive Membership Inference Attacks in
    Federated Learning Against Overparameterized Models", ICLR 2023.
    """
    return 2 * products.products - products.norms**2


def excess_loss_drop(before: Tensor, after: Tensor, others: Tensor) -> Tensor:
    """Compute the drop of each loss in the client's update, less the mean drop in other clients' updates.

    What all clients learn lowers the losses of all examples of a class; the difference of the differences is left.

    Args:
        before: (N,) losses at W.
        after: (N,) losses at the client's W_k.
        others: (K, N) losses at the W_k of K >= 1 other clients of the round, which do not hold the candidates.

    Raises:
        InputError: shapes that do not belong together, or no other client.
    """
    wanted = "losses (N,), (N,) and (K, N) of K >= 1 other clients"
    fitting = others.dim() == 2 and len(others) >= 1 and before.shape == after.shape == others.shape[1:]
    require(fitting, wanted, shapes=", ".join(str(tuple(part.shape)) for part in (before, after, others)))
    return (before - after) - (before - others).mean(0)


def against_others(target: Tensor, others: Tensor) -> Tensor:
    """Compute z-scores (N,) of a measurement at the target client in the world where the candidate is out.

    That world is what the same measurement gives at the other clients of the round.

    Args:
        target: (N,) the measurement at the target client.
        others: (K, N) the same at K >= 2 other clients, which must not hold the candidates.

    Raises:
        InputError: shapes that do not belong together, or fewer than 2 other clients.
    """
    fitting = others.dim() == 2 and len(others) >= 2 and others.shape[1:] == target.shape
    require(fitting, "(N,) and (K, N) of K >= 2 other clients", shapes=f"{tuple(target.shape)}, {tuple(others.shape)}")
    return (target - others.mean(0)) / (others.var(0) + _STABILITY).sqrt()


def trajectory(scores: Tensor) -> Tensor:
    """Compute the sum of z-scores over rounds, as a z-score itself (N,).

    Args:
        scores: (T, N) z-scores of T >= 1 rounds.

    Raises:
        InputError: no rounds.
    """
    require(scores.dim() == 2 and len(scores) >= 1, "z-scores (T, N) of T >= 1 rounds", shape=tuple(scores.shape))
    weights = scores.new_ones(len(scores))
    return (weights / torch.linalg.vector_norm(weights)) @ scores


def fedmia(target: Tensor, others: Tensor) -> Tensor:
    """Compute FedMIA's score (N,) of a round: the normal distribution function of `against_others`.

    Zhu et al., CVPR 2025, arXiv 2402.06289: each candidate's mean and variance are those of the other clients.
    """
    return torch.special.ndtr(against_others(target, others))


def label_only(labels: Tensor, members: Tensor, others: Tensor) -> Tensor:
    """Compute the floor that needs no update (N,): the share of members among labelled examples of the same class.

    Where members and non-members have other classes, this alone tells them apart; no attack may be praised for it.

    Args:
        labels: (N,) classes of the candidates.
        members: (M,) classes of known members.
        others: (M',) classes of known non-members.
    """
    if labels.is_floating_point():  # numbers: bands of about as many candidates each
        cuts = torch.quantile(labels.double(), torch.arange(1, _BANDS, device=labels.device).double() / _BANDS)
        labels, members, others = (
            torch.bucketize(part.double(), cuts, right=True) for part in (labels, members, others)
        )
    classes = int(torch.cat([labels, members, others]).max()) + 1
    inside, outside = (torch.bincount(part, minlength=classes).double() for part in (members, others))
    return (inside / (inside + outside).clamp(min=1))[labels]


def mean_gradient_behind(one: MembershipRound, sent: Tensors) -> Tensors:
    """Return about the mean gradient behind a message.

    Raises:
        NotApplicableError: no tensor is received and sent back.
    """
    both = [name for name, value in sent.items() if name in one.received and value.is_floating_point()]
    if not both:
        raise NotApplicableError("membership needs tensors that clients receive and send back")
    return {name: (one.received[name] - sent[name]) / (one.lr * one.steps) for name in both}


@torch.no_grad()
def losses_with(victim: VictimModel, sent: Tensors, examples: Examples) -> Tensor:
    """Return the loss of each example (N,), with the sent tensors in the place of those received."""
    tensors = {**victim.known, **victim.unknown}
    tensors |= {name: value for name, value in sent.items() if name in tensors}
    scores = functional_call(victim.model, tensors, (victim.inputs.normalise(examples.samples),))
    return losses(scores, examples.samples, examples.labels)


def floors(view: MembershipView) -> dict[str, Tensor]:
    """Return the statistics that read no client's message, (N,) each."""
    labels, last = view.candidates.labels, view.model(view.rounds[-1].received)
    return {
        "label_only": label_only(labels, labels, view.public.labels),
        "loss_only": -losses_with(last, {}, view.candidates),
    }


def public_examples(view: MembershipView, maximum: int) -> tuple[Tensor, Tensor]:
    """Return public inputs and labels, evenly spread over all where there are more than the most."""
    count = len(view.public.labels)
    indices = torch.linspace(0, count - 1, min(maximum, count)).long()
    return view.public.samples[indices], view.public.labels[indices]
