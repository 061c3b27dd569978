"""Any network of timm's as a backbone: its row is found by building it once."""

from collections.abc import Mapping
from typing import Any

import timm
import torch
from timm.models.resnet import ResNet
from torch import nn

from zoo.errors import BadNumber, unknown
from zoo.model.backbone import RESNET, Backbone

PREFIX = "timm:"  # before a name of timm's, where a backbone is asked for


def timm_backbone(name: str, *, image_size: int, options: Mapping[str, Any] | None = None) -> Backbone:
    """Describe one of timm's networks by building it with random weights and calling it once.

    Args:
        name: As in `timm.list_models()`, such as `convnext_tiny`; a tag of pretrained weights is dropped.
        image_size: Side of the images in pixels.
        options: Further arguments of `timm.create_model`.

    Raises:
        UnknownName: timm has no such network; the message has the nearest names.
        BadNumber: The network cannot be trained on images of that size, or gives no features (B, D) without its
            classifier; the message has timm's reason.
    """
    architecture = name.removeprefix(PREFIX).split(".")[0]
    if not timm.is_model(architecture):
        raise unknown("network of timm", architecture, timm.list_models())
    with torch.random.fork_rng(devices=[]):
        network, fixed_size = _build(architecture, image_size, dict(options or {}))
        dim = _features(network, architecture, image_size)
    config: Any = network.pretrained_cfg
    row = Backbone(
        architecture,
        dim,
        f"{architecture}, as timm has it",
        options=dict(options or {}),
        fixed_size=fixed_size,
        multiple=_multiple(network) if fixed_size else 1,
        pool=pool if isinstance(pool := getattr(network, "global_pool", "avg"), str) else "avg",
        first_conv=_first(config.get("first_conv")),
        classifier=_first(config.get("classifier")),
        **(RESNET if _has_usual_stem(network) else {}),
    )
    row.arguments(image_size)
    return row


def _has_usual_stem(network: nn.Module) -> bool:
    """Whether it is a ResNet that begins with the 7x7 convolution in place of which small images meet a 3x3 one."""
    stem = getattr(network, "conv1", None)
    return isinstance(network, ResNet) and isinstance(stem, nn.Conv2d) and stem.kernel_size == (7, 7)


def _build(architecture: str, image_size: int, options: dict[str, Any]) -> tuple[nn.Module, bool]:
    """The network, and whether it is built for one image size."""
    try:
        return timm.create_model(architecture, num_classes=0, img_size=image_size, **options), True
    except TypeError:  # it takes no img_size
        pass
    except (ValueError, AssertionError, RuntimeError) as error:
        raise _unfit(architecture, image_size, error) from error
    try:
        return timm.create_model(architecture, num_classes=0, **options), False
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise _unfit(architecture, image_size, error) from error


def _features(network: nn.Module, architecture: str, image_size: int) -> int:
    """Length of the features that the network gives for two images of that size in training."""
    try:
        with torch.no_grad():
            features = network.train()(torch.rand(2, 3, image_size, image_size))
    except Exception as error:  # networks raise anything on images that are too small or of another size
        raise _unfit(architecture, image_size, error) from error
    if not isinstance(features, torch.Tensor) or features.ndim != 2:
        raise BadNumber(f"{architecture} gives no features (B, D) without its classifier; choose another network")
    return features.shape[1]


def _multiple(network: nn.Module) -> int:
    """Side of a transformer's patch, in pixels."""
    patch = getattr(getattr(network, "patch_embed", None), "patch_size", 1)
    return patch if isinstance(patch, int) else max(patch)


def _first(names: str | tuple[str, ...] | None) -> str:
    """The name of a layer; where timm's configuration names several, the first."""
    return names if isinstance(names, str) else next(iter(names or ()), "")


def _unfit(architecture: str, image_size: int, error: Exception) -> BadNumber:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    sizes = timm.get_pretrained_cfg(architecture)
    usual = f"; its usual size is {sizes.input_size[-1]} px" if sizes else ""
    return BadNumber(
        f"{architecture} cannot be trained on images of {image_size} px ({reason}){usual}. Choose another "
        "--image-size or --backbone"
    )
