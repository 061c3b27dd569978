"""The backbones a name may carry, one row each.

A row is data, so this table loads without torch. `zoo.model.encoder.build_network` turns a row into a network, and
`zoo.model.timm_backbone` makes the row of any other network of timm's.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from zoo.errors import BadNumber, unknown

SMALL_IMAGE = 64  # pixels; below it a ResNet gets the CIFAR stem, a Swin transformer small windows
ANY_SIZE = 2**31  # pixels; above every image size


@dataclass(frozen=True)
class Backbone:
    """One architecture, before any projector."""

    architecture: str  # its name in timm's registry (`zoo.model.resnet` adds to that registry)
    dim: int  # features, D
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of `timm.create_model`
    small_options: Mapping[str, Any] = field(default_factory=dict)  # and more of them below SMALL_IMAGE
    initial: Mapping[str, Any] = field(default_factory=dict)  # arguments that only decide the initial weights
    fixed_size: bool = False  # whether it is built for one image size
    multiple: int = 1  # pixels; image sizes are multiples of it
    small_stem_below: int = 0  # pixels; smaller images meet a 3x3 stride-1 convolution and no max-pool
    pool: str = "avg"  # how timm pools its features
    first_conv: str = "conv1"  # parts of timm's network, as its configuration names them
    classifier: str = "fc"

    def small_stem(self, image_size: int) -> bool:
        """Whether the network for images of `image_size` pixels begins with a 3x3 convolution and no pool."""
        return image_size < self.small_stem_below

    def arguments(self, image_size: int) -> dict[str, Any]:
        """What `timm.create_model` needs to build the network for images of `image_size` pixels.

        Raises:
            BadNumber: The network does not take images of that size.
        """
        if image_size % self.multiple or image_size < self.multiple:
            raise BadNumber(f"{self.architecture} takes images of a multiple of {self.multiple} px, not {image_size}")
        size = {"img_size": image_size} if self.fixed_size else {}
        return {**size, **(self.small_options if image_size < SMALL_IMAGE else {}), **self.options}

    def to_json(self) -> dict[str, Any]:
        """The row as plain values, for a card."""
        return asdict(self)


def _wide(factor: int) -> dict[str, Any]:
    """All stages `factor` times wider; the stem stays at timm's 64 channels, so that plain timm builds it."""
    return {"channels": tuple(factor * width for width in (64, 128, 256, 512))}


# Residual branches start as in torchvision; the methods that start them at 0 do so themselves.
RESNET: dict[str, Any] = {"small_stem_below": SMALL_IMAGE, "initial": {"zero_init_last": False}}
TRANSFORMER: dict[str, Any] = {"fixed_size": True, "first_conv": "patch_embed.proj"}
VIT: dict[str, Any] = TRANSFORMER | {"pool": "token", "classifier": "head"}
# Swin halves its grid of patches three times; the dual-temperature paper's code has windows of 4 on small images.
SWIN: dict[str, Any] = TRANSFORMER | {"classifier": "head.fc", "multiple": 32, "small_options": {"window_size": 4}}

BACKBONES: dict[str, Backbone] = {
    "r20": Backbone(
        "resnet20_cifar", 64, "20-layer CIFAR ResNet (He et al. 2015, section 4.2)", small_stem_below=ANY_SIZE
    ),
    "r18": Backbone("resnet18", 512, "ResNet-18 (He et al. 2015, table 1)", **RESNET),
    "r50": Backbone("resnet50", 2048, "ResNet-50 (He et al. 2015, table 1)", **RESNET),
    "r50w2": Backbone("resnet50", 4096, "ResNet-50, 2 times wider (SimCLR, MoCo)", _wide(2), **RESNET),
    "r50w4": Backbone("resnet50", 8192, "ResNet-50, 4 times wider (SimCLR, MoCo)", _wide(4), **RESNET),
    "rx50": Backbone("resnext50_32x4d", 2048, "ResNeXt-50 32x8d (MoCo, table 1)", {"base_width": 8}, **RESNET),
    "vitt4": Backbone("vit_tiny_patch16_224", 192, "ViT-Ti, patches of 4 px", {"patch_size": 4}, multiple=4, **VIT),
    "vits16": Backbone(
        "vit_small_patch16_224", 384, "ViT-S/16 with 12 heads (MoCo v3, table 3)", {"num_heads": 12}, multiple=16, **VIT
    ),
    "vitb16": Backbone("vit_base_patch16_224", 768, "ViT-B/16 (Dosovitskiy et al. 2021, table 1)", multiple=16, **VIT),
    "swint": Backbone("swin_tiny_patch4_window7_224", 768, "Swin-T (Liu et al. 2021, section 3.3)", **SWIN),
}


def backbone_row(name: str) -> Backbone:
    """The row called `name`. Raises UnknownName with the nearest names."""
    if name not in BACKBONES:
        raise unknown("backbone", name, BACKBONES)
    return BACKBONES[name]
