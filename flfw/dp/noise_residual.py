"""Test of a client's noise that needs no canary: what is left of an update once all that is known is taken away.

The lab of a simulation knows W_t, W_k and every example. If a round is one local step on all of a client's data, it
knows the sum of the clipped gradients too, and with the divisor n

    n (W_t - W_k) / lr - n weight_decay W_t - sum of clipped gradients

is the noise itself, entry by entry. Divided by its claimed deviation, sigma C, it must be independent numbers from
N(0, 1). Tested are, each in both directions:

- for each tensor, the sum of squares, a chi-square variable: too little noise, too much, or none in one layer;
- the noise along the sum of clipped gradients: noise that depends on the data, and gradients that are not clipped;
- the noise along the sum of all noise before it, of any client and round: noise that is used again;
- the mean of its cosine, exp(-1/2) for N(0, 1): another distribution with the same variance.

The p-value is the least of theirs, times their number (Bonferroni). The whole run is tested at `WHOLE`, half of 0.05.
The other half is for a look after every update: look t raises the alarm if its p-value is below 0.025 / (t (t + 1)).
These shares add up to 0.025 over any number of looks, so honest noise is accused by either in at most 5 % of runs.

The clipped gradients are computed here, apart from the clients' own code. After a second step nobody knows the
gradients without the noise of the first: longer rounds are not tested. Nor is an update where the rounding of W_k to
float32 would count. An update whose clipped gradients are all 0 has no direction: it counts in the other tests alone.
"""

from collections.abc import Iterator
from math import exp, inf, sqrt
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from flfw.data.splits.lazy_parts import sizes
from flfw.dp.settings import DPSGDSettings, DPUnitSettings
from flfw.experiment.training import LocalSettings
from flfw.nets.net import Tensors, targets
from flfw.nets.net import loss as mean_loss
from flfw.nets.training.clipping import STABILITY, grouped
from flfw.nets.training.gaussian import MARGIN
from flfw.server.aggregation import Update
from flfw.task.client_plan import ClientPlan
from flfw.task.task import Task

_AT_ONCE = 20_000_000  # numbers in the gradients that are computed together
_ROUNDING = 0.05  # most that rounding may add to a sum of squares, in its deviations
WHOLE = 0.025
"""Level of the test of a whole run: the probability that it accuses honest noise, at most."""

_LOOKS = 0.025  # the same for the alarm, over all looks
_COUNTED = 7  # numbers in the state: rows, cosines, parts along earlier noise, those, the alarm, along gradients, those
_COSINE = exp(-0.5)
_COSINE_SPREAD = sqrt((1 + exp(-2)) / 2 - exp(-1))  # deviation of cos N(0, 1)


@final
class ClippedGradients:
    """Clipped gradients of a task's training examples, as rows with a number for each entry of the model.

    As at the clients, a group of an example's gradient that is not finite is 0.

    Args:
        task: the task, canaries with their wrong labels.
        model: network of the run; its weights are not used.
        settings: of the method; for noisy steps, gradients are clipped.

    Attributes:
        names: the parameters that are trained, in the order of a row.
        sizes: numbers in each of them.
        clip: bound of each group's norm; inf: nothing is clipped.
    """

    def __init__(self, task: Task, model: nn.Module, settings: Any) -> None:
        self._task, self._model = task, model
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in model.parameters() if p.requires_grad]
        noisy = isinstance(settings, DPSGDSettings)
        self.clip: float = settings.clip if noisy else inf
        self._automatic = noisy and settings.clipping == "automatic"
        self._groups = tuple(grouped(self.names, settings.grouping if noisy else "flat").values())

    def rows(self, sent: Tensors, indices: np.ndarray, at_once: int) -> Iterator[Tensor]:
        """Compute rows (B, numbers), B <= at_once, for training examples, at a model given by its tensors."""
        fixed = {n: v for n, v in sent.items() if n not in self.names}
        moving = {n: sent[n] for n in self.names}

        def loss(parameters: Tensors, x: Tensor, y: Tensor) -> Tensor:
            x, y = x.unsqueeze(0), y.unsqueeze(0)
            scores = functional_call(self._model, {**parameters, **fixed}, (self._task.inputs.normalise(x),))
            return mean_loss(scores, targets(scores, x, y))

        each = vmap(grad(loss), in_dims=(None, 0, 0))
        for start in range(0, len(indices), at_once):
            x, y = self._task.examples("train", indices[start : start + at_once])
            gradients: Tensors = each(moving, x, y)
            flat = {name: gradients[name].flatten(1) for name in self.names}
            for members in self._groups if self.clip < inf else ():
                joined = torch.cat([flat[name] for name in members], 1).double()  # float32 loses squares
                norms = torch.linalg.vector_norm(joined, dim=1, keepdim=True)
                scale = self.clip / (norms + STABILITY) if self._automatic else (self.clip / norms).clamp(max=1.0)
                clipped = torch.where(norms.isfinite(), joined * scale, 0.0).to(flat[members[0]].dtype)
                flat |= dict(zip(members, clipped.split([flat[name].shape[1] for name in members], 1), strict=True))
            yield torch.cat([flat[name] for name in self.names], 1)

    def row_of(self, tensors: Tensors) -> Tensor:
        """Join the trained tensors of a model into a row."""
        return torch.cat([tensors[name].flatten() for name in self.names])


