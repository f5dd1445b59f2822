"""Shadow trainings: what clients with other data would have sent, by the local training that is granted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from flfw.adversary.observation import Examples
from flfw.membership.shadow_models import confidence
from flfw.membership.shadow_sets import ShadowSets
from flfw.membership.sketch import Sketch
from flfw.nets.net import Tensors
from flfw.victims.local_steps import LocalSteps, Places, SteppedVictim
from flfw.victims.victim import VictimModel

MOST_HELD = 2**26
"""Numbers in the inputs and weights of the trainings that run side by side."""


@final
@dataclass(frozen=True)
class ShadowClients:
    """Uploads of S clients that were trained on known sets; `train` makes them.

    Attributes:
        sets: their training sets.
        updates: by name (S, ...) the mean change of a step over the learning rate, about a mean gradient.
        travelled: learning rate times steps.
    """

    sets: ShadowSets
    updates: Tensors
    travelled: float

    @classmethod
    @torch.no_grad()
    def train(
        cls, victim: VictimModel, local: LocalSteps, sets: ShadowSets, pool: Examples, rng: torch.Generator
    ) -> ShadowClients:
        """Train on all sets side by side, from the tensors that the client received.

        Buffers stay as they were received, and layers of BatchNorm use them.

        Args:
            victim: the attacker's model of the client, of which all tensors are known.
            local: the client's training; with a batch size each epoch goes through a set in a new order.
            sets: the training sets.
            pool: candidates, then public examples: the places in the sets are theirs.
            rng: generator on the CPU, of the orders.
        """
        examples = sets.places.shape[1]
        order = in_turn(examples, local.batch_size or examples, local.steps)
        turns = torch.stack([_shuffled(examples, order[-1][-1] + 1, rng) for _ in sets.places])
        used = sets.places.gather(1, turns).to(pool.labels.device)
        stepped = SteppedVictim(victim, victim.known, replace(local, order=order))

        def update(x: Tensor, y: Tensor) -> Tensors:
            return stepped.gradient(x, y, victim.unknown, {})

        weights = sum(value.numel() for value in victim.known.values())
        together = max(1, MOST_HELD // (used.shape[1] * pool.samples[0].numel() + weights))
        parts = [vmap(update)(pool.samples[some], pool.labels[some]) for some in used.split(together)]
        updates = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return cls(sets, updates, local.lr * local.steps)

    def confidences(self, victim: VictimModel, examples: Examples) -> Tensor:
        """Compute LiRA's logits (S, N) of examples in the shadow models."""
        rows = []
        for place in range(len(self.sets.inside)):
            moved = {name: victim.known[name] - self.travelled * way[place] for name, way in self.updates.items()}
            rows.append(confidences(victim, moved, examples))
        return torch.stack(rows)

    def sketches(self, sketch: Sketch) -> Tensor:
        """Compute the sketches (S, width) of the updates."""
        return vmap(sketch.of)(self.updates)


def in_turn(examples: int, size: int, steps: int) -> tuple[Places, ...]:
    """Return each step's places among the examples as they are used; an epoch ends with a smaller batch.

    >>> in_turn(5, 2, 4)
    ((0, 1), (2, 3), (4,), (5, 6))
    """
    cuts = [at for epoch in range(0, steps * examples, examples) for at in range(epoch, epoch + examples, size)][
        : steps + 1
    ]
    ends = [*cuts[1:], steps * examples]
    return tuple(tuple(range(at, end)) for at, end in zip(cuts, ends, strict=True))[:steps]


def _shuffled(examples: int, most: int, rng: torch.Generator) -> Tensor:
    """Return ``most`` places of a set's examples as they are used, each epoch in a new order."""
    return torch.cat([torch.randperm(examples, generator=rng) for _ in range(-(-most // examples))])[:most]


@torch.no_grad()
def confidences(victim: VictimModel, moved: Tensors, examples: Examples) -> Tensor:
    """Compute LiRA's logits (N,) of examples, with moved tensors in the place of the victim's."""
    held = {**victim.known, **victim.unknown}
    held |= {name: value for name, value in moved.items() if name in held}
    scores = functional_call(victim.model, held, (victim.inputs.normalise(examples.samples),))
    return confidence(scores, examples.labels)
