"""Inversion of private features, by what the attacker knows of the network.

``python -m research.papers.inversions RUN``.

The notebooks of FedCG's authors (Wu et al., IJCAI 2022, arXiv 2111.08211) measure this, the paper does not report it.

    minimise over x:  sum_i (E~(x)_i - f_i)^2 + tv * TV(x)          Adam, from the mean input

    f    the features of an example: the true ones, as a classifier's gradient shows them, or the nearest of many
         generated ones. Only an attacker that has the true features can find the nearest.
    E~   the victim's extractor; or one that is trained, from new weights, so that the victim's classifier classifies
         its features: on the victim's own data, on data like them (the client's own test part), or on other data.

The first three attackers hold what a client keeps to itself: they tell what is lost with it, not what an attacker gets.
Departures: the notebooks search to convergence, in up to 165,000 steps of size 1e-3. Their weight of TV is not known
here: of several the one with the highest mean PSNR is shown for each attacker, which no attacker could choose.
Classifier and generator are those that the server sends next, with which the client's extractor was not trained.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, NamedTuple, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from flfw.audit.measures.metrics import psnr
from flfw.bounds import BoundedSettings, PositiveFinite, PositiveInt, ValueRange
from flfw.comparisons.figures import drawing, grids
from flfw.comparisons.figures.tsne import Restored, restored
from flfw.data.splits.partition import evenly
from flfw.errors import InputError, require
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.inversion.priors import total_variation
from flfw.inversion.private.surrogate import SurrogateTraining, restarted, trained_under
from flfw.nets.conditional_gan import GeneratingNet, noise
from flfw.nets.inputs import InputSpec
from flfw.report.chart_style import rendered
from flfw.rng import initialising, numpy_generator, torch_generator
from flfw.runs import run
from flfw.task.task import Task

TRUE, GENERATED = "true", "generated"
MEAN = "mean image of its class, no leak"
VICTIM, SAME, LIKE, OTHER = "the victim's", "trained on its data", "trained on like data", "trained on other data"
_MOST_IMAGES = 64  # a picture has a column for each
_PUBLIC = 2000  # public examples for the mean images
_FEW = 2  # least number of examples for a training


@final
@dataclass(frozen=True)
class InversionSettings(BoundedSettings):
    """Settings of the searches and of the trained extractors."""

    images: Annotated[int, ValueRange(ge=1, le=_MOST_IMAGES)] = 6  # of the client's own, drawn at random
    iterations: PositiveInt = 5000  # steps of Adam
    lr: PositiveFinite = 1e-2  # its step size, in deviations of the normalised input
    tv: tuple[float, ...] = (1e-3, 1.0, 30.0)  # weights of the total variation, each >= 0; the best is shown
    epochs: PositiveInt = 20  # passes over the data for an extractor that is trained
    generated: PositiveInt = 1000  # generated features of a label among which the nearest is taken

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.tv) and all(0 <= one < inf for one in self.tv), "one finite tv >= 0 or several", tv=self.tv)


class Inverted(NamedTuple):
    """Result for a client: a row for each extractor, kind of features and image, and the pictures (C, H, W)."""

    rows: drawing.Rows
    pictures: Mapping[tuple[str, int], np.ndarray]


def inversions(finished: Restored, client: int, settings: InversionSettings, other: Task | None = None) -> Inverted:
    """Search for the inputs of a client's features by each attacker.

    Args:
        finished: the run.
        client: of the run.
        settings: of the searches.
        other: a task with data of another distribution; None: that attacker is left out.

    Raises:
        InputError: there is no such client, or the data do not fit.
    """
    require(client in finished.clients, f"a client among {finished.clients}", client=client)
    task, seed, model = finished.task, finished.experiment.seed, finished.model(client)
    if other and _kind(other) != _kind(task):
        raise InputError(f"Expected other data of shape {_kind(task)}, got {_kind(other)}; name another data set.")
    chosen = numpy_generator(seed, "inversions", client).permutation(task.split.train[client])[: settings.images]
    x, y = task.examples("train", np.sort(chosen))
    like = task.examples("test", task.split.test[client])
    data = {SAME: task.examples("train", task.split.train[client]), LIKE: like}
    if other:
        data[OTHER] = other.examples("train", other.split.train[client])
        _require_apart(data[SAME][0], data[OTHER][0])
    features = _features(model, task.inputs, x, y, settings, seed)
    pictures: dict[tuple[str, int], np.ndarray] = _numbered(grids.ORIGINAL, x)
    public = task.examples("test", evenly(task.split.public, _PUBLIC))
    rows = _scored(MEAN, x, y, torch.stack([_mean_of(public, label) for label in y]), pictures)
    wanted = torch.cat(list(features.values()))
    for name, extractor in _extractors(model, task.inputs, data, settings, seed).items():
        each = [inverted(extractor, wanted, task.inputs, settings, tv).split(len(x)) for tv in settings.tv]
        for kind, guesses in zip(features, zip(*each, strict=True), strict=True):
            best = max(range(len(settings.tv)), key=lambda i: sum(_psnrs(x, guesses[i])))
            rows += _scored(f"{name}, {kind} features", x, y, guesses[best], pictures, settings.tv[best])
    return Inverted(rows, pictures)


def _require_apart(victims: Tensor, others: Tensor) -> None:
    """Refuse other data that hold one of the client's own examples."""
    held = {image.numpy().tobytes() for image in victims}
    alike = sum(image.numpy().tobytes() in held for image in others)
    if alike:
        raise InputError(f"Expected other data than the client's, got {alike} of its own examples; name another set.")


