"""Learning problem of an experiment: its data, their split over clients, and the network for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from flfw import data, nets
from flfw.data import canaries, feed
from flfw.data.canaries import Canaries
from flfw.data.membership_pairs import MemberPairs, PatientGame, games, without_held_out
from flfw.data.splits import partition, schemes
from flfw.data.splits.split_indices import SplitScheme
from flfw.errors import InputError, require
from flfw.experiment.audit import ProbeSettings
from flfw.experiment.training import DataSettings
from flfw.nets.inputs import InputSpec
from flfw.plugins import build_settings, short_name
from flfw.rng import numpy_generator
from flfw.task.defence import DefendedData
from flfw.task.pipeline import NetworkPlan

_UNOWNED_AT_MOST = 2000
_PUBLIC_AT_MOST = 10_000


@final
@dataclass(frozen=True, eq=False)
class TaskPlan:
    """Data of a run, their cut into clients, and the network for them; `load` opens the data.

    Attributes:
        data: settings of the data set.
        clients: number of clients.
        network: the network.
        assignments: settings of plug-ins, as ``--set`` has them; the split takes its own.
        seed: of the run.
        canaries: number of examples that a coin leaves out; 0: none.
        membership_pairs: pairs of each client in the membership game: a number, ``all`` or ``none``.
        space: shape of one input and number of classes; None: those of the data set's card.
    """

    data: DataSettings
    clients: int
    network: NetworkPlan
    assignments: tuple[str, ...] = ()
    seed: int = 0
    canaries: int = 0
    membership_pairs: str = "none"
    space: tuple[tuple[int, ...], int] | None = None

    @property
    def scheme(self) -> SplitScheme:
        """How the data are cut into clients.

        Raises:
            InputError: the split, or one of its settings, is unknown.
        """
        name = self.data.split
        return build_settings(schemes.scheme(name), short_name(name), self.assignments)

    @property
    def image_format(self) -> data.ImageFormat:
        """Form to which images are brought for the network."""
        return image_format(self.data, self.data.image_size or nets.card(self.network.name).side)

    @cached_property
    def input_space(self) -> tuple[tuple[int, ...], int]:
        """Shape of one input, resized for the network, and number of classes; no data are opened."""
        if self.space is not None:
            return self.space
        card, side = data.describe(self.data.dataset, self.image_format), self.image_format.side
        if side is None or len(card.shape) != 3:
            return card.shape, card.classes
        return (card.shape[0], side, side), card.classes

    def build_net(self, name: str = "") -> nets.Net:
        """Build the network as its defence changes it, or a plain one by its name, from torch's current generator."""
        if not name:
            return self.network.build(*self.input_space)
        return self.network.plain(*self.input_space, name)

    def load(self, data_root: Path | None) -> Task:
        """Load the data and cut them into clients; both are read once per process.

        If only sites have the data, the task is that of a site: there every client holds all of the site's data.
        """
        dataset, name = self._normalised(_dataset(self.data.dataset, data_root, self.image_format)), self.data.dataset
        unchanged = not data.is_table(name) or dataset.columns == data.describe(name).columns  # claims look at the file
        require(unchanged, "a table and its plan that did not change since this process read them", dataset=name)
        at_site = self._only_at_sites()
        clients = 1 if at_site else self.clients
        cut = _Cut(dataset.name, data_root, self.image_format, self.scheme, clients, self.seed, self.data.test)
        if self.canaries:
            in_files = f"canaries=0 for {dataset.name}, whose labels are generated"
            require(not dataset.is_generated, in_files, canaries=self.canaries)
            classed = f"canaries=0 for the regression of {dataset.name}: a canary has a wrong class"
            require(not dataset.is_regression, classed, canaries=self.canaries)
            chosen, split, labels = _with_canaries(cut, self.canaries)
            return self._task(replace(dataset, train_y=labels), split, data_root, canaries=chosen)
        if self.membership_pairs not in ("auto", "none"):
            split, pairs = _with_pairs(cut, self.membership_pairs)
            return self._task(dataset, split, data_root, pairs=pairs)
        split = partition.for_each(_split(cut), self.clients) if at_site else _split(cut)
        return self._task(dataset, split, data_root)

    def load_at_server(self, data_root: Path | None) -> Task:
        """Build the server's task; if only sites have the data, it has no examples, only the data set's description."""
        if not self._only_at_sites():
            return self.load(data_root)
        dataset = self._normalised(data.without_examples(self.data.dataset, self.image_format.side))
        return self._task(dataset, partition.nobodys(self.clients), data_root)

    def _task(self, dataset: data.Dataset, split: partition.Split, data_root: Path | None, **more: Any) -> Task:
        augment = "none" if self.data.augment == "auto" else self.data.augment
        side, shape = self.data.image_size, data.describe(dataset.name).shape
        own = shape[1] if len(shape) == 3 and side > shape[1] else 0
        return Task(dataset, split, self.network, augment, data_root=data_root, own_side=own, **more)

    def _only_at_sites(self) -> bool:
        """Return whether only sites have the data; refuse settings that such data do not allow."""
        name = self.data.dataset
        if not data.is_at_sites(name):
            return False
        whole, given = data.describe(name).split, self.data.split
        require(given == whole, f"split={whole} for {name}, as each site has its own", split=given)
        require(self.data.test == "own", f"test=own for {name}, as each site has its own", test=self.data.test)
        elsewhere = f"canaries=0 for {name}, as the server would need the data to find canaries"
        require(not self.canaries, elsewhere, canaries=self.canaries)
        pairs = f"membership-pairs=none for {name}, as the server would need the data to draw them"
        require(self.membership_pairs in ("auto", "none"), pairs, membership_pairs=self.membership_pairs)
        return True

    def _normalised(self, dataset: data.Dataset) -> data.Dataset:
        how = self.data.normalise
        if how == "own":
            return dataset
        if how == "backbone":
            made = nets.card(self.network.name).architecture
            require(made is not None, "a pretrained network for normalise=backbone", net=self.network.name)
            how = made.normalise if made else "own"
        mean, std = feed.constants(how, dataset.shape)
        return replace(dataset, mean=mean, std=std)


