"""DCS^2: a concealed sample with nearly the gradient of a sensitive one is mixed into the gradient that is sent.

Paper       Wu, Hayat, Zhou and Harandi, "Concealing Sensitive Samples against Gradient Leakage in Federated Learning",
            AAAI 2024, arXiv 2209.05724.
Symbols     B the batch, x_s, y_s its m sensitive samples, x_c, y_c as many concealed ones, z the latent of a sample,
            g the gradient of the batch, g_s that of the sensitive samples, lambda the mixture.
Acts on     the gradient of each local step with a sensitive sample, with sight of the batch, the model and public data.
Departures  1. Proxies are of another class than the sample: from the proxy pool of split=pools, as in the code, and
               with other splits from public data. start=noise needs none, and draws another label.
            2. z is what enters the last layer in the paper; in the code, the scores: ``latent``. The code ends its
               search at a length in normalised inputs that only images far out of the valid range reach; with
               stop=never it goes on. ``boxed`` keeps x_c in the range, which neither paper nor code does.
            3. The code divides three terms whose weights sum to 2 by 3, or by 2 if lambda is 0 or 1; so here.
            4. One projection in closed form, where the code calls a solver of quadratic programs.
            5. g is the method's own direction for the shared tensors, as a client cannot send more.

    x_c <- proxy; minimise over x_c by Adam, step size 0.1, a tenth at 3/8, 5/8 and 7/8:
        1 - cos(grad CE(x_c, y_c), g_s) + exp(-lambda_x |x_c - x_s|) + lambda_z (|z_c - z_s| / |z_s| - eps)
    g' = (g + grad[lambda CE(x_c, y_c) + (1 - lambda) CE(x_c, y_s)]) / 3
    send g' where <g', g> >= 0, else g' + v g with v = max(1/2, -<g', g> / (|g|^2 + 1/1000))
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, one_hot

from flfw.bounds import BoundedSettings, NonNegativeFinite, PositiveFinite, PositiveFloat, PositiveInt, Share
from flfw.data.sensitive import SensitiveSamples
from flfw.errors import InputError, require
from flfw.files.tensor_names import matches
from flfw.nets import Tensors
from flfw.nets.inputs import InputSpec
from flfw.nets.representation import entering, evaluating
from flfw.nets.training.optimisers import Adam
from flfw.nets.training.traced import Traced
from flfw.rng import normal
from flfw.task.defence import Defence, DefendedData, LocalStep

_LEAST_SHARE, _RIDGE = 0.5, 1e-3  # of the projection
_TINY = 1e-8  # least length of a gradient
_NO_PROXY = "Expected public examples of other classes than {} for dcs2, got none; set dcs2.start=noise."


@dataclass(frozen=True)
class DCS2Settings(BoundedSettings):
    """Settings of the search and of the mixture; the defaults are the code's on MNIST."""

    sensitive: str = "all"  # samples of a batch: all, classes (3,7), its last M (last:M), or positions (at:12,40)
    start: Literal["proxy", "noise", "mixed"] = "proxy"  # of x_c; mixed: lambda proxy + (1 - lambda) x_s
    mixture: Share = 0.7  # lambda
    steps: PositiveInt = 1000  # of the search
    lr: PositiveFinite = 0.1  # first step size of Adam, in deviations of the normalised input
    eps: float = 0.01  # a constant in the loss, as in the paper; it changes no gradient
    weight_x: NonNegativeFinite = 0.01  # lambda_x
    weight_z: NonNegativeFinite = 0.01  # lambda_z
    latent: Literal["scores", "features"] = "scores"  # z; features: the inputs of the last fully connected layer
    stop: Literal["threshold", "never"] = "threshold"  # end the search once the mean distance is above the threshold
    threshold: PositiveFloat = 300.0  # L2 distance in normalised inputs; 500 on CIFAR-10
    boxed: bool = False  # keep x_c in the range of raw inputs

    def __post_init__(self) -> None:
        super().__post_init__()
        require(abs(self.eps) < inf, "a finite eps", eps=self.eps)
        _ = self.samples

    @property
    def samples(self) -> SensitiveSamples:
        """Rule for the sensitive samples of a batch."""
        return SensitiveSamples.parse(self.sensitive)


