"""Networks of the papers for images and tables: linear, fully connected, LeNets, ConvNets, AlexNet, ResNet-18.

HyperFL (Guo et al., AAAI 2025, section 5.1) has a generated extractor and one private layer; the 128-unit layer belongs
to the extractor. CNN 1 serves 28x28 grey images, CNN 2 32x32 colour images. Fed-CDP's network (Wei et al., ICDCS 2021)
has two 3x3 convolutions and one dense layer, none with a bias, for images of any size.

The linear network is the control of every audit. The inversion papers attack the sigmoid LeNet and the ConvNet with
BatchNorm. AlexNet and ResNet-18 are cut as in FedCG's code (Wu et al., IJCAI 2022): torchvision's, without its weights.

GroupNorm may stand in place of BatchNorm: no example then depends on the others of its batch, and no statistics are
sent.
"""

from collections import OrderedDict
from math import prod

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.errors import InputError
from flfw.nets.backbones.freezing import TolerantBatchNorm
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


def _convnet(shape: tuple[int, ...], classes: int, width: int) -> Net:
    layers: list[nn.Module] = []
    channels = shape[0]
    for block in ((width, 2 * width, 2 * width, 4 * width, 4 * width, 4 * width), (4 * width, 4 * width)):
        for wide in block:
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
            channels = wide
        layers.append(nn.MaxPool2d(3))
    return Net(nn.Sequential(*layers, nn.Flatten()), nn.Linear(4 * width * 3 * 3, classes))


def convnet32(shape: tuple[int, ...], classes: int) -> Net:
    """Build the ConvNet of width 32, used by DCS^2 for CIFAR-10 and CelebA: 32-10-3 pixels, features 1152."""
    return _convnet(shape, classes, 32)


def convnet64(shape: tuple[int, ...], classes: int) -> Net:
    """Build the ConvNet of width 64 of public inversion frameworks (Geiping et al., NeurIPS 2020): features 2304."""
    return _convnet(shape, classes, 64)


def lenet5(shape: tuple[int, ...], classes: int) -> Net:
    """Build LeNet5 as FedCG cuts it (Wu et al., IJCAI 2022): two convolutions extract 16x5x5 features in (0, 1).

    Pooling comes before the sigmoid, as in the authors' code.
    """
    extractor = nn.Sequential(
        nn.Conv2d(shape[0], 6, 5), nn.AvgPool2d(2), nn.Sigmoid(), nn.Conv2d(6, 16, 5), nn.AvgPool2d(2), nn.Sigmoid()
    )
    classifier = nn.Sequential(
        nn.Flatten(), nn.Linear(16 * 5 * 5, 120), nn.Sigmoid(), nn.Linear(120, 84), nn.Sigmoid(), nn.Linear(84, classes)
    )
    return Net(extractor, classifier)


def lenet(shape: tuple[int, ...], classes: int) -> Net:
    """Build the sigmoid LeNet of DLG (Zhu et al., NeurIPS 2019): strides instead of pooling, weights U(-0.5, 0.5).

    It is twice differentiable everywhere, as L-BFGS on gradients needs.
    """
    channels, height, width = shape[0], -(-shape[1] // 4), -(-shape[2] // 4)  # two strides of 2, rounded up: 28 -> 7
    extractor = nn.Sequential(
        nn.Conv2d(channels, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=1, padding=2),
        nn.Sigmoid(),
        nn.Flatten(),
    )
    net = Net(extractor, nn.Linear(12 * height * width, classes))
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net


def linear(shape: tuple[int, ...], classes: int) -> Net:
    """Build softmax regression on the raw input; its gradient reveals the input in closed form."""
    return Net(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int) -> Net:
    """Build two hidden layers of 64 ReLU units; Fed-CDP uses two for tabular data and does not state their widths."""
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return Net(extractor, nn.Linear(64, classes))


def _block(channels_in: int, channels_out: int, kernel: int, padding: int) -> list[nn.Module]:
    """Return convolution, rectifier and pooling; pooling comes first, as the rectifier is monotone and then costs a
    quarter.
    """
    return [nn.Conv2d(channels_in, channels_out, kernel, padding=padding), nn.MaxPool2d(2), nn.LeakyReLU(0.01)]


def cnn1(shape: tuple[int, ...], classes: int) -> Net:
    """Build CNN 1: 28-24-12-10-5 pixels, features 800 -> 128; 115,776 extractor parameters."""
    extractor = nn.Sequential(
        *_block(shape[0], 16, 5, padding=0),
        *_block(16, 32, 5, padding=1),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 128),
        nn.LeakyReLU(0.01),
    )
    return Net(extractor, nn.Linear(128, classes))


def cnn2(shape: tuple[int, ...], classes: int) -> Net:
    """Build CNN 2: 32-28-14-12-6-6-3 pixels, features 576 -> 128; 106,400 extractor parameters."""
    extractor = nn.Sequential(
        *_block(shape[0], 16, 5, padding=0),
        *_block(16, 32, 5, padding=1),
        *_block(32, 64, 3, padding=1),
        nn.Flatten(),
        nn.Linear(64 * 3 * 3, 128),
        nn.LeakyReLU(0.01),
    )
    return Net(extractor, nn.Linear(128, classes))


def cnn3x3(shape: tuple[int, ...], classes: int) -> Net:
    """Build Fed-CDP's network: 28-26-13-11-5 pixels, features 1600 for MNIST; 32-30-15-13-6, 2304 for CIFAR-10.

    Pooling comes before the rectifier, as in the others.

    Raises:
        InputError: a side is below 10 pixels, so the maps are empty after the second pooling.
    """
    if min(shape[1:]) < 10:
        got = "x".join(map(str, shape))
        raise InputError(f"Expected inputs of at least Cx10x10 for net=cnn3x3, got {got}; choose another --net.")
    height, width = (((side - 2) // 2 - 2) // 2 for side in shape[1:])
    extractor = nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, bias=False),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, bias=False),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    )
    return Net(extractor, nn.Linear(64 * height * width, classes, bias=False))


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