def image_format(settings: DataSettings, side: int | None) -> data.ImageFormat:
    """Return the form to which images are brought, with a side; all but the side is for a user's own."""
    words = settings.image_words
    return data.ImageFormat(side, words.size, words.mode, words.colour, words.skip_damaged, words.bits)


@dataclass(frozen=True)
class Task:
    """Data and network of a run.

    Attributes:
        dataset: pixels (or rows) and labels, memory-mapped.
        split: the examples of each client.
        network: how the network is built.
        augment: augmentation of training images.
        canaries: examples of which some were left out, to test whether this can be detected; None: there are none.
        data_root: folder of the data sets' files; None: the default of `flfw.data.load`.
        pairs: of each client in the membership game; None: there is no game. Only the first of a pair is trained on.
        own_side: pixels of a side of the data set's own images, where they were enlarged; else 0.
    """

    dataset: data.Dataset
    split: partition.Split
    network: NetworkPlan
    augment: data.Augmentation = "none"
    canaries: Canaries | None = None
    data_root: Path | None = None
    pairs: tuple[MemberPairs | PatientGame, ...] | None = None
    own_side: int = 0

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

    @cached_property
    def inputs(self) -> InputSpec:
        """Input space of the network."""
        return InputSpec.from_constants(self.dataset.shape, self.dataset.mean, self.dataset.std)

    def build_net(self, name: str = "") -> nets.Net:
        """Build the network as its defence changes it, or a plain one by its name, from torch's current generator."""
        shape, classes = self.dataset.shape, self.dataset.classes
        return self.network.plain(shape, classes, name) if name else self.network.build(shape, classes)

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
        part, indices = ("train", self.split.proxy) if len(self.split.proxy) else ("test", self.split.public)
        return part, partition.evenly(indices, _UNOWNED_AT_MOST)

    def defended_data(self, clients: Iterable[int], batch_size: int) -> DefendedData:
        """Gather the data of the clients with a defence, for its check.

        Args:
            clients: their numbers.
            batch_size: batch of local training, >= 1.
        """
        indices = np.concatenate([np.asarray(self.dataset.victims, np.int64), *(self.split.train[c] for c in clients)])
        part, public = self.unowned
        labels, theirs = self.dataset.train_y[indices], getattr(self.dataset, f"{part}_y")[public]
        return DefendedData(
            torch.tensor(labels), torch.tensor(indices), self.dataset.classes, batch_size, torch.tensor(theirs)
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

    def check_victims(self, probes: ProbeSettings, seed: int) -> None:
        """Refuse an audit that needs more victims than a client has."""
        clients = len(self.split.train)
        for probe in range(probes.images):
            client, slot = probe % clients, probe // clients
            for batch in {point.batch for point in probes.points}:
                self.victims(client, slot, batch, seed)


class _Cut(NamedTuple):
    """Cut of a data set into clients."""

    name: str
    root: Path | None
    form: data.ImageFormat
    scheme: SplitScheme
    clients: int
    seed: int
    test: partition.TestParts


@lru_cache(maxsize=4)
def _dataset(name: str, root: Path | None, form: data.ImageFormat) -> data.Dataset:
    return data.load(name, root, form.side, form)


@lru_cache(maxsize=4)
def _split(cut: _Cut) -> partition.Split:
    return partition.split(_dataset(*cut[:3]), *cut[3:])


@lru_cache(maxsize=4)
def _with_canaries(cut: _Cut, count: int) -> tuple[Canaries, partition.Split, np.ndarray]:
    """Return the canaries, the split without those that are left out, and the training labels with theirs."""
    dataset, split = _dataset(*cut[:3]), _split(cut)
    chosen = canaries.draw(split, dataset.train_y, dataset.classes, count, cut.seed)
    return chosen, canaries.without_left_out(split, chosen), canaries.relabelled(dataset.train_y, chosen)


@lru_cache(maxsize=4)
def _with_pairs(cut: _Cut, maximum: str) -> tuple[partition.Split, tuple[MemberPairs | PatientGame, ...]]:
    """Return the split without the held-out examples of the membership game, and its pairs, of patients if known."""
    dataset, split = _dataset(*cut[:3]), _split(cut)
    require(not dataset.is_generated, f"membership-pairs=none for {cut.name}, generated for each client", pairs=maximum)
    kinds, max_pairs = dataset.kinds(dataset.train_y), None if maximum == "all" else int(maximum)
    pairs = games(split.train, dataset.train_x, kinds, split.patients, cut.seed, max_pairs)
    return replace(split, train=without_held_out(split.train, pairs)), pairs


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
