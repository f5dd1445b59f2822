"""Private embeddings of a run's clients in the plane, and the dominant classes of each client."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from flfw.client.store import ClientStore, StateMissingError
from flfw.comparisons.figures.drawing import OTHERS, Rows
from flfw.data.splits.picture import holdings
from flfw.errors import InputError, require
from flfw.files.tensor_names import matches
from flfw.plans.run_plan import plan
from flfw.report.chart_style import MARKS
from flfw.rng import numpy_generator
from flfw.runs import run
from flfw.server.checkpoint import Stored, require_same_data, stored_experiment

EMBEDDING = "embedding"
"""Name of the private tensor that is projected to the plane."""


def embeddings(folder: Path, data_root: Path | None = None) -> Rows:
    """Return a row per client: ``client``, ``dominant_classes``, ``group`` and the coordinates ``x`` and ``y``.

    Args:
        folder: folder of a run whose clients keep a private tensor `EMBEDDING`, run with ``--expert keep_state=true``.
        data_root: present folder of the data; None: the folder that the run used.

    Raises:
        InputError: the run, its state or its data are not there, or the embeddings cannot be projected.
    """
    stored = stored_experiment(folder)
    vectors = _vectors(folder, stored)
    experiment = replace(stored.experiment, out=folder, data_root=data_root or stored.experiment.data_root)
    run_plan, task, _ = run.check(experiment, new=False)
    experiment = run_plan.experiment
    require_same_data(folder, task.dataset.digest)
    places = plane(np.stack(list(vectors.values())), experiment.seed)
    counts = holdings(task.dataset, task.split)[list(vectors)]
    columns = zip(vectors, dominant(counts), groups(counts), places.tolist(), strict=True)
    return [
        {"client": client, "dominant_classes": " ".join(map(str, classes)), "group": group, "x": x, "y": y}
        for client, classes, group, (x, y) in columns
    ]


def _vectors(folder: Path, stored: Stored) -> dict[int, np.ndarray]:
    """Return each client's embedding (d,) after the last round with a used update; clients never sampled have none."""
    experiment = stored.experiment
    run_plan = plan(experiment)
    if EMBEDDING not in run_plan.client.model.state_dict() or matches(EMBEDDING, run_plan.client.sharing.downloads):
        raise InputError(f"Expected a method whose clients keep a private {EMBEDDING}, got {experiment.method}.")
    if not (folder / "state").is_dir():
        raise InputError(
            f"Expected the clients' private tensors in {folder / 'state'}, got none; run with --expert keep_state=true."
        )
    try:
        with (folder / "clients.csv").open(newline="", encoding="utf-8") as lines:  # in the order of the rounds
            last = {int(row["client"]): int(row["round"]) for row in csv.DictReader(lines)}
        states = {c: ClientStore(folder / "state", stored.id, c).load(last[c]) for c in sorted(last)}
    except (OSError, KeyError, ValueError, StateMissingError) as error:
        raise InputError(f"Expected the whole state of the run in {folder}: {error}") from error
    return {client: state[EMBEDDING].double().flatten().numpy() for client, state in states.items()}


def perplexity(clients: int) -> float:
    """Return the perplexity of t-SNE: the usual 30, or less so that three times it is below the number of clients.

    >>> perplexity(10), perplexity(1000)
    (3.0, 30.0)
    """
    return min(30.0, (clients - 1) / 3)


def plane(vectors: np.ndarray, seed: int) -> np.ndarray:
    """Compute coordinates (n, 2) of vectors (n, d) by t-SNE, to three decimals; the same on every call.

    It starts from the first two principal components. The seed is used only for these: scikit-learn computes them with
    a random algorithm if there are more than 500 vectors.

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
    """Return for each client the classes of which it holds more than one and a half times an even share.

    Args:
        counts: number of training examples by client and class, (clients, classes).

    >>> dominant(np.array([[40, 40, 10, 10], [25, 25, 25, 25]]))
    [(0, 1), ()]
    """
    even = counts.sum(axis=1, keepdims=True) / counts.shape[1]
    return [tuple(np.flatnonzero(mask).tolist()) for mask in counts > 1.5 * even]


def groups(counts: np.ndarray) -> list[str]:
    """Return for each client the name of its group; there are at most as many groups as markers.

    The clients of a group have the same dominant classes. If that gives too many groups, they have the same most
    frequent class. If there are still too many, the rarest groups become `OTHERS`.

    Args:
        counts: number of training examples by client and class, (clients, classes).
    """
    names = [_listed(classes) for classes in dominant(counts)]
    if len(set(names)) > len(MARKS):
        names = [f"mostly {label}" for label in counts.argmax(axis=1)]
    if len(set(names)) > len(MARKS):
        kept = {name for name, _ in Counter(names).most_common(len(MARKS) - 1)}
        names = [name if name in kept else OTHERS for name in names]
    return names


def _listed(classes: Sequence[int]) -> str:
    """Return classes in words.

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
