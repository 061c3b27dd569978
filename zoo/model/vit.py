"""Transformers, built by timm for one image size, and the start that MoCo v3 gives them.

Nothing is added to timm's modules, so the weights open in plain timm.
"""

import math
from functools import partial

import torch
from timm.models import named_apply
from timm.models.vision_transformer import VisionTransformer, init_weights_vit_moco
from torch import Tensor, nn


@torch.no_grad()
def start_as_mocov3(vit: VisionTransformer) -> None:
    """The initialization of MoCo v3: fixed sine-cosine positions and a frozen random patch projection (Chen et al.
    2021, section 4.2 and appendix A), weights as in its release.

    The class token is drawn from N(0, 1e-6) at position 0; timm draws query, key and value as three maps by Xavier's
    uniform rule, the other maps by the same rule with zero biases; the patch projection is one map of 3 p^2 inputs.
    """
    named_apply(partial(init_weights_vit_moco, needs_reset=False), vit)
    patch = vit.patch_embed.proj
    bound = math.sqrt(6 / (patch.weight[0].numel() + patch.out_channels))
    nn.init.uniform_(patch.weight, -bound, bound)
    nn.init.zeros_(patch.bias)
    nn.init.normal_(vit.cls_token, std=1e-6)
    height, width = vit.patch_embed.grid_size
    positions = sincos_positions(height, width, vit.embed_dim)
    vit.pos_embed.copy_(torch.cat([torch.zeros(1, vit.embed_dim), positions]))
    for frozen in (vit.pos_embed, patch.weight, patch.bias):
        frozen.requires_grad_(False)


def sincos_positions(height: int, width: int, dim: int) -> Tensor:
    """(height * width, dim): sin, cos of the patch's row, then of its column, at dim / 4 frequencies 1 ... 1 / 10000.

    In float64 before rounding: timm's `build_sincos2d_pos_embed`, in float32, differs by up to 7e-7.

    Raises:
        ValueError: If dim is not a multiple of 4.
    """
    if dim % 4:
        raise ValueError(f"positions of {dim} numbers; sin and cos of two coordinates need a multiple of 4")
    frequency = 10000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angles = [place.flatten()[:, None] * frequency for place in (row, column)]  # (height * width, dim / 4) each
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1).float()
