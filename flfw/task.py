"""Learning problem of an experiment: its data, their split over clients, and the network for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flfw import data, nets
from flfw.data import canaries, feed
from flfw.data.canaries import Canaries
from flfw.data.splits import partition
from flfw.defence import DefendedData
from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.membership.copies import games
from flfw.membership.pairs import MemberPairs, PatientGame, without_held_out
from flfw.nets.inputs import InputSpec
from flfw.pipeline import build_net, plain_net
from flfw.plugins import build_settings, short_name
from flfw.rng import numpy_generator

_UNOWNED_AT_MOST = 2000
_PUBLIC_AT_MOST = 10_000


def form_of(experiment: Experiment, side: int | None) -> data.ImageFormat:
    """Return the form to which images are brought, with a side; all but the side is for a user's own."""
    return data.ImageFormat(
        side, experiment.resized, experiment.fit, experiment.colour, skip_damaged=experiment.skip_damaged
    )


def _form(experiment: Experiment) -> data.ImageFormat:
    return form_of(experiment, experiment.side or nets.card(experiment.net).side)


def input_space(experiment: Experiment) -> tuple[tuple[int, ...], int]:
    """Return the shape of one input, resized for the network, and the number of classes; open no data."""
    image_format = _form(experiment)
    card, side = data.describe(experiment.dataset, image_format), image_format.side
    if side is None or len(card.shape) != 3:
        return card.shape, card.classes
    return (card.shape[0], side, side), card.classes


