"""What is measured at full scale: `PRIORITIES` are the cells, in which variants, with which seeds, in order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flfw.experiment import Experiment
from flfw.papers import cells, published
from flfw.papers.evidence.records import FOLDER, digest, file_of, read_record
from flfw.papers.preset import Preset, Variant, presets, varied
from flfw.papers.published import Cell


@dataclass(frozen=True)
class Wanted:
    """Cells that are measured together: all of them with the first seed, then with the next one.

    Attributes:
        cells: a path of `flfw.papers.published.Cell.path`, or its beginning.
        seeds: the seeds.
        variants: the variants; one that changes no run of a cell is left out.
    """

    cells: str
    seeds: tuple[int, ...] = (0, 1, 2)
    variants: tuple[Variant, ...] = ("authors", "ours")


_FASHION, _CIFAR, _FEDCG = "Fashion-MNIST/20", "CIFAR-10/20", ("FMNIST/4", "CIFAR10/4")
_PLAIN, _NOISY = ("HyperFL", "FedAvg", "Local-only", "FedPer", "FedProx"), ("DP-FedAvg", "CENTAUR", "PPSGD")
_RELEASED = ("Fed-CDP", "Fed-SDP")  # as code, without noise
_MNIST = ("non-private", *_RELEASED, "Fed-CDP(decay)")
_FIRST, _FURTHER = (0,), (1, 2)
_TABULAR = ("fed_cdp.5/Cancer", "fed_cdp.4/Cancer", "fed_cdp.5/Adult", "fed_cdp.4/Adult")
_SHARED = tuple(f"fedcg.1/{method}/{data}" for data in _FEDCG for method in ("Local", "FedAvg", "FedSplit", "FedCG"))

UNPUBLISHED, RELEASED = "not in the paper", "not in the paper: no noise, as in the released code"
_LEAST_NOISE = 0.5  # in Fed-CDP's table V

PRIORITIES = (
    Wanted("fed_cdp.6", _FIRST),
    *(Wanted(paths, _FIRST) for paths in _TABULAR),
    *(Wanted(f"fed_cdp.2/{method} noise 0/100", _FIRST) for method in _RELEASED),
    *(Wanted(f"fed_cdp.2/non-private/100/{share}", _FURTHER) for share in ("0.05", "0.1")),
    *(Wanted(f"fed_cdp.2/{method}/100", _FIRST) for method in _MNIST),
    *(Wanted(f"hyperfl.1/{method}/{_FASHION}", _FIRST) for method in (*_PLAIN, *_NOISY)),
    *(Wanted(f"hyperfl.1/{method}/{_FASHION}", _FURTHER) for method in ("HyperFL", "FedAvg")),
    Wanted("fed_cdp.4/MNIST", _FIRST),
    Wanted("fed_cdp.5/MNIST", _FIRST),
    *(Wanted(f"hyperfl.1/{method}/Fashion-MNIST/100", _FIRST) for method in ("HyperFL", "FedAvg", "Local-only")),
    *(Wanted(f"fed_cdp.2/{method}/1000/{share}", _FIRST) for share in ("0.05", "0.1") for method in _MNIST),
    *(Wanted(f"hyperfl.3/{method}/CIFAR-10", _FIRST) for method in ("FedAvg", "HyperFL")),
    *(Wanted(f"hyperfl.1/{method}/{_CIFAR}", _FIRST) for method in ("HyperFL", "FedAvg", "Local-only")),
    *(Wanted(paths, _FIRST) for paths in _SHARED),
    *(Wanted(paths, _FURTHER) for paths in (*_TABULAR, "fed_cdp.5/MNIST", "fed_cdp.4/MNIST")),
    *(Wanted(f"hyperfl.1/{method}/{_CIFAR}", _FIRST) for method in (*_PLAIN, *_NOISY)),
    Wanted("hyperfl.3", _FIRST),
    Wanted("fed_cdp.2/Fed-CDP/10000/0.5", _FIRST),
    *(Wanted(f"hyperfl.1/{method}/{data}", _FURTHER) for data in (_FASHION, _CIFAR) for method in (*_PLAIN, *_NOISY)),
    *(Wanted(paths, (1, 2, 3, 4)) for paths in _SHARED),
)
"""What takes minutes comes first, then by what a paper claims for the hours it takes, and last further seeds."""


@dataclass(frozen=True)
class Item:
    """Cell in a variant with one seed, the content of one file of evidence.

    Attributes:
        cell: the published cell.
        variant: the variant.
        seed: the seed.
        choice: number of the setting among those that the paper chose from, from 0.
        preset: the one run, with the figures to read.
    """

    cell: Cell
    variant: Variant
    seed: int
    choice: int
    preset: Preset

    @property
    def name(self) -> str:
        """Name in progress and in file names."""
        choice = f" choice {self.choice}" if self.choice else ""
        return f"{self.cell.path} {self.variant} seed {self.seed}{choice}"

    @property
    def run(self) -> Experiment:
        """The run."""
        return self.preset.choices[0][0]


def items(prefix: str = "") -> Iterator[Item]:
    """Yield the items to measure, in order, each once.

    Args:
        prefix: only cells whose path begins so.
    """
    seen: set[str] = set()
    for wanted in PRIORITIES:
        named = cells_of(wanted.cells.partition("/")[0])
        cells_below = [one for one in named if all(map(f"{one.path}/".startswith, (f"{wanted.cells}/", prefix)))]
        for seed in wanted.seeds:
            for cell in cells_below:
                for item in _of_cell(cell, wanted.variants, seed):
                    if item.name not in seen:
                        seen.add(item.name)
                        yield item


def cells_of(name: str) -> tuple[Cell, ...]:
    """Return the cells of a table, and of rows and columns beside it that the paper does not have.

    Beside hyperfl.1 these are FedPer and FedProx; beside hyperfl.3 MNIST, for those without EMNIST; beside fed_cdp.2
    and .5 the noise 0, as in the authors' released code.
    """
    given = published.table(name).cells
    others: list[Cell] = []
    if name == "hyperfl.1":
        plain = [cell for cell in given if cell.keys["method"] == "FedAvg"]
        others = [_unpublished(cell, {"method": row}, row=(row,)) for row in ("FedPer", "FedProx") for cell in plain]
    if name == "hyperfl.3":
        emnist = [cell for cell in given if cell.keys["dataset"] == "EMNIST" and cell.metric != "lpips"]
        others = [_unpublished(cell, {"dataset": "MNIST"}, columns=("MNIST",)) for cell in emnist]
    if name == "fed_cdp.2":
        few = [cell for cell in given if cell.columns == ("100", "0.05") and cell.row[0] in _RELEASED]
        others = [_unpublished(cell, {"sigma": 0}, row=(f"{cell.row[0]} noise 0",), note=RELEASED) for cell in few]
    if name == "fed_cdp.5":
        least = [cell for cell in given if cell.keys["sigma"] == _LEAST_NOISE]
        others = [_unpublished(cell, {"sigma": 0}, columns=("0",), note=RELEASED) for cell in least]
    return (*given, *others)


def _unpublished(cell: Cell, keys: Mapping[str, str | int], note: str = UNPUBLISHED, **names: tuple[str, ...]) -> Cell:
    """Return a cell beside a published one, with other keys and other names of its row or column."""
    return replace(cell, keys={**cell.keys, **keys}, **names, value=None, deviation=None, note=note)


def _of_cell(cell: Cell, variants: tuple[Variant, ...], seed: int) -> Iterator[Item]:
    make = presets(cell.table)
    plain = make(cell, "full") if make else None
    published_or_not = cell if cell.note not in (UNPUBLISHED, RELEASED) else replace(cell, value=0.0)
    if plain is None or cells.obstacle(published_or_not, plain) or plain.source == "clock":
        return
    for variant in variants:
        preset = varied(plain, cell.table, variant)
        if variant == "ours" and preset == replace(varied(plain, cell.table, "authors"), beside=()):
            continue  # the variants are one, and it is called by the name of the stronger claim
        for number, runs in enumerate(preset.choices):
            single = replace(preset, choices=((replace(runs[0], seed=seed),),), beside=(), further=(), chosen_by=None)
            yield Item(cell, variant, seed, number, before_training(single) if cell.table == "hyperfl.3" else single)


def before_training(preset: Preset) -> Preset:
    """Return a preset whose run ends after one round: the published figure is of the gradients before training."""
    run = preset.choices[0][0]
    also = tuple(figure for figure in preset.also if f"round={run.rounds}." not in figure.name)
    return replace(preset, choices=((replace(run, rounds=1, audit_rounds="0"),),), also=also)


def is_there(item: Item, folder: Path = FOLDER) -> bool:
    """Return whether an item is recorded with its present settings."""
    path = file_of(folder, item.cell.path, item.variant, item.seed, item.choice)
    return path.exists() and read_record(path).digest == digest(item.run)


def changed(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a run that decide numbers and are not at their default."""
    usual = Experiment().decisive
    for name, value in experiment.decisive.items():
        if value != usual[name]:
            yield name, value