def _kind(task: Task) -> str:
    return f"{'x'.join(map(str, task.dataset.shape))} with {task.dataset.classes} classes"


def inverted(
    extractor: nn.Module, features: Tensor, inputs: InputSpec, settings: InversionSettings, tv: float
) -> Tensor:
    """Search for raw inputs (n, ...) in [0, 1] with given features (n, ...), all at once, under a weight of TV."""
    guess = torch.zeros(len(features), *inputs.shape, requires_grad=True)
    adam = torch.optim.Adam([guess], lr=settings.lr)
    for _ in range(settings.iterations):
        # Every term is a sum over images, so that none has a part in another's search.
        apart = (extractor(guess) - features).square().sum()
        loss = apart + tv * len(features) * total_variation(guess)
        (guess.grad,) = torch.autograd.grad(loss, [guess])
        adam.step()
    return (guess.detach() * inputs.std + inputs.mean).clamp(0, 1)


def _extractors(
    model: GeneratingNet,
    inputs: InputSpec,
    data: Mapping[str, tuple[Tensor, Tensor]],
    settings: InversionSettings,
    seed: int,
) -> dict[str, nn.Module]:
    training = SurrogateTraining(surrogate_epochs=settings.epochs)
    extractors = {VICTIM: model.extractor.requires_grad_(False)}
    for name, examples in data.items():
        require(
            len(examples[1]) >= _FEW, f"{_FEW} examples or more for the extractor {name}", examples=len(examples[1])
        )
        with initialising(seed, f"inversions: {name}"):
            fresh = restarted(model.extractor)
        rng = torch_generator(seed, f"inversions: {name}")
        trained = trained_under(model.classifier, fresh, examples, inputs, training, rng)
        extractors[name] = trained.requires_grad_(False)
    return extractors


@torch.no_grad()
def _features(
    model: GeneratingNet, inputs: InputSpec, x: Tensor, y: Tensor, settings: InversionSettings, seed: int
) -> dict[str, Tensor]:
    """Return the true features (n, ...) of examples, and the generated ones of their labels nearest to them."""
    true, rng = model.extractor(inputs.normalise(x)), torch_generator(seed, "inversions")
    nearest = []
    for feature, label in zip(true, y, strict=True):
        made = model.generator(noise(settings.generated, rng), label.expand(settings.generated))
        nearest.append(made[(made - feature).flatten(1).square().sum(1).argmin()])
    return {TRUE: true, GENERATED: torch.stack(nearest)}


