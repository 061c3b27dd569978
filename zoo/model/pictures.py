"""What `Encoder.embed` takes, as an iterable of pictures in batches."""

from collections.abc import Iterable, Iterator, Sized
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from zoo.errors import BadData
from zoo.images.pixels import Picture
from zoo.images.walk import find_images

Pictures = Iterable[Picture] | str | Path | np.ndarray | Tensor
LONG = 2.0  # seconds without a progress bar


def as_pictures(pictures: Any) -> Iterable[Picture]:
    """One iterable of whatever `Encoder.embed` takes.

    Raises:
        TypeError: It is a single picture.
        BadData: A folder without images, or a tensor that holds no pictures.
    """
    if isinstance(pictures, str | Path) and Path(pictures).is_dir():
        folder = Path(pictures)
        paths = find_images(folder).paths
        if not paths:
            raise BadData(f"{folder}: no image file below this folder")
        return [folder / path for path in paths]
    if isinstance(pictures, Tensor):
        return _of_tensor(pictures)
    single = isinstance(pictures, str | bytes | Path | Image) or not isinstance(pictures, Iterable)
    if single or (isinstance(pictures, np.ndarray) and pictures.ndim < 4):
        raise TypeError(f"embed takes a list of pictures; got one {type(pictures).__name__}. Write embed([picture])")
    return pictures


def _of_tensor(pictures: Tensor) -> np.ndarray:
    """(n, C, H, W) uint8, or float in [0, 1], which is rounded to 8 bits, as (n, H, W, C) uint8."""
    if pictures.ndim != 4:
        raise TypeError(f"embed takes a tensor (n, C, H, W); got {tuple(pictures.shape)}. One picture: picture[None]")
    values = pictures.detach().cpu()
    if values.is_floating_point():
        if values.numel() and not (values.min() >= 0 and values.max() <= 1):  # a NaN is refused, too
            raise BadData(
                f"float pixels from {values.min():.3g} to {values.max():.3g}; embed takes [0, 1], not normalised"
            )
        values = (values * 255).round().to(torch.uint8)
    if values.dtype != torch.uint8:
        raise BadData(f"a tensor of {pictures.dtype}; embed takes uint8, or float pixels in [0, 1]")
    return values.permute(0, 2, 3, 1).contiguous().numpy()


def batches_of(pictures: Iterable[Picture], size: int) -> Iterator[list[Picture]]:
    """Lists of at most `size` pictures, drawn as they are needed."""
    rest = iter(pictures)
    while batch := list(islice(rest, size)):
        yield batch


def progress(batches: Iterator[Any], pictures: Iterable[Picture], size: int) -> Iterable[Any]:
    """The batches, with a progress bar on a terminal once they take longer than LONG."""
    from tqdm import tqdm

    total = -(-len(pictures) // size) if isinstance(pictures, Sized) else None
    return tqdm(batches, total=total, desc="embed", unit="batch", delay=LONG, leave=False, disable=None)


def autocast(device: torch.device, precision: torch.dtype | None) -> AbstractContextManager[Any]:
    """Mixed precision for the block; nothing where `precision` is None."""
    return torch.autocast(device.type, precision) if precision else nullcontext()