@final
class DCS2(Defence):
    """Defence that sends a mixture of the batch's gradient and that of concealed samples."""

    Settings = DCS2Settings
    differentiates_inputs = True

    def __init__(self, settings: DCS2Settings | None = None) -> None:
        super().__init__(settings)
        self._traced: dict[Any, Traced] = {}

    @classmethod
    def weakest_settings(cls, settings: DCS2Settings) -> DCS2Settings:
        """Return settings whose concealed sample is the sensitive one, but for a thousandth of a proxy."""
        return replace(settings, start="mixed", mixture=min(settings.mixture, 1e-3), steps=1, lr=min(settings.lr, 1e-6))

    def check_model(self, model: nn.Module, uploads: Sequence[str]) -> None:
        """Refuse a method that shares nothing that its own loss moves."""
        if not any(matches(name, uploads) for name in _moved(model)):
            raise InputError(
                f"Expected shared weights in {' or '.join(_PARTS)} for dcs2, got none; choose another method."
            )

    def check_data(self, defended: DefendedData) -> None:
        """Refuse sensitive samples that do not exist, and public examples of one class only."""
        rule, maximum, largest = self.settings.samples, defended.batch_size, defended.classes - 1
        fits = rule.last is None or rule.last <= maximum
        require(fits, f"last:M with M <= {maximum}, the batch size", sensitive=self.settings.sensitive)
        exist = rule.classes is None or max(rule.classes) <= largest
        require(exist, f"sensitive classes in 0..{largest}", sensitive=self.settings.sensitive)
        absent = sorted((rule.positions or set()) - set(defended.positions.tolist()))
        require(not absent, "positions of the defended clients' training examples", absent=absent[:5])
        present = defended.labels if rule.last else defended.labels[rule.mask(defended.labels, defended.positions)]
        for label in present.unique().tolist() if self.settings.start != "noise" else []:
            if not bool((defended.public != label).any()):
                raise InputError(_NO_PROXY.format(label))

    def step(self, step: LocalStep, rng: torch.Generator) -> Tensors:
        """Add the gradient of concealed samples to that of the batch, and project the sum."""
        chosen = self.settings.samples.mask(step.y, step.positions)
        names = [name for name in step.gradients if name in _moved(step.model)]
        if not bool(chosen.any()) or not names:
            return step.gradients
        with evaluating(step.model):
            search = Search(self.settings, step, chosen, names, self._traced)
            x_c, y_c = search.concealed(rng)
            mixed = search.mixed(x_c, y_c)
        self.measures = {"concealed_cosine": search.cosine, "concealed_outside": _outside(x_c, step.inputs)}
        divisor = 2 if self.settings.mixture in (0.0, 1.0) else 3
        g = {name: step.gradients[name] for name in names}
        sent = projected({name: (g[name] + mixed[name].to(g[name].device)) / divisor for name in names}, g)
        return {**step.gradients, **sent}


