"""The network of detection: an encoder's ResNet in torchvision's Faster R-CNN, on a feature pyramid or on C4."""

import copy
from collections.abc import Sequence
from typing import Literal

from torch import nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign

from zoo.errors import BadData
from zoo.model.encoder import Encoder

Neck = Literal["fpn", "c4"]
STAGES = ("layer1", "layer2", "layer3", "layer4")
REGIONS = 512  # of an image that the second stage learns from in a step
SIDES = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)  # pixels, of the shorter side in training
SMALLEST_SIDES = {"c4": 16, "fpn": 33}  # pixels; below, anchors vanish, or the last stage has one pixel to normalise
ANCHORS = (32, 64, 128, 256, 512)  # pixels, sides of the squares where the last of SIDES is 800
SHAPES = (0.5, 1.0, 2.0)  # height to width


def detector(
    encoder: Encoder, *, classes: int, neck: Neck, sides: Sequence[int] = SIDES, regions: int = REGIONS
) -> FasterRCNN:
    """Faster R-CNN on a copy of the encoder's ResNet; it takes images in [0, 1] and normalises as the encoder does.

    sides: allowed lengths of the shorter side in training; the last one is used in tests, and the anchors shrink with
    it. regions: of each image that the second stage learns from in a step; in a test it sees four times as many.
    Raises BadData if the backbone has no four stages, or a side is too short.
    """
    if min(sides) < SMALLEST_SIDES[neck]:
        raise BadData(f"sides = {min(sides)}; {neck} needs {SMALLEST_SIDES[neck]} pixels at least")
    network = copy.deepcopy(encoder.backbone)
    if not all(hasattr(network, stage) for stage in STAGES):
        raise BadData(f"{type(network).__name__} has no stages {', '.join(STAGES)}; detection needs such a ResNet")
    body, more = NECKS[neck](network, classes, tuple(round(sides[-1] / SIDES[-1] * side) for side in ANCHORS))
    mean, std = encoder.mean.flatten().tolist(), encoder.std.flatten().tolist()
    num_classes = None if "box_predictor" in more else classes + 1
    more |= {"min_size": tuple(sides), "max_size": 1333, "box_batch_size_per_image": regions}
    more["rpn_post_nms_top_n_test"] = min(1000, 4 * regions)
    return FasterRCNN(body, num_classes, image_mean=mean, image_std=std, **more).requires_grad_()


def _fpn(network: nn.Module, classes: int, anchors: tuple[int, ...]) -> tuple[nn.Module, dict[str, object]]:
    """A feature pyramid on all four stages (Lin et al. 2017)."""
    wanted = {stage: str(index) for index, stage in enumerate(STAGES)}
    body = BackboneWithFPN(network, wanted, [_width(network, stage) for stage in STAGES], 256)
    return body, {"rpn_anchor_generator": AnchorGenerator(tuple((side,) for side in anchors), (SHAPES,) * len(anchors))}


def _c4(network: nn.Module, classes: int, anchors: tuple[int, ...]) -> tuple[nn.Module, dict[str, object]]:
    """The first three stages find regions; the fourth, with a normalisation behind it, is the head of each region."""
    parts = list(network.named_children())
    stop = [name for name, _ in parts].index("layer4")
    body = nn.Sequential(*(module for _, module in parts[:stop]))
    body.out_channels = _width(network, "layer3")  # type: ignore[assignment]  # torchvision asks for it
    width = _width(network, "layer4")
    last = network.get_submodule("layer4")
    head = nn.Sequential(last, nn.BatchNorm2d(width), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    more = {
        "rpn_anchor_generator": AnchorGenerator((anchors,), (SHAPES,)),
        "box_roi_pool": MultiScaleRoIAlign(["0"], output_size=14, sampling_ratio=2),
        "box_head": head,
        "box_predictor": FastRCNNPredictor(width, classes + 1),
    }
    return body, more


NECKS = {"fpn": _fpn, "c4": _c4}


def _width(network: nn.Module, stage: str) -> int:
    """Channels that a stage puts out."""
    convolutions = [module for module in getattr(network, stage)[-1].modules() if isinstance(module, nn.Conv2d)]
    return convolutions[-1].out_channels
