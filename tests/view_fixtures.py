"""Images and policies that several tests of the views share."""

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode

from train.views import ViewPolicy

OFF = ViewPolicy(crop_area=(1, 1), crop_ratio=(1, 1), flip=0, jitter=0, grey=0)
EVERYTHING = ViewPolicy(blur=0.5, solarize=0.2)
MODES = {"bicubic": InterpolationMode.BICUBIC, "bilinear": InterpolationMode.BILINEAR}
RANGES = [(0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1)]  # of brightness, contrast, saturation, hue by default


def pixels(n: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.randint(
        0, 256, (n, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def all_off(**changed: float) -> ViewPolicy:
    return ViewPolicy(**{**vars(OFF), **changed})
