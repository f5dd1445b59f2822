"""Perceptual distances of a reconstruction from the truth: LPIPS, and the distance in the attacked network's features.

LPIPS (Zhang et al., CVPR 2018) is taken with AlexNet. The linear heads are part of the ``lpips`` package; the backbone
is read from a file and never downloaded. Without the file there is no value, and no other measure replaces it.

    |E(x') - E(x)|_2 / |E(x)|_2      x the truth, x' the reconstruction, E the extractor that the server sent

An attack that gets the features right has their information, also where its image looks unlike the truth: a classifier
on these features, or a better decoder, goes on from there.
"""

import hashlib
import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import interpolate

from flfw.errors import InputError, require
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.recording.reader import Recordings
from flfw.rng import initialising
from flfw.task.client_plan import ClientPlan

_SIDE = 64  # pixels; of a smaller image the last layer keeps little
_AT_ONCE = 64  # pairs of images that are compared together
_OFFICIAL = "7be5be79"  # torchvision names its file, alexnet-owt-7be5be79.pth, by the start of its SHA-256
_WAY_OUT = "give torchvision's AlexNet weights, such as alexnet-owt-7be5be79.pth"


@final
class Perceptual:
    """LPIPS v0.1 with AlexNet, made by `load`.

    Images with a side under 64 pixels are enlarged bilinearly (without aligned corners) so that the shorter side is
    64; grey images are repeated to three channels; values go from [0, 1] to [-1, 1].

    Attributes:
        sha256: SHA-256 of the weights' file, in hex digits.
        official: whether the file is torchvision's own ``alexnet-owt-7be5be79.pth``; None for a .safetensors file,
            whose digest cannot tell.
    """

    def __init__(self, net: nn.Module, sha256: str, official: bool | None) -> None:
        self._net, self.sha256, self.official = net, sha256, official

    def __call__(self, truth: np.ndarray, reconstruction: np.ndarray) -> float:
        """Compute LPIPS of two images (C, H, W) with one or three channels, clamped to [0, 1]; 0 for equal ones.

        Raises:
            InputError: they are not two such images of one shape.
        """
        return float(self.many(truth[None], reconstruction[None])[0])

    def many(self, truth: np.ndarray, reconstruction: np.ndarray) -> np.ndarray:
        """Compute LPIPS (N,) of each pair of images (N, C, H, W); the values are those of single pairs.

        Raises:
            InputError: they are not such images of one shape.
        """
        require(
            truth.shape == reconstruction.shape, "images of one shape", truth=truth.shape, found=reconstruction.shape
        )
        require(truth.ndim == 4 and truth.shape[1] in (1, 3), "images of 1 or 3 channels", shape=truth.shape[1:])
        values = [np.zeros(0)]
        with torch.no_grad():
            for i in range(0, len(truth), _AT_ONCE):
                a, b = (_prepared(x[i : i + _AT_ONCE]) for x in (truth, reconstruction))
                values.append(self._net(a, b).flatten().double().numpy())
        return np.concatenate(values)


