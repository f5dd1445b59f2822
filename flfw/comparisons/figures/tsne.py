"""Private tensors of a finished run's clients in the plane, by t-SNE.

The run must have kept them, by ``--expert keep_state=true``. Embeddings are shown with the dominant classes of
each client. Features of a client stand beside those of the server's generator for the same labels: where the two kinds
lie mixed, the generator, which is shared, reveals much about the clients' private extractors.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from torch import nn

from flfw.client.store import ClientStore, StateMissingError
from flfw.comparisons.figures.drawing import OTHERS, Rows
from flfw.data.splits.picture import holdings
from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.files.tensor_names import matches
from flfw.nets.conditional_gan import GeneratingNet, noise
from flfw.plans.run_plan import plan
from flfw.report.chart_style import INK, MARKS, STYLE, blank
from flfw.rng import numpy_generator, torch_generator
from flfw.runs import run
from flfw.runs.trained_model import client_after, require_state
from flfw.server.checkpoint import Snapshot, Stored, is_complete, last_snapshot, stored_experiment
from flfw.task.task import Task

MOST_CLIENTS = 4
MOST_EXAMPLES = 200
"""Most examples of a client: each is drawn twice, as its real and as its generated features, and t-SNE is slow."""

REAL, GENERATED = "real", "generated"
_LOOKS: Mapping[str, Mapping[str, Any]] = {
    REAL: {"marker": "o", "s": 16, "linewidth": 0.4},
    GENERATED: {"marker": "^", "s": 20, "linewidth": 0.9},
}
_HALO = [withStroke(linewidth=2, foreground="white")]
_COLUMNS = 2


@final
@dataclass(frozen=True)
class Restored:
    """Finished run of a method whose clients keep an extractor and receive a generator of its features.

    Attributes:
        folder: of the run.
        experiment: without `auto`.
        task: data and split of the run.
        last: what the server would send next.
    """

    folder: Path
    experiment: Experiment
    task: Task
    last: Snapshot

    @property
    def clients(self) -> list[int]:
        """Clients of which an update was used, ascending."""
        return [client for client in sorted(self.last.state_versions) if self.last.state_versions[client]]

    def model(self, client: int) -> GeneratingNet:
        """Return the model with which a client would begin the next round, on the CPU and in evaluation mode.

        Raises:
            InputError: its private tensors are not there, or damaged.
        """
        return cast(GeneratingNet, client_after(plan(self.experiment), self.task, self.folder, client).model.eval())


def restored(folder: Path, data_root: Path | None = None) -> Restored:
    """Open a finished run.

    Args:
        folder: of a run with ``--expert keep_state=true``.
        data_root: present folder of the data; None: the folder that the run used.

    Raises:
        InputError: the run, its state or its data are not there, or its method has no extractor and generator.
    """
    _require_generator(stored_experiment(folder).experiment)
    require_state(folder)
    experiment, task = run.reopened(folder, data_root)
    if not is_complete(folder):
        raise InputError(f"Expected a finished run with rounds of training, got {folder}; name another or --resume it.")
    return Restored(folder, experiment, task, last_snapshot(folder))


def _require_generator(experiment: Experiment) -> None:
    model, shared = plan(experiment).client.model, plan(experiment).client.sharing.downloads
    names = [name for name in model.state_dict() if name.startswith("extractor.")]
    if not isinstance(model, GeneratingNet) or any(matches(name, shared) for name in names):
        raise InputError(
            "Expected a method whose clients keep an extractor and receive a generator of features, got "
            f"{experiment.method}."
        )


def features(
    folder: Path, data_root: Path | None = None, clients: int = MOST_CLIENTS, examples: int = MOST_EXAMPLES
) -> Rows:
    """Return a row per feature: ``client``, ``kind``, ``label`` and coordinates ``x``, ``y``, fitted for each client.

    ``real`` features are those of the client's own training examples, by its extractor after the last round.
    ``generated`` features are those of the generator for the same labels, as the server sends it next.

    Args:
        folder: folder of a run whose clients keep an extractor and receive a generator, run with
            ``--expert keep_state=true``.
        data_root: present folder of the data; None: the folder that the run used.
        clients: largest number of clients; the first ones are taken.
        examples: largest number of examples of a client; they are drawn at random.

    Raises:
        InputError: the run, its state or its data are not there, or its method has no extractor and generator.
    """
    run = restored(folder, data_root)
    rows: list[dict[str, object]] = []
    for client in run.clients[:clients]:
        rows += _laid_out(run, client, examples)
    require(bool(rows), "a client whose update was used", clients=0)
    return rows


def _laid_out(run: Restored, client: int, examples: int) -> list[dict[str, object]]:
    vectors, labels = _vectors(run, client, run.model(client), examples)
    places = plane(np.concatenate(list(vectors.values())), run.experiment.seed).tolist()
    keys = [(kind, label) for kind in vectors for label in labels]
    return [
        {"client": client, "kind": kind, "label": label, "x": across, "y": up}
        for (kind, label), (across, up) in zip(keys, places, strict=True)
    ]


@torch.no_grad()
def _vectors(
    run: Restored, client: int, model: GeneratingNet, examples: int
) -> tuple[dict[str, np.ndarray], list[int]]:
    """Return the features (n, d) of each kind, and their labels."""
    indices, seed = run.task.split.train[client], run.experiment.seed
    chosen = numpy_generator(seed, "features", client).permutation(indices)[:examples]
    require(len(chosen) >= 2, f"at least 2 training examples of client {client}", examples=len(chosen))
    x, y = run.task.examples("train", np.sort(chosen))
    z = noise(len(y), torch_generator(seed, "features", client))
    vectors = {REAL: model.extractor(run.task.inputs.normalise(x)), GENERATED: model.generator(z, y)}
    return {kind: nn.Flatten()(each).double().numpy() for kind, each in vectors.items()}, y.tolist()


@rc_context(STYLE)
def drawn(rows: Rows, title: str) -> Figure:
    """Draw a plot for each client: full circles are real, hollow triangles generated; a class has a colour and number.

    Args:
        rows: rows of `features`.
        title: title above the plots.
    """
    clients = list(dict.fromkeys(row["client"] for row in rows))
    labels = sorted({row["label"] for row in rows})
    wide = min(_COLUMNS, len(clients))
    tall = -(-len(clients) // wide)
    figure = blank(3.3 * wide + 1.4, 3.3 * tall + 0.6, title)
    inks = dict(zip(labels, cycle(colormaps["tab10"].colors), strict=False))  # pyright: ignore[reportAttributeAccessIssue]
    for index, client in enumerate(clients, 1):
        axes = figure.add_subplot(tall, wide, index, title=f"client {client}", xticks=[], yticks=[])
        _scattered(axes, [row for row in rows if row["client"] == client], inks)
    figure.supxlabel("only who is near whom has a meaning: the axes have no unit", fontsize=8)
    entries = [Line2D([], [], color=inks[label], marker="s", linestyle="none", label=str(label)) for label in labels]
    entries += [
        Line2D([], [], color=INK, marker=_LOOKS[kind]["marker"], linestyle="none", markerfacecolor=face, label=kind)
        for kind, face in ((REAL, INK), (GENERATED, "white"))
    ]
    figure.legend(handles=entries, title="class", loc="outside right center", frameon=False)
    return figure


def _scattered(axes: Axes, rows: Rows, inks: Mapping[int, Any]) -> None:
    for kind, look in _LOOKS.items():
        kind_rows = [row for row in rows if row["kind"] == kind]
        edges = [inks[row["label"]] for row in kind_rows]
        faces = edges if kind == REAL else "none"
        axes.scatter(
            [r["x"] for r in kind_rows], [r["y"] for r in kind_rows], facecolors=faces, edgecolors=edges, **look
        )
    for label in dict.fromkeys(row["label"] for row in rows):
        real = [row for row in rows if row["kind"] == REAL and row["label"] == label]
        middle = [float(np.median([row[key] for row in real])) for key in ("x", "y")]
        axes.annotate(
            str(label), (middle[0], middle[1]), ha="center", va="center", fontweight="bold", path_effects=_HALO
        )
    axes.set_box_aspect(1)
    axes.margins(0.06)
    axes.spines[:].set_visible(True)


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
    vectors = _embedded(folder, stored_experiment(folder))
    experiment, task = run.reopened(folder, data_root)
    places = plane(np.stack(list(vectors.values())), experiment.seed)
    counts = holdings(task.dataset, task.split)[list(vectors)]
    columns = zip(vectors, dominant(counts), groups(counts), places.tolist(), strict=True)
    return [
        {"client": client, "dominant_classes": " ".join(map(str, classes)), "group": group, "x": x, "y": y}
        for client, classes, group, (x, y) in columns
    ]


def _embedded(folder: Path, stored: Stored) -> dict[int, np.ndarray]:
    """Return each client's embedding (d,) after the last round with a used update; clients never sampled have none."""
    experiment = stored.experiment
    run_plan = plan(experiment)
    if EMBEDDING not in run_plan.client.model.state_dict() or matches(EMBEDDING, run_plan.client.sharing.downloads):
        raise InputError(f"Expected a method whose clients keep a private {EMBEDDING}, got {experiment.method}.")
    require_state(folder)
    used = {client: last for client, last in sorted(last_snapshot(folder).state_versions.items()) if last}
    try:
        states = {client: ClientStore(folder / "state", stored.id, client).load(last) for client, last in used.items()}
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
