"""Accuracy of a model on the candidates of a membership game, on the trusted side."""

from __future__ import annotations

import numpy as np
import torch
from torch.func import functional_call

from flfw.nets.net import hits
from flfw.task import Task
from flfw.victims.victim import VictimModel

_AT_ONCE = 500  # examples of one pass


@torch.no_grad()
def hits_of(victim: VictimModel, task: Task, places: np.ndarray) -> np.ndarray:
    """Return for each training example (N,) whether the known model is right on it, of a text the share of places."""
    parts = []
    for some in np.array_split(places, -(-len(places) // _AT_ONCE)):
        x, y = task.examples("train", some)
        scores = functional_call(victim.model, victim.known, (victim.inputs.normalise(x),))
        parts.append(hits(scores, x, y).numpy())
    return np.concatenate(parts)
