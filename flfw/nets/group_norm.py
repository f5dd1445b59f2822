"""GroupNorm in place of BatchNorm: no example depends on the others of its batch, and no statistics are sent."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.nets.net import Net

_MOST = 32  # groups, as in Wu and He, "Group Normalization", ECCV 2018


def group_norm(channels: int, eps: float = 1e-5) -> nn.GroupNorm:
    """Make a GroupNorm layer with gamma 1 and beta 0 and the most groups, up to 32, that divide the channels alike.

    >>> [group_norm(channels).num_groups for channels in (64, 48, 16, 37)]
    [32, 24, 16, 1]
    """
    groups = next(count for count in range(min(_MOST, channels), 0, -1) if channels % count == 0)
    return nn.GroupNorm(groups, channels, eps=eps)


def with_group_norm(net: Net) -> Net:
    """Put GroupNorm in place of each BatchNorm of a network, which is changed, and return it.

    The names of gamma and beta stay; the running statistics are gone.
    """
    for layer in list(net.modules()):
        for name, child in list(layer.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(layer, name, group_norm(child.num_features, child.eps))
    return net
