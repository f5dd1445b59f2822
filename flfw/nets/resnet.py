"""ResNet-18 as FedCG's code cuts it (Wu et al., IJCAI 2022): torchvision's layers, without its weights."""

from __future__ import annotations

from collections import OrderedDict
from typing import final

from torch import Tensor, nn
from torch.nn.functional import batch_norm

from flfw.nets.net import Net

_EXTRACTOR = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2")


@final
class _BatchNorm(nn.BatchNorm2d):
    """BatchNorm that uses the running statistics if a batch has a single number a channel, i.e. no deviation.

    One image of 32 pixels has a single number in the last block; torch would raise an error.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Implement `nn.BatchNorm2d.forward` for (B, C, H, W)."""
        if not self.training or input.numel() > input.shape[1]:
            return super().forward(input)
        mean, var = self.running_mean, self.running_var
        return batch_norm(input, mean, var, self.weight, self.bias, training=False, eps=self.eps)


def resnet18(shape: tuple[int, ...], classes: int) -> Net:
    """Build ResNet-18: its first half extracts 128 maps of an eighth of the side in (0, 1), the rest classifies them.

    The authors' images of 224 pixels (``--side 224``) give maps of 128x28x28, images of 32 give 128x4x4, images of 8
    give one pixel. The extractor has 0.68 million parameters, the classifier 10.5 million.
    """
    from torchvision.models import resnet18 as whole  # takes seconds, so it is imported only when the network is built

    net = whole(weights=None, num_classes=classes, norm_layer=_BatchNorm)
    if shape[0] != 3:
        net.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's own
    parts = OrderedDict(net.named_children())
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # per-example gradients and attacks read the layers' outputs
    extractor = nn.Sequential(OrderedDict((name, parts.pop(name)) for name in _EXTRACTOR))
    extractor.add_module("sigmoid", nn.Sigmoid())
    head = parts.pop("fc")
    return Net(extractor, nn.Sequential(OrderedDict([*parts.items(), ("flatten", nn.Flatten()), ("fc", head)])))