def load(path: Path) -> Perceptual:
    """Load LPIPS with the AlexNet of a file.

    Args:
        path: a state dict of torchvision's AlexNet, .pth or .pt (read as data, never as code) or .safetensors; the
            classifier may be missing.

    Raises:
        InputError: the file is missing, unreadable or of something else, or ``lpips`` is not installed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"Expected AlexNet weights at {path}, got {error.strerror}: {_WAY_OUT}.") from error
    state = _state(path, data)
    metric = _metric()
    with torch.no_grad():
        for name, tensor in metric.net.state_dict().items():
            key = f"features.{name.partition('.')[2]}"  # slice2.3.weight is features.3.weight
            tensor.copy_(_weights(state, key, tensor.shape, path))
    digest = hashlib.sha256(data).hexdigest()
    return Perceptual(metric, digest, None if path.suffix == ".safetensors" else digest.startswith(_OFFICIAL))


def _prepared(images: np.ndarray) -> Tensor:
    x = torch.from_numpy(np.clip(images, 0, 1).astype(np.float32)).expand(-1, 3, -1, -1)
    short = min(x.shape[2:])
    if short < _SIDE:
        size = [round(side * _SIDE / short) for side in x.shape[2:]]
        x = interpolate(x, size=size, mode="bilinear", align_corners=False)
    return 2 * x - 1


def _state(path: Path, data: bytes) -> Mapping[str, Any]:
    from safetensors.torch import load as safetensors

    try:
        if path.suffix == ".safetensors":
            state = safetensors(data)
        else:
            state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # other files fail with any exception
        raise InputError(f"Expected a state dict in {path}, got a file that cannot be read: {_WAY_OUT}.") from error
    if not isinstance(state, Mapping):
        raise InputError(f"Expected a state dict in {path}, got a {type(state).__name__}: {_WAY_OUT}.")
    return state


def _weights(state: Mapping[str, Any], key: str, shape: torch.Size, path: Path) -> Tensor:
    value = state.get(key)
    if not isinstance(value, Tensor):
        got = "none"
    elif value.shape != shape:
        got = str(tuple(value.shape))
    elif not value.is_floating_point() or not bool(value.isfinite().all()):
        got = "values that are not finite numbers"
    else:
        return value
    raise InputError(f"Expected {key} of shape {tuple(shape)} in {path}, got {got}: {_WAY_OUT}.")


def _metric() -> Any:
    """Build LPIPS with a backbone of random weights; otherwise the package would download one."""
    try:
        import lpips
    except ImportError as error:
        raise InputError("Expected the package lpips, got none: pip install lpips.") from error
    with initialising(0, "perceptual"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The parameter 'pretrained' is deprecated", UserWarning, "torchvision")
        warnings.filterwarnings("ignore", "Arguments other than a weight enum", UserWarning, "torchvision")
        return lpips.LPIPS(net="alex", pnet_rand=True, verbose=False).requires_grad_(False)


_EXTRACTOR = "extractor"


@final
@dataclass(frozen=True)
class Extractor:
    """Extractor of an attacked network, with the weights of the attacked message.

    Attributes:
        model: the extractor, in evaluation mode.
        weights: its parameters and buffers.
        inputs: the input space.
    """

    model: nn.Module
    weights: Tensors
    inputs: InputSpec

    def features(self, samples: Tensor) -> Tensor:
        """Compute the features (N, d) of raw inputs (N, ...), float32."""
        with torch.no_grad():
            return functional_call(self.model, self.weights, (self.inputs.normalise(samples),)).flatten(1)

    def errors(self, truth: Tensor, guesses: Tensor) -> list[float | None]:
        """Compute the relative error >= 0 of each guess's features; None: the truth's are zero, or not finite.

        Args:
            truth: raw inputs (N, ...).
            guesses: reconstructions (N, ...), each beside its truth; they are cut to [0, 1].
        """
        wanted = self.features(truth).double()
        lengths = wanted.norm(dim=1)
        distances = (self.features(guesses.clamp(0, 1)).double() - wanted).norm(dim=1)

        return [ratio if isfinite(ratio) else None for ratio in (distances / lengths).tolist()]


@final
class Extractors:
    """Extractors of the attacked networks of one run, where the server sent them whole.

    Args:
        plan: of the run's clients.
        recordings: its recordings.
        inputs: its input space.
    """

    def __init__(self, plan: ClientPlan, recordings: Recordings, inputs: InputSpec) -> None:
        self._recordings, self._inputs = recordings, inputs
        with initialising(plan.seed, "extractor"):
            model = plan.build_model()
        inner = dict(model.named_children()).get(_EXTRACTOR)
        self._model = None if inner is None else inner.eval()

    def behind(self, exchange: str) -> Extractor | None:
        """Return the extractor behind a message; None: there is none, it is random, or its weights were not sent.

        Args:
            exchange: its id in the recordings.
        """
        if self._model is None:
            return None
        names = {f"{_EXTRACTOR}.{name}": name for name in self._model.state_dict()}
        received = self._recordings.received(exchange, tuple(names)) if names else None
        if received is None:
            return None
        extractor = Extractor(self._model, {inner: received[name] for name, inner in names.items()}, self._inputs)
        blank = torch.zeros(1, *self._inputs.shape)
        return extractor if torch.equal(extractor.features(blank), extractor.features(blank)) else None
