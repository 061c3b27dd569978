"""What lies between the pixels and the features: maps of intermediate layers, patch tokens, other image sizes."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.errors import BadNumber


def feature_maps(backbone: Any, x: Tensor, layers: int | Sequence[int]) -> list[Tensor]:
    """Outputs of stages or blocks, in the order of the network.

    Args:
        backbone: A ResNet (0 is the stem, then its stages), a ViT (blocks) or a Swin (stages).
        x: (B, 3, H, W), normalised.
        layers: Indices, negative ones from the end; a number n alone means the last n.

    Returns:
        One (B, C, h, w) for each layer.

    Raises:
        BadNumber: There is no such layer, or the network does not give its layers.
    """
    if not hasattr(backbone, "forward_intermediates"):
        raise BadNumber(f"{type(backbone).__name__} does not give intermediate layers; ResNets, ViTs and Swins do")
    wanted = layers if isinstance(layers, int) else list(layers)
    try:
        return backbone.forward_intermediates(x, indices=wanted, intermediates_only=True)
    except (AssertionError, IndexError, ValueError) as error:
        raise BadNumber(f"layers = {layers}: {type(backbone).__name__} has no such layer ({error})") from error


def patch_tokens(backbone: Any, x: Tensor) -> Tensor:
    """The last layer's tokens of the patches, normalised, without class and register tokens.

    Args:
        backbone: A transformer.
        x: (B, 3, H, W), normalised.

    Returns:
        (B, N, C), row by row of the grid of patches.

    Raises:
        BadNumber: The network has no patches.
    """
    if not hasattr(backbone, "patch_embed"):
        raise BadNumber(f"{type(backbone).__name__} has no patches; features(x, layers=1) gives its last map")
    tokens = backbone.forward_features(x)
    if tokens.ndim == 4:  # Swin: (B, h, w, C)
        return tokens.flatten(1, 2)
    return tokens[:, getattr(backbone, "num_prefix_tokens", 0) :]


@torch.no_grad()
def resize_backbone(backbone: Any, image_size: int) -> None:
    """Make a network take another image size, in place: a transformer's positions are interpolated.

    Raises:
        BadNumber: The network cannot take images of that size.
    """
    if image_size < 1:
        raise BadNumber(f"image_size = {image_size}; at least 1 pixel is needed")
    if not hasattr(backbone, "patch_embed"):
        return  # convolutions take any size
    patch = backbone.patch_embed.patch_size[0]
    multiple = patch * (8 if hasattr(backbone, "patch_grid") or hasattr(backbone, "layers") else 1)
    if image_size % multiple:
        raise BadNumber(f"image_size = {image_size}; {type(backbone).__name__} takes multiples of {multiple} px")
    if not hasattr(backbone, "set_input_size"):
        raise BadNumber(f"{type(backbone).__name__} takes images of the size it was trained on alone")
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # PyTorch's hint at a copy inside timm
        backbone.set_input_size(img_size=(image_size, image_size))
