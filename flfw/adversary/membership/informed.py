"""Statistics of an attacker on membership who is told what hides the data, and learns stand-ins for what is private.

A generator that was trained on few features may place its own near them. For a candidate of class y with the feature f,

    U(f) = P(|f - G_k(z, y)| < |f - G'(z', y)|)

is Mann and Whitney's statistic of two sets of distances: to features of the client's generator and of others'. All are
of the candidate's class, so that the class tells nothing.

Known are selection, clipping, scaling or noise of a message. Many mechanisms are, to one example among N, a linear map
of its gradient and noise. With g the gradient of an example after the known clipping, w the factor of each entry (0:
not sent), c the scale of the message, and noise of deviation s in each entry, the message is

    u = c w * mean(g) + noise

With m and S the mean and the covariance of w * g over public examples, u - c m has the covariance c^2 (S + n I) / N,
where n = N s^2 / c^2. So the whitened projection takes S + n I in the place of S. What is along m tells of the scale
alone, and is taken out. Over rounds, with a_t = (w_t * g_t - m_t) in deviations,

    T(x) = sum_t <a_t, u_t / c_t> / sqrt(sum_t |a_t|^2)

is the same statistic for all messages as one: rounds with little noise, in which |a_t| is large, count more.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from flfw.adversary.attack import NotApplicableError
from flfw.adversary.membership.gradients import compared_gradients
from flfw.adversary.membership.statistics import RIDGE, Whitening, cosine, floors, mean_gradient_behind, public_examples
from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.errors import require
from flfw.inversion.client_models.operator import ResidualMechanism
from flfw.inversion.private.surrogate import StoodIn, SurrogateTraining, stood_in
from flfw.inversion.sketch import Sketch
from flfw.nets.conditional_gan import GeneratingNet
from flfw.nets.conditional_gan import noise as noise_of
from flfw.nets.net import Tensors
from flfw.rng import torch_generator

_RIDGES = (RIDGE, 1e-2, 0.1, 0.3, 1.0)
_FEWEST = 4
_LEAST_SCALE = 1e-3  # of a fitted scale; a message that has nothing of the mean gradient is mostly noise
_TINY = torch.finfo(torch.float64).tiny


def scale_of(mean: Tensor, update: Tensor) -> float:
    """Fit the scale of a message by least squares: its part along the public mean gradient, at least 1e-3.

    Args:
        mean: (width,) sketch of the mean gradient of public examples.
        update: (width,) sketch of the message.

    >>> scale_of(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 5.0]))
    0.5
    """
    length = float(mean @ mean)
    return max(float(mean @ update) / length, _LEAST_SCALE) if length > 0 else 1.0


def fitted(public: Tensor, examples: int, noise: Tensor | float = 0.0, scale: float = 1.0) -> Whitening:
    """Fit the whitening for a message with noise, with the ridge that `chosen_ridge` takes.

    Args:
        public: (P, width) sketches of what is left of public examples' gradients.
        examples: N >= 1 behind the message.
        noise: variance of the noise in each number of the message's sketch; one, or (width,).
        scale: c > 0 of the message.

    Raises:
        InputError: a value out of range.
    """
    require(examples >= 1, "examples >= 1", examples=examples)
    require(scale > 0, "scale > 0", scale=scale)
    of_examples = examples * noise / scale**2
    return Whitening.fit(public, chosen_ridge(public, of_examples), of_examples)


def chosen_ridge(public: Tensor, noise: Tensor | float = 0.0) -> float:
    """Choose the ridge by public examples alone: with it, one half of them makes d_eff of the other half largest.

    Few public examples leave a covariance with directions that look quieter than they are; a larger ridge mends that.

    Args:
        public: (P, width) sketches of what is left of public examples' gradients; below 8 there is nothing to choose.
        noise: n, the variance of the noise times N over c^2; one, or (width,).
    """
    half, other = public[::2], public[1::2]
    if len(other) < _FEWEST:
        return RIDGE
    dimensions = {ridge: effective_dimension(Whitening.fit(half, ridge, noise), other, noise) for ridge in _RIDGES}
    return max(dimensions, key=lambda ridge: dimensions[ridge])


class Projections(NamedTuple):
    """Parts of the statistic of N candidates in one round.

    Attributes:
        products: (N,) <a, u / c>.
        squares: (N,) |a|^2 >= 0.
    """

    products: Tensor
    squares: Tensor


def projections(whitening: Whitening, sketches: Tensor, update: Tensor, scale: float = 1.0) -> Projections:
    """Compute inner products of whitened gradients with a whitened message, without the direction of the mean.

    Args:
        whitening: from `fitted`.
        sketches: (N, width) of what is left of the candidates' gradients.
        update: (width,) sketch of the message.
        scale: c > 0 of the message.
    """
    rows = whitening.whitened(sketches)
    zero = torch.zeros_like(whitening.mean)
    mean = -whitening.whitened(zero[None])[0]  # L^-1 m, as `whitened` subtracts m
    seen = whitening.whitened(update[None])[0] + mean
    length = mean @ mean
    if bool(length > 0):
        rows, seen = (rows - torch.outer(rows @ mean, mean) / length, seen - (seen @ mean) / length * mean)
    return Projections(rows @ seen / scale, (rows * rows).sum(1))


def joined(rounds: Sequence[Projections]) -> Tensor:
    """Compute T (N,) over rounds; 0 for a candidate without any gradient.

    Args:
        rounds: the parts of T >= 1 rounds, in deviations of one message of N examples each.

    Raises:
        InputError: no round.
    """
    require(bool(rounds), "one round or more", rounds=0)
    products, squares = (torch.stack(parts).sum(0) for parts in zip(*rounds, strict=True))
    return torch.where(squares > 0, products / squares.clamp(min=_TINY).sqrt(), 0.0)


def effective_dimension(whitening: Whitening, others: Tensor, noise: Tensor | float) -> float:
    """Estimate d_eff, the number of directions in which a test may tell an example, from public examples only.

    With whitened gradients a_i = L^-1 (g_i - m), L L^T = S + n I, of examples that the covariance S was not fitted on,
    a candidate's score moves by |a_i|/N if it is a member, and otherwise has the variance v/N, with v the mean of
    (a_i^T a_j / |a_i|)^2 over pairs, and of the noise's part a^T L^-1 n L^-T a / |a|^2. So d_eff is the mean of |a_i|^2
    over v. On the fitted examples themselves it would be too large.

    Args:
        whitening: fitted with the noise on one part of the public examples.
        others: (P, width) of the other part, P >= 2.
        noise: n, the variance of the noise times N over c^2; one, or (width,); 0: none.

    Raises:
        InputError: too few examples.
    """
    require(len(others) >= 2, "at least 2 public examples", public=len(others))
    rows = whitening.whitened(others)
    squares = (rows * rows).sum(1)
    shares = squares.clamp(min=_TINY)[:, None]
    products = (rows @ rows.T) ** 2 / shares
    count = len(rows) * (len(rows) - 1)
    of_examples = float(products.sum() - products.diagonal().sum()) / count
    back = torch.linalg.solve_triangular(whitening.factor.T, rows.T, upper=True).T
    variance = of_examples + float((back**2 * noise / shares).sum(1).mean())
    return float(squares.mean()) / variance if variance > 0 else 0.0


_GENERATED = 32  # features of a class, of each generator


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


class InformedSettings(Protocol):
    """Settings of the attack that these statistics read."""

    @property
    def width(self) -> int:
        """Number of numbers in a sketch of a gradient."""
        ...

    @property
    def public(self) -> int:
        """Largest number of public examples that are used."""
        ...

    @property
    def epochs(self) -> int:
        """Number of passes over them for a stand-in, >= 1."""
        ...


def informed_scores(view: MembershipView, settings: InformedSettings, seed: int) -> dict[str, Tensor]:
    """Score the candidates by the statistics that adapt to a mechanism.

    Args:
        view: with the mechanism of each round, and what is private.
        settings: of the attack.
        seed: of sketches and stand-ins.

    Raises:
        NotApplicableError: it is not modelled what is left of one example.
    """
    parts, clear, made = [], [], []
    for one in view.rounds:
        known = _known(view, one, settings, seed)
        residual = ResidualMechanism() if one.operator is None else one.operator.residual(known.update)
        if residual is None:
            raise NotApplicableError("what is left of one example is not modelled for what hides the data")
        message = residual.of_message(known.update)
        sketch = Sketch.draw(message, settings.width, torch_generator(seed, "sketch", one.round))

        def gradient(x: Tensor, y: Tensor, known: StoodIn = known, residual: ResidualMechanism = residual) -> Tensors:
            return residual.of_example(known.victim.gradient(x, y, known.unknown, known.constants))

        mine = compared_gradients(gradient, sketch, [message], view.candidates.samples, view.candidates.labels)
        theirs = compared_gradients(gradient, sketch, [message], *public_examples(view, settings.public))
        seen, noise = sketch.of(message), residual.noise(sketch, message)
        guessed = residual.scaled or one.steps > 1 or bool(view.replaced)
        scale = scale_of(theirs.sketches.mean(0), seen) if guessed else 1.0
        whitening = fitted(theirs.sketches, max(1, view.examples), noise, scale)
        parts.append(projections(whitening, mine.sketches, seen, scale))
        clear += [] if residual.deviation else [cosine(mine.with_update(0, mine.norms))]
        made += _by_generator(view, one, known, seed)
    scores = {"whitened": torch.stack([joined([one]) for one in parts]).mean(0), "trajectory": joined(parts)}
    more = {"cosine": clear, "generated": made}
    return scores | {name: torch.stack(rows).mean(0) for name, rows in more.items() if rows} | floors(view)


def _known(view: MembershipView, one: MembershipRound, settings: InformedSettings, seed: int) -> StoodIn:
    """Return the client as it is known, with a stand-in for its private part if there is one."""
    victim, sent = view.model(one.received), one.sent[view.client]
    if not view.replaced:
        update, constants = victim.observed(mean_gradient_behind(one, sent))
        return StoodIn(victim, update, constants, victim.unknown)
    rng = torch_generator(seed, "stand-in", one.round)
    training = SurrogateTraining(surrogate_epochs=settings.epochs)
    return stood_in(
        victim, view.replaced, sent, one.lr * one.steps, public_examples(view, settings.public), training, rng
    )


def _by_generator(view: MembershipView, one: MembershipRound, known: StoodIn, seed: int) -> list[Tensor]:
    """Score by the client's generator against that of others, or the one it received; empty: it sends none."""
    model = deepcopy(known.victim.model)
    if not isinstance(model, GeneratingNet) or view.replaced != "extractor":
        return []
    model.load_state_dict(known.unknown, strict=False)
    others = [sent for client, sent in one.sent.items() if client != view.client] or [one.received]
    rng = torch_generator(seed, "generated features", one.round)
    device, classes = view.candidates.samples.device, model.classes
    labels = torch.arange(classes, device=device).repeat_interleave(_GENERATED)
    with torch.no_grad():
        features = model.extractor(known.victim.inputs.normalise(view.candidates.samples)).flatten(1)
        made = []
        for sent in (one.sent[view.client], *others):
            model.load_state_dict(sent, strict=False)
            z = noise_of(len(labels), rng).to(device)
            made.append(model.eval().generator(z, labels).flatten(1).unflatten(0, (classes, _GENERATED)))
    return [nearer_share(features, view.candidates.labels, made[0], torch.cat(made[1:], 1))]
