"""Features of a finished run's clients beside those of the server's generator for the same labels, in the plane.

The generator is shared. Where the two kinds lie mixed, it reveals much about the clients' private extractors. The run
must have kept its clients' private tensors, by ``--expert keep_state=true``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from torch import Tensor, nn

from flfw.client.context import ClientContext
from flfw.client.store import ClientStore, StateMissingError
from flfw.comparisons.figures.drawing import Rows
from flfw.comparisons.figures.embeddings import plane
from flfw.errors import InputError, require
from flfw.experiment import Experiment
from flfw.files.tensor_names import matches
from flfw.messages.wire import unpack
from flfw.nets.conditional_gan import GeneratingNet, noise
from flfw.plans.run_plan import plan
from flfw.report.chart_style import INK, STYLE, blank
from flfw.rng import numpy_generator, torch_generator
from flfw.runs import run
from flfw.server.checkpoint import Checkpoints, Snapshot, is_complete, require_same_data, stored_experiment
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
        id: of the run.
        experiment: without `auto`.
        task: data and split of the run.
        last: what the server would send next.
    """

    folder: Path
    id: str
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
        store = ClientStore(self.folder / "state", self.id, client)
        now = self.last.round + 1
        ctx = ClientContext(plan(self.experiment).client, self.task, client, now, None, store)
        made = plan(replace(self.experiment, gpus_per_client=0.0)).client_class(ctx)
        received = {name: value.numpy() for name, value in unpack(self.last.arrays).items()}
        try:
            made.load_received(received, self.last.state_versions[client])
        except (OSError, StateMissingError) as error:
            raise InputError(f"Expected the whole state of the run in {self.folder}: {error}") from error
        return cast(GeneratingNet, made.model.cpu().eval())


def restored(folder: Path, data_root: Path | None = None) -> Restored:
    """Open a finished run.

    Args:
        folder: of a run with ``--expert keep_state=true``.
        data_root: present folder of the data; None: the folder that the run used.

    Raises:
        InputError: the run, its state or its data are not there, or its method has no extractor and generator.
    """
    stored = stored_experiment(folder)
    _require_generator(stored.experiment)
    if not (folder / "state").is_dir():
        raise InputError(
            f"Expected the clients' private tensors in {folder / 'state'}, got none; run with --expert keep_state=true."
        )
    experiment = replace(stored.experiment, out=folder, data_root=data_root or stored.experiment.data_root)
    run_plan, task, _ = run.check(experiment, new=False)
    require_same_data(folder, task.dataset.digest)
    last = Checkpoints(folder, stored.experiment).last
    if last is None or not is_complete(folder):
        raise InputError(
            f"Expected a finished run with rounds of training, got {folder}; name another, or --resume it."
        )
    return Restored(folder, stored.id, run_plan.experiment, task, last)


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
    return {kind: _flat(each) for kind, each in vectors.items()}, y.tolist()


def _flat(tensor: Tensor) -> np.ndarray:
    return nn.Flatten()(tensor).double().numpy()


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