def _scored(
    name: str,
    x: Tensor,
    y: Tensor,
    guesses: Tensor,
    pictures: dict[tuple[str, int], np.ndarray],
    tv: float | None = None,
) -> list[dict[str, object]]:
    pictures |= _numbered(name, guesses)
    usual = {"tv": tv, "failed": False, "recovered": False}
    return [
        {"row": name, "column": column, "label": int(label), "psnr": score, **usual}
        for column, (label, score) in enumerate(zip(y, _psnrs(x, guesses), strict=True), 1)
    ]


def _psnrs(x: Tensor, guesses: Tensor) -> list[float]:
    return [psnr(truth.numpy(), one.numpy()) for truth, one in zip(x, guesses, strict=True)]


def _mean_of(data: tuple[Tensor, Tensor], label: Tensor) -> Tensor:
    """Return the mean image of a class; of all, where the class has none."""
    images = data[0][data[1] == label]
    return (images if len(images) else data[0]).mean(0)


def _numbered(name: str, images: Tensor) -> dict[tuple[str, int], np.ndarray]:
    return {(name, column): image.numpy() for column, image in enumerate(images, 1)}


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 0, or 2 if the run or the data do not fit."""
    return exit_code("inversions", lambda: _do(arguments))


def _do(arguments: Sequence[str]) -> int:
    usual = InversionSettings()
    parser = Parser(prog="python -m research.papers.inversions", description="Invert a client's features.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run with --expert keep_state=true")
    parser.add_argument("--client", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--other", default="", metavar="DATASET", help="data of another distribution")
    parser.add_argument("--out", type=Path, help="folder to write; default: figures in the run's")
    parser.add_argument("--data-root", type=Path, help="folder of the data sets; default: where the run found them")
    for name, value in vars(usual).items():
        many: Any = {"type": float, "nargs": "+"} if name == "tv" else {"type": type(value)}
        parser.add_argument(f"--{name}", **many, default=value, help="default: %(default)s")
    args = parser.parse_args(arguments)
    chosen: dict[str, Any] = {name: getattr(args, name) for name in vars(usual)}
    settings = InversionSettings(**{**chosen, "tv": tuple(args.tv)})
    finished = restored(args.run, args.data_root)
    other = _task(finished, args.other) if args.other else None
    content = inversions(finished, args.client, settings, other)
    out = args.out or args.run / "figures"
    drawing.make_folder(out)
    title = f"{finished.experiment.method} on {finished.experiment.dataset}, client {args.client}: inverted features"
    weights = ", ".join(f"{tv:g}" for tv in settings.tv)
    best = (
        "" if len(settings.tv) == 1 else "; shown is the one with the highest mean PSNR, which no attacker could choose"
    )
    caption = f"{settings.iterations:,} steps of Adam; total variation with weight {weights}{best}. Numbers: PSNR."
    figure = grids.drawn(grids.PictureGrid(content.rows, content.pictures, caption), title)
    (out / "inversions.svg").write_bytes(rendered(figure, "svg"))
    table = pd.DataFrame(content.rows)
    table.to_csv(out / "inversions.csv", columns=["row", "column", "label", "tv", "psnr"], index=False)
    for name, rows in table.groupby("row", sort=False):
        print(f"{rows['psnr'].mean():5.1f} dB  {name}")
    print(f"{out / 'inversions.svg'}\n{out / 'inversions.csv'}")
    return 0


def _task(finished: Restored, dataset: str) -> Task:
    """Return the task of other data, cut evenly among as many clients."""
    given = replace(finished.experiment, dataset=dataset, split="iid", set=())
    return run.check(given, new=False)[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
