"""ROG: search for a small image whose enlargement has the observed gradient, then add detail by a learnt network.

Paper       Yue, Jin, Wong, Baron and Dai, "Gradient Obfuscation Gives a False Sense of Security in Federated Learning",
            USENIX Security 2023, arXiv 2206.04055.
Minimises   ||gradient of bicubic(z) - observed gradient||^2 over small images z, ``sf`` times smaller on each side,
by          100 steps of Adam from U(0, 1), step size 0.05, along half a cosine to a tenth of it.
Then        ``post=unet``: a U-Net turns bicubic(z) into the result. It learns from pairs of this very attack's results
            and the images behind them, which are public: the attacker simulates clients that hold them.
Granted     the labels; with ``post=unet`` public data.
Adaptive    a known mechanism stands inside the objective; for several local steps the weights' change is matched, with
            the steps unrolled. So a batch that the client repeats is one batch in each step, as in the paper. The
            closed form and the post-processor know of no defence: with them, behind one, the attack is static.
Private     tensors are searched for together with the image (``private=searched``, which HyperFL's authors do). With
            ``private=closed_form`` the extractor and its gradient are read off first, as in attacks/hyperfl.py, and
            <delta, z(x)> stands for the loss: for one gradient, without labels.
Ceiling     No result without a post-processor is nearer than the best image of its form. Reports print its PSNR.
Departures  1. The distance is over the observation's squared length, which leaves Adam's way as it is. The best guess
               is kept, not the last; of several restarts the one with the least distance.
            2. A small image stays in [0, 1] (``boxed``). The paper does not say; a free one comes nearer to black and
               white images, and its ceiling is higher.
            3. The paper's final image is half a class-conditional generator's and half a super-resolved denoised one.
               Its weights are not at hand; here there is one U-Net of its denoiser's widths, with L1 + 0.1 (1 - SSIM).
            4. The simulated clients have no defence, and with private tensors the attacker's own ones, or for a closed
               form the extractor and delta of one victim.
            5. With known noise the distance is the likelihood, without a prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from flfw.adversary.attack import Models, NotApplicableError, Private, Uses
from flfw.adversary.gradient_matching import GradientMatching, GrantedOperator
from flfw.attacks.hyperfl import require_reading
from flfw.bounds import BoundedSettings, PositiveFinite, PositiveInt
from flfw.errors import require
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.client_models.victim import VictimModel, WrappingVictim
from flfw.inversion.fit import Fit
from flfw.inversion.matching import gaussian_likelihood, relative_distance
from flfw.inversion.post_processor import LEAST_SIDE, PostProcessor, PostTraining, simulated_pairs, trained
from flfw.inversion.private.extractor import SurrogateVictim, ends_fully_connected, extractor_of, read_off
from flfw.inversion.search import SearchConfig, SearchResult, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Net, Tensors
from flfw.recording.observation import Knowledge, Observation, Reconstruction, mean_gradient
from flfw.rng import torch_generator

_LAST = 0.1  # step size at the end over the first one
_UNBOUNDED = (-inf, inf)
_UNMET = "the defence in the network behind the search, which learns from undefended clients"


@dataclass(frozen=True)
class ROGSettings(BoundedSettings):
    """Settings of the search and of the post-processor."""

    iterations: PositiveInt = 100  # Adam steps
    lr: PositiveFinite = 0.05  # first step size, in units of a pixel's range
    sf: PositiveInt = 4  # sides of an image over those of the small one; 1: a search for the image itself
    boxed: bool = True  # whether the small image stays in [0, 1]
    restarts: PositiveInt = 1  # searches from different small images
    private: Literal["searched", "closed_form"] = "searched"  # private tensors: searched for, or done without
    post: Literal["none", "unet"] = "none"  # network behind the search
    pairs: PositiveInt = 200  # public images that are attacked to train it; each costs as much as a victim
    post_epochs: PositiveInt = 20  # passes over them in the training
    post_lr: PositiveFinite = 1e-3  # first step size of the training


@final
class ROG(GradientMatching):
    """Search in the space of small images."""

    Settings = ROGSettings  # their budget leaves out the attacks that train a post-processor
    selection = "least squared distance"

    @property
    def labels(self) -> str:
        """Source of the labels; the closed form needs none."""
        return "not used" if self.settings.private == "closed_form" else "given"

    @property
    def uses(self) -> Uses:
        """Public data, for the post-processor."""
        return frozenset({"public"}) if self.settings.post == "unet" else frozenset()

    def private(self, model: nn.Module, batch: int) -> Private:
        """Return ``not needed`` where the closed form knows delta: for one example, at a fully connected layer."""
        if self.settings.private == "searched" or not isinstance(model, GeneratedNet | Net):
            return "searched for"
        return "not needed" if batch == 1 and ends_fully_connected(extractor_of(model)) else "searched for in part"

    @property
    def models(self) -> Models:
        """Mechanisms of every kind in the search; the closed form takes a gradient that no defence changed."""
        return super().models if self.settings.private == "searched" else frozenset({"batch_statistics"})

    def unused(self, uploads: Sequence[str], knows_defence: bool) -> str:
        """Name the defence where the post-processor has never met it."""
        return _UNMET * (knows_defence and self.settings.post == "unet")

    def recipe(self, operator: Operator | DifferentiableDefence | None) -> SearchConfig:
        """Use Adam on the relative squared distance; for known noise, on the likelihood."""
        chosen, noise = self.settings, None if operator is None else operator.noise
        descent = AdamSearch(chosen.iterations, chosen.lr, schedule="cosine", least=_LAST)
        distance = relative_distance if noise is None else gaussian_likelihood(noise)
        more = {"restarts": chosen.restarts, "boxed": chosen.boxed}
        return SearchConfig(distance, descent, start=lambda shape, rng: torch.rand(shape, generator=rng), **more)

    def ceiling(self, samples: Tensor) -> Tensor | None:
        """Return the best enlarged small images; a post-processor may come nearer."""
        if samples.dim() != 4:
            return None
        return LowResolution(tuple(samples.shape[1:]), self.settings.sf).nearest(samples, self.settings.boxed)

    @property
    def bounded(self) -> bool:
        """Absence of a post-processor, which may come nearer than the ceiling."""
        return self.settings.post == "none"

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Search for all victims of one model at once; for the closed form, by their extractors' gradients."""
        for known in knowledge:
            if len(known.model.inputs.shape) != 3:
                raise NotApplicableError("it needs images, got rows")
        if self.settings.private == "searched":
            return super().run(observations, knowledge, rngs)
        pairs = _read(observations, knowledge, rngs)
        results = super().run([observation for observation, _ in pairs], [known for _, known in pairs], rngs)
        return [replace(result, labels=None) for result in results]

    def reconstruct(
        self, knowledge: Knowledge, targets: Sequence[SearchTarget], operator: GrantedOperator
    ) -> list[Reconstruction]:
        """Search for small images, and enlarge them; then the post-processor corrects them, if there is one."""
        space = LowResolution(knowledge.model.inputs.shape, self.settings.sf)
        results = self._searched(LowResolutionVictim(knowledge.model, space), targets, operator)
        images = [space.enlarged(result.samples).clamp(*knowledge.box) for result in results]
        if self.settings.post == "none":
            return [_reconstruction(*case) for case in zip(images, results, strict=True)]
        post = self._post_processor(knowledge, targets[0], space)
        return [
            replace(_reconstruction(post.improved(image).clamp(*knowledge.box), result), searched=image)
            if bool(image.isfinite().all())
            else _reconstruction(image, result)
            for image, result in zip(images, results, strict=True)
        ]

    def objective(
        self, observation: Observation, knowledge: Knowledge, guesses: Sequence[Reconstruction], rng: torch.Generator
    ) -> list[Fit] | None:
        """Compute the search's distance at images of any form, before the post-processor; none for the closed form."""
        if self.settings.private == "closed_form":
            return None
        return super().objective(observation, knowledge, guesses, rng)

    def _searched(
        self, victim: LowResolutionVictim, targets: Sequence[SearchTarget], operator: GrantedOperator
    ) -> list[SearchResult]:
        box = (0.0, 1.0) if self.settings.boxed else _UNBOUNDED
        return invert(victim, targets, self.recipe(operator), operator=operator, box=box, compute=self.compute)

    def _post_processor(self, knowledge: Knowledge, example: SearchTarget, space: LowResolution) -> PostProcessor:
        """Train a post-processor on simulated clients that hold public data."""
        public, chosen = knowledge.public, self.settings
        if public is None or len(public.labels) < knowledge.batch:
            raise NotApplicableError("post=unet needs public data, a batch of them at least: grant them")
        if min(space.shape[1:]) < LEAST_SIDE:
            raise NotApplicableError(f"post=unet needs images of at least {LEAST_SIDE} pixels a side")
        order = torch.randperm(len(public.labels), generator=torch_generator(0, "rog public"))
        drawn = order[: max(chosen.pairs, knowledge.batch)].to(public.labels.device)
        labels = public.labels[drawn] if self.labels == "given" else torch.zeros_like(drawn)

        def search(targets: Sequence[SearchTarget], constants: Tensors) -> list[Tensor]:
            victim = LowResolutionVictim(knowledge.model, space, constants)
            return [space.enlarged(one.samples).clamp(*knowledge.box) for one in self._searched(victim, targets, None)]

        held, rng = (public.samples[drawn], labels), torch_generator(0, "rog pairs")
        results, images = simulated_pairs(knowledge.model, example.sent, held, knowledge.batch, search, rng)
        training = PostTraining(chosen.post_epochs, chosen.post_lr)
        return trained(results, images, training, torch_generator(0, "rog post-processor"))


