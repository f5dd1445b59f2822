"""Networks on a pretrained body, of which all is trained, or the classifier and at most small layers in the body."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from flfw.errors import InputError
from flfw.nets.backbones.adapters import Adapted, AdapterSettings, insert, insert_low_rank
from flfw.nets.backbones.architectures import Architecture
from flfw.nets.backbones.freezing import digest, fill, freeze
from flfw.nets.net import Net, running_statistics
from flfw.rng import initialising

Trained: TypeAlias = Literal["full", "adapter", "lora", "linear_probe"]

_COUNTERS = "num_batches_tracked"  # of BatchNorm; old files lack them, and nothing here uses them
_CACHED_BYTES = 2**30


@dataclass(frozen=True)
class Tuning:
    """Part of a pretrained network that is trained.

    Attributes:
        train: everything; adapters or low-rank products, and the classifier; or the classifier alone.
        adapters: settings of the adapters and of the products.
        sha256: SHA-256 that the weights must have, see `digest`; empty: any.
    """

    train: Trained = "full"
    adapters: AdapterSettings = field(default_factory=AdapterSettings)
    sha256: str = ""


@final
class Backbone(nn.Module):
    """Extractor of a pretrained network: colours and size of its inputs, then the body.

    Frozen tensors are in no ``state_dict``. An extractor that is frozen as a whole computes each example by itself, so
    that its features have the same bits in any batch, and remembers them.

    Args:
        body: from images (B, 3, side, side) to features.
        side: height and width in pixels to which inputs are resized; 0: as they are.
        cache: features that were computed before; None: they are not remembered, as something is trained.
        frozen: whether nothing but adapters or low-rank products is trained in the body.
    """

    def __init__(self, body: nn.Module, side: int, cache: FeatureCache | None, frozen: bool) -> None:
        super().__init__()
        self.body, self.side, self._cache, self._frozen = body, side, cache, frozen

    def forward(self, x: Tensor) -> Tensor:
        """Compute features (B, width) of network inputs (B, 1 or 3, H, W)."""
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(x)  # type: ignore[attr-defined]  # by vmap or grad
        traced = type(x) is not Tensor  # then it has no numbers to remember it by
        if self._cache is None or x.requires_grad or wrapped or traced:
            return self._features(x)
        with torch.no_grad():
            return self._cache.features(x, self._features)

    def _features(self, x: Tensor) -> Tensor:
        x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
        if self.side and x.shape[-2:] != (self.side, self.side):
            x = interpolate(x, (self.side, self.side), mode="bilinear", antialias=True)  # as torchvision's Resize
        return self.body(x)

    def train(self, mode: bool = True) -> Backbone:
        """Set the mode; of a frozen body only that of its adapters, as nothing else in it may draw or remember."""
        super().train(mode)
        if self._frozen:
            self.body.eval()
            for layer in self.body.modules():
                if isinstance(layer, Adapted):
                    layer.adapter.train(mode)
        return self


def build_tuned(architecture: Architecture, shape: tuple[int, ...], classes: int, tuning: Tuning) -> Net:
    """Build a pretrained network; adapters and classifier are drawn from torch's current generator.

    Args:
        architecture: architecture of the body.
        shape: of one input, (1 or 3, H, W).
        classes: number of classes.
        tuning: the part that is trained.

    Raises:
        InputError: no weights or others than those of the tuning, inputs of other channels, or no such places.
    """
    body = _body(architecture, tuning)
    if tuning.train != "full":
        freeze(body)
    if tuning.train == "adapter":
        places = architecture.places(body, tuning.adapters.places)
        insert(body, places, lambda layer: architecture.adapter(layer, tuning.adapters))
    if tuning.train == "lora":
        chosen = tuning.adapters
        insert_low_rank(body, chosen.lora_rank, chosen.lora_alpha, chosen.lora_layers)
    cached = tuning.train == "linear_probe" and not _is_blank()
    sha256 = tuning.sha256 or (weights_digest(architecture) if cached else "")
    cache = _cache(architecture, sha256, tuning.adapters.published_bug) if cached else None
    extractor = Backbone(body, architecture.side, cache, frozen=tuning.train != "full")
    return Net(extractor.train(), architecture.head(classes))


def weights_digest(architecture: Architecture) -> str:
    """Compute the SHA-256 of the weights that this machine has for an architecture; see `digest`.

    Raises:
        InputError: it has none.
    """
    return _weights(architecture, architecture.published.place_and_time(architecture.name))[1]


def require_weights(architecture: Architecture, sha256: str) -> None:
    """Refuse this machine's weights of an architecture if they are not those with a SHA-256.

    Args:
        architecture: the architecture.
        sha256: see `digest`; empty: any.

    Raises:
        InputError: it has none, or others.
    """
    if sha256 not in ("", mine := weights_digest(architecture)):
        required = f"weights of net={architecture.name} with the SHA-256 {sha256}"
        raise InputError(f"Expected {required}, got {mine}; name the run's own file by --expert weights.")


def _body(architecture: Architecture, tuning: Tuning) -> nn.Module:
    """Build the body with its weights; on the meta device it has none."""
    with torch.device("meta"):
        body = architecture.body(tuning.adapters)
    if _is_blank():
        return body
    require_weights(architecture, tuning.sha256)
    tensors, _ = _weights(architecture, architecture.published.place_and_time(architecture.name))
    names = body.state_dict()
    # The bug drops biases; and tests compute in float64.
    chosen = {n: value.to(names[n].dtype) for n, value in tensors.items() if n in names}
    if tuning.train == "full":
        chosen = {n: value.clone() for n, value in chosen.items()}
    return fill(body, chosen)


@lru_cache(maxsize=4)
def _weights(architecture: Architecture, place: tuple[str, int]) -> tuple[dict[str, Tensor], str]:
    """Read the weights of an architecture once a process, in float32; return them and their SHA-256."""
    with torch.device("meta"):
        numbers = architecture.body(AdapterSettings()).state_dict()
        like = {n: value.float() if value.is_floating_point() else value for n, value in numbers.items()}
    needed = {n: value for n, value in like.items() if not n.endswith(_COUNTERS)}
    tensors = architecture.published.read(architecture.name, needed)
    if tensors is None:
        tensors = _random(architecture)
    counters = {n: torch.zeros((), dtype=torch.int64, device="cpu") for n in like if n.endswith(_COUNTERS)}
    kept = {n: tensors[n] for n in needed}
    return kept | counters, digest(kept)


def _random(architecture: Architecture) -> dict[str, Tensor]:
    """Draw a body's weights in float32, the same in every process."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), initialising(0, "random weights"):
            return {n: value.detach() for n, value in architecture.body(AdapterSettings()).state_dict().items()}
    finally:
        torch.set_default_dtype(before)


