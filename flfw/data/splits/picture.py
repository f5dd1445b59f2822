"""Table for the terminal and picture of a split: the examples that each client holds."""

from collections.abc import Sized
from pathlib import Path

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits import lazy_parts
from flfw.data.splits.lazy_parts import looked_at
from flfw.data.splits.partition import Split
from flfw.files.tables import aligned

_MOST_CLASSES = 12  # one column each; with more, only a client's most frequent classes are listed
_NAMED_CLASSES = 5
_MOST_CLIENTS = 40  # one row each; with more, only the first ones and the last
_MOST_LOOKED = 1000  # clients whose data are made on demand
_LEGIBLE_CELLS = 150  # cells of the picture with their number inside
_TONES = ["#e3edf7", "#6ba3d0", "#1f5f9e", "#08264d"]


def holdings(dataset: Dataset, split: Split) -> np.ndarray:
    """Count the training examples of each client and class, (clients, classes) int64; of those on demand, the first.

    The bands of a regression's target stand for classes.
    """
    labels = dataset.train_y if dataset.is_generated else dataset.kinds(np.asarray(dataset.train_y))
    looked = (split.train[client] for client in looked_at(split.train, _MOST_LOOKED))
    return np.stack([np.bincount(labels[indices], minlength=dataset.kind_count) for indices in looked])


def table(dataset: Dataset, split: Split) -> str:
    """Return a table with a row for each client: numbers of training examples by class, validation and test examples.

    Below it are the numbers of examples that several clients, the server, a defence and an attacker hold.
    """
    counts = holdings(dataset, split)
    many = dataset.kind_count > _MOST_CLASSES
    parts = {"train": split.train, "valid.": split.validation, "test": split.test}
    parts = {name: part for name, part in parts.items() if any(lazy_parts.sizes(part))}
    classes = (
        ["classes"]
        if many
        else [f"{'b' if dataset.is_regression else 'c'}{label}" for label in range(dataset.kind_count)]
    )
    numbers = ["client", *parts, *classes]
    head, rows = [*numbers, *["most frequent"] * many], []
    for client in _shown(len(counts)):
        if client is None:
            rows.append(["⋮"] * len(head))
            continue
        row = counts[client]
        sizes = [f"{len(part[client]):,}" for part in parts.values()]
        mix = [str((row > 0).sum()), _largest(row)] if many else [f"{n:,}" if n else "·" for n in row]
        rows.append([str(client), *sizes, *mix])
    return "\n".join([aligned(head, rows, right=numbers), "", *_beside(dataset, split)])


def _shown(clients: int) -> list[int | None]:
    """Return the clients that get a row; None marks the omitted ones."""
    if clients <= _MOST_CLIENTS:
        return list(range(clients))
    return [*range(_MOST_CLIENTS - 2), None, clients - 1]


def _largest(counts: np.ndarray) -> str:
    """List the most frequent classes, ``3: 172, 4: 172, ...``; ties are broken by the lower label."""
    order = np.argsort(-counts, kind="stable")
    named = [f"{label}: {counts[label]:,}" for label in order[:_NAMED_CLASSES] if counts[label]]
    return ", ".join([*named, "..."] if (counts > 0).sum() > len(named) else named)


def _beside(dataset: Dataset, split: Split) -> list[str]:
    """Return the lines below the table: totals, and the examples of the server, a defence and an attacker."""
    sizes, looked = np.array(lazy_parts.sizes(split.train)), looked_at(split.train, _MOST_LOOKED)
    first = [f"clients       the first {len(looked):,} of {len(split.train):,}, whose data are made on demand"]
    return [
        *(first if len(looked) < len(split.train) else []),
        f"training      {np.median(sizes):,.0f} examples in the middle client ({sizes.min():,} to {sizes.max():,})",
        f"              {_held(dataset, [split.train[client] for client in looked])}",
        f"distillation  {_counted(split.distillation, ', unlabelled,')} with the server",
        f"proxy         {_counted(split.proxy)} with the clients' defences",
        f"public        {len(split.public):,} of {len(dataset.common_tests):,} test examples with an attacker",
        f"victims       {_victims(dataset)}",
    ]


def _counted(part: Sized, described: str = "") -> str:
    return f"{len(part):,} training examples{described}" if len(part) else "no training examples"


def _victims(dataset: Dataset) -> str:
    """Return the words on the examples that an audit attacks; as `flfw.task.task.Task.victim_pool` takes them."""
    if not len(dataset.victims):
        return "none are set apart: an audit attacks training examples of the clients"
    return f"{len(dataset.victims):,} training examples that no client holds"


def _held(dataset: Dataset, parts: list[np.ndarray]) -> str:
    """Return the words on the examples that are held, and held by several clients."""
    if dataset.is_generated:
        return f"{sum(map(len, parts)):,} generated examples held, none in more than one client"
    times = np.bincount(np.concatenate(parts), minlength=len(dataset.train_y))
    shared = int((times > 1).sum())
    overlap = f"{shared:,} in more than one client" + (f", at most in {times.max():,}" if shared else "")
    return f"{(times > 0).sum():,} of {len(times):,} examples held, {overlap}"


def picture(dataset: Dataset, split: Split, path: Path, scheme: str = "") -> None:
    """Draw a PNG of the training examples of each client and class: a darker cell means more, white means none.

    Args:
        dataset: data set, for labels and name.
        split: split of it.
        path: path of the PNG.
        scheme: name of the scheme, for the title.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    counts = holdings(dataset, split).T  # one row per class
    (classes, clients), top = counts.shape, max(1, counts.max())
    legible = counts.size <= _LEGIBLE_CELLS
    wide, tall = np.clip(0.45 * clients, 4.5, 13.0), np.clip(0.32 * classes, 2.0, 9.0)
    figure = Figure(figsize=(wide + 1.6, tall + 1.1), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    cells = axes.pcolormesh(
        np.arange(clients + 1) - 0.5,
        np.arange(classes + 1) - 0.5,
        np.ma.masked_equal(counts, 0),
        cmap=LinearSegmentedColormap.from_list("ink", _TONES),
        # Otherwise one large class would make all others equally pale.
        norm=PowerNorm(0.5, vmin=0, vmax=top),
        edgecolors="white" if legible else "none",
        linewidth=1.0 if legible else 0.0,
    )
    for (label, client), count in np.ndenumerate(counts) if legible else ():
        if count:
            colour = "white" if count > 0.2 * top else _TONES[-1]
            axes.text(client, label, f"{count:,}", ha="center", va="center", fontsize=7, color=colour)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=20, integer=True, steps=[1, 2, 5, 10]))
    axes.spines[:].set_color("#999999")
    axes.set(xlabel="client", ylabel="class")
    bar = figure.colorbar(cells, ax=axes, pad=0.02, aspect=30)
    bar.set_label("examples (root scale)")
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    hands = f"{clients:,} client{'s' if clients > 1 else ''}"
    if clients < len(split.train):
        hands = f"the first {clients:,} of {len(split.train):,} clients"
    axes.set_title(", ".join(filter(None, [dataset.name, scheme, hands])), loc="left", fontweight="bold")
    figure.savefig(path)
