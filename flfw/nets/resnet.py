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
    """Takes the running statistics where a batch has a single number a channel, of which there is no deviation.

    One image of 32 pixels comes to that in the last block; torch would end the training.
    """

    def forward(self, input: Tensor) -> Tensor:
        """See torch; (B, C, H, W)."""
        if not self.training or input.numel() > input.shape[1]:
            return super().forward(input)
        mean, var = self.running_mean, self.running_var
        return batch_norm(input, mean, var, self.weight, self.bias, training=False, eps=self.eps)


def resnet18(shape: tuple[int, ...], classes: int) -> Net:
    """Half of ResNet-18 extracts 128 maps of an eighth of the side in (0, 1), the other half classifies them.

    The authors' images of 224 pixels (``--side 224``) come to 128x28x28, those of 32 to 128x4x4, those of 8 to one
    pixel. The extractor has 0.68 million parameters, the classifier 10.5 million.
    """
    from torchvision.models import resnet18 as whole  # takes seconds, which only those who build it are to wait

    net = whole(weights=None, num_classes=classes, norm_layer=_BatchNorm)
    if shape[0] != 3:
        net.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's own
    parts = OrderedDict(net.named_children())
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # per-example gradients and attacks read what layers gave
    extractor = nn.Sequential(OrderedDict((name, parts.pop(name)) for name in _EXTRACTOR))
    extractor.add_module("sigmoid", nn.Sigmoid())
    head = parts.pop("fc")
    return Net(extractor, nn.Sequential(OrderedDict([*parts.items(), ("flatten", nn.Flatten()), ("fc", head)])))
