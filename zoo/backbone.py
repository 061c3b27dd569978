"""The backbones a name may carry, one row each.

A row is data, so this table loads without torch. `zoo.encoder.build_backbone` turns a row into a network.
"""

from dataclasses import dataclass

from zoo.errors import unknown

SMALL_IMAGE = 64  # pixels; below it a ResNet gets the CIFAR stem


@dataclass(frozen=True)
class Backbone:
    """One architecture, before any projector."""

    architecture: str  # its name in timm's registry (`zoo.resnet` adds to that registry)
    dim: int  # features, D
    about: str
    cifar_stem: bool = False  # below 64 px: 3x3 stride-1 padding-1 convolution, no max-pool


BACKBONES: dict[str, Backbone] = {
    "r20": Backbone("resnet20_cifar", 64, "20-layer CIFAR ResNet (He et al. 2015, section 4.2)"),
    "r18": Backbone("resnet18", 512, "ResNet-18 (He et al. 2015, table 1)", cifar_stem=True),
    "r50": Backbone("resnet50", 2048, "ResNet-50 (He et al. 2015, table 1)", cifar_stem=True),
}


def backbone_row(name: str) -> Backbone:
    """The row called `name`. Raises UnknownName with the nearest names."""
    if name not in BACKBONES:
        raise unknown("backbone", name, BACKBONES)
    return BACKBONES[name]
