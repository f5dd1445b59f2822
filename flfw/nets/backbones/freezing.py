"""Freezing of a module: its tensors become constants, which no optimiser changes and no message holds."""

import hashlib
from collections.abc import Mapping
from typing import final

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.errors import InputError


def freeze(module: nn.Module) -> nn.Module:
    """Replace a module's parameters and buffers by buffers outside its ``state_dict``; return the module.

    Messages, checkpoints, private state and attacks know the names in a model's ``state_dict`` alone, so frozen tensors
    are the same constants for all of them. Layers that are added later are not frozen.
    """
    for layer in module.modules():
        for name, parameter in list(layer.named_parameters(recurse=False)):
            del layer._parameters[name]
            layer.register_buffer(name, parameter.detach(), persistent=False)
        layer._non_persistent_buffers_set.update(layer._buffers)
        if isinstance(layer, _BatchNorm):
            layer.track_running_stats = False  # else torch expects its counter in every state_dict
    return module


def is_frozen(layer: nn.Module) -> bool:
    """Return whether a layer's own tensors, of which it has some, are frozen."""
    return bool(layer._buffers) and set(layer._buffers) <= layer._non_persistent_buffers_set


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Compute the SHA-256 of named tensors, in hexadecimal: of names, types, shapes and numbers, sorted by name."""
    total = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return total.hexdigest()


def frozen(module: nn.Module) -> dict[str, Tensor]:
    """Return the frozen tensors of a module by name."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, layer in module.named_modules()
        for name, value in layer._buffers.items()
        if value is not None and name in layer._non_persistent_buffers_set
    }


def fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Put tensors in the place of a module's own, without a copy; return the module.

    Args:
        module: it may be on the meta device.
        tensors: a tensor for each name in its ``state_dict``.

    Raises:
        InputError: it has tensors beside these.
    """
    module.load_state_dict(dict(tensors), strict=True, assign=True)
    for layer in module.modules():
        lost = [name for name, value in {**layer._buffers, **vars(layer)}.items() if isinstance(value, Tensor)]
        if lost := [name for name in lost if getattr(layer, name).is_meta]:
            beside = f"{lost[0]} of {type(layer).__name__} beside it; register it as a persistent buffer"
            raise InputError(f"Expected a body whose tensors are all in its state_dict, got {beside}.")
    return module


@final
class TolerantBatchNorm(nn.BatchNorm2d):
    """BatchNorm that uses the running statistics if a batch has a single number a channel, i.e. no deviation.

    One image of 32 pixels has a single number in the last block of a ResNet; torch would raise an error.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Implement `nn.BatchNorm2d.forward` for (B, C, H, W)."""
        if not self.training or input.numel() > input.shape[1]:
            return super().forward(input)
        mean, var = self.running_mean, self.running_var
        return batch_norm(input, mean, var, self.weight, self.bias, training=False, eps=self.eps)
