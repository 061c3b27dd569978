"""The backbones a name may carry, one row each.

A row is data, so this table loads without torch. `zoo.model.encoder.build_backbone` turns a row into a network.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zoo.errors import BadNumber, unknown

SMALL_IMAGE = 64  # pixels; below it a ResNet gets the CIFAR stem, a Swin transformer small windows
SMALL_WINDOW = 4  # patches; of Swin on small images, as the dual-temperature paper's code has it


@dataclass(frozen=True)
class Backbone:
    """One architecture, before any projector."""

    architecture: str  # its name in timm's registry (`zoo.model.resnet` adds to that registry)
    dim: int  # features, D
    about: str
    cifar_stem: bool = False  # below 64 px: 3x3 stride-1 padding-1 convolution, no max-pool
    patch: int = 0  # pixels, side of a transformer's patch; it is built for one image size, a multiple of this
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of `timm.create_model`


def _wide(factor: int) -> dict[str, Any]:
    """All stages `factor` times wider; the stem stays at timm's 64 channels, so that plain timm builds it."""
    return {"channels": tuple(factor * width for width in (64, 128, 256, 512))}


BACKBONES: dict[str, Backbone] = {
    "r20": Backbone("resnet20_cifar", 64, "20-layer CIFAR ResNet (He et al. 2015, section 4.2)"),
    "r18": Backbone("resnet18", 512, "ResNet-18 (He et al. 2015, table 1)", cifar_stem=True),
    "r50": Backbone("resnet50", 2048, "ResNet-50 (He et al. 2015, table 1)", cifar_stem=True),
    "r50w2": Backbone("resnet50", 4096, "ResNet-50, 2 times wider (SimCLR, MoCo)", cifar_stem=True, options=_wide(2)),
    "r50w4": Backbone("resnet50", 8192, "ResNet-50, 4 times wider (SimCLR, MoCo)", cifar_stem=True, options=_wide(4)),
    "rx50": Backbone(
        "resnext50_32x4d", 2048, "ResNeXt-50 32x8d (MoCo, table 1)", cifar_stem=True, options={"base_width": 8}
    ),
    "vitt4": Backbone("vit_tiny_patch16_224", 192, "ViT-Ti, patches of 4 px", patch=4, options={"patch_size": 4}),
    "vits16": Backbone(
        "vit_small_patch16_224", 384, "ViT-S/16 with 12 heads (MoCo v3, table 3)", patch=16, options={"num_heads": 12}
    ),
    "vitb16": Backbone("vit_base_patch16_224", 768, "ViT-B/16 (Dosovitskiy et al. 2021, table 1)", patch=16),
    "swint": Backbone("swin_tiny_patch4_window7_224", 768, "Swin-T (Liu et al. 2021, section 3.3)", patch=4),
}


def backbone_row(name: str) -> Backbone:
    """The row called `name`. Raises UnknownName with the nearest names."""
    if name not in BACKBONES:
        raise unknown("backbone", name, BACKBONES)
    return BACKBONES[name]


def transformer_arguments(row: Backbone, *, image_size: int) -> dict[str, Any]:
    """What timm needs to build the row's network for images of image_size. Raises BadNumber if it cannot."""
    swin = row.architecture.startswith("swin")
    multiple = 8 * row.patch if swin else row.patch  # Swin halves its grid three times
    if image_size % multiple or image_size < multiple:
        raise BadNumber(f"{row.architecture} takes images of a multiple of {multiple} px, not {image_size}")
    window = {"window_size": SMALL_WINDOW} if swin and image_size < SMALL_IMAGE else {}
    return {"img_size": image_size, **window, **row.options}
