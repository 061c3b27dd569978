"""Features once: an encoder's output for every labelled image of a split, in the split's order."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image
from tqdm import tqdm

from zoo.dataset import Split
from zoo.errors import BadData
from zoo.pixels import fit


class PixelEncoder(Protocol):
    """What evaluation needs of an encoder; `zoo.encoder.Encoder` has it."""

    image_size: int

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(B, H, W, 3) uint8 -> (B, D) float32."""


class RawPixels:
    """The baseline every encoder has to beat: the pixels themselves, D = 3 H W."""

    def __init__(self, image_size: int) -> None:
        self.image_size = image_size

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(B, H, W, 3) uint8 -> (B, 3 H W) float32 in [0, 1]."""
        return pixels.reshape(len(pixels), -1).astype(np.float32) / 255


@dataclass(frozen=True)
class Features:
    """Rows (n, D) float32 and their labels (n,)."""

    rows: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


def extract(encoder: PixelEncoder, split: Split, *, batch_size: int = 256, progress: str = "") -> Features:
    """Features of the labelled images of `split`, which is brought to the encoder's image size.

    Raises BadData if no image has a label or a feature is not finite.
    """
    labelled = np.flatnonzero(split.labels >= 0)
    if not len(labelled):
        raise BadData(f"the {split.split} split of {split.dataset} has no labels; evaluation needs them")
    rows = []
    for start in tqdm(range(0, len(labelled), batch_size), desc=progress, leave=False, disable=not progress):
        pixels = split.pixels[labelled[start : start + batch_size]]
        rows.append(encoder.embed_pixels(_resized(pixels, encoder.image_size)))
    features = np.concatenate(rows)
    if not np.isfinite(features).all():
        bad = np.count_nonzero(~np.isfinite(features).all(1))
        raise BadData(f"{bad} of {len(features)} features are not finite; did the training diverge?")
    return Features(features, split.labels[labelled])


def _resized(pixels: np.ndarray, size: int) -> np.ndarray:
    """(B, H, W, 3) uint8 brought to size x size by the one preprocessing."""
    if pixels.shape[1:3] == (size, size):
        return pixels
    return np.stack([np.asarray(fit(Image.fromarray(image), image_size=size)) for image in pixels])
