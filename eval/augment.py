"""The augmentation of a probe and of fine-tuning: a random crop, and a mirror image half of the time."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SCALE = (0.08, 1.0)  # of the area
RATIO = (3 / 4, 4 / 3)  # width to height


def crop_and_mirror(images: Tensor, *, size: int, generator: torch.Generator) -> Tensor:
    """images (B, 3, H, W) in [0, 1] -> (B, 3, size, size): Szegedy et al. 2015, section 6, and a horizontal flip.

    The area is uniform in SCALE, the ratio log-uniform in RATIO; what would stick out is cut to the image.
    """
    draw = torch.rand(5, len(images), generator=generator).to(images.device)
    area = SCALE[0] + (SCALE[1] - SCALE[0]) * draw[0]
    ratio = torch.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * draw[1])
    width, height = ((area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1))  # shares of the sides
    x, y = ((2 * draw[i] - 1) * (1 - side) for i, side in ((2, width), (3, height)))  # centre, in [-1, 1]
    mirror = torch.where(draw[4] < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(x)
    boxes = torch.stack([torch.stack([width * mirror, zero, x], 1), torch.stack([zero, height, y], 1)], 1)  # (B, 2, 3)
    grid = F.affine_grid(boxes, [len(images), 3, size, size], align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
