"""FedCG's splits (Wu et al., IJCAI 2022): labelled examples for clients, unlabelled ones for a server that distils.

By domains: one domain is held out, and the server may distil from it. Client i holds examples of the i-th other domain,
in the data set's order. The official test part of a domain is halved into validation and test. With more clients than
domains, client i shares domain ``i mod D`` with others, in disjoint pieces; with fewer, the last domains are left out.

By random samples of one data set: each client holds 2,000 training examples, the server at most 32,000 others. The
official test part is halved into validation and test, and each half is cut evenly among the clients. With
``halves=alternate`` every other test example is for validation, at every seed: what is chosen with one seed has then
never seen what another seed is tested on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flfw.bounds import BoundedSettings, NonNegativeInt
from flfw.data.files.dataset import Dataset
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, at_most, even, train_size, trainable
from flfw.errors import InputError


def draw(
    domains: np.ndarray, given: Sequence[str], clients: int, train: int, rng: np.random.Generator, maximum: int = 0
) -> list[np.ndarray]:
    """Draw for each client random positions in ``domains`` (N,), the domain of each example.

    Args:
        domains: names or numbers of the domains.
        given: domains of the clients: client i holds the one in place ``i mod len(given)``.
        clients: number of clients.
        train: examples a client; 0: the domain is cut evenly among its clients.
        rng: generator of the draws.
        maximum: with ``train=0``, the largest number of examples a client; 0: no limit.

    Raises:
        InputError: a domain has fewer than ``train`` examples for each of its clients.
    """
    pieces = []
    for index, domain in enumerate(given[:clients]):
        order = rng.permutation(np.flatnonzero(domains == domain))
        sharing = len(range(index, clients, len(given)))
        if sharing * train > len(order):
            raise InputError(
                f"Expected at most {len(order) // sharing} training examples a client, as {len(order)} of domain "
                f"{domain} are for {sharing} clients, got domains.train={train}; ask for less or take fewer --clients."
            )
        fair = np.array_split(order[: sharing * train or None], sharing)
        pieces.append([piece[: maximum or None] for piece in fair])
    return [pieces[client % len(given)][client // len(given)] for client in range(clients)]


@dataclass(frozen=True)
class Domains(SplitScheme, BoundedSettings):
    """A domain for each client and one for the server, see ``flfw.data.splits.domains``."""

    NAMED = "domains."
    train: NonNegativeInt = 0  # examples a client; 0 without a default of the data set: the whole domain
    distillation: NonNegativeInt = 32_000  # at most; from the held-out domain
    held_out: str = ""  # the server's domain; empty: the data set's default; none: there is none

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Split a data set by domains; no client or server holds a victim.

        Raises:
            InputError: no domains, an unknown one, none left for the clients, or too few examples in one.
        """
        held_out = _held_out(dataset, self)
        given = [name for name in dataset.domains if name != held_out]
        if not given:
            raise InputError(
                f"Expected a domain of {dataset.name} for the clients, got held_out={held_out}, its only one; "
                "pass --set domains.held_out=none."
            )
        names = np.asarray(dataset.domains)
        train_domain, test_domain = names[dataset.train_domain], names[dataset.test_domain]
        train_domain[list(dataset.victims)] = ""  # no domain, so victims are never drawn
        usual = dataset.per_client.get("domains", (0, 0))[0]
        train = draw(train_domain, given, clients, self.train, rng, maximum=0 if self.train else usual)
        halves = [np.array_split(part, 2) for part in draw(test_domain, given, clients, 0, rng)]
        spare = rng.permutation(np.flatnonzero(train_domain == held_out))[: self.distillation]
        return SplitIndices(
            train,
            test=[test for test, _ in halves],
            validation=[validation for _, validation in halves],
            distillation=spare,
        )


def _held_out(dataset: Dataset, scheme: Domains) -> str:
    """Return the domain that no client holds, or ``none``."""
    if not dataset.domains:
        raise InputError(
            f"Expected a data set of several domains, got dataset={dataset.name}; take another --split or --dataset."
        )
    held_out = scheme.held_out or dataset.held_out or "none"
    if held_out not in (*dataset.domains, "none"):
        raise InputError(
            f"Expected a domain of {dataset.name} among {', '.join(dataset.domains)}, or none; "
            f"got domains.held_out={held_out}."
        )
    return held_out


def draw_sampled(
    examples: int, clients: int, train: int, distillation: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw disjoint positions below ``examples``: ``train`` for each client, and at most ``distillation`` of the rest.

    Raises:
        InputError: there are not ``train`` examples for each client.
    """
    way = "take fewer --clients, or fewer examples with --set sampled.train=N"  # 2,000 are more than small sets have
    at_most(examples // train, clients, f"each takes {train} of {examples} training examples", way)
    order = rng.permutation(examples)
    taken = clients * train
    return np.split(order[:taken], clients), order[taken : taken + distillation]


@dataclass(frozen=True)
class Sampled(SplitScheme, BoundedSettings):
    """Random disjoint samples for the clients and one for the server, see ``flfw.data.splits.domains``."""

    NAMED = "sampled."
    train: NonNegativeInt = 2000  # examples a client
    distillation: NonNegativeInt = 32_000  # at most; from the examples that no client holds
    halves: Literal["drawn", "alternate"] = "drawn"  # of the test part: by lot, or every other example at every seed

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Split a data set into random samples; no client or server holds a victim."""
        pool, train = trainable(dataset), train_size(dataset, "sampled", self.train)
        drawn, spare = draw_sampled(len(pool), clients, train, self.distillation, rng)
        test, validation = _halves(len(dataset.test_y), self, clients, rng)
        return SplitIndices([pool[rows] for rows in drawn], test, validation, distillation=pool[spare])


def _halves(
    examples: int, scheme: Sampled, clients: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Cut the test part into the clients' test and validation examples."""
    if scheme.halves == "drawn":
        parts = even(examples, 2 * clients, rng)
        return parts[clients:], parts[:clients]
    first, second = (np.arange(start, examples, 2) for start in (0, 1))
    test, validation = ([half[part] for part in even(len(half), clients, rng)] for half in (second, first))
    return test, validation
