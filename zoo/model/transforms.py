"""An encoder's preprocessing as torchvision transforms, for a user's own `DataLoader`."""

from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from zoo.images.pixels import preprocess, read_rgb


class UprightRGB(v2.Transform):
    """A PIL image or a uint8 tensor (C, H, W) as an upright RGB image, as `Encoder.embed` sees it."""

    _transformed_types = (PIL.Image.Image, Tensor)

    def transform(self, inpt: Any, params: dict[str, Any]) -> PIL.Image.Image:
        return read_rgb(_as_picture(inpt))


class Preprocessing(v2.Transform):
    """What `Encoder.embed` does to a picture before the network: `encoder(transform(picture)[None])` equals it.

    `transform(train=True)` gives random resized crops and flips of the same size instead, for fine-tuning.

    Args:
        image_size: Side of the result in pixels.
        crop: Share of the shorter side that the central crop keeps, (0, 1].
    """

    _transformed_types = (PIL.Image.Image, Tensor)

    def __init__(self, *, image_size: int, crop: float = 1.0) -> None:
        super().__init__()
        self.image_size, self.crop = image_size, crop

    def forward(self, *inputs: Any, train: bool = False) -> Any:
        """Transform a picture, or every picture in a sample such as (picture, label); without one see `train`.

        Args:
            inputs: PIL images or uint8 tensors (C, H, W), alone or in a structure whose other entries stay as they are.
            train: Return the transform for training.

        Returns:
            (3, S, S) float32 in [0, 1]; a transform if there are no inputs.
        """
        if not inputs:
            return training_transform(self.image_size) if train else self
        return super().forward(*inputs)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Tensor:
        pixels = preprocess(_as_picture(inpt), image_size=self.image_size, crop=self.crop)
        return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).contiguous() / 255


def training_transform(image_size: int) -> v2.Compose:
    """Random resized crops (bicubic, antialiased) and horizontal flips: (3, S, S) float32 in [0, 1]."""
    return v2.Compose(
        [
            UprightRGB(),
            v2.RandomResizedCrop(image_size, interpolation=InterpolationMode.BICUBIC, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.ToPureTensor(),
        ]
    )


def _as_picture(value: Any) -> Any:
    """A uint8 tensor (C, H, W) as an array (H, W, C); any other picture as it is."""
    return value.permute(1, 2, 0).numpy() if isinstance(value, Tensor) else value
