"""Runs of HyperFL's table 5: reconstructions by the attack ROG, and the ceiling above them.

The table names neither the factor of enlargement, nor whether a network follows the search, nor the size of the images.
Here the networks, images and clients of table 3 are attacked before training, with ROG's 100 iterations. The main
number is of images in their own size, a factor of 4 and no network behind the search. For HyperFL it is a search for
all unknowns, as the paper's. Beside it:

- the ceiling, the mean PSNR of the nearest images of this form, which no such search can exceed;
- the same with a factor of 2, and with a U-Net behind the search that learns from 40 public images (full: 2,000);
- the same for images enlarged to 128 pixels, ROG's own size, on the sigmoid LeNet, as CNN 1 and CNN 2 have one size:
  of two clients with 50 of the first 1,000 training images each, and the first 1,000 test images as public ones. With
  the PSNR and SSIM in the images' own size;
- for HyperFL all but the last by the closed form, which needs neither classifier nor label: attacks/rog.py.

At quick scale 2 of the 20 clients train in the one round, as only what is before it counts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flfw import data
from flfw.data import DatasetArrays, DatasetCard
from flfw.experiment import Experiment
from flfw.papers.preset import Further, Preset, ResultMetric, Scale
from flfw.papers.published import Cell

_AT = "audit.attack=rog,round=0"
_CLOSED = ("rog.private=closed_form",)
_FEW, _SIDE = 1000, 128  # images of each part that are enlarged; pixels


def first(card: DatasetCard) -> DatasetCard:
    """Return the card of a data set's first images; all of them would be gigabytes when they are enlarged."""

    def read(root: Path, side: int | None) -> DatasetArrays:
        whole = card.read(root, side)
        train, test = (whole.train_x[:_FEW], whole.train_y[:_FEW]), (whole.test_x[:_FEW], whole.test_y[:_FEW])
        return DatasetArrays(*train, *test)

    return replace(card, read=read, split="sampled", victims=0, test_start=0)


FIRST_CIFAR10, FIRST_EMNIST, FIRST_MNIST = (first(data.describe(name)) for name in ("cifar10", "emnist", "mnist"))
_FIRST = {"cifar10": "FIRST_CIFAR10", "emnist": "FIRST_EMNIST", "mnist": "FIRST_MNIST"}


def preset(cell: Cell, scale: Scale, before: Experiment) -> Preset:
    """Return the preset of a cell.

    Args:
        cell: a cell of hyperfl.5.
        scale: the scale.
        before: the training of the cell's method on its data.
    """
    quick, name = scale == "quick", cell.metric
    run = replace(before, rounds=1, attack=("rog",), audit_rounds="0", images=8 if quick else 50)
    run = replace(run, sample=2) if quick else run
    network = ("rog.post=unet", f"rog.pairs={40 if quick else 2000}", "rog.post_epochs=10")
    others = [("factor 2", ("rog.sf=2",)), ("factor 4 and a U-Net", network)]
    if cell.keys["method"] == "HyperFL":
        closed = [(f"closed form, {words}", (*_CLOSED, *settings)) for words, settings in [("factor 4", ()), *others]]
        others = [others[0], *closed]
    further = [one for words, settings in others for one in _beside(words, _changed(run, settings), name)]
    further += _at_128(run, name)
    words = f"{name.upper()} of what rog reconstructs, factor 4, mean over the images"
    also = (_ceiling("factor 4"),) if name == "psnr" else ()
    return Preset(((run,),), ResultMetric(f"{_AT}.{name}.mean", words, 1), also=also, further=tuple(further))


def _changed(run: Experiment, settings: tuple[str, ...]) -> Experiment:
    return replace(run, set=(*run.set, *settings))


def _beside(words: str, run: Experiment, name: str) -> list[Further]:
    """Return a figure of a run of its own, and the ceiling of another factor."""
    figures = [Further(f"{words}.{name}", (run,), ResultMetric(f"{_AT}.{name}.mean", f"the same: {words}", 1))]
    if name == "psnr" and words == "factor 2":
        figures.append(Further(f"{words}.ceiling", (run,), _ceiling(words)))
    return figures


def _at_128(run: Experiment, name: str) -> list[Further]:
    """Return a figure of the same attack on enlarged images, the same in their own size, and their ceiling."""
    chosen = ("sampled.train=50",)
    enlarged = replace(run, dataset=f"{__name__}:{_FIRST[run.dataset]}", image_size=_SIDE, net="lenet", split="sampled")
    enlarged = replace(enlarged, clients=2, sample=0, batch_size=50, local_epochs=1, set=(*chosen, *run.set))
    figures = {name: ResultMetric(f"{_AT}.{name}.mean", f"the same at {_SIDE} pixels, factor 4", 1)}
    if name in ("psnr", "ssim"):
        figures[f"reduced_{name}"] = ResultMetric(
            f"{_AT}.native_resolution.{name}", "the same, then reduced to their own size", 1
        )
    if name == "psnr":
        figures["ceiling"] = _ceiling(f"{_SIDE} pixels, factor 4")
    return [Further(f"{_SIDE} px.{key}", (enlarged,), figure) for key, figure in figures.items()]


def _ceiling(words: str) -> ResultMetric:
    return ResultMetric(f"{_AT}.ceiling", f"the ceiling: PSNR of the nearest images of the form, {words}", 1)