class Residual(NamedTuple):
    """Outcome: noise over its claimed scale with a 95 % interval, and the p-value of "noise as claimed".

    ``alarm`` is the number of updates after which the evidence was enough for the first time; None: it never was.
    """

    scale: float
    low: float
    high: float
    p: float
    alarm: int | None


@final
class NoiseTest:
    """Test of rows of numbers that should be independent and from N(0, 1).

    Args:
        sizes: entries of each tensor in a row.

    Attributes:
        state: float64, all that the test remembers: sums of squares of each tensor, seven further numbers, and the sum
            of all rows.
    """

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self.state = torch.zeros(len(sizes) + _COUNTED + sum(sizes), dtype=torch.float64)

    def add(self, row: Tensor, along: Tensor) -> None:
        """Add a row.

        Args:
            row: (numbers,) in claimed deviations.
            along: (numbers,) what the noise was added to.
        """
        row, along, tensors = row.double(), along.double(), len(self._sizes)
        squares, before = self.state[:tensors], self.state[tensors + _COUNTED :]
        counted = self.state[tensors : tensors + _COUNTED]
        squares += torch.stack([part @ part for part in row.split_with_sizes(self._sizes)])
        counted[0] += 1
        counted[1] += row.cos().sum()
        for index, other in ((2, before), (5, along)):
            if other.any():
                # The square of its part along the other: a chi-square variable of one degree of freedom.
                counted[index] += (row @ other) ** 2 / (other @ other).clamp(min=torch.finfo(torch.float64).tiny)
                counted[index + 1] += 1
        before += row
        looks = int(counted[0])
        if not counted[4] and self._whole().p < _LOOKS / (looks * (looks + 1)):
            counted[4] = looks

    def result(self) -> Residual | None:
        """Return the outcome; None: there was no row."""
        return self._whole() if self.state[len(self._sizes)] else None

    def _whole(self) -> Residual:
        from scipy.stats import chi2, norm

        tensors = len(self._sizes)
        rows, cosines, again, repeats, alarm, along, directed = self.state[tensors : tensors + _COUNTED].tolist()
        squares, total = self.state[:tensors].tolist(), rows * sum(self._sizes)
        sums = [(square, rows * size) for square, size in zip(squares, self._sizes, strict=True)]
        sums += [(value, freedom) for value, freedom in ((along, directed), (again, repeats)) if freedom]
        values = [2 * min(chi2.cdf(value, freedom), chi2.sf(value, freedom)) for value, freedom in sums]
        values.append(2 * norm.sf(abs(cosines - total * _COSINE) / (sqrt(total) * _COSINE_SPREAD)))
        low, high = (sqrt(sum(squares) / chi2.ppf(share, total)) for share in (0.975, 0.025))
        p = min(1.0, float(len(values) * min(values)))
        return Residual(sqrt(sum(squares) / total), low, high, p, int(alarm) or None)


@final
class ResidualTest:
    """Test of every update that a server receives.

    Args:
        local: settings of local training; `is_testable` is true of the run.
        task: what the clients train on.
        gradients: clipped gradients of the task's examples.
        settings: of the method.

    Attributes:
        noise: test of the noise so far.
    """

    def __init__(self, local: LocalSettings, task: Task, gradients: ClippedGradients, settings: DPUnitSettings) -> None:
        self._local, self._task, self._gradients, self._settings = local, task, gradients, settings
        self.noise = NoiseTest(gradients.sizes)

    def __call__(self, sent: Tensors, update: Update) -> None:
        """Add the noise of an update, unless the rounding of its numbers would count."""
        gradients, local = self._gradients, self._local
        mine = self._task.split.train[update.partition]
        std = self._settings.clip * self._settings.sum_noise_multiplier(local.batch_size)
        std *= 1 + MARGIN if self._settings.secure else 1
        start, end = gradients.row_of(sent).double(), gradients.row_of(update.tensors).double()
        unit = len(mine) / local.lr / std
        rounding = torch.maximum(start.abs(), end.abs()) * torch.finfo(torch.float32).eps / sqrt(12) * unit
        if float(rounding @ rounding) > _ROUNDING * sqrt(2 * len(start)):
            return
        total = torch.zeros_like(start)
        for rows in gradients.rows(sent, mine, max(1, _AT_ONCE // len(start))):
            total += rows.sum(0)
        decayed = start * (1 - local.lr * self._settings.weight_decay)
        self.noise.add((decayed - end) * unit - total / std, total)


def is_testable(plan: ClientPlan, task: Task, model: nn.Module) -> bool:
    """Return whether each client's round is one step of SGD on all its data whose noise can be computed."""
    settings, local = plan.settings, plan.local
    if type(settings) is not DPUnitSettings or not settings.clips_examples or settings.noise_multiplier == 0:
        return False  # other settings may change the bound or the step size from round to round
    full = local.local_epochs == 1 and max(sizes(task.split.train)) <= local.batch_size
    dropout = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
    varied = task.augment != "none" or any(isinstance(layer, dropout) for layer in model.modules())
    return full and not varied and settings.optimiser == "sgd" and not plan.defences.stages