def _read(
    observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
) -> list[tuple[Observation, Knowledge]]:
    """Read off each observation the extractor and its gradient; return these as observations of a surrogate."""
    victims: dict[tuple[int, int], SurrogateVictim] = {}
    pairs = []
    for observation, known, rng in zip(observations, knowledge, rngs, strict=True):
        require_reading(known.model)
        if known.weights or known.operator is not None:
            raise NotApplicableError("private=closed_form needs one gradient that no defence changed")
        like = id(known.model), known.batch
        if like not in victims:
            victims[like] = SurrogateVictim(extractor_of(known.model.model), known.model.inputs, known.batch)
        sent = victims[like].sent(read_off(known.model, mean_gradient(observation, known)), rng)
        pairs.append((replace(observation, sent=sent), replace(known, model=victims[like])))
    return pairs


def _reconstruction(image: Tensor, result: SearchResult) -> Reconstruction:
    return Reconstruction(image, result.matching_loss, result.iterations, result.labels)


_ITERATIONS = 100  # of the search for the nearest image


def enlarging(small: int, large: int) -> Tensor:
    """Compute the matrix (large, small) of bicubic interpolation along one side, in float64.

    >>> enlarging(2, 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    columns = torch.eye(small, dtype=torch.float64)[:, None, :, None].expand(-1, -1, -1, 4)
    return interpolate(columns, size=(large, 4), mode="bicubic", align_corners=False)[:, 0, :, 0].T


@dataclass(frozen=True)
class LowResolution(BoundedSettings):
    """Space of the images that bicubic interpolation makes of smaller ones.

    Bicubic interpolation is linear and acts on rows and columns apart: ``x = R z C^T``. So the nearest image of this
    form to a given one is a projection, and it limits every search for z.

    Attributes:
        shape: shape (C, H, W) of an image.
        factor: sides of an image over those of a small one, >= 1; a small side is rounded up.
    """

    shape: tuple[int, ...]
    factor: PositiveInt

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.shape) == 3, "images (C, H, W)", shape=self.shape)

    @property
    def small(self) -> tuple[int, int, int]:
        """Shape (C, h, w) of a small image."""
        channels, height, width = self.shape
        return channels, -(-height // self.factor), -(-width // self.factor)

    @cached_property
    def matrices(self) -> tuple[Tensor, Tensor]:
        """Matrices R (H, h) and C (W, w), in float64."""
        rows, columns = (enlarging(small, large) for small, large in zip(self.small[1:], self.shape[1:], strict=True))
        return rows, columns

    def enlarged(self, small: Tensor) -> Tensor:
        """Compute the enlarged images (..., C, H, W) of small ones (..., C, h, w); values are not clamped."""
        rows, columns = (matrix.to(small) for matrix in self.matrices)
        return rows @ small @ columns.T

    def nearest(self, images: Tensor, boxed: bool, iterations: int = _ITERATIONS) -> Tensor:
        """Compute the images of this space that come nearest to given ones, with the help of the given ones.

        First the least-squares images, clamped. A small image outside [0, 1] can come much nearer to an image of black
        and white, as what it loses by the clamp costs nothing there. So accelerated gradient steps (Beck and Teboulle,
        2009) follow, along clamp(u) - x. They minimise a convex function that is half the squared error within [0, 1],
        and linear outside; the second half of them minimises the squared error itself, which is constant there. The
        nearest image of all is kept. It is nearly the best one, which is not proven.

        Args:
            images: (N, C, H, W) in [0, 1].
            boxed: whether small images stay in [0, 1] in these steps.
            iterations: number of the steps, >= 0; 0: least squares.

        Returns:
            (N, C, H, W) in [0, 1].
        """
        require(iterations >= 0, "iterations >= 0", iterations=iterations)
        wanted = images.double()
        rows, columns = (matrix.to(wanted) for matrix in self.matrices)
        step = (torch.linalg.matrix_norm(rows, 2) * torch.linalg.matrix_norm(columns, 2)) ** -2
        before = torch.linalg.pinv(rows) @ wanted @ torch.linalg.pinv(columns).T
        best = self.enlarged(before).clamp(0, 1)
        minimum = (best - wanted).square().flatten(1).sum(1)
        ahead, pace = before, 1.0
        for done in range(iterations):
            image = self.enlarged(ahead)
            outside = (image != image.clamp(0, 1)) & (2 * done >= iterations)
            here = ahead - step * rows.T @ (image.clamp(0, 1) - wanted).masked_fill(outside, 0.0) @ columns
            here = here.clamp(0, 1) if boxed else here
            before_pace, pace = pace, (1 + (1 + 4 * pace**2) ** 0.5) / 2
            ahead, before = here + (before_pace - 1) / pace * (here - before), here
            image = self.enlarged(here).clamp(0, 1)
            error = (image - wanted).square().flatten(1).sum(1)
            best = torch.where((error < minimum)[:, None, None, None], image, best)
            minimum = torch.minimum(error, minimum)
        return best.to(images)


@final
class LowResolutionVictim(WrappingVictim):
    """Victim of another kind, whose data are searched for as small images.

    Its inputs are small images in the units of raw inputs. An enlarged image may leave [0, 1].

    Args:
        client: victim whose inputs are images.
        space: space of its images.
        constants: its constants for one observation. Then observations are in the coordinates of its gradient, such as
            those of a simulated client. None: observations are those of the victim.
    """

    def __init__(self, client: VictimModel, space: LowResolution, constants: Tensors | None = None) -> None:
        none, one = [0.0] * space.small[0], [1.0] * space.small[0]
        super().__init__(client, InputSpec.from_constants(space.small, none, one).to(client.inputs.mean.device))
        self._space, self._constants = space, constants
        # Computed here, as `gradient` is called while a graph is traced.
        rows, columns = (matrix.to(self.inputs.mean) for matrix in space.matrices)
        self._rows, self._columns = rows, columns.T

    def around(self, client: VictimModel) -> LowResolutionVictim:
        """Return the victim of another client in the same space."""
        return LowResolutionVictim(client, self._space, self._constants)

    def raw(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the enlarged images."""
        return self._rows @ x @ self._columns

    def check(self, sent: Tensors) -> None:
        """Refuse an observation that cannot be of this client; see `VictimModel.check`."""
        if self._constants is None:
            super().check(sent)

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the observation in the client's coordinates, and its constants."""
        return super().observed(sent) if self._constants is None else (sent, self._constants)
