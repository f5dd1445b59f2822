"""The learning problem of an experiment: its data, their cut into clients, and the network for them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flfw import data, nets
from flfw.data import partition
from flfw.errors import BadInput
from flfw.experiment import Experiment, require, settings
from flfw.inversion.victim import Inputs
from flfw.rng import numpy_generator


def resolve(experiment: Experiment) -> Experiment:
    """The experiment with every ``auto`` replaced by what the data set's card says."""
    card = data.describe(experiment.dataset)
    net = card.net if experiment.net == "auto" else experiment.net
    split = card.split if experiment.split == "auto" else experiment.split
    return dataclasses.replace(experiment, net=net, split=split)


def input_space(experiment: Experiment) -> tuple[tuple[int, ...], int]:
    """Shape of one input, resized to what the network takes, and the number of classes; opens no data."""
    card, side = data.describe(experiment.dataset), nets.card(experiment.net).side
    if side is None or len(card.shape) != 3:
        return card.shape, card.classes
    return (card.shape[0], side, side), card.classes


@dataclass(frozen=True)
class Task:
    """Data and network of a resolved experiment.

    Attributes:
        dataset: pixels (or rows) and labels, memory-mapped.
        split: which examples each client holds.
        net: the network's name.
    """

    dataset: data.Dataset
    split: partition.Split
    net: str

    @classmethod
    def of(cls, experiment: Experiment, data_root: Path | None) -> Task:
        """The task of a resolved experiment; loaded once per process."""
        scheme = partition.scheme(experiment.split)
        return _task(
            experiment.dataset,
            experiment.net,
            settings(scheme, experiment.split, experiment.set),
            experiment.clients,
            experiment.seed,
            data_root,
        )

    @cached_property
    def inputs(self) -> Inputs:
        """The input space of the network."""
        return Inputs.of(self.dataset.shape, self.dataset.mean, self.dataset.std)

    def build_net(self, net: str | None = None) -> nets.Net:
        """A fresh network (another one by name) for these data, initialised from torch's current generator."""
        return nets.build(net or self.net, self.dataset.shape, self.dataset.classes)

    def examples(self, part: str, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Raw inputs (B, ...) as float32 in [0, 1] and labels (B,) of the ``train`` or ``test`` part."""
        x, y = getattr(self.dataset, f"{part}_x")[indices], getattr(self.dataset, f"{part}_y")[indices]
        raw = torch.from_numpy(x)
        return (raw.float() / 255 if raw.dtype == torch.uint8 else raw), torch.from_numpy(y)

    def victims(self, client: int, slot: int, batch: int, seed: int) -> np.ndarray:
        """Training indices (batch,) of one probe: the client's own examples, or the data set's reserved victims.

        The same slot is the same examples in every round, so that rounds can be compared.
        """
        reserved = np.asarray(self.dataset.victims, dtype=np.int64)
        pool = reserved[client :: len(self.split.train)] if len(reserved) else self.split.train[client]
        order = numpy_generator(seed, "victims", client).permutation(len(pool))
        chosen = pool[order[slot * batch : (slot + 1) * batch]]
        if len(chosen) < batch:
            raise BadInput(
                f"Expected at most {len(pool)} victims of client {client}, got {(slot + 1) * batch}; "
                "lower --images or --victim-batch."
            )
        return chosen

    def check_victims(self, experiment: Experiment) -> None:
        """Refuse an audit that needs more victims than a client has."""
        for probe in range(experiment.images if experiment.attacks else 0):
            client, slot = probe % experiment.clients, probe // experiment.clients
            self.victims(client, slot, experiment.victim_batch, experiment.seed)


@lru_cache(maxsize=4)
def _task(name: str, net: str, scheme: partition.Scheme, clients: int, seed: int, root: Path | None) -> Task:
    require(clients >= 1, "clients >= 1", clients=clients)
    dataset = data.load(name, root, nets.card(net).side)
    return Task(dataset, partition.split(dataset, scheme, clients, seed), net)
