"""AlexNet and ResNet-18 as FedCG's code cuts them (Wu et al., IJCAI 2022): torchvision's, without its weights."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from flfw.nets.backbones.batch_norm import TolerantBatchNorm
from flfw.nets.net import Net

_EXTRACTOR = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2")


def resnet18(shape: tuple[int, ...], classes: int) -> Net:
    """Build ResNet-18: its first half extracts 128 maps of an eighth of the side in (0, 1), the rest classifies them.

    The authors' images of 224 pixels (``--image-size 224``) give maps of 128x28x28, images of 32 give 128x4x4, images
    of 8 give one pixel. The extractor has 0.68 million parameters, the classifier 10.5 million.
    """
    from torchvision.models import resnet18 as whole  # takes seconds, so it is imported only when the network is built

    net = whole(weights=None, num_classes=classes, norm_layer=TolerantBatchNorm)
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


def alexnet(shape: tuple[int, ...], classes: int) -> Net:
    """Build AlexNet: five convolutions extract 256 maps in (0, 1), three dense layers classify them.

    The authors' images of 224 pixels (``--image-size 224``) give maps of 256x6x6; images of 63 pixels, the least, give
    one pixel. Maps of other sides are averaged or repeated to 6x6, as in torchvision. The extractor has 2.5 million
    parameters, the classifier 54.6 million: a message is 0.2 GB.

    Torchvision's two dropout layers are left out: they draw from torch's global generator and not from the run's, so
    runs would not be reproducible; and a server that distils would use other networks than it was sent.
    """
    from torchvision.models import alexnet as whole  # takes seconds, so it is imported only when the network is built

    net = whole(weights=None, num_classes=classes)
    if shape[0] != 3:
        net.features[0] = nn.Conv2d(shape[0], 64, 11, stride=4, padding=2)
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # per-example gradients and attacks read the layers' outputs
    dense = [layer for layer in net.classifier if not isinstance(layer, nn.Dropout)]
    return Net(nn.Sequential(*net.features, nn.Sigmoid()), nn.Sequential(net.avgpool, nn.Flatten(), *dense))