@final
class Search:
    """Search for the concealed samples of one batch.

    Args:
        settings: of the search.
        step: the local step.
        chosen: mask (B,) of the sensitive samples.
        names: the shared tensors, whose gradients are compared.
        traced: slopes of earlier searches, which one of the same shapes uses again; None: there are none.
    """

    def __init__(
        self,
        settings: DCS2Settings,
        step: LocalStep,
        chosen: Tensor,
        names: Sequence[str],
        traced: dict[Any, Traced] | None = None,
    ) -> None:
        self._settings, self._model, self._inputs = settings, step.model, step.inputs
        device = next(step.model.parameters()).device
        self._x = step.inputs.normalise(step.x.to(device)[chosen.to(device)])
        self._y, self._public = step.y.to(device)[chosen.to(device)], step.public
        self._weights = {name: p.detach() for name, p in (*step.model.named_parameters(), *step.model.named_buffers())}
        self._names, self._traced = list(names), {} if traced is None else traced
        self._last = [name for name, one in step.model.named_modules() if isinstance(one, nn.Linear)][-1]
        g_s, z_s = (value.detach() for value in self._gradient(self._weights, self._x, self._y))
        self._given = self._x, nn.functional.normalize(g_s, dim=0), z_s
        self.cosine = 0.0

    def concealed(self, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return x_c (m, ...) as network inputs, and y_c (m,)."""
        chosen = self._settings
        x, y = self._start(rng)
        x, slope = x.detach().clone(), self._slope_by_x(x, y)
        adam, drops = Adam(chosen.lr), [round(chosen.steps * share) for share in (3 / 8, 5 / 8, 7 / 8)]
        for done in range(chosen.steps):
            direction, distance = slope(x)
            adam.lr = chosen.lr * 0.1 ** sum(done >= drop for drop in drops)
            adam.step({"x": x}, {"x": direction})
            if chosen.boxed:
                self._box(x)
            if chosen.stop == "threshold" and distance > chosen.threshold:
                break
        g_c, _ = self._gradient(self._weights, x, y)
        self.cosine = float(cosine_similarity(g_c.detach(), self._given[1], dim=0))
        return x, y

    def mixed(self, x: Tensor, y: Tensor) -> Tensors:
        """Compute the gradient of lambda CE(x_c, y_c) + (1 - lambda) CE(x_c, y_s) by the shared tensors."""
        share, weights = self._settings.mixture, [self._weights[name] for name in self._names]
        under_y_c, under_y_s = (self._gradient(self._weights, x, labels)[0] for labels in (y, self._y))
        flat = (share * under_y_c + (1 - share) * under_y_s).detach().split([value.numel() for value in weights])
        return {name: g.view_as(w) for name, g, w in zip(self._names, flat, weights, strict=True)}

    def _slope_by_x(self, x: Tensor, y: Tensor) -> Callable[[Tensor], list[Tensor]]:
        """Return a function of x_c for the gradient of the loss and the distance from x_s; see `_slope`."""
        fixed = self._weights, y, *self._given
        shapes = self._model, self._settings, x.shape, x.dtype, x.device, *self._names
        if shapes not in self._traced:
            self._traced[shapes] = Traced(self._slope, x, *fixed)
        return self._traced[shapes].given(*fixed)

    def _slope(
        self, x: Tensor, weights: Tensors, y: Tensor, x_s: Tensor, g_s: Tensor, z_s: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient of the loss by x_c, and the mean distance of the concealed samples from x_s.

        The loss's gradients by g_c, by z_c and by x itself are written out; one backward pass joins them.
        """
        chosen, x = self._settings, x.detach().requires_grad_()
        g_c, z_c = self._gradient(weights, x, y)
        far, gap = (x - x_s).detach(), (z_c - z_s).detach()
        far_norm, gap_norm, z_norm = (value.flatten(1).norm(dim=1) for value in (far, gap, z_s))
        distance, length = far_norm.mean(), g_c.detach().norm().clamp_min(_TINY)
        along = g_c.detach() / length
        by_g = (along * along.dot(g_s) - g_s) / length  # g_s has length 1
        by_z = gap * (chosen.weight_z / len(y) / (gap_norm * z_norm).clamp_min(_TINY))[:, None]
        by_x = torch.exp(-chosen.weight_x * distance) * (-chosen.weight_x / len(y)) / far_norm.clamp_min(_TINY)
        (through,) = torch.autograd.grad([g_c, z_c], [x], [by_g, by_z])
        return torch.addcmul(through, far, by_x.view(-1, *[1] * (x.dim() - 1))), distance

    def _gradient(self, weights: Tensors, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the gradient of CE(x, y) by the shared tensors, as one vector, and the latents, with their graph."""
        moved = {name: weights[name].detach().requires_grad_() for name in self._names}
        scores = functional_call(self._model, {**weights, **moved}, (x,))
        error = (scores.softmax(1) - one_hot(y, scores.shape[1])) / len(y)  # the gradient of CE by the scores
        each = torch.autograd.grad(scores, list(moved.values()), error, create_graph=True)
        features = self._settings.latent == "features"
        latent = entering(self._model, self._last, x, weights) if features else scores
        return torch.cat([g.flatten() for g in each]), latent

    def _start(self, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw proxies, or noise, of other classes than the sensitive samples have."""
        if self._settings.start == "noise":
            classes = functional_call(self._model, self._weights, (self._x[:1],)).shape[1]
            shift = torch.randint(1, classes, self._y.shape, generator=rng).to(self._y.device)
            return normal(self._x.shape, rng).to(self._x.device), (self._y + shift) % classes
        x, y = self._public()
        indices = []
        for label in self._y.tolist():
            others = (y != label).nonzero().flatten()
            if not len(others):
                raise InputError(_NO_PROXY.format(label))
            indices.append(int(others[torch.randint(len(others), (), generator=rng)]))
        proxies, labels = self._inputs.normalise(x[indices]), y[indices]
        if self._settings.start == "mixed":
            share = self._settings.mixture
            proxies = share * proxies + (1 - share) * self._x
        return proxies, labels

    @torch.no_grad()
    def _box(self, x: Tensor) -> None:
        mean, std = self._inputs.mean.to(x.device), self._inputs.std.to(x.device)
        x.copy_(((x * std + mean).clamp(0, 1) - mean) / std)


def projected(mixed: Tensors, g: Tensors) -> Tensors:
    """Return ``mixed``, or ``mixed + v g`` that points away from g by no more than the ridge leaves.

    Args:
        mixed: g' by name.
        g: the batch's gradient, by name.

    >>> one = {"w": torch.tensor([1.0, 0.0])}
    >>> projected({"w": torch.tensor([-2.0, 1.0])}, one)["w"].round(decimals=3)
    tensor([-0.0020,  1.0000])
    """
    along = sum(float((mixed[name] * g[name]).sum()) for name in g)
    if along >= 0:
        return mixed
    share = max(_LEAST_SHARE, -along / (sum(float((value**2).sum()) for value in g.values()) + _RIDGE))
    return {name: mixed[name] + share * g[name] for name in g}


def _outside(x: Tensor, inputs: InputSpec) -> float:
    """Compute the share of network inputs that no image has; by them a server could tell such samples from real."""
    raw = x.cpu() * inputs.std.cpu() + inputs.mean.cpu()
    return float(((raw < 0) | (raw > 1)).float().mean())


def _moved(model: nn.Module) -> set[str]:
    """Name the parameters of the classifying network: a generator or a discriminator has no part in the loss."""
    return {name for name, _ in model.named_parameters() if name.partition(".")[0] in _PARTS}


_PARTS = ("extractor", "classifier", "hypernet")
