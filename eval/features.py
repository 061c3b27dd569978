"""Features once: an encoder's output for every labelled image of a split, in the split's order."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from tqdm import tqdm

from zoo.errors import BadData
from zoo.images.image_set import ImageSet
from zoo.images.opening import LARGEST_CACHED

BATCH = 256  # images of up to LARGEST_CACHED px; of larger ones fewer, with as many pixels


class PixelEncoder(Protocol):
    """What evaluation needs of an encoder; `zoo.model.encoder.Encoder` has it."""

    image_size: int

    @property
    def dim(self) -> int:
        """Length of a feature, D."""

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(B, H, W, 3) uint8 -> (B, D) float32."""


class RawPixels:
    """The baseline every encoder has to beat: the pixels themselves, D = 3 H W."""

    def __init__(self, image_size: int) -> None:
        self.image_size = image_size
        self.dim = 3 * image_size**2

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(B, H, W, 3) uint8 -> (B, 3 H W) float32 in [0, 1]."""
        return pixels.reshape(len(pixels), -1).astype(np.float32) / 255


@dataclass(frozen=True)
class Features:
    """Rows (n, D) float32 and their labels, (n,) or (n, C), as an `ImageSet`'s."""

    rows: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


def extract(encoder: PixelEncoder, split: ImageSet, *, batch_size: int | None = None, progress: str = "") -> Features:
    """Features of the labelled images of `split`, which is brought to the encoder's image size.

    batch_size: by default `batch_of` the encoder. Raises BadData if no image has a label or a feature is not finite.
    """
    index, batch_size = labelled(split), batch_size or batch_of(encoder.image_size)
    starts = range(0, len(index), batch_size)
    batches: Iterable[int] = tqdm(starts, desc=progress, leave=False, disable=not progress)
    rows = [embed_rows(encoder, split, index[start : start + batch_size]) for start in batches]
    return Features(np.concatenate(rows), split.labels[index])


def batch_of(image_size: int) -> int:
    """Images of a batch whose activations take some hundred MB, whatever their size in pixels."""
    return max(1, min(BATCH, BATCH * LARGEST_CACHED**2 // image_size**2))


def labelled(split: ImageSet) -> np.ndarray:
    """Indices (n,) of the images that have a label. Raises BadData if none has."""
    index = np.flatnonzero(has_label(split.labels))
    if not len(index):
        raise BadData(f"the {split.split} split of {split.name} has no labels; evaluation needs them")
    return index


def has_label(labels: np.ndarray) -> np.ndarray:
    """(n,) bool; of several labels an image, one has to be known."""
    known = labels >= 0
    return known if labels.ndim == 1 else np.asarray(known.any(1))


def embed_rows(encoder: PixelEncoder, split: ImageSet, index: np.ndarray) -> np.ndarray:
    """Features (B, D) float32 of the images `index` of a split. Raises BadData if one is not finite."""
    features = encoder.embed_pixels(split.pixels(encoder.image_size)[index])
    bad = np.count_nonzero(~np.isfinite(features).all(1))
    if bad:
        raise BadData(f"{bad} of {len(features)} features are not finite; did the training diverge?")
    return features