@dataclass(frozen=True)
class Task:
    """Data and network of a resolved experiment.

    Attributes:
        dataset: pixels (or rows) and labels, memory-mapped.
        split: the examples of each client.
        net: the network's name.
        augment: augmentation of training images.
        canaries: examples of which some were left out, to test whether this can be detected; None: there are none.
        data_root: folder of the data sets' files; None: the default of `flfw.data.load`.
        init: first weights of the network.
        experiment: the experiment, whose defence may change the network; None: the network is the named one.
        pairs: of each client in the membership game; None: there is no game. Only the first of a pair is trained on.
    """

    dataset: data.Dataset
    split: partition.Split
    net: str
    augment: data.Augmentation = "none"
    canaries: Canaries | None = None
    data_root: Path | None = None
    init: nets.Init = "torch"
    experiment: Experiment | None = None
    pairs: tuple[MemberPairs | PatientGame, ...] | None = None

    @classmethod
    def load(cls, experiment: Experiment, data_root: Path | None) -> Task:
        """Load the task of a resolved experiment; data and split are read once per process.

        If only sites have the data, the task is that of a site: there every client holds all of the site's data.
        """
        scheme = build_settings(partition.scheme(experiment.split), short_name(experiment.split), experiment.set)
        dataset = _normalised(_dataset(experiment.dataset, data_root, _form(experiment)), experiment)
        at_site = _only_at_sites(experiment)
        clients = 1 if at_site else experiment.clients
        cut = (dataset.name, data_root, _form(experiment), scheme, clients, experiment.seed, experiment.test)
        augment = "none" if experiment.augment == "auto" else experiment.augment
        if not experiment.canaries:
            split = partition.for_each(_split(*cut), experiment.clients) if at_site else _split(*cut)
            pairs = None
            if experiment.membership_pairs not in ("auto", "none"):
                split, pairs = _with_pairs(*cut, experiment.membership_pairs)
            beside = {"init": experiment.init, "experiment": experiment, "pairs": pairs}
            return cls(dataset, split, experiment.net, augment, data_root=data_root, **beside)
        in_files = f"canaries=0 for {dataset.name}, whose labels are generated"
        require(not dataset.is_generated, in_files, canaries=experiment.canaries)
        classed = f"canaries=0 for the regression of {dataset.name}: a canary has a wrong class"
        require(not dataset.is_regression, classed, canaries=experiment.canaries)
        chosen, split, labels = _with_canaries(*cut, experiment.canaries)
        relabelled = dataclasses.replace(dataset, train_y=labels)
        return cls(relabelled, split, experiment.net, augment, chosen, data_root, experiment.init, experiment)

    @classmethod
    def at_server(cls, experiment: Experiment, data_root: Path | None) -> Task:
        """Build the server's task; if only sites have the data, it has no examples, only the data set's description."""
        if not _only_at_sites(experiment):
            return cls.load(experiment, data_root)
        dataset = _normalised(data.without_examples(experiment.dataset, _form(experiment).side), experiment)
        augment = "none" if experiment.augment == "auto" else experiment.augment
        nobodys = partition.nobodys(experiment.clients)
        return cls(
            dataset, nobodys, experiment.net, augment, data_root=data_root, init=experiment.init, experiment=experiment
        )

    @property
    def has_data(self) -> bool:
        """True where there are examples; the server has none if only sites have the data."""
        return len(self.dataset.train_y) > 0

    def require_data(self, purpose: str) -> None:
        """Refuse a purpose that needs examples where there are none.

        Raises:
            InputError: naming the data and the purpose.
        """
        way = f"data on this machine for {purpose}, such as folder:PATH"
        require(self.has_data, way, dataset=f"{self.dataset.name}, which only the sites have")

    @property
    def own_side(self) -> int:
        """Pixels of a side of the data set's own images, where the experiment's ``side`` enlarges them; else 0."""
        side, shape = self.experiment.side if self.experiment else 0, data.describe(self.dataset.name).shape
        return shape[1] if len(shape) == 3 and side > shape[1] else 0

    @cached_property
    def inputs(self) -> InputSpec:
        """Input space of the network."""
        return InputSpec.from_constants(self.dataset.shape, self.dataset.mean, self.dataset.std)

    def build_net(self, net: str | None = None) -> nets.Net:
        """Build a new network, initialised from torch's current generator.

        Args:
            net: name of a plain network for these data; None: the experiment's, as its defence changes it.
        """
        shape, classes = self.dataset.shape, self.dataset.classes
        if net is None and self.experiment is not None:
            return build_net(self.experiment, shape, classes)
        if self.experiment is not None:
            return plain_net(self.experiment, net or self.net, shape, classes)
        return nets.build(net or self.net, shape, classes, self.init)

    def examples(self, part: str, indices: np.ndarray, vary: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return raw inputs (B, ...) as float32 in [0, 1] and labels (B,).

        Args:
            part: ``train`` or ``test``.
            indices: (B,) into that part.
            vary: generator for the augmentation of the images; None: no augmentation.
        """
        x = feed.batch(getattr(self.dataset, f"{part}_x")[indices])
        if vary is not None:
            x = feed.augment(x, self.augment, vary)
        return feed.raw(x), torch.from_numpy(getattr(self.dataset, f"{part}_y")[indices])

    def public(self) -> tuple[Tensor, Tensor]:
        """Return raw inputs and labels of test examples of no client, spread evenly: the public data of an audit."""
        return self.examples("test", partition.evenly(self.split.public, _PUBLIC_AT_MOST))

    @property
    def unowned(self) -> tuple[str, np.ndarray]:
        """Part and indices of examples of no client, spread evenly: the defences' proxies, or else public data."""
        part, places = ("train", self.split.proxy) if len(self.split.proxy) else ("test", self.split.public)
        return part, partition.evenly(places, _UNOWNED_AT_MOST)

    def defended_data(self, clients: Iterable[int], batch_size: int) -> DefendedData:
        """Gather the data of the clients with a defence, for its check.

        Args:
            clients: their numbers.
            batch_size: batch of local training, >= 1.
        """
        places = np.concatenate([np.asarray(self.dataset.victims, np.int64), *(self.split.train[c] for c in clients)])
        part, public = self.unowned
        labels, theirs = self.dataset.train_y[places], getattr(self.dataset, f"{part}_y")[public]
        return DefendedData(
            torch.tensor(labels), torch.tensor(places), self.dataset.classes, batch_size, torch.tensor(theirs)
        )

    def victims(self, client: int, slot: int, batch: int, seed: int) -> np.ndarray:
        """Choose training indices (batch,) of one probe: the client's own examples, or the data set's reserved victims.

        Canaries are left out, as their labels are wrong. A slot has the same examples in every round, so that rounds
        can be compared.
        """
        pool = self.victim_pool(client)
        order = numpy_generator(seed, "victims", client).permutation(len(pool))
        chosen = pool[order[slot * batch : (slot + 1) * batch]]
        if len(chosen) < batch:
            raise InputError(
                f"Expected at most {len(pool)} victims of client {client}, got {(slot + 1) * batch}; "
                "lower --images, --victim-batch or --curve."
            )
        return chosen

    def victim_pool(self, client: int) -> np.ndarray:
        """Return the training indices among which a client's victims are drawn."""
        reserved = np.asarray(self.dataset.victims, dtype=np.int64)
        pool = reserved[client :: len(self.split.train)] if len(reserved) else self.split.train[client]
        return pool[~np.isin(pool, self.canaries.indices)] if self.canaries else pool

    def check_victims(self, experiment: Experiment) -> None:
        """Refuse an audit that needs more victims than a client has."""
        for probe in range(experiment.images if experiment.attacks else 0):
            client, slot = probe % experiment.clients, probe // experiment.clients
            for batch in {point.batch for point in experiment.points}:
                self.victims(client, slot, batch, experiment.seed)


def _only_at_sites(experiment: Experiment) -> bool:
    """Return whether only sites have the data; refuse settings that such data do not allow."""
    name = experiment.dataset
    if not data.is_at_sites(name):
        return False
    whole = data.describe(name).split
    require(experiment.split == whole, f"split={whole} for {name}, as each site has its own", split=experiment.split)
    test = f"test=own for {name}, as each site has its own"
    require(experiment.test == "own", test, test=experiment.test)
    elsewhere = f"canaries=0 for {name}, as the server would need the data to find canaries"
    require(not experiment.canaries, elsewhere, canaries=experiment.canaries)
    pairs = f"membership-pairs=none for {name}, as the server would need the data to draw them"
    require(experiment.membership_pairs in ("auto", "none"), pairs, membership_pairs=experiment.membership_pairs)
    return True


def _normalised(dataset: data.Dataset, experiment: Experiment) -> data.Dataset:
    if experiment.normalise == "own":
        return dataset
    how = experiment.normalise
    if how == "backbone":
        made = nets.card(experiment.net).architecture
        require(made is not None, "a pretrained network for normalise=backbone", net=experiment.net)
        how = made.normalise if made else "own"
    mean, std = feed.constants(how, dataset.shape)
    return dataclasses.replace(dataset, mean=mean, std=std)


@lru_cache(maxsize=4)
def _dataset(name: str, root: Path | None, form: data.ImageFormat) -> data.Dataset:
    return data.load(name, root, form.side, form)


@lru_cache(maxsize=4)
def _split(
    name: str,
    root: Path | None,
    form: data.ImageFormat,
    scheme: partition.AnyScheme,
    clients: int,
    seed: int,
    test: partition.TestParts,
) -> partition.Split:
    return partition.split(_dataset(name, root, form), scheme, clients, seed, test)


@lru_cache(maxsize=4)
def _with_canaries(
    name: str,
    root: Path | None,
    form: data.ImageFormat,
    scheme: partition.AnyScheme,
    clients: int,
    seed: int,
    test: partition.TestParts,
    count: int,
) -> tuple[Canaries, partition.Split, np.ndarray]:
    """Return the canaries, the split without those that are left out, and the training labels with theirs."""
    dataset, split = _dataset(name, root, form), _split(name, root, form, scheme, clients, seed, test)
    chosen = canaries.draw(split, dataset.train_y, dataset.classes, count, seed)
    return chosen, canaries.without_left_out(split, chosen), canaries.relabelled(dataset.train_y, chosen)


@lru_cache(maxsize=4)
def _with_pairs(
    name: str,
    root: Path | None,
    form: data.ImageFormat,
    scheme: partition.AnyScheme,
    clients: int,
    seed: int,
    test: partition.TestParts,
    most: str,
) -> tuple[partition.Split, tuple[MemberPairs | PatientGame, ...]]:
    """Return the split without the held-out examples of the membership game, and its pairs, of patients if known."""
    dataset, split = _dataset(name, root, form), _split(name, root, form, scheme, clients, seed, test)
    require(not dataset.is_generated, f"membership-pairs=none for {name}, generated for each client", pairs=most)
    kinds, most_pairs = dataset.kinds(dataset.train_y), None if most == "all" else int(most)
    pairs = games(split.train, dataset.train_x, kinds, split.patients, seed, most_pairs)
    return dataclasses.replace(split, train=without_held_out(split.train, pairs)), pairs


def require_every_class(task: Task, partition: int) -> None:
    """Refuse a client that has no training example of some class.

    Raises:
        InputError: naming the class and the client.
    """
    held = np.unique(task.dataset.train_y[task.split.train[partition]])
    absent = np.setdiff1d(np.arange(task.dataset.classes), held)
    if len(absent):
        raise InputError(
            f"Expected training examples of all {task.dataset.classes} classes at each client, got none of class "
            f"{absent[0]} at client {partition}; choose another --split or fewer --clients."
        )
