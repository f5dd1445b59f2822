"""A client's features beside those that the server's generator makes for the same labels, in the plane.

Where the two lie mixed, the generator says much of what the clients' extractors say, and it is what is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from torch import Tensor, nn

from flfw import resolve as parts
from flfw.client.store import ClientStore, StateMissing
from flfw.client.workplace import Workplace
from flfw.errors import BadInput, require
from flfw.experiment import Experiment
from flfw.messages.sharing import matches
from flfw.messages.wire import unpack
from flfw.nets.conditional_gan import GeneratingNet, noise
from flfw.rng import numpy_generator, torch_generator
from flfw.runs import run
from flfw.storage.checkpoint import Checkpoints, Snapshot, require_same_data, stored_experiment
from flfw.task import Task
from papers.drawing import STYLE, TEXT, Rows, blank
from papers.embeddings import plane

MOST_CLIENTS = 4
MOST_EXAMPLES = 200
"""Of a client: each is laid out twice, as its features and as generated ones, and t-SNE takes its time."""

REAL, GENERATED = "real", "generated"
_LOOKS: Mapping[str, Mapping[str, Any]] = {
    REAL: {"marker": "o", "s": 16, "linewidth": 0.4},
    GENERATED: {"marker": "^", "s": 20, "linewidth": 0.9},
}
_HALO = [withStroke(linewidth=2, foreground="white")]
_COLUMNS = 2


def features(
    folder: Path, data_root: Path | None = None, clients: int = MOST_CLIENTS, examples: int = MOST_EXAMPLES
) -> Rows:
    """A row a feature: ``client``, ``kind``, ``label`` and its place, ``x`` and ``y``; a client's are fitted jointly.

    ``real`` are features of the client's own training examples, by its extractor after the last round; ``generated``
    are those that the generator, as the server sends it next, makes for the same labels.

    Args:
        folder: of a run whose clients keep an extractor and receive a generator, run with ``--keep-state``.
        data_root: where the data lie now; None: where the run found them.
        clients: how many at most, the first ones.
        examples: of a client, at most; drawn at random.

    Raises:
        BadInput: the run, its state or its data are not there, or its method has no such parts.
    """
    stored = stored_experiment(folder)
    _require_generator(stored.experiment)
    if not (folder / "state").is_dir():
        raise BadInput(f"Expected the clients' private tensors in {folder / 'state'}, got none; run with --keep-state.")
    asked = replace(stored.experiment, out=folder, data_root=data_root or stored.experiment.data_root)
    experiment, task, _ = run.check(asked, new=False)
    require_same_data(folder, task.dataset.digest)
    last = Checkpoints(folder, stored.experiment).last
    if last is None:
        raise BadInput(f"Expected a run with rounds of training, got {folder} without; name another.")
    rows: list[dict[str, object]] = []
    for client in [client for client in sorted(last.last_round) if last.last_round[client]][:clients]:
        store = ClientStore(folder / "state", stored.id, client)
        try:
            model = _model(experiment, task, client, store, last)
        except (OSError, StateMissing) as error:
            raise BadInput(f"Expected the whole state of the run in {folder}: {error}") from error
        rows += _laid_out(experiment, task, client, model, examples)
    require(bool(rows), "a client whose update was used", clients=0)
    return rows


def _require_generator(experiment: Experiment) -> None:
    (method, settings), model = parts.method(experiment), parts.blank_model(experiment)
    shared = method.shared(model, settings).downloads
    names = [name for name in model.state_dict() if name.startswith("extractor.")]
    if not isinstance(model, GeneratingNet) or any(matches(name, shared) for name in names):
        raise BadInput(
            "Expected a method whose clients keep an extractor and receive a generator of features, got "
            f"{experiment.method}."
        )


def _model(experiment: Experiment, task: Task, client: int, store: ClientStore, last: Snapshot) -> GeneratingNet:
    """What a client would begin the next round with."""
    method, settings = parts.method(experiment)
    place = Workplace(experiment, task, method, settings, client, last.round + 1, None, store)
    made = parts.client(replace(experiment, gpus_per_client=0.0))(place)
    made.install({name: value.numpy() for name, value in unpack(last.arrays).items()}, last.last_round[client])
    return made.model.cpu().eval()


def _laid_out(
    experiment: Experiment, task: Task, client: int, model: GeneratingNet, examples: int
) -> list[dict[str, object]]:
    vectors, labels = _vectors(experiment, task, client, model, examples)
    places = plane(np.concatenate(list(vectors.values())), experiment.seed).tolist()
    about = [(kind, label) for kind in vectors for label in labels]
    return [
        {"client": client, "kind": kind, "label": label, "x": across, "y": up}
        for (kind, label), (across, up) in zip(about, places, strict=True)
    ]


@torch.no_grad()
def _vectors(
    experiment: Experiment, task: Task, client: int, model: GeneratingNet, examples: int
) -> tuple[dict[str, np.ndarray], list[int]]:
    """Of each kind the features (n, d), and their labels."""
    own = task.split.train[client]
    chosen = numpy_generator(experiment.seed, "features", client).permutation(own)[:examples]
    require(len(chosen) >= 2, f"at least 2 training examples of client {client}", examples=len(chosen))
    x, y = task.examples("train", np.sort(chosen))
    z = noise(len(y), torch_generator(experiment.seed, "features", client))
    found = {REAL: model.extractor(task.inputs.normalise(x)), GENERATED: model.generator(z, y)}
    return {kind: _flat(each) for kind, each in found.items()}, y.tolist()


def _flat(found: Tensor) -> np.ndarray:
    return nn.Flatten()(found).double().numpy()


@rc_context(STYLE)
def drawn(rows: Rows, title: str) -> Figure:
    """A plot a client: full circles are real, hollow triangles generated; a class has its colour, and its number.

    Args:
        rows: as `features` has them.
        title: stands above.
    """
    clients = list(dict.fromkeys(row["client"] for row in rows))
    labels = sorted({row["label"] for row in rows})
    wide = min(_COLUMNS, len(clients))
    tall = -(-len(clients) // wide)
    figure = blank(3.3 * wide + 1.4, 3.3 * tall + 0.6, title)
    inks = dict(zip(labels, cycle(colormaps["tab10"].colors), strict=False))  # pyright: ignore[reportAttributeAccessIssue]
    for place, client in enumerate(clients, 1):
        axes = figure.add_subplot(tall, wide, place, title=f"client {client}", xticks=[], yticks=[])
        _scattered(axes, [row for row in rows if row["client"] == client], inks)
    figure.supxlabel("only who is near whom has a meaning: the axes have no unit", fontsize=8)
    entries = [Line2D([], [], color=inks[label], marker="s", linestyle="none", label=str(label)) for label in labels]
    entries += [
        Line2D([], [], color=TEXT, marker=_LOOKS[kind]["marker"], linestyle="none", markerfacecolor=face, label=kind)
        for kind, face in ((REAL, TEXT), (GENERATED, "white"))
    ]
    figure.legend(handles=entries, title="class", loc="outside right center", frameon=False)
    return figure


def _scattered(axes: Axes, rows: Rows, inks: Mapping[int, Any]) -> None:
    for kind, look in _LOOKS.items():
        own = [row for row in rows if row["kind"] == kind]
        edges = [inks[row["label"]] for row in own]
        faces = edges if kind == REAL else "none"
        axes.scatter([r["x"] for r in own], [r["y"] for r in own], facecolors=faces, edgecolors=edges, **look)
    for label in dict.fromkeys(row["label"] for row in rows):
        real = [row for row in rows if row["kind"] == REAL and row["label"] == label]
        middle = [float(np.median([row[key] for row in real])) for key in ("x", "y")]
        axes.annotate(
            str(label), (middle[0], middle[1]), ha="center", va="center", fontweight="bold", path_effects=_HALO
        )
    axes.set_box_aspect(1)
    axes.margins(0.06)
    axes.spines[:].set_visible(True)
