"""Statistics of an attacker on membership who is told what hides the data, and learns stand-ins for what is private.

A generator that was trained on few features may place its own near them. For a candidate of class y with the feature f,

    U(f) = P(|f - G_k(z, y)| < |f - G'(z', y)|)

is Mann and Whitney's statistic of two sets of distances: to features of the client's generator and of others'. All are
of the candidate's class, so that the class tells nothing.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Protocol

import torch
from torch import Tensor

from flfw.adversary.attack import NotApplicableError
from flfw.adversary.membership.adapted import fitted, joined, projections, scale_of
from flfw.adversary.membership.gradients import compared_gradients
from flfw.adversary.membership.statistics import cosine, floors, mean_gradient_behind, public_examples
from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.errors import require
from flfw.inversion.client_models.operator import ResidualMechanism
from flfw.inversion.private.surrogate import StoodIn, SurrogateTraining, stood_in
from flfw.inversion.sketch import Sketch
from flfw.nets.conditional_gan import GeneratingNet
from flfw.nets.conditional_gan import noise as noise_of
from flfw.nets.net import Tensors
from flfw.rng import torch_generator

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
