"""Pretrained networks: bodies from timm and torchvision, their weights, and adapters."""

from flfw.nets.backbones.adapters import AdapterSettings
from flfw.nets.backbones.architectures import ARCHITECTURES, Architecture, WeightsMissing, look_in

__all__ = ["ARCHITECTURES", "AdapterSettings", "Architecture", "WeightsMissing", "look_in"]
