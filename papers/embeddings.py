"""Where the private embeddings of a run's clients lie to each other, and which classes each client holds most of."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from flfw import resolve as parts
from flfw.client.store import ClientStore, StateMissing
from flfw.data.splits.picture import holdings
from flfw.errors import BadInput, require
from flfw.messages.sharing import matches
from flfw.rng import numpy_generator
from flfw.runs import run
from flfw.storage.checkpoint import Stored, require_same_data, stored_experiment
from papers.drawing import MARKS, OTHERS, Rows

EMBEDDING = "embedding"
"""The private tensor that is laid out in the plane."""


def embeddings(folder: Path, data_root: Path | None = None) -> Rows:
    """A row a client: ``client``, ``dominant_classes``, ``group`` and its place, ``x`` and ``y``.

    Args:
        folder: of a run whose clients keep a private tensor `EMBEDDING`, run with ``--keep-state``.
        data_root: where the data lie now; None: where the run found them.

    Raises:
        BadInput: the run, its state or its data are not there, or what there is cannot be laid out.
    """
    stored = stored_experiment(folder)
    vectors = _vectors(folder, stored)
    experiment = replace(stored.experiment, out=folder, data_root=data_root or stored.experiment.data_root)
    experiment, task, _ = run.check(experiment, new=False)
    require_same_data(folder, task.dataset.digest)
    places = plane(np.stack(list(vectors.values())), experiment.seed)
    counts = holdings(task.dataset, task.split)[list(vectors)]
    columns = zip(vectors, dominant(counts), groups(counts), places.tolist(), strict=True)
    return [
        {"client": client, "dominant_classes": " ".join(map(str, classes)), "group": group, "x": x, "y": y}
        for client, classes, group, (x, y) in columns
    ]


def _vectors(folder: Path, stored: Stored) -> dict[int, np.ndarray]:
    """Each client's embedding (d,) after the last round whose update of it was used; none of those never drawn."""
    experiment = stored.experiment
    (method, settings), model = parts.method(experiment), parts.blank_model(experiment)
    if EMBEDDING not in model.state_dict() or matches(EMBEDDING, method.shared(model, settings).downloads):
        raise BadInput(f"Expected a method whose clients keep a private {EMBEDDING}, got {experiment.method}.")
    if not (folder / "state").is_dir():
        raise BadInput(f"Expected the clients' private tensors in {folder / 'state'}, got none; run with --keep-state.")
    try:
        with (folder / "clients.csv").open(newline="", encoding="utf-8") as lines:  # in the order of the rounds
            last = {int(row["client"]): int(row["round"]) for row in csv.DictReader(lines)}
        states = {c: ClientStore(folder / "state", stored.id, c).load(last[c]) for c in sorted(last)}
    except (OSError, KeyError, ValueError, StateMissing) as error:
        raise BadInput(f"Expected the whole state of the run in {folder}: {error}") from error
    return {client: state[EMBEDDING].double().flatten().numpy() for client, state in states.items()}


def perplexity(clients: int) -> float:
    """Of t-SNE: the usual 30, or fewer where a client has not three others for each.

    >>> perplexity(10), perplexity(1000)
    (3.0, 30.0)
    """
    return min(30.0, (clients - 1) / 3)


def plane(vectors: np.ndarray, seed: int) -> np.ndarray:
    """Places (n, 2) of vectors (n, d) by t-SNE, to three decimals; the same on every call.

    It starts from the two principal components. The seed decides only how these are searched for, which scikit-learn
    does at random where there are more than 500 vectors.

    Source: van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 9, 2008.
    """
    from sklearn.manifold import TSNE

    require(len(vectors) >= 4, f"at least 4 clients with a private {EMBEDDING}", clients=len(vectors))
    require(vectors.shape[1] >= 2, f"a private {EMBEDDING} of at least 2 numbers", numbers=vectors.shape[1])
    require(bool(np.ptp(vectors, axis=0).any()), f"a different {EMBEDDING} of each client", different=0)
    state = int(numpy_generator(seed, "t-SNE").integers(2**32))
    tsne = TSNE(perplexity=perplexity(len(vectors)), init="pca", method="exact", random_state=state)
    return tsne.fit_transform(vectors).astype(np.float64).round(3)


def dominant(counts: np.ndarray) -> list[tuple[int, ...]]:
    """For each client the classes of which it holds more than one and a half times an even share.

    Args:
        counts: training examples of each client and class, (clients, classes).

    >>> dominant(np.array([[40, 40, 10, 10], [25, 25, 25, 25]]))
    [(0, 1), ()]
    """
    even = counts.sum(axis=1, keepdims=True) / counts.shape[1]
    return [tuple(np.flatnonzero(own).tolist()) for own in counts > 1.5 * even]


def groups(counts: np.ndarray) -> list[str]:
    """For each client the name of its group, no more groups than there are marks to tell them apart.

    A group has the same dominant classes. Where that makes too many, it has the same most frequent class; where that
    still does, the rarest are `OTHERS`.

    Args:
        counts: training examples of each client and class, (clients, classes).
    """
    names = [_listed(own) for own in dominant(counts)]
    if len(set(names)) > len(MARKS):
        names = [f"mostly {label}" for label in counts.argmax(axis=1)]
    if len(set(names)) > len(MARKS):
        kept = {name for name, _ in Counter(names).most_common(len(MARKS) - 1)}
        names = [name if name in kept else OTHERS for name in names]
    return names


def _listed(classes: Sequence[int]) -> str:
    """Classes in words.

    >>> _listed((0, 8, 9)), _listed((2, 3, 4, 61)), _listed(())
    ('0, 8, 9', '2–4, 61', 'none')
    """
    spans: list[list[int]] = []
    for label in classes:
        if spans and label == spans[-1][-1] + 1:
            spans[-1].append(label)
        else:
            spans.append([label])
    return ", ".join(f"{s[0]}–{s[-1]}" if len(s) > 2 else ", ".join(map(str, s)) for s in spans) or "none"