@lru_cache(maxsize=4)
def _cache(architecture: Architecture, sha256: str, published_bug: bool) -> FeatureCache:
    """Return the features that this process knows of one frozen body."""
    return FeatureCache(_CACHED_BYTES)


def _is_blank() -> bool:
    """Return whether models are being built without numbers."""
    return torch.empty(0).is_meta


def shared_names(model: nn.Module) -> tuple[str, ...] | None:
    """List a model's tensors without the running statistics of adapters; None: it has none of these, so all are."""
    ours = [name for name in running_statistics(model) if ".adapter." in name]
    return tuple(name for name in model.state_dict() if name not in ours) if ours else None


@final
class FeatureCache:
    """Cache of features, of which those unused for longest are forgotten.

    Features are computed for one input at a time. So they do not depend on the batch, and a run has the same bits
    whichever of them a process had computed before.

    Args:
        maximum: bytes of features to remember, >= 1.
    """

    def __init__(self, maximum: int) -> None:
        self._most, self._held = maximum, 0
        self._features: OrderedDict[bytes, Tensor] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, object]) -> FeatureCache:
        """Return the cache itself: a copied network has the same frozen body."""
        return self

    def features(self, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return features (B, d) of inputs (B, ...) on the inputs' device.

        Args:
            x: the inputs.
            compute: function from inputs (1, ...) to features (1, d).
        """
        if not len(x):
            return compute(x)
        return torch.stack([self._one(one, compute) for one in x]).to(x.device)

    def _one(self, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        numbers = hashlib.blake2b(x.detach().cpu().numpy().tobytes(), digest_size=32).digest()
        # With another number of threads a machine may round otherwise.
        key = numbers + f"{x.dtype} {tuple(x.shape)} {x.device.type} {torch.get_num_threads()}".encode()
        if key in self._features:
            self._features.move_to_end(key)
            return self._features[key]
        made = compute(x[None])[0].cpu()
        self._features[key] = made
        self._held += made.nbytes
        while self._held > self._most and len(self._features) > 1:
            self._held -= self._features.popitem(last=False)[1].nbytes
        return made
